"""Read a run that measured storage: it is in no ranking."""

from __future__ import annotations

from dataclasses import replace

from analysis.load.ended import Submissions, refuse_unfinished
from analysis.load.run_files import Contents, UnusableError
from analysis.metrics.node_use import node_use_values, read_node_use
from analysis.metrics.storage import read_storage
from analysis.metrics.tested_storage import storage_test_values
from analysis.run import RunResult
from jobs.rundir import RunDir

TESTED = "measured storage and trained nothing; its results are in the section Storage tests"


def read(run: RunResult, _contents: Contents, _submissions: Submissions) -> RunResult:
    """Return a run with the results of its test. Raise UnusableError if it has not ended or measured nothing."""
    refuse_unfinished(run, last=None)
    directory = RunDir(run.path)
    found, storage = storage_test_values(directory, run.events), read_storage(directory)
    if not found:
        raise UnusableError("unmeasured", "neither status.jsonl nor storage-results/ has a measurement of storage")
    nodes = read_node_use(directory)
    values = {**found, **node_use_values(nodes), **(storage.values if storage else {})}
    return replace(run, state="tested", reason=TESTED, values=values, storage=storage, node_use=nodes)

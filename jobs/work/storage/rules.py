"""Rules of runs that measure storage. Checked at composition, so without torch and the storage."""

from __future__ import annotations

from jobs.plan.rules.rule import Rule, either
from jobs.schema import Run
from jobs.settings.storage import DataFormat
from jobs.work.storage.space import memory_refusal

TESTS = {"checkpoint": "checkpoint_io", "data": "data_read", "fio": "fio"}
"""Sections of `storage`, and the job that has each."""


def one_test(run: Run) -> str | None:
    """Require one test of storage, and no training in the same run."""
    assert run.storage is not None
    given = [name for name in TESTS if getattr(run.storage, name) is not None]
    if len(given) != 1:
        return (
            f"storage has {' and '.join(given) or 'no test'}; a run needs one. Set job={either(TESTS.values())}, "
            "and no other section of storage."
        )
    if run.job.train:
        return f"storage.{given[0]} measures storage, and job.train=true trains. Set job.train=false."
    return None


def files_occupy_workers(run: Run) -> str | None:
    """Require a file for each reader: text and tar are read from front to back."""
    assert run.storage is not None
    data = run.storage.data
    if data is None or data.path is not None or data.format is DataFormat.megatron_binary:
        return None
    readers = run.ranks * max(1, data.workers)
    if data.files < readers:
        return (
            f"storage.data.files={data.files}, and {run.ranks} ranks x {max(1, data.workers)} workers = {readers} "
            f"readers each need one. Set storage.data.files={readers} or more, or fewer workers."
        )
    if data.samples < data.files:
        return (
            f"storage.data.samples={data.samples} do not fill storage.data.files={data.files}. Set "
            f"storage.data.samples={data.files} or more."
        )
    return None


def tensors_fit_node(run: Run) -> str | None:
    """Require the memory that the cluster gives a job on a node to hold the tensors of its ranks."""
    memory_gb = run.cluster.memory_gb_per_node
    return memory_refusal(run, memory_gb * 1e9, "cluster.memory_gb_per_node is") if memory_gb else None


VALUES: tuple[Rule, ...] = (
    one_test,
    files_occupy_workers,
)
# It counts the weights of a rank, so the layout must be legal.
RULES: tuple[Rule, ...] = (tensors_fit_node,)

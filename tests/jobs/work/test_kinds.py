"""The contract of every kind of work: each job of conf/job has a kind, whose object answers without torch."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path

import pytest

from analysis.load.discover import read_runs
from jobs.work.work import kind_of, work_of
from tests.support.composing import one, options
from tests.support.paths import ROOT
from tests.support.real_run import make_run

# What a job needs besides its file on this machine.
NEEDS = {
    "evaluate": ("ranks_per_node=1", "parallelism=single", "data=docstrings", "data.test_split=4"),
    "program": ("program=hpl",),
    "serve": ("engine=vllm",),
}


def given(job: str) -> tuple[str, ...]:
    return (f"job={job}", *NEEDS.get(job, ()))


def test_every_kind_of_work_is_that_of_a_job() -> None:
    kinds = {file.parent.name for file in (ROOT / "jobs/work").glob("*/work.py")}
    assert {kind_of(one(*given(job)).run) for job in options("job")} == kinds


@pytest.mark.parametrize("job", options("job"))
def test_the_kind_of_a_job_answers_plan_and_submission_and_its_run_directory_is_read(job: str, tmp_path: Path) -> None:
    run = one(*given(job)).run
    work = work_of(run)
    training = work_of(one(*given("pretrain")).run)
    # A training has the entry of its engine.
    if work is not training:
        module, _, function = work.entry_point.partition(":")
        found = find_spec(module)
        assert found is not None
        assert found.origin is not None
        defined = ast.parse(Path(found.origin).read_text()).body
        assert function in {each.name for each in defined if isinstance(each, ast.FunctionDef)}
    assert min(work.parameters(run), work.checkpoint_bytes(run), work.rank_bytes(run)) >= 0
    assert work.drawn_layout(run)[0].shape
    assert all(isinstance(text, str) for pair in [*work.columns(run).items(), *work.notes(run)] for text in pair)
    assert all(rule(run) is None for rule in [*work.value_rules(), *work.layout_rules()])
    assert all(word for words in work.executes(run).values() for word in words)
    assert not [path for path in work.directories(run) if not isinstance(path, Path)]
    assert work.packages(run) or job == "program", "a program brings its own packages"
    (row,) = read_runs([make_run(tmp_path, *given(job), small=False).path])
    assert (row.used, bool(row.reason)) == (False, True)

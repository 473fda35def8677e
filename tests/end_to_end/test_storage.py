"""Tests of storage through Slurm, on two emulated nodes."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from jobs.cli import main
from jobs.rundir import SweepDir
from tests.support.cli import printed
from tests.support.real_run import SMALL, events

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.slurm]
SHAPE = tuple(each for each in SMALL if each.startswith(("model.", "job.sequence_length")))


@pytest.mark.usefixtures("empty_queue")
@pytest.mark.parametrize(
    ("overrides", "kinds", "column"),
    [
        ([*SHAPE, "job=checkpoint_io", "parallelism=fsdp_full", "storage.checkpoint.repeats=1"],
         ["checkpoint_written", "checkpoint_read"], "checkpoint_size_bytes"),
        (["job=data_read", "storage.data.format=tar", "storage.data.files=4", "storage.data.samples=64",
          "storage.data.sample_bytes=20000", "storage.data.workers=1"],
         ["data_read", "data_read"], "data_read_warm_samples_per_s"),
    ],
)  # fmt: skip
def test_ranks_of_two_nodes_of_slurm_measure_a_storage_and_leave_nothing_on_it(
    overrides: list[str], kinds: list[str], column: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    storage = tmp_path / "storage"
    storage.mkdir()
    given = [*overrides, f"runs_dir={tmp_path}/runs", "sweep=s", "cluster=generic_slurm", "nodes=2",
             "ranks_per_node=1", f"storage.path={storage}"]  # fmt: skip
    assert main(["submit", "--wait", *given]) == 0, printed(capsys)
    sweep = SweepDir(tmp_path / "runs/s")
    (run,) = sweep.runs()
    found = [event for kind in dict.fromkeys(kinds) for event in events(run, kind)]
    assert [event["event"] for event in found] == kinds
    assert all(len(event["ranks"]) == 2 for event in found)  # type: ignore[arg-type]  # a list, which events do not declare
    assert list(storage.iterdir()) == []
    assert main(["report", str(sweep.path)]) == 0
    (row,) = csv.DictReader((sweep.path / "runs.csv").read_text().splitlines())
    assert row["state"] == "tested"
    assert float(row[column]) > 0

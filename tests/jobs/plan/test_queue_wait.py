"""The wait in the queue, shown from the waits of earlier jobs of about the same size in the same partition."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jobs.cli import main
from jobs.plan.predict.queue import QueueWait, queue_wait
from jobs.schema import LauncherKind, Run
from tests.support.composing import one, refusal
from tests.support.fake_events import clock, compute, meet, submit
from tests.support.fake_runs import a_run, ended, prepared

CLUSTER = ("cluster=xe9680_h100", "cluster.partition=gpu", "model=tiny", "data=random")


def waited(place: Path, name: str, wait_s: float, *, nodes: int = 2, launcher: str = "slurm", **changed: Any) -> None:
    """A finished run of a cluster that was in the queue for some time."""
    like = one(*CLUSTER).run
    run = replace(a_run(name, nodes=nodes, steps=6), cluster=like.cluster, gpu=like.gpu)
    run = replace(run, launcher=replace(like.launcher, kind=LauncherKind[launcher], **changed))
    directory = prepared(place, run)
    submit(directory, 0, launcher)
    meet(directory, wait_s + 4, startup=4, ranks=run.ranks)
    compute(directory, 1, 6)
    ended(directory, time=clock(wait_s + 30))


def calibrated(tmp_path: Path) -> str:
    """The override that chooses a calibration of all runs."""
    file = tmp_path / "calibration.yaml"
    assert main(["calibrate", str(tmp_path / "runs"), "--output", str(file)]) == 0
    return f"cluster.calibration={file}"


def wait_of(calibration: str, *overrides: str) -> QueueWait | str | None:
    run: Run = one(*CLUSTER, calibration, "launcher=slurm", *overrides).run
    return queue_wait(run)


def test_the_plan_says_how_long_earlier_jobs_of_about_that_size_waited(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(10):
        waited(tmp_path / "runs", f"r{number}", 60 * (number + 1), nodes=2 + number % 2)
    waited(tmp_path / "runs", "large", 86400, nodes=16)
    # These measure something else: a shared job, and the turns of an array.
    waited(tmp_path / "runs", "pilot", 9, launcher="pilot")
    waited(tmp_path / "runs", "turns", 9, max_running=1)
    chosen = calibrated(tmp_path)
    assert "xe9680_h100, partition gpu: 11 waits in the queue" in capsys.readouterr().out
    assert main(["plan", *CLUSTER, chosen, "launcher=slurm", "nodes=2"]) == 0
    # The 10th of 10: a further one exceeds it with a probability of 1 / 11.
    assert "): of 10 jobs on 2 to 3 nodes, half waited at most 5.5 min, nine of ten at most 10 min" in (
        capsys.readouterr().out
    )
    assert wait_of(chosen, "nodes=32") == (
        "unknown: the calibration has 1 wait of jobs of 16 to 64 nodes in this partition, and 5 give it"
    )
    assert wait_of(chosen, "nodes=2", "cluster.partition=other") is None
    pilot = ("launcher=pilot", "launcher.pilot_nodes=2", "launcher.pilot_wall_time_min=90")
    assert wait_of(chosen, "nodes=2", *pilot) is None, "its points wait in the pilot's job"


def test_few_waits_have_no_ninth_of_ten(tmp_path: Path) -> None:
    for number in range(5):
        waited(tmp_path / "runs", f"r{number}", 10 + number)
    found = wait_of(calibrated(tmp_path), "nodes=2")
    assert found == QueueWait(median_s=12, most_s=None, longest_s=14, count=5, sizes=(2, 2))


def test_a_file_with_a_wait_that_is_no_time_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "calibration.yaml"
    file.write_text("fits: []\nqueues: [{cluster: c, partition: p, times: [[2, -1]]}]\n")
    assert "time_s is -1, not a number above 0" in refusal(*CLUSTER, f"cluster.calibration={file}")

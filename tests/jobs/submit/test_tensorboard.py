"""`slurmscale watch --tensorboard`: curves that TensorBoard's own reader finds, without steps that were repeated."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from jobs.cli import main
from jobs.rundir import RunDir, SweepDir, append_record
from jobs.submit.watching.tensorboard import Curves
from tests.support.fake_runs import a_run, ended, finished_run, prepared, started, step

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def curves_of(run: str, sweep: Path) -> Any:
    """Return the scalars of a run, by TensorBoard's reader."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = reader.EventAccumulator(str(sweep / "tensorboard" / run))
    found.Reload()
    return found


def with_node(run: RunDir) -> None:
    file = run.storage_log("rank-00000")
    file.parent.mkdir()
    append_record(file, {"node": "gpu00", "node_number": 0})
    for second in (10, 20):
        record = {"time_s": 1_767_322_800.0 + second, "interval_s": 10.0, "phase": "train", "node_gpu_s": 9.0}
        append_record(file, record)


def test_the_curves_of_a_sweep_are_those_of_its_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with_node(finished_run(tmp_path, a_run("r"), step_time_s=0.5, tokens=1024))
    for _ in range(2):  # a second call replaces the first one's
        assert main(["watch", "--tensorboard", str(tmp_path)]) == 0
    assert f"tensorboard --logdir {tmp_path}/tensorboard" in capsys.readouterr().out
    found = curves_of("r", tmp_path)
    losses = found.Scalars("loss")
    assert [each.step for each in losses] == [1, 2, 3, 4, 5, 6]
    assert losses[1].value == pytest.approx(4.0)
    assert found.Scalars("tokens_per_s")[-1].value == pytest.approx(2048)
    assert [(each.step, each.value) for each in curves_of("r/nodes", tmp_path).Scalars("node_gpu_busy/node_0")] == [
        (0, pytest.approx(0.9)),
        (10, pytest.approx(0.9)),
    ]


def test_a_run_that_goes_on_is_written_step_by_step_and_repeated_steps_once(tmp_path: Path) -> None:
    run = a_run("r")
    directory = prepared(tmp_path, run)
    with_node(directory)
    curves = Curves(SweepDir(tmp_path))
    started(directory, run)
    for number in (1, 2, 3, 4):
        step(directory, number)
    curves.update()
    with directory.metrics.open("a") as file:
        file.write('{"step": 5, "los')  # a line that is being written
    curves.update()
    assert [each.step for each in curves_of("r", tmp_path).Scalars("loss")] == [1, 2, 3, 4]
    started(directory, run, attempt=2, from_step=2)
    for number in (3, 4, 5):
        step(directory, number, attempt=2, loss=1.0)
    ended(directory, attempt=2)
    curves.update()
    found = curves_of("r", tmp_path).Scalars("loss")
    assert [each.step for each in found] == [1, 2, 3, 4, 5]
    assert [each.value for each in found[2:]] == [1.0, 1.0, 1.0]
    assert len(curves_of("r/nodes", tmp_path).Scalars("node_gpu_busy/node_0")) == 2


def test_without_the_package_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    finished_run(tmp_path, a_run("r"))
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    assert main(["watch", "--tensorboard", str(tmp_path)]) == 2
    assert "--tensorboard needs the package tensorboard" in capsys.readouterr().err
    assert not (tmp_path / "tensorboard").exists()

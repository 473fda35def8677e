"""A run that must keep the losses of another one ends as diverged when it leaves them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from jobs.errors import ConfigError
from jobs.failure_causes import FailureCause, recorded_cause
from jobs.loss_band import Gate, recorded_losses
from jobs.rundir import RunDir
from jobs.schema import LossBand
from tests.support.real_run import events, losses, make_run, printed, train

COMMON = ("parallelism=fsdp_full", "ranks_per_node=2", "job.steps=8", "job.checkpoint_every_steps=2")


def band(reference: Path, percent: float, steps: int = 3) -> list[str]:
    return [f"job.loss_band.reference={reference}", f"job.loss_band.percent={percent}", f"job.loss_band.steps={steps}"]


@pytest.fixture(scope="module")
def trusted(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """A run in float32."""
    run = make_run(tmp_path_factory.mktemp("trusted"), "name=trusted", *COMMON)
    assert train(run) == [0, 0], printed(run)
    return run


@pytest.mark.slow
def test_a_run_outside_the_band_ends_as_diverged_and_keeps_its_checkpoints(trusted: RunDir, tmp_path: Path) -> None:
    # bfloat16 is near float32, but not within a thousandth of a per cent.
    run = make_run(tmp_path, *COMMON, "job.precision=bfloat16", *band(trusted.path, 0.001))
    assert train(run) == [1, 1], printed(run)
    (failed, _) = events(run, "failed")
    assert recorded_cause(failed) is FailureCause.diverged
    words, step = str(failed["error"]), int(str(failed["step"]))
    assert 3 <= step < 8
    assert words.startswith(f"diverged at step {step}: the mean loss of steps {step - 2} to {step} is ")
    assert f"of {trusted.path} (job.loss_band.percent=0.001). Set engine.float8=false, another" in words
    assert max(path.name for path in run.checkpoints.iterdir()) == f"step-{(step - 1) // 2 * 2:08d}"


@pytest.mark.slow
def test_a_run_inside_the_band_ends_as_any_other(trusted: RunDir, tmp_path: Path) -> None:
    run = make_run(tmp_path, *COMMON, "job.precision=bfloat16", *band(trusted.path, 1))
    assert train(run) == [0, 0], printed(run)
    assert losses(run) != losses(trusted)


@pytest.mark.slow
def test_a_node_that_does_not_see_the_reference_ends_the_run_with_the_reason(trusted: RunDir, tmp_path: Path) -> None:
    reference = RunDir(shutil.copytree(trusted.path, tmp_path / "reference"))
    run = make_run(tmp_path, *COMMON, *band(reference.path, 1))
    reference.metrics.unlink()
    assert train(run) == [1, 1], printed(run)
    assert {str(event["error"]).partition(": ")[2] for event in events(run, "failed")} == {
        f"job.loss_band.reference={reference.path} has the losses of 0 steps on this node, and job.loss_band.steps=3. "
        "Set it to a directory that all nodes see, or null."
    }


def test_means_of_steps_are_compared_with_those_that_the_reference_has() -> None:
    gate = Gate(LossBand(reference="/runs/a", percent=1, steps=2), {1: 4.0, 2: 4.0, 3: 4.0, 5: 4.0})
    # One step far off is noise that the mean of two takes.
    assert [gate.left(step, loss) for step, loss in ((1, 4.1), (2, 3.96), (4, 9.0), (5, 9.0))] == [""] * 4
    gate = Gate(gate.band, gate.expected)
    assert gate.left(2, 3.9) == ""
    assert gate.left(3, 3.9) == (
        "the mean loss of steps 2 to 3 is 3.9, 2.5 % below the 4 of /runs/a (job.loss_band.percent=1)"
    )


def test_a_reference_must_be_the_same_run_but_for_its_arithmetic(trusted: RunDir, tmp_path: Path) -> None:
    refusals = (
        (band(tmp_path, 1), "is not a run directory"),
        (
            band(trusted.path, 1, steps=9),
            "has the losses of 8 steps, and job.loss_band.steps=9. Set it to a longer run, job.loss_band.steps=8 or",
        ),
        (band(trusted.path, 0), "job.loss_band.percent=0"),
        (
            [*band(trusted.path, 1), "job.learning_rate=0.5"],
            "has other settings that the loss follows from: job.learning_rate=",
        ),
        (
            band(trusted.path, 1)[1:],
            "have no effect without a reference. Set job.loss_band.percent=1 job.loss_band.steps=20, or",
        ),
    )
    for number, (overrides, words) in enumerate(refusals):
        with pytest.raises(ConfigError) as refused:
            make_run(tmp_path / str(number), *COMMON, *overrides)
        assert words in " ".join(str(refused.value).split())
    assert sorted(recorded_losses(trusted.path)) == list(range(1, 9))

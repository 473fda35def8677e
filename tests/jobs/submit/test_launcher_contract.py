"""The contract of every launcher: a new entry of LauncherKind is tested here."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.cli import main
from jobs.plan.compose import compose
from jobs.rundir import SweepDir
from jobs.schema import LauncherKind
from jobs.submit.launchers import launcher_of
from jobs.submit.launchers.launcher import Launch
from jobs.submit.preparation.prepare import prepared
from jobs.submit.states import State, states
from jobs.submit.sweeps.submissions import latest_submissions
from tests.support.cli import files, printed, small
from tests.support.slurm.held import held_by_slurm
from tests.support.waiting import wait_until

# What a launcher needs to start a run.
NEEDS = {
    LauncherKind.local: ("cluster=local", "nodes=1"),
    **dict.fromkeys(
        (LauncherKind.pilot, LauncherKind.pbs_pilot), ("launcher.pilot_nodes=2", "launcher.pilot_wall_time_min=90")
    ),
}
OF_SLURM = {LauncherKind.slurm, LauncherKind.pilot, LauncherKind.here}


def kinds(*, that_start: bool) -> list[object]:
    """The launchers, or those that start runs; each with what it needs on this machine."""
    some = [kind for kind in LauncherKind if kind.starts_runs or not that_start]
    return [pytest.param(kind, marks=[pytest.mark.slurm] if kind in OF_SLURM else []) for kind in some]


def chosen(kind: LauncherKind, request: pytest.FixtureRequest) -> list[str]:
    """The overrides that choose a launcher."""
    if kind in OF_SLURM:
        request.getfixturevalue("empty_queue")
    if kind.scheduler == "PBS":
        request.getfixturevalue("pbs")
    if kind is LauncherKind.here:
        request.getfixturevalue("monkeypatch").setenv("SLURM_JOB_ID", held_by_slurm(2))
    return ["cluster=generic_slurm", f"launcher={kind.name}", "name=one", *NEEDS.get(kind, ())]


@pytest.mark.parametrize("kind", kinds(that_start=False))
def test_every_launcher_shows_what_it_would_start_and_knows_of_nothing_else(
    kind: LauncherKind, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    points = compose([*small(tmp_path), "nodes=2", *chosen(kind, request)], multirun=False)
    launcher = launcher_of(kind)
    launcher.check([points[0].run])
    with prepared(points) as made:
        before = files(tmp_path)
        shown = launcher.preview(Launch(made.sweep, made.runs))
        assert "one" in "\n".join(shown)
        assert (launcher.states([]), launcher.ends([]), launcher.unlisted({})) == ({}, {}, {})
        launcher.cancel(made.sweep, ())
        assert files(tmp_path) == before, "a preview writes nothing"


@pytest.mark.slow
@pytest.mark.parametrize("kind", kinds(that_start=True))
def test_a_run_is_started_recorded_waited_for_and_over(
    kind: LauncherKind, tmp_path: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [*small(tmp_path), "job.steps=2", "job.warmup_steps=0", *chosen(kind, request)]
    assert main(["submit", "--wait", *given]) == 0, printed(capsys)
    sweep, launcher = SweepDir(tmp_path / "s"), launcher_of(kind)
    (found,) = states(sweep)
    assert found.state is State.finished
    (known,) = latest_submissions(sweep).values()
    assert known.launcher == kind.name
    wait_until(lambda: known.asked_as not in launcher.states([known]))
    launcher.cancel(sweep, [known.job_id])
    record = sweep.submissions.read_bytes()
    assert main(["resume", "--wait", str(sweep.path)]) == 0
    assert states(sweep)[0].state is State.finished, "a job that is over cannot be cancelled"
    assert sweep.submissions.read_bytes() == record, "a finished run is not started again"

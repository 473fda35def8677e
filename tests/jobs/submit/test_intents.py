"""No job that nobody knows: whatever ends the shell between sbatch and the ledger, the ledger equals Slurm."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from jobs.cli import main
from jobs.rundir import SweepDir, append_record, read_records
from jobs.submit.stage_states import stage_states
from jobs.submit.states import State, states
from jobs.submit.sweeps.intents import settle
from jobs.submit.sweeps.submissions import intents
from tests.support.cli import printed, run_cli, small
from tests.support.interrupted import dying_shell
from tests.support.slurm.cluster import SlurmCluster
from tests.support.training import long
from tests.support.waiting import limit_s, wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("empty_queue")]

LATER = "cluster.sbatch={begin: now+1hour}"
KINDS = {
    "runs": ["repeat=1,2,3"],
    "one run": ["repeat=1"],
    "stages": ["repeat=1,2", "stages=all", "data.held_out_samples=8", "job.checkpoint_every_steps=2"],
    "pilot": ["repeat=1,2", "launcher=pilot", "launcher.pilot_nodes=1", "launcher.pilot_wall_time_min=60",
              "wall_time_min=10"],
}  # fmt: skip


def sweep_of(where: Path, *more: str) -> list[str]:
    return ["submit", "-m", *small(where), "cluster=generic_slurm", *more]


def die(where: Path, moment: str, signal_name: str, *arguments: str) -> tuple[int, str]:
    shell = dying_shell(where, moment, signal_name, *arguments)
    output, _ = shell.communicate(timeout=limit_s(180))
    return shell.returncode, output


def queue() -> list[str]:
    return subprocess.run(["squeue", "-h", "-r", "-o", "%i"], check=True, capture_output=True, text=True).stdout.split()


def on_record(sweep: SweepDir) -> set[str]:
    events = {"submitted", "stage_submitted"}
    return {str(record["job_id"]) for record in read_records(sweep.submissions) if record["event"] in events}


def submissions(sweep: SweepDir) -> Counter[str]:
    return Counter(record["run"] for record in read_records(sweep.submissions) if record["event"] == "submitted")


def latest_jobs(sweep: SweepDir) -> set[str]:
    return {str(item.job_id) for item in states(sweep)} | {item.job_id for item in stage_states(sweep)}


def age_the_ledger(sweep: SweepDir) -> None:
    """Let all that is on record have happened an hour ago."""
    long_ago = (datetime.now(UTC) - timedelta(hours=1)).isoformat(timespec="milliseconds")
    records = [record | {"time": long_ago} for record in read_records(sweep.submissions)]
    sweep.submissions.write_text("".join(json.dumps(record) + "\n" for record in records))


@pytest.mark.parametrize(
    ("host", "age_min", "is_given_up"),
    [
        (socket.gethostname(), 1, False),
        (socket.gethostname(), 3, True),
        ("login2", 3, False),
        ("login2", -9, False),
        ("login2", 14, True),
    ],
)
def test_an_intent_of_another_host_is_given_up_only_when_its_clock_may_not_be_behind(
    host: str, age_min: float, is_given_up: bool, tmp_path: Path
) -> None:
    sweep = SweepDir(tmp_path)
    written = (datetime.now(UTC) - timedelta(minutes=age_min)).isoformat(timespec="milliseconds")
    task = {"event": "submitted", "run": "r", "events_before": 1}
    append_record(sweep.submissions, {"event": "intended", "mark": "s-0a1b2c3d", "launcher": "slurm", "host": host,
                                      "time": written, "tasks": [task], "array": False})  # fmt: skip
    assert bool(settle(sweep)) is is_given_up
    assert bool(intents(sweep)) is not is_given_up


# --- a shell that dies ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["runs", long("one run"), long("stages"), "pilot"])
def test_the_job_of_a_shell_killed_after_sbatch_is_adopted_once_and_never_doubled(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = SweepDir(tmp_path / "s")
    code, _ = die(tmp_path, "after", "KILL", *sweep_of(tmp_path, *KINDS[kind], LATER))
    assert code == -signal.SIGKILL
    assert queue()
    assert main(["status", str(sweep.path)]) == 0
    assert "whose submission was interrupted" in printed(capsys)
    assert on_record(sweep) == set(queue())
    assert main(["status", str(sweep.path)]) == 0
    assert "whose submission was interrupted" not in printed(capsys), "it is reported once"
    assert main(["resume", str(sweep.path)]) == 0
    wait_until(lambda: set(queue()) == latest_jobs(sweep))
    assert set(submissions(sweep).values()) == {1}, "no run has two jobs"
    assert main(["cancel", str(sweep.path)]) == 0
    wait_until(lambda: not queue())


def test_an_sbatch_that_outlives_its_shell_is_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = SweepDir(tmp_path / "s")
    die(tmp_path, "before", "KILL", *sweep_of(tmp_path, "repeat=1,2", LATER))
    assert main(["resume", str(sweep.path)]) == 0
    assert "2 runs: 2 queued; 0 to resume" in printed(capsys)
    (tmp_path / "go").touch()
    wait_until(lambda: len(queue()) == 2)
    assert main(["resume", str(sweep.path)]) == 0
    assert on_record(sweep) == set(queue())
    assert len(queue()) == 2


def test_a_job_that_never_came_is_given_up_after_a_while_and_submitted_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = SweepDir(tmp_path / "s")
    die(tmp_path, "instead", "KILL", *sweep_of(tmp_path, "repeat=1,2", LATER))
    assert main(["status", str(sweep.path)]) == 0
    shown = " ".join(printed(capsys).split())
    assert "its submission was interrupted" in shown
    assert "2 runs: 2 queued" in shown
    age_the_ledger(sweep)
    assert main(["resume", str(sweep.path)]) == 0
    assert "2 runs: 2 prepared; 2 to resume" in printed(capsys)
    assert on_record(sweep) == set(queue())
    assert len(queue()) == 2


def test_a_cancelled_run_whose_job_appears_later_is_cancelled_then(tmp_path: Path) -> None:
    sweep = SweepDir(tmp_path / "s")
    die(tmp_path, "before", "KILL", *sweep_of(tmp_path, "repeat=1,2", LATER))
    assert main(["cancel", str(sweep.path)]) == 0
    (tmp_path / "go").touch()
    wait_until(queue)
    assert main(["status", str(sweep.path)]) == 0
    wait_until(lambda: not queue())
    assert [item.state for item in states(sweep)] == [State.cancelled] * 2


@pytest.mark.long
@pytest.mark.slow
def test_a_job_that_runs_while_nobody_looks_adopts_itself_and_the_next_look_reports_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = SweepDir(tmp_path / "s")
    die(tmp_path, "after", "KILL", *sweep_of(tmp_path, "repeat=1,2"))
    wait_until(lambda: not queue())
    assert submissions(sweep) == {"tiny-ddp-n1x1-r1": 1, "tiny-ddp-n1x1-r2": 1}
    assert [item.state for item in states(sweep)] == [State.finished] * 2
    for reported in (1, 0):
        assert main(["status", str(sweep.path)]) == 0
        assert printed(capsys).count("whose submission was interrupted") == reported


@pytest.mark.parametrize(("name", "code"), [long("INT", 130), ("TERM", 143), long("HUP", 129)])
def test_a_signal_between_sbatch_and_the_ledger_takes_effect_after_the_record(
    name: str, code: int, tmp_path: Path
) -> None:
    sweep = SweepDir(tmp_path / "s")
    ended, output = die(tmp_path, "after", name, *sweep_of(tmp_path, "nodes=1,2", LATER))
    assert ended == code, output
    assert "Interrupted: 1 of 2 runs were submitted and are on record." in output
    assert on_record(sweep) == set(queue())


# --- cancel --------------------------------------------------------------------------------------------------


def test_cancel_of_a_received_folder_ends_no_job_that_is_not_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own, received = SweepDir(tmp_path / "own/s"), SweepDir(tmp_path / "received/s")
    assert main(sweep_of(own.path.parent, "repeat=1", LATER)) == 0
    assert main([*sweep_of(received.path.parent, "repeat=1"), "launcher=script"]) == 0
    (job_id,) = queue()
    received.submissions.write_text(own.submissions.read_text())
    printed(capsys)
    assert main(["cancel", str(received.path)]) == 2
    message = " ".join(printed(capsys).split())
    assert f"{received.path} names job {job_id}, but Slurm has {own.path}/logs/" in message
    assert f"Nothing was cancelled. If you want to end it, run `scancel {job_id}`." in message
    assert queue() == [job_id]
    assert main(["cancel", str(own.path)]) == 0
    wait_until(lambda: not queue())


@pytest.mark.long
def test_a_cancel_that_slurm_did_not_get_is_not_on_record(
    slurm: SlurmCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = SweepDir(tmp_path / "s")
    assert main(sweep_of(tmp_path, "repeat=1,2", LATER)) == 0
    slurm.shut_down("slurmctld")
    try:
        assert main(["cancel", str(sweep.path)]) == 2
    finally:
        slurm.start_again("slurmctld")
    wait_until(lambda: subprocess.run(["scontrol", "ping"], check=False, capture_output=True).returncode == 0)
    wait_until(lambda: len(queue()) == 2)
    assert not any(record["event"] == "cancelled" for record in read_records(sweep.submissions))
    printed(capsys)
    assert main(["cancel", str(sweep.path)]) == 0
    assert "cancelled 2 runs" in printed(capsys)
    wait_until(lambda: not queue())


def test_the_runs_of_an_array_are_cancelled_by_one_call_and_one_record(tmp_path: Path) -> None:
    sweep = SweepDir(tmp_path / "s")
    assert main(sweep_of(tmp_path, "repeat=range(1,41)", LATER)) == 0
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "scancel").write_text(f'#!/bin/bash\necho "$@" >> {programs}/calls\nexec /usr/bin/scancel "$@"\n')
    (programs / "scancel").chmod(0o755)
    done = run_cli("cancel", str(sweep.path), PATH=f"{programs}:/usr/bin:/bin")
    assert "cancelled 40 runs" in done.stdout, done.stderr
    (array,) = {job_id.partition("_")[0] for job_id in on_record(sweep)}
    assert (programs / "calls").read_text() == f"--quiet {array}_[0-39]\n"
    assert [r["job_id"] for r in read_records(sweep.submissions) if r["event"] == "cancelled"] == [f"{array}_[0-39]"]
    wait_until(lambda: all(item.state is State.cancelled for item in states(sweep)))

"""`slurmscale status`: few calls however many runs, few rows, and no more certainty than there is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jobs.cli import main
from jobs.rundir import RunDir, SweepDir, append_record, now
from jobs.submit.commands import SLURM_POLL_S
from jobs.submit.states import END_GRACE_S, RunState, State, states
from jobs.submit.submissions import tasks_of
from tests.support.fake_runs import a_run, ended, event, finished_run, prepared, started
from tests.support.paths import ROOT
from tests.support.readme_text import README
from tests.support.slurm.cluster import SlurmCluster
from tests.support.waiting import wait_until

LONG_AGO = "2026-01-02T03:04:05.000+00:00"


def submitted(run: RunDir, job_id: str, at: str | None = None) -> RunDir:
    """Puts a submission on record."""
    record = {"time": at or now(), "event": "submitted", "run": run.name, "launcher": "slurm", "job_id": job_id}
    append_record(SweepDir(run.path.parent).submissions, record | {"events_before": 1, "host": "login"})
    return run


def a_submitted(sweep: Path, name: str, job_id: str, at: str | None = None) -> RunDir:
    return submitted(prepared(sweep, a_run(name)), job_id, at)


def silent_for_long(run: RunDir) -> None:
    past = time.time() - 2 * END_GRACE_S
    os.utime(run.status, (past, past))


def only(sweep: Path) -> RunState:
    (item,) = states(SweepDir(sweep))
    return item


def command(where: Path, name: str, script: str) -> None:
    where.mkdir(exist_ok=True)
    (where / name).write_text(f"#!/bin/bash\n{script}\n")
    (where / name).chmod(0o755)


# --- what it prints ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["status", "watch", "resume"])
def test_records_that_are_no_events_of_ours_are_passed_over(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = submitted(prepared(tmp_path, a_run()), "7")
    started(run, a_run())
    event(run, "finished", step=4)
    for odd in ({"time": "x"}, {"event": 7}, {"event": "failed"}, {"event": "stopped", "reason": None}):
        append_record(run.status, odd)
    unknown = [{"event": name, "run": "another", "log_id": "1"} for name in ("launched", "ended", "cancelled")]
    alone = [{"event": name} for name in ("submitted", "stage_submitted", "cancelled")]
    for record in [*alone, *unknown]:
        append_record(SweepDir(tmp_path).submissions, record)
    run.metrics.write_text('{"step": "x"}\n')
    run.plan.write_bytes(bytes(range(256)))
    assert main([command, str(tmp_path)]) == 0
    assert "1 run: 1 finished" in capsys.readouterr().out


@pytest.mark.parametrize("cut", ["sweep: s\n", 'name: "a', "\0"])
def test_a_configuration_that_is_damaged_is_told_so_and_does_not_matter_to_a_finished_run(
    cut: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = submitted(prepared(tmp_path, a_run()), "7")
    event(run, "finished", step=4)
    run.config.write_text(cut)
    assert main(["resume", str(tmp_path)]) == 0
    assert "1 run: 1 finished; 0 to resume" in capsys.readouterr().out
    assert main(["logs", str(run.path)]) == 2
    assert f"{run.config} is damaged or truncated: " in capsys.readouterr().err


@pytest.mark.parametrize("name", ["run/metrics.jsonl", "run/status.jsonl", "run", "submissions.jsonl"])
def test_what_may_not_be_read_is_named(name: str, tmp_path: Path) -> None:
    a_submitted(tmp_path, "run", "7").metrics.touch()
    (tmp_path / name).chmod(0)
    # Root reads everything, unless its capabilities are taken from it.
    bounded = ["setpriv", "--bounding-set=-all"] if os.geteuid() == 0 else []
    done = subprocess.run(
        [*bounded, sys.executable, "-m", "jobs.cli", "status", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    (tmp_path / name).chmod(0o700)
    assert done.returncode == 2
    assert done.stderr.startswith(f"slurmscale status: {tmp_path / name}")
    assert done.stderr.endswith(" cannot be read: permission denied\n")
    assert done.stderr.count("\n") == 1


def test_a_path_with_blanks_is_told_as_a_shell_takes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = prepared(tmp_path / "x z", a_run())
    assert main(["logs", str(run.path)]) == 2
    assert f"Run `slurmscale resume '{tmp_path}/x z'`." in capsys.readouterr().err


def test_a_long_sweep_shows_what_needs_a_person_and_counts_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(49):
        finished_run(tmp_path, a_run(f"fine-{number}", steps=1))
    event(prepared(tmp_path, a_run("broken")), "failed", rank=0, node="n", error="ValueError: no")
    assert main(["status", str(tmp_path)]) == 0
    assert "fine-48" in capsys.readouterr().out, "50 runs are shown whole"
    finished_run(tmp_path, a_run("one-more", steps=1))
    assert main(["status", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "broken  failed" in shown
    assert "fine-" not in shown
    assert f"not shown: 50 finished; `slurmscale status --all {tmp_path}` shows every run\n51 runs: " in shown
    assert main(["status", "--all", str(tmp_path)]) == 0
    assert "fine-48" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("row", "tasks"),
    [
        ("12", ["12"]),
        ("12_3", ["12_3"]),
        ("12_[0,2-4]", ["12_0", "12_2", "12_3", "12_4"]),
        ("12_[7-8%2]", ["12_7", "12_8"]),
    ],
)
def test_a_row_of_accounting_may_stand_for_many_tasks(row: str, tasks: list[str]) -> None:
    assert tasks_of(row) == tasks


@pytest.mark.parametrize(
    "slurm_state",
    ["PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT",
     "RESV_DEL_HOLD", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED", "SUSPENDED", "STATE_OF_A_LATER_SLURM"],
)  # fmt: skip
@pytest.mark.parametrize("end", [None, "stopped", "failed"])
def test_a_run_whose_job_slurm_still_has_is_alive_whatever_it_recorded(
    slurm_state: str, end: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command(tmp_path / "bin", "squeue", f"echo '7|{slurm_state}|N/A|None'")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    run = a_submitted(tmp_path / "s", "r", "7")
    started(run, a_run("r"))
    if end is not None:
        event(run, end, restart=0, reason="asked to end", error="ValueError", cause="killed", rank=0, node="n")
    assert only(tmp_path / "s").state.is_alive


# --- a real Slurm --------------------------------------------------------------------------------------------


def sbatch(*arguments: str) -> str:
    done = subprocess.run(["sbatch", "--parsable", "-o", "/dev/null", *arguments], capture_output=True, text=True,
                          check=True)  # fmt: skip
    return done.stdout.strip()


def queued(job_id: str) -> bool:
    done = subprocess.run(["squeue", "-h", "-j", job_id], capture_output=True, text=True, check=False)
    return bool(done.stdout.strip())


@pytest.fixture
def _own_queue(slurm: SlurmCluster) -> Iterator[None]:
    scancel, squeue = str(shutil.which("scancel")), str(shutil.which("squeue"))  # tests change PATH
    yield
    subprocess.run([scancel, "--me"], check=True)
    wait_until(lambda: not subprocess.run([squeue, "-h"], capture_output=True, check=True).stdout)


in_slurm = pytest.mark.usefixtures("_own_queue")


@in_slurm
@pytest.mark.slurm
def test_with_accounting_slurms_word_decides_even_for_tasks_cancelled_before_they_started(tmp_path: Path) -> None:
    failing = sbatch("--wrap", "exit 3")
    waiting = sbatch("--array=0-3", "--begin=now+1hour", "--wrap", "true")
    a_submitted(tmp_path, "failing", failing)
    for task in range(4):
        a_submitted(tmp_path, f"waits-{task}", f"{waiting}_{task}")
    assert [item.state for item in states(SweepDir(tmp_path))][1:] == [State.queued] * 4
    subprocess.run(["scancel", waiting], check=True)
    wait_until(lambda: {item.state for item in states(SweepDir(tmp_path))} == {State.failed, State.cancelled})
    assert states(SweepDir(tmp_path))[0].detail == "Slurm reports FAILED"


def without_sacct(where: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (where / "bin").mkdir()
    for name in ("squeue", "scontrol"):
        (where / "bin" / name).symlink_to(str(shutil.which(name)))
    monkeypatch.setenv("PATH", str(where / "bin"))
    return "accounting does not answer: sacct is not on this machine's PATH."


def sacct_that_fails(where: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    command(where / "bin", "sacct", 'echo "sacct: error: Problem talking to the database" >&2; exit 1')
    monkeypatch.setenv("PATH", f"{where}/bin:{os.environ['PATH']}")
    return "accounting does not answer: Problem talking to the database"


def sacct_that_is_late(where: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    command(where / "bin", "sacct", 'echo "${@: -1}|RUNNING"')
    monkeypatch.setenv("PATH", f"{where}/bin:{os.environ['PATH']}")
    return "accounting still reports RUNNING"


def records_purged(where: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    command(where / "bin", "sacct", f'exec {shutil.which("sacct")} "${{@:1:$#-1}}" 99999999')
    monkeypatch.setenv("PATH", f"{where}/bin:{os.environ['PATH']}")
    return "accounting has no record of it"


@in_slurm
@pytest.mark.slurm
@pytest.mark.parametrize("trouble", [without_sacct, sacct_that_fails, sacct_that_is_late, records_purged])
def test_a_run_without_an_end_is_lost_only_when_its_job_is_gone_and_it_was_silent_for_long(
    trouble: Callable[[Path, pytest.MonkeyPatch], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = sbatch("--wrap", "sleep 2")
    why = trouble(tmp_path, monkeypatch)
    sweep = tmp_path / "s"
    run = a_submitted(sweep, "r", job_id, at=LONG_AGO)
    silent_for_long(run)
    assert only(sweep).state is State.queued, "squeue has it"
    wait_until(lambda: only(sweep).state is not State.queued)
    assert only(sweep).state is State.lost
    assert f"its job is gone and recorded no end ({why})" in only(sweep).detail
    started(run, a_run("r"))
    assert only(sweep).state is State.ended, "it has just written something: its end may be on its way"
    assert only(sweep).detail == f"its job left the queue; its end is not known yet ({why})"
    ended(run, step=6)
    assert (only(sweep).state, only(sweep).detail) == (State.finished, "")


@pytest.mark.slurm
@pytest.mark.slow
def test_a_stopped_accounting_daemon_costs_no_certainty_that_the_records_give(
    slurm: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SlurmCluster(gpu_nodes=1, debug_nodes=1) as own:
        for name, value in own.env.items():
            monkeypatch.setenv(name, value)
        own._daemons["slurmdbd"].terminate()
        own._daemons["slurmdbd"].wait()
        sweep = tmp_path / "s"
        ran, runs = sbatch("--wrap", "true"), sbatch("--wrap", "sleep 60")
        a_submitted(sweep, "gone", ran)
        started(a_submitted(sweep, "runs", runs), a_run("runs"))
        ended(a_submitted(sweep, "well", ran), step=6)
        wait_until(lambda: not queued(ran))
        wait_until(lambda: states(SweepDir(sweep))[1].state is State.running)
        gone, _, well = states(SweepDir(sweep))
        assert gone.state is State.ended
        assert "accounting does not answer: " in gone.detail
        assert "Connection refused" in gone.detail
        assert well.state is State.finished


@in_slurm
@pytest.mark.slurm
def test_an_open_end_is_waited_for_and_not_submitted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = tmp_path / "s"
    job_id = sbatch("--wrap", "true")
    run = a_submitted(sweep, "r", job_id)
    wait_until(lambda: not queued(job_id))
    without_sacct(tmp_path, monkeypatch)
    assert main(["resume", str(sweep)]) == 0
    assert "1 run: 1 ended; 0 to resume" in capsys.readouterr().out
    waiting = subprocess.Popen([sys.executable, "-m", "jobs.cli", "watch", str(sweep)], cwd=ROOT,
                               stdout=subprocess.PIPE, text=True)  # fmt: skip
    assert waiting.stdout is not None
    assert "r: ended its job left the queue" in waiting.stdout.readline()
    ended(run, step=6)
    assert waiting.wait(2 * SLURM_POLL_S) == 0
    waiting.stdout.close()


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """The Slurm commands called since, through wrappers of the real ones."""
    log = tmp_path / "calls"
    for name in ("squeue", "sacct", "scontrol", "sinfo"):
        command(tmp_path / "bin", name, f'echo {name} >> "{log}"; exec {shutil.which(name)} "$@"')
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")

    def called() -> list[str]:
        return log.read_text().split() if log.exists() else []

    return called


@in_slurm
@pytest.mark.slurm
def test_a_look_at_any_number_of_runs_asks_slurm_twice_at_most(
    tmp_path: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    waiting = sbatch("--array=0-99", "--begin=now+1hour", "--wrap", "true")
    sweep = tmp_path / "s"
    for number in range(100):
        a_submitted(sweep, f"waits-{number:03d}", f"{waiting}_{number}")
        if number % 2:
            finished_run(sweep, a_run(f"done-{number:03d}", steps=1))
    calls = request.getfixturevalue("calls")
    assert main(["status", str(sweep)]) == 0
    assert calls() == ["squeue"], "nothing has left the queue without an end: no accounting needed"
    for number in range(100):
        a_submitted(sweep, f"gone-{number:03d}", f"{99_000_000 + number}")
    assert main(["status", str(sweep)]) == 0
    assert sorted(calls()) == ["sacct", "squeue", "squeue"]
    assert "250 runs: 100 queued, 50 finished, 100 ended" in capsys.readouterr().out


@in_slurm
@pytest.mark.slurm
@pytest.mark.slow
@pytest.mark.long  # It counts the calls of 25 seconds.
def test_a_watcher_keeps_to_the_number_of_calls_a_minute_that_the_readme_states(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    assert "at most 12 Slurm calls a minute" in " ".join(README.split())
    a_submitted(tmp_path / "s", "waits", sbatch("--begin=now+1hour", "--wrap", "true"))
    a_submitted(tmp_path / "s", "gone", "99000000")
    calls = request.getfixturevalue("calls")
    seconds = 25
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run([sys.executable, "-m", "jobs.cli", "watch", tmp_path / "s"], cwd=ROOT, timeout=seconds,
                       capture_output=True, check=False)  # fmt: skip
    looks = 1 + seconds // 10
    assert 2 * (looks - 1) <= len(calls()) <= 2 * looks

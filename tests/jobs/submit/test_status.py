"""`slurmscale status`: few calls however many runs, few rows, and no more certainty than there is."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from jobs.cli import main
from jobs.rundir import RunDir, SweepDir, append_record, now
from jobs.submit.commands import QUEUE_POLL_S
from jobs.submit.job_state import JobState
from jobs.submit.slurm.commands import postpone, requeue
from jobs.submit.slurm.resources import STARTED_LINE
from jobs.submit.states import END_GRACE_S, RunState, State, decide, states
from jobs.submit.sweeps.history import History
from jobs.submit.sweeps.submissions import in_brackets, latest_submissions, tasks_of
from jobs.submit.trust.own_sweeps import own
from tests.support.fake_runs import a_run, ended, event, finished_run, prepared, started, step
from tests.support.paths import ROOT
from tests.support.readme_text import README
from tests.support.slurm.cluster import SlurmCluster
from tests.support.training import long
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
    own(SweepDir(tmp_path))
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
def test_a_configuration_that_is_damaged_is_reported_and_does_not_matter_to_a_finished_run(
    cut: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = submitted(prepared(tmp_path, a_run()), "7")
    event(run, "finished", step=4)
    run.config.write_text(cut)
    assert main(["resume", "--trust", str(tmp_path)]) == 0
    assert "1 run: 1 finished; 0 to resume" in capsys.readouterr().out
    assert main(["logs", str(run.path)]) == 2
    assert f"{run.config} is damaged: " in capsys.readouterr().err


@pytest.mark.parametrize(("end", "code"), [("finished", 0), ("failed", 1)])
def test_status_has_an_exit_code_for_a_failed_run_if_asked(end: str, code: int, tmp_path: Path) -> None:
    prepared(tmp_path, a_run("waits"))
    run = prepared(tmp_path, a_run("ended"))
    started(run, a_run("ended"))
    event(run, end, step=4, error="boom")
    assert main(["status", str(tmp_path)]) == 0
    assert main(["status", "--check", str(tmp_path)]) == code


def test_what_another_start_of_failed_runs_is_worth_is_said_once_for_each_decision(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    causes = {"a": "out_of_gpu_memory", "b": "out_of_gpu_memory", "c": "hardware", "d": "code", "e": None}
    for name, cause in causes.items():
        run = prepared(tmp_path, a_run(name))
        started(run, a_run(name))
        event(run, "failed", rank=0, node="n", error="boom", **({"cause": cause} if cause else {}))
    finished_run(tmp_path, a_run("f"))
    assert main(["status", str(tmp_path)]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith(("STOP", "RESTART"))] == [
        "STOP: the same step needs the same memory again (a, b)",
        "RESTART elsewhere: the node is at fault, and another one is not (c)",
        "STOP: the program would raise it again (d)",
    ]
    assert main(["status", str(tmp_path), "--json"]) == 0
    runs = json.loads(capsys.readouterr().out)["result"]["runs"]
    found = {each["name"]: (each["decision"], each["decision_reason"]) for each in runs}
    assert found["c"] == ("RESTART elsewhere", "the node is at fault, and another one is not")
    assert found["f"] == (None, None)


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
    if name == "run/status.jsonl":
        assert "status.jsonl cannot be read: Permission denied\n1 run: 1 failed" in done.stdout
        return
    assert done.returncode == 2
    assert done.stderr.startswith(f"slurmscale status: {tmp_path / name}")
    assert done.stderr.endswith(" cannot be read: permission denied\n")
    assert done.stderr.count("\n") == 1


def test_the_log_of_a_rank_that_has_not_started_is_refused_with_the_ranks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = submitted(prepared(tmp_path, a_run(ranks_per_node=4)), "7")
    assert main(["logs", "--rank", "3", str(run.path)]) == 2
    assert "rank 3 has not started (ranks are 0 to 3)" in capsys.readouterr().err


def test_a_path_with_blanks_is_printed_as_a_shell_takes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = prepared(tmp_path / "x z", a_run())
    assert main(["logs", str(run.path)]) == 2
    assert f"Run `slurmscale resume '{tmp_path}/x z/run'`." in capsys.readouterr().err


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


def test_a_long_cancelled_sweep_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(51):
        event(a_submitted(tmp_path, f"r-{number}", "7"), "stopped", step=3, reason="asked to end (SIGTERM)")
    append_record(SweepDir(tmp_path).submissions, {"time": now(), "event": "cancelled", "job_id": "7"})
    assert main(["status", str(tmp_path)]) == 0
    command = f"`slurmscale status --all {tmp_path}` shows every run"
    assert capsys.readouterr().out == f"not shown: 51 cancelled; {command}\n51 runs: 51 cancelled\n"


def test_a_narrow_terminal_folds_names_and_details_but_no_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, reason = "a-run-with-a-long-name", "asked to end (SIGTERM)"
    event(a_submitted(tmp_path, name, "123456789_12"), "stopped", step=3, reason=reason)
    for variable, value in (("FORCE_COLOR", "1"), ("TERM", "xterm"), ("COLUMNS", "44")):
        monkeypatch.setenv(variable, value)
    assert main(["status", str(tmp_path)]) == 0
    assert any("123456789_12" in line and "stopped" in line for line in capsys.readouterr().out.splitlines())


def test_job_ids_are_printed_as_slurm_prints_them() -> None:
    ids = ["12_7", "12_1", "13", "12_0", "14_3", "12_2", "12_3"]
    assert in_brackets(ids) == ["12_[0-3,7]", "13", "14_3"]


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


@pytest.mark.parametrize("state", ["SUSPENDED", "STOPPED"])
def test_a_suspended_job_is_neither_queued_nor_lost_and_was_not_requeued(
    state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command(tmp_path / "bin", "squeue", f"echo '7|{state}|2026-11-28T03:53:12|None|s-0a1b2c3d|/x.sbatch'")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    started(a_submitted(tmp_path / "s", "r", "7", at=LONG_AGO), a_run("r"))
    item = only(tmp_path / "s")
    assert (item.state, item.detail) == (State.suspended, "stopped by Slurm until it is resumed")
    assert item.state.is_alive


@pytest.mark.parametrize(
    ("controller", "state", "resumed"),
    [
        ("echo 'JobId=7 JobState=PENDING Reason=Resources'", State.queued, 0),
        ("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", State.ended, 0),
        ("echo 'JobId=7 JobState=COMPLETED Reason=None'", State.lost, 1),
    ],
)
def test_a_job_that_squeue_hides_is_not_lost_while_accounting_has_not_ended_it(
    controller: str, state: State, resumed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command(tmp_path / "bin", "squeue", "true")
    command(tmp_path / "bin", "sacct", "echo '7|PENDING|None assigned|Unknown|s'")
    command(tmp_path / "bin", "scontrol", controller)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    run = a_submitted(tmp_path / "s", "r", "7", at=LONG_AGO)
    silent_for_long(run)
    item = only(tmp_path / "s")
    assert item.state is state
    assert (not item.state.is_open) == bool(resumed)


def test_a_run_whose_last_step_is_old_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command(tmp_path / "bin", "squeue", "echo '7|RUNNING|N/A|None'; echo '8|RUNNING|N/A|None'")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    for name, job_id, age_s in (("stuck", "7", 600), ("quick", "8", 0)):
        run = a_submitted(tmp_path / "s", name, job_id)
        started(run, a_run(name))
        step(run, 5)
        for file in (run.metrics, run.status):
            os.utime(file, (time.time() - age_s, time.time() - age_s))
    assert main(["status", str(tmp_path / "s")]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert rows["stuck"].endswith("last step recorded 10 min ago")
    assert "ago" not in rows["quick"]


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
    command(where / "bin", "sacct", 'echo "${@: -1}|RUNNING|node01"')
    monkeypatch.setenv("PATH", f"{where}/bin:{os.environ['PATH']}")
    return "accounting still reports RUNNING"


def records_purged(where: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    command(where / "bin", "sacct", f'exec {shutil.which("sacct")} "${{@:1:$#-1}}" 99999999')
    monkeypatch.setenv("PATH", f"{where}/bin:{os.environ['PATH']}")
    return "accounting has no record of it"


@in_slurm
@pytest.mark.slurm
@pytest.mark.parametrize("trouble", [long(without_sacct), long(sacct_that_fails), sacct_that_is_late, records_purged])
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
    assert main(["resume", "--trust", str(sweep)]) == 0
    assert "1 run: 1 ended; 0 to resume" in capsys.readouterr().out
    waiting = subprocess.Popen([sys.executable, "-m", "jobs.cli", "watch", str(sweep)], cwd=ROOT,
                               stdout=subprocess.PIPE, text=True)  # fmt: skip
    assert waiting.stdout is not None
    assert "r: ended its job left the queue" in waiting.stdout.readline()
    ended(run, step=6)
    assert waiting.wait(2 * QUEUE_POLL_S) == 0
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


# --- faults, on a real Slurm -----------------------------------------------------------------------------------


def a_running_job(sweep: Path, *options: str) -> tuple[RunDir, str]:
    """A job of two nodes with the log of a run, whose ranks have met."""
    SweepDir(sweep).logs.mkdir(parents=True)
    script = f"{STARTED_LINE}; srun bash -c 'echo rank; sleep 600'"
    output = str(SweepDir(sweep).output("%j"))
    job_id = sbatch("--nodes=2", "--requeue", "--open-mode=append", "-o", output, *options, "--wrap", script)
    run = a_submitted(sweep, "r", job_id)
    log = Path(output.replace("%j", job_id))
    wait_until(lambda: log.exists() and log.read_text().count("rank\n") == 2)
    assert shown(sweep) == (State.queued, "starting")
    started(run, a_run("r"))
    wait_until(lambda: only(sweep).state is State.running)
    return run, job_id


@contextmanager
def node_down(node: str) -> Iterator[None]:
    """Declare a node down, as Slurm does after SlurmdTimeout, and keep it from returning."""
    update = ["scontrol", "update", f"nodename={node}"]
    subprocess.run([*update, "state=down", "reason=test"], check=True)
    subprocess.run([*update, "state=drain", "reason=test"], check=True)
    try:
        yield
    finally:
        subprocess.run([*update, "state=resume"], check=True)


def shown(sweep: Path) -> tuple[State, str]:
    item = only(sweep)
    return item.state, item.detail


@in_slurm
@pytest.mark.slurm
@pytest.mark.parametrize("failed_node", [long("node01"), "node02"])
def test_a_node_failure_is_named_before_and_after_the_restart_whatever_a_survivor_recorded(
    failed_node: str, tmp_path: Path
) -> None:
    run, _ = a_running_job(tmp_path / "s", "--nodelist=node01,node02")
    with node_down(failed_node):
        event(run, "failed", rank=0, node="node01", error="Connection closed by peer", cause="lost_peer", restart=0)
        words = f"restarts after a node failure on {failed_node}"
        wait_until(lambda: words in only(tmp_path / "s").detail)
        assert only(tmp_path / "s").state is State.queued
    wait_until(lambda: only(tmp_path / "s").detail.endswith("starting"))
    started(run, a_run("r"), attempt=2, restart=1)
    assert shown(tmp_path / "s") == (State.running, f"restart 1, after a node failure on {failed_node}")


@in_slurm
@pytest.mark.slurm
def test_a_node_failure_that_ends_a_run_is_named_and_not_the_survivor(tmp_path: Path) -> None:
    run, _ = a_running_job(tmp_path / "s", "--nodelist=node01,node02", "--no-requeue")
    event(run, "failed", rank=0, node="node01", error="Connection closed by peer", cause="lost_peer", restart=0)
    assert shown(tmp_path / "s") == (State.running, "ending: rank 0 on node01: Connection closed by peer")
    with node_down("node02"):
        words = "a node failure on node02; rank 0 on node01: Connection closed by peer"
        wait_until(lambda: shown(tmp_path / "s") == (State.failed, words))


@in_slurm
@pytest.mark.slurm
def test_a_requeue_by_hand_is_queued_and_named(tmp_path: Path) -> None:
    run, job_id = a_running_job(tmp_path / "s")
    event(run, "stopped", step=3, reason="asked to end (SIGTERM)")
    requeue(job_id)
    postpone(job_id, pause_s=3600, avoid=[])
    assert only(tmp_path / "s").state.is_alive
    wait_until(lambda: "restarts after a requeue by scontrol or an administrator" in only(tmp_path / "s").detail)
    assert only(tmp_path / "s").state is State.queued


@in_slurm
@pytest.mark.slurm
def test_scancel_by_hand_is_a_cancellation_with_its_user(tmp_path: Path) -> None:
    run, job_id = a_running_job(tmp_path / "s")
    event(run, "stopped", step=3, reason="asked to end (SIGTERM)")
    subprocess.run(["scancel", job_id], check=True)
    seen: list[State] = []

    def is_cancelled() -> bool:
        seen.append(only(tmp_path / "s").state)
        return seen[-1] is State.cancelled

    wait_until(is_cancelled)
    assert set(seen) <= {State.running, State.ended, State.cancelled}, "a watcher must not see another end first"
    assert only(tmp_path / "s").detail == f"by user {getpass.getuser()} with scancel"


@in_slurm
@pytest.mark.slurm
@pytest.mark.parametrize(("hold", "reason"), [("hold", "JobHeld"), ("requeuehold", "job requeued in held state")])
def test_a_held_job_is_named_with_the_command_that_releases_it(
    hold: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job_id = sbatch("--wrap", "sleep 600", *(["--begin=now+1hour"] if hold == "hold" else []))
    a_submitted(tmp_path / "s", "r", job_id)
    wait_until(lambda: hold == "hold" or only(tmp_path / "s").detail == "starting")
    subprocess.run(["scontrol", hold, job_id], check=True)
    wait_until(lambda: only(tmp_path / "s").state is State.held)
    assert only(tmp_path / "s").detail.startswith(f"held by Slurm: {reason}")
    assert main(["status", str(tmp_path / "s")]) == 0
    output = capsys.readouterr().out
    assert f"run `scontrol release {job_id}`" in output
    assert "1 run: 1 held" in output


@pytest.mark.parametrize(("nodes", "words"), [("node02", "node02"), ("node[01-02]", "one of node[01-02]"),
                                              ("a01,b02", "one of a01,b02")])  # fmt: skip
def test_the_only_node_of_a_job_is_the_one_that_failed(nodes: str, words: str, tmp_path: Path) -> None:
    history = History(a_submitted(tmp_path, "r", "7"), latest_submissions(SweepDir(tmp_path))["r"])
    assert history.ended_words(JobState("NODE_FAIL", nodes=nodes)) == f"a node failure on {words}"


def test_a_run_that_slurmscale_cancelled_is_not_attributed_to_a_scancel(tmp_path: Path) -> None:
    run = a_submitted(tmp_path, "r", "7")
    append_record(SweepDir(tmp_path).submissions, {"time": now(), "event": "cancelled", "job_id": "7"})
    history = History(run, latest_submissions(SweepDir(tmp_path))["r"])
    assert decide(history, JobState("CANCELLED", "by user me with scancel")) == (State.cancelled, "")


def test_a_run_that_waits_has_slurms_reason_or_is_starting(tmp_path: Path) -> None:
    run = a_submitted(tmp_path, "r", "7")
    history = History(run, latest_submissions(SweepDir(tmp_path))["r"])
    assert decide(history, JobState("PENDING", "Resources")) == (State.queued, "Resources")
    assert decide(history, JobState("RUNNING")) == (State.queued, "starting")


def test_a_run_whose_data_could_not_be_prepared_waits_with_the_first_line_of_that_error(tmp_path: Path) -> None:
    run = a_submitted(tmp_path, "r", "7")
    event(run, "failed", stage="prepare", cause="error", node="n", error="no such file: a.json\nSet data.path=FILE")
    history = History(run, latest_submissions(SweepDir(tmp_path))["r"])
    waits = decide(history, JobState("PENDING", "DependencyNeverSatisfied"))
    assert waits == (State.queued, "no such file: a.json; DependencyNeverSatisfied")


# --- faults, from the records ----------------------------------------------------------------------------------


def test_the_cause_of_a_restart_stays_while_the_run_goes_on(tmp_path: Path) -> None:
    run = a_submitted(tmp_path, "r", "7")
    for restart, cause in enumerate(["hung", "killed"]):
        started(run, a_run("r"), attempt=restart + 1, restart=restart)
        event(run, "failed", rank=1, node="node02", error="no progress", cause=cause, restart=restart)
        event(run, "requeued", cause=cause)
    submission = latest_submissions(SweepDir(tmp_path))["r"]
    waits = decide(History(run, submission), JobState("PENDING", "BeginTime"))
    assert waits == (State.queued, "restarts after killed (rank 1 on node02); BeginTime")
    assert decide(History(run, submission), JobState("RUNNING")) == (
        State.queued, "restart 2, after killed (rank 1 on node02); starting"
    )  # fmt: skip
    started(run, a_run("r"), attempt=3, restart=2)
    runs = decide(History(run, submission), JobState("RUNNING"))
    assert runs == (State.running, "restart 2, after killed (rank 1 on node02)")


def test_a_rank_that_slurm_kills_when_its_lost_node_comes_back_does_not_hide_the_node_failure(tmp_path: Path) -> None:
    run = a_submitted(tmp_path, "r", "7")
    submission = latest_submissions(SweepDir(tmp_path))["r"]
    log = History(run, submission).log
    log.parent.mkdir(exist_ok=True)
    started(run, a_run("r"), attempt=1, restart=0)
    # As a Slurm 22.05 printed it: the lost node answers again, is given to the job, and ends what it still had of it.
    log.write_text(
        "slurmscale: started, restart 0, on node[03-04]\nsrun: error: Node failure on node04\n"
        "slurmscale: started, restart 1, on node[03-04]\nsrun: error: node04: task 1: Killed\n"
    )
    event(run, "failed", rank=1, node="node04", error="Killed", cause="killed", restart=1)
    event(run, "requeued", cause="killed")
    words = "after killed (rank 1 on node04), in a start after a node failure on node04"
    waits = decide(History(run, submission), JobState("PENDING", "BeginTime"))
    assert waits == (State.queued, f"restarts {words}; BeginTime")
    with log.open("a") as file:
        file.write("slurmscale: started, restart 2, on node[03-04]\n")
    assert decide(History(run, submission), JobState("RUNNING")) == (State.queued, f"restart 2, {words}; starting")
    started(run, a_run("r"), attempt=2, restart=2)
    assert decide(History(run, submission), JobState("RUNNING")) == (State.running, f"restart 2, {words}")
    # A rank that is killed later has no older cause.
    event(run, "failed", rank=1, node="node04", error="Killed", cause="killed", restart=2)
    event(run, "requeued", cause="killed")
    with log.open("a") as file:
        file.write("slurmscale: started, restart 3, on node[03-04]\n")
    started(run, a_run("r"), attempt=3, restart=3)
    assert decide(History(run, submission), JobState("RUNNING")) == (
        State.running, "restart 3, after killed (rank 1 on node04)"
    )  # fmt: skip


@pytest.mark.parametrize("command", ["status", "watch"])
def test_a_broken_configuration_is_named_and_does_not_hide_the_other_runs(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("broken", "good", "missing"):
        run = submitted(prepared(tmp_path, a_run(name)), "99000000", at=LONG_AGO)
        started(run, a_run(name))
        step(run, 5)
        event(run, "failed", rank=0, node="n", error="ValueError: no", cause="code")
    (tmp_path / "broken/config.yaml").write_text('name: "a')
    (tmp_path / "missing/config.yaml").unlink()
    main([command, str(tmp_path)])
    output = " ".join(capsys.readouterr().out.split())
    assert "3 runs: 3 failed" in output
    assert "rank 0 on n: ValueError: no; its config.yaml is missing" in output
    assert "rank 0 on n: ValueError: no; its config.yaml is damaged" in output
    shutil.rmtree(tmp_path / "missing")
    main([command, str(tmp_path)])
    assert "2 runs: 2 failed" in capsys.readouterr().out, "a run that the user removed is gone"

"""Who asked the ranks to end decides whether their run restarts: Slurm's own record, whatever the ranks could write."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from jobs.failure_causes import FailureCause, blames_node, cause_of_task
from jobs.rundir import RunDir, SweepDir, append_event, append_record, now
from jobs.schema import Run
from jobs.submit.requeue import Restart, end_by_slurm, planned_restart, record_exit_codes, record_silent_end
from jobs.submit.slurm.resources import STARTED_LINE
from jobs.submit.sweeps.submissions import Submission, latest_submissions, own_end
from tests.support.fake_runs import a_run as a_fake_run
from tests.support.fake_runs import prepared
from tests.support.paths import ROOT
from tests.support.real_run import events, make_run
from tests.support.slurm.cluster import SlurmCluster
from tests.support.waiting import limit_s, wait_until

PREEMPTED = FailureCause.preempted
# `scontrol show job` in the EXIT trap of a batch script, Slurm 22.05.
RUNNING = {"JobState": "RUNNING", "Reason": "None", "StartTime": "2026-11-28T03:53:14", "PreemptTime": "None"}
COMPLETING = {"JobState": "COMPLETING", "Reason": "None", "StartTime": "2026-11-28T03:53:14", "PreemptTime": "None"}


def a_run(where: Path, *, requeues: int = 3, requeue_pause_s: int = 30) -> RunDir:
    """A run of two ranks, on record as submitted to Slurm."""
    fake = of_two_ranks()
    launcher = replace(fake.launcher, requeues=requeues, requeue_pause_s=requeue_pause_s)
    return on_record(prepared(where, replace(fake, launcher=launcher)), "7")


@cache
def of_two_ranks() -> Run:
    """One composition for all tests."""
    return a_fake_run("r", ranks_per_node=2)


def on_record(run: RunDir, job_id: str) -> RunDir:
    record = {"time": now(), "event": "submitted", "run": run.name, "launcher": "slurm", "job_id": job_id, "host": "h",
              "events_before": 0}  # fmt: skip
    append_record(SweepDir(run.path.parent).submissions, record)
    return run


def submission(run: RunDir) -> Submission:
    return latest_submissions(SweepDir(run.path.parent))[run.name]


def restart(run: RunDir, by_slurm: FailureCause | None) -> Restart | None:
    return planned_restart(run, submission(run), SweepDir(run.path.parent), preempted=by_slurm is PREEMPTED,
                           unasked=by_slurm is None)  # fmt: skip


@pytest.mark.parametrize(
    ("job", "cause"),
    [
        (RUNNING, None),
        (RUNNING | {"JobState": "SUSPENDED"}, None),
        (RUNNING | {"PreemptTime": "2026-11-28T03:53:16"}, PREEMPTED),
        (RUNNING | {"PreemptTime": "2026-11-28T03:50:00"}, None),  # of an earlier start
        (RUNNING | {"PreemptTime": "Unknown"}, None),
        ({"JobState": "PREEMPTED"}, PREEMPTED),
        (COMPLETING, FailureCause.cancelled),  # scancel
        (RUNNING | {"JobState": "CANCELLED"}, FailureCause.cancelled),
        (COMPLETING | {"Reason": "TimeLimit"}, FailureCause.time_limit),
        (RUNNING | {"JobState": "TIMEOUT"}, FailureCause.time_limit),
        (RUNNING | {"JobState": "DEADLINE"}, FailureCause.time_limit),
        (RUNNING | {"JobState": "PENDING"}, FailureCause.requeued),
        (RUNNING | {"JobState": "REQUEUE_HOLD"}, FailureCause.requeued),
        (RUNNING | {"JobState": "NODE_FAIL"}, FailureCause.node_failure),
    ],
)
def test_the_record_of_a_job_states_who_ended_it(job: dict[str, str], cause: FailureCause | None) -> None:
    assert end_by_slurm(job) is cause


DEATHS = [
    "Terminated",
    "User defined signal 2",
    "User defined signal 1",
    "Hangup",
    "Interrupt",
    "Quit",
    "Killed",
    "Exited with exit code 143",
    "Exited with exit code 140",
    "Exited with exit code 137",
]


@pytest.mark.parametrize("how", DEATHS)
@pytest.mark.parametrize("tasks", ["task 1", "tasks 0-1", "tasks 0,3-7"])
def test_a_preemption_before_the_ranks_could_record_anything_restarts_at_once_and_does_not_count(
    how: str, tasks: str, tmp_path: Path
) -> None:
    run = a_run(tmp_path, requeues=1)
    for _ in range(3):
        record_silent_end(run, submission(run), f"srun: error: node02: {tasks}: {how}\n", by_slurm=PREEMPTED)
        end = own_end(run, submission(run))
        assert end is not None
        assert not blames_node(end)
        found = restart(run, PREEMPTED)
        assert found == Restart(PREEMPTED, 0, [])
        found.record(run)
    append_event(run, "started", attempt=1, restart=3)
    record_silent_end(run, submission(run), "srun: error: node02: task 1: Killed\n", restart=3)
    found = restart(run, None)
    assert found is not None
    assert (found.cause, found.avoided) == (FailureCause.killed, [])


def test_a_preemption_of_which_nobody_wrote_a_word_restarts_too(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    assert restart(run, None) is None
    assert restart(run, PREEMPTED) == Restart(PREEMPTED, 0, [])
    append_event(run, "finished", attempt=1, step=4)
    assert restart(run, PREEMPTED) is None


@pytest.mark.parametrize("by_slurm", [None, PREEMPTED])
@pytest.mark.parametrize("how", ["Out Of Memory", "Segmentation fault (core dumped)", "Exited with exit code 1"])
def test_an_error_of_the_program_keeps_its_cause(how: str, by_slurm: FailureCause | None, tmp_path: Path) -> None:
    run = a_run(tmp_path)
    record_silent_end(run, submission(run), f"srun: error: node02: task 1: {how}\n", by_slurm=by_slurm)
    end = own_end(run, submission(run))
    assert end is not None
    assert end["cause"] in {"out_of_host_memory", "code"}


def test_the_first_death_is_named_and_not_the_tasks_that_srun_ended_after_it(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    printed = "srun: error: node01: task 0: Terminated\nsrun: error: node02: task 1: Killed\n"
    record_silent_end(run, submission(run), printed)
    end = own_end(run, submission(run))
    assert end is not None
    assert (end["cause"], end["rank"]) == ("killed", 1)


@pytest.mark.parametrize(
    ("how", "cause"),
    [
        ("Killed", FailureCause.killed),
        ("Bus error (core dumped)", FailureCause.killed),
        ("Aborted (core dumped)", FailureCause.code),
        ("Illegal instruction", FailureCause.code),
        ("Exited with exit code 134", FailureCause.code),
        ("Exited with exit code 139", FailureCause.code),
        ("Exited with exit code 137", FailureCause.killed),
        ("Exited with exit code 143", FailureCause.cancelled),
        ("Exited with exit code 255", FailureCause.code),
        ("Exited with exit code 75", FailureCause.code),
    ],
)
def test_exit_codes_of_shells_and_containers_name_the_signal(how: str, cause: FailureCause) -> None:
    assert cause_of_task(how) is cause


@pytest.mark.parametrize("record", ["stopped", "silent"])
def test_a_late_signal_that_nobody_sent_does_not_end_a_run_for_good(record: str, tmp_path: Path) -> None:
    run = a_run(tmp_path, requeues=1, requeue_pause_s=0)
    append_event(run, "started", attempt=1, restart=0)
    if record == "stopped":
        append_event(run, "stopped", attempt=1, step=3, reason="asked to end (SIGTERM)")
    else:
        record_silent_end(run, submission(run), "srun: error: node02: task 1: Terminated\n")
    assert planned_restart(run, submission(run), SweepDir(run.path.parent)) is None
    found = restart(run, None)
    assert found == Restart(FailureCause.killed, 0, [])
    assert found is not None
    found.record(run)
    append_event(run, "started", attempt=2, restart=1)
    append_event(run, "stopped", attempt=2, step=3, reason="asked to end (SIGTERM)")
    assert restart(run, None) is None, "it counts"


@pytest.mark.parametrize(
    ("codes", "cause"), [([143, -15], "cancelled"), ([-12, 140], "time_limit"), ([137, 1], "killed")]
)
def test_a_local_rank_that_was_asked_to_end_while_it_started_blames_no_node(
    codes: list[int], cause: str, tmp_path: Path
) -> None:
    run = a_run(tmp_path)
    record_exit_codes(run, submission(run), codes)
    end = own_end(run, submission(run))
    assert end is not None
    assert end["cause"] == cause
    assert blames_node(end) == (cause == "killed")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_a_rank_that_still_imports_torch_ends_at_once_and_says_that_it_was_asked_to(
    number: signal.Signals, tmp_path: Path
) -> None:
    run = make_run(tmp_path, "parallelism=single", "ranks_per_node=1")
    # A torch that takes for ever to import, as a cold file system's.
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow/torch.py").write_text("import time\nopen('importing', 'w').close()\ntime.sleep(600)\n")
    environment = {"SLURM_PROCID": "0", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "1", "SLURM_LOCALID": "0",
                   "SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "node01",
                   "PYTHONPATH": f"{tmp_path}/slow:{ROOT}"}  # fmt: skip
    with subprocess.Popen(
        [sys.executable, "-m", "jobs.run", str(run.path)],
        cwd=tmp_path, env=os.environ | environment, stderr=subprocess.PIPE, text=True,
    ) as rank:  # fmt: skip
        wait_until(lambda: (tmp_path / "importing").exists() or rank.poll() is not None)
        rank.send_signal(number)
        _, printed = rank.communicate(timeout=limit_s(60))
    assert rank.returncode == 128 + number, printed
    assert "before training began: nothing to save" in printed
    assert events(run, "failed") == []


# --- a real Slurm --------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.slurm
@pytest.mark.usefixtures("empty_queue")
def test_a_rank_that_dies_while_the_controller_is_away_is_recorded_then_and_its_run_restarts_later(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    run, job_id = job_with_a_trap(tmp_path, "gpu")
    log = SweepDir(run.path.parent).output(job_id)
    slurm.shut_down("slurmctld")
    try:
        kill_rank(job_id)
        wait_until(lambda: events(run, "failed"))
        assert not events(run, "requeued")
    finally:
        slurm.start_again("slurmctld")
    wait_until(lambda: log.read_text().count("rank\n") == 2)
    assert [event["cause"] for event in events(run, "failed")] == ["killed"]
    assert [event["cause"] for event in events(run, "requeued")] == ["killed"]


@pytest.mark.slurm
@pytest.mark.usefixtures("empty_queue")
def test_a_preemption_during_start_up_restarts_as_one(slurm: SlurmCluster, tmp_path: Path) -> None:
    run, job_id = job_with_a_trap(tmp_path, "spare")
    wanting = ["sbatch", "-p", "gpu", "--nodes=4", "--exclusive", "--output=/dev/null", "--wrap=sleep 2"]
    subprocess.run(wanting, check=True, capture_output=True)
    log = SweepDir(run.path.parent).output(job_id)
    wait_until(lambda: log.read_text().count("rank\n") == 2)
    assert [event["cause"] for event in events(run, "failed")] == ["preempted"]
    assert [(event["cause"], event["pause_s"]) for event in events(run, "requeued")] == [("preempted", 0)]


def job_with_a_trap(where: Path, partition: str) -> tuple[RunDir, str]:
    """Start a job whose rank is a sleeping shell, with the end of a run's batch script."""
    sweep = SweepDir(where / "s")
    run = prepared(sweep.path, a_fake_run("r"))
    sweep.logs.mkdir()
    script = where / "script.sh"
    requeue = f"cd {ROOT}; {sys.executable} -m jobs.submit.requeue {sweep.path}"
    script.write_text(
        f"#!/bin/bash\n{STARTED_LINE}\nrequeue() {{ {requeue}; }}\ntrap requeue EXIT\n"
        "srun --kill-on-bad-exit=1 bash -c 'echo rank; exec sleep 600'\n"
    )
    job_id = subprocess.run(
        ["sbatch", "--parsable", "-p", partition, "--requeue", "--open-mode=append", "-o", str(sweep.output("%j")),
         str(script)],
        check=True, capture_output=True, text=True,
    ).stdout.strip()  # fmt: skip
    on_record(run, job_id)
    wait_until(lambda: sweep.output(job_id).exists() and "rank\n" in sweep.output(job_id).read_text())
    return run, job_id


def kill_rank(job_id: str) -> None:
    """Kill the sleeping rank of a job."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            environment = (entry / "environ").read_bytes().split(b"\0")
            is_rank = b"SLURM_PROCID=0" in environment and f"SLURM_JOB_ID={job_id}".encode() in environment
            if is_rank and (entry / "comm").read_text() == "sleep\n":
                os.kill(int(entry.name), signal.SIGKILL)
        except OSError:
            continue

"""The failure of a run directory: by its record, else its logs, else accounting; and the report of it."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from analysis.failures.runs import Failure, failures
from analysis.load.discover import read_runs
from analysis.report.report import report
from jobs.failure_causes import FailureCause
from jobs.rundir import BATCH_STARTED, RunDir, SweepDir, append_record
from tests.support.fake_runs import a_run, ended, event, finished_run, prepared, started
from tests.support.real_run import make_run, train

KILLED = "srun: error: node02: task 1: Killed\n"
OOM = "slurmstepd: error: Detected 1 oom_kill event in StepId=12.0. Some of the step tasks have been OOM Killed.\n"
TIME_LIMIT = "slurmstepd: error: *** JOB 12 ON node01 CANCELLED AT 2026-02-03T04:05:06 DUE TO TIME LIMIT ***\n"
TRACEBACK = "Traceback (most recent call last):\nKeyError: 'x'\n"
BEGIN = f"{BATCH_STARTED}, restart 0, on node[01-02]\n"


def submitted(where: Path, *, launcher: str = "slurm", job_id: str = "12", events_before: int = 1) -> RunDir:
    """A run of two nodes that was submitted, and whose ranks have met."""
    run = a_run(nodes=2)
    directory = prepared(where, run)
    on_record(directory, launcher=launcher, job_id=job_id, events_before=events_before)
    started(directory, run)
    return directory


def on_record(directory: RunDir, kind: str = "submitted", **fields: Any) -> None:
    known = {"time": "2026-01-02T03:00:00.000+00:00", "event": kind, "run": directory.name, "host": "login1"}
    append_record(SweepDir(directory.path.parent).submissions, known | fields)


def failed(directory: RunDir, cause: FailureCause, error: str = "it was so", **fields: Any) -> None:
    event(directory, "failed", cause=cause.name, rank=1, node="node02", error=error, **fields)


def log(directory: RunDir, text: str, name: str = "12_0_log.out") -> None:
    logs = SweepDir(directory.path.parent).logs
    logs.mkdir(exist_ok=True)
    (logs / name).write_text(text)


def account(directory: RunDir, *rows: str) -> None:
    (directory.path.parent / "sacct.txt").write_text("\n".join(("JobID|State|ExitCode", *rows, "")))


def of(directory: RunDir) -> Failure:
    return failures(read_runs([directory.path.parent]))[directory.path]


# --- by the record of the run -------------------------------------------------------------------------------------


@pytest.mark.parametrize("cause", FailureCause)
def test_a_recorded_cause_is_the_reported_cause(cause: FailureCause, tmp_path: Path) -> None:
    directory = submitted(tmp_path)
    failed(directory, cause)
    assert of(directory) == Failure(cause, f"status.jsonl: failed, cause {cause.name}")


def test_a_record_of_an_earlier_release_names_the_memory_by_its_error(tmp_path: Path) -> None:
    directory = submitted(tmp_path)
    event(directory, "failed", cause="out_of_memory", rank=1, node="node02", error="MemoryError")
    assert of(directory) == Failure(FailureCause.out_of_host_memory, "status.jsonl: failed, cause out_of_memory")
    started(directory, a_run(nodes=2), attempt=2)
    event(directory, "failed", cause="out_of_memory", rank=1, node="node02", error="CUDA out of memory. Tried 2.00 GiB")
    assert of(directory) == Failure(FailureCause.out_of_gpu_memory, "status.jsonl: failed, cause out_of_memory")
    assert of(directory).words == "out of GPU memory"


def test_a_lost_peer_is_not_the_cause_where_another_rank_recorded_one(tmp_path: Path) -> None:
    directory = submitted(tmp_path)
    failed(directory, FailureCause.lost_peer, "Connection closed by peer")
    failed(directory, FailureCause.code, "ValueError: here it began")
    assert of(directory).cause is FailureCause.code
    (result,) = read_runs([tmp_path])
    assert result.reason == "failed at step 0 of 6: rank 1 on node02: ValueError: here it began"


def test_the_failure_of_an_earlier_start_is_not_that_of_the_last(tmp_path: Path) -> None:
    directory = submitted(tmp_path)
    failed(directory, FailureCause.killed, restart=0)
    event(directory, "requeued", cause="killed")
    assert of(directory) == Failure(FailureCause.killed, "status.jsonl: requeued, cause killed")
    failed(directory, FailureCause.refused, "no such checkpoint", restart=1)
    assert of(directory).cause is FailureCause.refused
    started(directory, a_run(nodes=2), attempt=2, restart=1)
    assert of(directory) == Failure(FailureCause.unknown)


def test_a_cancelled_run_is_reported_as_cancelled(tmp_path: Path) -> None:
    directory = submitted(tmp_path)
    ended(directory, "stopped", step=2, reason="asked to end (SIGTERM)")
    assert of(directory) == Failure(FailureCause.unknown), "the sender of the signal is not known"
    on_record(directory, "cancelled")
    assert of(directory) == Failure(FailureCause.cancelled, "submissions.jsonl: cancelled by `slurmscale cancel`")


def test_a_cancelled_run_that_recorded_no_end_is_reported_as_cancelled_whatever_it_did_before(tmp_path: Path) -> None:
    directory = submitted(tmp_path)
    event(directory, "checkpoint", step=2)
    on_record(directory, "cancelled")
    assert of(directory).cause is FailureCause.cancelled


def test_a_run_that_was_submitted_again_is_listed_with_its_earlier_failure(tmp_path: Path) -> None:
    directory = submitted(tmp_path)
    failed(directory, FailureCause.hung)
    on_record(directory, launcher="slurm", job_id="13", events_before=3)
    log(directory, TIME_LIMIT, "13_0_log.out")
    assert of(directory).cause is FailureCause.hung


def test_runs_that_finished_or_never_began_have_no_failure(tmp_path: Path) -> None:
    finished_run(tmp_path, a_run("good"))
    prepared(tmp_path, a_run("idle"))
    assert failures(read_runs([tmp_path])) == {}


# --- by logs and accounting --------------------------------------------------------------------


def test_a_failure_that_no_rank_recorded_is_read_from_the_log(tmp_path: Path) -> None:
    directory = submitted(tmp_path)
    log(directory, f"{BEGIN}step 3/6  loss 2.0  10 tokens/s\n{TIME_LIMIT}")
    assert of(directory) == Failure(FailureCause.time_limit, f"12_0_log.out:3: {TIME_LIMIT.strip()}")


@pytest.mark.parametrize(
    ("recorded", "text", "cause"),
    [
        (FailureCause.killed, BEGIN + KILLED + OOM, FailureCause.out_of_host_memory),
        (
            FailureCause.lost_peer,
            BEGIN + "NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.\n",
            FailureCause.hardware,
        ),
        # The traceback of a surviving rank explains nothing.
        (FailureCause.killed, BEGIN + TRACEBACK + KILLED, FailureCause.killed),
        (FailureCause.code, BEGIN + TIME_LIMIT, FailureCause.code),
    ],
)
def test_a_recorded_symptom_gives_way_to_a_statement_of_the_machine(
    recorded: FailureCause, text: str, cause: FailureCause, tmp_path: Path
) -> None:
    directory = submitted(tmp_path)
    failed(directory, recorded)
    log(directory, text)
    assert of(directory).cause is cause


def test_lines_before_the_last_start_of_a_job_do_not_count(tmp_path: Path) -> None:
    directory = submitted(tmp_path)
    log(directory, BEGIN + OOM + BEGIN.replace("restart 0", "restart 1"))
    log(directory, TRACEBACK, "12_1_log.out")
    assert of(directory) == Failure(FailureCause.unknown)


def test_logs_that_disagree_prove_nothing(tmp_path: Path) -> None:
    directory = submitted(tmp_path)
    log(directory, BEGIN)
    log(directory, TRACEBACK, "12_1_log.out")
    assert of(directory).proof == "12_1_log.out:2: KeyError: 'x'"
    log(directory, f"{TRACEBACK.partition('KeyError')[0]}ModuleNotFoundError: No module named 'x'\n", "12_2_log.out")
    assert of(directory) == Failure(FailureCause.unknown)


def test_a_text_of_the_catalogue_outweighs_an_exception_that_only_its_type_explains(tmp_path: Path) -> None:
    directory = submitted(tmp_path)
    log(directory, BEGIN)
    log(directory, TRACEBACK, "12_1_log.out")
    log(directory, "torch.OutOfMemoryError: CUDA out of memory.\n", "12_2_log.out")
    assert of(directory).proof == "12_2_log.out:1: torch.OutOfMemoryError: CUDA out of memory."


def test_an_error_before_a_later_step_is_not_the_failure(tmp_path: Path) -> None:
    directory = submitted(tmp_path)
    log(directory, BEGIN + TRACEBACK + "step 5/6  loss 2.0  10 tokens/s\n")
    assert of(directory) == Failure(FailureCause.unknown)


def test_a_failed_launch_is_read_from_the_log(tmp_path: Path) -> None:
    directory = prepared(tmp_path, a_run())
    on_record(directory, launcher="slurm", job_id="12", events_before=1)
    assert failures(read_runs([tmp_path])) == {}
    log(directory, BEGIN + "slurmstepd: error: pyxis: child 4242 failed with error code: 1\n")
    assert of(directory).cause is FailureCause.launch_failure


def test_a_run_that_was_cancelled_in_the_queue_is_reported_as_cancelled(tmp_path: Path) -> None:
    directory = prepared(tmp_path, a_run())
    on_record(directory, launcher="slurm", job_id="12", events_before=1)
    on_record(directory, "cancelled", job_id="12")
    assert of(directory).cause is FailureCause.cancelled


def test_accounting_is_the_last_source(tmp_path: Path) -> None:
    directory = submitted(tmp_path)
    account(directory, "12|FAILED|90:0", "12.0|OUT_OF_MEMORY|0:125", "13|TIMEOUT|0:0")
    assert of(directory) == Failure(FailureCause.out_of_host_memory, "sacct.txt:3: 12.0 OUT_OF_MEMORY, exit code 0:125")
    log(directory, BEGIN + TRACEBACK)
    assert of(directory).cause is FailureCause.code
    failed(directory, FailureCause.killed)
    assert of(directory).cause is FailureCause.out_of_host_memory, "which explains the kill"


def test_a_script_submitted_by_hand_is_matched_by_its_recorded_job(tmp_path: Path) -> None:
    run = a_run()
    directory = prepared(tmp_path, run)
    started(directory, run, job_id="77")
    log(directory, TIME_LIMIT, "77_0_log.out")
    assert of(directory).cause is FailureCause.time_limit


@pytest.mark.parametrize("launcher", ["pilot", "local"])
def test_accounting_is_not_read_for_a_pilot_or_a_local_run(launcher: str, tmp_path: Path) -> None:
    directory = submitted(tmp_path, launcher=launcher)
    account(directory, "12|TIMEOUT|0:0")
    assert of(directory) == Failure(FailureCause.unknown)


@pytest.mark.parametrize(
    "record",
    [
        {"event": "submitted"},
        {"event": "submitted", "run": "run", "launcher": "slurm", "job_id": ["12"], "events_before": 1, "host": "h"},
        {"event": "submitted", "run": "run", "launcher": "slurm", "job_id": "../12*", "events_before": 1, "host": "h"},
        {"event": "submitted", "run": "run", "launcher": "slurm", "job_id": "12", "events_before": "x", "host": "h"},
    ],
)
def test_a_malformed_ledger_is_ignored(record: dict[str, Any], tmp_path: Path) -> None:
    directory = prepared(tmp_path, a_run())
    started(directory, a_run())
    append_record(SweepDir(tmp_path).submissions, {"time": "2026-01-02T03:00:00.000+00:00"} | record)
    log(directory, TIME_LIMIT)
    assert of(directory) == Failure(FailureCause.unknown)


# --- real runs, and the report ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_real_refused_run_is_reported_as_a_configuration_error(tmp_path: Path) -> None:
    directory = make_run(tmp_path, f"job.init_from={tmp_path}/nowhere")
    directory.plan.write_text("{}")
    assert set(train(directory)) != {0}
    assert of(directory) == Failure(FailureCause.refused, "failures/: failed, cause refused")


@pytest.mark.slow
def test_a_real_run_without_enough_host_memory_is_reported(tmp_path: Path) -> None:
    # More than a process can address: 2**25 x 2**21 x 4 bytes for the embedding alone.
    vast = ("model.vocab_size=33554432", "model.hidden_size=2097152", "model.head_size=524288")
    directory = make_run(tmp_path, *vast)
    directory.plan.write_text("{}")
    assert set(train(directory)) != {0}
    assert of(directory) == Failure(FailureCause.out_of_host_memory, "failures/: failed, cause out_of_host_memory")


def test_the_report_contains_cause_proof_and_advice(tmp_path: Path) -> None:
    directory = submitted(tmp_path)
    log(directory, BEGIN + TIME_LIMIT.replace("node01", "<b>|=1+1"))
    text = report([tmp_path], None).read_text()
    section = text[text.index("Runs not used, with reasons") :]
    assert "<td>time limit</td>" in section
    assert "*** JOB 12 ON &lt;b&gt;|=1+1 CANCELLED AT" in section
    assert FailureCause.time_limit.advice in section
    (row,) = csv.DictReader((tmp_path / "runs.csv").read_text().splitlines())
    assert row["ended_by"] == "time_limit"
    assert row["ended_by_proof"].startswith("12_0_log.out:2: slurmstepd: error")
    (listed,) = [line for line in (tmp_path / "report.md").read_text().splitlines() if "JOB 12" in line]
    assert "| time limit | 12_0_log.out:2: slurmstepd" in listed
    assert "&lt;b&gt;\\|=1+1 CANCELLED" in listed

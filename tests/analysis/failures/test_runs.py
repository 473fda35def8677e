"""Why our own runs ended: their record, else their logs, else accounting; and how the report says it."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from analysis.failures.runs import ENDINGS, Ended, endings
from analysis.failures.signatures import Ending
from analysis.load.discover import read_runs
from analysis.report.report import report
from jobs.causes import Cause
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


def failed(directory: RunDir, cause: Cause, error: str = "it was so", **fields: Any) -> None:
    event(directory, "failed", cause=cause.name, rank=1, node="node02", error=error, **fields)


def log(directory: RunDir, text: str, name: str = "12_0_log.out") -> None:
    logs = SweepDir(directory.path.parent).logs
    logs.mkdir(exist_ok=True)
    (logs / name).write_text(text)


def account(directory: RunDir, *rows: str) -> None:
    (directory.path.parent / "sacct.txt").write_text("\n".join(("JobID|State|ExitCode", *rows, "")))


def of(directory: RunDir) -> Ended:
    return endings(read_runs([directory.path.parent]))[directory.path]


# --- what the run recorded -------------------------------------------------------------------------------------


def test_every_cause_stands_for_an_ending() -> None:
    assert set(ENDINGS) == set(Cause)
    assert Ending.unknown not in ENDINGS.values()


@pytest.mark.parametrize("cause", Cause)
def test_a_cause_on_record_is_the_ending(cause: Cause, tmp_path: Path) -> None:
    directory = submitted(tmp_path)
    failed(directory, cause)
    assert of(directory) == Ended(ENDINGS[cause], f"status.jsonl: failed, cause {cause.name}")


def test_whose_memory_did_not_suffice_is_told_from_the_error(tmp_path: Path) -> None:
    directory = submitted(tmp_path)
    failed(directory, Cause.out_of_memory, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
    assert of(directory).ending is Ending.out_of_gpu_memory
    assert of(directory).words == "out of GPU memory"


def test_a_rank_that_lost_another_one_is_a_witness(tmp_path: Path) -> None:
    directory = submitted(tmp_path)
    failed(directory, Cause.lost_peer, "Connection closed by peer")
    failed(directory, Cause.code, "ValueError: here it began")
    assert of(directory).ending is Ending.code_error
    (result,) = read_runs([tmp_path])
    assert result.reason == "failed at step 0 of 6: rank 1 on node02: ValueError: here it began"


def test_what_ended_an_earlier_start_is_not_what_ended_the_last(tmp_path: Path) -> None:
    directory = submitted(tmp_path)
    failed(directory, Cause.killed, restart=0)
    event(directory, "requeued", cause="killed")
    assert of(directory) == Ended(Ending.killed, "status.jsonl: requeued, cause killed")
    failed(directory, Cause.refused, "no such checkpoint", restart=1)
    assert of(directory).ending is Ending.configuration_error
    started(directory, a_run(nodes=2), attempt=2, restart=1)
    assert of(directory) == Ended(Ending.unknown)


def test_a_run_that_was_cancelled_says_so(tmp_path: Path) -> None:
    directory = submitted(tmp_path)
    ended(directory, "stopped", step=2, reason="asked to end (SIGTERM)")
    assert of(directory) == Ended(Ending.unknown), "whoever sent the signal"
    on_record(directory, "cancelled")
    assert of(directory) == Ended(Ending.cancelled, "submissions.jsonl: cancelled by `slurmscale cancel`")


def test_a_run_that_was_submitted_again_is_listed_as_it_ended_before(tmp_path: Path) -> None:
    directory = submitted(tmp_path)
    failed(directory, Cause.hung)
    on_record(directory, launcher="slurm", job_id="13", events_before=3)
    log(directory, TIME_LIMIT, "13_0_log.out")
    assert of(directory).ending is Ending.collective_timeout


def test_runs_that_finished_or_never_began_did_not_die(tmp_path: Path) -> None:
    finished_run(tmp_path, a_run("good"))
    prepared(tmp_path, a_run("idle"))
    assert endings(read_runs([tmp_path])) == {}


# --- what was printed, and what Slurm knows --------------------------------------------------------------------


def test_what_no_rank_could_say_is_in_the_log(tmp_path: Path) -> None:
    directory = submitted(tmp_path)
    log(directory, f"{BEGIN}step 3/6  loss 2.0  10 tokens/s\n{TIME_LIMIT}")
    assert of(directory) == Ended(Ending.time_limit, f"12_0_log.out:3: {TIME_LIMIT.strip()}")


@pytest.mark.parametrize(
    ("cause", "text", "ending"),
    [
        (Cause.killed, BEGIN + KILLED + OOM, Ending.out_of_host_memory),
        (Cause.lost_peer, BEGIN + "NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.\n", Ending.hardware),
        # A survivor's traceback explains no death.
        (Cause.killed, BEGIN + TRACEBACK + KILLED, Ending.killed),
        (Cause.code, BEGIN + TIME_LIMIT, Ending.code_error),
    ],
)
def test_a_trace_of_a_death_gives_way_to_what_the_machine_says_of_itself(
    cause: Cause, text: str, ending: Ending, tmp_path: Path
) -> None:
    directory = submitted(tmp_path)
    failed(directory, cause)
    log(directory, text)
    assert of(directory).ending is ending


def test_what_was_printed_before_the_job_was_started_again_does_not_count(tmp_path: Path) -> None:
    directory = submitted(tmp_path)
    log(directory, BEGIN + OOM + BEGIN.replace("restart 0", "restart 1"))
    log(directory, TRACEBACK, "12_1_log.out")
    assert of(directory) == Ended(Ending.unknown)


def test_logs_of_ranks_that_contradict_each_other_prove_nothing(tmp_path: Path) -> None:
    directory = submitted(tmp_path)
    log(directory, BEGIN)
    log(directory, TRACEBACK, "12_1_log.out")
    assert of(directory).proof == "12_1_log.out:2: KeyError: 'x'"
    log(directory, "torch.OutOfMemoryError: CUDA out of memory.\n", "12_2_log.out")
    assert of(directory) == Ended(Ending.unknown)


def test_an_error_that_training_went_on_after_is_no_end(tmp_path: Path) -> None:
    directory = submitted(tmp_path)
    log(directory, BEGIN + TRACEBACK + "step 5/6  loss 2.0  10 tokens/s\n")
    assert of(directory) == Ended(Ending.unknown)


def test_ranks_that_never_met_left_the_reason_in_their_log(tmp_path: Path) -> None:
    directory = prepared(tmp_path, a_run())
    on_record(directory, launcher="slurm", job_id="12", events_before=1)
    assert endings(read_runs([tmp_path])) == {}
    log(directory, BEGIN + "slurmstepd: error: pyxis: child 4242 failed with error code: 1\n")
    assert of(directory).ending is Ending.launch_failure


def test_a_run_that_was_cancelled_while_it_waited_says_so(tmp_path: Path) -> None:
    directory = prepared(tmp_path, a_run())
    on_record(directory, launcher="slurm", job_id="12", events_before=1)
    on_record(directory, "cancelled", job_id="12")
    assert of(directory).ending is Ending.cancelled


def test_accounting_is_asked_last(tmp_path: Path) -> None:
    directory = submitted(tmp_path)
    account(directory, "12|FAILED|90:0", "12.0|OUT_OF_MEMORY|0:125", "13|TIMEOUT|0:0")
    assert of(directory) == Ended(Ending.out_of_host_memory, "sacct.txt:3: 12.0 OUT_OF_MEMORY, exit code 0:125")
    log(directory, BEGIN + TRACEBACK)
    assert of(directory).ending is Ending.code_error
    failed(directory, Cause.killed)
    assert of(directory).ending is Ending.out_of_host_memory, "which explains the kill"


def test_a_script_given_to_sbatch_by_hand_has_its_job_on_record(tmp_path: Path) -> None:
    run = a_run()
    directory = prepared(tmp_path, run)
    started(directory, run, job_id="77")
    log(directory, TIME_LIMIT, "77_0_log.out")
    assert of(directory).ending is Ending.time_limit


@pytest.mark.parametrize("launcher", ["pilot", "local"])
def test_the_job_of_a_pilot_or_a_process_of_this_machine_has_no_row(launcher: str, tmp_path: Path) -> None:
    directory = submitted(tmp_path, launcher=launcher)
    account(directory, "12|TIMEOUT|0:0")
    assert of(directory) == Ended(Ending.unknown)


@pytest.mark.parametrize(
    "record",
    [
        {"event": "submitted"},
        {"event": "submitted", "run": "run", "launcher": "slurm", "job_id": ["12"], "events_before": 1, "host": "h"},
        {"event": "submitted", "run": "run", "launcher": "slurm", "job_id": "../12*", "events_before": 1, "host": "h"},
        {"event": "submitted", "run": "run", "launcher": "slurm", "job_id": "12", "events_before": "x", "host": "h"},
    ],
)
def test_a_ledger_that_we_did_not_write_tells_nothing(record: dict[str, Any], tmp_path: Path) -> None:
    directory = prepared(tmp_path, a_run())
    started(directory, a_run())
    append_record(SweepDir(tmp_path).submissions, {"time": "2026-01-02T03:00:00.000+00:00"} | record)
    log(directory, TIME_LIMIT)
    assert of(directory) == Ended(Ending.unknown)


# --- real ones, and the report ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_real_run_that_was_refused_tells_what_to_mend(tmp_path: Path) -> None:
    directory = make_run(tmp_path, f"job.init_from={tmp_path}/nowhere")
    directory.plan.write_text("{}")
    assert set(train(directory)) != {0}
    assert of(directory) == Ended(Ending.configuration_error, "status.jsonl: failed, cause refused")


@pytest.mark.slow
def test_a_real_run_whose_memory_does_not_suffice_says_so(tmp_path: Path) -> None:
    # More than a process can address: 2**25 x 2**21 x 4 bytes for the embedding alone.
    vast = ("model.vocab_size=33554432", "model.hidden_size=2097152", "model.head_size=524288")
    directory = make_run(tmp_path, *vast)
    directory.plan.write_text("{}")
    assert set(train(directory)) != {0}
    assert of(directory) == Ended(Ending.out_of_host_memory, "status.jsonl: failed, cause out_of_memory")


def test_the_report_says_ending_proof_and_advice(tmp_path: Path) -> None:
    directory = submitted(tmp_path)
    log(directory, BEGIN + TIME_LIMIT.replace("node01", "<b>|=1+1"))
    text = report([tmp_path], None).read_text()
    told = text[text.index("Runs not used, and why") :]
    assert "<td>time limit</td>" in told
    assert "*** JOB 12 ON &lt;b&gt;|=1+1 CANCELLED AT" in told
    assert Ending.time_limit.value in told
    (row,) = csv.DictReader((tmp_path / "runs.csv").read_text().splitlines())
    assert row["ended_by"] == "time_limit"
    assert row["ended_by_proof"].startswith("12_0_log.out:2: slurmstepd: error")
    (listed,) = [line for line in (tmp_path / "report.md").read_text().splitlines() if "JOB 12" in line]
    assert "| time limit | 12_0_log.out:2: slurmstepd" in listed
    assert "&lt;b&gt;\\|=1+1 CANCELLED" in listed

"""The verdict on a job by sacct's tables, alone and combined with the verdict on its log."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.failures.runs import Failure
from analysis.failures.sacct import accounted, job_of, read_jobs, stronger, verdict_on_job
from analysis.failures.verdict import Verdict, verdict_on
from jobs.failure_causes import FailureCause
from tests.analysis.parsers.reading import SAMPLES

HEADER = "JobID|JobName|State|ExitCode|NodeList"


def table(where: Path, *rows: str) -> Path:
    file = where / "sacct.txt"
    file.write_text("\n".join((HEADER, *rows, "")))
    return file


def of(where: Path, *rows: str, job: str = "12") -> Verdict:
    return verdict_on_job(read_jobs(table(where, *rows))[job])


@pytest.mark.parametrize(
    ("rows", "cause", "proof"),
    [
        (["12|train|TIMEOUT|0:0|node01", "12.0|python|CANCELLED|0:15|node01"], FailureCause.time_limit, "12 TIMEOUT"),
        (["12|train|NODE_FAIL|1:0|node01", "12.0|python|OUT_OF_MEMORY|0:125|node01"], FailureCause.node_failure,
         "12 NODE_FAIL"),
        (["12|train|PREEMPTED|0:0|node01"], FailureCause.preempted, "12 PREEMPTED"),
        (["12|train|OUT_OF_MEMORY|0:125|node01"], FailureCause.out_of_host_memory, "12 OUT_OF_MEMORY, exit code 0:125"),
        (["12|train|CANCELLED by 1000|0:0|node01"], FailureCause.cancelled, "12 CANCELLED"),
        # The job's own row hides the cause.
        (["12|train|FAILED|90:0|node01", "12.batch|batch|FAILED|90:0|node01", "12.0|python|OUT_OF_MEMORY|0:125|node01"],
         FailureCause.out_of_host_memory, "12.0 OUT_OF_MEMORY, exit code 0:125"),
        (["12|train|FAILED|1:0|node01", "12.batch|batch|OUT_OF_MEMORY|0:125|node01"], FailureCause.out_of_host_memory,
         "12.batch OUT_OF_MEMORY"),
        (["12|train|TIMEOUT|0:0|node01", "12.0|python|OUT_OF_MEMORY|0:125|node01"], FailureCause.out_of_host_memory,
         "12.0"),
        # A later step repeated it and ended differently.
        (["12|train|FAILED|1:0|node01", "12.0|python|OUT_OF_MEMORY|0:125|node01", "12.1|python|FAILED|1:0|node01"],
         FailureCause.unknown, None),
        (["12|train|FAILED|137:0|node01", "12.0|python|FAILED|0:9|node01"], FailureCause.killed, "12.0 FAILED"),
        (["12|train|FAILED|134:0|node01"], FailureCause.aborted, "12 FAILED, exit code 134:0"),
        (["12|train|FAILED|255:0|node01"], FailureCause.unknown, None),
        (["12|train|COMPLETED|0:0|node01", "12.0|python|OUT_OF_MEMORY|0:125|node01"], FailureCause.unknown, None),
        (["12|train|RUNNING|0:0|node01"], FailureCause.unknown, None),
    ],
)  # fmt: skip
def test_the_rows_of_a_job_prove_its_cause(
    rows: list[str], cause: FailureCause, proof: str | None, tmp_path: Path
) -> None:
    found = of(tmp_path, *rows)
    assert found.cause is cause
    assert (found.proof or "").startswith(proof or "")
    assert (found.proof is None) == (proof is None)


def test_the_last_start_of_a_job_counts(tmp_path: Path) -> None:
    rows = ["12|train|NODE_FAIL|0:0|node01", "12.0|python|CANCELLED|0:0|node01", "12|train|TIMEOUT|0:0|node02"]
    assert of(tmp_path, *rows).cause is FailureCause.time_limit
    assert of(tmp_path, *rows).line == 4


def test_the_components_of_a_heterogeneous_job_are_one_job(tmp_path: Path) -> None:
    table = tmp_path / "sacct.txt"
    table.write_text(
        "JobID|State|ExitCode\n12+0|FAILED|1:0\n12+0.batch|FAILED|1:0\n12+0.0|FAILED|9:0\n12+1|COMPLETED|0:0\n"
        "12+1.0|OUT_OF_MEMORY|0:125\n"
    )
    (rows,) = read_jobs(table).values()
    assert list(read_jobs(table)) == ["12"]
    assert verdict_on_job(rows).proof == "12+1.0 OUT_OF_MEMORY, exit code 0:125"


def test_each_task_of_an_array_is_a_job(tmp_path: Path) -> None:
    jobs = read_jobs(
        table(tmp_path, "12_0|t|COMPLETED|0:0|node01", "12_1|t|TIMEOUT|0:0|node01", "12_1.0|p|CANCELLED|0:15|x")
    )
    assert {job: len(rows) for job, rows in jobs.items()} == {"12_0": 1, "12_1": 2}


TRACEBACK = "Traceback (most recent call last):\nRuntimeError: boom\n"
CANCELLED = "slurmstepd: error: *** STEP 12.0 ON node03 CANCELLED AT 2026-02-03T04:05:06"


@pytest.mark.parametrize(
    ("log", "state", "cause"),
    [
        # A fault of the machine outweighs the program's own error ...
        (TRACEBACK, "NODE_FAIL", FailureCause.node_failure),
        ("srun: error: node03: task 1: Killed\n", "OUT_OF_MEMORY", FailureCause.out_of_host_memory),
        # ... and Slurm's state outweighs a bare signal.
        ("srun: error: node03: task 1: Killed\n", "CANCELLED", FailureCause.cancelled),
        (f"{CANCELLED} ***\n", "TIMEOUT", FailureCause.time_limit),
        ("training\n", "PREEMPTED", FailureCause.preempted),
        # One rank raised, and the others waited until the time limit.
        ("torch.OutOfMemoryError: CUDA out of memory.\n", "TIMEOUT", FailureCause.out_of_gpu_memory),
        (TRACEBACK, "CANCELLED", FailureCause.code),
        # The exit code proves no more than the log.
        (TRACEBACK, "FAILED", FailureCause.code),
        ("training\n", "FAILED", FailureCause.unknown),
        ("training\n", "COMPLETED", FailureCause.unknown),
    ],
)
def test_the_stronger_proof_of_log_and_table_decides(log: str, state: str, cause: FailureCause, tmp_path: Path) -> None:
    file = tmp_path / "slurm-12.out"
    file.write_text(log)
    assert stronger(verdict_on(file), of(tmp_path, f"12|train|{state}|1:0|node01")).cause is cause


@pytest.mark.parametrize(
    ("name", "text", "job"),
    [
        ("slurm-12.out", "", "12"),
        ("slurm-14_3.out", "", "14_3"),
        ("12_0_log.out", "", "12"),
        ("14_3_7_log.out", "", "14_3"),
        ("train-12.err", "", "12"),
        ("train.log", f"{CANCELLED} ***\n", "12"),
        ("train.log", "slurmstepd: error: Detected 1 oom_kill event in StepId=12.0. Some\n", "12"),
        ("train.log", "SLURM_JOB_ID=12\n", "12"),
        ("train.log", f"{CANCELLED} ***\nStepId=13.0\n", None),
        ("train-16-nodes.log", "step 12\n", None),
        ("slurm-99.out", "", None),
    ],
)
def test_a_log_is_matched_to_a_job_by_its_name_or_by_slurms_messages(
    name: str, text: str, job: str | None, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    assert job_of(tmp_path / name, {"12", "13", "14_3", "16"}) == job


def test_logs_and_tables_are_joined_by_job(tmp_path: Path) -> None:
    texts = {
        "slurm-12.out": TRACEBACK,
        "slurm-13.out": "training\n",
        "slurm-14.out": "training\n",
        "mine.log": TRACEBACK,
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    logs = {tmp_path / name: verdict_on(tmp_path / name) for name in texts}
    rows = ["12|t|NODE_FAIL|1:0|x", "13|t|FAILED|1:0|x", "13.0|p|OUT_OF_MEMORY|0:125|x"]
    found = accounted(logs, [table(tmp_path, *rows)])
    assert {path.name: Failure.of(path.name, each) for path, each in found.items() if each.weight} == {
        "slurm-12.out": Failure(FailureCause.node_failure, "sacct.txt:2: 12 NODE_FAIL, exit code 1:0"),
        "slurm-13.out": Failure(FailureCause.out_of_host_memory, "sacct.txt:4: 13.0 OUT_OF_MEMORY, exit code 0:125"),
        "mine.log": Failure(FailureCause.code, "mine.log:2: RuntimeError: boom"),
    }
    assert accounted(logs, []) == logs


def test_a_table_of_a_real_slurm_is_read() -> None:
    jobs = read_jobs(SAMPLES / "sacct.txt")
    assert verdict_on_job(jobs["31803"]).cause is FailureCause.time_limit
    assert verdict_on_job(jobs["31808"]).cause is FailureCause.node_failure
    assert verdict_on_job(jobs["31801"]).cause is FailureCause.cancelled


def test_a_file_that_has_gone_since_it_was_read_adds_nothing(tmp_path: Path) -> None:
    log, accounts = tmp_path / "log", table(tmp_path, "12|train|TIMEOUT|0:0|node01")
    log.write_text("ValueError: no\n")
    found = {log: verdict_on(log)}
    log.unlink()
    assert accounted(found, [accounts, tmp_path / "gone"]) == found

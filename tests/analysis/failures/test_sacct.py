"""Why a job ended by sacct's tables: the step's word where the job's hides it, and the log's where that proves more."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.failures.runs import Ended
from analysis.failures.sacct import accounted, ending_of_job, job_of, read_jobs, weighed
from analysis.failures.signatures import Ending
from analysis.failures.verdict import Verdict, ending_of
from tests.analysis.parsers.reading import SAMPLES

HEADER = "JobID|JobName|State|ExitCode|NodeList"


def table(where: Path, *rows: str) -> Path:
    file = where / "sacct.txt"
    file.write_text("\n".join((HEADER, *rows, "")))
    return file


def of(where: Path, *rows: str, job: str = "12") -> Verdict:
    return ending_of_job(read_jobs(table(where, *rows))[job])


@pytest.mark.parametrize(
    ("rows", "ending", "proof"),
    [
        (["12|train|TIMEOUT|0:0|node01", "12.0|python|CANCELLED|0:15|node01"], Ending.time_limit, "12 TIMEOUT"),
        (["12|train|NODE_FAIL|1:0|node01", "12.0|python|OUT_OF_MEMORY|0:125|node01"], Ending.node_failure,
         "12 NODE_FAIL"),
        (["12|train|PREEMPTED|0:0|node01"], Ending.preempted, "12 PREEMPTED"),
        (["12|train|OUT_OF_MEMORY|0:125|node01"], Ending.out_of_host_memory, "12 OUT_OF_MEMORY, exit code 0:125"),
        (["12|train|CANCELLED by 1000|0:0|node01"], Ending.cancelled, "12 CANCELLED"),
        # The job's own row hides it.
        (["12|train|FAILED|90:0|node01", "12.batch|batch|FAILED|90:0|node01", "12.0|python|OUT_OF_MEMORY|0:125|node01"],
         Ending.out_of_host_memory, "12.0 OUT_OF_MEMORY, exit code 0:125"),
        (["12|train|FAILED|1:0|node01", "12.batch|batch|OUT_OF_MEMORY|0:125|node01"], Ending.out_of_host_memory,
         "12.batch OUT_OF_MEMORY"),
        (["12|train|TIMEOUT|0:0|node01", "12.0|python|OUT_OF_MEMORY|0:125|node01"], Ending.out_of_host_memory, "12.0"),
        # It was tried again in another step, which ended otherwise.
        (["12|train|FAILED|1:0|node01", "12.0|python|OUT_OF_MEMORY|0:125|node01", "12.1|python|FAILED|1:0|node01"],
         Ending.unknown, None),
        (["12|train|FAILED|137:0|node01", "12.0|python|FAILED|0:9|node01"], Ending.killed, "12.0 FAILED"),
        (["12|train|FAILED|134:0|node01"], Ending.aborted, "12 FAILED, exit code 134:0"),
        (["12|train|FAILED|255:0|node01"], Ending.unknown, None),
        (["12|train|COMPLETED|0:0|node01", "12.0|python|OUT_OF_MEMORY|0:125|node01"], Ending.unknown, None),
        (["12|train|RUNNING|0:0|node01"], Ending.unknown, None),
    ],
)  # fmt: skip
def test_a_job_ended_as_its_rows_prove(rows: list[str], ending: Ending, proof: str | None, tmp_path: Path) -> None:
    found = of(tmp_path, *rows)
    assert found.ending is ending
    assert (found.proof or "").startswith(proof or "")
    assert (found.proof is None) == (proof is None)


def test_of_a_job_that_was_started_again_the_last_start_counts(tmp_path: Path) -> None:
    rows = ["12|train|NODE_FAIL|0:0|node01", "12.0|python|CANCELLED|0:0|node01", "12|train|TIMEOUT|0:0|node02"]
    assert of(tmp_path, *rows).ending is Ending.time_limit
    assert of(tmp_path, *rows).line == 4


def test_tasks_of_an_array_are_jobs_of_their_own(tmp_path: Path) -> None:
    jobs = read_jobs(
        table(tmp_path, "12_0|t|COMPLETED|0:0|node01", "12_1|t|TIMEOUT|0:0|node01", "12_1.0|p|CANCELLED|0:15|x")
    )
    assert {job: len(rows) for job, rows in jobs.items()} == {"12_0": 1, "12_1": 2}


TRACEBACK = "Traceback (most recent call last):\nRuntimeError: boom\n"
CANCELLED = "slurmstepd: error: *** STEP 12.0 ON node03 CANCELLED AT 2026-02-03T04:05:06"


@pytest.mark.parametrize(
    ("log", "state", "ending"),
    [
        # The machine's fault stands behind what the program said of it ...
        (TRACEBACK, "NODE_FAIL", Ending.node_failure),
        ("srun: error: node03: task 1: Killed\n", "OUT_OF_MEMORY", Ending.out_of_host_memory),
        # ... and Slurm's word behind bare signals.
        ("srun: error: node03: task 1: Killed\n", "CANCELLED", Ending.cancelled),
        (f"{CANCELLED} ***\n", "TIMEOUT", Ending.time_limit),
        ("training\n", "PREEMPTED", Ending.preempted),
        # One rank raised, the others waited until their time was over.
        ("torch.OutOfMemoryError: CUDA out of memory.\n", "TIMEOUT", Ending.out_of_gpu_memory),
        (TRACEBACK, "CANCELLED", Ending.code_error),
        # The exit code adds nothing to what the log says.
        (TRACEBACK, "FAILED", Ending.code_error),
        ("training\n", "FAILED", Ending.unknown),
        ("training\n", "COMPLETED", Ending.unknown),
    ],
)
def test_log_and_table_are_weighed(log: str, state: str, ending: Ending, tmp_path: Path) -> None:
    file = tmp_path / "slurm-12.out"
    file.write_text(log)
    assert weighed(ending_of(file), of(tmp_path, f"12|train|{state}|1:0|node01")).ending is ending


def test_a_program_that_said_its_end_has_ended_well_whatever_became_of_its_job(tmp_path: Path) -> None:
    file = tmp_path / "slurm-12.out"
    file.write_text("training done\n")
    assert weighed(ending_of(file, finished=True), of(tmp_path, "12|t|TIMEOUT|0:0|x")).ending is Ending.succeeded


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
def test_a_log_is_of_the_job_that_its_name_or_slurm_in_it_names(
    name: str, text: str, job: str | None, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    assert job_of(tmp_path / name, {"12", "13", "14_3", "16"}) == job


def test_logs_and_tables_of_a_folder_are_joined_by_job(tmp_path: Path) -> None:
    texts = {
        "slurm-12.out": TRACEBACK,
        "slurm-13.out": "training\n",
        "slurm-14.out": "training\n",
        "mine.log": TRACEBACK,
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    logs = {tmp_path / name: ending_of(tmp_path / name) for name in texts}
    rows = ["12|t|NODE_FAIL|1:0|x", "13|t|FAILED|1:0|x", "13.0|p|OUT_OF_MEMORY|0:125|x"]
    found = accounted(logs, [table(tmp_path, *rows)])
    assert {path.name: Ended.of(path.name, each) for path, each in found.items() if each.weight} == {
        "slurm-12.out": Ended(Ending.node_failure, "sacct.txt:2: 12 NODE_FAIL, exit code 1:0"),
        "slurm-13.out": Ended(Ending.out_of_host_memory, "sacct.txt:4: 13.0 OUT_OF_MEMORY, exit code 0:125"),
        "mine.log": Ended(Ending.code_error, "mine.log:2: RuntimeError: boom"),
    }
    assert accounted(logs, []) == logs


def test_a_real_table_of_a_real_slurm_is_read() -> None:
    jobs = read_jobs(SAMPLES / "sacct.txt")
    assert ending_of_job(jobs["31803"]).ending is Ending.time_limit
    assert ending_of_job(jobs["31808"]).ending is Ending.node_failure
    assert ending_of_job(jobs["31801"]).ending is Ending.cancelled

"""Times of the commands that plan, submit and show sweeps: medians of several runs.

Whole processes are timed, as users wait for them. The Slurm is the emulated one of tests/support/slurm.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from jobs.rundir import SweepDir, append_record, now
from tests.support.fake_runs import a_run, finished_run, prepared, step
from tests.support.paths import ROOT
from tests.support.slurm.cluster import SlurmCluster, SlurmUnavailable

REPEATS = 5
HUNDRED = [
    "-m",
    "cluster=generic_slurm",
    "job.seed=range(0,100)",
    "job.micro_batch_size=1",
    "cluster.sbatch={begin: now+1hour}",
]
PREDICTED = ["-m", "model=llama3_8b", "cluster=xe9680_h100", "gpu.memory_gb=null", "job.precision=bfloat16",
             "scaling.global_batch_size=4096", "nodes=1,2,4,8,16", "job.micro_batch_size=1,2,4,8,16",
             "parallelism=fsdp_full,fsdp_grad_op,fsdp_hybrid,tp_fsdp", "engine.activation_checkpointing=none,full",
             "job.seed=range(0,5)"]  # fmt: skip
"""A thousand points on GPUs whose rates are known, all legal."""
THOUSAND = ["-m", "cluster=generic_slurm", "job.micro_batch_size=1", "cluster.sbatch={begin: now+1hour}",
            "nodes=1,2,4", "job.seed=range(0,334)"]  # fmt: skip


def median_s(*arguments: str) -> tuple[float, float, float]:
    """Return smallest, median and largest wall time of a slurmscale command over fresh run directories."""
    times = []
    for _ in range(REPEATS):
        with tempfile.TemporaryDirectory() as where:
            command = [sys.executable, "-m", "jobs.cli", *arguments]
            command += [f"runs_dir={where}"] if "submit" in arguments else []
            started = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            times.append(time.perf_counter() - started)
    return min(times), statistics.median(times), max(times)


def arrays_by_hand() -> tuple[float, float, float]:
    """Return smallest, median and largest time of sbatch alone for the three arrays of the 1,002 jobs."""
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        for nodes in (1, 2, 4):
            command = ["sbatch", f"--nodes={nodes}", "--array=0-333", "--begin=now+1hour", "--wrap", "true"]
            subprocess.run(command, check=True, capture_output=True)
        times.append(time.perf_counter() - started)
    return min(times), statistics.median(times), max(times)


def sweep_of_1000(sweep: Path) -> None:
    """Write a sweep: 500 runs finished, 400 waiting in the queue, 100 lost without a recorded end."""
    held = subprocess.run(
        ["sbatch", "--parsable", "--array=0-399", "--begin=now+1hour", "--wrap", "true"],
        check=True, capture_output=True, text=True, cwd=sweep.parent,
    ).stdout.strip()  # fmt: skip
    for number in range(1000):
        run = a_run(f"run-{number:04d}", steps=40)
        job_id = f"{held}_{number - 500}"
        if number < 500:
            finished_run(sweep, run)
        else:
            directory = prepared(sweep, run)
        if number >= 900:
            job_id = f"{90_000_000 + number}"
            for done in range(1, 31):
                step(directory, done)
        record = {"time": now(), "event": "submitted", "run": run.name, "launcher": "slurm", "job_id": job_id}
        append_record(SweepDir(sweep).submissions, record | {"events_before": 1, "host": "login"})


def show(what: str, times: tuple[float, float, float]) -> None:
    """Print one row of the table."""
    print(f"| {what} | {times[1]:.2f} s | {times[0]:.2f} to {times[2]:.2f} s |", flush=True)


def main() -> None:
    """Print the table."""
    print(f"{os.cpu_count()} cores, {time.strftime('%Y-%m-%d')}, median of {REPEATS} runs\n")
    print("| what | median | range |\n| --- | ---: | ---: |")
    show("`slurmscale --help`", median_s("--help"))
    show("`slurmscale submit launcher=dry`, one point", median_s("submit", "launcher=dry"))
    show("`slurmscale plan -m` of 1,000 points with predictions", median_s("plan", *PREDICTED))
    try:
        with SlurmCluster() as cluster:
            os.environ |= cluster.env
            show("prepare and submit 100 points to the emulated Slurm", median_s("submit", *HUNDRED))
            show("prepare and submit 1,002 points, 1, 2 and 4 nodes each", median_s("submit", *THOUSAND))
            # A controller accepts 10,000 jobs in total.
            subprocess.run(["scancel", "--me"], check=True)
            show("the same three arrays by `sbatch` alone", arrays_by_hand())
            subprocess.run(["scancel", "--me"], check=True)
            with tempfile.TemporaryDirectory() as where:
                sweep = Path(where) / "sweep"
                sweep_of_1000(sweep)
                show("`slurmscale status` of 1,000 runs", median_s("status", str(sweep)))
                show("`slurmscale status --all` of 1,000 runs", median_s("status", "--all", str(sweep)))
    except SlurmUnavailable as reason:
        print(f"| 100 points to the emulated Slurm | not measured: {reason} | |")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()

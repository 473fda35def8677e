"""The figures of the README's numbers table: `make benchmark` prints them, the median of several runs each.

Whole processes are timed, as a user waits for them. The Slurm is the emulated one of tests/slurm, on this machine.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.slurm.cluster import SlurmCluster, SlurmUnavailable

REPEATS = 5
HUNDRED = [
    "-m",
    "cluster=generic_slurm",
    "job.seed=range(0,100)",
    "job.micro_batch_size=1",
    "cluster.sbatch={begin: now+1hour}",
]


def median_s(*arguments: str) -> tuple[float, float, float]:
    """Smallest, median and largest wall time of a slurmscale command over fresh run directories."""
    times = []
    for _ in range(REPEATS):
        with tempfile.TemporaryDirectory() as where:
            command = [sys.executable, "-m", "jobs.cli", *arguments]
            command += [f"runs_dir={where}"] if "submit" in arguments else []
            started = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            times.append(time.perf_counter() - started)
    return min(times), statistics.median(times), max(times)


def show(what: str, times: tuple[float, float, float]) -> None:
    """One row of the table."""
    print(f"| {what} | {times[1]:.2f} s | {times[0]:.2f} to {times[2]:.2f} s |", flush=True)


def main() -> None:
    """Print the table."""
    print(f"{os.cpu_count()} cores, {time.strftime('%Y-%m-%d')}, median of {REPEATS} runs\n")
    print("| what | median | range |\n| --- | ---: | ---: |")
    show("`slurmscale --help`", median_s("--help"))
    show("`slurmscale submit launcher=dry`, one point", median_s("submit", "launcher=dry"))
    try:
        with SlurmCluster() as cluster:
            os.environ |= cluster.env
            show("prepare and submit 100 points to the emulated Slurm", median_s("submit", *HUNDRED))
    except SlurmUnavailable as reason:
        print(f"| 100 points to the emulated Slurm | not measured: {reason} | |")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    main()

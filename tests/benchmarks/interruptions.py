"""Kill `submit` at random moments on the emulated Slurm, and compare ledger and queue afterwards.

Prints the number of kills that left a job which the ledger does not know, or a run with two jobs; both must be 0.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from jobs.rundir import SweepDir
from jobs.submit.states import states
from jobs.submit.sweeps.intents import VOID_AFTER_S
from jobs.submit.sweeps.submissions import intents, latest_submissions
from tests.support.paths import ROOT
from tests.support.slurm.cluster import SlurmCluster

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP)
AROUND_SBATCH_S = 0.2
RUNS = ["nodes=1,2", "repeat=1,2", "data=random", "job.steps=4", "job.micro_batch_size=1"]


def slurmscale(*arguments: str) -> subprocess.Popen[bytes]:
    """Start the command in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "jobs.cli", *arguments], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip


def submit(where: Path, name: str) -> subprocess.Popen[bytes]:
    """Start to submit a sweep of two arrays that wait in the queue."""
    later = "cluster.sbatch={begin: now+1hour}"
    return slurmscale("submit", "-m", "cluster=generic_slurm", *RUNS, later, f"runs_dir={where}", f"sweep={name}")


def queued(name: str) -> Counter[str]:
    """Return the jobs in the queue whose name begins with that of a sweep."""
    rows = subprocess.run(["squeue", "-h", "-r", "-o", "%i|%j"], check=True, capture_output=True, text=True).stdout
    return Counter(row.partition("|")[0] for row in rows.splitlines() if row.partition("|")[2].startswith(f"{name}-"))


def kill_at_random(where: Path, kills: int, longest_s: float, chosen: random.Random) -> Counter[str]:
    """Submit sweeps and kill each process, or its whole group, at a random moment; return the number by signal.

    Two of three are killed within `AROUND_SBATCH_S` after the first script of sbatch was written.
    """
    done: Counter[str] = Counter()
    for number in range(kills):
        shell = submit(where, f"sweep{number}")
        number_of_signal = chosen.choice(SIGNALS)
        logs = SweepDir(where / f"sweep{number}").logs
        if chosen.random() < 2 / 3:
            while shell.poll() is None and not any(logs.glob("*.sbatch")):
                time.sleep(0.001)
            time.sleep(chosen.uniform(0, AROUND_SBATCH_S))
        else:
            time.sleep(chosen.uniform(0, longest_s))
        (os.killpg if chosen.random() < 0.5 else os.kill)(shell.pid, number_of_signal)
        shell.wait()
        done[number_of_signal.name] += 1
    return done


def compared(where: Path, kills: int) -> tuple[int, int, int]:
    """Return the numbers of sweeps with a settled submission, of unknown jobs, and of runs with two jobs or none."""
    settled = unknown = wrong = 0
    for number in range(kills):
        sweep = SweepDir(where / f"sweep{number}")
        if not sweep.path.exists() or not sweep.runs():
            unknown += len(queued(sweep.path.name))
            continue
        settled += bool(intents(sweep))
        for command in ("status", "resume"):
            slurmscale(command, str(sweep.path)).wait()
        jobs = Counter(item.job_id for item in latest_submissions(sweep).values())
        unknown += len(queued(sweep.path.name).keys() - jobs.keys())
        wrong += len(states(sweep)) - len(queued(sweep.path.name)) if jobs != queued(sweep.path.name) else 0
    return settled, unknown, wrong


def main() -> None:
    """Print one row."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with SlurmCluster() as cluster, tempfile.TemporaryDirectory() as where:
        os.environ |= cluster.env
        started = time.monotonic()
        submit(Path(where), "undisturbed").wait()
        longest_s = time.monotonic() - started
        done = kill_at_random(Path(where), options.kills, longest_s, random.Random(options.seed))
        time.sleep(VOID_AFTER_S)
        settled, unknown, wrong = compared(Path(where), options.kills)
    print(f"{dict(done)}: {settled} interrupted submissions settled, {unknown} unknown jobs, {wrong} wrong runs")
    sys.exit(bool(unknown or wrong))


if __name__ == "__main__":
    main()

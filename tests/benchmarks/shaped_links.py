"""Two networks compared in turns for real, on two emulated nodes whose links are shaped.

The nodes are network namespaces of this machine under a real Slurm, joined by the links `fast0` and `slow0`, which tc
shapes. `slurmscale attempt` trains over one and the other in turns in one allocation (network.interface). Prints the
ratio of the times, then the transports that the ranks found and the leaderboard; the campaign and its report stay in
--output. Needs root, Slurm, iproute2 and util-linux; leaves no namespace behind, however it ends.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from analysis.compare.campaign import Leaderboard, leaderboards
from analysis.load.discover import read_runs
from analysis.run import RunResult
from tests.support.paths import ROOT
from tests.support.slurm.cluster import SlurmCluster
from tests.support.slurm.namespaces import leave_host, two_nodes

BASELINE = ("cluster=generic_slurm", "nodes=2", "ranks_per_node=1", "model=tiny", "data=random", "parallelism=ddp",
            "job.precision=float32", "job.sequence_length=64", "job.micro_batch_size=1", "scaling.global_batch_size=2",
            "job.steps=12", "job.unmeasured_steps=2", "network=tcp")  # fmt: skip
ONE_ALLOCATION = ("launcher=pilot", "launcher.pilot_nodes=2", "launcher.pilot_wall_time_min=110")


def main() -> None:
    """Run the campaign and print its result."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--fast", default="1gbit", help="rate of fast0, as tc takes it (%(default)s)")
    parser.add_argument("--slow", default="50mbit", help="rate of slow0 (%(default)s)")
    parser.add_argument("--pairs", type=int, default=3, help="pairs of runs (%(default)s)")
    parser.add_argument("--output", type=Path, default=ROOT / "build/shaped_links", help="is replaced (%(default)s)")
    options = parser.parse_args()
    where = options.output.absolute()
    shutil.rmtree(where, ignore_errors=True)
    where.mkdir(parents=True)
    campaign = where / "shaped_links"
    rates = {"fast0": options.fast, "slow0": options.slow}
    leave_host()
    with two_nodes(("node01", "node02"), rates) as nodes, SlurmCluster(2, 1, namespaces=nodes) as cluster:
        os.environ |= cluster.env
        own = (f"runs_dir={where}", f"sweep={campaign.name}", f"data.cache_dir={where}/cache")
        attempt("baseline", "--wait", "--repeats", "1", *BASELINE, *own, "network.interface=slow0")
        pairs = ("--repeats", str(options.pairs), "--campaign", str(campaign))
        attempt("fast0", "--wait", *pairs, "network.interface=fast0")
    (board,) = leaderboards(read_runs([campaign]))
    print(answer(board, rates), *found(board.runs), sep="\n", flush=True)
    slurmscale("leaderboard", str(campaign))
    slurmscale("report", str(campaign))


def attempt(*words: str) -> None:
    """Run an attempt to its end; what it prints is kept for a failure, which ends the benchmark."""
    done = slurmscale("attempt", *words, *ONE_ALLOCATION, capture_output=True)
    if done.returncode:
        sys.exit(f"slurmscale attempt {' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")


def slurmscale(*arguments: str, capture_output: bool = False) -> subprocess.CompletedProcess[str]:
    """Run a command of slurmscale."""
    command = [sys.executable, "-m", "jobs.cli", *arguments]
    return subprocess.run(command, check=False, cwd=ROOT, capture_output=capture_output, text=True)


def answer(board: Leaderboard, rates: dict[str, str]) -> str:
    """Return the ratio of the times, first of all that is printed."""
    (fast,) = [entry for entry in board.entries if entry.trial.name == "fast0"]
    if fast.ratio is None:
        return "Emulated nodes on CPU: no pair was measured."
    between = " to ".join(f"{limit:.2f}" for limit in fast.interval or ())
    links = [f"{link} ({rate})" for link, rate in rates.items()]
    return (
        f"Emulated nodes on CPU: a step over {links[1]} takes {fast.ratio.middle:.2f} times as long as over {links[0]} "
        f"({f'95 % interval {between}; ' if between else ''}pairs in turns on the same two nodes: {len(fast.ratios)})."
    )


def found(runs: Iterable[RunResult]) -> list[str]:
    """Return a line for each interface asked for, with the transports that the ranks found."""
    counts = Counter((run.setting("network.interface"), run.transport) for run in runs)
    return [
        f"asked for {asked}, found {transport}: runs {count}" for (asked, transport), count in sorted(counts.items())
    ]


if __name__ == "__main__":
    main()

"""The cost of slurmscale to a program (job=program): its own rate alone, and as a run, in turns.

    python -m tests.benchmarks.program_overhead --pairs 10 --seconds 20

The program multiplies matrices for a time and prints its products per second; it does not know who started it. Printed
are the rates of each pair, and the median of their ratio with its interval by order statistics. Start-up is not in the
rate: a rank needs a second or two before its program.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

from analysis.intervals import Spread
from tests.support.paths import ROOT
from tests.support.real_run import make_run, rank_environment

SCRIPT = """\
import sys, time
import numpy as np
left, right, count = np.ones((300, 300)), np.ones((300, 300)), 0
begin = time.perf_counter()
while (passed := time.perf_counter() - begin) < float(sys.argv[1]):
    left @ right
    count += 1
print("rate", count / passed, flush=True)
"""
VARIABLES = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
PROGRAM = {
    "name": "products",
    "steps": {"multiply": {"command": f"{sys.executable} products.py {{params.seconds}}", "start": "rank"}},
    "params": {"seconds": "20"},
    "files": {"products.py": SCRIPT},
    "env": VARIABLES,
}
RATE = re.compile(r"rate ([\d.]+)")


def alone(where: Path, seconds: float) -> float:
    """Return the rate of the program, started by this process."""
    script = where / "products.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(seconds)]
    return rate_in(subprocess.run(command, env=os.environ | VARIABLES, capture_output=True, text=True, check=True))


def as_run(where: Path, seconds: float, number: int) -> float:
    """Return the rate of the program as the only rank of a run."""
    run = make_run(
        where, "job=program", "program=products", "ranks_per_node=1", f"program.params.seconds={seconds}",
        f"name=run-{number}", small=False,
    )  # fmt: skip
    environment = os.environ | rank_environment(0, 1, str(number))
    command = [sys.executable, "-m", "jobs.run", str(run.path)]
    return rate_in(subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True))


def rate_in(done: subprocess.CompletedProcess[str]) -> float:
    """Return the rate that a program printed."""
    found = RATE.search(done.stdout)
    assert found is not None, done.stdout
    return float(found[1])


def main() -> None:
    """Print the rates of each pair and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    ratios = []
    with tempfile.TemporaryDirectory() as name:
        where = Path(name)
        (where / "site/program").mkdir(parents=True)
        (where / "site/program/products.yaml").write_text(yaml.safe_dump(PROGRAM, sort_keys=False))
        os.environ["SLURMSCALE_SITE"] = str(where / "site")
        for pair in range(options.pairs):
            # The other one goes first in every second pair.
            first = alone(where, options.seconds) if pair % 2 == 0 else None
            run = as_run(where, options.seconds, pair)
            own = alone(where, options.seconds) if first is None else first
            ratios.append(run / own)
            print(f"pair {pair + 1}: alone {own:.1f}, as a run {run:.1f} products/s", flush=True)
    spread = Spread.of(ratios)
    print(f"as a run / alone: {spread.median:.4f} ({spread.low:.4f} to {spread.high:.4f}), interval {spread.interval}")


if __name__ == "__main__":
    main()

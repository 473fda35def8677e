"""The cost of slurmscale to a program (job=program): the same training by its own launcher and as a run, in turns.

    python -m tests.benchmarks.program_overhead --pairs 10 --steps 200

The script is plain torch and does not know who started it; it prints the wall and processor time of every step, and at
the end the processor time that its parent took meanwhile: torchrun, or the rank of slurmscale. By itself it is started
by torchrun, as a run by `slurmscale submit --wait launcher=local`; every second pair begins with the run (ABBA).

Printed are ratios with the interval of their median by order statistics, and the seconds that the whole command takes
longer apart from the steps: start-up and end, once for each run. On a busy machine the processor times are the sharper
ones: what other processes take is not in them.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import yaml

from analysis.intervals import Spread

SCRIPT = """\
import os, sys, time
import torch
torch.set_num_threads(1)
ranks = int(os.environ["WORLD_SIZE"])
if ranks > 1:
    torch.distributed.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(768, 768) for _ in range(4)))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
batch = torch.randn(256, 768)

def of_parent():
    ticks = open(f"/proc/{os.getppid()}/stat").read().rpartition(")")[2].split()[11:13]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")

before, start = of_parent(), time.perf_counter()
for step in range(int(sys.argv[1])):
    begin, used = time.perf_counter(), time.process_time()
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    for weight in model.parameters() if ranks > 1 else ():
        torch.distributed.all_reduce(weight.grad)
    optimizer.step()
    if os.environ["RANK"] == "0":
        print("step", step, "took", time.perf_counter() - begin, "s, processor", time.process_time() - used, flush=True)
if os.environ["RANK"] == "0":
    print("parent", (of_parent() - before) / (time.perf_counter() - start), "of a processor")
"""
VARIABLES = {"OMP_NUM_THREADS": "1"}
PROGRAM = {
    "name": "steps",
    "steps": {"train": {"command": f"{sys.executable} steps.py {{params.steps}}", "start": "rank"}},
    "params": {"steps": "200"},
    "files": {"steps.py": SCRIPT},
    "env": VARIABLES,
}
STEP = re.compile(r"^step \d+ took ([\d.e-]+) s, processor ([\d.e-]+)$", re.MULTILINE)
PARENT = re.compile(r"^parent ([\d.e-]+) of a processor$", re.MULTILINE)
UNMEASURED = 5


@dataclass(frozen=True)
class Timed:
    """One execution of the script."""

    steps_s: list[float]
    processor_s: list[float]
    """One value per step."""
    parent: float
    """Share of a processor that the launcher took beside the steps."""
    wall_s: float
    """The time of the whole command."""

    @property
    def steady_s(self) -> float:
        """The time of all steps without the first ones."""
        return sum(self.steps_s[UNMEASURED:])

    @property
    def median_s(self) -> float:
        """The median of these steps."""
        return statistics.median(self.steps_s[UNMEASURED:])

    @property
    def steady_processor_s(self) -> float:
        """The processor time of these steps."""
        return sum(self.processor_s[UNMEASURED:])

    @property
    def other_s(self) -> float:
        """The time of the command outside of its steps."""
        return self.wall_s - sum(self.steps_s)


def alone(where: Path, ranks: int, steps: int) -> Timed:
    """Return the times of the script, started by torchrun."""
    script = where / "steps.py"
    script.write_text(SCRIPT)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    began = time.perf_counter()
    printed = output_of([*torchrun, str(script), str(steps)], where)
    return timed(printed, steps, time.perf_counter() - began)


def as_run(where: Path, ranks: int, steps: int, number: int) -> Timed:
    """Return the times of the script as a run on this machine."""
    overrides = [
        "launcher=local", "job=program", "program=steps", f"ranks_per_node={ranks}", f"program.params.steps={steps}",
        f"sweep=run{number}", "name=run",
    ]  # fmt: skip
    slurmscale = [sys.executable, "-m", "slurmscale"]
    began = time.perf_counter()
    output_of([*slurmscale, "submit", "--wait", *overrides], where)
    wall_s = time.perf_counter() - began
    return timed(output_of([*slurmscale, "logs", f"runs/run{number}/run"], where), steps, wall_s)


def output_of(command: list[str], where: Path) -> str:
    """Return what a command prints."""
    environment = os.environ | VARIABLES | {"SLURMSCALE_SITE": str(where / "site")}
    return subprocess.run(command, cwd=where, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout


def timed(printed: str, steps: int, wall_s: float) -> Timed:
    """Return the times of the steps in an output, which must have all of them."""
    found = [(float(wall), float(processor)) for wall, processor in STEP.findall(printed)]
    parent = PARENT.search(printed)
    assert len(found) == steps, printed
    assert parent is not None, printed
    return Timed([wall for wall, _ in found], [own for _, own in found], float(parent[1]), wall_s)


def line(what: str, values: list[float], digits: int = 4) -> str:
    """Return median, interval and range of some values as text."""
    spread = Spread.of(values)
    low, high = spread.interval or (spread.low, spread.high)
    of = "interval" if spread.interval else "range"
    return f"{what}: {spread.median:.{digits}f} ({of} {low:.{digits}f} to {high:.{digits}f}, n = {spread.n})"


def main() -> None:
    """Print the times of each pair, and the cost over all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    pairs: list[tuple[Timed, Timed]] = []
    with tempfile.TemporaryDirectory() as name:
        where = Path(name)
        (where / "site/program").mkdir(parents=True)
        (where / "site/program/steps.yaml").write_text(yaml.safe_dump(PROGRAM, sort_keys=False))
        for number in range(options.pairs):
            first = alone(where, options.ranks, options.steps) if number % 2 == 0 else None
            run = as_run(where, options.ranks, options.steps, number)
            own = first or alone(where, options.ranks, options.steps)
            pairs.append((own, run))
            steady = f"steady steps alone {own.steady_s:.2f} s, as a run {run.steady_s:.2f} s"
            processor = f"processor time {own.steady_processor_s:.2f} and {run.steady_processor_s:.2f} s"
            print(
                f"pair {number + 1}: {steady}; {processor}; else {own.other_s:.2f} and {run.other_s:.2f} s", flush=True
            )
    print(line("steady time as a run / alone", [run.steady_s / own.steady_s for own, run in pairs]))
    print(line("median step as a run / alone", [run.median_s / own.median_s for own, run in pairs]))
    shares = [run.steady_processor_s / own.steady_processor_s for own, run in pairs]
    print(line("processor time of the steps as a run / alone", shares))
    print(line("share of a processor that torchrun takes", [own.parent for own, _ in pairs]))
    print(line("share of a processor that the rank of slurmscale takes", [run.parent for _, run in pairs]))
    print(
        line(
            "further seconds of a run before and after the steps", [run.other_s - own.other_s for own, run in pairs], 2
        )
    )


if __name__ == "__main__":
    main()

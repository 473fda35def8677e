"""A night of faults, drawn from Llama 3's shares, on several runs at once on the emulated Slurm, unattended.

    make fault-night FAULTS=100 SEED=0

Each run meets three faults (`launcher.requeues` is 3 by default) at random steps and trains to its last step. Prints
for each kind of fault how many recovered, how many causes were named rightly and what was lost, and for all runs the
time to train against the bound of Young and Daly.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import math
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest

from analysis.load.discover import read_runs
from analysis.run import RunResult
from jobs import metrics as m
from jobs.cli import main as slurmscale
from jobs.run_events import run_events
from jobs.rundir import RunDir, SweepDir, read_records
from jobs.submit.states import State
from tests.support import faults
from tests.support.faults import Condition, Fault
from tests.support.real_run import SMALL, events
from tests.support.slurm.cluster import SlurmCluster
from tests.support.waiting import limit_s


@dataclass(frozen=True)
class Kind:
    """A fault that can be made here, and what it stands for."""

    fault: Fault
    causes: Sequence[str]
    """The causes that `status` may name after the restart; `{node}` is the node of the fault."""
    stands_for: dict[str, int]
    """Unexpected interruptions of the training of Llama 3 405B by category; 419 in 54 days (table 5 of its paper)."""

    @property
    def name(self) -> str:
        """The name of the fault."""
        return self.fault.__name__


KINDS = (
    Kind(faults.kill_a_rank, ["killed (rank 1 on {node})"], {
        "faulty GPU": 148, "GPU HBM3 memory": 72, "GPU SRAM memory": 19, "GPU system processor": 17,
        "GPU thermal interface and sensor": 6,
    }),
    Kind(faults.stop_a_rank, ["hung (rank 1 on {node})"], {"software bug": 54, "NCCL watchdog timeouts": 7}),
    Kind(faults.cut_a_node_off, ["node failure on {node}", "hung (rank 1 on {node})"], {
        "network switch or cable": 35, "network interface card": 7,
    }),
    Kind(faults.requeue_by_hand, ["a requeue by scontrol"], {"unplanned host maintenance": 32}),
    Kind(faults.crash_a_node, ["node failure on {node}"], {
        "solid state drive": 3, "power supply": 3, "server chassis": 2, "IO expansion board": 2, "CPU": 2,
        "system memory": 2,
    }),
)  # fmt: skip
# Silent data corruption (6) and a dependency (2) cannot be made here, so they are not drawn.
NOT_MADE = 8
FAULTS_OF_A_RUN = 3
STEPS, EVERY = 600, 20
# Faults come early enough for the run to be there: nothing can be done to one that has finished.
LATEST = 360
HANG_S = 40
# Nobody intervenes: a run that has not come back after this time needs a person.
PATIENCE_S = 600


@dataclass
class Strike:
    """A fault of the night and what became of it."""

    kind: Kind
    at_step: int
    node: str = ""
    back_after_s: float | None = None
    """Seconds from the fault until the ranks have met again; None: never."""
    lost_beyond: int = 0
    """Steps between the last checkpoint on record at the fault and the step from which the run went on."""
    shown: str = ""
    """The restart in the words of `status`."""

    @property
    def is_named(self) -> bool:
        """True if `status` named the cause, and the node where there is one."""
        return any(cause.format(node=self.node) in self.shown for cause in self.kind.causes)


@dataclass
class Life:
    """A run, the faults that it meets, and the condition that it waits for."""

    run: RunDir
    strikes: list[Strike]
    goes_on: Iterator[Condition] = field(default_factory=lambda: iter(()))
    condition: Condition = lambda: True
    since: float = field(default_factory=time.monotonic)
    is_finished: bool = False
    missed: str = ""
    """The reason why a fault could not be made; empty if all were made."""


def drawn(count: int, seed: int) -> list[Kind]:
    """Return this number of faults, drawn by the shares of what they stand for."""
    weights = [sum(kind.stands_for.values()) for kind in KINDS]
    return random.Random(seed).choices(KINDS, weights, k=count)


def lives(where: Path, kinds: Sequence[Kind], seed: int) -> Iterator[Life]:
    """Yield the runs of the night, each with its next faults at random steps."""
    chosen = random.Random(seed + 1)
    for number, start in enumerate(range(0, len(kinds), FAULTS_OF_A_RUN)):
        own = kinds[start : start + FAULTS_OF_A_RUN]
        # Far enough apart for a checkpoint between two faults, so that no step is the last one twice.
        at = [step + chosen.randrange(EVERY) for step in chosen.sample(range(EVERY, LATEST, 3 * EVERY), len(own))]
        run = SweepDir(where / f"night{number}").run("r")
        yield Life(run, [Strike(kind, step) for kind, step in zip(own, sorted(at), strict=True)])


def live(life: Life, slurm: SlurmCluster) -> Iterator[Condition]:
    """Submit a run, make its faults, and yield what has to come true before the next act."""
    run = life.run
    runs_dir, sweep = run.path.parent.parent, run.path.parent.name
    with contextlib.redirect_stdout(io.StringIO()):
        code = slurmscale([
            "submit", *SMALL, f"job.steps={STEPS}", f"job.checkpoint_every_steps={EVERY}", "cluster=generic_slurm",
            # Whole nodes: the fault of a run must not be one of another run's as well.
            "cluster.exclusive=true", "nodes=2", f"runs_dir={runs_dir}", f"sweep={sweep}", "name=r",
            f"data.cache_dir={runs_dir}/cache", "launcher.requeue_pause_s=1", f"engine.hang_timeout_s={HANG_S}",
        ])  # fmt: skip
    assert code == 0
    ends = [*(strike.at_step for strike in life.strikes[1:]), STEPS - EVERY]
    for strike, end in zip(life.strikes, ends, strict=True):
        yield from meet(strike, run, slurm, end)
    yield lambda: faults.state(run) is State.finished
    life.is_finished = True


def meet(strike: Strike, run: RunDir, slurm: SlurmCluster, end: int) -> Iterator[Condition]:
    """Make a fault at its step, and read by step `end` what `status` says about the restart."""
    yield lambda: has_saved(run) and last_step(run) >= strike.at_step
    strike.node = faults.second_node(run)
    starts, saved = len(events(run, "started")), int(str(events(run, "checkpoint")[-1]["step"]))
    struck = datetime.now(UTC)
    yield from strike.kind.fault(run, slurm)
    yield lambda: len(events(run, "started")) > starts
    started = events(run, "started")[-1]
    strike.back_after_s = (datetime.fromisoformat(str(started["time"])) - struck).total_seconds()
    strike.lost_beyond = max(0, saved - int(str(started.get("from_step") or 0)))
    # Accounting, from which Slurm's own requeues are named, lags by seconds.
    yield lambda: named(strike, run) or (has_saved(run) and last_step(run) >= end)


def has_saved(run: RunDir) -> bool:
    """Return True if the present start of a run has written a checkpoint."""
    latest = [event["event"] for event in run_events(run) if event["event"] in {"started", "checkpoint"}]
    return latest[-1:] == ["checkpoint"]


def last_step(run: RunDir) -> int:
    """Return the last recorded step."""
    return next((int(row["step"]) for row in reversed([*read_records(run.metrics)]) if "step" in row), 0)


def named(strike: Strike, run: RunDir) -> bool:
    """Read how `status` describes the restart; return True if that names the cause."""
    strike.shown = faults.detail(run)
    return strike.is_named


def night(waiting: Iterator[Life], slurm: SlurmCluster, at_once: int, within_s: float) -> list[Life]:
    """Let this many runs live at a time until all have ended; none begins after `within_s`."""
    all_lives: list[Life] = []
    alive: list[Life] = []
    began = time.monotonic()
    while True:
        while len(alive) < at_once and time.monotonic() - began < within_s and (life := next(waiting, None)):
            life.goes_on = live(life, slurm)
            alive.append(life)
            all_lives.append(life)
        if not alive:
            return all_lives
        for life in list(alive):
            if advance(life):
                alive.remove(life)
                print(described(life), flush=True)
        time.sleep(0.5)


def advance(life: Life) -> bool:
    """Let a run live on if what it waits for has come true; return True if its life has ended."""
    try:
        if not life.condition():
            return time.monotonic() - life.since > limit_s(PATIENCE_S)
        condition = next(life.goes_on, None)
    except AssertionError as error:  # the process that the fault was for has just ended
        life.missed = str(error)
        return True
    if condition is not None:
        life.condition, life.since = condition, time.monotonic()
    return condition is None


def described(life: Life) -> str:
    """Return a line for a run that has ended."""
    told = ", ".join(
        f"{s.kind.name} at step {s.at_step}: "
        + ("not back" if s.back_after_s is None else f"back after {s.back_after_s:.0f} s")
        + ("" if s.is_named else f" (shown: {s.shown})")
        for s in life.strikes
    )
    end = "finished" if life.is_finished else life.missed or f"NEEDS A PERSON: {faults.detail(life.run)}"
    return f"{life.run.path.parent.name}: {end}; {told}"


def table(struck: Sequence[Strike]) -> Iterator[str]:
    """Yield the rows of the night by kind of fault."""
    yield "| fault | stands for | n | recovered | cause right | lost beyond a checkpoint | back after, median (most) |"
    yield "| --- | --- | ---: | ---: | ---: | ---: | ---: |"
    for kind in KINDS:
        own = [strike for strike in struck if strike.kind is kind]
        back = [strike.back_after_s for strike in own if strike.back_after_s is not None]
        if own:
            yield (
                f"| {kind.name} | {', '.join(kind.stands_for)} | {len(own)} | {len(back)} "
                f"| {sum(strike.is_named for strike in own)} | {sum(strike.lost_beyond for strike in own)} steps "
                f"| {statistics.median(back or [math.nan]):.0f} s ({max(back, default=math.nan):.0f} s) |"
            )


def bound(results: Sequence[RunResult], number: int) -> Iterator[str]:
    """Yield the time to train of finished runs against the bound for their checkpoints, restarts and faults.

    With n faults in the time T there are M = T/n seconds between faults. By Young a checkpoint every
    tau = sqrt(2 delta M) seconds of steps costs least, where delta is the time for which training waits for one, and
    by Daly to first order the run then takes T* = U (1 + delta/tau) + n (R + tau/2) + start: U are the steps that the
    final model results from, R is everything from a fault to the next first step except repeated steps.
    """

    def total(metric: m.Metric) -> float:
        return sum(result.values.get(metric, 0.0) for result in results)

    taken_s = total(m.RUN_TIME) - sum(first_queue_s(result) for result in results)
    useful_s, checkpoints_s = total(m.USEFUL_TIME), total(m.CHECKPOINTS_TIME)
    saved = sum(event["event"] == "checkpoint" for result in results for event in result.events)
    step_s = useful_s / (len(results) * STEPS)
    repeated_s = min(total(m.LOST_STEPS) * step_s, total(m.LOST_TIME))
    waits_s = checkpoints_s / max(1, saved)
    between_s = taken_s / number
    tau_s = math.sqrt(2 * waits_s * between_s)
    others_s = taken_s - useful_s - checkpoints_s - repeated_s
    best_s = useful_s * (1 + waits_s / tau_s) + number * tau_s / 2 + others_s
    yield (
        f"{len(results)} runs, {number} faults, {taken_s / 60:.1f} min of running: one every {between_s:.0f} s of a run"
    )
    yield f"training waited {waits_s * 1000:.1f} ms for a checkpoint (n = {saved}); a step took {step_s * 1000:.0f} ms"
    yield f"from a fault to the next first step {others_s / number:.0f} s on average, first starts included"
    yield (
        f"best time between checkpoints {tau_s:.2f} s of steps (Young), used {EVERY * step_s:.2f} s; steps repeated "
        f"{total(m.LOST_STEPS):.0f}"
    )
    yield f"time to train / bound (Young and Daly): {taken_s / best_s:.3f}"
    yield f"effective training time ratio: {useful_s / taken_s:.1%}"


def first_queue_s(result: RunResult) -> float:
    """Return the wait in the queue before the first start."""
    return float(result.values.get(m.QUEUE_TIME, 0.0))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the night and print its tables; return the number of runs that need a person."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=3, help="runs at a time, each on two nodes")
    parser.add_argument("--minutes", type=float, default=math.inf, help="no run begins later than this")
    asked = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory(prefix="night-") as where,
        SlurmCluster(gpu_nodes=2 * asked.at_once + 2) as slurm,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in slurm.env.items():
            patch.setenv(name, value)
        waiting = lives(Path(where), drawn(asked.faults, asked.seed), asked.seed)
        ended = night(waiting, slurm, asked.at_once, asked.minutes * 60)
        ended = [life for life in ended if not life.missed]
        finished = [life for life in ended if life.is_finished]
        results = read_runs([life.run.path for life in finished])
    struck = list(itertools.chain.from_iterable(life.strikes for life in ended))
    people = len(ended) - len(finished)
    counted = Counter(strike.back_after_s is not None for strike in struck)
    named_rightly = sum(strike.is_named for strike in struck)
    print(f"\nseed {asked.seed}: {len(struck)} faults on {len(ended)} runs, {asked.at_once} at a time")
    print(f"recovered {counted[True]}, human acts {people}, causes right {named_rightly}")
    print("\n".join(table(struck)))
    if finished:
        print("\n".join(bound(results, sum(len(life.strikes) for life in finished))))
    return people


if __name__ == "__main__":
    raise SystemExit(main())

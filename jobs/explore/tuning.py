"""A tuning: trials that run, its start, how it goes on after a stop, and its end. A search is a class of it.

The run directories are the state: a killed command is continued by the same command, which waits for the runs that
continued without it and submits only what is missing.
"""

from __future__ import annotations

import os
import shlex
import statistics
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from analysis.compare.tuning import TrialRun, trial_runs
from analysis.load.discover import read_runs
from analysis.report.report import answered, show
from jobs.console import console, shell_line
from jobs.errors import ConfigError, RunDirError
from jobs.explore.budget import Spent
from jobs.explore.folder import BEST
from jobs.explore.judge import write_best
from jobs.explore.monitor import hopeless
from jobs.explore.space import Candidate, Space
from jobs.plan.compose import Point
from jobs.rundir import RunDir, SweepDir, provenance_of
from jobs.schema import Objective
from jobs.submit.cancel import cancel_run
from jobs.submit.commands import look, resume, submit_points, wait_for
from jobs.submit.states import RunState, State, states
from jobs.submit.watching.progress import latest_tokens_per_s

# Settings of a tuning that cannot change when it goes on; a budget can.
FIXED = ("objective", "steps", "loss_tolerance")
INTERRUPTED = 130
UNREPEATED = {State.failed}


@dataclass
class Tuning(ABC):
    """A tuning under way."""

    space: Space
    first: int
    """Trials of the first rung that the budget of runs allows."""
    begun: str = ""
    """Time of the first start of the command."""
    finished: frozenset[str] = frozenset()
    """Names of the trials that had finished when `leaders` was made."""
    leaders: Mapping[int, TrialRun] = field(default_factory=dict)
    """The best finished trial of each rung."""

    # --- a kind of search --------------------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def of(cls, points: Sequence[Point], overrides: Sequence[str]) -> Self:
        """Return the search over the composed points of some overrides; raise ConfigError for what it cannot search."""

    @abstractmethod
    def introduction(self) -> Iterable[str]:
        """Return what is searched, as lines."""

    @abstractmethod
    def preview(self) -> Iterable[str]:
        """Return the first trials, as lines."""

    @abstractmethod
    def explore(self) -> int:
        """Run trials to the end of the search, and end it; return the exit code."""

    # --- the command -------------------------------------------------------------------------------------------

    def start(self) -> int:
        """Begin the tuning or go on with it, and return the exit code."""
        folder, kind = self.space.folder, self.space.baseline.point.run.launcher.kind
        print(*self.introduction(), sep="\n")
        if kind.is_preview:
            print(*self.preview(), sep="\n")
            print("Only a preview (launcher=dry): nothing was run. Leave launcher=dry out to tune.")
            return 0
        if not kind.starts_runs:
            raise ConfigError(
                f"launcher={kind.name} starts nothing, and tuning waits for results. Set launcher=slurm, pilot, "
                "pbs_pilot or local."
            )
        with folder.held():
            self.begin()
            try:
                code = self.go_on(folder.trials) or self.explore()
            except KeyboardInterrupt:
                code = INTERRUPTED
            if code >= INTERRUPTED:
                print(
                    f"Interrupted. Submitted runs continue; the same command goes on. `slurmscale cancel "
                    f"{folder.trials.quoted}` ends the trials."
                )
            return code

    def begin(self) -> None:
        """Record the start of the command. Raise RunDirError for another tuning's folder."""
        space, folder = self.space, self.space.folder
        records = folder.records("begun")
        settings = asdict(space.settings)
        settings |= {key: settings[key].name for key in ("search", "objective")}
        now: dict[str, Any] = {"overrides": space.overrides} | {key: settings[key] for key in FIXED}
        if not records and any(path.name != ".lock" for path in folder.path.iterdir()):
            raise RunDirError(f"{folder.path} exists and is no tuning. Set sweep=NAME for another place.")
        if differing := [key for key, value in now.items() if records and records[0].get(key) != value]:
            then = (shell_line(records[0][k]) if k == "overrides" else f"{k}={records[0].get(k)}" for k in differing)
            raise RunDirError(
                f"{folder.path} was begun with other values of {', '.join(differing)}: {'; '.join(then)}. Run the same "
                "command to go on (with a larger budget, if you like), or set sweep=NAME for another tuning."
            )
        counts = {"first": self.first, "points": space.points, "legal": len(space.candidates)}
        left_out = {"refused": dict(space.refused), "too_large": list(space.too_large)}
        folder.record("begun", **now, settings=settings, **counts, **left_out)
        self.begun = str(folder.records("begun")[0]["time"])

    def end(self, chosen: Candidate, verdict: str, lines: Iterable[str], **facts: Any) -> int:
        """Write the experiment of the best and the report, print its lines, and return the exit code."""
        folder = self.space.folder
        file = write_best(self.space, chosen, verdict)
        folder.record("ended", best=list(chosen.choices), verdict=verdict, **facts)
        answer, page = answered([folder.path], None)
        for line in lines:
            console().print(line, soft_wrap=True)
        # Hydra finds the experiment here, and the files of the site where it found them before.
        site = os.environ.get("SLURMSCALE_SITE")
        places = [folder.path, *([Path(site).absolute()] if site and "://" not in site else [])]
        path = ",".join(f'"file://{place}"' for place in places)
        print(f"best: {' '.join(chosen.choices)}")
        print(f"  {file}\n  slurmscale submit {shlex.quote(f'hydra.searchpath=[{path}]')} experiment={BEST}")
        show(answer, page)
        return 0

    # --- trials ------------------------------------------------------------------------------------------------

    def trials(self) -> list[TrialRun]:
        """Return the trials on disk."""
        sweep = self.space.folder.trials
        return trial_runs(read_runs([sweep.path])) if sweep.runs() else []

    def go_on(self, sweep: SweepDir) -> int:
        """Launch runs of an earlier start of the command that were stopped or not launched, and wait for all."""
        if not sweep.runs():
            return 0
        todo = {State.prepared, State.stopped, State.cancelled, State.lost}
        if any(item.state in todo for item in states(sweep)):
            resume(sweep.path, launcher=None, wait=False, but=UNREPEATED, without=self.stopped())
        return self.wait(sweep, {item.run.name for item in states(sweep) if not item.state.is_open})

    def run(self, points: list[Point], sweep: SweepDir) -> int:
        """Submit runs together and wait for their ends."""
        known = [run.name for run in sweep.runs()]
        # A trial that runs out of memory is information; a refusal would end the tuning.
        return submit_points(points, wait=False, try_large=True) or self.wait(sweep, known)

    def wait(self, sweep: SweepDir, known: Sequence[str] | set[str]) -> int:
        """Wait for the runs of a sweep; return 0, also where some failed, unless the user stops waiting."""
        if not any(item.state.is_open for item in look(sweep)) and set(known) >= {run.name for run in sweep.runs()}:
            return 0
        code = wait_for(sweep, known, self.stop_hopeless if sweep == self.space.folder.trials else None)
        return code if code == INTERRUPTED else 0

    def stopped(self) -> set[str]:
        """Return the names of the trials that were stopped early."""
        return {str(record["run"]) for record in self.space.folder.records("stopped_early")}

    def stop_hopeless(self, found: Sequence[RunState]) -> bool:
        """Cancel trials that cannot win any more, and start those behind them again; return whether any was cancelled.

        Runs of a pilot share its job and are left to end. Other objectives than throughput do not follow from steps.
        """
        shares_job = self.space.baseline.point.run.launcher.kind.one_job
        if shares_job or self.space.settings.objective is not Objective.throughput:
            return False
        finished = frozenset(item.run.name for item in found if item.state is State.finished)
        if finished != self.finished:
            counting = [trial for trial in self.trials() if trial.score is not None]
            self.finished = finished
            self.leaders = {trial.steps: trial for trial in sorted(counting, key=lambda each: each.score or 0)}
        reasons = {item.run: self.reason_to_stop(item.run) for item in found if item.state is State.running}
        stopped = {run: reason for run, reason in reasons.items() if reason is not None}
        for run, reason in stopped.items():
            print(f"{run.name}: {reason}", flush=True)
            cancel_run(run)
        if stopped:
            resume(self.space.folder.trials.path, launcher=None, wait=False, but=UNREPEATED, without=self.stopped())
        return bool(stopped)

    def reason_to_stop(self, run: RunDir) -> str | None:
        """Return why a running trial cannot win, and record it; None if it can."""
        facts = provenance_of(run)["trial"]
        leader = self.leaders.get(facts["steps"])
        if leader is None or facts["baseline"]:
            return None
        own, best_rates = latest_tokens_per_s(run), latest_tokens_per_s(RunDir(leader.run.path))
        reason = hopeless(own, best_rates)
        if reason is not None:
            so_far = (leader.score or 0) * statistics.median(own) / statistics.median(best_rates)
            self.space.folder.record("stopped_early", run=run.name, reason=reason, score=so_far)
        return reason

    def spent(self, trials: Sequence[TrialRun]) -> Spent:
        """Return the budget used so far."""
        return Spent.of(self.space.settings, self.begun, trials)

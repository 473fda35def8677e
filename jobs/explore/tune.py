"""`slurmscale tune`: short runs of many points, longer runs of the best, then pairs of the best with the baseline.

Successive halving: a rung runs its trials with more steps than the one before, and the best part of a rung goes on. The
run directories are the state: a killed command is continued by the same command, which waits for the runs that
continued without it and submits only what is missing.
"""

from __future__ import annotations

import os
import shlex
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from analysis.compare.campaign import Verdict
from analysis.compare.tuning import UNITS, TrialRun, best, trial_runs
from analysis.formatting import plural, significant
from analysis.load.discover import read_runs
from analysis.report.report import answered, show
from jobs.console import console
from jobs.errors import ConfigError, RunDirError, SubmitError
from jobs.explore.budget import Spent, confirmation_runs, first_rung, rungs
from jobs.explore.folder import BEST
from jobs.explore.judge import attempt_name, entry_of, pairs_to_run, verdict_of, write_best
from jobs.explore.monitor import hopeless, repeat_elsewhere, slower_than_models, spare_nodes
from jobs.explore.propose.process import is_ruled_out, proposals
from jobs.explore.space import Candidate, Space, excluded, read_space
from jobs.plan.compose import Point
from jobs.rundir import RunDir, SweepDir, provenance_of
from jobs.schema import LauncherKind, Objective
from jobs.submit.cancel import cancel_run
from jobs.submit.commands import look, resume, submit_points, wait_for
from jobs.submit.progress import latest_tokens_per_s
from jobs.submit.states import RunState, State, states

# Settings of a tuning that cannot change when it goes on; a budget can.
FIXED = ("objective", "steps", "loss_tolerance")
NEXT = 3
INTERRUPTED = 130
PREVIEW = "Only a preview (launcher=dry): nothing was run. Leave launcher=dry out to tune."
UNREPEATED = {State.failed}


def tune(overrides: list[str]) -> int:
    """Tune the space of some overrides, or go on with it, and return the exit code.

    Raises ConfigError, before anything is prepared, for a space without a choice, a budget that is too small and an
    objective that is not measured.
    """
    space = read_space(overrides)
    first = first_rung(space.settings, len(space.candidates))
    kind = space.baseline.point.run.launcher.kind
    for line in plan_lines(space, first):
        print(line)
    if kind.is_preview:
        for line in first_trials(space, first):
            print(line)
        return 0
    refuse_unstarted(kind)
    with space.folder.held():
        tuning = Tuning(space, first, begin(space, first))
        try:
            code = tuning.explore() or tuning.conclude()
        except KeyboardInterrupt:
            code = INTERRUPTED
        if code >= INTERRUPTED:
            print(
                f"Interrupted. Submitted runs continue; the same command goes on. `slurmscale cancel "
                f"{space.folder.trials.quoted}` ends the trials."
            )
        return code


def refuse_unstarted(kind: LauncherKind) -> None:
    """Raise ConfigError for a launcher that starts nothing."""
    if not kind.starts_runs:
        raise ConfigError(
            f"launcher={kind.name} starts nothing, and tuning waits for results. Set launcher=slurm, pilot or local."
        )


def plan_lines(space: Space, first: int) -> list[str]:
    """Return the space and the trials of each rung as text."""
    settings = space.settings
    counts = [
        f"{plural(count, 'trial')} of {steps} steps"
        for count, steps in zip(rungs(settings, first), settings.steps, strict=True)
    ]
    confirmed = confirmation_runs(settings)
    end = f", then {plural(confirmed, 'run')} that confirm the best" if confirmed else ""
    tight = sum(candidate.tight for candidate in space.candidates)
    return [
        f"Space: {plural(space.points, 'point')}, {len(space.candidates)} legal"
        f"{f' ({tight} of tight memory)' if tight else ''}.",
        *(f"  {clause}" for clause in excluded(space)),
        f"Baseline: {' '.join(space.baseline.choices)}",
        f"At most {', '.join(counts)}{end}; objective {settings.objective.name}.",
        f"Tuning in {space.folder.path}",
    ]


def first_trials(space: Space, first: int) -> list[str]:
    """Return the trials that would run first, a line each; those after them follow from their results."""
    batch = proposals(space, [], min(first, space.settings.parallel))
    names = [str(space.trial(each, space.settings.steps[0]).run.name) for each in batch]
    width = max(map(len, names))
    more = first > len(batch) or len(space.settings.steps) > 1
    return [
        "First trials:",
        *(f"  {name:{width}}  {shlex.join(each.choices)}" for name, each in zip(names, batch, strict=True)),
        *(["The next ones follow from their results."] if more else []),
        PREVIEW,
    ]


def begin(space: Space, first: int) -> str:
    """Record the start of the command; return the time of the first. Raise RunDirError for another tuning's folder."""
    folder = space.folder
    records = folder.records("begun")
    now = {"overrides": space.overrides} | {key: value for key, value in plain(space).items() if key in FIXED}
    if not records and any(path.name != ".lock" for path in folder.path.iterdir()):
        raise RunDirError(f"{folder.path} exists and is no tuning. Set sweep=NAME for another place.")
    if differing := [key for key, value in now.items() if records and records[0].get(key) != value]:
        raise RunDirError(
            f"{folder.path} was begun with other values of {', '.join(differing)}: {shown(records[0], differing)}. Run "
            "the same command to go on (with a larger budget, if you like), or set sweep=NAME for another tuning."
        )
    counts = {"first": first, "points": space.points, "legal": len(space.candidates)}
    left_out = {"refused": dict(space.refused), "too_large": list(space.too_large)}
    folder.record("begun", **now, settings=plain(space), **counts, **left_out)
    return str(folder.records("begun")[0]["time"])


def shown(record: dict[str, Any], keys: Sequence[str]) -> str:
    """Return recorded values as text."""
    return "; ".join(shlex.join(record[key]) if key == "overrides" else f"{key}={record.get(key)}" for key in keys)


def plain(space: Space) -> dict[str, Any]:
    """Return the settings of a tuning as the ledger contains them."""
    return asdict(space.settings) | {"objective": space.settings.objective.name}


@dataclass
class Tuning:
    """A tuning under way."""

    space: Space
    first: int
    """Trials of the first rung that the budget of runs allows."""
    begun: str
    finished: frozenset[str] = frozenset()
    """Names of the trials that had finished when `leaders` was made."""
    leaders: Mapping[int, TrialRun] = field(default_factory=dict)
    """The best finished trial of each rung."""

    # --- trials ------------------------------------------------------------------------------------------------

    def trials(self) -> list[TrialRun]:
        """Return the trials on disk."""
        sweep = self.space.folder.trials
        return trial_runs(read_runs([sweep.path])) if sweep.runs() else []

    def explore(self) -> int:
        """Run all rungs; return an exit code other than 0 if the user stops it."""
        sweep = self.space.folder.trials
        if code := self.go_on(sweep):
            return code
        for rung, steps in enumerate(self.space.settings.steps):
            while batch := self.next_batch(rung):
                if code := self.run([self.space.trial(each, steps) for each in batch], sweep):
                    return code
            for again in self.repeats_elsewhere(steps):
                if code := self.run([again], sweep):
                    return code
        return 0

    def repeats_elsewhere(self, steps: int) -> Iterator[Point]:
        """Yield a repeat of each trial of a rung that was slower than any model of it allows, as the budget allows."""
        space, trials = self.space, self.trials()
        known = {record["run"] for record in space.folder.records("suspect")} | {trial.repeats for trial in trials}
        by_choices = {each.choices: each for each in space.candidates}
        for trial in trials:
            new = trial.steps == steps and trial.run.name not in known and not (trial.repeats or trial.is_baseline)
            reason = slower_than_models(trial, trials) if new and trial.choices in by_choices else None
            if reason is None:
                continue
            spent = self.spent(self.trials())
            allowed = not spent.is_late() and spent.allows([1], [steps], confirmation_runs(space.settings))
            reason += " It is repeated once." if allowed else " The budget has no repeat."
            print(f"{trial.run.name}: {reason}")
            if allowed:
                candidate = by_choices[trial.choices]
                yield repeat_elsewhere(space, trial, candidate, spare_nodes(candidate.point.run))
            space.folder.record("suspect", run=trial.run.name, reason=reason)

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
            self.finished, self.leaders = finished, leaders(self.trials())
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

    def next_batch(self, rung: int) -> list[Candidate]:
        """Return the candidates to run next in a rung; empty if it is complete, or the budget is used."""
        settings, trials = self.space.settings, self.trials()
        rung_trials = [trial for trial in trials if trial.steps == settings.steps[rung]]
        here = [trial for trial in rung_trials if not trial.repeats]
        refuse_failed_baseline(here)
        spent = self.spent(trials)
        if spent.is_late():
            return []
        if rung == 0:
            most = min(settings.parallel, self.first - len(here))
            count = next((n for n in range(most, 0, -1) if self.allows(spent, rung, len(here), n)), 0)
            return proposals(self.space, rung_trials, count)
        tried = {trial.choices for trial in here}
        missing = [each for each in self.promoted(trials, rung) if each.choices not in tried]
        return missing if self.allows(spent, rung, len(here), len(missing)) else []

    def allows(self, spent: Spent, rung: int, done: int, more: int) -> bool:
        """Return whether the budget allows more trials in a rung, and all that follows from them."""
        steps = self.space.settings.steps[rung:]
        _, *later = rungs(self.space.settings, done + more)[: len(steps)]
        return spent.allows([more, *later], steps, confirmation_runs(self.space.settings))

    def promoted(self, trials: Sequence[TrialRun], rung: int) -> list[Candidate]:
        """Return the candidates of a later rung: the baseline, and the best of the rung before."""
        settings = self.space.settings
        before = [trial for trial in trials if trial.steps == settings.steps[rung - 1]]
        counting = sorted((each for each in before if each.score is not None), key=lambda each: -(each.score or 0))
        best_first = [each.choices for each in counting if not each.is_baseline]
        count = rungs(settings, sum(not each.repeats for each in before))[1] - 1
        by_choices = {each.choices: each for each in self.space.candidates}
        return [self.space.baseline, *(by_choices[each] for each in best_first[:count] if each in by_choices)]

    def spent(self, trials: Sequence[TrialRun]) -> Spent:
        """Return the budget used so far."""
        return Spent.of(self.space.settings, self.begun, trials)

    # --- the end -----------------------------------------------------------------------------------------------

    def conclude(self) -> int:
        """Confirm the best, write its experiment file and the report; return the exit code."""
        space, trials = self.space, self.trials()
        found = best(trials)
        if found is None:
            raise SubmitError(
                f"No trial in {space.folder.path} has a result: the budget was used before one ended. Raise "
                "tune.wall_time_min or tune.gpu_hours and run the same command."
            )
        by_choices = {each.choices: each for each in space.candidates}
        winner = by_choices.get(found.choices, space.baseline)
        code, chosen, verdict = self.confirmed(winner, trials)
        if code:
            return code
        following = proposals(space, [each for each in trials if each.steps == space.settings.steps[0]], NEXT)
        ruled_out = [each.name for each in space.candidates if is_ruled_out(each, trials)]
        file = write_best(space, chosen, verdict)
        space.folder.record("ended", best=list(chosen.choices), verdict=verdict, ruled_out=ruled_out,
                            next=[list(each.choices) for each in following])  # fmt: skip
        answer, page = answered([space.folder.path], None)
        self.print_end(trials, found, verdict)
        print(f"best: {' '.join(chosen.choices)}")
        print(f"  {file}\n  slurmscale submit {shlex.quote(search_path(space))} experiment={BEST}")
        show(answer, page)
        return 0

    def confirmed(self, winner: Candidate, trials: Sequence[TrialRun]) -> tuple[int, Candidate, str]:
        """Run the pairs of the best with the baseline; return an exit code, the configuration to keep, and why."""
        space = self.space
        if winner is space.baseline:
            return 0, winner, "The baseline: no trial of the longest rung was better."
        if not space.settings.pairs:
            return 0, winner, "Not confirmed by pairs with the baseline (tune.pairs=0)."
        if code := self.go_on(space.folder.confirmation):
            return code, winner, ""
        spent = self.spent(trials)
        try:
            points = pairs_to_run(space, winner)
        except ConfigError as error:
            return 0, winner, f"Not confirmed by pairs with the baseline: {error}"
        if points and (spent.is_late() or not spent.allows([len(points)], space.settings.steps[-1:], 0)):
            return 0, winner, "Not confirmed by pairs with the baseline: the budget is used."
        if points and (code := self.run(points, space.folder.confirmation)):
            return code, winner, ""
        entry = entry_of(space.folder, winner)
        if entry is None or entry.verdict is Verdict.too_few:
            return 0, winner, "Not confirmed by pairs with the baseline: too few of them finished."
        words = f"{attempt_name(winner)} in pairs with the baseline: {verdict_of(entry)}."
        if entry.verdict is Verdict.faster:
            return 0, winner, f"Confirmed. {words}"
        return 0, space.baseline, f"The baseline is kept. {words}"

    def print_end(self, trials: Sequence[TrialRun], found: TrialRun, verdict: str) -> None:
        """Print what was tried, and its best result."""
        first = next(each for each in trials if each.is_baseline and each.steps == found.steps)
        unit = UNITS[found.objective]
        out = console()
        failed = Counter(str(each.reason).partition(" (")[0] for each in trials if each.reason)
        hours = sum(each.rank_hours for each in trials)
        out.print(
            f"{plural(len(trials), 'trial')} of {plural(len({each.choices for each in trials}), 'configuration')} in "
            f"{significant(hours, 3)} rank-hours; {sum(failed.values())} do not count"
            f"{''.join(f'; {count} {reason}' for reason, count in failed.most_common(3))}",
        )
        out.print(
            f"best of {found.steps} steps: {' '.join(found.choices)} with {significant(found.value or 0, 4)} {unit}, "
            f"the baseline {significant(first.value or 0, 4)} {unit}",
            soft_wrap=True,
        )
        out.print(verdict, soft_wrap=True)


def leaders(trials: Sequence[TrialRun]) -> dict[int, TrialRun]:
    """Return the best trial of each number of steps."""
    counting = sorted((trial for trial in trials if trial.score is not None), key=lambda each: each.score or 0)
    return {trial.steps: trial for trial in counting}


def refuse_failed_baseline(rung: Sequence[TrialRun]) -> None:
    """Raise SubmitError if the baseline of a rung ended without a measurement: nothing can be compared with it."""
    own = [trial for trial in rung if trial.is_baseline]
    if own and own[0].score is None:
        raise SubmitError(
            f"The baseline {own[0].run.name} has no result: {own[0].reason}. Correct the cause and remove "
            f"{own[0].run.path} to run it again, or put other values first and set sweep=NAME."
        )


def search_path(space: Space) -> str:
    """Return the override of Hydra's search path: the folder of the experiment file, and that of the site's files."""
    site = os.environ.get("SLURMSCALE_SITE")
    places = [space.folder.path, *([Path(site).absolute()] if site and "://" not in site else [])]
    quoted = (f'"file://{place}"' for place in places)
    return f"hydra.searchpath=[{','.join(quoted)}]"

"""`slurmscale tune`: short runs of many points, longer runs of the best, then pairs of the best with the baseline.

Successive halving: a rung runs its trials with more steps than the one before, and the best part of a rung goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Self

from analysis.compare.campaign import Verdict
from analysis.compare.tuning import TrialRun, best
from analysis.formatting import plural, significant
from jobs.console import shell_line
from jobs.errors import ConfigError, SubmitError
from jobs.explore.budget import Spent, confirmation_runs, first_rung, rungs
from jobs.explore.judge import attempt_name, entry_of, pairs_to_run, verdict_of
from jobs.explore.monitor import repeat_elsewhere, slower_than_models, spare_nodes
from jobs.explore.propose.gaussian_process import is_ruled_out, proposals
from jobs.explore.space import Candidate, excluded, space_of
from jobs.explore.tuning import Tuning
from jobs.plan.compose import Point
from jobs.schema import Objective

NEXT = 3


class Halving(Tuning):
    """A search by successive halving, and the confirmation of its best."""

    @classmethod
    def of(cls, points: Sequence[Point], overrides: Sequence[str]) -> Self:
        """Return the tuning of the space; raise ConfigError for one without a choice, or a budget that is too small."""
        space = space_of(points, overrides)
        return cls(space, first_rung(space.settings, len(space.candidates)))

    def introduction(self) -> Iterable[str]:
        """Return the space and the trials of each rung."""
        space, settings = self.space, self.space.settings
        counts = [
            f"{plural(count, 'trial')}{of_steps(settings.objective, steps)}"
            for count, steps in zip(rungs(settings, self.first), settings.steps, strict=True)
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

    def preview(self) -> Iterable[str]:
        """Return the trials that would run first; those after them follow from their results."""
        space, steps = self.space, self.space.settings.steps
        batch = proposals(space, [], min(self.first, space.settings.parallel))
        names = [str(space.trial(each, steps[0]).run.name) for each in batch]
        width = max(map(len, names))
        return [
            "First trials:",
            *(f"  {name:{width}}  {shell_line(each.choices)}" for name, each in zip(names, batch, strict=True)),
            *(["The next ones follow from their results."] if self.first > len(batch) or len(steps) > 1 else []),
        ]

    # --- trials ------------------------------------------------------------------------------------------------

    def explore(self) -> int:
        """Run all rungs, and confirm the best."""
        sweep = self.space.folder.trials
        for rung, steps in enumerate(self.space.settings.steps):
            while batch := self.next_batch(rung):
                if code := self.run([self.space.trial(each, steps) for each in batch], sweep):
                    return code
            for again in self.repeats_elsewhere(steps):
                if code := self.run([again], sweep):
                    return code
        return self.conclude()

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
        lines = [*summary(trials, found), verdict]
        return self.end(chosen, verdict, lines, ruled_out=ruled_out, next=[list(each.choices) for each in following])

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


def summary(trials: Sequence[TrialRun], found: TrialRun) -> list[str]:
    """Return what was tried, and its best result."""
    first = next(each for each in trials if each.is_baseline and each.steps == found.steps)
    unit = found.unit
    failed = Counter(str(each.reason).partition(" (")[0] for each in trials if each.reason)
    hours = sum(each.rank_hours for each in trials)
    return [
        f"{plural(len(trials), 'trial')} of {plural(len({each.choices for each in trials}), 'configuration')} in "
        f"{significant(hours, 3)} rank-hours; {sum(failed.values())} do not count"
        f"{''.join(f'; {count} {reason}' for reason, count in failed.most_common(3))}",
        f"best{of_steps(found.objective, found.steps)}: {' '.join(found.choices)} with "
        f"{significant((found.value or 0) / unit.size, 4)} {unit.name}, the baseline "
        f"{significant((first.value or 0) / unit.size, 4)} {unit.name}",
    ]


def of_steps(objective: Objective, steps: int) -> str:
    """Return the length of a trial as text; empty for a whole run of a program."""
    return "" if objective is Objective.merit and steps == 1 else f" of {plural(steps, 'step')}"


def refuse_failed_baseline(rung: Sequence[TrialRun]) -> None:
    """Raise SubmitError if the baseline of a rung ended without a measurement: nothing can be compared with it."""
    own = [trial for trial in rung if trial.is_baseline]
    if own and own[0].score is None:
        raise SubmitError(
            f"The baseline {own[0].run.name} has no result: {own[0].reason}. Correct the cause and remove "
            f"{own[0].run.path} to run it again, or put other values first and set sweep=NAME."
        )


SEARCH = Halving

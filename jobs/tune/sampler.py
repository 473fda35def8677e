"""Proposals of points: the best predicted ones first, then Optuna's TPE by ask and tell over the enumerated points.

The study is made anew from the finished trials for every batch, so that the run directories are its only memory.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from analysis.compare.tuning import TrialRun
from jobs.errors import ConfigError
from jobs.schema import ActivationCheckpointing
from jobs.tune.space import Candidate, Space, key_of, value_of

# Draws of the sampler for each proposal; then the candidate nearest to the last draw is taken.
MOST_DRAWS = 30
# Proposals of the sampler among which the prediction chooses.
CHOSEN_FROM = 8
# Keys whose later values need more memory.
MORE_MEMORY: Mapping[str, Callable[[str], int]] = {
    "job.micro_batch_size": int,
    "engine.activation_checkpointing": [each.name for each in reversed(ActivationCheckpointing)].index,
}


def require_optuna() -> Any:
    """Return the module optuna; raise ConfigError if it is not installed."""
    try:
        import optuna  # noqa: PLC0415 (an extra)
    except ImportError:
        raise ConfigError(
            "slurmscale tune needs Optuna, which is not installed. Run pip install --editable '.[tune]' in the "
            "checkout, or pip install optuna."
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def proposals(space: Space, trials: Sequence[TrialRun], count: int) -> list[Candidate]:
    """Return at most `count` candidates to try next in the first rung, of which these are the trials.

    The baseline comes first, then the candidates with the shortest expected times, as many as one batch; later the
    prediction chooses among proposals of the sampler. Points of tight memory that is not predicted in time come last.
    What needs more memory than a trial that ran out of it is left out.
    """
    tried = {trial.choices for trial in trials}
    left = [each for each in space.candidates if each.choices not in tried and not is_ruled_out(each, trials)]
    chosen = [each for each in left[:1] if each is space.baseline][:count]
    if len(tried) < space.settings.parallel:
        known = [each for each in left[len(chosen) :] if each.expected_s is not None]
        chosen += in_order(known)[: count - len(chosen)]
    left = [each for each in left if each not in chosen]
    return [*chosen, *drawn(space, trials, left, count - len(chosen))]


def in_order(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return candidates by their expected times, the shortest first; those without a prediction last."""
    return sorted(candidates, key=lambda each: math.inf if each.expected_s is None else each.expected_s)


def is_ruled_out(candidate: Candidate, trials: Sequence[TrialRun]) -> bool:
    """Return whether a trial of the same kind, which needs no more memory, ran out of memory."""
    return any(
        trial.is_out_of_memory and needs_as_much(candidate.choices, trial.choices)
        for trial in trials
        if trial.choices != candidate.choices
    )


def needs_as_much(choices: Sequence[str], failed: Sequence[str]) -> bool:
    """Return whether choices differ from those of a failed trial only in keys of MORE_MEMORY, and upwards."""
    differing = [(own, other) for own, other in zip(choices, failed, strict=True) if own != other]
    try:
        sizes = [(MORE_MEMORY[key_of(own)], value_of(own), value_of(other)) for own, other in differing]
        return all(size(own) > size(other) for size, own, other in sizes)
    except (KeyError, ValueError):  # another key, or a value that is an interpolation
        return False


def drawn(space: Space, trials: Sequence[TrialRun], left: Sequence[Candidate], count: int) -> list[Candidate]:
    """Return `count` of the candidates by the sampler, those of tight memory last."""
    fitting, tight = ([each for each in left if each.tight is kind] for kind in (False, True))
    found: list[Candidate] = []
    if fitting and count > 0:
        study = Study(space, trials)
        while len(found) < min(count, len(fitting)):
            found.append(study.ask([each for each in fitting if each not in found]))
    return [*found, *tight[: max(0, count - len(found))]]


class Study:
    """An Optuna study of the trials of the first rung."""

    def __init__(self, space: Space, trials: Sequence[TrialRun]) -> None:
        optuna = require_optuna()
        self.states = optuna.trial.TrialState
        values = zip(*(each.choices for each in space.candidates), strict=True)
        listed = [list(dict.fromkeys(each)) for each in values]
        self.axes = {key_of(each[0]): optuna.distributions.CategoricalDistribution(each) for each in listed}
        with warnings.catch_warnings():
            # Optuna calls some options of its sampler experimental.
            warnings.simplefilter("ignore")
            sampler = optuna.samplers.TPESampler(
                # Another seed for each batch: a new sampler would draw the same random numbers again.
                seed=space.settings.seed + len(trials),
                multivariate=True,
                constant_liar=True,
                n_startup_trials=max(4, len(self.axes) + 1),
            )
        self.study = optuna.create_study(direction="maximize", sampler=sampler)
        expected_s = {each.choices: each.expected_s for each in space.candidates}
        repeated = {trial.repeats for trial in trials if trial.score}
        for trial in trials:
            if trial.choices in expected_s and trial.run.name not in repeated:
                self.add(optuna.trial.create_trial, trial, expected_s[trial.choices] or 1.0)

    def add(self, create_trial: Callable[..., Any], trial: TrialRun, expected_s: float) -> None:
        """Add a trial. A failed one counts as pruned, which ranks below every complete one: the sampler avoids it.

        One that was stopped early counts with its score until then.
        """
        score = trial.score or trial.score_so_far
        self.study.add_trial(
            create_trial(
                state=self.states.COMPLETE if score else self.states.PRUNED,
                value=score and score * expected_s,
                params=dict(zip(self.axes, trial.choices, strict=True)),
                distributions=self.axes,
            )
        )

    def ask(self, candidates: Sequence[Candidate]) -> Candidate:
        """Return the candidate that the sampler proposes; where times are predicted, the best of several proposals."""
        wanted = 1 if candidates[0].expected_s is None else CHOSEN_FROM
        by_choices = {each.choices: each for each in candidates}
        found: dict[tuple[str, ...], Any] = {}
        drawn: tuple[str, ...] = ()
        for _ in range(MOST_DRAWS):
            trial = self.study.ask(self.axes)
            drawn = tuple(str(trial.params[key]) for key in self.axes)
            if drawn in by_choices and drawn not in found:
                found[drawn] = trial
                if len(found) == wanted:
                    break
            else:
                # Illegal, tried or already proposed: nothing that the sampler learns from.
                self.study.tell(trial, state=self.states.FAIL)
        if not found:
            return min(candidates, key=lambda each: sum(a != b for a, b in zip(each.choices, drawn, strict=True)))
        proposed = [by_choices[choices] for choices in found]
        chosen = in_order(proposed)[0]
        for choices, trial in found.items():
            if choices != chosen.choices:
                self.study.tell(trial, state=self.states.FAIL)
        return chosen

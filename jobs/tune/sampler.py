"""Proposals of points: Optuna's TPE by ask and tell over the enumerated legal points, and a prior if there is one.

The study is made anew from the finished trials for every batch, so that the run directories are its only memory.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.compare.tuning import TrialRun
from jobs.errors import ConfigError
from jobs.schema import Run
from jobs.tune.space import Candidate, Space, key_of

# Draws of the sampler for each proposal; then the candidate nearest to the last draw is taken.
MOST_DRAWS = 30
# With a prior: proposals of the sampler among which the prior chooses.
CHOSEN_FROM = 8


@dataclass(frozen=True)
class Expected:
    """A prediction of a point's score before it has run."""

    score: float
    """Tokens per second, or the inverse of time or cost: more is better."""
    deviation: float
    """Standard deviation of the prediction."""


Prior = Callable[[Run], Expected | None]
"""A run -> its expected score; None where nothing is predicted."""


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


def proposals(space: Space, trials: Sequence[TrialRun], count: int, prior: Prior | None = None) -> list[Candidate]:
    """Return at most `count` candidates that were not tried in the first rung.

    The baseline comes first. With a prior the best expected points come next, as many as one batch; later the prior
    chooses among proposals of the sampler. Points whose predicted memory is tight come after all others.
    """
    tried = {trial.choices for trial in trials}
    left = [each for each in space.candidates if each.choices not in tried]
    chosen = [each for each in left[:1] if each is space.baseline][:count]
    if prior is not None and len(tried) < space.settings.parallel:
        chosen += in_order(left[len(chosen) :], prior)[: count - len(chosen)]
    left = [each for each in left if each not in chosen]
    return [*chosen, *drawn(space, trials, left, count - len(chosen), prior)]


def in_order(candidates: Sequence[Candidate], prior: Prior) -> list[Candidate]:
    """Return the candidates by expected score at one deviation above the prediction, the best first."""

    def optimistic(candidate: Candidate) -> tuple[bool, float]:
        found = prior(candidate.point.run)
        return candidate.tight, -(found.score + found.deviation) if found else 0.0

    return sorted(candidates, key=optimistic)


def drawn(
    space: Space, trials: Sequence[TrialRun], left: Sequence[Candidate], count: int, prior: Prior | None
) -> list[Candidate]:
    """Return `count` of the candidates by the sampler, those of tight memory last."""
    fitting, tight = ([each for each in left if each.tight is kind] for kind in (False, True))
    found: list[Candidate] = []
    if fitting and count > 0:
        study = Study(space, trials)
        while len(found) < min(count, len(fitting)):
            found.append(study.ask([each for each in fitting if each not in found], prior))
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
        known = {each.choices for each in space.candidates}
        for trial in trials:
            if trial.choices in known:
                self.add(optuna.trial.create_trial, trial)

    def add(self, create_trial: Callable[..., Any], trial: TrialRun) -> None:
        """Add a trial. A failed one counts as pruned, which ranks below every complete one: the sampler avoids it."""
        self.study.add_trial(
            create_trial(
                state=self.states.COMPLETE if trial.score else self.states.PRUNED,
                value=trial.score,
                params=dict(zip(self.axes, trial.choices, strict=True)),
                distributions=self.axes,
            )
        )

    def ask(self, candidates: Sequence[Candidate], prior: Prior | None) -> Candidate:
        """Return the candidate that the sampler proposes; with a prior, the best expected of several proposals."""
        by_choices = {each.choices: each for each in candidates}
        found: dict[tuple[str, ...], Any] = {}
        drawn: tuple[str, ...] = ()
        for _ in range(MOST_DRAWS):
            trial = self.study.ask(self.axes)
            drawn = tuple(str(trial.params[key]) for key in self.axes)
            if drawn in by_choices and drawn not in found:
                found[drawn] = trial
                if prior is None or len(found) == CHOSEN_FROM:
                    break
            else:
                # Illegal, tried or already proposed: nothing that the sampler learns from.
                self.study.tell(trial, state=self.states.FAIL)
        if not found:
            return min(candidates, key=lambda each: sum(a != b for a, b in zip(each.choices, drawn, strict=True)))
        proposed = [by_choices[choices] for choices in found]
        chosen = in_order(proposed, prior)[0] if prior else proposed[0]
        for choices, trial in found.items():
            if choices != chosen.choices:
                self.study.tell(trial, state=self.states.FAIL)
        return chosen

"""`slurmscale tune`: compose the space, and begin or go on with the search that `tune.search` names."""

from __future__ import annotations

from jobs.answers import TuningAnswer
from jobs.explore.tuning import Tuning
from jobs.lookup import imported
from jobs.plan.compose import compose
from jobs.plan.keys import key_of

DEFAULT = "tune=halving"


def tune(overrides: list[str]) -> tuple[TuningAnswer, int]:
    """Tune the space of some overrides, or go on with it, and return where it stands and the exit code.

    Raises ConfigError as `tuning_of` does, and SubmitError where trials fail so that nothing can be compared.
    """
    tuning = tuning_of(overrides)
    code = tuning.start()
    folder = tuning.space.folder
    ends = folder.records("ended")
    best, verdict = (ends[-1].get("best", []), ends[-1].get("verdict")) if ends else ([], None)
    return TuningAnswer(str(folder.path), bool(ends), best, verdict, str(folder.best) if ends else None, []), code


def tuning_of(overrides: list[str]) -> Tuning:
    """Compose a tuning, before anything is prepared.

    Raises ConfigError for a space without a choice, a budget that is too small and an objective that is not measured.
    """
    chosen = any(key_of(each) == "tune" for each in overrides)
    points = compose([*([] if chosen else [DEFAULT]), *overrides], multirun=True, judge=lambda _run: [])
    settings = points[0].run.tune
    assert settings is not None
    search: type[Tuning] = imported(f"jobs.explore.searches.{settings.search.name}:SEARCH")
    return search.of(points, overrides)

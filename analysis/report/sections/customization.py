"""The table of customizations: what each way to adapt one model trains, holds, takes and reaches."""

from __future__ import annotations

from analysis.formatting import shown, title
from analysis.report.digest import Digest
from analysis.report.figures.style import Section
from analysis.run import RunResult
from jobs import metrics as m

NUMBERS = (
    m.PARAMETERS_TRAINED,
    m.MEMORY_PEAK,
    m.STEP_TIME_MEDIAN,
    m.TOTAL_TIME,
    m.FINAL_LOSS,
    m.EVALUATION_LOSS,
    m.EVALUATION_EXACT_MATCH,
)


def customization_section(digest: Digest) -> Section | None:
    """Return a row for each run that is used or evaluated, the fewest trained weights first.

    None unless a run froze its weights, and another job is next to it.
    """
    listed = [
        run
        for run in digest.runs
        if run.used or (run.setting("job.train") is False and m.EVALUATION_LOSS in run.values)
    ]
    if not any(run.freezes_weights for run in listed) or len({run.setting("job.name") for run in listed}) < 2:
        return None
    rows = [
        [
            run.name,
            str(run.setting("model.name")),
            str(run.setting("job.name")),
            *(shown(metric, value_of(run, metric)) for metric in NUMBERS),
        ]
        for run in sorted(listed, key=lambda run: (str(run.setting("model.name")), trained(run), run.name))
    ]
    note = (
        "One row per run, the fewest trained weights first; evaluate trains none (prompt engineering). Held-out losses "
        f"compare for equal responses. {m.MEMORY_PEAK.name}: {m.MEMORY_PEAK.definition} "
        f"{m.EVALUATION_LOSS.name}: {m.EVALUATION_LOSS.definition}"
    )
    return Section("Customization", note, ("Run", "Model", "Job", *map(title, NUMBERS)), rows)


def trained(run: RunResult) -> float:
    """Return the weights that a run trains; unknown ones are the most."""
    found = value_of(run, m.PARAMETERS_TRAINED)
    return float("inf") if found is None else found


def value_of(run: RunResult, metric: m.Metric) -> float | None:
    """Return a number of a run; one without training trains no weight."""
    if metric is m.PARAMETERS_TRAINED and run.setting("job.train") is False:
        return 0.0
    return run.values.get(metric)

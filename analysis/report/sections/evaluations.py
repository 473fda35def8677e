"""The table of evaluations without training: prompt templates and numbers of examples, the best loss first."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.formatting import plural, shown, title
from analysis.report.figures.style import Section
from analysis.run import DEVICES, RunResult
from jobs import metrics as m

NUMBERS = (m.EVALUATION_LOSS, m.EVALUATION_PERPLEXITY, m.EVALUATION_EXACT_MATCH, m.DATA_TOKENS_MEAN, m.DATA_SAMPLES_CUT)


def evaluation_section(runs: Sequence[RunResult]) -> Section | None:
    """Return a row for each run that trained nothing and has a loss; None without any."""
    listed = [run for run in runs if run.setting("job.train") is False and m.EVALUATION_LOSS in run.values]
    rows = [
        [
            run.name,
            str(run.setting("data.prompt") or "default of the format"),
            f"{run.setting('data.shots'):,}",
            *(shown(metric, run.values.get(metric)) for metric in NUMBERS),
            words(run),
        ]
        for run in sorted(listed, key=lambda run: (run.values[m.EVALUATION_LOSS], run.name))
    ]
    note = (
        "One row a run without training, the lowest loss first. Losses compare only for equal responses. "
        f"{m.EVALUATION_LOSS.name}: {m.EVALUATION_LOSS.definition} "
        f"{m.EVALUATION_EXACT_MATCH.name}: {m.EVALUATION_EXACT_MATCH.definition}"
    )
    headings = ("Run", "Prompt template", "Examples", *map(title, NUMBERS), "Weights and samples")
    return Section("Evaluations", note, headings, rows) if rows else None


def words(run: RunResult) -> str:
    """Return the weights, the device and the number of held-out samples and labels of an evaluation."""
    weights = run.setting("job.init_from") or "random weights"
    samples, labels = (int(run.values.get(each, 0)) for each in (m.EVALUATION_SAMPLES, m.EVALUATION_LABELS))
    device = DEVICES.get(str(run.started.get("device")), "Unknown device")
    return (
        f"{device}: {run.setting('model.name')} from {weights}; {plural(samples, 'sample')}, {plural(labels, 'label')}"
    )

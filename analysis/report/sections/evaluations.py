"""The table of evaluations without training: prompt templates and numbers of examples, the best loss first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from analysis.formatting import plural, shown, title
from analysis.report.digest import Digest
from analysis.report.figures.style import Section
from analysis.run import DEVICES, RunResult, hardware
from jobs import metrics as m

NUMBERS = (m.EVALUATION_LOSS, m.EVALUATION_PERPLEXITY, m.EVALUATION_EXACT_MATCH, m.DATA_TOKENS_MEAN, m.DATA_SAMPLES_CUT)


def evaluation_section(digest: Digest) -> Section | None:
    """Return a row for each run that trained nothing and has a loss; None if there are none."""
    rows = [
        [
            run.name,
            str(run.setting("data.prompt") or "default of the format"),
            f"{run.setting('data.shots'):,}",
            *(shown(metric, run.values.get(metric)) for metric in NUMBERS),
            weights_and_samples(run),
        ]
        for run in digest.evaluations
    ]
    note = (
        "One row per run without training, the lowest loss first. Losses compare only for equal responses. "
        f"{m.EVALUATION_LOSS.name}: {m.EVALUATION_LOSS.definition} "
        f"{m.EVALUATION_EXACT_MATCH.name}: {m.EVALUATION_EXACT_MATCH.definition}"
    )
    headings = ("Run", "Prompt template", "Examples", *map(title, NUMBERS), "Weights and samples")
    return Section("Evaluations", note, headings, rows) if rows else None


def evaluation_headlines(digest: Digest) -> list[str]:
    """Return a sentence for each model that was evaluated without training: its lowest loss, by which prompt."""
    models: dict[str, list[RunResult]] = defaultdict(list)
    for run in digest.evaluations:
        models[str(run.setting("model.name"))].append(run)
    return [headline(model, own) for model, own in models.items()]


def headline(model: str, runs: Sequence[RunResult]) -> str:
    """Return the sentence of a model, whose runs are in order of their losses."""
    low, high = (shown(m.EVALUATION_LOSS, run.values[m.EVALUATION_LOSS]) for run in (runs[0], runs[-1]))
    prompt, shots = runs[0].setting("data.prompt"), runs[0].setting("data.shots")
    by = f"prompt template {prompt}" if prompt else "the default prompt template"
    others = f"; the highest is {high}" if len(runs) > 1 else ""
    return (
        f"{hardware(runs)}: the lowest loss of {plural(len(runs), 'evaluation')} of {model} without training is {low} "
        f"nat, by {by} with {plural(shots, 'example') if shots else 'no example'}{others}."
    )


def weights_and_samples(run: RunResult) -> str:
    """Return the weights, the device and the number of held-out samples and labels of an evaluation."""
    weights = run.setting("job.init_from") or "random weights"
    samples, labels = (int(run.values.get(each, 0)) for each in (m.EVALUATION_SAMPLES, m.EVALUATION_LABELS))
    device = DEVICES.get(str(run.started.get("device")), "Unknown device")
    return (
        f"{device}: {run.setting('model.name')} from {weights}; {plural(samples, 'sample')}, {plural(labels, 'label')}"
    )

"""The table of data sets: samples read, used, held out and cut, tokens of a sample, padding."""

from __future__ import annotations

from analysis.formatting import plural, shown, title
from analysis.report.digest import Digest
from analysis.report.figures.style import Section
from analysis.run import RunResult
from jobs import metrics as m

HEADING = "Data"


def data_section(digest: Digest) -> Section | None:
    """Return a row for each data set with samples of unequal lengths or held out; None if there are none."""
    sets: dict[tuple[str, str, tuple[float | None, ...]], list[RunResult]] = {}
    for run in digest.runs:
        account = tuple(run.values.get(metric) for metric in m.DATA_METRICS)
        if run.values.get(m.DATA_PADDING_SHARE) or run.values.get(m.DATA_SAMPLES_HELD_OUT):
            sets.setdefault((name_of(run), str(run.started.get("data", "")), account), []).append(run)
    rows = [
        [name, *map(shown, m.DATA_METRICS, account), f"{description} {plural(len(members), 'run')}."]
        for (name, description, account), members in sets.items()
    ]
    note = (
        f"One row per data set, as it was prepared. {m.DATA_SAMPLES_CUT.name}: {m.DATA_SAMPLES_CUT.definition} "
        f"{m.DATA_PADDING_SHARE.name}: {m.DATA_PADDING_SHARE.definition} The padding of the runs depends on their "
        "batches: padded_tokens and tokens of metrics.jsonl."
    )
    return Section(HEADING, note, ("Data", *map(title, m.DATA_METRICS), "Description"), rows) if rows else None


def name_of(run: RunResult) -> str:
    """Return the name of a run's data, with its prompt template if one was chosen."""
    prompt = run.setting("data.prompt")
    return f"{run.setting('data.name')}{f', {prompt}' if prompt else ''}"

"""The tables of runs that measure storage: checkpoints, loaders and fio; the fastest first, those with doubts last."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.formatting import shown, title
from analysis.metrics.tested_storage import is_cold
from analysis.report.digest import Digest
from analysis.report.figures.storage_tests import rank_figure, workers_figure
from analysis.report.figures.style import Figure, Section
from analysis.run import RunResult, hardware
from jobs import metrics as m
from jobs.metrics import Metric

CHECKPOINT = (
    m.CHECKPOINT_SIZE,
    m.CHECKPOINT_WRITE_TIME,
    m.CHECKPOINT_IO_RATES["write"],
    m.CHECKPOINT_IO_STRAGGLERS["write"],
    m.CHECKPOINT_READ_TIME,
    m.CHECKPOINT_IO_RATES["read"],
    m.CHECKPOINT_IO_STRAGGLERS["read"],
    m.CACHED_SHARE,
)
DATA = (*m.DATA_READ_RATES.values(), *m.DATA_READ_WAITING.values(), m.CACHED_SHARE)
FIO = (m.FIO_BANDWIDTH, m.FIO_OPERATIONS, m.FIO_LATENCY)


def checkpoint_test_section(digest: Digest) -> Section | None:
    """Return a row for each run that wrote checkpoints, with the figure of its ranks; None if there are none."""
    note = (
        "One row per run, medians over its repeats; those with doubts stand last. Times include directory, "
        "metadata and rename; a read follows after the caches of the nodes were emptied. "
        f"{m.CACHED_SHARE.name}: {m.CACHED_SHARE.definition}"
    )
    runs = digest.storage_tests["checkpoint"]
    return section("Storage tests: checkpoints", note, runs, CHECKPOINT, rank_figure(runs))


def data_test_section(digest: Digest) -> Section | None:
    """Return a row for each run that read data, with the figure over workers; None if there are none."""
    note = (
        "One row per run: all samples once after the caches were emptied, and once more. Without a time of work "
        f"for each batch, a rank waits nearly all of its time. {m.CACHED_SHARE.name}: {m.CACHED_SHARE.definition}"
    )
    runs = digest.storage_tests["data"]
    return section("Storage tests: data", note, runs, DATA, workers_figure(runs))


def fio_test_section(digest: Digest) -> Section | None:
    """Return a row for each run of fio; None if there are none."""
    note = "One row per run, all of its ranks' fio together."
    return section("Storage tests: fio", note, digest.storage_tests["fio"], FIO)


def section(
    heading: str, note: str, runs: Sequence[RunResult], numbers: Sequence[Metric], figure: Figure | None = None
) -> Section | None:
    """Return the table of one kind of test; None if no run made it."""
    known = [metric for metric in numbers if any(metric in run.values for run in runs)]
    rows = [
        [
            run.name,
            str(run.setting("nodes")),
            str(run.ranks),
            *(shown(metric, run.values.get(metric)) for metric in known),
            test_and_doubts(run),
        ]
        for run in sorted(runs, key=order)
    ]
    headings = ("Run", "Nodes", "Ranks", *map(title, known), "Test and doubts")
    return Section(heading, note, headings, rows, figure) if rows else None


def storage_test_headlines(digest: Digest) -> list[str]:
    """Return a sentence for the fastest run of each kind of test."""
    firsts = [min(runs, key=order) for runs in digest.storage_tests.values() if runs]
    return [
        f"{test_and_doubts(run)}: "
        + ", ".join(text.format(shown(rate, run.values[rate])) for rate, text in RATES.items() if rate in run.values)
        + "."
        for run in firsts
    ]


RATES = {
    m.CHECKPOINT_IO_RATES["write"]: "{} GB/s written",
    m.CHECKPOINT_IO_RATES["read"]: "{} GB/s read",
    m.DATA_READ_RATES["cold", "samples"]: "{} samples/s cold",
    m.DATA_READ_RATES["warm", "samples"]: "{} samples/s warm",
    m.FIO_BANDWIDTH: "{} MB/s",
}


def order(run: RunResult) -> tuple[bool, float, str]:
    """Return the key of a row: tests without doubts first, then the highest rate."""
    rates = (m.CHECKPOINT_IO_RATES["write"], m.DATA_READ_RATES["warm", "samples"], m.FIO_BANDWIDTH)
    return bool(doubts(run)), -max(run.values.get(rate, 0.0) for rate in rates), run.name


def test_and_doubts(run: RunResult) -> str:
    """Return hardware, settings and doubts of a test."""
    return f"{hardware([run])}: {', '.join((*settings_in_words(run), *doubts(run)))}"


def doubts(run: RunResult) -> list[str]:
    """Return the reasons why the figures of a test do not stand for its storage, or for the whole model."""
    fraction, share = run.setting("storage.checkpoint.fraction"), run.values.get(m.CACHED_SHARE)
    found = []
    if isinstance(fraction, float) and fraction < 1:
        found.append(f"REDUCED to {fraction:.3g} of its rows")
    if run.setting("storage.checkpoint.fsync") is False:
        found.append("written to the page cache (no fsync)")
    if run.setting("storage.fio.direct") is False:
        found.append("through the page cache")
    if reads(run) and share is None:
        found.append("WARM: the share of cached pages could not be measured")
    elif reads(run) and not is_cold(share):
        found.append(f"WARM: {shown(m.CACHED_SHARE, share)} % of the pages were cached before they were read")
    return found


def reads(run: RunResult) -> bool:
    """Return whether a run reads after it has emptied the caches."""
    return run.setting("storage.data") is not None or run.setting("storage.checkpoint.read") is True


def settings_in_words(run: RunResult) -> list[str]:
    """Return the settings of a test that distinguish its figures."""
    if run.setting("storage.checkpoint") is not None:
        threads = run.setting("storage.checkpoint.writers_per_rank")
        return [
            f"checkpoint of {run.setting('model.name')} ({run.setting('storage.checkpoint.content')})",
            *([f"{threads} writers a rank"] if threads != 1 else []),
        ]
    if run.setting("storage.data") is not None:
        step_s = run.setting("storage.data.step_s")
        return [
            f"{run.setting('storage.data.format')} with {run.setting('storage.data.workers')} workers a rank",
            *([f"{step_s:g} s of work for a batch"] if isinstance(step_s, float) and step_s else []),
        ]
    return [f"fio {run.setting('storage.fio.pattern')} of {run.setting('storage.fio.block_kib')} KiB"]

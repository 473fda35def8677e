"""The tables of storage: one row per run as published tables have it, and one row per phase."""

from __future__ import annotations

from analysis.compare.published import measured
from analysis.formatting import listed, shown, significant, title
from analysis.metrics.storage import Storage, total
from analysis.parsers import log_metrics as a
from analysis.report.digest import Digest
from analysis.report.figures.storage import storage_figure
from analysis.report.figures.style import Section
from jobs import metrics as m
from jobs.metrics import StoragePhase

HEADING = "Storage"
MOST_NODES = 4
GB = 1e9
PEAKS = (m.STORAGE_READ_PEAK, m.STORAGE_WRITE_PEAK)
MOUNT_PEAKS = (m.MOUNT_READ_PEAK, m.MOUNT_WRITE_PEAK)


def storage_section(digest: Digest) -> Section | None:
    """Return a row for each run that recorded its storage, with the figure of one of them; None if there are none."""
    mounted = MOUNT_PEAKS if any(storage.mounts for _, storage in digest.stored) else ()
    numbers = (a.TRAINING_TIME, m.CHECKPOINT_SIZE, m.CHECKPOINT_WRITE_TIME, *PEAKS, *mounted)
    note = (
        "One row per run, over all of its starts; the training time is that of its steps and checkpoints. "
        f"{m.STORAGE_READ_PEAK.name}: {m.STORAGE_READ_PEAK.definition} {m.STORAGE_WRITE_PEAK.name}: "
        f"{m.STORAGE_WRITE_PEAK.definition} 1 MB is 1e6 bytes."
    )
    rows = [
        [
            run.name,
            str(run.setting("nodes")),
            str(run.setting("job.steps") or ""),
            *(shown(metric, measured(run, metric)) for metric in numbers),
            ", ".join(phase.name for phase in storage.phases),
        ]
        for run, storage in digest.stored
    ]
    headings = ("Run", "Nodes", "Steps", *map(title, numbers), "Phases")
    return Section(HEADING, note, headings, rows, figure=storage_figure(digest.stored)) if rows else None


def phases_section(digest: Digest) -> Section | None:
    """Return a row for each phase of each run that recorded its storage; None if there are none."""
    rates = [(direction, statistic) for direction in m.STORAGE_DIRECTIONS for statistic in ("peak", "mean")]
    note = (
        "One row per run and phase, all ranks together: load ends with the first step; checkpoint includes the export "
        "and what is written while steps go on; validate is the evaluation. A second that a phase touched counts as a "
        "whole one, in the mean as well. 1 GB is 1e9 bytes."
    )
    rows = [
        [
            run.name,
            phase.name,
            f"{len(storage.phase(phase)):,}",
            *(significant(size / GB, 3) for size in total(storage.phase(phase))),
            *(shown(metric, run.values.get(metric)) for metric in (m.STORAGE_RATES[phase, *rate] for rate in rates)),
            nodes_in_words(storage, phase),
        ]
        for run, storage in digest.stored
        for phase in storage.phases
    ]
    headings = ("Run", "Phase", "Time (s)", "Read (GB)", "Written (GB)", *(f"{direction.title()}, {statistic} (MB/s)"
                for direction, statistic in rates), "Written by node")  # fmt: skip
    return Section("Storage by phase", note, headings, rows) if rows else None


def nodes_in_words(storage: Storage, phase: StoragePhase) -> str:
    """Return the bytes that each node wrote in a phase, the most first: `node01 1.2 GB, node02 0 GB`."""
    wrote = sorted(
        ((storage.node(node, phase)[1], node) for node in storage.nodes), key=lambda each: (-each[0], each[1])
    )
    return listed([f"{node} {significant(size / GB, 3)} GB" for size, node in wrote], MOST_NODES)

"""The table of runs on images: images/s, the wait for data, what storage and processors did, by storage and nodes."""

from __future__ import annotations

from analysis.formatting import ABSENT, shown, significant, title
from analysis.metrics.storage import total
from analysis.parsers import log_metrics as a
from analysis.report.digest import Digest
from analysis.report.figures.style import Section
from analysis.run import RunResult, hardware
from jobs import metrics as m

NUMBERS = (
    a.SAMPLES_PER_S,
    a.SAMPLES_PER_S_PER_RANK,
    m.DATA_WAIT_SHARE,
    m.CPU_CORES,
    m.GPU_BUSY,
    m.STORAGE_READ_PEAK,
    m.MOUNT_READ_PEAK,
    m.MOUNT_OPERATIONS,
    m.EVALUATION_TOP1,
    m.EVALUATION_TOP5,
)
DEFINED = (m.DATA_WAIT_SHARE, m.CPU_CORES, m.EVALUATION_TOP1)
"""Those whose definitions stand above the table, where it has them."""
GB = 1e9


def image_section(digest: Digest) -> Section | None:
    """Return a row for each used run on images, by storage and nodes; None if there are none."""
    found = [run for run in digest.used if run.setting("images") is not None]
    known = [metric for metric in NUMBERS if any(metric in run.values for run in found)]
    rows = [
        [
            f"{hardware([run])}: {run.name}",
            storage_of(run),
            str(run.setting("images.decoder") or "pillow"),
            str(run.setting("nodes")),
            str(run.ranks),
            *(shown(metric, run.values.get(metric)) for metric in known),
            ABSENT if run.storage is None else significant(total(run.storage.whole)[0] / GB, 3),
        ]
        for run in sorted(found, key=lambda run: (storage_of(run), run.ranks or 0, run.name))
    ]
    defined = [m.DATA_WAIT_TIME, *(metric for metric in DEFINED if metric in known)]
    note = (
        "One row per run; a sample is an image, decoded and augmented. What the page cache had is not read from "
        "storage: set more images than the memory of the nodes. "
        + " ".join(f"{metric.name}: {metric.definition}" for metric in defined)
    )
    headings = ("Run", "Storage", "Decoder", "Nodes", "Ranks", *map(title, known), "Read (GB)")
    return Section("Images", note, headings, rows) if rows else None


def storage_of(run: RunResult) -> str:
    """Return the label of a run's storage, else the directory of its images."""
    return str(run.setting("images.storage") or run.setting("images.path") or "run directory, made")

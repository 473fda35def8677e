"""Everything after a run: from what run directories hold to a table, figures and a report.

In a notebook: `analysis.frames("runs/demo")`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from analysis.report.export.data_frames import Frames

__all__ = ["frames"]


def frames(*paths: str | Path) -> Frames:
    """The report's tables as pandas data frames: `.runs`, `.points` and `.steps`, in SI units.

    `paths` are run, sweep or parent directories, as of `slurmscale report`. Raises ReportError when one does not exist
    or holds no run, ImportError without pandas.
    """
    from analysis.report.export.data_frames import read_frames

    return read_frames([Path(path) for path in paths])

"""Everything after a run: from run directories and logs to a table, figures and a report.

In a notebook: `analysis.frames("runs/demo")`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from analysis.report.export.data_frames import Frames

__all__ = ["frames"]


def frames(*paths: str | Path | Iterable[str | Path]) -> Frames:
    """Return the report's tables as pandas data frames: `.runs`, `.points`, `.steps`, `.measurements`, in SI units.

    Each of `paths` is a run, sweep or parent directory, as for `slurmscale report`, or a list of them. Raise
    ReportError if one does not exist or contains no run.
    """
    from analysis.report.export.data_frames import read_frames

    lists = [[each] if isinstance(each, str | Path) else each for each in paths]
    return read_frames([Path(path) for each in lists for path in each])

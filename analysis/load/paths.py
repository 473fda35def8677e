"""Paths given to a report, checked without the libraries that reading needs: a wrong one is refused at once."""

from __future__ import annotations

from pathlib import Path

from jobs.errors import ReportError


def require(path: Path) -> None:
    """Raise ReportError unless a path is a file or a directory."""
    if not (path.is_file() or path.is_dir()):
        what = "is neither a file nor a directory" if path.exists() else "does not exist"
        raise ReportError(f"{path} {what}. Pass sweeps, runs, logs or directories of them, for example runs/demo")

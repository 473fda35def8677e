"""Directories that only this user can enter, where others may take every name first, as in /tmp."""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path


def defect(directory: Path) -> str:
    """Describe why others could change a directory that exists; empty if they cannot."""
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode):
        return "it is not a directory"
    if found.st_uid != os.getuid():
        return f"it belongs to user {found.st_uid}"
    if stat.S_IMODE(found.st_mode) & 0o077:
        return f"others can enter it; run `chmod 700 {directory}`"
    return ""


def make_private(directory: Path) -> None:
    """Make a directory that only its owner can enter; new directories above it are not writable by others."""
    for parent in reversed([each for each in directory.parents if not each.exists()]):
        # parents=True would apply the umask alone to all but the last one.
        parent.mkdir(exist_ok=True, mode=0o755)
    directory.mkdir(exist_ok=True, mode=0o700)


def kept_cache(name: str) -> Path:
    """Return a private directory that outlives jobs, below $XDG_CACHE_HOME or ~/.cache; else one on this machine."""
    with suppress(OSError, RuntimeError):  # RuntimeError: a user without a home
        kept = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "slurmscale", name).expanduser()
        make_private(kept)
        if not defect(kept) and os.access(kept, os.W_OK):
            return kept
    return cache_on_this_machine() / name


def cache_on_this_machine() -> Path:
    """Return a private directory on this machine: one for all processes of this user, unless others took its name."""
    shared = Path(tempfile.gettempdir(), f"slurmscale-{os.getuid()}")
    with suppress(OSError):
        shared.mkdir(mode=0o700, exist_ok=True)
        if not defect(shared):
            return shared
    return Path(tempfile.mkdtemp(prefix="slurmscale-"))

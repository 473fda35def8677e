"""Standard output and error of a process that must outlive a full disk."""

from __future__ import annotations

import errno
import io
import sys
from contextlib import suppress
from typing import Any

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class Descriptor(io.FileIO):
    """An open file descriptor; a write that finds no space is dropped."""

    def write(self, data: Any) -> int:
        """Write bytes and return their number, also where they were dropped."""
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            return memoryview(data).nbytes


def outlive_full_disk() -> None:
    """Make sys.stdout and sys.stderr drop what a full disk refuses: print, flush and exit would raise OSError."""
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        with suppress(OSError):
            getattr(sys, name).flush()
        file = io.BufferedWriter(Descriptor(descriptor, "wb", closefd=False))
        setattr(sys, name, io.TextIOWrapper(file, encoding="utf-8", errors="backslashreplace", line_buffering=True))

"""The page cache of this node: empty it of files, and measure the share of their pages that it still has."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from jobs.files import opened

WINDOW_BYTES = 2**30
"""Part of a file that is mapped at a time; a multiple of the page size. The kernel answers with one byte per page."""


def drop(files: Iterable[Path]) -> None:
    """Write what the cache has of these files to storage, and ask the kernel to forget their pages.

    It keeps pages that are dirty or mapped, and all pages of file systems in memory: see `cached_share`.
    """
    for file in files:
        with opened(file) as content:
            os.fsync(content.fileno())
            os.posix_fadvise(content.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def cached_share(files: Iterable[Path]) -> float:
    """Return the share of the pages of these files that the cache of this node has, 0 to 1; 0 for empty files.

    The caches of a storage system behind it are not seen.
    """
    cached = pages = 0
    for file in files:
        with opened(file) as content:
            size = os.fstat(content.fileno()).st_size
            for start in range(0, size, WINDOW_BYTES):
                resident = resident_pages(content.fileno(), start, min(WINDOW_BYTES, size - start))
                cached += int((resident & 1).sum())
                pages += len(resident)
    return cached / pages if pages else 0.0


def resident_pages(descriptor: int, start: int, length: int) -> npt.NDArray[Any]:
    """Return a byte for each page of a part of a file, whose lowest bit is set if it is in memory (mincore(2)).

    Raise OSError if the kernel does not answer: it does for files that this user owns or may write.
    """
    # A private mapping that is never touched: ctypes takes the address of a writable buffer only.
    with mmap.mmap(descriptor, length, access=mmap.ACCESS_COPY, offset=start) as mapped:
        resident = (ctypes.c_ubyte * -(-length // mmap.PAGESIZE))()
        view = ctypes.c_char.from_buffer(mapped)
        failed = mincore(ctypes.c_void_p(ctypes.addressof(view)), ctypes.c_size_t(length), resident)
        # The mapping cannot be closed while the view exists.
        del view
        if failed:
            raise OSError(ctypes.get_errno(), "mincore: " + os.strerror(ctypes.get_errno()))
        return np.asarray(resident, np.uint8)


mincore = ctypes.CDLL(None, use_errno=True).mincore

"""The page cache: what is known about it, and files of which it is emptied."""

from __future__ import annotations

import os
from pathlib import Path

from jobs.work.storage.page_cache import WINDOW_BYTES, cached_share, drop
from tests.support.required import skip_or_fail


def test_a_file_that_was_written_is_cached_until_the_cache_is_emptied_of_it(tmp_path: Path) -> None:
    file, other = tmp_path / "file", tmp_path / "other"
    for each in (file, other):
        each.write_bytes(os.urandom(3_000_001))
    assert cached_share([file, other]) == 1.0
    drop([file])
    if cached_share([file]) == 1.0:
        skip_or_fail(f"the file system of {tmp_path} is in memory")
    assert cached_share([file]) == 0.0
    assert 0.4 < cached_share([file, other]) < 0.6, "of pages of all files together"
    file.read_bytes()
    assert cached_share([file]) == 1.0


def test_a_file_in_memory_stays_cached_whatever_is_asked(tmp_path: Path) -> None:
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        skip_or_fail("/dev/shm is not writable")
    file = memory / f"slurmscale-test-{os.getpid()}"
    try:
        file.write_bytes(b"0" * 100_000)
        drop([file])
        assert cached_share([file]) == 1.0
    finally:
        file.unlink(missing_ok=True)


def test_files_without_content_and_files_with_holes_are_not_cached(tmp_path: Path) -> None:
    empty, holes = tmp_path / "empty", tmp_path / "holes"
    empty.touch()
    holes.touch()
    # More than is mapped at a time; no block of it exists.
    os.truncate(holes, WINDOW_BYTES + 5000)
    assert cached_share([empty]) == 0.0
    assert cached_share([empty, holes]) == 0.0

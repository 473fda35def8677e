"""Logs in the cache: parsed once for each content, and a report is the same to the byte whatever the cache holds."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import orjson
import pytest

from analysis.cache import SUFFIX, Shelf, cache_directory
from analysis.load.discover import read, read_runs
from analysis.logs import read as log_reading
from analysis.logs.file import LogFile, read_log_file
from analysis.logs.read import decoded, encoded, read_logs, same
from analysis.report.report import report
from jobs import metrics as m
from tests.analysis.parsers.reading import SAMPLES
from tests.support.megatron_logs import megatron, write


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's cache directory of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def a_log(path: Path, time_ms: float = 1000.0) -> Path:
    return write(path, megatron((step, time_ms) for step in range(1, 9)))


def made(path: Path, *, use_cache: bool = True) -> dict[str, bytes]:
    """The files of a report."""
    folder = report([path], path.parent / "out", use_cache=use_cache).parent
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def shelf_of(path: Path) -> Path:
    return Shelf.of(path, cache_directory()).file or path


@pytest.mark.parametrize("sample", sorted(path.name for path in SAMPLES.iterdir()))
def test_what_is_kept_of_a_log_is_what_parsing_gives(sample: str) -> None:
    log = read_log_file(SAMPLES / sample)
    kept = decoded(log.path, orjson.loads(orjson.dumps(encoded(log))))
    assert same(kept, log)
    assert repr(kept) == repr(log)
    assert kept.told == log.told


def test_a_report_of_logs_has_the_same_bytes_without_a_cache_with_a_new_and_with_a_full_one(
    tmp_path: Path, home: Path
) -> None:
    logs = tmp_path / "logs"
    shutil.copytree(SAMPLES, logs)
    a_log(logs / "below" / "job.out")
    (logs / "weights.bin").write_bytes(bytes(range(32)) * 4096)
    without = made(logs, use_cache=False)
    assert not home.exists()
    assert made(logs) == without
    kept = {file: file.read_bytes() for file in home.rglob(f"*{SUFFIX}")}
    assert len(kept) == 2, "one shelf for each directory"
    assert made(logs) == without
    assert {file: file.read_bytes() for file in home.rglob(f"*{SUFFIX}")} == kept


def test_a_log_that_has_not_changed_is_not_parsed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.out", "b.out"):
        a_log(tmp_path / "logs" / name, time_ms=1000.0 if name == "a.out" else 900.0)
    first = read([tmp_path / "logs"], use_cache=True)
    parsed: list[Path] = []

    def noted(path: Path) -> LogFile:
        parsed.append(path)
        return read_log_file(path)

    monkeypatch.setattr(log_reading, "read_log_file", noted)
    again = read([tmp_path / "logs"], use_cache=True)
    assert [run.values for run in again.runs] == [run.values for run in first.runs]
    assert parsed == []
    a_log(tmp_path / "logs" / "b.out", time_ms=800.0)
    read([tmp_path / "logs"], use_cache=True)
    assert [path.name for path in parsed] == ["b.out"]


def test_a_log_that_changed_but_kept_its_size_and_its_time_is_parsed_again(tmp_path: Path) -> None:
    log = a_log(tmp_path / "logs" / "job.out", time_ms=1000.0)
    read_runs([log.parent], use_cache=True)
    status = log.stat()
    log.write_text(log.read_text().replace("1000.0", "2000.0"))
    os.utime(log, ns=(status.st_atime_ns, status.st_mtime_ns))
    (run,) = read_runs([log.parent], use_cache=True)
    assert run.values[m.STEP_TIME_MEDIAN] == 2.0


@pytest.mark.parametrize("damage", ["torn", "another log's", "no cache at all"])
def test_a_damaged_or_foreign_entry_is_as_if_it_were_not_there(damage: str, tmp_path: Path) -> None:
    log, other = a_log(tmp_path / "logs" / "job.out"), a_log(tmp_path / "other" / "job.out", time_ms=500.0)
    whole = made(log.parent)
    read_runs([other.parent], use_cache=True)
    shelf = shelf_of(log.parent)
    if damage == "torn":
        shelf.write_bytes(shelf.read_bytes()[:-3])
    elif damage == "another log's":
        shutil.copy(shelf_of(other.parent), shelf)
    else:
        shelf.write_bytes(b"{}")
    assert made(log.parent) == whole


def test_of_a_log_that_grows_while_it_is_read_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = a_log(tmp_path / "logs" / "job.out")

    def grown(path: Path) -> LogFile:
        found = read_log_file(path)
        path.write_text(path.read_text() + "more\n")
        return found

    with monkeypatch.context() as patched:
        patched.setattr(log_reading, "read_log_file", grown)
        read_logs([log], use_cache=True)
    assert Shelf.of(log.parent, cache_directory()).entries == {}

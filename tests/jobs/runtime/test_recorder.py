"""Records that cannot be written wait, in order, and a line says what for."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from jobs.lease import Lease
from jobs.ranks import Rank
from jobs.rundir import append_record, read_records
from jobs.runtime.recorder import Recorder
from jobs.runtime.startup import Startup
from tests.support.fake_runs import a_run, prepared


def recorded(recorder: Recorder) -> list[object]:
    """The events behind that of the preparation."""
    return [record["event"] for record in read_records(recorder.directory.status)][1:]


def recorder_of(tmp_path: Path) -> Recorder:
    run = a_run("a", steps=3)
    directory = prepared(tmp_path / "s", run)
    lease = Lease(directory)
    lease.take()
    # The clock of the start is not asked for anything before the loop.
    startup = Startup(0.0, None, {})  # type: ignore[arg-type]
    return Recorder(run, lease, Rank(0, 1, 0, "localhost", "x"), startup=startup, steps=3, from_step=0)


@pytest.mark.parametrize(
    ("code", "awaited"),
    [
        (errno.ENOSPC, "disk space"),
        (errno.EDQUOT, "disk space"),
        (errno.ENOENT, "the directory of the run"),
        (errno.ESTALE, "the directory of the run"),
        (errno.EACCES, "the directory of the run"),
        (errno.EIO, "the directory of the run"),
        (errno.EROFS, "the directory of the run"),
        (errno.ENOTCONN, "the directory of the run"),
    ],
)
def test_records_wait_for_what_is_missing_and_are_written_in_order(
    code: int, awaited: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = recorder_of(tmp_path)

    def refused(path: Path, _record: dict[str, Any]) -> None:
        raise OSError(code, "no", str(path))

    monkeypatch.setattr("jobs.runtime.recorder.append_record", refused)
    found.event("first")
    found.event("second")
    assert capsys.readouterr().out.splitlines() == [f"{found.directory.status}: no; records wait for {awaited}"]
    monkeypatch.setattr("jobs.runtime.recorder.append_record", append_record)
    found.event("third")
    assert recorded(found) == ["first", "second", "third"]
    assert capsys.readouterr().out == "2 records that waited are written\n"


def test_the_directory_of_a_run_that_is_moved_away_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = recorder_of(tmp_path)
    found.directory.path.rename(tmp_path / "away")
    monkeypatch.setattr(found.lease, "is_lost", lambda: False)
    found.event("first")
    assert "records wait for the directory of the run" in capsys.readouterr().out
    (tmp_path / "away").rename(found.directory.path)
    found.event("second")
    assert recorded(found) == ["first", "second"]

"""Storage: the kernel's counters by interval and phase, in the record of a real run and in its report."""

from __future__ import annotations

import csv
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from analysis.load.run_directory import read_run
from analysis.metrics.storage import Storage, total
from jobs.cli import main
from jobs.metrics import StoragePhase
from jobs.rundir import RunDir, read_records
from jobs.runtime import storage_io
from jobs.runtime.storage_io import StorageIo, mount_counters, own_counters
from tests.support.real_run import evaluate, make_run, printed, train

MB = 10**6


def storage_of(run: RunDir) -> Storage:
    storage = read_run(run.path).storage
    assert storage is not None
    return storage


def counts_writes(where: Path) -> bool:
    """Return True if the kernel counts what is written to this file system: not to one in memory."""
    before = own_counters().get("write_bytes", 0)
    (where / "probe").write_bytes(bytes(MB))
    return own_counters().get("write_bytes", 0) >= before + MB


def test_a_child_is_counted_once_while_it_lives_and_after_its_end(tmp_path: Path) -> None:
    if not counts_writes(tmp_path):
        pytest.skip(f"the kernel does not count writes to the file system of {tmp_path}")
    before = own_counters()["write_bytes"]
    writes = f"dd if=/dev/zero of='{tmp_path}/file' bs=1M count=8 status=none; echo written; read line"
    with subprocess.Popen(["bash", "-c", writes], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == b"written\n"
        living = own_counters()["write_bytes"] - before
        child.stdin.close()
    ended = own_counters()["write_bytes"] - before
    assert 8 * MB <= living <= ended < 12 * MB


@pytest.mark.long
def test_a_run_records_what_it_reads_and_writes_by_phase_and_the_report_shows_it(tmp_path: Path) -> None:
    if not counts_writes(tmp_path):
        pytest.skip(f"the kernel does not count writes to the file system of {tmp_path}")
    more = ("job.checkpoint_every_steps=3", "job.keep_checkpoints=2", "job.checkpoint_in_background=false")
    wide = ("model.hidden_size=192", "model.head_size=48", "model.intermediate_size=512", "data.held_out_samples=4")
    run = make_run(tmp_path, "ranks_per_node=2", "parallelism=fsdp_full", *more, *wide, "job.export=true")
    run.plan.write_text("{}")
    assert train(run) == [0, 0], printed(run)
    assert evaluate(run) == 0, printed(run)
    storage = storage_of(run)
    assert storage.phases == [StoragePhase.load, StoragePhase.train, StoragePhase.checkpoint, StoragePhase.validate]
    files = [file for where in (run.checkpoints, run.export) for file in where.rglob("*") if file.is_file()]
    written = sum(file.stat().st_size for file in files)
    _, wrote = total(storage.phase(StoragePhase.checkpoint))
    # The export goes through a checkpoint of its own; records and pages of the file system come on top.
    assert written > 4 * MB
    assert written <= wrote <= 1.5 * written + MB
    assert total(storage.phase(StoragePhase.train))[1] < MB, "a checkpoint counted as training"
    assert main(["report", str(run.path)]) == 0
    (row,) = csv.DictReader((run.path / "runs.csv").read_text().splitlines())
    peak, mean = (float(row[f"storage_checkpoint_write_{each}_bytes_per_s"]) for each in ("peak", "mean"))
    # A second of the checkpoint may hold bytes of the training, too.
    assert 0 < mean <= peak <= float(row["storage_write_peak_bytes_per_s"])
    page = (run.path / "report.md").read_text()
    assert "load, train, checkpoint, validate" in page
    assert "Storage throughput over time" in (run.path / "report.html").read_text()


@pytest.fixture
def by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A record whose clock and counters the test moves; its thread never looks by itself."""
    now = {"time": 1000.0, "read_bytes": 0, "write_bytes": 0}

    def look(_: StorageIo) -> tuple[float, dict[str, int]]:
        return now["time"], {name: int(now[name]) for name in ("read_bytes", "write_bytes")}

    monkeypatch.setattr(StorageIo, "look", look)
    monkeypatch.setattr(storage_io, "EVERY_S", 1e6)
    record = StorageIo(tmp_path / "storage" / "rank-00000.jsonl", StoragePhase.load, [])

    def after(seconds: float, *, read: int = 0, write: int = 0, begins: StoragePhase | None = None) -> None:
        now["time"] += seconds
        now["read_bytes"] += read
        now["write_bytes"] += write
        record.tick() if begins is None else record.begin(begins)

    yield record, after
    if record.thread.is_alive():
        record.stop()


def test_a_busy_second_has_an_interval_of_its_own_and_quiet_ones_share_theirs(by_hand: Any) -> None:
    record, after = by_hand
    for _ in range(20):
        after(1, read=100)
    after(1, write=50 * MB)
    after(1, write=30 * MB)
    after(0.5, begins=StoragePhase.train)
    for _ in range(61):
        after(1)
    record.stop()
    intervals = [(each["phase"], each["interval_s"], each["read_bytes"], each["write_bytes"])
                 for each in read_records(record.file) if "phase" in each]  # fmt: skip
    assert intervals == [
        ("load", 20, 2000, 0), ("load", 1, 0, 50 * MB), ("load", 1, 0, 30 * MB), ("load", 0.5, 0, 0),
        ("train", 60, 0, 0), ("train", 1, 0, 0),
    ]  # fmt: skip


def test_a_checkpoint_in_the_background_is_no_training(by_hand: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    record, after = by_hand
    after(1, begins=StoragePhase.train)
    monkeypatch.setattr(storage_io, "_of_process", record)
    with storage_io.saving_checkpoint():
        after(1, write=MB)
        storage_io.begin(StoragePhase.train)
        after(1, write=MB)
    after(1, write=2 * MB)
    record.stop()
    wrote: dict[str, int] = {}
    for each in read_records(record.file):
        if "phase" in each:
            wrote[each["phase"]] = wrote.get(each["phase"], 0) + each["write_bytes"]
    assert wrote == {"load": 0, "checkpoint": 2 * MB, "train": 2 * MB}


MOUNTSTATS = """\
device /dev/sda1 mounted on / with fstype ext4
device server:/home mounted on /home with fstype nfs4 statvers=1.1
	age:	1000
	bytes:	11 12 13 14 15 16 17 18
device server:/pro mounted on /home/my\\040project with fstype nfs4 statvers=1.1
	bytes:	1 2 3 4 5000 6000 7 8
	per-op statistics
	NULL: 1 1 0 44 24 0 0 0 0
	READ: 40 41 0 6000 5000 1 2 3 0
device server:/other mounted on /other with fstype nfs statvers=1.1
	bytes:	1 1 1 1 1 1 1 1
"""
LUSTRE = """\
snapshot_time             1700000000.0 secs.nsecs
read_bytes                5 samples [bytes] 4096 1048576 200
write_bytes               7 samples [bytes] 4096 1048576 300 4000
open                      3 samples [usecs] 1 2 3
"""


def test_the_mounts_that_hold_the_files_of_a_run_are_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage_io, "PROC", tmp_path)
    assert mount_counters(["/home/my project/run"]) == {}, "a kernel without NFS"
    (tmp_path / "self").mkdir()
    (tmp_path / "self/mountstats").write_text(MOUNTSTATS)
    run = ["/home/my project/run", "/home/my project/data", "/tmp/x", "/homestead"]
    assert mount_counters(run) == {"mount_read_bytes": 5000, "mount_write_bytes": 6000, "mount_operations": 41}
    both = {"mount_read_bytes": 5015, "mount_write_bytes": 6016, "mount_operations": 41}
    assert mount_counters([*run, "/home/me"]) == both
    client = tmp_path / "fs/lustre/llite/scratch-ffff"
    client.mkdir(parents=True)
    (client / "stats").write_text(LUSTRE)
    assert mount_counters(run) == {"mount_read_bytes": 5200, "mount_write_bytes": 6300, "mount_operations": 41}

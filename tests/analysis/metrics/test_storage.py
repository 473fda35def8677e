"""Storage throughput by second and phase, against sums by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from analysis.metrics.storage import Storage, read_storage, total
from analysis.report.figures.storage import spans
from analysis.report.sections.storage import nodes_in_words
from jobs import metrics as m
from jobs.metrics import StoragePhase
from jobs.rundir import RunDir, append_record


def interval(ended: float, interval_s: float, phase: str, read: float, write: float, **more: Any) -> dict[str, Any]:
    return {"time_s": ended, "interval_s": interval_s, "phase": phase, "read_bytes": read, "write_bytes": write, **more}


def recorded(path: Path, **ranks: list[dict[str, Any]]) -> RunDir:
    """A run with the records of these processes."""
    run = RunDir(path)
    for name, records in ranks.items():
        run.storage_log(name).parent.mkdir(exist_ok=True)
        append_record(run.storage_log(name), *records)
    return run


def storage_of(run: RunDir) -> Storage:
    storage = read_storage(run)
    assert storage is not None
    return storage


T = 1_700_000_000


def test_peaks_and_means_are_those_of_all_ranks_in_the_same_second(tmp_path: Path) -> None:
    run = recorded(
        tmp_path,
        rank0=[
            {"node": "a"},
            interval(T + 2, 2, "load", 600, 0),
            interval(T + 4, 2, "train", 0, 0),
            # Half of it in each of two seconds.
            interval(T + 5.5, 1, "checkpoint", 0, 1000),
        ],
        rank1=[
            {"node": "b"},
            interval(T + 1, 1, "load", 100, 0),
            interval(T + 5, 1, "checkpoint", 0, 4000),
            interval(T + 9, 1, "checkpoint", 0, 10),
        ],
        evaluate=[{"node": "c"}, interval(T + 12, 1, "validate", 50, 7)],
    )
    storage = storage_of(run)
    rates = {key: storage.values[metric] for key, metric in m.STORAGE_RATES.items() if metric in storage.values}
    assert rates[StoragePhase.load, "read", "peak"] == 400
    assert rates[StoragePhase.load, "read", "mean"] == 350
    assert rates[StoragePhase.checkpoint, "write", "peak"] == 4500
    assert rates[StoragePhase.checkpoint, "write", "mean"] == pytest.approx(5010 / 3)
    assert rates[StoragePhase.validate, "write", "peak"] == 7
    assert storage.values[m.STORAGE_WRITE_PEAK] == 4500
    assert m.MOUNT_READ_PEAK not in storage.values
    assert list(spans(storage)) == [
        (StoragePhase.load, T, T + 2), (StoragePhase.checkpoint, T + 4, T + 6), (StoragePhase.checkpoint, T + 8, T + 9),
        (StoragePhase.validate, T + 11, T + 12),
    ]  # fmt: skip
    assert nodes_in_words(storage, StoragePhase.checkpoint) == "b 4.01e-06 GB, a 1.00e-06 GB, c 0 GB"


def test_mounts_of_a_node_count_once_whoever_reads_their_counters(tmp_path: Path) -> None:
    mounts = {"mount_read_bytes": 30, "mount_write_bytes": 40, "mount_operations": 7}
    records = [interval(T + 1, 1, "train", 1, 1, **mounts)]
    run = recorded(
        tmp_path, one=[{"node": "a"}, *records], two=[{"node": "a"}, *records], far=[{"node": "b"}, *records]
    )
    values = storage_of(run).values
    assert (values[m.MOUNT_READ_PEAK], values[m.MOUNT_WRITE_PEAK], values[m.STORAGE_READ_PEAK]) == (60, 80, 3)
    assert values[m.MOUNT_OPERATIONS] == 14


def test_records_that_anybody_wrote_do_not_break_or_delay_a_report(tmp_path: Path) -> None:
    good = interval(T, 1, "train", 5, 5)
    wrong = [
        good | change
        for change in (
            {"interval_s": 1e300}, {"interval_s": -1}, {"time_s": "now"}, {"time_s": 1e300}, {"phase": "lunch"},
            {"phase": ["train"]}, {"read_bytes": -1}, {"read_bytes": None}, {"write_bytes": float(2**70), "time_s": 5},
        )
    ]  # fmt: skip
    run = recorded(tmp_path, rank0=[{"node": 7}, *wrong, good])
    (tmp_path / "storage" / "rank1.jsonl").mkdir()
    storage = storage_of(run)
    assert total(storage.whole) == (5, 5)
    assert list(spans(storage)) == [], "a run that recorded steps only"
    assert read_storage(RunDir(tmp_path / "none")) is None

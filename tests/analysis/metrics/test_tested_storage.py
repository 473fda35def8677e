"""Values of a run that measures storage, against sums by hand."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from analysis.metrics.tested_storage import storage_test_values
from analysis.parsers import log_metrics as a
from analysis.parsers.benchmarks import fio
from jobs import metrics as m
from jobs.files import read_json
from jobs.rundir import RunDir
from tests.analysis.parsers.reading import SAMPLES


def checkpoint(kind: str, time_s: float, *ranks_s: float, **more: Any) -> dict[str, Any]:
    times = {"checkpoint_write_time_s": time_s} if kind == "written" else {"checkpoint_read_time_s": time_s}
    ranks = [{"rank": i, "time_s": rank_s, "size_bytes": 50} for i, rank_s in enumerate(ranks_s)]
    return {"event": f"checkpoint_{kind}", "checkpoint_size_bytes": 100, "ranks": ranks, **times, **more}


def a_pass(cache: str, time_s: float, *ranks: tuple[float, float], **more: Any) -> dict[str, Any]:
    read = [{"samples": 10, "size_bytes": 1000, "time_s": own_s, "waited_s": waited_s} for own_s, waited_s in ranks]
    return {"event": "data_read", "cache": cache, "data_read_time_s": time_s, "ranks": read, **more}


def test_times_and_rates_of_checkpoints_are_medians_of_the_repeats(tmp_path: Path) -> None:
    events = [
        checkpoint("written", 2.0, 1.0, 2.0),
        checkpoint("written", 4.0, 1.0, 1.0, 4.0),
        checkpoint("written", 10.0, 1.0, 1.0),
        checkpoint("written", 4.0),
        checkpoint("read", 5.0, 5.0, cached_share=0.002),
        checkpoint("read", 0.0, cached_share=0.0),
    ]
    found = storage_test_values(RunDir(tmp_path), events)
    assert found == {
        m.CHECKPOINT_WRITE_TIME: 4.0,
        m.CHECKPOINT_IO_RATES["write"]: 25.0,
        m.CHECKPOINT_SIZE: 100.0,
        # The longest over the median of the ranks: 2 / 1.5, 4 / 1 and 1 / 1.
        m.CHECKPOINT_IO_STRAGGLERS["write"]: pytest.approx(4 / 3),
        m.CHECKPOINT_READ_TIME: 5.0,
        m.CHECKPOINT_IO_RATES["read"]: 20.0,
        m.CACHED_SHARE: 0.002,
    }
    assert m.CHECKPOINT_IO_STRAGGLERS["read"] not in found, "one rank has no straggler"


def test_a_first_pass_counts_only_with_a_cold_cache_and_waiting_is_the_mean_of_the_ranks(tmp_path: Path) -> None:
    events = [
        a_pass("cold", 4.0, (4.0, 3.0), (2.0, 1.0), cached_share=0.01),
        a_pass("warm", 2.0, (2.0, 0.0)),
        a_pass("warm", 0.0, (2.0, 1.0)),
        a_pass("lukewarm", 1.0, (1.0, 1.0)),
    ]
    assert storage_test_values(RunDir(tmp_path), events) == {
        m.DATA_READ_RATES["cold", "samples"]: 5.0,
        m.DATA_READ_RATES["cold", "bytes"]: 500.0,
        m.DATA_READ_WAITING["cold"]: pytest.approx((3 / 4 + 1 / 2) / 2),
        m.DATA_READ_RATES["warm", "samples"]: 5.0,
        m.DATA_READ_RATES["warm", "bytes"]: 500.0,
        m.DATA_READ_WAITING["warm"]: 0.0,
        m.CACHED_SHARE: 0.01,
    }
    events[0]["cached_share"] = 0.011
    found = storage_test_values(RunDir(tmp_path), events)
    assert m.DATA_READ_WAITING["cold"] not in found
    assert found[m.CACHED_SHARE] == 0.011
    events[0]["cached_share"] = None
    assert m.CACHED_SHARE not in storage_test_values(RunDir(tmp_path), events)


def test_fio_of_all_ranks_adds_up_and_the_longest_latency_counts(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.storage_results.mkdir()
    for rank in range(2):
        shutil.copy(SAMPLES / "fio_3.json", run.storage_results / f"fio-{rank}.json")
    (run.storage_results / "fio-2.json").write_text("fio: no space left\n")
    values = [record.values for record in fio.parse_document(read_json(SAMPLES / "fio_3.json"))]
    assert storage_test_values(run, []) == {
        m.FIO_BANDWIDTH: pytest.approx(2 * sum(each[a.IO_BANDWIDTH] for each in values)),
        m.FIO_OPERATIONS: pytest.approx(2 * sum(each[a.IO_OPERATIONS_PER_S] for each in values)),
        m.FIO_LATENCY: max(each[a.COMPLETION_LATENCY["p99"]] for each in values),
    }

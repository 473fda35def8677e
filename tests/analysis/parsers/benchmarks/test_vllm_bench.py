"""Results of serving benchmarks: the table of vLLM and its kin, and the JSON document."""

from __future__ import annotations

import json
from pathlib import Path

from analysis.parsers import log_metrics as a
from analysis.parsers.search import BLOCK_BYTES
from tests.analysis.parsers.reading import SAMPLES, records

NAME = "vLLM and SGLang serving benchmark"


def test_a_line_of_megabytes_is_read_whole_and_one_that_is_cut_off_not_at_all(tmp_path: Path) -> None:
    result = json.loads((SAMPLES / "vllm_bench.json").read_text())
    long = json.dumps(result | {"itls": [[0.0125] * 1000] * 1000, "duration": 50.0})
    log = tmp_path / "results.jsonl"
    log.write_text("\n".join((json.dumps(result), long, long[: len(long) // 2], json.dumps(result))))
    assert log.stat().st_size > 2 * BLOCK_BYTES
    found = records(log, NAME + " (JSON)")
    assert [(each.line, each.values[a.DURATION]) for each in found] == [(1, 12.5), (2, 50), (4, 12.5)]

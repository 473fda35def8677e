"""Results of serving benchmarks: the table of vLLM and its kin, and the JSON document."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Text
from analysis.parsers.search import BLOCK_BYTES
from tests.analysis.parsers.reading import SAMPLES, records

NAME = "vLLM and SGLang serving benchmark"


def test_a_table_is_one_summary_in_base_units() -> None:
    new, *_ = records(SAMPLES / "vllm_bench.txt", NAME)
    assert (new.kind, new.line) == (Kind.summary, 4)
    assert new.values == pytest.approx({
        a.REQUESTS_COMPLETED: 48, a.REQUESTS_FAILED: 2, a.CONCURRENCY: 8, a.OFFERED_REQUESTS_PER_S: 0.5,
        a.DURATION: 987.65, a.INPUT_TOKENS: 24576, a.OUTPUT_TOKENS: 6144, a.REQUESTS_PER_S: 48 / 987.65,
        a.GOOD_REQUESTS_PER_S: 0.04, a.OUTPUT_TOKENS_PER_S: 6144 / 987.65, a.PEAK_OUTPUT_TOKENS_PER_S: 31,
        a.PEAK_CONCURRENCY: 6, a.SERVED_TOKENS_PER_S: (24576 + 6144) / 987.65,
        a.TIME_TO_FIRST_TOKEN["mean"]: 0.12345, a.TIME_TO_FIRST_TOKEN["median"]: 0.1205,
        a.TIME_TO_FIRST_TOKEN["p90"]: 0.15025, a.TIME_TO_FIRST_TOKEN["p95"]: 0.16,
        a.TIME_TO_FIRST_TOKEN["p99"]: 0.18075,
        a.TIME_PER_OUTPUT_TOKEN["median"]: 0.021, a.TIME_PER_OUTPUT_TOKEN["p99"]: 0.025,
        a.INTER_TOKEN_LATENCY["mean"]: 0.0205, a.INTER_TOKEN_LATENCY["median"]: 0.02025,
        a.REQUEST_LATENCY["mean"]: 2.8, a.REQUEST_LATENCY["median"]: 2.75, a.REQUEST_LATENCY["p99"]: 3.1,
    })  # fmt: skip


def test_a_rate_with_more_digits_than_the_duration_is_left_as_printed() -> None:
    _, old, *_ = records(SAMPLES / "vllm_bench.txt", NAME)
    assert old.rank == 0
    assert old.values[a.OUTPUT_TOKENS_PER_S] == 2500.75
    assert old.values[a.SERVED_TOKENS_PER_S] == 7502.25
    assert old.values[a.REQUESTS_PER_S] == 25.01


def test_sglang_prints_the_same_table_of_old_and_of_new_versions() -> None:
    limited, unlimited, old = records(SAMPLES / "sglang_bench.txt", NAME)
    assert limited.values == pytest.approx({
        a.REQUESTS_COMPLETED: 7, a.CONCURRENCY: 2, a.OFFERED_REQUESTS_PER_S: 20, a.DURATION: 0.56,
        a.INPUT_TOKENS: 56, a.OUTPUT_TOKENS: 112, a.REQUESTS_PER_S: 12.55, a.GOOD_REQUESTS_PER_S: 8.97,
        a.INPUT_TOKENS_PER_S: 100.42, a.OUTPUT_TOKENS_PER_S: 200.84, a.PEAK_OUTPUT_TOKENS_PER_S: 112,
        a.PEAK_CONCURRENCY: 7, a.SERVED_TOKENS_PER_S: 301.27,
        a.REQUEST_LATENCY["mean"]: 0.13591, a.REQUEST_LATENCY["median"]: 0.08071, a.REQUEST_LATENCY["p90"]: 0.26563,
        a.REQUEST_LATENCY["p95"]: 0.28609, a.REQUEST_LATENCY["p99"]: 0.30247,
        a.TIME_TO_FIRST_TOKEN["mean"]: 0.10472, a.TIME_TO_FIRST_TOKEN["median"]: 0.04565,
        a.TIME_TO_FIRST_TOKEN["p90"]: 0.25175, a.TIME_TO_FIRST_TOKEN["p95"]: 0.2619,
        a.TIME_TO_FIRST_TOKEN["p99"]: 0.27002,
        a.TIME_PER_OUTPUT_TOKEN["mean"]: 0.00208, a.TIME_PER_OUTPUT_TOKEN["median"]: 0.00243,
        a.TIME_PER_OUTPUT_TOKEN["p90"]: 0.00256, a.TIME_PER_OUTPUT_TOKEN["p95"]: 0.00258,
        a.TIME_PER_OUTPUT_TOKEN["p99"]: 0.00259,
        a.INTER_TOKEN_LATENCY["mean"]: 0.00194, a.INTER_TOKEN_LATENCY["median"]: 0.00225,
        a.INTER_TOKEN_LATENCY["p90"]: 0.00238, a.INTER_TOKEN_LATENCY["p95"]: 0.00257,
        a.INTER_TOKEN_LATENCY["p99"]: 0.00361, a.INTER_TOKEN_LATENCY["max"]: 0.00364,
    })  # fmt: skip
    for each in (unlimited, old):
        assert not {a.CONCURRENCY, a.OFFERED_REQUESTS_PER_S, a.GOOD_REQUESTS_PER_S} & each.values.keys()
    assert old.values[a.SERVED_TOKENS_PER_S] == 705.3
    assert old.values[a.REQUEST_LATENCY["median"]] == pytest.approx(0.10933)
    assert not set(a.TIME_PER_OUTPUT_TOKEN.values()) & old.values.keys(), "0.5.3 leaves them out of its table"


def test_a_rate_rounded_to_0_is_computed_from_its_count_and_one_of_nothing_is_absent() -> None:
    *_, slow, _ = records(SAMPLES / "vllm_bench.txt", NAME)
    assert slow.values == pytest.approx({
        a.REQUESTS_COMPLETED: 2, a.DURATION: 1250, a.INPUT_TOKENS: 100, a.OUTPUT_TOKENS: 0, a.REQUESTS_PER_S: 0.0016,
        a.SERVED_TOKENS_PER_S: 0.08,
    })  # fmt: skip


def test_placeholders_and_a_torn_end_are_no_numbers() -> None:
    *_, redacted, _, torn = records(SAMPLES / "vllm_bench.txt", NAME)
    assert redacted.values == {a.REQUESTS_COMPLETED: 16}
    assert torn.values[a.OUTPUT_TOKENS_PER_S_PER_REQUEST] == 55.5
    assert a.TIME_TO_FIRST_TOKEN["mean"] not in torn.values


def test_a_document_has_its_rates_in_full_precision() -> None:
    (found,) = records(SAMPLES / "vllm_bench.json", NAME + " (JSON)")
    assert found.texts == {Text.model: "org/model-1b", Text.timestamp: "20260102-030405"}
    assert found.values == pytest.approx({
        a.REQUESTS_PLANNED: 50, a.REQUESTS_COMPLETED: 48, a.REQUESTS_FAILED: 2, a.DURATION: 12.5,
        a.INPUT_TOKENS: 4800, a.OUTPUT_TOKENS: 2400, a.REQUESTS_PER_S: 3.84, a.OUTPUT_TOKENS_PER_S: 192,
        a.SERVED_TOKENS_PER_S: 576, a.PEAK_OUTPUT_TOKENS_PER_S: 300, a.PEAK_CONCURRENCY: 50,
        a.TIME_TO_FIRST_TOKEN["mean"]: 0.0505, a.TIME_TO_FIRST_TOKEN["median"]: 0.0495,
        a.TIME_TO_FIRST_TOKEN["p99"]: 0.07025, a.TIME_PER_OUTPUT_TOKEN["mean"]: 0.01, a.REQUEST_LATENCY["mean"]: 0.55,
    })  # fmt: skip


def test_what_vllm_0_33_prints_of_a_run_with_a_rate_and_of_one_with_errors() -> None:
    (limited,) = records(SAMPLES / "vllm_bench_0_33.txt", NAME)
    assert limited.values == pytest.approx({
        a.REQUESTS_COMPLETED: 12, a.REQUESTS_FAILED: 0, a.CONCURRENCY: 2, a.OFFERED_REQUESTS_PER_S: 20,
        a.DURATION: 0.75, a.INPUT_TOKENS: 108, a.OUTPUT_TOKENS: 192, a.REQUESTS_PER_S: 15.96,
        a.GOOD_REQUESTS_PER_S: 14.63, a.OUTPUT_TOKENS_PER_S: 255.39, a.PEAK_OUTPUT_TOKENS_PER_S: 192,
        a.PEAK_CONCURRENCY: 12, a.SERVED_TOKENS_PER_S: 399.05,
        a.TIME_TO_FIRST_TOKEN["mean"]: 0.06301, a.TIME_TO_FIRST_TOKEN["median"]: 0.06845,
        a.TIME_TO_FIRST_TOKEN["p90"]: 0.07329, a.TIME_TO_FIRST_TOKEN["p99"]: 0.08052,
        a.TIME_PER_OUTPUT_TOKEN["mean"]: 0.00287, a.TIME_PER_OUTPUT_TOKEN["median"]: 0.00236,
        a.TIME_PER_OUTPUT_TOKEN["p90"]: 0.00521, a.TIME_PER_OUTPUT_TOKEN["p99"]: 0.0057,
        a.INTER_TOKEN_LATENCY["mean"]: 0.00287, a.INTER_TOKEN_LATENCY["median"]: 0.00117,
        a.INTER_TOKEN_LATENCY["p90"]: 0.00582, a.INTER_TOKEN_LATENCY["p99"]: 0.01153,
        a.REQUEST_LATENCY["mean"]: 0.1061, a.REQUEST_LATENCY["median"]: 0.10621,
        a.REQUEST_LATENCY["p90"]: 0.10905, a.REQUEST_LATENCY["p99"]: 0.11613,
    })  # fmt: skip
    (failing,) = records(SAMPLES / "vllm_bench_errors.txt", NAME)
    assert (failing.values[a.REQUESTS_COMPLETED], failing.values[a.REQUESTS_FAILED]) == (10, 2)
    assert failing.values[a.TIME_TO_FIRST_TOKEN["p99"]] == pytest.approx(1.05091)
    assert not {a.CONCURRENCY, a.OFFERED_REQUESTS_PER_S, a.GOOD_REQUESTS_PER_S} & failing.values.keys()


def test_a_line_of_json_for_each_run_is_a_summary_each() -> None:
    limited, failing = records(SAMPLES / "vllm_bench.jsonl", NAME + " (JSON)")
    assert (limited.line, failing.line) == (1, 2)
    assert limited.texts == {Text.model: "toy", Text.timestamp: "20261123-014636"}
    assert (limited.values[a.CONCURRENCY], limited.values[a.OFFERED_REQUESTS_PER_S]) == (2, 20)
    assert limited.values[a.DURATION] == pytest.approx(0.7517873139986477)
    assert limited.values[a.TIME_TO_FIRST_TOKEN["mean"]] == pytest.approx(0.063011829749787765)
    assert (failing.values[a.REQUESTS_PLANNED], failing.values[a.REQUESTS_FAILED]) == (12, 2)
    assert not {a.CONCURRENCY, a.OFFERED_REQUESTS_PER_S, a.GOOD_REQUESTS_PER_S} & failing.values.keys()


def test_sglang_keeps_what_it_prints_with_all_digits() -> None:
    tables = records(SAMPLES / "sglang_bench.txt", NAME)
    kept = records(SAMPLES / "sglang_bench.jsonl", NAME + " (JSON)")
    assert [each.line for each in kept] == [1, 2, 3]
    for table, result in zip(tables, kept, strict=True):
        shared = table.values.keys() & result.values.keys()
        assert len(shared) >= 15
        # Hundredths of a second, of a millisecond or of a rate.
        assert all(table.values[metric] == pytest.approx(result.values[metric], abs=0.006) for metric in shared)
    assert kept[0].values[a.SERVED_TOKENS_PER_S] == pytest.approx(301.26524300888184)
    assert [each.texts.get(Text.model) for each in kept] == ["toy", "toy", None]


def test_requests_that_sglang_does_not_count_are_known_by_its_list_of_errors() -> None:
    without, with_errors, _ = records(SAMPLES / "sglang_bench.jsonl", NAME + " (JSON)")
    assert a.REQUESTS_FAILED not in without.values
    assert (with_errors.values[a.REQUESTS_COMPLETED], with_errors.values[a.REQUESTS_FAILED]) == (7, 1)


def test_a_line_of_megabytes_is_read_whole_and_one_that_is_cut_off_not_at_all(tmp_path: Path) -> None:
    result = json.loads((SAMPLES / "vllm_bench.json").read_text())
    long = json.dumps(result | {"itls": [[0.0125] * 1000] * 1000, "duration": 50.0})
    log = tmp_path / "results.jsonl"
    log.write_text("\n".join((json.dumps(result), long, long[: len(long) // 2], json.dumps(result))))
    assert log.stat().st_size > 2 * BLOCK_BYTES
    found = records(log, NAME + " (JSON)")
    assert [(each.line, each.values[a.DURATION]) for each in found] == [(1, 12.5), (2, 50), (4, 12.5)]

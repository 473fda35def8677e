"""GenAI-Perf's table, CSV and JSON."""

from __future__ import annotations

import pytest

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Text
from tests.analysis.parsers.reading import SAMPLES, records

NAME = "GenAI-Perf and AIPerf"


def test_a_box_of_80_columns_has_the_quantities_whose_names_it_breaks() -> None:
    (found,) = records(SAMPLES / "genai_perf.txt", NAME)
    assert (found.kind, found.line) == (Kind.summary, 4)
    assert found.values == pytest.approx({
        a.TIME_TO_FIRST_TOKEN["mean"]: 0.05951, a.TIME_TO_FIRST_TOKEN["min"]: 0.02135,
        a.TIME_TO_FIRST_TOKEN["max"]: 0.06781, a.TIME_TO_FIRST_TOKEN["p99"]: 0.06779,
        a.TIME_TO_FIRST_TOKEN["p90"]: 0.06655,
        a.REQUEST_LATENCY["mean"]: 0.10117, a.REQUEST_LATENCY["min"]: 0.09898, a.REQUEST_LATENCY["max"]: 0.10531,
        a.REQUEST_LATENCY["p99"]: 0.10529, a.REQUEST_LATENCY["p90"]: 0.10462,
        a.TIME_PER_OUTPUT_TOKEN["mean"]: 0.00144, a.TIME_PER_OUTPUT_TOKEN["min"]: 0.00117,
        a.TIME_PER_OUTPUT_TOKEN["max"]: 0.00278, a.TIME_PER_OUTPUT_TOKEN["p99"]: 0.00277,
        a.TIME_PER_OUTPUT_TOKEN["p90"]: 0.00156,
        a.OUTPUT_LENGTH: 30, a.INPUT_LENGTH: 64, a.OUTPUT_TOKENS_PER_S: 557.36, a.REQUESTS_PER_S: 18.58,
        a.REQUESTS_COMPLETED: 20,
    })  # fmt: skip


def test_of_the_boxes_of_aiperf_the_one_of_the_whole_run_is_a_summary() -> None:
    (found,) = records(SAMPLES / "aiperf.txt", NAME)
    assert found.line == 21
    assert found.values == pytest.approx({
        a.TIME_TO_FIRST_TOKEN["mean"]: 0.06407, a.TIME_TO_FIRST_TOKEN["min"]: 0.06142,
        a.TIME_TO_FIRST_TOKEN["max"]: 0.0695, a.TIME_TO_FIRST_TOKEN["p99"]: 0.06905,
        a.TIME_TO_FIRST_TOKEN["p90"]: 0.06535, a.TIME_TO_FIRST_TOKEN["median"]: 0.06443,
        a.REQUEST_LATENCY["mean"]: 0.10107, a.REQUEST_LATENCY["min"]: 0.09849, a.REQUEST_LATENCY["max"]: 0.10581,
        a.REQUEST_LATENCY["p99"]: 0.10539, a.REQUEST_LATENCY["p90"]: 0.10192, a.REQUEST_LATENCY["median"]: 0.10092,
        a.TIME_PER_OUTPUT_TOKEN["mean"]: 0.00128, a.TIME_PER_OUTPUT_TOKEN["min"]: 0.00118,
        a.TIME_PER_OUTPUT_TOKEN["max"]: 0.00139, a.TIME_PER_OUTPUT_TOKEN["p99"]: 0.00139,
        a.TIME_PER_OUTPUT_TOKEN["p90"]: 0.00136, a.TIME_PER_OUTPUT_TOKEN["median"]: 0.00125,
        a.OUTPUT_LENGTH: 30, a.INPUT_LENGTH: 64, a.OUTPUT_TOKENS_PER_S: 503.59, a.INPUT_TOKENS_PER_S: 1074.31,
        a.REQUESTS_PER_S: 16.79, a.GOOD_REQUESTS_PER_S: 15.39, a.REQUESTS_COMPLETED: 12,
    })  # fmt: skip
    (older,) = records(SAMPLES / "aiperf_0_5.txt", NAME)
    assert older.values[a.OUTPUT_TOKENS_PER_S] == 482.56, "not the one of each user, whose name begins alike"


def test_both_tables_of_a_csv_file_are_one_summary() -> None:
    (found,) = records(SAMPLES / "genai_perf.csv", NAME)
    assert found.values[a.TIME_TO_FIRST_TOKEN["max"]] == pytest.approx(0.06781)
    assert found.values[a.REQUEST_LATENCY["median"]] == pytest.approx(0.10022)
    assert found.values[a.REQUEST_LATENCY["p95"]] == pytest.approx(0.10522)
    assert found.values[a.OUTPUT_LENGTH] == 30
    assert found.values[a.OUTPUT_TOKENS_PER_S] == 557.36
    assert found.values[a.REQUESTS_COMPLETED] == 20
    (aiperf,) = records(SAMPLES / "aiperf.csv", NAME)
    assert aiperf.values[a.TIME_TO_FIRST_TOKEN["max"]] == pytest.approx(0.07884)
    assert aiperf.values[a.OUTPUT_TOKENS_PER_S] == 482.56
    assert aiperf.values[a.SERVED_TOKENS_PER_S] == 1512.03
    assert aiperf.values[a.DURATION] == 1.24


def test_thousands_are_set_apart_and_what_is_not_a_number_is_absent() -> None:
    (found,) = records(SAMPLES / "genai_perf_older.csv", NAME)
    assert found.values[a.TIME_TO_FIRST_TOKEN["max"]] == pytest.approx(1.04175)
    assert a.TIME_PER_OUTPUT_TOKEN["mean"] not in found.values
    assert found.values[a.OUTPUT_LENGTH] == 99.5


def test_a_document_also_has_model_and_concurrency() -> None:
    (found,) = records(SAMPLES / "genai_perf.json", NAME + " (JSON)")
    assert found.texts == {Text.model: "toy"}
    assert found.values[a.CONCURRENCY] == 2
    assert found.values[a.REQUEST_LATENCY["median"]] == pytest.approx(0.1002200765)
    (older,) = records(SAMPLES / "genai_perf_older.json", NAME + " (JSON)")
    assert older.texts == {Text.model: "org/toy-1b"}
    assert older.values == pytest.approx({
        a.REQUESTS_PER_S: 10.55, a.REQUEST_LATENCY["mean"]: 1.8, a.REQUEST_LATENCY["median"]: 1.799,
        a.REQUEST_LATENCY["p99"]: 1.849, a.TIME_TO_FIRST_TOKEN["mean"]: 0.0405, a.TIME_TO_FIRST_TOKEN["p90"]: 0.04125,
        a.TIME_PER_OUTPUT_TOKEN["mean"]: 0.01775, a.OUTPUT_TOKENS_PER_S: 1054.5, a.OUTPUT_LENGTH: 99.5,
        a.CONCURRENCY: 20,
    })  # fmt: skip


def test_a_document_of_aiperf_has_its_duration_and_its_failed_requests() -> None:
    (found,) = records(SAMPLES / "aiperf.json", NAME + " (JSON)")
    assert found.texts == {Text.model: "toy"}
    assert found.values[a.DURATION] == pytest.approx(0.70454016)
    assert (found.values[a.REQUESTS_COMPLETED], found.values[a.REQUESTS_FAILED]) == (12, 2)
    assert found.values[a.INPUT_TOKENS_PER_S] == pytest.approx(1074.3149204960375)
    assert found.values[a.SERVED_TOKENS_PER_S] == pytest.approx(1577.9000394785553)
    assert found.values[a.CONCURRENCY] == 2
    (older,) = records(SAMPLES / "aiperf_0_5.json", NAME + " (JSON)")
    assert older.texts == {Text.model: "toy"}
    assert older.values[a.CONCURRENCY] == 2


def test_requests_that_were_measured_and_answered_are_samples() -> None:
    found = records(SAMPLES / "aiperf_requests.jsonl", "AIPerf requests (JSON lines)")
    assert {each.kind for each in found} == {Kind.sample}
    assert [each.line for each in found] == [2, 3], "the first warms up, the last got no answer"
    assert found[0].values == pytest.approx({
        a.TIME_TO_FIRST_TOKEN["mean"]: 0.06437628, a.TIME_PER_OUTPUT_TOKEN["mean"]: 0.0011763785172413791,
        a.REQUEST_LATENCY["mean"]: 0.098491257, a.OUTPUT_LENGTH: 30, a.INPUT_LENGTH: 64,
    })  # fmt: skip

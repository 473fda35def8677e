"""HPL, HPCG, OSU, STREAM and elbencho: their results in base units, and no result where their own check failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Record, Text
from jobs.metrics import Metric
from tests.analysis.parsers.reading import SAMPLES, records, texts

MIB = 1 << 20


def measured(name: str, form: str) -> list[Record]:
    return [each for each in records(SAMPLES / name, form) if each.kind is Kind.measurement]


def test_hpl_has_the_rate_of_systems_whose_residual_passed() -> None:
    passed, failed = measured("hpl.txt", "HPL")
    assert passed.values == pytest.approx(
        {a.PROBLEM_SIZE: 42240, a.RANKS: 16, a.DURATION: 101.93, a.SOLVER_FLOPS_PER_S: 492.96e9}
    )
    assert failed.values == pytest.approx({a.PROBLEM_SIZE: 42240, a.RANKS: 16, a.DURATION: 61.2})
    assert failed.texts[Text.state] == "failed residual"


def test_nvidias_hpl_has_the_rate_of_all_gpus_and_not_of_one() -> None:
    (only,) = measured("hpl_nvidia.txt", "HPL")
    assert only.values[a.SOLVER_FLOPS_PER_S] == pytest.approx(420.8e12)
    assert only.values[a.RANKS] == 8


def test_hpcg_has_its_rating_and_no_rate_of_an_invalid_result() -> None:
    valid, invalid = measured("hpcg.txt", "HPCG")
    assert valid.values == pytest.approx(
        {
            a.RANKS: 16,
            a.THREADS: 4,
            a.PROBLEM_SIZE: 17_997_824,
            a.DURATION: 1812.44,
            a.SOLVER_FLOPS_PER_S: 68.9121e9,
        }
    )
    assert (invalid.values, invalid.texts[Text.state]) == ({a.RANKS: 32}, "INVALID")


def test_osu_has_latencies_and_bandwidths_by_message_size() -> None:
    found = measured("osu.txt", "OSU")
    assert [each.texts[Text.benchmark] for each in found] == [
        *2 * ["allreduce latency CUDA"],
        *2 * ["bandwidth"],
        "multiple bandwidth / message rate",
        "latency",
        "barrier latency",
    ]
    expected: list[dict[Metric, float]] = [
        {a.MESSAGE_SIZE: 8, a.MESSAGE_LATENCY: 12.41e-6},
        {a.MESSAGE_SIZE: MIB, a.MESSAGE_LATENCY: 203.75e-6},
        {a.MESSAGE_SIZE: 1, a.MESSAGE_BANDWIDTH: 2.14e6},
        {a.MESSAGE_SIZE: 4 * MIB, a.MESSAGE_BANDWIDTH: 24310.77e6},
        {a.MESSAGE_SIZE: 1, a.MESSAGE_BANDWIDTH: 14.02e6, a.MESSAGES_PER_S: 14020112.32},
        {a.MESSAGE_SIZE: 0, a.MESSAGE_LATENCY: 1.02e-6},
        {a.MESSAGE_LATENCY: 3.71e-6},
    ]
    for each, values in zip(found, expected, strict=True):
        assert each.values == pytest.approx(values)


def test_stream_has_the_best_rate_of_each_kernel() -> None:
    found = measured("stream.txt", "STREAM")
    assert {each.texts[Text.benchmark]: each.values[a.MEMORY_BANDWIDTH] for each in found} == pytest.approx(
        {"Copy": 301204.1e6, "Scale": 299870.6e6, "Add": 310022.8e6, "Triad": 309551.3e6}
    )


def test_babelstream_has_no_rate_of_arrays_that_failed_validation() -> None:
    found = measured("babelstream.txt", "STREAM")
    assert [each.values.get(a.MEMORY_BANDWIDTH) for each in found] == pytest.approx(
        [3012345.678e6, 2981004.112e6, None]
    )
    assert found[-1].texts[Text.state] == "failed validation"


def test_osu_with_its_validation_has_no_value_of_a_size_that_failed(tmp_path: Path) -> None:
    text = "# OSU MPI-CUDA Latency Test v7.3\n# Size          Latency (us)        Validation\n"
    (tmp_path / "osu.txt").write_text(f"{text}1  2.50  Pass\n2  2.75  Pass\n4  9.99  Fail\n")
    found = [each for each in records(tmp_path / "osu.txt", "OSU") if each.kind is Kind.measurement]
    assert [each.values.get(a.MESSAGE_LATENCY) for each in found] == [
        pytest.approx(2.5e-6), pytest.approx(2.75e-6), None,
    ]  # fmt: skip


def test_elbencho_has_the_results_of_all_threads() -> None:
    write, mkdirs, read = measured("elbencho.txt", "elbencho")
    assert texts([write, mkdirs, read], Text.benchmark) == ["write", "mkdirs", "read"]
    assert write.values == pytest.approx(
        {a.DURATION: 64.012, a.IO_OPERATIONS_PER_S: 10230, a.IO_BANDWIDTH: 10230 * MIB}
    )
    assert mkdirs.values == pytest.approx({a.DURATION: 0.063, a.IO_OPERATIONS_PER_S: 31})
    assert read.values == pytest.approx({a.DURATION: 12.004, a.IO_OPERATIONS_PER_S: 80, a.IO_BANDWIDTH: 20480 * MIB})
    settings = [each.values for each in records(SAMPLES / "elbencho.txt", "elbencho") if each.kind is Kind.setting]
    assert settings == [{a.TRANSFER_SIZE: MIB}]

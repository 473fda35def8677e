"""DLIO's log and summary.json."""

from __future__ import annotations

import json

import pytest

from analysis.parsers import metrics as a
from analysis.parsers.record import Kind, Text
from tests.parsers.reading import CORPUS, SAMPLES, column, needs_corpus, records, texts

MIB = 1 << 20
CASE = CORPUS / "dlio" / "mlperf_storage_v1.0_ddn"
CASES = sorted(CASE.glob("*summary.json"))


def test_lines_of_one_block_are_one_measurement() -> None:
    found = [each for each in records(SAMPLES / "dlio.txt", "DLIO") if each.kind is Kind.measurement]
    assert texts(found, Text.benchmark) == ["training", "evaluation", "training"]
    assert [each.values for each in found] == [
        {a.EPOCH: 1, a.ACCELERATOR_UTILIZATION: 0.875, a.SAMPLES_PER_S: 40.25},
        {a.EPOCH: 1, a.SAMPLES_PER_S: 12.5},
        {a.EPOCH: 2, a.SAMPLES_PER_S: 41},
    ]


def test_the_means_of_each_phase_are_summaries() -> None:
    found = records(SAMPLES / "dlio.txt", "DLIO")
    assert column(found, Kind.setting, a.RANKS) == [4]
    summaries = [each for each in found if each.kind is Kind.summary]
    assert [dict(each.texts) for each in summaries] == [
        {Text.benchmark: "training", Text.state: "fail"},
        {Text.benchmark: "checkpoint save"},
        {Text.benchmark: "evaluation", Text.state: "success"},
    ]
    assert [each.values for each in summaries] == [
        {a.ACCELERATOR_UTILIZATION: 0.875, a.SAMPLES_PER_S: 40.625, a.IO_BANDWIDTH: 5000 * MIB},
        {a.DURATION: 2.5, a.IO_BANDWIDTH: 2048 * MIB},
        {a.ACCELERATOR_UTILIZATION: 0.5, a.SAMPLES_PER_S: 12.5, a.IO_BANDWIDTH: 100 * MIB},
    ]


def test_a_document_has_each_epoch_and_the_mean() -> None:
    setting, first, second, mean = records(SAMPLES / "dlio.json", "DLIO (JSON)")
    assert setting.values == {a.RANKS: 4, a.NODES: 2}
    assert first.values == {a.EPOCH: 1, a.ACCELERATOR_UTILIZATION: 0.875, a.SAMPLES_PER_S: 40.25}
    assert second.values == {a.EPOCH: 2, a.ACCELERATOR_UTILIZATION: 0.88}
    assert mean.values == {
        a.ACCELERATOR_UTILIZATION: pytest.approx(0.8775),
        a.SAMPLES_PER_S: 40.25,
        a.IO_BANDWIDTH: 5000 * MIB,
    }
    assert mean.texts == {Text.benchmark: "training", Text.state: "fail"}


@needs_corpus
def test_real_summaries_have_five_epochs_and_the_mean_that_the_report_says() -> None:
    assert len(CASES) == 6
    for case in CASES:
        found = records(case, "DLIO (JSON)")
        assert [each.kind for each in found] == [Kind.setting, *[Kind.measurement] * 5, Kind.summary]
        report = json.loads((CASE / f"{case.name.partition('__run1')[0]}__mlperf_storage_report.json").read_text())
        said = [each["train_throughput_samples_per_second"] for each in report["runs"].values()]
        assert column(found, Kind.summary, a.SAMPLES_PER_S)[0] in said
        assert column(found, Kind.setting, a.RANKS) == [float(report["overall"]["train_num_accelerators"])]
        mean = column(found, Kind.summary, a.SAMPLES_PER_S)[0]
        assert sum(column(found, Kind.measurement, a.SAMPLES_PER_S)) / 5 == pytest.approx(mean)

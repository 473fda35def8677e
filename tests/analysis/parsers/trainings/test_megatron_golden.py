"""Megatron-LM's golden values."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from analysis.parsers.base import Kind
from analysis.parsers.detect import read_log
from jobs import metrics as m
from tests.analysis.parsers.reading import column, records

NAME = "Megatron-LM golden values"


def test_in_the_older_layout_the_first_value_is_that_of_step_1(tmp_path: Path) -> None:
    series = {"start_step": 0, "end_step": 11, "step_interval": 5, "values": [10.5, 10.25, 10.0]}
    (tmp_path / "golden.json").write_text(json.dumps({"lm loss": series, "iteration_timing_avg": 0.5}))
    found = records(tmp_path / "golden.json", NAME)
    assert column(found, Kind.step, m.STEP) == [1, 6, 11]
    assert column(found, Kind.step, m.LOSS) == [10.5, 10.25, 10.0]


@pytest.mark.parametrize(
    "odd",
    [
        '{"lm loss": 3}',
        '{"lm loss": {"values": {"a": 1, "2": [], "3": true}}}',
        '{"lm loss": {"values": [1]}}',
        '{"lm loss": {"start_step": 1e308, "step_interval": 1e308, "values": [null, null, 2]}}',
    ],
)
def test_anything_but_a_series_gives_no_record(odd: str, tmp_path: Path) -> None:
    (tmp_path / "golden.json").write_text(odd)
    assert not [record for _, found in read_log(tmp_path / "golden.json") for record in found]

"""The files beside an MLPerf result: nodes, GPUs, network and scaling factor."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Text
from tests.analysis.parsers.reading import column, records

NAME = "MLPerf system description"


def test_what_is_left_open_is_absent(tmp_path: Path) -> None:
    file = tmp_path / "system.json"
    blank = {"system_name": "toy", "number_of_nodes": "N/A", "accelerators_per_node": "", "host_networking": "N/A"}
    file.write_text(json.dumps(blank | {"submitter": None, "framework": ["PyTorch"]}))
    (found,) = records(file, NAME)
    assert (found.values, found.texts) == ({}, {Text.system: "toy"})


@pytest.mark.parametrize("factor", [1.05, None, "1.05", float("inf")])
def test_a_scaling_factor_stands_alone(tmp_path: Path, factor: object) -> None:
    file = tmp_path / "scaling.json"
    file.write_text(json.dumps({"scaling_factor": factor}))
    if factor in (1.05, "1.05"):
        assert column(records(file, NAME), Kind.setting, a.CONVERGENCE_FACTOR) == [1.05]
    else:
        with pytest.raises(AssertionError):
            records(file, NAME)

"""The files beside an MLPerf result: nodes, GPUs, network and scaling factor."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Text
from tests.analysis.parsers.reading import SAMPLES, column, records

NAME = "MLPerf system description"


def test_the_size_of_a_system_is_the_stated_one_and_not_the_one_in_its_name() -> None:
    (found,) = records(SAMPLES / "mlperf_system.json", NAME)
    assert (found.kind, found.line) == (Kind.setting, 0)
    assert found.values == {a.NODES: 8, a.GPUS_PER_NODE: 4}
    assert found.texts == {
        Text.organization: "us",
        Text.system: "toy_n64",
        Text.gpu_name: "NVIDIA H100 80GB HBM3",
        Text.software: "PyTorch 2.7",
        Text.interfaces: "4x 200 Gb/s InfiniBand",
    }


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

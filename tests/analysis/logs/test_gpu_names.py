"""GPU names in logs, converted to torch's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from analysis.load.discover import read_runs
from analysis.logs.gpu_names import device_name, names
from analysis.metrics.mfu import known_gpus
from tests.analysis.parsers.reading import SAMPLES


def test_every_name_stands_for_a_gpu_that_is_known_and_known_ones_stay() -> None:
    known = {gpu.get("device_name") for gpu in known_gpus()}
    assert set(names().values()) <= known
    assert all(device_name(name) == name for name in known if name)


@pytest.mark.parametrize("name", ["NVIDIA H100", "NVIDIA H100 NVL", "NVIDIA Blackwell GPU (GB200)", "H100", ""])
def test_a_name_that_leaves_the_device_open_stays_as_it_is(name: str) -> None:
    assert device_name(name) == name


def test_a_run_of_mlperf_names_its_gpu_as_torch_does(tmp_path: Path) -> None:
    system = json.loads((SAMPLES / "mlperf_system.json").read_text())
    system |= {"accelerator_model_name": "NVIDIA H100-SXM5-80GB"}
    (tmp_path / "system.json").write_text(json.dumps(system))
    (tmp_path / "result_0.txt").write_bytes((SAMPLES / "mllog.txt").read_bytes())
    (run,) = read_runs([tmp_path])
    assert run.started["device_name"] == "NVIDIA H100 80GB HBM3"

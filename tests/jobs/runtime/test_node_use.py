"""Hardware use of every node: what a node shows, a file a node, `status --nodes`, and the report."""

from __future__ import annotations

import csv
import importlib
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from analysis.formatting import ABSENT
from analysis.load.run_directory import read_run
from analysis.metrics.node_use import differences
from analysis.report.digest import Digest
from analysis.report.sections.node_use import node_use_section, nodes_differ
from jobs import metrics as m
from jobs.cli import main
from jobs.rundir import RunDir, append_record
from jobs.runtime.gpus import nvidia
from jobs.runtime.gpus.nvidia import NvidiaGpu, nvidia_gpus
from jobs.runtime.node import use as node_use
from jobs.runtime.node.use import AmdGpu, NodeUse, amd_gpus, network_bytes, use_of
from jobs.submit.commands import lines_of_nodes
from jobs.submit.states import RunState, State
from jobs.submit.watching.progress import node_lines
from tests.support.fake_runs import a_run, finished_run, prepared
from tests.support.real_run import make_run, printed, train


class NvmlError(Exception):
    """Raised by NVML for what a GPU does not support."""


def nvml(busy_percent: dict[int, int]) -> SimpleNamespace:
    """Return the functions of pynvml that are called; a GPU without a number does not support utilization (MIG)."""

    def utilization(handle: int) -> SimpleNamespace:
        if handle not in busy_percent:
            raise NvmlError
        return SimpleNamespace(gpu=busy_percent[handle])

    return SimpleNamespace(
        NVMLError=NvmlError,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUtilizationRates=utilization,
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(free=(60 + handle) << 30, total=80 << 30),
    )


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{text}\n")


def test_nvidia_gpus_are_those_of_nvml_and_what_one_does_not_support_is_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvidia, "DEVICE", tmp_path)
    monkeypatch.setattr(importlib, "import_module", lambda _: nvml({0: 97}))
    found = nvidia_gpus()
    assert [gpu.busy() for gpu in found] == [0.97, None]
    assert [gpu.memory_used() for gpu in found] == [0.25, 1 - 61 / 80]


def test_amd_gpus_are_those_of_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_use, "SYS", tmp_path)
    for card, percent in enumerate((40, 60)):
        where = tmp_path / f"class/drm/card{card}/device"
        write(where / "gpu_busy_percent", str(percent))
        write(where / "mem_info_vram_used", str(48 << 30))
        write(where / "mem_info_vram_total", str(192 << 30))
    write(tmp_path / "class/drm/card2/device/vendor", "0x1a03")  # a display of the server's management
    found = amd_gpus()
    assert [(gpu.busy(), gpu.memory_used()) for gpu in found] == [(0.4, 0.25), (0.6, 0.25)]
    assert AmdGpu(tmp_path / "gone").memory_used() is None


def test_rdma_counts_as_network_and_ip_over_infiniband_not_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_use, "SYS", tmp_path)
    counts = SimpleNamespace(bytes_recv=1000, bytes_sent=500)
    names = ("eth0", "ib0", "bond0")
    monkeypatch.setattr(psutil, "net_io_counters", lambda **_: dict.fromkeys(names, counts))
    assert network_bytes() == {}, "no adapter of its own"
    for name, kind in (("eth0", "1"), ("ib0", "32")):
        write(tmp_path / "class/net" / name / "type", kind)
        write(tmp_path / "class/net" / name / "device/vendor", "0x15b3")
    write(tmp_path / "class/infiniband/mlx5_0/ports/1/counters/port_rcv_data", "700")
    write(tmp_path / "class/infiniband/mlx5_0/ports/1/counters/port_xmit_data", "25")
    assert network_bytes() == {"node_receive_bytes": 1000 + 4 * 700, "node_send_bytes": 500 + 4 * 25}


def test_shares_are_means_over_an_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    use = NodeUse()
    use.gpus = [NvidiaGpu(nvml({0: 100, 1: 50}), handle) for handle in (0, 1)]
    clock = iter((10.0, 12.0))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    before, after = use.counters(), use.counters()
    record = {"interval_s": 2.0, **{name: after[name] - before[name] for name in before}, **use.levels()}
    values = use_of(record)
    assert values[m.NODE_GPU_BUSY] == 0.75
    assert values[m.NODE_GPU_MEMORY_USED] == 0.25
    assert 0 <= values[m.NODE_MEMORY_USED] <= 1
    assert use_of({"interval_s": 2.0, "node_cpu_s": "much", m.NODE_MEMORY_USED.name: float("nan")}) == {}


@pytest.mark.slow
def test_every_emulated_node_writes_a_file_of_its_own_which_the_report_shows(tmp_path: Path) -> None:
    run = make_run(tmp_path, "nodes=2", "ranks_per_node=2", "job.steps=40", "job.unmeasured_steps=2")
    run.plan.write_text("{}")
    assert train(run) == [0, 0, 0, 0], printed(run)
    first, second = node_lines(run)
    assert first.startswith("node 0 (")
    assert second.startswith("node 1 (")
    assert "CPU " in first
    assert main(["report", str(run.path)]) == 0
    page = (run.path / "report.md").read_text()
    assert "Hardware use" in page
    assert "node 0 (" in page
    assert "node 1 (" in page
    assert "Emulated nodes on CPU" in page
    assert "Hardware use by node" in (run.path / "report.html").read_text()
    (row,) = csv.DictReader((run.path / "runs.csv").read_text().splitlines())
    assert 0 < float(row["node_cpu_busy"]) <= 1


def recorded(run: RunDir, number: int, *, gpu: float, seconds: float = 10.0) -> None:
    """Write the record of a node of eight GPUs, as a first rank does."""
    file = run.storage_log(f"rank-{8 * number:05d}")
    file.parent.mkdir(exist_ok=True)
    place = {"node": f"gpu{number:02d}", "node_number": number}
    append_record(file, place)
    began = 1_767_322_800.0
    use = {"node_cpu_s": 0.2 * seconds, "node_gpu_s": gpu * seconds, m.NODE_MEMORY_USED.name: 0.3,
           "node_receive_bytes": 4e9 * seconds, "node_send_bytes": 4e9 * seconds,
           m.NODE_GPU_MEMORY_USED.name: 0.9}  # fmt: skip
    idle = use | {"node_gpu_s": 0.0}
    for i, (phase, values) in enumerate([("load", idle), ("train", use), ("train", use)]):
        when = {"time_s": began + seconds * (i + 1), "interval_s": seconds, "phase": phase}
        append_record(file, when | place | {"read_bytes": 0, "write_bytes": 0} | values)


def test_a_node_whose_gpus_idle_is_named_with_the_median_of_the_others(tmp_path: Path) -> None:
    directory = finished_run(tmp_path, a_run("r"))
    for number in range(4):
        recorded(directory, number, gpu=0.4 if number == 2 else 0.95)
    run = read_run(directory.path)
    assert [node.node for node in run.node_use] == ["gpu00", "gpu01", "gpu02", "gpu03"]
    assert run.values[m.NODE_GPU_BUSY] == pytest.approx((3 * 0.95 + 0.4) / 4), "loading is no step"
    assert differences(run) == {"gpu02": "Node GPU busy (%) 40.0, median 95.0"}
    (warning,) = nodes_differ([run])
    assert "in 1 of 1 run, by" in warning
    assert "gpu02 of r" in warning
    section = node_use_section(Digest([run]))
    assert section is not None
    assert [row[-1] == "no" for row in section.rows] == [True, True, False, True]
    assert section.figure is not None


def test_a_single_node_is_compared_with_none(tmp_path: Path) -> None:
    directory = finished_run(tmp_path, a_run("r"))
    recorded(directory, 0, gpu=0.4)
    section = node_use_section(Digest([read_run(directory.path)]))
    assert section is not None
    assert [row[-1] for row in section.rows] == [ABSENT]


def test_the_nodes_of_running_runs_are_shown_and_no_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    running, finished = prepared(tmp_path, a_run("running")), finished_run(tmp_path, a_run("finished"))
    for run in (running, finished):
        recorded(run, 0, gpu=0.95)
    (line,) = lines_of_nodes([RunState(running, State.running), RunState(finished, State.finished)])
    assert line.startswith(
        "running node 0 (gpu00): CPU 20 %, memory 30 %, GPU 95 %, GPU memory 90 %, network in 4,000 out 4,000 MB/s, "
    )
    assert line.endswith(" min ago"), "the record is of another time"
    assert main(["status", "--nodes", str(tmp_path)]) == 0
    assert "finished node" not in capsys.readouterr().out

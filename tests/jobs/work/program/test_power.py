"""Power of a node: what it shows, and a program's operations per joule from the readings of its own run."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from analysis.load.run_directory import read_run
from analysis.metrics.power import PowerLimits, over_power
from analysis.untrusted import moment
from jobs.rundir import read_events
from jobs.runtime.gpus.nvidia import NvidiaGpu
from jobs.runtime.node import use as node_use
from jobs.runtime.node.power import Package, meters, readings
from jobs.runtime.node.use import AmdGpu
from tests.support.real_run import make_run, printed, train

WATTS = 120.0
PROGRAM = {
    "name": "solver",
    "steps": {"solve": {"command": "bash -c 'sleep 6; echo rate 600'"}},
    "metrics": {
        "solver_flops": {"pattern": r"rate (\S+)", "unit": "FLOP/s", "better": "high", "definition": "Rate."},
        "flops_per_j": {
            "pattern": r"rate (\S+)", "per": "mean_power_w", "unit": "FLOP/J", "better": "high", "definition": "Per J."
        },
    },
    "merit": "flops_per_j",
}  # fmt: skip


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The counters of two sockets of WATTS each; that of the second begins again at 0 every 2.5 seconds."""
    place, stopped, begun_s = tmp_path / "sys", threading.Event(), time.monotonic()
    files = [place / f"class/powercap/intel-rapl:{number}" for number in (0, 1)]
    others = [place / "class/powercap/intel-rapl:0:0", place / "class/powercap/intel-rapl:2"]
    for file, name in zip([*files, *others], ("package-0", "package-1", "core", "psys"), strict=True):
        file.mkdir(parents=True)
        (file / "name").write_text(f"{name}\n")
        (file / "max_energy_range_uj").write_text("300000000\n")

    def count() -> None:
        while not stopped.wait(0.01):
            energy_uj = 1e6 * WATTS * (time.monotonic() - begun_s)
            for file, value in zip(files, (energy_uj, energy_uj % 300e6), strict=True):
                (file / "new").write_text(f"{value:.0f}\n")
                (file / "new").replace(file / "energy_uj")

    thread = threading.Thread(target=count)
    thread.start()
    monkeypatch.setattr(node_use, "SYS", place)
    yield place
    stopped.set()
    thread.join()


@pytest.mark.usefixtures("packages")
def test_a_programs_operations_per_joule_come_from_the_power_in_every_second_of_its_run(
    site: Path, tmp_path: Path
) -> None:
    (site / "solver.yaml").write_text(yaml.safe_dump(PROGRAM))
    run = make_run(
        tmp_path, "job=program", "program=solver", "ranks_per_node=1", "cluster.record_power=true", small=False
    )
    run.plan.write_text("{}")
    assert train(run) == [0], printed(run)
    found = read_run(run.path)
    values = {metric.name: value for metric, value in found.values.items()}
    assert values["mean_power_w"] == pytest.approx(2 * WATTS, rel=0.2)
    assert values["flops_per_j"] == pytest.approx(600 / values["mean_power_w"])
    events = list(read_events(run.status))
    begin_s, end_s = (moment(event) or 0.0 for event in (events[1], events[-1]))
    (log,) = run.power_logs
    assert log.read_text().startswith("time,device,power_w\n")
    assert over_power([log], begin_s, end_s, PowerLimits(900, 900), nodes=1) is None
    over = over_power([log], begin_s, end_s, PowerLimits(200, None), nodes=1)
    assert over is not None
    assert "the contest allows 200 W" in over


def test_gpus_go_before_processors_and_one_that_shows_no_power_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NvmlError(Exception):
        """Raised by NVML for what a GPU does not support."""

    def usage(handle: int) -> int:
        if handle:
            raise NvmlError
        return 412_300

    nvml = SimpleNamespace(NVMLError=NvmlError, nvmlDeviceGetPowerUsage=usage)
    amd = tmp_path / "card0/device"
    (amd / "hwmon/hwmon3").mkdir(parents=True)
    (amd / "hwmon/hwmon3/power1_average").write_text("250000000\n")
    gpus = [NvidiaGpu(nvml, 0), NvidiaGpu(nvml, 1)]
    monkeypatch.setattr("jobs.runtime.node.power.nvidia_gpus", lambda: gpus)
    monkeypatch.setattr("jobs.runtime.node.power.amd_gpus", lambda: [AmdGpu(amd)])
    assert readings(meters()) == [("GPU 0", 412.3), ("GPU 2", 250.0)]


def test_a_counter_that_cannot_be_read_has_no_power(tmp_path: Path) -> None:
    package = Package(tmp_path)
    assert [package.power_w(), package.power_w()] == [None, None]

"""The load of a node by others: other processes count, the ranks of the run do not."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from jobs import metrics as m
from jobs.runtime.gpus.nvidia import NvidiaGpu
from jobs.runtime.node import load as node_load
from jobs.runtime.node.load import SHORTEST_S, NodeLoad, at_start
from tests.support.real_run import events, make_run, train

BUSY = "import time\nend = time.monotonic() + 60\nwhile time.monotonic() < end: pass"


def work_s(seconds: float) -> None:
    """Keep a processor busy for this processor time of our own."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_another_process_is_other_work_and_the_run_itself_is_not() -> None:
    other = subprocess.Popen([sys.executable, "-c", BUSY])
    try:
        load = NodeLoad(1)
        began, own_before_s = time.monotonic(), load.own_s
        work_s(2 * SHORTEST_S)
        values, elapsed_s = load.sample(), time.monotonic() - began
    finally:
        other.kill()
        other.wait()
    assert values is not None
    assert load.own_s is not None
    assert own_before_s is not None
    own_share = (load.own_s - own_before_s) / (elapsed_s * load.cpus)
    # On a loaded machine the other process gets less than a processor, but something.
    assert 0 < values[m.OTHER_LOAD] <= 1 - own_share + 0.05
    assert values[m.MEMORY_AVAILABLE] > 0


def test_too_short_a_time_gives_no_sample() -> None:
    assert NodeLoad(1).sample() is None


def test_ranks_are_found_by_their_common_ancestor_and_equal_commands() -> None:
    code = (
        "import sys; from jobs.runtime.node.load import ranks_here; sys.stdin.readline();"
        "print(len(ranks_here(2)), len(ranks_here(3)), flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code]
    # A process that ended and that its parent has not noticed: a launcher may have many.
    ended = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    ranks = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for rank in ranks:
        assert rank.stdin is not None
        rank.stdin.write("\n")
        rank.stdin.flush()
    # Of three ranks only two can be seen, for instance in containers: unknown, not guessed.
    assert [rank.stdout.readline() for rank in ranks if rank.stdout] == ["2 0\n", "2 0\n"]
    for rank in ranks:
        rank.communicate()
    ended.wait()


def test_the_load_at_the_start_has_a_value_of_each_kind() -> None:
    values = at_start()
    assert {m.LOAD_AVERAGE, m.MEMORY_AVAILABLE, m.OTHER_USERS_PROCESSES} <= values.keys()


def test_clocks_and_throttling_are_those_that_the_kernel_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for cpu, (khz, throttled) in enumerate([(1_200_000, 7), (2_000_000, 5)]):
        write(tmp_path / f"devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq", khz)
        write(tmp_path / f"devices/system/cpu/cpu{cpu}/thermal_throttle/core_throttle_count", throttled)
    monkeypatch.setattr(node_load, "SYS", tmp_path)
    assert at_start()[m.CPU_CLOCK] == 1.6e9
    load = NodeLoad(1)
    write(tmp_path / "devices/system/cpu/cpu1/thermal_throttle/core_throttle_count", 9)
    work_s(2 * SHORTEST_S)
    values = load.sample()
    assert values is not None
    assert values[m.CPU_THROTTLED] == 4
    assert values[m.CPU_CLOCK] == 1.6e9


def write(file: Path, number: int) -> None:
    """Write a file of /sys."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{number}\n")


class NvmlError(Exception):
    """Raised by NVML for what a GPU does not support."""


def nvml(reasons: int, *, older: bool = False, memory: bool = True) -> SimpleNamespace:
    """Return the functions of pynvml that are called, for one GPU with a clock of 1,410 MHz."""

    def memory_info(handle: str) -> SimpleNamespace:
        if not memory:
            raise NvmlError(handle)
        return SimpleNamespace(free=5 << 30)

    name = "nvmlDeviceGetCurrentClocksThrottleReasons" if older else "nvmlDeviceGetCurrentClocksEventReasons"
    return SimpleNamespace(
        NVML_CLOCK_SM=1,
        NVMLError=NvmlError,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetClockInfo=lambda handle, kind: {1: 1410}[kind],
        nvmlDeviceGetMemoryInfo=memory_info,
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=97),
        **{name: lambda handle: reasons},
    )


@pytest.mark.parametrize("older", [True, False])
@pytest.mark.parametrize(("reasons", "slowed"), [(0x0, 0), (0x4, 0), (0x1, 0), (0x20, 1), (0x40, 1), (0x84, 1)])
def test_a_gpu_is_throttled_by_heat_and_power_brakes_and_not_by_its_power_limit(
    reasons: int, slowed: int, older: bool
) -> None:
    values = NvidiaGpu(nvml(reasons, older=older), "GPU-1").state()
    assert values == {m.GPU_BUSY: 0.97, m.GPU_CLOCK: 1410e6, m.GPU_THROTTLED: slowed, m.GPU_MEMORY_FREE: 5 << 30}


def test_what_a_gpu_does_not_support_is_absent() -> None:
    assert m.GPU_MEMORY_FREE not in NvidiaGpu(nvml(0, memory=False), "GPU-1").state()


def test_nvml_is_not_imported_where_there_is_no_gpu() -> None:
    # torch imports it where it is installed, so each import after that is refused.
    code = (
        "import torch; from jobs.runtime.gpus.nvidia import gpu_of_rank, importlib;"
        "importlib.import_module = None; print(gpu_of_rank(torch.device('cpu')))"
    )
    command = [sys.executable, "-W", "ignore", "-c", code]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "None\n"


@pytest.mark.slow
def test_a_run_records_the_load_of_its_node(tmp_path: Path) -> None:
    run = make_run(tmp_path, "ranks_per_node=2", "job.steps=60", "model.layers=6", "job.unmeasured_steps=2")
    assert train(run) == [0, 0]
    (started,) = events(run, "started")
    assert {"load_average", "memory_available_bytes", "other_users_processes", "machines"} <= started.keys()
    (load,) = events(run, "node_load")
    assert {"other_load", "cpu_steal", "memory_available_bytes"} <= load.keys()
    assert load["step"] == 60

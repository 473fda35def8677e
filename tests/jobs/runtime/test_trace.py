"""Shares of a step from traces made by hand, of a GPU with NCCL and of a CPU with gloo."""

from __future__ import annotations

from typing import Any

import pytest

from jobs import metrics as m
from jobs.runtime.profiling.trace import GROUPS, PROBE_NUMBERS, summary

GEMM, COPY = "sm90_gemm", "Memcpy DtoD (Device -> Device)"
GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SCATTER = "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def event(name: str, cat: str, begin: float, length: float, tid: int = 7, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "name": name, "cat": cat, "ts": begin, "dur": length, "pid": 0, "tid": tid, "args": args}


def of_group(name: str) -> dict[str, str]:
    return {"Process Group Name": name, "Collective name": "_allgather_base"}


def of_dims(*dims: int) -> dict[str, Any]:
    return {"Input Dims": [list(dims)]}


def test_kernels_of_a_gpu_are_divided_by_what_is_under_way() -> None:
    kernels = [
        event(GEMM, "kernel", 1000, 60),
        event(GATHER, "kernel", 1040, 50, 20, **of_group("1")),  # 20 under the product, 30 exposed
        event(COPY, "gpu_memcpy", 1080, 20),  # 10 beside the collective, 10 alone
        event("cudaLaunchKernel", "cuda_runtime", 1110, 8, 1),  # the device is idle
        event("cudaDeviceSynchronize", "cuda_runtime", 1118, 42, 1),  # a wait is no work
        event(SCATTER, "kernel", 1120, 40, 20, **of_group("2")),
        event(GEMM, "kernel", 1160, 20),
        event(GEMM, "kernel", 1250, 500),  # after the step
    ]
    steps = [event("ProfilerStep#7", cat, 1000, 200, 1) for cat in ("user_annotation", "gpu_user_annotation")]
    found = summary({"traceEvents": [*steps, *kernels], GROUPS: {"0": "world", "1": "dp_shard", "2": "tp"}})
    assert found["steps"] == [7]
    assert found[m.PROFILED_STEP_TIME.name] == pytest.approx(200e-6)
    shares = {name: found[name] for name in (*(metric.name for metric in m.PROFILE_SHARES), m.COMMUNICATION_SHARE.name)}
    assert shares == pytest.approx(
        {
            "compute_share": 80 / 200,
            "exposed_communication_share": 70 / 200,
            "memory_copy_share": 10 / 200,
            "host_share": 8 / 200,
            "idle_share": 32 / 200,
            "communication_share": 90 / 200,
        }
    )
    by_axis = {(each["axis"], each["collective"]): each for each in found["collectives"]}
    assert by_axis.keys() == {("dp_shard", "all_gather"), ("tp", "reduce_scatter")}
    assert by_axis["dp_shard", "all_gather"][m.EXPOSED_COMMUNICATION_SHARE.name] == pytest.approx(30 / 200)
    assert by_axis["dp_shard", "all_gather"][m.COMMUNICATION_SHARE.name] == pytest.approx(50 / 200)
    assert found["kernels"][0] == {
        "kernel": GEMM,
        m.KERNEL_TIME.name: pytest.approx(80e-6),
        m.KERNEL_CALLS.name: 2,
    }


def test_operators_of_a_cpu_have_their_own_times_and_waiting_is_no_compute() -> None:
    main, first, second = 1, 21, 22
    trace = [
        event("gloo:all_reduce", "user_annotation", 10, 5, first, **of_dims(PROBE_NUMBERS)),
        event("gloo:all_reduce", "user_annotation", 10, 5, second, **of_dims(PROBE_NUMBERS + 1)),
        event("ProfilerStep#3", "user_annotation", 100, 100, main),
        event("aten::linear", "cpu_op", 100, 40, main),
        event("aten::mm", "cpu_op", 105, 30, main),
        event("aten::copy_", "cpu_op", 140, 10, main),
        event("autograd::engine::evaluate_function: MmBackward0", "cpu_op", 150, 40, main),
        event("aten::mm", "cpu_op", 180, 10, main),
        # While autograd waits: 20 exposed, 5 at the same time as the next one, 10 under the last product.
        event("gloo:all_gather", "user_annotation", 155, 15, first, **of_dims(64, 8)),
        event("gloo:all_reduce", "user_annotation", 165, 25, second, **of_dims(64, 8)),
        event("gloo:send", "user_annotation", 192, 2, 99),
    ]
    axes = {"0": "dp_shard", "1": "tp", "2": "pp"}
    found = summary({"traceEvents": trace, GROUPS: axes})
    assert found[m.COMPUTE_SHARE.name] == pytest.approx(0.50)
    assert found[m.MEMORY_COPY_SHARE.name] == pytest.approx(0.10)
    assert found[m.EXPOSED_COMMUNICATION_SHARE.name] == pytest.approx(0.27)
    assert found[m.COMMUNICATION_SHARE.name] == pytest.approx(0.37)
    assert found[m.HOST_SHARE.name] == pytest.approx(0.05)
    assert found[m.IDLE_SHARE.name] == pytest.approx(0.08)
    exposed = {each["axis"]: each[m.EXPOSED_COMMUNICATION_SHARE.name] for each in found["collectives"]}
    assert exposed == pytest.approx({"dp_shard": 0.125, "tp": 0.125, "pp": 0.02})
    own_us = {each["kernel"]: 1e6 * each[m.KERNEL_TIME.name] for each in found["kernels"]}
    assert own_us["aten::mm"] == pytest.approx(40)
    assert own_us["aten::linear"] == pytest.approx(10)
    assert not any(name.startswith("autograd") for name in own_us)


def test_values_are_per_step_and_a_collective_of_one_rank_is_none() -> None:
    steps = [event(f"ProfilerStep#{n}", "user_annotation", 100 * n, 50, 1) for n in (1, 2)]
    # The third one ends after its step: 5 of 10 count.
    kernels = [event(GEMM, "kernel", begin, 10) for begin in (100, 120, 145, 200)]
    alone = event(GATHER, "kernel", 210, 10, 20, **of_group("5"))
    found = summary({"traceEvents": [*steps, *kernels, alone], GROUPS: {"5": ""}})
    assert found["kernels"] == [{"kernel": GEMM, "kernel_time_s": pytest.approx(17.5e-6), "kernel_calls": 2}]
    assert found["collectives"] == []
    assert found["idle_share"] == pytest.approx(0.65)


def test_a_trace_without_a_step_is_no_profile() -> None:
    with pytest.raises(ValueError, match="no step"):
        summary({"traceEvents": [event(GEMM, "kernel", 0, 10)]})

"""Logs and descriptions of systems in MLPerf's shape."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tests.support.megatron_logs import write


def logged(key: str, value: object, time_s: float, **metadata: object) -> str:
    """Return a line of an MLPerf log."""
    entry = {"namespace": "", "time_ms": int(time_s * 1000), "event_type": "POINT_IN_TIME", "key": key}
    return f":::MLLOG {json.dumps(entry | {'value': value, 'metadata': metadata})}\n"


def result(minutes: float, *, batch: int = 8, rate: float = 10.0, status: str = "success") -> str:
    """Return the log of an MLPerf result of llama2_70b_lora with this time to train and throughput in samples/s."""
    steps = [logged("tracked_stats", {"throughput": rate}, 60 + i, samples_count=8 * i) for i in range(1, 6)]
    return "".join(
        [
            logged("submission_benchmark", "llama2_70b_lora", 0),
            logged("submission_org", "Nobody", 0),
            logged("global_batch_size", batch, 0),
            logged("run_start", None, 60),
            *steps,
            logged("eval_start", None, 70, samples_count=40),
            logged("eval_accuracy", 0.924, 75, samples_count=40),
            logged("eval_stop", None, 76, samples_count=40),
            logged("run_stop", None, 60 + 60 * minutes, status=status),
        ]
    )


def system(
    path: Path, nodes: int, minutes: Sequence[float], *, batch: int = 8, rate: float = 10.0, gpu: str = "H100"
) -> None:
    """Write the results of one MLPerf system of 8 GPUs a node beside its description."""
    description = {"system_name": "lies about its size", "number_of_nodes": str(nodes), "accelerators_per_node": "8"}
    write(path / "system.json", json.dumps(description | {"accelerator_model_name": gpu, "framework": "torch"}))
    for i, took in enumerate(minutes):
        write(path / f"result_{i}.txt", result(took, batch=batch, rate=rate))

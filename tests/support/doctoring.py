"""Sites and nodes as the doctor finds them."""

from __future__ import annotations

from typing import Any

from jobs.doctor.report import Finding, Verdict
from jobs.plan.compose import compose
from jobs.plan.legality import value_problems
from jobs.schema import Run

GPU = {
    "name": "NVIDIA H100 80GB HBM3",
    "driver_version": "570.1",
    "temperature.gpu": "31",
    "ecc.errors.uncorrected.volatile.total": "0",
    "retired_pages.pending": "[N/A]",
    "remapped_rows.pending": "0",
    "remapped_rows.failure": "0",
}
FITTING = ("cluster=xe9680_h100", "job.micro_batch_size=1", "nodes=2", "cluster.memory_gb_per_node=400",
           "scaling.global_batch_size=32")  # fmt: skip


def report(node: str, **more: Any) -> dict[str, Any]:
    """Return the report of a healthy node, one of two."""
    peer = "n2" if node == "n1" else "n1"
    return {
        "node": node,
        "boot_id": node,
        "listen_error": None,
        "addresses": {"n1": "10.0.0.1", "n2": "10.0.0.2"},
        "peers": {peer: {"round_trip_s": 1e-4, "ahead_s": 0.001}},
        "files": {peer: {"written": 100.0, "seen": 100.2}},
        "versions": {"python": "3.12.1", "torch": "2.13.0"},
        "gpus": [dict(GPU, index=str(index)) for index in range(8)],
        "product": {"installed": "torch 2.13.0 (CUDA 13.0)", "gpus": 8, "no_gpu": None, "error": None},
    } | more


def a_run(*overrides: str) -> Run:
    return compose([*FITTING, *overrides], multirun=False, judge=value_problems)[0].run


def troubles(findings: list[Finding]) -> list[tuple[str, str, str]]:
    return [(f.verdict.value, f.what, f"{f.found}: {f.advice}") for f in findings if f.verdict is not Verdict.ok]

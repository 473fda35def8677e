"""The constants of a cluster and its software: what arithmetic cannot know about step times and memory.

Efficiencies are shares of the rates in conf/gpu and conf/cluster. The defaults are published values for
other machines where a source stands next to them, else estimates; `jobs.plan.predict.fit` fits them to finished runs,
starting from these.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, TypeVar


def constant(default: float, deviation: float) -> Any:
    """Return a field with a default and the standard deviation of its natural logarithm among machines."""
    return field(default=default, metadata={"deviation": deviation})


@dataclass(frozen=True)
class StepTimeConstants:
    """Efficiencies, latencies and overheads that turn counted work into a step time."""

    matrix_share: float = constant(0.9, 0.12)
    """Rate of a model's matrix products over the largest measured one (gpu.matmul_bf16_tflops), which few shapes
    reach."""
    attention_share: float = constant(0.5, 0.35)
    """Rate of a GPU's best attention kernel, forward and backward together, over the dense peak: FlashAttention-2
    reaches 0.5 to 0.7 on A100 (arXiv:2307.08691). Slower kernels: jobs.engines.engine, attention_rate."""
    memory_efficiency: float = constant(0.6, 0.4)
    """Bandwidth of element-wise kernels over the data sheet's. Not a published value: fits to published step times lie
    between 0.35 and 1.2, because what is counted as traffic is not exact."""
    layer_launch_s: float = constant(3.5e-3, 0.9)
    """Host's time to launch the forward and backward pass of a layer. Megatron-LM takes 3.3 to 3.8 ms per layer of
    width 1,024 whether a micro-batch is 1 or 2 sequences of 1,024 and TP 1, 2 or 4 (VIA-Research/vTrain at f8dda84,
    data/ground_truth_single.csv)."""
    link_efficiency: float = constant(0.7, 0.4)
    """Bus bandwidth of a collective in a node over `gpu.link_gb_per_s` (nccl-tests, PERFORMANCE.md)."""
    network_efficiency: float = constant(0.7, 0.5)
    """Bus bandwidth of a collective over two nodes per GPU of a node, over `cluster.network_gb_per_s`."""
    network_decay: float = constant(0.2, 0.8)
    """Exponent with which that bandwidth falls with the number of nodes; 0.6 was measured on a shared network
    (huggingface.co/spaces/nanotron/ultrascale-playbook, bandwidth by node count)."""
    peer_latency_s: float = constant(2.0e-5, 1.5)
    """Latency of a collective over nodes for each further rank of its group."""
    pipeline_peer_latency_s: float = constant(2.0e-5, 2.5)
    """Latency of a layer for each further tensor-parallel rank while the pipeline spans nodes; 2.8 ms in one published
    sweep (the same playbook). The default has no source, so it is the least certain constant."""
    contention: float = constant(0.189, 0.7)
    """Computation lost per second of traffic behind it: both use the GPU's processors and memory (arXiv:2507.03114,
    the mean slowdown on A100, H100, MI210 and MI250)."""
    slot_s: float = constant(1.0e-3, 1.0)
    """Time that a pipeline slot takes besides its work: waiting for the neighbour, host code."""
    step_s: float = constant(3.0e-2, 1.0)
    """Time of a step besides its work: reading a batch, norms of gradients, host code, logging."""


@dataclass(frozen=True)
class MemoryConstants:
    """Factors of predicted bytes: implementations keep more or less than arithmetic counts."""

    states: float = constant(1.0, 0.05)
    """Weights, gradients and optimizer state, which are arithmetic."""
    activations: float = constant(1.0, 0.5)
    """Activations, and buffers of the backward pass."""
    loss: float = constant(1.0, 0.4)
    """Logits and what the loss makes of them."""
    framework: float = constant(1.0, 1.2)
    """Memory besides tensors; it is part of a measurement only in tables of the memory of the device. From a context
    alone to 10 GB, where that includes fragments and buffers of many communicators: of BLOOM's trials 39, 45, 56 and
    75 GB with micro-batches of 1, 2, 4 and 8 (their chronicles, at 9e64ede). The deviation was chosen among five on
    published tables (tests/README.md)."""


Constants = TypeVar("Constants", StepTimeConstants, MemoryConstants)


def deviations(kind: type[StepTimeConstants] | type[MemoryConstants]) -> dict[str, float]:
    """Return the standard deviation of the logarithm of each constant before any measurement."""
    return {each.name: float(each.metadata["deviation"]) for each in fields(kind)}


REACHABLE = 0.8
"""Largest measured matrix rate over the peak, of a GPU whose file does not have it: 0.87 on A100, 0.80 on H100, 0.78 on
B200 (github.com/stas00/ml-engineering, compute/accelerator at 744d01e, "maximum achievable matmul FLOPS")."""
FLOAT8_SPEEDUP = 1402.6 / 794.5
"""Largest matrix rate in float8 over that in bfloat16 on H100 (the same table)."""
NVFP4_SPEEDUP = 2.0
"""Largest matrix rate in NVFP4 over that in float8 of a GPU whose file does not have it: that of the data sheets of
B200 and GB200."""
NETWORK_GB_PER_S = 25.0
"""Network of a GPU whose cluster does not set `network_gb_per_s`: 200 Gb/s for each GPU."""

"""Rows of published tables as runs: the vocabulary of tests.benchmarks.plan_tables."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache

import yaml

from jobs.layout import data_degree
from jobs.parallelism import Schedule, Sharding, StageSplit, Strategy
from jobs.plan.rules.memory import GIB
from jobs.schema import (
    ActivationCheckpointing,
    EngineKind,
    ExpertDispatcher,
    Float8Recipe,
    Gpu,
    Lora,
    Mlp,
    Model,
    Norm,
    Precision,
    Run,
)
from tests.support.composing import CONF, one

Row = dict[str, str]
GPUS = {
    "H100": "h100_sxm", "h100_80gb": "h100_sxm", "H100-80GB": "h100_sxm", "A100-80GB": "a100_sxm_80gb",
    "a100_80gb": "a100_sxm_80gb", "a100_40gb": "a100_sxm_40gb", "B200-SXM": "b200_sxm", "B200": "b200_sxm",
    "H200": "h200_sxm", "B300": "b300_sxm", "GB200": "gb200_nvl72", "GB300": "gb300_nvl72",
}  # fmt: skip
NETWORK_GB_PER_S = {"h100_sxm": 50.0, "h200_sxm": 50.0, "b200_sxm": 50.0, "b300_sxm": 100.0, "gb200_nvl72": 50.0,
                    "gb300_nvl72": 100.0}  # fmt: skip
"""One adapter of 400 Gb/s for each GPU, of 800 Gb/s for a B300 or GB300; others 25 GB/s (1600 Gb/s for 8 A100, as LLM
Foundry states)."""


@dataclass(frozen=True)
class Measurement:
    """A row of a table."""

    source: str
    """Name of the file, and GPU: the constants are those of one source and GPU."""
    cell: str
    """Rows with the same model on the same GPUs for the same batch, of which a user wants the fastest."""
    run: Run
    tokens_per_s: float | None
    """Rate of all GPUs together; None if the row has no result."""
    memory_bytes: float | None = None
    """Peak of the GPU with the most, or of a GPU of the first pipeline stage; None if the source does not print it."""
    first_stage: bool = False
    """True if the memory is that of the first pipeline stage."""
    framework: bool = False
    """True if this may be the memory of the device, which includes memory beside tensors."""
    parameter_bytes: int = 0
    """Bytes of a parameter's states beside those of engine=nemo."""
    balanced: bool = False
    """True if the source made all experts equally busy."""
    faulty: bool = False
    """True if other rows of the source show that this run was disturbed, which its configuration cannot foretell."""


@cache
def base() -> Run:
    """Return a legal run, every value of which that a table states is replaced."""
    return one("cluster=xe9680_h100", "model=llama2_7b", "engine=nemo", "gpu.memory_gb=null", "parallelism=tp").run


@cache
def gpu(name: str) -> Gpu:
    return Gpu(**yaml.safe_load((CONF / "gpu" / f"{name}.yaml").read_text(encoding="utf-8")))


def model(name: str, layers: int, hidden: int, heads: int, inner: int, vocabulary: int, *, kv_heads: int | None = None,
          gated: bool = True, tied: bool = False) -> Model:  # fmt: skip
    """Return a model of these shapes."""
    return Model(
        name=name,
        source="",
        layers=layers,
        heads=heads,
        kv_heads=kv_heads or heads,
        hidden_size=hidden,
        head_size=hidden // heads,
        intermediate_size=inner,
        vocab_size=vocabulary,
        max_sequence_length=1 << 20,
        norm=Norm.RMSNorm if gated else Norm.LayerNorm,
        mlp=Mlp.LLaMAMLP if gated else Mlp.GptNeoxMLP,
        tie_embeddings=tied,
    )


def run(shape: Model, device: str, *, ranks: int, micro_batch: int, batch: int, sequence: int, tp: int = 1, pp: int = 1,
        cp: int = 1, expert: int = 1, virtual: int = 1, per_node: int = 8, kind: EngineKind = EngineKind.nemo,
        distributed: bool = False, sharding: Sharding | None = None, checkpointing: bool = False, float8: bool = False,
        recipe: Float8Recipe | None = None, compiled: bool = False, lora: bool = False, overlapped: bool = False,
        narrow_gradients: bool = False, dispatcher: ExpertDispatcher = ExpertDispatcher.all_to_all,
        ) -> Run | None:  # fmt: skip
    """Return the run of a row; None if its batch does not divide among its ranks."""
    per_node = min(per_node, ranks)
    made = deepcopy(base())
    made.nodes, made.ranks_per_node = max(1, ranks // per_node), per_node
    made.model, made.gpu = shape, gpu(device)
    made.cluster.network_gb_per_s = NETWORK_GB_PER_S.get(device, 25.0)
    stages = pp * virtual
    even = shape.layers % stages == 0
    made.parallelism = replace(
        made.parallelism,
        strategy=Strategy.fsdp if sharding else Strategy.ddp,
        sharding=sharding,
        tensor=tp,
        pipeline=pp,
        context=cp,
        expert=expert,
        data_shard=None,
        data_replicate=None,
        sequence_parallel=tp > 1,
        schedule=Schedule["Interleaved1F1B"] if virtual > 1 else Schedule["1F1B"],
        stages_per_rank=virtual if pp > 1 else None,
        stage_split=StageSplit.even if even else StageSplit.balanced,
        # More stages than layers: a source whose stages may hold the embedding or the head alone.
        stage_layers=[1] * shape.layers + [0] * (stages - shape.layers) if stages > shape.layers else None,
    )
    made.engine = replace(
        made.engine,
        kind=kind,
        distributed_optimizer=distributed,
        overlap_communication=overlapped,
        expert_dispatcher=dispatcher,
        gradients=Precision.bfloat16 if narrow_gradients else Precision.float32,
        float8=float8,
        float8_recipe=recipe if float8 else None,
        compile=compiled,
        activation_checkpointing=ActivationCheckpointing.full if checkpointing else ActivationCheckpointing.none,
    )
    made.job = replace(
        made.job,
        sequence_length=sequence,
        micro_batch_size=micro_batch,
        precision=Precision.bfloat16,
        lora=Lora(rank=8, alpha=16) if lora else None,
    )
    made.scaling = replace(made.scaling, global_batch_size=batch)
    if ranks % (tp * pp * cp * expert) or batch % (micro_batch * data_degree(made)):
        return None
    return made


def number(row: Row, key: str, default: float | None = None) -> float | None:
    """Return a cell as a number; the default where it is empty or no number."""
    try:
        return float(row[key])
    except (KeyError, TypeError, ValueError):
        return default


def gib(row: Row, key: str) -> float | None:
    """Return a cell in GiB as bytes."""
    value = number(row, key)
    return None if value is None else value * GIB


def whole(row: Row, key: str, default: int | None = None) -> int:
    """Return a cell as a whole number; raise KeyError where it is empty and has no default."""
    value = number(row, key)
    if value is None and default is None:
        raise KeyError(key)
    return int(default if value is None else value)  # type: ignore[arg-type]  # one of both is a number

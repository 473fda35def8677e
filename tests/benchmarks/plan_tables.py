"""Published measurements as runs: tables of other programs' step times, a function for each file.

Shapes of models that a table names only are from the sources cited beside them. A row without the layout, the batch or
the shapes that a prediction needs is left out and counted.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import yaml

from jobs.layout import data_degree
from jobs.parallelism import Schedule, Sharding, StageSplit, Strategy
from jobs.plan.cost import embedding_parameters, layer_parameters
from jobs.schema import ActivationCheckpointing, EngineKind, Gpu, Lora, Mlp, Model, Norm, Precision, Run
from tests.support.composing import CONF, one

Row = dict[str, str]
GPUS = {
    "H100": "h100_sxm", "h100_80gb": "h100_sxm", "H100-80GB": "h100_sxm", "A100-80GB": "a100_sxm_80gb",
    "a100_80gb": "a100_sxm_80gb", "a100_40gb": "a100_sxm_40gb", "B200-SXM": "b200_sxm", "B200": "b200_sxm",
    "H200": "h200_sxm",
}  # fmt: skip
NETWORK_GB_PER_S = {"llm_foundry_mpt/h100_sxm": 50.0, "h100_sxm": 50.0, "h200_sxm": 50.0, "b200_sxm": 50.0}
"""One adapter of 400 Gb/s for each GPU; others 25 GB/s (1600 Gb/s for 8 A100, as LLM Foundry states)."""


@dataclass(frozen=True)
class Measurement:
    """A row of a table."""

    source: str
    """Name of the file, and GPU: the constants are those of one source and GPU."""
    cell: str
    """Rows with the same model on the same GPUs for the same batch, of which a user wants the fastest."""
    run: Run
    tokens_per_s: float | None
    """Of all GPUs; None if the row has no result."""


def measurements(tables: Path) -> Iterator[Measurement]:
    """Yield the rows of the files in a directory that have a reader here."""
    for name, reader in READERS.items():
        file = tables / f"{name}.csv"
        if file.is_file():
            with file.open(encoding="utf-8", newline="") as lines:
                yield from reader(list(csv.DictReader(lines)))


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
        cp: int = 1, virtual: int = 1, per_node: int = 8, kind: EngineKind = EngineKind.nemo, distributed: bool = False,
        sharding: Sharding | None = None, checkpointing: bool = False, float8: bool = False,
        compiled: bool = False, lora: bool = False) -> Run | None:  # fmt: skip
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
        float8=float8,
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
    if ranks % (tp * pp * cp) or batch % (micro_batch * data_degree(made)):
        return None
    return made


def number(row: Row, key: str, default: float | None = None) -> float | None:
    """Return a cell as a number; the default where it is empty or no number."""
    try:
        return float(row[key])
    except (KeyError, TypeError, ValueError):
        return default


def whole(row: Row, key: str, default: int | None = None) -> int:
    """Return a cell as a whole number; raise KeyError where it is empty and has no default."""
    value = number(row, key)
    if value is None and default is None:
        raise KeyError(key)
    return int(default if value is None else value)  # type: ignore[arg-type]  # one of both is a number


# --- a reader for each file --------------------------------------------------------------------------------------

# huggingface/nanotron, scripts/scaling_benchmarks.py at 0e0a27e: layers, hidden, heads, inner; vocabulary 131,072.
NANOTRON = {
    "1B": (16, 2048, 32, 8192), "3B": (28, 3072, 32, 8192), "4B": (30, 3072, 32, 8192), "8B": (32, 4096, 32, 14336),
    "70B": (80, 8192, 64, 28672), "80B": (80, 8192, 64, 28672), "405B": (126, 16384, 128, 53248),
}  # fmt: skip


def nanotron(rows: list[Row]) -> Iterator[Measurement]:
    """Yield the sweep of the Ultra-Scale Playbook: sequence 4,096, stages balanced, sequence-parallel TP."""
    for row in rows:
        if row["model"] not in NANOTRON:
            continue
        layers, hidden, heads, inner = NANOTRON[row["model"]]
        made = run(
            model(row["model"], layers, hidden, heads, inner, 131072, tied=inner < 10_000),
            GPUS[row["gpu"]],
            ranks=whole(row, "n_gpus"),
            micro_batch=whole(row, "mbs"),
            batch=whole(row, "gbs"),
            sequence=4096,
            tp=whole(row, "tp"),
            pp=whole(row, "pp"),
            distributed=row["zero_stage"] == "1",
        )
        if made is not None:
            made.parallelism.stage_layers = nanotron_stages(made)
            cell = f"{row['model']} on {row['n_nodes']} nodes, batch {row['gbs']}"
            yield Measurement("nanotron_ultrascale_sweep/" + made.gpu.name, cell, made, number(row, "tokens_per_s"))


def nanotron_stages(run: Run) -> list[int]:
    """Return the layers of each stage as nanotron divides them (models/base.py, build_model): by weights in products.

    A stage ends with the block that exceeds its share, and the head is a block.
    """
    costs = [layer_parameters(run.model)] * run.model.layers + [embedding_parameters(run.model)]
    pipeline, stage, summed = run.parallelism.pipeline, 0, 0
    counts = [0] * pipeline
    for block, cost in enumerate(costs):
        counts[stage] += block < run.model.layers
        summed += cost
        if stage < pipeline - 1 and summed > sum(costs) * (stage + 1) / pipeline:
            stage += 1
    return counts


def vtrain(rows: list[Row]) -> Iterator[Measurement]:
    """Yield vTrain's measurements of Megatron-LM: GPT with a vocabulary of 51,200."""
    for row in rows:
        hidden, layers = whole(row, "hidden_size"), whole(row, "layers")
        name = f"gpt_{layers}x{hidden}"
        batch, sequence = whole(row, "gbs"), whole(row, "seq_len")
        made = run(
            model(name, layers, hidden, whole(row, "heads"), 4 * hidden, 51200, gated=False, tied=True),
            GPUS[row["gpu"]],
            ranks=whole(row, "n_gpus"),
            micro_batch=whole(row, "mbs"),
            batch=batch,
            sequence=sequence,
            tp=whole(row, "tp"),
            pp=whole(row, "pp"),
        )
        if made is not None:
            made.parallelism.sequence_parallel = False
            cell = f"{name} on {row['n_gpus']} GPUs, batch {batch}"
            rate = batch * sequence / (float(row["step_time_ms"]) / 1e3)
            yield Measurement("vtrain_single_node/" + made.gpu.name, cell, made, rate)


# mosaicml/llm-foundry, scripts/train/yamls/pretrain/mpt-*.yaml: layers, d_model, n_heads; vocabulary 50,368, tied.
MPT = {
    "MPT-125m": (12, 768, 12), "MPT-350m": (24, 1024, 16), "MPT-760m": (24, 1536, 12), "MPT-1b": (24, 2048, 16),
    "MPT-3b": (32, 2560, 20), "MPT-7b": (32, 4096, 32), "MPT-13b": (40, 5120, 40), "MPT-30b": (48, 7168, 56),
    "MPT-70b": (80, 8192, 64),
}  # fmt: skip


def mpt(rows: list[Row]) -> Iterator[Measurement]:
    """Yield LLM Foundry's throughput tables: FSDP."""
    for row in rows:
        if row["model"] not in MPT:
            continue
        layers, hidden, heads = MPT[row["model"]]
        made = run(
            model(row["model"], layers, hidden, heads, 4 * hidden, 50368, gated=False, tied=True),
            GPUS[row["gpu"]],
            ranks=whole(row, "n_gpus"),
            micro_batch=whole(row, "mbs"),
            batch=whole(row, "gbs"),
            sequence=whole(row, "seq_len"),
            kind=EngineKind.native,
            sharding=Sharding[row["sharding"]],
            checkpointing=row["act_ckpt"] == "True",
            float8="fp8" in row["precision"],
        )
        if made is not None:
            cell = f"{row['model']} on {row['n_gpus']} GPUs, sequence {row['seq_len']}"
            yield Measurement("llm_foundry_mpt/" + made.gpu.name, cell, made, number(row, "tokens_per_s"))


# Published shapes: arXiv:2402.16819 (Nemotron-4 15B), arXiv:2406.11704 (340B), arXiv:2005.14165 (GPT-3); conf/model.
NEMO = {
    "llama3.1 8b": (32, 4096, 32, 14336, 128256, 8, True), "llama3.1 70b": (80, 8192, 64, 28672, 128256, 8, True),
    "llama3.1 405b": (126, 16384, 128, 53248, 128256, 8, True), "nemotron 15b": (32, 6144, 48, 24576, 256000, 8, False),
    "nemotron 340b": (96, 18432, 96, 73728, 256000, 8, False),
    "megatron 175b": (96, 12288, 96, 49152, 51200, 96, False),
}  # fmt: skip


def dgxc(rows: list[Row]) -> Iterator[Measurement]:
    """Yield NVIDIA's recipes: Megatron with a distributed optimizer, or LoRA."""
    seen = set()
    for row in rows:
        text = f"{row['file']} {row['table']}".lower()
        size = re.search(r"\b(\d+)b\b", text)
        family = "megatron" if "megatron" in text else "nemotron" if "nemotron" in text else "llama3.1"
        known = (
            NEMO.get(f"{family} {size[1] if size else '175'}b")
            if "grok" not in text and "maxtext" not in text
            else None
        )
        rate, step, batch = number(row, "tokens_per_s"), number(row, "step_time_s"), number(row, "gbs")
        tp, pp = number(row, "tp"), number(row, "pp")
        if known is None or not all((rate, step, batch, tp)) or row["gpu"] not in GPUS or pp == 41:
            continue
        assert rate is not None
        assert step is not None
        assert batch is not None
        layers, hidden, heads, inner, vocabulary, kv_heads, gated = known
        layers = whole(row, "layers", layers)
        made = run(
            model(
                f"{family}_{layers}x{hidden}", layers, hidden, heads, inner, vocabulary, kv_heads=kv_heads, gated=gated
            ),
            GPUS[row["gpu"]],
            ranks=whole(row, "n_gpus"),
            micro_batch=whole(row, "mbs", 1),
            batch=int(batch),
            # The step time is rounded.
            sequence=1 << round(rate * step / batch).bit_length() - 1 if not row["seq"] else whole(row, "seq"),
            tp=whole(row, "tp"),
            pp=whole(row, "pp", 1),
            cp=whole(row, "cp", 1),
            virtual=whole(row, "vp", 1) if whole(row, "pp", 1) > 1 else 1,
            distributed=True,
            float8=row["precision"] == "FP8",
            lora="lora" in text,
        )
        if made is None or (same := (row["n_gpus"], row["precision"], text, rate)) in seen:
            continue
        seen.add(same)
        yield Measurement("dgxc_benchmarking_scaling/" + made.gpu.name, text + row["n_gpus"], made, rate)


SIMUMAX = re.compile(r"(tp|pp|cp|dp|mbc|seq)(\d+)")


def simumax(rows: list[Row]) -> Iterator[Measurement]:
    """Yield SimuMax's measurements: Llama-3-70B of 12 layers on 8 B200, micro-batches of one sequence of 4,096."""
    for row in rows:
        given = {key: int(value) for key, value in SIMUMAX.findall(row["case"])}
        dp, sequence = given.get("dp", 1), given.get("seq", 4096)
        batch = given["mbc"] * dp
        made = run(
            model("llama3_70b_l12", 12, 8192, 64, 28672, 128256, kv_heads=8),
            GPUS[row["gpu"]],
            ranks=given["tp"] * given["pp"] * given.get("cp", 1) * dp,
            micro_batch=1,
            batch=batch,
            sequence=sequence,
            tp=given["tp"],
            pp=given["pp"],
            cp=given.get("cp", 1),
            distributed=True,
        )
        if made is not None:
            rate = batch * sequence / (float(row["step_time_ms"]) / 1e3)
            yield Measurement("simumax_b200/" + made.gpu.name, row["case"], made, rate)


# arXiv:2307.09288 (Llama 2) and arXiv:2308.12950 (34B): layers, hidden, heads, inner, key-value heads.
LLAMA2 = {
    "Llama2 7B": (32, 4096, 32, 11008, 32), "Llama2 13B": (40, 5120, 40, 13824, 40),
    "Llama2 34B": (48, 8192, 64, 22016, 8), "Llama2 70B": (80, 8192, 64, 28672, 8),
}  # fmt: skip


def small_tables(rows: list[Row]) -> Iterator[Measurement]:
    """Yield the rows of foundation-model-stack/fms-fsdp: compiled FSDP, sequence 4,096."""
    for row in rows:
        if row["source"] != "foundation-model-stack/fms-fsdp" or row["model"] not in LLAMA2:
            continue
        layers, hidden, heads, inner, kv_heads = LLAMA2[row["model"]]
        ranks = whole(row, "n_gpus")
        made = run(
            model(row["model"], layers, hidden, heads, inner, 32000, kv_heads=kv_heads),
            GPUS[row["gpu"]],
            ranks=ranks,
            micro_batch=whole(row, "mbs"),
            batch=whole(row, "mbs") * ranks,
            sequence=4096,
            kind=EngineKind.native,
            sharding=Sharding.HYBRID_SHARD if row["sharding"] == "HSDP" else Sharding.FULL_SHARD,
            compiled=True,
        )
        rate = number(row, "tokens_per_s_per_gpu")
        if made is not None and rate is not None:
            if row["act_ckpt"] == "selective":
                made.engine.activation_checkpointing = ActivationCheckpointing.selective
            yield Measurement("misc_small_tables/" + made.gpu.name, row["model"] + row["n_gpus"], made, rate * ranks)


READERS: dict[str, Callable[[list[Row]], Iterator[Measurement]]] = {
    "nanotron_ultrascale_sweep": nanotron,
    "vtrain_single_node": vtrain,
    "llm_foundry_mpt": mpt,
    "dgxc_benchmarking_scaling": dgxc,
    "simumax_b200": simumax,
    "misc_small_tables": small_tables,
}

"""Published measurements as runs: tables of other programs' step times and memory, a function for each file.

Shapes of models that a table names only are from the sources cited beside them. A row without the layout, the batch or
the shapes that a prediction needs is left out.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from jobs.layout import accumulation
from jobs.parallelism import Sharding
from jobs.plan.cost import embedding_parameters, layer_parameters
from jobs.plan.rules.memory import GIB
from jobs.schema import ActivationCheckpointing, EngineKind, ExpertDispatcher, Float8Recipe, Loss, Mlp, Run
from tests.benchmarks.plan_rows import GPUS, Measurement, Row, gib, model, number, run, whole
from tests.support.composing import one

MLPERF = Path(__file__).with_name("mlperf_rows.csv")


def measurements(tables: Path) -> Iterator[Measurement]:
    """Yield the rows of the files in a directory that have a reader here; exit with words if none has one."""
    if not any((tables / f"{name}.csv").is_file() for name in READERS):
        raise SystemExit(f"{tables} has no table that is read here: {', '.join(f'{name}.csv' for name in READERS)}.")
    for name, reader in READERS.items():
        file = tables / f"{name}.csv"
        if file.is_file():
            with file.open(encoding="utf-8", newline="") as lines:
                yield from reader(list(csv.DictReader(lines)))


# huggingface/nanotron, scripts/scaling_benchmarks.py at 0e0a27e: layers, hidden, heads, inner; vocabulary 131,072.
NANOTRON = {
    "1B": (16, 2048, 32, 8192), "3B": (28, 3072, 32, 8192), "4B": (30, 3072, 32, 8192), "8B": (32, 4096, 32, 14336),
    "70B": (80, 8192, 64, 28672), "80B": (80, 8192, 64, 28672), "405B": (126, 16384, 128, 53248),
}  # fmt: skip


STALL_S = 0.25
"""Excess of a pipeline slot from which a row of the sweep counts as disturbed: between the two groups of rows, whose
slots take 0.5 s (PP 2) or 1.0 s (PP 4 and more) longer than those of their twins, or at most 0.1 s."""


def nanotron(rows: list[Row]) -> Iterator[Measurement]:
    """Yield the sweep of the Ultra-Scale Playbook: sequence 4,096, stages balanced, sequence-parallel TP."""
    shortest = shortest_slots(rows)
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
            ran = row["status"] == "ok"
            yield Measurement(
                "nanotron_ultrascale_sweep/" + made.gpu.name,
                f"{row['model']} on {row['n_nodes']} nodes, batch {row['gbs']}",
                made,
                number(row, "tokens_per_s") if ran else None,
                gib(row, "memory_gb") if ran else None,
                # The process of rank 0 writes the table, after the fourth step (nanotron, src/nanotron/helpers.py,
                # log_throughput): what its allocator has reserved, with fragments.
                first_stage=True,
                framework=True,
                # Gradients in bfloat16 beside their float32 sums.
                parameter_bytes=2,
                faulty=ran and whole(row, "pp") > 1 and slot_s(row) > shortest(row) + STALL_S,
            )


def slot_s(row: Row) -> float:
    """Return the measured time of a pipeline slot: of a step over micro-batches and bubble."""
    step_s = whole(row, "gbs") * 4096 / float(row["tokens_per_s"])
    return step_s / (whole(row, "grad_accum") + whole(row, "pp") - 1)


def shortest_slots(rows: list[Row]) -> Callable[[Row], float]:
    """Return the shortest slot of rows whose slots have at least the work of a given one.

    That is, of the same model and TP, with at least as many layers a stage and tokens a micro-batch.
    """
    known: dict[tuple[str, str], list[tuple[int, int, float]]] = {}
    for row in rows:
        if row["status"] == "ok" and whole(row, "pp") > 1:
            key = row["model"], row["tp"]
            known.setdefault(key, []).append((whole(row, "pp"), whole(row, "mbs"), slot_s(row)))

    def shortest(row: Row) -> float:
        pipeline, micro_batch = whole(row, "pp"), whole(row, "mbs")
        return min(s for pp, mbs, s in known[row["model"], row["tp"]] if pp <= pipeline and mbs >= micro_batch)

    return shortest


def nanotron_stages(run: Run) -> list[int]:
    """Return the layers of each stage as nanotron divides them (models/base.py, build_model): by weights in products.

    A stage ends with the block that exceeds its share, and the head is a block.
    """
    costs = [*layer_parameters(run.model), embedding_parameters(run.model)]
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
        if "grok" in text:
            continue
        size = re.search(r"\b(\d+)b\b", text)
        family = "megatron" if "megatron" in text else "nemotron" if "nemotron" in text else "llama3.1"
        known = None if "maxtext" in text else NEMO.get(f"{family} {size[1] if size else '175'}b")
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
            overlapped=True,
            narrow_gradients=True,
        )
        if made is None or (same := (row["n_gpus"], row["precision"], text, rate)) in seen:
            continue
        seen.add(same)
        yield Measurement("dgxc_benchmarking_scaling/" + made.gpu.name, text + row["n_gpus"], made, rate)
    yield from grok(rows)


def grok(rows: list[Row]) -> Iterator[Measurement]:
    """Yield Grok-1 by Megatron: 8 experts, 2 for each token, which TP and EP divide.

    Model and settings: NVIDIA/dgxc-benchmarking, grok1/grok1_314b.yaml at 35a9aec. It pads and cuts the tokens of each
    expert to their mean number (moe_expert_capacity_factor 1), so all are equally busy; GB200's recipe is assumed to do
    so. EP: grok1/README_314b.md at 35a9aec, whose data parallelism is that of experts, and grok1/README.md at 68eaf7e.
    """
    seen = set()
    for row in rows:
        rate, step = number(row, "tokens_per_s"), number(row, "step_time_s")
        if "grok" not in row["file"] or not row["tp"] or rate is None or step is None:
            continue
        ranks, layers = whole(row, "n_gpus"), whole(row, "layers")
        others = whole(row, "tp") * whole(row, "pp") * whole(row, "cp")
        shape = model(f"grok1_{layers}", layers, 6144, 48, 32768, 128256, kv_heads=8)
        made = run(
            replace(shape, mlp=Mlp.LLaMAMoE, experts=8, experts_per_token=2),
            GPUS[row["gpu"]],
            ranks=ranks,
            micro_batch=whole(row, "mbs"),
            batch=whole(row, "gbs"),
            sequence=whole(row, "seq"),
            tp=whole(row, "tp"),
            pp=whole(row, "pp"),
            cp=whole(row, "cp"),
            expert=ranks // others // whole(row, "dp") if "314b" in row["file"] else 8,
            virtual=whole(row, "vp", 1) if whole(row, "pp") > 1 else 1,
            per_node=4 if row["gpu"] == "GB200" else 8,
            distributed=True,
            float8=row["precision"] == "FP8",
            overlapped=True,
            narrow_gradients=True,
        )
        # Two rows of GB200 print the rate of half of their batch. A release repeats rows of the one before.
        tokens = whole(row, "gbs") * whole(row, "seq")
        if made is None or abs(rate * step / tokens - 1) > 0.05 or (same := (ranks, row["precision"], rate)) in seen:
            continue
        seen.add(same)
        cell = f"{made.model.name} on {ranks} GPUs, batch {row['gbs']}"
        yield Measurement(f"dgxc_benchmarking_scaling experts/{made.gpu.name}", cell, made, rate, balanced=True)


# Layers, hidden, heads, inner, vocabulary, key-value heads, gated. GPT-3: NVIDIA/NeMo-Framework-Launcher,
# launcher_scripts/conf/training/gpt3; Llama: arXiv:2307.09288, arXiv:2407.21783; Nemotron: arXiv:2402.16819,
# arXiv:2406.11704.
NVIDIA = {
    "gpt3-5b": (24, 4096, 32, 16384, 50304, 32, False), "gpt3-20b": (44, 6144, 48, 24576, 50304, 48, False),
    "gpt3-175b": (96, 12288, 96, 49152, 50304, 96, False), "llama2-7b": (32, 4096, 32, 11008, 32000, 32, True),
    "llama2-13b": (40, 5120, 40, 13824, 32000, 40, True), "llama2-70b": (80, 8192, 64, 28672, 32000, 8, True),
    "llama3-8b": (32, 4096, 32, 14336, 128256, 8, True), "llama3-70b": (80, 8192, 64, 28672, 128256, 8, True),
    "llama3.1-405b": (126, 16384, 128, 53248, 128256, 8, True), "nemotron-8b": (32, 4096, 32, 16384, 256000, 32, False),
    "nemotron-15b": (32, 6144, 48, 24576, 256000, 8, False), "nemotron-22b": (40, 6144, 48, 24576, 256000, 8, False),
    "nemotron-340b": (96, 18432, 96, 73728, 256000, 8, False),
    "nemotron4-340b": (96, 18432, 96, 73728, 256000, 8, False),
}  # fmt: skip
EXPERTS = re.compile(
    "mixtral|moe|deepseek|qwen3_|qwen3-|gpt oss|gpt_oss|kimi|a3b|a22b|nano|super|nemotron ?3|nemotronh", re.IGNORECASE
)
"""Models whose experts lie on ranks of their own, or whose layers are not a transformer's: not described here."""


def nemo_24_07(rows: list[Row]) -> Iterator[Measurement]:
    """Yield NeMo 24.07's tables of H100 and FP8: pretraining, SFT, and LoRA."""
    return recipes("nemo_24_07_perf", rows, lambda row: "lora" in row["task"].lower())


def bridge(rows: list[Row]) -> Iterator[Measurement]:
    """Yield the models of Megatron-Bridge's tables but those of NVFP4: dense ones, and mixtures of experts."""
    yield from recipes("nemo_megatron_bridge_perf", rows, lambda row: "lora" in row["task"].lower())
    yield from mixtures(rows)


MIXTURES = {"Qwen3_30B_a3B": "qwen3_30b_a3b", "GPT OSS 120B": "gpt_oss_120b"}
"""Mixtures of experts of Megatron-Bridge's tables, and their model files. The rows of 25.09 drop tokens, and the source
does not say how many: they are left out."""
NEWER = "26.06"
"""The first container of the newer of two sources: from 26.04 to 26.06 layouts became up to 1.8 times as fast."""


def dispatcher_of(row: Row) -> ExpertDispatcher:
    """Return DeepEP for rows by HybridEP, which sends what it sends: once to each rank, and to each node.

    On H100 the layout with EP over two nodes came with it (NVIDIA-NeMo/Megatron-Bridge, pull request 2477 of February
    2026). From 26.06 on so are all rows but those of B200 (scripts/performance/configs: qwen/
    qwen3_workload_base_configs.py at 01b2977, gpt_oss/gpt_oss_workload_base_configs.py at 07eea52). What the others of
    26.02 to 26.04 had is not stored: plain all-to-alls here.
    """
    across = row["gpu"] == "H100" and whole(row, "ep") > 8
    newer = row["container"] >= NEWER and row["gpu"] != "B200"
    return ExpertDispatcher.deepep if across or newer else ExpertDispatcher.all_to_all


def mixtures(rows: list[Row]) -> Iterator[Measurement]:
    """Yield the mixtures of experts of Megatron-Bridge's tables."""
    seen = set()
    for row in rows:
        if row["model"] not in MIXTURES:
            continue
        made = run(
            one(f"model={MIXTURES[row['model']]}").run.model,
            GPUS[row["gpu"]],
            ranks=whole(row, "n_gpus"),
            micro_batch=whole(row, "mbs"),
            batch=whole(row, "gbs"),
            sequence=whole(row, "seq_len"),
            tp=whole(row, "tp"),
            pp=whole(row, "pp"),
            expert=whole(row, "ep"),
            virtual=whole(row, "vp", 1) if whole(row, "pp") > 1 else 1,
            distributed=True,
            float8=row["precision"] != "BF16",
            recipe=recipe_of(row),
            overlapped=True,
            narrow_gradients=True,
            dispatcher=dispatcher_of(row),
        )
        rate = number(row, "tokens_per_s_per_gpu")
        period = "from 26.06" if row["container"] >= NEWER else "to 26.04"
        # GPT-OSS on H100 of 25.11 prints another accumulation than its batch and layout have.
        if made is None or rate is None or number(row, "ga", accumulation(made)) != accumulation(made):
            continue
        # Two containers may print one result, or two of one layout.
        if (same := (period, made.model.name, row["gpu"], str(made.parallelism), rate)) in seen:
            continue
        seen.add(same)
        cell = f"{made.model.name} on {row['n_gpus']} GPUs, batch {row['gbs']}"
        source = f"nemo_megatron_bridge_perf experts {period}/{made.gpu.name}"
        # NVIDIA's recipes set moe_router_force_load_balancing.
        yield Measurement(source, cell, made, rate * made.ranks, balanced=True)


def recipes(source: str, rows: list[Row], is_lora: Callable[[Row], bool]) -> Iterator[Measurement]:
    """Yield rows of NVIDIA's tables as Megatron with a distributed optimizer; raise ValueError for an unknown model."""
    for row in rows:
        name = re.sub(r"[_ ]", "-", row["model"].lower().removeprefix("llama-").strip())
        if EXPERTS.search(row["model"]) or "fp4" in row["precision"].lower():
            continue
        if name not in NVIDIA:
            raise ValueError(f"{row['model']} of {source} is not a known model: {', '.join(NVIDIA)}.")
        layers, hidden, heads, inner, vocabulary, kv_heads, gated = NVIDIA[name]
        fsdp = whole(row, "fsdp", 0) > 0
        made = run(
            model(name, layers, hidden, heads, inner, vocabulary, kv_heads=kv_heads, gated=gated),
            GPUS[row["gpu"]],
            ranks=whole(row, "n_gpus"),
            micro_batch=whole(row, "mbs"),
            batch=whole(row, "gbs"),
            sequence=whole(row, "seq_len"),
            tp=whole(row, "tp", 1),
            pp=whole(row, "pp", 1),
            cp=whole(row, "cp", 1),
            virtual=whole(row, "vp", 1) if whole(row, "pp", 1) > 1 else 1,
            # Megatron's own FSDP; its other rows have a distributed optimizer.
            sharding=Sharding.FULL_SHARD if fsdp else None,
            distributed=not fsdp,
            # The table of 25.09 prints no precision: its rows are FP8, in two granularities.
            float8=row["precision"] != "BF16",
            recipe=recipe_of(row),
            lora=is_lora(row),
            overlapped=True,
            narrow_gradients=True,
        )
        rate = number(row, "tokens_per_s_per_gpu")
        if made is not None and rate is not None:
            cell = f"{name} on {row['n_gpus']} GPUs, batch {row['gbs']}"
            yield Measurement(f"{source}/{made.gpu.name}", cell, made, rate * made.ranks)


def mlperf() -> Iterator[Measurement]:
    """Yield results of MLPerf Training in float8, whose layouts are in the configurations that were submitted.

    Software of 2023 (v3.0) and of 2024 and 2025 are two sources.
    """
    for row in csv.DictReader(MLPERF.read_text(encoding="utf-8").splitlines()):
        layers, hidden, heads, inner, vocabulary, kv_heads, gated = NVIDIA[row["model"]]
        made = run(
            model(row["model"], layers, hidden, heads, inner, vocabulary, kv_heads=kv_heads, gated=gated),
            GPUS[row["gpu"]],
            ranks=whole(row, "n_gpus"),
            per_node=whole(row, "gpus_per_node"),
            micro_batch=whole(row, "mbs"),
            batch=whole(row, "gbs"),
            sequence=whole(row, "seq_len"),
            tp=whole(row, "tp"),
            pp=whole(row, "pp"),
            cp=whole(row, "cp"),
            virtual=whole(row, "vp"),
            distributed=True,
            float8=True,
            lora=row["task"] == "lora",
            overlapped=True,
            narrow_gradients=True,
        )
        if made is not None:
            cell = f"{row['model']} on {row['n_gpus']} GPUs, batch {row['gbs']}, {row['source']}"
            years = "v3.0" if row["round"] == "v3.0" else "v4 and v5"
            yield Measurement(f"mlperf {years}/{made.gpu.name}", cell, made, number(row, "tokens_per_s"))


def recipe_of(row: Row) -> Float8Recipe | None:
    """Return the scales of a row of Megatron-Bridge's tables, and of NeMo's, which print FP8 only: delayed ones.

    FP8-CS is current scaling of tensors. The note above the table of 25.09 gives its two granularities: per tensor, and
    in parentheses MXFP8 on Blackwell.
    """
    named = {"MXFP8": Float8Recipe.mxfp8, "FP8-MX": Float8Recipe.mxfp8, "FP8-CS": Float8Recipe.tensorwise}
    if row["precision"] or not row["gpu"].startswith(("B", "GB")):
        return named.get(row["precision"])
    return Float8Recipe.mxfp8 if row["variant"] == "in parentheses" else Float8Recipe.tensorwise


SIMUMAX = re.compile(r"(tp|pp|cp|dp|mbc|seq)(\d+)")
# The only model that is described below; a case of another one must not be read as it.
SIMUMAX_MODEL, SIMUMAX_LAYERS = "llama3_70b", "l12"


def simumax(rows: list[Row]) -> Iterator[Measurement]:
    """Yield SimuMax's measurements: Llama-3-70B of 12 layers on 8 B200, micro-batches of one sequence of 4,096."""
    for row in rows:
        if not row["case"].startswith(f"{SIMUMAX_MODEL}_") or SIMUMAX_LAYERS not in row["case"].split("_"):
            raise ValueError(f"{row['case']} is not of {SIMUMAX_MODEL} with 12 layers, the only model that is read.")
        given = {key: int(value) for key, value in SIMUMAX.findall(row["case"])}
        dp, sequence = given.get("dp", 1), given.get("seq", 4096)
        batch = given["mbc"] * dp
        made = run(
            model(f"{SIMUMAX_MODEL}_{SIMUMAX_LAYERS}", 12, 8192, 64, 28672, 128256, kv_heads=8),
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
            memory = gib(row, "memory_allocated_gib")
            yield Measurement("simumax_b200/" + made.gpu.name, row["case"], made, rate, memory)


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


# bigscience-workshop/bigscience, train/tr11-176B-ml at 053adaf: line of a table of chronicles-prequel.md -> layers and
# hidden size, which stand above it; the rest is in tr11-176B-ml.slurm. The first tables have as many layers as fit.
BIGSCIENCE = {
    580: (80, 13824), 605: (72, 14336), 630: (84, 13824), 646: (80, 13824), 667: (72, 14336), 684: (96, 12288),
    693: (84, 13312), 702: (78, 13824), 709: (72, 14336), 736: (78, 13824), 748: (84, 13312), 757: (96, 12288),
    773: (72, 14336), 816: (96, 12288), 828: (78, 13824), 843: (72, 14336), 854: (84, 13312), 865: (78, 13824),
    889: (106, 12288), 915: (100, 12288), 926: (82, 13312), 937: (94, 13312), 944: (70, 14336),
}  # fmt: skip
WIDEST = 14400
FLOAT32_SUMS_FROM, EMBEDDING_SLOTS_FROM = 904, 889
"""First lines of runs that sum gradients in float32, and of those with a pipeline slot for the embedding."""
JEAN_ZAY_GB_PER_S = 6.25
"""Four Omni-Path adapters of 100 Gb/s for 8 GPUs."""


def bigscience(rows: list[Row]) -> Iterator[Measurement]:
    """Yield BLOOM's trials: Megatron-DeepSpeed, ZeRO 1, full recomputation, sequence 2,048; memory by nvidia-smi.

    The document repeats a trial where a later table compares with it.
    """
    known = set()
    for row in rows:
        trial = tuple(value for key, value in row.items() if key not in {"line", "section", "notes"})
        if not (row["gbs"] and row["pp"] and row["dp"] and row["size"]) or trial in known:
            continue
        known.add(trial)
        line, pp, tp, dp = (whole(row, key) for key in ("line", "pp", "tp", "dp"))
        layers, hidden = bigscience_shape(line, float(row["size"].rstrip("B")) * 1e9, pp)
        other = dict(part.split("=") for part in row["other"].split(";") if "=" in part)
        made = run(
            model(row["size"], layers, whole(row, "nhidden", hidden), int(other.get("NHEADS", 64)),
                  4 * whole(row, "nhidden", hidden), 250880, gated=False, tied=True),
            GPUS[row["gpu"]],
            ranks=tp * pp * dp,
            micro_batch=whole(row, "mbs"),
            batch=whole(row, "gbs"),
            sequence=2048,
            tp=tp,
            pp=pp,
            distributed=other.get("ZS") != "0",
            checkpointing=True,
        )  # fmt: skip
        if made is None or tp * pp * dp != 8 * whole(row, "n_nodes", tp * pp * dp // 8):
            continue
        made.parallelism.sequence_parallel = False
        made.cluster.network_gb_per_s = JEAN_ZAY_GB_PER_S
        if line >= EMBEDDING_SLOTS_FROM and (layers + 2) % pp == 0 and pp > 1:
            each = (layers + 2) // pp
            made.parallelism.stage_layers = [each - 1, *[each] * (pp - 2), each - 1]
        seconds, memory = number(row, "step_time_s"), number(row, "memory_gb")
        yield Measurement(
            "bigscience_176b_prequel/" + made.gpu.name,
            f"{row['size']} on {made.nodes} nodes, batch {row['gbs']}, {row['notes']}",
            made,
            None if seconds is None else made.global_batch_size * 2048 / seconds,
            None if memory is None else memory * GIB,
            framework=True,
            # Gradients in 16 bits; later also their float32 sums.
            parameter_bytes=2 if line >= FLOAT32_SUMS_FROM else -2,
        )


def bigscience_shape(line: int, size: float, pp: int) -> tuple[int, int]:
    """Return layers and hidden size of the table at a line."""
    known = [shape for first, shape in BIGSCIENCE.items() if first <= line]
    return known[-1] if known else (pp * round(size / (12 * WIDEST**2) / pp), WIDEST)


# Sequence lengths where the source prints none: 8,192 is that of the configuration of Llama 3 8B (pytorch/torchtitan,
# train_configs/llama3_8b.toml).
TITAN = {
    "Llama 3.1 8B": (32, 4096, 32, 14336, 128256, 8, 8192), "Llama 3 8B": (32, 4096, 32, 14336, 128256, 8, 8192),
    "Llama 3.1 70B": (80, 8192, 64, 28672, 128256, 8, 8192), "Llama 3 70B": (80, 8192, 64, 28672, 128256, 8, 8192),
    "Llama 3.1 405B": (126, 16384, 128, 53248, 128256, 8, 8192), "Llama 2 7B": (32, 4096, 32, 11008, 32000, 32, 4096),
    "Llama 2 13B": (40, 5120, 40, 13824, 32000, 40, 4096), "Llama 2 70B": (80, 8192, 64, 28672, 32000, 8, 4096),
}  # fmt: skip
H100_OF_META = "H100-96GB-HBM2e-500W"
"""Six stacks of HBM2e at 3.2 Gb/s a pin: 2,458 GB/s, not the 3,350 of conf/gpu/h100_sxm.yaml."""
SLOWED = (500 / 700) ** (1 / 3)
"""500 W for 700: power grows with the cube of the clock, at a voltage that follows it. An assumption."""


def titan(rows: list[Row]) -> Iterator[Measurement]:
    """Yield torchtitan's tables: FSDP2, with compilation, float8, TP, PP and CP as each row says; memory in GiB."""
    for row in rows:
        if row["model"] not in TITAN:
            raise ValueError(f"{row['model']} of torchtitan is not a known model: {', '.join(TITAN)}.")
        layers, hidden, heads, inner, vocabulary, kv_heads, length = TITAN[row["model"]]
        ranks, tp, pp, cp = whole(row, "n_gpus"), whole(row, "tp", 1), whole(row, "pp", 1), whole(row, "cp", 1)
        shard = whole(row, "dp_shard", ranks // (tp * pp * cp))
        micro_batch, told = whole(row, "mbs"), row["techniques"].lower()
        made = run(
            model(row["model"], layers, hidden, heads, inner, vocabulary, kv_heads=kv_heads),
            GPUS.get(row["gpu"], "h100_sxm"),
            ranks=ranks,
            micro_batch=micro_batch,
            batch=whole(row, "gbs", micro_batch * ranks // (tp * pp * cp)),
            sequence=whole(row, "seq_len", length),
            tp=tp,
            pp=pp,
            cp=cp,
            kind=EngineKind.native,
            sharding=Sharding.FULL_SHARD,
            float8="float8" in row["precision"],
            recipe=Float8Recipe.rowwise if "rowwise" in row["precision"] else None,
            compiled="compile" in told,
            overlapped="async" in told,
        )
        if made is None or shard * tp * pp * cp > ranks:
            continue
        recomputed = {"full": ActivationCheckpointing.full, "none": ActivationCheckpointing.none}
        made.engine.loss = Loss.whole
        made.engine.activation_checkpointing = recomputed.get(row["act_ckpt"], ActivationCheckpointing.selective)
        if row["gpu"] == H100_OF_META:
            made.gpu = replace(made.gpu, memory_gb=96, memory_gb_per_s=2458, matmul_bf16_tflops=794.5 * SLOWED,
                               matmul_fp8_tflops=1402.6 * SLOWED)  # fmt: skip
        yield Measurement(
            "torchtitan/" + row["gpu"],
            f"{row['model']} on {ranks} GPUs, {made.job.sequence_length}",
            made,
            None if (rate := number(row, "tokens_per_s_per_gpu")) is None else rate * ranks,
            gib(row, "memory_gb"),
            framework=True,
        )


READERS: dict[str, Callable[[list[Row]], Iterator[Measurement]]] = {
    "nanotron_ultrascale_sweep": nanotron,
    "vtrain_single_node": vtrain,
    "llm_foundry_mpt": mpt,
    "dgxc_benchmarking_scaling": dgxc,
    "simumax_b200": simumax,
    "misc_small_tables": small_tables,
    "bigscience_176b_prequel": bigscience,
    "nemo_24_07_perf": nemo_24_07,
    "nemo_megatron_bridge_perf": bridge,
    "torchtitan": titan,
}

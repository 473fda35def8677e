"""Families of models beside transformers' own, from their files and back to them, in every layout.

Of each family one model of transformers with random weights is saved in several files, described by `slurmscale model`
and trained by the native engine; transformers computes losses, gradients and updates, sample by sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from litgpt.config import Config
from litgpt.scripts.convert_hf_checkpoint import (
    copy_weights_gemma_2,
    copy_weights_gemma_3,
    copy_weights_hf_llama,
    copy_weights_olmo2,
    copy_weights_phi,
    copy_weights_qwen_2_5,
    copy_weights_qwen_3,
)
from torch import Tensor

from jobs.cli import main
from jobs.data.dataset import IGNORED
from jobs.data.tokenizer import train_bpe
from jobs.engines.litgpt.hub_names import source_of
from jobs.engines.litgpt.hub_weights import joined
from jobs.engines.litgpt.names import litgpt_fields
from jobs.engines.native import trainer
from jobs.engines.native.experts.router import BIAS
from jobs.engines.native.load_sharded import full
from jobs.engines.native.model import empty_model
from jobs.engines.native.tensor_parallel import as_in_litgpt
from jobs.files import read_json
from jobs.plan.model_file import family_of, from_config_json
from jobs.rundir import RunDir, load_run
from jobs.runtime.learning_rate import learning_rate
from jobs.work.serve.conversion import convert
from tests.support.paths import ROOT
from tests.support.real_run import losses, make_run, printed, rank, train
from tests.support.tiny_data import SENTENCES, write_json
from tests.support.training import long

transformers = pytest.importorskip("transformers")

SMALL = {
    "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 16,
    "num_key_value_heads": 2, "vocab_size": 320, "max_position_embeddings": 256, "rms_norm_eps": 1e-6,
    "rope_theta": 1e6, "tie_word_embeddings": False,
}  # fmt: skip


@dataclass(frozen=True)
class Family:
    """A family of models: a small one of transformers, and how its weights are named here."""

    settings: dict[str, Any]
    """Keys of its config.json, besides SMALL."""
    litgpt: str | None
    """A model of LitGPT's table, whose names its weights have here; None: LitGPT does not convert its weights."""
    copied: Callable[..., None] | None
    """LitGPT's function from Hugging Face's names to those."""
    without: frozenset[str] = frozenset()
    """Layouts that are refused."""
    adapted: str | None = "[query,key,value,projection,mlp]"
    """Targets of adapters that PEFT has too; None: no such adapters."""
    larger: str | None = None
    """Part of the names of weights that are five times as large, so that a limit is reached."""
    exported: str | None = None
    """The family of an export, if another one has the same arithmetic."""
    has_known_parts: bool = False
    """CI trains each part of its arithmetic in the layouts of another family: only one layout is part of CI here."""

    def takes(self, layout: str) -> bool:
        """Return True unless a layout is refused, or divides experts that the family does not have."""
        return layout not in self.without and ("EP" not in layout or any("experts" in key for key in self.settings))


ENDS = {
    "lm_head.weight": "lm_head.weight",
    "transformer.wte.weight": "model.embed_tokens.weight",
    "transformer.ln_f.weight": "model.norm.weight",
}
"""LitGPT's names of the weights outside of layers, and Hugging Face's."""


def copy_weights_of_gpt_oss(
    _config: Config, _shards: object, found: dict[str, Tensor], named: dict[str, Tensor]
) -> None:
    """Rename weights, which LitGPT has no function for."""
    found |= {ours: named[theirs] for ours, theirs in ENDS.items()}
    for i in range(2):
        theirs, ours = f"model.layers.{i}.", f"transformer.h.{i}."
        found[f"{ours}attn.sinks"] = named[f"{theirs}self_attn.sinks"]
        found[f"{ours}norm_1.weight"] = named[f"{theirs}input_layernorm.weight"]
        found[f"{ours}norm_2.weight"] = named[f"{theirs}post_attention_layernorm.weight"]
        for kind in ("weight", "bias"):
            found[f"{ours}attn.qkv.{kind}"] = torch.cat([named[f"{theirs}self_attn.{p}_proj.{kind}"] for p in "qkv"])
            found[f"{ours}attn.proj.{kind}"] = named[f"{theirs}self_attn.o_proj.{kind}"]
            found[f"{ours}mlp.gate.{kind}"] = named[f"{theirs}mlp.router.{kind}"]
            suffix = "" if kind == "weight" else "_bias"
            experts = zip(
                named[f"{theirs}mlp.experts.gate_up_proj{suffix}"],
                named[f"{theirs}mlp.experts.down_proj{suffix}"],
                strict=True,
            )
            for number, (gate_and_up, down) in enumerate(experts):
                of_expert = f"{ours}mlp.experts.{number}."
                found[f"{of_expert}fc_1.{kind}"] = gate_and_up[..., ::2].movedim(-1, 0)
                found[f"{of_expert}fc_2.{kind}"] = gate_and_up[..., 1::2].movedim(-1, 0)
                found[f"{of_expert}proj.{kind}"] = down.movedim(-1, 0)


def copy_weights_of_llama4(
    _config: Config, _shards: object, found: dict[str, Tensor], named: dict[str, Tensor]
) -> None:
    """Rename weights, which LitGPT has no function for; the first layer has no experts."""
    found |= {ours: named[theirs] for ours, theirs in ENDS.items()}

    def halves(weight: Tensor) -> Tensor:
        """Rows 0, 2, 4 ... of each head of 16, then 1, 3, 5 ..."""
        heads = [head[[*range(0, 16, 2), *range(1, 16, 2)]] for head in weight.split(16)]
        return torch.cat(heads)

    for i in range(2):
        theirs, ours = f"model.layers.{i}.", f"transformer.h.{i}."
        q, k, v, o = (named[f"{theirs}self_attn.{part}_proj.weight"] for part in "qkvo")
        found[f"{ours}attn.qkv.weight"] = torch.cat([halves(q), halves(k), v])
        found[f"{ours}attn.proj.weight"] = o
        found[f"{ours}norm_1.weight"] = named[f"{theirs}input_layernorm.weight"]
        found[f"{ours}norm_2.weight"] = named[f"{theirs}post_attention_layernorm.weight"]
    names = {"fc_1": "gate_proj", "fc_2": "up_proj", "proj": "down_proj"}
    for our_name, their_name in names.items():
        found[f"transformer.h.0.mlp.{our_name}.weight"] = named[f"model.layers.0.feed_forward.{their_name}.weight"]
        shared = named[f"model.layers.1.feed_forward.shared_expert.{their_name}.weight"]
        found[f"transformer.h.1.mlp.shared_experts.{our_name}.weight"] = shared
    found["transformer.h.1.mlp.gate.weight"] = named["model.layers.1.feed_forward.router.weight"]
    for number in range(4):
        experts, expert = "model.layers.1.feed_forward.experts.", f"transformer.h.1.mlp.experts.{number}."
        gate, up = named[f"{experts}gate_up_proj"][number].T.split(32)
        down = named[f"{experts}down_proj"][number].T
        found |= {f"{expert}fc_1.weight": gate, f"{expert}fc_2.weight": up, f"{expert}proj.weight": down}


NOT_COMPILED = frozenset({"compiled", "compiled, packed", "TP, compiled"})
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32}
# Other numbers in the norms of narrow vectors (1e-6) than in those of layers, and values of another size than keys.
DEEPSEEK = {
    "rms_norm_eps": 1e-5, "num_key_value_heads": 4, "head_dim": 8, "kv_lora_rank": 24, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16, "v_head_dim": 12, "n_routed_experts": 8, "n_shared_experts": 2, "num_experts_per_tok": 3,
    "moe_intermediate_size": 20, "first_k_dense_replace": 1,
}  # fmt: skip
FAMILIES = {
    "Llama": Family({}, "Llama-3.1-8B", copy_weights_hf_llama, has_known_parts=True),
    "Mistral": Family(
        {"sliding_window": None}, "Mistral-7B-v0.3", copy_weights_hf_llama, exported="Llama", has_known_parts=True
    ),
    "Phi3": Family(
        {"sliding_window": None, "pad_token_id": 0, "head_dim": 12},
        "phi-4",
        copy_weights_phi,
        exported="Llama",
        has_known_parts=True,
        # PEFT adapts queries, keys and values apart, which are one matrix in Phi-3.
        adapted=None,
    ),
    "Mixtral": Family(
        {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
        "Mixtral-8x7B-v0.1",
        copy_weights_hf_llama,
        without=NOT_COMPILED,
        has_known_parts=True,
    ),
    "Qwen2": Family({"head_dim": 12}, "Qwen2.5-7B", copy_weights_qwen_2_5, has_known_parts=True),
    "Qwen3": Family({}, "Qwen3-8B", copy_weights_qwen_3, has_known_parts=True),
    "Olmo2": Family({}, "OLMo-2-1124-7B", copy_weights_olmo2),
    "Olmo3": Family(
        {
            "sliding_window": 24,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32},
        },
        "OLMo-2-1124-7B",
        copy_weights_olmo2,
        has_known_parts=True,
    ),
    "Gemma2": Family(
        {
            "hidden_activation": "gelu_pytorch_tanh",
            "query_pre_attn_scalar": 24,
            "sliding_window": 24,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
        },
        "Gemma-2-2b",
        lambda config, *weights: copy_weights_gemma_2(*weights),
        has_known_parts=True,
    ),
    "Gemma3": Family(
        {
            "hidden_activation": "gelu_pytorch_tanh",
            "query_pre_attn_scalar": 24,
            "sliding_window": 24,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_local_base_freq": 1e4,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            "tie_word_embeddings": False,
        },
        "Gemma-3-1b-it",
        lambda config, *weights: copy_weights_gemma_3(*weights),
    ),
    "Qwen3Moe": Family(
        {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True},
        "Qwen3-30B-A3B",
        copy_weights_qwen_3,
        without=NOT_COMPILED,
    ),
    "GptOss": Family(
        {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 24,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 8.0,
                "truncate": False,
                "original_max_position_embeddings": 32,
            },
        },
        "Mixtral-8x7B-v0.1",
        copy_weights_of_gpt_oss,
        without=NOT_COMPILED,
        adapted="[query,key,value,projection]",
        larger="gate_up_proj",
    ),
    "Llama4": Family(
        {
            "intermediate_size": 32,
            "intermediate_size_mlp": 80,
            "num_local_experts": 4,
            "num_experts_per_tok": 1,
            "interleave_moe_layer_step": 2,
            "no_rope_layers": [1, 0],
            "attention_chunk_size": 24,
            "floor_scale": 16,
            "attn_scale": 0.3,
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
        "Mixtral-8x7B-v0.1",
        copy_weights_of_llama4,
        without=NOT_COMPILED,
        adapted="[query,key,value,projection]",
    ),
    "DeepseekV2": Family(
        # With mscale_all_dim, transformers' scores have another scale than DeepSeek's own code.
        DEEPSEEK | {"q_lora_rank": None, "topk_method": "greedy", "routed_scaling_factor": 1.5, "rope_scaling": YARN},
        None,
        None,
        without=NOT_COMPILED,
        adapted="[query,key,value,projection]",
        has_known_parts=True,
    ),
    "DeepseekV3": Family(
        DEEPSEEK
        | {"q_lora_rank": 20, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5}
        | {"rope_scaling": YARN | {"mscale": 1.0, "mscale_all_dim": 0.8}},
        None,
        None,
        without=NOT_COMPILED,
        adapted="[query,key,value,projection]",
    ),
}
STEPS = 3
UNEVEN = ("data=alpaca", "data.bpe_vocab_size=300", "job.sequence_length=256", "data.max_samples=null",
          "job.epochs=null", f"job.steps={STEPS}", "job.clip_norm=null", "job.learning_rate=1e-3",
          "job.micro_batch_size=2", "scaling.global_batch_size=8")  # fmt: skip
ONE = ("parallelism=single", "ranks_per_node=1")
TWO = "ranks_per_node=2"
PACKED = "job.batching=packed"
RECORDS = "alpaca.json"


@dataclass(frozen=True)
class Published:
    """A directory as on the hub; its model file can be chosen by name."""

    family: Family
    path: Path

    def start(self) -> tuple[str, ...]:
        """Overrides for a run that trains the published model on samples of uneven length."""
        return (
            f"model={self.path.name.lower()}",
            *UNEVEN,
            f"data.path={self.path / RECORDS}",
            f"job.init_from={self.path}",
        )

    def in_litgpt(self, named: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return weights or gradients under the names that they have here."""
        if self.family.copied is not None:
            found: dict[str, Tensor] = {}
            self.family.copied(Config.from_name(self.family.litgpt), {}, found, named)
            return found
        given = read_json(self.path / "config.json")
        names = dict(empty_model(from_config_json(self.path / "config.json"), 1).named_parameters())
        return {name: joined(source_of(name, family_of(given)), named.__getitem__, given) for name in names}


@pytest.fixture(scope="module", params=FAMILIES)
def published(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Published]:
    """The model of a family."""
    name = request.param
    family, where = FAMILIES[name], tmp_path_factory.mktemp(name) / f"Tiny{name}"
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForCausalLM")
    theirs = model(model.config_class(**SMALL | family.settings))
    with torch.no_grad():
        for parameter, weight in theirs.named_parameters():
            is_norm = "norm" in parameter
            weight.normal_(1.0 if is_norm else 0.0, 0.3 if is_norm else 0.15)
            if family.larger is not None and family.larger in parameter:
                weight.mul_(5)
        for name_of, buffer in theirs.named_buffers():
            if name_of.endswith(BIAS):
                buffer.normal_(0, 0.05)
    theirs.save_pretrained(where, max_shard_size="100KB")
    assert len(list(where.glob("*.safetensors"))) > 1
    train_bpe(SENTENCES, 300, where)
    records = [{"instruction": "Repeat.", "input": "", "output": "word " * (1 + 5 * i % 13)} for i in range(16)]
    write_json(where / RECORDS, records)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURMSCALE_SITE", str(where.parent))
        assert main(["model", str(where)]) == 0
        yield Published(family, where)


def rank_that_shows(directory: Path, number: int, world: int, start: str) -> None:
    """One rank, which writes the samples of its steps, and the gradients of the first one, whole."""
    initialized, step, clip = trainer.Trainer.__post_init__, trainer.Trainer.step, trainer.clip
    shown: dict[str, Any] = {"batches": [], "gradients": {}}
    trainers = []

    def initialize(self: trainer.Trainer) -> None:
        initialized(self)
        trainers.append(self)

    def stepped(self: trainer.Trainer, number: int, batch: Any) -> Any:
        shown["batches"].append([(each.inputs, each.targets) for each in batch.micro_batches])
        return step(self, number, batch)

    def clipped(*given: Any) -> Tensor:
        (own,) = trainers
        if not shown["gradients"]:
            for name, parameter in own.model.gpt.named_parameters():
                if parameter.grad is not None:
                    whole = as_in_litgpt(name, full(parameter.grad), own.model.gpt.config, own.run.parallelism.tensor)
                    shown["gradients"][name] = whole.clone()
        return clip(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer.Trainer, "__post_init__", initialize)
        patch.setattr(trainer.Trainer, "step", stepped)
        patch.setattr(trainer, "clip", clipped)
        rank(directory, number, world, start)
    torch.save(shown, directory / f"shown{number}.pt")


def shown_by(run: RunDir) -> list[dict[str, Any]]:
    return [torch.load(file, weights_only=False) for file in sorted(run.path.glob("shown*.pt"))]


class Expected:
    """Losses of three steps, gradients of the first one and logits after the last one, by transformers."""

    def __init__(self, published: Published, where: Path) -> None:
        run = make_run(where, *published.start(), *ONE, "name=samples", small=False)
        assert train(run, of_rank=rank_that_shows) == [0], printed(run)
        ((shown,), config) = shown_by(run), load_run(run.config)
        theirs = transformers.AutoModelForCausalLM.from_pretrained(published.path, attn_implementation="eager")
        optimizer = torch.optim.AdamW(
            theirs.parameters(), betas=(config.job.beta1, config.job.beta2), weight_decay=config.job.weight_decay
        )
        self.losses, self.gradients = [], {}
        for number, micro_batches in enumerate(shown["batches"], start=1):
            rows = [
                (torch.from_numpy(inputs)[None, :length], torch.from_numpy(targets)[:length])
                for batch in micro_batches
                for inputs, targets in zip(*batch, strict=True)
                if (length := 1 + int((targets != IGNORED).nonzero()[0][-1]))
            ]
            assert len({len(targets) for _, targets in rows}) > 4, "samples of one length would not test packed rows"
            labels = sum(int((targets != IGNORED).sum()) for _, targets in rows)
            each = [F.cross_entropy(theirs(inputs).logits[0], targets, reduction="sum") for inputs, targets in rows]
            loss = torch.stack(each).sum()
            (loss / labels).backward()
            if number == 1:
                self.gradients = published.in_litgpt(
                    {name: weight.grad.clone() for name, weight in theirs.named_parameters()}
                )
            optimizer.param_groups[0]["lr"] = learning_rate(config.job, number, STEPS)
            optimizer.step()
            optimizer.zero_grad()
            self.losses.append(loss.item() / labels)
        self.trained = theirs.eval()


@pytest.fixture(autouse=True)
def _site(published: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the family's model file be chosen: the environment of a test has no site directory."""
    monkeypatch.setenv("SLURMSCALE_SITE", str(published.path.parent))


@pytest.fixture(scope="module")
def expected(published: Published, tmp_path_factory: pytest.TempPathFactory) -> Expected:
    return Expected(published, tmp_path_factory.mktemp("expected"))


LAYOUTS = {
    "one process": ONE,
    "one process, packed": (*ONE, PACKED),
    "compiled": (*ONE, "engine.compile=true"),
    "compiled, packed": (*ONE, PACKED, "engine.compile=true"),
    "selective checkpointing": (*ONE, "engine.activation_checkpointing=selective"),
    "full checkpointing, packed": (*ONE, PACKED, "engine.activation_checkpointing=full"),
    "DDP": ("parallelism=ddp", TWO),
    "DDP, packed": ("parallelism=ddp", TWO, PACKED),
    "FSDP": ("parallelism=fsdp_full", TWO),
    "FSDP, packed": ("parallelism=fsdp_full", TWO, PACKED),
    "TP": ("parallelism=tp", TWO),
    "TP, packed": ("parallelism=tp", TWO, PACKED),
    "TP without sequence parallelism": ("parallelism=tp", TWO, "parallelism.sequence_parallel=false"),
    "TP, loss in chunks": ("parallelism=tp", TWO, "engine.loss=chunked"),
    "TP, compiled": ("parallelism=tp", TWO, "engine.compile=true"),
    "PP": ("parallelism=pp", TWO),
    "PP, packed": ("parallelism=pp", TWO, PACKED),
    "TP and FSDP": ("parallelism=tp_fsdp", "parallelism.tensor=2", "ranks_per_node=4"),
    "EP": ("parallelism=fsdp_full", "parallelism.expert=2", TWO),
    "EP and TP, packed": (
        "parallelism=tp_fsdp",
        "parallelism.tensor=2",
        "parallelism.expert=2",
        "ranks_per_node=4",
        PACKED,
    ),
}
IN_CI = ("one process", "one process, packed", "FSDP, packed", "TP", "PP, packed", "EP")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("published", "layout"),
    [
        (name, layout) if layout in (IN_CI[1:2] if family.has_known_parts else IN_CI) else long(name, layout)
        for name, family in FAMILIES.items()
        for layout in LAYOUTS
        if family.takes(layout)
    ],
    indirect=["published"],
)
def test_losses_gradients_and_updates_are_those_of_transformers(
    layout: str, published: Published, expected: Expected, tmp_path: Path
) -> None:
    run = make_run(tmp_path, *published.start(), *LAYOUTS[layout], "job.export=true", small=False)
    assert set(train(run, of_rank=rank_that_shows)) == {0}, printed(run)
    assert losses(run) == pytest.approx(expected.losses, abs=1e-5)
    gradients = {name: each for shown in shown_by(run) for name, each in shown["gradients"].items()}
    assert gradients.keys() == expected.gradients.keys()
    for name, gradient in gradients.items():
        assert (gradient - expected.gradients[name]).norm() <= 1e-5 * expected.gradients[name].norm(), name
    # Trained, exported, and back in Hugging Face's layout.
    convert(run.export, tmp_path / "hf")
    # transformers' other attention does not cap scores.
    load, tokens = transformers.AutoModelForCausalLM.from_pretrained, torch.arange(48).reshape(2, 24)
    ours = load(tmp_path / "hf", attn_implementation="eager")
    exported = published.family.exported
    assert type(ours) is (getattr(transformers, f"{exported}ForCausalLM") if exported else type(expected.trained))
    with torch.no_grad():
        wanted = expected.trained(tokens).logits
        torch.testing.assert_close(ours(tokens).logits, wanted, rtol=0, atol=1e-3)
    assert wanted.std() > 0.5
    assert litgpt_fields(from_config_json(tmp_path / "hf/config.json")) == litgpt_fields(
        replace(load_run(run.config).model, name="hf")
    )


WAYS = ("one process", "DDP", "FSDP", "TP", "PP", "EP", "packed", "compiled")


@pytest.mark.parametrize("published", ["Llama"], indirect=True)
def test_the_table_of_families_says_what_is_tested() -> None:
    shown = (ROOT / "jobs/engines/README.md").read_text()
    for name, family in FAMILIES.items():
        ways = [any(way in layout and family.takes(layout) for layout in LAYOUTS) for way in WAYS]
        found = [*ways, family.adapted is not None, True]
        row = " | ".join("yes" if each else "no" for each in found)
        assert f"| {row} |" in next(line for line in shown.splitlines() if line.startswith(f"| {name} |")), name


@pytest.mark.slow
@pytest.mark.parametrize(
    "published",
    [long(name) if family.has_known_parts else name for name, family in FAMILIES.items() if family.adapted],
    indirect=True,
)
def test_adapters_train_alike_on_two_ranks_and_peft_reads_them(published: Published, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    lora = ("job=finetune_lora", *published.start(), "job.export=true", "job.precision=float32", "job.lora.rank=4",
            f"job.lora.targets={published.family.adapted}")  # fmt: skip
    single = make_run(tmp_path, "name=single", *lora, *ONE, small=False)
    two = make_run(tmp_path, "name=two", *lora, "parallelism=tp", TWO, small=False)
    for run in (single, two):
        assert set(train(run)) == {0}, printed(run)
    assert losses(two) == pytest.approx(losses(single), abs=1e-5)
    convert(single.export, tmp_path / "hf")
    load = transformers.AutoModelForCausalLM.from_pretrained
    adapted = peft.PeftModel.from_pretrained(load(published.path), single.export / "peft")
    merged, base = load(tmp_path / "hf"), load(published.path)
    tokens = torch.arange(48).reshape(2, 24)
    with torch.no_grad():
        found, unlike = adapted(tokens).logits, base(tokens).logits
        torch.testing.assert_close(merged(tokens).logits, found, rtol=0, atol=1e-4)
    assert (found - unlike).abs().max() > 0.1


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("published", ["GptOss"], indirect=True)
def test_adapters_of_stacked_experts_are_merged_and_not_written_for_peft(published: Published, tmp_path: Path) -> None:
    lora = ("job=finetune_lora", *published.start(), "job.export=true", "job.precision=float32", "job.lora.rank=4",
            "job.lora.targets=[mlp]")  # fmt: skip
    runs = [
        make_run(tmp_path, f"name={name}", *lora, *layout, small=False)
        for name, layout in {"one": ONE, "tp": ("parallelism=tp", TWO)}.items()
    ]
    for run in runs:
        assert set(train(run)) == {0}, printed(run)
        assert not (run.export / "peft").exists()
        convert(run.export, tmp_path / f"hf {run.path.name}")
    assert losses(runs[1]) == pytest.approx(losses(runs[0]), abs=1e-5)
    load = transformers.AutoModelForCausalLM.from_pretrained
    one, tp = (load(tmp_path / f"hf {run.path.name}").state_dict() for run in runs)
    for name, weight in load(published.path).state_dict().items():
        torch.testing.assert_close(tp[name], one[name], rtol=1e-3, atol=1e-4)
        assert torch.equal(one[name], weight) == (
            not name.endswith(("experts.gate_up_proj", "experts.down_proj", "router.weight"))
        ), name

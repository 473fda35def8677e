"""Weights of Hugging Face directories beside those that LitGPT's own converter makes of them."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from litgpt.config import Config
from litgpt.scripts.convert_hf_checkpoint import convert_hf_checkpoint
from safetensors.torch import save_file

import slurmscale
from jobs.cli import main
from jobs.data.tokenizer import train_bpe
from jobs.engines.litgpt.hub_weights import HubDirectory, rotated_first, rotated_last
from jobs.engines.litgpt.names import litgpt_fields
from jobs.engines.native.model import empty_model
from jobs.engines.native.weights import values_of
from jobs.errors import CheckpointError
from jobs.plan.model_file import from_config_json
from tests.support.tiny_data import SENTENCES

transformers = pytest.importorskip("transformers")

SMALL = {
    "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 12,
    "num_key_value_heads": 2, "vocab_size": 128, "max_position_embeddings": 64, "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False, "pad_token_id": 0,
}  # fmt: skip
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "LlamaForCausalLM": ("Llama-3.1-8B", {}),
    "MistralForCausalLM": ("Mistral-7B-v0.3", {"sliding_window": None}),
    "MixtralForCausalLM": ("Mixtral-8x7B-v0.1", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "Phi3ForCausalLM": ("phi-4", {"sliding_window": None}),
    "Qwen2ForCausalLM": ("Qwen2.5-0.5B", {"tie_word_embeddings": True}),
    "Qwen3ForCausalLM": ("Qwen3-0.6B", {"tie_word_embeddings": True, "head_dim": 16}),
    "Qwen3MoeForCausalLM": (
        "Qwen3-30B-A3B",
        {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True},
    ),
    "Olmo2ForCausalLM": ("OLMo-2-1124-7B", {}),
    "Gemma3ForCausalLM": ("Gemma-3-1b-it", {"tie_word_embeddings": True}),
}
# Families that LitGPT does not convert.
DEEPSEEK: dict[str, Any] = {
    "num_key_value_heads": 4, "head_dim": 8, "kv_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16,
    "v_head_dim": 12, "n_routed_experts": 4, "n_shared_experts": 2, "num_experts_per_tok": 2,
    "moe_intermediate_size": 20, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
}  # fmt: skip
OTHERS = {
    "DeepseekV2ForCausalLM": DEEPSEEK | {"q_lora_rank": None, "routed_scaling_factor": 16.0},
    "DeepseekV3ForCausalLM": DEEPSEEK | {"q_lora_rank": 20},
}
SETTINGS = {name: settings for name, (_, settings) in FAMILIES.items()} | OTHERS


def saved(architecture: str, where: Path) -> Path:
    """Save a model with random weights in several files, and return its directory."""
    torch.manual_seed(0)
    model = getattr(transformers, architecture)
    config = model.config_class(**SMALL | SETTINGS[architecture])
    model(config).to(torch.bfloat16).save_pretrained(where, max_shard_size="40KB")
    assert len(list(where.glob("*.safetensors"))) > 1
    return where


def weights_of(directory: Path, config: Path) -> dict[str, torch.Tensor]:
    """Return all weights of the model of a config.json, read from a directory."""
    names = empty_model(from_config_json(config), 16).state_dict()
    read = values_of(str(directory), 0)
    return {name: read(name, each.shape, torch.bfloat16, torch.device("cpu")) for name, each in names.items()}


@pytest.mark.parametrize("architecture", FAMILIES)
def test_weights_are_those_of_litgpts_converter(architecture: str, tmp_path: Path) -> None:
    where = saved(architecture, tmp_path / "Tiny")
    ours = weights_of(where, where / "config.json")
    train_bpe(SENTENCES, 100, where)
    convert_hf_checkpoint(where, model_name=FAMILIES[architecture][0])
    theirs = torch.load(where / "lit_model.pth", weights_only=True)
    assert ours.keys() == theirs.keys()
    for name, weight in ours.items():
        assert torch.equal(weight, theirs[name]), name


def gpt_oss(where: Path) -> dict[str, torch.Tensor]:
    """Save a GPT-OSS with random weights, and return them."""
    torch.manual_seed(0)
    rope = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32, "truncate": False}
    further = {"num_local_experts": 3, "num_experts_per_tok": 2, "intermediate_size": 96, "hidden_size": 64}
    model = transformers.GptOssForCausalLM(transformers.GptOssConfig(**SMALL | further, rope_scaling=rope))
    for weight in model.parameters():
        torch.nn.init.normal_(weight)
    model.to(torch.bfloat16).save_pretrained(where)
    weights: dict[str, torch.Tensor] = model.state_dict()
    return weights


def test_a_gpt_oss_is_converted_to_litgpts_layout_and_back(tmp_path: Path) -> None:
    weights = gpt_oss(tmp_path / "Tiny")
    train_bpe(SENTENCES, 100, tmp_path / "Tiny")
    for source, target in (("Tiny", "litgpt"), ("litgpt", "back")):
        assert main(["convert", str(tmp_path / source), "--output", str(tmp_path / target)]) == 0
    back = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "back").state_dict()
    assert back.keys() == weights.keys()
    for name, weight in weights.items():
        assert torch.equal(back[name], weight), name
    # Stock LitGPT does not compute it in another way.
    with pytest.raises(TypeError, match="attention_sinks"):
        Config.from_file(tmp_path / "litgpt/model_config.yaml")


def test_experts_in_4_bits_are_those_that_transformers_makes_of_them(tmp_path: Path) -> None:
    mxfp4 = pytest.importorskip("transformers.integrations.mxfp4")
    weights, config = gpt_oss(tmp_path / "Tiny"), tmp_path / "Tiny/config.json"
    (tmp_path / "4 bits").mkdir()
    stored = {}
    for name, weight in weights.items():
        if not name.endswith("_proj"):
            stored[name] = weight.clone()
            continue
        experts, inputs, outputs = weight.shape
        blocks = torch.randint(256, (experts, outputs, inputs // 32, 16), dtype=torch.uint8)
        scales = torch.randint(120, 130, (experts, outputs, inputs // 32), dtype=torch.uint8)
        stored |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        weights[name] = mxfp4.convert_moe_packed_tensors(blocks, scales)
    save_file(stored, tmp_path / "4 bits/model.safetensors")
    quantized = json.loads(config.read_text()) | {"quantization_config": {"quant_method": "mxfp4"}}
    (tmp_path / "4 bits/config.json").write_text(json.dumps(quantized))
    save_file({name: each.contiguous().clone() for name, each in weights.items()}, tmp_path / "Tiny/model.safetensors")
    found, expected = (weights_of(tmp_path / name, config) for name in ("4 bits", "Tiny"))
    for name, weight in expected.items():
        assert torch.equal(found[name], weight), name


def in_8_bits(where: Path, target: Path) -> dict[str, torch.Tensor]:
    """Save a model with matrices in FP8 as DeepSeek-V3's, in two files; return its weights in float32."""
    weights = transformers.AutoModelForCausalLM.from_pretrained(where).state_dict()
    target.mkdir()
    files: list[dict[str, torch.Tensor]] = [{}, {}]
    expected = {}
    for number, (name, weight) in enumerate(weights.items()):
        if not name.endswith("_proj.weight") and "proj_with_mqa" not in name:
            files[0][name] = weight.clone()
            expected[name] = weight.float().clone()
            continue
        narrow = torch.randn(weight.shape).to(torch.float8_e4m3fn)
        scales = torch.rand([-(-side // 128) for side in weight.shape])
        # A scale may be in another file than its weight.
        files[number % 2][name] = narrow
        files[1 - number % 2][f"{name}_scale_inv"] = scales
        rows, columns = weight.shape
        expected[name] = narrow.float() * torch.kron(scales, torch.ones(128, 128))[:rows, :columns]
    for number, file in enumerate(files):
        save_file(file, target / f"{number}.safetensors")
    described = json.loads((where / "config.json").read_text())
    described["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
    (target / "config.json").write_text(json.dumps(described))
    return expected


@pytest.mark.parametrize("architecture", ["DeepseekV3ForCausalLM", "Qwen3ForCausalLM"])
def test_weights_in_8_bits_are_multiplied_by_the_scales_of_their_blocks(architecture: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = getattr(transformers, architecture)
    # No side is a multiple of 128, and some are larger.
    wide = SETTINGS[architecture] | {"hidden_size": 200, "intermediate_size": 300}
    model(model.config_class(**SMALL | wide)).save_pretrained(tmp_path / "Tiny")
    expected = in_8_bits(tmp_path / "Tiny", tmp_path / "8 bits")
    save_file(expected, tmp_path / "Tiny/model.safetensors")
    theirs, ours = HubDirectory(tmp_path / "Tiny"), HubDirectory(tmp_path / "8 bits")
    assert main(["convert", str(tmp_path / "8 bits"), "--output", str(tmp_path / "litgpt")]) == 0
    converted = torch.load(tmp_path / "litgpt/lit_model.pth", weights_only=True)
    cpu = torch.device("cpu")
    for name, empty in empty_model(from_config_json(tmp_path / "Tiny/config.json"), 16).state_dict().items():
        exact = theirs.read(name, empty.shape, torch.float32, cpu)
        assert torch.equal(ours.read(name, empty.shape, torch.float32, cpu), exact), name
        assert converted[name].dtype in {torch.bfloat16, torch.float32}
        assert torch.equal(converted[name], exact.to(converted[name].dtype)), name
    assert converted["transformer.h.0.mlp.proj.weight"].dtype is torch.bfloat16
    exported = json.loads((tmp_path / "8 bits/config.json").read_text())
    for block, words in ((None, "fp8, weight_block_size=None"), ([64, 128], "_scale_inv has shape (")):
        exported["quantization_config"]["weight_block_size"] = block
        (tmp_path / "8 bits/config.json").write_text(json.dumps(exported))
        with pytest.raises(CheckpointError, match=re.escape(words)):
            HubDirectory(tmp_path / "8 bits").read("transformer.h.0.mlp.proj.weight", (200, 300), None, cpu)


def test_the_text_of_a_model_of_images_is_read(tmp_path: Path) -> None:
    text = transformers.AutoConfig.from_pretrained(saved("Gemma3ForCausalLM", tmp_path / "text")).to_dict()
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1}
    both = transformers.Gemma3Config(text_config=text, vision_config=vision)
    torch.manual_seed(1)
    model = transformers.Gemma3ForConditionalGeneration(both)
    model.save_pretrained(tmp_path / "images")
    whole, device = HubDirectory(tmp_path / "images"), torch.device("cpu")
    layer = model.model.language_model.layers[1].self_attn
    expected = torch.cat([layer.q_proj.weight, layer.k_proj.weight, layer.v_proj.weight])
    assert torch.equal(whole.read("transformer.h.1.attn.qkv.weight", expected.shape, None, device), expected)
    # Rows of tokens of images, the last ones, are left out.
    assert whole.read("lm_head.weight", (100, 48), None, device).shape == (100, 48)


def test_the_text_of_a_llama_4_of_images_is_read_one_expert_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = SMALL | {
        "intermediate_size": 32, "intermediate_size_mlp": 80, "num_local_experts": 3, "attention_chunk_size": 16,
        "interleave_moe_layer_step": 2, "no_rope_layers": [1, 0],
    }  # fmt: skip
    vision = {
        "hidden_size": 16, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
        "patch_size": 14, "vision_output_dim": 16, "projector_input_dim": 16, "projector_output_dim": 16,
    }  # fmt: skip
    config = transformers.Llama4Config(text_config=text, vision_config=vision)
    model = transformers.Llama4ForConditionalGeneration(config)
    for weight in model.parameters():
        torch.nn.init.normal_(weight)
    model.save_pretrained(tmp_path)
    expected = model.language_model
    experts, device = expected.model.layers[1].feed_forward.experts, torch.device("cpu")
    described = from_config_json(tmp_path / "config.json")
    assert (described.full_attention_every, described.experts_every, described.intermediate_size) == (2, 2, 80)
    whole = HubDirectory(tmp_path)
    monkeypatch.setattr(whole, "stored", lambda *_: pytest.fail("all experts were read"))
    gate = whole.read("transformer.h.1.mlp.experts.2.fc_1.weight", (32, 48), None, device)
    up = whole.read("transformer.h.1.mlp.experts.2.fc_2.weight", (32, 48), None, device)
    down = whole.read("transformer.h.1.mlp.experts.2.proj.weight", (48, 32), None, device)
    assert torch.equal(torch.cat([gate, up]), experts.gate_up_proj[2].T)
    assert torch.equal(down, experts.down_proj[2].T)
    monkeypatch.undo()
    read = values_of(str(tmp_path), 0)
    assert torch.equal(read("lm_head.weight", (128, 48), torch.float32, device), expected.lm_head.weight)
    dense = read("transformer.h.0.mlp.fc_1.weight", (80, 48), torch.float32, device)
    assert torch.equal(dense, expected.model.layers[0].feed_forward.gate_proj.weight)


@pytest.mark.parametrize("architecture", ["Qwen2ForCausalLM", "Olmo2ForCausalLM", "Qwen3MoeForCausalLM", *OTHERS])
def test_a_directory_is_converted_to_litgpts_layout_and_back(
    architecture: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = saved(architecture, tmp_path / "Tiny")
    train_bpe(SENTENCES, 100, where)
    litgpt = tmp_path / "litgpt"
    assert main(["convert", str(where), "--output", str(litgpt)]) == 0
    assert capsys.readouterr().out == f"{litgpt}: set job.init_from={litgpt} data.tokenizer={litgpt}.\n"
    assert slurmscale.convert(tmp_path / "litgpt", tmp_path / "back").file == str(tmp_path / "back")
    stored = values_of(str(tmp_path / "litgpt"), 0)
    assert stored("transformer.wte.weight", (128, 48), torch.bfloat16, torch.device("cpu")).dtype is torch.bfloat16
    model, back = (transformers.AutoModelForCausalLM.from_pretrained(place) for place in (where, tmp_path / "back"))
    assert {file.stat().st_mode for file in (tmp_path / "back").iterdir()} == {(where / "config.json").stat().st_mode}
    assert type(back) is type(model)
    assert back.state_dict().keys() == model.state_dict().keys()
    for name, weight in model.state_dict().items():
        assert torch.equal(back.state_dict()[name], weight), name


def test_rows_that_are_rotated_as_halves_already_stay_in_their_order() -> None:
    matrix = torch.arange(2 * 6.0)[:, None]
    # Two heads of six rows, the last four of which are rotated: 2 with 3, and 4 with 5; or 2 with 4, and 3 with 5.
    assert rotated_first(matrix, 2, 4, pairs=True).flatten().tolist() == [2, 4, 3, 5, 0, 1, 8, 10, 9, 11, 6, 7]
    assert rotated_first(matrix, 2, 4, pairs=False).flatten().tolist() == [2, 3, 4, 5, 0, 1, 8, 9, 10, 11, 6, 7]
    assert torch.equal(rotated_last(rotated_first(matrix, 2, 4, pairs=True), 2, 4), matrix)


@pytest.mark.parametrize("architecture", OTHERS)
def test_stock_litgpt_refuses_the_export_of_arithmetic_that_it_does_not_have(architecture: str, tmp_path: Path) -> None:
    where = saved(architecture, tmp_path / "Tiny")
    train_bpe(SENTENCES, 100, where)
    slurmscale.convert(where, tmp_path / "litgpt")
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        Config.from_file(tmp_path / "litgpt/model_config.yaml")


def test_a_conversion_overwrites_nothing_and_leaves_nothing_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = saved("LlamaForCausalLM", tmp_path / "Tiny")
    good = tmp_path / "good"
    assert main(["convert", str(where), "--output", str(good)]) == 0
    assert capsys.readouterr().out == f"{good}: set job.init_from={good}.\n", "it has no tokenizer"
    next(where.glob("*.safetensors")).unlink()
    there = {file.name for file in tmp_path.iterdir()}
    assert main(["convert", str(where), "--output", str(tmp_path / "new")]) == 2
    assert {file.name for file in tmp_path.iterdir()} == there
    assert main(["convert", str(where), "--output", str(where)]) == 2
    assert main(["convert", str(tmp_path / "nowhere"), "--output", str(tmp_path / "new")]) == 2
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    assert main(["convert", str(damaged), "--output", str(tmp_path / "new")]) == 2
    (damaged / "lit_model.pth").write_bytes(b"PK" * 100)
    assert main(["convert", str(damaged), "--output", str(tmp_path / "new")]) == 2
    fields = litgpt_fields(from_config_json(where / "config.json"))
    (damaged / "model_config.yaml").write_text(yaml.safe_dump(fields))
    assert main(["convert", str(damaged), "--output", str(tmp_path / "new")]) == 2
    assert main(["convert", str(where), "--output", str(tmp_path / "no/new")]) == 2
    assert {file.name for file in tmp_path.iterdir()} == there | {"damaged"}
    printed = " ".join(capsys.readouterr().err.split())
    assert "cannot be read: " in printed
    assert f"{damaged} is not a Hugging Face model: No such file or directory" in printed
    assert f"{damaged} cannot be converted to {tmp_path}/new: [Errno 2] No such file or directory" in printed
    assert printed.count(f"{damaged} cannot be converted to {tmp_path}/new: ") == 2
    assert f"{where} cannot be converted to {tmp_path}/no/new: [Errno 2] No such file or directory" in printed
    assert f"{where} exists. Remove it, or set another directory with --output NEW." in printed
    assert f"{tmp_path}/nowhere is not a directory. Set one of LitGPT's or of Hugging Face's layout." in printed


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("a file is missing", "cannot be read: "),
        ("a file is cut", "cannot be read: "),
        ("a file is a FIFO", "cannot be read: "),
        (
            "a weight is missing",
            "another model, or a file is missing. Set model= to match, or download it again.",
        ),
        ("weights are quantized", "has quantized weights (gptq, weight_block_size=None), which training does not read"),
        ("another family", "is not a Hugging Face model: "),
        ("no configuration", "is not a Hugging Face model: No such file or directory"),
    ],
)
def test_a_directory_that_cannot_be_read_is_refused_in_words(damage: str, words: str, tmp_path: Path) -> None:
    where = saved("LlamaForCausalLM", tmp_path / "Tiny")
    config = json.loads((where / "config.json").read_text())
    index = json.loads((where / "model.safetensors.index.json").read_text())
    file = where / index["weight_map"]["model.layers.1.mlp.up_proj.weight"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    if damage in {"a file is missing", "a file is a FIFO", "a weight is missing"}:
        file.unlink()
    if damage == "a file is a FIFO":
        os.mkfifo(file)
    elif damage == "a weight is missing":
        kept = {name: other for name, other in index["weight_map"].items() if where / other != file}
        (where / "model.safetensors.index.json").write_text(json.dumps({"weight_map": kept}))
    elif damage == "a file is cut":
        file.write_bytes(file.read_bytes()[:-100])
    elif damage == "weights are quantized":
        (where / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "gptq"}}))
    elif damage == "another family":
        (where / "config.json").write_text(json.dumps(config | {"architectures": ["BertModel"]}))
    elif damage == "no configuration":
        (where / "config.json").unlink()
    with pytest.raises(CheckpointError) as refused:
        weights_of(where, tmp_path / "config.json")
    assert words in str(refused.value)
    assert str(where) in str(refused.value)

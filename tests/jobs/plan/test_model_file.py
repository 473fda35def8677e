"""`slurmscale model`: files from LitGPT's table and from config.json, and refusals of other arithmetic."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from litgpt.config import Config
from litgpt.model import GPT
from litgpt.scripts.convert_hf_checkpoint import (
    copy_weights_hf_llama,
    copy_weights_phi,
    copy_weights_qwen_2_5,
    copy_weights_qwen_3,
)

from jobs.cli import main
from jobs.engines.litgpt.names import litgpt_fields
from jobs.engines.native.load_sharded import load_sharded
from jobs.engines.native.model import empty_model
from jobs.plan.cost import parameters
from jobs.plan.model_file import from_config_json
from jobs.rundir import load_run
from tests.support.composing import one
from tests.support.paths import ROOT
from tests.support.real_run import losses, make_run, printed, train
from tests.support.training import DEEP

# The facts of https://huggingface.co/meta-llama/Llama-3.2-1B/blob/main/config.json, and of Qwen/Qwen2.5-0.5B and
# Qwen/Qwen3-0.6B.
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": 2048, "head_dim": 64,
    "intermediate_size": 8192, "max_position_embeddings": 131072, "num_attention_heads": 32, "num_hidden_layers": 16,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": True,
    "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                     "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "vocab_size": 128256,
}  # fmt: skip
QWEN = {
    "architectures": ["Qwen2ForCausalLM"], "hidden_act": "silu", "hidden_size": 896, "intermediate_size": 4864,
    "max_position_embeddings": 32768, "num_attention_heads": 14, "num_hidden_layers": 24, "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": True,
    "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip

QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "head_dim": 128, "hidden_act": "silu",
    "hidden_size": 1024, "intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28,
    "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-6,
    "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None, "tie_word_embeddings": True,
    "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip

# The facts of https://huggingface.co/Qwen/Qwen3-30B-A3B/blob/main/config.json.
QWEN3_MOE = QWEN3 | {
    "architectures": ["Qwen3MoeForCausalLM"], "decoder_sparse_step": 1, "hidden_size": 2048, "intermediate_size": 6144,
    "max_window_layers": 48, "mlp_only_layers": [], "moe_intermediate_size": 768, "norm_topk_prob": True,
    "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
    "num_key_value_heads": 4, "tie_word_embeddings": False,
}  # fmt: skip

# The facts of https://huggingface.co/google/gemma-3-4b-pt/blob/main/config.json, without transformers' defaults.
GEMMA3 = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "text_config": {
        "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    },
    "vision_config": {"hidden_size": 1152}, "tie_word_embeddings": True,
}  # fmt: skip

# The facts of https://huggingface.co/allenai/OLMo-2-1124-7B/blob/main/config.json.
OLMO2 = {
    "architectures": ["Olmo2ForCausalLM"], "attention_bias": False, "hidden_act": "silu", "hidden_size": 4096,
    "intermediate_size": 11008, "max_position_embeddings": 4096, "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 32, "rms_norm_eps": 1e-6, "rope_scaling": None, "rope_theta": 500000,
    "tie_word_embeddings": False, "vocab_size": 100352,
}  # fmt: skip


OLMO3 = OLMO2 | {
    "architectures": ["Olmo3ForCausalLM"], "max_position_embeddings": 65536, "vocab_size": 100278,
    "sliding_window": 4096, "layer_types": [*["sliding_attention"] * 3, "full_attention"] * 8,
    "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192},
}  # fmt: skip


# Those of https://huggingface.co/google/gemma-2-2b/blob/main/config.json.
GEMMA2 = {
    "architectures": ["Gemma2ForCausalLM"], "attention_bias": False, "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0, "head_dim": 256, "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2304, "intermediate_size": 9216,
    "max_position_embeddings": 8192, "num_attention_heads": 8, "num_hidden_layers": 26, "num_key_value_heads": 4,
    "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "sliding_window": 4096,
    "tie_word_embeddings": True, "vocab_size": 256000,
}  # fmt: skip

# The facts of https://huggingface.co/openai/gpt-oss-20b/blob/main/config.json.
GPT_OSS = {
    "architectures": ["GptOssForCausalLM"], "attention_bias": True, "head_dim": 64, "hidden_act": "silu",
    "hidden_size": 2880, "initial_context_length": 4096, "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 12, "max_position_embeddings": 131072,
    "num_attention_heads": 64, "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 8,
    "num_local_experts": 32, "quantization_config": {"quant_method": "mxfp4"}, "rms_norm_eps": 1e-5,
    "rope_scaling": {
        "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
        "rope_type": "yarn", "truncate": False,
    },
    "rope_theta": 150000, "sliding_window": 128, "swiglu_limit": 7.0, "tie_word_embeddings": False,
    "vocab_size": 201088,
}  # fmt: skip

# The facts of https://huggingface.co/deepseek-ai/DeepSeek-V2-Lite/blob/main/config.json.
DEEPSEEK_V2_LITE = {
    "architectures": ["DeepseekV2ForCausalLM"], "attention_bias": False, "first_k_dense_replace": 1,
    "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 10944, "kv_lora_rank": 512,
    "max_position_embeddings": 163840, "moe_intermediate_size": 1408, "moe_layer_freq": 1, "n_group": 1,
    "n_routed_experts": 64, "n_shared_experts": 2, "norm_topk_prob": False, "num_attention_heads": 16,
    "num_experts_per_tok": 6, "num_hidden_layers": 27, "num_key_value_heads": 16, "q_lora_rank": None,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000,
    "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707,
                     "original_max_position_embeddings": 4096, "type": "yarn"},
    "routed_scaling_factor": 1.0, "scoring_func": "softmax", "tie_word_embeddings": False, "topk_group": 1,
    "topk_method": "greedy", "v_head_dim": 128, "vocab_size": 102400,
}  # fmt: skip

# The facts of https://huggingface.co/deepseek-ai/DeepSeek-V3/blob/main/config.json, but for its 8-bit weights.
DEEPSEEK_V3 = DEEPSEEK_V2_LITE | {
    "architectures": ["DeepseekV3ForCausalLM"], "first_k_dense_replace": 3, "hidden_size": 7168,
    "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_group": 8, "n_routed_experts": 256,
    "n_shared_experts": 1, "norm_topk_prob": True, "num_attention_heads": 128, "num_experts_per_tok": 8,
    "num_hidden_layers": 61, "num_key_value_heads": 128, "num_nextn_predict_layers": 1, "q_lora_rank": 1536,
    "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
                     "original_max_position_embeddings": 4096, "type": "yarn"},
    "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "topk_group": 4, "topk_method": "noaux_tc",
    "vocab_size": 129280,
}  # fmt: skip

# The facts of https://huggingface.co/meta-llama/Llama-4-Scout-17B-16E-Instruct/blob/main/config.json, but for images.
LLAMA4_TEXT: dict[str, Any] = {
    "attention_bias": False, "attention_chunk_size": 8192, "attn_scale": 0.1, "attn_temperature_tuning": True,
    "floor_scale": 8192, "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120, "interleave_moe_layer_step": 1,
    "intermediate_size": 8192, "intermediate_size_mlp": 16384, "max_position_embeddings": 10485760,
    "no_rope_layers": [1, 1, 1, 0] * 12, "num_attention_heads": 40, "num_experts_per_tok": 1, "num_hidden_layers": 48,
    "num_key_value_heads": 8, "num_local_experts": 16, "rms_norm_eps": 1e-5,
    "rope_scaling": {"factor": 16.0, "high_freq_factor": 1.0, "low_freq_factor": 1.0,
                     "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    "rope_theta": 500000.0, "tie_word_embeddings": False, "use_qk_norm": True, "vocab_size": 202048,
}  # fmt: skip
SCOUT = {"architectures": ["Llama4ForConditionalGeneration"], "text_config": LLAMA4_TEXT}
# Maverick's differs in these, and leaves out others.
MAVERICK = SCOUT | {
    "text_config": {
        key: value
        for key, value in LLAMA4_TEXT.items()
        if key not in {"attention_chunk_size", "attn_scale", "attn_temperature_tuning", "floor_scale"}
    }
    | {"interleave_moe_layer_step": 2, "moe_layers": [*range(1, 48, 2)], "max_position_embeddings": 1048576}
    | {"no_rope_layers": [], "num_local_experts": 128, "rope_scaling": None, "use_qk_norm": False}
}


def of_scout(**changed: Any) -> dict[str, Any]:
    return SCOUT | {"text_config": LLAMA4_TEXT | changed}


def written(what: str, site: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("SLURMSCALE_SITE", str(site))
    (site / "model").mkdir(exist_ok=True)
    assert main(["model", what]) == 0
    (file,) = (site / "model").iterdir()
    return file.stem


@pytest.mark.parametrize(
    ("name", "stem", "published"),
    # Of the model cards: parameters, embeddings included.
    [("Qwen2.5-7B", "qwen25_7b", 7.61e9), ("Qwen2.5-0.5B", "qwen25_05b", 0.494e9),
     ("Llama-3.2-1B", "llama32_1b", 1.24e9), ("phi-4", "phi_4", 14.7e9),
     ("Qwen2.5-Math-1.5B", "qwen25_math15b", 1.54e9), ("SmolLM2-135M", "smollm2_135m", 0.1345e9),
     ("Qwen3-1.7B-Base", "qwen3_17b_base", 1.72e9), ("Qwen3-30B-A3B-Base", "qwen3_30b_a3b_base", 30.5e9),
     ("Gemma-3-1b-it", "gemma_3_1b_it", 1.00e9)],
)  # fmt: skip
def test_a_name_of_litgpt_becomes_a_model_file_of_the_same_shapes(
    name: str, stem: str, published: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert written(name, tmp_path, monkeypatch) == stem
    model = one(f"model={stem}").run.model
    assert parameters(model) == pytest.approx(published, rel=0.01)
    with torch.device("meta"):
        stock = GPT(Config.from_name(name))
        ours = GPT(Config(**litgpt_fields(model)))
    assert {n: p.shape for n, p in stock.named_parameters()} == {n: p.shape for n, p in ours.named_parameters()}
    assert main(["model", str(tmp_path / "model" / f"{stem}.yaml")]) == 0


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (LLAMA, "Llama-3.2-1B"),
        (QWEN, "Qwen2.5-0.5B"),
        (QWEN3, "Qwen3-0.6B"),
        (QWEN3_MOE, "Qwen3-30B-A3B"),
        (GEMMA3, "Gemma-3-4b-it"),
        (GEMMA2, "Gemma-2-2b"),
        (OLMO2, "OLMo-2-1124-7B"),
    ],
)
def test_a_config_json_gives_the_same_model_as_litgpts_name(
    config: dict[str, Any], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in ("a", "b", name):
        (tmp_path / part).mkdir()
    (tmp_path / name / "config.json").write_text(json.dumps(config))
    by_name = one(f"model={written(name, tmp_path / 'a', monkeypatch)}").run.model
    by_file = one(f"model={written(str(tmp_path / name), tmp_path / 'b', monkeypatch)}").run.model
    assert litgpt_fields(by_file) == litgpt_fields(by_name)
    assert by_file.tie_embeddings == by_name.tie_embeddings == config["tie_word_embeddings"]


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (OLMO3, "olmo3_7b"),
        (GPT_OSS, "gpt_oss_20b"),
        (DEEPSEEK_V2_LITE, "deepseek_v2_lite"),
        (DEEPSEEK_V3, "deepseek_v3"),
        (SCOUT, "llama4_scout"),
        (MAVERICK, "llama4_maverick"),
    ],
    ids=["olmo3_7b", "gpt_oss_20b", "deepseek_v2_lite", "deepseek_v3", "llama4_scout", "llama4_maverick"],
)
def test_a_config_json_that_litgpt_does_not_have_gives_the_included_model(
    config: dict[str, Any], name: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    ours = one(f"model={name}").run.model
    assert replace(from_config_json(tmp_path / "config.json"), name=ours.name, source=ours.source) == ours


def test_a_config_json_of_transformers_5_gives_the_same_model(tmp_path: Path) -> None:
    moved = {"rope_theta": LLAMA["rope_theta"]} | LLAMA["rope_scaling"]
    later = {key: value for key, value in LLAMA.items() if not key.startswith("rope_")} | {"rope_parameters": moved}
    models = []
    for config in (LLAMA, later):
        (tmp_path / "config.json").write_text(json.dumps(config))
        models.append(from_config_json(tmp_path / "config.json"))
    assert models[0] == models[1]


def test_a_config_json_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    for name, encoding in (("a", "utf-8"), ("b", "utf-8-sig")):
        (tmp_path / name).write_text(json.dumps(LLAMA), encoding=encoding)
    assert from_config_json(tmp_path / "b") == replace(from_config_json(tmp_path / "a"), source=str(tmp_path / "b"))


TINY = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 128, "max_position_embeddings": 64}  # fmt: skip
PUBLISHED: dict[str, dict[str, Any]] = {
    "llama": {"rms_norm_eps": 1e-5},
    # Llama 3's scaling of wavelengths, within the tiny context.
    "llama, tied": {
        "head_dim": 32, "tie_word_embeddings": True, "rope_theta": 5e5,
        "rope_scaling": LLAMA["rope_scaling"] | {"original_max_position_embeddings": 16},
    },
    "mistral": {"head_dim": 24, "sliding_window": None},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    "phi3": {"partial_rotary_factor": 0.5, "pad_token_id": 0, "sliding_window": None},
    "qwen2": {"rope_theta": 1e6, "tie_word_embeddings": True},
    "qwen3": {"rope_theta": 1e6, "tie_word_embeddings": True, "head_dim": 24},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_the_logits_are_those_of_transformers_for_the_same_weights(name: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    kind = name.split(",", maxsplit=1)[0]
    config = transformers.AutoConfig.for_model(kind, **TINY, **PUBLISHED[name])
    theirs = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter, weight in theirs.named_parameters():
            weight.normal_(1.0 if "norm" in parameter else 0.0, 0.15)
    theirs.save_pretrained(tmp_path)
    model = from_config_json(tmp_path / "config.json")

    copied: dict[str, torch.Tensor] = {}
    copies = {"phi3": copy_weights_phi, "qwen2": copy_weights_qwen_2_5, "qwen3": copy_weights_qwen_3}
    of_kind = copies.get(kind, copy_weights_hf_llama)
    # LitGPT reads the names of Phi 3's weights only for a model that is called so.
    of_kind(Config(**litgpt_fields(model) | {"name": "Phi-3"}), {}, copied, theirs.state_dict())
    ours, logits = empty_model(model, 48), []
    load_sharded(ours, torch.device("cpu"), lambda weight, *_: copied[weight], tensor=1, tied=model.tie_embeddings)
    ours.lm_head.register_forward_hook(lambda _module, _inputs, output: logits.append(output))
    tokens = torch.randint(128, (2, 48))
    with torch.no_grad():
        ours(tokens, tokens, tokens.numel())
        expected = theirs(tokens).logits
    assert expected.std() > 1, "weights so small that nothing is compared"
    torch.testing.assert_close(logits[0], expected, rtol=0, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Qwen2.5-0.5B", "Llama-3.2-1B", "phi-4"])
def test_a_model_file_trains(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = f"model={written(name, tmp_path, monkeypatch)}"
    run = make_run(tmp_path, model, "parallelism=single", "ranks_per_node=1")
    assert train(run) == [0], printed(run)
    assert losses(run)[-1] < losses(run)[0]
    assert load_run(run.config).model.attention_bias == name.startswith("Qwen")


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("phi-2", "phi_2 differs from LitGPT's phi-2: shared_attention_norm is False, LitGPT's is True"),
        ("Qwen9", "Qwen9 is neither a file nor a name in LitGPT's table"),
        (QWEN | {"use_sliding_window": True, "sliding_window": 4096}, "sliding_window=4096"),
        (LLAMA | {"attention_bias": True}, "attention_bias=true, also on the output"),
        (LLAMA | {"rope_parameters": {"rope_type": "longrope"}}, "rope_scaling of type longrope, not llama3 or yarn"),
        (LLAMA | {"architectures": ["GemmaForCausalLM"]}, "scaled embeddings, norms by 1 + weight"),
        (GEMMA3 | {"layer_types": ["full_attention", *["sliding_attention"] * 33]}, "layer_types without a period"),
        (GEMMA3 | {"use_bidirectional_attention": True}, "use_bidirectional_attention: slurmscale's model does not"),
        (
            GEMMA3 | {"text_config": {"rope_scaling": {"factor": 8.0, "rope_type": "yarn"}, "num_hidden_layers": 6}},
            "rope_scaling of type yarn, not linear",
        ),
        (
            LLAMA
            | {
                "architectures": ["OtherForCausalLM"],
                "sliding_window": 128,
                "swiglu_limit": 7.0,
                "layer_types": ["sliding_attention", "full_attention"],
            },
            "sliding_window=128 in some layers; a limited SwiGLU (swiglu_limit)",
        ),
        (
            LLAMA
            | {
                "architectures": ["Glm4MoeLiteForCausalLM"],
                "kv_lora_rank": 512,
                "n_shared_experts": 1,
                "first_k_dense_replace": 3,
                "num_nextn_predict_layers": 1,
            },
            "multi-head latent attention (kv_lora_rank); shared experts (n_shared_experts); dense first layers "
            "(first_k_dense_replace); multi-token prediction (num_nextn_predict_layers): slurmscale's model does not",
        ),
        (DEEPSEEK_V3 | {"scoring_func": "softmax"}, "scoring_func=softmax, not sigmoid"),
        (DEEPSEEK_V2_LITE | {"topk_method": "noaux_tc"}, "topk_method=noaux_tc, not greedy or group_limited_greedy"),
        (DEEPSEEK_V2_LITE | {"norm_topk_prob": True}, "norm_topk_prob=true, a router whose weights are normalized"),
        (DEEPSEEK_V2_LITE | {"num_key_value_heads": 4}, "num_key_value_heads=4, not 16"),
        (DEEPSEEK_V2_LITE | {"moe_layer_freq": 2}, "moe_layer_freq=2, further dense layers"),
        (of_scout(no_rope_layers=[1, 0, 1, 1] * 12), "no_rope_layers without a period"),
        (of_scout(attention_chunk_size=None), "attention_chunk_size=null, rotated layers without chunks"),
        (of_scout(moe_layers=[0, 5]), "moe_layers=[0, 5], not every 1. layer"),
        (of_scout(layer_types=["full_attention"] * 48), "chunks in other layers than rotated ones"),
        (QWEN3_MOE | {"norm_topk_prob": False}, "norm_topk_prob=false, a router whose weights are not normalized"),
        (QWEN3_MOE | {"mlp_only_layers": [0]}, "mlp_only_layers=[0], dense layers"),
        (QWEN3_MOE | {"decoder_sparse_step": 2}, "decoder_sparse_step=2, dense layers"),
        (LLAMA | {"architectures": ["BertModel"]}, "architectures=BertModel, not one of LlamaForCausalLM"),
        ({"a": 1}, "is not the configuration of a language model: it has no architectures. Set the config.json"),
        ({k: v for k, v in LLAMA.items() if k != "hidden_size"}, "it has no hidden_size."),
    ],
)
def test_other_arithmetic_is_refused_in_words(
    what: str | dict[str, Any], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if isinstance(what, dict):
        (tmp_path / "config.json").write_text(json.dumps(what))
        what = str(tmp_path)
    assert main(["model", what]) == 2
    assert words in capsys.readouterr().err


def test_a_model_whose_further_layers_are_left_out_is_written_with_a_sentence_about_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(DEEPSEEK_V3))
    assert main(["model", str(tmp_path), "--output", str(tmp_path / "v3.yaml")]) == 0
    assert "num_nextn_predict_layers=1" in capsys.readouterr().out


def test_a_litgpt_name_that_disagrees_with_the_file_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text((ROOT / "conf/model/llama3_8b.yaml").read_text().replace("layers: 32", "layers: 30"))
    assert main(["model", str(file)]) == 2
    assert "llama3_8b differs from LitGPT's Llama-3-8B: n_layer is 30, LitGPT's is 32" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.slow
def test_a_bias_on_query_key_and_value_trains_alike_under_tensor_parallelism(tmp_path: Path) -> None:
    bias = (*DEEP, "model.attention_bias=true", "model.tie_embeddings=true")
    one_rank = make_run(tmp_path, "name=one", *bias, "parallelism=single", "ranks_per_node=1", "job.export=true")
    two = make_run(tmp_path, "name=two", *bias, "parallelism=tp", "ranks_per_node=2")
    for run in (one_rank, two):
        assert set(train(run)) == {0}, printed(run)
    assert losses(two) == pytest.approx(losses(one_rank), abs=1e-5)
    stock = GPT(Config.from_file(one_rank.export / "model_config.yaml"))
    stock.load_state_dict(torch.load(one_rank.export / "lit_model.pth", weights_only=True))
    assert stock.transformer.h[0].attn.qkv.bias is not None
    assert load_run(one_rank.config).model.attention_bias


def test_weights_that_do_not_exist_are_refused_at_submission_unless_they_are_on_the_nodes_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["submit", "launcher=script", "cluster=generic_slurm", f"runs_dir={tmp_path}/runs", "sweep=s",
             "data=random", "job=finetune_full", "job.epochs=null", "job.steps=20", "job.precision=float32",
             f"job.init_from={tmp_path}/nowhere", f"data.cache_dir={tmp_path}/cache"]  # fmt: skip
    given += ["job.sequence_length=32"]
    assert main(given) == 2
    words = f"job.init_from={tmp_path}/nowhere has neither lit_model.pth nor *.safetensors here"
    assert words in capsys.readouterr().err
    assert not (tmp_path / "runs" / "s").exists()
    assert main([*given, "job.init_from_is_remote=true"]) == 0


def test_fine_tuning_without_weights_states_it_first(tmp_path: Path) -> None:
    run = make_run(tmp_path, "parallelism=single", "ranks_per_node=1", "job=finetune_full", "job.epochs=null",
                   "job.steps=1", "job.warmup_steps=0", "job.precision=float32")  # fmt: skip
    assert train(run) == [0], printed(run)
    first = next(line for line in printed(run).splitlines() if "ranks on" in line)
    assert first.endswith(", from RANDOM WEIGHTS (job.init_from is not set)")

"""The architecture numbers, held against LitGPT's own where it has the model."""

from __future__ import annotations

import pytest
from litgpt.config import Config

from jobs.engines.litgpt.names import litgpt_fields
from jobs.engines.native.model import empty_model, tie_embeddings
from jobs.plan.cost import parameters, parameters_met
from tests.support.composing import one, options
from tests.support.paths import ROOT

MODELS = options("model")
# Models that LitGPT's table does not have.
ELSEWHERE = {
    "tiny", "llama3_1t", "mistral_small_2501", "olmo3_7b", "olmo3_32b", "gpt_oss_20b", "gpt_oss_120b",
    "deepseek_v2_lite", "deepseek_v3", "llama4_scout", "llama4_maverick",
}  # fmt: skip
# Values that determine shapes and arithmetic; names and sources are ours.
FIELDS = ("n_layer", "n_head", "n_query_groups", "n_embd", "head_size", "intermediate_size", "padded_vocab_size",
          "block_size", "norm_class_name", "norm_eps", "mlp_class_name", "bias", "lm_head_bias", "parallel_residual",
          "shared_attention_norm", "rope_base", "rotary_percentage", "rope_n_elem", "rope_adjustments", "n_expert",
          "n_expert_per_token", "moe_intermediate_size", "gelu_approximate", "scale_embeddings", "sliding_window_size",
          "norm_qk", "norm_qk_type", "attention_scores_scalar", "sliding_window_indices", "rope_local_base_freq",
          "rope_indices", "norm_1", "norm_2", "attention_logit_softcapping", "final_logit_softcapping",
          "post_attention_norm", "post_mlp_norm")  # fmt: skip


@pytest.mark.parametrize("name", [model for model in MODELS if model not in ELSEWHERE])
def test_every_number_that_litgpt_has_too_is_the_same(name: str) -> None:
    model = one(f"model={name}").run.model
    assert model.litgpt_name is not None
    ours, theirs = Config(**litgpt_fields(model)), Config.from_name(model.litgpt_name)
    # LitGPT's table leaves Gemma's number at a default.
    compared = [field for field in FIELDS if field != "norm_eps" or not model.norm_unit_offset]
    assert {field: getattr(ours, field) for field in compared} == {field: getattr(theirs, field) for field in compared}


@pytest.mark.parametrize("name", MODELS)
def test_the_parameter_count_is_that_of_the_model_as_built(name: str) -> None:
    model = one(f"model={name}").run.model
    built = empty_model(model, 16)
    tie_embeddings(built, tied=model.tie_embeddings)
    assert parameters(model) == sum(parameter.numel() for parameter in built.parameters())


@pytest.mark.parametrize(
    ("name", "published"),
    # The model cards round to these; https://arxiv.org/abs/2307.09288 and https://arxiv.org/abs/2407.21783.
    [("llama2_7b", 6.74e9), ("llama2_13b", 13.0e9), ("llama2_70b", 69.0e9), ("llama3_8b", 8.03e9),
     ("llama3_70b", 70.6e9), ("llama31_405b", 406e9), ("mixtral_8x7b", 46.7e9), ("mistral_large_2407", 123e9),
     ("mistral_small_2501", 23.6e9),
     # https://arxiv.org/abs/2505.09388, and the model cards of Qwen.
     ("qwen3_4b", 4.02e9), ("qwen3_8b", 8.19e9), ("qwen3_14b", 14.8e9), ("qwen3_32b", 32.8e9),
     ("olmo2_7b", 7.30e9), ("olmo2_13b", 13.7e9), ("olmo3_7b", 7.30e9), ("olmo3_32b", 32.2e9),
     ("gemma2_2b", 2.61e9), ("gemma2_9b", 9.24e9), ("gemma2_27b", 27.2e9),
     ("gemma3_1b", 1.00e9), ("gemma3_4b", 3.88e9), ("gemma3_27b", 27.0e9),
     # https://arxiv.org/abs/2405.04434, appendix B, and https://arxiv.org/abs/2412.19437.
     ("deepseek_v2_lite", 15.7e9), ("deepseek_v3", 671e9),
     ("qwen3_30b_a3b", 30.5e9), ("qwen3_235b_a22b", 235e9),
     ("qwen25_7b", 7.61e9), ("qwen25_72b", 72.7e9), ("llama32_1b", 1.23e9),
     ("llama32_3b", 3.21e9), ("llama33_70b", 70.6e9), ("phi_4", 14.7e9),
     # https://arxiv.org/abs/2508.10925, table 1.
     ("gpt_oss_20b", 20.91e9), ("gpt_oss_120b", 116.83e9)],
)  # fmt: skip
def test_the_parameter_count_is_the_published_one(name: str, published: float) -> None:
    assert parameters(one(f"model={name}").run.model) == pytest.approx(published, rel=0.005)


def test_the_published_counts_of_llama_4_have_one_more_part_the_encoder_of_images() -> None:
    # Numbers of the safetensors files on the hub.
    published = {"llama4_scout": 108_641_793_536, "llama4_maverick": 401_583_781_376}
    encoders = {count - parameters(one(f"model={name}").run.model) for name, count in published.items()}
    assert encoders == {871_932_416}


@pytest.mark.parametrize(
    ("name", "published"),
    [("deepseek_v2_lite", 2.4e9), ("deepseek_v3", 37e9), ("llama4_scout", 16.1e9), ("llama4_maverick", 16.1e9)],
)
def test_the_parameters_that_a_token_meets_are_the_published_ones(name: str, published: float) -> None:
    # DeepSeek's count of them includes the embedding, in part; the other one here does not.
    assert parameters_met(one(f"model={name}").run.model) == pytest.approx(published, rel=0.03)


def test_every_model_and_gpu_and_cluster_names_its_source() -> None:
    conf = ROOT / "conf"
    files = [file for group in ("model", "gpu", "cluster") for file in (conf / group).glob("*.yaml")]
    assert [file.stem for file in files if "\nsource: " not in file.read_text()] == ["generic_slurm"]

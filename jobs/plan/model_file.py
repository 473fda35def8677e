"""Model files: from LitGPT's table, or from the config.json of a Hugging Face checkpoint; and the check of a file.

A model is written only if its arithmetic is the same here: a value that the schema does not have is refused. LitGPT's
table is read from its file, without LitGPT's package, which imports torch.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, fields
from enum import Enum
from functools import cache
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from jobs.answers import FileAnswer
from jobs.engines.litgpt.names import SWIGLU_LIMIT, litgpt_fields
from jobs.errors import ConfigError
from jobs.files import read_json, read_yaml, reason
from jobs.frozen import interpolation_in
from jobs.output import write_output
from jobs.plan.configuration_files import text_loader
from jobs.plan.keys import is_text
from jobs.schema import (
    LatentAttention,
    Mlp,
    Model,
    Norm,
    NormPlace,
    QueryTemperature,
    RopeScaling,
    Router,
    RouterScores,
    Run,
)
from jobs.secrets import strings

# LitGPT's table does not contain it; Hugging Face's config.json does (tie_word_embeddings).
TIED = re.compile(r"(Llama-3\.2-[13]B|Qwen2\.5-(Coder-|Math-)?(0\.5|1\.5|3)B|Qwen3-(0\.6|1\.7|4)B|SmolLM2-|OLMo-1B)")
# Names, sources and sizes before padding: they change no arithmetic. `padded_vocab_size` is compared.
NAMES = {"name", "hf_config", "vocab_size", "padding_multiple"}
# Architectures of Hugging Face with the arithmetic of Llama, whose differences are read below.
ARCHITECTURES = (
    "LlamaForCausalLM",
    "Llama4ForCausalLM",
    "Llama4ForConditionalGeneration",
    "MistralForCausalLM",
    "MixtralForCausalLM",
    "Phi3ForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
    "Olmo2ForCausalLM",
    "Olmo3ForCausalLM",
    "DeepseekV2ForCausalLM",
    "DeepseekV3ForCausalLM",
    "Gemma2ForCausalLM",
    "Gemma3ForCausalLM",
    "Gemma3ForConditionalGeneration",
    "GptOssForCausalLM",
)
# Where layers have their norms, if not before attention and feed-forward.
PLACES = {"Gemma2": NormPlace.around, "Gemma3": NormPlace.around, "Olmo2": NormPlace.after, "Olmo3": NormPlace.after}
# Families with sliding windows in some layers.
WINDOWED = {"Gemma2", "Gemma3", "GptOss", "Llama4", "Olmo3"}
# Families with latent attention, and a router by scores of all experts.
LATENT = {"DeepseekV2", "DeepseekV3"}
# transformers' values of what the config.json of a Gemma 3 may leave out (Gemma3TextConfig).
GEMMA3: dict[str, Any] = {
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "max_position_embeddings": 131_072,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-6,
    "rope_local_base_freq": 10_000,
    "rope_theta": 1_000_000,
    "sliding_window_pattern": 6,
    "tie_word_embeddings": True,
    # A model of images has 64 rows more, which LitGPT's converter leaves out.
    "vocab_size": 262_144,
}
# The same of a Gemma 2 (Gemma2Config).
GEMMA2 = GEMMA3 | {
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
    "max_position_embeddings": 8192,
    "rope_theta": 10_000,
    "sliding_window": 4096,
    "sliding_window_pattern": 2,
    "vocab_size": 256_000,
}
GEMMAS = {"Gemma2": GEMMA2, "Gemma3": GEMMA3}
CAPS = ("attn_logit_softcapping", "final_logit_softcapping")
# transformers' values of what the config.json of a Llama 4 may leave out (Llama4TextConfig).
LLAMA4: dict[str, Any] = {
    "attention_chunk_size": 8192,
    "attn_scale": 0.1,
    "attn_temperature_tuning": True,
    "floor_scale": 8192,
    "head_dim": 128,
    "interleave_moe_layer_step": 1,
    "no_rope_layer_interval": 4,
    "num_experts_per_tok": 1,
    "use_qk_norm": True,
}

SIZES = ("layers", "hidden_size", "heads", "kv_heads", "head_size", "intermediate_size", "vocab_size")
"""Keys of `model` that decide the shapes of weights."""
# What a key of a config.json stands for, if it is neither null, false, 0 nor empty.
FEATURES = {
    "kv_lora_rank": "multi-head latent attention",
    "n_shared_experts": "shared experts",
    "shared_expert_intermediate_size": "a shared expert",
    "first_k_dense_replace": "dense first layers",
    "moe_intermediate_size": "experts of a width of their own",
    "n_group": "groups of experts",
    "scoring_func": "a scoring function of the router",
    "num_nextn_predict_layers": "multi-token prediction",
    "swiglu_limit": "a limited SwiGLU",
    "rope_local_base_freq": "a rotary base per layer",
    "query_pre_attn_scalar": "a scale of attention of its own",
    "attn_logit_softcapping": "attention logit softcapping",
    "final_logit_softcapping": "output logit softcapping",
    "vision_config": "images",
}
# What no key of an architecture's config.json states.
UNSTATED = {
    "Gemma": "scaled embeddings, norms by 1 + weight",
}


def model_file(what: str, output: Path | None) -> FileAnswer:
    """Write the model file of a LitGPT name, a config.json or its directory; check it if `what` is a model file.

    Without a place to write the file return its text.
    """
    path = Path(what).expanduser()
    if path.suffix in {".yaml", ".yml"}:
        model = read_model_file(path)
        if model.litgpt_name is None:
            return FileAnswer(str(path), f"{path}: no litgpt_name, so there is nothing to compare it with.")
        compare_with_litgpt(model, model.litgpt_name)
        return FileAnswer(str(path), f"{path} agrees with LitGPT's {model.litgpt_name}.")
    path = path / "config.json" if path.is_dir() else path
    model = from_config_json(path) if path.is_file() else from_litgpt(what)
    text = as_yaml(model)
    site = os.environ.get("SLURMSCALE_SITE")
    place = output or (Path(site) / "model" if site else None)
    if place is None:
        return FileAnswer(None, text.rstrip())
    file = place if place.suffix == ".yaml" else place / f"{model.name}.yaml"
    if file.exists():
        raise ConfigError(f"{file} exists. Remove it, or set another file with --output FILE.yaml.")
    write_output(file, text)
    further = read_json(path).get("num_nextn_predict_layers") if path.is_file() else None
    left_out = f" Layers for further tokens (num_nextn_predict_layers={further}) are left out." if further else ""
    return FileAnswer(
        str(file), f"{file}: set model={file.stem}, with SLURMSCALE_SITE at the directory above model/.{left_out}"
    )


def read_model_file(path: Path) -> Model:
    """Return the model of a file of conf/model or a site directory."""
    try:
        values = read_yaml(path, text_loader(lambda name: is_text(f"model.{name}")))
        given = OmegaConf.merge(OmegaConf.structured(Model), values)
        return cast(Model, OmegaConf.to_object(given))
    except (OSError, ValueError, OmegaConfBaseException) as error:
        raise ConfigError(f"{path} is not a model file: {str(error).splitlines()[0]}. Correct it.") from error


def from_litgpt(name: str) -> Model:
    """Return the model of a name in LitGPT's table."""
    theirs = litgpt_config(name)
    scaling, gemma = theirs.rope_adjustments, "Gemma" in name
    try:
        model = Model(
            name=file_name(name),
            source=f"LitGPT's table (litgpt/config.py), {name}",
            litgpt_name=name,
            layers=theirs.n_layer,
            heads=theirs.n_head,
            kv_heads=theirs.n_query_groups,
            hidden_size=theirs.n_embd,
            head_size=theirs.head_size,
            intermediate_size=theirs.intermediate_size,
            vocab_size=theirs.padded_vocab_size,
            max_sequence_length=theirs.block_size,
            norm=Norm[theirs.norm_class_name],
            norm_eps=GEMMA3["rms_norm_eps"] if gemma else theirs.norm_eps,
            norm_unit_offset=gemma,
            norm_place=place_of(theirs),
            mlp=Mlp[theirs.mlp_class_name],
            bias=theirs.bias,
            attention_bias=theirs.attn_bias,
            norm_qk=theirs.norm_qk,
            norm_qk_whole=theirs.norm_qk_type == "olmo2",
            attention_scores_scalar=theirs.attention_scores_scalar,
            attention_softcap=theirs.attention_logit_softcapping,
            logits_softcap=theirs.final_logit_softcapping,
            sliding_window=theirs.sliding_window_size,
            full_attention_every=full_attention_every(theirs.sliding_window_indices),
            parallel_residual=theirs.parallel_residual,
            rope_base=theirs.rope_base,
            rope_fraction=theirs.rotary_percentage,
            rope_scaling=scaling
            and RopeScaling(
                factor=scaling["factor"],
                low_freq_factor=scaling.get("low_freq_factor"),
                high_freq_factor=scaling.get("high_freq_factor"),
                original_max_sequence_length=scaling.get("original_max_seq_len"),
            ),
            rope_local_base=theirs.rope_local_base_freq,
            scale_embeddings=theirs.scale_embeddings,
            tie_embeddings=gemma or TIED.match(name) is not None,
            experts=theirs.n_expert,
            experts_per_token=theirs.n_expert_per_token,
            moe_intermediate_size=theirs.moe_intermediate_size,
        )
    except KeyError as error:
        raise ConfigError(
            f"{name} has {error.args[0]!r}, which slurmscale's model does not have (`slurmscale explain model`). "
            "Choose another model."
        ) from error
    compare_with_litgpt(model, name)
    return model


def place_of(config: Any) -> NormPlace:
    """Return the place of norms in a layer of LitGPT's."""
    if not config.post_attention_norm:
        return NormPlace.before
    return NormPlace.around if config.norm_1 else NormPlace.after


def full_attention_every(windows: Sequence[int] | None) -> int:
    """Return the distance of layers without a sliding window, from whether each layer has one; 0 if all have one.

    A list that is not periodic is refused when the result is compared with it.
    """
    return list(windows).index(0) + 1 if windows and 0 in windows else 0


@cache
def litgpt_table() -> ModuleType:
    """Return the module of LitGPT's table of models, executed once; raise ConfigError where LitGPT is missing."""
    package = find_spec("litgpt")
    if package is None or package.origin is None:
        raise ConfigError(
            "LitGPT's table of models needs litgpt, which this Python lacks. Run pip install --editable '.[train]', or "
            "give a config.json."
        )
    # The package itself imports torch and more, for half a minute of processor time; the file of the table does not.
    spec = spec_from_file_location("litgpt_table", Path(package.origin).with_name("config.py"))
    assert spec is not None
    assert spec.loader is not None
    # In sys.modules, because @dataclass looks its class's module up there to resolve annotations.
    table = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(table)
    return table


def litgpt_config(name: str) -> Any:
    """Return LitGPT's configuration of a name."""
    try:
        return litgpt_table().Config.from_name(name)
    except ValueError as error:
        raise ConfigError(
            f"{name} is neither a file nor a name in LitGPT's table. Set a name that `litgpt download list` prints "
            "after the slash, a config.json, or a directory that has one."
        ) from error


def compare_with_litgpt(model: Model, name: str) -> None:
    """Raise ConfigError if the arithmetic of a model differs from LitGPT's of that name."""
    theirs = litgpt_config(name)
    ours = type(theirs)(**litgpt_fields(model))
    # Its table leaves the number that Gemma adds to the variance at a default, which is not Gemma's.
    left_out = NAMES | {"norm_eps"} if "Gemma" in name else NAMES
    wrong = [
        f"{field.name} is {mine!r}, LitGPT's is {his!r}"
        for field in fields(theirs)
        if field.name not in left_out and (mine := getattr(ours, field.name)) != (his := getattr(theirs, field.name))
    ]
    if wrong:
        raise ConfigError(
            f"{model.name} differs from LitGPT's {name}: {'; '.join(wrong)}. Correct these values or litgpt_name, or "
            "choose another model: a value without a key in `slurmscale explain model` is not supported."
        )


def from_config_json(path: Path) -> Model:
    """Return the model of a Hugging Face config.json."""
    try:
        given = read_json(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is not JSON: {reason(error)}. Set the config.json of a model.") from error
    try:
        given = of_text(given)
        refuse_other_arithmetic(path, given)
        family = family_of(given)
        heads, hidden = given["num_attention_heads"], given["hidden_size"]
        rope = rope_of(given)
        gemma, mixture, oss = family in GEMMAS, family in {"Qwen3Moe", *LATENT}, family == "GptOss"
        llama4 = family == "Llama4"
        number = "n_routed_experts" if family in LATENT else "num_experts"
        experts = given[number] if mixture else given.get("num_local_experts", 0)
        window = given["sliding_window"] if family in WINDOWED else None
        return checked(
            name=file_name(path.absolute().parent.name),
            source=given.get("_name_or_path") or str(path),
            layers=given["num_hidden_layers"],
            heads=heads,
            kv_heads=given.get("num_key_value_heads") or heads,
            hidden_size=hidden,
            # Absent or null in older files; transformers' Qwen 3 has heads of 128 without it.
            head_size=head_size_of(given) or (128 if family == "Qwen3" else hidden // heads),
            # Llama 4's is that of experts.
            intermediate_size=given["intermediate_size_mlp" if llama4 else "intermediate_size"],
            vocab_size=given["vocab_size"],
            max_sequence_length=given["max_position_embeddings"],
            norm_eps=given["rms_norm_eps"],
            norm_unit_offset=gemma,
            norm_place=PLACES.get(family, NormPlace.before),
            mlp=Mlp.GemmaMLP if gemma else Mlp.LLaMAMoE if experts else Mlp.LLaMAMLP,
            # GptOss always has biases; its config.json states those of attention.
            bias=oss,
            attention_sinks=oss,
            # Qwen2 always has a bias on query, key and value, and no key of its config.json states it.
            attention_bias=family == "Qwen2",
            norm_qk=family in {"Qwen3", "Qwen3Moe", "Gemma3", "Olmo2", "Olmo3"},
            norm_qk_whole=family in {"Olmo2", "Olmo3"},
            attention_scores_scalar=given["query_pre_attn_scalar"] if gemma else None,
            attention_softcap=given.get("attn_logit_softcapping") if gemma else None,
            logits_softcap=given.get("final_logit_softcapping") if gemma else None,
            sliding_window=window,
            full_attention_every=full_attention_every(windows_of(given)) if window else 0,
            rope_base=int(rope.get("rope_theta", 10000)),
            rope_fraction=rope.get("partial_rotary_factor", 1.0),
            rope_scaling=scaling_of(rope, given["max_position_embeddings"], of_scores=family in LATENT),
            rope_local_base=local_base_of(given),
            scale_embeddings=gemma,
            tie_embeddings=given.get("tie_word_embeddings", False),
            experts=experts,
            experts_per_token=given.get("num_experts_per_tok", 0) if experts else 0,
            moe_intermediate_size=given["moe_intermediate_size"]
            if mixture
            else given["intermediate_size"]
            if llama4
            else None,
            swiglu_limit=given.get("swiglu_limit", SWIGLU_LIMIT) if oss else None,
            **(deepseek_of(given) if family in LATENT else llama4_of(given) if llama4 else {}),
        )
    except (KeyError, TypeError, AttributeError, ValueError, ArithmeticError, OmegaConfBaseException) as error:
        lacks = isinstance(error, KeyError) and error.args
        what = f"it has no {error.args[0]}" if lacks else f"{type(error).__name__} {error}".splitlines()[0]
        raise ConfigError(
            f"{path} is not the configuration of a language model: {what}. Set the config.json "
            f"of one of {', '.join(ARCHITECTURES)}."
        ) from error


def refuse_other_sizes(run: Run, where: Path) -> None:
    """Raise ConfigError if a Hugging Face directory is of another model than the run."""
    there = from_config_json(where / "config.json")
    for key in SIZES:
        if getattr(there, key) != getattr(run.model, key):
            raise ConfigError(
                f"{run.name}: model.{key}={getattr(run.model, key)}, and the model in job.init_from={where} has "
                f"{getattr(there, key)}. Set model to its file, which `slurmscale model {where}` writes."
            )


def family_of(given: Mapping[str, Any]) -> str:
    """Return the family of a config.json: Qwen3ForCausalLM -> Qwen3."""
    return re.sub("For(CausalLM|ConditionalGeneration)$", "", ", ".join(given["architectures"]))


def of_text(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a language model: one of images and text describes it in a group of its own."""
    found = {**given, **(given.get("text_config") or {})}
    if family_of(given) == "Llama4":
        found = LLAMA4 | found
        return found | {"sliding_window": found["attention_chunk_size"]}
    if (family := family_of(given)) not in GEMMAS:
        return found
    if given.get("text_config"):
        found["vocab_size"] = GEMMA3["vocab_size"]
    found["hidden_act"] = found.get("hidden_activation") or GEMMA3["hidden_act"]
    by_kind = found.get("rope_parameters") or {}
    if "sliding_attention" in by_kind:
        # Since transformers 5 a group for each kind of layer.
        found["rope_parameters"] = by_kind["full_attention"]
        found["rope_local_base_freq"] = by_kind["sliding_attention"]["rope_theta"]
    # Gemma 2's caps are on unless they are null.
    off = {key for key in CAPS if key in found}
    return GEMMAS[family] | {key: value for key, value in found.items() if value is not None or key in off}


def local_base_of(given: Mapping[str, Any]) -> int | None:
    """Return the base of the rotary frequencies in layers with a sliding window, if these differ from the others'."""
    match family_of(given):
        case "Gemma3":
            return int(given["rope_local_base_freq"])
        case "Olmo3" if rope_of(given)["rope_type"] != "default":
            # transformers' Olmo3 scales only layers without a window; no key of its config.json states it.
            return int(rope_of(given)["rope_theta"])
    return None


def windows_of(given: Mapping[str, Any]) -> list[int]:
    """Return whether each layer has a sliding window: by a list, or in older files by a period."""
    if family_of(given) == "Llama4":
        # transformers rotates in layers with a 1. Their attention is that of chunks.
        every = given["no_rope_layer_interval"]
        return given.get("no_rope_layers") or [int(i % every > 0) for i in range(1, given["num_hidden_layers"] + 1)]
    if given.get("layer_types"):
        return [int(kind == "sliding_attention") for kind in given["layer_types"]]
    # transformers' Olmo3 has one layer of four without a window, its GptOss one of two; GEMMA3 has its own number.
    every = given.get("sliding_window_pattern", 2 if family_of(given) == "GptOss" else 4)
    return [int((layer + 1) % every > 0) for layer in range(given["num_hidden_layers"])]


def head_size_of(given: Mapping[str, Any]) -> int | None:
    """Return the width of a head of queries and keys, if a config.json states it."""
    if family_of(given) in LATENT:
        # Their head_dim, where there is one, is the rotated part.
        return int(given["qk_nope_head_dim"] + given["qk_rope_head_dim"])
    return given.get("head_dim")


def deepseek_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return latent attention, shared experts, dense layers and router of a DeepSeek-V2 or V3."""
    is_v3, groups = family_of(given) == "DeepseekV3", given.get("n_group") or 1
    if not is_v3 and given.get("topk_method", "greedy") == "greedy":
        groups = 1
    return {
        "latent": LatentAttention(
            kv_lora_rank=given["kv_lora_rank"],
            q_lora_rank=given["q_lora_rank"],
            rope_head_size=given["qk_rope_head_dim"],
            value_head_size=given["v_head_dim"],
        ),
        "shared_experts": given.get("n_shared_experts") or 0,
        "dense_layers": given.get("first_k_dense_replace") or 0,
        "router": Router(
            scores=RouterScores.sigmoid if is_v3 else RouterScores.softmax,
            normalize=bool(given["norm_topk_prob"]) if is_v3 else False,
            scale=float(given["routed_scaling_factor"]),
            groups=groups,
            chosen_groups=given["topk_group"] if groups > 1 else 1,
            # Groups compete by their best expert in V2, by their two best ones in V3.
            scores_per_group=2 if is_v3 and groups > 1 else 1,
        ),
    }


def llama4_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return rotated layers, temperature, shared expert, dense layers and router of a Llama 4."""
    growth = QueryTemperature(scale=given["attn_scale"], length=given["floor_scale"])
    return {
        "norm_rotated": given["use_qk_norm"],
        "chunked_window": True,
        "rope_in_windows": True,
        "query_temperature": growth if given["attn_temperature_tuning"] else None,
        "shared_experts": 1,
        "experts_every": given["interleave_moe_layer_step"],
        "router": Router(scores=RouterScores.sigmoid_inputs),
    }


def scaling_of(rope: Mapping[str, Any], longest: int, *, of_scores: bool) -> RopeScaling | None:
    """Return the scaling of a rotary embedding of a model whose longest sequence has `longest` tokens.

    With `of_scores` it may scale the scores of attention too (mscale_all_dim).
    """
    match rope["rope_type"]:
        case "llama3":
            return RopeScaling(
                factor=rope["factor"],
                low_freq_factor=rope["low_freq_factor"],
                high_freq_factor=rope["high_freq_factor"],
                original_max_sequence_length=rope["original_max_position_embeddings"],
            )
        case "linear":
            return RopeScaling(factor=rope["factor"])
        case "yarn":
            return RopeScaling(
                factor=rope["factor"],
                beta_slow=float(rope.get("beta_slow") or 1),
                beta_fast=float(rope.get("beta_fast") or 32),
                round_limits=rope.get("truncate", True),
                original_max_sequence_length=rope.get("original_max_position_embeddings") or longest,
                attention_factor=attention_factor(rope),
                # transformers 4.57's DeepseekV2 leaves it out; DeepSeek's own code, with which V2 was trained, has it.
                mscale_all_dim=float(rope.get("mscale_all_dim") or 0) if of_scores else 0.0,
            )
    return None


def attention_factor(rope: Mapping[str, Any]) -> float:
    """Return YaRN's factor of cosines and sines, as transformers does (modeling_rope_utils)."""
    if rope.get("attention_factor") is not None:
        return float(rope["attention_factor"])

    def of(scale: float) -> float:
        return 1 + 0.1 * scale * math.log(rope["factor"]) if rope["factor"] > 1 else 1.0

    of_all = rope.get("mscale_all_dim")
    return of(rope["mscale"]) / of(of_all) if rope.get("mscale") and of_all else of(1.0)


def rope_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rotary embedding of a config.json: one group since transformers 5, keys of the model before."""
    older = {key: given[key] for key in ("rope_theta", "partial_rotary_factor") if key in given}
    rope: dict[str, Any] = older | (given.get("rope_parameters") or given.get("rope_scaling") or {})
    return rope | {"rope_type": rope.get("rope_type", rope.get("type", "default"))}


def checked(**values: Any) -> Model:
    """Return a model; raise ValueError or OmegaConfBaseException for a value of another type, or an interpolation.

    In a model file an interpolation could read variables of the environment of whoever composes it.
    """
    if (found := interpolation_in(values)) is not None:
        raise ValueError(f"{found} is an interpolation")
    for _, text in strings(values):
        # JSON can spell half of a surrogate pair (\ud800), which no file in UTF-8 can hold: UnicodeEncodeError is a
        # ValueError.
        text.encode()
    return cast(Model, OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Model), values)))


def refuse_other_arithmetic(path: Path, given: Mapping[str, Any]) -> None:
    """Raise ConfigError for a config.json with arithmetic that the schema does not have."""
    architecture, family = ", ".join(given["architectures"]), family_of(given)
    rope_type, window = rope_of(given)["rope_type"], given.get("sliding_window")
    # Qwen2's files name a window that use_sliding_window=false switches off; one as long as the context never slides.
    longest = given.get("max_position_embeddings")
    slides = window and (longest is None or window < longest) and given.get("use_sliding_window", True)
    by_layer = slides and ("sliding_attention" in (given.get("layer_types") or ()) or "sliding_window_pattern" in given)
    gemma = family in GEMMAS
    act = GEMMA3["hidden_act"] if gemma else "silu"
    scalings = ("linear",) if gemma else ("llama3", "yarn")
    wrong = {
        f"architectures={architecture}, not one of {', '.join(ARCHITECTURES)}": architecture not in ARCHITECTURES,
        f"hidden_act={given.get('hidden_act')}, not {act}": given.get("hidden_act", act) != act,
        f"sliding_window={window}{' in some layers' if by_layer else ''}": slides and family not in WINDOWED,
        "attention_bias=true, also on the output": given.get("attention_bias", False) and family != "GptOss",
        "mlp_bias=true": given.get("mlp_bias", False),
        f"rope_scaling of type {rope_type}, not {' or '.join(scalings)}": rope_type not in {"default", *scalings},
    }
    if family == "Qwen3Moe":
        step = given.get("decoder_sparse_step", 1)
        wrong |= {
            "norm_topk_prob=false, a router whose weights are not normalized": not given.get("norm_topk_prob", False),
            f"mlp_only_layers={given.get('mlp_only_layers')}, dense layers": given.get("mlp_only_layers"),
            f"decoder_sparse_step={step}, dense layers": step != 1,
        }
    if family in LATENT:
        wrong |= other_deepseek(given)
    if family == "Llama4":
        wrong |= other_llama4(given)
    if gemma:
        wrong["use_bidirectional_attention"] = given.get("use_bidirectional_attention")
    if family in WINDOWED:
        windows = windows_of(given)
        every = full_attention_every(windows)
        named = "no_rope_layers" if family == "Llama4" else "layer_types"
        wrong[f"{named} without a period"] = windows != [
            int(not every or (layer + 1) % every > 0) for layer in range(len(windows))
        ]
    found = [what for what, is_so in wrong.items() if is_so]
    if architecture not in ARCHITECTURES:
        found += [f"{what} ({key})" for key, what in FEATURES.items() if given.get(key)]
        found += [UNSTATED[family]] if family in UNSTATED else []
    if found:
        raise ConfigError(f"{path} has {'; '.join(found)}: slurmscale's model does not have it. Choose another model.")


def other_llama4(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return whether a Llama 4 has arithmetic that the schema does not have, by its text."""
    step, layers, rotated = given["interleave_moe_layer_step"], given["num_hidden_layers"], windows_of(given)
    with_experts, kinds = list(range(step - 1, layers, step)), given.get("layer_types")
    chunked = [int(kind == "chunked_attention") for kind in kinds or ()]
    return {
        "attention_chunk_size=null, rotated layers without chunks": given["attention_chunk_size"] is None,
        f"moe_layers={given.get('moe_layers')}, not every {step}. layer": given.get("moe_layers")
        not in (None, with_experts),
        f"layer_types={kinds}, chunks in other layers than rotated ones": kinds and chunked != rotated,
    }


def other_deepseek(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return whether a DeepSeek-V2 or V3 has arithmetic that the schema or transformers does not have, by its text."""
    is_v3, heads = family_of(given) == "DeepseekV3", given.get("num_attention_heads")
    scoring = "sigmoid" if is_v3 else "softmax"
    methods = {"noaux_tc"} if is_v3 else {"greedy", "group_limited_greedy"}
    method, kv_heads = given.get("topk_method"), given.get("num_key_value_heads") or heads
    return {
        f"scoring_func={given.get('scoring_func')}, not {scoring}": given.get("scoring_func", scoring) != scoring,
        f"topk_method={method}, not {' or '.join(sorted(methods))}": method is not None and method not in methods,
        "norm_topk_prob=true, a router whose weights are normalized": not is_v3 and given.get("norm_topk_prob"),
        f"num_key_value_heads={kv_heads}, not {heads}": kv_heads != heads,
        f"moe_layer_freq={given.get('moe_layer_freq')}, further dense layers": given.get("moe_layer_freq", 1) != 1,
    }


def file_name(name: str) -> str:
    """Return the name of a model as conf/model spells it: Llama-3.1-8B -> llama31_8b."""
    joined = re.sub(r"(?<=[a-z])-(?=\d\.\d)|(?<=\d)\.(?=\d)", "", name.lower())
    return re.sub(r"\W+", "_", joined).strip("_") or "model"


def as_yaml(model: Model) -> str:
    """Return a model file, without keys at their default."""
    defaults = {field.name: field.default for field in fields(Model) if field.default is not MISSING}

    def plain(items: list[tuple[str, Any]]) -> dict[str, Any]:
        return {key: value.name if isinstance(value, Enum) else value for key, value in items if value is not None}

    values = asdict(model, dict_factory=plain)
    kept = {key: value for key, value in values.items() if key not in defaults or getattr(model, key) != defaults[key]}
    return yaml.safe_dump(kept, sort_keys=False, allow_unicode=True, width=1000)

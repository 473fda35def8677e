"""Convert the directory of a model between LitGPT's layout and Hugging Face's: `slurmscale convert`.

`python -m jobs.work.serve.conversion DIRECTORY NEW_DIRECTORY` does it in a process of its own, before a server starts.
It needs torch and LitGPT. The weights are renamed by jobs.engines.litgpt.hub_names.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from huggingface_hub import save_torch_state_dict
from safetensors import SafetensorError

from jobs.data.tokenizer import GENERATION_CONFIG, VOCABULARIES, read_json, special_tokens, tokenizer_files
from jobs.engines.litgpt.config import read_config
from jobs.engines.litgpt.hub_config import architecture_of, config_json
from jobs.engines.litgpt.hub_names import Rotated, source_of
from jobs.engines.litgpt.hub_weights import HubDirectory, rotated_last
from jobs.engines.litgpt.names import litgpt_fields
from jobs.engines.native.model import empty_model
from jobs.errors import CheckpointError
from jobs.files import opened
from jobs.output import own_program, write_file
from jobs.plan.model_file import from_config_json
from jobs.runtime.checkpoints.directory import save_archive
from jobs.runtime.checkpoints.pickles import MALFORMED
from jobs.work.serve.weights import LITGPT_CONFIG, LITGPT_WEIGHTS


def convert(source: Path, target: Path) -> None:
    """Convert a LitGPT directory to Hugging Face's layout, or the other way; the target appears when it is complete.

    Raise ConfigError for an architecture that is not among ARCHITECTURES, CheckpointError for what cannot be read or
    written.
    """
    aside = target.with_name(f"{target.name}.partial")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        aside.mkdir()
        writes = to_hugging_face if (source / LITGPT_WEIGHTS).exists() else to_litgpt
        writes(source, aside)
        aside.rename(target)
    except (OSError, RuntimeError, SafetensorError, *MALFORMED) as error:
        raise CheckpointError(
            f"{source} cannot be converted to {target}: {' '.join(str(error).split())}. Give a complete directory of a "
            "model, and a new one in a directory that exists and has room."
        ) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def to_hugging_face(source: Path, target: Path) -> None:
    """Write a LitGPT directory in Hugging Face's layout, into a directory that exists."""
    config = read_config(source / LITGPT_CONFIG)
    architecture = architecture_of(config, source)
    described = config_json(config, architecture)
    # The file stays mapped, so that its weights are in memory once.
    opened(source / LITGPT_WEIGHTS).close()
    loaded = torch.load(source / LITGPT_WEIGHTS, map_location="cpu", mmap=True, weights_only=True)
    weights = by_hub_names(loaded.get("model", loaded), config, architecture.name)
    if torch.equal(weights["lm_head.weight"], weights["model.embed_tokens.weight"]):
        # Servers keep one matrix then, and of some architectures refuse two.
        del weights["lm_head.weight"]
        described["tie_word_embeddings"] = True
    described["torch_dtype"] = str(weights["model.norm.weight"].dtype).removeprefix("torch.")
    # Files of 5 GB each with their index, as transformers writes them.
    save_torch_state_dict(weights, target, max_shard_size="5GB", metadata={"format": "pt"})
    files = vocabulary_of(source)
    for name, file in files.items():
        shutil.copyfile(file, target / name)
    tokens = token_ids(files)
    (target / "config.json").write_text(json.dumps(described | tokens, indent=2))
    given = read_json(files[GENERATION_CONFIG], strict=False) if GENERATION_CONFIG in files else {}
    (target / GENERATION_CONFIG).write_text(json.dumps(given | tokens, indent=2))
    for file in target.glob("*.safetensors"):
        # Its library lets nobody else read them, whatever the umask.
        file.chmod((target / "config.json").stat().st_mode)


def to_litgpt(source: Path, target: Path) -> None:
    """Write a Hugging Face directory in LitGPT's layout, into a directory that exists; weights keep their type."""
    stored, model = HubDirectory(source), from_config_json(source / "config.json")
    weights = {
        name: stored.read(name, empty.shape, None, torch.device("cpu"))
        for name, empty in empty_model(model, 1).state_dict().items()
    }
    save_archive(weights, target / LITGPT_WEIGHTS)
    write_file(target / LITGPT_CONFIG, yaml.safe_dump(litgpt_fields(model)))
    for name, file in vocabulary_of(source).items():
        shutil.copyfile(file, target / name)


def by_hub_names(weights: Mapping[str, torch.Tensor], config: Any, family: str) -> dict[str, torch.Tensor]:
    """Return the weights of a LitGPT directory by their names in Hugging Face's of that family."""
    heads, groups = config.n_head, config.n_query_groups
    found: dict[str, torch.Tensor] = {}
    for name, weight in weights.items():
        source = source_of(name, family)
        names = source.modules
        if source.of_experts is not None:
            whole = found.setdefault(names[0], source.of_experts.whole(weight, config.n_expert))
            source.of_experts.of(whole[source.of_experts.expert]).copy_(weight)
            continue
        if source.rotated in {Rotated.queries, Rotated.key}:
            of_heads = heads if source.rotated is Rotated.queries else 1
            found[names[0]] = rotated_last(weight, of_heads, config.latent["rope_head_size"])
            continue
        # Queries, keys and values are rows of one matrix here. They are copied: weights in a file share no memory.
        rows = [number * config.head_size for number in (heads, groups, groups)]
        parts = [weight] if len(names) == 1 else [part.clone() for part in weight.split(rows)]
        if source.rotated is Rotated.heads:
            for number, count in enumerate((heads, groups)):
                parts[number] = rotated_last(parts[number], count, config.head_size)
        found |= zip(names, parts, strict=True)
    return found


def vocabulary_of(directory: Path) -> dict[str, Path]:
    """Return the files of a directory's tokenizer; a model of random tokens has none."""
    return tokenizer_files(directory) if any((directory / name).is_file() for name in VOCABULARIES) else {}


def token_ids(files: dict[str, Path]) -> dict[str, Any]:
    """Return the special tokens by Hugging Face's keys, null for those that the tokenizer does not have.

    Without a key transformers takes Llama's own ids, 1 and 2, which are other tokens of most vocabularies.
    """
    if not files:
        return dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    tokens = special_tokens(files)
    ends = tokens.ends if len(tokens.ends) > 1 else tokens.ends[0]
    return {"bos_token_id": tokens.bos_id, "eos_token_id": ends, "pad_token_id": tokens.pad_id}


if __name__ == "__main__":
    with own_program():
        convert(Path(sys.argv[1]), Path(sys.argv[2]))

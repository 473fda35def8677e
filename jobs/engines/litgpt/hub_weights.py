"""Read the weights of a Hugging Face directory (safetensors, in one file or many) under LitGPT's names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from jobs.engines.litgpt.hub_names import OF_FAMILY, Rotated, Source, source_of
from jobs.errors import CheckpointError, ConfigError
from jobs.files import opened, read_json, reason
from jobs.plan.model_file import family_of, of_text, refuse_other_arithmetic

INDEX = "model.safetensors.index.json"
SCALES = "_scale_inv"
"""End of the name of the scales of a weight in FP8."""
# The text of a model of images and text is a part of it, under one of these names in place of `model`.
OF_TEXT = ("language_model.model.", "model.language_model.")


class HubDirectory:
    """The weights of a directory, read from disk on request (memory-mapped)."""

    def __init__(self, directory: Path) -> None:
        """Open all files.

        Raise CheckpointError for a directory that is incomplete, cannot be read, or has another arithmetic.
        """
        self.directory = directory
        try:
            given = of_text(read_json(directory / "config.json"))
            refuse_other_arithmetic(directory / "config.json", given)
            indexed = read_json(directory / INDEX)["weight_map"] if (directory / INDEX).exists() else {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, ConfigError) as error:
            why = reason(error) if isinstance(error, (OSError, ValueError)) else str(error)
            raise CheckpointError(
                f"{directory} is not a Hugging Face model: {why.rstrip('.')}. Give a directory with config.json and "
                "*.safetensors, or with lit_model.pth."
            ) from error
        self.family, self.given = family_of(given), given
        self.block = self.block_of(given.get("quantization_config"))
        self.files: dict[str, Any] = {}
        for name in sorted({*indexed.values()} or {file.name for file in directory.glob("*.safetensors")}):
            path = directory / name
            try:
                opened(path).close()  # not a FIFO, which would wait
                file = safe_open(path, framework="pt")
                self.files |= dict.fromkeys(file.keys(), file)  # type: ignore[no-untyped-call]  # safetensors publishes no types
            except (OSError, SafetensorError) as error:
                raise CheckpointError(f"{path} cannot be read: {error}. Download the model again.") from error

    def block_of(self, quantized: Any) -> tuple[int, int] | None:
        """Return the sides of blocks with one scale of weights in FP8; None for other weights.

        Raise CheckpointError for quantized weights that training does not read.
        """
        if not quantized:
            return None
        described = quantized if isinstance(quantized, dict) else {}
        method, block = described.get("quant_method", quantized), described.get("weight_block_size")
        stacked = any(source.of_experts is not None for source in OF_FAMILY[self.family].values())
        if method == "mxfp4" and stacked:
            return None
        if method == "fp8" and not stacked and isinstance(block, list) and len(block) == 2 and all_counts(block):
            return block[0], block[1]
        raise CheckpointError(
            f"{self.directory} has quantized weights ({method}, weight_block_size={block}), which training does not "
            "read: only those of DeepSeek-V3 (fp8 with weight_block_size, one matrix an expert) and of GPT-OSS "
            "(mxfp4). Set a directory with weights in bfloat16, float16 or float32."
        )

    def read(self, name: str, shape: Sequence[int], dtype: torch.dtype | None, device: torch.device) -> Tensor:
        """Return a weight by its LitGPT name, with dtype=None in its own type.

        Raise CheckpointError if it is missing or has another shape.
        """
        try:
            source = source_of(name, self.family)
        except KeyError as error:
            raise CheckpointError(
                f"{self.directory} is a {self.family}, which has no {name}: it belongs to another model. "
                "Set model= to match."
            ) from error
        if source.of_experts is not None:
            # A copy: the memory of a view has all experts.
            own = self.fitting(name, self.of_expert(source, device), shape)
            return own.clone(memory_format=torch.contiguous_format).to(device, dtype)
        whole = joined(source, lambda each: self.stored(each, dtype), self.given)
        if name in {"lm_head.weight", "transformer.wte.weight"} and self.family == "Gemma3":
            # A model of images has 64 rows more, for tokens of images.
            whole = whole[: shape[0]]
        return self.fitting(name, whole, shape).to(device, dtype)

    def fitting(self, name: str, weight: Tensor, shape: Sequence[int]) -> Tensor:
        """Return a weight; raise CheckpointError if its shape is another one."""
        if tuple(weight.shape) != tuple(shape):
            raise CheckpointError(
                f"{self.directory}: {name} has shape {tuple(weight.shape)}, the model wants "
                f"{tuple(shape)}. Set model= to match."
            )
        return weight

    def of_expert(self, source: Source, device: torch.device) -> Tensor:
        """Return the weight of one of the experts that share a tensor."""
        ((name,), place) = source.modules, source.of_experts
        assert place is not None
        if f"{name}_blocks" not in self.files:
            return place.of(self.part(name, place.expert))
        # Outputs are the rows of blocks, (experts, out, in / 32, 16).
        rows = [self.part(f"{name}_{part}", place.expert)[place.first :: place.step] for part in ("blocks", "scales")]
        return unpacked(*(each.to(device) for each in rows))

    def stored(self, name: str, dtype: torch.dtype | None) -> Tensor:
        """Return a weight by its name in Hugging Face's files, of FP8 in a type, by default bfloat16."""
        found = self.found(name)
        weight: Tensor = self.files[found].get_tensor(found)
        if weight.dtype is not torch.float8_e4m3fn:
            return weight
        scales, size = self.files.get(f"{found}{SCALES}"), list(weight.shape)
        if self.block is None or scales is None:
            raise CheckpointError(
                f"{self.directory}: {found} is in 8 bits, and {found}{SCALES} or quantization_config is missing. "
                "Download it again."
            )
        of_blocks: Tensor = scales.get_tensor(f"{found}{SCALES}")
        wanted = [-(-side // of_block) for side, of_block in zip(size, self.block, strict=True)]
        if list(of_blocks.shape) != wanted:
            raise CheckpointError(
                f"{self.directory}: {found}{SCALES} has shape {tuple(of_blocks.shape)}, and {found} of shape "
                f"{tuple(size)} needs {tuple(wanted)}. Download it again."
            )
        return scaled(weight, of_blocks, self.block, dtype or torch.bfloat16)

    def part(self, name: str, number: int) -> Tensor:
        """Return a part of a weight along its first dimension, and read no other."""
        found = self.found(name)
        part: Tensor = self.files[found].get_slice(found)[number]
        return part

    def found(self, name: str) -> str:
        """Return the name of a weight in the files; raise CheckpointError if they do not have it."""
        names = [name, *(prefix + name.removeprefix("model.") for prefix in OF_TEXT)]
        if name == "lm_head.weight":
            # Tied embeddings are stored once.
            names += [f"language_model.{name}", "model.embed_tokens.weight"]
            names += [f"{prefix}embed_tokens.weight" for prefix in OF_TEXT]
        for each in names:
            if each in self.files:
                return each
        raise CheckpointError(
            f"{self.directory} has no weight {name}: it belongs to another model, or a file is missing. "
            "Set model= to match, or download it again."
        )


def all_counts(sides: Sequence[object]) -> bool:
    """Return whether all sides of a block are positive numbers."""
    return all(isinstance(side, int) and side > 0 for side in sides)


def scaled(weight: Tensor, scales: Tensor, block: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """Return numbers of FP8 (rows, columns) times the scale of their block, computed in float32, in a type.

    DeepSeek's weight_scale_inv is what weights are multiplied by (fp8_cast_bf16.py). The last blocks may be cut.
    """
    rows, columns = block
    result = torch.empty_like(weight, dtype=dtype)
    # One row of blocks at a time: in float32 the whole would be four times as large as the weight.
    for number, of_row in enumerate(scales.float()):
        part = slice(number * rows, (number + 1) * rows)
        result[part] = weight[part].float() * of_row.repeat_interleave(columns)[: weight.shape[1]]
    return result


def unpacked(blocks: Tensor, scales: Tensor) -> Tensor:
    """Return numbers of MXFP4 (rows, in) in bfloat16, which has all of them.

    A block is 32 numbers of 4 bits, two a byte, the lower half first, (rows, in / 32, 16), and a scale 2^(scale - 127),
    (rows, in / 32): OCP Microscaling Formats (MX) Specification 1.0, sections 5.2 and 5.3.
    """
    levels = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.bfloat16, device=blocks.device)
    levels = torch.cat((levels, -levels))
    pairs = torch.stack((blocks & 15, blocks >> 4), -1).flatten(-2)
    return torch.ldexp(levels[pairs.int()], scales.int()[..., None] - 127).flatten(-2)


def joined(source: Source, stored: Callable[[str], Tensor], given: Mapping[str, Any]) -> Tensor:
    """Return a weight of LitGPT's from those that `stored` returns by Hugging Face's names, and from a config.json."""
    parts = [stored(each) for each in source.modules]
    if source.rotated is Rotated.heads:
        for number, key in enumerate(("num_attention_heads", "num_key_value_heads")):
            parts[number] = rotated_first(parts[number], given[key], given["head_dim"], pairs=True)
        return torch.cat(parts)
    whole = torch.cat(parts)
    if source.part is not None:
        whole = whole.chunk(2)[source.part]
    if source.rotated is not None:
        heads = given["num_attention_heads"] if source.rotated is Rotated.queries else 1
        # transformers' DeepseekV2 has no such key and rotates pairs.
        pairs = given.get("rope_interleave", True)
        whole = rotated_first(whole, heads, given["qk_rope_head_dim"], pairs=pairs)
    return whole


def rotated_first(weight: Tensor, heads: int, size: int, *, pairs: bool) -> Tensor:
    """Return a matrix of queries or keys (heads x rows, inputs) with the last `size` rows of each head first.

    DeepSeek and Llama 4 rotate neighbouring numbers as pairs. Here, as in other models, number i and number
    i + size / 2 are one: the even rows of the pairs come first, then the odd ones. Products of queries and keys do not
    change.
    """
    by_head = weight.unflatten(0, (heads, -1))
    rest, turned = by_head[:, :-size], by_head[:, -size:]
    if pairs:
        turned = turned.unflatten(1, (-1, 2)).transpose(1, 2).flatten(1, 2)
    return torch.cat([turned, rest], 1).flatten(0, 1)


def rotated_last(weight: Tensor, heads: int, size: int, *, pairs: bool = True) -> Tensor:
    """Return a matrix in the order of Hugging Face's files, which have pairs: the inverse of rotated_first."""
    by_head = weight.unflatten(0, (heads, -1))
    turned, rest = by_head[:, :size], by_head[:, size:]
    if pairs:
        turned = turned.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2)
    return torch.cat([rest, turned], 1).flatten(0, 1)

"""Load checkpoints as data: a checkpoint that another person wrote, or changed, runs no code of its own.

torch, Lightning, Megatron and LitGPT read checkpoints by pickle, each in its own place. After `load_as_data` torch.load
refuses everything but weights, wherever it is called, and the metadata of distributed checkpoints contains data only.
"""

from __future__ import annotations

import io
import os
import pickle
import struct
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorProperties

from jobs.files import opened, read_bytes
from jobs.runtime.data_pickles import DataUnpickler

# The metadata of a checkpoint of 10,000 ranks has some 100 MB.
METADATA_BYTES = 1 << 30
# What unpicklers raise for content that is none, besides OSError and RuntimeError.
MALFORMED = (
    pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, LookupError, AssertionError, MemoryError,
    ImportError, OverflowError, RecursionError, struct.error,
)  # fmt: skip


# The metadata of torch's and Megatron's checkpoints consists of these names, types of numbers, and the data classes and
# enumerations of these modules. What else torch.load accepts, such as a storage of any size, is in none.
METADATA_NAMES = {
    ("builtins", "getattr"),
    ("pathlib", "PosixPath"),
    ("pathlib._local", "PosixPath"),
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
}
METADATA_MODULES = (
    "torch.distributed.checkpoint.metadata",
    "torch.distributed.checkpoint.planner",
    "torch.distributed.checkpoint.filesystem",
    "megatron.core.dist_checkpointing.",
)
# Megatron sets it on its metadata next to the fields.
FURTHER = {"all_local_plans"}


class MetadataUnpickler(DataUnpickler):
    """Unpickler of the metadata of a distributed checkpoint."""

    origin = "The .metadata of a checkpoint"
    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)  # noqa: SLF001 (its table of opcodes)
    # It allocates as many bytes as the pickle claims to contain.
    del dispatch[pickle.BYTEARRAY8[0]]

    def find_class(self, module: str, name: str) -> Any:
        """Return a class that metadata consists of, or a type of numbers; refuse anything else."""
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if (module, name) not in METADATA_NAMES and not module.startswith(METADATA_MODULES):
            raise pickle.UnpicklingError(f"{self.origin} names {module}.{name}, which is no data of a checkpoint.")
        return super().find_class(module, name)

    def load_build(self) -> None:
        """Set fields of a data class's instance: pickle's own method sets any attribute of anything, classes too."""
        stack: list[Any] = self.stack  # type: ignore[attr-defined]  # pickle._Unpickler has it
        state, made = stack.pop(), stack[-1]
        if isinstance(made, type) or not is_dataclass(made):
            raise pickle.UnpicklingError(f"{self.origin} changes {type(made).__name__}, which is no data class.")
        if isinstance(made, TensorProperties):
            made.__setstate__(state)
        elif isinstance(state, dict) and state.keys() <= {field.name for field in fields(made)} | FURTHER:
            vars(made).update(state)
        else:
            raise pickle.UnpicklingError(f"{self.origin} sets what {type(made).__name__} does not have.")

    dispatch[pickle.BUILD[0]] = load_build


def read_metadata(reader: FileSystemReader, *_arguments: Any, rank: int | None = None, **_keywords: Any) -> Metadata:
    """Return the metadata of a checkpoint, whose files are all regular ones in its directory."""
    path = Path(reader._get_metadata_path(rank))  # noqa: SLF001 (there is no public one)
    with os.scandir(path.parent) as entries:
        odd = [entry.name for entry in entries if not entry.is_file() and not entry.is_dir()]
    if odd:
        raise pickle.UnpicklingError(f"{odd[0]} is not a regular file")
    metadata = MetadataUnpickler(io.BytesIO(read_bytes(path, METADATA_BYTES))).load()
    if not isinstance(metadata, Metadata) or not isinstance(metadata.storage_data, dict):
        raise pickle.UnpicklingError(".metadata is not that of a checkpoint")
    names = {getattr(each, "relative_path", None) for each in metadata.storage_data.values()}
    if outside := [name for name in names if not isinstance(name, str) or name in {"", ".", ".."} or os.sep in name]:
        raise pickle.UnpicklingError(f".metadata names {outside[0]!r}, which is not a file of the checkpoint")
    if not isinstance(metadata.storage_meta, StorageMeta):
        metadata.storage_meta = StorageMeta()
    metadata.storage_meta.load_id = reader.load_id
    return metadata


def load_as_data() -> None:
    """Let every reader of checkpoints in this process load data only, from now on."""
    os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"
    # Set by some programs for old checkpoints; torch accepts only one of the two.
    os.environ.pop("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", None)
    # Megatron's and Lightning's readers derive from this one, or use it.
    FileSystemReader.read_metadata = read_metadata  # type: ignore[method-assign, assignment]


def load_weights(path: Path) -> dict[str, Any]:
    """Return the state in a file of torch.save, memory-mapped on the CPU. Raise OSError, RuntimeError or MALFORMED."""
    opened(path).close()
    state = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    if not isinstance(state, dict):
        raise TypeError(f"it contains a {type(state).__name__}, not weights by name")
    return state

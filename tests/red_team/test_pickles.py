"""Pickles of checkpoints and messages: enumerations as every Python writes them, and nothing that is not data."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]  # torch has it, and does not list it
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    _MEM_FORMAT_ENCODING,
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
)

from jobs.engines.native.checkpoint import read_into, save_sharded
from jobs.errors import CheckpointError
from jobs.runtime.checkpoints.pickles import MALFORMED, MetadataUnpickler
from jobs.runtime.data_pickles import DataUnpickler, TrustedDataUnpickler, member_of

Encoding = _MEM_FORMAT_ENCODING
UNPICKLERS = (DataUnpickler, TrustedDataUnpickler, MetadataUnpickler)
# Written by Python 3.11.2, with an enumeration of this module and name.
PYTHON_3_11_2 = (
    b"\x80\x04\x95s\x00\x00\x00\x00\x00\x00\x00\x8c\x08builtins\x94\x8c\x07getattr\x94\x93\x94\x8c%torch.distributed."
    b"checkpoint.metadata\x94\x8c\x14_MEM_FORMAT_ENCODING\x94\x93\x94\x8c\x13TORCH_CHANNELS_LAST\x94\x86\x94R\x94."
)


class ByName(pickle.Pickler):
    """Write members as early releases of Python 3.11 do."""

    def reducer_override(self, value: Any) -> Any:
        return (getattr, (type(value), value.name)) if isinstance(value, Enum) else NotImplemented


class ByValue(pickle.Pickler):
    """Write members as all other releases do."""

    def reducer_override(self, value: Any) -> Any:
        return (type(value), (value.value,)) if isinstance(value, Enum) else NotImplemented


def pickled(value: Any, pickler: type[pickle.Pickler] = pickle.Pickler) -> bytes:
    file = io.BytesIO()
    pickler(file).dump(value)
    return file.getvalue()


class Calls:
    """An object whose pickle calls a function."""

    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> Any:
        function, *arguments = self.call
        return function, tuple(arguments)


def state_of(made: Any, state: Any) -> bytes:
    """Return a pickle that sets a state of what another pickle makes, by the opcode BUILD."""
    body, argument = (pickle.dumps(each, 2)[2:-1] for each in (made, state))
    return pickle.PROTO + b"\x02" + body + argument + pickle.BUILD + pickle.STOP


@pytest.mark.parametrize("unpickler", UNPICKLERS)
def test_a_member_of_an_enumeration_is_read_as_every_python_writes_it(unpickler: Any) -> None:
    assert unpickler(io.BytesIO(PYTHON_3_11_2)).load() is Encoding.TORCH_CHANNELS_LAST
    for member in Encoding:
        for pickler in (ByName, ByValue):
            assert unpickler(io.BytesIO(pickled(member, pickler))).load() is member


@pytest.mark.parametrize("unpickler", UNPICKLERS)
@pytest.mark.parametrize(
    "call",
    [
        (Encoding, "__class__"), (Encoding, "mro"), (Encoding, "_member_map_"), (Encoding, "__init_subclass__"),
        (Encoding, "torch_channels_last"), (Encoding, ""), (Encoding, 1), (Encoding, ("TORCH_CHANNELS_LAST",)),
        (Metadata, "__init__"), (TensorProperties, "create_from_tensor"), (MetadataIndex, "__class__"),
        (Encoding.TORCH_CHANNELS_LAST, "name"), ("text", "upper"), (torch.float32, "__reduce__"), (0, "real"),
    ],
    ids=str,
)  # fmt: skip
def test_getattr_in_a_pickle_gives_members_of_enumerations_and_nothing_else(unpickler: Any, call: Any) -> None:
    with pytest.raises(pickle.UnpicklingError, match="A pickle names"):
        unpickler(io.BytesIO(pickled(Calls(getattr, *call)))).load()


def test_getattr_in_a_pickle_takes_two_arguments() -> None:
    for arguments in ((Encoding,), (Encoding, "NO_SUCH_NAME", 1)):
        with pytest.raises(TypeError):
            DataUnpickler(io.BytesIO(pickled(Calls(getattr, *arguments)))).load()


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("pickler", [ByName, ByValue])
def test_a_checkpoint_is_read_in_both_forms(pickler: type[pickle.Pickler], tmp_path: Path) -> None:
    saved = {"a": torch.arange(8.0), "b": torch.ones(2, 2, dtype=torch.bfloat16), "c": torch.tensor(3), "d": "text"}
    save_sharded(saved, tmp_path)
    file = tmp_path / ".metadata"
    file.write_bytes(pickled(pickle.loads(file.read_bytes()), pickler))
    assert (b"getattr" in file.read_bytes()) == (pickler is ByName)
    found: dict[str, Any] = {"a": torch.zeros(8), "b": torch.zeros(2, 2, dtype=torch.bfloat16), "c": torch.tensor(0)}
    read_into(found, tmp_path)
    for name, value in found.items():
        torch.testing.assert_close(value, saved[name])


@pytest.mark.parametrize(
    "value",
    [
        range(10**12), slice(1), io.BytesIO(b"x"), ValueError("x"), KeyError, complex(1, 2), bytearray(8),
        torch.zeros(2), torch.device("cpu"), torch.UntypedStorage(4), torch.Generator, Path, Exception,
        Calls(torch.Size, range(10**12)), Calls(torch.zeros, 10**12), Calls(bytes, 10**12), print, object(),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_metadata_of_a_checkpoint_contains_only_what_that_of_a_real_one_does(value: Any) -> None:
    metadata = Metadata({}, planner_data=value)
    with pytest.raises(MALFORMED):
        MetadataUnpickler(io.BytesIO(pickled(metadata))).load()


@pytest.mark.parametrize(
    ("made", "state"),
    [
        (Metadata, {"__init__": None}),
        (Metadata, (None, {"state_dict_metadata": 1})),
        (_StorageInfo, {"relative_path": "x"}),
        (StorageMeta, (None, {"checkpoint_id": "x"})),
        (Encoding.TORCH_CHANNELS_LAST, {"_value_": 0}),
        (Encoding, (None, {"_member_map_": {}})),
        (torch.Size([1]), {"a": 1}),
        (torch.float32, (None, {"itemsize": 1})),
        (ChunkStorageMetadata(torch.Size([0]), torch.Size([1])), {"__class__": 1}),
        (ChunkStorageMetadata(torch.Size([0]), torch.Size([1])), (None, {"offsets": 1})),
        (ChunkStorageMetadata(torch.Size([0]), torch.Size([1])), [("offsets", 1)]),
        (BytesStorageMetadata(), {"other": 1}),
        (TensorProperties(), {"dtype": torch.float32}),
        (TensorProperties(), (1, 2)),
        ([], {"a": 1}),
        ("text", {"a": 1}),
    ],
    ids=str,
)
def test_metadata_sets_only_fields_of_its_own_instances(made: Any, state: Any) -> None:
    with pytest.raises(MALFORMED):
        MetadataUnpickler(io.BytesIO(state_of(made, state))).load()
    assert Metadata({}).state_dict_metadata == {}
    assert Encoding.TORCH_CHANNELS_LAST.value == 1


def test_megatrons_metadata_has_one_name_more_than_all_fields() -> None:
    metadata = Metadata({}, planner_data=None)
    vars(metadata)["all_local_plans"] = []
    read: Any = MetadataUnpickler(io.BytesIO(pickled(metadata))).load()
    assert vars(read) == vars(metadata)


def test_metadata_does_not_allocate_what_it_only_claims_to_contain() -> None:
    claim = pickle.PROTO + b"\x05" + pickle.BYTEARRAY8 + (1 << 40).to_bytes(8, "little") + pickle.STOP
    with pytest.raises(MALFORMED):
        MetadataUnpickler(io.BytesIO(claim)).load()


def test_an_enumeration_in_files_of_torch_save_is_read_by_name_too() -> None:
    """DeepSpeed's checkpoints contain one, in files that torch.load reads without running code."""
    file = io.BytesIO()
    torch.save({"stage": Calls(getattr, Encoding, "TORCH_CHANNELS_LAST"), "a": torch.ones(2)}, file)
    allowed: list[Any] = [Encoding, *((member_of, f"{module}.getattr") for module in ("builtins", "__builtin__"))]
    with torch.serialization.safe_globals(allowed):
        file.seek(0)
        assert torch.load(file, weights_only=True)["stage"] is Encoding.TORCH_CHANNELS_LAST
        file = io.BytesIO()
        torch.save(Calls(getattr, Encoding, "mro"), file)
        file.seek(0)
        with pytest.raises(pickle.UnpicklingError, match="no member of _MEM_FORMAT_ENCODING"):
            torch.load(file, weights_only=True)


def test_a_damaged_checkpoint_of_another_person_is_refused_by_name(alone: None, tmp_path: Path) -> None:
    save_sharded({"a": torch.zeros(2)}, tmp_path)
    (tmp_path / ".metadata").write_bytes(pickled(Metadata({}, planner_data=range(3))))
    with pytest.raises(CheckpointError, match=r"builtins\.range, which is no data of a checkpoint"):
        read_into({"a": torch.zeros(2)}, tmp_path)

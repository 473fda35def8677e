"""Unpickle data only: what other ranks send, and the metadata of checkpoints.

Our ranks exchange JSON, but libraries exchange objects: torch's distributed checkpoints and pipeline stages, Megatron's
checkpoints and Lightning send pickles by torch's object collectives, and write such metadata. A pickle may name their
data classes and enumerations, errors, and what torch.load accepts in a file of weights, and nothing else.

The unpickler in C is five times as fast, and allocates memory for the largest index that a pickle names, up to 2^32
entries. Ranks use it for messages with a code (HMAC) that only those who know the token of the start can compute;
checkpoints, which anybody may have written, are read by the one in Python.
"""

from __future__ import annotations

import hashlib
import hmac
import io
import pickle
import sys
from dataclasses import is_dataclass
from enum import Enum
from functools import partial
from pathlib import PosixPath
from traceback import FrameSummary, StackSummary
from typing import Any

import torch
from torch._weights_only_unpickler import _get_allowed_globals
from torch.distributed import distributed_c10d

LIBRARIES = ("torch.distributed.", "megatron.core.")
NAMES: dict[str, Any] = {
    "pathlib.PosixPath": PosixPath,
    "pathlib._local.PosixPath": PosixPath,  # its module in Python 3.13
    "_io.BytesIO": io.BytesIO,
    "traceback.StackSummary": StackSummary,
    "traceback.FrameSummary": FrameSummary,
    "builtins.frozenset": frozenset,
    "builtins.range": range,
    "builtins.slice": slice,
}


class DataOnly:
    """Part of an unpickler: constructs data only."""

    origin = "A rank sent a pickle that"

    def find_class(self, module: str, name: str) -> Any:
        """Return a class of data that is loaded here; refuse anything else, and import nothing."""
        if (module, name) == ("torch.storage", "_load_from_bytes"):
            return storage_of
        if (module, name) == ("builtins", "getattr"):
            return member_of
        known = NAMES | _get_allowed_globals()
        if f"{module}.{name}" in known:
            return known[f"{module}.{name}"]
        found = vars(sys.modules.get(module, object)).get(name)
        if is_data(module, found):
            return found
        raise pickle.UnpicklingError(
            f"{self.origin} names {module}.{name}, which is no data. Either another user wrote it, or a library needs "
            "it: see jobs/runtime/data_pickles.py."
        )


class DataUnpickler(DataOnly, pickle._Unpickler):  # noqa: SLF001 (its public name is the C one)
    """Unpickler for data that anybody may have written."""


class TrustedDataUnpickler(DataOnly, pickle.Unpickler):
    """Unpickler for data that a rank of this start has sent."""


class Sealed:
    """Pickler and unpickler of torch's object collectives: a pickle after its code by the key of this start."""

    def __init__(self, key: bytes, file: io.BytesIO) -> None:
        self.key = key
        self.file = file

    def code(self, pickled: bytes) -> bytes:
        """Return the code of a pickle."""
        return hmac.digest(self.key, pickled, hashlib.sha256)

    def dump(self, value: Any) -> None:
        """Write a value."""
        pickled = pickle.dumps(value)
        self.file.write(self.code(pickled) + pickled)

    def load(self) -> Any:
        """Return the value; raise UnpicklingError unless it is data of a rank of this start."""
        code, pickled = self.file.read(hashlib.sha256().digest_size), self.file.read()
        if not hmac.compare_digest(code, self.code(pickled)):
            raise pickle.UnpicklingError(
                "A rank received an object that no rank of this start has sent. Another user of the network may "
                "have sent it; start the run again, and inform the site."
            )
        return TrustedDataUnpickler(io.BytesIO(pickled)).load()


def storage_of(data: bytes) -> Any:
    """Return the values of a tensor; torch's own function would unpickle whatever the bytes name."""
    return torch.load(io.BytesIO(data), weights_only=True)


def member_of(enumeration: Any, name: Any) -> Enum:
    """Return a member of an enumeration that an unpickler has found; raise UnpicklingError for any other attribute.

    Early releases of Python 3.11 pickle a member as getattr(class, name), all others as class(value).
    """
    if not (isinstance(enumeration, type) and issubclass(enumeration, Enum) and isinstance(name, str)):
        raise pickle.UnpicklingError(f"A pickle names {name!r} of {enumeration!r}, which is no enumeration.")
    if name not in enumeration.__members__:
        raise pickle.UnpicklingError(f"A pickle names {name!r}, which is no member of {enumeration.__name__}.")
    return enumeration.__members__[name]


def is_data(module: str, found: Any) -> bool:
    """Return True for an error, and for a data class, enumeration or named tuple of LIBRARIES."""
    if not isinstance(found, type):
        return False
    fields = is_dataclass(found) or issubclass(found, Enum | tuple)
    return issubclass(found, BaseException) or (module.startswith(LIBRARIES) and fields)


def exchange_data_only(key: bytes) -> None:
    """Let every object collective of this process send and accept data with the code of this key only, from now on."""
    # torch has no public way.
    distributed_c10d._pickler = partial(Sealed, key)  # type: ignore[assignment]  # noqa: SLF001
    distributed_c10d._unpickler = partial(Sealed, key)  # type: ignore[assignment]  # noqa: SLF001

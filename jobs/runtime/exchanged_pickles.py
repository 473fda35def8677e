"""Unpickle what other ranks send as data: our ranks exchange JSON, but libraries exchange objects.

torch's distributed checkpoints and pipeline stages, Megatron's checkpoints and Lightning send pickles by torch's object
collectives. Their data classes, enumerations and errors are all that such a pickle may name.
"""

from __future__ import annotations

import pickle
import sys
from dataclasses import is_dataclass
from enum import Enum
from typing import Any

import torch
from torch.distributed import distributed_c10d

LIBRARIES = ("torch.distributed.", "megatron.core.")
NAMES = {
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("collections", "OrderedDict"),
    ("pathlib", "PosixPath"),
    ("pathlib._local", "PosixPath"),  # its module since Python 3.13
    ("_io", "BytesIO"),
    ("traceback", "StackSummary"),
    ("traceback", "FrameSummary"),
    *(("builtins", name) for name in ("bytearray", "complex", "frozenset", "range", "set", "slice")),
}


class DataUnpickler(pickle.Unpickler):
    """Unpickler that constructs data only."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a class of data that is loaded here; refuse anything else, and import nothing."""
        found = vars(sys.modules.get(module, object)).get(name)
        if (module, name) in NAMES or is_data(module, found):
            return found
        raise pickle.UnpicklingError(
            f"A rank sent a pickle that names {module}.{name}, which is no data. Either another user of the network "
            "took the place of a rank, or a library needs it: see jobs/runtime/exchanged_pickles.py."
        )


def is_data(module: str, found: Any) -> bool:
    """Return True for an error, a dtype or its like, and a data class, enumeration or named tuple of LIBRARIES."""
    if not isinstance(found, type):
        return isinstance(found, torch.dtype | torch.layout | torch.memory_format)
    fields = is_dataclass(found) or issubclass(found, Enum | tuple)
    return issubclass(found, Exception) or (module.startswith(LIBRARIES) and fields)


def unpickle_data_only() -> None:
    """Let every object collective of this process unpickle data only, from now on."""
    distributed_c10d._unpickler = DataUnpickler  # noqa: SLF001 (torch has no public way)

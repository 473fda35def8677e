"""Space and memory that a test of storage needs, and the words of a refusal where a machine has less."""

from __future__ import annotations

import math
import re
import shutil
from pathlib import Path

from jobs.plan.cost import parameters
from jobs.plan.predict.activations import WIDTHS
from jobs.plan.predict.states import parameters_held
from jobs.schema import Precision, Run
from jobs.settings.storage import CheckpointContent, DataFormat

GB = 1e9
LEAST_MEMORY_LEFT = 1e9
"""Memory of a node that Python, torch and the system take besides the state."""
MEMORY = Path("/proc/meminfo")


def bytes_per_parameter(run: Run) -> int:
    """Return the bytes that a checkpoint holds for each parameter."""
    assert run.storage is not None
    assert run.storage.checkpoint is not None
    if run.storage.checkpoint.content is CheckpointContent.mixed:
        return WIDTHS[Precision.bfloat16] + 3 * WIDTHS[Precision.float32]
    return 3 * WIDTHS[run.engine.parameters]


def needed_bytes(run: Run) -> float:
    """Return the space that a test needs at once on the storage."""
    test = run.storage
    assert test is not None
    if test.checkpoint is not None:
        return test.checkpoint.fraction * bytes_per_parameter(run) * parameters(run.model)
    if test.data is not None:
        return 0 if test.data.path else test.data.samples * stored_bytes(test.data.format, test.data.sample_bytes)
    assert test.fio is not None
    return run.ranks * test.fio.jobs * test.fio.size_mib * 2**20


def stored_bytes(kind: DataFormat, sample_bytes: int) -> int:
    """Return the size of a sample in its file: tar has a header and fills blocks of 512, for content and label."""
    return math.ceil(sample_bytes / 512) * 512 + 3 * 512 if kind is DataFormat.tar else sample_bytes + 32


def node_memory_bytes(run: Run) -> float:
    """Return the memory that the tensors of the ranks of a node take."""
    assert run.storage is not None
    if run.storage.checkpoint is None:
        return 0
    held = parameters_held(run).total * bytes_per_parameter(run) * run.storage.checkpoint.fraction
    return held * run.ranks_per_node


def refused_space(run: Run, where: Path) -> str | None:
    """Return the refusal of a run whose storage has not the space, None if it has; a missing directory is its parent.

    The refusal has the needed and the free space, and a value to set.
    """
    existing = next(path for path in (where, *where.parents) if path.exists())
    needed, free = needed_bytes(run), shutil.disk_usage(existing).free
    if needed < free:
        return None
    return (
        f"storage: the test needs {needed / GB:,.1f} GB in {where}, which has {free / GB:,.1f} GB free. "
        f"Set {remedy(run, free / needed)}, or storage.path=DIRECTORY on a larger storage."
    )


def refused_memory(run: Run) -> str | None:
    """Return the refusal of a run whose tensors do not fit the free memory of this node, None if they do."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB", MEMORY.read_text(), re.MULTILINE)
    return memory_refusal(run, int(found[1]) * 1024, "this node has free") if found else None


def memory_refusal(run: Run, memory_bytes: float, whose: str) -> str | None:
    """Return the refusal of a run whose tensors do not fit this memory of a node, None if they do."""
    needed, room = node_memory_bytes(run), memory_bytes - LEAST_MEMORY_LEFT
    if needed <= max(room, 0):
        return None
    return (
        f"storage.checkpoint keeps its tensors in host memory: the {run.ranks_per_node} ranks of a node need "
        f"{needed / GB:,.1f} GB, and {whose} {memory_bytes / GB:,.1f} GB, and the system needs "
        f"{LEAST_MEMORY_LEFT / GB:g} of it. Set {remedy(run, room / needed)}, or shard the model over more nodes."
    )


def remedy(run: Run, share: float) -> str:
    """Return the key that makes the test smaller, with the largest value that fits this share of what it needs."""
    test = run.storage
    assert test is not None
    # Rounded down to two digits, and not to the last byte: file systems keep some.
    share = 0.95 * max(share, 1e-6)
    if test.checkpoint is not None:
        fraction = test.checkpoint.fraction * share
        digits = 1 - math.floor(math.log10(fraction))
        return f"storage.checkpoint.fraction={math.floor(fraction * 10**digits) / 10**digits:g} or less"
    if test.data is not None:
        return f"storage.data.samples={max(1, int(test.data.samples * share))} or fewer"
    assert test.fio is not None
    return f"storage.fio.size_mib={max(1, int(test.fio.size_mib * share))} or less"

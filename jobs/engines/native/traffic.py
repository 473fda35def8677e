"""What a rank holds and sends: parameters, and the payload of every collective of a step by axis of the rank grid."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from jobs import metrics as m
from jobs.engines.native.load_sharded import local_shard
from jobs.layout import AXIS_NAMES, Layout

# Part of an operator's name -> what it does. Barriers and waits move nothing; a receive is a send's other end.
COLLECTIVES = {
    "allreduce": "all_reduce",
    "all_reduce": "all_reduce",
    "allgather": "all_gather",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "all_to_all": "all_to_all",
    "broadcast": "broadcast",
    "send": "send",
}
NAMESPACES = {"c10d", "_c10d_functional", "_c10d_functional_autograd"}


class Traffic(TorchDispatchMode):
    """Counts the collectives that start inside it; compiled layers have none, as TP does not run compiled."""

    def __init__(self, layout: Layout) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types for it
        self.layout = layout
        self.calls: Counter[tuple[str, str]] = Counter()
        self.bytes: Counter[tuple[str, str]] = Counter()

    def __torch_dispatch__(
        self, operator: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operator, and count it if it is a collective."""
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it unfolds into operators on local tensors, which come here again
        result = operator(*args, **(kwargs or {}))
        if operator.namespace in NAMESPACES:
            self.count(operator.__name__, args, result)
        return result

    def count(self, operator: str, args: tuple[Any, ...], result: Any) -> None:
        """Add one call, if the operator moves anything."""
        name = next((known for part, known in COLLECTIVES.items() if part in operator), None)
        if name is not None:
            where = self.axis(group_of(args)), name
            self.calls[where] += 1
            # Outputs and inputs: the larger side is what was gathered, or what is scattered.
            self.bytes[where] += max(size_bytes(side) for side in (*args[:2], result))

    def axis(self, group: dist.ProcessGroup) -> str:
        """The axes along which the ranks of a group differ."""
        places = [self.layout.coordinates(rank) for rank in dist.get_process_group_ranks(group)]
        varying = [
            axis for axis, along in zip(AXIS_NAMES, zip(*places, strict=True), strict=True) if len(set(along)) > 1
        ]
        whole = len(places) == self.layout.world_size and len(varying) > 1
        return "world" if whole else "+".join(varying)

    def of_busiest_rank(self) -> list[dict[str, object]]:
        """Calls and bytes by axis and collective, of the rank that moves the most; every rank calls it."""
        mine = [
            {
                "axis": axis,
                "collective": collective,
                m.COLLECTIVE_CALLS.name: self.calls[axis, collective],
                m.COLLECTIVE_BYTES.name: moved,
            }
            for (axis, collective), moved in sorted(self.bytes.items())
            if axis  # a group of one rank moves nothing
        ]
        total = sum(moved for (axis, _), moved in self.bytes.items() if axis)
        ranks: list[tuple[int, list[dict[str, object]]]] = [(total, mine)] * self.layout.world_size
        dist.all_gather_object(ranks, (total, mine))
        return max(ranks, key=lambda rank: rank[0])[1]


def group_of(args: tuple[Any, ...]) -> dist.ProcessGroup:
    """The process group among an operator's arguments: itself, boxed for the dispatcher, or the last string."""
    for arg in reversed(args):
        if isinstance(arg, dist.ProcessGroup):
            return arg
        if isinstance(arg, torch.ScriptObject) and "ProcessGroup" in str(arg._type()):  # noqa: SLF001 (no public way)
            return dist.ProcessGroup.unbox(arg)
        if isinstance(arg, str):
            # By its name, which torch types as a kind of string of its own.
            resolve = torch._C._distributed_c10d._resolve_process_group  # noqa: SLF001 (no public way)
            return resolve(arg)  # type: ignore[arg-type]  # a GroupName, which is a string
    raise AssertionError(f"a collective without a process group: {args}")


def size_bytes(side: object) -> int:
    """Bytes of all tensors in an argument or result."""
    return sum(leaf.nbytes for leaf in tree_leaves(side) if isinstance(leaf, Tensor))


def held_here(parameters: Iterable[Tensor]) -> int:
    """Parameters that this rank keeps between steps."""
    return sum(local_shard(parameter).numel() for parameter in parameters)


def parameters_held(parameters: Iterable[Tensor]) -> int:
    """Parameters of the rank with the most; every rank calls it."""
    count = held_here(parameters)
    counts = [count] * dist.get_world_size()
    dist.all_gather_object(counts, count)
    return max(counts)

"""Memory and communication per rank: parameters held, and the payload of each collective of a step by axis."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from jobs import metrics as m
from jobs.engines.native.customization.nf4 import Nf4Linear, numbers_in
from jobs.engines.native.load_sharded import local_shard
from jobs.layout import Layout
from jobs.runtime.exchange import gather
from jobs.runtime.profiling.trace import COLLECTIVES

NAMESPACES = {"c10d", "_c10d_functional", "_c10d_functional_autograd"}


class Traffic(TorchDispatchMode):
    """Count the collectives that start inside this context, those of compiled layers included."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let torch.compile ignore this mode: under others it skips a function, for the rest of the process."""
        return True

    def __init__(self, layout: Layout) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types for it
        self.layout = layout
        self.calls: Counter[tuple[str, str]] = Counter()
        self.bytes: Counter[tuple[str, str]] = Counter()

    def __torch_dispatch__(
        self, operator: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operator, and count it if it is a collective."""
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # DTensor calls operators on local tensors, which are dispatched here again
        result = operator(*args, **(kwargs or {}))
        if operator.namespace in NAMESPACES:
            self.count(operator.__name__, args, result)
        return result

    def count(self, operator: str, args: tuple[Any, ...], result: Any) -> None:
        """Add one call if the operator moves data."""
        name = next((known for part, known in COLLECTIVES.items() if part in operator), None)
        if name is not None:
            where = self.layout.axes_between(dist.get_process_group_ranks(group_of(args))), name
            self.calls[where] += 1
            # The larger side is what an all-gather returns, or what a reduce-scatter takes.
            self.bytes[where] += max(size_bytes(side) for side in (*args[:2], result))

    def of_busiest_rank(self) -> list[dict[str, object]]:
        """Return calls and bytes by axis and collective of the rank with the most bytes; every rank calls it."""
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
        busiest: list[dict[str, object]] = max(gather([total, mine]), key=lambda rank: rank[0])[1]
        return busiest


def group_of(args: tuple[Any, ...]) -> dist.ProcessGroup:
    """Return the process group among an operator's arguments: itself, boxed for the dispatcher, or the last string."""
    for arg in reversed(args):
        if isinstance(arg, dist.ProcessGroup):
            return arg
        if isinstance(arg, torch.ScriptObject) and "ProcessGroup" in str(arg._type()):  # noqa: SLF001 (no public way)
            return dist.ProcessGroup.unbox(arg)
        if isinstance(arg, str):
            # Its name, for which torch has a string type of its own.
            resolve = torch._C._distributed_c10d._resolve_process_group  # noqa: SLF001 (no public way)
            return resolve(arg)  # type: ignore[arg-type]  # a GroupName, which is a string
    raise AssertionError(f"a collective without a process group: {args}")


def size_bytes(side: object) -> int:
    """Return the bytes of all tensors in an argument or result."""
    return sum(leaf.nbytes for leaf in tree_leaves(side) if isinstance(leaf, Tensor))


def held_here(parameters: Iterable[Tensor]) -> int:
    """Return the number of parameters that this rank keeps between steps."""
    return sum(local_shard(parameter).numel() for parameter in parameters)


def parameters_held(model: nn.Module) -> int:
    """Return the number of parameters of the rank with the most; every rank calls it."""
    packed = [module for module in model.modules() if isinstance(module, Nf4Linear)]
    # Each number in 4 bits is one.
    more = sum((numbers_in(linear.stored) - 1) * local_shard(linear.weight).numel() for linear in packed)
    return max(int(held) for held in gather(held_here(model.parameters()) + more))

"""The real native engine on fake tensors: shapes and lifetimes of every tensor at real size, without their memory.

One rank of any layout trains some micro-batches: torch's FakeTensorMode replaces values, its fake process group the
other ranks. GPUs have one kernel for attention and for RMSNorm where CPUs have several, so stand-ins that keep what the
GPU's kernels keep take their place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest.mock import Mock, patch
from weakref import finalize

import torch
import torch.distributed as dist
import torch.nn.functional as F
from litgpt.model import GPT
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.fsdp._fully_shard import _fsdp_param
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from jobs.data import MicroBatch
from jobs.engines.native import attention, parallelize
from jobs.engines.native.customization.nf4 import Nf4Linear
from jobs.engines.native.load_sharded import local_shard
from jobs.engines.native.model import tie_embeddings
from jobs.engines.native.parallelize import ParallelModel, device_mesh, parallel_model
from jobs.layout import layout_of
from jobs.schema import Batching, Run
from jobs.work.evaluate import evaluate

SHAPES = ShardingPropagator._propagate_tensor_meta_non_cached


class Live(TorchDispatchMode):
    """Bytes of all tensors that exist and were made inside, and the most at once."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sizes: dict[int, int] = {}
        self.live_bytes = self.peak_bytes = 0

    def __torch_dispatch__(
        self, operator: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operator and add what it allocates until that is freed."""
        if any(issubclass(each, DTensor) for each in types):
            return NotImplemented  # its parts follow as operators on local tensors
        given = {x.untyped_storage()._cdata for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        result = operator(*args, **(kwargs or {}))
        for each in tree_leaves(result):
            if isinstance(each, Tensor):
                storage = each.untyped_storage()
                if storage._cdata not in self.sizes and storage._cdata not in given:
                    self.sizes[storage._cdata] = storage.nbytes()
                    self.live_bytes += storage.nbytes()
                    finalize(storage, self.freed, storage._cdata)
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        return result

    def resized(self, resize: Callable[[Tensor], None], tensor: Tensor) -> None:
        """Call one of FSDP's functions that free or allocate the storage of gathered weights in place."""
        resize(tensor)
        storage = tensor.untyped_storage()
        if storage._cdata in self.sizes:
            self.live_bytes += storage.nbytes() - self.sizes[storage._cdata]
            self.sizes[storage._cdata] = storage.nbytes()

    def freed(self, key: int) -> None:
        """Subtract a storage."""
        self.live_bytes -= self.sizes.pop(key)


class OneRMSNorm(torch.autograd.Function):
    """RMSNorm as the GPU's kernel keeps it: its input, and 1 / root mean square in float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None) -> Tensor:
        """Return something like x."""
        # Like a part of x, sharded as it is: new_empty of a DTensor would be whole on every rank.
        ctx.save_for_backward(x, torch.empty_like(x[..., :1], dtype=torch.float32), weight)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return something like x, and like the weight."""
        x, _, weight = ctx.saved_tensors
        return torch.empty_like(x), None if weight is None else torch.empty_like(weight)


def one_norm(x: Tensor, _shape: object, weight: Tensor | None, _eps: object) -> Tensor:
    """Replace F.rms_norm."""
    y: Tensor = OneRMSNorm.apply(*in_float32(x, weight))  # type: ignore[no-untyped-call]
    return y


def in_float32(*given: Any) -> tuple[Any, ...]:
    """Return the operands of a norm in the type that autocast on a GPU casts them to; on a CPU it leaves them."""
    if not torch.is_autocast_enabled("cpu"):
        return given
    return tuple(None if each is None else each.float() for each in given)


def layer_norm(x: Tensor, shape: Any, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Replace F.layer_norm."""
    x, weight, bias = in_float32(x, weight, bias)
    return torch.layer_norm(x, shape, weight, bias, eps)


def flash(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool, scale: float | None, enable_gqa: bool = False) -> Tensor:
    """Replace F.scaled_dot_product_attention by the operator of FlashAttention, which takes grouped heads."""
    del enable_gqa, scale
    y: Tensor = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, is_causal)[0]
    return y


def dropout(x: Tensor, share: float) -> Tensor:
    """Replace F.dropout by the GPU's operator, whose mask has a byte a number."""
    return torch.native_dropout(x, share, True)[0]


def shapes(*args: Any) -> Any:
    """Replace DTensor's search for the shape of a result, by an operator on whole tensors: no mode counts them."""
    with _disable_current_modes():
        return SHAPES(*args)


@contextmanager
def as_on_a_gpu(live: Live) -> Iterator[None]:
    """Take the kernels of a GPU where the engine asks for them, and let `live` count memory only."""
    half = {torch.bfloat16, torch.float16}
    with (
        patch.object(_fsdp_param, "alloc_storage", partial(live.resized, _fsdp_param.alloc_storage)),
        patch.object(_fsdp_param, "free_storage", partial(live.resized, _fsdp_param.free_storage)),
        patch.object(F, "rms_norm", one_norm),
        patch.object(F, "layer_norm", layer_norm),
        patch.object(F, "dropout", dropout),
        patch.object(F, "scaled_dot_product_attention", flash),
        patch.object(ShardingPropagator, "_propagate_tensor_meta_non_cached", shapes),
        patch.object(attention, "has_varlen_kernel", lambda q: q.dtype in half and q.shape[-1] % 8 == 0),
    ):
        yield


@dataclass
class Held:
    """Bytes of one rank."""

    kept: int = 0
    """Kept for backward by the first micro-batch, without weights and the rotary table."""
    peaks: list[int] = field(default_factory=list)
    """Most bytes of a micro-batch beyond the weights: gradients of those before it are included."""
    gradients: int = 0
    """Left after the last micro-batch."""


def engine_on_fakes(run: Run, rank: int = 0, micro_batches: int = 2) -> Held:
    """Return what a rank of the native engine holds while it runs micro-batches of full rows."""
    fake, live = FakeTensorMode(allow_non_fake_inputs=True), Live()
    layout = layout_of(run)
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=layout.world_size)
    try:
        mesh = device_mesh(layout, torch.device("cpu"))
        with patch.object(parallelize, "load_sharded", partial(load_nothing, fake)), as_on_a_gpu(live):
            model = parallel_model(run, mesh, torch.device("cpu"), lambda _metric: None)
            with fake:
                return trained(model, run, live, micro_batches)
    finally:
        dist.destroy_process_group()


def evaluation_on_fakes(run: Run) -> int:
    """Return the most bytes beyond the weights while a run that trains nothing computes the loss of full rows."""
    fake, live, device = FakeTensorMode(allow_non_fake_inputs=True), Live(), torch.device("cpu")
    with patch.object(evaluate, "load_sharded", partial(load_nothing, fake)):
        gpt, _ = evaluate.trained_model(run, Mock(), device)
    evaluate.prepare(gpt, run, device)
    with as_on_a_gpu(live), fake, live, torch.no_grad():
        gpt(*full_rows(run))
    return live.peak_bytes


def load_nothing(
    fake: FakeTensorMode, gpt: GPT, device: torch.device, _values: object, *, tensor: int, tied: bool
) -> None:
    """Replace load_sharded: give every parameter a fake tensor of its shard."""
    if any(isinstance(module, Nf4Linear) for module in gpt.modules()):
        # bitsandbytes keeps a table of its levels, which must not be a fake.
        Nf4Linear.pack(Mock(out_features=1, stored=torch.float32), torch.ones(1, 64))
    del tensor
    with fake:
        for module in gpt.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                local: Tensor = torch.empty_like(local_shard(parameter), device=device)
                if isinstance(parameter, DTensor):
                    local = DTensor.from_local(
                        local, parameter.device_mesh, parameter.placements, run_check=False, shape=parameter.shape,
                        stride=parameter.stride(),
                    )  # fmt: skip
                setattr(module, name, nn.Parameter(local, requires_grad=parameter.requires_grad))
            if isinstance(module, Nf4Linear):
                module.pack(torch.empty(module.out_features, module.in_features, dtype=module.stored, device=device))
        tie_embeddings(gpt, tied=tied)
        gpt.cos, gpt.sin = (torch.empty(table.shape, device=device) for table in (gpt.cos, gpt.sin))


def trained(model: ParallelModel, run: Run, live: Live, micro_batches: int) -> Held:
    """Run micro-batches and count."""
    seen: set[int] = set()
    held = Held()
    weights = {local_shard(p).untyped_storage()._cdata for p in model.gpt.parameters()}
    weights |= {table.untyped_storage()._cdata for table in (model.gpt.cos, model.gpt.sin)}

    def pack(tensor: Tensor) -> Tensor:
        storage = local_shard(tensor).untyped_storage()
        if not held.peaks and storage._cdata not in weights | seen:
            seen.add(storage._cdata)
            finalize(storage, seen.discard, storage._cdata)
            held.kept += storage.nbytes()
        return tensor

    unpack: Callable[[Tensor], Tensor] = lambda tensor: tensor  # noqa: E731
    execution: Any = model.execution
    around = execution.around

    @contextmanager
    def measured(tokens: list[Tensor]) -> Iterator[None]:
        live.peak_bytes = live.live_bytes
        with around(tokens):
            yield
        held.peaks.append(live.peak_bytes)

    execution.around = measured
    # One step, since FSDP keeps weights and gradients between its micro-batches.
    batches = [full_rows(run) for _ in range(micro_batches)]
    with live, torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        execution.forward_backward(batches, 1.0)
    held.gradients = live.live_bytes
    return held


def full_rows(run: Run) -> MicroBatch[Tensor]:
    """Return a micro-batch of samples of job.sequence_length and virtual tokens, all of them labels."""
    rows, length = run.job.micro_batch_size, run.job.row_length
    tokens = torch.zeros(rows, length, dtype=torch.int64)
    if run.job.batching is not Batching.packed:
        return MicroBatch(tokens, tokens.clone(), rows * length)
    bounds = torch.arange(0, (rows + 1) * length, length)[None]
    return MicroBatch(tokens.view(1, -1), tokens.view(1, -1).clone(), rows * length, bounds)

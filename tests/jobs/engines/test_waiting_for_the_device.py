"""Inside a step the host waits for the device once, to read the loss and the norm: it stays ahead of a GPU."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from jobs.data.batches import StepBatch
from jobs.engines.native import attention
from jobs.engines.native import trainer as workload
from jobs.engines.native.attention import mask
from jobs.engines.native.trainer import Trainer
from jobs.rundir import RunDir
from jobs.runtime.process_group import on_host
from tests.support.real_run import make_run, printed, rank, train
from tests.support.training import long

# Operators whose result or its size depends on values that only the device has. tolist and numpy copy from a GPU, and
# dispatch no operator on a CPU.
READS = {
    "_local_scalar_dense",
    "nonzero",
    "nonzero_numpy",
    "masked_select",
    "is_nonzero",
    "equal",
    "_unique2",
    "unique_dim",
}
COPIES = (Tensor.tolist, Tensor.numpy, Tensor.cpu)


class Waits:
    """The places of a step at which the host would wait for a GPU."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.reads = 0
        self.reading = False

    def add(self, what: str) -> None:
        """Add a place, but for the exchange of sizes between pipeline stages before the first step of each size."""
        frames = traceback.extract_stack()
        if not self.reading and not any("initialize" in frame.name for frame in frames):
            self.found.append(f"{what}: {[f'{Path(f.filename).name}:{f.lineno}' for f in frames[-8:-2]]}")

    def allowed(self, read: Callable[..., list[float]], *numbers: Tensor) -> list[float]:
        """Read numbers as the step may."""
        self.reads, self.reading = self.reads + 1, True
        try:
            return read(*numbers)
        finally:
            self.reading = False


class Dispatched(TorchDispatchMode):
    """Find operators that make the host wait."""

    def __init__(self, waits: Waits) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.waits = waits

    def __torch_dispatch__(
        self, operator: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = operator.__name__.split(".")[0]
        # A mask as an index is counted first; a scalar is filled in without.
        masked = (
            name in {"index", "index_put", "index_put_"}
            and any(index is not None and index.dtype in {torch.bool, torch.uint8} for index in args[1])
            and not (len(args) > 2 and args[2].numel() == 1)
        )
        if name in READS or masked:
            self.waits.add(name)
        return operator(*args, **(kwargs or {}))


class Called(TorchFunctionMode):
    """Find calls that copy from the device."""

    def __init__(self, waits: Waits) -> None:
        super().__init__()
        self.waits = waits

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function in COPIES:
            self.waits.add(function.__name__)
        return function(*args, **(kwargs or {}))


def varlen_on_cpu(q: Tensor, k: Tensor, v: Tensor, bounds: Tensor, *_: object, **__: object) -> Tensor:
    """The kernel of GPUs for packed rows, which takes (row, heads, head size)."""
    q, k, v = (each.transpose(0, 1)[None] for each in (q, k, v))
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask(bounds, q.shape[2], None), enable_gqa=True)
    return y[0].transpose(0, 1)


def watched_rank(directory: Path, number: int, world: int, start: str) -> None:
    """One rank as on a GPU; it writes the waits of each step."""
    steps: list[tuple[list[str], int]] = []
    of_step, patch = Trainer.step, pytest.MonkeyPatch()

    def watched(self: Trainer, step: int, batch: StepBatch) -> tuple[float, float | None, float]:
        waits = Waits()
        patch.setattr(workload, "on_host", partial(waits.allowed, on_host))
        with Called(waits), Dispatched(waits):
            result = of_step(self, step, batch)
        steps.append((waits.found, waits.reads))
        return result

    patch.setattr(Trainer, "step", watched)
    patch.setattr(attention, "has_varlen_kernel", lambda _: True)
    patch.setattr(attention, "varlen_attn", varlen_on_cpu)
    try:
        rank(directory, number, world, start)
    finally:
        (directory / f"waits{number}.json").write_text(json.dumps(steps))


def waits_of(run: RunDir) -> list[list[list[object]]]:
    """The waits and the reads of each step, of each rank."""
    return [json.loads(file.read_text()) for file in sorted(run.path.glob("waits*.json"))]


PACKED = ("data=docstrings", "data.max_samples=48", "data.bpe_vocab_size=300", "job.sequence_length=64",
          "data.too_long=truncate", "job.batching=packed", "engine.loss=chunked")  # fmt: skip
TWO = ("ranks_per_node=2",)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        ("parallelism=single", "ranks_per_node=1", *PACKED),
        long(("parallelism=fsdp_full", *TWO, *PACKED)),
        long(("parallelism=tp", *TWO, "engine.loss=chunked")),
        ("parallelism=pp", *TWO, *PACKED),
        long(("parallelism=single", "ranks_per_node=1", "engine.loss=whole")),
        long(("parallelism=ddp", *TWO, "job.precision=bfloat16")),
        long(("parallelism=tp", *TWO, "parallelism.sequence_parallel=false", "parallelism.loss_parallel=true")),
        long(("parallelism=tp_pp_fsdp", "ranks_per_node=8", "job.precision=bfloat16", *PACKED)),
    ],
)  # fmt: skip
def test_the_host_waits_for_the_device_once_a_step(settings: tuple[str, ...], tmp_path: Path) -> None:
    run = make_run(tmp_path, "engine.optimizer_loop=fused", "job.steps=3", *settings)
    assert set(train(run, of_rank=watched_rank)) == {0}, printed(run)
    for steps in waits_of(run):
        assert steps == [[[], 1]] * 3

"""A step of training by DeepSpeed: its backward, clipping and update, on the batches and rates of the native engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn

from jobs import metrics as m
from jobs.data.batches import StepBatch
from jobs.engines.deepspeed.checkpoint import Saver
from jobs.engines.deepspeed.configuration import stage_of
from jobs.engines.deepspeed.model import engine_of, parameters_held, part
from jobs.engines.native.trainer import on_device
from jobs.engines.trainer import Trains
from jobs.layout import layout_of
from jobs.lease import Lease
from jobs.metrics import Metric
from jobs.plan.cost import parameters
from jobs.runtime.divergence import DivergedError
from jobs.runtime.learning_rate import learning_rate
from jobs.runtime.pace import Pace
from jobs.runtime.watchdog import Watchdog
from jobs.schema import Kernels, Precision, Run
from jobs.work.train.tokens import Tokens


class Trainer(Trains):
    """DeepSpeed's engine, and one step of training."""

    facts: Mapping[str, str] = {"kernels": Kernels.torch.name}

    def __init__(self, run: Run, device: torch.device, data: Tokens, begins: Callable[[Metric], None]) -> None:
        self.run = run
        self.device = device
        self.steps = data.steps
        self.engine = engine_of(run, device, begins)
        # Layers wait for the parameters of other ranks at stage 3, so their times would not show a slow rank.
        self.pace = Pace([], layout_of(run), device, every=0)

    def step(self, step: int, batch: StepBatch) -> tuple[float, float | None, float]:
        """Run one optimizer update; return the global mean loss before it, the gradient norm and the learning rate.

        No norm is returned if the gradients overflowed float16, so that the update was skipped.
        """
        engine, job = self.engine, self.run.job
        skipped = engine.skipped_steps
        # A step that float16 overflowed does not advance the learning rate.
        rate = learning_rate(job, step - engine.skipped_steps, self.steps)
        for group in engine.optimizer.param_groups:
            group["lr"] = rate
        # DeepSpeed divides by the micro-batches and averages over the ranks: the factor makes sums of both, over the
        # labels of the global batch.
        factor = engine.gradient_accumulation_steps() * dist.get_world_size() / batch.labels
        total, norm = torch.zeros((), device=self.device), 0.0
        for tokens in batch.micro_batches:
            loss = engine(*tokens.converted(lambda array: on_device(array, self.device)))
            engine.backward(loss * factor)
            total += loss.detach()
            if stage_of(self.run) == 0 and engine.is_gradient_accumulation_boundary():
                # Without partitions DeepSpeed knows no norm, and step() discards the gradients.
                norm = float(
                    nn.utils.get_total_norm([p.grad for p in engine.module.parameters() if p.grad is not None])
                )
            self.update(step)
        if stage_of(self.run) > 0:
            found = engine.get_global_grad_norm()
            # An infinite or NaN norm is None or -1, as the helpers of DeepSpeed return it.
            norm = math.nan if found is None or found < 0 else float(found)
        dist.all_reduce(total)
        # DeepSpeed also skips an update in other precisions, where it is not an overflow of the scaled loss.
        overflowed = job.precision is Precision.float16 and engine.skipped_steps > skipped
        return total.item() / batch.labels, None if overflowed else norm, rate

    def update(self, step: int) -> None:
        """Let DeepSpeed count a micro-batch, and update the weights after the last one of a step.

        Raise DivergedError on every rank if float16 overflows at the lowest loss scale.
        """
        try:
            self.engine.step()
        except Exception as error:
            # DeepSpeed has no type for it.
            if "loss scale already at minimum" not in str(error):
                raise
            raise DivergedError(step, "the gradients overflow at every loss scale down to 1") from error

    def weights(self) -> Iterator[Tensor]:
        """Yield this rank's parts of the parameters."""
        return map(part, self.engine.module.parameters())

    def parameters_held(self) -> int:
        """Return the number of parameters of the rank with the most; every rank calls it."""
        return parameters_held(self.engine.module)

    def parameters_trained(self) -> int:
        """Return the number of all parameters."""
        return parameters(self.run.model)

    def numbers(self) -> dict[Metric, float]:
        """Return the loss scale and the skipped updates of float16."""
        if self.run.job.precision is not Precision.float16:
            return {}
        return {m.LOSS_SCALE: float(self.engine.optimizer.cur_scale), m.SKIPPED_UPDATES: self.engine.skipped_steps}

    def saver(self, lease: Lease, watchdog: Watchdog) -> Saver:
        """Return the writer and reader of checkpoints."""
        return Saver(self.run, lease, self.engine, watchdog)

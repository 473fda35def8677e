"""Pipeline parallelism: the layers dealt to stages, and torch's schedules that run micro-batches through them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from litgpt.model import GPT
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class

from jobs.engines.step import Around, MicroBatch, summed_loss
from jobs.layout import accumulation, stages_of
from jobs.plan.stages import held_layers, stage_layers
from jobs.schema import Run


class Stage(nn.Module):
    """Some consecutive layers: tokens (mbs, seq) into the first, logits out of the last, activations between."""

    def __init__(self, gpt: GPT, index: int, layers: Sequence[int], *, first: bool, last: bool) -> None:
        super().__init__()
        self.index = index
        self.wte = gpt.transformer.wte if first else None
        self.layers = nn.ModuleList(gpt.transformer.h.get_submodule(str(i)) for i in layers)
        self.ln_f = gpt.transformer.ln_f if last else None
        self.lm_head = gpt.lm_head if last else None
        # Asked for at each pass: the table gets its memory after FSDP was applied.
        self.rope: Callable[[], tuple[Tensor, Tensor]] = lambda: (gpt.cos.unsqueeze(0), gpt.sin.unsqueeze(0))

    def forward(self, x: Tensor) -> Tensor:
        """The stage's part of GPT.forward, for sequences as long as the rotary table."""
        cos, sin = self.rope()
        if self.wte is not None:
            x = self.wte(x)
        for layer in self.layers:
            # By position, as GPT does: tensor parallelism knows attention's inputs by their place.
            x = layer(x, cos, sin, None, None, None)
        return x if self.ln_f is None or self.lm_head is None else self.lm_head(self.ln_f(x))


def split(gpt: GPT, run: Run, pp_rank: int) -> list[Stage]:
    """Drop from the model what this rank does not hold, and return the stages that run the rest.

    The model keeps LitGPT's parameter names, so what all ranks hold adds up to one checkpoint.
    """
    layers = stage_layers(run)
    last = len(layers) - 1
    mine = stages_of(run, pp_rank)
    stages = [Stage(gpt, i, layers[i], first=i == 0, last=i == last) for i in mine]
    gpt.transformer["h"] = nn.ModuleDict({str(i): gpt.transformer.h[i] for i in sorted(held_layers(run)[pp_rank])})
    if 0 not in mine:
        del gpt.transformer["wte"]
    if last not in mine:
        del gpt.transformer["ln_f"]
        del gpt.lm_head
    return stages


class Pipeline:
    """Runs the micro-batches of a step through the stages, in the order of one of torch's schedules."""

    def __init__(self, stages: list[Stage], run: Run, mesh: DeviceMesh, device: torch.device, around: Around) -> None:
        self.scale = 1.0
        kind = get_schedule_class(run.parallelism.schedule.name)
        count = len(stage_layers(run))
        placed = [PipelineStage(stage, stage.index, count, device, group=mesh.get_group()) for stage in stages]
        # The loss is divided by the labels of the global batch: gradients must not be divided again.
        self.schedule = kind(
            placed if issubclass(kind, PipelineScheduleMulti) else placed[0],
            n_microbatches=accumulation(run),
            loss_fn=lambda logits, targets: summed_loss(logits, targets) * self.scale,
            scale_grads=False,
        )
        self.first = any(stage.is_first for stage in placed)
        self.last = any(stage.is_last for stage in placed)
        self.around = around

    def forward_backward(self, micro_batches: list[MicroBatch], scale: float) -> Tensor:
        """See ForwardBackward."""
        self.scale = scale
        inputs = torch.cat([inputs for inputs, _ in micro_batches])
        targets = torch.cat([targets for _, targets in micro_batches])
        losses: list[Tensor] = []
        with self.around([inputs, targets]):
            self.schedule.step(
                *((inputs,) if self.first else ()),
                **({"target": targets, "losses": losses} if self.last else {}),
                return_outputs=False,
            )
        return torch.stack(losses).sum().detach() / scale if losses else torch.zeros((), device=inputs.device)

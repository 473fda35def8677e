"""Pipeline parallelism: split the layers into pipeline stages and run micro-batches by torch's schedules.

A pipeline stage receives activations (mbs, seq, hidden) from the one before and sends its own to the next; in backward
gradients of the same shape travel the other way. With m micro-batches and p ranks, GPipe and 1F1B are idle for
(p - 1) / (m + p - 1) of a step; interleaved schedules divide the idle time by the stages per rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class

from jobs.data import MicroBatch
from jobs.engines.native.experts.mixture import Mixture
from jobs.engines.native.loss import ChunkedHead, summed_loss
from jobs.engines.native.model import Decoder, embedded, prompt_of, through
from jobs.engines.native.step import Around
from jobs.errors import ConfigError
from jobs.layout import accumulation, pipeline_stages_of
from jobs.parallelism import Schedule
from jobs.plan.pipeline_stages import held_layers, pipeline_stage_layers
from jobs.schema import Run
from jobs.versions import major_minor

# torch before this begins a pipeline with a message of every stage to the next one, also within a rank.
NO_MESSAGE_TO_ITSELF = (2, 12)


def refuse_message_to_itself(run: Run, device: torch.device, version: str = torch.__version__) -> None:
    """Raise ConfigError if a rank holds two neighbouring stages and its group cannot send to itself: gloo."""
    old = major_minor(version) < NO_MESSAGE_TO_ITSELF
    if old and device.type == "cpu" and run.parallelism.schedule is Schedule["ZBVZeroBubble"]:
        raise ConfigError(
            f"parallelism.schedule=ZBVZeroBubble on CPUs needs torch {'.'.join(map(str, NO_MESSAGE_TO_ITSELF))} or "
            f"later, and this node has {version}. Install it, or set parallelism.schedule=InterleavedZeroBubble."
        )


class PipelineStageModule(nn.Module):
    """Consecutive layers: the first stage takes tokens (mbs, seq), the last one returns the loss."""

    def __init__(self, gpt: Decoder, index: int, layers: Sequence[int], *, first: bool, last: bool) -> None:
        super().__init__()
        self.index = index
        self.wte = gpt.transformer.wte if first else None
        self.prompt = prompt_of(gpt) if first else None
        self.embedding_scale = gpt.embedding_scale
        self.layers = nn.ModuleList(gpt.transformer.h.get_submodule(str(i)) for i in layers)
        self.ln_f = gpt.transformer.ln_f if last else None
        self.lm_head = gpt.lm_head if last else None
        # Read at each pass: the table gets its memory after FSDP is applied.
        self.rotary: Callable[[], tuple[Tensor, Tensor]] = lambda: (gpt.cos, gpt.sin)
        # No argument of forward: in the split backward torch 2.11 takes every argument for a tensor.
        self.labels = 0
        """The most labels of a micro-batch of the step."""

    def forward(self, x: Tensor, targets: Tensor, bounds: Tensor | None = None) -> Tensor:
        """Run this stage's part of Decoder.forward."""
        if self.wte is not None:
            x = embedded(self.wte, self.prompt, x, self.embedding_scale)
        x = through(self.layers, x, self.rotary(), targets, bounds)
        if self.ln_f is None or self.lm_head is None:
            return x
        return summed_loss(self.ln_f(x), self.lm_head, targets, self.labels)


class Uncounted(PipelineStage):
    """torch's stage, whose passes before the first step are no load of experts: they find the sizes of messages."""

    def _prepare_forward_infra(self, *given: Any, **options: Any) -> Any:
        return self.apart(super()._prepare_forward_infra, *given, **options)

    def _prepare_backward_infra(self, *given: Any, **options: Any) -> Any:
        return self.apart(super()._prepare_backward_infra, *given, **options)

    def apart(self, prepare: Callable[..., Any], *given: Any, **options: Any) -> Any:
        """Return what a function does, with the load of experts and the z-loss as they were before."""
        mixtures = [part for part in self.submod.modules() if isinstance(part, Mixture)]
        loads = [mixture.load for mixture in mixtures]
        z_losses = [part.z_loss for part in self.submod.modules() if isinstance(part, ChunkedHead) and part.z_loss]
        squares = [each.squares for each in z_losses]
        result = prepare(*given, **options)
        for z_loss, before in zip(z_losses, squares, strict=True):
            z_loss.squares = before
        for mixture, load in zip(mixtures, loads, strict=True):
            mixture.load = load
        return result


def pipeline_split(gpt: Decoder, run: Run, pp_rank: int) -> list[PipelineStageModule]:
    """Delete the modules of other ranks from the model, and return the pipeline stages that run the rest.

    The model keeps LitGPT's parameter names, so the parameters of all ranks form one checkpoint.
    """
    layers = pipeline_stage_layers(run)
    last = len(layers) - 1
    mine = pipeline_stages_of(run, pp_rank)
    stages = [PipelineStageModule(gpt, i, layers[i], first=i == 0, last=i == last) for i in mine]
    # Keys stay the layers' numbers in the whole model, so parameter names do not depend on the pipeline.
    gpt.transformer["h"] = nn.ModuleDict({str(i): gpt.transformer.h[i] for i in sorted(held_layers(run)[pp_rank])})
    if 0 not in mine:
        for name in {"wte", "prompt"} & set(gpt.transformer):
            del gpt.transformer[name]
    if last not in mine:
        del gpt.transformer["ln_f"]
        del gpt.lm_head
    return stages


def side_by_side(bounds: list[Tensor]) -> Tensor | None:
    """Return the bounds of packed rows as one tensor, with empty samples at the end of all rows but the fullest."""
    if not bounds:
        return None
    # (1, samples + 1) each -> (micro-batches, most samples + 1); an end that is repeated is an empty sample.
    width = max(each.shape[1] for each in bounds)
    return torch.cat([torch.cat([each, each[:, -1:].expand(-1, width - each.shape[1])], 1) for each in bounds])


class Pipeline:
    """Run the micro-batches of a step through the pipeline stages, by one of torch's schedules."""

    def __init__(
        self,
        pipeline_stages: list[PipelineStageModule],
        run: Run,
        mesh: DeviceMesh,
        device: torch.device,
        around: Around,
    ) -> None:
        refuse_message_to_itself(run, device)
        self.scale = 1.0
        self.pipeline_stages = pipeline_stages
        self.run = run
        self.group = mesh.get_group()
        self.device = device
        self.around = around
        # One for each size of packed rows: stages infer the size of the tensors they exchange once.
        self.schedules: dict[torch.Size, Callable[..., object]] = {}

    def schedule(self) -> Callable[..., object]:
        """Return the function that runs a step on micro-batches of one size."""
        kind = get_schedule_class(self.run.parallelism.schedule.name)
        count = len(pipeline_stage_layers(self.run))
        placed = [Uncounted(stage, stage.index, count, self.device, group=self.group) for stage in self.pipeline_stages]
        # `scale` divides by the labels of the global batch already, so torch must not divide by the micro-batches.
        schedule = kind(
            # Interleaved and zero-bubble schedules take all stages of a rank, GPipe and 1F1B its only one.
            placed if issubclass(kind, PipelineScheduleMulti) else placed[0],
            n_microbatches=accumulation(self.run),
            loss_fn=lambda loss, _: loss * self.scale,
            scale_grads=False,
        )
        step: Callable[..., object] = schedule.step
        return step

    def forward_backward(self, micro_batches: list[MicroBatch[Tensor]], scale: float) -> Tensor:
        """Run all micro-batches (ForwardBackward.forward_backward)."""
        self.scale = scale
        # The schedule splits the batch itself: (accumulation * mbs, seq).
        inputs, targets = (torch.cat([getattr(each, name) for each in micro_batches]) for name in ("inputs", "targets"))
        size = inputs.shape  # before `around`, which may shard the sequences
        if size not in self.schedules:
            self.schedules[size] = self.schedule()
        first = any(stage.wte is not None for stage in self.pipeline_stages)
        last = any(stage.lm_head is not None for stage in self.pipeline_stages)
        for stage in self.pipeline_stages:
            stage.labels = max(each.labels for each in micro_batches)
        # Split by the schedule along their first dimension, as inputs and targets are.
        bounds = side_by_side([each.bounds for each in micro_batches if each.bounds is not None])
        losses: list[Tensor] = []
        with self.around([inputs, targets]):
            self.schedules[size](
                *((inputs,) if first else ()),
                targets=targets,
                **({} if bounds is None else {"bounds": bounds}),
                **({"target": targets, "losses": losses} if last else {}),
                return_outputs=False,
            )
        # Only the last stage has losses, already times scale. Others return 0, so that a sum over all ranks is right.
        return torch.stack(losses).sum().detach() / scale if losses else torch.zeros((), device=inputs.device)

"""The native engine in the training loop of jobs.work.train.loop: model and optimizer, and the arithmetic of a step."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from jobs import metrics as m
from jobs.data.batches import StepBatch
from jobs.data.dataset import Tokens
from jobs.engines.native import checkpoint
from jobs.engines.native.customization.lora import seed_dropout
from jobs.engines.native.experts.balance import imbalance, shift_bias, summed_loads
from jobs.engines.native.experts.mixture import Mixture, experts_of
from jobs.engines.native.experts.router import BIAS
from jobs.engines.native.float8 import plain, scale_weights, sends_float8
from jobs.engines.native.load_sharded import local_shard
from jobs.engines.native.loss import ChunkedHead, ZLoss
from jobs.engines.native.loss_scale import LossScale
from jobs.engines.native.model import layers
from jobs.engines.native.optimizers.optimizer import optimizer_of
from jobs.engines.native.parallelize import ParallelModel, device_mesh, parallel_model
from jobs.engines.native.traffic import parameters_held
from jobs.engines.native.updates.average import keep_average
from jobs.engines.native.updates.in_backward import norms_in_float32, update_in_backward
from jobs.engines.native.updates.weight_decay import decay_groups
from jobs.engines.trainer import Trains
from jobs.layout import layout_of
from jobs.lease import Lease
from jobs.metrics import Metric
from jobs.parallelism import AXES, EP, PP, TP
from jobs.ranks import Rank
from jobs.runtime.exchange import gather
from jobs.runtime.learning_rate import learning_rate
from jobs.runtime.pace import Pace
from jobs.runtime.process_group import on_host
from jobs.runtime.watchdog import Watchdog
from jobs.schema import Batching, Precision, Run
from jobs.work.train import loop
from jobs.work.train.tokens import Tokens as Samples


def train(run: Run, lease: Lease, rank: Rank) -> None:
    """Train one run to its end, or stop at a step boundary after a signal.

    Raise SupersededError on all ranks, at a step boundary, if another start takes the run over.
    """
    loop.train(run, lease, rank, Samples, trainer_of)


def trainer_of(run: Run, device: torch.device, data: Samples, begins: Callable[[Metric], None]) -> Trainer:
    """Return the model and optimizer of a rank."""
    begins(m.STARTUP_RENDEZVOUS_TIME)
    mesh = device_mesh(layout_of(run), device)
    return Trainer(run, parallel_model(run, mesh, device, begins), device, mesh, data.steps)


@dataclass
class Trainer(Trains):
    """Model and optimizer, and one step of training."""

    run: Run
    model: ParallelModel
    device: torch.device
    mesh: DeviceMesh
    steps: int

    def __post_init__(self) -> None:
        job = self.run.job
        layout = layout_of(self.run)
        self.facts = {"kernels": self.model.kernels.name}
        # FSDP and DDP average gradients over these ranks; step() turns the average into a sum.
        self.averaged = layout.product(axis for axis in AXES if axis.averages_gradients)
        # The losses are on the last of PP ranks, a part on each of the averaged ones. Other ranks (TP) compute the
        # same part, so a sum over all ranks counts it this number of times.
        self.equal_losses = layout.world_size // (self.averaged * layout.degree(PP))
        self.pipeline = self.mesh[PP.name]
        self.loss_scale = LossScale() if job.precision is Precision.float16 else None
        self.counts = {m.LOSS_SCALE.name: self.loss_scale.state} if self.loss_scale else {}
        self.mixtures = {
            layer.attn.block_idx: layer.mlp for layer in layers(self.model.gpt) if isinstance(layer.mlp, Mixture)
        }
        self.imbalance: list[float] = []
        # Other pipeline ranks than the last have no head.
        self.z_loss = ZLoss(job.z_loss) if job.z_loss else None
        if isinstance(head := getattr(self.model.gpt, "lm_head", None), ChunkedHead):
            head.z_loss = self.z_loss
        self.z_numbers: dict[Metric, float] = {}
        # Ranks of a TP group compute the same activations, and so drop the same ones.
        place = layout.coordinates(dist.get_rank())
        self.place = [number for number, axis in zip(place, AXES, strict=True) if axis is not TP]
        self.pace = Pace(layers(self.model.gpt), layout, self.device, every=self.run.engine.pace_every_steps)
        # Experts of an EP group's ranks differ. Their parameters have groups of their own, since FSDP shards them over
        # another mesh.
        self.expert_ranks = self.mesh[EP.name]
        own = {id(p) for experts in experts_of(self.model.gpt) for p in experts.parameters()}
        self.parameters = by_mesh(p for p in self.model.gpt.parameters() if p.requires_grad)
        self.of_experts = [
            group for group in self.parameters if group and self.expert_ranks.size() > 1 and id(group[0]) in own
        ]
        # Created after sharding, so its moments are shards as well. One parameter group per placement (see by_mesh).
        groups = decay_groups(self.parameters, job, self.model.gpt)
        optimizer = optimizer_of(self.run)
        self.optimizer = optimizer.build(optimizer.divided(groups, self.model.gpt), self.run, self.device)
        if job.ema_decay is not None:
            keep_average(self.optimizer, job.ema_decay)
        self.norms: list[list[Tensor]] | None = None
        if self.run.engine.update_in_backward:
            self.norms = update_in_backward(self.parameters, self.optimizer)

    def step(self, step: int, batch: StepBatch) -> tuple[float, float | None, float]:
        """Run one optimizer update; return the global mean loss before it, the gradient norm and the learning rate.

        No norm is returned if the gradients overflowed float16, so that the update was skipped.

        The loss of a step is the mean over all labels of the global batch, so it does not depend on the layout:
        L = 1/n sum over micro-batches and ranks of summed cross-entropies, n = labels of the global batch.

        The host waits for the device in on_host only, so that it stays ahead of it.
        """
        job = self.run.job
        if job.lora is not None and job.lora.dropout:
            seed_dropout(job.seed, step, self.place)
        micro_batches = [
            micro_batch.converted(lambda tokens: on_device(tokens, self.device)) for micro_batch in batch.micro_batches
        ]
        # 1. Gradients. The backend averages over `averaged` ranks, so scaling each summed loss by averaged / n gives
        #    the gradient of L exactly, whatever the number of labels on a rank.
        #    The loss scale of float16 (1 without) is a factor of it, which clip() removes.
        scale = self.loss_scale.value if self.loss_scale else 1.0
        self.begin_balance(scale)
        if self.z_loss:
            self.z_loss.squares = None
        rate = learning_rate(job, step - (self.loss_scale.skipped if self.loss_scale else 0), self.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        total = self.model.execution.forward_backward(micro_batches, scale * self.averaged / batch.labels)
        # An expert's is a sum over the tokens of its EP group, and FSDP averages it over the other ranks only.
        if found := gradients_of(self.of_experts):
            torch._foreach_div_(found, self.expert_ranks.size())
        # 2. Clip by the global norm, then 3. update with this step's learning rate, if backward has not done so.
        norm, skipped = self.updated(scale)
        # 4. Sum the losses of all ranks; those without the model's head contribute 0.
        sums = [total]
        if self.z_loss:
            squares = self.z_loss.squares
            sums.append(torch.zeros_like(total) if squares is None else squares)
        for each in sums:
            dist.all_reduce(each)
        loss, norm_found, *further = on_host(total, norm, *sums[1:], *self.expert_loads())
        counted = batch.labels * self.equal_losses
        if self.z_loss:
            self.z_numbers = {m.Z_LOSS: self.z_loss.weight * further.pop(0) / counted}
        self.imbalance = further
        return loss / counted, None if skipped else norm_found, rate

    def updated(self, loss_scale: float) -> tuple[Tensor, bool]:
        """Clip the gradients and update the weights; return the norm before, and whether float16 skips the update."""
        divided, skipped = (self.of_experts, self.expert_ranks), False
        if self.norms is not None:
            norm = total_norm(self.parameters, self.norms, self.pipeline, divided)
            for found in self.norms:
                found.clear()
        else:
            norm = clip(self.parameters, self.run.job.clip_norm, self.pipeline, loss_scale, divided)
            skipped = self.loss_scale is not None and self.loss_scale.overflows(norm)
            if not skipped:
                self.optimizer.step()
        if sends_float8(self.run) and not skipped:
            scale_weights(self.model.gpt)
        self.optimizer.zero_grad(set_to_none=True)
        return norm, skipped

    def begin_balance(self, loss_scale: float) -> None:
        """Count the tokens of experts from 0, and set the weight of the balance loss of a sequence."""
        job = self.run.job
        # A packed row holds the samples of a micro-batch. The backend averages over `averaged` ranks, as of the loss.
        rows = self.run.global_batch_size / (job.micro_batch_size if job.batching is Batching.packed else 1)
        for mixture in self.mixtures.values():
            mixture.load, mixture.balance = None, job.expert_balance_loss * loss_scale * self.averaged / rows

    def expert_loads(self) -> list[Tensor]:
        """Return the imbalance of experts in this step, if the model has any, and shift biases of their choice by it.

        Every rank calls it.
        """
        model, speed = self.run.model, self.run.job.expert_bias_speed
        if not model.experts or all(model.is_dense):
            return []
        counts = {layer: each.load for layer, each in self.mixtures.items() if each.load is not None}
        loads = summed_loads(counts, model.layers, model.experts, self.device)
        if speed:
            for layer, mixture in self.mixtures.items():
                shift_bias(mixture.gate.get_buffer(BIAS), loads[layer], speed)
        return [imbalance(loads[[not is_dense for is_dense in model.is_dense]])]

    def weights(self) -> Iterator[Tensor]:
        """Yield this rank's shards of the weights that train."""
        for group in self.parameters:
            yield from (local_shard(cast(Tensor, plain(parameter))) for parameter in group)

    def saver(self, lease: Lease, watchdog: Watchdog) -> checkpoint.Saver:
        """Return the writer and reader of checkpoints."""
        return checkpoint.Saver(self.run, lease, self.model.gpt, self.optimizer, counts=self.counts, watchdog=watchdog)

    def parameters_held(self) -> int:
        """Return the number of parameters of the rank with the most; every rank calls it."""
        return parameters_held(self.model.gpt)

    def parameters_trained(self) -> int:
        """Return the number of parameters that the optimizers of all ranks update; every rank calls it."""
        # A sharded parameter has the size of the whole. Pipeline ranks hold different ones; theirs is the slowest axis.
        # Ranks of an EP group hold equally many.
        count = sum(parameter.numel() for group in self.parameters for parameter in group)
        own = sum(parameter.numel() for group in self.of_experts for parameter in group)
        counts = gather(count + (self.expert_ranks.size() - 1) * own)
        return sum(counts[:: len(counts) // self.pipeline.size()])

    def numbers(self) -> dict[Metric, float]:
        """Return the loss scale and the skipped updates of float16, the z-loss, and the imbalance of experts."""
        loads = dict.fromkeys([m.EXPERT_IMBALANCE], self.imbalance[0]) if self.imbalance else {}
        return self.z_numbers | loads | ({} if self.loss_scale is None else self.loss_scale.numbers())


def on_device(tokens: Tokens, device: torch.device) -> Tensor:
    """Return tokens on the device; from page-locked memory the copy is asynchronous."""
    return torch.from_numpy(tokens).to(device, non_blocking=True)


def by_mesh(parameters: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Group parameters by mesh and placement: TP shards matrices, not norms, and fused kernels take one kind only."""
    groups: dict[Hashable, list[nn.Parameter]] = {}
    for parameter in parameters:
        where = (parameter.device_mesh, parameter.placements) if isinstance(parameter, DTensor) else None
        groups.setdefault(where, []).append(parameter)
    # AdamW wants a group, also on a pipeline rank that trains nothing.
    return list(groups.values()) or [[]]


Groups = list[list[nn.Parameter]]


def gradients_of(groups: Groups) -> list[Tensor]:
    """Return this rank's shards of all gradients."""
    # Local ones: for DTensors, torch searches a layout for the product of many for seconds in the first step.
    return [local_shard(p.grad) for group in groups for p in group if p.grad is not None]


def clip(
    groups: Groups,
    max_norm: float | None,
    pipeline: DeviceMesh,
    loss_scale: float,
    divided: tuple[Groups, DeviceMesh] | None = None,
) -> Tensor:
    """Divide gradients by the loss scale and limit their global norm to max_norm; return the norm before that limit."""
    norms = [norms_in_float32(found) if (found := given(group)) else [] for group in groups]
    norm = total_norm(groups, norms, pipeline, divided) / loss_scale
    if (gradients := gradients_of(groups)) and (max_norm is not None or loss_scale != 1):
        limit = torch.inf if max_norm is None else max_norm
        factor = (limit / (norm + 1e-6)).clamp(max=1.0)  # as clip_grads_with_norm_ scales
        torch._foreach_mul_(gradients, factor / loss_scale)
    return norm


def given(group: list[nn.Parameter]) -> list[Tensor]:
    """Return the gradients that there are."""
    return [p.grad for p in group if p.grad is not None]


def total_norm(
    groups: Groups,
    norms: list[list[Tensor]],
    pipeline: DeviceMesh,
    divided: tuple[Groups, DeviceMesh] | None = None,
) -> Tensor:
    """Return the global norm of gradients from their norms, by the groups of by_mesh.

    norm^2 = sum of squares over the groups (full_tensor sums over their shards), then over pipeline ranks. Those of the
    groups in `divided`, experts, are summed over the ranks of its mesh too: each has other ones.
    """
    own, ranks = divided or ([], None)
    # A pipeline rank without trained parameters has no norm to add.
    squares = [torch.zeros((), device=pipeline.device_type)]
    for group, found in zip(groups, norms, strict=True):
        if found:
            norm: Tensor = torch.linalg.vector_norm(torch.stack(found))
            square = (norm.full_tensor() if isinstance(norm, DTensor) else norm) ** 2
            if ranks is not None and any(group is each for each in own):
                dist.all_reduce(square, group=ranks.get_group())
            squares.append(square)
    total = torch.stack(squares).sum()
    if pipeline.size() > 1:
        dist.all_reduce(total, group=pipeline.get_group())
    return total.sqrt()

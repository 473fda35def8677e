"""Apply all techniques to a model, in one visible order.

customization      add adapters or virtual tokens, freeze the rest: what follows treats them as parameters like others
pipeline split     drop the layers of other pipeline ranks first: the rest of the work is on what this rank holds
EP                 drop the experts of other ranks
TP                 shard the matrices that are left, as DTensors on the tp axis
float8, kernels    replace modules or forward methods, after TP has chosen its modules by name
checkpointing      selective: inside what is compiled
compilation        of each layer's forward method
checkpointing      full: of the compiled layer
FSDP               shard the DTensors again on the data axes; its hooks stay outside the compiled graph
weights            only now does memory exist: each rank loads its shards of the full tensors
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor.parallel import loss_parallel

from jobs import metrics as m
from jobs.engines.native.activation_checkpointing import recompute_all, recompute_cheap
from jobs.engines.native.compilation import await_embeddings, compile_layers, overlap_tp, overlaps_tp
from jobs.engines.native.context_parallel import apply_cp
from jobs.engines.native.customization.customize import customize, with_first_values
from jobs.engines.native.data_parallel import replicate, shard
from jobs.engines.native.experts.dispatch import apply_ep
from jobs.engines.native.float8 import multiply_in_float8
from jobs.engines.native.kernels import fuse, usable
from jobs.engines.native.load_sharded import load_sharded
from jobs.engines.native.loss_chunk import loss_chunk
from jobs.engines.native.mixed_precision import autocast
from jobs.engines.native.model import Decoder, empty_model, layers, tie_embeddings
from jobs.engines.native.pipeline import Pipeline, PipelineStageModule, pipeline_split
from jobs.engines.native.states import sums_in_float32
from jobs.engines.native.step import ForwardBackward, OneAfterAnother
from jobs.engines.native.summed_products import sum_in_products
from jobs.engines.native.tensor_parallel import apply_tp
from jobs.engines.native.weights import TYPES, first_weights
from jobs.layout import Layout, sequence_parallel, uses_ddp, uses_fsdp
from jobs.metrics import Metric
from jobs.parallelism import AXIS_NAMES, CP, EP, PP, TP
from jobs.plan.pipeline_stages import checkpointed_layers
from jobs.schema import ActivationCheckpointing, Kernels, Precision, Run


@dataclass(frozen=True)
class ParallelModel:
    """The model of one rank, and the execution of its micro-batches."""

    gpt: Decoder
    """The shards of this rank, under LitGPT's parameter names."""
    execution: ForwardBackward
    """Runs micro-batches through it."""
    kernels: Kernels
    """The kernels in use."""


def device_mesh(layout: Layout, device: torch.device) -> DeviceMesh:
    """Return the rank grid as torch's device mesh, with the axes of jobs.layout; creates one process group per axis.

    Those of one rank too: with a backend of their own torch would make the groups of a bound GPU one by one.
    """
    return init_device_mesh(device.type, layout.shape, mesh_dim_names=AXIS_NAMES)


def trained_model(run: Run) -> Decoder:
    """Return the run's whole model on the meta device: its weights train, or what is added to them."""
    gpt, trained = empty_model(run.model, run.job.row_length, loss_chunk(run)), TYPES[run.engine.parameters]
    # Nothing updates frozen weights, so they need no more digits than the arithmetic.
    gpt.to(trained if run.job.trains_all_weights else TYPES[run.job.precision])
    customize(gpt, run.job, trained)
    return gpt


def wrap_layers(gpt: Decoder, run: Run) -> None:
    """Apply activation checkpointing to the chosen layers, and compilation to every layer, in place."""
    again = checkpointed_layers(run)
    checkpointed = [layer for layer in layers(gpt) if layer.attn.block_idx in again]
    if run.engine.activation_checkpointing is ActivationCheckpointing.selective:
        for layer in checkpointed:
            recompute_cheap(layer)
    if run.engine.compile:
        compile_layers(layers(gpt))
        if run.parallelism.tensor > 1 and "wte" in gpt.transformer:
            await_embeddings(gpt.transformer.wte)
    if run.engine.activation_checkpointing is ActivationCheckpointing.full:
        for layer in checkpointed:
            recompute_all(layer)


def parallel_model(run: Run, mesh: DeviceMesh, device: torch.device, begins: Callable[[Metric], None]) -> ParallelModel:
    """Return the run's model on this rank, with its weights; call `begins` with the metric of each part of start-up."""
    begins(m.STARTUP_MODEL_TIME)
    p = run.parallelism
    gpt = trained_model(run)
    units, kernels = sharded_on_meta(gpt, run, mesh, device)
    # The meta device ends here: memory for this rank's shards only.
    begins(m.STARTUP_WEIGHTS_TIME)
    values = with_first_values(first_weights(run), gpt, run.job)
    load_sharded(gpt, device, values, tensor=p.tensor, tied=run.model.tie_embeddings)

    if sums_in_float32(run):
        for parameter in gpt.parameters():
            parameter.grad_dtype = torch.float32

    def around(tokens: list[Tensor]) -> ExitStack:
        """Return the context of a forward and backward pass over these tokens."""
        contexts = ExitStack()
        if p.tensor > 1 and p.loss_parallel:
            # Softmax over a sharded vocabulary: its maximum and sum are reduced over TP, the logits are never gathered.
            contexts.enter_context(loss_parallel())
        if p.context > 1:
            # Inside it tokens and rotary table have seq / CP positions.
            contexts.enter_context(apply_cp(gpt, mesh[CP.name], tokens))
        return contexts

    for layer in layers(gpt):
        # The ring has no grouped-query kernel, so attention repeats keys and values first.
        layer.attn.ring = p.context > 1
    execution: ForwardBackward
    if p.pipeline > 1:
        execution = Pipeline(
            [u for u in units if isinstance(u, PipelineStageModule)], run, mesh[PP.name], device, around
        )
    else:
        execution = OneAfterAnother(replicate(gpt, mesh, run) if uses_ddp(run) else gpt, run, around)
    return ParallelModel(gpt, execution, kernels)


def sharded_on_meta(
    gpt: Decoder, run: Run, mesh: DeviceMesh, device: torch.device
) -> tuple[list[Decoder] | list[PipelineStageModule], Kernels]:
    """Apply everything up to FSDP to the whole model, in place; return the units that FSDP wraps, and the kernels."""
    p = run.parallelism
    # Units are what FSDP and autocast wrap: the whole model, or each of this rank's pipeline stages.
    units: list[Decoder] | list[PipelineStageModule] = [gpt]
    # layers -> layers / PP
    if p.pipeline > 1:
        units = pipeline_split(gpt, run, mesh[PP.name].get_local_rank())
    # experts -> experts / EP
    if p.expert > 1:
        apply_ep(gpt, mesh[EP.name])
    # matrices (out, in) -> (out / TP, in) or (out, in / TP)
    if p.tensor > 1:
        # Before FSDP: what FSDP gathers ahead of a layer is then this rank's TP shard of it, not the whole matrix.
        apply_tp(gpt, mesh[TP.name], sequence_parallel=sequence_parallel(run), loss_parallel=p.loss_parallel)
        if overlaps_tp(run, device):
            overlap_tp(mesh[TP.name].get_group())
    # TP replaces parameters, which unties them.
    tie_embeddings(gpt, tied=run.model.tie_embeddings)
    if run.engine.float8:
        multiply_in_float8(gpt, device, run)
    if run.engine.sums_in_products:
        sum_in_products(gpt)
    kernels = usable(run.engine.kernels, device)
    if kernels is Kernels.liger:
        fuse(gpt, run.engine.liger_kernels)
    wrap_layers(gpt, run)
    # Every parameter -> dim 0 / (DP shard x EP x CP), and of experts / (DP shard x CP), on top of TP's sharding. DDP
    # wraps at the end and needs autocast.
    for unit in units:
        if uses_fsdp(run):
            shard(unit, run, mesh)
        elif run.job.precision is not Precision.float32:
            autocast(unit, device, TYPES[run.job.precision])
    return units, kernels

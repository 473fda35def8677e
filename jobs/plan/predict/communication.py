"""Bytes that a rank's groups exchange, and the seconds that takes, by where the ranks of a group are.

Collectives are counted as rings: a gather or scatter among n ranks sends (n - 1) / n of the whole, an all-reduce twice
that (nccl-tests, PERFORMANCE.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from jobs.engines.engine import engine_of
from jobs.engines.native.optimizers.optimizer import optimizer_of
from jobs.layout import Layout, accumulation, frees_weights, layout_of, linked_ranks, sequence_parallel
from jobs.parallelism import AXES, CP, DP_REPLICATE, EP, PP, SHARD_GROUP_AXES, TP, Axis, ReduceEach, Strategy
from jobs.plan.predict.activations import WIDTHS, chance_of_ranks, dispatches_parts, tokens_of
from jobs.plan.predict.arrays import larger, smaller
from jobs.plan.predict.constants import NETWORK_GB_PER_S, StepTimeConstants
from jobs.plan.predict.matrix_products import recomputed_share
from jobs.plan.predict.once import once
from jobs.schema import ExpertDispatcher, Run

DATA_AXES = (DP_REPLICATE, *SHARD_GROUP_AXES)
"""Adjacent axes whose ranks have equal weights, but for the experts that EP divides, and different tokens."""


@dataclass(frozen=True)
class Group:
    """Ranks that communicate, and their places: a domain is a node, or the nodes whose GPUs one link joins."""

    ranks: int
    local: int
    """Ranks of the group in one domain."""

    @property
    def domains(self) -> int:
        """Return the domains that the group spans."""
        return -(-self.ranks // self.local)

    @property
    def share(self) -> float:
        """Return the part of the whole that a gather sends."""
        return (self.ranks - 1) / self.ranks


def group_of(run: Run, layout: Layout, axes: Sequence[Axis]) -> Group:
    """Return a group of ranks that differ on adjacent axes only; ranks are placed in blocks."""
    ranks = layout.product(axes)
    # Ranks count the last axis fastest, so neighbours of the group are `stride` ranks apart, and a domain holds every
    # stride-th of its ranks.
    stride = prod(layout.shape[AXES.index(axes[-1]) + 1 :])
    return Group(ranks, min(ranks, max(1, linked_ranks(run) // stride)))


@dataclass(frozen=True)
class Exchange:
    """Traffic of one kind: bytes on the wire of a rank, in a number of collectives of a group."""

    group: Group
    wire_bytes: float = 0
    collectives: float = 0

    def plus(self, wire_bytes: float, collectives: float) -> Exchange:
        """Return it with more traffic of its group."""
        return Exchange(self.group, self.wire_bytes + wire_bytes, self.collectives + collectives)


@dataclass(frozen=True)
class Links:
    """Data-sheet bandwidths of a machine."""

    link_bytes_per_s: float
    network_bytes_per_s: float


def links_of(run: Run) -> Links:
    """Return the bandwidths of a run's GPU and cluster."""
    network = network_gb_per_s(run) * 1e9
    # A GPU without a link in its file is assumed to exchange in a node as fast as between nodes.
    return Links((run.gpu.link_gb_per_s or 0) * 1e9 or network, network)


def network_gb_per_s(run: Run) -> float:
    """Return the bandwidth of a GPU between nodes by the network that a run chooses."""
    if run.network.gb_per_s is not None:
        return run.network.gb_per_s
    of_all = run.cluster.network_gb_per_s or NETWORK_GB_PER_S
    # The cluster's is that of an adapter for each GPU.
    return of_all * min(1.0, len(run.network.adapters) / run.cluster.ranks_per_node) if run.network.adapters else of_all


def bytes_per_s(group: Group, links: Links, constants: StepTimeConstants) -> float:
    """Return the bus bandwidth of a group: of the link in a domain, else of the adapters of its ranks in one."""
    link = links.link_bytes_per_s * constants.link_efficiency
    if group.domains == 1:
        return link
    # Each GPU has its share of the adapters, and a group's traffic leaves a domain by those of its own ranks there.
    network = group.local * links.network_bytes_per_s * constants.network_efficiency
    # network_efficiency is defined over two domains.
    decay: float = (group.domains / 2) ** -constants.network_decay
    return smaller(link, network) * decay


def seconds(exchange: Exchange, links: Links, constants: StepTimeConstants) -> float:
    """Return the time of an exchange."""
    if exchange.group.ranks == 1:
        return 0.0
    # Within a domain a collective is a kernel, whose launch is part of layer_launch_s.
    latency = constants.peer_latency_s * (exchange.group.ranks - 1) if exchange.group.domains > 1 else 0.0
    return exchange.collectives * latency + exchange.wire_bytes / bytes_per_s(exchange.group, links, constants)


@dataclass(frozen=True)
class Dispatch:
    """Traffic of a rank to all others of a group, in a number of exchanges."""

    group: Group
    inside_bytes: float = 0
    """Bytes to ranks of its domain."""
    outside_bytes: float = 0
    """Bytes to those of others."""
    exchanges: float = 0


def dispatch_s(sent: Dispatch, links: Links, constants: StepTimeConstants) -> float:
    """Return the time of exchanges: what a rank sends within its domain and to others goes at the same time.

    Unlike a ring, each rank sends to other domains by its own adapters.
    """
    group = sent.group
    inside_s = sent.inside_bytes / (links.link_bytes_per_s * constants.link_efficiency)
    if group.domains == 1:
        return inside_s
    decay = (group.domains / 2) ** -constants.network_decay
    outside_s = sent.outside_bytes / (links.network_bytes_per_s * constants.network_efficiency * decay)
    latency = sent.exchanges * constants.peer_latency_s * (group.ranks - 1)
    return latency + larger(inside_s, outside_s)


def expert_dispatch(run: Run, layout: Layout, layers: float) -> Dispatch:
    """Return the traffic of EP for a micro-batch: the copies of tokens to their experts, and the results back.

    Backward sends the gradients of both the other way, and recomputation repeats the forward's two.
    """
    group = group_of(run, layout, (EP,))
    times = (4 + 2 * recomputed_share(run)) * layers
    x = tokens_of(run)
    rows = x.between if dispatches_parts(run) else x.count
    sent = times * rows * run.model.hidden_size * WIDTHS[run.job.precision]
    if run.engine.expert_dispatcher is ExpertDispatcher.all_to_all:
        each = run.model.experts_per_token / group.ranks
        inside, outside = each * (group.local - 1), each * (group.ranks - group.local)
    else:
        # To each rank once; to another domain once, from where it goes on inside, and the sum of its results comes
        # back (github.com/deepseek-ai/DeepEP).
        inside = group.domains * (group.local - 1) * chance_of_ranks(run, 1)
        outside = (group.domains - 1) * chance_of_ranks(run, group.local)
    return Dispatch(group, inside * sent, outside * sent, times)


def tensor_exchange(run: Run, layout: Layout, pairs: float) -> Exchange:
    """Return the traffic of TP for a micro-batch: `pairs` of matrices, each with an all-reduce in each direction.

    With sequence parallelism each is a scatter and a gather, and the backward pass gathers the pair's input again
    (arXiv:2205.05198, section 4.2.2). Half an all-reduce among n ranks sends (n - 1) / n of tokens x hidden numbers.
    """
    group = group_of(run, layout, (TP,))
    split = sequence_parallel(run)
    # Halves of an all-reduce, a scatter or a gather each: forward 2; backward 2, and with sequence parallelism 1 more,
    # to gather the input of the opening matrix again; recomputation repeats the forward 2.
    halves = 2 + (2 + split) + 2 * recomputed_share(run)
    whole = tokens_of(run).count * run.model.hidden_size * WIDTHS[run.job.precision]
    return Exchange(group, halves * pairs * group.share * whole, pairs * halves / (1 if split else 2))


def expert_tensor_exchange(run: Run, layout: Layout, layers: float) -> Exchange:
    """Return the traffic of TP for a micro-batch where its ranks dispatch different tokens (dispatches_parts).

    They gather the rows that reach each of them, and scatter the results of their parts of the experts, which keep the
    gathered rows for backward.
    """
    group = group_of(run, layout, (TP,))
    halves = 4 + 2 * recomputed_share(run)
    rows = tokens_of(run).count * run.model.experts_per_token * run.model.hidden_size * WIDTHS[run.job.precision]
    return Exchange(group, halves * layers * group.share * rows, halves * layers)


def context_exchange(run: Run, layout: Layout, layers: float) -> Exchange:
    """Return the traffic of CP for a micro-batch: keys and values of all other ranks, and their gradients."""
    group, model = group_of(run, layout, (CP,)), run.model
    held = (
        tokens_of(run).count * 2 * model.kv_heads * model.head_size / run.parallelism.tensor * WIDTHS[run.job.precision]
    )
    # Around the ring go keys and values in forward; in backward these again, and their gradients. Recomputation repeats
    # the forward's round.
    rounds = (3 + recomputed_share(run)) * layers
    return Exchange(group, rounds * (group.ranks - 1) * held, rounds)


def pipeline_exchange(run: Run, layout: Layout, stages: int) -> Exchange:
    """Return the traffic of a stage for a micro-batch: activations to the next one, their gradients back."""
    pipeline = layout.degree(PP)
    split = run.parallelism.tensor if sequence_parallel(run) else 1
    sent = tokens_of(run).count * run.model.hidden_size * WIDTHS[run.job.precision] / split
    # Neighbours of a pipeline: two ranks, in one domain or in two.
    # PP is the slowest axis. Once a pipeline leaves its domain, some hop of it does, which sets the rhythm of all.
    stride = prod(layout.shape[1:])
    pair = Group(2 if pipeline > 1 else 1, 2 if stride * pipeline <= linked_ranks(run) else 1)
    return Exchange(pair, 2 * stages * sent, 2 * stages)


@dataclass(frozen=True)
class ShardExchange:
    """Traffic of a shard group in a step."""

    each: Exchange
    """Of every micro-batch but one."""
    one: Exchange
    """Of that one, which also has what is sent once per step."""


def shard_exchange(
    run: Run, layout: Layout, parameters: float, in_layers: float, axes: Sequence[Axis] = SHARD_GROUP_AXES
) -> ShardExchange:
    """Return the traffic of FSDP or ZeRO 3: weights gathered, gradients scattered, over the ranks of some axes.

    FSDP gathers those `in_layers` again for backward: the head stays, and the embedding is not needed.
    In a pipeline torch gathers and scatters once per step (jobs.engines.native.rules).
    """
    group = group_of(run, layout, axes)
    if not gathers_weights(run) or layout.degree(PP) > 1 or not parameters:
        return ShardExchange(Exchange(Group(1, 1)), Exchange(Group(1, 1)))
    whole = group.share * parameters
    weights = WIDTHS[run.job.precision] * whole
    engine = engine_of(run)
    gradients = (engine.gradient_bytes(run) if engine.reduces_apart else WIDTHS[run.job.precision]) * whole
    each = Exchange(group)
    one = Exchange(group)
    # Weights freed after forward are gathered again for backward. Kept ones are freed at the end of the step, since
    # no weight changes before (jobs.engines.native.data_parallel.prepare_backward).
    if run.parallelism.strategy is Strategy.zero3:
        each = each.plus(2 * weights, 2)
    elif frees_weights(run):
        each = each.plus(weights * (1 + in_layers / parameters), 2)
    else:
        one = one.plus(weights, 1)
    if run.parallelism.reduce_each is ReduceEach.micro_batch:
        each = each.plus(gradients, 1)
    else:
        one = one.plus(gradients, 1)
    if optimizer_of(run).gathers:
        one = one.plus(2 * WIDTHS[run.job.precision] * group.share * in_layers, 2)
    return ShardExchange(each, one.plus(each.wire_bytes, each.collectives))


def copied_bytes(run: Run, layout: Layout, parameters: float, in_layers: float) -> float:
    """Return the bytes of memory that FSDP's copies move in a micro-batch: out of a gather, and into a reduction.

    A gather fills one buffer, from which each weight is copied; gradients are widened into one buffer (torch,
    distributed/fsdp/_fully_shard/_fsdp_collectives.py).
    """
    if not gathers_weights(run) or layout.degree(PP) > 1 or layout.product(SHARD_GROUP_AXES) == 1:
        return 0.0
    width = WIDTHS[run.job.precision]
    gathered = parameters + in_layers if frees_weights(run) else parameters / accumulation(run)
    reduced = parameters if run.parallelism.reduce_each is ReduceEach.micro_batch else parameters / accumulation(run)
    return 2 * width * gathered + (width + engine_of(run).gradient_bytes(run)) * reduced


def replica_exchange(run: Run, layout: Layout, parameters: float, axes: Sequence[Axis] = DATA_AXES) -> Exchange:
    """Return the traffic of a step that keeps replicas along some axes equal: an all-reduce of gradients.

    It sends 2 (n - 1) / n of a gradient's bytes for each weight on the rank. A distributed optimizer (ZeRO 1 and 2)
    scatters gradients and gathers weights instead.
    """
    if gathers_weights(run) and layout.degree(PP) > 1:
        group = group_of(run, layout, DATA_AXES)
        sent = engine_of(run).gradient_bytes(run) + WIDTHS[run.job.precision]
        return Exchange(group, sent * group.share * parameters, 2)
    if gathers_weights(run):
        # HYBRID_SHARD: the shards' gradients, which shard_exchange has scattered, are reduced between the replicas.
        group = group_of(run, layout, (DP_REPLICATE,))
        sent = 2 * engine_of(run).gradient_bytes(run)
        return Exchange(group, sent * group.share * parameters / layout.product(SHARD_GROUP_AXES), 1)
    group = group_of(run, layout, axes)
    if shards_optimizer(run):
        sent = engine_of(run).gradient_bytes(run) + WIDTHS[run.job.precision]
        return Exchange(group, sent * group.share * parameters, 2)
    return Exchange(group, 2 * engine_of(run).gradient_bytes(run) * group.share * parameters, 1)


@once
def gathers_weights(run: Run) -> bool:
    """Return whether weights are sharded over data-parallel ranks and gathered before they are used."""
    if (stage := engine_of(run).zero_stage(run)) is not None:
        return stage == 3
    return layout_of(run).product(SHARD_GROUP_AXES) > 1 and run.parallelism.strategy is Strategy.fsdp


def shards_optimizer(run: Run) -> bool:
    """Return whether each data-parallel rank updates a part of the weights that all of them hold."""
    engine = engine_of(run)
    if (stage := engine.zero_stage(run)) is not None:
        return stage in (1, 2)
    return engine.has_distributed_optimizer and run.engine.distributed_optimizer

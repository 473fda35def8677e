"""Memory of a rank's training states, a lower bound by arithmetic: weights, gradients and optimizer state.

Activations, logits, communication buffers and the framework's own memory come on top. Bytes are of the rank with the
most, at the moment of a step that holds the most.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

from jobs.engines.engine import engine_of
from jobs.layout import (
    pipeline_stages_of,
    pipeline_stages_per_rank,
    shard_degree,
    uses_fsdp,
)
from jobs.parallelism import Strategy
from jobs.plan.pipeline_stages import pipeline_stage_layers
from jobs.plan.predict.activations import WIDTHS
from jobs.plan.predict.once import once
from jobs.plan.predict.weights import (
    Weight,
    adapter_weights,
    embedding_weights,
    held_by_rank,
    in_4_bits,
    kinds_of_run,
    layer_weights,
    norm_weights,
    prompt_weights,
    scale_bytes,
)
from jobs.schema import Run


@dataclass(frozen=True)
class States:
    """Bytes of one rank, by what they hold."""

    weights: int
    gradients: int
    optimizer: int
    """AdamW's moments, and a float32 copy of the weights (NeMo in 16 bits, DeepSpeed)."""
    gathered: int = 0
    """Weights of other ranks, which FSDP keeps in the type of the arithmetic."""
    kv_cache: int = 0
    """Keys and values of the tokens of one request, of a run that serves."""

    @property
    def total(self) -> int:
        """Return the sum."""
        return sum(vars(self).values())

    def described(self) -> str:
        """Return the parts in GB, without empty ones: `weights 27.0, gradients 27.0, optimizer 53.9`."""
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        return ", ".join(f"{name.replace('kv_', 'KV ')} {size / 1e9:,.1f}" for name, size in parts.items() if size)


@once
def states(run: Run) -> States:
    """Return the states of a run that jobs.plan.legality has passed."""
    return engine_of(run).states(run)


def kv_bytes_per_token(run: Run) -> int:
    """Return the bytes that a GPU keeps for each token: its part of the key and value heads of its layers.

    Of latent attention every TP rank keeps the narrow vector and the rotated key.
    """
    model = run.model
    if (latent := model.latent) is not None:
        kept = latent.kv_lora_rank + latent.rope_head_size
        return -(-model.layers // run.parallelism.pipeline) * kept * WIDTHS[run.job.precision]
    heads = -(-model.kv_heads // run.parallelism.tensor)
    layers = -(-model.layers // run.parallelism.pipeline)
    return 2 * layers * heads * model.head_size * WIDTHS[run.job.precision]


def undivided_gradients(run: Run) -> int:
    """Return the elements of the embedding's gradient beyond this rank's rows: under TP without FSDP, it is whole.

    torch's DTensor computes it so (torch/distributed/tensor/_ops/_embedding_ops.py); FSDP divides it again. A frozen
    embedding has none.
    """
    p = run.parallelism
    if p.tensor == 1 or uses_fsdp(run) or run.model.tie_embeddings or not run.job.trains_all_weights:
        return 0
    return sum(weight.size - weight.held(p.tensor) for weight in embedding_weights(run.model))


@dataclass(frozen=True)
class Held:
    """Parameters of one rank."""

    model: int
    added: int
    """Adapters, or virtual tokens and their encoder."""
    scale_bytes: int = 0
    """Bytes of the scales of weights in 4 bits, which are whole on every rank."""

    @property
    def total(self) -> int:
        """Return the sum."""
        return self.model + self.added

    def trained(self, run: Run) -> int:
        """Return those that the run trains."""
        return self.model if run.job.trains_all_weights else self.added


@once
def parameters_held(run: Run, *, sharded: bool = True, stored: bool = False) -> Held:
    """Return the parameters that the rank with the most keeps between steps; with `sharded` false, before FSDP.

    With `stored` the numbers in memory: those of a matrix in 4 bits are fewer (jobs.engines.native.customization.nf4).
    """
    return max(parameters_by_place(run, sharded=sharded, stored=stored), key=lambda each: each.total)


def layer_as_stored(run: Run) -> Sequence[Weight]:
    """Return the weights of a layer by the numbers that they are stored in."""
    weights = layer_weights(run.model)
    return in_4_bits(weights, WIDTHS[run.job.precision]) if run.job.quantizes_base else weights


@once
def parameters_by_place(run: Run, *, sharded: bool = True, stored: bool = False) -> list[Held]:
    """Return the parameters that a rank at each place of the pipeline keeps between steps (parameters_held)."""
    p, lora, prompt = run.parallelism, run.job.lora, run.job.prompt_tuning
    shards = shard_ranks(run) if sharded else 1

    def held(weights: Iterable[Weight]) -> int:
        return held_by_rank(weights, p, shards)

    def of_layers(count: int, kind: Run) -> Held:
        weights = layer_weights(kind.model)
        return Held(
            count * held(layer_as_stored(kind) if stored else weights),
            count * held(adapter_weights(kind.model, lora, fused=engine_of(run).fuses_adapters)) if lora else 0,
            count * scale_bytes(weights) if stored and run.job.quantizes_base else 0,
        )

    embedding, norm = held(embedding_weights(run.model)), held(norm_weights(run.model))
    virtual_tokens = held(prompt_weights(run.model, prompt)) if prompt else 0
    stages = pipeline_stage_layers(run)
    last = p.pipeline * pipeline_stages_per_rank(run) - 1
    found = []
    for place in range(p.pipeline):
        mine = pipeline_stages_of(run, place)
        # The first stage has the embedding; the last one the head, of the same shape, and the norm before it.
        ends = (0 in mine) * embedding + (last in mine) * (norm + embedding)
        # Both are one tensor on one rank.
        if run.model.tie_embeddings and {0, last} <= set(mine):
            ends -= embedding
        kinds = kinds_of_run(run, [layer for stage in mine for layer in stages[stage]])
        layers = [of_layers(count, kind) for count, kind in kinds]
        found.append(
            Held(
                ends + sum(each.model for each in layers),
                (0 in mine) * virtual_tokens + sum(each.added for each in layers),
                sum(each.scale_bytes for each in layers),
            )
        )
    return found


def matrices_held(run: Run, *, of_experts: bool = False) -> int:
    """Return the numbers in matrices of layers, or of experts, on the rank that holds the most of them, before FSDP."""
    stages = pipeline_stage_layers(run)

    def chosen(kind: Run) -> Iterable[Weight]:
        return (w for w in layer_weights(kind.model) if (w.of_expert if of_experts else w.columns > 1))

    def held(place: int) -> int:
        layers = [layer for stage in pipeline_stages_of(run, place) for layer in stages[stage]]
        return sum(count * held_by_rank(chosen(kind), run.parallelism, 1) for count, kind in kinds_of_run(run, layers))

    return max(map(held, range(run.parallelism.pipeline)))


def shard_ranks(run: Run) -> int:
    """Return the ranks that share one copy of the weights: FSDP's shard group, context-parallel ranks included."""
    return shard_degree(run) * run.parallelism.context if run.parallelism.strategy is Strategy.fsdp else 1

"""NVIDIA's NeMo: its recipe with Megatron's parallelism."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from jobs.engines.engine import BLACKWELL, BLACKWELL_ULTRA, MXFP8_BOTH_WAYS, OLDER_KERNEL, Engine, Overlap
from jobs.engines.native.optimizers.optimizer import optimizer_of
from jobs.layout import data_degree, pipeline_stages_per_rank, sequence_parallel
from jobs.parallelism import Strategy
from jobs.schema import QKV, Float8Recipe, LoraTarget, Mlp, Precision, Run

if TYPE_CHECKING:
    from jobs.plan.predict.activations import Tokens
    from jobs.plan.predict.states import States


FUSED_HEADS = 8
"""Fused attention of Megatron requires heads of a multiple of so many numbers (NVIDIA/TransformerEngine,
transformer_engine/pytorch/attention/dot_product_attention/utils.py, get_attention_backend)."""
TENSOR_CORE_SPEEDUP = 8
"""Rate of bfloat16 with tensor cores over that without: 312 and 39 TFLOPS on A100 (its data sheet). With it BLOOM's
trials with other heads are predicted as well as the rest (tests/README.md)."""


class NeMo(Engine):
    """engine=nemo."""

    entry_point = "jobs.engines.nemo.train:train"
    rules = "jobs.engines.nemo.rules"
    package, extra = "nemo", "nemo"
    fuses_adapters = has_distributed_optimizer = has_whole_rows = needs_gpus = True
    divides_experts_of_replicas = fuses_limited_swiglu = True
    profiles_steps = False
    float8_recipes: ClassVar[Mapping[Float8Recipe, float]] = {
        Float8Recipe.delayed: 0.0,
        Float8Recipe.tensorwise: 0.0,
        Float8Recipe.blockwise: 4.0,
        Float8Recipe.mxfp8: MXFP8_BOTH_WAYS,
        # Read twice, since the scale of the tensor comes first.
        Float8Recipe.nvfp4: 2 + 2 + 2 * (1 / 2 + 1 / 16),
    }
    float8_package = "NeMo 2.7.3 with Megatron-Core 0.15.3"
    activation_limits = (0.7, 1.25)
    """In 13 of 16 runs of Megatron with Transformer Engine the memory is within 2 % of the formulas; in the other three
    it is 5 to 14 % lower (SimuMax's table of B200). The limits allow for recipes that keep less or more."""

    @property
    def not_read(self) -> Mapping[str, str]:
        """Return the native engine's keys but two, and TF32: Transformer Engine always multiplies float32 so."""
        from jobs.plan.rules.native_only import OF_SEVERAL, native_settings

        own = {key: value for key, value in native_settings().items() if key not in OF_SEVERAL}
        return own | {"engine.tf32": "true"}

    def states(self, run: Run) -> States:
        """Return the states of Megatron: weights in the type of the arithmetic, gradients and optimizer in float32.

        Narrow weights that train have a float32 copy in the optimizer, which the distributed optimizer shards over
        data-parallel ranks with the moments.
        """
        from jobs.plan.predict.activations import WIDTHS
        from jobs.plan.predict.states import States, matrices_held, parameters_held

        held, width, p = parameters_held(run), WIDTHS[run.job.precision], run.parallelism
        trained = held.trained(run)
        ranks = data_degree(run) * p.context if run.engine.distributed_optimizer else 1
        # Only the ranks with the same experts shard their optimizer.
        experts = matrices_held(run, of_experts=True) if p.expert > 1 and run.job.trains_all_weights else 0
        updated = -(-(trained - experts) // ranks) + -(-experts * min(ranks, p.expert) // ranks)
        copies = round(optimizer_of(run).moments(run)) + (1 if width < 4 else 0)
        return States(
            weights=width * held.total + round(self.rounded_bytes(run) * matrices_held(run)),
            gradients=self.gradient_bytes(run) * trained,
            optimizer=4 * copies * updated,
        )

    def rounded_bytes(self, run: Run) -> float:
        """Return the bytes of a number of a layer's matrices beside those of the arithmetic (nemo.float8)."""
        match self.float8_recipe(run):
            case Float8Recipe.mxfp8:
                # Along rows and columns; with the distributed optimizer there is nothing else.
                return 2 * (1 + 1 / 32) - (2 if run.engine.distributed_optimizer else 0)
            case Float8Recipe.nvfp4:
                return 2 * (1 / 2 + 1 / 16)
            case _:
                # In float8 each matrix has its transpose beside it, which the gradient of the input needs: as much as
                # in bfloat16. Two of NVIDIA's published recipes would not fit if it were kept in bfloat16, too.
                return 0.0

    def bytes_per_parameter(self, run: Run) -> int:
        """Return 3 x 4 bytes, and in bfloat16 2 of the weights of the arithmetic."""
        return 14 if run.job.precision is Precision.bfloat16 else 12

    def shardings(self, run: Run) -> list[tuple[tuple[str, Any], ...]]:
        """Return the distributed optimizer."""
        return [(), (("engine.distributed_optimizer", True),)]

    def sharding_refusal(self, run: Run) -> str | None:
        """Refuse FSDP too: Megatron's data parallelism replicates weights and shards the optimizer's state."""
        p = run.parallelism
        if p.strategy is not Strategy.fsdp:
            return super().sharding_refusal(run)
        replicated = "_".join(name for name, degree in (("tp", p.tensor), ("pp", p.pipeline)) if degree > 1) or "ddp"
        return (
            f"engine=nemo replicates weights and parallelism={p.name} shards them; Megatron shards optimizer state "
            f"instead (engine.distributed_optimizer=true). Set parallelism={replicated}, or engine=native."
        )

    def sharding_like_zero(self, run: Run) -> str:
        """Return the distributed optimizer."""
        return "parallelism=ddp engine.distributed_optimizer=true"

    def gradient_bytes(self, run: Run) -> int:
        """Return those of `engine.gradients`."""
        return 2 if run.engine.gradients is Precision.bfloat16 else 4

    def attention_rate(self, run: Run) -> float:
        """Return that of cuDNN; without tensor cores where Megatron's fused attention does not support the heads."""
        if run.model.head_size % FUSED_HEADS:
            return 1 / TENSOR_CORE_SPEEDUP
        # Blackwell Ultra has twice Blackwell's rate of exponentials, on which attention waits there
        # (developer.nvidia.com/blog/making-softmax-more-efficient-with-nvidia-blackwell-ultra).
        return OLDER_KERNEL if BLACKWELL <= (run.gpu.compute_capability or 0.0) < BLACKWELL_ULTRA else 1.0

    def fuses_elements(self, run: Run) -> bool:
        """Return True: Transformer Engine's and Megatron's kernels."""
        return True

    def overlap(self, run: Run) -> Overlap:
        """Return what `jobs.engines.nemo.recipe` sets: TP by Transformer Engine's buffers, where it has them."""
        on, job = run.engine.overlap_communication, run.job
        buffered = sequence_parallel(run) and job.precision is Precision.bfloat16 and job.lora is None
        return Overlap(
            tensor=float(on and buffered),
            # Transformer Engine's ring has no switch.
            context=True,
            gradients=on,
            # Two stages of a rank take turns; one stage needs what it waits for (recipe.py, overlap_p2p_comm).
            pipeline=on and pipeline_stages_per_rank(run) > 1,
            weights=on and run.engine.distributed_optimizer,
        )

    def layer_bytes(self, run: Run, x: Tokens) -> int:
        """Return those of the formula, less what Megatron divides, fuses and rounds.

        The inputs of the two opening matrices are divided; the activation function is one kernel, which also weights
        the results of experts. In few bits matrices keep their inputs so, of attention's result beside itself.
        """
        from jobs.plan.predict.activations import operands, rows_of_experts
        from jobs.plan.predict.matrix_products import NUMBER_BYTES

        model, recipe, tensor = run.model, self.float8_recipe(run), run.parallelism.tensor
        inputs = [operands(run, x, model.hidden_size, targets) for targets in (QKV, (LoraTarget.mlp,))]
        gathered = (x.count - x.between) * sum(inputs[:1] if model.experts else inputs)
        rows = rows_of_experts(run, x) if model.experts else x.count
        inner = model.inner_size // tensor
        gated = model.mlp is not Mlp.GptNeoxMLP and model.swiglu_limit is None
        fused = rows * x.width * (gated * inner + (model.hidden_size if model.experts else 0))
        rounded = 0
        if recipe is not None:
            narrow, opening = NUMBER_BYTES[recipe], rows if model.experts else x.between
            numbers = x.between * model.hidden_size + opening * model.hidden_size + rows * inner
            beside = x.count * model.heads * model.head_size // tensor
            rounded = round((x.width - narrow) * numbers - narrow * beside)
        return super().layer_bytes(run, x) - gathered - fused - rounded


ENGINE = NeMo()

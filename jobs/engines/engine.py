"""The protocol of an engine: all that plan, submit and a rank ask of the program that computes.

An engine is a folder of jobs/engines with the object ENGINE in its engine.py, named after its member of EngineKind. It
is looked up here by name, so nothing below imports an engine. Plan and submit ask these objects on login nodes: they
import no torch, and what is slow only where it is used.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from jobs.lookup import imported, rules_of
from jobs.schema import EngineKind, Float8Recipe, Kernels, Precision, Run

if TYPE_CHECKING:
    from jobs.data import Dataset
    from jobs.plan.predict.activations import Tokens
    from jobs.plan.predict.states import States
    from jobs.plan.rules.rule import Rule
    from jobs.work.work import Entry


HOPPER, BLACKWELL, BLACKWELL_ULTRA = 9.0, 10.0, 10.3
"""Compute capabilities."""
MXFP8_BOTH_WAYS = 2 + 2 * (1 + 1 / 32)
"""Bytes to round a number to MXFP8: it is read in bfloat16, and written twice with scales, along rows and columns,
since the products of a layer sum over both. A float8 number with a scale for its tensor serves both, and the kernel
before it writes it."""
OLDER_KERNEL = 0.7
"""Rate of an attention kernel without a generation's own instructions over that of one with them: FlashAttention-2
reaches 0.35 of the peak of H100, and forward and backward pass of FlashAttention-3 and cuDNN together about half
(arXiv:2407.08608). Assumed of cuDNN on Blackwell too, as published rows of B200 and GB200 suggest (tests/README.md)."""


class Overlap(NamedTuple):
    """Communication that an engine starts early enough to run at the same time as computation, besides FSDP's."""

    tensor: float = 0.0
    """Share of the products that are cut into pieces, each computed while another one is sent."""
    context: bool = False
    """Keys and values of the next rank travel during the attention to those at hand."""
    gradients: bool = False
    """Replicas reduce the gradients of a layer during the backward pass of those before it."""
    pipeline: bool = False
    """Activations travel to the next stage during the next micro-batch."""
    weights: bool = False
    """Replicas gather the updated weights of a layer during the forward pass of those before it."""


class Engine(ABC):
    """An engine."""

    rules: str | None = None
    """The module with its VALUES, RULES and WARNINGS."""
    entry_point: str
    """The function of a rank, MODULE:NAME: torch takes seconds to import, and NeMo twenty."""
    package: str
    """The package that it imports besides torch."""
    extra: str
    """The extra of pyproject.toml that brings it."""
    least_torch: tuple[int, int] | None = None
    """The oldest torch that it runs with."""
    sets_allocator = True
    """True if torch's allocator gets expandable segments; LitGPT's own scripts and servers set nothing."""
    works: frozenset[str] = frozenset({"train"})
    """The kinds of work that it does, besides those that name it (jobs.work.work)."""
    fuses_adapters = False
    """True if q, k and v have one adapter together."""
    uses_autocast = False
    """True if arithmetic in 16 bits runs in autocast; other engines, and FSDP, cast weights by themselves."""
    counts_memory = False
    """True if tensors are counted in the engine's own code; False if they are estimated by formulas."""
    activation_limits = (0.6, 1.8)
    """Lowest and highest memory of activations, buffers and loss over that of the formulas, in nine of ten runs."""
    reduces_apart = False
    """True if sharded gradients are reduced in a type of their own (gradient_bytes), not in that of the arithmetic."""
    has_distributed_optimizer = False
    """True if `engine.distributed_optimizer` shards the optimizer's state over replicas."""
    allocates_gradients_first = True
    """True if all gradients have memory before the first backward pass of a step."""
    has_whole_rows = False
    """True if every row is padded to Job.row_length."""
    pads_for_kernels = False
    """True if rows on GPUs are padded to a multiple that attention kernels prefer."""
    shards_sequences_on_cpus = False
    """True if TP shards activations along the sequence also without GPUs."""
    chooses_schedule = False
    """True if it has several schedules of the pipeline."""
    writes_in_background = False
    """True if `job.checkpoint_in_background` has an effect."""
    profiles_steps = True
    """True if chosen steps can be profiled."""
    needs_gpus = False
    """True if it does not run on CPUs."""
    float8_recipes: ClassVar[Mapping[Float8Recipe, float]] = {}
    """Scales that it has for `engine.float8`, that of null first, with the bytes of memory that rounding a number of
    activations or gradients moves, beside what the kernels around it move anyway."""
    float8_package = ""
    """The package that computes them, with the versions known to have them."""
    fuses_limited_swiglu = False
    """True if limited SwiGLU (model.swiglu_limit) is one kernel, where the engine fuses any."""
    divides_experts_of_replicas = False
    """True if ranks that hold equal copies of all other weights divide the experts (Megatron), and not those of a shard
    group (FSDP)."""
    is_named = True
    """True if names of runs contain it."""
    evaluated_from: str | None = None
    """The source of the weights for stages.evaluate: "checkpoints", "export", or None."""

    @property
    def not_read(self) -> Mapping[str, str]:
        """Return keys that it does not read, with the only values that they may have."""
        from jobs.plan.rules.native_only import NEMO_ONLY, native_settings

        return native_settings() | NEMO_ONLY

    def not_read_because(self, run: Run, key: str, value: str, remedy: str) -> str:
        """Return the refusal of a key that it does not read."""
        from jobs.plan.rules.native_only import NEMO_ONLY, OF_SEVERAL

        if key in NEMO_ONLY:
            return f"{key}={value} is Megatron's. Set {remedy}, or engine=nemo."
        only = f"only supported by engine={OF_SEVERAL.get(key, 'native')}, not by engine={run.engine.kind.name}"
        return f"{key}={value} is {only}. Set {remedy}, or engine=native."

    def value_rules(self) -> Iterable[Rule]:
        """Return the rules that need no legal layout."""
        return rules_of(self.rules, "VALUES")

    def layout_rules(self) -> Iterable[Rule]:
        """Return the rules of a run whose values, layout and batch are legal."""
        return rules_of(self.rules, "RULES")

    def warnings(self) -> Iterable[Rule]:
        """Return its own warnings."""
        return rules_of(self.rules, "WARNINGS")

    @abstractmethod
    def states(self, run: Run) -> States:
        """Return the training states of the rank with the most."""

    def work_refusal(self, run: Run) -> str | None:
        """Return the refusal of all other kinds of work; None if the work itself names the engine that it needs."""
        return None

    def sharding_refusal(self, run: Run) -> str | None:
        """Return the refusal of sharding by another engine's means, with the choice that shards the same."""
        kind = run.engine.kind.name
        if run.engine.deepspeed is not None:
            return (
                f"engine.deepspeed has settings of DeepSpeed, and engine.kind={kind} does not read them. Set "
                f"engine={kind}, or engine=deepspeed."
            )
        if not run.parallelism.strategy.is_zero or (equivalent := self.sharding_like_zero(run)) is None:
            return None
        return (
            f"parallelism={run.parallelism.name} is DeepSpeed's ZeRO, and engine={kind} shards in its own way. Set "
            f"{equivalent}, or engine=deepspeed."
        )

    def sharding_like_zero(self, run: Run) -> str | None:
        """Return the choice that shards like the ZeRO stage of a run; None if it refuses sharding in its own words."""
        return None

    def zero_stage(self, run: Run) -> int | None:
        """Return the stage of ZeRO; None for an engine without."""
        return None

    def float8_recipe(self, run: Run) -> Float8Recipe | None:
        """Return the scales of products in few bits; None for a run without them."""
        return (run.engine.float8_recipe or next(iter(self.float8_recipes))) if run.engine.float8 else None

    def gradient_bytes(self, run: Run) -> int:
        """Return the bytes of a gradient where every rank holds all of them."""
        return 2 if run.engine.parameters in {Precision.bfloat16, Precision.float16} else 4

    def attention_rate(self, run: Run) -> float:
        """Return the rate of its attention kernel over that of the GPU's best one: torch has FlashAttention-2."""
        return 1.0 if (run.gpu.compute_capability or 0.0) < HOPPER else OLDER_KERNEL

    def fuses_elements(self, run: Run) -> bool:
        """Return True if norms, rotary embedding and activation function are one kernel each."""
        return run.engine.compile or run.engine.kernels is not Kernels.torch

    def overlap(self, run: Run) -> Overlap:
        """Return the communication that runs behind computation: of torch's DDP that of gradients."""
        return Overlap(gradients=True)

    def layer_bytes(self, run: Run, x: Tokens) -> int:
        """Return the activations that a layer keeps without checkpointing, by the formula."""
        from jobs.plan.predict.activations import attention, feed_forward, norms

        return norms(run, x) + attention(run, x) + feed_forward(run, x)

    def buffer_bytes(self, run: Run) -> int:
        """Return the buffers of its collectives, by the formula."""
        return 0

    def notes(self, run: Run) -> Iterable[tuple[str, str]]:
        """Yield its notes below the plan: the subject, and a sentence."""
        return ()

    def described_call(self, run: Run) -> str | None:
        """Return the call of another program that a rank makes, for `plan`; None if there is none."""
        return None

    def refuse_samples(self, run: Run, dataset: Dataset) -> None:
        """Raise DataError for samples that it cannot train on."""

    def memory_share(self, run: Run) -> float:
        """Return the part of a GPU's memory that a run can use."""
        return 1.0

    def bytes_per_parameter(self, run: Run) -> float:
        """Return the bytes of a checkpoint for each trained parameter, in the mean; 0: a run resumes from none."""
        return 0

    def shardings(self, run: Run) -> list[tuple[tuple[str, Any], ...]]:
        """Return the values of keys that shard states over data-parallel ranks: as they are first, then further ones.

        For runs that do not fit the memory of their GPUs.
        """
        return [()]

    def entry(self, run: Run) -> Entry:
        """Return the training of a rank; only now are its packages imported."""
        found: Entry = imported(self.entry_point)
        return found


def engine_of(run: Run) -> Engine:
    """Return the engine of a run."""
    return loaded(run.engine.kind)


@cache
def loaded(kind: EngineKind) -> Engine:
    """Return the object of an engine."""
    found: Engine = imported(f"jobs.engines.{kind.name}.engine:ENGINE")
    return found

"""The schema: type, unit, default and meaning of every configuration key.

The YAML files under conf/ hold the values. Hydra merges them onto these classes and refuses unknown keys and wrong
types; jobs/plan/rules/ holds the rules between keys, jobs/parallelism.py the keys of `parallelism`, jobs/settings/
those of the kinds of work and of `report`. A YAML file must set a key that has no default here. `None` (null in YAML)
is the only spelling of "not set".
A user sets a choice by the name of its Enum member.
The text below a field or member is what `slurmscale explain KEY` prints.
Treat a `Run` as read-only: OmegaConf cannot compose frozen dataclasses, so nothing enforces it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Annotated

from jobs.parallelism import NATIVE_ONLY, Parallelism
from jobs.ranges import MOST_COUNT, AtLeast1, Below1, Count, Nodes, NoneOrMore, NotNegative, Positive, Range
from jobs.settings.images import ImageTraining
from jobs.settings.program import Program
from jobs.settings.report import StudyTable
from jobs.settings.serving import Server, Serving
from jobs.settings.storage import StorageTest


class Norm(Enum):
    """Normalization layer, by LitGPT's name."""

    RMSNorm = "RMSNorm"
    """Scale by the root mean square."""
    LayerNorm = "LayerNorm"
    """Subtract the mean, scale by the standard deviation."""


class NormPlace(Enum):
    """Place of a layer's norms."""

    before = "before"
    """Of the inputs of attention and feed-forward."""
    after = "after"
    """Of their results, before these are added to the residual stream (OLMo 2)."""
    around = "around"
    """Of both (Gemma 2 and 3)."""


class Mlp(Enum):
    """Feed-forward layer, by LitGPT's name."""

    LLaMAMLP = "LLaMAMLP"
    """SwiGLU: two input matrices and one output matrix."""
    GptNeoxMLP = "GptNeoxMLP"
    """GELU between one input and one output matrix."""
    GemmaMLP = "GemmaMLP"
    """GEGLU: as SwiGLU, with GELU (by tanh) in place of SiLU."""
    LLaMAMoE = "LLaMAMoE"
    """Mixture of SwiGLU experts (`model.experts`)."""


@dataclass(kw_only=True)
class RopeScaling:
    """Scaling of rotary frequencies to a longer context: linear if `factor` alone is set, Llama 3.1's, or YaRN."""

    factor: float
    """Divisor of the low frequencies, or of all."""
    low_freq_factor: float | None = None
    """Frequencies with fewer than this many turns in the original context are divided by `factor`; null: all are."""
    high_freq_factor: float | None = None
    """Frequencies with more than this many turns stay; those in between are interpolated."""
    original_max_sequence_length: int | None = None
    """Context length in tokens before the scaling."""
    beta_slow: float | None = None
    """YaRN's `low_freq_factor` (usually 1); null: not YaRN."""
    beta_fast: float | None = None
    """YaRN's `high_freq_factor` (usually 32): it interpolates by the number of a frequency, Llama 3.1 by its turns."""
    round_limits: bool = True
    """Round the numbers of the frequencies where the interpolation begins and ends outwards (YaRN; not GPT-OSS)."""
    attention_factor: float = 1.0
    """Factor of cosines and sines (YaRN: 0.1 ln(factor) + 1)."""
    mscale_all_dim: float = 0.0
    """Attention multiplies its scores by (0.1 mscale_all_dim ln(factor) + 1)^2 (YaRN of DeepSeek); 0: by 1."""

    @property
    def is_yarn(self) -> bool:
        """Return True if frequencies are interpolated as by YaRN."""
        return self.beta_slow is not None

    @property
    def is_linear(self) -> bool:
        """Return True if all frequencies are divided alike."""
        return self.low_freq_factor is None and not self.is_yarn


@dataclass(kw_only=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): keys and values are made from a narrow vector.

    Keys and queries have `model.head_size` numbers for each head, the last of which are rotated.
    """

    kv_lora_rank: Count
    """Width of the vector of a token from which the keys and values of all heads are made."""
    q_lora_rank: Count | None = None
    """Width of the vector of a token from which queries are made; null: they are made from hidden states."""
    rope_head_size: Count
    """Rotated part of each head of queries, and of the one rotated key that all heads share."""
    value_head_size: Count
    """Width of a head of values."""


class RouterScores(Enum):
    """Scores of experts from their products with a token."""

    softmax = "softmax"
    """Softmax over all experts (DeepSeek-V2)."""
    sigmoid = "sigmoid"
    """Sigmoid of each; a bias of each expert is added for the choice only (DeepSeek-V3)."""
    sigmoid_inputs = "sigmoid_inputs"
    """Sigmoid of each, without a bias; it multiplies what an expert gets, and not its result (Llama 4)."""


@dataclass(kw_only=True)
class Router:
    """Router of a mixture of experts in float32, by scores of all experts (DeepSeek-V2 and V3, Llama 4)."""

    scores: RouterScores
    """Scores of experts from their products with a token."""
    normalize: bool = False
    """Divide the scores of the chosen experts by their sum."""
    scale: float = 1.0
    """Factor of the results of the chosen experts (routed_scaling_factor)."""
    groups: Count = 1
    """Groups of consecutive experts."""
    chosen_groups: Count = 1
    """Groups among whose experts a token's are chosen: those with the highest sums of their best scores."""
    scores_per_group: Count = 1
    """Scores in that sum."""


@dataclass(kw_only=True)
class QueryTemperature:
    """Growth of queries with their position p (from 0): times scale ln(1 + floor((p + 1) / length)) + 1."""

    scale: float
    """Factor of the logarithm."""
    length: Count
    """Positions of a step of the growth."""


@dataclass(kw_only=True)
class Model:
    """Architecture of a decoder-only transformer: the numbers that decide its shapes."""

    name: str
    """Name of the model in run names, tables and reports."""
    source: str
    """Source of the numbers."""
    litgpt_name: str | None = None
    """Name of the same model in LitGPT's own table; a test compares the two."""
    layers: Count
    """Transformer blocks."""
    heads: Count
    """Query heads of each layer."""
    kv_heads: Count
    """Key and value heads; fewer than `heads` is grouped-query attention."""
    hidden_size: Count
    """Width of the residual stream."""
    head_size: int
    """Width of one head."""
    intermediate_size: int
    """Inner width of the feed-forward layer."""
    vocab_size: int
    """Rows of the embedding as allocated (LitGPT's `padded_vocab_size`)."""
    max_sequence_length: int
    """Longest sequence in tokens; the rotary table ends there."""
    norm: Norm = Norm.RMSNorm
    """Normalization layer."""
    norm_eps: float = 1e-5
    """Number added to the variance before the root."""
    norm_unit_offset: bool = False
    """Multiply by 1 + weight in norms (Gemma)."""
    norm_place: NormPlace = NormPlace.before
    """Place of a layer's norms."""
    mlp: Mlp = Mlp.LLaMAMLP
    """Feed-forward layer."""
    bias: bool = False
    """Add a bias to the linear layers, the router of experts included."""
    attention_bias: bool = False
    """Add a bias to query, key and value only (Qwen2.5)."""
    norm_qk: bool = False
    """Normalize each head of queries and keys before the rotation, one scale for all heads (Qwen3)."""
    norm_qk_whole: bool = False
    """Let these norms normalize all heads together, each number with a scale of its own (OLMo 2), not each head."""
    norm_rotated: bool = False
    """Divide rotated queries and keys by the root mean square of their head, without weights (Llama 4 Scout)."""
    attention_scores_scalar: Count | None = None
    """Number by whose root attention divides its scores (Gemma); null: `head_size`."""
    attention_softcap: Positive | None = None
    """Number c by which scores s of attention become c tanh(s / c) (Gemma 2); null: they stay."""
    attention_sinks: bool = False
    """Add a learned number for each query head to the sums of attention's softmax, beside its scores (GPT-OSS)."""
    sliding_window: Count | None = None
    """Positions that a token attends to in layers with a sliding window, itself included; null: no such layers."""
    chunked_window: bool = False
    """Let the window not slide: a token attends to those before it in its chunk of the sequence (Llama 4)."""
    full_attention_every: NoneOrMore = 0
    """Of this many layers, the last one has no sliding window (Gemma 3: 6); 0: all layers have one."""
    parallel_residual: bool = False
    """Add attention and feed-forward to the same input (GPT-NeoX), not one after the other."""
    rope_base: int = 10000
    """Base of the rotary frequencies."""
    rope_fraction: float = 1.0
    """Part of each head that is rotated."""
    rope_scaling: RopeScaling | None = None
    """Scaling of rotary frequencies to a longer context; null: none."""
    rope_local_base: Count | None = None
    """Base of the rotary frequencies, without scaling, in layers with a sliding window; null: as in other layers."""
    rope_in_windows: bool = False
    """Rotate queries and keys in layers with a sliding window only (Llama 4)."""
    query_temperature: QueryTemperature | None = None
    """Growth of queries with their position in layers that do not rotate them (Llama 4); null: none."""
    scale_embeddings: bool = False
    """Multiply embeddings by the root of `hidden_size` (Gemma)."""
    logits_softcap: Positive | None = None
    """The same for logits (Gemma 2)."""
    tie_embeddings: bool = False
    """Use one matrix as embedding and as head."""
    experts: NoneOrMore = 0
    """Experts of a mixture-of-experts layer; 0: a dense model."""
    experts_per_token: NoneOrMore = 0
    """Experts that compute each token; 0: a dense model."""
    moe_intermediate_size: Count | None = None
    """Inner width of each expert (Qwen3 MoE); null: `intermediate_size`."""
    swiglu_limit: Positive | None = None
    """Limit of gate and up in experts, whose SwiGLU is then g sigmoid(1.702 g) (u + 1) (GPT-OSS: 7); null: SwiGLU."""
    shared_experts: NoneOrMore = 0
    """Experts that compute every token, as one of their joint width (DeepSeek); 0: none."""
    dense_layers: NoneOrMore = 0
    """First layers of a mixture of experts with one feed-forward of `intermediate_size` (DeepSeek); 0: none."""
    experts_every: Count = 1
    """Distance between layers with experts, the first of them at this place; others are as `dense_layers` (Llama 4
    Maverick: 2)."""
    router: Router | None = None
    """Router by scores of all experts; null: softmax over the products of the chosen ones (Mixtral, Qwen3 MoE)."""
    latent: LatentAttention | None = None
    """Multi-head latent attention; null: each head of keys and values has its own matrix."""

    @property
    def has_window(self) -> list[bool]:
        """Return whether each layer has a sliding window."""
        every = self.full_attention_every
        return [
            self.sliding_window is not None and (not every or (layer + 1) % every > 0) for layer in range(self.layers)
        ]

    @cached_property
    def is_dense(self) -> list[bool]:
        """Return whether each layer of a mixture of experts has one feed-forward in place of experts."""
        every = self.experts_every
        return [layer < self.dense_layers or (layer + 1) % every > 0 for layer in range(self.layers)]

    @property
    def value_size(self) -> int:
        """Return the width of a head of values; `head_size` is that of queries and keys."""
        return self.head_size if self.latent is None else self.latent.value_head_size

    @property
    def shared_size(self) -> int:
        """Return the inner width of the shared experts together."""
        return self.shared_experts * self.inner_size

    @property
    def inner_size(self) -> int:
        """Return the inner width of each expert, or of the feed-forward layer of a dense model."""
        return self.intermediate_size if self.moe_intermediate_size is None else self.moe_intermediate_size

    @property
    def inner_size_key(self) -> str:
        """Return the key that decides `inner_size`."""
        return "intermediate_size" if self.moe_intermediate_size is None else "moe_intermediate_size"


class Precision(Enum):
    """Type of numbers."""

    float32 = "float32"
    """32 bits, 24 of them precision."""
    bfloat16 = "bfloat16"
    """16 bits, 8 of them precision."""
    float16 = "float16"
    """16 bits, 11 of them precision, largest number 65,504: with dynamic loss scaling, for GPUs without bfloat16."""


class EngineKind(Enum):
    """Code that executes a training step."""

    native = "native"
    """LitGPT's model under PyTorch's own parallelism."""
    nemo = "nemo"
    """NeMo 2's recipe: Megatron-core's model and parallelism."""
    litgpt = "litgpt"
    """LitGPT's own scripts through Lightning Fabric, unchanged: the baseline."""
    deepspeed = "deepspeed"
    """LitGPT's model under DeepSpeed's ZeRO."""
    vllm = "vllm"
    """vLLM, or another server of the OpenAI interface: it serves the model and trains nothing (job=serve)."""


class ActivationCheckpointing(Enum):
    """Activations that the backward pass computes again instead of keeping."""

    none = "none"
    """Keep all activations."""
    selective = "selective"
    """Keep the results of matrix products and attention, compute the rest again."""
    full = "full"
    """Keep the input of each layer only."""


class WeightsReader(Enum):
    """Ranks that read the weights of `job.init_from`."""

    each = "each"
    """Every rank reads its part of the file."""
    node = "node"
    """One rank of a node and pipeline stage reads each weight and sends it to the others."""


class OptimizerLoop(Enum):
    """Implementation of AdamW's update, by PyTorch's names; all compute the same."""

    fused = "fused"
    """One kernel for all operations on many parameters."""
    foreach = "foreach"
    """One kernel per operation, on many parameters."""
    single = "single"
    """One kernel per operation and parameter; needs the least memory."""


class Loss(Enum):
    """Computation of the loss from the last hidden states (native)."""

    whole = "whole"
    """From the logits of all positions at once."""
    chunked = "chunked"
    """From the logits of some positions at a time, of positions with a label only; `plan` prints their number."""


class Kernels(Enum):
    """GPU kernels of norms, rotary embedding and SwiGLU."""

    torch = "torch"
    """PyTorch's."""
    liger = "liger"
    """Liger's fused kernels (extra `liger`); the run ends with an error on a rank without GPU or package."""
    liger_or_torch = "liger_or_torch"
    """Liger's, and PyTorch's on a rank without GPU or package; the run records the choice (`kernels` of `started`)."""


class LigerKernel(Enum):
    """An operation that Liger has a fused kernel for. Its loss is not among them: `engine.loss=chunked` fuses that."""

    rms_norm = "rms_norm"
    """RMSNorm."""
    rope = "rope"
    """Rotary embedding of queries and keys."""
    swiglu = "swiglu"
    """SiLU and product of the feed-forward layer."""


class Offload(Enum):
    """Place of what ZeRO partitions."""

    none = "none"
    """The device that computes."""
    cpu = "cpu"
    """Memory of the node."""
    nvme = "nvme"
    """Files in `nvme_path` on a disk of each node; needs libaio and a compiler there."""


@dataclass(kw_only=True)
class DeepSpeed:
    """DeepSpeed's settings of ZeRO, by its names in `zero_optimization`; sizes count elements.

    Stage, batch, clipping and precision are not among them: `parallelism`, `scaling` and `job` set them.
    """

    overlap_comm: bool = True
    """Reduce gradients during the backward pass."""
    contiguous_gradients: bool = True
    """Copy gradients to one buffer as they are made."""
    reduce_scatter: bool = True
    """Average gradients by reduce-scatter instead of all-reduce."""
    reduce_bucket_size: Count | None = None
    """Elements reduced at a time; null: hidden_size^2, which Hugging Face's Trainer fills in for `auto`."""
    allgather_partitions: bool = True
    """Collect updated weights by all-gather instead of broadcasts (stages 1 and 2)."""
    allgather_bucket_size: Count = 500_000_000
    """Elements gathered at a time (stages 1 and 2)."""
    round_robin_gradients: bool = False
    """Spread the copies of gradients over ranks (stages 1 and 2, with offload)."""
    sub_group_size: Count = 1_000_000_000
    """Elements that the optimizer updates at a time (stage 3)."""
    stage3_prefetch_bucket_size: NoneOrMore | None = None
    """Elements of weights gathered ahead; null: 0.9 hidden_size^2, as for `auto`."""
    stage3_param_persistence_threshold: NoneOrMore | None = None
    """Weights with fewer elements stay whole on every rank; null: 10 hidden_size, as for `auto`."""
    stage3_max_live_parameters: NoneOrMore = 1_000_000_000
    """Most elements of gathered weights that a rank holds at a time."""
    stage3_max_reuse_distance: NoneOrMore = 1_000_000_000
    """Keep gathered weights that are needed again within this number of elements."""
    gather_16bit_weights_on_model_save: bool = False
    """Export the weights in `job.precision`, gathered by DeepSpeed, instead of the optimizer's in float32."""
    offload_optimizer: Offload = Offload.none
    """Place of optimizer state and float32 weights (stages 1 to 3; nvme: stage 3)."""
    offload_param: Offload = Offload.none
    """Place of weights (stage 3)."""
    nvme_path: str | None = None
    """Directory on a disk of each node for nvme."""


class Profiler(Enum):
    """Program that records a profile."""

    torch = "torch"
    """PyTorch's profiler: a Chrome trace of `steps`, and their shares of compute and communication in the report."""
    nsys = "nsys"
    """Nsight Systems around the rank; without `steps` it records all of it."""
    rocprof = "rocprof"
    """ROCm's rocprofv3 around the rank; it records all of it."""


@dataclass(kw_only=True)
class Profile:
    """Steps and ranks to profile; off by default, and without cost then."""

    program: Profiler = Profiler.torch
    """Program that records the profile."""
    steps: list[int] = field(default_factory=list)
    """Consecutive steps to record; steady values exclude them and, with program=torch, the step before."""
    ranks: list[int] = field(default_factory=lambda: [0])
    """Ranks to record."""

    @property
    def wraps_ranks(self) -> bool:
        """True if the program starts the rank, instead of being started by it."""
        return self.program is not Profiler.torch

    def covers(self, step: int) -> bool:
        """Return True if a step takes longer because of the profile."""
        if not self.steps:
            return self.wraps_ranks
        first = self.steps[0] if self.wraps_ranks else self.steps[0] - 1
        return first <= step <= self.steps[-1]


class Float8Recipe(Enum):
    """Scales of matrix products in few bits, by the names of torchao and Transformer Engine."""

    tensorwise = "tensorwise"
    """One for a tensor, from its largest number of now (Transformer Engine: current scaling)."""
    rowwise = "rowwise"
    """One for each row or column of a product's operands, a power of two."""
    delayed = "delayed"
    """One for a tensor, from its largest numbers in the last 1,024 steps."""
    blockwise = "blockwise"
    """One for 128 numbers of activations and gradients, and for 128 x 128 of weights."""
    mxfp8 = "mxfp8"
    """A power of two for every 32 numbers (MXFP8)."""
    nvfp4 = "nvfp4"
    """4-bit numbers with a scale of 8 bits for every 16, and one for the tensor (NVFP4)."""


class ExpertDispatcher(Enum):
    """The way of tokens to the experts of other ranks, and back."""

    all_to_all = "all_to_all"
    """A copy for each chosen expert, by NCCL."""
    deepep = "deepep"
    """A copy for each rank that has a chosen expert, and across the network one for each node, by DeepEP."""


@dataclass(kw_only=True)
class Engine:
    """The code that executes a training step."""

    kind: EngineKind
    """Code that executes a training step."""
    activation_checkpointing: ActivationCheckpointing = ActivationCheckpointing.none
    """Activations that the backward pass computes again instead of keeping."""
    checkpointed_layers: Count | None = None
    """First layers of each pipeline stage that `activation_checkpointing` applies to; null: all."""
    compile: bool = False
    """Compile with torch.compile: every layer, whole (native), or the model (litgpt); not for nemo."""
    loss: Loss | None = None
    """Computation of the loss from the last hidden states; null: on GPUs in chunks where a micro-batch has
    more than one, else whole (native)."""
    distributed_optimizer: bool = False
    """Shard Megatron's optimizer state over data-parallel ranks, as ZeRO stage 1 does (nemo)."""
    gradients: Precision = Precision.float32
    """Type in which replicas send gradients to be summed: FSDP, DDP (native), Megatron, which keeps them in it too
    (nemo). bfloat16 halves this traffic, and rounds; with `job.precision=bfloat16`. Without replicas
    `job.optimizer=adamw_stochastic` sums micro-batches in it."""
    overlap_communication: bool = True
    """Send at the same time as computing: for TP, between pipeline stages, and for gradients and weights of replicas
    (nemo); for TP of compiled layers (native). False only to measure what that gains, or where Transformer Engine's
    buffers for TP do not start."""
    expert_dispatcher: ExpertDispatcher = ExpertDispatcher.all_to_all
    """The way of tokens to the experts of other ranks (nemo)."""
    tf32: bool = True
    """Let products of float32 matrices round their operands to TF32 (10 bits of mantissa) on NVIDIA GPUs since Ampere,
    which are several times faster; LitGPT's command does so too. False: all 23 bits
    (native, litgpt, deepspeed)."""
    deterministic: bool = False
    """Compute by deterministic kernels only, so that a repeated or resumed run on the same GPUs has the same bits;
    slower, and an operation without such a kernel ends the run."""
    float8: bool = False
    """Multiply in float8 in all linear layers but the head, on GPUs that can: by torchao with `compile` (native), or by
    Transformer Engine (nemo)."""
    float8_recipe: Float8Recipe | None = None
    """Scales of `float8`: tensorwise, rowwise, mxfp8 (native); delayed, tensorwise, blockwise, mxfp8, nvfp4 (nemo).
    null: the first of each."""
    kernels: Kernels = Kernels.torch
    """GPU kernels of norms, rotary embedding and SwiGLU (native)."""
    liger_kernels: list[LigerKernel] = field(default_factory=lambda: list(LigerKernel))
    """Operations that Liger's kernels replace with kernels=liger or liger_or_torch (native)."""
    weights: WeightsReader = WeightsReader.each
    """Ranks that read the weights of `job.init_from` (native)."""
    prefetch_batches: NoneOrMore = 0
    """Batches that a thread of each rank prepares ahead of their step; 0: each is prepared in its step (native)."""
    sums_in_products: bool = False
    """Add a micro-batch's gradients of matrices to their sums in the products that compute them (native): on one GPU,
    for several micro-batches in a step."""
    update_in_backward: bool = False
    """Update each weight as soon as backward has its gradient, and free that (native): for one micro-batch in a step,
    without clipping."""
    optimizer_loop: OptimizerLoop | None = None
    """Implementation of AdamW's update; null: fused on a GPU, single on a CPU (native)."""
    parameters: Precision = Precision.float32
    """Type of weights, gradients and optimizer state between steps (native, litgpt). bfloat16 halves their memory and
    loses small updates in rounding, unless `job.optimizer=adamw_stochastic`; `job.precision` is the type of the
    arithmetic."""
    hang_timeout_s: Count = 600
    """Longest time of a step, or of reading data or a checkpoint; the watchdog then ends the run and records which
    ranks were behind."""
    startup_limit_s: Count | None = None
    """Longest time from the start of the processes to the end of the first step of a training; the run then ends, and
    records which part took how long. null: no limit but `hang_timeout_s` for each part."""
    pace_every_steps: NoneOrMore | None = None
    """Steps between two comparisons of the ranks' own work, which find stragglers (native); null: 10, 0: never."""
    cpu_threads_per_rank: Count = 1
    """Compute threads of a rank on a CPU; the ranks of a node share its cores."""
    deepspeed: DeepSpeed | None = None
    """Settings of ZeRO (deepspeed); null: their defaults, or another engine."""
    server: Server | None = None
    """The server of a replica (vllm); null: another engine."""
    profile: Profile = field(default_factory=Profile)
    """Steps and ranks to profile."""


class Batching(Enum):
    """Arrangement of samples of different lengths in micro-batches (native; nemo and litgpt: padded)."""

    padded = "padded"
    """One row per sample, as long as the longest of its micro-batch."""
    bucketed = "bucketed"
    """Padded, with samples of similar length in a micro-batch."""
    packed = "packed"
    """One row for all samples of a micro-batch, end to end; attention stays within a sample, and in text within a
    document. With the other choices it crosses the documents of a window of text."""


class LoraTarget(Enum):
    """Matrices of a layer that can have adapters, by LitGPT's names (`lora_query` and so on)."""

    query = "query"
    """Queries of attention."""
    key = "key"
    """Keys of attention."""
    value = "value"
    """Values of attention."""
    projection = "projection"
    """Output of attention."""
    mlp = "mlp"
    """All matrices of the feed-forward: of every expert, and the router."""


QKV = (LoraTarget.query, LoraTarget.key, LoraTarget.value)
"""Parts of LitGPT's fused matrix, in the order of its rows."""


class BaseFormat(Enum):
    """Format of frozen weights of fewer bits than the arithmetic has."""

    nf4 = "nf4"
    """4-bit NormalFloat with double quantization, by bitsandbytes."""


@dataclass(kw_only=True)
class Lora:
    """Low-rank adapters that are trained instead of the weights."""

    rank: Count
    """Inner width of an adapter."""
    alpha: Positive
    """Scale of an adapter's output, divided by `rank`."""
    dropout: Below1 = 0.0
    """Share of an adapter's inputs that training drops."""
    targets: list[LoraTarget] = field(default_factory=lambda: list(LoraTarget))
    """Matrices of every layer that have an adapter; by default all."""
    quantize_base: BaseFormat | None = None
    """Format of the frozen matrices of every layer (QLoRA, native); null: the type of `job.precision`."""


class PromptEncoder(Enum):
    """Network that computes the embeddings of virtual tokens."""

    mlp = "mlp"
    """Three linear layers, with ReLU between them."""
    lstm = "lstm"
    """A bidirectional LSTM of two layers, then two linear layers with ReLU between them."""


@dataclass(kw_only=True)
class PromptTuning:
    """Virtual tokens in front of every sample, whose embeddings are trained instead of the weights."""

    virtual_tokens: Count
    """Number of virtual tokens; a row is `job.sequence_length` and these long."""
    encoder: PromptEncoder | None = None
    """Network that computes their embeddings (P-tuning); null: they are trained themselves (prompt tuning)."""
    encoder_hidden_size: Count | None = None
    """Inner width of the encoder, of an LSTM in each direction; null: the model's hidden size."""


class OptimizerKind(Enum):
    """Rule of the update."""

    adamw = "adamw"
    """AdamW."""
    adamw_stochastic = "adamw_stochastic"
    """AdamW in float32 arithmetic on bfloat16 weights and moments, rounded stochastically, so that small updates count
    in the mean; needs `engine.parameters=bfloat16`."""
    adamw_8bit = "adamw_8bit"
    """AdamW whose moments of matrices are kept in 8 bits, with a scale for every block of at most 256 numbers."""
    muon = "muon"
    """Muon for the matrices of layers (their updates are orthogonalized), AdamW for all other weights."""


class Decay(Enum):
    """Shape in which the learning rate falls, from 1 to 0 over a share p of the decay."""

    cosine = "cosine"
    """Half a cosine, (1 + cos(pi p)) / 2."""
    linear = "linear"
    """A straight line, 1 - p."""
    sqrt = "sqrt"
    """Fast at first, 1 - sqrt(p): for short decays at the end of a run (arXiv:2405.18392)."""
    none = "none"
    """It stays at `job.learning_rate`."""


class WeightDecayOn(Enum):
    """Weights that AdamW's weight decay shrinks."""

    all = "all"
    """All trained weights: norms, biases and embeddings too."""
    matrices = "matrices"
    """Matrices, embeddings included: not norms and biases."""
    layers = "layers"
    """Matrices but the embedding: not norms, biases and embeddings."""


@dataclass(kw_only=True)
class LossBand:
    """Losses of another run that a run must keep near, or it ends as diverged."""

    reference: str | None = None
    """Directory of that run (native, nemo, deepspeed); null: no such gate."""
    percent: Annotated[float, Range(0.001, 100, usual=1.0)] = 1.0
    """Largest distance of the mean losses of the same steps, relative to the reference's."""
    steps: Count = 20
    """Consecutive steps of a mean."""


@dataclass(kw_only=True)
class Job:
    """Length, batches and hyperparameters of a training."""

    name: str
    """Name of the choice in tables and reports."""
    steps: Count | None = None
    """Optimizer steps; set either this or `epochs`."""
    epochs: Count | None = None
    """Passes over the data, without an incomplete last global batch; set either this or `steps`."""
    sequence_length: Count
    """Longest sample in tokens."""
    micro_batch_size: Count
    """Sequences per rank and forward pass (MBS); with batching=packed their mean."""
    batching: Batching = field(default=Batching.padded, metadata=NATIVE_ONLY)
    """Arrangement of samples of different lengths in micro-batches (native; nemo and litgpt: padded)."""
    bucket_batches: Count | None = field(default=None, metadata=NATIVE_ONLY)
    """Global batches whose samples are sorted by length together; only with batching=bucketed, null: 8."""
    precision: Precision
    """Type of the arithmetic; `engine.parameters` is the type of weights and optimizer state."""
    learning_rate: Annotated[float, Range(0, 1e3, usual=3e-4)]
    """Highest learning rate, reached after the warm-up."""
    min_learning_rate: Annotated[float, Range(0, 1e3, usual=3e-5)]
    """Learning rate at the end of the decay."""
    warmup_steps: NoneOrMore
    """Steps of linear warm-up of the learning rate."""
    decay: Decay = field(default=Decay.cosine, metadata=NATIVE_ONLY)
    """Shape in which the learning rate falls (native; all others: cosine)."""
    decay_steps: Count | None = field(default=None, metadata=NATIVE_ONLY)
    """Last steps of a run, in which the learning rate falls; before them it is constant (warm-up, stable, decay).
    null: all after the warm-up (native)."""
    optimizer: OptimizerKind = field(default=OptimizerKind.adamw, metadata=NATIVE_ONLY)
    """Rule of the update (native; all others: adamw)."""
    optimizer_class: str | None = field(default=None, metadata=NATIVE_ONLY)
    """Class of your own for the rule of the update, a torch.optim.Optimizer as PACKAGE.MODULE.CLASS, installed or on
    PYTHONPATH (native); null: `optimizer`."""
    optimizer_arguments: dict[str, str] = field(default_factory=dict, metadata=NATIVE_ONLY)
    """Further arguments of `optimizer_class`, as Python's literals: `{momentum: 0.9, nesterov: true}` (native)."""
    weight_decay: Annotated[float, Range(0, 1e3, usual=0.1)]
    """AdamW's weight decay; `weight_decay_on` chooses the weights."""
    weight_decay_on: WeightDecayOn = field(default=WeightDecayOn.all, metadata=NATIVE_ONLY)
    """Weights that weight decay shrinks (native; all others: all)."""
    beta1: Annotated[float, Range(0, 0.99999, usual=0.9)]
    """AdamW's decay of the mean of gradients."""
    beta2: Annotated[float, Range(0, 0.99999, usual=0.95)]
    """AdamW's decay of the mean of squared gradients."""
    expert_balance_loss: Annotated[float, Range(0, 1e3, usual=0.001)] = field(default=0.0, metadata=NATIVE_ONLY)
    """Weight of a loss that balances the load of experts (native, nemo); 0: none. The recorded loss is without it."""
    expert_bias_speed: Annotated[float, Range(0, 1, usual=0.001)] = field(default=0.0, metadata=NATIVE_ONLY)
    """Change of the bias by which an expert is chosen, after each step, by its load (native; DeepSeek-V3); 0: none."""
    z_loss: Annotated[float, Range(0, 1e3, usual=1e-4)] = field(default=0.0, metadata=NATIVE_ONLY)
    """Weight of the z-loss, the mean of log(Z)^2 over labels, which keeps the logits from drifting; Z is the sum of
    their exponentials (native; PaLM); 0: none. The recorded loss is without it."""
    ema_decay: Annotated[float | None, Range(0.5, 0.999999, usual=0.999)] = field(default=None, metadata=NATIVE_ONLY)
    """Decay of an average of the weights, which the export and the evaluation have in place of the last weights
    (native); null: no average."""
    clip_norm: Positive | None = None
    """Largest gradient norm; null: no clipping."""
    loss_band: LossBand = field(default_factory=LossBand)
    """Gate of a run in float8: its losses stay near those of the same run in bfloat16."""
    seed: Annotated[int, Range(0, 2**31 - 1, usual=1234)]
    """Seed of initial weights, sample order and random data."""
    init_from: str | None = None
    """Hugging Face or LitGPT directory whose weights the run starts from, or of the model that it serves (vllm); null:
    random weights from `seed`."""
    init_from_is_remote: bool = False
    """The directory of `init_from` exists on the nodes only, or in the container: submission does not look for it."""
    train: bool = True
    """Train; false: only evaluate the weights of `init_from` on the held-out samples, in one process (native), serve
    them (vllm), or measure storage."""
    lora: Lora | None = None
    """Low-rank adapters to train instead of the weights (native, nemo, litgpt); null: none."""
    prompt_tuning: PromptTuning | None = None
    """Virtual tokens to train instead of the weights, by prompt tuning or P-tuning (native); null: none."""
    export: bool = False
    """Write a LitGPT checkpoint directory at the end; of virtual tokens (`prompt_tuning`) one for PEFT."""
    checkpoint_every_steps: Count | None = None
    """Steps between two checkpoints; null: no checkpoint."""
    checkpoint_in_background: bool = True
    """Continue training while a checkpoint is written from a copy in host memory (native)."""
    keep_checkpoints: Count = 2
    """Number of newest checkpoints that stay on disk."""
    checkpoint_copy_dir: str | None = field(default=None, metadata=NATIVE_ONLY)
    """Directory on a disk of each node, such as /local, to which the node copies its ranks' files of the newest
    checkpoint in the background; a restart there reads them from it. The node replaces variables such as $TMPDIR
    (native). null: no copies."""
    unmeasured_steps: Count
    """First steps of every attempt that steady values exclude (warm-up rule)."""

    @property
    def trains_all_weights(self) -> bool:
        """Return whether the model's own weights train: without adapters and virtual tokens."""
        return self.lora is None and self.prompt_tuning is None

    @property
    def quantizes_base(self) -> bool:
        """Return whether the matrices of the layers are frozen in few bits."""
        return self.lora is not None and self.lora.quantize_base is not None

    @property
    def row_length(self) -> int:
        """Return the positions of the longest row: the longest sample, and virtual tokens in front of it."""
        return self.sequence_length + self.virtual_tokens

    @property
    def virtual_tokens(self) -> int:
        """Return the number of virtual tokens in front of each sample."""
        return self.prompt_tuning.virtual_tokens if self.prompt_tuning else 0


class Source(Enum):
    """Kind of samples that a run trains on."""

    stdlib = "stdlib"
    """Source text of Python's standard library."""
    docstrings = "docstrings"
    """Docstrings of Python's standard library as prompts and responses."""
    text = "text"
    """Text of your own, as text files or JSON lines (`data.path`)."""
    alpaca = "alpaca"
    """Instructions and outputs in Alpaca's format (`data.path`)."""
    dolly = "dolly"
    """Instructions and responses in Dolly's format (`data.path`)."""
    pubmedqa = "pubmedqa"
    """Questions and answers in PubMedQA's format (`data.path`)."""
    megatron_binary = "megatron_binary"
    """Token ids in Megatron's binary format (`data.path`)."""
    random = "random"
    """Random tokens: speed only, the loss has no meaning."""


INSTRUCTIONS = frozenset({Source.docstrings, Source.alpaca, Source.dolly, Source.pubmedqa})
"""Sources of prompts with responses; the others are text, or random tokens."""
TEXTS = frozenset({Source.stdlib, Source.text, Source.megatron_binary})
"""Sources whose samples are windows of text, which may hold several documents."""


class TooLong(Enum):
    """Treatment of samples longer than `job.sequence_length`."""

    refuse = "refuse"
    """Refuse the data."""
    truncate = "truncate"
    """Cut the sample."""


def default_cache_dir() -> str:
    """Return the directory of tokenized data where none is set."""
    return f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/slurmscale/data"


@dataclass(kw_only=True)
class Data:
    """The text, its tokenizer, and the construction of samples."""

    name: str
    """Name of the choice in tables and reports."""
    source: Source
    """Kind of samples."""
    path: str | None
    """File, directory of .txt or .jsonl files (text), directory with train.json, .parquet, .jsonl or .json files
    (instructions), or PREFIX of PREFIX.bin and PREFIX.idx (megatron_binary); null for the other sources. Files that are
    named as splits for tests are left out of a directory."""
    prompt: str | None = None
    """Prompt template of instruction data: a name in conf/prompts.yaml, or a YAML file; null: that of the format."""
    tokenizer: str | None = None
    """tokenizer.json or tokenizer.model, or its directory; null: a byte-level BPE trained on the text."""
    bpe_vocab_size: int = 2048
    """Vocabulary of that BPE; at most `model.vocab_size`."""
    max_samples: Count | None = None
    """Number of samples to use, from the first; null: all."""
    held_out_samples: NoneOrMore = 0
    """Last samples of those that no step trains on; `stages.evaluate` computes the loss on them."""
    test_split: float | None = None
    """Samples held out instead, drawn at random: a share below 1, rounded up, or a number of samples; null: the last
    `held_out_samples`."""
    split_seed: NoneOrMore = 1234
    """Seed of the draw of `test_split`, so that the samples held out do not depend on `job.seed`."""
    shots: NoneOrMore = 0
    """Examples in front of each prompt, drawn from the samples that are not held out (with job.train=false)."""
    mask_prompt: bool = False
    """Leave prompts out of the loss (instruction data)."""
    too_long: TooLong = TooLong.refuse
    """Treatment of samples longer than `job.sequence_length`."""
    max_line_mb: Annotated[float, Range(1e-3, 1e5, usual=64)] = 64.0
    """Longest line of text or of JSON lines, in units of 10^6 bytes: a line is read as a whole."""
    max_expansion: Count = 500
    """Most times its size that a .jsonl.zst file may expand to; 256 MiB are always allowed."""
    # Not an interpolation, which OmegaConf would parse anew for every point of a sweep.
    cache_dir: str = field(default_factory=default_cache_dir)
    """Directory of tokenized data; the nodes must see it. By default below $XDG_CACHE_HOME, else ~/.cache, and private
    to its user."""

    @property
    def holds_out(self) -> bool:
        """True if samples are held out of training."""
        return self.test_split is not None or self.held_out_samples != 0


class ScalingMode(Enum):
    """Quantity that stays fixed when ranks are added."""

    strong = "strong"
    """The global batch."""
    weak = "weak"
    """The batch per rank."""


@dataclass(kw_only=True)
class Scaling:
    """Global batch of a run, by the quantity that stays fixed when ranks are added."""

    mode: ScalingMode
    """Quantity that stays fixed when ranks are added."""
    global_batch_size: Count | None = None
    """Sequences per optimizer step (GBS) with mode=strong; null: 8, or the least larger number that all points of the
    sweep can take."""
    sequences_per_rank: Count | None = None
    """GBS divided by the number of ranks, with mode=weak."""


@dataclass(kw_only=True)
class Gpu:
    """One accelerator, by its data sheet."""

    name: str
    """Name of the accelerator in tables and reports."""
    source: str
    """Source of the numbers."""
    device_name: str | None = None
    """Name of the device in torch, complete: an H200 NVL, or a MIG slice, does not get the peak of an H200."""
    compute_capability: float | None = None
    """NVIDIA's compute capability (developer.nvidia.com/cuda-gpus); null: another vendor's, or unknown."""
    memory_gb: float | None = None
    """Memory of the device."""
    memory_check: bool = True
    """Refuse a run that is predicted not to fit `memory_gb`; false runs it anyway, with the same settings."""
    peak_bf16_tflops: float | None = None
    """Dense bfloat16 peak, without sparsity; the reference of MFU."""
    peak_fp16_tflops: float | None = None
    """Dense float16 peak, without sparsity."""
    peak_tf32_tflops: float | None = None
    """Dense peak of float32 products with operands in TF32, without sparsity; null: the GPU has none."""
    peak_fp32_tflops: float | None = None
    """Dense float32 peak."""
    matmul_bf16_tflops: float | None = None
    """Largest measured rate of a matrix product in bfloat16, for predictions; null: 0.8 of the peak."""
    matmul_fp8_tflops: float | None = None
    """The same in float8; null: 1.77 times that in bfloat16, as on H100."""
    matmul_mxfp8_tflops: float | None = None
    """The same in MXFP8; null: that in float8, whose peak is equal."""
    matmul_nvfp4_tflops: float | None = None
    """The same in NVFP4; null: twice that in float8, as in the data sheets of B200 and GB200."""
    memory_gb_per_s: float | None = None
    """Bandwidth of the device's memory; `plan` predicts no step time without it."""
    link_gb_per_s: float | None = None
    """Bandwidth in one direction to the other GPUs of the node: NVLink or Infinity Fabric, else PCIe."""
    link_domain_gpus: Count | None = None
    """GPUs that the link joins if it leaves the node, as NVLink does in a rack; null: those of a node."""
    power_w: float | None = None
    """Largest power of the board; `plan` predicts no energy without it."""


class ContainerRuntime(Enum):
    """Program that starts the ranks inside the cluster's container."""

    pyxis = "pyxis"
    """The Slurm plugin that adds srun --container-image."""
    apptainer = "apptainer"
    """`apptainer exec` before every rank; also Singularity where it has that name."""


class LauncherKind(Enum):
    """The program that starts the ranks, implemented in jobs/submit/launchers/NAME.py, and its abilities."""

    slurm = "slurm"
    """sbatch; runs with equal resources share a job array."""
    local = "local"
    """Processes on this machine, one run after the other."""
    dry = "dry"
    """Nothing: shows what the launcher of the cluster would do."""
    script = "script"
    """A person, who gives job.sbatch of each run directory to sbatch."""
    pbs = "pbs"
    """qsub (PBS Pro, OpenPBS); each run is a job of its own."""
    pbs_script = "pbs_script"
    """A person, who gives job.pbs of each run directory to qsub (PBS Pro)."""
    pbs_pilot = "pbs_pilot"
    """As pilot, one job of PBS."""
    pilot = "pilot"
    """One Slurm job for all points of a submission, which gives its nodes to them as they become free."""
    here = "here"
    """The nodes of the Slurm or PBS job that runs this command, given to the points as they become free."""

    @property
    def is_preview(self) -> bool:
        """True if it only shows what another launcher would do."""
        return self is LauncherKind.dry

    @property
    def on_this_machine(self) -> bool:
        """True if the ranks are processes of the machine that submits."""
        return self is LauncherKind.local

    @property
    def scheduler(self) -> str | None:
        """The scheduler whose job ids are in the ledger; None if no job of a scheduler is submitted."""
        return {"slurm": "Slurm", "pilot": "Slurm", "pbs": "PBS", "pbs_pilot": "PBS"}.get(self.name)

    @property
    def job_per_run(self) -> bool:
        """True if each run is a job, or a task of a job array, of its own."""
        return self.in_queue and not self.one_job

    @property
    def has_arrays(self) -> bool:
        """True if runs with equal resources share a job array."""
        return self is LauncherKind.slurm

    @property
    def one_job(self) -> bool:
        """True if all runs share one job, which is submitted for them."""
        return self in {LauncherKind.pilot, LauncherKind.pbs_pilot}

    @property
    def in_own_job(self) -> bool:
        """True if the runs use the job of the user that runs the command, which waits for their ends."""
        return self is LauncherKind.here

    @property
    def in_queue(self) -> bool:
        """True if the job ids in the ledger are a scheduler's."""
        return self.scheduler is not None

    @property
    def starts_runs(self) -> bool:
        """True if the runs are queued or started; the others only show them, or write scripts for a person."""
        return self.in_queue or self.on_this_machine or self.in_own_job

    @property
    def needs_slurm(self) -> bool:
        """True if the cluster has to run Slurm."""
        return self.scheduler == "Slurm" or self is LauncherKind.script

    @property
    def needs_pbs(self) -> bool:
        """True if the cluster has to run PBS."""
        return self.scheduler == "PBS" or self is LauncherKind.pbs_script

    @property
    def chains_stages(self) -> bool:
        """True if its jobs can wait for each other, as the stages around training do."""
        return self in {LauncherKind.slurm, LauncherKind.pbs, LauncherKind.local, LauncherKind.dry}


class PbsStart(Enum):
    """Program that starts one shell on each node of a PBS job."""

    pbsdsh = "pbsdsh"
    """The program of PBS itself."""
    ssh = "ssh"
    """ssh to the nodes of PBS_NODEFILE, where a site lets jobs log in to their nodes."""
    mpirun = "mpirun"
    """mpirun of the loaded MPI (Open MPI, MPICH, Intel MPI), one process a node."""


@dataclass(kw_only=True)
class Cluster:
    """A machine: its nodes, its scheduler, and the preparation of a job's environment."""

    name: str
    """Name of the cluster in tables and reports."""
    launcher: LauncherKind = LauncherKind.slurm
    """The launcher of this cluster: used unless another one is chosen, and previewed by launcher=dry."""
    source: str | None = None
    """Source of the numbers."""
    ranks_per_node: int
    """GPUs of a node, or ranks that a CPU node takes."""
    max_nodes: int | None = None
    """Most nodes that a job may ask for."""
    max_wall_time_min: int | None = None
    """Longest time limit that a job may ask for."""
    cpus_per_rank: int | None = None
    """CPU cores that a job asks for per rank; null: the scheduler's default."""
    memory_gb_per_node: NoneOrMore | None = None
    """Memory that a job asks for on each node; 0: all of Slurm's, null: the scheduler's default."""
    gpus: bool
    """Ask the scheduler for one GPU per rank; false for CPU nodes."""
    gpu_type: str | None = None
    """Slurm's name of the type of these GPUs, such as a100, where a partition has several; null: any."""
    network_gb_per_s: float | None = None
    """Bandwidth in one direction between two nodes, or GPUs of two nodes, by the data sheet; `slurmscale doctor`
    compares with it."""
    calibration: str | None = None
    """File of constants of predicted step time and memory that `slurmscale calibrate` fitted to runs on this cluster,
    from the site directory; null: published ones, with wide intervals."""
    service_units_per_node_hour: Positive | None = None
    """Service units that the site charges for a node and hour; null: reports have no costs in service units."""
    price_per_gpu_hour: Positive | None = None
    """Price of a GPU for an hour, in `currency`; null: GPU-hours have no price."""
    price_per_kwh: Positive | None = None
    """Price of a kilowatt-hour, in `currency`, for runs whose energy was read; null: energy has no price."""
    pue: AtLeast1 = 1.0
    """Energy of the data centre divided by that of its computers (power usage effectiveness), for `price_per_kwh`."""
    currency: str = "USD"
    """Currency of the prices, as reports print it."""
    exclusive: bool = False
    """Ask for whole nodes (sbatch --exclusive)."""
    partition: str | None = None
    """Partition (PBS: queue) of the jobs; null: the default one."""
    account: str | None = None
    """Account (PBS: project) that pays; null: your default one."""
    qos: str | None = None
    """Quality of service of the jobs; null: the account's default."""
    trusted_group: str | None = None
    """Unix group of yours whose members may write the directories above a sweep, such as a project's; null: none."""
    constraint: str | None = None
    """Features that nodes must have (sbatch --constraint)."""
    modules: list[str] = field(default_factory=list)
    """Environment modules loaded before the ranks start."""
    container: str | None = None
    """Image that the ranks run in, as `container_runtime` names it; null: no container."""
    container_runtime: ContainerRuntime = ContainerRuntime.pyxis
    """Program that starts the ranks inside the container."""
    container_mounts: list[str] = field(default_factory=list)
    """Mounts of the form HOST_PATH:PATH; apptainer also mounts runs_dir, data.cache_dir and job.init_from."""
    setup: list[str] = field(default_factory=list)
    """Shell lines of the batch script before the ranks start, each a complete command; the run ends if one fails."""
    env: dict[str, str] = field(default_factory=dict)
    """Environment variables of the ranks. NCCL_SOCKET_IFNAME also sets gloo's interface, unless GLOO_SOCKET_IFNAME is
    set."""
    sbatch: dict[str, str] = field(default_factory=dict)
    """Further sbatch options, without the dashes."""
    pbs: dict[str, str] = field(default_factory=dict)
    """Further resources of PBS (`qsub -l`); names of one letter are other options of qsub."""
    pbs_resubmit: bool = False
    """Submit another PBS job from the first node when a run has to go on and its job has no time left; needs a qsub
    there that reaches the server."""
    pbs_totals: bool = False
    """Ask PBS for ncpus, ngpus and mem of the whole job, for sites that do not accept `select`."""
    pbs_start: PbsStart = PbsStart.pbsdsh
    """Program that starts the shell of each node of a PBS job, which starts the ranks of the node."""
    record_power: bool = False
    """Record the power of every node in each second, in power-NODE.csv: of its GPUs, else of its processors (RAPL)."""
    gpu_power_limit_w: Positive | None = None
    """Power limit at which each NVIDIA GPU of the run is held while it works (as nvidia-smi -pl); needs root. null: as
    the GPUs are."""
    gpu_clock_mhz: Count | None = None
    """Clock at which each NVIDIA GPU of the run is locked while it works (as nvidia-smi -lgc); needs root. null: as the
    GPUs are."""
    python: str | None = None
    """Python command on the nodes (in the container, if any); null: the Python that submits."""
    stage_environment: str | None = None
    """Directory on a disk of each node, such as /tmp, to which the environment of the Python that submits is copied
    before the ranks start, and kept for later starts: for environments on a file system from which many ranks import
    slowly. null: ranks run the environment where it is."""


class Transport(Enum):
    """Transport of collectives between nodes."""

    roce = "roce"
    """RDMA over Ethernet: NCCL's NET/IB on adapters whose link is RoCE, or a plugin."""
    infiniband = "infiniband"
    """RDMA over InfiniBand: NCCL's NET/IB on adapters whose link is IB, or a plugin."""
    tcp = "tcp"
    """TCP sockets: NCCL's NET/Socket, or gloo."""


@dataclass(kw_only=True)
class Network:
    """Network between the nodes of a run, by the variables of NCCL; RCCL reads the same names.

    Each rank sets them before it loads torch, so that runs of one job can differ in them (jobs.network).
    """

    name: str = "default"
    """Name of the choice in tables and reports."""
    transport: Transport | None = None
    """Transport that is required: sets NCCL_IB_DISABLE, with tcp also NCCL_NET. A run that finds another one after its
    first step ends with the reason; null: NCCL's choice."""
    gpu_direct: bool = False
    """Require that RDMA adapters read and write the memory of GPUs themselves (GPUDirect RDMA). A run that finds RDMA
    without it ends with the reason; false: copies through the host's memory are allowed."""
    adapters: list[str] = field(default_factory=list)
    """RDMA adapters that each node uses, and no others, such as [mlx5_0,mlx5_1] (NCCL_IB_HCA); empty: all."""
    gb_per_s: Positive | None = None
    """Bandwidth of this network in one direction for each GPU, which predictions take; null: the cluster's
    (`cluster.network_gb_per_s`), of fewer adapters than GPUs their share of it."""
    interface: str | None = None
    """IP interface of sockets, by its complete name (NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME); null: their choice."""
    gid_index: NoneOrMore | None = None
    """Index in an adapter's table of addresses that RoCE uses (NCCL_IB_GID_INDEX); null: NCCL's choice."""
    plugin: str | None = None
    """Network plugin: path, or ending of the name, of its library (NCCL_NET_PLUGIN); null: that of the library path."""
    library: str | None = None
    """Path of a library of collectives that is loaded instead of torch's (libnccl.so.2; of RCCL librccl.so.1)."""
    env: dict[str, str] = field(default_factory=dict)
    """Further variables of NCCL or RCCL, such as NCCL_ALGO or RCCL_MSCCL_ENABLE."""


@dataclass(kw_only=True)
class Launcher:
    """Start and restart of the ranks."""

    kind: LauncherKind
    """Scheduler or program that starts the ranks."""
    max_running: Count | None = None
    """Most runs of a submission that run at once; null: no limit."""
    requeues: NoneOrMore = 3
    """Most restarts of a run after a fault of the machine, or at its time limit from a checkpoint; 0: none."""
    requeue_pause_s: NoneOrMore = 30
    """Shortest pause before a restart after a fault; it doubles with each further one, up to half an hour."""
    spare_nodes: NoneOrMore = 0
    """Further nodes of the job of launcher=slurm, which take the place of nodes that fail, without the queue."""
    exclude_known_bad: bool = False
    """Leave out hosts on which recent runs of `runs_dir` failed, or were slow; false: `submit` only names them."""
    stop_before_limit_s: Count | None = None
    """Seconds before its time limit at which a run is asked to stop and save; null: 90 and the time to write two
    checkpoints at 1 GB/s, at most a quarter of the limit."""
    pilot_nodes: Count | None = None
    """Whole nodes of the one job of launcher=pilot or pbs_pilot."""
    pilot_wall_time_min: Count | None = None
    """Time limit of that job; `wall_time_min` is the limit of a point inside it."""


@dataclass(kw_only=True)
class Stage:
    """Resources of a stage other than training, which is one process in a job of its own."""

    partition: str | None = None
    """Partition or queue of the stage; null: the cluster's, with its constraint and further sbatch options."""
    cpus: Count
    """CPU cores of the stage."""
    memory_gb: Count | None = None
    """Memory of the stage; null: the partition's default."""
    gpus: int | None = None
    """GPUs of the stage; null: one to evaluate or serve where the cluster has GPUs, else none."""
    wall_time_min: Count
    """Time limit of the stage."""


@dataclass(kw_only=True)
class ServeStage(Stage):
    """Resources of the load after training, with its server and requests: one replica on one GPU or CPU."""

    engine: Engine
    """The server, as `engine` of job=serve."""
    serving: Serving
    """The requests, as `serving` of job=serve."""


@dataclass(kw_only=True)
class Stages:
    """Stages before and after training, in a chain of jobs; null: no such stage."""

    prepare: Stage | None = None
    """One job that tokenizes the data of all runs before any of them trains; null: tokenize at submission."""
    evaluate: Stage | None = None
    """A job after each run that computes the loss on the held-out samples (`data.held_out_samples`)."""
    serve: ServeStage | None = None
    """A job after each run that serves the trained model under a load of requests (`job.export`)."""
    report: Stage | None = None
    """A job after all others that runs `slurmscale report`."""


class Counted(Enum):
    """Time of a run that a contest compares."""

    training = "training"
    """Steps and checkpoints, from the first step to the last."""
    total = "total"
    """From the start of the process to its recorded end."""
    target = "target"
    """From the first step to the one that reaches `target_loss`; the loss of the baseline is then no limit."""


@dataclass(kw_only=True)
class Budget:
    """Resources of a campaign, failed runs included. A limit that is null does not exist.

    `slurmscale leaderboard` says what is left, and `attempt` refuses runs that are expected to exceed it. Of the limits
    with which runs of a campaign were submitted, the highest holds.
    """

    attempts: Count | None = None
    """Most attempts, the baseline not counted."""
    node_hours: Positive | None = None
    """Most node-hours, from the start of each run to its end."""
    service_units: Positive | None = None
    """Most service units; needs `cluster.service_units_per_node_hour`."""


class NoticeEvent(Enum):
    """An event of a run or sweep that somebody may be told."""

    requeued = "requeued"
    """The run restarts by itself."""
    finished = "finished"
    """It has done all its steps."""
    failed = "failed"
    """It ended with an error, and does not restart."""
    stopped = "stopped"
    """A signal or the time limit ended it, and it does not restart."""
    cancelled = "cancelled"
    """It was cancelled."""
    held = "held"
    """Slurm will not start it without a person's act."""
    lost = "lost"
    """Its job is gone without a record of its end."""
    sweep_ended = "sweep_ended"
    """No run of the sweep waits or runs any more."""


@dataclass(kw_only=True)
class Notify:
    """Who is told when a run restarts, ends, is held or is lost, and when a sweep has ended; each event once."""

    command: str | None = None
    """Program with its arguments, without a shell; it reads the event as JSON on its standard input."""
    apprise: str | None = None
    """Configuration file of apprise, with the addresses for mail, Slack, Teams or webhooks; needs the extra notify."""
    events: list[NoticeEvent] = field(default_factory=lambda: list(NoticeEvent))
    """Events to tell."""


@dataclass(kw_only=True)
class Referee:
    """End of an attempt that runs until a verdict (`slurmscale attempt NAME --until verdict`)."""

    minimum_effect: Annotated[float, Range(0, 1, above=True, usual=0.02)] = 0.02
    """Relative difference of speed that matters: an interval within it proves no difference. An attempt keeps that of
    its first pair."""
    maximum_pairs: Annotated[int, Range(3, MOST_COUNT)] = 20
    """Pairs without a verdict after which the attempt is left undecided; more may follow later."""


@dataclass(kw_only=True)
class Contest:
    """Rules of a contest: conditions for an attempt to count, and its comparison with the baseline.

    The experiment file that holds them sets the run's own values from them. A rule that is null does not exist.
    """

    name: str
    """Name of the contest in reports."""
    source: str
    """Source of the rules."""
    model: str | None = None
    """Name of the model; a run of another model is a rehearsal."""
    data: str | None = None
    """Name of the data; a run on other data is a rehearsal."""
    program: str | None = None
    """Name of the program; a run of another program is a rehearsal."""
    nodes: Count | None = None
    """Nodes of every run."""
    ranks_per_node: Count | None = None
    """Ranks per node of every run."""
    wall_time_min: Count
    """Longest time limit, and longest run."""
    samples: Count | None = None
    """Samples of an epoch."""
    epochs: Count | None = None
    """Epochs of every run."""
    sequence_length: Count | None = None
    """Longest sample in tokens."""
    tiers: dict[str, list[str]] = field(default_factory=dict)
    """Keys that an attempt may set, by tier, the plainest one first; a later tier also has those of the tiers before.
    Keys are patterns, such as program.params.*; `code` stands for --changed-code. Empty: every key."""
    floor: bool = False
    """A slower attempt counts as the baseline, which is the organisers' own deployment."""
    power_w: Positive | None = None
    """Highest power of all nodes together, in any second of a run; null: no limit."""
    node_power_w: Positive | None = None
    """Highest power of a node, in any second of a run; null: no limit."""
    lora: bool = False
    """Accept runs with low-rank adapters."""
    counted: Counted = Counted.training
    """Time that is compared."""
    target_loss: Positive | None = None
    """Mean loss over `loss_steps` steps that a run must reach, with counted=target."""
    loss_steps: Count = 2
    """Last steps whose mean loss is the loss of a run."""
    loss_tolerance: NotNegative = 0.05
    """Largest difference from the baseline's loss, as a share of it."""
    loss_spreads: NotNegative = 3.0
    """Largest difference in standard deviations of the baseline's repeats; the larger of both limits counts."""
    runs: Count | None = None
    """First runs of each configuration whose mean is its official score, as MLPerf has it; null: no such score."""
    dropped: NoneOrMore = 0
    """Fastest runs, and slowest runs, that the score leaves out; as many may not count, and are the slowest ones."""


class Objective(Enum):
    """Figure of merit of `slurmscale tune`."""

    throughput = "throughput"
    """Tokens/s of the steady steps; the largest is the best."""
    time_to_train = "time_to_train"
    """Seconds of the whole training: start-up, first step, and `job.steps` - 1 steady steps; needs `loss_tolerance`."""
    cost = "cost"
    """Service units of that time; needs `cluster.service_units_per_node_hour` and `loss_tolerance`."""
    micro_batch = "micro_batch"
    """Largest micro-batch that fits the memory; only with tune=batch_finder."""
    merit = "merit"
    """Merit of a program (program.merit); only with job=program, and with tune.steps=[1] its trials are whole runs."""


class SearchKind(Enum):
    """Search of `slurmscale tune`."""

    halving = "halving"
    """Successive halving of the sweep's points, and pairs of the best with the baseline."""
    batch_finder = "batch_finder"
    """Bracket and bisection of the micro-batch of one configuration."""


@dataclass(kw_only=True)
class Tune:
    """Budget, objective and quality gate of `slurmscale tune`; a trial is one run."""

    search: SearchKind = SearchKind.halving
    """Way to search. A choice of tune sets it together with its objective and budget."""
    objective: Objective = Objective.throughput
    """Figure of merit."""
    runs: int
    """Most runs, those of the confirmation included."""
    gpu_hours: float | None = None
    """Most hours of all ranks together (one rank is one GPU), from the start of a run to its end; null: no limit."""
    wall_time_min: int | None = None
    """Time after the first submission from which no further run is submitted; null: no limit."""
    steps: list[int]
    """Optimizer steps of a trial in each rung of successive halving, increasing."""
    reduction: int = 3
    """One of so many trials of a rung, the best, runs again in the next rung."""
    parallel: int = 4
    """Trials of the first rung that are submitted together; then the sampler chooses the next ones."""
    loss_tolerance: float | None = 0.05
    """Largest difference of a trial's loss from the baseline's at the same step, as a share of it; null: no gate."""
    pairs: int = 3
    """Pairs of runs that compare the best with the baseline in the end; 0: no confirmation."""
    memory_share: float = 0.9
    """Share of the memory of a rank at which tune=batch_finder ends."""
    memory_gb: float | None = None
    """Memory of a rank in GiB for tune=batch_finder; null: that of its GPU."""
    seed: int = 1234
    """Seed of the sampler."""


@dataclass(kw_only=True)
class Rehearsal:
    """Limits that make a run small enough for CPU ranks; keys of the command line and of a sweep have none."""

    name: str
    """Name of the choice in tables and reports."""
    divide_from_hidden_size: int
    """Models with this hidden size or more are divided; smaller ones are small already."""
    divide: dict[str, int] = field(default_factory=dict)
    """Sizes of such a model, each with its divisor, such as model.layers: 8."""
    at_most: dict[str, int] = field(default_factory=dict)
    """Keys, each with its largest value, such as job.steps: 8; null and a value that follows another key stay."""


@dataclass(kw_only=True)
class Run:
    """One point of a sweep: the complete configuration of a job, frozen in its run directory."""

    runs_dir: str
    """Directory of all sweep directories."""
    sweep: str | None
    """Name of the sweep directory; null: first model and time of day."""
    name: str | None = None
    """Name of the run directory; null: made from the choices."""
    repeat: Count
    """Number of this repeat of the same point; sweep over it to measure the spread."""
    nodes: Nodes
    """Nodes of the job."""
    ranks_per_node: Nodes
    """Ranks on each node, one per GPU; the world size is nodes x ranks_per_node."""
    wall_time_min: Count
    """Time limit that the job asks for."""
    model: Model
    parallelism: Parallelism
    engine: Engine
    job: Job
    data: Data
    scaling: Scaling
    gpu: Gpu
    cluster: Cluster
    launcher: Launcher
    network: Network = field(default_factory=Network)
    stages: Stages = field(default_factory=Stages)
    contest: Contest | None = None
    """Rules of a contest that this run keeps; null: none."""
    budget: Budget = field(default_factory=Budget)
    notify: Notify = field(default_factory=Notify)
    campaign: Referee = field(default_factory=Referee)
    tune: Tune | None = None
    """Budget and objective of `slurmscale tune`; null: its default choice."""
    rehearsal: Rehearsal | None = None
    """Limits of a rehearsal, which made this run small; null: a run of full size."""
    # A section that a run has decides what it does, the first one if there are several: `work` is the folder of that
    # kind in jobs/work.
    images: ImageTraining | None = field(default=None, metadata={"work": "images"})
    """Images and network of a run that trains an image classifier (job=image_train); null: another run."""
    serving: Serving | None = field(default=None, metadata={"work": "serve"})
    """Replicas and load of a run that serves (job=serve); null: it does not serve."""
    storage: StorageTest | None = field(default=None, metadata={"work": "storage"})
    """Work of a run that measures storage (job=checkpoint_io, data_read, fio); null: another run."""
    program: Program | None = field(default=None, metadata={"work": "program"})
    """Another program that a run starts (job=program); null: another run."""
    report: StudyTable | None = None
    """Quantity and table of the study that the run is part of, which `slurmscale report` makes; null: none."""

    @property
    def ranks(self) -> int:
        """Return the world size."""
        return self.nodes * self.ranks_per_node

    @property
    def job_nodes(self) -> int:
        """Return the nodes that its job asks for: those of its ranks, and the spares."""
        return self.nodes + self.launcher.spare_nodes

    @property
    def starter(self) -> LauncherKind:
        """The launcher that starts the ranks; for launcher=dry the one that is previewed, the cluster's."""
        return self.cluster.launcher if self.launcher.kind.is_preview else self.launcher.kind

    @property
    def global_batch_size(self) -> int:
        """Return the sequences per optimizer step (GBS), by the scaling mode."""
        if self.scaling.mode is ScalingMode.weak:
            assert self.scaling.sequences_per_rank is not None
            return self.scaling.sequences_per_rank * self.ranks
        assert self.scaling.global_batch_size is not None
        return self.scaling.global_batch_size

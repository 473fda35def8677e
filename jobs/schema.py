"""The schema: types, units and meaning of every configuration value, once.

YAML under conf/ carries the values, Hydra merges them onto these classes and refuses unknown keys and
wrong types, jobs/plan/legality.py holds the rules between fields. A field without a default must be given by
a YAML file; `None` is the only spelling of "not set". Enum members are what a user types.
Treat a `Run` as read-only: OmegaConf cannot compose frozen dataclasses, so nothing enforces it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from enum import Enum


class Norm(Enum):
    """Normalisation layer, by LitGPT's name."""

    RMSNorm = "RMSNorm"
    LayerNorm = "LayerNorm"


class Mlp(Enum):
    """Feed-forward layer, by LitGPT's name."""

    LLaMAMLP = "LLaMAMLP"
    GptNeoxMLP = "GptNeoxMLP"
    LLaMAMoE = "LLaMAMoE"


@dataclass(kw_only=True)
class RopeScaling:
    """Llama 3.1's stretching of rotary frequencies to a longer context."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_sequence_length: int


@dataclass(kw_only=True)
class Model:
    """Architecture of a decoder-only transformer: numbers that decide shapes, nothing about how it runs."""

    name: str
    source: str
    """Where the numbers were read."""
    litgpt_name: str | None = None
    """The same model in LitGPT's own table, where it has it; a test compares the two."""
    layers: int
    heads: int
    kv_heads: int
    """Key and value heads: fewer than `heads` is grouped-query attention."""
    hidden_size: int
    head_size: int
    intermediate_size: int
    vocab_size: int
    """Rows of the embedding as allocated (LitGPT's `padded_vocab_size`)."""
    max_sequence_length: int
    norm: Norm = Norm.RMSNorm
    norm_eps: float = 1e-5
    mlp: Mlp = Mlp.LLaMAMLP
    bias: bool = False
    parallel_residual: bool = False
    rope_base: int = 10000
    rope_fraction: float = 1.0
    """Part of each head that is rotated."""
    rope_scaling: RopeScaling | None = None
    tie_embeddings: bool = False
    experts: int = 0
    """Experts of a mixture-of-experts layer; 0 is a dense model."""
    experts_per_token: int = 0


class Strategy(Enum):
    """How data-parallel replicas are kept equal."""

    single = "single"
    ddp = "ddp"
    fsdp = "fsdp"


class Sharding(Enum):
    """What FSDP shards, by the names PyTorch's users know."""

    FULL_SHARD = "FULL_SHARD"
    """Parameters, gradients and optimizer state over all ranks; parameters freed after forward (ZeRO 3)."""
    SHARD_GRAD_OP = "SHARD_GRAD_OP"
    """As FULL_SHARD, but parameters stay whole between forward and backward (ZeRO 2)."""
    NO_SHARD = "NO_SHARD"
    """Every rank holds everything; gradients are all-reduced, as DDP does."""
    HYBRID_SHARD = "HYBRID_SHARD"
    """FULL_SHARD within a node (or `data_shard` ranks), replicated across."""


Schedule = Enum(
    "Schedule",
    {
        "GPipe": "GPipe",
        "1F1B": "1F1B",
        "Interleaved1F1B": "Interleaved1F1B",
        "LoopedBFS": "LoopedBFS",
        "InterleavedZeroBubble": "InterleavedZeroBubble",
        "ZBVZeroBubble": "ZBVZeroBubble",
    },
)
"""Order of a pipeline's forward and backward passes, by PyTorch's names (torch.distributed.pipelining)."""


class StageSplit(Enum):
    """How layers are dealt to pipeline stages."""

    even = "even"
    """Every stage the same number of layers."""
    balanced = "balanced"
    """Every stage about the same number of weights, embedding and head counted."""


@dataclass(kw_only=True)
class Parallelism:
    """How the model and the batch are cut over ranks; data parallelism is what tensor x pipeline x context leaves."""

    name: str
    strategy: Strategy
    sharding: Sharding | None = None
    """Only with strategy=fsdp."""
    data_replicate: int | None = None
    """Copies of the weights that are kept equal; None: what `sharding` implies."""
    data_shard: int | None = None
    """Ranks one FSDP shard group spans; None: what `sharding` implies."""
    tensor: int = 1
    """Ranks that share each matrix (TP)."""
    sequence_parallel: bool | None = None
    """With TP, cut activations between the matrices along the sequence; None: wherever the engine can."""
    loss_parallel: bool = True
    """With TP, leave the logits cut along the vocabulary for the loss."""
    pipeline: int = 1
    """Ranks that share the layers (PP)."""
    schedule: Schedule = Schedule["1F1B"]
    """Order of the pipeline's micro-batches."""
    stages_per_rank: int | None = None
    """Virtual stages: pieces of the model a pipeline rank holds; None: what `schedule` implies."""
    stage_split: StageSplit = StageSplit.even
    stage_layers: list[int] | None = None
    """Layers of every stage, first to last; None: what `stage_split` deals."""
    prefetch: int | None = None
    """Layers whose FSDP weights are gathered ahead, in forward and in backward; None: PyTorch's choice, which is the
    next one as far as the host is ahead of the device."""
    context: int = 1
    """Ranks that share each sequence (CP)."""


class Precision(Enum):
    """Type of numbers."""

    float32 = "float32"
    bfloat16 = "bfloat16"


class EngineKind(Enum):
    """What executes a training step."""

    native = "native"
    """LitGPT's model under PyTorch's own parallelism."""
    nemo = "nemo"
    """NeMo 2's recipe: Megatron-core's model and parallelism."""
    litgpt = "litgpt"
    """LitGPT's own scripts through Lightning Fabric, as others run them: the baseline."""


class ActivationCheckpointing(Enum):
    """Which activations the backward pass computes again instead of keeping."""

    none = "none"
    selective = "selective"
    """Keep what matrix products and attention computed, compute the rest again."""
    full = "full"
    """Keep the input of each layer only."""


class WeightsReader(Enum):
    """Which ranks read the checkpoint that a run starts from (job.init_from)."""

    each = "each"
    """Every rank reads what it needs of the file."""
    node = "node"
    """One rank of a node, and of each pipeline stage there, reads a weight and sends it to the others, one by one."""


class OptimizerLoop(Enum):
    """How AdamW's update walks over the parameters, by PyTorch's names; the arithmetic is one."""

    fused = "fused"
    """One kernel for all operations of many parameters."""
    foreach = "foreach"
    """One kernel an operation, for many parameters."""
    single = "single"
    """One kernel an operation and parameter; the least memory."""


class Loss(Enum):
    """How the loss is computed from the last hidden states (native)."""

    whole = "whole"
    """From the logits of every position, all in memory at once."""
    chunked = "chunked"
    """From the logits of 1,024 positions at a time, and only of those that have a label."""


class Kernels(Enum):
    """Whose GPU kernels compute norms, rotary embedding and SwiGLU."""

    torch = "torch"
    liger = "liger"
    """Liger's fused ones; refused where a rank has no GPU or not the package."""
    liger_or_torch = "liger_or_torch"
    """Liger's, and torch's where a rank cannot have them; the record says which (`kernels` of `started`)."""


@dataclass(kw_only=True)
class Engine:
    """The code that executes a training step."""

    kind: EngineKind
    activation_checkpointing: ActivationCheckpointing = ActivationCheckpointing.none
    compile: bool = False
    """Compile by torch.compile: every layer (native), or the whole model (litgpt); NeMo has kernels of its own."""
    loss: Loss = Loss.whole
    distributed_optimizer: bool = False
    """Megatron's optimizer state cut over data-parallel ranks (nemo), which is ZeRO stage 1."""
    float8: bool = False
    """Multiply in float8 in all linear layers but the head, by torchao, on GPUs that have it (native)."""
    kernels: Kernels = Kernels.torch
    """Also a group of its own: kernels=liger (native)."""
    weights: WeightsReader = WeightsReader.each
    """Who reads `job.init_from` (native)."""
    prefetch_batches: int = 0
    """Batches that a thread of the rank makes ahead of their step; 0: each is made in its step (native)."""
    optimizer: OptimizerLoop | None = None
    """None: fused on a GPU, single on a CPU (native)."""
    parameters: Precision = Precision.float32
    """Type of weights, gradients and optimizer state between steps (native, litgpt); bfloat16 halves their memory, and
    small updates are lost in rounding. `job.precision` is the type of the arithmetic."""
    hang_timeout_s: int = 600
    """A step, or reading the data or a checkpoint, that takes longer ends the run; its record names who lagged."""
    pace_every_steps: int | None = None
    """How often ranks compare how long their own work takes, which names stragglers (native); None: 10, 0: never."""
    cpu_threads_per_rank: int = 1
    """Compute threads of a rank on a CPU; ranks share the cores, so 1 is the honest default."""


class Batching(Enum):
    """How samples of different lengths become micro-batches (native; NeMo has padded)."""

    padded = "padded"
    """A row for each sample, as long as the longest of its micro-batch."""
    bucketed = "bucketed"
    """The same, but samples of similar length come into one micro-batch."""
    packed = "packed"
    """One row for all samples of a micro-batch, end to end, each attending to itself alone."""


@dataclass(kw_only=True)
class Lora:
    """Low-rank adapters that are trained instead of the weights."""

    rank: int
    alpha: float
    dropout: float = 0.0


@dataclass(kw_only=True)
class Job:
    """What is trained, for how long, and with which hyperparameters."""

    name: str
    steps: int | None = None
    """Optimizer steps; give either this or `epochs`."""
    epochs: int | None = None
    """Passes over the data; an incomplete last global batch is left out."""
    sequence_length: int
    """Longest sample in tokens."""
    micro_batch_size: int
    """Sequences per rank and forward pass (MBS); packed, the mean of them."""
    batching: Batching = Batching.padded
    bucket_batches: int | None = None
    """Global batches whose samples are sorted by length together; only with batching=bucketed, None: 8."""
    precision: Precision
    """Type of the arithmetic; weights and optimizer state are of `engine.parameters`."""
    learning_rate: float
    min_learning_rate: float
    """Where the cosine ends."""
    warmup_steps: int
    """Steps of linear warm-up of the learning rate."""
    weight_decay: float
    beta1: float
    beta2: float
    clip_norm: float | None = None
    """Largest gradient norm; None: no clipping."""
    seed: int
    init_from: str | None = None
    """A LitGPT checkpoint directory to start from; None: random weights from `seed`."""
    lora: Lora | None = None
    """Train low-rank adapters and leave the weights; None: train all weights."""
    export: bool = False
    """Write a LitGPT checkpoint directory at the end."""
    checkpoint_every_steps: int | None = None
    """None: no checkpoint."""
    checkpoint_in_background: bool = True
    """Training waits for a copy in host memory only, and goes on while that is written (native)."""
    keep_checkpoints: int = 2
    """Newest checkpoints that stay on disk."""
    unmeasured_steps: int
    """First steps of every attempt that steady figures leave out (warm-up rule)."""


class Source(Enum):
    """Kind of text a run trains on."""

    stdlib = "stdlib"
    docstrings = "docstrings"
    text = "text"
    alpaca = "alpaca"
    pubmedqa = "pubmedqa"
    random = "random"


INSTRUCTIONS = frozenset({Source.docstrings, Source.alpaca, Source.pubmedqa})
"""Sources of prompts with responses; the others are text, or random tokens."""


class TooLong(Enum):
    """What happens to a sample longer than `job.sequence_length`."""

    refuse = "refuse"
    truncate = "truncate"


@dataclass(kw_only=True)
class Data:
    """The text, its tokenizer, and how samples are made of it."""

    name: str
    source: Source
    path: str | None
    """File, directory of .txt files (text) or one with train.json (instructions); None for the others."""
    tokenizer: str | None = None
    """Directory with tokenizer.json or tokenizer.model, or that file; None: a byte-level BPE trained on the text."""
    bpe_vocab_size: int = 2048
    """Size of that BPE; no larger than `model.vocab_size`."""
    max_samples: int | None = None
    """Use only the first so many samples."""
    held_out_samples: int = 0
    """Of those, the last so many are never trained on; `stages.evaluate` computes the loss on them."""
    mask_prompt: bool = False
    """Instruction data: no loss on the prompt (LitGPT's default is False)."""
    too_long: TooLong = TooLong.refuse
    # Not an interpolation, which OmegaConf would parse anew for every point of a sweep.
    cache_dir: str = field(default_factory=lambda: f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/slurmscale/data")
    """Tokenized data, by content; must be visible on the nodes. By default below $XDG_CACHE_HOME, else ~/.cache."""


class ScalingMode(Enum):
    """What stays fixed when ranks are added."""

    strong = "strong"
    weak = "weak"


@dataclass(kw_only=True)
class Scaling:
    """Strong: the global batch stays; weak: the batch per rank stays."""

    mode: ScalingMode
    global_batch_size: int | None = None
    """Sequences per optimizer step (GBS); with mode=strong."""
    sequences_per_rank: int | None = None
    """GBS divided by ranks; with mode=weak."""


@dataclass(kw_only=True)
class Gpu:
    """What one accelerator is, from its data sheet."""

    name: str
    source: str
    device_name: str | None = None
    """What torch calls the device, whole: an H200 NVL, or a slice by MIG, is not given the peak of an H200."""
    compute_capability: float | None = None
    """NVIDIA's number of what its cores can do (developer.nvidia.com/cuda-gpus); None: not NVIDIA's, or not known."""
    memory_gb: float | None = None
    peak_bf16_tflops: float | None = None
    """Dense, no sparsity."""
    peak_fp16_tflops: float | None = None
    peak_fp32_tflops: float | None = None


class ContainerRuntime(Enum):
    """What starts the ranks inside the cluster's container."""

    pyxis = "pyxis"
    """The plugin that gives srun --container-image."""
    apptainer = "apptainer"
    """`apptainer exec` in front of every rank; also Singularity's, where it has that name."""


class LauncherKind(Enum):
    """Who starts the ranks, and what that launcher can do; jobs/submit/launchers/NAME.py does it."""

    slurm = "slurm"
    """sbatch; runs with equal resources share a job array."""
    local = "local"
    """Processes on this machine, one run after the other."""
    dry = "dry"
    """Nothing: shows what the launcher of the cluster would do."""
    script = "script"
    """A person, who gives job.sbatch of each run directory to sbatch."""
    pbs_script = "pbs_script"
    """A person, who gives job.pbs of each run directory to qsub (PBS Pro)."""
    pilot = "pilot"
    """One Slurm job for all points of a submission, which gives its nodes to them as they become free."""

    @property
    def is_preview(self) -> bool:
        """True if it starts and writes nothing."""
        return self is LauncherKind.dry

    @property
    def on_this_machine(self) -> bool:
        """True if the ranks are processes of the machine that submits."""
        return self is LauncherKind.local

    @property
    def job_per_run(self) -> bool:
        """True if each run is a Slurm job, or a task of a job array, of its own."""
        return self is LauncherKind.slurm

    @property
    def one_job(self) -> bool:
        """True if all runs share one Slurm job."""
        return self is LauncherKind.pilot

    @property
    def in_slurm(self) -> bool:
        """True if the job ids in the ledger are Slurm's."""
        return self.job_per_run or self.one_job

    @property
    def needs_slurm(self) -> bool:
        """True if the cluster has to run Slurm."""
        return self.in_slurm or self is LauncherKind.script

    @property
    def chains_stages(self) -> bool:
        """True if its jobs can wait for each other, as the stages around training do."""
        return self.job_per_run or self.on_this_machine or self.is_preview


@dataclass(kw_only=True)
class Cluster:
    """A machine: what a node has, what the scheduler wants, how a job sets itself up there."""

    name: str
    source: str
    launcher: LauncherKind = LauncherKind.slurm
    """The launcher of this cluster: used unless another one is chosen, and previewed by launcher=dry."""
    ranks_per_node: int
    """GPUs of a node, or ranks that a CPU node takes."""
    max_nodes: int | None = None
    max_wall_time_min: int | None = None
    cpus_per_rank: int | None = None
    memory_gb_per_node: int | None = None
    gpus: bool
    """Ask the scheduler for GPUs; False for CPU nodes."""
    network_gb_per_s: float | None = None
    """GB/s in one direction that two nodes, or a GPU of each, reach by the data sheet; the doctor compares with it."""
    service_units_per_node_hour: float | None = None
    """What the site charges for a whole node and hour; the report then tells what runs cost. None: it does not."""
    exclusive: bool = False
    partition: str | None
    account: str | None
    qos: str | None = None
    constraint: str | None = None
    modules: list[str]
    """Environment modules loaded before the ranks start."""
    container: str | None
    """Image that the ranks run in, as `container_runtime` names it."""
    container_runtime: ContainerRuntime = ContainerRuntime.pyxis
    container_mounts: list[str]
    """HOST_PATH:PATH each; apptainer sees runs_dir, data.cache_dir and job.init_from besides."""
    setup: list[str]
    """Shell lines run in the batch script before the ranks start."""
    env: dict[str, str]
    """Environment of the ranks."""
    sbatch: dict[str, str]
    """Any further sbatch options, without the dashes."""
    pbs: dict[str, str] = field(default_factory=dict)
    """Any further resources of PBS (`qsub -l`); names of one letter are other options of qsub."""
    pbs_totals: bool = False
    """Ask PBS for ncpus, ngpus and mem of the whole job, where a site does not take `select`."""
    python: str | None = None
    """Python command on the nodes (in the container, if any); None: the one that submits."""


@dataclass(kw_only=True)
class Launcher:
    """Who starts the ranks."""

    kind: LauncherKind
    max_running: int | None = None
    """Slurm array tasks, or points of a pilot, that run at once; None: as many as Slurm lets, or as fit."""
    requeues: int = 3
    """Times a run goes on by itself after a fault of the machine, or at its time limit from a checkpoint; 0: never."""
    requeue_pause_s: int = 30
    """Least pause before it goes on after a fault; doubles with each further one, up to half an hour."""
    pilot_nodes: int | None = None
    """Whole nodes of the one job of launcher=pilot."""
    pilot_wall_time_min: int | None = None
    """Its time limit; `wall_time_min` is that of a point inside it."""


@dataclass(kw_only=True)
class Stage:
    """What a stage beside training asks of the scheduler: one process in a job of its own."""

    partition: str | None = None
    """None: the cluster's, with its constraint and further sbatch options."""
    cpus: int
    memory_gb: int | None = None
    """None: what the partition gives."""
    gpus: int | None = None
    """None: one to evaluate where the cluster has GPUs; to prepare and report need none."""
    wall_time_min: int


@dataclass(kw_only=True)
class Stages:
    """What goes before and after training, in a chain of jobs; None: not a stage."""

    prepare: Stage | None = None
    """One job that tokenizes the data of all runs before any trains; None: at submission."""
    evaluate: Stage | None = None
    """After each run, the loss on the samples held out (`data.held_out_samples`)."""
    report: Stage | None = None
    """`slurmscale report`, after all others."""


class Counted(Enum):
    """Which time of a run a contest compares."""

    training = "training"
    """Steps and checkpoints, from the first step to the last."""
    total = "total"
    """From the start of the process to its recorded end."""


@dataclass(kw_only=True)
class Contest:
    """The rules of a contest: what a run must be to count, and how attempts are judged against the baseline.

    The experiment file that holds them sets the run's own values from them.
    """

    name: str
    source: str
    """Where the rules were read."""
    model: str
    """Name of the model; a run of another one, or of other data, is a rehearsal and says so."""
    data: str
    """Name of the data."""
    nodes: int
    ranks_per_node: int
    wall_time_min: int
    """Longest time limit that may be asked for, and longest run."""
    samples: int
    """Samples of an epoch."""
    epochs: int
    sequence_length: int
    """Longest sample in tokens."""
    lora: bool = False
    """Whether low-rank adapters count."""
    counted: Counted = Counted.training
    """The time that is compared."""
    loss_steps: int = 2
    """The loss of a run is its mean over so many last steps ..."""
    loss_tolerance: float = 0.05
    """... and may be this share of the baseline's away from it, ..."""
    loss_spreads: float = 3.0
    """... or so many standard deviations of the baseline's repeats, where that is more."""


@dataclass(kw_only=True)
class Run:
    """One point of a sweep: everything a job needs to know, frozen in its run directory."""

    runs_dir: str
    """Where sweep directories are made."""
    sweep: str | None
    """Name of the sweep directory; None: first model and time of day."""
    name: str | None = None
    """Name of the run directory; None: made from the choices."""
    repeat: int
    """Which repetition of the same point this is; sweep over it for a spread."""
    nodes: int
    ranks_per_node: int
    wall_time_min: int
    """Time limit asked of the scheduler."""
    model: Model
    parallelism: Parallelism
    engine: Engine
    job: Job
    data: Data
    scaling: Scaling
    gpu: Gpu
    cluster: Cluster
    launcher: Launcher
    stages: Stages = field(default_factory=Stages)
    contest: Contest | None = None
    """Rules that this run keeps; None: none."""

    @property
    def ranks(self) -> int:
        """World size."""
        return self.nodes * self.ranks_per_node

    @property
    def starter(self) -> LauncherKind:
        """The launcher that starts the ranks; for launcher=dry the one that is previewed, the cluster's."""
        return self.cluster.launcher if self.launcher.kind.is_preview else self.launcher.kind

    @property
    def global_batch_size(self) -> int:
        """Sequences per optimizer step (GBS), by the scaling mode."""
        if self.scaling.mode is ScalingMode.weak:
            assert self.scaling.sequences_per_rank is not None
            return self.scaling.sequences_per_rank * self.ranks
        assert self.scaling.global_batch_size is not None
        return self.scaling.global_batch_size

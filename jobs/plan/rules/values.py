"""Rules of single values, and of values that depend on each other, independent of the layout."""

from __future__ import annotations

import math
import re
from collections.abc import Collection

from omegaconf import DictConfig

from jobs.layout import degree_of
from jobs.parallelism import MODEL_AXES
from jobs.plan.cost import checkpoint_bytes
from jobs.plan.rules import data, loss_band, sbatch_variables, slurm_options, stages
from jobs.plan.rules.native_only import typed
from jobs.plan.rules.rule import Rule, divisors, either
from jobs.plan.time_limit import MOST_STOP_S, STOP_S, needed_s, stop_before_limit_s
from jobs.ranges import out_of_range
from jobs.rundir import RESERVED, is_reserved
from jobs.schema import (
    TEXTS,
    Batching,
    Decay,
    EngineKind,
    Gpu,
    Job,
    LoraTarget,
    Model,
    NormPlace,
    OptimizerKind,
    Precision,
    Run,
    ScalingMode,
    Source,
)
from jobs.secrets import config_holds_no_secret
from jobs.visible import HIDDEN, visible
from jobs.work.work import work_of

# Their samples are made, or are Python's own files.
WITHOUT_PATH = frozenset({Source.random, Source.stdlib, Source.docstrings})
# Volta and Turing have units for float16 only (CUDA C++ Programming Guide, table of features by compute capability).
BFLOAT16_CAPABILITY = (8, 0)
LEAST_FOR_BFLOAT16 = float(".".join(map(str, BFLOAT16_CAPABILITY)))

# With variables that each node replaces.
COPY_DIR = re.compile(r"[/$][\w./+@$-]+", re.ASCII)
# Proposed in place of a last rate above the first one; the schema's usual value of job.min_learning_rate.
MIN_LEARNING_RATE = 3e-5

# --- single values -------------------------------------------------------------------------------------------


def counts_are_in_range(run: Run) -> str | None:
    """Require the ranges of the schema for counts, and finite numbers, on which all other rules rely."""
    return "\n".join(out_of_range(run, counts=True)) or None


def numbers_are_in_range(run: Run) -> str | None:
    """Require the ranges of the schema for all other numbers."""
    return "\n".join(out_of_range(run, counts=False)) or None


def rate_falls(run: Run) -> str | None:
    """Require a last learning rate that is no higher than the first."""
    job = run.job
    # A first rate out of range, or not a number, is refused for itself.
    if job.min_learning_rate <= job.learning_rate or not job.learning_rate >= 0:
        return None
    near = min(MIN_LEARNING_RATE, job.learning_rate)
    return (
        f"job.min_learning_rate={job.min_learning_rate:g} is outside 0 to {job.learning_rate:g}. Set "
        f"job.min_learning_rate={near:g}, or another in that range."
    )


def adapters_have_a_size(run: Run) -> str | None:
    """Require one or more targets of adapters, each once."""
    lora = run.job.lora
    if lora is None:
        return None
    wrong = []
    if not lora.targets or len(set(lora.targets)) < len(lora.targets):
        given = ",".join(target.name for target in lora.targets)
        all_of_them = ",".join(target.name for target in LoraTarget)
        wrong.append(
            f"job.lora.targets=[{given}] names {'a target twice' if given else 'no target'}. Set job.lora.targets="
            f"[{all_of_them}], or some of them."
        )
    return "\n".join(wrong) or None


def one_customization(run: Run) -> str | None:
    """Require one thing to train next to frozen weights, and training for it; without an encoder refuse its size."""
    job = run.job
    if job.lora is not None and job.prompt_tuning is not None:
        return (
            "job.lora and job.prompt_tuning both train in place of the weights. Set job.prompt_tuning=null (LoRA), or "
            "job.lora=null (prompt tuning, P-tuning)."
        )
    if not job.train and not job.trains_all_weights:
        given = "lora" if job.lora is not None else "prompt_tuning"
        return (
            f"job.train=false evaluates the weights of job.init_from, without job.{given}. Set job.{given}=null, or "
            "job.train=true."
        )
    prompt = job.prompt_tuning
    if prompt is not None and prompt.encoder is None and prompt.encoder_hidden_size is not None:
        return (
            f"job.prompt_tuning.encoder_hidden_size={prompt.encoder_hidden_size} is the width of an encoder, and "
            "job.prompt_tuning.encoder=null. Set job.prompt_tuning.encoder=mlp or lstm (P-tuning), or "
            "job.prompt_tuning.encoder_hidden_size=null."
        )
    return None


def path_stays_as_it_is(run: Run) -> str | None:
    """Require a sweep directory whose path is neither split nor expanded; integrity.sh requires it of moved ones."""
    for key, value in (("runs_dir", run.runs_dir), ("sweep", run.sweep)):
        if value is not None and ":" in value:
            without = value.replace(":", "-")
            return f"{key}={value!r} has a colon, where Python would split PYTHONPATH. Set {key}={without!r}."
        if value is not None and "%" in value:
            without = value.replace("%", "-")
            return (
                f"{key}={value!r} has a %, which Slurm and submitit would expand in the names of logs. Set "
                f"{key}={without!r}."
            )
    return None


def names_are_file_names(run: Run) -> str | None:
    """Require names of runs and sweeps that are valid directory names."""
    for key, name in (("name", run.name), ("sweep", run.sweep)):
        # File systems allow 255 bytes, and temporary files append to a name.
        if name is not None and (name in {"", ".", ".."} or "/" in name or "\0" in name or len(name.encode()) > 200):
            return (
                f"{key}={name!r} cannot be a directory name: 1 to 200 bytes without '/'. Set {key}=SOMETHING; the "
                "directory above is runs_dir=PATH."
            )
        if name is not None and key == "name" and is_reserved(name):
            return (
                f"name={name!r} is reserved in a sweep directory (code-..., logs, hidden, "
                f"{', '.join(sorted(RESERVED))}). Set name=SOMETHING else."
            )
    return None


def names_are_seen_whole(run: Run) -> str | None:
    """Require names without characters that are not seen, with which two names look equal."""
    # By default the name of a sweep begins with that of the model.
    named = {"model.name": run.model.name, "cluster.name": run.cluster.name, "name": run.name, "sweep": run.sweep}
    for key, name in named.items():
        if found := HIDDEN.search(name or ""):
            return (
                f"{key}={visible(str(name))} contains the character {visible(found[0])}, which is not seen: two names "
                f"would look equal. Set {key}=SOMETHING without it."
            )
    return None


def one_of_steps_and_epochs(run: Run) -> str | None:
    """Require either job.steps or job.epochs of a run that trains."""
    if not run.job.train:
        return None
    if (run.job.steps is None) == (run.job.epochs is None):
        given = "both are" if run.job.steps is not None else "neither is"
        return (
            f"job.steps and job.epochs: exactly one decides the length, {given} set. "
            "Set job.steps=100 job.epochs=null, or the other way round."
        )
    return None


def batch_fits_scaling_mode(run: Run) -> str | None:
    """Require the global batch for strong scaling, the batch per rank for weak scaling, and not both."""
    strong = run.scaling.mode is ScalingMode.strong
    needed, other = (
        ("global_batch_size", "sequences_per_rank") if strong else ("sequences_per_rank", "global_batch_size")
    )
    if getattr(run.scaling, needed) is None:
        return f"scaling={run.scaling.mode.name} needs scaling.{needed}. Set scaling.{needed}=NUMBER."
    if getattr(run.scaling, other) is not None:
        return (
            f"scaling.{other} has no meaning with scaling={run.scaling.mode.name}, which fixes scaling.{needed}. "
            f"Set scaling.{other}=null, or scaling={'weak' if strong else 'strong'} scaling.{needed}=null."
        )
    return None


def buckets_are_bucketed(run: Run) -> str | None:
    """Refuse job.bucket_batches without job.batching=bucketed."""
    job = run.job
    if job.bucket_batches is not None and job.batching is not Batching.bucketed:
        return (
            f"job.bucket_batches={job.bucket_batches} has no meaning with job.batching={job.batching.name}. Set "
            "job.bucket_batches=null, or job.batching=bucketed."
        )
    return None


def sequence_fits_model(run: Run) -> str | None:
    """Require a row no longer than the model's rotary table."""
    job, most = run.job, run.model.max_sequence_length
    # A program that uses no key of `model` brings a model of its own.
    if job.row_length <= most or "model" in work_of(run).unread(run):
        return None
    given, room = f"job.sequence_length={job.sequence_length}", most - job.virtual_tokens
    if job.virtual_tokens:
        given += f" behind job.prompt_tuning.virtual_tokens={job.virtual_tokens}"
    remedy = f"job.sequence_length={room}" if room > 0 else f"job.prompt_tuning.virtual_tokens={most - 1}"
    return f"{given} is longer than {run.model.name} allows (model.max_sequence_length={most}). Set {remedy} or less."


def model_is_consistent(run: Run) -> str | None:
    """Require consistent numbers of heads and of experts."""
    m = run.model
    if m.kv_heads > 0 and m.heads % m.kv_heads:
        return (
            f"model.kv_heads={m.kv_heads} does not divide model.heads={m.heads}. Set model.kv_heads="
            f"{either(divisors(m.heads))}."
        )
    if (m.experts > 0) != (m.experts_per_token > 0) or m.experts_per_token > m.experts:
        some = f", or model.experts_per_token=1 to {m.experts}" if m.experts else ""
        return (
            f"model.experts={m.experts} and model.experts_per_token={m.experts_per_token} do not fit together. Set "
            f"model.experts=0 model.experts_per_token=0 for a dense model{some}."
        )
    if m.norm_qk_whole and not m.norm_qk:
        return "model.norm_qk_whole=true needs norms of queries and keys. Set model.norm_qk=true."
    if (wrong := windows_are_consistent(m)) is not None:
        return wrong
    if m.rope_scaling is not None:
        scaling = m.rope_scaling
        kind = "beta_slow, beta_fast" if scaling.is_yarn else "low_freq_factor, high_freq_factor"
        keys = {"low_freq_factor", "high_freq_factor", "beta_slow", "beta_fast", "original_max_sequence_length"}
        given = {key for key in keys if getattr(scaling, key) is not None}
        if given not in ({*kind.split(", "), "original_max_sequence_length"}, set()):
            return (
                f"model.rope_scaling of {m.name} has {', '.join(sorted(given))}, and needs "
                "original_max_sequence_length with low_freq_factor and high_freq_factor (Llama 3.1) or with beta_slow "
                "and beta_fast (YaRN), or none of them (linear). Set model.rope_scaling=null."
            )
    if m.parallel_residual and m.norm_place is not NormPlace.before:
        return (
            f"model.parallel_residual=true adds attention and feed-forward of one input, and model.norm_place="
            f"{m.norm_place.name} normalizes them apart. Set model.norm_place=before."
        )
    of_experts = {
        "moe_intermediate_size": (m.moe_intermediate_size, "the width of experts", "null"),
        "swiglu_limit": (m.swiglu_limit, "a limit of experts", "null"),
        "shared_experts": (m.shared_experts or None, "for mixtures of experts", "0"),
        "dense_layers": (m.dense_layers or None, "for mixtures of experts", "0"),
        "experts_every": (m.experts_every if m.experts_every > 1 else None, "for mixtures of experts", "1"),
    }
    for key, (size, what, off) in of_experts.items():
        if size is not None and not m.experts:
            return f"model.{key}={size:g} is {what}, and model.experts=0. Set model.{key}={off}."
    if m.router is not None and not m.experts:
        return "model.router chooses among experts, and model.experts=0. Set model.router=null."
    return None


def windows_are_consistent(m: Model) -> str | None:
    """Return the refusal of what is of sliding windows in a model without any, or of layers that rotate nothing."""
    of_windows = {
        "full_attention_every": (m.full_attention_every or None, 0),
        "rope_local_base": (m.rope_local_base, None),
        "chunked_window": (m.chunked_window or None, False),
        "rope_in_windows": (m.rope_in_windows or None, False),
    }
    for key, (value, off) in of_windows.items():
        if value is not None and m.sliding_window is None:
            return (
                f"model.{key}={typed(value)} is for sliding windows, and model.sliding_window=null. Set model.{key}="
                f"{typed(off)}."
            )
    if m.query_temperature is not None and not m.rope_in_windows:
        return (
            "model.query_temperature is of layers that rotate no queries, and model.rope_in_windows=false. Set "
            "model.query_temperature=null, or model.rope_in_windows=true."
        )
    if m.rope_local_base is not None and m.rope_in_windows:
        return (
            f"model.rope_local_base={m.rope_local_base} is another base than that of layers without a window, which "
            "model.rope_in_windows=true does not rotate. Set model.rope_local_base=null, and the base in "
            "model.rope_base."
        )
    if m.norm_rotated and m.norm_qk:
        return (
            "model.norm_rotated=true and model.norm_qk=true are two norms of queries and keys. Set "
            "model.norm_rotated=false, or model.norm_qk=false."
        )
    return None


def experts_are_consistent(run: Run) -> str | None:
    """Require shared experts of a stated width, fewer dense layers than layers, and groups that divide the experts."""
    m, r = run.model, run.model.router
    if m.shared_experts and m.moe_intermediate_size is None:
        return (
            f"model.shared_experts={m.shared_experts} have the width of experts, and model.moe_intermediate_size=null. "
            "Set model.moe_intermediate_size=NUMBER, or model.shared_experts=0."
        )
    if m.dense_layers > m.layers:
        return (
            f"model.dense_layers={m.dense_layers} is more than model.layers={m.layers}. Set model.dense_layers="
            f"{m.layers} or less."
        )
    if m.experts_every > m.layers:
        return (
            f"model.experts_every={m.experts_every} is more than model.layers={m.layers}, so no layer has experts. Set "
            f"model.experts_every={m.layers} or less."
        )
    if r is None:
        return None
    if m.experts % r.groups:
        return (
            f"model.router.groups={r.groups} does not divide model.experts={m.experts}. Set model.router.groups="
            f"{either(divisors(m.experts))}."
        )
    size = m.experts // r.groups
    if r.scores_per_group > size:
        return (
            f"model.router.scores_per_group={r.scores_per_group} is more than the {size} experts of a group. Set "
            f"model.router.scores_per_group={size} or less."
        )
    least = -(-m.experts_per_token // size)
    if not least <= r.chosen_groups <= r.groups:
        return (
            f"model.router.chosen_groups={r.chosen_groups} of {r.groups} groups with {size} experts each do not "
            f"hold model.experts_per_token={m.experts_per_token}. Set model.router.chosen_groups={least} to "
            f"{r.groups}."
        )
    return None


def latent_attention_is_consistent(run: Run) -> str | None:
    """Require sizes of latent attention that fit together, and none of what it does not have."""
    m, latent = run.model, run.model.latent
    if latent is None:
        return None
    if latent.rope_head_size % 2 or latent.rope_head_size >= m.head_size:
        return (
            f"model.latent.rope_head_size={latent.rope_head_size} is not an even part of model.head_size={m.head_size}."
            f" Set model.latent.rope_head_size={min(latent.rope_head_size + 1, m.head_size - 1) // 2 * 2}, or another "
            "even number."
        )
    if latent.value_head_size > m.head_size:
        return (
            f"model.latent.value_head_size={latent.value_head_size} is more than model.head_size={m.head_size}, the "
            f"size of queries and keys. Set model.latent.value_head_size={m.head_size} or less."
        )
    wanted = {
        "kv_heads": m.heads, "bias": False, "attention_bias": False, "norm_qk": False, "norm_rotated": False,
        "attention_scores_scalar": None, "attention_softcap": None,
        "sliding_window": None, "rope_fraction": 1.0,
    }  # fmt: skip
    for key, value in wanted.items():
        if getattr(m, key) != value:
            return (
                f"model.{key}={typed(getattr(m, key))} is not for latent attention (model.latent, {m.name}). Set "
                f"model.{key}={typed(value)}."
            )
    return None


def fits_cluster(run: Run) -> str | None:
    """Require the limits of the cluster file: ranks per node, nodes, time."""
    c = run.cluster
    if c.gpus and run.ranks_per_node > c.ranks_per_node:
        return (
            f"ranks_per_node={run.ranks_per_node}, but a node of {c.name} has {c.ranks_per_node} GPUs, one rank "
            f"each. Set ranks_per_node={c.ranks_per_node} or less, and more nodes."
        )
    if c.max_nodes is not None and run.nodes > c.max_nodes:
        return (
            f"nodes={run.nodes}, but {c.name} allows {c.max_nodes} (cluster.max_nodes). "
            f"Set nodes={c.max_nodes} or less."
        )
    if c.max_nodes is not None and run.job_nodes > c.max_nodes:
        return (
            f"nodes={run.nodes} and launcher.spare_nodes={run.launcher.spare_nodes}, but {c.name} allows {c.max_nodes} "
            f"(cluster.max_nodes). Set launcher.spare_nodes={c.max_nodes - run.nodes}, or fewer nodes."
        )
    if c.max_wall_time_min is not None and run.wall_time_min > c.max_wall_time_min:
        return (
            f"wall_time_min={run.wall_time_min}, but {c.name} allows {c.max_wall_time_min} "
            f"(cluster.max_wall_time_min). Set wall_time_min={c.max_wall_time_min} or less."
        )
    if run.launcher.kind.on_this_machine and run.cluster.gpus:
        return (
            f"launcher=local starts processes on this machine, not on {c.name}. Set cluster=local, or launcher=slurm."
        )
    return None


def fits_pilot(run: Run) -> str | None:
    """Require a pilot job that is large enough for every run and small enough for the cluster."""
    nodes, minutes, c = run.launcher.pilot_nodes, run.launcher.pilot_wall_time_min, run.cluster
    if not run.launcher.kind.one_job:
        return None
    if nodes is None or minutes is None:
        return (
            f"launcher={run.launcher.kind.name} needs the size of its one job. Set launcher.pilot_nodes=NODES "
            "launcher.pilot_wall_time_min=MINUTES."
        )
    if run.nodes > nodes:
        return f"nodes={run.nodes}, but launcher.pilot_nodes={nodes}. Set launcher.pilot_nodes={run.nodes} or more."
    if run.wall_time_min >= minutes:
        return (
            f"wall_time_min={run.wall_time_min} leaves launcher.pilot_wall_time_min={minutes} no time to start. Set "
            + (f"wall_time_min={minutes - 1} or less, or " if minutes > 1 else "")
            + f"launcher.pilot_wall_time_min={run.wall_time_min + 1} or more."
        )
    for key, value, most in (("nodes", nodes, c.max_nodes), ("wall_time_min", minutes, c.max_wall_time_min)):
        if most is not None and value > most:
            return (
                f"launcher.pilot_{key}={value}, but {c.name} allows {most} (cluster.max_{key}). "
                f"Set launcher.pilot_{key}={most} or less."
            )
    return None


def spares_are_used(run: Run) -> str | None:
    """Require spare nodes to be those of a Slurm job of the run, which may restart."""
    spares, launcher = run.launcher.spare_nodes, run.launcher
    if not spares:
        return None
    if not run.starter.has_arrays:
        others = run.starter.one_job or run.starter.in_own_job
        shared = "; the other nodes of its job are spares already" if others else ""
        return (
            f"launcher.spare_nodes={spares} are nodes of the Slurm job of one run, which launcher={run.starter.name} "
            f"does not submit{shared}. Set launcher.spare_nodes=0, or launcher=slurm."
        )
    if not launcher.requeues:
        return (
            f"launcher.spare_nodes={spares} are for restarts, and launcher.requeues=0 allows none. Set "
            "launcher.requeues=3, or launcher.spare_nodes=0."
        )
    return None


def slurm_excludes_hosts(run: Run) -> str | None:
    """Require Slurm for the exclusion of hosts."""
    if run.launcher.exclude_known_bad and not run.starter.needs_slurm:
        return (
            "launcher.exclude_known_bad=true excludes hosts by an option of Slurm, and "
            f"launcher={run.starter.name} has none. Set launcher.exclude_known_bad=false."
        )
    return None


def stops_within_limit(run: Run) -> str | None:
    """Require a run to be asked to stop after its start."""
    most = min(run.wall_time_min * 60 - 1, MOST_STOP_S)
    if stop_before_limit_s(run) > most:
        return (
            f"launcher.stop_before_limit_s={run.launcher.stop_before_limit_s} is too long for wall_time_min="
            f"{run.wall_time_min}. Set launcher.stop_before_limit_s={most} or less, or null."
        )
    return None


def emulates_bfloat16(gpu: Gpu) -> bool:
    """Return True for an NVIDIA GPU that has no units for bfloat16."""
    return gpu.compute_capability is not None and gpu.compute_capability < LEAST_FOR_BFLOAT16


def choose_precision(config: DictConfig, given: Collection[str]) -> None:
    """Replace bfloat16 of a file by float16 where the GPU has none; a value of the command line or a sweep stays."""
    if "job.precision" not in given and config.job.precision is Precision.bfloat16 and emulates_bfloat16(config.gpu):
        config.job.precision = Precision.float16


def precision_notes(run: Run) -> list[str]:
    """Return that float16 is the 16-bit type of a GPU, where it has no bfloat16."""
    if run.job.precision is not Precision.float16 or not emulates_bfloat16(run.gpu):
        return []
    return [f"float16 with loss scaling, because {run.gpu.name} has no bfloat16; job.precision sets another one"]


def bfloat16_has_its_units(run: Run) -> str | None:
    """Refuse bfloat16 on NVIDIA GPUs that emulate it, without a kernel for attention."""
    capability, least = run.gpu.compute_capability, LEAST_FOR_BFLOAT16
    if run.job.precision is Precision.bfloat16 and emulates_bfloat16(run.gpu):
        return (
            f"job.precision=bfloat16 needs an NVIDIA GPU of compute capability {least} or more, and {run.gpu.name} has "
            f"{capability}. Set job.precision=float32, or float16."
        )
    return None


# --- warnings ------------------------------------------------------------------------------------------------


def nothing_is_steady(run: Run) -> str | None:
    """Warn if no step remains after the unmeasured ones."""
    if run.job.steps is not None and run.job.steps <= run.job.unmeasured_steps:
        return (
            f"job.steps={run.job.steps} leaves no steady step after job.unmeasured_steps={run.job.unmeasured_steps}: "
            "the report will not use this run."
        )
    return None


def rate_never_reaches_its_peak(run: Run) -> str | None:
    """Warn of a warm-up that ends with the run or after it."""
    job = run.job
    if job.train and job.steps is not None and job.warmup_steps > job.steps:
        return (
            f"job.warmup_steps={job.warmup_steps} is longer than job.steps={job.steps}: the learning rate never "
            f"reaches job.learning_rate={job.learning_rate:g}. Set job.warmup_steps={job.steps // 10}, or more steps."
        )
    return None


def decay_has_its_steps(run: Run) -> str | None:
    """Refuse steps of a decay that a run does not have."""
    job = run.job
    if job.decay_steps is None:
        return None
    if job.decay is Decay.none:
        return (
            f"job.decay=none keeps the learning rate, and job.decay_steps={job.decay_steps} lets it fall. Set "
            "job.decay_steps=null, or job.decay=linear."
        )
    if job.steps is not None and job.warmup_steps + job.decay_steps > job.steps:
        return (
            f"job.warmup_steps={job.warmup_steps} and job.decay_steps={job.decay_steps} are longer than "
            f"job.steps={job.steps}. Set job.decay_steps=null, or more steps."
        )
    return None


def copies_have_checkpoints(run: Run) -> str | None:
    """Refuse copies of checkpoints that are not written, or to a directory that depends on where a rank starts."""
    copies = run.job.checkpoint_copy_dir
    if copies is None:
        return None
    if not COPY_DIR.fullmatch(copies):
        return (
            f"job.checkpoint_copy_dir={copies} is not an absolute path, or one that begins with a variable such as "
            "$TMPDIR, of letters, digits and . _ + @ -. Set job.checkpoint_copy_dir=/tmp, or null."
        )
    if run.job.checkpoint_every_steps is None:
        return (
            f"job.checkpoint_copy_dir={copies} copies checkpoints, and job.checkpoint_every_steps=null writes none. "
            "Set job.checkpoint_every_steps=NUMBER, or job.checkpoint_copy_dir=null."
        )
    return None


def only_the_last_checkpoint(run: Run) -> str | None:
    """Warn of checkpoints that are further apart than the run is long."""
    job = run.job
    every = job.checkpoint_every_steps
    if job.train and job.steps is not None and every is not None and every > job.steps:
        return (
            f"job.checkpoint_every_steps={every} is more than job.steps={job.steps}: the only checkpoint is written "
            "after the last step, so a run that crashes begins again. Set job.checkpoint_every_steps="
            f"{max(1, job.steps // 2)} or less."
        )
    return None


def local_runs_need_no_site(run: Run) -> str | None:
    """Warn of settings of the cluster's shell, which processes of this machine do not get."""
    c = run.cluster
    given = [
        f"cluster.{key}"
        for key in ("setup", "modules", "container", "container_mounts", "stage_environment", "sbatch", "pbs")
        if getattr(c, key)
    ]
    if given and run.starter.on_this_machine:
        return (
            f"{' and '.join(given)} {'has' if len(given) == 1 else 'have'} no effect with launcher=local: ranks start "
            "in the environment of this shell. Prepare it before slurmscale, or set cluster.env."
        )
    return None


def launcher_reads_its_keys(run: Run) -> str | None:
    """Warn of settings of another launcher than that of the run."""
    starter, launcher = run.starter, run.launcher
    given = {
        "cluster.pbs": bool(run.cluster.pbs) and starter.scheduler == "Slurm",
        "launcher.max_running": launcher.max_running is not None and not (starter.in_queue or starter.in_own_job),
        "launcher.pilot_nodes": launcher.pilot_nodes is not None and not starter.one_job,
        "launcher.pilot_wall_time_min": launcher.pilot_wall_time_min is not None and not starter.one_job,
    }
    keys = [key for key, is_unread in given.items() if is_unread]
    if not keys:
        return None
    pilot = "pbs_pilot" if starter.scheduler == "PBS" else "pilot"
    those = {"cluster.pbs": "pbs", "launcher.max_running": "slurm, pilot or here"}.get(keys[0], pilot)
    return f"{' and '.join(keys)} {'has' if len(keys) == 1 else 'have'} no effect with launcher={starter.name}. " + (
        f"Leave {'it' if len(keys) == 1 else 'them'} out, or set launcher={those}."
    )


def path_is_read(run: Run) -> str | None:
    """Warn of a path of data that are not read from one, such as random tokens."""
    if run.data.path is None or run.data.source not in WITHOUT_PATH:
        return None
    return (
        f"data.path={run.data.path} has no effect with data.source={run.data.source.name}: nothing is read from it. "
        "Set data=text, alpaca, dolly, pubmedqa or megatron_binary, or leave it out."
    )


def one_sample_is_no_pack(run: Run) -> str | None:
    """Warn of packing with one sample per micro-batch, unless it keeps attention within the documents of text."""
    if run.job.batching is Batching.packed and run.job.micro_batch_size == 1 and run.data.source not in TEXTS:
        return (
            "job.batching=packed has nothing to pack with job.micro_batch_size=1. Set job.micro_batch_size=2 or more: "
            "a row then contains that many samples on average."
        )
    return None


def whole_rows_need_no_buckets(run: Run) -> str | None:
    """Warn of buckets with axes that pad every row to the sequence length."""
    axes = [axis for axis in MODEL_AXES if axis.needs_whole_rows]
    if run.job.batching is Batching.bucketed and any(degree_of(run, axis) > 1 for axis in axes):
        given = " ".join(f"{axis.field}={degree_of(run, axis)}" for axis in axes)
        return (
            f"job.batching=bucketed saves no padding with parallelism.{given}: every "
            "row is as long as job.sequence_length there. Set job.batching=packed (not with context), or padded."
        )
    return None


def nodes_are_emulated(run: Run) -> str | None:
    """Warn of several nodes on one machine, which share its cores and memory."""
    if run.launcher.kind.on_this_machine and run.nodes > 1:
        return f"nodes={run.nodes} are emulated: their ranks share one machine. Figures are labelled so."
    return None


def last_checkpoint_takes_longer(run: Run) -> str | None:
    """Warn of a time limit that may be too short for the last checkpoint."""
    given_s, estimated_s = stop_before_limit_s(run), needed_s(run)
    # A run stops at the latest after three quarters of its limit (time_limit.within): 15 s of each minute.
    if run.launcher.stop_before_limit_s is None and given_s < estimated_s - STOP_S:
        return (
            f"the last checkpoint of {checkpoint_bytes(run) / 1e9:,.0f} GB may need {estimated_s} s at 1 GB/s, and the "
            f"run is asked to stop {given_s} s before its time limit. Set "
            f"wall_time_min={math.ceil(estimated_s / 15)} or more, or launcher.stop_before_limit_s=SECONDS."
        )
    return None


def finetunes_nothing(job: Job) -> bool:
    """Return whether a fine-tuning starts from random weights."""
    return (job.name.startswith("finetune") or not job.trains_all_weights) and job.init_from is None


def weights_are_random(run: Run) -> str | None:
    """Warn of fine-tuning that starts from random weights; a rehearsal has its own warning."""
    if finetunes_nothing(run.job) and run.rehearsal is None:
        return (
            f"job={run.job.name} trains random weights: its speed is right, its loss has no meaning. Set job.init_from="
            "DIRECTORY to weights of the model."
        )
    return None


def evaluates_random_weights(run: Run) -> str | None:
    """Warn of an evaluation of random weights."""
    if not run.job.train and work_of(run).reads_samples and run.job.init_from is None:
        return (
            "job.train=false evaluates random weights: its results have no meaning. Set job.init_from=DIRECTORY to "
            "weights of the model."
        )
    return None


def ranks_have_one_core(run: Run) -> str | None:
    """Warn of GPU ranks for which Slurm reserves one core: by default it gives a task one."""
    c = run.cluster
    if c.gpus and run.starter.needs_slurm and c.cpus_per_rank is None and not c.exclusive:
        return (
            f"cluster.cpus_per_rank is not set, so Slurm gives each rank of {c.name} one core for autograd, NCCL, the "
            "next batch and checkpoints. Set cluster.cpus_per_rank to the cores of a node / its GPUs, or "
            "cluster.exclusive=true."
        )
    return None


def updates_are_rounded(run: Run) -> str | None:
    """Warn of bfloat16 weights, which lose small updates."""
    # 7 stored bits and an implicit one: the gap between numbers is 1/128 of their power of two, half of it is rounded
    # off.
    if run.engine.parameters is Precision.bfloat16 and run.job.optimizer is not OptimizerKind.adamw_stochastic:
        stochastic = ", or set job.optimizer=adamw_stochastic" if run.engine.kind is EngineKind.native else ""
        return (
            "engine.parameters=bfloat16 keeps 8 bits of each weight: updates below 1/256 of it are lost. Compare its "
            f"losses with engine.parameters=float32{stochastic}."
        )
    return None


def tuning_is_a_command(run: Run) -> str | None:
    """Warn of the settings of a tuning in a run that `slurmscale tune` did not make."""
    if run.tune is None:
        return None
    return "tune=... has no effect on a run. Run slurmscale tune, or leave tune out."


# Later rules calculate with the counts.
COUNTS: tuple[Rule, ...] = (config_holds_no_secret, counts_are_in_range)
OTHERS: tuple[Rule, ...] = (
    numbers_are_in_range,
    rate_falls,
    decay_has_its_steps,
    copies_have_checkpoints,
    adapters_have_a_size,
    one_customization,
    names_are_file_names,
    names_are_seen_whole,
    path_stays_as_it_is,
    one_of_steps_and_epochs,
    batch_fits_scaling_mode,
    buckets_are_bucketed,
    sequence_fits_model,
    model_is_consistent,
    experts_are_consistent,
    latent_attention_is_consistent,
    fits_cluster,
    fits_pilot,
    spares_are_used,
    slurm_excludes_hosts,
    stops_within_limit,
    bfloat16_has_its_units,
    sbatch_variables.agree_with_keys,
    *slurm_options.RULES,
    *data.RULES,
    *stages.RULES,
    *loss_band.RULES,
)
RULES = (*COUNTS, *OTHERS)
WARNINGS: tuple[Rule, ...] = (
    nothing_is_steady,
    rate_never_reaches_its_peak,
    only_the_last_checkpoint,
    local_runs_need_no_site,
    launcher_reads_its_keys,
    path_is_read,
    tuning_is_a_command,
    one_sample_is_no_pack,
    whole_rows_need_no_buckets,
    nodes_are_emulated,
    last_checkpoint_takes_longer,
    updates_are_rounded,
    weights_are_random,
    evaluates_random_weights,
    ranks_have_one_core,
)

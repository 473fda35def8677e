"""The rules between configuration values: what cannot run, and what runs but is rarely meant.

Every rule is one small function from a Run to a sentence (what, where, what is allowed, what to type) or None.
All rules are asked, so that a user at the keyboard sees every mistake at once.
"""

from __future__ import annotations

from collections.abc import Callable

from jobs.layout import layout_of, shard_degree
from jobs.schema import LauncherKind, Run, ScalingMode, Sharding, Strategy


def problems(run: Run) -> list[str]:
    """Why this run cannot run; empty when it can. Later rules build on the values that earlier ones check."""
    for rules in (VALUES, GRID, BATCH):
        found = [sentence for rule in rules if (sentence := rule(run))]
        if found:
            return found
    return []


def warnings(run: Run) -> list[str]:
    """What runs, but is rarely meant."""
    return [sentence for rule in WARNINGS if (sentence := rule(run))]


# --- single values -------------------------------------------------------------------------------------------


def counts_are_positive(run: Run) -> str | None:
    """Every count is at least 1."""
    counts = {
        "nodes": run.nodes,
        "ranks_per_node": run.ranks_per_node,
        "repeat": run.repeat,
        "wall_time_min": run.wall_time_min,
        "parallelism.tensor": run.parallelism.tensor,
        "parallelism.pipeline": run.parallelism.pipeline,
        "parallelism.data_shard": run.parallelism.data_shard,
        "job.micro_batch_size": run.job.micro_batch_size,
        "job.sequence_length": run.job.sequence_length,
        "job.steps": run.job.steps,
        "job.epochs": run.job.epochs,
        "job.checkpoint_every_steps": run.job.checkpoint_every_steps,
        "job.keep_checkpoints": run.job.keep_checkpoints,
        "scaling.global_batch_size": run.scaling.global_batch_size,
        "scaling.sequences_per_rank": run.scaling.sequences_per_rank,
        "data.max_samples": run.data.max_samples,
        "launcher.max_running": run.launcher.max_running,
        "engine.cpu_threads_per_rank": run.engine.cpu_threads_per_rank,
        "engine.collective_timeout_s": run.engine.collective_timeout_s,
    }
    wrong = {key: value for key, value in counts.items() if value is not None and value < 1}
    if wrong:
        key, value = next(iter(wrong.items()))
        return f"{key}={value} is not a positive number. Type {key}=1 or more."
    if run.job.warmup_steps < 0 or run.job.unmeasured_steps < 1:
        return (
            f"job.warmup_steps={run.job.warmup_steps} must be 0 or more, and job.unmeasured_steps="
            f"{run.job.unmeasured_steps} 1 or more: the first step is never a steady one."
        )
    return None


def hyperparameters_are_in_range(run: Run) -> str | None:
    """Rates and norms that an optimizer accepts."""
    job = run.job
    ranges = {
        "job.learning_rate": (job.learning_rate, 0.0, 1e3),
        "job.min_learning_rate": (job.min_learning_rate, 0.0, job.learning_rate),
        "job.weight_decay": (job.weight_decay, 0.0, 1e3),
        "job.beta1": (job.beta1, 0.0, 0.99999),
        "job.beta2": (job.beta2, 0.0, 0.99999),
    }
    for key, (value, low, high) in ranges.items():
        if not low <= value <= high:
            return f"{key}={value:g} is outside {low:g} to {high:g}. Type {key}=VALUE in that range."
    if not 0 <= job.seed < 2**31:  # 32 bits of a generator's seed are the parameter's name
        return f"job.seed={job.seed} is outside 0 to {2**31 - 1}. Type job.seed=NUMBER in that range."
    if job.clip_norm is not None and not job.clip_norm > 0:
        return f"job.clip_norm={job.clip_norm:g} is not positive. Type job.clip_norm=1.0, or null for no clipping."
    return None


def names_are_file_names(run: Run) -> str | None:
    """A run and a sweep become directories."""
    for key, name in (("name", run.name), ("sweep", run.sweep)):
        if name is not None and (name in {"", ".", ".."} or "/" in name or "\0" in name or len(name.encode()) > 200):
            return (
                f"{key}={name!r} cannot be a directory name: 1 to 200 bytes without '/'. Type {key}=SOMETHING; the "
                "directory above is runs_dir=PATH."
            )
        if name is not None and key == "name" and name.startswith(("code-", "logs", ".")):
            return f"name={name!r} is reserved in a sweep directory (code-..., logs, hidden). Type another name."
    return None


def one_of_steps_and_epochs(run: Run) -> str | None:
    """The length of a run is said once."""
    if (run.job.steps is None) == (run.job.epochs is None):
        given = "both are" if run.job.steps is not None else "neither is"
        return (
            f"job.steps and job.epochs: exactly one decides the length, {given} set. "
            "Type job.steps=100 job.epochs=null, or the other way round."
        )
    return None


def batch_fits_scaling_mode(run: Run) -> str | None:
    """Strong scaling fixes the global batch, weak scaling the batch per rank."""
    strong = run.scaling.mode is ScalingMode.strong
    needed, other = (
        ("global_batch_size", "sequences_per_rank") if strong else ("sequences_per_rank", "global_batch_size")
    )
    if getattr(run.scaling, needed) is None:
        return f"scaling={run.scaling.mode.name} needs scaling.{needed}. Type scaling.{needed}=NUMBER."
    if getattr(run.scaling, other) is not None:
        return (
            f"scaling.{other} has no meaning with scaling={run.scaling.mode.name}, which fixes scaling.{needed}. "
            f"Type scaling.{needed}=NUMBER, or scaling={'weak' if strong else 'strong'}."
        )
    return None


def sharding_goes_with_fsdp(run: Run) -> str | None:
    """Sharding is FSDP's, and FSDP has one."""
    p = run.parallelism
    if p.strategy is Strategy.fsdp and p.sharding is None:
        return f"parallelism.strategy=fsdp needs parallelism.sharding: {', '.join(s.name for s in Sharding)}."
    if p.strategy is not Strategy.fsdp and (p.sharding is not None or p.data_shard is not None):
        return (
            f"parallelism.sharding and data_shard have no meaning with strategy={p.strategy.name}. "
            "Type parallelism=fsdp_full, or set both to null."
        )
    return None


def sequence_fits_model(run: Run) -> str | None:
    """The rotary table ends somewhere."""
    if run.job.sequence_length > run.model.max_sequence_length:
        return (
            f"job.sequence_length={run.job.sequence_length} is longer than {run.model.name} allows "
            f"(model.max_sequence_length={run.model.max_sequence_length}). "
            f"Type job.sequence_length={run.model.max_sequence_length} or less."
        )
    return None


def model_is_consistent(run: Run) -> str | None:
    """Head counts that attention can compute with."""
    m = run.model
    if m.heads % m.kv_heads:
        return f"model.kv_heads={m.kv_heads} does not divide model.heads={m.heads}. Use {_divisors(m.heads)}."
    if (m.experts > 0) != (m.experts_per_token > 0) or m.experts_per_token > m.experts:
        return f"model.experts={m.experts} and model.experts_per_token={m.experts_per_token} do not fit together."
    return None


def fits_cluster(run: Run) -> str | None:
    """What the cluster file says of a node and of the machine."""
    c = run.cluster
    if c.gpus and run.ranks_per_node > c.ranks_per_node:
        return (
            f"ranks_per_node={run.ranks_per_node}, but a node of {c.name} has {c.ranks_per_node} GPUs, one rank "
            f"each. Type ranks_per_node={c.ranks_per_node} or less, and more nodes."
        )
    if c.max_nodes is not None and run.nodes > c.max_nodes:
        return (
            f"nodes={run.nodes}, but {c.name} allows {c.max_nodes} (cluster.max_nodes). "
            f"Type nodes={c.max_nodes} or less."
        )
    if c.max_wall_time_min is not None and run.wall_time_min > c.max_wall_time_min:
        return (
            f"wall_time_min={run.wall_time_min}, but {c.name} allows {c.max_wall_time_min} "
            f"(cluster.max_wall_time_min). Type wall_time_min={c.max_wall_time_min} or less."
        )
    if run.launcher.kind is LauncherKind.local and run.cluster.gpus:
        return (
            f"launcher=local starts processes on this machine, not on {c.name}. Type cluster=local, or launcher=slurm."
        )
    return None


# --- the rank grid -------------------------------------------------------------------------------------------


def tensor_divides_heads(run: Run) -> str | None:
    """TP cuts attention by heads, and grouped-query attention by key/value heads."""
    m, tensor = run.model, run.parallelism.tensor
    for key, heads in (("heads", m.heads), ("kv_heads", m.kv_heads)):
        if heads % tensor:
            return (
                f"parallelism.tensor={tensor} does not divide model.{key}={heads} ({m.name}). "
                f"Use {_divisors(m.kv_heads)}."
            )
    if m.intermediate_size % tensor:
        return f"parallelism.tensor={tensor} does not divide model.intermediate_size={m.intermediate_size} ({m.name})."
    return None


def pipeline_divides_layers(run: Run) -> str | None:
    """PP gives every stage the same number of layers."""
    pipeline, layers = run.parallelism.pipeline, run.model.layers
    if layers % pipeline:
        return (
            f"parallelism.pipeline={pipeline} does not divide model.layers={layers} ({run.model.name}). "
            f"Use {_divisors(layers)}."
        )
    return None


def grid_fills_world(run: Run) -> str | None:
    """DP x TP x PP is the world size."""
    p = run.parallelism
    model_ranks = p.tensor * p.pipeline
    if run.ranks % model_ranks:
        return (
            f"dp x tensor({p.tensor}) x pipeline({p.pipeline}) cannot be the world size {run.ranks} = "
            f"nodes({run.nodes}) x ranks_per_node({run.ranks_per_node}): {run.ranks} is not a multiple "
            f"of {model_ranks}. Use nodes such that nodes x {run.ranks_per_node} is, or smaller degrees."
        )
    dp = run.ranks // model_ranks
    if p.strategy is Strategy.single and dp > 1:
        return (
            f"parallelism={p.name} has one replica and no data parallelism, but {run.ranks} ranks leave dp={dp}. "
            "Type nodes=1 ranks_per_node=1, or parallelism=ddp."
        )
    shard = shard_degree(run)
    if dp % shard:
        key = "parallelism.data_shard" if p.data_shard is not None else f"the shard group of {p.name}"
        return f"{key}={shard} does not divide dp={dp}. Type parallelism.data_shard= one of {_divisors(dp)}."
    return None


# --- the batch -----------------------------------------------------------------------------------------------


def global_batch_is_whole(run: Run) -> str | None:
    """GBS = MBS x DP x accumulation."""
    dp = layout_of(run).dp
    mbs, gbs = run.job.micro_batch_size, run.global_batch_size
    unit = mbs * dp
    if gbs % unit == 0:
        return None
    near = [n for n in (gbs // unit * unit, (gbs // unit + 1) * unit) if n > 0]
    if run.scaling.mode is ScalingMode.weak:
        allowed = f"scaling.sequences_per_rank= a multiple of {mbs}"
    else:
        allowed = "scaling.global_batch_size=" + " or ".join(map(str, near))
    smaller = [n for n in range(1, mbs) if gbs % (n * dp) == 0]
    also = f", or job.micro_batch_size={smaller[-1]}" if smaller else ""
    return f"GBS {gbs} is not a multiple of MBS {mbs} x DP {dp} = {unit}. Type {allowed}{also}."


# --- warnings ------------------------------------------------------------------------------------------------


def tensor_crosses_nodes(run: Run) -> str | None:
    """TP talks in every layer; between nodes that is slow."""
    if run.parallelism.tensor > 1 and layout_of(run).crosses_nodes("tp"):
        return (
            f"parallelism.tensor={run.parallelism.tensor} puts ranks of one TP group on different nodes "
            f"(ranks_per_node={run.ranks_per_node}): every layer then waits for the network."
        )
    return None


def nothing_is_steady(run: Run) -> str | None:
    """A run needs steps that count."""
    if run.job.steps is not None and run.job.steps <= run.job.unmeasured_steps:
        return (
            f"job.steps={run.job.steps} leaves no steady step after job.unmeasured_steps={run.job.unmeasured_steps}: "
            "the report will not use this run."
        )
    return None


def nodes_are_emulated(run: Run) -> str | None:
    """Several nodes on one machine share its cores and memory."""
    if run.launcher.kind is LauncherKind.local and run.nodes > 1:
        return f"nodes={run.nodes} are emulated: their ranks share one machine. Figures will say so."
    return None


def no_bfloat16_units(run: Run) -> str | None:
    """An accelerator without bfloat16 arithmetic emulates it."""
    gpu = run.gpu
    if run.job.precision.name == "bfloat16" and gpu.device_name is not None and gpu.peak_bf16_tflops is None:
        return f"job.precision=bfloat16, but {gpu.name} has no bfloat16 units: slow. Type job.precision=float32."
    return None


def _divisors(number: int) -> str:
    found = [n for n in range(1, number + 1) if number % n == 0]
    return ", ".join(map(str, found[:-1])) + (" or " if len(found) > 1 else "") + str(found[-1])


Rule = Callable[[Run], str | None]
VALUES: tuple[Rule, ...] = (
    counts_are_positive,
    hyperparameters_are_in_range,
    names_are_file_names,
    one_of_steps_and_epochs,
    batch_fits_scaling_mode,
    sharding_goes_with_fsdp,
    sequence_fits_model,
    model_is_consistent,
    fits_cluster,
)
GRID: tuple[Rule, ...] = (tensor_divides_heads, pipeline_divides_layers, grid_fills_world)
BATCH: tuple[Rule, ...] = (global_batch_is_whole,)
WARNINGS: tuple[Rule, ...] = (tensor_crosses_nodes, nothing_is_steady, nodes_are_emulated, no_bfloat16_units)

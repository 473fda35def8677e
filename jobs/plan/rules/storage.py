"""Rules of runs that measure storage. Checked at composition, so without torch and the storage."""

from __future__ import annotations

from jobs.plan.rules.rule import Rule, either
from jobs.plan.storage_space import memory_refusal
from jobs.schema import EngineKind, Run
from jobs.storage.settings import DataFormat

TESTS = {"checkpoint": "checkpoint_io", "data": "data_read", "fio": "fio"}
"""Sections of `storage`, and the job that has each."""


def one_test(run: Run) -> str | None:
    """Require one test of storage, and no training besides it."""
    if run.storage is None:
        return None
    given = [name for name in TESTS if getattr(run.storage, name) is not None]
    if len(given) != 1:
        return (
            f"storage has {' and '.join(given) or 'no test'}; a run needs one. Set job={either(TESTS.values())}, "
            "and no other section of storage."
        )
    if run.job.train:
        return f"storage.{given[0]} measures storage, and job.train=true trains. Set job.train=false."
    return None


def engine_is_native(run: Run) -> str | None:
    """Require the native engine, whose checkpoints are written."""
    if run.storage is None or run.engine.kind is EngineKind.native:
        return None
    return f"job={run.job.name} runs by engine=native, and engine={run.engine.kind.name} is chosen. Set engine=native."


def nothing_trains(run: Run) -> str | None:
    """Refuse settings of a training, which a test of storage would not follow."""
    if run.storage is None:
        return None
    chosen = {
        "job.lora=null": run.job.lora is not None,
        "job.prompt_tuning=null": run.job.prompt_tuning is not None,
        "job.export=false": run.job.export,
        "job.init_from=null": run.job.init_from is not None,
        "job.checkpoint_every_steps=null": run.job.checkpoint_every_steps is not None,
        "engine.float8=false": run.engine.float8,
        "stages=train": bool(run.stages.prepare or run.stages.evaluate),
        "engine.profile.steps=[]": bool(run.engine.profile.steps),
    }
    given = [remedy for remedy, is_set in chosen.items() if is_set]
    if given:
        key = given[0].partition("=")[0]
        return f"{key} belongs to a training, and job={run.job.name} trains nothing. Set {given[0]}, or another job."
    return None


def sizes_are_positive(run: Run) -> str | None:
    """Require positive sizes and counts."""
    if run.storage is None:
        return None
    least = {
        "checkpoint": {"repeats": 1, "writers_per_rank": 1},
        "data": {"files": 1, "samples": 1, "sample_bytes": 1, "batch_size": 1, "workers": 0},
        "fio": {"block_kib": 1, "size_mib": 1, "jobs": 1, "depth": 1},
    }
    lines = []
    for name, keys in least.items():
        test = getattr(run.storage, name)
        for key, smallest in keys.items() if test is not None else ():
            value = getattr(test, key)
            if value < smallest:
                lines.append(f"storage.{name}.{key}={value} is too small. Set storage.{name}.{key}={smallest} or more.")
    checkpoint, data = run.storage.checkpoint, run.storage.data
    if checkpoint is not None and not 0 < checkpoint.fraction <= 1:
        lines.append(
            f"storage.checkpoint.fraction={checkpoint.fraction:g} is not a share. Set storage.checkpoint.fraction=1, "
            "or a number between 0 and 1."
        )
    if data is not None and not 0 <= data.step_s < float("inf"):
        lines.append(f"storage.data.step_s={data.step_s:g} is not a time. Set storage.data.step_s=0 or more.")
    return "\n".join(lines) or None


def files_occupy_workers(run: Run) -> str | None:
    """Require a file for each reader: text and tar are read from front to back."""
    data = run.storage.data if run.storage else None
    if data is None or data.path is not None or data.format is DataFormat.megatron_binary:
        return None
    readers = run.ranks * max(1, data.workers)
    if data.files < readers:
        return (
            f"storage.data.files={data.files}, and {run.ranks} ranks x {max(1, data.workers)} workers = {readers} "
            f"readers each need one. Set storage.data.files={readers} or more, or fewer workers."
        )
    if data.samples < data.files:
        return (
            f"storage.data.samples={data.samples} do not fill storage.data.files={data.files}. Set "
            f"storage.data.samples={data.files} or more."
        )
    return None


def tensors_fit_node(run: Run) -> str | None:
    """Require the memory that the cluster gives a job on a node to hold the tensors of its ranks."""
    memory_gb = run.cluster.memory_gb_per_node
    return memory_refusal(run, memory_gb * 1e9, "cluster.memory_gb_per_node is") if memory_gb else None


RULES: tuple[Rule, ...] = (
    one_test,
    engine_is_native,
    nothing_trains,
    sizes_are_positive,
    files_occupy_workers,
)
# It counts the weights of a rank, so the layout must be legal.
OF_LAYOUT: tuple[Rule, ...] = (tensors_fit_node,)

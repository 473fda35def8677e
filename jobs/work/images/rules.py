"""Rules of runs that train on images. Checked at composition, so without torch and the images."""

from __future__ import annotations

from dataclasses import replace

from jobs.parallelism import Strategy
from jobs.plan.rules.memory import Verdict, in_words, verdict
from jobs.plan.rules.rule import Rule, undivided
from jobs.schema import Run
from jobs.work.images.speed import image_memory


def replicas_train_images(run: Run) -> str | None:
    """Require DDP, or one rank: every rank holds the whole network."""
    divided = undivided(run)
    if run.parallelism.strategy not in {Strategy.single, Strategy.ddp} or divided:
        return (
            f"job={run.job.name} trains replicas, and parallelism={run.parallelism.name} divides the model. Set "
            f"{' '.join(('parallelism=ddp', *divided))}."
        )
    return None


def trains_for_steps(run: Run) -> str | None:
    """Require a training for a number of steps."""
    if not run.job.train:
        return not_read_because(run, "job.train", "job.train=true")
    if run.job.steps is None:
        return not_read_because(run, "job.epochs", "job.epochs=null job.steps=NUMBER")
    return None


def not_read_because(run: Run, key: str, remedy: str) -> str:
    """Return the refusal of a setting of a language model."""
    return f"{key} does not fit job={run.job.name}, which trains on images for a number of steps. Set {remedy}."


def validation_has_images(run: Run) -> str | None:
    """Require images to validate on."""
    assert run.images is not None
    every = run.images.validate_every_steps
    if every is None or run.images.validation_path is not None:
        return None
    return (
        f"images.validate_every_steps={every} has no images to validate on. Set images.validation_path=DIRECTORY, or "
        "images.validate_every_steps=null."
    )


def shards_occupy_workers(run: Run) -> str | None:
    """Require a shard for each reader, and an image for each shard, where they are made."""
    assert run.images is not None
    if run.images.path is not None:
        return None
    readers = run.ranks * max(1, run.images.workers)
    if run.images.shards < readers:
        return (
            f"images.shards={run.images.shards}, and {run.ranks} ranks x {max(1, run.images.workers)} workers = "
            f"{readers} readers each need one. Set images.shards={readers} or more, or fewer images.workers."
        )
    if run.images.count < run.images.shards:
        return (
            f"images.count={run.images.count} do not fill images.shards={run.images.shards}. Set "
            f"images.count={run.images.shards} or more."
        )
    return None


def memory_fits(run: Run) -> str | None:
    """Refuse a run whose predicted memory is larger than that of its GPU even at the lower end of the interval."""
    if run.gpu.memory_gb is None or not run.gpu.memory_check:
        return None
    assert run.images is not None
    predicted = image_memory(run)
    if verdict(run, predicted) is not Verdict.too_large:
        return None
    return (
        f"job.micro_batch_size={run.job.micro_batch_size} images of images.size={run.images.size} do not fit "
        f"gpu={run.gpu.name} ({in_words(run, predicted)}). Set {smaller(run)}, or gpu.memory_check=false to try it "
        "anyway."
    )


def smaller(run: Run) -> str:
    """Return the largest power of 2 as job.micro_batch_size that fits."""
    sizes = [2**power for power in range(run.job.micro_batch_size.bit_length())]
    runs = [replace(run, job=replace(run.job, micro_batch_size=size)) for size in sizes]
    fitting = [each for each in runs if verdict(each, image_memory(each)) is Verdict.fits]
    return f"job.micro_batch_size={fitting[-1].job.micro_batch_size}" if fitting else "a smaller images.size"


def memory_is_tight(run: Run) -> str | None:
    """Warn of a run whose predicted memory may be larger than that of its GPU."""
    if run.gpu.memory_gb is None:
        return None
    predicted = image_memory(run)
    match verdict(run, predicted):
        case Verdict.tight:
            return in_words(run, predicted, "memory is tight, ")
        case Verdict.too_large:
            return in_words(run, predicted, "memory is too small (gpu.memory_check=false), ")
        case _:
            return None


VALUES: tuple[Rule, ...] = (replicas_train_images, trains_for_steps, validation_has_images, shards_occupy_workers)
RULES: tuple[Rule, ...] = (memory_fits,)

"""The published times of an experiment next to their predictions, with a word where one of the two is implausible."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from analysis.compare.published import Published, conflicts, experiment_in, gpu_family, of_another_machine, published
from analysis.formatting import significant
from analysis.parsers import log_metrics as a
from analysis.run import RunResult
from jobs import metrics as m
from jobs.answers import PublishedTime
from jobs.plan.compose import Point
from jobs.plan.cost import parameters
from jobs.plan.predict.interval import Interval
from jobs.plan.predict.speed import Speed, speed
from jobs.schema import Run

DIGITS = 3
# Where a published time lies, against the interval of its prediction.
SHORTER, WITHIN, LONGER = "shorter", "within", "longer"
# What is implausible.
PUBLISHED, ONE_OF_THE_TWO = "published", "one_of_the_two"


def published_notes(points: Sequence[Point]) -> list[str]:
    """Return a sentence for each published time of these runs' experiments that has a prediction."""
    return [
        f"published ({point.run.name}): {in_a_sentence(each, highest_mfu(point.run))}"
        for point in points
        for each in published_times(point)
    ]


def published_times(point: Point) -> Iterator[PublishedTime]:
    """Yield the published times of a run, each with its prediction."""
    experiment, found = experiment_in(point.overrides), speed(point.run)
    if experiment is None or found is None or point.run.rehearsal is not None:
        return
    # A figure of no file of conf/experiment is one of equal settings.
    named = [figure for figure in published() if figure.experiment in {"", experiment}]
    if not (of_steps := [(figure, steps) for figure in named if (steps := steps_of(figure, point.run))]):
        return
    planned = as_result(point)
    for figure, steps in of_steps:
        if not list(conflicts(planned, figure)) and not of_another_machine(planned, figure):
            yield compared(figure, found.step_time_s.scaled(steps), steps, found, point.run)


def as_result(point: Point) -> RunResult:
    """Return a planned run as a report has its configuration."""
    config: Any = OmegaConf.to_container(OmegaConf.structured(point.run), enum_to_str=True)
    plan = {"global_batch_size": point.run.global_batch_size, "parameters": parameters(point.run.model)}
    return RunResult(Path(), config, plan, {"overrides": list(point.overrides)})


def steps_of(figure: Published, run: Run) -> float | None:
    """Return the number of steps that a published time is of; None for other figures."""
    if figure.metric is m.USEFUL_TIME:
        return figure.steps
    if figure.samples is None or figure.metric not in {m.EPOCH_TIME, a.TRAINING_TIME}:
        return None
    epochs = 1 if figure.metric is m.EPOCH_TIME else figure.epochs or 1
    return epochs * figure.samples / run.global_batch_size


def compared(figure: Published, predicted: Interval, steps: float, found: Speed, run: Run) -> PublishedTime:
    """Return the published time with its prediction, and which of the two is doubtful."""
    stated = {
        "GPU": figure.gpu,
        "global batch": figure.global_batch_size,
        "sequence length": figure.sequence_length,
    }
    position = implied = implausible = None
    highest = highest_mfu(run)
    if figure.gpu and gpu_family(figure.gpu) == gpu_family(str(run.gpu.device_name)):
        position = SHORTER if figure.value < predicted.low else LONGER if figure.value > predicted.high else WITHIN
    if position is not None:
        implied = found.mfu.point * predicted.point / figure.value
        if highest is not None and implied > highest.value:
            implausible = PUBLISHED
        elif position != WITHIN:
            implausible = ONE_OF_THE_TWO
    return PublishedTime(
        metric=figure.metric.name,
        source=figure.source,
        document=figure.document.citation,
        hardware=figure.hardware,
        gpu=figure.gpu or None,
        steps=steps,
        published_s=figure.value,
        published_step_time_s=figure.value / steps,
        predicted_s=predicted.point,
        predicted_low_s=predicted.low,
        predicted_high_s=predicted.high,
        position=position,
        implausible=implausible,
        implied_mfu=implied if implausible else None,
        highest_published_mfu=highest.value if highest is not None else None,
        not_stated=[words for words, value in stated.items() if not value],
    )


def in_a_sentence(time: PublishedTime, highest: Published | None) -> str:
    """Return a published time with its prediction as text, with the reason for a doubt."""
    limits = " to ".join(map(in_words, (time.predicted_low_s, time.predicted_high_s)))
    first = (
        f"{time.source}{f' ({time.hardware})' if time.gpu is None else ''}, "
        f"{significant(time.published_step_time_s, DIGITS)} s a step; predicted {in_words(time.predicted_s)} ({limits})"
    )
    lacking = f". The document does not state the {' and the '.join(time.not_stated)}" if time.not_stated else ""
    if time.implied_mfu is None:
        return f"{first}{': they agree' if time.position == WITHIN else ''}{lacking}"
    doubted = time.implausible == PUBLISHED
    which = ", more likely the published time: it" if doubted else ": the published time"
    reason = f"it would be an MFU of {time.implied_mfu:.0%}"
    if doubted and highest is not None:
        reason += (
            f", above the {highest.value:.0%} of {highest.document.publisher}, the highest published MFU on this GPU"
        )
    if time.position == WITHIN:
        return f"{first}. The published time is in the interval and implausible: {reason}{lacking}"
    return f"{first}. One of the two is implausible{which} is {time.position} than the interval, {reason}{lacking}"


def highest_mfu(run: Run) -> Published | None:
    """Return the highest published MFU on a run's GPU; None without any."""
    family = gpu_family(str(run.gpu.device_name))
    found = [each for each in published() if each.metric is m.MFU and gpu_family(each.gpu) == family]
    return max(found, key=lambda each: each.value, default=None)


def in_words(time_s: float) -> str:
    """Return a time in seconds, in minutes from two of them on."""
    return f"{significant(time_s, DIGITS)} s" if time_s < 120 else f"{significant(time_s / 60, DIGITS)} min"

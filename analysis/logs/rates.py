"""The measured values of a log: rates over its steady steps, else derived from blocks, epochs or its own summary."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from analysis.logs.batches import batch_by_counts
from analysis.logs.blocks import DERIVED as OF_BLOCKS
from analysis.logs.blocks import evaluating, throughput_of_blocks
from analysis.logs.clock import timed_by_clock
from analysis.logs.divergence import is_finite, steps_without_loss
from analysis.logs.epochs import epoch_times, throughput_of_epochs
from analysis.logs.step import LogStep
from analysis.logs.steps import LogRun
from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind
from jobs import metrics as m
from jobs.metrics import Metric

# Metrics taken unchanged from the summaries of a log.
SUMMED_UP = (
    a.TIME_TO_TRAIN,
    a.INITIALIZATION_TIME,
    a.TRAINING_TIME,
    m.MEMORY_PEAK,
    m.EVALUATION_LOSS,
)
# Rates of all ranks together.
TOTAL_RATES = (m.TOKENS_PER_S, a.SAMPLES_PER_S, a.STEPS_PER_S)
RATES_OF_SAMPLES = {m.TOKENS_PER_S, a.SAMPLES_PER_S}
RATES_OF_WORK = {
    *TOTAL_RATES,
    m.TOKENS_PER_S_PER_RANK,
    a.SAMPLES_PER_S_PER_RANK,
    a.FLOPS_PER_S_PER_RANK,
    a.MODEL_FLOPS_UTILIZATION,
}
OF_EPOCHS = "derived from the times of its epochs and their steps; an epoch may include evaluations"
OF_WARM_UP = "the log's own rate of whole epochs or blocks, with warm-up"
OF_SUMMARY = "the log's own mean over the whole training, with warm-up, evaluations and saving"


def measured(
    run: LogRun, counted: Sequence[LogStep], torn: Sequence[LogStep], ranks: int | None
) -> dict[Metric, float]:
    """Return the metrics of a log by their definitions; step metrics cover `counted`, and rates not `torn`."""
    values = {metric: value for metric in SUMMED_UP if (value := run.file.latest(metric)) is not None}
    values |= speed([step for step in counted if step not in torn], ranks, batch_of(run, ranks))
    times_s = [step.values[m.STEP_TIME] for step in counted if m.STEP_TIME in step.values]
    if times_s:
        percentiles = ((m.STEP_TIME_MEDIAN, 50), (m.STEP_TIME_P10, 10), (m.STEP_TIME_P90, 90))
        values |= {metric: float(np.percentile(times_s, percent)) for metric, percent in percentiles}
    elif by_clock := [
        step.values[m.STEP_TIME] for step in timed_by_clock(run.steps, run.file) if m.STEP_TIME in step.values
    ]:
        # The program prints rates only.
        values[m.STEP_TIME_MEDIAN] = float(np.median(by_clock))
    if run.steps and m.STEP_TIME in run.steps[0].values:
        values[m.FIRST_STEP_TIME] = run.steps[0].values[m.STEP_TIME]
    for metric, latest in ((m.LOSS, m.FINAL_LOSS), (m.MEMORY_PEAK, m.MEMORY_PEAK)):
        reported = [step.values[metric] for step in run.steps if metric in step.values]
        values |= {latest: max(reported) if metric is m.MEMORY_PEAK else reported[-1]} if reported else {}
    believed = is_finite(run.steps, m.LOSS) and is_finite(run.steps, m.GRADIENT_NORM)
    if not believed or steps_without_loss(run.steps):
        # Of a norm that stays NaN the weights are NaN too, whatever loss is printed: transformers prints 0.0.
        values.pop(m.FINAL_LOSS, None)
    for metric in (a.FLOPS_PER_S_PER_RANK, a.MODEL_FLOPS_UTILIZATION):
        # The program's own figures, which analysis.metrics.mfu shows next to ours.
        reported = [step.values[metric] for step in counted if step.values.get(metric, 0) > 0]
        values |= {metric: statistics.harmonic_mean(reported)} if reported else {}
    clock = [record.values[a.STEPS_TIME] for record in run.file.of(Kind.evaluation) if a.STEPS_TIME in record.values]
    clock += [step.values[a.STEPS_TIME] for step in run.steps if a.STEPS_TIME in step.values]
    values |= {a.TRAINING_TIME: max(clock)} if clock else {}
    for metric in (m.EVALUATION_LOSS, a.EVALUATION_SCORE, a.SAMPLES_DONE):
        reported = [record.values[metric] for record in run.file.of(Kind.evaluation) if metric in record.values]
        values |= {metric: reported[-1]} if reported else {}
    if a.CONVERGENCE_FACTOR in run.settings:
        values[a.CONVERGENCE_FACTOR] = run.settings[a.CONVERGENCE_FACTOR]
    return values | evaluating(run.file) | epoch_times(run.file, run.steps)


def batch_of(run: LogRun, ranks: int | None) -> float | None:
    """Return the samples per step if the configuration is definite or the log counts them, else None."""
    if run.settings.get(a.FULL_SAMPLES) == 1:
        return run.settings.get(a.GLOBAL_BATCH_SIZE)
    return batch_by_counts(run, ranks)


def speed(counted: Sequence[LogStep], ranks: int | None, batch: float | None) -> dict[Metric, float]:
    """Return the rates over these steps: total work divided by total time, assuming equal work per step."""
    values: dict[Metric, float] = {}
    for metric, per_rank in ((m.TOKENS_PER_S, m.TOKENS_PER_S_PER_RANK), (a.SAMPLES_PER_S, a.SAMPLES_PER_S_PER_RANK)):
        reported = [step.values[metric] for step in counted if metric in step.values]
        each = [step.values[per_rank] for step in counted if per_rank in step.values]
        # A rate reported by fewer steps may cover something else, such as the whole run with its evaluations.
        if reported and 2 * len(reported) >= len(counted):
            values[metric] = statistics.harmonic_mean(reported)
        elif each and ranks:
            values[metric] = ranks * statistics.harmonic_mean(each)
        if metric in values and ranks:
            values[per_rank] = values[metric] / ranks
        elif each:
            values[per_rank] = statistics.harmonic_mean(each)
    timed = [step.values for step in counted if m.STEP_TIME in step.values]
    if timed:
        time_s = sum(each[m.STEP_TIME] for each in timed)
        values[a.STEPS_PER_S] = len(timed) / time_s
        # A torn line may have a time without its batch.
        sized = [each for each in timed if a.GLOBAL_BATCH_SIZE in each]
        if a.SAMPLES_PER_S not in values and sized:
            samples = sum(each[a.GLOBAL_BATCH_SIZE] for each in sized)
            values[a.SAMPLES_PER_S] = samples / sum(each[m.STEP_TIME] for each in sized)
        elif a.SAMPLES_PER_S not in values and batch is not None:
            values[a.SAMPLES_PER_S] = batch * len(timed) / time_s
    return values


def rates_of(values: Mapping[Metric, float]) -> bool:
    """Return True if there is a throughput of all ranks together."""
    return not values.keys().isdisjoint(TOTAL_RATES)


def own_mean(run: LogRun) -> dict[Metric, float]:
    """Return the rates in the summary of a log."""
    return {metric: rate for metric in TOTAL_RATES if (rate := run.file.latest(metric)) is not None}


def stated(run: LogRun, metric: Metric) -> list[float]:
    """Return the rates in lines that state no time of a step: of epochs or blocks, as MLPerf logs have them."""
    if any(m.STEP_TIME in step.values for step in run.steps):
        return []
    return [step.values[metric] for step in run.steps if {a.UNIX_TIME, metric} <= step.values.keys()]


def derived_rates(run: LogRun, ranks: int | None) -> tuple[dict[Metric, float], str | None]:
    """Return the throughput of a log whose steps have none, and its derivation; empty if none follows."""
    summed_up = own_mean(run)
    if not summed_up and (mean_s := run.file.latest(a.MEAN_STEP_TIME)):
        summed_up = {a.STEPS_PER_S: 1 / mean_s}
    own = {metric: statistics.harmonic_mean(found) for metric in TOTAL_RATES if (found := stated(run, metric))}
    for rates, how in (
        (throughput_of_blocks(run.file), OF_BLOCKS),
        (throughput_of_epochs(run.file, batch_of(run, ranks)), OF_EPOCHS),
        (summed_up, OF_SUMMARY),
        (own, OF_WARM_UP),
    ):
        if rates:
            return rates, how
    return {}, None

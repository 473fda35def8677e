"""`calibrate --probes`: the runs to measure, what they are worth, and their submission."""

from __future__ import annotations

import shlex
import statistics
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from jobs.cli import main
from jobs.errors import ConfigError
from jobs.explore.layouts import read_layouts
from jobs.explore.propose.predicted import RankedLayout, ranked
from jobs.explore.propose.probes import FEWEST, LIKELY, propose
from jobs.plan.compose import compose
from jobs.plan.predict.calibration import STEP_TIME_PRIOR, Fit
from jobs.plan.predict.constants import StepTimeConstants
from jobs.plan.predict.fit import MOST_RUNS, STEP_TIME, Sample, fitted
from jobs.plan.predict.interval import Interval
from jobs.plan.predict.step_time import StepWork, step_time_s, step_work

GIVEN = (
    "model=llama3_8b",
    "cluster=xe9680_h100",
    "nodes=1,2",
    "parallelism.context=1",
    "job.micro_batch_size=1",
    "job.sequence_length=4096",
    "data=random",
    "job.precision=bfloat16",
    "scaling.global_batch_size=16",
)
TRUE = replace(StepTimeConstants(), memory_efficiency=0.4, network_efficiency=0.3, link_efficiency=0.45)


@cache
def order() -> list[RankedLayout]:
    return ranked(read_layouts(list(GIVEN)).layouts())


def work(candidate: RankedLayout) -> StepWork:
    found = step_work(candidate.layout.run)
    assert found is not None
    return found


def interval(fit: Fit[StepTimeConstants], each: StepWork) -> Interval:
    return fit.interval(lambda constants: step_time_s(each, constants))


def error_and_width(fit: Fit[StepTimeConstants]) -> tuple[float, float]:
    """The medians over all layouts of the error on a machine of the true constants, and of the interval's width."""
    errors, widths = [], []
    for each in map(work, order()):
        predicted, true = interval(fit, each), step_time_s(each, TRUE)
        errors.append(abs(predicted.point / true - 1))
        widths.append(predicted.high / predicted.point)
    return statistics.median(errors), statistics.median(widths)


def test_probes_narrow_the_interval_as_expected_once_they_are_measured() -> None:
    proposal = propose(order())
    assert FEWEST <= len(proposal.probes) <= MOST_RUNS
    factors = [proposal.factor, *(probe.factor for probe in proposal.probes)]
    assert factors == sorted(factors, reverse=True)
    assert all(probe.candidate.chance >= LIKELY and probe.identifies for probe in proposal.probes)
    works = [work(probe.candidate) for probe in proposal.probes]
    fit = fitted(STEP_TIME, [Sample(each, step_time_s(each, TRUE)) for each in works], "probes")
    error, width = error_and_width(fit)
    error_before, width_before = error_and_width(STEP_TIME_PRIOR)
    assert width_before == pytest.approx(proposal.factor, rel=0.02)
    assert error < error_before / 2
    assert width <= 1.1 * factors[-1]


def test_probes_are_printed_as_commands_of_short_runs_and_submitted_if_told_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [*GIVEN, f"runs_dir={tmp_path}", "launcher=dry"]
    assert main(["calibrate", "--probes", *given]) == 0
    lines = capsys.readouterr().out.splitlines()
    commands = [shlex.split(line)[2:] for line in lines if line.startswith("slurmscale submit ")]
    assert FEWEST <= len(commands) <= MOST_RUNS
    assert lines[0].startswith(f"uncalibrated: {len(commands)} runs to measure, chosen among ")
    assert lines[-1] == f"when they have ended: slurmscale calibrate {tmp_path}/probes-llama3_8b"
    (point,) = compose(commands[0], multirun=False)
    assert (point.run.name, point.run.job.steps, point.run.wall_time_min <= 30) == ("probe-1", 19, True)
    assert main(["calibrate", "--probes", "--submit", *given]) == 0
    text = capsys.readouterr().out
    assert all(f"probe-{number}" in text for number in range(1, len(commands) + 1))


def test_probes_that_would_take_too_long_are_refused_with_what_to_set() -> None:
    with pytest.raises(ConfigError, match=r"takes 15 minutes or less for 19 steps. Set a smaller scaling.global_batch"):
        propose(ranked(read_layouts([*GIVEN, "parallelism=fsdp_full", "scaling.global_batch_size=65536"]).layouts()))

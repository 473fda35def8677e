"""The rules of a campaign and its contest: check that a run did the work of the baseline, by what the run recorded.

A run that trained on less, on other data, or to another loss does not count, however fast it was.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from analysis.compare.loss import loss_band
from analysis.compare.published import measured
from analysis.formatting import significant
from analysis.metrics.power import PowerLimits, over_power
from analysis.parsers import log_metrics as a
from analysis.run import RunResult
from analysis.scaling.groups import RATES
from analysis.untrusted import as_list, as_number
from jobs import metrics as m
from jobs.metrics import Better, Metric
from jobs.plan.keys import is_among
from jobs.rundir import RunDir
from jobs.schema import Contest, Counted
from jobs.work.program.substitution import names_in

# Settings that every run of a campaign shares: the model, the rules, and what a program is judged by.
SAME = ("model.", "contest.", *(f"program.{part}" for part in ("metrics.", "gates.", "merit", "log.", "inputs.")))
TIMES = {
    Counted.training: a.TRAINING_TIME,
    Counted.total: m.TOTAL_TIME,
    Counted.target: m.TIME_TO_TARGET,
}
COUNTS = (
    (m.SAMPLES_PER_STEP, "samples per optimizer step"),
    (m.SAMPLES_TRAINED, "samples"),
    (m.TOKENS_TRAINED, "tokens"),
)


@dataclass(frozen=True)
class Rules:
    """The rules by which trials are judged: the contest's values, or the schema's without a contest."""

    metric: Metric
    """The compared quantity: a time, or the merit of a program."""
    counted: Counted | None
    """Time of a training that is compared; None for the merit of a program."""
    loss_steps: int
    loss_tolerance: float
    loss_spreads: float
    wall_time_min: int | None
    floor: bool
    """A slower trial counts as the baseline."""
    power: PowerLimits
    runs: int | None
    """Runs whose mean is the official score of a configuration; None without such a score."""
    dropped: int
    """Fastest runs, and slowest runs, that the score leaves out."""

    @classmethod
    def of(cls, run: RunResult) -> Rules:
        """Return the rules that a run was composed with."""

        def value(key: str, default: float) -> float:
            known = as_number(run.setting(f"contest.{key}"))
            return default if known is None else known

        limit, runs = (as_number(run.setting(f"contest.{key}")) for key in ("wall_time_min", "runs"))
        counted = Counted.__members__.get(str(run.setting("contest.counted")), Contest.counted)
        is_program = run.setting("program.name") is not None
        return cls(
            merit_of(run) if is_program else TIMES[counted],
            None if is_program else counted,
            max(1, int(value("loss_steps", Contest.loss_steps))),
            value("loss_tolerance", Contest.loss_tolerance),
            value("loss_spreads", Contest.loss_spreads),
            None if limit is None else int(limit),
            run.setting("contest.floor") is True,
            PowerLimits(*(as_number(run.setting(f"contest.{key}")) for key in ("power_w", "node_power_w"))),
            None if runs is None else int(runs),
            int(value("dropped", Contest.dropped)),
        )

    @property
    def ratio_in_words(self) -> str:
        """The numbers that a ratio divides, as text."""
        sides = ["the attempt", "the baseline"]
        if self.metric.better is not Better.high:
            sides.reverse()
        return " / ".join(f"{'time' if self.counted is not None else self.metric.name} of {side}" for side in sides)

    def value(self, run: RunResult) -> float | None:
        """Return the compared number of a run; None if it was not measured."""
        return measured(run, self.metric)

    def speed(self, run: RunResult) -> float | None:
        """Return a number that is proportional to the speed of a run; None if it was not measured."""
        value = self.value(run)
        if not value or value <= 0:
            return None
        return value if self.metric.better is Better.high else 1 / value

    def loss(self, run: RunResult) -> float | None:
        """Return the mean loss of the last `loss_steps` steps of a used run; None for one that reports no loss."""
        last = sorted(run.losses)[-self.loss_steps :]
        return statistics.fmean(run.losses[step] for step in last) if last else None


def merit_of(run: RunResult) -> Metric:
    """Return the metric by which runs of a program are compared: its merit, else its throughput, else its time."""
    name = run.setting("program.merit")
    chosen = next((metric for metric in run.values if metric.name == name), None)
    return chosen or next((metric for metric in RATES if metric in run.values), m.PROGRAM_TIME)


@dataclass(frozen=True)
class Baseline:
    """The used repeats of a campaign's baseline, at least one."""

    runs: Sequence[RunResult]
    rules: Rules

    @property
    def run(self) -> RunResult:
        """The first repeat, whose settings others are compared with."""
        return self.runs[0]

    @property
    def band(self) -> tuple[float, float] | None:
        """The lowest and the highest loss that count; None if it reports no loss, or a target is to be reached."""
        if self.rules.counted is Counted.target:
            return None
        losses = [loss for run in self.runs if (loss := self.rules.loss(run)) is not None]
        return loss_band(losses, self.rules.loss_tolerance, self.rules.loss_spreads) if losses else None


def breaches(run: RunResult, baseline: Baseline) -> list[str]:
    """Return the reasons that a run does not count, the plainest first; empty if it counts."""
    if not run.used:
        return [str(run.reason)]
    found = [
        reached_the_target(run, baseline.rules),
        did_the_task(run, baseline),
        did_the_work(run, baseline),
        reached_the_loss(run, baseline),
        kept_the_time_limit(run, baseline.rules),
        kept_the_power(run, baseline.rules.power),
        started_once(run),
    ]
    return [sentence for sentence in found if sentence]


def did_the_task(run: RunResult, baseline: Baseline) -> str | None:
    """Check model and rules by the frozen configuration, ranks and data by the record, against the baseline."""
    both: list[tuple[str, Any, Any]] = [
        (key, run.settings.get(key), baseline.run.settings.get(key))
        for key in sorted({*run.settings, *baseline.run.settings})
        if key.startswith(SAME)
    ]
    facts: tuple[tuple[str, Mapping[str, Any], Mapping[str, Any]], ...] = (
        ("ranks", run.started, baseline.run.started),
        ("data", run.started, baseline.run.started),
    )
    both += [(key, own.get(key), wanted.get(key)) for key, own, wanted in facts]
    both += [(key, run.setting(key), baseline.run.setting(key)) for key in ("nodes", "job.sequence_length")]
    both += [("contents of its inputs", kept_inputs(run), kept_inputs(baseline.run))]
    differing = [f"{key} {own}, the baseline has {wanted}" for key, own, wanted in both if own != wanted]
    return f"another task: {'; '.join(differing[:3])}" if differing else None


def input_hashes(run: RunResult) -> dict[str, Any]:
    """Return the SHA-256 of each input of a program, from its latest start; empty for other runs."""
    found = [event.get("sha256") for event in run.events if event["event"] == "inputs"]
    return found[-1] if found and isinstance(found[-1], dict) else {}


def kept_inputs(run: RunResult) -> dict[str, Any]:
    """Return the SHA-256 of each input that an attempt must keep.

    A tier of the contest may allow the parameter that names an input, as the script of a speedrun.
    """
    hashes, tiers = input_hashes(run), run.setting("contest.tiers")
    allowed = [str(key) for keys in (tiers.values() if isinstance(tiers, Mapping) else ()) for key in as_list(keys)]
    paths = {name: str(run.setting(f"program.inputs.{name}.path")) for name in hashes}
    return {
        name: sha256
        for name, sha256 in hashes.items()
        if not any(is_among(f"program.{used}", allowed) for used in names_in([paths[name]]))
    }


def did_the_work(run: RunResult, baseline: Baseline) -> str | None:
    """Check samples per step, total samples and total tokens (without padding) against the baseline."""
    both = [(words, run.values.get(key), baseline.run.values.get(key)) for key, words in COUNTS]
    differing = [
        f"{counted(own)} {words}, the baseline {counted(wanted)}" for words, own, wanted in both if own != wanted
    ]
    if not differing:
        return None
    own, wanted = (each.values.get(m.SAMPLES_TRAINED) for each in (run, baseline.run))
    cut = own is not None and wanted is not None and own < wanted
    return f"{'trained on less' if cut else 'other work'}: {'; '.join(differing)}"


def kept_the_time_limit(run: RunResult, rules: Rules) -> str | None:
    """Check the total time against the contest's wall time."""
    limit, total_s = rules.wall_time_min, run.values.get(m.TOTAL_TIME)
    if limit is not None and total_s is not None and total_s > limit * 60:
        return f"took {significant(total_s, 4)} s, the contest's limit is {limit} min"
    return None


def kept_the_power(run: RunResult, limits: PowerLimits) -> str | None:
    """Check the power of every second between the start and the end of a run, by the readings in its directory."""
    if limits == PowerLimits(None, None):
        return None
    started = next(event for event in run.events if event["event"] == "started")
    begin_s, end_s = (datetime.fromisoformat(str(event["time"])).timestamp() for event in (started, run.events[-1]))
    return over_power(RunDir(run.path).power_logs, begin_s, end_s, limits, nodes=as_number(run.setting("nodes")))


def reached_the_target(run: RunResult, rules: Rules) -> str | None:
    """Check that a run reached the loss of its contest, if the time until then is compared."""
    if rules.counted is not Counted.target or rules.value(run) is not None:
        return None
    return (
        f"never reached a loss of {run.setting('contest.target_loss')} (mean of {rules.loss_steps} steps); it ended "
        f"with {'no loss' if (last := rules.loss(run)) is None else significant(last, 4)}"
    )


def reached_the_loss(run: RunResult, baseline: Baseline) -> str | None:
    """Check the loss against the band of the baseline."""
    if baseline.band is None:
        return None
    low, high = baseline.band
    loss = baseline.rules.loss(run)
    if loss is None:
        return "reports no loss, and the baseline does"
    if low <= loss <= high:
        return None
    return (
        f"loss {significant(loss, 4)} is outside the baseline's {significant(low, 4)} to {significant(high, 4)} "
        f"(mean of the last {baseline.rules.loss_steps} steps)"
    )


def started_once(run: RunResult) -> str | None:
    """Check that the run was started once: a restarted one has several start-ups and first steps."""
    return None if run.attempts == 1 else f"was started {run.attempts} times, so its time is not that of one run"


def counted(value: float | None) -> str:
    """Return a number of samples or tokens as text; it may not have been recorded."""
    return "an unrecorded number of" if value is None else f"{value:,.10g}"

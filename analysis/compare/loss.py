"""Agreement of losses: which runs must reach the same loss, and which of them do not.

Three rules: the final loss of a run against the median of its peers, the losses of the same step among runs that do the
same arithmetic, and in a campaign the band of the baseline's repeats.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from analysis.compare.core import relative_change
from analysis.formatting import plural
from analysis.run import RunResult
from analysis.untrusted import canonical
from jobs import metrics as m
from jobs.loss_band import INFLUENCE_LOSS

# Largest relative distance of a final loss from the median of its peers at which a run is believed.
FINAL_LOSS_TOLERANCE = 0.01
# Largest relative distance of losses of the same step and arithmetic type at which layouts agree.
SAME_STEP_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Gap:
    """The two runs whose losses of one step are farthest apart."""

    distance: float
    """Relative to the lower loss."""
    step: int
    low: RunResult
    high: RunResult
    runs: int
    """Number of runs compared."""


def peers(run: RunResult) -> bytes:
    """Return a key that is equal for runs that must reach the same loss: model, data, job and global batch.

    Layout and engine are left out, except with LoRA dropout, whose random numbers are drawn in an order set by both.
    Ranks and micro-batches of images set their order and crops, and what a normalization is over.
    """
    settings = {
        name: {key: value for key, value in section.items() if key not in without}
        for name, without in INFLUENCE_LOSS.items()
        if isinstance(section := run.config.get(name), Mapping)
    }
    drawn_by: list[object] = []
    if run.setting("job.lora.dropout"):
        drawn_by = [run.setting("engine.kind"), run.plan.get("layout")]
    elif "images" in settings:
        drawn_by = [run.ranks, run.setting("job.micro_batch_size")]
    return canonical([settings, run.plan.get("global_batch_size"), drawn_by])


def same_arithmetic(run: RunResult) -> tuple[bytes, str]:
    """Return a key that is equal for runs whose losses must agree at every step: peers of one precision."""
    return peers(run), str(run.setting("job.precision"))


def loss_doubts(runs: Iterable[RunResult]) -> dict[Path, str]:
    """Return why a run is not believed, by the run's path; runs without doubt are absent.

    Logs of other programs are not compared with each other, as they report neither the data nor its order; each is
    judged by its own lines (analysis.logs.divergence).
    """
    runs = list(runs)
    doubts = {run.path: run.disbelieved for run in runs if run.disbelieved}
    for members in grouped([run for run in runs if run.log is None], peers):
        middle = statistics.median(run.values[m.FINAL_LOSS] for run in members)
        for run in members:
            loss = run.values[m.FINAL_LOSS]
            if not final_losses_agree(loss, middle):
                doubts[run.path] = (
                    f"final loss {loss:.5g} is {abs(relative_change(loss, middle)) * 100:.1f} % from {middle:.5g}, the "
                    f"median of {plural(len(members), 'run')} of the same model, data, job and global batch"
                )
    return doubts


def final_losses_agree(loss: float, expected: float) -> bool:
    """Return whether a final loss is within FINAL_LOSS_TOLERANCE of the expected one."""
    return abs(relative_change(loss, expected)) <= FINAL_LOSS_TOLERANCE


def loss_band(losses: Sequence[float], tolerance: float, spreads: float) -> tuple[float, float]:
    """Return the losses that agree with those of some repeats: their mean plus or minus the allowed distance.

    That is the larger of `tolerance` times the mean and `spreads` times the standard deviation.
    """
    middle = statistics.fmean(losses)
    spread = statistics.stdev(losses) if len(losses) > 1 else 0.0
    allowed = max(tolerance * abs(middle), spreads * spread)
    return middle - allowed, middle + allowed


def losses_agree(runs: Sequence[RunResult]) -> bool | None:
    """Return whether the losses of some runs agree at every step; None if they need not agree or are not recorded."""
    # Logs of other programs report neither the data nor its order, so their losses need not agree.
    if len({same_arithmetic(run) for run in runs}) > 1 or any(run.log or not run.losses for run in runs):
        return None
    return not loss_gaps(runs)


def loss_gaps(runs: Iterable[RunResult]) -> list[Gap]:
    """Return the widest gap of each set of runs whose losses must agree at every step and do not, the widest first."""
    gaps = [
        max((gap_at(step, members) for step in sorted(members[0].losses)), key=lambda gap: gap.distance)
        for members in grouped(runs, same_arithmetic)
    ]
    return sorted((gap for gap in gaps if gap.distance > SAME_STEP_TOLERANCE), key=lambda gap: -gap.distance)


def gap_at(step: int, runs: Sequence[RunResult]) -> Gap:
    """Return the gap of one step among the runs that recorded it."""
    recorded = [run for run in runs if step in run.losses]
    low = min(recorded, key=lambda run: run.losses[step])
    high = max(recorded, key=lambda run: run.losses[step])
    return Gap(abs(relative_change(high.losses[step], low.losses[step])), step, low, high, len(runs))


def grouped(runs: Iterable[RunResult], key: Callable[[RunResult], Hashable]) -> list[list[RunResult]]:
    """Return the used runs that have losses in lists of equal key."""
    groups: dict[Hashable, list[RunResult]] = defaultdict(list)
    for run in runs:
        if run.used and run.losses:
            groups[key(run)].append(run)
    return list(groups.values())

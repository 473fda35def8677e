"""Profiles of steps: the shares, kernels and collectives of each profiled rank, from the `profile` event of a run.

The ranks computed them from their traces (jobs.runtime.profiling.trace); values that do not fit are absent.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.untrusted import as_list, count, number
from jobs import metrics as m
from jobs.metrics import Metric

# The shares are floating-point numbers: their sum may differ from 1 by this.
SUM_TOLERANCE = 0.01


@dataclass(frozen=True)
class Kernel:
    """A kernel, or on a CPU an operator or collective, in one step of a rank."""

    name: str
    time_s: float
    """Own time."""
    calls: float


@dataclass(frozen=True)
class CollectiveShare:
    """One collective over one axis of the rank grid in the profiled steps of a rank."""

    axis: str
    collective: str
    calls: float
    share: float
    """Share of the steps in which it is under way."""
    exposed_share: float
    """Share of the steps in which it is under way and nothing computes."""


@dataclass(frozen=True)
class RankProfile:
    """The profile of one rank."""

    rank: int
    steps: Sequence[int]
    step_time_s: float
    shares: Mapping[Metric, float]
    """Those of jobs.metrics.PROFILE_SHARES, which sum to 1, and COMMUNICATION_SHARE."""
    kernels: Sequence[Kernel]
    collectives: Sequence[CollectiveShare]
    trace: str
    """Its file in the run directory."""

    @property
    def overlap(self) -> float | None:
        """Return the hidden share of communication; None if there is none."""
        communication = self.shares[m.COMMUNICATION_SHARE]
        return 1 - self.shares[m.EXPOSED_COMMUNICATION_SHARE] / communication if communication else None


def read_profiles(event: Mapping[str, Any]) -> tuple[RankProfile, ...]:
    """Return the valid profiles of a `profile` event, by rank."""
    found = [profile for record in as_list(event.get("ranks")) if (profile := read_profile(record))]
    return tuple(sorted(found, key=lambda profile: profile.rank))


def read_profile(record: Any) -> RankProfile | None:
    """Return the profile of a rank; None if a share is missing or the shares do not sum to 1."""
    if not isinstance(record, Mapping):
        return None
    rank, step_time_s = count(record, "rank"), number(record, m.PROFILED_STEP_TIME)
    shares = {metric: number(record, metric) for metric in (*m.PROFILE_SHARES, m.COMMUNICATION_SHARE)}
    known = {metric: share for metric, share in shares.items() if share is not None and 0 <= share <= 1 + SUM_TOLERANCE}
    if rank is None or not step_time_s or step_time_s < 0 or len(known) < len(shares):
        return None
    if abs(sum(known[metric] for metric in m.PROFILE_SHARES) - 1) > SUM_TOLERANCE:
        return None
    return RankProfile(
        rank=rank,
        steps=[step for step in as_list(record.get("steps")) if type(step) is int],
        step_time_s=step_time_s,
        shares=known,
        kernels=[kernel for each in as_list(record.get("kernels")) if (kernel := read_kernel(each))],
        collectives=[found for each in as_list(record.get("collectives")) if (found := read_collective_share(each))],
        trace=str(record.get("trace", "")),
    )


def read_kernel(record: Any) -> Kernel | None:
    """Return an entry of `kernels`; None if a field is missing or of another type."""
    if not isinstance(record, Mapping) or not isinstance(name := record.get("kernel"), str):
        return None
    time_s, calls = number(record, m.KERNEL_TIME), number(record, m.KERNEL_CALLS)
    return None if time_s is None or calls is None else Kernel(name, time_s, calls)


def read_collective_share(record: Any) -> CollectiveShare | None:
    """Return an entry of `collectives`; None if a field is missing or of another type."""
    if not isinstance(record, Mapping):
        return None
    axis, collective = record.get("axis"), record.get("collective")
    numbers = [
        number(record, metric) for metric in (m.COLLECTIVE_CALLS, m.COMMUNICATION_SHARE, m.EXPOSED_COMMUNICATION_SHARE)
    ]
    known = [value for value in numbers if value is not None]
    if not (isinstance(axis, str) and isinstance(collective, str)) or len(known) < len(numbers):
        return None
    return CollectiveShare(axis, collective, *known)


def profile_values(profiles: Sequence[RankProfile]) -> dict[Metric, float]:
    """Return the mean shares over the profiled ranks, and the overlap of their communication."""
    if not profiles:
        return {}
    metrics = (*m.PROFILE_SHARES, m.COMMUNICATION_SHARE)
    means = {metric: statistics.fmean(profile.shares[metric] for profile in profiles) for metric in metrics}
    communication = means[m.COMMUNICATION_SHARE]
    if communication:
        means[m.COMMUNICATION_OVERLAP] = 1 - means[m.EXPOSED_COMMUNICATION_SHARE] / communication
    return means

"""The decision at the end of a run: STOP or RESTART, with its reason, from the cause and the steps of its starts.

    cause (jobs.failure_causes)  --retry-->  nowhere: STOP; anywhere, elsewhere: RESTART
    RESTART, but the start before ended by the same cause after the same step: STOP

An unknown cause is a RESTART: it costs one start, and a wrong STOP costs the time until somebody looks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jobs import metrics as m
from jobs.failure_causes import FailureCause, Retry, end_of, latest_attempt, recorded_cause
from jobs.rundir import RunDir, read_records

REASONS: Mapping[FailureCause, str] = {
    FailureCause.out_of_gpu_memory: "the same step needs the same memory again",
    FailureCause.out_of_host_memory: "the same run needs the same memory again",
    FailureCause.storage: "the storage is as full or damaged for the next start",
    FailureCause.launch_failure: "the environment would fail in the same way before the run's own code",
    FailureCause.refused: "the same setting would be refused again",
    FailureCause.code: "the program would raise it again",
    FailureCause.diverged: "the same settings would diverge again",
    FailureCause.cancelled: "a user ended it",
    FailureCause.time_limit: "the next start has a limit of its own, and goes on from the last checkpoint",
    FailureCause.preempted: "others needed the nodes, and no node is at fault",
    FailureCause.requeued: "the scheduler or an administrator starts it again",
    FailureCause.lost_peer: "a connection broke, which may not happen again",
    FailureCause.node_failure: "the node is at fault, and another one is not",
    FailureCause.hung: "the node that lagged is suspect, and another one is not",
    FailureCause.startup_limit: "the next start finds files and kernels in the caches",
    FailureCause.hardware: "the node is at fault, and another one is not",
    FailureCause.killed: "the node of the killed rank is suspect, and another one is not",
    FailureCause.aborted: "why it aborted is not known, and another start costs little",
    FailureCause.unknown: "the cause is not known, and another start costs little",
}


@dataclass(frozen=True)
class Decision:
    """STOP or RESTART after an end."""

    restart: bool
    elsewhere: bool
    """True if the suspect node is to be left out."""
    reason: str

    @property
    def name(self) -> str:
        """STOP, RESTART or RESTART elsewhere."""
        return f"{'RESTART' if self.restart else 'STOP'}{' elsewhere' if self.elsewhere else ''}"

    @property
    def words(self) -> str:
        """The decision as text."""
        return f"{self.name}: {self.reason}"


def decide(cause: FailureCause, repeated_step: int | None = None) -> Decision:
    """Return the decision; `repeated_step` is the step after which the last two starts ended by this cause, if any."""
    restart = cause.retry is not Retry.nowhere
    if restart and repeated_step is not None:
        at = f"after step {repeated_step}" if cause is not FailureCause.startup_limit else "before a first step"
        return Decision(False, False, f"two starts ended by {cause.name} {at}: it follows the run")
    return Decision(restart, cause.retry is Retry.elsewhere, REASONS[cause])


def decision_on(run: RunDir, events: Sequence[Mapping[str, Any]]) -> Decision | None:
    """Return the decision on the last end of a run by its events; None if that has no cause."""
    cause = recorded_cause(end_of(latest_attempt(events)) or {})
    return None if cause is None else decide(cause, repeated_step(run, events))


def repeated_step(run: RunDir, events: Sequence[Mapping[str, Any]]) -> int | None:
    """Return the step after which the last two starts failed by one cause; None if they differ, or made no step.

    Two faults of machines at one step are unlikely: such an end is one of the run, of its data or of its checkpoint.
    A start-up that is too slow twice, the second time with warm caches, has no step: 0.
    """
    requeued = [recorded_cause(event) for event in events if event["event"] == "requeued"]
    late = FailureCause.startup_limit
    if recorded_cause(end_of(latest_attempt(events)) or {}) is late and requeued[-1:] == [late]:
        return 0
    starts: list[tuple[int, set[FailureCause | None]]] = []
    for event in events:
        if event["event"] == "started" and isinstance(event.get("attempt"), int):
            starts.append((event["attempt"], set()))
        elif event["event"] == "failed" and starts:
            starts[-1][1].add(recorded_cause(event))
    if len(starts) < 2:
        return None
    (before, causes), (latest, own) = starts[-2:]
    # A lost peer is a trace of the cause.
    if not (causes & own) - {None, FailureCause.lost_peer}:
        return None
    last: dict[Any, Any] = {row.get(m.ATTEMPT.name): row.get(m.STEP.name) for row in read_records(run.metrics)}
    step = last.get(latest)
    return step if isinstance(step, int) and step == last.get(before) else None

"""Goodput: the share of a run's wall time in steps that its final model consists of, and the parts of the rest.

The definition is that of Google's ML Goodput ("productive, preserved training progress") and of Llama 3's effective
training time (useful training over elapsed time; arXiv:2407.21783, section 3.3.4): wall time on any hardware.
Pure functions of records; every second has one cause.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.formatting import one_line
from analysis.untrusted import as_list, count, moment, number
from jobs import metrics as m
from jobs.failure_causes import FailureCause
from jobs.metrics import Metric
from jobs.run_events import unseen
from jobs.submit.sweeps.submissions import kind_of

ENDS = {"finished", "stopped", "failed"}
# Slurm restarts a run that could not record its end, as on a node that crashed.
NO_CAUSE = "no cause recorded"


@dataclass(frozen=True)
class Step:
    """A recorded step of a start."""

    number: int
    time_s: float
    stall_s: float = 0.0
    """The time for which a checkpoint stopped training."""
    elapsed_s: float | None = None
    """Since the first step of the start; None in records of older versions."""


@dataclass(frozen=True)
class Start:
    """One start of a run whose ranks met; moments are seconds since the epoch."""

    met: float
    startup_s: float
    from_step: int = 0
    steps: Sequence[Step] = ()
    ended: float | None = None
    """None if not recorded: the start then ended with its last record."""
    died: bool = False
    """It did not stop by itself at a step boundary."""
    cause: str = NO_CAUSE
    """The cause of its end."""
    resubmitted: bool = False
    """A person asked for it, not the program or Slurm."""
    submitted: float | None = None
    """The moment at which a person submitted it to Slurm's queue; None if there is no queue."""

    @property
    def process_started(self) -> float:
        """Return the start of rank 0's process."""
        return self.met - self.startup_s


@dataclass(frozen=True)
class Loss:
    """The cost of one cause: the lost work, and the time until training continued."""

    cause: str
    starts: int
    time_s: float


@dataclass(frozen=True)
class Account:
    """The parts of the wall time of a run, over all of its starts."""

    parts: Mapping[Metric, float]
    losses: Sequence[Loss]
    lost_steps: int

    @property
    def values(self) -> dict[Metric, float]:
        """Return the metrics of the run."""
        total_s = math.fsum(self.parts.values())
        goodput = {m.GOODPUT: self.parts[m.USEFUL_TIME] / total_s} if total_s else {}
        return {**goodput, m.RUN_TIME: total_s, **self.parts, m.LOST_STEPS: self.lost_steps}


def replacements(events: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the spare nodes that took the place of others, with the time until the run trained again."""
    replaced = ""
    for event in events:
        if event["event"] == "requeued":
            spares, gone = as_list(event.get("instead")), as_list(event.get("left_out"))
            replaced = f"{', '.join(map(str, spares))} instead of {', '.join(map(str, gone))}" if spares else ""
        elif event["event"] == "recovered" and replaced:
            time_s = number(event, m.RECOVERY_TIME)
            yield one_line(replaced) + ("" if time_s is None else f", back after {time_s:.0f} s")
            replaced = ""


class Clock:
    """Assign each second of a run, from its beginning, to one part; never go back, whatever the records."""

    def __init__(self, begin: float, suspended: Sequence[tuple[float, float]] = ()) -> None:
        self.at = begin
        self.suspended = suspended
        self.spent = {part: 0.0 for part in m.GOODPUT_PARTS if part is not m.QUEUE_TIME}
        self.lost: dict[str, float] = defaultdict(float)

    def spend(self, part: Metric, until: float, *, lost_to: str | None = None) -> None:
        """Assign the time until a moment to a part, and its loss to a cause, except what the run was suspended for."""
        elapsed_s = max(0.0, until - self.at)
        overlaps_s = (min(end, self.at + elapsed_s) - max(begin, self.at) for begin, end in self.suspended)
        suspended_s = min(elapsed_s, math.fsum(max(0.0, overlap_s) for overlap_s in overlaps_s))
        self.at += elapsed_s
        self.spent[m.SUSPENDED_TIME] += suspended_s
        self.spent[part] = self.spent.get(part, 0.0) + elapsed_s - suspended_s
        if lost_to is not None:
            self.lost[lost_to] += elapsed_s - suspended_s


def account(starts: Sequence[Start], suspended: Sequence[tuple[float, float]] = ()) -> Account:
    """Return the account of a finished run from its starts in order, at least one, and its suspensions."""
    first = starts[0]
    clock = Clock(first.process_started if first.submitted is None else first.submitted, suspended)
    cause = None
    # The last step of each start that no later start repeated, or could have repeated.
    kept = [min((later.from_step for later in starts[i + 1 :]), default=math.inf) for i in range(len(starts))]
    for start, last in zip(starts, kept, strict=True):
        if start.submitted is not None:
            clock.spend(m.UNSUBMITTED_TIME, start.submitted, lost_to=cause)
            clock.spend(m.QUEUE_TIME, start.process_started, lost_to=cause)
        else:
            gap = m.UNSUBMITTED_TIME if start.resubmitted else m.REQUEUE_TIME
            clock.spend(gap, start.process_started, lost_to=cause)
        clock.spend(m.STARTUPS_TIME, start.met, lost_to=cause)
        cause = start.cause
        spend_steps(clock, start, kept=last)
    ended_by = Counter(start.cause for start in starts[:-1])
    losses = [Loss(name, count, clock.lost[name]) for name, count in ended_by.items()]
    lost_steps = sum(step.number > last for start, last in zip(starts, kept, strict=True) for step in start.steps)
    return Account(clock.spent, sorted(losses, key=lambda loss: -loss.time_s), lost_steps)


def spend_steps(clock: Clock, start: Start, *, kept: float) -> None:
    """Assign the time of a start from its first step on; steps after `kept` were repeated, or could have been."""
    end = math.inf if start.ended is None else start.ended
    for step in start.steps:
        lost = step.number > kept
        part = m.LOST_TIME if lost else m.USEFUL_TIME
        clock.spend(part, min(clock.at + step.time_s, end), lost_to=start.cause if lost else None)
        clock.spend(m.CHECKPOINTS_TIME, min(clock.at + step.stall_s, end))
        if step.elapsed_s is not None:
            clock.spend(m.REST_TIME, min(start.met + step.elapsed_s, end))
    if start.ended is not None and start.died:
        clock.spend(m.LOST_TIME, start.ended, lost_to=start.cause)
    elif start.ended is not None:
        clock.spend(m.REST_TIME, start.ended)


# --- from records ----------------------------------------------------------------------------------------------


def starts_of(
    events: Sequence[Mapping[str, Any]], records: Iterable[Mapping[str, Any]], submissions: Sequence[Mapping[str, Any]]
) -> list[Start] | None:
    """Return the starts of a run up to its recorded end, from its events, steps and submission records.

    None if the run has not finished, or if a start recorded too little to separate its parts.
    """
    submitted = [(before, each) for each in submissions if (before := events_before(each, events)) is not None]
    finished = [i for i, event in enumerate(events) if event["event"] == "finished"]
    begins = [i for i, event in enumerate(events) if event["event"] == "started" and i < max(finished, default=0)]
    if not begins:
        return None
    steps = steps_by_attempt(records)
    starts = []
    for last, begin, until in zip([-1, *begins], begins, [*begins[1:], finished[-1] + 1], strict=False):
        its = [each for before, each in submitted if last < before <= begin]
        again = [before for before, _ in submitted if begin < before < until]
        start = start_of(events[begin : min([until, *again])], steps, its[-1] if its else None)
        if start is None:
            return None
        starts.append(start)
    return starts


def suspensions_of(events: Sequence[Mapping[str, Any]]) -> list[tuple[float, float]]:
    """Return the begin and end of each suspension of a run, which its event reports when it is over; none overlap."""
    found: list[tuple[float, float]] = []
    for event in events:
        end, time_s = moment(event), number(event, m.SUSPENDED_TIME)
        if event["event"] == "suspended" and end is not None and time_s is not None and time_s > 0:
            begin = max(end - time_s, found[-1][1] if found else -math.inf)
            found += [(begin, end)] if begin < end else []
    return found


def events_before(submission: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> int | None:
    """Return the number of events before a submission; None if its record has none."""
    before = count(submission, "events_before")
    if before is None:
        return None
    return len(events) - len(unseen(events, before, count(submission, "failures_before") or 0))


def start_of(
    events: Sequence[Mapping[str, Any]], steps: Mapping[float | None, list[Step]], submission: Mapping[str, Any] | None
) -> Start | None:
    """Return one start from its `started` event and the events after it; None if a needed field is absent."""
    started = events[0]
    requeued = next((event for event in events if event["event"] == "requeued"), None)
    of_ranks = events if requeued is None else events[: events.index(requeued)]
    ends = [event for event in of_ranks if event["event"] in ENDS and same_restart(event, started)]
    end: Mapping[str, Any] = ends[-1] if ends and ends[-1]["event"] == "finished" else next(iter(ends), {})
    met, startup_s = moment(started), number(started, m.STARTUP_TIME)
    # Older versions recorded it at the end only.
    startup_s = number(end, m.STARTUP_TIME) if startup_s is None else startup_s
    if met is None or startup_s is None or startup_s < 0:
        return None
    # launcher=local starts runs in turn and has no queue.
    kind = None if submission is None else kind_of(submission.get("launcher"))
    in_queue = submission is not None and not (kind is not None and kind.on_this_machine)
    submitted = moment(submission) if submission is not None and in_queue else None
    if submitted is not None and submitted > met - startup_s:
        submitted = None  # The clocks disagree, so queue time cannot be measured.
    return Start(
        met,
        startup_s,
        count(started, "from_step") or 0,
        steps.get(number(started, m.ATTEMPT), []),
        moment(end),
        died=end.get("event") not in {"finished", "stopped"},
        cause=cause_of(requeued, ends),
        resubmitted=submission is not None,
        submitted=submitted,
    )


def cause_of(requeued: Mapping[str, Any] | None, ends: Sequence[Mapping[str, Any]]) -> str:
    """Return the cause of a start's end; NO_CAUSE if none was recorded."""
    # A rank that lost a peer did not cause the end, even if it wrote first.
    own = [end for end in ends if end.get("cause") != FailureCause.lost_peer.name]
    end = requeued or next(iter([*own, *ends]), {})
    return str(end.get("cause") or end.get("event") or NO_CAUSE)


def same_restart(event: Mapping[str, Any], started: Mapping[str, Any]) -> bool:
    """Return True if an end belongs to this start: ranks may outlive theirs, and starts may fail before they meet."""
    return bool(event.get("restart", started.get("restart")) == started.get("restart"))


def steps_by_attempt(records: Iterable[Mapping[str, Any]]) -> dict[float | None, list[Step]]:
    """Return the timed steps of each attempt, in the order of their records."""
    steps: dict[float | None, list[Step]] = defaultdict(list)
    for record in records:
        step, time_s = number(record, m.STEP), number(record, m.STEP_TIME)
        if step is not None and time_s is not None:
            stall_s = number(record, m.CHECKPOINT_TIME) or 0.0
            steps[number(record, m.ATTEMPT)].append(Step(int(step), time_s, stall_s, number(record, m.ELAPSED)))
    return steps

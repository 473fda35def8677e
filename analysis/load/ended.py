"""The requirement of every used run: it recorded its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from analysis.load.run_files import UnusableError
from analysis.run import RunResult
from jobs.failure_causes import end_of, latest_attempt

Submissions = Sequence[Mapping[str, Any]]
"""The records of a run in the ledger of its sweep."""


def refuse_unfinished(run: RunResult, *, last: int | None) -> None:
    """Raise UnusableError, with the last step and the reason, unless the run recorded its end.

    `last` is None for a run without steps.
    """
    events = run.events
    kinds = [event["event"] for event in events]
    if "finished" in kinds:
        return
    steps = run.config["job"].get("steps")
    reached = "" if last is None else f" at step {last} of {steps}" if steps else f" at step {last}"
    end = end_of(latest_attempt(events))
    if end is not None and end["event"] == "failed":
        when = reached if "started" in kinds else " before its start" if last is None else " before its first step"
        who = end.get("stage") or f"rank {end.get('rank', '?')} on {end.get('node', 'an unnamed node')}"
        raise UnusableError("failed", f"failed{when}: {who}: {end.get('error', 'no error text')}")
    if "started" not in kinds:
        raise UnusableError("not started", "never started")
    if end is not None:
        raise UnusableError("stopped", f"stopped{reached}: {end.get('reason', 'no reason recorded')}")
    seen = f"; last seen{reached}" if reached else ""
    raise UnusableError("unfinished", f"no end recorded{seen}: still running, killed, or out of time")

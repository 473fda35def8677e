"""The protocol of a launcher, and the lines in which previews show scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from jobs.plan.rules.rule import counted
from jobs.rundir import RunDir, SweepDir
from jobs.schema import Run
from jobs.submit.job_state import JobState
from jobs.submit.stages import MissingStages
from jobs.submit.sweeps.submissions import Submission

Runs = list[tuple[Run, RunDir]]
"""Runs, each with its prepared directory."""


@dataclass(frozen=True)
class Launch:
    """The runs of a sweep that are started together."""

    sweep: SweepDir
    runs: Runs
    missing_stages: Sequence[MissingStages] = ()
    """Runs that only need their evaluation."""


class Launcher:
    """Starts prepared runs. A launcher that only writes files has no states and nothing to cancel."""

    cancels_for_sure = False
    """True if nobody can refuse a cancellation: it is recorded before, so that no reader finds a run dead without it.

    A scheduler may refuse, and then nothing may be on record; it names the jobs that it cancelled itself.
    """

    takes_turns = False
    """True if one process starts several runs, one after the other, and can leave one out."""

    def check(self, runs: list[Run]) -> None:
        """Raise SubmitError for runs that this launcher cannot start, before anything is prepared."""

    def preview(self, what: Launch) -> list[str]:
        """Return the lines that show what `launch` would send or start."""
        raise NotImplementedError

    def launch(self, what: Launch) -> list[str]:
        """Start the runs and the stages around them, and record each in the ledger; return sentences for the user.

        Raises SubmitError if any run is refused; then none is left queued.
        """
        raise NotImplementedError

    def states(self, submissions: list[Submission]) -> dict[str, JobState]:  # noqa: ARG002
        """Return the state of each submission that waits or runs, by `asked_as`; UNKNOWN if nobody answers."""
        return {}

    def ends(self, submissions: list[Submission]) -> dict[str, JobState]:  # noqa: ARG002
        """Return how submissions that neither wait nor run ended, by `asked_as`, if the scheduler keeps accounts."""
        return {}

    def unlisted(self, late: Mapping[str, JobState]) -> dict[str, JobState]:  # noqa: ARG002
        """Return the states of jobs, by id, that are not in the queue and that accounting has not ended, if known."""
        return {}

    def cancel(self, sweep: SweepDir, job_ids: Iterable[str]) -> None:
        """End these jobs; one that is over is not an error.

        Raises SubmitError if the scheduler refuses; ForeignJobsError, after ending the others, if it knows that one of
        them is not a job of the sweep.
        """

    def finish(self) -> None:
        """Wait for the last records of the runs that this process has started and that end with it."""

    def interrupt(self) -> str | None:
        """Stop the runs that this process has started and that end with it; return a sentence for the user, or None."""
        return None

    def cancel_turn(self, sweep: SweepDir, name: str) -> None:
        """End a run of a launcher that takes turns, and record it; the others go on."""
        raise NotImplementedError


def script_lines(groups: Iterable[Runs], what: str, script: Callable[[Run, RunDir], str]) -> list[str]:
    """Return the lines that show the script of the first run of each group."""
    return [
        line
        for group in groups
        for line in (f"--- {group[0][1].name}: {what} of {counted(len(group))}", script(*group[0]))
    ]

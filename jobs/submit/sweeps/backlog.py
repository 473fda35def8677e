"""The backlog of a sweep: runs that Slurm accepts only after earlier jobs of the user have ended.

There is no daemon. The ledger lists the waiting runs; `status`, `watch`, `resume` and jobs that end submit them. The
same commands settle interrupted submissions.
"""

from __future__ import annotations

from jobs.errors import SuiteError
from jobs.run_events import seen
from jobs.rundir import RunDir, SweepDir, load_to_launch
from jobs.schema import LauncherKind
from jobs.submit.launch import launch
from jobs.submit.launchers.launcher import Runs
from jobs.submit.sweeps.intents import settle
from jobs.submit.sweeps.ledger import held
from jobs.submit.sweeps.submissions import intents, submissions_on_record, unannounced


def submit_backlog(sweep: SweepDir, *, patience_s: float = 0.0) -> list[str]:
    """Settle interrupted submissions, submit waiting runs, as many as Slurm accepts now; return sentences for the user.

    Returns nothing if another shell or job holds the sweep for `patience_s`. Raises SubmitError as `launch` does; then
    the runs still wait.
    """
    if not (waiting(sweep) or intents(sweep) or unannounced(sweep)):
        return []
    from filelock import Timeout  # noqa: PLC0415 (most sweeps have no backlog)

    try:
        with held(sweep, patience_s=patience_s):
            return submit_waiting(sweep)
    except Timeout:
        return []


def submit_waiting(sweep: SweepDir) -> list[str]:
    """Settle interrupted submissions and submit waiting runs; the caller holds the lock of the sweep."""
    settled = settle(sweep)
    runs, damaged = launchable(waiting(sweep))
    return [*settled, *damaged, *(launch(sweep, runs, LauncherKind.slurm) if runs else [])]


def launchable(directories: list[RunDir]) -> tuple[Runs, list[str]]:
    """Return the runs whose files a launch can read, and a sentence on each of the others."""
    runs, damaged = [], []
    for directory in directories:
        try:
            # A launch records how many events came before it: a run whose events cannot be read is left out here.
            seen(directory)
            runs.append((load_to_launch(directory), directory))
        except SuiteError as error:
            damaged.append(f"{directory.name} is not launched: {error}")
    return runs, damaged


def waiting(sweep: SweepDir) -> list[RunDir]:
    """Return the runs in the backlog, in the order in which they were added."""
    return [sweep.run(each.run) for each in submissions_on_record(sweep).values() if each.waits_for is not None]

"""The sweep's own queue: runs that Slurm takes once earlier jobs of the user have ended.

No daemon: the ledger says what waits, and whoever comes next moves it on: a look at the sweep, or a job that ends.
"""

from __future__ import annotations

from filelock import Timeout

from jobs.rundir import RunDir, SweepDir, load_run
from jobs.schema import LauncherKind, Run
from jobs.submit.launch import launch
from jobs.submit.ledger import held
from jobs.submit.submissions import latest_submissions


def move_on(sweep: SweepDir, *, patience_s: float = 0.0) -> list[str]:
    """Submit what waits, as far as Slurm takes it now, and return sentences for the user.

    Does nothing while another shell or job is at it for so long. Raises SubmitError as `launch` does; then what waited
    waits on.
    """
    if not waiting(sweep):
        return []
    try:
        with held(sweep, patience_s=patience_s):
            return send(sweep)
    except Timeout:
        return []


def send(sweep: SweepDir) -> list[str]:
    """The same for a caller that holds the sweep's lock."""
    runs = waiting(sweep)
    return launch(sweep, runs, LauncherKind.slurm) if runs else []


def waiting(sweep: SweepDir) -> list[tuple[Run, RunDir]]:
    """The runs in the queue, in the order of their coming."""
    waits = [each for each in latest_submissions(sweep).values() if each.waits_for is not None]
    directories = [sweep.run(each.run) for each in waits]
    return [(load_run(directory.config), directory) for directory in directories]

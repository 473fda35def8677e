"""The stage after a run's training: its loss on the samples held out.

`python -m jobs.stages.evaluate RUN_DIR`, or this module's `main` through submitit. Imports torch only once it is
clear that there is something to evaluate.
"""

from __future__ import annotations

import sys
from pathlib import Path

from jobs.errors import RunDirError, SuiteError
from jobs.run import refuse_other_code
from jobs.rundir import RunDir, load_run, read_events
from jobs.stages.record import on_record


def main(run_directory: str) -> None:
    """Evaluate the weights of the run in this directory and write what came out into its record."""
    directory = RunDir(Path(run_directory))
    run = load_run(directory.config)
    with on_record(directory.status, "evaluate") as found:
        refuse_other_code(directory)
        refuse_unfinished(directory)
        from jobs.workloads.evaluate import evaluate

        found.update(evaluate(run, directory))


def refuse_unfinished(directory: RunDir) -> None:
    """Raise RunDirError unless the run recorded its end: Slurm calls a job that stopped in time a success, too."""
    ends = [event for event in read_events(directory.status) if event["event"] in {"finished", "stopped", "failed"}]
    if any(event["event"] == "finished" for event in ends):
        return
    how = f": {ends[-1].get('reason') or ends[-1].get('error')}" if ends else ""
    raise RunDirError(
        f"training has not finished{how}. Type `slurmscale resume {directory.path.parent}` to go on with it and "
        "evaluate it then."
    )


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except SuiteError as error:
        sys.exit(f"slurmscale: {error}")

"""The stage after the training of a run: its loss on the held-out samples.

`python -m jobs.stages.evaluate RUN_DIR`. Imports torch only if the run can be evaluated.
"""

from __future__ import annotations

import sys
from pathlib import Path

from jobs.errors import RunDirError
from jobs.metrics import StoragePhase
from jobs.output import own_program
from jobs.run import refuse_other_code
from jobs.run_events import run_events
from jobs.rundir import RunDir, load_run
from jobs.runtime import storage_io
from jobs.stages.record import on_record


def main(run_directory: str) -> None:
    """Evaluate the weights of the run in this directory and record the result."""
    directory = RunDir(Path(run_directory))
    run = load_run(directory.config)
    with on_record(directory.status, "evaluate") as found:
        refuse_other_code(directory)
        refuse_unfinished(directory)
        from jobs.work.evaluate.evaluate import evaluate

        with storage_io.recorded(run, directory, "evaluate", StoragePhase.validate, node=0):
            found.update(evaluate(run, directory))


def refuse_unfinished(directory: RunDir) -> None:
    """Raise RunDirError unless the run recorded `finished`: for Slurm a run that stopped at its limit succeeded too."""
    ends = [event for event in run_events(directory) if event["event"] in {"finished", "stopped", "failed"}]
    if any(event["event"] == "finished" for event in ends):
        return
    how = f": {ends[-1].get('reason') or ends[-1].get('error')}" if ends else ""
    raise RunDirError(
        f"training has not finished{how}. Run `slurmscale resume {directory.path.parent}` to continue it and "
        "evaluate it afterwards."
    )


if __name__ == "__main__":
    with own_program():
        main(sys.argv[1])

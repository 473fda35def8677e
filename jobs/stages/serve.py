"""The stage after the training of a run: its exported model served under a load of requests, by one replica.

`python -m jobs.stages.serve RUN_DIR`. The load is a run of its own in RUN_DIR/served, which reports find.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from jobs.errors import RunDirError
from jobs.failure_causes import cause_of, latest_attempt, record_failure
from jobs.frozen import dump_run
from jobs.lease import Lease
from jobs.output import own_directory, own_program, write_file
from jobs.ranks import Rank, node_name
from jobs.run import refuse_other_code
from jobs.run_events import run_events
from jobs.rundir import RunDir, append_event, load_run, write_json
from jobs.stages.evaluate import refuse_unfinished
from jobs.stages.record import error_text, on_record
from jobs.work.serve.after_training import run_after
from jobs.work.serve.serve import serve


def main(run_directory: str) -> None:
    """Serve the export of the run in this directory, and record the load below it."""
    directory = RunDir(Path(run_directory))
    run = load_run(directory.config)
    with on_record(directory.status, "serve"):
        refuse_other_code(directory)
        refuse_unfinished(directory)
        served = RunDir(directory.served)
        after = run_after(run, str(directory.export))
        own_directory(served.path)
        write_file(served.config, dump_run(after))
        write_json(served.plan, {})
        append_event(served, "prepared")
        rank = Rank(rank=0, world_size=1, local_rank=0, master_addr="127.0.0.1", start=str(os.getpid()))
        try:
            serve(after, Lease(served), rank)
        except BaseException as error:
            record_failure(served, cause_of(error), rank=0, node=node_name(), error=error_text(error))
            raise
        if not any(event["event"] == "finished" for event in latest_attempt(list(run_events(served)))):
            raise RunDirError(f"the load was stopped before its end. Run `slurmscale resume {directory.path.parent}`.")


if __name__ == "__main__":
    with own_program():
        main(sys.argv[1])

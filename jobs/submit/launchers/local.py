"""launcher=local: a queue on this machine that outlives the shell (jobs.submit.local_queue)."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterable
from contextlib import suppress

from jobs.errors import SubmitError
from jobs.network import VARIABLE
from jobs.output import open_to_append
from jobs.plan.rules.rule import counted
from jobs.plan.rules.stages import OF_EACH_RUN, stages_of
from jobs.plan.time_limit import duration
from jobs.ranks import started_after_boot_s
from jobs.rundir import SweepDir, append_record, now
from jobs.schema import Run
from jobs.submit import stages
from jobs.submit.cancellation import end_queues, end_turn, queue_command, queue_process, turn_process
from jobs.submit.environment import clean_environment
from jobs.submit.job_state import UNKNOWN, JobState
from jobs.submit.launchers.launcher import Launch, Launcher
from jobs.submit.preparation.script_lines import code_environment, refuse_names
from jobs.submit.sweeps.intents import run_task
from jobs.submit.sweeps.ledger import uninterrupted
from jobs.submit.sweeps.submissions import Submission, submissions_on_record
from jobs.submit.trust.integrity import submitted_as
from jobs.submit.turns import Queue, behind, living_queues
from jobs.versions import is_missing
from jobs.work.work import work_of

STARTED: list[subprocess.Popen[str]] = []
"""The queues of this process, which may outlive it: Python warns of a running process that is dropped."""


class Local(Launcher):
    """Runs one run after the other, each with one process per rank."""

    cancels_for_sure = True
    takes_turns = True

    def check(self, runs: list[Run]) -> None:
        """Raise SubmitError for misnamed variables, and if this Python lacks the packages that the ranks import."""
        for run in runs:
            refuse_names("env", run.cluster.env, VARIABLE, "the name of a variable: letters, digits and _")
        needed: dict[str, str] = {}
        for run in runs:
            needed |= work_of(run).packages(run)
        missing = [name for name in needed if is_missing(name)]
        if missing:
            raise SubmitError(
                f"launcher=local trains on this machine, where Python has no {' and no '.join(missing)}. Run "
                "pip install torch==2.13.0, then pip install --editable "
                f"'.[{','.join(dict.fromkeys(needed.values()))}]' in the checkout."
            )

    def preview(self, what: Launch) -> list[str]:
        """Return one line per run and per stage."""
        lines = [f"--- {counted(len(what.runs))} on this machine, one after the other"]
        for run, _ in what.runs:
            processes = f"{run.ranks} process{'es' if run.ranks > 1 else ''}"
            lines.append(f"    {run.name}: {processes} for at most {duration(run.wall_time_min)}")
        when = {**dict.fromkeys(OF_EACH_RUN, "after each run"), "report": "after all runs"}
        return lines + [f"    stage {name} {when[name]}" for name in stages_of(what.runs[0][0]) if name in when]

    def launch(self, what: Launch) -> list[str]:
        """Start the queue in a session of its own."""
        sweep = what.sweep
        queued = [*what.runs, *((each.run, each.directory) for each in what.missing_stages)]
        tasks = [*(run_task(directory) for _, directory in what.runs), *stages.local_tasks(sweep, queued)]
        with uninterrupted(), open_to_append(sweep.logs / "queue.log") as log:
            # A session of its own: Ctrl-C in this terminal does not reach it, and `cancel` finds all its processes by
            # it.
            queue = subprocess.Popen(
                queue_command(sweep),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=clean_environment(code_environment(queued[0][1].code_snapshot)),
                text=True,
            )
            # With the time of its start, since process ids are used again.
            process = {"job_id": str(queue.pid), "process_started": started_after_boot_s(queue.pid)}
            common = {"time": now(), "launcher": "local", "host": socket.gethostname(), **process}
            append_record(sweep.submissions, *(common | task for task in tasks))
            # Without this text, which a shell that dies does not send, the queue ends and starts nothing.
            assert queue.stdin is not None
            queue.stdin.write(json.dumps(submitted_as(directory for _, directory in queued)))
            queue.stdin.close()
        STARTED[:] = [queue, *(each for each in STARTED if each.poll() is None)]
        return [f"started {counted(len(queued))} on this machine, one after the other (process {queue.pid})"]

    def states(self, submissions: list[Submission]) -> dict[str, JobState]:
        """Return the state of each submission whose queue is alive; UNKNOWN for one of another machine."""
        found = {}
        queues: list[Queue] | None = None
        for submission in submissions:
            if submission.ended:
                continue
            if submission.host != socket.gethostname():
                found[submission.asked_as] = JobState(UNKNOWN, f"started on {submission.host}: ask there")
            elif queue_is_alive(submission) and not ended_by_cancel(submission):
                if submission.log_id is not None:
                    found[submission.asked_as] = JobState("RUNNING")
                    continue
                # Looked up once, and only if a run waits: it reads the command line of every process.
                queues = living_queues() if queues is None else queues
                found[submission.asked_as] = JobState("PENDING", behind(submission, queues))
        return found

    def cancel(self, sweep: SweepDir, job_ids: Iterable[str]) -> None:
        """End all processes of the sessions that these queues lead."""
        end_queues(sweep, job_ids)

    def cancel_turn(self, sweep: SweepDir, name: str) -> None:
        """End the processes of a run; its queue reads the record, goes on with the next run and never starts this one.

        The queue reads the ledger again after each start on record, so of both one sees the record of the other.
        """
        append_record(sweep.submissions, {"time": now(), "event": "cancelled", "runs": [name]})
        submission = submissions_on_record(sweep)[name]
        if submission.log_id is not None:
            end_turn(sweep, submission.job_id, submission.log_id)


def ended_by_cancel(submission: Submission) -> bool:
    """Return True if a run was cancelled and the processes of its start, if it has one, have ended."""
    if not submission.cancelled:
        return False
    return submission.log_id is None or turn_process(submission.job_id, submission.log_id) is None


def queue_is_alive(submission: Submission) -> bool:
    """Return True if the queue of a submission still runs; its process id alone may have been reused."""
    with suppress(OSError):
        return queue_process(submission.job_id) is not None and (
            started_after_boot_s(submission.job_id) == submission.process_started
        )
    return False


LAUNCHER = Local()

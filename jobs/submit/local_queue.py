"""The queue of launcher=local: a process in a session of its own that starts one run after another.

Runs at the same time would disturb each other's measurements, so they take turns: within a queue by order, between
queues of one user by a lock. Each run is a submitit local job with one process per rank. The names of the runs, each
with that of its code, are read from standard input: nobody can change them in the sweep. `slurmscale cancel` ends the
whole session.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from filelock import FileLock
from submitit import LocalExecutor
from submitit.local.local import Controller, LocalJob

from jobs import run as entry
from jobs.errors import SuiteError
from jobs.failure_causes import FailureCause, record_failure
from jobs.lease import successor
from jobs.output import own_program
from jobs.plan.rules.stages import OF_EACH_RUN, stages_of_each_run
from jobs.plan.time_limit import stop_before_limit_s
from jobs.ranks import LOCAL_RESTART_COUNT, START, node_name, restart_count
from jobs.run_events import events_or_failure
from jobs.rundir import RunDir, SweepDir, append_record, event_record, now
from jobs.schema import Run
from jobs.stages.record import failed
from jobs.submit.notices import tell_end, tell_restart
from jobs.submit.preparation.script_lines import code_environment
from jobs.submit.requeue import planned_restart, record_exit_codes
from jobs.submit.sweeps.ledger import HELD_BACK
from jobs.submit.sweeps.submissions import latest_submissions
from jobs.submit.trust.integrity import refuse_changed, submitted_configuration, submitted_run
from jobs.submit.trust.own_sweeps import state_directory


def main(sweep_path: str, codes: dict[str, str]) -> None:
    """Run these runs of a sweep, each with its code, in order; a failed run does not stop the next one."""
    sweep = SweepDir(Path(sweep_path))
    turn = FileLock(state_directory() / f"local-{node_name()}.lock")
    report = None
    for name, code in codes.items():
        directory = sweep.run(name)
        # Released after each run, so that queues of several sweeps alternate.
        with turn, refusals_printed(name):
            if is_left_out(sweep, name):
                continue
            if not finished(directory):
                run_to_its_end(sweep, directory, code)
            # The stages are known by the configuration alone; each one's refusal of the code is on record as its end.
            run = submitted_configuration(directory, code)
            report = (directory, code) if run.stages.report is not None else report
            for stage in stages_of_each_run(run):
                if is_left_out(sweep, name):
                    break
                do_stage(stage, directory, code)
    if report is not None:
        with refusals_printed("report"):
            do_stage("report", *report)


@contextmanager
def refusals_printed(name: str) -> Iterator[None]:
    """Print why a run or stage is refused: those after it must start all the same."""
    try:
        yield
    except SuiteError as refusal:
        print(f"{name}: {refusal}", flush=True)


def is_left_out(sweep: SweepDir, name: str) -> bool:
    """Return True if a run was cancelled after it was given to this queue, or submitted again elsewhere.

    Only the latest submission on record starts a run: its state, and `cancel`, go by that one, even if it has ended.
    """
    submission = latest_submissions(sweep).get(name)
    if submission is None:
        return False
    # Two machines with one file system may have two queues with one process ID.
    own = ("local", str(os.getpid()), socket.gethostname())
    return submission.cancelled or (submission.launcher, submission.job_id, submission.host) != own


def finished(directory: RunDir) -> bool:
    """Return True if a run has finished training."""
    return any(event["event"] == "finished" for event in events_or_failure(directory))


def do_stage(name: str, directory: RunDir, code: str) -> None:
    """Run a stage with the code of a run in a process of its own; the stage records its end, or here its refusal."""
    sweep = SweepDir(directory.path.parent)
    path, record = (directory.path, directory.status) if name in OF_EACH_RUN else (sweep.path, sweep.stages)
    try:
        environment, _ = checked(sweep, directory, code)
    except SuiteError as refusal:
        append_record(record, event_record(failed(name), node=node_name(), error=str(refusal)))
        return
    command = [sys.executable, "-m", f"jobs.stages.{name}", str(path)]
    subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, check=False)


def checked(sweep: SweepDir, directory: RunDir, submitted: str) -> tuple[dict[str, str], Run]:
    """Return the environment of a run, with its code, and the run; raises RunDirError if it is not as submitted."""
    code, run = submitted_run(directory, submitted)
    refuse_changed(sweep.path, run.cluster.trusted_group, [code], [directory.path])
    return code_environment(code, run.cluster.env), run


def run_to_its_end(sweep: SweepDir, directory: RunDir, code: str) -> None:
    """Start a run, and restart it as long as a restart may help."""
    os.environ[LOCAL_RESTART_COUNT] = "0"
    while True:
        try:
            job_id, exit_codes = start_and_wait(sweep, directory, code)
        except SuiteError as refusal:
            record_failure(directory, FailureCause.launch_failure, rank=0, node=node_name(), error=str(refusal))
            break
        if owner := successor(directory, job_id, restart_count()):
            print(f"{directory.name}: {owner.name} has taken it over", flush=True)
            break
        submission = latest_submissions(sweep)[directory.name]
        if submission.cancelled:
            break
        record_exit_codes(directory, submission, exit_codes)
        found = planned_restart(directory, submission, sweep)
        if found is None:
            break
        print(f"{directory.name}: {found.sentence()}", flush=True)
        found.record(directory)
        tell_restart(directory)
        time.sleep(found.pause_s)
        if is_left_out(sweep, directory.name):
            return
        os.environ[LOCAL_RESTART_COUNT] = str(restart_count() + 1)
    append_record(sweep.submissions, {"time": now(), "event": "ended", "run": directory.name})
    tell_end(sweep, directory)


def start_and_wait(sweep: SweepDir, directory: RunDir, code: str) -> tuple[str, Sequence[int | None]]:
    """Start a run as a submitit local job; return its id and the exit codes of its ranks when all have ended."""
    environment, run = checked(sweep, directory, code)
    executor = RankExecutor(sweep.logs, max_num_timeout=0)
    executor.environment = environment | {START: secrets.token_hex(8)}
    executor.update_parameters(
        tasks_per_node=run.ranks, timeout_min=run.wall_time_min, signal_delay_s=stop_before_limit_s(run)
    )
    job = executor.submit(rank_main, str(directory.path))
    append_record(sweep.submissions, {"time": now(), "event": "launched", "run": run.name, "log_id": job.job_id})
    if latest_submissions(sweep)[directory.name].cancelled:
        executor.controller.terminate()
    return job.job_id, executor.exit_codes()


class RankExecutor(LocalExecutor):
    """submitit's local executor with a controller that passes on the exit codes of the ranks."""

    environment: Mapping[str, str]
    """Variables of the ranks; the next run of the queue may have others."""

    def _submit_command(self, command: str) -> LocalJob[Any]:
        self.receiver, sender = get_context("fork").Pipe(duplex=False)
        self.controller = get_context("fork").Process(
            target=control, args=(self.folder, command, self.parameters, self.environment, sender)
        )
        self.controller.start()
        # The last copy of this end must be the controller's, or `recv` would wait for ever for one that was killed.
        sender.close()
        return LocalJob(self.folder, str(self.controller.pid), range(self.parameters["tasks_per_node"]))

    def exit_codes(self) -> Sequence[int | None]:
        """Wait for all ranks and return their exit codes; none if their controller was killed."""
        codes: Sequence[int | None] = ()
        with suppress(EOFError):
            codes = self.receiver.recv()
        self.controller.join()
        return codes


def control(
    folder: Path, command: str, parameters: Mapping[str, Any], environment: Mapping[str, str], sender: Connection
) -> None:
    """Start the ranks and send their exit codes, in a process of its own: only their parent gets these."""
    # As submitit's start_controller, but for CUDA_VISIBLE_DEVICES, which it sets to no GPU.
    os.environ |= {
        **environment,
        "SUBMITIT_EXECUTOR": "local",
        "SUBMITIT_LOCAL_COMMAND": command,
        "SUBMITIT_LOCAL_NTASKS": str(parameters["tasks_per_node"]),
        "SUBMITIT_LOCAL_NODEID": "0",
        "SUBMITIT_LOCAL_JOB_NUM_NODES": "1",
        "SUBMITIT_LOCAL_TIMEOUT_S": str(60 * parameters["timeout_min"]),
        "SUBMITIT_LOCAL_SIGNAL_DELAY_S": str(parameters["signal_delay_s"]),
        "SUBMITIT_STDERR_TO_STDOUT": "1",
        "SUBMITIT_LOCAL_WITH_SHELL": "",
    }
    controller = RankController(folder)
    controller.run()
    with suppress(BrokenPipeError):  # the queue was cancelled
        sender.send(controller.exit_codes)


class RankController(Controller):
    """submitit's controller, which keeps the exit codes of its ranks."""

    exit_codes: Sequence[int | None] = ()

    def wait(self, freq: int = 24) -> Sequence[int | None]:
        """Return the exit codes when all ranks have ended, or the time limit is reached."""
        self.exit_codes = super().wait(freq)
        return self.exit_codes


def rank_main(run_directory: str) -> None:
    """Run a local rank."""
    entry.run_rank(run_directory)
    # submitit would write a result file, which nothing reads and a full disk refuses.
    sys.exit()


if __name__ == "__main__":
    # The submitting shell blocked signals while it wrote its record; a child inherits the mask.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_BACK)
    with own_program():
        main(sys.argv[1], json.load(sys.stdin))

"""launcher=local: a process of its own session that gives this machine to one run after another.

Runs measured side by side would measure each other, so they take turns: within a queue by order, between queues
of one user by a lock. Each run is a submitit local job of as many processes as it has ranks. Started by
jobs.submit.launch with the run names on standard input; `slurmscale cancel` ends the whole session.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from filelock import FileLock
from submitit import LocalExecutor

from jobs import run as entry
from jobs.failures import FailureCause, record_failure
from jobs.ranks import LOCAL_RESTART_COUNT, free_port, node_name
from jobs.rundir import RunDir, SweepDir, append_record, load_run, now, read_events
from jobs.submit.batch_script import code_environment, stop_before_limit_s
from jobs.submit.permissions import refuse_shared
from jobs.submit.requeue import again
from jobs.submit.submissions import latest_submissions, own_end


def main(sweep_path: str, names: list[str]) -> None:
    """Run the named runs of a sweep, in order; one that fails does not stop the next."""
    sweep = SweepDir(Path(sweep_path))
    turn = FileLock(Path(tempfile.gettempdir()) / f"slurmscale-local-{os.getuid()}.lock")
    visible_gpus = os.environ.get("CUDA_VISIBLE_DEVICES")
    stages = load_run(sweep.run(names[0]).config).stages
    for name in names:
        with turn:
            if not finished(sweep.run(name)):
                run_to_its_end(sweep, sweep.run(name), visible_gpus)
            if stages.evaluate is not None:
                do_stage("evaluate", sweep.run(name).path, sweep.run(name))
    if stages.report is not None:
        do_stage("report", sweep.path, sweep.run(names[-1]))


def finished(directory: RunDir) -> bool:
    """Whether a run needs nothing but its evaluation."""
    return any(event["event"] == "finished" for event in read_events(directory.status))


def do_stage(name: str, path: Path, directory: RunDir) -> None:
    """Let a process of its own do a stage, with the code of this run; what came of it is on record."""
    command = [sys.executable, "-m", f"jobs.stages.{name}", str(path)]
    subprocess.run(command, env=code_environment(directory.code.resolve()), stdin=subprocess.DEVNULL, check=False)


def run_to_its_end(sweep: SweepDir, directory: RunDir, visible_gpus: str | None) -> None:
    """Start a run, and start it again where that helps."""
    os.environ[LOCAL_RESTART_COUNT] = "0"
    while True:
        start_and_wait(sweep, directory, visible_gpus)
        submission = latest_submissions(sweep)[directory.name]
        if own_end(directory, submission) is None:
            error = "ended without a word of its own, as a process does that is killed (out of memory?)"
            record_failure(directory, FailureCause.killed, rank=0, node=node_name(), error=error)
        found = again(directory, submission, sweep)
        if found is None:
            break
        print(f"{directory.name}: {found.words()}", flush=True)
        found.record(directory)
        time.sleep(found.pause_s)
        os.environ[LOCAL_RESTART_COUNT] = str(int(os.environ[LOCAL_RESTART_COUNT]) + 1)
    append_record(sweep.submissions, {"time": now(), "event": "ended", "run": directory.name})


def start_and_wait(sweep: SweepDir, directory: RunDir, visible_gpus: str | None) -> None:
    """One run as a submitit local job; returns when all its ranks have ended."""
    refuse_shared(sweep.path)
    run = load_run(directory.config)
    os.environ |= code_environment(directory.code.resolve())
    os.environ["MASTER_PORT"] = str(free_port())
    executor = LocalExecutor(sweep.logs, max_num_timeout=0)
    executor.update_parameters(
        tasks_per_node=run.ranks,
        timeout_min=run.wall_time_min,
        signal_delay_s=stop_before_limit_s(run.wall_time_min),
        stderr_to_stdout=True,
    )
    job = executor.submit(rank_main, str(directory.path), visible_gpus)
    append_record(sweep.submissions, {"time": now(), "event": "launched", "run": run.name, "log_id": job.job_id})
    # Not submitit's own wait, which looks for a result file that a killed rank never writes; what a run has to say
    # is in its directory. A local job's id is the process id of its controller, our child.
    os.waitpid(int(job.job_id), 0)


def rank_main(run_directory: str, visible_gpus: str | None) -> None:
    """What a local rank runs: submitit hides all GPUs from local jobs that name none, so show them again."""
    if visible_gpus is None:
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    else:
        os.environ["CUDA_VISIBLE_DEVICES"] = visible_gpus
    entry.main(run_directory)


if __name__ == "__main__":
    # The submitting shell held it back while it wrote its record; a child inherits that.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    main(sys.argv[1], json.load(sys.stdin))

"""The job of the doctor: submit it with the batch script of a run, wait for it, collect the files of its nodes."""

from __future__ import annotations

import os
import shlex
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from submitit.slurm.slurm import SlurmParseException

from jobs.errors import ConfigError, RunDirError, SubmitError
from jobs.files import read_object, read_tail, read_text
from jobs.network import variables
from jobs.output import write_file
from jobs.private import make_private
from jobs.ranks import hosts
from jobs.rundir import SweepDir
from jobs.schema import LauncherKind, Run
from jobs.submit.allowance import spent
from jobs.submit.cancellation import cancel_jobs
from jobs.submit.preparation.code_store import remove_unused_code, snapshot_code
from jobs.submit.preparation.container import rank_python
from jobs.submit.preparation.script_lines import environment_lines, integrity_lines
from jobs.submit.slurm import commands as slurm_commands
from jobs.submit.slurm import job_log
from jobs.submit.slurm.batch_script import batch_script
from jobs.submit.slurm.resources import resources, without_options_of_the_run
from jobs.submit.trust.integrity import refuse_changed

MOST_MINUTES = 10
DEFAULT_NODES = 2
POLL_S = 0.5
SLURM_POLL_S = 10.0
# A shared file system may show what a job wrote only some time after the job has ended.
FILES_WITHIN_S = 10.0


@dataclass(frozen=True)
class NodeJob:
    """The results of the job."""

    directory: Path
    job_id: str
    nodes: list[str]
    """Names of its nodes; empty if it never started, or could not write them."""
    reports: list[dict[str, Any]]
    """The report of each node that wrote one, in the order of the nodes."""
    pairs: dict[str, dict[str, Any]]
    """The measurements of each node with the others, by its name."""
    last_output: str
    """The last line that it printed."""


def nodes_wanted(run: Run, nodes: int | None, node_list: str | None) -> int:
    """Return the number of nodes of the job: as given, otherwise two if the partition has them."""
    if node_list is not None:
        try:
            return len(hosts(node_list))
        except SlurmParseException as error:
            raise ConfigError(
                f"--nodelist={node_list} is not a list of nodes in Slurm's notation. Give node[01-04] or node01,node03."
            ) from error
    if nodes is not None:
        return nodes
    settings = slurm_commands.partitions().get(run.cluster.partition or "", {})
    most = [int(settings[key]) for key in ("MaxNodes", "TotalNodes") if settings.get(key, "").isdigit()]
    return max(1, min([DEFAULT_NODES, *most]))


def run_on_nodes(run: Run, nodes: int, node_list: str | None, out: Console) -> NodeJob:
    """Submit the job, wait for its end, and collect its files; Ctrl-C cancels it.

    Raises SubmitError if sbatch refuses it, RunDirError if runs_dir cannot be written.
    """
    minutes = min(MOST_MINUTES, run.wall_time_min)
    slurm_commands.refuse_beyond_partition(run.cluster.partition, nodes, minutes)
    sweep = SweepDir(Path(run.runs_dir) / f"doctor-{datetime.now().astimezone():%Y%m%d-%H%M%S}")
    script = sweep.path / "job.sbatch"
    try:
        refuse_changed(sweep.path, run.cluster.trusted_group)
        make_private(sweep.path)
        sweep.logs.mkdir(mode=0o700)
        job = replace(
            run, sweep=sweep.path.name, nodes=nodes, wall_time_min=minutes,
            launcher=replace(run.launcher, requeues=0, max_running=None),
        )  # fmt: skip
        known = set(sweep.code_store.glob("*"))
        code = snapshot_code(sweep)
        write_file(script, script_of(job, sweep, code, node_list))
    except OSError as error:
        raise RunDirError(
            f"{error.filename or sweep.path}: {error.strerror or error}, so no job was submitted. Set another place "
            "with runs_dir=PATH."
        ) from error
    try:
        with spent([job], LauncherKind.slurm):
            job_id = slurm_commands.submit_script(script)
    except SubmitError:
        shutil.rmtree(sweep.path)
        remove_unused_code(sweep.path.parent, {code} - known)
        raise
    where = node_list or ("1 node" if nodes == 1 else f"{nodes} nodes")
    out.print(f"job {job_id} on {where}; Ctrl-C cancels it")
    wait_for(job_id, sweep.path, code, out)
    return collected(sweep, job_id)


def script_of(run: Run, sweep: SweepDir, code: Path, node_list: str | None) -> str:
    """Return the batch script of a run with one process per node, which checks the nodes instead of training."""
    parameters = resources(run, code)
    ended = shlex.join(["touch", str(sweep.path / "ended")])
    parameters |= {
        "job_name": "slurmscale-doctor",
        "additional_parameters": without_options_of_the_run(parameters["additional_parameters"]),
        "ntasks_per_node": 1,
        # A node that fails must not end the others; srun uses the last of repeated options.
        "srun_args": [*parameters["srun_args"], "--kill-on-bad-exit=0"],
        "setup": [
            *integrity_lines(run, code),
            *environment_lines(run, code),
            *(f"export {name}={shlex.quote(value)}" for name, value in variables(run.network).items()),
            f'echo "$SLURM_JOB_NODELIST" > {shlex.quote(str(sweep.path / "nodes"))}',
            f"trap {shlex.quote(ended)} EXIT",
        ],
    }
    if node_list is not None:
        parameters["additional_parameters"] = parameters["additional_parameters"] | {"nodelist": node_list}
    command = f"{rank_python(run)} -u -m jobs.doctor.node_check {shlex.quote(str(sweep.path))}"
    return batch_script(command, sweep.logs, parameters)


def wait_for(job_id: str, directory: Path, code: Path, out: Console) -> None:
    """Return when the job has recorded its end or has left the queue; print why it waits, and keep its code."""
    shown, ask_next = "", time.monotonic() + POLL_S
    try:
        while not (directory / "ended").exists():
            if time.monotonic() >= ask_next:
                ask_next = time.monotonic() + SLURM_POLL_S
                # No run leads to this code, and what nothing has used for an hour is removed.
                os.utime(code)
                state = slurm_commands.queue().get(job_id)
                if state is None:
                    return
                start = f", expected to start {state.expected_start}" if state.expected_start else ""
                # Slurm reports the reason None until it has determined one.
                why = f"waits: {state.reason}{start}" if state.reason not in {None, "None"} else shown
                if why != shown:
                    out.print(why)
                shown = why
            time.sleep(POLL_S)
    except BaseException:
        cancel_jobs(SweepDir(directory), [job_id])
        raise


def collected(sweep: SweepDir, job_id: str) -> NodeJob:
    """Return the files of the nodes when all are visible here, or after FILES_WITHIN_S."""
    deadline = time.monotonic() + FILES_WITHIN_S
    listed = sweep.path / "nodes"
    while True:
        nodes = hosts(read_text(listed).strip()) if listed.exists() else []
        reports = written(sweep.path, "node", nodes)
        pairs = written(sweep.path, "pairs", nodes)
        measuring = [name for name, report in reports.items() if len(nodes) > 1 and "torch" in report["versions"]]
        if (nodes and len(reports) == len(nodes) and len(pairs) == len(measuring)) or time.monotonic() > deadline:
            break
        time.sleep(POLL_S)
    printed = [read_tail(path, job_log.TAIL_BYTES).splitlines() for path in sorted(sweep.logs.glob("*.out"))]
    last = next((line.strip() for lines in reversed(printed) for line in reversed(lines) if line.strip()), "")
    return NodeJob(sweep.path, job_id, nodes, list(reports.values()), pairs, last)


def written(directory: Path, what: str, nodes: list[str]) -> dict[str, dict[str, Any]]:
    """Return the contents of the readable files of one kind, by node."""
    found = {}
    for rank, name in enumerate(nodes):
        # Missing, or not completely visible here yet.
        with suppress(OSError, ValueError):
            found[name] = read_object(directory / f"{what}-{rank}.json")
    return found

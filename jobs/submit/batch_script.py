"""The batch script: what a Run asks of Slurm, and how the ranks' environment is set up on the nodes.

submitit renders the header and the srun line from these parameters, for launcher=slurm, dry and script alike.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any

from submitit import SlurmExecutor
from submitit.slurm.slurm import _make_sbatch_string

from jobs.errors import SubmitError
from jobs.plan.rules.stages import stage_gpus, stages_of
from jobs.rundir import BATCH_STARTED, RunDir, SweepDir
from jobs.schema import Run
from jobs.submit import container

STOP_BEFORE_LIMIT_S = 90
VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)
OPTION = re.compile(r"[a-z][a-z0-9_-]*")
# What a batch script says by itself, and would say twice: option -> what to type.
SAID_ALREADY = {
    "time": "Type wall_time_min=MINUTES",
    "nodes": "Type nodes=NUMBER",
    "ntasks": "Type nodes=NUMBER ranks_per_node=NUMBER",
    "ntasks-per-node": "Type ranks_per_node=NUMBER",
    "array": "Type launcher.max_running=NUMBER for how many runs at a time",
    "output": "`slurmscale logs` looks where that says: leave it out",
    "error": "`slurmscale logs` shows both in one file: leave it out",
    "signal": "A run saves what it has before its time limit by it: leave it out",
}
STARTED_LINE = f'echo "{BATCH_STARTED}, restart ${{SLURM_RESTART_COUNT:-0}}, on $SLURM_JOB_NODELIST"'


def resources(run: Run, code: Path) -> dict[str, Any]:
    """Executor parameters of a run; runs with equal ones share a job array."""
    cluster = run.cluster
    further: dict[str, str | bool] = {"requeue" if run.launcher.requeues else "no-requeue": True}
    if cluster.memory_gb_per_node is not None:
        further["mem"] = f"{cluster.memory_gb_per_node}G"
    wanted = {
        "job_name": run.sweep,
        "partition": cluster.partition,
        "account": cluster.account,
        "qos": cluster.qos,
        "constraint": cluster.constraint,
        "time": run.wall_time_min,
        "signal_delay_s": stop_before_limit_s(run.wall_time_min),
        "nodes": run.nodes,
        "ntasks_per_node": run.ranks_per_node,
        "gpus_per_node": run.ranks_per_node if cluster.gpus else None,
        "cpus_per_task": cluster.cpus_per_rank,
        "exclusive": cluster.exclusive or None,
        "array_parallelism": run.launcher.max_running,
        "additional_parameters": {**further, **cluster.sbatch},
        "srun_args": srun_arguments(run),
        "setup": setup_lines(run, code),
        "stderr_to_stdout": True,
    }
    return carried(run, wanted)


def stage_resources(run: Run, name: str, code: Path) -> dict[str, Any]:
    """Executor parameters of a stage beside training: one process."""
    cluster, stage = run.cluster, stages_of(run)[name]
    further: dict[str, str | bool] = {"requeue" if run.launcher.requeues else "no-requeue": True}
    if stage.memory_gb is not None:
        further["mem"] = f"{stage.memory_gb}G"
    # What was chosen for the nodes of one partition may not exist in another.
    same = stage.partition is None
    wanted = {
        "job_name": f"{run.sweep}-{name}",
        "partition": cluster.partition if same else stage.partition,
        "account": cluster.account,
        "qos": cluster.qos,
        "constraint": cluster.constraint if same else None,
        "time": stage.wall_time_min,
        "signal_delay_s": stop_before_limit_s(stage.wall_time_min),
        "nodes": 1,
        "ntasks_per_node": 1,
        "gpus_per_node": stage_gpus(run, name) or None,
        "cpus_per_task": stage.cpus,
        "additional_parameters": {**further, **(cluster.sbatch if same else {})},
        "srun_args": [f"--cpus-per-task={stage.cpus}", *container.srun_arguments(run)],
        "setup": [*environment_lines(run, code), private_line(run)],
        "stderr_to_stdout": True,
    }
    return carried(run, wanted)


def starting_after(parameters: dict[str, Any], after: str | None) -> dict[str, Any]:
    """Executor parameters of a job that waits for others; None: for none.

    Where they can never be what it waits for, Slurm cancels it, which would otherwise hold it for ever.
    """
    if after is None:
        return parameters
    further = parameters["additional_parameters"]
    both = ",".join(filter(None, [further.get("dependency"), after]))
    more = further | {"dependency": both, "kill-on-invalid-dep": "yes"}
    return parameters | {"additional_parameters": more}


def carried(run: Run, wanted: dict[str, Any]) -> dict[str, Any]:
    """Executor parameters without those that are not set; raises SubmitError for what no script can carry."""
    for key, value in (wanted | {f"cluster.sbatch.{k}": f"{k}{v}" for k, v in run.cluster.sbatch.items()}).items():
        if isinstance(value, str):
            refuse_unquotable(value, key)
    refuse_unquotable(sweep_path(run), "runs_dir and sweep", and_percent=True)
    # wckey=None: submitit's default of "submitit" is refused where a site tracks wckeys.
    return {key: value for key, value in wanted.items() if value is not None} | {"wckey": None}


def stop_before_limit_s(wall_time_min: int) -> int:
    """How long before its time limit a job is asked to reach a step boundary and save; a quarter of a short limit."""
    return min(STOP_BEFORE_LIMIT_S, wall_time_min * 60 // 4)


def srun_arguments(run: Run) -> list[str]:
    """What srun is told beside submitit's own arguments."""
    # A rank that dies leaves the others waiting in a collective: end them. TP groups are consecutive ranks: keep those
    # on one node, whatever the site's default is.
    arguments = ["--kill-on-bad-exit=1", "--distribution=block"]
    if run.cluster.cpus_per_rank is not None:
        # Since Slurm 22.05 srun no longer inherits this from sbatch.
        arguments.append(f"--cpus-per-task={run.cluster.cpus_per_rank}")
    return [*arguments, *container.srun_arguments(run)]


def setup_lines(run: Run, code: Path) -> list[str]:
    """Shell lines before srun."""
    return [
        *environment_lines(run, code),
        *after_ranks_lines(run),
        private_line(run),
    ]


def private_line(run: Run) -> str:
    """The shell line that ends a batch script where others could change what it executes."""
    return f"{shlex.join([sys.executable, '-m', 'jobs.submit.permissions', sweep_path(run)])} || exit"


def environment_lines(run: Run, code: Path) -> list[str]:
    """Shell lines that a rank needs: modules, the site's own, and the submitted code ahead of any other."""
    refuse_unscriptable(run)
    return [
        *(f"module load {shlex.quote(module)}" for module in run.cluster.modules),
        *run.cluster.setup,
        *(f"export {name}={shlex.quote(value)}" for name, value in run.cluster.env.items()),
        f"export PYTHONPATH={shlex.quote(str(code))}${{PYTHONPATH:+:$PYTHONPATH}}",
        # Else the directory that sbatch was typed in comes first, where another jobs/ may lie.
        "export PYTHONSAFEPATH=1",
    ]


def rank_python(run: Run) -> str:
    """The command that is Python for a rank, as a shell reads it."""
    return " ".join([*container.command(run), run.cluster.python or shlex.quote(sys.executable)])


def sweep_path(run: Run) -> str:
    """The sweep directory of a run."""
    return str(Path(run.runs_dir) / str(run.sweep))


def after_ranks_lines(run: Run) -> list[str]:
    """Shell lines that let a run go on by itself. This Python, not cluster.python: that one may be in a container."""
    command = [sys.executable, "-m", "jobs.submit.requeue", sweep_path(run)]
    return [
        STARTED_LINE,
        f"after_ranks() {{ {shlex.join(command)}; }}",
        "trap after_ranks EXIT",
    ]


def code_environment(code: Path) -> dict[str, str]:
    """This process's environment with a run's code ahead of any other."""
    path = os.environ.get("PYTHONPATH")
    return os.environ | {"PYTHONPATH": f"{code}:{path}" if path else str(code), "PYTHONSAFEPATH": "1"}


def executor(run: Run, sweep: SweepDir, parameters: dict[str, Any]) -> SlurmExecutor:
    """A submitit executor for runs with these parameters."""
    made = SlurmExecutor(sweep.logs, max_num_timeout=0, python=rank_python(run))
    made.update_parameters(**parameters)
    return made


def refuse_unscriptable(run: Run) -> None:
    """Raise SubmitError for names that a shell or sbatch would read as something else, and for what no line holds."""
    cluster = run.cluster
    for key, names, pattern, what in (
        ("env", cluster.env, VARIABLE, "a variable's name: letters, digits and _"),
        ("sbatch", cluster.sbatch, OPTION, "an option of sbatch without its dashes, such as reservation"),
    ):
        wrong = [name for name in names if not pattern.fullmatch(name)]
        if wrong:
            raise SubmitError(f"cluster.{key}: {wrong[0]!r} is not {what}. Type another name.")
    twice = [name for name in cluster.sbatch if name in SAID_ALREADY]
    if twice:
        raise SubmitError(f"cluster.sbatch.{twice[0]}: the script says --{twice[0]} already. {SAID_ALREADY[twice[0]]}.")
    values = [*cluster.env.values(), *cluster.modules, *cluster.setup, *cluster.container_mounts]
    for value in (*values, cluster.container, cluster.python, run.runs_dir):
        if value is not None and "\0" in value:
            raise SubmitError(f"{value!r} has a NUL character, which no script can carry. Leave it out.")


def refuse_unquotable(value: str, what: str, *, and_percent: bool = False) -> None:
    """Raise SubmitError for what an #SBATCH line cannot carry; in a path Slurm also reads % and backslash."""
    if any(ord(character) < 32 for character in value) or (and_percent and ("%" in value or "\\" in value)):
        more = ", a % or a backslash" if and_percent else ""
        raise SubmitError(
            f"{what}: {value!r} has a control character{more}, which a Slurm batch script cannot carry. "
            "Type another name."
        )


def script_text(run: Run, directory: RunDir, sweep: SweepDir) -> str:
    """The batch script of one run, complete: given to sbatch by hand it runs the same entry as launcher=slurm."""
    command = f"{rank_python(run)} -u -m jobs.run {shlex.quote(str(directory.path))}"
    return batch_script(command, sweep.logs, resources(run, directory.code.resolve()))


def batch_script(command: str, logs: Path, parameters: dict[str, Any]) -> str:
    """The text of a batch script that starts this command once a rank."""
    # Private, and pinned for it: submitit has no public call that returns a script, and none that works where
    # Slurm is not installed.
    return f"{_make_sbatch_string(command=command, folder=logs, **parameters)}\n"

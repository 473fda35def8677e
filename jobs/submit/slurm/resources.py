"""The resources of a Run and of its stages in Slurm: the options of sbatch and srun.

submitit renders the header from these parameters, for every launcher of Slurm. Each option has the form --name=value:
of `--name value` Slurm reads the value as a program where a later release makes it optional.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jobs.errors import SubmitError
from jobs.plan.rules.stages import stage_gpus, stages_of
from jobs.plan.time_limit import stop_before_limit_s, within
from jobs.rundir import BATCH_STARTED
from jobs.schema import Run
from jobs.submit.preparation import container
from jobs.submit.preparation.script_lines import environment_lines, integrity_lines, python_path, sweep_path
from jobs.work.work import Component, work_of

# It divides the nodes of the run.
OF_THE_RUN = {"segment"}
STARTED_LINE = f'echo "{BATCH_STARTED}, restart ${{SLURM_RESTART_COUNT:-0}}, on $SLURM_JOB_NODELIST"'


def shared_resources(run: Run, code: Path) -> dict[str, Any]:
    """Return the parameters that a job array shares; it takes the longest time to stop of its runs."""
    return {key: value for key, value in resources(run, code).items() if key != "signal_delay_s"}


def resources(run: Run, code: Path) -> dict[str, Any]:
    """Return the executor parameters of a run."""
    cluster = run.cluster
    first, *others = work_of(run).components(run)
    further: dict[str, str | bool] = {"requeue" if run.launcher.requeues else "no-requeue": True}
    if first.memory_gb is not None:
        further["mem"] = f"{first.memory_gb}G"
    spares = run.launcher.spare_nodes
    if spares:
        # A lost node ends only the step on it: the program in the job starts the next one without that node.
        further["no-kill"] = True
    wanted = {
        "job_name": run.sweep,
        "partition": first.partition,
        "account": cluster.account,
        "qos": cluster.qos,
        "constraint": of_component(run, first, cluster.constraint),
        "time": run.wall_time_min,
        "signal_delay_s": stop_before_limit_s(run),
        "nodes": first.nodes,
        "ntasks_per_node": run.ranks_per_node,
        "gpus_per_node": gpus_of(run, first),
        "cpus_per_task": cluster.cpus_per_rank,
        "exclusive": cluster.exclusive or None,
        "array_parallelism": run.launcher.max_running,
        "additional_parameters": {**further, **cluster.sbatch},
        "srun_args": [*srun_arguments(run), *([f"--het-group=0-{len(others)}"] if others else [])],
        "use_srun": False if spares else None,
        "components": [component_options(run, each) for each in others] or None,
        "setup": setup_lines(run, code),
        "stderr_to_stdout": True,
    }
    return carried(run, wanted)


def of_component(run: Run, component: Component, value: str | None) -> str | None:
    """Return a setting of the run's partition; None for nodes of another one, where it may not exist."""
    return value if component.partition == run.cluster.partition else None


def gpus_of(run: Run, component: Component) -> str | None:
    """Return the GPUs of a node of a component, as sbatch takes them."""
    typed = component.partition == run.cluster.partition
    return gpus_per_node(run, run.ranks_per_node, typed=typed) if component.gpus else None


def component_options(run: Run, component: Component) -> list[str]:
    """Return the options of sbatch for a component behind the first; Slurm passes on the others, such as the time."""
    options = {
        "partition": component.partition,
        "constraint": of_component(run, component, run.cluster.constraint),
        "nodes": component.nodes,
        "ntasks-per-node": run.ranks_per_node,
        "gpus-per-node": gpus_of(run, component),
        "cpus-per-task": run.cluster.cpus_per_rank,
        "mem": None if component.memory_gb is None else f"{component.memory_gb}G",
        "time": run.wall_time_min,
    }
    exclusive = ["--exclusive"] if run.cluster.exclusive else []
    return [
        *(f"--{name}={shlex.quote(str(value))}" for name, value in options.items() if value is not None),
        *exclusive,
    ]


def without_options_of_the_run(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of sbatch for a job with other nodes than the run's: a stage, the doctor's."""
    return {name: value for name, value in options.items() if name not in OF_THE_RUN}


def stage_resources(run: Run, name: str, code: Path) -> dict[str, Any]:
    """Return the executor parameters of a stage besides training: one process."""
    cluster, stage = run.cluster, stages_of(run)[name]
    further: dict[str, str | bool] = {"requeue" if run.launcher.requeues else "no-requeue": True}
    if stage.memory_gb is not None:
        further["mem"] = f"{stage.memory_gb}G"
    # Constraint and sbatch options of one partition may not exist in another.
    same = stage.partition is None
    options = without_options_of_the_run(cluster.sbatch) if same else {}
    wanted = {
        "job_name": f"{run.sweep}-{name}",
        "partition": cluster.partition if same else stage.partition,
        "account": cluster.account,
        "qos": cluster.qos,
        "constraint": cluster.constraint if same else None,
        "time": stage.wall_time_min,
        "signal_delay_s": within(stage.wall_time_min),
        "nodes": 1,
        "ntasks_per_node": 1,
        # The other partition of a stage may have other GPUs.
        "gpus_per_node": gpus_per_node(run, stage_gpus(run, name), typed=same),
        "cpus_per_task": stage.cpus,
        "additional_parameters": {**further, **options},
        # As for ranks (srun_arguments).
        "srun_args": ["--export=ALL", f"--cpus-per-task={stage.cpus}", *container.srun_arguments(run)],
        "setup": [STARTED_LINE, *integrity_lines(run, code), *environment_lines(run, code)],
        "stderr_to_stdout": True,
    }
    return carried(run, wanted)


def gpus_per_node(run: Run, gpus: int, *, typed: bool = True) -> str | None:
    """Return the GPUs of a node as sbatch and srun take them: `4`, or `a100:4`; None for none."""
    kind = f"{run.cluster.gpu_type}:" if typed and run.cluster.gpu_type else ""
    return f"{kind}{gpus}" if gpus else None


def starting_after(parameters: dict[str, Any], after: str | None) -> dict[str, Any]:
    """Return the executor parameters of a job with this dependency; None: without one.

    Slurm cancels a job whose dependency can no longer be satisfied; by default it would wait for ever.
    """
    if after is None:
        return parameters
    further = parameters["additional_parameters"]
    both = ",".join(filter(None, [further.get("dependency"), after]))
    more = further | {"dependency": both, "kill-on-invalid-dep": "yes"}
    return parameters | {"additional_parameters": more}


def carried(run: Run, wanted: dict[str, Any]) -> dict[str, Any]:
    """Return the executor parameters that are set; raises SubmitError for values that no script can contain."""
    for key, value in (wanted | {f"cluster.sbatch.{k}": f"{k}{v}" for k, v in run.cluster.sbatch.items()}).items():
        if isinstance(value, str):
            refuse_unquotable(value, key)
    refuse_unquotable(sweep_path(run), "runs_dir and sweep", is_path=True)
    # Two defaults of submitit: arrays have 256 tasks at once, and sites that track wckeys refuse "submitit".
    given = {key: value for key, value in wanted.items() if value is not None}
    return {"array_parallelism": sys.maxsize} | given | {"wckey": None}


def srun_arguments(run: Run) -> list[str]:
    """Return the arguments of srun besides submitit's own."""
    # If a rank dies, the others wait in a collective: end them. TP groups are consecutive ranks: block distribution
    # keeps them on one node, whatever the default of the site is.
    # Ranks need the variables of the script, also if sbatch was given --export.
    arguments = ["--export=ALL", "--kill-on-bad-exit=1", "--distribution=block"]
    if run.cluster.cpus_per_rank is not None:
        # Since Slurm 22.05 srun does not inherit this from sbatch.
        arguments.append(f"--cpus-per-task={run.cluster.cpus_per_rank}")
    return [*arguments, *container.srun_arguments(run)]


def setup_lines(run: Run, code: Path) -> list[str]:
    """Return the shell lines before srun."""
    return [STARTED_LINE, *integrity_lines(run, code), *requeue_lines(run, code), *environment_lines(run, code)]


def requeue_lines(run: Run, code: Path) -> list[str]:
    """Return the shell lines that record the end of a run, or requeue it, when the script exits.

    They use this Python, since cluster.python may be inside a container, and run also if a module or set-up line fails.
    """
    command = shlex.join([sys.executable, "-m", "jobs.submit.requeue", sweep_path(run)])
    return [
        f"requeue() {{ {python_path(code)} PYTHONSAFEPATH=1 {command}; }}",
        "trap requeue EXIT",
    ]


def refuse_unquotable(value: str, what: str, *, is_path: bool = False) -> None:
    """Raise SubmitError for characters that an #SBATCH line cannot contain; of a path Slurm reads also backslashes."""
    if any(ord(character) < 32 for character in value) or (is_path and "\\" in value):
        more = " or a backslash" if is_path else ""
        raise SubmitError(
            f"{what}: {value!r} has a control character{more}, which a Slurm batch script cannot contain. "
            "Set another name."
        )

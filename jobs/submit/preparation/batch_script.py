"""The batch script: the resources of a Run in Slurm, and the environment of its ranks on the nodes.

submitit renders the header from these parameters, for every launcher of Slurm. Each option has the form --name=value:
of `--name value` Slurm reads the value as a program where a later release makes it optional.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jobs.errors import SubmitError
from jobs.network import VARIABLE
from jobs.plan.rules.stages import stage_gpus, stages_of
from jobs.plan.time_limit import stop_before_limit_s, within
from jobs.rundir import BATCH_STARTED, NOT_STARTED, RunDir, SweepDir
from jobs.schema import Run
from jobs.submit.environment import unset_line
from jobs.submit.preparation import container
from jobs.submit.preparation.container import rank_python
from jobs.submit.trust.integrity import check_lines
from jobs.work.work import Component, work_of

OPTION = re.compile(r"[a-z][a-z0-9_-]*")
# Options that a run sets by other keys or cannot have, each with its remedy.
NOT_ALLOWED = {
    "time": "Set wall_time_min=MINUTES",
    "nodes": "Set nodes=NUMBER",
    "ntasks": "Set nodes=NUMBER ranks_per_node=NUMBER",
    "ntasks-per-node": "Set ranks_per_node=NUMBER",
    "job-name": "Set sweep=NAME",
    "array": "Set launcher.max_running=NUMBER to limit the runs at a time",
    "output": "`slurmscale logs` reads that file: remove the option",
    "error": "`slurmscale logs` shows stdout and stderr in one file: remove the option",
    "clusters": "Run `export SLURM_CLUSTERS=NAME` in your shell: all commands of slurmscale then use that cluster",
    **dict.fromkeys(
        ("gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket"),
        "Set cluster.gpus=true ranks_per_node=NUMBER, and cluster.gpu_type=NAME for GPUs of one type",
    ),
    "signal": "A run needs it to save a checkpoint before its time limit: remove the option",
}
# It divides the nodes of the run.
OF_THE_RUN = {"segment"}
STARTED_LINE = f'echo "{BATCH_STARTED}, restart ${{SLURM_RESTART_COUNT:-0}}, on $SLURM_JOB_NODELIST"'

CHECK = f"""\
check() {{
    [ "$1" = 0 ] && return
    echo "{NOT_STARTED}$2 failed with exit code $1" >&2
    exit "$1"
}}"""
# Old Environment Modules report an error on stderr only, and exit with 0.
LOAD_MODULE = """\
load_module() {
    local messages code
    messages=$(mktemp) || return
    module load "$1" 2> "$messages"
    code=$?
    cat "$messages" >&2
    if grep -q ERROR: "$messages"; then code=1; fi
    rm -f "$messages"
    return "$code"
}"""


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


def integrity_lines(run: Run, *codes: Path) -> list[str]:
    """Return the shell lines that end a script, before any code of the sweep runs, if it is not as it was submitted."""
    return check_lines(sweep_path(run), run.cluster.trusted_group, codes)


def environment_lines(run: Run, code: Path) -> list[str]:
    """Return the shell lines for the environment of a rank: of the site, and the submitted code first."""
    refuse_unscriptable(run)
    return [
        *checked_lines(run),
        *(f"export {name}={shlex.quote(value)}" for name, value in run.cluster.env.items()),
        f"export {python_path(code)}",
        # Otherwise Python searches the working directory first, which may contain another jobs/.
        "export PYTHONSAFEPATH=1",
    ]


def checked_lines(run: Run) -> list[str]:
    """Return the modules and set-up lines of a cluster, each followed by a check that ends the script if it failed.

    Neither `set -e` nor a trap: scripts of a site that a line sources may contain commands that fail.
    """
    cluster = run.cluster
    return [
        *([CHECK] if cluster.modules or cluster.setup else []),
        *([LOAD_MODULE] if cluster.modules else []),
        *(f"load_module {shlex.quote(module)}\n{check(f'module load {module}')}" for module in cluster.modules),
        *(f"{line}\n{check(line)}" for line in cluster.setup),
    ]


def check(line: str) -> str:
    """Return the shell line that ends the script if the line before it failed."""
    return f"check $? {shlex.quote(' '.join(line.split()))}"


def sweep_path(run: Run) -> str:
    """Return the path of the sweep directory of a run."""
    return str(Path(run.runs_dir) / str(run.sweep))


def python_path(code: Path) -> str:
    """Return the assignment of shell that puts submitted code first on PYTHONPATH."""
    return f"PYTHONPATH={shlex.quote(str(code))}${{PYTHONPATH:+:$PYTHONPATH}}"


def requeue_lines(run: Run, code: Path) -> list[str]:
    """Return the shell lines that record the end of a run, or requeue it, when the script exits.

    They use this Python, since cluster.python may be inside a container, and run also if a module or set-up line fails.
    """
    command = shlex.join([sys.executable, "-m", "jobs.submit.requeue", sweep_path(run)])
    return [
        f"requeue() {{ {python_path(code)} PYTHONSAFEPATH=1 {command}; }}",
        "trap requeue EXIT",
    ]


def code_environment(code: Path, env: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of this process and variables of a cluster, with the code of a run first on PYTHONPATH."""
    given = os.environ | dict(env or {})
    path = given.get("PYTHONPATH")
    return given | {"PYTHONPATH": f"{code}:{path}" if path else str(code), "PYTHONSAFEPATH": "1"}


def refuse_names(key: str, names: Iterable[str], pattern: re.Pattern[str], what: str) -> None:
    """Raise SubmitError for a name in a section of `cluster` that is not as its pattern wants it."""
    wrong = [name for name in names if not pattern.fullmatch(name)]
    if wrong:
        raise SubmitError(f"cluster.{key}: {wrong[0]!r} is not {what}. Set another name.")


def refuse_unscriptable(run: Run) -> None:
    """Raise SubmitError for names that a shell or sbatch would misread, and for values that no line can contain."""
    cluster = run.cluster
    refuse_names("env", cluster.env, VARIABLE, "the name of a variable: letters, digits and _")
    refuse_names("sbatch", cluster.sbatch, OPTION, "an option of sbatch without its dashes, such as reservation")
    if "gpu" in cluster.sbatch.get("gres", ""):
        raise SubmitError(f"cluster.sbatch.gres={cluster.sbatch['gres']}: {NOT_ALLOWED['gpus']}.")
    twice = [name for name in cluster.sbatch if name in NOT_ALLOWED]
    if twice:
        raise SubmitError(f"cluster.sbatch.{twice[0]}: this option is not allowed. {NOT_ALLOWED[twice[0]]}.")
    values = [*cluster.env.values(), *cluster.modules, *cluster.setup, *cluster.container_mounts]
    for value in (*values, cluster.container, cluster.python, run.runs_dir):
        if value is not None and "\0" in value:
            raise SubmitError(f"{value!r} has a NUL character, which no script can contain. Remove it.")


def refuse_unquotable(value: str, what: str, *, is_path: bool = False) -> None:
    """Raise SubmitError for characters that an #SBATCH line cannot contain; of a path Slurm reads also backslashes."""
    if any(ord(character) < 32 for character in value) or (is_path and "\\" in value):
        more = " or a backslash" if is_path else ""
        raise SubmitError(
            f"{what}: {value!r} has a control character{more}, which a Slurm batch script cannot contain. "
            "Set another name."
        )


def script_text(run: Run, directory: RunDir, sweep: SweepDir, *, by_hand: bool = False) -> str:
    """Return the complete batch script of one run, which runs the same entry as launcher=slurm.

    One that a person submits `by_hand` also drops what it inherits from that shell.
    """
    parameters = resources(run, directory.code_snapshot)
    setup = [*([unset_line()] if by_hand else []), *parameters["setup"]]
    return task_script(start_command(run), [quoted_path(directory)], sweep.logs, parameters | {"setup": setup})


def start_command(run: Run) -> str:
    """Return the command, up to the run directory, that srun starts as each rank.

    In a job with spare nodes the script starts a program instead, which starts the ranks by srun, and again if need be.
    """
    if run.launcher.spare_nodes:
        return shlex.join([sys.executable, "-m", "jobs.submit.spares.job"])
    return f"{rank_python(run)} -u -m jobs.run"


def quoted_path(directory: RunDir) -> str:
    """Return the path of a run directory as a word of shell."""
    return shlex.quote(str(directory.path))


def task_script(command: str, arguments: Sequence[str], logs: Path, parameters: dict[str, Any]) -> str:
    """Return the text of a batch script that runs a command with one argument, or an array with one per task."""
    if len(arguments) == 1:
        return batch_script(f"{command} {arguments[0]}", logs, parameters)
    setup = [*parameters["setup"], "directories=(", *arguments, ")"]
    each = f'{command} "${{directories[$SLURM_ARRAY_TASK_ID]}}"'
    return batch_script(each, logs, parameters | {"setup": setup, "map_count": len(arguments)})


def batch_script(command: str, logs: Path, parameters: dict[str, Any]) -> str:
    """Return the text of a batch script that starts this command on each rank."""
    # Imported where a script is made: submitit brings asyncio, a third of the time of a command that makes none.
    # A private function, so submitit is pinned: it has no public call that returns a script, and none that works
    # without an installed Slurm.
    from submitit.slurm.slurm import _make_sbatch_string  # noqa: PLC0415

    # submitit's own line of srun has a blank between --output and its value.
    own = {"srun_args", "use_srun", "components"}
    header = {key: value for key, value in parameters.items() if key not in own}
    components = parameters.get("components", [])
    if parameters.get("use_srun", True):
        log_id = "%A_%a" if "map_count" in parameters else "%j"
        output = shlex.quote(f"--output={SweepDir(logs.parent).output(log_id, '%t')}")
        if components:
            # For srun %j is the number of the component.
            output = output.replace(log_id, "$SLURM_JOB_ID" if output.startswith("-") else "'\"$SLURM_JOB_ID\"'")
        arguments = map(shlex.quote, parameters.get("srun_args", []))
        command = " ".join(["srun", "--unbuffered", output, *arguments, command])
    script = f"{_make_sbatch_string(command=command, folder=logs, use_srun=False, **header)}\n"
    # Behind the options of the first component, which end with an empty line.
    above, heading, below = script.partition("# Parameters\n")
    options, blank, commands = below.partition("\n\n")
    hetjob = [f"#SBATCH {text}" for each in components for text in ("hetjob", *each)]
    return f"{above}{heading}" + "\n".join([options, *hetjob]) + f"{blank}{commands}"

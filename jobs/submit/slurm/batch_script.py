"""The batch script of Slurm: submitit's header from the resources, and the line that starts the ranks."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jobs.rundir import RunDir, SweepDir
from jobs.schema import Run
from jobs.submit.environment import unset_line
from jobs.submit.preparation.container import rank_python
from jobs.submit.preparation.script_lines import quoted_path
from jobs.submit.slurm.resources import resources


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

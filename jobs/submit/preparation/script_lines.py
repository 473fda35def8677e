"""The lines of a job script that are alike under every scheduler: integrity, environment, code, and their checks."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

from jobs.errors import SubmitError
from jobs.network import VARIABLE
from jobs.rundir import NOT_STARTED, RunDir
from jobs.schema import Run
from jobs.submit.trust.integrity import check_lines

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


def quoted_path(directory: RunDir) -> str:
    """Return the path of a run directory as a word of shell."""
    return shlex.quote(str(directory.path))

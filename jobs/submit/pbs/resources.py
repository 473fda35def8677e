"""The resources of a Run in PBS: the options of qsub."""

from __future__ import annotations

import re
from pathlib import Path

from jobs.errors import SubmitError
from jobs.rundir import SweepDir
from jobs.schema import Run
from jobs.submit.preparation.container import refuse_pyxis
from jobs.submit.preparation.script_lines import sweep_path

# PBS parses directives neither like a shell nor like Slurm; names and paths of sites need no other characters.
SAFE = re.compile(r"[\w.+=@:/,-]+", re.ASCII)
SAFE_PATH = re.compile(r"[\w.+=@/-]+", re.ASCII)
RESOURCE = re.compile(r"[A-Za-z]\w*", re.ASCII)
TAKEN = {"N", "q", "P", "j", "o", "e", "r", "J", "select", "place", "walltime", "ncpus", "ngpus", "mem", "mpiprocs"}
NO_DIRECTIVE = "a #PBS line cannot contain all of these characters."


def options(run: Run, name: str | None = None) -> list[str]:
    """Return the options of qsub; raises SubmitError for settings that PBS or a directive cannot express."""
    refuse_pyxis(run)
    cluster = run.cluster
    for key in ("qos", "constraint", "gpu_type", "sbatch"):
        if getattr(cluster, key):
            raise SubmitError(
                f"cluster.{key} is an option of Slurm, and launcher={run.starter.name} writes for PBS. Set "
                "cluster.pbs={NAME: VALUE} instead: a resource of `qsub -l`, or one letter of qsub's options."
            )
    path = str(SweepDir(Path(sweep_path(run))).logs)
    if not SAFE_PATH.fullmatch(path):
        raise SubmitError(
            f"{path!r}: {NO_DIRECTIVE} Set another runs_dir or sweep, of letters, digits and . _ + = @ -."
        )
    lines = [
        f"-N {name or job_name(run)}",
        *resources(run),
        f"-l walltime={run.wall_time_min // 60:02d}:{run.wall_time_min % 60:02d}:00",
        *given("cluster.partition", "-q ", cluster.partition),
        *given("cluster.account", "-P ", cluster.account),
        "-j oe",
        f"-o {path}/",
        # Without -r n PBS itself starts a job again after a node failure.
        f"-r {'y' if run.launcher.requeues else 'n'}",
    ]
    for key, value in cluster.pbs.items():
        if key in TAKEN or not RESOURCE.fullmatch(key):
            raise SubmitError(
                f"cluster.pbs.{key} is not allowed: use a resource of `qsub -l` or one letter of qsub's options, "
                f"except {', '.join(sorted(TAKEN))}, which come from the run."
            )
        lines += given(f"cluster.pbs.{key}", f"-{key} " if len(key) == 1 else f"-l {key}=", value)
    return lines


def given(key: str, before: str, value: str | None) -> list[str]:
    """Return the option with its value; an empty list for None."""
    if value is None:
        return []
    if not SAFE.fullmatch(value):
        raise SubmitError(f"{key}={value!r}: {NO_DIRECTIVE} Use letters, digits and . _ + = @ : / , - only.")
    return [before + value]


def per_node(run: Run) -> dict[str, int]:
    """Return the CPUs, GPUs and memory (GB) that a run asks for on each node, as far as they are set."""
    cluster = run.cluster
    node = {
        "ncpus": cluster.cpus_per_rank and cluster.cpus_per_rank * run.ranks_per_node,
        "ngpus": run.ranks_per_node if cluster.gpus else None,
        "mem": cluster.memory_gb_per_node,
    }
    return {name: amount for name, amount in node.items() if amount is not None}


def per_job(run: Run) -> dict[str, int]:
    """Return what the job of a run asks for in total, by the names under which queues limit it."""
    total = {name: run.nodes * amount for name, amount in per_node(run).items() if name != "mem"}
    return total | {"nodect": run.nodes, "walltime": 60 * run.wall_time_min}


def resources(run: Run) -> list[str]:
    """Return the options for nodes, CPUs, GPUs and memory: as chunks, or as totals of the job (cluster.pbs_totals)."""
    units = {"mem": "gb"}
    if run.cluster.pbs_totals:
        return [f"-l {name}={amount * run.nodes}{units.get(name, '')}" for name, amount in per_node(run).items()]
    # For PBS a node has one process: the shell that starts its ranks.
    chunk = "".join(f":{name}={amount}{units.get(name, '')}" for name, amount in per_node(run).items())
    return [f"-l select={run.nodes}{chunk}:mpiprocs=1", f"-l place=scatter{':excl' if run.cluster.exclusive else ''}"]


def job_name(run: Run) -> str:
    """Return the name of the run as PBS accepts it."""
    return name_of_job(str(run.name))


def name_of_job(text: str) -> str:
    """Return a name as PBS accepts it: the first character is a letter, others are of a limited set."""
    name = re.sub(r"[^A-Za-z0-9_.+-]", "_", text)
    return name if name[0].isalpha() else f"r{name}"

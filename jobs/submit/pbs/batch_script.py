"""The script of a run for PBS Pro: the job of launcher=pbs and pbs_script, or a turn in a held allocation.

Ranks start without MPI: a program of the site's choice (cluster.pbs_start) starts one shell on each node, and the shell
starts the ranks of its node with the variables that torchrun would set.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from jobs.errors import SubmitError
from jobs.plan.time_limit import stop_before_limit_s
from jobs.rundir import BATCH_STARTED, NOT_STARTED, RunDir, SweepDir
from jobs.schema import Run
from jobs.submit.preparation.batch_script import environment_lines, integrity_lines, python_path, sweep_path
from jobs.submit.preparation.container import rank_python, refuse_pyxis

# PBS parses directives neither like a shell nor like Slurm; names and paths of sites need no other characters.
SAFE = re.compile(r"[\w.+=@:/,-]+", re.ASCII)
SAFE_PATH = re.compile(r"[\w.+=@/-]+", re.ASCII)
RESOURCE = re.compile(r"[A-Za-z]\w*", re.ASCII)
TAKEN = {"N", "q", "P", "j", "o", "e", "r", "J", "select", "place", "walltime", "ncpus", "ngpus", "mem", "mpiprocs"}
NO_DIRECTIVE = "a #PBS line cannot contain all of these characters."
# Exit code of jobs.submit.pbs.job_end after which the script starts the run again (EX_TEMPFAIL of sysexits.h).
AGAIN = 75
# A node that answers has ended its ranks within seconds; NFS may show it the file that asks for that a little later.
PATIENCE_S = 30


@dataclass(frozen=True)
class HeldTurn:
    """A start of a run on some nodes of an allocation that goes on afterwards."""

    log_id: str
    restart: int
    places: Sequence[int]
    """For each node a line of PBS_NODEFILE that names it, counted from 0."""


def script_text(
    run: Run,
    directory: RunDir,
    sweep: SweepDir,
    file: Path,
    *,
    name: str | None = None,
    after: str | None = None,
    held: HeldTurn | None = None,
) -> str:
    """Return the complete script of one run, which is written to `file`.

    `name` is that of the job, by which its submission finds it; None for a script that a person submits. `after` is its
    dependency. With `held` it is no job, but starts the run in the allocation in which it is run.
    """
    code = directory.code_snapshot
    ranks = run.ranks_per_node
    end = shlex.join([sys.executable, "-m", "jobs.submit.pbs.job_end", sweep_path(run)])
    return template("job.pbs.j2").render(
        options=[] if held else [*options(run, name), *([f"-W depend={after}"] if after else [])],
        mode="held" if held else "hand" if name is None else "job",
        held=held,
        again=AGAIN,
        patience_s=PATIENCE_S,
        started=BATCH_STARTED,
        not_started=NOT_STARTED,
        integrity=integrity_lines(run, code),
        record_end=f"{python_path(code)} PYTHONSAFEPATH=1 {end}",
        environment=environment_lines(run, code),
        program=run.cluster.pbs_start.value,
        script=shlex.quote(str(file)),
        logs=shlex.quote(str(sweep.logs)),
        command=f"{rank_python(run)} -u -m jobs.run {shlex.quote(str(directory.path))}",
        threads=None if "OMP_NUM_THREADS" in run.cluster.env else run.cluster.cpus_per_rank,
        nodes=run.nodes,
        ranks_per_node=ranks,
        stop_after_s=run.wall_time_min * 60 - stop_before_limit_s(run),
    )


def template(name: str) -> Template:
    """Return the template of a script."""
    return Environment(
        loader=PackageLoader("jobs.submit.pbs", ""),
        autoescape=False,  # noqa: S701 (a shell script is no HTML)
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    ).get_template(name)


def stop_file(sweep: SweepDir, start: str) -> Path:
    """Return the file for which the nodes of a start look; its line is the name of a signal for the ranks."""
    return sweep.logs / f".{start}.stop"


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

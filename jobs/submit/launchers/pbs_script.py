"""launcher=pbs_script: a PBS Pro job script in each run directory, to be given to qsub by hand.

Ranks start without MPI: pbsdsh starts one shell on each node, and the shell starts the ranks of its node with the
variables that torchrun would set.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from jobs.errors import SubmitError
from jobs.output import write_file
from jobs.plan.rules.rule import counted
from jobs.plan.time_limit import stop_before_limit_s
from jobs.rundir import RunDir, SweepDir
from jobs.schema import Run
from jobs.submit.batch_script import environment_lines, integrity_lines, sweep_path
from jobs.submit.container import rank_python, refuse_pyxis
from jobs.submit.launchers.launcher import Launch, Launcher, Runs, script_lines

# PBS parses directives neither like a shell nor like Slurm; names and paths of sites need no other characters.
SAFE = re.compile(r"[\w.+=@:/,-]+", re.ASCII)
SAFE_PATH = re.compile(r"[\w.+=@/-]+", re.ASCII)
RESOURCE = re.compile(r"[A-Za-z]\w*", re.ASCII)
TAKEN = {"N", "q", "P", "j", "o", "e", "r", "J", "select", "place", "walltime", "ncpus", "ngpus", "mem", "mpiprocs"}


class PbsScript(Launcher):
    """Writes the PBS job script of each run."""

    def check(self, runs: list[Run]) -> None:
        """Raise SubmitError for settings that PBS does not have or a directive cannot contain."""
        for run in runs:
            options(run)

    def preview(self, what: Launch) -> list[str]:
        """Return one script of each group of runs with equal options and code."""
        groups: dict[tuple[str, ...], Runs] = {}
        for run, directory in what.runs:
            key = (str(directory.code_snapshot), *(line for line in options(run) if not line.startswith("-N ")))
            groups.setdefault(key, []).append((run, directory))
        return script_lines(
            groups.values(), "PBS job script", lambda run, directory: script_text(run, directory, what.sweep)
        )

    def launch(self, what: Launch) -> list[str]:
        """Write job.pbs into every run directory."""
        for run, directory in what.runs:
            write_file(directory.pbs_script, script_text(run, directory, what.sweep))
        return [
            f"wrote the PBS job script of {counted(len(what.runs))}; submit with",
            *(f"    qsub {shlex.quote(str(directory.pbs_script))}" for _, directory in what.runs),
        ]


def script_text(run: Run, directory: RunDir, sweep: SweepDir) -> str:
    """Return the complete job script of one run."""
    templates = Environment(
        loader=PackageLoader("jobs.submit.launchers", ""),
        autoescape=False,  # noqa: S701 (a shell script is no HTML)
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    code = directory.code_snapshot
    return templates.get_template("job.pbs.j2").render(
        options=options(run),
        setup=[*integrity_lines(run, code), *environment_lines(run, code)],
        script=shlex.quote(str(directory.pbs_script)),
        logs=shlex.quote(str(sweep.logs)),
        command=f"{rank_python(run)} -u -m jobs.run {shlex.quote(str(directory.path))}",
        nodes=run.nodes,
        ranks_per_node=run.ranks_per_node,
        stop_after_s=run.wall_time_min * 60 - stop_before_limit_s(run),
    )


def options(run: Run) -> list[str]:
    """Return the options of qsub; raises SubmitError for settings that PBS or a directive cannot express."""
    refuse_pyxis(run)
    cluster = run.cluster
    for key in ("qos", "constraint", "gpu_type", "sbatch"):
        if getattr(cluster, key):
            raise SubmitError(
                f"cluster.{key} is an option of Slurm, and launcher=pbs_script writes for PBS. Set "
                "cluster.pbs={NAME: VALUE} instead: a resource of `qsub -l`, or one letter of qsub's options."
            )
    path = str(SweepDir(Path(sweep_path(run))).logs)
    if not SAFE_PATH.fullmatch(path):
        raise SubmitError(
            f"{path!r}: {NO_DIRECTIVE} Set another runs_dir or sweep, of letters, digits and . _ + = @ -."
        )
    lines = [
        f"-N {job_name(run)}",
        *resources(run),
        f"-l walltime={run.wall_time_min // 60:02d}:{run.wall_time_min % 60:02d}:00",
        *given("cluster.partition", "-q ", cluster.partition),
        *given("cluster.account", "-P ", cluster.account),
        "-j oe",
        f"-o {path}/",
        # Without -r n PBS itself starts a job again after a node failure.
        f"-r {'y' if run.launcher.requeues else 'n'}",
    ]
    for name, value in cluster.pbs.items():
        if name in TAKEN or not RESOURCE.fullmatch(name):
            raise SubmitError(
                f"cluster.pbs.{name} is not allowed: use a resource of `qsub -l` or one letter of qsub's options, "
                f"except {', '.join(sorted(TAKEN))}, which come from the run."
            )
        lines += given(f"cluster.pbs.{name}", f"-{name} " if len(name) == 1 else f"-l {name}=", value)
    return lines


NO_DIRECTIVE = "a #PBS line cannot contain all of these characters."


def given(key: str, before: str, value: str | None) -> list[str]:
    """Return the option with its value; an empty list for None."""
    if value is None:
        return []
    if not SAFE.fullmatch(value):
        raise SubmitError(f"{key}={value!r}: {NO_DIRECTIVE} Use letters, digits and . _ + = @ : / , - only.")
    return [before + value]


def resources(run: Run) -> list[str]:
    """Return the options for nodes, CPUs, GPUs and memory: as chunks, or as totals of the job (cluster.pbs_totals)."""
    cluster = run.cluster
    node = {
        "ncpus": cluster.cpus_per_rank and cluster.cpus_per_rank * run.ranks_per_node,
        "ngpus": run.ranks_per_node if cluster.gpus else None,
        "mem": cluster.memory_gb_per_node,
    }
    units = {"mem": "gb"}
    known = {name: amount for name, amount in node.items() if amount is not None}
    if cluster.pbs_totals:
        return [f"-l {name}={amount * run.nodes}{units.get(name, '')}" for name, amount in known.items()]
    # For PBS a node has one process: the shell that starts its ranks.
    chunk = "".join(f":{name}={amount}{units.get(name, '')}" for name, amount in known.items())
    return [f"-l select={run.nodes}{chunk}:mpiprocs=1", f"-l place=scatter{':excl' if cluster.exclusive else ''}"]


def job_name(run: Run) -> str:
    """Return the name of the run as PBS accepts it: the first character is a letter, others are of a limited set."""
    name = re.sub(r"[^A-Za-z0-9_.+-]", "_", str(run.name))
    return name if name[0].isalpha() else f"r{name}"


LAUNCHER = PbsScript()

"""The script of a run for PBS Pro: the job of launcher=pbs and pbs_script, or a turn in a held allocation.

Ranks start without MPI: a program of the site's choice (cluster.pbs_start) starts one shell on each node, and the shell
starts the ranks of its node with the variables that torchrun would set.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from jobs.plan.time_limit import stop_before_limit_s
from jobs.rundir import BATCH_STARTED, NOT_STARTED, RunDir, SweepDir
from jobs.schema import Run
from jobs.submit.pbs.resources import options
from jobs.submit.preparation.container import rank_python
from jobs.submit.preparation.script_lines import environment_lines, integrity_lines, python_path, sweep_path

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

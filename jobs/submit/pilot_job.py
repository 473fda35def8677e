"""The one Slurm job of launcher=pilot: what it cannot take, its batch script, and the command of a step inside it.

What goes on inside it is jobs.submit.pilot.
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict, replace

from jobs.errors import SubmitError
from jobs.rundir import RunDir, SweepDir
from jobs.schema import Run
from jobs.submit import slurm_commands
from jobs.submit.batch_script import (
    STARTED_LINE,
    batch_script,
    environment_lines,
    private_line,
    rank_python,
    resources,
    srun_arguments,
)

Runs = list[tuple[Run, RunDir]]


def check(runs: list[Run]) -> None:
    """Refuse what cannot share one job, and a job that its partition can never run; raises SubmitError."""
    first = runs[0]
    for run in runs:
        for section in ("cluster", "launcher"):
            settings, others = asdict(getattr(first, section)), asdict(getattr(run, section))
            for key, value in settings.items():
                if others[key] != value:
                    raise SubmitError(
                        f"launcher=pilot runs all points in one job, but {section}.{key} is {value} for {first.name} "
                        f"and {others[key]} for {run.name}. Submit them one after the other, in sweeps of their own."
                    )
    slurm_commands.require()
    pilot = whole(runs)
    slurm_commands.refuse_beyond_partition(
        pilot.cluster.partition, pilot.nodes, pilot.wall_time_min, prefix="launcher.pilot_"
    )


def jobs_of(runs: Runs) -> list[Runs]:
    """The runs by the job that they can share."""
    shared: dict[str, Runs] = {}
    for run, directory in runs:
        if run.launcher.pilot_nodes is None or run.launcher.pilot_wall_time_min is None:
            raise SubmitError(
                f"{run.name} was not prepared for launcher=pilot: it has no launcher.pilot_nodes and "
                "launcher.pilot_wall_time_min. Type `slurmscale resume` without --launcher, or submit a new sweep."
            )
        shared.setdefault(repr((run.cluster, run.launcher)), []).append((run, directory))
    return list(shared.values())


def whole(runs: list[Run]) -> Run:
    """A run that would take the whole job in which these take turns."""
    first = runs[0]
    assert first.launcher.pilot_nodes is not None
    assert first.launcher.pilot_wall_time_min is not None
    return replace(
        first,
        nodes=first.launcher.pilot_nodes,
        ranks_per_node=max(first.cluster.ranks_per_node, *(run.ranks_per_node for run in runs)),
        wall_time_min=first.launcher.pilot_wall_time_min,
        cluster=replace(first.cluster, exclusive=True),
    )


def script_text(sweep: SweepDir, runs: Runs) -> str:
    """The batch script of the job that these runs share."""
    run, directory = runs[0]
    code = directory.code.resolve()
    asked = resources(whole([run for run, _ in runs]), code)
    # The warning before the time limit goes to the pilot, which hands it on. A lost node ends what runs on it only.
    signal = {"signal": f"B:USR2@{asked['signal_delay_s']}", "no-kill": True}
    asked |= {
        "setup": [*environment_lines(run, code), STARTED_LINE, private_line(run)],
        "use_srun": False,
        "additional_parameters": asked["additional_parameters"] | signal,
    }
    pilot = [sys.executable, "-m", "jobs.submit.pilot", str(sweep.path), str(len(runs))]
    # A shell that waits would not hear the warning.
    return batch_script(f"exec {shlex.join(pilot)}", sweep.logs, asked)


def step_command(run: Run, directory: RunDir, nodes: list[str], output: str) -> str:
    """The shell line that starts a run's ranks on these nodes of the job."""
    arguments = [
        "--unbuffered",
        "--open-mode=append",
        # A step that lost one of its nodes is never over for Slurm, and would keep the others from the next one.
        "--overlap",
        f"--output={output}",
        f"--nodes={run.nodes}",
        f"--nodelist={','.join(nodes)}",
        f"--ntasks={run.ranks}",
        f"--ntasks-per-node={run.ranks_per_node}",
        *([f"--gpus-per-node={run.ranks_per_node}"] if run.cluster.gpus else []),
        f"--time={run.wall_time_min}",
        *srun_arguments(run),
    ]
    ranks = f"{rank_python(run)} -u -m jobs.run {shlex.quote(str(directory.path))}"
    return f"exec {shlex.join(['srun', *arguments])} {ranks}"

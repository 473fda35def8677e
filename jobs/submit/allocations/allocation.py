"""An allocation of nodes that several runs use: its nodes and time, and the start of a run on some of the nodes.

A pilot works by the protocol, `Allocation`. `SlurmAllocation` is the job of a pilot, in which each run is a step,
`HeldSlurm` one that the user holds; jobs.submit.allocations.pbs has both for PBS.
"""

from __future__ import annotations

import shlex
import signal
import subprocess
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from jobs.failure_causes import FailureCause
from jobs.ranks import hosts
from jobs.rundir import RunDir, SweepDir
from jobs.schema import Run
from jobs.submit.environment import clean_environment
from jobs.submit.preparation.container import rank_python
from jobs.submit.preparation.script_lines import code_environment, environment_lines, integrity_lines
from jobs.submit.requeue import end_by_slurm, record_silent_end
from jobs.submit.slurm import commands as slurm_commands
from jobs.submit.slurm.resources import gpus_per_node, srun_arguments
from jobs.submit.sweeps.submissions import Submission


@dataclass(frozen=True)
class Share:
    """CPUs and GPUs that an allocation has on each of its nodes; None if that is not known."""

    cpus: int | None = None
    gpus: int | None = None


@dataclass(frozen=True)
class Turn:
    """A start of a run on some nodes of an allocation."""

    sweep: SweepDir
    run: Run
    directory: RunDir
    code: Path
    nodes: list[str]
    log_id: str
    restart: int


class Allocation(ABC):
    """Nodes that this process may use until their time is over."""

    scheduler: str
    starter: str
    """The program that starts the ranks."""

    def __init__(self, job_id: str, nodes: list[str]) -> None:
        self.job_id = job_id
        self.nodes = nodes
        """The nodes that it still has."""
        self.preempted = False
        self.over = False
        """True if the scheduler ends it, for whatever reason."""

    @abstractmethod
    def time_left_s(self) -> float:
        """Return the seconds until its time limit; infinity without a limit."""

    @abstractmethod
    def share(self) -> Share:
        """Return what it has on each node."""

    @abstractmethod
    def look(self) -> None:
        """Ask the scheduler for its nodes and its state; raises SubmitError if nobody answers."""

    @abstractmethod
    def shown(self, nodes: list[str]) -> str:
        """Return nodes as text."""

    def node_of(self, host: str) -> str:
        """Return its name of the node that records of runs name so."""
        return host

    @abstractmethod
    def command(self, turn: Turn) -> str:
        """Return the shell lines that start the ranks of a run."""

    @abstractmethod
    def environment(self, code: Path) -> dict[str, str]:
        """Return the environment of these lines."""

    @abstractmethod
    def ask_to_stop(self, process: subprocess.Popen[bytes], turn: Turn) -> None:
        """Send SIGUSR2 to the ranks of a start."""

    @abstractmethod
    def record_silent_end(self, directory: RunDir, submission: Submission, printed: str, restart: int) -> None:
        """Record the end that the ranks of a start could not write; `printed` is the output of its rank 0."""


class SlurmAllocation(Allocation):
    """A Slurm job in which each run is a step."""

    scheduler = "Slurm"
    starter = "srun"

    def time_left_s(self) -> float:
        """Ask the controller."""
        return slurm_commands.time_left_s(self.job_id)

    def share(self) -> Share:
        """Return the least CPUs and GPUs of a node."""
        return Share(*slurm_commands.share_of_a_node(self.job_id))

    def look(self) -> None:
        """Ask the controller; a job that is being requeued has no nodes any more."""
        job = slurm_commands.shown_job(self.job_id)
        self.nodes = hosts(job["NodeList"])
        end = end_by_slurm(job)
        # Slurm signals a preemption to the steps only, not to the pilot.
        self.preempted = self.preempted or end is FailureCause.preempted
        self.over = end is not None

    def shown(self, nodes: list[str]) -> str:
        """Return nodes in Slurm's notation: node[01-04,07]."""
        return slurm_commands.host_list(nodes)

    def command(self, turn: Turn) -> str:
        """Return the line of srun, after the check of the code."""
        run = turn.run
        arguments = [
            "--unbuffered",
            "--open-mode=append",
            # For Slurm a step that lost a node never ends, and would keep its other nodes from the next step.
            "--overlap",
            f"--output={turn.sweep.output(turn.log_id, '%t')}",
            f"--nodes={run.nodes}",
            f"--nodelist={','.join(turn.nodes)}",
            f"--ntasks={run.ranks}",
            f"--ntasks-per-node={run.ranks_per_node}",
            *([f"--gpus-per-node={gpus_per_node(run, run.ranks_per_node)}"] if run.cluster.gpus else []),
            f"--time={run.wall_time_min}",
            *srun_arguments(run),
        ]
        ranks = f"{rank_python(run)} -u -m jobs.run {shlex.quote(str(turn.directory.path))}"
        start = f"exec {shlex.join(['srun', *arguments])} {ranks}"
        return "\n".join([*integrity_lines(run, turn.code), *self.setup(turn), start])

    def setup(self, turn: Turn) -> list[str]:  # noqa: ARG002
        """Return the shell lines that load the environment of a run; in a pilot the batch script has done so."""
        return []

    def environment(self, code: Path) -> dict[str, str]:
        """Return the environment of the batch script, with the code of the run first."""
        return code_environment(code)

    def ask_to_stop(self, process: subprocess.Popen[bytes], turn: Turn) -> None:  # noqa: ARG002
        """Signal srun, which forwards SIGUSR2; on SIGTERM it would kill the ranks."""
        process.send_signal(signal.SIGUSR2)

    def record_silent_end(self, directory: RunDir, submission: Submission, printed: str, restart: int) -> None:
        """Read the messages of srun."""
        by_slurm = FailureCause.preempted if self.preempted else None
        record_silent_end(directory, submission, printed, restart=restart, by_slurm=by_slurm)


class HeldSlurm(SlurmAllocation):
    """A Slurm job of the user: `salloc`, or a batch script of his own."""

    def setup(self, turn: Turn) -> list[str]:
        """Return the environment of the site: the user's shell need not have it."""
        return environment_lines(turn.run, turn.code)

    def environment(self, code: Path) -> dict[str, str]:
        """Return the user's environment; of the variables of his job srun needs its id, others would be options."""
        return clean_environment(code_environment(code)) | {"SLURM_JOB_ID": self.job_id}

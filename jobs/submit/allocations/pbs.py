"""A PBS job on whose nodes several runs take turns: that of a pilot, or one that a user holds.

A user holds one by `qsub -I`, or by a batch script of his own.
"""

from __future__ import annotations

import math
import shlex
import subprocess
import time
from pathlib import Path

from jobs.errors import SubmitError
from jobs.files import read_text
from jobs.output import write_file
from jobs.rundir import RunDir
from jobs.submit.allocations.allocation import Allocation, Share, Turn
from jobs.submit.environment import clean_environment
from jobs.submit.pbs import commands
from jobs.submit.pbs.batch_script import HeldTurn, script_text, stop_file
from jobs.submit.pbs.job_end import record_end
from jobs.submit.pbs.states import state_of
from jobs.submit.preparation.script_lines import code_environment
from jobs.submit.sweeps.submissions import Submission


class PbsAllocation(Allocation):
    """The PBS job of a pilot. Its nodes are the hosts of PBS_NODEFILE; cluster.pbs_start reaches them.

    Nothing is asked of PBS: nodes of many sites reach no server.
    """

    scheduler = "PBS"
    starter = "the script of the run"

    def __init__(self, job_id: str, node_file: Path, left_s: float = math.inf) -> None:
        self.left_s = left_s
        """The time to the limit when the program in the job starts."""
        self.places: dict[str, int] = {}
        """The first line of each host."""
        for line, host in enumerate(read_text(node_file).split()):
            self.places.setdefault(host, line)
        super().__init__(job_id, list(self.places))

    def time_left_s(self) -> float:
        """Return what the script of the job has counted."""
        return self.left_s

    def share(self) -> Share:
        """Return nothing: the job was submitted for these runs."""
        return Share()

    def look(self) -> None:
        """Do nothing: a PBS job keeps its nodes."""

    def shown(self, nodes: list[str]) -> str:
        """Return the hosts."""
        return ",".join(nodes)

    def node_of(self, host: str) -> str:
        """Compare names without domains: PBS_NODEFILE may have them, and the node itself not."""
        own = (node for node in self.nodes if node.partition(".")[0] == host.partition(".")[0])
        return next(own, host)

    def command(self, turn: Turn) -> str:
        """Write the script of the run, which starts itself on its nodes, and return the line that starts it."""
        file = turn.sweep.logs / f"{turn.log_id}.pbs"
        held = HeldTurn(turn.log_id, turn.restart, [self.places[node] for node in turn.nodes])
        write_file(file, script_text(turn.run, turn.directory, turn.sweep, file, held=held))
        return f"exec /bin/bash {shlex.quote(str(file))}"

    def environment(self, code: Path) -> dict[str, str]:
        """Return the user's environment; the nodes get that of the site, from the script."""
        return clean_environment(code_environment(code))

    def ask_to_stop(self, process: subprocess.Popen[bytes], turn: Turn) -> None:  # noqa: ARG002
        """Write the file for which the script looks on every node."""
        write_file(stop_file(turn.sweep, turn.log_id), "USR2\n")

    def record_silent_end(self, directory: RunDir, submission: Submission, printed: str, restart: int) -> None:
        """Read the exit codes that the script has printed."""
        record_end(directory, submission, printed, restart)


class HeldPbs(PbsAllocation):
    """A PBS job of the user, about which the server is asked."""

    def time_left_s(self) -> float:
        """Subtract from the walltime the time since the job began; infinity if no server is reached from this node."""
        try:
            job = commands.jobs([self.job_id]).get(self.job_id, {})
        except SubmitError:
            return math.inf
        limit_s = commands.seconds(str(job.get("Resource_List", {}).get("walltime", "")))
        if limit_s is None or "stime" not in job:
            return math.inf
        return limit_s - (time.time() - time.mktime(time.strptime(job["stime"])))

    def share(self) -> Share:
        """Divide the totals of the job among its nodes; nothing is known if no server is reached."""
        try:
            resources = commands.jobs([self.job_id]).get(self.job_id, {}).get("Resource_List", {})
        except SubmitError:
            return Share()
        total = {name: int(resources[name]) for name in ("ncpus", "ngpus") if str(resources.get(name, "")).isdigit()}
        return Share(**{name[1:]: amount // len(self.nodes) for name, amount in total.items()})

    def look(self) -> None:
        """Ask the server whether it still runs the job."""
        job = commands.jobs([self.job_id]).get(self.job_id)
        self.over = job is None or state_of(job).state != "RUNNING"

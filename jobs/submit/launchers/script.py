"""launcher=script: job.sbatch in each run directory, to be given to sbatch by hand."""

from __future__ import annotations

import shlex

from jobs.output import write_file
from jobs.plan.rules.rule import counted
from jobs.submit.launchers.launcher import Launch, Launcher, script_lines
from jobs.submit.launchers.slurm import arrays
from jobs.submit.slurm.batch_script import script_text


class Script(Launcher):
    """Writes the batch script of each run."""

    def preview(self, what: Launch) -> list[str]:
        """Return one script of each group of runs with equal resources."""
        return script_lines(
            arrays(what.runs, len(what.runs)),
            "batch script",
            lambda run, directory: script_text(run, directory, what.sweep, by_hand=True),
        )

    def launch(self, what: Launch) -> list[str]:
        """Write job.sbatch into every run directory."""
        for run, directory in what.runs:
            write_file(directory.batch_script, script_text(run, directory, what.sweep, by_hand=True))
        return [
            f"wrote the batch script of {counted(len(what.runs))}; submit with",
            *(f"    sbatch {shlex.quote(str(directory.batch_script))}" for _, directory in what.runs),
        ]


LAUNCHER = Script()

"""launcher=pbs_script: a PBS Pro job script in each run directory, to be given to qsub by hand."""

from __future__ import annotations

import shlex

from jobs.output import write_file
from jobs.plan.rules.rule import counted
from jobs.schema import Run
from jobs.submit.launchers.launcher import Launch, Launcher, Runs, script_lines
from jobs.submit.pbs.batch_script import script_text
from jobs.submit.pbs.resources import options


class PbsScript(Launcher):
    """Writes the PBS job script of each run."""

    def check(self, runs: list[Run]) -> None:
        """Raise SubmitError for settings that PBS does not have or a directive cannot contain."""
        for run in runs:
            options(run)

    def preview(self, what: Launch) -> list[str]:
        """Return one script of each group of runs with equal options and code."""
        return script_lines(
            groups(what.runs),
            "PBS job script",
            lambda run, directory: script_text(run, directory, what.sweep, directory.pbs_script),
        )

    def launch(self, what: Launch) -> list[str]:
        """Write job.pbs into every run directory."""
        for run, directory in what.runs:
            write_file(directory.pbs_script, script_text(run, directory, what.sweep, directory.pbs_script))
        return [
            f"wrote the PBS job script of {counted(len(what.runs))}; submit with",
            *(f"    qsub {shlex.quote(str(directory.pbs_script))}" for _, directory in what.runs),
        ]


def groups(runs: Runs) -> list[Runs]:
    """Return groups of runs whose scripts differ in names only."""
    found: dict[tuple[str, ...], Runs] = {}
    for run, directory in runs:
        key = (str(directory.code_snapshot), *(line for line in options(run) if not line.startswith("-N ")))
        found.setdefault(key, []).append((run, directory))
    return list(found.values())


LAUNCHER = PbsScript()

"""launcher=dry: show what the launcher of the cluster would send or start; submit nothing."""

from __future__ import annotations

from dataclasses import replace

from jobs.errors import SubmitError
from jobs.schema import Run
from jobs.submit.launchers import launcher_of
from jobs.submit.launchers.launcher import Launch, Launcher


class Dry(Launcher):
    """Previews another launcher."""

    def check(self, runs: list[Run]) -> None:
        """Raise SubmitError for a cluster that names no other launcher."""
        for run in runs:
            if run.cluster.launcher.is_preview:
                raise SubmitError(
                    f"cluster.launcher={run.cluster.launcher.name} of {run.cluster.name} starts no runs. Set the "
                    "launcher of the cluster, such as cluster.launcher=slurm."
                )

    def preview(self, what: Launch) -> list[str]:
        """Return the previews of the launchers of the runs' clusters."""
        return [
            line
            for kind in dict.fromkeys(run.cluster.launcher for run, _ in what.runs)
            for line in launcher_of(kind).preview(
                replace(what, runs=[each for each in what.runs if each[0].cluster.launcher is kind])
            )
        ]

    def launch(self, what: Launch) -> list[str]:
        """Return the preview."""
        return self.preview(what)


LAUNCHER = Dry()

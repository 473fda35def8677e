"""trackers/wandb/: an offline run of Weights & Biases for each run, for `wandb sync trackers/wandb/*`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

import wandb

from analysis.report.export.tracked import TrackedRun
from jobs.files import read_bytes
from jobs.rundir import as_file_name

MOST_BYTES = 1 << 34


def wandb_runs(runs: Iterable[TrackedRun]) -> dict[str, bytes]:
    """Return the files of all runs by their names; a run keeps its id, so syncing it again makes no second one."""
    settings = wandb.Settings(
        console="off",
        silent=True,
        disable_git=True,
        disable_code=True,
        x_disable_stats=True,
        # The machine on which a report is made is not that of the run.
        x_disable_meta=True,
    )
    names = {}
    with tempfile.TemporaryDirectory(prefix="slurmscale-wandb-") as directory:
        for run in runs:
            names[run.id] = f"trackers/wandb/{run.file_name}/run-{run.id}.wandb"
            add_run(run, directory, settings)
        # The end of a run does not wait until its file is written; the end of the writer does.
        wandb.teardown()
        files = {path.stem.removeprefix("run-"): path for path in Path(directory).glob("wandb/*/run-*.wandb")}
        return {name: read_bytes(files[key], MOST_BYTES) for key, name in names.items()}


def add_run(run: TrackedRun, directory: str, settings: wandb.Settings) -> None:
    """Write an offline run below a directory."""
    made = wandb.init(
        mode="offline",
        project=as_file_name(run.sweep),
        id=run.id,
        name=run.name,
        config=dict(run.settings),
        tags=["slurmscale", *([] if run.used else ["not used"])],
        dir=directory,
        settings=settings,
    )
    for step, time_s, values in run.steps:
        made.log({**values, "_timestamp": time_s}, step=step)
    made.summary.update(dict(run.values))
    made.finish(exit_code=0 if run.used else 1)

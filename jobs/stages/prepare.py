"""The stage before training: tokenize the data of all runs of a submission, each text once.

`python -m jobs.stages.prepare SWEEP RUN...`. As at submission, no run starts if the data of one of them cannot be used.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from jobs.failure_causes import cause_of
from jobs.output import own_program
from jobs.ranks import node_name
from jobs.rundir import RunDir, SweepDir, append_event, load_run, read_plan, write_json
from jobs.runtime.steps import Samples, samples_of
from jobs.schema import Run
from jobs.stages.record import error_text, on_record


def main(sweep_path: str, names: list[str]) -> None:
    """Make the samples of these runs, link them into their directories and complete their plans."""
    sweep = SweepDir(Path(sweep_path))
    with on_record(sweep.stages, "prepare") as found:
        made: dict[str, Path] = {}
        samples = {name: its_samples(sweep, names, name, made) for name in names}
        for name in names:
            complete(sweep.run(name), samples[name])
        found["datasets"] = len(set(made.values()))


def its_samples(sweep: SweepDir, names: list[str], name: str, made: dict[str, Path]) -> Samples:
    """Return the samples of a run; if they cannot be made, record the failure of every run."""
    run: Run = load_run(sweep.run(name).config)
    try:
        return samples_of(run, made)
    except BaseException as error:
        for each in names:
            whose = "its data" if each == name else f"nothing was started: the data of {name}"
            text = f"{whose} could not be prepared: {error_text(error)}"
            fields = {"stage": "prepare", "cause": cause_of(error).name, "node": node_name(), "error": text}
            append_event(sweep.run(each), "failed", **fields)
        raise


def complete(directory: RunDir, samples: Samples) -> None:
    """Add the samples, their account and the number of steps that follows from them to a run directory."""
    if not os.path.lexists(directory.data):
        directory.data.symlink_to(samples.directory)
    write_json(directory.plan, read_plan(directory) | samples.planned())


if __name__ == "__main__":
    with own_program():
        main(sys.argv[1], sys.argv[2:])

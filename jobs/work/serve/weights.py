"""The directory of the model that a run serves: that of job.init_from, or one converted from LitGPT's layout."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from jobs.rundir import RunDir
from jobs.schema import Run
from jobs.settings.serving import Layout

LITGPT_WEIGHTS = "lit_model.pth"
LITGPT_CONFIG = "model_config.yaml"


def is_converted(run: Run) -> bool:
    """Return True if the server reads Hugging Face's layout, and the directory has LitGPT's only."""
    assert run.engine.server is not None
    directory = Path(str(run.job.init_from))
    return (
        run.engine.server.layout is Layout.huggingface
        and (directory / LITGPT_WEIGHTS).exists()
        and not any(directory.glob("*.safetensors"))
    )


def served_directory(run: Run, directory: RunDir) -> Path:
    """Return the directory that a server loads: that of job.init_from, or the one converted from it."""
    return directory.serving / "model" if is_converted(run) else Path(str(run.job.init_from))


def conversion_command(run: Run, directory: RunDir) -> list[str] | None:
    """Return the command that converts the model of a run; None if nothing is left to convert."""
    target = served_directory(run, directory)
    if not is_converted(run) or target.exists():
        return None
    return [sys.executable, "-m", "jobs.work.serve.conversion", os.path.realpath(str(run.job.init_from)), str(target)]

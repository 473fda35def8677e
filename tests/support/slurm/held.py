"""A job that a user holds."""

from __future__ import annotations

import re
import subprocess


def held_by_slurm(nodes: int, *options: str) -> str:
    """Return a job of this user that runs nothing, as `salloc --no-shell` leaves it."""
    command = ["salloc", "--no-shell", f"--nodes={nodes}", "--time=20", *options]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    (job_id,) = re.findall(r"Granted job allocation (\d+)", answer.stderr)
    return str(job_id)

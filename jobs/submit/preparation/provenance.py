"""Provenance of a run: digest and git state of its code, host, user, command and versions."""

from __future__ import annotations

import getpass
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import jobs
from jobs.rundir import now
from jobs.versions import installed

RECORDED_VERSIONS = ("slurmscale", "torch", "litgpt", "lightning", "hydra-core", "submitit", "numpy")


def provenance(code: str) -> dict[str, Any]:
    """Return the provenance of this submission."""
    facts: dict[str, Any] = {
        "time": now(),
        "host": socket.gethostname(),
        "user": getpass.getuser(),
        "command": sys.argv,
        "code_digest": code.removeprefix("code-"),
        "versions": {"python": sys.version.split()[0], **installed(RECORDED_VERSIONS)},
    }
    commit = git("rev-parse", "HEAD")
    if commit:
        facts["git"] = {"commit": commit, "dirty": bool(git("status", "--porcelain"))}
    return facts


def git(*arguments: str) -> str | None:
    """Return the output of git for the running code; None outside a checkout or without git."""
    root = Path(jobs.__file__).parent.parent
    try:
        answer = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()

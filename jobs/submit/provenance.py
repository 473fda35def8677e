"""Provenance of a run: a snapshot of the submitted code, and host, user, command and versions."""

from __future__ import annotations

import getpass
import hashlib
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jobs
from jobs.rundir import SweepDir, now

PACKAGES = ("jobs", "analysis", "conf", "sbatch")
RECORDED_VERSIONS = ("slurmscale", "torch", "litgpt", "lightning", "hydra-core", "submitit", "numpy")


def snapshot_code(sweep: SweepDir) -> Path:
    """Copy the running code into the sweep, named by its digest; equal code is stored once.

    Only its owner can read and change it, whatever the umask.
    """
    contents = packaged_code()
    target = sweep.code(code_digest(contents))
    if not target.exists():
        with tempfile.TemporaryDirectory(prefix=".code-", dir=sweep.path) as staging:
            for path, content in contents.items():
                copy = Path(staging) / "code" / path
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(content)
            for copy in (Path(staging) / "code", *(Path(staging) / "code").rglob("*")):
                copy.chmod(0o700 if copy.is_dir() else 0o600)
            try:
                (Path(staging) / "code").rename(target)
            except OSError:
                if not target.exists():  # else another submission has made the same snapshot
                    raise
    return target


def packaged_code() -> dict[Path, bytes]:
    """Return the files of the running code, by their path in a checkout."""
    root = Path(jobs.__file__).parent.parent
    files = sorted(
        file
        for package in PACKAGES
        for file in (root / package).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    )
    return {file.relative_to(root): file.read_bytes() for file in files}


def code_digest(contents: Mapping[Path, bytes]) -> str:
    """Return the digest of these files: 32 hexadecimal digits of SHA-256, as integrity.sh computes them."""
    sums = {os.fsencode(path): hashlib.sha256(content).hexdigest() for path, content in contents.items()}
    lines = b"".join(digest.encode() + b"  ./" + path + b"\n" for path, digest in sorted(sums.items()))
    return hashlib.sha256(lines).hexdigest()[:32]


def provenance(code: str) -> dict[str, Any]:
    """Return the provenance of this submission."""
    facts: dict[str, Any] = {
        "time": now(),
        "host": socket.gethostname(),
        "user": getpass.getuser(),
        "command": sys.argv,
        "code_digest": code.removeprefix("code-"),
        "versions": {"python": sys.version.split()[0], **installed_versions()},
    }
    commit = git("rev-parse", "HEAD")
    if commit:
        facts["git"] = {"commit": commit, "dirty": bool(git("status", "--porcelain"))}
    return facts


def installed_versions() -> dict[str, str]:
    """Return the versions of installed packages from their metadata; imports nothing."""
    from importlib import metadata  # noqa: PLC0415 (only to submit: it brings email)

    found = {}
    for name in RECORDED_VERSIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


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

"""Submitting shells that die: an `sbatch` or `qsub` on PATH ends the shell before or after the real one was called."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.paths import ROOT

# The shell leads its session; its signal mask, and that of sbatch, are those of a user's terminal.
SBATCH = """#!/bin/bash
shell=$(ps -o sid= -p $$)
case "$*" in --test-only*) exec {real} "$@" ;; esac
case {moment} in
before) kill -s {signal} $shell; until [ -e {go} ]; do sleep 0.1; done; exec {real} "$@" ;;
instead) kill -s {signal} $shell; exit 1 ;;
after) answer=$({real} "$@"); code=$?; kill -s {signal} $shell; sleep 0.3; echo "$answer"; exit $code ;;
esac
"""


def dying_shell(
    where: Path, moment: str, signal_name: str, *arguments: str, program: str = "sbatch"
) -> subprocess.Popen[str]:
    """Start `slurmscale` in a session of its own, which gets the signal before, after or instead of the first sbatch.

    An sbatch, or another `program`, that outlives its shell waits for the file `go` in `where`.
    """
    programs = where / "programs"
    programs.mkdir(exist_ok=True)
    sbatch = programs / program
    sbatch.write_text(SBATCH.format(real=shutil.which(program), go=where / "go", moment=moment, signal=signal_name))
    sbatch.chmod(0o755)
    return subprocess.Popen(
        # A test session under nohup ignores SIGHUP, and its children inherit that.
        ["env", "--default-signal", sys.executable, "-m", "jobs.cli", *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT), "PATH": f"{programs}:{os.environ['PATH']}"},
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )

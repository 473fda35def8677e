"""Processor time of short commands, each in a fresh process: most of it is imports.

    python -m tests.benchmarks.command_start [--against CHECKOUT] [--repeats N]

The commands look at a sweep of this user with two finished runs of the local launcher, or at nothing. With --against
the same commands run from another checkout too, in turns.
"""

from __future__ import annotations

import argparse
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from jobs.rundir import SweepDir, append_record, event_record
from jobs.submit.trust.own_sweeps import own
from tests.support.fake_runs import a_run, finished_run
from tests.support.paths import ROOT

COMMANDS = (
    "--help",
    "status SWEEP",
    "status MISSING",
    "watch SWEEP",
    "logs SWEEP/a",
    "cancel SWEEP",
    "resume SWEEP",
    "report MISSING",
    "explain job.steps",
    "explain checkpoint",
    "explain job.steps nodes=2",
    "plan model=tiny",
)


def processor_time_s(checkout: Path, words: list[str]) -> float:
    """Return the processor time of one command, its children excluded."""
    command = [sys.executable, "-m", "slurmscale", *words]
    with subprocess.Popen(command, cwd=checkout, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as done:
        _, _, used = os.wait4(done.pid, 0)
        done.returncode = 0
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Print a row per command: medians and ranges."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--against", type=Path, metavar="CHECKOUT")
    parser.add_argument("--repeats", type=int, default=9, metavar="N")
    options = parser.parse_args()
    checkouts = [*([options.against.resolve()] if options.against else []), ROOT]
    with tempfile.TemporaryDirectory() as where:
        # Byte code is written by the first call of a command, which is not counted.
        os.environ |= {"PYTHONPYCACHEPREFIX": f"{where}/pyc", "XDG_STATE_HOME": f"{where}/state"}
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        sweep = Path(where, "sweep")
        for name in ("a", "b"):
            finished_run(sweep, a_run(name))
            record = event_record("submitted", run=name, launcher="local", job_id="1", events_before=1, host="login")
            append_record(SweepDir(sweep).submissions, record)
        own(SweepDir(sweep))
        for command in COMMANDS:
            line = command.replace("SWEEP", shlex.quote(str(sweep))).replace("MISSING", shlex.quote(f"{where}/missing"))
            times_s: list[list[float]] = [[] for _ in checkouts]
            for repeat in range(options.repeats + 1):
                for checkout, found in zip(checkouts, times_s, strict=True):
                    used_s = processor_time_s(checkout, shlex.split(line))
                    if repeat:
                        found.append(used_s)
            shown = ", ".join(f"{statistics.median(t):.2f} s ({min(t):.2f} to {max(t):.2f})" for t in times_s)
            print(f"{command:<28} {shown}", flush=True)


if __name__ == "__main__":
    main()

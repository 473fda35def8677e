"""fio on every rank: started together, its result kept as it writes it, for the parser of analysis."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import torch.distributed as dist

from jobs.failure_causes import FailureCause, KnownCauseError
from jobs.output import own_directory
from jobs.schema import Run
from jobs.work.storage.session import LOOK_S, Session
from jobs.work.storage.space import needed_bytes

KIB = 1024
# The end of fio's errors that a failure quotes.
SAID_BYTES = 500


def fio(session: Session) -> None:
    """Start one fio on every rank and wait for all; raise KnownCauseError if one is missing or fails."""
    missing = None if shutil.which("fio") else "fio is not installed on this node: apt install fio, or a module of it"
    session.refuse(missing)
    own_directory(session.lease.run.storage_results)
    if session.rank.is_first:
        session.place.mkdir(parents=True)
    result = session.lease.run.fio_result(session.rank.rank)
    session.begins("running fio", needed_bytes(session.run))
    dist.barrier(session.group)
    command = fio_command(session.run, session.place, session.rank.rank, result)
    # Its errors go to a file: a pipe that nobody reads would hold it up once 64 KiB are in it.
    with tempfile.TemporaryFile() as errors:
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors) as program:
            while program.poll() is None:
                if session.stop.signal:
                    program.terminate()
                time.sleep(LOOK_S)
        errors.seek(max(0, errors.seek(0, os.SEEK_END) - SAID_BYTES))
        said = errors.read().decode(errors="replace").strip()
    failed = f"rank {session.rank.rank}: fio ended with exit code {program.returncode}: {said}"
    session.begins("reading the results of fio")
    failures = [each for each in session.gather(failed if program.returncode else None) if each is not None]
    if failures:
        raise KnownCauseError(FailureCause.code, failures[0])
    session.record("fio_ended", ranks=session.run.ranks)


def fio_command(run: Run, place: Path, rank: int, result: Path) -> list[str]:
    """Return the command of a rank's fio; threads instead of processes, whose traffic the rank can record."""
    assert run.storage is not None
    test = run.storage.fio
    assert test is not None
    return [
        "fio",
        f"--name=rank{rank}",
        # A colon separates directories.
        f"--directory={str(place).replace(':', chr(92) + ':')}",
        f"--rw={test.pattern.name}",
        f"--bs={test.block_kib * KIB}",
        f"--size={test.size_mib * KIB * KIB}",
        f"--numjobs={test.jobs}",
        f"--iodepth={test.depth}",
        # psync has one request under way, whatever the depth.
        f"--ioengine={'libaio' if test.depth > 1 else 'psync'}",
        f"--direct={test.direct:d}",
        "--thread",
        "--group_reporting",
        # Writes end on the storage, not in the page cache.
        "--end_fsync=1",
        "--output-format=json",
        f"--output={result}",
        *test.arguments,
    ]

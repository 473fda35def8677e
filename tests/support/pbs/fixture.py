"""The stand-in for PBS of one test: its programs come first on PATH; its jobs end with the test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.pbs import standin as programs_of
from tests.support.waiting import wait_until

PROGRAMS = ("qsub", "qstat", "qselect", "qdel", "qalter", "qrerun", "qrls", "qhold", "pbsnodes", "pbsdsh", "ssh")


class PbsStandIn:
    """A running stand-in."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def job(self, job_id: str) -> dict[str, Any]:
        """The attributes of a job, as qstat has them."""
        state = json.loads((self.directory / "state.json").read_text())
        return dict(state["jobs"][f"{job_id}.pbshead"])

    def jobs(self) -> dict[str, str]:
        """The letter of the state of each job, by its id."""
        if not (self.directory / "state.json").exists():
            return {}
        jobs = json.loads((self.directory / "state.json").read_text())["jobs"]
        return {job_id.partition(".")[0]: job["job_state"] for job_id, job in jobs.items()}

    def alive(self) -> list[str]:
        return [job_id for job_id, letter in self.jobs().items() if letter != "F"]

    def does(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def calls(self, program: str) -> list[str]:
        return [line for line in (self.directory / "calls").read_text().splitlines() if line.startswith(program)]


@contextmanager
def running(directory: Path) -> Iterator[PbsStandIn]:
    (directory / "bin").mkdir(parents=True)
    for name in PROGRAMS:
        program = directory / "bin" / name
        program.write_text(f'#!/bin/sh\nexec {sys.executable} {programs_of.__file__} {directory} {name} "$@"\n')
        program.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{directory}/bin:{os.environ['PATH']}")
        patch.setenv("STANDIN_KILL_DELAY_S", "5")
        found = PbsStandIn(directory)
        try:
            yield found
        finally:
            with suppress(FileNotFoundError):
                (directory / "down").unlink()
            if found.alive():
                found.does("qdel", *found.alive())
                wait_until(lambda: not found.alive())


@pytest.fixture
def pbs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PbsStandIn]:
    with running(tmp_path_factory.mktemp("pbs") / "standin") as found:
        yield found

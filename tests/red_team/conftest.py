"""Another user of this machine, for attacks on the one that runs the tests. Nothing listens beyond loopback."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.waiting import wait_until


@dataclass(frozen=True)
class Stranger:
    """An ordinary user, with a private group of the same name."""

    name: str

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        """Run a command as this user, who inherits nothing from the tests."""
        return subprocess.run(
            command, user=self.name, group=self.name, extra_groups=[], cwd="/", env={"PATH": os.defpath},
            capture_output=True, text=True, check=False,
        )  # fmt: skip


@pytest.fixture(scope="session")
def stranger() -> Iterator[Stranger]:
    """An ordinary user, made for this session and removed afterwards; needs root."""
    missing = [program for program in ("useradd", "userdel") if shutil.which(program) is None]
    if os.geteuid() != 0 or missing:
        pytest.skip(f"making a user needs {missing[0] if missing else 'root'}")
    name = f"stranger-{secrets.token_hex(4)}"
    made = ["useradd", "--no-create-home", "--user-group", "--shell", "/bin/false", name]
    # The user data base may be locked for a moment, by the other worker for instance.
    wait_until(lambda: subprocess.run(made, capture_output=True, check=False).returncode == 0, 20)
    yield Stranger(name)
    wait_until(lambda: subprocess.run(["userdel", name], capture_output=True, check=False).returncode == 0, 20)


@pytest.fixture
def project() -> Iterator[Path]:
    """A directory that other users can enter, unlike those of pytest."""
    path = Path(tempfile.mkdtemp(prefix="project-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)

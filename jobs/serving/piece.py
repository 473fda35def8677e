"""A launched program of a run: its log, its end, and the cause of an end that nobody asked for."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from jobs.errors import ConfigError
from jobs.failures import GPU_MEMORY_TEXT, HOST_MEMORY_TEXT, FailureCause, KnownCauseError
from jobs.files import read_tail
from jobs.output import open_to_append
from jobs.ranks import node_name

END_WITHIN_S = 20.0
TAIL_BYTES = 20_000
LONGEST_LINE = 300
PR_SET_PDEATHSIG = 1  # prctl(2)
LIBC = ctypes.CDLL(None)
# A server that reads them would take itself for a rank of a larger group.
OF_RANKS = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"}
# vLLM's words where the GPU has no room for the KV cache after the weights.
NO_ROOM_TEXT = re.compile(r"No available memory for the cache blocks|less than desired GPU memory utilization")
CAUSES = (
    (GPU_MEMORY_TEXT, FailureCause.out_of_gpu_memory),
    (NO_ROOM_TEXT, FailureCause.out_of_gpu_memory),
    (HOST_MEMORY_TEXT, FailureCause.out_of_host_memory),
)


class Piece:
    """One program, with the processes that it starts; it ends with the rank that started it."""

    def __init__(self, name: str, command: Sequence[str], log: Path, env: Mapping[str, str], remedy: str) -> None:
        self.name = name
        """Its name in messages."""
        self.log = log
        with open_to_append(log) as output:
            try:
                self.process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=environment(env),
                    start_new_session=True,
                    preexec_fn=end_with_parent,  # noqa: PLW1509 (the rank has no other threads)
                )
            except OSError as error:
                raise ConfigError(
                    f"{name} cannot start on {node_name()}: {command[0]}: {error.strerror}. {remedy}"
                ) from error

    def ended(self) -> bool:
        """Return True if the program has ended."""
        return self.process.poll() is not None

    def check(self) -> None:
        """Raise KnownCauseError if the program has ended."""
        if self.ended():
            raise self.failure()

    def failure(self) -> KnownCauseError:
        """Return the error of a program that has ended by itself, with its cause and the last line of its log."""
        code = self.process.returncode
        tail = read_tail(self.log, TAIL_BYTES)
        lines = [line.strip() for line in tail.splitlines() if line.strip()]
        how = f"exited with code {code}" if code >= 0 else f"was ended by {signal_name(-code)}"
        last = f"; the last line of {self.log.name}: {lines[-1][:LONGEST_LINE]}" if lines else ""
        return KnownCauseError(cause_of_end(code, tail), f"{self.name} on {node_name()} {how}{last}")

    def end(self) -> None:
        """End the program and all processes of its session: by SIGTERM, and by SIGKILL if that takes too long."""
        if not self.ended():
            self.send(signal.SIGTERM)
            self.send(signal.SIGCONT)  # a stopped process gets the other signal only then
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(END_WITHIN_S)
        # Also its children, which may outlive it.
        self.send(signal.SIGKILL)
        self.process.wait()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the program and its children."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a program: that of the rank, without the variables by which ranks find each other."""
    return {name: value for name, value in os.environ.items() if name not in OF_RANKS} | dict(more)


def end_with_parent() -> None:
    """Ask the kernel to end this process when its parent dies, however it dies."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def cause_of_end(code: int, tail: str) -> FailureCause:
    """Return the cause of an end: by the log if it names one, else by the signal or exit code."""
    for pattern, cause in CAUSES:
        if pattern.search(tail):
            return cause
    if code == -signal.SIGABRT:
        return FailureCause.aborted
    return FailureCause.killed if code in {-signal.SIGKILL, -signal.SIGTERM} else FailureCause.code


def signal_name(number: int) -> str:
    """Return the name of a signal."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

"""A launched program of a run: its log, its end, and the cause of an end that nobody asked for."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from analysis.failures.catalogue import Weight
from analysis.failures.runs import Failure, strongest
from analysis.failures.verdict import Verdict
from jobs.errors import ConfigError
from jobs.failure_causes import FailureCause, KnownCauseError
from jobs.files import read_tail
from jobs.output import open_to_append
from jobs.ranks import node_name, restart_count
from jobs.rundir import BATCH_STARTED

END_WITHIN_S = 20.0
TAIL_BYTES = 20_000
LONGEST_LINE = 300
# Then the last lines of processes on other nodes have come by way of the file system.
OTHER_LOGS_AFTER_S = 3.0
PR_SET_PDEATHSIG = 1  # prctl(2)
PRCTL = ctypes.CDLL(None).prctl  # looked up here, and not between fork and exec
# A server that reads them would take itself for a rank of a larger group.
OF_RANKS = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"}
EVERY_CPU = range(os.cpu_count() or 1)
# Signals from outside. An exception before one of them was survived; a fault, or a line that ends a run, was not.
FROM_OUTSIDE = {-signal.SIGKILL, -signal.SIGTERM}


class Piece:
    """One program, with the processes that it starts; it ends with the rank that started it."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        env: Mapping[str, str | None],
        remedy: str,
        *,
        logs: Sequence[Path] = (),
        directory: Path | None = None,
        all_cpus: bool = False,
    ) -> None:
        """Start the program; `logs` are those of all processes of a replica over nodes, if it is one of them.

        With `all_cpus` it may use all CPUs of the job on this node, and not only those of this rank.
        """
        self.name = name
        """Its name in messages."""
        self.log = log
        self._found_ended: float | None = None
        # The first node's process also raises when another one does: of equally strong proofs the other one's counts.
        self.logs = [*logs[1:], *logs[:1]] or [log]
        begin_start(log)
        with open_to_append(log) as output:
            try:
                self.process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=environment(env),
                    cwd=directory,
                    # A process group of its own, which `end` signals as a whole.
                    start_new_session=True,
                    preexec_fn=end_with_parent_on_all_cpus if all_cpus else end_with_parent,  # noqa: PLW1509 (it takes no lock that another thread may hold)
                )
            except OSError as error:
                raise ConfigError(
                    f"{name} cannot start on {node_name()}: {command[0]}: {error.strerror}. {remedy}"
                ) from error

    def ended(self) -> bool:
        """Return True if the program has ended."""
        return self.process.poll() is not None

    def ended_for_s(self) -> float:
        """Return the time since this method first found that the program has ended; 0 before."""
        if self.ended() and self._found_ended is None:
            self._found_ended = time.monotonic()
        return 0.0 if self._found_ended is None else time.monotonic() - self._found_ended

    def check(self) -> None:
        """Raise KnownCauseError if the program has ended."""
        if self.ended():
            raise self.failure()

    def failure(self) -> KnownCauseError:
        """Return the error of a program that has ended by itself, with the line of a log that names the cause.

        Without such a line it has the last line of the program's own log.
        """
        code = self.process.returncode
        how = f"exited with code {code}" if code >= 0 else f"was ended by {signal_name(-code)}"
        end = f"{self.name} on {node_name()} {how}"
        if found := self.proof():
            name, verdict = found
            failure = Failure.of(name, verdict)
            assert failure.proof is not None
            words = "the cause" if verdict.possible is None else "a possible cause"
            cause = cause_of_end(code) if failure.cause.is_symptom else failure.cause
            text = f"{end}; {words} is in {failure.proof}"
            return KnownCauseError(cause, text, proof=f"{self.log.parent.name}/{failure.proof}", advice=failure.advice)
        printed = [line.strip() for line in self.printed().splitlines() if line.strip()]
        last = f"; the last line of {self.log.name}: {printed[-1][:LONGEST_LINE]}" if printed else ""
        if has_no_room(self.log):
            # The program failed to write, and could not write that either.
            full = f"{end}; the file system of {self.log.parent} is full, so its last lines may be missing{last}"
            return KnownCauseError(FailureCause.storage, full)
        return KnownCauseError(cause_of_end(code), f"{end}{last}")

    def printed(self) -> str:
        """Return the end of what the program has printed since it started."""
        _, started, rest = read_tail(self.log, TAIL_BYTES).rpartition(BATCH_STARTED)
        return rest.partition("\n")[2] if started else rest

    def proof(self) -> tuple[str, Verdict] | None:
        """Return the strongest verdict on the logs, with the name of its log; None if none of them names a cause.

        What also follows from a failure elsewhere names none.
        """
        weakest = Weight.end if self.process.returncode in FROM_OUTSIDE else Weight.possible
        if len(self.logs) > 1:
            time.sleep(OTHER_LOGS_AFTER_S)
        proofs = (each for each in strongest(self.logs) if each[1].weight and each[1].weight.value <= weakest.value)
        return next(proofs, None)

    def end(self, number: signal.Signals = signal.SIGTERM, within_s: float = END_WITHIN_S) -> None:
        """End the program and all processes of its session: by this signal, and by SIGKILL if that takes too long."""
        if not self.ended():
            self.send(number)
            self.send(signal.SIGCONT)  # a stopped process gets the other signal only then
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(within_s)
        # Also its children, which may outlive it.
        self.send(signal.SIGKILL)
        self.process.wait()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the program and its children."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)


def environment(more: Mapping[str, str | None]) -> dict[str, str]:
    """Return the environment of a program: that of the rank, without the variables by which ranks find each other.

    `more` are further variables; one that is None is left out.
    """
    given = {name: value for name, value in os.environ.items() if name not in OF_RANKS} | dict(more)
    return {name: value for name, value in given.items() if value is not None}


def end_with_parent() -> None:
    """Ask the kernel to end this process when its parent dies, however it dies."""
    PRCTL(PR_SET_PDEATHSIG, signal.SIGTERM)


def end_with_parent_on_all_cpus() -> None:
    """Do so, and let this process use every CPU of its cgroup: a launcher may have bound the rank to its own CPUs."""
    end_with_parent()
    os.sched_setaffinity(0, EVERY_CPU)


def begin_start(log: Path) -> None:
    """Separate what an earlier start of the run wrote into a log from what follows; nothing without such a log."""
    # A full disk has no room for the line, and does not end the run.
    with suppress(OSError):
        if log.stat().st_size:
            with open_to_append(log) as file:
                file.write(f"\n{BATCH_STARTED}, restart {restart_count()}\n".encode())


def has_no_room(file: Path) -> bool:
    """Return True if the file system of a file has no free block for this user."""
    return os.statvfs(file.parent).f_bavail == 0


def cause_of_end(code: int) -> FailureCause:
    """Return the cause of an end by the signal or exit code."""
    if code == -signal.SIGABRT:
        return FailureCause.aborted
    return FailureCause.killed if code in FROM_OUTSIDE else FailureCause.code


def signal_name(number: int) -> str:
    """Return the name of a signal."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

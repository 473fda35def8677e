"""Call a command of a scheduler: the one place where it is started and repeated while the scheduler is away.

A server that restarts or fails over is away for seconds to minutes, and so may be a network. A call that the server did
not get, or that may be made twice, is repeated with growing pauses until the patience of the caller ends:

    with patience(BATCH_S):          # in a batch script; a command that a user waits for has INTERACTIVE_S
        SLURM.ask("squeue", "--me")

Each scheduler is a `Scheduler`, which reads the messages of its commands: jobs.submit.slurm.call, jobs.submit.pbs.call.
"""

from __future__ import annotations

import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from jobs.errors import SubmitError
from jobs.submit.environment import clean_environment

COMMAND_TIMEOUT_S = 60
# Patience while a scheduler is away: of a command that a user waits for, of one that works for hours, and of a batch
# script, whose nodes wait with it.
INTERACTIVE_S = 20.0
HOURS_LONG_S = 1800.0
BATCH_S = 900.0
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
# A program that calls us for days asks about one outage more often than this.
ANOTHER_OUTAGE_S = 300.0
# Exit codes of a command that `timeout` killed.
KILLED = {128 + signal.SIGKILL, -signal.SIGKILL}

Answer = TypeVar("Answer")
Completed = subprocess.CompletedProcess[str]


class QueueFullError(SubmitError):
    """The scheduler accepts no more jobs, of this user or of anybody, until others have ended."""


class AwayError(SubmitError):
    """The scheduler cannot answer now: the same call may succeed later."""

    def __init__(self, text: str, scheduler: str = "Slurm") -> None:
        super().__init__(text)
        self.scheduler = scheduler


class NoAnswerError(AwayError):
    """The scheduler did not answer in time; it may have done what the command asked for."""


@dataclass
class Patience:
    """Time for which calls are repeated while a scheduler is away, from the first that failed, whatever is called."""

    limit_s: float
    away_since: float | None = None
    """The start of the first call that failed since the last that was answered, in an outage that goes on."""
    failed_at: float = 0.0
    """The end of the last call that failed."""
    reported: bool = False

    def failed(self, begun: float) -> None:
        """Note a call that failed; after a long silence it is the first of another outage."""
        if self.away_since is None or begun - self.failed_at > ANOTHER_OUTAGE_S:
            self.away_since, self.reported = begun, False
        self.failed_at = time.monotonic()

    def pause_s(self, tries: int) -> float | None:
        """Return the seconds before another try; None if it would come too late."""
        pause_s = min(FIRST_PAUSE_S * 2.0**tries, LONGEST_PAUSE_S)
        # A controller that comes back is asked by all jobs of the site: not all of them at once.
        pause_s *= 0.75 + secrets.randbelow(256) / 1024
        late = self.away_since is None or time.monotonic() + pause_s - self.away_since > self.limit_s
        return None if late else pause_s

    def report(self, error: AwayError) -> None:
        """Print once that the scheduler is away and is asked again."""
        if not self.reported:
            self.reported = True
            limit = f"{self.limit_s / 60:.0f} min" if self.limit_s >= 120 else f"{self.limit_s:.0f} s"
            line = f"slurmscale: {error.scheduler} does not answer ({error}); it is asked again for up to {limit}"
            print(line, file=sys.stderr, flush=True)


_patience = [Patience(INTERACTIVE_S)]


@contextmanager
def patience(limit_s: float) -> Iterator[None]:
    """Repeat calls inside the block for this time while the scheduler is away."""
    _patience.append(Patience(limit_s))
    try:
        yield
    finally:
        _patience.pop()


def patiently(action: Callable[[], Answer]) -> Answer:
    """Return what an action on a scheduler returns; repeat it while it raises AwayError, as long as the caller waits.

    The action asks by itself whether an earlier try has reached the scheduler.
    """
    own = _patience[-1]
    tries = 0
    while True:
        begun = time.monotonic()
        try:
            # Calls inside the action do not wait on their own: one outage is waited for once.
            with patience(0):
                answer = action()
        except AwayError as error:
            own.failed(begun)
            pause_s = own.pause_s(tries)
            if pause_s is None:
                raise
            own.report(error)
            time.sleep(pause_s)
            tries += 1
        else:
            own.away_since, own.reported = None, False
            return answer


@dataclass(frozen=True)
class Scheduler:
    """The commands of a scheduler: how they are called, and what their messages mean."""

    name: str
    submits: str
    """Its command that submits a script."""
    refusal: Callable[[str], SubmitError]
    """Returns the exception for the error message of one of its commands."""
    check: str
    """A question to the user about a server that does not answer, with the command that shows it."""

    def ask(self, *command: str, text: str | None = None, timeout_s: float = COMMAND_TIMEOUT_S) -> str:
        """Return the output of a command that may run twice; raises SubmitError with its message if it fails."""
        return self.answered(*command, text=text, timeout_s=timeout_s).stdout

    def answered(self, *command: str, text: str | None = None, timeout_s: float = COMMAND_TIMEOUT_S) -> Completed:
        """Return stdout and stderr of a command that may run twice; raises SubmitError if it fails."""
        return patiently(lambda: self.answered_once(*command, text=text, timeout_s=timeout_s))

    def answered_or_unknown(self, *command: str) -> Completed:
        """Return the output of a command that must not run twice, such as sbatch.

        It ends also if this process is killed. It is repeated only while no server can have received it. Raises
        NoAnswerError if one may have.
        """
        unknown: list[NoAnswerError] = []

        def once() -> Completed | None:
            try:
                return self.answered_once(*command, timeout_s=COMMAND_TIMEOUT_S, outlives_caller=False, environment={})
            except NoAnswerError as error:
                unknown.append(error)
                return None

        answer = patiently(once)
        if answer is None:
            raise unknown[0]
        return answer

    def answered_once(
        self,
        *command: str,
        text: str | None = None,
        timeout_s: float,
        outlives_caller: bool = True,
        environment: dict[str, str] | None = None,
        failed: Callable[[Completed], bool] = lambda answer: answer.returncode != 0,
    ) -> Completed:
        """Return stdout and stderr of a command; raises SubmitError with its message if it `failed`.

        With `outlives_caller=False` it ends after `timeout_s` also if this process was killed. By default its messages
        are English; a job inherits the environment of sbatch, whose language is the user's.
        """
        # Python's own time limit dies with this process; `timeout` does not, so an sbatch cannot submit long after its
        # intent was given up.
        limit = () if outlives_caller else ("timeout", "--signal=KILL", str(timeout_s))
        more = {"LC_ALL": "C.UTF-8"} if environment is None else environment
        try:
            answer = subprocess.run(
                [*limit, *command], capture_output=True, encoding="utf-8", errors="replace", input=text or "",
                timeout=None if limit else timeout_s, check=False, env=clean_environment() | more,
            )  # fmt: skip
        except FileNotFoundError as error:
            raise SubmitError(f"{command[0]} is not on this machine's PATH.") from error
        except BlockingIOError as error:  # no process can be started on a full login node
            raise AwayError(f"{command[0]} cannot be started: {error.strerror}", self.name) from error
        except subprocess.TimeoutExpired as error:
            raise self.no_answer(command[0], timeout_s) from error
        if answer.returncode in KILLED:
            # sbatch waits between its own tries on a full controller.
            full = self.refusal(answer.stderr)
            raise full if isinstance(full, QueueFullError) else self.no_answer(command[0], timeout_s)
        if failed(answer):
            raise self.refusal(answer.stderr or answer.stdout)
        return answer

    def no_answer(self, command: str, timeout_s: float) -> NoAnswerError:
        """Return the exception for a command that was ended after its time."""
        return NoAnswerError(f"{command} gave no answer in {timeout_s:.0f} s; {self.check}", self.name)

    @contextmanager
    def refusals_of(self, what: str) -> Iterator[None]:
        """Complete the errors of a submission with the runs or the stage that it was for."""
        try:
            yield
        except QueueFullError:
            raise
        except NoAnswerError as error:
            raise NoAnswerError(
                f"{self.name} did not confirm the job of {what}: {error}. It may be in the queue: `slurmscale status` "
                "looks for it, and `slurmscale resume` submits what is missing.",
                self.name,
            ) from error
        except SubmitError as error:
            raise SubmitError(f"{self.submits} refused {what}: {error}.") from error


def message(stderr: str, commands: str) -> str:
    """Return the error message of a command, without the name of the command (a regular expression) on each line."""
    lines = [re.sub(rf"^\s*({commands}): (error: )?", "", line) for line in stderr.splitlines()]
    return "; ".join(dict.fromkeys(line.strip() for line in lines if line.strip())) or "no message"

"""A program that listens at free ports of this node, and starts again at other ports if these were taken before."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from jobs.failure_causes import FailureCause, KnownCauseError
from jobs.ranks import node_name
from jobs.work.program.piece import Piece
from jobs.work.program.ports import contained_elsewhere, is_answered_by, reserved_port, url_of
from jobs.work.program.probe import PROBE_LIMIT_S, is_healthy

MOST_STARTS = 4
"""Starts of a program whose ports are taken each time."""
IN_USE = re.compile(r"address (?:is )?already in use|EADDRINUSE|\berrno:? 98\b", re.IGNORECASE)


@dataclass(frozen=True)
class Door:
    """An address of this node where a program listens."""

    address: str
    """By which others reach it."""
    bound: str
    """The address that the program binds; empty: all."""


class Listener:
    """A program that takes requests at the first of its doors; a port is kept for each door until it listens there."""

    def __init__(self, stack: ExitStack, doors: Sequence[Door], start: Callable[[Sequence[int]], Piece]) -> None:
        """Start the program, which gets a port for each door; the end of the stack ends it."""
        self.doors = doors
        self._start = start
        self._kept = ExitStack()
        self.starts = 0
        self._begin()
        stack.callback(self._end)

    def _begin(self) -> None:
        with self._kept, ExitStack() as kept:
            # The earlier ports are still kept, so these are others.
            self.ports = [kept.enter_context(reserved_port(door.bound)) for door in self.doors]
            self._kept = kept.pop_all()
        self.starts += 1
        self.began = time.monotonic()
        """When the program last started, by the monotonic clock."""
        self.piece = self._start(self.ports)

    def _end(self) -> None:
        with self._kept:
            self.piece.end()

    @property
    def url(self) -> str:
        """The URL of its requests."""
        return url_of(self.doors[0].address, self.ports[0])

    def becomes_ready(self, health: str) -> bool:
        """Return True if the program answers; start it again at other ports if another program has taken one.

        Raise KnownCauseError if it has ended for another reason, or its ports are taken each time.
        """
        theft = next((theft for door in range(len(self.doors)) if (theft := self._theft(door))), None)
        lost = theft
        if theft is None and self.piece.ended() and IN_USE.search(self.piece.printed()):
            lost = f"{self.piece.name} on {node_name()} found a port in use"
        if lost is not None and self.starts < MOST_STARTS and not self._contained():
            print(
                f"{lost}. It starts again at other ports, start {self.starts + 1} of {MOST_STARTS} at most", flush=True
            )
            self.piece.end()
            self._begin()
            return False
        if theft is not None:
            raise self._taken(theft)
        self.piece.check()
        return self.answers(health)

    def answers(self, health: str) -> bool:
        """Return True if the program answers; raise KnownCauseError if another one would, in its place."""
        if theft := self._theft(0):
            raise self._taken(theft)
        return self._is_own(0) is True and is_healthy(self.url, health, PROBE_LIMIT_S)

    def _theft(self, number: int) -> str | None:
        """Return the sentence about another program that listens at the port of a door, else None."""
        if self._is_own(number) is not False:
            return None
        return (
            f"another program on {node_name()} has taken port {self.ports[number]} at {self.doors[number].address}, "
            f"which was chosen for {self.piece.name}"
        )

    def _contained(self) -> str:
        return contained_elsewhere(self.piece.process.pid)

    def _taken(self, theft: str) -> KnownCauseError:
        """Return the error for a port where another program listens."""
        remedy = self._contained() or ". Nothing that it answers is measured; the next start takes another port"
        return KnownCauseError(FailureCause.launch_failure, f"{theft}{remedy}")

    def _is_own(self, number: int) -> bool | None:
        return is_answered_by(self.piece.process.pid, self.doors[number].address, self.ports[number])

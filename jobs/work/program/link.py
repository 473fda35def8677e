"""The connection of each rank with rank 0: messages in JSON lines, a heartbeat, and the end of either side."""

from __future__ import annotations

import json
import select
import socket
import time
from collections.abc import Iterable
from typing import Any

from jobs.failure_causes import FailureCause, KnownCauseError
from jobs.files import parse_json

BEAT_S = 2.0
LONGEST_MESSAGE = 65_536
MOST_MESSAGES = 10_000
"""Between two looks at a link; a rank sends a handful."""


class Link:
    """One end of a connection. The other rank is lost if it ends, and hangs if it is silent for too long."""

    def __init__(self, connection: socket.socket, other: str) -> None:
        connection.setblocking(False)
        self.connection = connection
        self.other = other
        """The other rank as text."""
        self.buffer = b""
        self.heard = self.sent = time.monotonic()

    def send(self, **message: Any) -> None:
        """Send a message; a few hundred bytes fit the socket's buffer, so it never waits."""
        self.sent = time.monotonic()
        try:
            self.connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise self.loss() from error

    def beat(self) -> None:
        """Send a heartbeat if it is due."""
        if time.monotonic() - self.sent > BEAT_S:
            self.send()

    def received(self, hang_timeout_s: float) -> list[dict[str, Any]]:
        """Return the messages that have arrived. Raise KnownCauseError if the other rank has ended or hangs."""
        messages: list[dict[str, Any]] = []
        try:
            while data := self.connection.recv(LONGEST_MESSAGE):
                self.heard = time.monotonic()
                *lines, self.buffer = (self.buffer + data).split(b"\n")
                messages += [message for line in lines if (message := message_of(line))]
                if len(self.buffer) > LONGEST_MESSAGE or len(messages) > MOST_MESSAGES:
                    raise self.loss()
        except BlockingIOError:
            if time.monotonic() - self.heard > hang_timeout_s:
                text = f"{self.other} has sent nothing for {hang_timeout_s} s (engine.hang_timeout_s)"
                raise KnownCauseError(FailureCause.hung, text) from None
            return messages
        except (OSError, ValueError) as error:
            raise self.loss() from error
        # The connection has ended: what came before its end is returned first, and the next call raises.
        if not messages:
            raise self.loss()
        return messages

    def loss(self) -> KnownCauseError:
        """Return the error for a rank that has ended."""
        return KnownCauseError(FailureCause.lost_peer, f"{self.other} has ended")


def message_of(line: bytes) -> dict[str, Any]:
    """Return the message of a line, empty for another value; raise ValueError for what is not JSON."""
    message = parse_json(line)
    return message if isinstance(message, dict) else {}


def pause(links: Iterable[Link], within_s: float) -> None:
    """Return when a message arrives on a link, or the time is over."""
    connections = [link.connection for link in links]
    if connections:
        select.select(connections, [], [], within_s)
    else:
        time.sleep(within_s)

"""Requests to a replica or balancer: its health, and its counters."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

MOST_BYTES = 16 * 2**20
PROBE_LIMIT_S = 5.0
"""Longest time of one look at a server."""


def is_healthy(url: str, path: str, within_s: float) -> bool:
    """Return True if a path of a server answers with status 200 in time."""
    return fetched(url, path, within_s) is not None


def fetched(url: str, path: str, within_s: float) -> bytes | None:
    """Return the answer of a server with status 200; None for another status, or without a whole answer in time."""
    deadline = time.monotonic() + within_s
    # Not urllib, which would follow http_proxy of the environment.
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=within_s)
    try:
        connection.connect()
        # The socket's own limit is that of each read: a server that sends a byte now and then would never reach it.
        with ended_at(connection.sock, deadline):
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read(MOST_BYTES)
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    in_time = time.monotonic() < deadline
    return body if in_time and answer.status == http.HTTPStatus.OK else None


@contextmanager
def ended_at(connection: socket.socket, deadline: float) -> Iterator[None]:
    """Shut a connection down at the deadline, which ends every read of it; by the monotonic clock."""

    def end() -> None:
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(max(0.0, deadline - time.monotonic()), end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()

"""Connections to a port of ours that anybody on the network can open: the first line of each, within bounds.

A stranger may send anything, slowly, or nothing. Each visitor is heard in a thread of its own, so none makes another
one wait; all that goes wrong with one ends its connection and nothing else. Needs no torch: the doctor uses it too.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

PAUSE_S = 0.1


def hear(door: socket.socket, answer: Callable[[socket.socket], None]) -> None:
    """Answer each visitor of a listening socket in a thread of its own, until the socket is closed.

    `answer` closes the connection, or keeps it.
    """

    def attend() -> None:
        while door.fileno() >= 0:
            try:
                visitor, _ = door.accept()
            except TimeoutError:
                continue
            except OSError:
                # Strangers hold all descriptors of this process; their connections end at their deadline.
                time.sleep(PAUSE_S)
                continue
            threading.Thread(target=guarded, args=(visitor,), daemon=True).start()

    def guarded(visitor: socket.socket) -> None:
        try:
            answer(visitor)
        except Exception:  # noqa: BLE001 (whatever a stranger has caused)
            visitor.close()

    # A socket that another thread closes does not end an accept that waits.
    door.settimeout(PAUSE_S)
    threading.Thread(target=attend, daemon=True).start()


def first_line(connection: socket.socket, most_bytes: int, within_s: float) -> bytes:
    """Return the first line of a new connection without its end; empty for one that is too long or too late.

    The deadline is that of the whole line, however slowly it arrives. Nothing behind the line is read.
    """
    deadline = time.monotonic() + within_s
    line = b""
    with suppress(OSError):
        while (left_s := deadline - time.monotonic()) > 0 and len(line) <= most_bytes:
            connection.settimeout(left_s)
            peeked = connection.recv(most_bytes + 1 - len(line), socket.MSG_PEEK)
            taken, end, _ = peeked.partition(b"\n")
            line += connection.recv(len(taken) + len(end))[: len(taken)]
            if end and len(line) <= most_bytes:
                return line
            if not peeked:
                break
    return b""

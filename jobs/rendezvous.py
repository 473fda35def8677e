"""The file by which the ranks of one start find each other: address, port and a random token of rank 0.

Rank 0 takes a port that is free, so nobody can wait there for a run, two runs never collide, and a restart does not
meet its predecessor. The file lies in the run's directory, which only its owner can enter, and has the name of the
start. Needs no torch, no lock and no signal between nodes: the doctor uses it too.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from jobs.output import write_file

# Over all ranks that look for the file: a directory of a parallel file system has one server.
LOOKS_PER_S = 2000
LEAST_PAUSE_S = 0.02
LARGEST_FILE_BYTES = 4096
LOOPBACK = "127.0.0.1"


class RendezvousError(OSError):
    """The other side did not appear in time."""


@dataclass(frozen=True)
class Rendezvous:
    """The place where the ranks of a start meet."""

    address: str
    port: int
    token: str
    """A secret of this start."""


def listen(address: str) -> socket.socket:
    """Return a listening socket on a free port, by which others reach this node under the address."""
    if address == LOOPBACK:
        return socket.create_server((address, 0))
    # Of both families: a name may resolve to either, and nobody else can listen at this port in the other one.
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


def announce(file: Path, address: str, port: int) -> Rendezvous:
    """Write the file atomically, readable by its owner only, with a new token."""
    found = Rendezvous(address, port, secrets.token_hex(16))
    write_file(file, json.dumps(asdict(found)), mode=0o600)
    return found


def await_file(file: Path, within_s: float, looking: int = 1) -> Rendezvous:
    """Return the contents of the file when it appears; `looking` is the number of ranks that wait for it.

    Raise RendezvousError if it does not appear in time.
    """
    deadline = time.monotonic() + within_s
    while True:
        # Listing opens the directory, for which NFS asks the server; a single file may be missing in a stale cache.
        if file.name in os.listdir(file.parent):  # noqa: PTH208 (many ranks look often)
            with file.open() as text:
                return Rendezvous(**json.loads(text.read(LARGEST_FILE_BYTES)))
        if time.monotonic() > deadline:
            raise RendezvousError(
                f"{file} did not appear within {max(0, within_s):.0f} s. The rank or node that writes it failed, or "
                "its files are not seen here: runs_dir must be on a file system that all nodes share."
            )
        time.sleep(max(LEAST_PAUSE_S, looking / LOOKS_PER_S))

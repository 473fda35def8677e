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
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from jobs.files import parse_json, read_bytes, reason
from jobs.output import write_file

# Over all ranks that look for the file: a directory of a parallel file system has one server.
LOOKS_PER_S = 2000
LEAST_PAUSE_S = 0.02
LARGEST_FILE_BYTES = 4096
LOOPBACK = "127.0.0.1"


class RendezvousError(OSError):
    """The other side did not appear in time, or its file is not one of a rendezvous."""


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
    # Addresses of both families: a name may resolve to either, and nobody else can listen at this port in the other.
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

    Raise RendezvousError if it does not appear in time, or contains something else.
    """
    deadline = time.monotonic() + within_s
    while True:
        # Listing opens the directory, for which NFS asks the server; a single file may be missing in a stale cache.
        if file.name in os.listdir(file.parent):  # noqa: PTH208 (many ranks look often)
            return read(file)
        if time.monotonic() > deadline:
            raise RendezvousError(
                f"{file} did not appear within {max(0, within_s):.0f} s. The rank or node that writes it failed, or "
                "its files are not seen here: runs_dir must be on a file system that all nodes share."
            )
        time.sleep(max(LEAST_PAUSE_S, looking / LOOKS_PER_S))


def read(file: Path) -> Rendezvous:
    """Return the contents of the file. Raise RendezvousError if it is not one of a rendezvous."""
    try:
        values = parse_json(read_bytes(file, LARGEST_FILE_BYTES))
    except (FileNotFoundError, PermissionError):
        raise
    except (OSError, ValueError) as error:
        raise unusable(file, reason(error)) from error
    names = {field.name for field in fields(Rendezvous)}
    if not isinstance(values, dict) or values.keys() != names:
        raise unusable(file, f"it is not an object of {', '.join(sorted(names))}")
    found = Rendezvous(**values)
    if not (isinstance(found.address, str) and isinstance(found.token, str) and type(found.port) is int):
        raise unusable(file, "address and token must be texts, and port a number")
    if not (found.address and found.token and 0 < found.port < 1 << 16):
        raise unusable(file, "address and token must not be empty, and port must be 1 to 65535")
    return found


def unusable(file: Path, why: str) -> RendezvousError:
    """Return the error for a file by which no ranks can meet."""
    return RendezvousError(f"{file} is not the file of a rendezvous: {why}. Remove it and start the run again.")

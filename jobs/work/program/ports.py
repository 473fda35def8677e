"""Ports that are free on a node when their program starts, and the proof that it is the one that listens there."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LISTEN = "0A"
"""State of a listening socket in /proc/net/tcp."""
SOCKET = re.compile(r"socket:\[(\d+)\]")
ANY = ("0.0.0.0", "::")  # noqa: S104 (compared, not bound)
CONTAINER_ENGINES = {"docker", "podman", "nerdctl"}
LOOKS_AFTER_S = (0.0, 0.1, 0.4)
"""Pauses before each look at a socket that nobody of ours holds."""


@contextmanager
def reserved_port(host: str) -> Iterator[int]:
    """Yield a free port of an address of this node, and keep it from most others for the time of the block.

    An empty address stands for all. The socket is bound and does not listen. The kernel gives its port to no other
    `bind` to port 0 and to no outgoing connection, and lets a program that sets SO_REUSEADDR, as servers do, bind and
    listen there. That may be a program of another user: `is_answered_by` tells.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as kept:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind((host, 0))
        yield kept.getsockname()[1]


def is_answered_by(session: int, host: str, port: int) -> bool | None:
    """Return True if a process of a session listens at an address of this node, False if another program does.

    None: nobody listens there. A reserved port can be taken by every user as long as its server does not listen, and
    then answers in its place. The kernel lists each listening socket with its inode, and the descriptors of our own
    processes name the inodes that they hold (proc(5): /proc/net/tcp, /proc/PID/fd).
    """
    # The two lists are read one after the other. A process that ends or forks between them holds nothing for a moment,
    # and its socket is listed: only one that stays is another program's.
    for pause_s in LOOKS_AFTER_S:
        time.sleep(pause_s)
        sockets = listening(host, port)
        if not sockets:
            return None
        if set(sockets) <= held_by(session) if all_readable(session) else set(sockets.values()) == {os.getuid()}:
            return True
    return False


def contained_elsewhere(session: int) -> str:
    """Return why a port that a container holds is not proven to be that of its session; empty without such a container.

    Docker's containers are children of its daemon, and podman's of a process that leaves the session; docker-proxy and
    rootlessport hold their ports. Those of pyxis and apptainer are children of their command, in the node's network.
    """
    if not any(name_of(process) in CONTAINER_ENGINES for process in members(session)):
        return ""
    return (
        "; a container of docker or podman does not run in the session of its command, so nothing proves that the port "
        "is its own, and it may outlive the run. Start the program by apptainer exec, or set cluster.container"
    )


def name_of(process: Path) -> str:
    """Return the name of a process; empty if it has ended."""
    with suppress(OSError):
        return (process / "comm").read_text().strip()
    return ""


def listening(host: str, port: int) -> dict[int, int]:
    """Return the user of each socket that takes connections to an address and port of this node, by its inode."""
    found: dict[str, dict[int, int]] = {}
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path("/proc/net", table).read_text().splitlines()[1:]:
                fields = line.split()
                address, _, hexadecimal = fields[1].rpartition(":")
                if fields[3] == LISTEN and int(hexadecimal, 16) == port:
                    found.setdefault(as_address(address), {})[int(fields[9])] = int(fields[7])
    # The kernel prefers the socket of the very address to one of all addresses.
    exact = found.get(str(ipaddress.ip_address(host.partition("%")[0])), {})
    return exact or {inode: user for address in ANY for inode, user in found.get(address, {}).items()}


def as_address(words: str) -> str:
    """Return an address of /proc/net/tcp, which are words of 32 bits in the order of this machine."""
    packed = b"".join(int(words[i : i + 8], 16).to_bytes(4, sys.byteorder) for i in range(0, len(words), 8))
    address = ipaddress.ip_address(packed)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def members(session: int) -> list[Path]:
    """Return the directories in /proc of the processes of a session, and of their descendants in other ones."""
    parents: dict[int, int] = {}
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError):
            pid = int(stat.parent.name)
            # The name of the program, in parentheses, may contain anything.
            _, parent, _, own = stat.read_text().rpartition(") ")[2].split()[:4]
            parents[pid] = int(parent)
            if int(own) == session:
                found.add(pid)
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return [Path("/proc", str(pid)) for pid in sorted(found)]


def held_by(session: int) -> set[int]:
    """Return the inodes of the sockets that the processes of a session hold."""
    found = set()
    for process in members(session):
        with suppress(OSError):
            for descriptor in (process / "fd").iterdir():
                with suppress(OSError):
                    if match := SOCKET.fullmatch(str(descriptor.readlink())):
                        found.add(int(match[1]))
    return found


def all_readable(session: int) -> bool:
    """Return True if this user may read the descriptors of all processes of a session: none is a setuid program."""
    return all(os.access(process / "fd", os.R_OK | os.X_OK) for process in members(session) if process.exists())


def url_of(host: str, port: int) -> str:
    """Return the URL of a port."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def own_address(connection: socket.socket) -> str:
    """Return the address of this node in a connection, as the other side reaches it."""
    # A socket of both families has IPv4 addresses in IPv6's form (RFC 4291, section 2.5.5.2).
    return str(connection.getsockname()[0]).removeprefix("::ffff:")


def other_address(connection: socket.socket) -> str:
    """Return the address of the other node of a connection, as this one reaches it."""
    return str(connection.getpeername()[0]).removeprefix("::ffff:")

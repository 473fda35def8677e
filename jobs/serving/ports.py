"""Ports that are free on a node, and stay so until their program listens there."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def reserved_port(host: str) -> Iterator[int]:
    """Yield a free port of an address of this node, and keep it from all others for the time of the block.

    An empty address stands for all. The socket is bound and does not listen. The kernel gives its port to no other
    `bind` to port 0 and to no outgoing connection, and lets a program that sets SO_REUSEADDR, as servers do, bind and
    listen there.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as kept:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind((host, 0))
        yield kept.getsockname()[1]


def url_of(host: str, port: int) -> str:
    """Return the URL of a port."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def own_address(connection: socket.socket) -> str:
    """Return the address of this node in a connection, as the other side reaches it."""
    # A socket of both families has IPv4 addresses in IPv6's form (RFC 4291, section 2.5.5.2).
    return str(connection.getsockname()[0]).removeprefix("::ffff:")

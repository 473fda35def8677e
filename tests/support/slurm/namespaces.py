"""Nodes in network namespaces of their own, joined by links that tc shapes.

A namespace is held by a `cat` that reads from this process, and by what runs in it. Whatever ends this process ends
the `cat`s too, and with the last process of a namespace the kernel removes it with its links: nothing is left to
clean up. Needs root, iproute2 and util-linux.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

HEAD = "10.77.0.254"
"""The address of this process's namespace, in the network `eth0` of all nodes."""
CLONE_NEWNS, CLONE_NEWNET = 0x20000, 0x40000000
"""Flags of unshare(2), from linux/sched.h; os.unshare needs Python 3.12."""


@dataclass(frozen=True)
class Namespace:
    """The network namespace of a node."""

    pid: int
    """A process in it."""
    address: str
    """Its address in the network that it shares with the head."""

    @property
    def enter(self) -> tuple[str, ...]:
        """Return the words before a command that runs in it."""
        return "nsenter", f"--net=/proc/{self.pid}/ns/net"


def leave_host() -> None:
    """Put this process into a network namespace of its own, with an /etc/hosts of its own; raise OSError if it may not.

    Devices, addresses, ports and names of nodes then exist for this process and its children only.
    """
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET | CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "a network namespace needs root")
    command("mount", "--make-rprivate", "/")
    with tempfile.NamedTemporaryFile() as own:
        path = Path(own.name)
        path.write_text(Path("/etc/hosts").read_text())
        path.chmod(0o644)
        # The mount keeps the file when its name is gone.
        command("mount", "--bind", str(path), "/etc/hosts")
    command("ip", "link", "set", "lo", "up")


@contextmanager
def two_nodes(names: tuple[str, str], rates: Mapping[str, str]) -> Iterator[dict[str, Namespace]]:
    """Make two nodes: `eth0` joins both with this process, and each link of `rates` joins them with its rate.

    A rate is tc's (`100mbit`); it is that of each direction. Call `leave_host` before.
    """
    with ExitStack() as stack:
        nodes = {}
        command("ip", "link", "add", "name", "nodes", "type", "bridge")
        command("ip", "address", "add", f"{HEAD}/24", "dev", "nodes")
        command("ip", "link", "set", "nodes", "up")
        for number, name in enumerate(names, start=1):
            holder = stack.enter_context(
                # Its standard input ends together with this process.
                subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
            )
            nodes[name] = node = Namespace(holder.pid, f"10.77.0.{number}")
            wait_for_namespace(holder.pid)
            inside(node, "ip", "link", "set", "lo", "up")
            command("ip", "link", "add", "name", name, "type", "veth", "peer", "name", "eth0", "netns", str(node.pid))
            command("ip", "link", "set", name, "master", "nodes", "up")
            up(node, "eth0", node.address)
        first, second = nodes.values()
        for net, (link, rate) in enumerate(rates.items(), start=1):
            inside(
                first, "ip", "link", "add", "name", link, "type", "veth", "peer", "name", link, "netns", str(second.pid)
            )  # fmt: skip
            for number, node in enumerate((first, second), start=1):
                up(node, link, f"10.77.{net}.{number}")
                shape = ("root", "tbf", "rate", rate, "burst", "256kb", "latency", "200ms")
                inside(node, "tc", "qdisc", "replace", "dev", link, *shape)
        yield nodes


def wait_for_namespace(pid: int) -> None:
    """Wait until `unshare` has put a child into its namespace."""
    own = Path("/proc/self/ns/net").readlink()
    while Path(f"/proc/{pid}/ns/net").readlink() == own:
        time.sleep(0.01)


def up(node: Namespace, link: str, address: str) -> None:
    """Give a link of a node its address."""
    inside(node, "ip", "address", "add", f"{address}/24", "dev", link)
    inside(node, "ip", "link", "set", link, "up")


def inside(node: Namespace, *words: str) -> None:
    """Run a command in the namespace of a node."""
    command(*node.enter, *words)


def command(*words: str) -> None:
    """Run a command; raise CalledProcessError if it fails."""
    subprocess.run(words, check=True)

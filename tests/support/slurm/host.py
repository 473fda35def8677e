"""The traces of the private Slurm on its host, and their removal: processes, ports, lines in /etc/hosts.

Works from the root directory alone, without the object that started the cluster, so that another process can clean up
after a killed one. Knows nothing of configuration. Called by `cluster.py` and `__main__.py`.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

HOSTS = Path("/etc/hosts")
# Set for the daemons only, so that they are found in /proc whoever asks and whatever they forked.
DAEMON_MARK = "SLURMSCALE_SLURM_ROOT"
# Variables that a job inherits from Slurm, or that its commands read: those of an outer Slurm would change this one.
SLURM_PREFIXES = ("SLURM", "SBATCH_", "SRUN_", "SALLOC_")
STATE_FILE = "slurmscale-slurm.json"
STOP_WAIT_S = 180.0
# Below the ephemeral ports (32768 on), which any outgoing connection may take at any time.
PORT_BLOCKS = range(20000, 32000, 100)


@contextmanager
def reserved_ports(count: int) -> Iterator[int]:
    """First of `count` consecutive free ports, kept from other clusters that start in the meantime."""
    for base in random.sample(PORT_BLOCKS, len(PORT_BLOCKS)):
        # An abstract socket is a lock that needs no file, no permission, and ends with its process.
        with socket.socket(socket.AF_UNIX) as lock:
            try:
                lock.bind(f"\0slurmscale-slurm-{base}")
                for port in range(base, base + count):
                    with socket.socket() as probe:
                        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                        probe.bind(("", port))
            except OSError:
                continue
            yield base
            return
    raise RuntimeError(f"no {count} consecutive free ports between 20000 and 32000")


def listens(port: int) -> bool:
    """Return True if a local program accepts connections on `port`."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def add_hosts(root: Path, lines: list[str]) -> None:
    """Make node names resolve by lines of `host_lines`; OSError where /etc/hosts cannot be written."""
    _edit_hosts(root, lines)


def remove_hosts(root: Path) -> None:
    """Remove the lines of the cluster in `root`, and of clusters whose directory is gone."""
    with suppress(PermissionError):
        _edit_hosts(root, [])


def host_lines(nodes: list[str], addresses: Mapping[str, str]) -> list[str]:
    """Lines for a hosts file: the address of each node, or 127.0.1.1 for the first one and so on."""
    return [f"{addresses.get(node, f'127.0.1.{number}')} {node}" for number, node in enumerate(nodes, start=1)]


def _edit_hosts(root: Path, new_lines: list[str]) -> None:
    tag = " # slurmscale-slurm "
    with HOSTS.open("r+") as file:
        # The file is edited in place because in containers it is a mount point, which cannot be renamed over; in
        # return it is always the same file, and so its own lock.
        fcntl.flock(file, fcntl.LOCK_EX)
        old = file.read()
        kept = []
        for line in old.splitlines():
            owner = line.partition(tag)[2]
            if not owner or (owner != str(root) and Path(owner).exists()):
                kept.append(line)
        new = "".join(f"{line}\n" for line in [*kept, *(f"{line}{tag}{root}" for line in new_lines)])
        if new != old:
            file.seek(0)
            file.write(new)
            file.truncate()


@dataclass(frozen=True)
class State:
    """The facts that another process needs about a running cluster."""

    env: dict[str, str]
    daemons: set[int]


def write_state(root: Path, state: State | None) -> None:
    """Mark `root` as a cluster's, so that `stop` may remove it; without a state it is not up yet."""
    content = {} if state is None else {"env": state.env, "daemons": sorted(state.daemons)}
    (root / STATE_FILE).write_text(json.dumps(content))


def read_state(root: Path) -> State | None:
    """The cluster in `root`, or None where there is none or its bring-up did not end."""
    try:
        content = json.loads((root / STATE_FILE).read_text())
    except FileNotFoundError:
        return None
    return State(content["env"], set(content["daemons"])) if content else None


def processes_of_node(root: Path, node: str) -> list[int]:
    """Live processes of jobs on a node of the cluster in `root`, and the slurmstepds that started them."""
    found = []
    for pid in processes(root):
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            if f"SLURMD_NODENAME={node}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
                stepd = Path(f"/proc/{parent}/comm").read_text().strip() == "slurmstepd"
                found += [pid, *([int(parent)] if stepd else [])]
    return found


def processes(root: Path) -> list[int]:
    """Live processes of the cluster in `root`: daemons, job steps, jobs, and whatever those started."""
    daemon = f"{DAEMON_MARK}={root}".encode()
    conf = f"SLURM_CONF={root}/slurm.conf".encode()
    parents: dict[int, int] = {}
    found: set[int] = set()
    for entry in Path("/proc").glob("[0-9]*"):
        pid = int(entry.name)
        # A process may end between two lines, and those of other users keep their environment to themselves.
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            if state in "ZX":
                # If PID 1 reaps slowly, dead processes stay listed for seconds.
                continue
            parents[pid] = int(parent)
            environ = (entry / "environ").read_bytes().split(b"\0")
            in_job = conf in environ and any(value.startswith(b"SLURMD_NODENAME=") for value in environ)
            if daemon in environ or in_job:
                found.add(pid)
    grown = True
    while grown:
        children = {pid for pid, parent in parents.items() if parent in found} - found
        found |= children
        grown = bool(children)
    pid = os.getpid()
    while pid in parents:
        found.discard(pid)
        pid = parents[pid]
    return sorted(found)


def stop(root: Path) -> None:
    """Kill every process of the cluster in `root`, remove its host names and then the directory.

    Killed, not asked: nothing of it is kept, and a daemon that shuts down in order waits for the others.
    """
    if not (root / STATE_FILE).exists():
        return
    deadline = time.monotonic() + STOP_WAIT_S
    while pids := processes(root):
        if time.monotonic() > deadline:
            raise RuntimeError(f"processes {pids} of the Slurm in {root} did not end when killed")
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    remove_hosts(root)
    shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    # The guard of a cluster: wait until the process that holds the other end is gone, however it went.
    sys.stdin.read()
    stop(Path(sys.argv[1]))

"""The ranks of a run that start programs: every rank connects to rank 0, which knows the token of this start."""

from __future__ import annotations

import hmac
import queue
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any

from jobs import metrics as m
from jobs.failure_causes import STOPS, FailureCause, KnownCauseError
from jobs.files import parse_json
from jobs.lease import Lease
from jobs.metrics import StoragePhase
from jobs.ranks import Rank, node_name, restart_count, scheduled_job_id
from jobs.rendezvous import announce, await_file, listen
from jobs.rundir import append_event, read_events
from jobs.runtime import storage_io
from jobs.runtime.gpus.nvidia import gpu_name
from jobs.runtime.machine import StopRequest, boot_id, cpu_name, process_start
from jobs.schema import Run
from jobs.visitors import first_line, hear
from jobs.work.program.link import Link, pause

LOOK_S = 0.2
LONGEST_HELLO_BYTES = 4096
HELLO_LIMIT_S = 5.0
GOODBYE_S = 60.0


RankFunction = Callable[[Run, Lease, Rank, StopRequest, ExitStack], None]
"""The work of rank 0, or of another rank."""


class StoppedError(Exception):
    """The run was asked to stop."""


@dataclass
class Others:
    """The connections of this rank: rank 0 has one for each other rank, every other rank has one."""

    run: Run
    links: dict[int, Link]
    """By number of the other rank."""
    stop: StopRequest

    def messages(self) -> list[tuple[int, dict[str, Any]]]:
        """Wait for a moment, and return what has arrived, with the number of the rank."""
        pause(self.links.values(), LOOK_S)
        found = []
        for rank, link in self.links.items():
            link.beat()
            found += [(rank, message) for message in link.received(self.run.engine.hang_timeout_s)]
        return found

    def send(self, **message: Any) -> None:
        """Send a message to each of the other ranks: the first node of a replica knows of the end before its parts."""
        for rank in sorted(self.links):
            self.links[rank].send(**message)


def led(run: Run, lease: Lease, rank: Rank, lead: RankFunction, follow: RankFunction) -> None:
    """Let rank 0 lead a run and all others follow; what they have started ends with them. Every rank calls it."""
    stop = StopRequest()
    with ExitStack() as stack:
        (lead if rank.is_first else follow)(run, lease, rank, stop, stack)


def node_recorded(run: Run, lease: Lease, rank: Rank, phase: StoragePhase) -> AbstractContextManager[None]:
    """Return a context that records the use of the node on its first rank."""
    return nullcontext() if rank.local_rank else storage_io.rank_recorded(run, lease.run, rank, phase)


# --- rank 0 ----------------------------------------------------------------------------------------------------


def meet(
    run: Run, lease: Lease, rank: Rank, stop: StopRequest, stack: ExitStack
) -> tuple[Others, list[dict[str, Any]]]:
    """Return the connections of all other ranks, and node and machine of each rank in their order."""
    hosts = {0: {"node": node_name(), "boot": boot_id()}}
    others = Others(run, {}, stop)
    if run.ranks == 1:
        return others, [hosts[0]]
    file = lease.run.rendezvous(rank.start)
    with listen(rank.master_addr) as door:
        place = announce(file, rank.master_addr, door.getsockname()[1])
        stack.callback(file.unlink, missing_ok=True)
        # Each visitor is heard in a thread of its own, so that a silent stranger keeps no rank out.
        arrived: queue.SimpleQueue[tuple[socket.socket, Hello]] = queue.SimpleQueue()
        hear(door, lambda visitor: arrived.put((visitor, hello_of(visitor, place.token, run.ranks))))
        deadline = time.monotonic() + run.engine.hang_timeout_s
        while len(others.links) < run.ranks - 1:
            try:
                connection, hello = arrived.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty as error:
                missing = min(set(range(1, run.ranks)) - others.links.keys())
                raise KnownCauseError(
                    FailureCause.lost_peer, f"rank {missing} did not connect within {run.engine.hang_timeout_s} s"
                ) from error
            stack.callback(connection.close)
            others.links[hello.rank] = Link(connection, f"rank {hello.rank} on {hello.node}")
            hosts[hello.rank] = {"node": hello.node, "boot": hello.boot}
    return others, [hosts[number] for number in range(run.ranks)]


@dataclass(frozen=True)
class Hello:
    """The first message of a rank."""

    rank: int
    node: str
    boot: str


def hello_of(visitor: socket.socket, token: str, ranks: int) -> Hello:
    """Return the first message of a connection; raise ValueError for a stranger, who does not know the token."""
    found = parse_json(first_line(visitor, LONGEST_HELLO_BYTES, HELLO_LIMIT_S))
    if not isinstance(found, dict) or not hmac.compare_digest(str(found.get("token")).encode(), token.encode()):
        raise ValueError("a stranger")
    hello = Hello(int(found["rank"]), str(found["node"]), str(found["boot"]))
    if hello.rank not in range(1, ranks):
        raise ValueError(f"there is no rank {hello.rank}")
    return hello


def record_start(run: Run, lease: Lease, hosts: Sequence[Mapping[str, Any]]) -> int:
    """Take the run over and record its start; return the number of the attempt."""
    lease.take()
    attempt: int = 1 + sum(event["event"] == "started" for event in read_events(lease.run.status))
    nodes, machines = list(dict.fromkeys(host["node"] for host in hosts)), {host["boot"] for host in hosts}
    append_event(
        lease.run, "started", attempt=attempt, restart=restart_count(), from_step=0, ranks=run.ranks,
        job_id=scheduled_job_id(), nodes=nodes, machines=sorted(machines), emulated_nodes=len(machines) < run.nodes,
        device="cuda" if run.cluster.gpus else "cpu", device_name=gpu_name() if run.cluster.gpus else cpu_name(),
    )  # fmt: skip
    return attempt


def record_stop(lease: Lease, stop: StopRequest, attempt: int) -> None:
    """Record that the run was asked to stop."""
    reason = STOPS[signal.Signals(stop.signal)].reason
    append_event(lease.run, "stopped", attempt=attempt, step=0, reason=reason)


def record_finish(lease: Lease, attempt: int) -> None:
    """Record that the run has finished."""
    append_event(lease.run, "finished", attempt=attempt, step=0, **{m.TOTAL_TIME.name: time.time() - process_start()})


def attended(others: Others, lease: Lease) -> list[tuple[int, dict[str, Any]]]:
    """Return the messages to rank 0. Raise if the run was asked to stop, or another start has taken it over."""
    if others.stop.signal:
        raise StoppedError
    if lease.is_lost():
        raise lease.loss()
    return others.messages()


def part(others: Others) -> None:
    """Wait until all other ranks have ended what they started."""
    # Only then is the run finished: a server that outlives it would hold the GPUs of the next one.
    deadline = time.monotonic() + GOODBYE_S
    while others.links and time.monotonic() < deadline:
        pause(others.links.values(), LOOK_S)
        for rank, link in list(others.links.items()):
            try:
                link.received(GOODBYE_S)
            except KnownCauseError:
                del others.links[rank]


# --- the other ranks -------------------------------------------------------------------------------------------


def reach_rank_0(run: Run, lease: Lease, rank: Rank, stop: StopRequest, stack: ExitStack) -> Others:
    """Return the connection of this rank with rank 0, which now knows it."""
    place = await_file(lease.run.rendezvous(rank.start), run.engine.hang_timeout_s, looking=run.ranks)
    connection = socket.create_connection((place.address, place.port), timeout=run.engine.hang_timeout_s)
    stack.callback(connection.close)
    link = Link(connection, "rank 0")
    link.send(token=place.token, rank=rank.rank, node=node_name(), boot=boot_id())
    return Others(run, {0: link}, stop)

"""Serving: replicas of a server on the nodes, a balancer in front on one port, and a load that is measured.

Every rank connects to rank 0. The first rank of each replica starts its server and watches it; over several nodes it
sends by way of rank 0 where the replica meets, and the first rank of each further node starts the process there. Rank 0
starts balancer and load generator besides. A rank whose program ends, or does not answer, records that and ends; its
connection ends with it, so all others end too, and each ends what it has started.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

from jobs import metrics as m
from jobs.failure_causes import FailureCause, KnownCauseError
from jobs.lease import Lease
from jobs.metrics import StoragePhase
from jobs.output import own_directory
from jobs.ranks import Rank
from jobs.rendezvous import LOOPBACK
from jobs.rundir import append_event
from jobs.runtime import storage_io
from jobs.runtime.machine import StopRequest
from jobs.schema import Run
from jobs.settings.serving import Balancer
from jobs.work.program.piece import Piece
from jobs.work.program.ports import own_address
from jobs.work.program.ranks import (
    LOOK_S,
    Others,
    StoppedError,
    attended,
    led,
    meet,
    node_recorded,
    part,
    reach_rank_0,
    record_finish,
    record_start,
    record_stop,
)
from jobs.work.serve import balancer, load
from jobs.work.serve.bench import Bench
from jobs.work.serve.listener import Door, Listener
from jobs.work.serve.replica import Head, Replica, Seat, becomes_ready, check_replica, part_for, start_replica
from jobs.work.serve.replicas import most_concurrency, replica_nodes, replicas_of
from jobs.work.serve.weights import conversion_command

NEW_HEAD_WITHIN_S = 3.0
"""A process of a replica that has ended waits so long for a new start of its first node, if none has answered yet."""


def serve(run: Run, lease: Lease, rank: Rank) -> None:
    """Serve the model under the load of the run to its end; every rank calls it."""
    assert run.serving is not None
    own_directory(lease.run.serving)
    led(run, lease, rank, lead, follow)


# --- rank 0 ----------------------------------------------------------------------------------------------------


def lead(run: Run, lease: Lease, rank: Rank, stop: StopRequest, stack: ExitStack) -> None:
    """Meet the other ranks, start everything, record the results, and end everything."""
    directory = lease.run
    others, hosts = meet(run, lease, rank, stop, stack)
    attempt = record_start(run, lease, hosts)
    try:
        convert_weights(run, lease, others, stack)
        key = secrets.token_hex(16)
        # The key is made for each start and goes by these connections only: every user of a node can read arguments.
        others.send(number=lease.number, key=key)
        append_event(directory, "served", **measured(run, lease, rank, others, stack, key=key))
    except StoppedError:
        others.send(end=True)
        record_stop(lease, stop, attempt)
        return
    others.send(end=True)
    part(others)
    stack.close()
    record_finish(lease, attempt)
    print(f"{run.name}: served all requests", flush=True)


def measured(run: Run, lease: Lease, rank: Rank, others: Others, stack: ExitStack, *, key: str) -> dict[str, Any]:
    """Start replicas, balancer and load; return the fields of the `served` event."""
    s = run.serving
    assert s is not None
    prompts = load.prompt_pool(run)
    # Where the second node of its replica has reached this one.
    address = own_address(others.links[run.ranks_per_node].connection) if replica_nodes(run) > 1 else LOOPBACK
    own = start_replica(Seat(run, lease, rank, address, stack, key), LOOPBACK)
    with node_recorded(run, lease, rank, StoragePhase.load):
        ready, startup_s = replicas_ready(run, lease, others, own)
        watch = Watch(run, lease, others, own)
        url = start_balancer(run, lease, list(ready.values()), watch, stack)
        others.send(load=True)
        storage_io.begin(StoragePhase.serve)
        found = Bench(run, lease.run, url, ready, key, prompts, watch.until).measured()
        # Numbers that another program answered would look like very good ones.
        watch.refuse_strangers()
    return {m.SERVER_STARTUP_TIME.name: startup_s, **found}


def convert_weights(run: Run, lease: Lease, others: Others, stack: ExitStack) -> None:
    """Convert a LitGPT directory for a server that reads Hugging Face's layout, before any replica starts."""
    command = conversion_command(run, lease.run)
    if command is None:
        return
    log = lease.run.serving / "conversion.log"
    piece = Piece("the conversion of job.init_from", command, log, {}, "Set job.init_from to Hugging Face's layout.")
    stack.callback(piece.end)
    Watch(run, lease, others, None).until(piece.ended)
    if piece.process.returncode:
        raise piece.failure()


def replicas_ready(run: Run, lease: Lease, others: Others, own: Replica | None) -> tuple[dict[int, str], float]:
    """Return the URL of each replica by its number when all are ready, and the longest start of one."""
    ready: dict[int, str] = {}
    startup_s = 0.0
    while len(ready) < replicas_of(run):
        if own is not None and (head := own.new_head()):
            others.send(head=asdict(head))
        for _, message in attended(others, lease):
            if "head" in message:
                others.send(**message)
            if "ready" in message:
                ready[int(message["ready"])] = str(message["url"])
                startup_s = max(startup_s, float(message["startup_s"]))
        if own is not None and own.number in ready:
            check_replica(run, own)
        elif own is not None and becomes_ready(run, own):
            ready[own.number] = own.server.url
            startup_s = max(startup_s, time.monotonic() - own.server.began)
    return dict(sorted(ready.items())), startup_s


@dataclass
class Watch:
    """Everything that rank 0 watches while it waits."""

    run: Run
    lease: Lease
    others: Others
    own: Replica | None
    balancer: Listener | None = None

    def until(self, condition: Callable[[], bool]) -> None:
        """Return when the condition holds; raise the error of a rank or program that has ended or hangs before."""
        while not condition():
            self.look()

    def look(self) -> None:
        """Look once, for a moment."""
        attended(self.others, self.lease)
        if self.own is not None:
            check_replica(self.run, self.own)
        if self.balancer is not None:
            self.balancer.piece.check()

    def refuse_strangers(self) -> None:
        """Raise KnownCauseError if another program has taken the place of the replica or balancer of this rank."""
        assert self.run.engine.server is not None
        for each in (None if self.own is None else self.own.server, self.balancer):
            # One answer may take long behind the last requests of a load.
            deadline = time.monotonic() + self.run.engine.hang_timeout_s
            while each is not None and not each.answers(self.run.engine.server.health):
                each.piece.check()
                if time.monotonic() > deadline:
                    text = f"{each.piece.name} does not answer at {each.url} after the load"
                    raise KnownCauseError(FailureCause.hung, text)
                time.sleep(LOOK_S)


def start_balancer(run: Run, lease: Lease, urls: list[str], watch: Watch, stack: ExitStack) -> str:
    """Start the balancer, if the run has one, and return the URL of the load when it reaches the replicas."""
    kind = balancer.balancer_of(run)
    if kind is Balancer.none:
        return urls[0]
    assert run.serving is not None
    assert run.engine.server is not None
    addresses = [url.removeprefix("http://") for url in urls]

    def start(ports: Sequence[int]) -> Piece:
        own = f"{LOOPBACK}:{ports[0]}"
        command = balancer.balancer_command(kind, lease.run.serving, own, addresses, most_concurrency(run))
        return Piece(kind.name, command, lease.run.serving / f"{kind.name}.log", {}, balancer.REMEDY)

    program = Listener(stack, [Door(LOOPBACK, LOOPBACK)], start)
    health = run.engine.server.health
    while not program.becomes_ready(health):
        watch.look()
        if time.monotonic() - program.began > run.engine.server.startup_limit_s:
            text = f"{kind.name} reaches no replica at {program.url}{health}"
            raise KnownCauseError(FailureCause.launch_failure, text)
    watch.balancer = program
    return program.url


# --- the other ranks -------------------------------------------------------------------------------------------


def follow(run: Run, lease: Lease, rank: Rank, stop: StopRequest, stack: ExitStack) -> None:
    """Serve with the replica or part of one that this rank starts, if any, until rank 0 ends the run."""
    others = reach_rank_0(run, lease, rank, stop, stack)
    link = others.links[0]
    host = own_address(link.connection)
    seat: Seat | None = None
    own: Replica | None = None
    part: Piece | None = None
    announced = loaded = False
    while True:
        # Signals reach all ranks: rank 0 decides.
        for _, message in others.messages():
            if "number" in message:
                lease.number = int(message["number"])
                seat = Seat(run, lease, rank, host, stack, str(message["key"]))
                own = start_replica(seat, host)
                # Ends before the server does.
                stack.enter_context(node_recorded(run, lease, rank, StoragePhase.load))
            if "head" in message and seat is not None:
                part = part_for(seat, Head(**message["head"]), part)
            if "load" in message:
                loaded = True
                storage_io.begin(StoragePhase.serve)
            if "end" in message:
                stack.close()
                return
        if own is not None and (head := own.new_head()):
            link.send(head=asdict(head))
        # Until the load begins, a part also ends because its head starts again at other ports: the new head is then on
        # its way.
        if part is not None and (loaded or part.ended_for_s() > NEW_HEAD_WITHIN_S):
            part.check()
        if own is not None and not announced and becomes_ready(run, own):
            announced = True
            link.send(ready=own.number, url=own.server.url, startup_s=time.monotonic() - own.server.began)
        elif own is not None and announced:
            check_replica(run, own)

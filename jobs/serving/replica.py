"""A replica: the server that its first rank starts, watches and samples, and its processes on further nodes."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from jobs.errors import ConfigError
from jobs.failures import FailureCause, KnownCauseError
from jobs.layout import replica_nodes, replica_ranks, replicas_of
from jobs.lease import Lease
from jobs.ranks import Rank, node_name
from jobs.rundir import append_record
from jobs.runtime.machine import VISIBLE
from jobs.schema import Run
from jobs.serving import load
from jobs.serving.counters import counters, gauges
from jobs.serving.piece import Piece, begin_start
from jobs.serving.ports import is_answered_by, reserved_port, url_of
from jobs.serving.probe import fetched, is_healthy
from jobs.serving.weights import served_directory
from jobs.serving.words import OVER_NODES, filled

PROBE_EVERY_S = 5.0
PROBE_LIMIT_S = 5.0
SAMPLE_EVERY_S = 1.0
# From so many samples on the interval doubles: a day has 20,000 samples at most.
SAMPLES_AT_EACH = 3600


@dataclass(frozen=True)
class Head:
    """Where the processes of a replica over several nodes meet: on its first node."""

    replica: int
    address: str
    port: int


@dataclass
class Replica:
    """A server that this rank has started."""

    number: int
    url: str
    piece: Piece
    began: float
    answered: float
    """When it last was healthy; both by the monotonic clock."""
    samples_file: Path
    head: Head | None
    """Where its other nodes find it; None on one node."""
    samples: int = 0
    sampled: float = field(default=float("-inf"))
    """When it was last sampled."""


@dataclass(frozen=True)
class Seat:
    """A rank that may start a process of a replica."""

    run: Run
    lease: Lease
    rank: Rank
    address: str
    """By which the other nodes of a replica reach this one."""
    stack: ExitStack
    """Ends what is started."""

    @property
    def replica(self) -> int:
        """Return the number of the replica."""
        return self.rank.rank // replica_ranks(self.run)

    @property
    def place(self) -> int:
        """Return the place of the rank in its replica."""
        return self.rank.rank % replica_ranks(self.run)

    @property
    def node_rank(self) -> int:
        """Return the number of this node among those of its replica."""
        return self.place // self.run.ranks_per_node


def start_replica(seat: Seat, host: str) -> Replica | None:
    """Start the server of the replica whose first rank this is, for requests at `host`; return None for others."""
    if seat.place or seat.replica >= replicas_of(seat.run):
        return None
    head = None
    if replica_nodes(seat.run) > 1:
        # torch's store listens on all addresses.
        head = Head(seat.replica, seat.address, seat.stack.enter_context(reserved_port("")))
        # Before the other nodes start: until then their logs have the lines of an earlier start.
        for log in logs_of_replica(seat)[1:]:
            begin_start(log)
    port = seat.stack.enter_context(reserved_port(host))
    began = time.monotonic()
    piece = started(seat, head, {"host": host, "port": port})
    samples = seat.lease.run.replica_samples(seat.replica)
    return Replica(seat.replica, url_of(host, port), piece, began, began, samples, head)


def start_part(seat: Seat, head: Head) -> Piece | None:
    """Start the process of a replica on the node whose first rank this is; return None for other ranks and replicas."""
    if seat.replica != head.replica or not seat.place or seat.place % seat.run.ranks_per_node:
        return None
    return started(seat, head, {"host": seat.address, "port": 0})


def started(seat: Seat, head: Head | None, http: dict[str, object]) -> Piece:
    """Start the process of a replica on this node."""
    assert seat.run.engine.server is not None
    name, logs = f"replica {seat.replica}", logs_of_replica(seat)
    env = seat.run.engine.server.env | gpus_of(seat.run, seat.rank)
    if head is not None:
        # Where vLLM's own messages between nodes arrive; it would guess the address by a route to the Internet.
        env |= {"VLLM_HOST_IP": seat.address}
        if seat.node_rank:
            name = f"{name}, node rank {seat.node_rank}"
    remedy = "Set engine.server.python=PATH, or engine.server.command to a program that the nodes have."
    piece = Piece(name, command_of(seat, head, http), logs[seat.node_rank], env, remedy, logs=logs)
    seat.stack.callback(piece.end)
    return piece


def logs_of_replica(seat: Seat) -> list[Path]:
    """Return the log of the replica's process on each of its nodes, in their order."""
    names = [f"replica-{seat.replica}{f'-node-{node}' if node else ''}" for node in range(replica_nodes(seat.run))]
    return [seat.lease.run.serving / f"{name}.log" for name in names]


def command_of(seat: Seat, head: Head | None, http: dict[str, object]) -> list[str]:
    """Return the command of the process of a replica on this node."""
    run, server = seat.run, seat.run.engine.server
    assert server is not None
    assert run.serving is not None
    values: dict[str, object] = {
        "python": load.server_python(run),
        "model": served_directory(run, seat.lease.run),
        "tensor": run.parallelism.tensor,
        "pipeline": run.parallelism.pipeline,
        "precision": run.job.precision.name,
        "max_length": run.job.sequence_length,
        "output_tokens": run.serving.output_tokens,
        "memory_fraction": server.memory_fraction,
        **http,
        **dict.fromkeys(OVER_NODES),
    }
    if head is not None:
        values |= {"nodes": replica_nodes(run), "node_rank": seat.node_rank, "head": head.address}
        values |= {"head_port": head.port, "headless": "--headless" if seat.node_rank else None}
    return filled([*server.command, *server.arguments], values)


def gpus_of(run: Run, rank: Rank) -> dict[str, str]:
    """Return the variables that show a replica its own GPUs of this node; empty without GPUs."""
    if not run.cluster.gpus:
        return {}
    own = min(replica_ranks(run), run.ranks_per_node)
    wanted = range(rank.local_rank, rank.local_rank + own)
    limited = {name: os.environ[name].split(",") for name in VISIBLE if os.environ.get(name)}
    if not limited:
        return {VISIBLE[0]: ",".join(map(str, wanted))}
    shortest = min(map(len, limited.values()))
    if shortest == 1 and own == 1:
        return {}  # the launcher shows each rank its own GPU
    if wanted.stop > shortest:
        raise ConfigError(
            f"Rank {rank.rank} on {node_name()} sees {shortest} GPUs, and its replica needs GPU {wanted.start} to "
            f"{wanted.stop - 1} of the node. Start ranks without --gpu-bind and --gpus-per-task."
        )
    return {name: ",".join(listed[gpu] for gpu in wanted) for name, listed in limited.items()}


def answers(piece: Piece, url: str, health: str) -> bool:
    """Return True if a program that this rank has started answers; raise KnownCauseError if another one would."""
    address = urlsplit(url)
    assert address.hostname is not None
    assert address.port is not None
    return is_own(piece, address.hostname, address.port) and is_healthy(url, health, PROBE_LIMIT_S)


def is_own(piece: Piece, host: str, port: int) -> bool:
    """Return True if a program listens at its port, False if nobody does; raise KnownCauseError if another one does."""
    own = is_answered_by(piece.process.pid, host, port)
    if own is False:
        raise KnownCauseError(
            FailureCause.launch_failure,
            f"another program on {node_name()} has taken port {port} at {host}, which was chosen for {piece.name}. "
            "Nothing that it answers is measured; the next start takes another port",
        )
    return bool(own)


def becomes_ready(run: Run, replica: Replica) -> bool:
    """Return True if a replica answers. Raise KnownCauseError if it has ended, or took too long to start."""
    replica.piece.check()
    server = run.engine.server
    assert server is not None
    waited_s = time.monotonic() - replica.began
    if replica.head is not None:
        is_own(replica.piece, replica.head.address, replica.head.port)
    if answers(replica.piece, replica.url, server.health):
        replica.answered = time.monotonic()
        return True
    if waited_s > server.startup_limit_s:
        raise KnownCauseError(
            FailureCause.launch_failure,
            f"{replica.piece.name} on {node_name()} does not answer at {replica.url}{server.health} after "
            f"{waited_s:.0f} s (engine.server.startup_limit_s); see {replica.piece.log}",
        )
    return False


def sample_replica(run: Run, replica: Replica) -> None:
    """Append counters and gauges of a replica to its file if a sample is due; one that does not answer has none."""
    assert run.engine.server is not None
    path, now = run.engine.server.metrics, time.monotonic()
    if path is None or now - replica.sampled < SAMPLE_EVERY_S * 2 ** (replica.samples // SAMPLES_AT_EACH):
        return
    replica.sampled = now
    at_s, answer = time.time(), fetched(replica.url, path, PROBE_LIMIT_S)
    if answer is not None:
        text = answer.decode(errors="replace")
        found = {metric.name: value for metric, value in (counters(text) | gauges(text)).items()}
        # A full disk loses a sample, and not the load.
        with suppress(OSError):
            append_record(replica.samples_file, {"at_s": at_s, **found})
        replica.samples += 1


def check_replica(run: Run, replica: Replica) -> None:
    """Sample a replica. Raise KnownCauseError if it has ended, or does not answer for engine.hang_timeout_s."""
    replica.piece.check()
    sample_replica(run, replica)
    server = run.engine.server
    assert server is not None
    silent_s = time.monotonic() - replica.answered
    if silent_s < PROBE_EVERY_S:
        return
    if answers(replica.piece, replica.url, server.health):
        replica.answered = time.monotonic()
    elif silent_s > run.engine.hang_timeout_s:
        raise KnownCauseError(
            FailureCause.hung,
            f"{replica.piece.name} on {node_name()} has not answered at {server.health} for {silent_s:.0f} s "
            "(engine.hang_timeout_s)",
        )

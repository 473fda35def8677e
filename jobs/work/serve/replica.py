"""A replica: the server that its first rank starts, watches and samples, and its processes on further nodes."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from jobs.errors import ConfigError
from jobs.failure_causes import FailureCause, KnownCauseError
from jobs.lease import Lease
from jobs.ranks import Rank, node_name
from jobs.rundir import append_record
from jobs.runtime.machine import VISIBLE
from jobs.schema import Run
from jobs.work.program.piece import Piece, begin_start
from jobs.work.program.probe import PROBE_LIMIT_S, fetched
from jobs.work.program.substitution import filled
from jobs.work.serve import load
from jobs.work.serve.counters import counters, gauges
from jobs.work.serve.listener import Door, Listener
from jobs.work.serve.names import OVER_NODES
from jobs.work.serve.replicas import replica_nodes, replica_ranks, replicas_of
from jobs.work.serve.weights import served_directory

PROBE_EVERY_S = 5.0
SAMPLE_EVERY_S = 1.0
# After this many samples the interval doubles: a day has 20,000 samples at most.
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
    server: Listener
    answered: float
    """When it last was healthy, by the monotonic clock."""
    samples_file: Path
    spans_nodes: bool
    samples: int = 0
    sampled: float = field(default=float("-inf"))
    """When it was last sampled."""
    announced: Head | None = None

    def new_head(self) -> Head | None:
        """Return where its other nodes find it, once for each start; None on one node."""
        head = None
        if self.spans_nodes:
            head = Head(self.number, self.server.doors[1].address, self.server.ports[1])
        if head == self.announced:
            return None
        self.announced = head
        return head


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
    key: str
    """API key of the servers of this start."""

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
    doors = [Door(host, host)]
    spans_nodes = replica_nodes(seat.run) > 1
    if spans_nodes:
        # torch's store listens on all addresses.
        doors.append(Door(seat.address, ""))
        # Before the other nodes start: until then their logs have the lines of an earlier start.
        for log in logs_of_replica(seat)[1:]:
            begin_start(log)

    def start(ports: Sequence[int]) -> Piece:
        head = Head(seat.replica, seat.address, ports[1]) if spans_nodes else None
        return started(seat, head, {"host": host, "port": ports[0]})

    samples = seat.lease.run.replica_samples(seat.replica)
    return Replica(seat.replica, Listener(seat.stack, doors, start), time.monotonic(), samples, spans_nodes)


def start_part(seat: Seat, head: Head) -> Piece | None:
    """Start the process of a replica on the node whose first rank this is; return None for other ranks and replicas."""
    if seat.replica != head.replica or not seat.place or seat.place % seat.run.ranks_per_node:
        return None
    piece = started(seat, head, {"host": seat.address, "port": 0})
    seat.stack.callback(piece.end)
    return piece


def part_for(seat: Seat, head: Head, part: Piece | None) -> Piece | None:
    """Return the part of this rank, started again for a new head: a replica that starts at other ports sends one.

    Heads of other replicas, which all ranks receive, change nothing.
    """
    if head.replica != seat.replica:
        return part
    if part is not None:
        part.end()
    return start_part(seat, head)


def started(seat: Seat, head: Head | None, http: dict[str, object]) -> Piece:
    """Start the process of a replica on this node."""
    assert seat.run.engine.server is not None
    name, logs = f"replica {seat.replica}", logs_of_replica(seat)
    env = seat.run.engine.server.env | gpus_of(seat.run, seat.rank) | load.server_key(seat.run, seat.key)
    if head is not None:
        # Where vLLM's own messages between nodes arrive; it would guess the address by a route to the Internet.
        env |= {"VLLM_HOST_IP": seat.address}
        if seat.node_rank:
            name = f"{name}, node rank {seat.node_rank}"
    remedy = "Set engine.server.python=PATH, or engine.server.command to a program that the nodes have."
    return Piece(name, command_of(seat, head, http), logs[seat.node_rank], env, remedy, logs=logs)


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
    # In the launcher's own names, which may be numbers or UUIDs.
    return {name: ",".join(listed[gpu] for gpu in wanted) for name, listed in limited.items()}


def becomes_ready(run: Run, replica: Replica) -> bool:
    """Return True if a replica answers. Raise KnownCauseError if it has ended, or took too long to start."""
    server = run.engine.server
    assert server is not None
    if replica.server.becomes_ready(server.health):
        replica.answered = time.monotonic()
        return True
    waited_s = time.monotonic() - replica.server.began
    if waited_s > server.startup_limit_s:
        piece = replica.server.piece
        raise KnownCauseError(
            FailureCause.launch_failure,
            f"{piece.name} on {node_name()} does not answer at {replica.server.url}{server.health} after "
            f"{waited_s:.0f} s (engine.server.startup_limit_s); see {piece.log}",
        )
    return False


def sample_replica(run: Run, replica: Replica) -> None:
    """Append counters and gauges of a replica to its file if a sample is due; one that does not answer has none."""
    assert run.engine.server is not None
    path, now = run.engine.server.metrics, time.monotonic()
    if path is None or now - replica.sampled < SAMPLE_EVERY_S * 2 ** (replica.samples // SAMPLES_AT_EACH):
        return
    replica.sampled = now
    at_s, answer = time.time(), fetched(replica.server.url, path, PROBE_LIMIT_S)
    if answer is not None:
        text = answer.decode(errors="replace")
        found = {metric.name: value for metric, value in (counters(text) | gauges(text)).items()}
        # A full disk loses a sample, and not the load.
        with suppress(OSError):
            append_record(replica.samples_file, {"at_s": at_s, **found})
        replica.samples += 1


def check_replica(run: Run, replica: Replica) -> None:
    """Sample a replica. Raise KnownCauseError if it has ended, or does not answer for engine.hang_timeout_s."""
    replica.server.piece.check()
    sample_replica(run, replica)
    server = run.engine.server
    assert server is not None
    silent_s = time.monotonic() - replica.answered
    if silent_s < PROBE_EVERY_S:
        return
    if replica.server.answers(server.health):
        replica.answered = time.monotonic()
    elif silent_s > run.engine.hang_timeout_s:
        raise KnownCauseError(
            FailureCause.hung,
            f"{replica.server.piece.name} on {node_name()} has not answered at {server.health} for {silent_s:.0f} s "
            "(engine.hang_timeout_s)",
        )

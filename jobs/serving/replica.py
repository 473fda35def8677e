"""A replica: the server that the first rank of a TP group starts, watches and samples."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from jobs.errors import ConfigError
from jobs.failures import FailureCause, KnownCauseError
from jobs.layout import replicas_of
from jobs.lease import Lease
from jobs.ranks import Rank, node_name
from jobs.rundir import append_record
from jobs.runtime.machine import VISIBLE
from jobs.schema import Run
from jobs.serving import load
from jobs.serving.counters import counters, gauges
from jobs.serving.piece import Piece
from jobs.serving.ports import reserved_port, url_of
from jobs.serving.probe import fetched, is_healthy
from jobs.serving.weights import served_directory
from jobs.serving.words import filled

PROBE_EVERY_S = 5.0
PROBE_LIMIT_S = 5.0
SAMPLE_EVERY_S = 1.0
# From so many samples on the interval doubles: a day has 20,000 samples at most.
SAMPLES_AT_EACH = 3600


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
    samples: int = 0
    sampled: float = field(default=float("-inf"))
    """When it was last sampled."""


def start_replica(run: Run, lease: Lease, rank: Rank, host: str, stack: ExitStack) -> Replica | None:
    """Start the replica whose first rank this is; return None for another rank."""
    number, part = divmod(rank.rank, run.parallelism.tensor)
    if part or number >= replicas_of(run):
        return None
    server = run.engine.server
    assert server is not None
    assert run.serving is not None
    port = stack.enter_context(reserved_port(host))
    values = {
        "python": load.server_python(run),
        "model": served_directory(run, lease.run),
        "host": host,
        "port": port,
        "tensor": run.parallelism.tensor,
        "precision": run.job.precision.name,
        "max_length": run.job.sequence_length,
        "output_tokens": run.serving.output_tokens,
        "memory_fraction": server.memory_fraction,
    }
    command = filled([*server.command, *server.arguments], values)
    log = lease.run.serving / f"replica-{number}.log"
    env = {**server.env, **gpus_of(run, rank)}
    began = time.monotonic()
    remedy = "Set engine.server.python=PATH, or engine.server.command to a program that the nodes have."
    piece = Piece(f"replica {number}", command, log, env, remedy)
    stack.callback(piece.end)
    return Replica(number, url_of(host, port), piece, began, began, lease.run.replica_samples(number))


def gpus_of(run: Run, rank: Rank) -> dict[str, str]:
    """Return the variables that show a replica its own GPUs; empty without GPUs."""
    if not run.cluster.gpus:
        return {}
    wanted = range(rank.local_rank, rank.local_rank + run.parallelism.tensor)
    limited = {name: os.environ[name].split(",") for name in VISIBLE if os.environ.get(name)}
    if not limited:
        return {VISIBLE[0]: ",".join(map(str, wanted))}
    shortest = min(map(len, limited.values()))
    if shortest == 1 and run.parallelism.tensor == 1:
        return {}  # the launcher shows each rank its own GPU
    if wanted.stop > shortest:
        raise ConfigError(
            f"Rank {rank.rank} on {node_name()} sees {shortest} GPUs, and its replica needs GPU {wanted.start} to "
            f"{wanted.stop - 1} of the node. Start ranks without --gpu-bind and --gpus-per-task."
        )
    return {name: ",".join(listed[gpu] for gpu in wanted) for name, listed in limited.items()}


def becomes_ready(run: Run, replica: Replica) -> bool:
    """Return True if a replica answers. Raise KnownCauseError if it has ended, or took too long to start."""
    replica.piece.check()
    server = run.engine.server
    assert server is not None
    waited_s = time.monotonic() - replica.began
    if is_healthy(replica.url, server.health, PROBE_LIMIT_S):
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
    if is_healthy(replica.url, server.health, PROBE_LIMIT_S):
        replica.answered = time.monotonic()
    elif silent_s > run.engine.hang_timeout_s:
        raise KnownCauseError(
            FailureCause.hung,
            f"{replica.piece.name} on {node_name()} has not answered at {server.health} for {silent_s:.0f} s "
            "(engine.hang_timeout_s)",
        )

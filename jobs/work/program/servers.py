"""The servers of a program: steps that run until the last step has ended, at ports that are kept for them.

Each rank keeps a port for each of its servers before anything starts, so that every command and file can have the
addresses of all servers. A server counts as ready when the kernel lists a process of its own as the one that listens at
its port: another program that took the port would answer in its place.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from jobs.failure_causes import FailureCause, KnownCauseError
from jobs.ranks import node_name
from jobs.schema import Run
from jobs.settings.program import Ready
from jobs.work.program.piece import Piece
from jobs.work.program.placeholders import program_of, servers_of
from jobs.work.program.places import ranks_of
from jobs.work.program.ports import contained_elsewhere, is_answered_by, url_of
from jobs.work.program.probe import PROBE_LIMIT_S, is_healthy

Ports = Mapping[str, int]
"""Port of a rank's process of each server, by step."""


@dataclass
class Server:
    """A process of a server on this rank."""

    step: str
    piece: Piece
    sign: Ready
    address: str
    """By which others reach it."""
    port: int
    began: float = field(default_factory=time.monotonic)
    """When it started, by the monotonic clock."""

    def check(self) -> None:
        """Raise KnownCauseError if it has ended, also by itself and without an error."""
        if self.piece.ended() and self.piece.process.returncode == 0:
            raise KnownCauseError(
                FailureCause.refused,
                f"step {self.step} on {node_name()} is a server, and ended with exit code 0 before the last step did; "
                f"its output is in {self.piece.log}",
                advice="Remove an option by which it serves once or goes into the background. If it is no server, "
                f"remove program.steps.{self.step}.ready.",
            )
        self.piece.check()

    def is_ready(self) -> bool:
        """Return True if it takes requests. Raise KnownCauseError if it has ended, or another program has its port."""
        self.check()
        if self.sign.line is not None:
            return re.search(self.sign.line, self.piece.printed(), re.MULTILINE) is not None
        own = is_answered_by(self.piece.process.pid, self.address, self.port)
        if own is False:
            remedy = contained_elsewhere(self.piece.process.pid) or ". The next start takes another port"
            raise KnownCauseError(
                FailureCause.launch_failure,
                f"another program on {node_name()} listens at {self.address}, port {self.port}, which was chosen for "
                f"step {self.step}{remedy}",
            )
        if own is None or self.sign.path is None:
            return own is True
        return is_healthy(url_of(self.address, self.port), self.sign.path, PROBE_LIMIT_S)

    def lateness(self) -> str:
        """Return what it has to do to become ready, as text."""
        if self.sign.line is not None:
            buffered = ", and it printed nothing; `stdbuf -oL` before its command may help" * (not self.piece.printed())
            return f"no line that it printed matches {self.sign.line}{buffered}"
        if is_answered_by(self.piece.process.pid, self.address, self.port) is None:
            return f"it does not listen at {self.address}, port {self.port} (its {{address}} and {{port}})"
        return f"{url_of(self.address, self.port)}{self.sign.path} does not answer with status 200"


def answering(run: Run, name: str) -> list[int]:
    """Return the ranks whose process of a server must become ready, and gets requests."""
    ready = program_of(run).steps[name].ready
    assert ready is not None
    return ranks_of(run, name) if ready.every else ranks_of(run, name)[:1]


def server_facts(run: Run, ports: Mapping[int, Ports], addresses: Sequence[str]) -> dict[str, str]:
    """Return the values of the {names} of all servers; `ports` are by rank, `addresses` by node."""
    facts: dict[str, str] = {}
    for name in servers_of(program_of(run)):
        doors = [(addresses[rank // run.ranks_per_node], ports[rank][name]) for rank in answering(run, name)]
        urls = [url_of(*door) for door in doors]
        values = {
            "address": doors[0][0],
            "port": str(doors[0][1]),
            "url": urls[0],
            "urls": " ".join(urls),
            "addresses": ",".join(url.removeprefix("http://") for url in urls),
        }
        facts |= {f"servers.{name}.{fact}": value for fact, value in values.items()}
    return facts


def refuse_late(server: Server) -> None:
    """Raise KnownCauseError if a server is not ready in time."""
    key = f"program.steps.{server.step}.ready.within_min"
    if time.monotonic() - server.began > 60 * server.sign.within_min:
        raise KnownCauseError(
            FailureCause.hung,
            f"step {server.step} on {node_name()} is not ready after {server.sign.within_min:g} min ({key}): "
            f"{server.lateness()}; its output is in {server.piece.log}",
            advice=f"Read the end of its output. If it needs longer, raise {key}.",
        )

"""A rank in a test of storage: the other ranks, the watchdog, and the page cache of its node."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist

from jobs.errors import ConfigError
from jobs.lease import Lease
from jobs.ranks import Rank
from jobs.rundir import append_event
from jobs.runtime.exchange import gather
from jobs.runtime.machine import StopRequest
from jobs.runtime.watchdog import Watchdog
from jobs.schema import Run
from jobs.work.storage import page_cache

LOOK_S = 0.1


class StoppedError(Exception):
    """The run was asked to stop."""


@dataclass
class Session:
    """A rank in a test of storage."""

    run: Run
    lease: Lease
    rank: Rank
    group: dist.ProcessGroup
    """Its timeout allows for the bytes of the test."""
    watchdog: Watchdog
    stop: StopRequest
    place: Path
    """The directory that the test writes into."""

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks; every rank calls it."""
        return gather(value, self.group)

    def record(self, event: str, **fields: Any) -> None:
        """Append an event, on rank 0."""
        if self.rank.is_first:
            append_event(self.lease.run, event, **fields)

    def refuse(self, refusal: str | None) -> None:
        """Raise the first refusal of any rank as ConfigError on every rank."""
        found = [each for each in self.gather(refusal) if each is not None]
        if found:
            raise ConfigError(found[0])

    def begins(self, work: str, size_bytes: float = 0) -> None:
        """Begin a piece of work of all ranks; raise StoppedError on every rank if one was asked to stop."""
        self.watchdog.begins(work, size_bytes)
        # Signals reach ranks at different times; all leave at the same point, or some would wait in a collective.
        self.stop.signal = max(self.gather(self.stop.signal))
        if self.stop.signal:
            raise StoppedError

    def cached_share(self, files: Iterable[Path], *, drop: bool) -> float | None:
        """Return the largest share of the pages of these files that the cache of a node has; None if unknown.

        If `drop`, empty the caches of all nodes of these files first.
        """
        share = None
        if self.rank.local_rank == 0:
            listed = list(files)
            with suppress(OSError):
                if drop:
                    page_cache.drop(listed)
                share = page_cache.cached_share(listed)
        # The first rank of each node has looked; all ranks of a node share its cache.
        shares = self.gather(share)[:: self.run.ranks_per_node]
        return None if None in shares else max(shares)

"""One run, ours or another program's: configuration, plan, events and measured values, or why it is not used."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.untrusted import as_list, flat, lookup
from jobs.metrics import Metric

if TYPE_CHECKING:
    # A run contains these; only who reads and who measures runs knows how they are made.
    from analysis.logs.file import LogFile
    from analysis.metrics.communication import Collective
    from analysis.metrics.energy import Energy
    from analysis.metrics.goodput import Loss
    from analysis.metrics.stragglers import Straggler

# What a user writes beside logs; analysis.logs.facts reads it.
FACTS_FILE = "facts.yaml"
DEVICES = {"cpu": "CPU", "cuda": "GPU", "gpu": "GPU"}


@dataclass(frozen=True, eq=False)
class RunResult:
    """What one run directory holds; with a `reason` when it is not used."""

    path: Path
    config: Mapping[str, Any] = field(default_factory=dict)
    plan: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    events: tuple[Mapping[str, Any], ...] = ()
    state: str = "finished"
    reason: str | None = None
    values: Mapping[Metric, float] = field(default_factory=dict)
    """Measured over steady steps; times of attempts are summed over the attempts that recorded their end, start-up by
    cause over all starts; what a rank holds and sends is of the latest attempt that recorded it, sent summed over axes
    and collectives."""
    losses: Mapping[int, float] = field(default_factory=dict)
    """Loss by step."""
    steady_steps: int = 0
    step_times_s: Mapping[int, float] = field(default_factory=dict)
    """Time of each steady step, by step."""
    lost_to: Sequence[Loss] = field(default_factory=list)
    """What ended its starts but the last, and what that cost."""
    energy: Energy | None = None
    """By the power readings that lie beside it; None where there are none."""
    collectives: tuple[Collective, ...] | None = None
    """What a rank sent in a step, as the latest attempt that recorded it reports; None when none did."""
    stragglers: Sequence[Straggler] | None = None
    """Ranks and nodes that the others waited for, worst first; None where that was not recorded."""
    log: LogFile | None = None
    """The log of another program that all of this comes from; None for a run directory of ours."""

    @property
    def used(self) -> bool:
        """Whether figures and answer may rest on it."""
        return self.reason is None

    @property
    def name(self) -> str:
        """The name the run was given, else its directory's."""
        return str(self.config.get("name") or self.path.name)

    @property
    def sweep(self) -> str:
        """The sweep it was submitted in, else the directory above."""
        return str(self.config.get("sweep") or self.path.parent.name)

    @property
    def ranks(self) -> int | None:
        """World size; None where a log does not tell."""
        nodes, ranks_per_node = self.setting("nodes"), self.setting("ranks_per_node")
        if isinstance(nodes, int) and isinstance(ranks_per_node, int):
            return nodes * ranks_per_node
        return self.setting("ranks") if self.log else None

    @functools.cached_property
    def started(self) -> Mapping[str, Any]:
        """The latest `started` event; empty when it never started."""
        return last_event(self.events, "started")

    @functools.cached_property
    def settings(self) -> Mapping[str, Any]:
        """The configuration by dotted keys."""
        return flat(self.config)

    @functools.cached_property
    def transports(self) -> Sequence[str]:
        """The transports of collectives, from the latest attempt that recorded them; empty if none did."""
        return [str(transport) for transport in as_list(last_event(self.events, "transport").get("ways"))]

    @property
    def transport(self) -> str | None:
        """The transports as text; None if they were not recorded."""
        return ", ".join(self.transports) or None

    @property
    def attempts(self) -> int:
        """How often the run was started."""
        return sum(event["event"] == "started" for event in self.events)

    def setting(self, key: str) -> Any:
        """A configuration value by its dotted key; None when absent."""
        return lookup(self.config, key)


def last_event(events: tuple[Mapping[str, Any], ...], kind: str) -> Mapping[str, Any]:
    """The last event of a kind; empty when there is none."""
    return next((event for event in reversed(events) if event["event"] == kind), {})


def hardware(runs: Iterable[RunResult]) -> str:
    """What the runs ran on, for the first word of a sentence: CPU, GPU, or emulated nodes of either."""
    runs = list(runs)
    devices = sorted({DEVICES.get(str(run.started.get("device")), "Unknown device") for run in runs})
    words = " and ".join(devices) or "Nothing measured"
    return f"Emulated nodes on {words}" if any(run.started.get("emulated_nodes") is True for run in runs) else words

"""One run, ours or another program's: configuration, plan, events and measured values, or why it is not used."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.untrusted import as_list, lookup
from jobs.files import flat
from jobs.metrics import Metric

if TYPE_CHECKING:
    # Types of fields only; not needed at run time.
    from analysis.logs.file import LogFile
    from analysis.metrics.communication import Collective
    from analysis.metrics.energy import Energy
    from analysis.metrics.goodput import Loss
    from analysis.metrics.mfu import Utilization
    from analysis.metrics.node_use import NodeUse
    from analysis.metrics.profile import RankProfile
    from analysis.metrics.serving import ServedLoad
    from analysis.metrics.storage import Storage
    from analysis.metrics.stragglers import Straggler
    from analysis.metrics.systems import NodeSystem

# A file that the user writes next to logs; analysis.logs.facts reads it.
FACTS_FILE = "facts.yaml"
DEVICES = {"cpu": "CPU", "cuda": "GPU", "gpu": "GPU"}
UNKNOWN_DEVICE = "Unknown device"


@dataclass(frozen=True, eq=False)
class RunResult:
    """One run; with a `reason` if it is not used."""

    path: Path
    config: Mapping[str, Any] = field(default_factory=dict)
    plan: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    events: tuple[Mapping[str, Any], ...] = ()
    state: str = "finished"
    reason: str | None = None
    values: Mapping[Metric, float] = field(default_factory=dict)
    """Measured over steady steps; times of attempts are summed over the attempts that recorded their end, start-up by
    cause over all starts; memory and communication per rank are of the latest attempt that recorded them, with
    communication summed over axes and collectives."""
    losses: Mapping[int, float] = field(default_factory=dict)
    """Loss by step."""
    steps_are_numbered: bool = True
    """False if its log does not count steps: their keys are then positions in the log."""
    steady_steps: int = 0
    step_times_s: Mapping[int, float] = field(default_factory=dict)
    """Time of each steady step, by step."""
    step_rates: tuple[Metric, Mapping[int, float]] | None = None
    """The rate of each steady step, by step, of a log that reports rates and no step times; else None."""
    lost_to: Sequence[Loss] = field(default_factory=list)
    """The cause of the end of every start but the last, with its cost."""
    utilization: Utilization | None = None
    """MFU and HFU with their inputs, or the reason for their absence; None for a run that is not used."""
    energy: Energy | None = None
    """Energy from the power readings in its directory or log folder; None if there are no readings."""
    collectives: tuple[Collective, ...] | None = None
    """The communication of a rank in one step, from the latest attempt that recorded it; None if none did."""
    stragglers: Sequence[Straggler] | None = None
    """Ranks and nodes that the others waited for, worst first; None if not recorded."""
    storage: Storage | None = None
    """Bytes that its processes read and wrote, by second and phase; None if they did not record them."""
    node_use: Sequence[NodeUse] = ()
    """Hardware use of its nodes over time; empty without records of it."""
    system: Sequence[NodeSystem] = ()
    """Server, network, file systems and software of its nodes; empty without records of them."""
    served: ServedLoad | None = None
    """Its replicas under the load; None unless it served."""
    loads: Sequence[RunResult] = ()
    """The loads of its search (serving.search), each as a run; empty without one."""
    profiles: Sequence[RankProfile] = ()
    """The profiled ranks, from the latest attempt that recorded a profile."""
    far_out_s: Mapping[int, float] = field(default_factory=dict)
    """Time of the steady steps that are not in its rate, by step."""
    far_out_share: float = 0.0
    """The share by which its rate would be lower with them; below 0 if it would be higher."""
    rate: Metric | None = None
    """Its unit of speed, if its program declares one; None: the first of analysis.scaling.groups.RATES that it has."""
    derived: str | None = None
    """The derivation of its throughput, if the program does not report it."""
    disbelieved: str = ""
    """The reason that its log gives not to believe it: it is never named fastest. Empty without one."""
    reservations: Sequence[str] = ()
    """Further doubts about its size or speed, which headlines state next to its rate."""
    remarks: Sequence[str] = ()
    """Sentences on what the reader of its rate must know: the batch grew, samples were packed."""
    log: LogFile | None = None
    """The log of another program that the run was read from; None for a run directory of ours."""

    @property
    def used(self) -> bool:
        """Return True if figures and headline may use it."""
        return self.reason is None

    @property
    def name(self) -> str:
        """Return the name of the run, else that of its directory."""
        return str(self.config.get("name") or self.path.name)

    @property
    def sweep(self) -> str:
        """Return the sweep it was submitted in, else the directory above."""
        return str(self.config.get("sweep") or self.path.parent.name)

    @property
    def ranks(self) -> int | None:
        """Return the world size; None if a log does not report it."""
        nodes, ranks_per_node = self.setting("nodes"), self.setting("ranks_per_node")
        if isinstance(nodes, int) and isinstance(ranks_per_node, int):
            return nodes * ranks_per_node
        return self.setting("ranks") if self.log else None

    @functools.cached_property
    def started(self) -> Mapping[str, Any]:
        """Return the latest `started` event; empty if it never started."""
        return last_event(self.events, "started")

    @functools.cached_property
    def settings(self) -> Mapping[str, Any]:
        """Return the configuration by dotted keys."""
        return flat(self.config)

    @functools.cached_property
    def transports(self) -> Sequence[str]:
        """Return the transports of its collectives in the latest attempt that recorded them; empty if none did."""
        return [str(each) for each in as_list(last_event(self.events, "transport").get("ways"))]

    @property
    def transport(self) -> str | None:
        """Return the transports as text; None if they were not recorded."""
        return ", ".join(self.transports) or None

    @property
    def attempts(self) -> int:
        """Return the number of starts."""
        return sum(event["event"] == "started" for event in self.events)

    @property
    def freezes_weights(self) -> bool:
        """Return True if adapters or virtual tokens train in place of the weights."""
        return any(self.setting(f"job.{key}") is not None for key in ("lora", "prompt_tuning"))

    @property
    def rehearses(self) -> bool:
        """Return True if it is a rehearsal, made small for CPU ranks."""
        return self.setting("rehearsal.name") is not None

    def setting(self, key: str) -> Any:
        """Return a configuration value by its dotted key; None if absent."""
        return lookup(self.config, key)


def last_event(events: tuple[Mapping[str, Any], ...], kind: str) -> Mapping[str, Any]:
    """Return the last event of a kind; empty if there is none."""
    return next((event for event in reversed(events) if event["event"] == kind), {})


def hardware(runs: Iterable[RunResult]) -> str:
    """Return the hardware for the first words of a sentence: CPU, GPU, emulated nodes of either, or a rehearsal."""
    runs = list(runs)
    found = {DEVICES.get(str(run.started.get("device")), UNKNOWN_DEVICE) for run in runs}
    devices = [*sorted(found - {UNKNOWN_DEVICE}), *(found & {UNKNOWN_DEVICE})]
    words = " and ".join([*devices[:1], *(device.replace("Unknown", "unknown") for device in devices[1:])])
    words = words or "Nothing measured"
    if any(run.started.get("emulated_nodes") is True for run in runs):
        words = f"Emulated nodes on {words}"
    if any(run.rehearses for run in runs):
        words = f"Rehearsal on {words[0].lower() + words[1:] if words.startswith('Emulated') else words}"
    return words

"""The protocol of a kind of work: all that plan, submit and a rank ask without knowing what a run does.

A kind is a folder of jobs/work with the object WORK in its work.py. It is looked up here by name, so nothing below
imports a kind. Its keys are a section of the schema (jobs/settings); training and evaluation have the section `job`.
Plan and submit ask these objects on login nodes: they import no torch, and what is slow only where it is used.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.layout import Layout, layout_of
from jobs.lookup import imported, rules_of
from jobs.metrics import StoragePhase
from jobs.schema import Engine, EngineKind, Job, Objective, Run

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from jobs.lease import Lease
    from jobs.plan.predict.states import States
    from jobs.ranks import Rank

KINDS: Mapping[str, str] = {each.name: each.metadata["work"] for each in fields(Run) if "work" in each.metadata}
"""The section that a run has -> the folder of its kind of work."""

OF_EVERY_WORK = {"kind", "hang_timeout_s", "cpu_threads_per_rank", "profile", "server"}
"""Keys of `engine` that every kind of work reads, or that have rules of their own."""

JOB_OF_EVERY_WORK = {"name", "train"}
"""Keys of `job` that choose the work."""

Entry = Callable[[Run, "Lease", "Rank"], None]
"""The work of a rank, from its start to its recorded end."""
Rule = Callable[[Run], str | None]
"""jobs.plan.rules.rule.Rule, whose module is above this one."""


@dataclass(frozen=True)
class Component:
    """Nodes of a job that it asks for alike; a heterogeneous job has several components."""

    nodes: int
    partition: str | None
    gpus: bool
    memory_gb: int | None
    key: str = "cluster.partition"
    """The key of its partition."""
    nodes_key: str = "nodes"
    """The key of its number of nodes."""

    @property
    def asks_for(self) -> tuple[str | None, bool, int | None]:
        """Return what each of its nodes is asked for."""
        return self.partition, self.gpus, self.memory_gb


class Work(ABC):
    """A kind of work."""

    is_predicted = False
    """True if memory and speed follow from the language model."""
    reads_samples = False
    """True if it trains or evaluates a language model: it reads samples of tokens."""
    has_batch = False
    """True if it has micro-batches, and a global batch of them."""
    engine: EngineKind | None = EngineKind.native
    """The engine that does it; None if engines name it among the work that they do (Engine.works)."""
    rules: str | None = None
    """The module with its VALUES, RULES and WARNINGS."""
    entry_point: str
    """The function of a rank, MODULE:NAME: torch takes seconds to import, and NeMo twenty."""
    not_read: Mapping[str, str] = {}
    """Keys of other sections that it does not read, with the only values that they may have."""
    reads_of_engine: frozenset[str] | None = None
    """Keys of `engine` that it reads besides OF_EVERY_WORK; None if it trains, so that the engine knows them."""
    reads_of_job: frozenset[str] | None = None
    """Keys of `job` that it reads besides JOB_OF_EVERY_WORK; None if it trains a language model, which reads all."""
    meaningless: tuple[str, ...] = ()
    """Settings of `job` that mean nothing to it, although every run has them; reports leave them out."""
    paths: tuple[str, ...] = ()
    """Keys of paths, which are made absolute: a job may start in another directory."""
    first_phase: StoragePhase | None = StoragePhase.load
    """The phase of storage in which a rank begins; None if the work begins its record itself."""

    # --- composition: without a run's files -------------------------------------------------------------------

    def unread(self, run: Run | DictConfig) -> dict[str, str]:
        """Return the sections and keys that it does not read, each with what it reads instead."""
        return {}

    def unread_of_engine(self) -> dict[str, str]:
        """Return the keys of `engine` that it does not read, each with the reason."""
        if self.reads_of_engine is None:
            return {}
        names = {each.name for each in fields(Engine)} - OF_EVERY_WORK - self.reads_of_engine
        return dict.fromkeys((f"engine.{name}" for name in names), "it is a key of training a language model")

    def unread_of_job(self) -> dict[str, str]:
        """Return the keys of `job` that it does not read, each with the reason; those of `not_read` have their own."""
        if self.reads_of_job is None:
            return {}
        names = {each.name for each in fields(Job)} - JOB_OF_EVERY_WORK - self.reads_of_job
        refused = {".".join(key.split(".")[:2]) for key in self.not_read}
        return dict.fromkeys({f"job.{name}" for name in names} - refused, "it is a key of training a language model")

    def not_read_because(self, run: Run, key: str, value: str, remedy: str) -> str:
        """Return the refusal of a key that it does not read."""
        return f"{key} belongs to a training, and job={run.job.name} trains nothing. Set {remedy}, or another job."

    def settle_paths(self, run: Run, absolute: Callable[[str], str]) -> None:
        """Make its paths absolute, in place."""
        for key in self.paths:
            section, _, name = key.rpartition(".")
            owner = attrgetter(section)(run)
            if getattr(owner, name, None) is not None:
                setattr(owner, name, absolute(getattr(owner, name)))

    def name(self, run: Run) -> None:
        """Name what it works with, in place, where that is not the language model and its data."""

    def engine_refusal(self, run: Run) -> str:
        """Return the refusal of an engine that does not do this work."""
        return (
            f"job={run.job.name} runs by engine=native, and engine={run.engine.kind.name} is chosen. Set engine=native."
        )

    def value_rules(self) -> Iterable[Rule]:
        """Return the rules that need no legal layout."""
        return rules_of(self.rules, "VALUES")

    def layout_rules(self) -> Iterable[Rule]:
        """Return the rules of a run whose values, layout and batch are legal."""
        return rules_of(self.rules, "RULES")

    def warnings(self) -> Iterable[Rule]:
        """Return its own warnings."""
        return rules_of(self.rules, "WARNINGS")

    # --- plan: of a legal run ---------------------------------------------------------------------------------

    @abstractmethod
    def parameters(self, run: Run) -> int:
        """Return the weights of the model that it computes with."""

    def checkpoint_bytes(self, run: Run) -> int:
        """Return the size of a checkpoint; 0 if it writes none when it is stopped."""
        return 0

    def states_in_words(self, run: Run, held: States) -> tuple[str, str]:
        """Return what a GPU has to hold, and a remedy where that is too much."""
        size = f"{held.total / 1e9:,.1f} GB on each ({held.described()})"
        return f"training states alone take {size}", "Shard them over more GPUs"

    @abstractmethod
    def rank_bytes(self, run: Run) -> float:
        """Return the least that a rank holds in memory."""

    def has_grid(self, run: Run) -> bool:
        """Return True if the degrees of parallelism lay out its ranks."""
        return True

    def drawn_layout(self, run: Run) -> tuple[Layout, str]:
        """Return the rank grid that a drawing shows, and the heading of the drawing."""
        return layout_of(run), ""

    def columns(self, run: Run) -> dict[str, str]:
        """Return its own columns of the plan."""
        return {}

    def predicted_as(self, run: Run) -> Run | None:
        """Return the run of a language model whose memory and speed are predicted for this run; None if none are."""
        return run if self.is_predicted else None

    def predicted_columns(self, run: Run) -> dict[str, str]:
        """Return its own predicted numbers by heading, of work without optimizer steps."""
        return {}

    def predicted_record(self, run: Run) -> dict[str, object] | None:
        """Return its own prediction as plan.json contains it under its kind."""
        return None

    def settings_digest(self, run: Run) -> str | None:
        """Return a digest of all settings except nodes that its wall time depends on; None if a model predicts it."""
        return None

    def notes(self, run: Run) -> Iterable[tuple[str, str]]:
        """Yield its notes below the plan: the subject, and a sentence."""
        return ()

    # --- submission -------------------------------------------------------------------------------------------

    def resized(self, run: Run, nodes: int, ranks: int) -> tuple[tuple[str, Any], ...]:
        """Return the values of its own keys that follow other nodes, and parallelism over this many ranks."""
        return ()

    def components(self, run: Run) -> list[Component]:
        """Return the nodes that the job of a run asks for, in groups of what they are asked for, in their order."""
        cluster = run.cluster
        return [Component(run.job_nodes, cluster.partition, cluster.gpus, cluster.memory_gb_per_node)]

    def own_settings(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the settings of a frozen configuration that mean something to it."""
        return {**config, "job": {key: value for key, value in config["job"].items() if key not in self.meaningless}}

    def objective_refusal(self, run: Run) -> str | None:
        """Return why runs of this kind do not measure the objective of their tuning (tune.objective)."""
        assert run.tune is not None
        key = f"tune.objective={run.tune.objective.name}"
        if run.tune.objective is Objective.merit:
            return f"{key} is the merit of a program, and job={run.job.name} starts none. Set job=program."
        if not run.job.train:
            return f"{key} is measured in training, and job.train=false trains nothing. Set job.train=true."
        return None

    def packages(self, run: Run) -> dict[str, str]:
        """Return the packages that a rank imports, and the extra of pyproject.toml that brings each."""
        return {"torch": "train"}

    def refuse_unready(self, run: Run, sweep: Path) -> None:
        """Raise ConfigError or DataError if files that this machine sees cannot be used, or have no room."""

    def executes(self, run: Run) -> dict[str, list[str]]:
        """Return what its settings execute, read and write, for the owner of a sweep that somebody else made."""
        return {}

    def directories(self, run: Run) -> list[Path]:
        """Return the directories that it reads and writes besides data and checkpoints."""
        return []

    # --- a rank -----------------------------------------------------------------------------------------------

    def entry(self, run: Run) -> Entry:
        """Return the work of a rank; only now are its packages imported."""
        found: Entry = imported(self.entry_point)
        return found


def kind_of(run: Run | DictConfig) -> str:
    """Return the name of the kind of work that a run does, also of a configuration that is not a Run yet."""
    return kind_in({section: getattr(run, section) for section in KINDS}, trains=run.job.train)


def kind_in(sections: Mapping[str, object], *, trains: bool) -> str:
    """Return the name of the kind of work with these sections, as values or as plain data."""
    named = (kind for section, kind in KINDS.items() if sections.get(section) is not None)
    return next(named, "train" if trains else "evaluate")


def work_of(run: Run | DictConfig) -> Work:
    """Return the kind of work that a run does."""
    return loaded(kind_of(run))


@cache
def loaded(kind: str) -> Work:
    """Return the object of a kind of work."""
    found: Work = imported(f"jobs.work.{kind}.work:WORK")
    return found

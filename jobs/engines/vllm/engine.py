"""vLLM and other servers: `engine.server` is their command."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from jobs.engines.engine import Engine
from jobs.errors import ConfigError
from jobs.schema import Run

if TYPE_CHECKING:
    from jobs.plan.predict.states import States
    from jobs.plan.rules.rule import Rule
    from jobs.work.work import Entry


class Server(Engine):
    """engine=vllm, and the other files of conf/engine with `kind: vllm`."""

    package, extra = "tokenizers", "train"
    sets_allocator = False

    def value_rules(self) -> Iterable[Rule]:
        """Return the rule that it serves."""
        return (serves_only,)

    def layout_rules(self) -> Iterable[Rule]:
        """Return none besides those of serving."""
        return ()

    def memory_share(self, run: Run) -> float:
        """Return what the server reserves."""
        return (run.engine.server and run.engine.server.memory_fraction) or 1.0

    def states(self, run: Run) -> States:
        """Return weights and KV cache of a replica."""
        from jobs.plan.predict.states import served

        return served(run)

    def entry(self, run: Run) -> Entry:
        """Raise ConfigError: a server trains nothing."""
        raise ConfigError("engine=vllm serves a model, and this run has no section `serving`. Set job=serve.")


def serves_only(run: Run) -> str | None:
    """Refuse another kind of work."""
    if run.serving is not None:
        return None
    return f"engine=vllm serves a model, and job={run.job.name} does not. Set job=serve, or engine=native."


ENGINE = Server()

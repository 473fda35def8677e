"""vLLM and other servers: `engine.server` is their command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from jobs.engines.engine import Engine
from jobs.errors import ConfigError
from jobs.schema import Run

if TYPE_CHECKING:
    from jobs.plan.predict.states import States
    from jobs.work.work import Entry


class Server(Engine):
    """engine=vllm, and the other files of conf/engine with `kind: vllm`."""

    package, extra = "tokenizers", "train"
    works = frozenset({"serve"})
    sets_allocator = False

    @property
    def not_read(self) -> Mapping[str, str]:
        """Return the keys of training, and TF32: a server chooses its own arithmetic."""
        return {**super().not_read, "engine.tf32": "true"}

    def memory_share(self, run: Run) -> float:
        """Return what the server reserves."""
        return (run.engine.server and run.engine.server.memory_fraction) or 1.0

    def work_refusal(self, run: Run) -> str:
        """Return the refusal of a run that does not serve."""
        return f"engine=vllm serves a model, and job={run.job.name} does not. Set job=serve, or engine=native."

    def states(self, run: Run) -> States:
        """Return the states of a replica: weights, and the KV cache of one request, without which no server starts."""
        from jobs.plan.predict.activations import WIDTHS
        from jobs.plan.predict.states import States, kv_bytes_per_token, parameters_held

        weights = WIDTHS[run.job.precision] * parameters_held(run, sharded=False).total
        return States(weights, gradients=0, optimizer=0, kv_cache=run.job.sequence_length * kv_bytes_per_token(run))

    def entry(self, run: Run) -> Entry:
        """Raise ConfigError: a server trains nothing."""
        raise ConfigError("engine=vllm serves a model, and this run has no section `serving`. Set job=serve.")


ENGINE = Server()

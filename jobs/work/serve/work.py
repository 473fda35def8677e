"""Serving a language model: replicas of a server under a load."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.engines.engine import engine_of
from jobs.layout import Layout, degree_of
from jobs.parallelism import AXIS_NAMES, MODEL_AXES
from jobs.schema import Run
from jobs.work.language_model import LanguageModelWork
from jobs.work.serve.replicas import replica_nodes, replica_ranks, replicas_of

if TYPE_CHECKING:
    from jobs.plan.predict.states import States

NOT_READ = {
    "job.loss_band.reference": "null",
    "job.lora": "null", "job.prompt_tuning": "null", "job.export": "false", "job.checkpoint_every_steps": "null",
    "job.checkpoint_copy_dir": "null", "stages.prepare": "null", "stages.evaluate": "null", "stages.serve": "null",
    "engine.profile.steps": "[]", "engine.profile.program": "torch",
}  # fmt: skip
"""Settings of a training, which a server would not follow."""


class Serve(LanguageModelWork):
    """Serving, by engines that are servers."""

    engine = None
    entry_point = "jobs.work.serve.serve:serve"
    rules = "jobs.work.serve.rules"
    not_read = NOT_READ
    reads_of_engine = frozenset()
    reads_of_job = frozenset({"init_from", "init_from_is_remote", "precision", "seed", "sequence_length"})
    first_phase = None

    def unread(self, run: object) -> dict[str, str]:
        """Return the data: its prompts are made."""
        return {"data": "its load is serving.prompts prompts that are made"}

    def engine_refusal(self, run: Run) -> str:
        """Return the refusal of an engine that is not a server."""
        return f"job=serve needs a server, and engine={run.engine.kind.name} has none. Set engine=vllm, or another job."

    def states_in_words(self, run: Run, held: States) -> tuple[str, str]:
        """Return weights and KV cache."""
        request = f"weights and KV cache of one request of job.sequence_length={run.job.sequence_length} tokens"
        remedy = "Split each replica over more GPUs (parallelism.tensor, over nodes parallelism.pipeline)"
        if (share := engine_of(run).memory_share(run)) < 1:
            remedy = f"A server reserves {share:g} of it (engine.server.memory_fraction). {remedy}"
        return f"{request} take {held.total / 1e9:,.1f} GB on each ({held.described()})", remedy

    def drawn_layout(self, run: Run) -> tuple[Layout, str]:
        """Return the grid of one replica if it has a pipeline.

        In the grid of a run pipeline stages are outermost, and ranks of a replica are consecutive.
        """
        if run.parallelism.pipeline == 1:
            return super().drawn_layout(run)
        degrees = dict.fromkeys(AXIS_NAMES, 1) | {axis.name: degree_of(run, axis) for axis in MODEL_AXES}
        per_node = min(replica_ranks(run), run.ranks_per_node)
        return Layout.by_name(replica_nodes(run), per_node, degrees), "Each replica:\n"

    def resized(self, run: Run, nodes: int, ranks: int) -> tuple[tuple[str, Any], ...]:
        """Return the replicas that the run set, fewer where replicas of this many ranks leave room for fewer."""
        assert run.serving is not None
        if run.serving.replicas is None:
            return ()
        return (("serving.replicas", min(run.serving.replicas, nodes * run.ranks_per_node // ranks)),)

    def columns(self, run: Run) -> dict[str, str]:
        """Return the replicas and the concurrency."""
        assert run.serving is not None
        return {"replicas": str(replicas_of(run)), "concurrency": f"{run.serving.concurrency:,}"}

    def predicted_columns(self, run: Run) -> dict[str, str]:
        """Return the rates of all replicas and the latencies of a request."""
        from jobs.plan.predicted_table import shown, with_interval
        from jobs.work.serve.speed import UNCALIBRATED, server_speed

        if (found := server_speed(run)) is None:
            return {}
        return {
            "constants": UNCALIBRATED.partition(":")[0],
            "output tokens/s": with_interval(found.output_tokens_per_s),
            "TTFT (ms)": with_interval(found.time_to_first_token_s.scaled(1e3)),
            "TPOT (ms)": with_interval(found.time_per_output_token_s.scaled(1e3)),
            "requests at once": shown(found.requests_at_once),
        }

    def predicted_record(self, run: Run) -> dict[str, object] | None:
        """Return the prediction of server_speed."""
        from jobs.work.serve.speed import server_speed

        return None if (found := server_speed(run)) is None else found.record()

    def notes(self, run: Run) -> Iterable[tuple[str, str]]:
        """Yield the capacity of a replica's KV cache, and the places of replicas over nodes."""
        from jobs.work.serve.rules import kv_cache_note, replica_note

        notes = {"KV cache": kv_cache_note(run), "replicas": replica_note(run)}
        return [(subject, note) for subject, note in notes.items() if note is not None]

    def packages(self, run: Run) -> dict[str, str]:
        """Return no torch: the server has a Python of its own (engine.server.python)."""
        engine = engine_of(run)
        return {engine.package: engine.extra}

    def refuse_unready(self, run: Run, sweep: Path) -> None:
        """Raise ConfigError if the model is not there, or is another one."""
        from jobs.work.serve.given_model import refuse_missing_model

        refuse_missing_model(run)

    def executes(self, run: Run) -> dict[str, list[str]]:
        """Return the load generator, and its Python."""
        assert run.serving is not None
        command, python = run.serving.client_command, run.serving.client_python
        return {
            "load generator": [shlex.join(command)] if command else [],
            "Python of the load generator": [python] if python else [],
        }


WORK = Serve()

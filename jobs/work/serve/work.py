"""Serving a language model: replicas of a server under a load."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path

from jobs.engines.engine import engine_of
from jobs.layout import replicas_of
from jobs.schema import Run
from jobs.work.language_model import LanguageModelWork
from jobs.work.work import Entry, Rule


class Serve(LanguageModelWork):
    """Serving, by engines that are servers."""

    first_phase = None

    def unread(self, run: object) -> dict[str, str]:
        """Return the data: its prompts are made."""
        return {"data": "its load is serving.prompts prompts that are made"}

    def value_rules(self) -> Iterable[Rule]:
        """Return the rule of its engine."""
        from jobs.work.serve.rules import engine_is_a_server

        return (engine_is_a_server,)

    def layout_rules(self) -> Iterable[Rule]:
        """Return the rules of replicas and their load."""
        from jobs.work.serve.rules import RULES

        return RULES

    def warnings(self) -> Iterable[Rule]:
        """Return the warnings of requests and ranks that wait."""
        from jobs.work.serve.rules import WARNINGS

        return WARNINGS

    def columns(self, run: Run) -> dict[str, str]:
        """Return the replicas and the concurrency."""
        assert run.serving is not None
        return {"replicas": str(replicas_of(run)), "concurrency": f"{run.serving.concurrency:,}"}

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

    def entry(self, run: Run) -> Entry:
        """Return the work of a rank of a replica."""
        from jobs.work.serve.serve import serve

        return serve


WORK = Serve()

"""The {names} in the commands of servers and load generators (jobs.work.program.substitution)."""

from __future__ import annotations

OVER_NODES = frozenset(("nodes", "node_rank", "head", "head_port", "headless"))
"""Names that have a value only where a replica spans nodes."""
SERVER = OVER_NODES | {
    "python", "model", "host", "port", "tensor", "pipeline", "precision", "max_length", "output_tokens",
    "memory_fraction",
}  # fmt: skip
"""Names in `engine.server.command` and `arguments`."""
CLIENT = frozenset(
    ("python", "url", "endpoint", "model", "prompts", "body", "result", "requests", "concurrency", "rate",
     "output_tokens", "limits", "seed", "directory", "name")
)  # fmt: skip
"""Names in `serving.client_command`."""

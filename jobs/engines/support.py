"""What an engine can run today; asked before a run is prepared, so no torch here."""

from __future__ import annotations

from jobs.schema import Run


def unsupported(run: Run) -> str | None:
    """Why engine=native cannot execute this legal run, or None."""
    if run.parallelism.tensor > 1 or run.parallelism.pipeline > 1:
        return (
            f"engine=native runs parallelism.tensor=1 and pipeline=1 so far, not tensor={run.parallelism.tensor} "
            f"pipeline={run.parallelism.pipeline}. `slurmscale plan` shows the layout; to train, type "
            "parallelism=single, ddp, fsdp_full, fsdp_grad_op, fsdp_no_shard or fsdp_hybrid."
        )
    if run.model.experts:
        return (
            f"engine=native does not train mixtures of experts yet ({run.model.name} has {run.model.experts} experts). "
            "Choose a dense model."
        )
    if run.model.tie_embeddings:
        return "engine=native does not tie embeddings yet. Type model.tie_embeddings=false."
    return None

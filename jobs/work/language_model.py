"""The common part of training, evaluating and serving a language model: its weights, and where they come from."""

from __future__ import annotations

from pathlib import Path

from jobs.engines.engine import engine_of
from jobs.engines.native.optimizers.optimizer import optimizer_of
from jobs.errors import ConfigError
from jobs.plan import cost
from jobs.schema import Run
from jobs.work.work import Work


class LanguageModelWork(Work):
    """Work with a language model, whose memory and speed are predicted."""

    is_predicted = True

    def parameters(self, run: Run) -> int:
        """Return the weights of the model."""
        return cost.parameters(run.model)

    def checkpoint_bytes(self, run: Run) -> int:
        """Return the size of the trained weights and the optimizer's state."""
        return cost.trained_checkpoint_bytes(run)

    def rank_bytes(self, run: Run) -> float:
        """Return the states of a rank's GPU."""
        from jobs.plan.predict.states import states

        return states(run).total

    def packages(self, run: Run) -> dict[str, str]:
        """Return torch, the engine's package, and that of weights in 4 bits."""
        engine = engine_of(run)
        quantized = {"bitsandbytes": "qlora"} if run.job.quantizes_base else {}
        return super().packages(run) | {engine.package: engine.extra} | quantized

    def refuse_unready(self, run: Run, sweep: Path) -> None:
        """Raise ConfigError if the weights that it starts from do not exist, or its optimizer cannot be made."""
        if run.job.train:
            optimizer_of(run).refuse_unready(run)
        if run.job.init_from is None or run.job.init_from_is_remote:
            return
        start = Path(run.job.init_from)
        if (start / "lit_model.pth").exists():
            return
        if not any(start.glob("*.safetensors")):
            raise ConfigError(
                f"{run.name}: job.init_from={start} has neither lit_model.pth nor *.safetensors here. Set it to a "
                "Hugging Face directory (hf download) or a LitGPT checkpoint directory (the export/ of a run), or "
                "job.init_from_is_remote=true if it exists on the nodes only."
            )
        # It imports OmegaConf, which a sweep that resumes does not need.
        from jobs.plan.model_file import refuse_other_sizes

        refuse_other_sizes(run, start)

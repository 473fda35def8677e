"""The check that the model which a run is to serve is there, and is the one of its configuration."""

from __future__ import annotations

from pathlib import Path

from jobs.engines.litgpt.names import litgpt_fields
from jobs.errors import ConfigError
from jobs.files import read_yaml, reason
from jobs.plan.model_file import refuse_other_sizes
from jobs.schema import Run
from jobs.settings.serving import Layout
from jobs.work.serve.weights import LITGPT_CONFIG, LITGPT_WEIGHTS, is_converted

MODEL_FILES = ("config.json", "tokenizer.json", "*.safetensors")
"""Files of a model in Hugging Face's layout, which a server reads."""
LITGPT_FILES = (LITGPT_CONFIG, "tokenizer.json", LITGPT_WEIGHTS)
"""Files of a LitGPT directory."""
LITGPT_SIZES = ("n_layer", "n_embd", "n_head", "n_query_groups", "head_size", "intermediate_size", "padded_vocab_size")
"""jobs.plan.model_file.SIZES by their names in LitGPT's configuration."""


def refuse_missing_model(run: Run) -> None:
    """Raise ConfigError if the directory of the model that a run serves does not exist, or is of another model."""
    where = run.job.init_from
    if where is None:
        raise ConfigError(
            f"{run.name}: job=serve has no model to serve. Set job.init_from=DIRECTORY, a model in Hugging Face's "
            f"layout ({', '.join(MODEL_FILES)})."
        )
    if run.job.init_from_is_remote:
        return
    assert run.engine.server is not None
    litgpt = run.engine.server.layout is Layout.litgpt or is_converted(run)
    missing = [name for name in (LITGPT_FILES if litgpt else MODEL_FILES) if not any(Path(where).glob(name))]
    if missing:
        given = "a LitGPT directory" if litgpt else "a model in Hugging Face's layout (hf download), a LitGPT directory"
        raise ConfigError(
            f"{run.name}: job.init_from={where} has no {missing[0]} here. Set it to {given} (litgpt download, or the "
            "export/ of a run), or job.init_from_is_remote=true if it exists on the nodes only."
        )
    if litgpt:
        refuse_other_litgpt_model(run, Path(where))
        return
    refuse_other_sizes(run, Path(where))


def refuse_other_litgpt_model(run: Run, where: Path) -> None:
    """Raise ConfigError if a LitGPT directory is of another model than the run."""
    file = where / LITGPT_CONFIG
    try:
        there = read_yaml(file)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{run.name}: {file} cannot be read: {reason(error)}. Set another job.init_from.") from error
    wanted = litgpt_fields(run.model)
    for name in LITGPT_SIZES:
        found = there.get(name) if isinstance(there, dict) else None
        if found != wanted[name]:
            raise ConfigError(
                f"{run.name}: {name} is {found} in {file}, and {wanted[name]} in model={run.model.name}. Set model to "
                "that of job.init_from."
            )

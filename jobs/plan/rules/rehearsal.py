"""A rehearsal: a configuration made so small that it runs on CPU ranks of one machine, with its structure kept.

conf/rehearsal/cpu.yaml chooses the cluster and has the limits, which `shrink` applies to values of files.
Values of the command line and of a sweep stay as given.
"""

from __future__ import annotations

from collections.abc import Collection
from importlib import resources
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from jobs.engines.engine import loaded
from jobs.plan.rules.native_only import NEMO_ONLY
from jobs.plan.rules.rule import Rule
from jobs.schema import INSTRUCTIONS, EngineKind, Precision, Rehearsal, Run, Source
from jobs.settings.serving import NO_MODEL

CLIENT_WORDS = ("{url}", "{prompts}", "{requests}", "{concurrency}", "{output_tokens}", "{result}", "{limits}")
MADE = {Source.text: Source.stdlib, Source.megatron_binary: Source.random}
"""Samples that a rehearsal makes in place of text and token files."""
ENDING = "_rehearsal"
"""End of the names of model and sweep, so that no table shows a small model under the name of the large one."""


def shrink(config: DictConfig, given: Collection[str]) -> None:
    """Make the configuration of a rehearsal small, but for the keys given, and name it one; leave any other as it is.

    Divide the sizes of a large model, lower larger values to their limits, take samples made for rehearsals where the
    data have no path, and serve by the stand-ins of jobs/work/serve/stand_in.
    """
    limits: Rehearsal | None = config.rehearsal
    if limits is None:
        return
    large = config.model.hidden_size >= limits.divide_from_hidden_size
    for key, divisor in limits.divide.items() if large else ():
        # A size that the model does not have is null.
        if key not in given and (size := OmegaConf.select(config, key)) is not None:
            OmegaConf.update(config, key, size // divisor)
    for key, most in limits.at_most.items():
        section, _, name = key.rpartition(".")
        owner = OmegaConf.select(config, section) if section else config
        # An interpolation follows another key, which has a limit of its own.
        follows = key in given or owner is None or OmegaConf.is_interpolation(owner, name)
        if not follows and (owner[name] or 0) > most:
            OmegaConf.update(config, key, most)
    if loaded(config.engine.kind).needs_gpus:
        # The native engine has the same techniques as NeMo.
        config.engine.kind = EngineKind.native
        # One replica sends no gradients, and a rehearsal has fewer of them. Processors have no float8.
        others = {"engine.gradients": Precision.float32, "engine.float8": False, "engine.float8_recipe": None}
        for key, unset in {**NEMO_ONLY, **others}.items():
            OmegaConf.update(config, key, unset)
    if OmegaConf.is_missing(config.data, "path"):
        replace_data(config)
    if config.serving is not None and config.engine.server is not None:
        stand_in(config, given)
    config.model.name, config.model.litgpt_name = config.model.name + ENDING, None
    if config.sweep is not None and "sweep" not in given:
        config.sweep += ENDING


def replace_data(config: DictConfig) -> None:
    """Train on what a rehearsal can make in place of data without a path, under their name."""
    if config.data.source in INSTRUCTIONS:
        config.data.path = str(samples())
    else:
        config.data.path, config.data.source = None, MADE[config.data.source]


def stand_in(config: DictConfig, given: Collection[str]) -> None:
    """Serve without a model: by a server that needs Python only, under the load of such a client."""
    programs = resources.files("jobs.work.serve.stand_in")
    values: dict[str, Any] = {
        "engine.server.command": ["{python}", str(programs / "server.py"), "{host}", "{port}"],
        "engine.server.name": "stand_in",
        "serving.client_command": ["{python}", str(programs / "client.py"), *CLIENT_WORDS],
    }
    if config.job.init_from is None:
        values |= {"job.init_from": NO_MODEL, "job.init_from_is_remote": True}
    for key, value in values.items():
        if key not in given:
            OmegaConf.update(config, key, value, merge=False)


def samples() -> Path:
    """Return the file of samples made for rehearsals: a record has the keys of Alpaca, of Dolly and of PubMedQA."""
    return Path(str(resources.files("conf") / "rehearsal" / "samples.jsonl"))


def ranks_have_no_gpus(run: Run) -> str | None:
    """Require a cluster without GPUs."""
    if run.rehearsal is not None and run.cluster.gpus:
        return (
            f"rehearsal={run.rehearsal.name} runs on CPUs, and cluster={run.cluster.name} has GPUs. Set cluster=local "
            "or cluster=generic_slurm, or leave rehearsal out."
        )
    return None


def numbers_are_no_measurements(run: Run) -> str | None:
    """Warn that a rehearsal measures nothing."""
    if run.rehearsal is None:
        return None
    return (
        "a rehearsal on CPU, with a model, data and steps made small: it shows that the chain works and is no "
        "measurement of the experiment."
    )


RULES: tuple[Rule, ...] = (ranks_have_no_gpus,)
WARNINGS: tuple[Rule, ...] = (numbers_are_no_measurements,)

"""The training by one of our engines whose memory and speed are predicted for a program (program.predicted)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar, cast

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from jobs.layout import data_degree
from jobs.plan.choices import file_of
from jobs.plan.legality import problems_of_grid
from jobs.plan.model_file import file_name, read_model_file
from jobs.plan.predict.once import once
from jobs.schema import Model, Run, ScalingMode
from jobs.settings.program import LikeTraining, Rollouts
from jobs.work.program import placeholders as names
from jobs.work.program.substitution import text_of

Section = TypeVar("Section")
PARAMETER = re.compile(r"\{(params\.\w+)\}")


@once
def like_training(run: Run) -> Run | str:
    """Return the training that takes as much memory and time as the program of a run, or why there is none."""
    assert run.program is not None
    like = run.program.predicted
    if like is None:
        return "unknown: the program declares no training that is like it (program.predicted)"
    known = names.known_values(run)
    texts = {name: {key: text_of(text, known) for key, text in getattr(like, name).items()} for name in names.SECTIONS}
    try:
        sections = {name: with_keys(name, getattr(run, name), given) for name, given in texts.items()}
        model = run.model if like.model is None else named_model(text_of(like.model, known))
        rollouts = None if like.rollouts is None else rollout_numbers(run, like.rollouts)
    except ValueError as error:
        return f"unknown: {error}"
    found = replace(
        # What does not fit is said, not refused: the program may know better.
        replace(run, gpu=replace(run.gpu, memory_check=False), model=model, program=None, tune=None, contest=None),
        **sections,
    )
    found.job.train = True
    if rollouts is not None:
        found.job.sequence_length = int(rollouts["prompt_tokens"] + rollouts["longest_tokens"])
    if "global_batch_size" in like.scaling:
        # Whatever the mode of the run, the program has the batch that it declares.
        found.scaling.mode = ScalingMode.strong
    if (given := found.scaling.global_batch_size) is not None and given < 0:
        # So many micro-batches of each data-parallel rank, as trainers write it. More degrees than ranks have no such
        # rank, and are the reason that is then given.
        found.scaling.global_batch_size = -given * found.job.micro_batch_size * max(1, data_degree(found))
    wrong = problems_of_grid(found)
    why = in_keys_of_program(str(wrong[0]), like) if wrong else ""
    return f"unknown: engine={found.engine.kind.name} could not train it: {why}" if wrong else found


def rollout_numbers(run: Run, rollouts: Rollouts) -> dict[str, float]:
    """Return the values of declared rollouts by key; raise ValueError for one that no rollout has."""
    known, found = names.known_values(run), {}
    for key, text in vars(rollouts).items():
        value, least = text_of(text, known), 0 if key in {"forward_passes", "memory_fraction"} else 1
        try:
            found[key] = float(value)
        except ValueError:
            raise ValueError(f"program.predicted.rollouts.{key}={value} is not a number") from None
        if not least <= found[key] < math.inf:
            raise ValueError(f"program.predicted.rollouts.{key}={value} must be {least} or more")
    mean, longest, tensor = (found[key] for key in ("completion_tokens", "longest_tokens", "tensor"))
    if longest < mean:
        raise ValueError(f"program.predicted.rollouts.longest_tokens={longest:g} is less than the mean of {mean:g}")
    if found["memory_fraction"] >= 1:
        raise ValueError(f"program.predicted.rollouts.memory_fraction={found['memory_fraction']:g} must be below 1")
    if run.ranks % tensor:
        raise ValueError(f"program.predicted.rollouts.tensor={tensor:g} does not divide the {run.ranks} ranks")
    return found


def with_keys(name: str, section: Section, texts: Mapping[str, str]) -> Section:
    """Return a section of a run with other values of some keys; raise ValueError for a text that is no value."""
    merged = OmegaConf.structured(section)
    for key, text in texts.items():
        try:
            merged = OmegaConf.merge(merged, {key: text})
        except OmegaConfBaseException as error:
            raise ValueError(f"program.predicted.{name}.{key}={text}: {str(error).splitlines()[0]}") from error
    return cast(Section, OmegaConf.to_object(merged))


def in_keys_of_program(why: str, like: LikeTraining) -> str:
    """Return a refusal with the parameters of the program in place of the keys that they are values of."""
    for section in names.SECTIONS:
        for key, text in getattr(like, section).items():
            if parameter := PARAMETER.fullmatch(text):
                why = re.sub(rf"\b{section}\.{key}(?=[= ])", f"program.{parameter[1]}", why)
    return why


def named_model(name: str) -> Model:
    """Return the model of a name, as a program or conf/model spells it. Raise ValueError for an unknown one."""
    file = file_of(f"model/{file_name(name)}")
    if file is None:
        raise ValueError(f"there is no file model/{file_name(name)}.yaml of the model {name}")
    return read_model_file(file)

"""The {names} in the commands, files and paths of a program: keys of the run, its parameters, and facts of a start."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import Any

from jobs.plan.rules.rule import value_at
from jobs.rundir import RunDir
from jobs.schema import Run
from jobs.settings.program import LikeTraining, ParameterType, Program, Rollouts, Step
from jobs.work.program.substitution import names_in, text_of

STARTED = frozenset(("run_directory", "directory", "main_address", "main_port", "hostfile", "python", "restart"))
"""Names that have a value when the run starts."""
PROCESS = frozenset(("rank", "local_rank", "node_rank"))
"""Names that have a value for each process; they count the processes and nodes of its step."""
SERVER_PROCESS = frozenset(("port", "address"))
"""Names that have a value for each process of a server: where it is to listen."""
SERVER = ("address", "port", "url", "urls", "addresses")
"""Facts of a server by its step, such as {servers.decode.url}; `urls` and `addresses` are those of all processes."""
CHECKPOINT = "checkpoint"
"""Name of the newest checkpoint in `resume.arguments`."""
OF_NODES = ("partition", "gpus", "memory_gb")
"""Keys of a step that say which nodes it gets."""
SECTIONS = ("engine", "parallelism", "job", "scaling")
"""Sections of `program.predicted`, which are those of a run."""
DERIVED = frozenset(("grid_rows", "grid_columns"))
"""The most square grid of the ranks; no more rows than columns."""


def texts(program: Program) -> Iterator[tuple[str, str]]:
    """Yield every text with {names}, with its key."""
    for name, step in program.steps.items():
        yield f"program.steps.{name}.command", step.command
        yield from ((f"program.steps.{name}.env.{variable}", text) for variable, text in step.env.items())
        if step.nodes is not None:
            yield f"program.steps.{name}.nodes", step.nodes
    for part in ("env", "files"):
        yield from ((f"program.{part}.{name}", text) for name, text in getattr(program, part).items())
    for name, given in program.inputs.items():
        yield f"program.inputs.{name}.path", given.path
    for name, metric in program.metrics.items():
        if metric.file is not None:
            yield f"program.metrics.{name}.file", metric.file
    if program.log is not None:
        yield from ((f"program.log.facts.{name}", text) for name, text in program.log.facts.items())
        if program.log.file is not None:
            yield "program.log.file", program.log.file
    if program.predicted is not None:
        yield from texts_of_training(program.predicted)
    if program.directory is not None:
        yield "program.directory", program.directory
    if program.resume is not None:
        yield "program.resume.arguments", program.resume.arguments
        yield "program.resume.file", program.resume.file


def texts_of_training(like: LikeTraining) -> Iterator[tuple[str, str]]:
    """Yield every text of the training that predicts a program, with its key."""
    if like.model is not None:
        yield "program.predicted.model", like.model
    for section in SECTIONS:
        given = getattr(like, section)
        yield from ((f"program.predicted.{section}.{key}", text) for key, text in given.items())
    if like.rollouts is not None:
        keys = [each.name for each in fields(Rollouts)]
        yield from ((f"program.predicted.rollouts.{key}", getattr(like.rollouts, key)) for key in keys)


def used_names(program: Program) -> set[str]:
    """Return all {names} of a program."""
    return names_in(text for _, text in texts(program))


def value_of(run: Run, name: str) -> object:
    """Return the value of a name that is known before the run starts, as text or number; None if it has none."""
    assert run.program is not None
    if name in DERIVED:
        rows = max(rows for rows in range(1, math.isqrt(run.ranks) + 1) if run.ranks % rows == 0)
        return rows if name == "grid_rows" else run.ranks // rows
    section, _, key = name.partition(".")
    if section == "params":
        return run.program.params.get(key)
    if section == "inputs":
        found = run.program.inputs.get(key)
        return None if found is None else found.path
    return in_words(value_at(run, name))


def in_words(value: Any) -> object:
    """Return a value of a key as a program reads it; None for a section, a list or a mapping."""
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str | int | float) else None


def known_values(run: Run) -> dict[str, object]:
    """Return the values of all names of a run that are known before it starts; a name without a value is absent."""
    assert run.program is not None
    names = used_names(run.program) - STARTED - PROCESS - SERVER_PROCESS - {CHECKPOINT}
    values = {name: value for name in sorted(names) if (value := value_of(run, name)) is not None}
    # Paths of inputs contain names themselves.
    return values | {f"inputs.{name}": text_of(each.path, values) for name, each in run.program.inputs.items()}


def servers_of(program: Program) -> dict[str, Step]:
    """Return the steps that are servers, by name."""
    return {name: step for name, step in program.steps.items() if step.ready is not None}


def of_servers(program: Program) -> set[str]:
    """Return the {names} of all servers."""
    return {f"servers.{name}.{fact}" for name in servers_of(program) for fact in SERVER}


def words_of(program: Program, command: str) -> list[str]:
    """Return the words of a command; a parameter of type words stands for all of its own.

    Raise ValueError for a quotation mark without its partner.
    """
    several = [name for name, about in program.parameters.items() if about.type is ParameterType.words]
    for name in several:
        command = command.replace(f"{{params.{name}}}", program.params.get(name, ""))
    return shlex.split(command)


def program_of(run: Run) -> Program:
    """Return the program of a run that starts one."""
    assert run.program is not None
    return run.program


def used_sections(program: Program) -> set[str]:
    """Return the sections of the configuration that the {names} of a program use."""
    return {name.partition(".")[0] for name in used_names(program)}


def working_directory(run: Run, directory: RunDir) -> Path:
    """Return the working directory of the program of a run."""
    given = program_of(run).directory
    return directory.work if given is None else Path(text_of(given, known_values(run)))

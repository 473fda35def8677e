"""From overrides to legal runs: Hydra's composition, the sweep's points, and errors one can act on.

Uses Hydra's compose API and override grammar instead of @hydra.main: every point is composed and checked before
the first is prepared, which Hydra's sweeper cannot promise (it runs the points before an illegal one).
"""

from __future__ import annotations

import difflib
import itertools
import math
import os
import pickle
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, is_dataclass
from datetime import datetime
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, cast, get_args, get_type_hints

import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_module
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationToMissingValueError, MissingMandatoryValue, OmegaConfBaseException

from jobs.errors import ConfigError
from jobs.plan.legality import problems, product_is_illegal
from jobs.plan.nearest import nearest_legal
from jobs.schema import EngineKind, Run

# A sweep of hundreds has one mistake more often than hundreds.
MOST_EXPLAINED = 10
# Ten times what a Slurm array holds by default.
MOST_POINTS = 10_000
# Repeats and bookkeeping name themselves; every other swept key is appended to the name with its value.
NAMED_AXES = {"model", "engine", "parallelism", "nodes", "ranks_per_node", "repeat", "name"}
GROUPS = {
    "model",
    "parallelism",
    "engine",
    "kernels",
    "job",
    "data",
    "scaling",
    "gpu",
    "cluster",
    "launcher",
    "stages",
    "experiment",
}


@dataclass(frozen=True)
class Point:
    """One composed point of a sweep."""

    run: Run
    overrides: list[str]
    """What the user would type to get this very point."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What else its provenance holds."""
    code: Path | None = None
    """The snapshot of code in its sweep that it runs; None: this program's."""


def compose(overrides: list[str], *, multirun: bool, judge: Callable[[Run], list[str]] = problems) -> list[Point]:
    """Compose and check every point; `judge` says why one cannot be.

    Raises ConfigError for what Hydra refuses (unknown key, option or type, missing value) and, once all points
    are composed, one that lists every illegal point with its reasons.
    """
    # As Hydra wants it typed where config.yaml does not list the group, which ours does.
    overrides = [line.removeprefix("+") if line.startswith("+experiment=") else line for line in overrides]
    refuse_odd_site()
    with refusals_in_our_words(), initialize_config_module("conf", version_base="1.3"):
        axes = sweep_axes(overrides, multirun=multirun)
        points = [
            Point(settled(named(run, swept)), [typed(override) for override in point])
            for point, run, swept in composed(axes)
        ]
    # One name for all: points may differ in model, and a long sweep is not composed within a second.
    sweep = f"{points[0].run.model.name}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    for point in points:
        point.run.sweep = point.run.sweep or sweep
    refuse_illegal(points, judge)
    refuse_equal_names(points)
    return points


def sweep_axes(overrides: list[str], *, multirun: bool) -> list[list[Override]]:
    """The alternatives of each override; with multirun also those an experiment file declares.

    Raises ConfigError where they are none, or more points than a sweep may have.
    """
    parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
    given = parser.parse_overrides(overrides)
    swept = [override for override in given if override.is_sweep_override()]
    if swept and not multirun:
        key = swept[0].get_key_element()
        raise ConfigError(
            f"{typed(swept[0])}: several values, but this is a single run. Add -m to plan or submit for one run of "
            f"each value, or quote it to pass a list: '{key}=[...]'."
        )
    axes = [alternatives(override, parser) for override in given]
    for override in itertools.chain.from_iterable(axes):
        refuse_odd_key_or_choice(override)
    declared: list[Override] = []
    if multirun:
        choices = [typed(o) for o in given if not o.is_sweep_override() and not is_plain_value(o)]
        config = hydra_compose("config", overrides=choices, return_hydra_config=True)
        params = config.hydra.sweeper.get("params") or {}
        known = {override.key_or_group for override in given}
        declared = [
            override
            for override in parser.parse_overrides([f"{key}={value}" for key, value in params.items()])
            if override.key_or_group not in known
        ]
    axes = [alternatives(override, parser) for override in declared] + axes
    count = math.prod(map(len, axes))
    if count > MOST_POINTS:
        raise ConfigError(f"These are {count:,} points; a sweep has at most {MOST_POINTS:,}. Give fewer values.")
    return axes


def refuse_odd_site() -> None:
    """Raise ConfigError where the site's own files are said to be where no directory is."""
    site = os.environ.get("SLURMSCALE_SITE")
    if site and "://" not in site and not Path(site).is_dir():
        raise ConfigError(
            f"SLURMSCALE_SITE={site} is not a directory. Give the one that holds your cluster/NAME.yaml, or unset it."
        )


def refuse_odd_key_or_choice(override: Override) -> None:
    """Raise ConfigError for what Hydra would answer with a traceback, or in words about its own inside."""
    group, line, value = override.key_or_group, typed(override), cast(Any, override.value())
    if not group:
        raise ConfigError(f"{line!r} has no key. Type KEY=VALUE.")
    if group not in GROUPS or isinstance(value, dict):
        return
    if override.is_add() or override.is_force_add():
        raise ConfigError(f"{line}: {group} is chosen already. Type {line.lstrip('+')} to choose another one.")
    names = value if isinstance(value, list) else [value]
    if override.is_delete() or not all(isinstance(name, str) for name in names):
        options = GlobalHydra.instance().config_loader().get_group_options(group, config_name="config")
        raise ConfigError(f"{line}: {which_to_choose(group, options)}")


def which_to_choose(group: str, options: Iterable[str]) -> str:
    """A sentence with the choices of a group."""
    return f"Type {group}=NAME with one of {', '.join(sorted(options))}."


def alternatives(override: Override, parser: OverridesParser) -> list[Override]:
    """The override itself, or one override for each value of a sweep; raises ConfigError where it has none."""
    if not override.is_sweep_override():
        return [override]
    key = override.get_key_element()
    try:
        values = list(itertools.islice(override.sweep_string_iterator(), MOST_POINTS + 1))
    except (HydraException, ValueError) as error:
        raise ConfigError(f"{typed(override)}: {error}. {sweep_to_type(key)}") from None
    if not values:
        raise ConfigError(f"{typed(override)}: no value is in it. {sweep_to_type(key)}")
    if len(values) > MOST_POINTS:
        raise ConfigError(f"{typed(override)}: a sweep has at most {MOST_POINTS:,} points. {sweep_to_type(key)}")
    return parser.parse_overrides([f"{key}={value}" for value in values])


def sweep_to_type(key: str) -> str:
    """A sentence on how several values are given."""
    return f"Type {key}=A,B,C, or {key}=range(1,5) for 1 to 4."


def typed(override: Override) -> str:
    """An override as the user typed it."""
    assert override.input_line is not None
    return override.input_line


def composed(axes: list[list[Override]]) -> Iterator[tuple[tuple[Override, ...], Run, list[Override]]]:
    """Every point of the product of the axes, with its Run and its swept overrides.

    Points that differ only in plain values share one Hydra composition, which is where the time goes: Hydra
    itself applies such overrides last, by this same OmegaConf.update.
    """
    bases: dict[tuple[str, ...], bytes] = {}
    for point in itertools.product(*axes):
        values = [override for override in point if is_plain_value(override)]
        choices = tuple(typed(o) for o in point if o not in values)
        if choices not in bases:
            # As bytes, which become a copy four times as fast as deepcopy makes one.
            bases[choices] = pickle.dumps(composed_base(list(choices)))
        config = pickle.loads(bases[choices])  # noqa: S301 (our own)
        for override in values:
            refuse_unset_section(config, override)
            OmegaConf.update(config, override.key_or_group, override.value(), merge=True)
        swept = [override for override, axis in zip(point, axes, strict=True) if len(axis) > 1]
        yield point, frozen(config), swept


def composed_base(overrides: list[str]) -> DictConfig:
    """Hydra's composition, held to the schema: an added key is refused like a misspelt one."""
    removed = [line for line in overrides if line.startswith("~")]
    if removed:
        raise ConfigError(
            f"{removed[0]}: a key cannot be removed. Type {removed[0][1:].split('=')[0]}=null to unset it."
        )
    config = OmegaConf.to_container(hydra_compose("config", overrides=overrides), resolve=False)
    return cast(DictConfig, OmegaConf.merge(OmegaConf.structured(Run), config))


def refuse_unset_section(config: DictConfig, override: Override) -> None:
    """Raise ConfigError for a value inside a section that nothing has set."""
    section = override.key_or_group.rpartition(".")[0]
    if section and section in known_types() and OmegaConf.select(config, section) is None:
        raise ConfigError(
            f"{typed(override)}: {section} is null, so nothing in it can be changed. Choose an experiment or job "
            f"file that sets {section}."
        )


def frozen(config: DictConfig) -> Run:
    """The Run of a configuration; raises ConfigError when a choice needs values that nobody gave."""
    try:
        return cast(Run, OmegaConf.to_object(config))
    except (MissingMandatoryValue, InterpolationToMissingValueError):
        # Names only the first one.
        missing = sorted(OmegaConf.missing_keys(config))
        raise ConfigError(
            f"{' and '.join(missing)} {'has' if len(missing) == 1 else 'have'} no value, and this choice needs one. "
            f"Type {' '.join(f'{key}=VALUE' for key in missing)}, or set it in a file of your own (SLURMSCALE_SITE)."
        ) from None


def is_plain_value(override: Override) -> bool:
    """Whether an override only sets an existing key to a value, choosing no file."""
    key = override.key_or_group
    return (
        override.type is OverrideType.CHANGE and key not in GROUPS and key.split(".")[0] != "hydra" and "/" not in key
    )


def settled(run: Run) -> Run:
    """The run with absolute paths: a job may start in another directory."""
    for config, key in ((run, "runs_dir"), (run.job, "init_from"), (run.data, "path"), (run.data, "tokenizer"),
                        (run.data, "cache_dir")):  # fmt: skip
        value = getattr(config, key)
        if value is not None:
            setattr(config, key, str(Path(value).expanduser().absolute()))
    return run


def named(run: Run, swept: Iterable[Override]) -> Run:
    """The run with its name, made from its choices unless the user gave one."""
    if run.name is None:
        engine = [] if run.engine.kind is EngineKind.native else [run.engine.kind.name]
        parts = [run.model.name, *engine, run.parallelism.name, f"n{run.nodes}x{run.ranks_per_node}"]
        parts += [
            f"{override.key_or_group.rsplit('.', 1)[-1]}={override.value()}"
            for override in swept
            if override.key_or_group not in NAMED_AXES
        ]
        if run.repeat > 1 or any(override.key_or_group == "repeat" for override in swept):
            parts.append(f"r{run.repeat}")
        run.name = re.sub(r"[^A-Za-z0-9._=+-]", "_", "-".join(parts))
    return run


def refuse_illegal(points: list[Point], judge: Callable[[Run], list[str]]) -> None:
    """Raise one ConfigError that names every illegal point, and of the first ones all reasons."""
    found = [(point.run, judge(point.run)) for point in points]
    illegal = [(run, reasons) for run, reasons in found if reasons]
    if illegal:
        explained, others = illegal[:MOST_EXPLAINED], illegal[MOST_EXPLAINED:]
        lines = ["\n    ".join([f"{run.name}:", *reasons, *nearest(run)]) for run, reasons in explained]
        if others:
            lines.append(f"Neither can these {len(others)}: {', '.join(str(run.name) for run, _ in others)}.")
        count = f"{len(illegal)} of {len(points)} points" if len(points) > 1 else "This run"
        raise ConfigError(f"{count} cannot run; nothing was prepared or submitted.\n" + "\n".join(lines))


def nearest(run: Run) -> list[str]:
    """One line with the products of degrees that can run, next to one that cannot."""
    found = nearest_legal(run, lambda near: not problems(near)) if product_is_illegal(run) else []
    return [f"Nearest that can run: {'; or '.join(found)}."] if found else []


def refuse_equal_names(points: list[Point]) -> None:
    """Raise ConfigError when two points would share a run directory."""
    counts = Counter(point.run.name for point in points)
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        raise ConfigError(
            f"{counts[twice[0]]} points share the name {twice[0]!r}; every point needs a run directory of its own. "
            "Put what differs into it: name='...${repeat}' or leave name unset."
        )


def register_schema() -> None:
    """Let Hydra know the schema by the name that conf/config.yaml starts with."""
    ConfigStore.instance().store(name="run_schema", node=Run)


register_schema()


@contextmanager
def refusals_in_our_words() -> Iterator[None]:
    """Turn what Hydra and OmegaConf raise into a ConfigError with what to type instead."""
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(explain(error)) from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        # Hydra leaves a file that is no configuration to whoever reads its traceback.
        said, site = " ".join(str(error).split()), os.environ.get("SLURMSCALE_SITE", "(not set)")
        raise ConfigError(
            f"A configuration file cannot be used: {said}. Mend it; your own ones are in SLURMSCALE_SITE={site}, and "
            "cluster/generic_slurm.yaml is a pattern."
        ) from error


def explain(error: Exception) -> str:
    """The innermost message, without Hydra's repetition, and a suggestion where a key is misspelt."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options:
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        near = difflib.get_close_matches(name, error.options, n=3, cutoff=0.6)
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        return f"{group}={name}: there is no such choice.{hint} {which_to_choose(group, error.options)}"
    if isinstance(error, OverrideParseException):
        said = next(line for line in error.message.splitlines() if not line.startswith("Error parsing override"))
        return (
            f"{error.override!r} cannot be read: {said}. Type KEY=VALUE; a value with blanks, commas, colons or "
            """brackets wants two kinds of quotes: 'KEY="a b"'."""
        )
    cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
    text = str(error).strip().removeprefix("In 'config': ")
    key = getattr(cause, "full_key", None) or ""
    unknown = re.search(r"Key '([^']+)' (?:is not in struct|not in '(\w+)')", str(cause))
    if unknown:
        full = key or unknown[1]
        full = full if full.endswith(unknown[1]) else f"{full}.{unknown[1]}"
        near = difflib.get_close_matches(full, known_types(), n=3, cutoff=0.6)
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        return f"{full} is not a configuration key.{hint} `slurmscale plan` shows all keys with their values."
    if isinstance(cause, OmegaConfBaseException) and cause is not error:
        return f"{text.splitlines()[0]}: {str(cause).splitlines()[0]} (key: {key}){what_to_type(key)}"
    if isinstance(error, OmegaConfBaseException):
        return f"{text.splitlines()[0]} (key: {key}){what_to_type(key)}"
    return text


def what_to_type(key: str) -> str:
    """A sentence on what a key takes; empty where OmegaConf's own words list it, as the names of a choice."""
    known = known_types().get(key)
    words = {
        int: f"{key}=NUMBER, a whole one",
        float: f"{key}=NUMBER",
        bool: f"{key}=true or {key}=false",
        str: f"{key}=TEXT",
    }
    if is_dataclass(known):
        return f". It is a section: type {key}.KEY=VALUE with one of {', '.join(get_type_hints(known))}."
    return f". Type {words[known]}." if known in words else ""


def known_types(of: type = Run, prefix: str = "") -> dict[str, Any]:
    """Every key of the schema, dotted, with the type of its value; of one that may be null, with that of the other."""
    types: dict[str, Any] = {}
    for name, kind in get_type_hints(of).items():
        given = [each for each in get_args(kind) if each is not NoneType]
        types[prefix + name] = given[0] if isinstance(kind, UnionType) and len(given) == 1 else kind
        types |= known_types(kind, f"{prefix}{name}.") if is_dataclass(kind) and isinstance(kind, type) else {}
    return types

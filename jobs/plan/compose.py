"""From overrides to legal runs: Hydra's composition and the points of a sweep.

Uses Hydra's compose API and override grammar instead of @hydra.main: every point is composed and checked before
the first is prepared, which Hydra's sweeper cannot promise (it runs the points before an illegal one).
"""

from __future__ import annotations

import itertools
import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, is_dataclass
from datetime import datetime
from functools import reduce
from pathlib import Path
from typing import Any, cast

from hydra import compose as hydra_compose
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationToMissingValueError, MissingMandatoryValue

from jobs.engines.engine import engine_of
from jobs.errors import ConfigError, Problem
from jobs.plan.choices import chosen, left_to_user, site_file
from jobs.plan.configuration_files import composing
from jobs.plan.fitting import nearest_fitting
from jobs.plan.hydra_errors import what_to_set
from jobs.plan.keys import did_you_mean, keys, known_key, mapping_of
from jobs.plan.legality import common_global_batch, only_memory_is_short, problems, product_is_illegal
from jobs.plan.nearest import nearest_legal
from jobs.plan.overrides import for_hydra, is_plain_value
from jobs.plan.refusals import typed
from jobs.plan.rules import rehearsal, sbatch_variables, unused
from jobs.plan.rules.memory import is_proposed
from jobs.plan.rules.rule import either
from jobs.plan.rules.values import choose_precision
from jobs.plan.sweep import Axis, read_axes
from jobs.plan.synonyms import nearest_names
from jobs.prompt_template import is_file_name
from jobs.rundir import as_file_name
from jobs.schema import Run, ScalingMode
from jobs.secrets import secret_in
from jobs.work.work import work_of

# A sweep of hundreds has one mistake more often than hundreds.
MOST_EXPLAINED = 10
# Repeats and bookkeeping name themselves; every other swept key is appended to the name with its value.
NAMED_AXES = {"model", "images.network", "engine", "parallelism", "nodes", "ranks_per_node", "repeat", "name"}
# Keys that some files leave to the user, and that a plan does without.
ONLY_TO_SUBMIT = ("cluster.account", "data.path")
DEFAULT_GLOBAL_BATCH = 8
Place = tuple[str, ...]
"""Names of a key's sections and its own."""


@dataclass(frozen=True)
class Point:
    """One composed point of a sweep."""

    run: Run
    overrides: list[str]
    """The overrides that compose this very point."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Further entries of its provenance."""
    code: Path | None = None
    """The snapshot of code in its sweep that it runs; None: this program's."""
    unset: tuple[str, ...] = ()
    """Keys that `submit` needs and that are not set."""


def compose(
    overrides: list[str],
    *,
    multirun: bool,
    judge: Callable[[Run], list[Problem]] = problems,
    to_submit: bool = True,
    received: bool = False,
    left_out: list[str] | None = None,
) -> list[Point]:
    """Compose and check every point of a sweep; `judge` returns the reasons why a run is illegal.

    Without `to_submit`, account and data path may stay unset. With `received`, somebody else may have written the
    overrides: they only set keys and choose files by their names. With `left_out`, points that cannot run are left
    out, and a line for each, and for their number, is added to it.

    Raises ConfigError for what Hydra refuses (unknown key, option or type, missing value) and, once all points are
    composed, one that lists every illegal point with its reasons.
    """
    # Hydra wants the + where config.yaml does not list the group; ours does.
    overrides = [line.removeprefix("+") if line.startswith("+experiment=") else line for line in overrides]
    with composing(overrides):
        products = read_axes(overrides, multirun=multirun, received=received)
        points = [point for axes in products for point in composed(axes, to_submit=to_submit)]
    # One name for all: points may differ in model, and a long sweep is not composed within a second.
    sweep = f"{points[0].run.model.name}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    for point in points:
        point.run.sweep = point.run.sweep or sweep
    set_global_batch(points)
    points = legal_points(points, judge, left_out)
    refuse_equal_names(points)
    return points


def set_global_batch(points: list[Point]) -> None:
    """Set one global batch that fits all points of strong scaling that have none, and add it to their overrides."""
    unset = [
        point
        for point in points
        if point.run.scaling.mode is ScalingMode.strong and point.run.scaling.global_batch_size is None
    ]
    for point in unset:
        point.run.scaling.global_batch_size = DEFAULT_GLOBAL_BATCH
    # First any batch, because the rules that `common_global_batch` asks need one; then the one that fits all points:
    # strong scaling compares runs of equal work.
    size = common_global_batch([point.run for point in unset]) or DEFAULT_GLOBAL_BATCH
    for point in unset:
        point.run.scaling.global_batch_size = size
        if "scaling.global_batch_size" not in work_of(point.run).unread(point.run):
            point.overrides.append(f"scaling.global_batch_size={size}")


def composed(axes: list[Axis], *, to_submit: bool) -> Iterator[Point]:
    """Yield every point of the product of the axes."""
    # itertools.product repeats the same Override objects, so their identity tells equal values apart from others
    # without comparing them.
    groups: dict[tuple[str, ...], SameFiles] = {}
    values = list(itertools.chain.from_iterable(axis.values for axis in axes))
    files = {id(override): for_hydra(override) for override in values if not is_plain_value(override)}
    swept = [axis.is_swept for axis in axes]
    for point in itertools.product(*(axis.values for axis in axes)):
        chosen_files = tuple(files[id(override)] for override in point if id(override) in files)
        if chosen_files not in groups:
            groups[chosen_files] = SameFiles(list(chosen_files), to_submit=to_submit)
        run, unset = groups[chosen_files].run([override for override in point if id(override) not in files])
        run = settled(named(run, list(itertools.compress(point, swept))))
        yield Point(run, list(map(typed, point)), unset=unset)


class SameFiles:
    """The points of a sweep that choose the same files and differ in plain values.

    They share one Hydra composition: Hydra itself applies such overrides last, by this same OmegaConf.update. Points
    that differ from the first in one value are converted from the configuration; those that differ in several have the
    changes of each value, which are known by then, unless two values change the same key, as an interpolation may.
    """

    def __init__(self, files: list[str], *, to_submit: bool) -> None:
        self.files = files
        self.to_submit = to_submit
        # As bytes, which become a copy four times as fast as deepcopy makes one.
        self.config = pickle.dumps(composed_base(files))
        self.first: list[Override] = []
        self.first_run = b""
        self.unset: tuple[str, ...] = ()
        self.changes: dict[int, dict[Place, Any] | None] = {}
        """Values that differ from the first run, by the override that makes them; None: not only values."""

    def run(self, values: list[Override]) -> tuple[Run, tuple[str, ...]]:
        """Return the run of some values, and the keys that stay unset."""
        other = [value for value, first in zip(values, self.first, strict=False) if value is not first]
        if self.first_run and len(other) != 1 and (together := self.together(other)) is not None:
            run = cast(Run, pickle.loads(self.first_run))  # noqa: S301 (our own)
            for (*sections, name), value in together.items():
                setattr(reduce(getattr, sections, run), name, deepcopy(value))
            return run, self.unset
        run, unset = self.converted(values)
        if not self.first_run:
            self.first, self.first_run, self.unset = values, pickle.dumps(run), unset
        # Variables of the shell fill keys that are not set: what a value changes may then depend on other values of its
        # point.
        elif len(other) == 1 and unset == self.unset and not sbatch_variables.given():
            self.changes[id(other[0])] = dict(differences(pickle.loads(self.first_run), run))  # noqa: S301 (our own)
        return run, unset

    def together(self, values: list[Override]) -> dict[Place, Any] | None:
        """Return the changes of several values; None if one is not known, or two concern the same key."""
        found: dict[Place, Any] = {}
        for value in values:
            changes = self.changes.get(id(value))
            # A prefix is the same key too: one value may replace the section in which another one sets a key.
            if changes is None or any(a[: len(b)] == b[: len(a)] for a in found for b in changes):
                return None
            found |= changes
        return found

    def converted(self, values: list[Override]) -> tuple[Run, tuple[str, ...]]:
        """Return the run of some values and the keys that stay unset, from the configuration."""
        config = pickle.loads(self.config)  # noqa: S301 (our own)
        last = {override.key_or_group: override for override in values}
        for override in values:
            refuse_unset_section(config, override)
            refuse_unknown_entry(config, override)
            refuse_list_for_mapping(override)
            key, value = override.key_or_group, override.value()
            if key == "gpu.memory_gb" and value is None and config.gpu.memory_gb is not None:
                # A later override of the same key wins.
                if last[key] is not override:
                    continue
                # The size of a GPU also decides how a run computes its loss: only the check is left out.
                key, value = "gpu.memory_check", False
            OmegaConf.update(config, key, value, merge=True)
        # In this order: a rehearsal leaves alone what the user gave, and the shell only fills what is unset by then.
        rehearsal.shrink(config, {override.key_or_group for override in values})
        choose_precision(config, {override.key_or_group for override in values})
        sbatch_variables.fill(config)
        # A user must not be asked for the path of data that nothing reads.
        leave_unset(config, ["data.path"] if "data" in work_of(config).unread(config) else [])
        unset = () if self.to_submit else leave_unset(config, ONLY_TO_SUBMIT)
        # Before values are settled: an interpolation or a path would hide what it holds.
        if secret := secret_in(OmegaConf.to_container(config)):
            raise ConfigError(secret)
        return frozen(config, self.files), unset


def differences(first: Any, other: Any, path: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Yield the places where two equal classes of the schema differ, and the values of the other one."""
    for name, value in vars(other).items():
        before = getattr(first, name)
        if is_dataclass(value) and type(value) is type(before):
            yield from differences(before, value, (*path, name))
        # By text: NaN differs from itself, and 1 equals True.
        elif repr(value) != repr(before):
            yield (*path, name), value


def leave_unset(config: DictConfig, keys_left: Iterable[str]) -> tuple[str, ...]:
    """Set those keys to null that the user has to set and has not, and return them."""
    sections = [(key, *key.split(".")) for key in keys_left]
    unset = tuple(key for key, section, name in sections if OmegaConf.is_missing(config[section], name))
    for key in unset:
        OmegaConf.update(config, key, None)
    return unset


def composed_base(overrides: list[str]) -> DictConfig:
    """Return Hydra's composition, checked against the schema: an added key is refused like a misspelt one."""
    removed = [line for line in overrides if line.startswith("~")]
    if removed:
        raise ConfigError(f"{removed[0]}: a key cannot be removed. {instead_of_removal(removed[0][1:].split('=')[0])}")
    whole = hydra_compose("config", overrides=overrides, return_hydra_config=True)
    config = cast(dict[str, Any], OmegaConf.to_container(whole, resolve=False))
    choices = config.pop("hydra")["runtime"]["choices"]
    merged = cast(DictConfig, OmegaConf.merge(OmegaConf.structured(Run), config))
    # OmegaConf's merge loses a ??? where the schema has a default.
    for key in set(left_to_user(choices)) & keys().keys():
        if OmegaConf.select(merged, key.rpartition(".")[0]) is not None:
            OmegaConf.update(merged, key, "???")
    return merged


def instead_of_removal(name: str) -> str:
    """Return what to do instead of removing a key."""
    if ((known := known_key(name)) is not None and not known.optional) or mapping_of(name) is not None:
        return "Without it in the command, it is as the chosen files have it; a file of your own can leave it out."
    return f"Set {name}=null to unset it."


def refuse_unset_section(config: DictConfig, override: Override) -> None:
    """Raise ConfigError for a value inside a section that nothing has set."""
    key = override.key_or_group
    section = key if isinstance(override.value(), dict) else key.rpartition(".")[0]
    if section and section in keys() and OmegaConf.select(config, section) is None:
        raise ConfigError(
            f"{typed(override)}: {section} is null, so nothing in it can be changed. Choose an experiment or job "
            f"file that sets {section}."
        )


def refuse_unknown_entry(config: DictConfig, override: Override) -> None:
    """Raise ConfigError for a section that no file of the run has, such as program.steps.NAME."""
    section, _, key = override.key_or_group.partition(".")
    field_name, _, rest = key.partition(".")
    mapping, name = f"{section}.{field_name}", rest.partition(".")[0]
    if not name or mapping not in keys() or keys()[mapping].entry is None:
        return
    known = list(map(str, OmegaConf.select(config, mapping) or ()))
    if name not in known:
        own = f"set a key of {either(known)}, or " if known else ""
        remedy = f"{own}write {name} into the file of program={config.program.name}."
        raise ConfigError(
            f"{typed(override)}: {mapping} has no {name}.{did_you_mean(nearest_names(name, known))} "
            f"{remedy[0].upper()}{remedy[1:]}"
        )


def refuse_list_for_mapping(override: Override) -> None:
    """Raise ConfigError for a list in place of a mapping or section, for which OmegaConf names no key."""
    key, value = override.key_or_group, override.value()
    if isinstance(value, list) and key in keys() and (keys()[key].is_section or keys()[key].kind == dict[str, str]):
        raise ConfigError(f"{typed(override)}: a list is given{what_to_set(key)}")


def frozen(config: DictConfig, files: list[str]) -> Run:
    """Return the Run of a configuration; raises ConfigError if a chosen file needs values that are not set."""
    try:
        return cast(Run, OmegaConf.to_object(config))
    except (MissingMandatoryValue, InterpolationToMissingValueError):
        # Names only the first one.
        missing = sorted(OmegaConf.missing_keys(config))
        groups = dict.fromkeys([*(key.partition(".")[0] for key in missing), "experiment"])
        own = list(filter(None, (site_file(chosen(group, files)) for group in groups)))
        raise ConfigError(
            f"{' and '.join(missing)} {'has' if len(missing) == 1 else 'have'} no value, and this choice needs one. "
            f"Set {' '.join(f'{key}=VALUE' for key in missing)}, or set it in "
            f"{' or '.join(map(str, own)) or 'a file of your own (SLURMSCALE_SITE)'}."
        ) from None


def settled(run: Run) -> Run:
    """Return the run with absolute paths, since a job may start in another directory."""
    parts: list[tuple[object, str]] = [
        (run, "runs_dir"),
        (run.job, "init_from"),
        (run.job.loss_band, "reference"),
        (run.data, "path"),
        (run.data, "tokenizer"),
        (run.data, "cache_dir"),
    ]
    work_of(run).settle_paths(run, absolute)
    for config, key in parts:
        value = getattr(config, key, None)
        if value is not None:
            setattr(config, key, absolute(value))
    server = run.engine.server
    if server is not None and server.python is not None and "/" in server.python:
        server.python = absolute(server.python)
    if run.data.prompt is not None and is_file_name(run.data.prompt):
        run.data.prompt = absolute(run.data.prompt)
    return run


def absolute(path: str) -> str:
    """Return a path that a user wrote as an absolute one."""
    return str(Path(path).expanduser().absolute())


def named(run: Run, swept: list[Override]) -> Run:
    """Return the run with its name, made from its choices unless the user set one."""
    work_of(run).name(run)
    if run.name is None:
        program = run.engine.server.name if run.engine.server else run.engine.kind.name
        engine = [program] if engine_of(run).is_named else []
        grid = [run.parallelism.name] if work_of(run).has_grid(run) else []
        parts = [run.model.name, *engine, *grid, f"n{run.nodes}x{run.ranks_per_node}"]
        parts += [
            f"{override.key_or_group.rsplit('.', 1)[-1]}={override.value()}"
            for override in swept
            if override.key_or_group not in NAMED_AXES
        ]
        if run.repeat > 1 or any(override.key_or_group == "repeat" for override in swept):
            parts.append(f"r{run.repeat}")
        run.name = as_file_name("-".join(parts))
    return run


def legal_points(
    points: list[Point], judge: Callable[[Run], list[Problem]], left_out: list[str] | None = None
) -> list[Point]:
    """Return the points if all are legal, with `left_out` the legal ones, whose others it then lists.

    Raises one ConfigError that names every illegal point, and of the first ones all reasons.
    """
    found = [(each, unused.refusals(each.run, each.overrides) + judge(each.run)) for each in points]
    illegal = [(point.run, reasons) for point, reasons in found if reasons]
    if not illegal:
        return points
    explained, others = illegal[:MOST_EXPLAINED], illegal[MOST_EXPLAINED:]
    lines = ["\n    ".join([f"{run.name}:", *reasons, *nearest(run)]) for run, reasons in explained]
    if others:
        lines.append(f"Neither can these {len(others)}: {', '.join(str(run.name) for run, _ in others)}.")
    count = f"{len(illegal)} of {len(points)} points" if len(points) > 1 else "This run"
    if left_out is None or len(illegal) == len(points):
        if left_out is None and len(illegal) < len(points):
            lines.append("To run the others, add --skip-illegal to plan or submit.")
        raise ConfigError(
            f"{count} cannot run; nothing was prepared or submitted.\n" + "\n".join(lines),
            [reason for _, reasons in illegal for reason in reasons],
        )
    left_out += [f"left out: {count} cannot run (--skip-illegal).", *lines]
    return [point for point, reasons in found if not reasons]


def nearest(run: Run) -> list[str]:
    """Return a line with the legal products of degrees nearest to an illegal one, or nothing."""
    if product_is_illegal(run):
        found = nearest_legal(run, lambda near: not problems(near))
    elif only_memory_is_short(run):
        found = nearest_fitting(run, lambda near: is_proposed(near) and not problems(near))
    else:
        found = []
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

"""The keys of the schema with their types and meanings, as refusals, `slurmscale explain` and shell completion need."""

from __future__ import annotations

import ast
import difflib
import inspect
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, is_dataclass
from enum import Enum
from fnmatch import fnmatchcase
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from jobs import parallelism, schema
from jobs.plan.synonyms import meant
from jobs.schema import Run
from jobs.settings import images, program, report, serving, storage

# The groups of conf/: each choice is a file.
GROUPS = frozenset(
    (
        *("model", "parallelism", "engine", "job", "data", "scaling"),
        *("gpu", "cluster", "launcher", "network", "stages", "tune", "experiment", "rehearsal", "program"),
    )
)
# The end of a key's name, longest first -> its unit.
UNITS = {
    "_per_node_hour": "per node and hour",
    "_gb_per_node": "GB per node",
    "_node_hours": "node-hours",
    "_gpu_hours": "GPU-hours",
    "gb_per_s": "GB/s",
    "_per_s": "1/s",
    "_tflops": "TFLOP/s",
    "_min": "minutes",
    "_gb": "GB",
    "_mb": "MB",
    "_kb": "KB",
    "_s": "seconds",
    "_mhz": "MHz",
    "_w": "W",
}

# Types whose values are texts.
TEXT = (str, list[str], dict[str, str])


@dataclass(frozen=True)
class Key:
    """One key of the schema."""

    name: str
    """Dotted, such as job.steps."""
    kind: Any
    """Type of its value: a class, a generic such as list[int], or the class of a section."""
    optional: bool
    """True if the value may be null."""
    owner: type
    """The dataclass that has it as a field."""

    @property
    def is_section(self) -> bool:
        """Return whether the key holds other keys."""
        return is_dataclass(self.kind)

    @property
    def element(self) -> Any:
        """Return the type of the elements of a list; of another value its own type."""
        return get_args(self.kind)[0] if get_origin(self.kind) is list else self.kind

    @property
    def entry(self) -> type | None:
        """The class of the sections of a mapping of sections by name, such as program.metrics; None for another key."""
        kind = get_args(self.kind)[1] if get_origin(self.kind) is dict else None
        return kind if isinstance(kind, type) and is_dataclass(kind) else None

    @property
    def choices(self) -> list[str]:
        """Return the values that it takes where these can be listed, else an empty list."""
        if self.kind is bool:
            return ["true", "false"]
        return [member.name for member in self.kind] if is_enum(self.kind) else []

    @property
    def type_name(self) -> str:
        """Return its type as text."""
        names = {int: "whole number", float: "number", bool: "true or false", str: "text"}
        kind = "section" if self.is_section else "choice" if is_enum(self.kind) else names.get(self.kind)
        if self.entry is not None:
            kind = "sections by name"
        if self.element is not self.kind and is_enum(self.element):
            kind = f"list of {', '.join(member.name for member in self.element)}"
        return f"{kind or str(self.kind).replace('str', 'text')}{', or null' if self.optional else ''}"

    @property
    def unit(self) -> str | None:
        """Return the unit that its name ends with; None if it has none."""
        name = self.name.replace(".", "_")
        return next((unit for end, unit in UNITS.items() if name.endswith(end)), None)

    @property
    def meaning(self) -> str:
        """Return the text below its field in the schema; of a section, that of its class."""
        texts, name = meanings(), self.name.rpartition(".")[2]
        own = (texts[each].get(name) for each in self.owner.__mro__ if each in texts)
        return next(filter(None, own), None) or texts[self.kind][""]


def is_enum(kind: Any) -> bool:
    """Return whether a type is a choice of the schema."""
    return isinstance(kind, type) and issubclass(kind, Enum)


@cache
def keys() -> dict[str, Key]:
    """Return every key of the schema by its dotted name, sections included."""
    return {key.name: key for key in keys_of(Run)}


def keys_of(owner: type, prefix: str = "") -> Iterator[Key]:
    """Yield the keys of a dataclass of the schema and of its sections."""
    for name, hint in get_type_hints(owner).items():
        given = [each for each in get_args(hint) if each is not NoneType]
        optional = get_origin(hint) in (Union, UnionType) and len(given) == 1
        kind = given[0] if optional else hint
        yield Key(prefix + name, kind, optional, owner)
        if is_dataclass(kind) and isinstance(kind, type):
            yield from keys_of(kind, f"{prefix}{name}.")


def section_of(name: str) -> type | None:
    """Return the class of a section, also of one by name, such as program.metrics.NAME; None for another key."""
    if (key := known_key(name)) is not None:
        return key.kind if key.is_section else None
    mapping = mapping_of(name)
    return mapping.entry if mapping is not None and mapping.name == name.rpartition(".")[0] else None


def known_key(name: str) -> Key | None:
    """Return the key of a name, also of a key in a section by name, such as program.metrics.NAME.pattern; else None."""
    if name in keys():
        return keys()[name]
    mapping = mapping_of(name)
    if mapping is None or mapping.entry is None:
        return None
    entry, _, rest = name.removeprefix(f"{mapping.name}.").partition(".")
    return next((key for key in keys_of(mapping.entry, f"{mapping.name}.{entry}.") if key.name == name and rest), None)


@cache
def is_text(name: str) -> bool:
    """Return whether a key takes text, a list or a mapping of text; an entry of such a mapping is a key too."""
    if name in keys():
        return keys()[name].kind in TEXT
    mapping = mapping_of(name)
    return mapping is not None and mapping.kind == dict[str, str]


def mapping_of(name: str) -> Key | None:
    """Return the key of the mapping that a key is an entry of, such as cluster.env of cluster.env.HOME; else None."""
    while name := name.rpartition(".")[0]:
        if name in keys():
            key = keys()[name]
            return key if get_origin(key.kind) is dict else None
    return None


@cache
def meanings() -> dict[type, dict[str, str]]:
    """Return the text of each class of the schema (key "") and of its fields or members, read from the source."""
    found: dict[type, dict[str, str]] = {}
    for module in (schema, parallelism, serving, storage, program, images, report):
        for owner in ast.parse(inspect.getsource(module)).body:
            if isinstance(owner, ast.ClassDef):
                found[getattr(module, owner.name)] = {"": one_line(ast.get_docstring(owner) or "")} | texts_of(owner)
    return found


def texts_of(owner: ast.ClassDef) -> dict[str, str]:
    """Return the text of each field or member of a class of the schema.

    It is the string below it, which Python itself throws away: only the source has it.
    """
    texts: dict[str, str] = {}
    for field, text in zip(owner.body, owner.body[1:], strict=False):
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            targets = field.targets if isinstance(field, ast.Assign) else [getattr(field, "target", None)]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            texts |= dict.fromkeys(names, one_line(str(text.value.value)))
    return texts


def one_line(text: str) -> str:
    """Return the first paragraph of a text in one line."""
    return " ".join(text.partition("\n\n")[0].split())


def key_of(override: str) -> str:
    """Return the key or group that an override sets."""
    return override.lstrip("+~").partition("=")[0]


def value_of(override: str) -> str:
    """Return the value of an override."""
    return override.partition("=")[2]


def nearest_keys(name: str) -> list[str]:
    """Return the keys that a name may mean: usual elsewhere, of its name in another section, or spelt alike.

    A key of a section inside a section counts only without one nearer to the top.
    """
    section, _, last = name.rpartition(".")
    if usual := meant(last):
        return usual
    if section not in keys() and (kind := section_of(section)) is not None:
        return difflib.get_close_matches(name, [key.name for key in keys_of(kind, f"{section}.")], n=3)
    if same := [key for key in keys() if key.rpartition(".")[2] == last]:
        depth = min(key.count(".") for key in same)
        return [key for key in same if key.count(".") == depth][:3]
    alike = difflib.get_close_matches(last, [key.rpartition(".")[2] for key in keys() if in_section(key, section)], n=3)
    return [f"{section}.{each}".lstrip(".") for each in alike] or difflib.get_close_matches(name, keys(), n=3)


def in_section(key: str, section: str) -> bool:
    """Return whether a key lies directly in a section; "" is the first level."""
    return key.rpartition(".")[0] == section


def is_among(key: str, patterns: Sequence[str]) -> bool:
    """Return whether a key, or a section that it is in, is one of some patterns."""
    sections = itertools.accumulate(key.split("."), lambda left, right: f"{left}.{right}")
    return any(fnmatchcase(each, pattern) for each in sections for pattern in patterns)


def did_you_mean(names: list[str]) -> str:
    """Return " Did you mean A or B?", or nothing without names."""
    return f" Did you mean {' or '.join(dict.fromkeys(names))}?" if names else ""

"""Overrides in Hydra's grammar, read with the schema: the value of a text key is the text that was typed.

Hydra's own visitor turns 12_34, 3.10 and TRUE into a number or a boolean before anybody knows their key, and a text key
would print another text: the account 1234.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from antlr4 import CommonTokenStream, InputStream
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.overrides_visitor import HydraErrorListener, HydraOverrideVisitor
from hydra.core.override_parser.types import Key, Override, OverrideType, Quote, QuotedString
from hydra.grammar.gen.OverrideLexer import OverrideLexer
from hydra.grammar.gen.OverrideParser import OverrideParser

from jobs.errors import ConfigError
from jobs.plan.choices import choices
from jobs.plan.keys import GROUPS, is_text, keys, mapping_of
from jobs.plan.refusals import typed
from jobs.secrets import strings

# Functions of the grammar whose arguments are numbers, whatever the key is.
OF_NUMBERS = frozenset(("int", "float", "bool", "range", "interval"))


class SchemaVisitor(HydraOverrideVisitor):
    """Hydra's visitor of a parsed override, which keeps the typed text of a number or boolean for a text key."""

    place = ""
    """Key of the value that is visited, inside a mapping with the names in it."""

    def visitKey(self, ctx: OverrideParser.KeyContext) -> Key:  # noqa: N802 (ANTLR's name of a rule)
        """Return the key of the override."""
        key = super().visitKey(ctx)
        self.place = key.key_or_group
        return key

    def visitDictKey(self, ctx: OverrideParser.DictKeyContext) -> Any:  # noqa: N802
        """Return a key of a mapping, always as it was typed: the schema has text keys only."""
        name = super().visitDictKey(ctx)
        return ctx.getText().strip() if is_converted(name) else name

    def visitDictKeyValuePair(self, ctx: OverrideParser.DictKeyValuePairContext) -> Any:  # noqa: N802
        """Return a key of a mapping and its value."""
        outer = self.place
        name = self.visitDictKey(ctx.dictKey())
        self.place = f"{outer}.{getattr(name, 'text', name)}"
        try:
            return name, self.visitElement(ctx.element())
        finally:
            self.place = outer

    def visitFunction(self, ctx: OverrideParser.FunctionContext) -> Any:  # noqa: N802
        """Return the value of a function, or the sweep that it makes."""
        outer = self.place
        if ctx.getChild(0).getText() in OF_NUMBERS:
            self.place = ""
        try:
            value = super().visitFunction(ctx)
        finally:
            self.place = outer
        # A function's result is text only if its argument was: quoted, it stays text when the line is read again.
        return QuotedString(value, Quote.single) if isinstance(value, str) else value

    def visitPrimitive(self, ctx: OverrideParser.PrimitiveContext) -> Any:  # noqa: N802
        """Return a value without structure; for a text key as if it had been quoted."""
        value = super().visitPrimitive(ctx)
        if is_converted(value) and (self.place in GROUPS or is_text(self.place)):
            return QuotedString(ctx.getText().strip(), Quote.single)
        return value


class SchemaParser(OverridesParser):
    """Hydra's parser of overrides with SchemaVisitor in place of its visitor."""

    def parse_rule(self, s: str, rule_name: str) -> Override:
        """Return the override in a line; every line is one."""
        assert rule_name == "override"
        listener = HydraErrorListener()
        lexer = OverrideLexer(InputStream(s))
        lexer.removeErrorListeners()
        lexer.addErrorListener(listener)
        parser = OverrideParser(CommonTokenStream(lexer))
        parser.removeErrorListeners()
        parser.addErrorListener(listener)
        override: Override = SchemaVisitor(self.functions).visit(parser.override())
        override.input_line = s
        return override


def parse(lines: Iterable[str]) -> list[Override]:
    """Return the overrides in some lines; needs an initialized Hydra, whose groups `glob` lists."""
    parser = SchemaParser.create(config_loader=GlobalHydra.instance().config_loader())
    return parser.parse_overrides(list(lines))


def for_hydra(override: Override) -> str:
    """Return a line that Hydra's own parser reads as the same value, text of a text key in quotes."""
    if override.is_delete() or override.is_sweep_override():
        return typed(override)
    # Hydra wants a + for an entry that the mapping does not have yet.
    key = override.get_key_element() if mapping_of(override.key_or_group) is None else f"++{override.key_or_group}"
    return f"{key}={override.get_value_element_as_str()}"


def refuse_received(override: Override) -> None:
    """Raise ConfigError for an override of a received file that is more than KEY=VALUE or a choice by its name.

    Hydra's own settings import modules, an interpolation reads this shell's environment, and a path reads other files.
    """
    line, key, value = typed(override), override.key_or_group, override.value()
    is_plain = override.type is OverrideType.CHANGE and override.package is None and not override.is_sweep_override()
    if not is_plain or "/" in key or key.partition(".")[0] == "hydra":
        reason = "it is not KEY=VALUE with one value"
    elif any("${" in text for _, text in strings(value)):
        reason = "it has an interpolation (${...})"
    elif key in GROUPS and value not in choices(key):
        reason = f"it names no choice of {key}"
    else:
        return
    raise ConfigError(
        f"{line}: {reason}. A table, or a campaign that you did not submit, only sets keys by KEY=VALUE and groups by "
        "GROUP=NAME; `slurmscale explain` lists both."
    )


def single(lines: Iterable[str]) -> list[str]:
    """Return the lines of one composition as Hydra reads them; raise ConfigError for several values of a key."""
    overrides = parse(lines)
    for override in overrides:
        if override.is_sweep_override():
            raise ConfigError(
                f"{typed(override)}: one composition is printed, of one value of each key. Give one value of "
                f"{override.key_or_group}; slurmscale plan -m prints the plan of a sweep."
            )
    return list(map(for_hydra, overrides))


def is_plain_value(override: Override) -> bool:
    """Return whether an override only sets a known key to a value, and chooses no file.

    Hydra wants a + for a key that no file has, and below a section that is null it would raise an AttributeError.
    """
    key = override.key_or_group
    if override.is_delete() or override.package is not None or "/" in key or key.split(".")[0] == "hydra":
        return False
    if key in GROUPS:
        return isinstance(override.value(), dict)
    return override.type is OverrideType.CHANGE or key in keys() or mapping_of(key) is not None


def is_converted(value: object) -> bool:
    """Return whether Hydra made a number or a boolean of what was typed."""
    return isinstance(value, bool | int | float)

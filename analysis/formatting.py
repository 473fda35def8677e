"""Format values for people and spreadsheets; nothing here computes.

Names and errors come from files, so every medium needs its own escaping: jinja escapes HTML, the functions below escape
the rest.
"""

from __future__ import annotations

import functools
import html
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from analysis.intervals import Spread
from jobs.metrics import Metric
from jobs.secrets import redact
from jobs.visible import visible

ABSENT = "—"
COUNT_DIGITS = 9
UNIT = re.compile(r"_(s|bytes|bytes_per_s|j|hz)$")
ABBREVIATION = re.compile(r"\b(cpu|gpu|kv)\b")
# Spreadsheets also read the full-width and small forms of these signs.
FORMULA = re.compile(r"[\s'\u200b\ufeff]*[=+\-@\t\r\uff1d\uff0b\uff0d\uff20\ufe66\ufe62\ufe63\ufe6b\u2212]")
# Shorter ones contain no secret.
SHORTEST_SECRET_TEXT = 8
# Markdown renderers make links of addresses, mentions of @name, references of #1 and formulas of $x$.
LIVE = re.compile(r"://|(?i:(?<=www)\.)|(?i:(?<=mailto)|(?<=xmpp)):|[@$#]")


def significant(value: float, digits: int) -> str:
    """Return a number with thousands separators, rounded to significant digits."""
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(value)))
    # 9.996 rounds up into the next power of ten.
    exponent = math.floor(math.log10(abs(round(value, digits - 1 - exponent))))
    if exponent < -4:
        return f"{value:.{digits - 1}e}"
    decimals = digits - 1 - exponent
    return f"{round(value, decimals):,.{max(0, decimals)}f}"


def shown(metric: Metric, value: float | None) -> str:
    """Return a metric's value in its shown unit and digits, without the unit; a dash if absent."""
    if value is None:
        return ABSENT
    value /= metric.display.size
    # A count is shown in full, whatever its number of digits.
    return (
        f"{value:,.0f}"
        if metric.digits >= COUNT_DIGITS and value == round(value)
        else significant(value, metric.digits)
    )


def shown_spread(metric: Metric, spread: Spread | None) -> str:
    """Return a median with the smallest and largest repeat, if these differ: `5,310 (5,200 to 5,400)`.

    Add the confidence interval if it is another: `5,310 (5,200 to 5,400; CI 5,280 to 5,370)`.
    """
    if spread is None:
        return ABSENT
    middle, low, high = (shown(metric, value) for value in (spread.median, spread.low, spread.high))
    if low == high:
        return middle
    sure = [shown(metric, value) for value in spread.interval or ()]
    interval = f"; CI {sure[0]} to {sure[1]}" if sure and sure != [low, high] else ""
    return f"{middle} ({low} to {high}{interval})"


def percent(share: float) -> str:
    """Return a share in per cent, with three digits: `99.5 %`."""
    return f"{share * 100:.3g} %"


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: `1 rank`, `2 ranks`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def listed(values: Sequence[str], most: int) -> str:
    """Return the first values, and the number of the others: `a, b and 3 more`."""
    more = len(values) - most
    return ", ".join(values[:most]) + (f" and {more:,} more" if more > 0 else "")


def counted(values: Iterable[str], runs: int, most: int) -> list[str]:
    """Return distinct values, most frequent first, each with its number of runs unless all runs have it."""
    counts = sorted(Counter(values).items(), key=lambda item: (-item[1], item[0]))
    lines = [value if count == runs else f"{value} ({plural(count, 'run')})" for value, count in counts]
    return lines[:most] + ([f"and {len(lines) - most} more"] if len(lines) > most else [])


def unit(metric: Metric) -> str:
    """Return the shown unit; empty for a bare number."""
    name = metric.display.name
    return "" if name in {"1", "1/s"} else name


def binary_size(size_bytes: float) -> str:
    """Return a size in binary units if it is a whole number of them, else in decimal ones: `8 MiB`, `4 GB`."""
    for power, prefix in enumerate("TGMK"):
        count = size_bytes / 2.0 ** (40 - 10 * power)
        if 1 <= count < 1024 and count == round(count):
            return f"{count:.0f} {prefix}iB"
    return decimal_size(size_bytes)


def decimal_size(size_bytes: float) -> str:
    """Return a number of bytes in decimal units: `4.00 GB`."""
    for power, prefix in enumerate("TGMk"):
        if size_bytes >= (step := 1000.0 ** (4 - power)):
            return f"{significant(size_bytes / step, 3)} {prefix}B"
    return f"{size_bytes:,.3g} B"


def title(metric: Metric) -> str:
    """Return a metric's name as a heading: `Step time median (s)`."""
    name = metric.name
    bare = UNIT.sub("", name)
    # Drop the unit from the name, unless too little is left: `Collective` alone is not a quantity.
    if metric.unit == "J" or (metric.unit in {"s", "B", "B/s", "Hz"} and "_" in bare):
        name = bare
    words = ABBREVIATION.sub(lambda word: word[0].upper(), name.replace("_per_", "/").replace("_", " "))
    heading = metric.heading or f"{words[0].upper()}{words[1:]}"
    return f"{heading} ({unit(metric)})" if unit(metric) else heading


def without_unit(metric: Metric) -> str:
    """Return a metric's name as a heading whose values carry their unit: `Step time median`."""
    return title(metric).removesuffix(f" ({unit(metric)})")


def within_sentence(metric: Metric) -> str:
    """Return a metric's name as it stands within a sentence: `step time median`, `I/O bandwidth`."""
    words = without_unit(metric)
    return words if words[:2].isupper() else f"{words[0].lower()}{words[1:]}"


def per_second(rate: Metric) -> str:
    """Return the unit of a rate: `tokens/s`, or `GFLOP/s (hpl flops)`."""
    if rate.shown_in is not None:
        return f"{rate.shown_in.name} ({rate.name.removesuffix('_per_s').replace('_', ' ')})"
    return rate.name.replace("_per_s", "/s").replace("_", " ")


@functools.lru_cache(maxsize=1 << 16)
def published(text: str) -> str:
    """Return text as each file of a report contains it: without secrets, with hidden characters shown as text.

    Logs, received files and the environment contain secrets, and reports are shared. `published.cache_clear()` is due
    before each report: the secrets of the environment may be others then.
    """
    shown = visible(redact(text) if len(text) >= SHORTEST_SECRET_TEXT else text)
    return REPLACED[-1](shown) if REPLACED else shown


REPLACED: list[Callable[[str], str]] = []
"""The last change that `published` makes to a text; `publishing` sets it."""


@contextmanager
def publishing(replaced: Callable[[str], str]) -> Iterator[None]:
    """Pass every text through this function as well, after all others."""
    published.cache_clear()
    REPLACED.append(replaced)
    try:
        yield
    finally:
        REPLACED.pop()
        published.cache_clear()


def published_values(value: object) -> object:
    """Return data, of a plot for instance, with `published` applied to every text in it."""
    match value:
        case str():
            return published(value)
        case dict():
            return {key: published_values(item) for key, item in value.items()}
        case list() | tuple():
            return [published_values(item) for item in value]
    return value


def one_line(text: str) -> str:
    """Return text without line breaks, secrets and hidden characters."""
    return published(re.sub(r"[\t\n\v\f\r\x1c-\x1e\x85\u2028\u2029]+", " ", text).strip())


def unbroken(text: str) -> str:
    """Return text without a line break between a number and its per cent sign, or inside `n = 2`."""
    return re.sub(r"(?<=\d) (?=%)|(?<=\bn) (?==)|(?<=\bn =) (?=\d)", "\u00a0", text)


def short(text: str, limit: int) -> str:
    """Return one line of text, cut in the middle if it is longer than the limit."""
    text = one_line(text)
    half = (limit - 1) // 2
    return text if len(text) <= limit else f"{text[:half]}…{text[-half:]}"


def plot_text(text: str, limit: int = 60) -> str:
    """Return text cut to a length and escaped: plotly interprets tags and entities."""
    return html.escape(short(text, limit), quote=False)


def markdown_cell(text: str) -> str:
    """Return text escaped for a Markdown table; nothing in it is a link, a mention or a formula."""
    inert = re.sub(r"([\\`*\[\]|~])", r"\\\1", html.escape(one_line(text), quote=False))
    return LIVE.sub(lambda sign: f"<span>{sign[0][0]}</span>{sign[0][1:]}", inert)


def csv_cell(value: object) -> object:
    """Return a value that a spreadsheet reads as data: text that looks like a formula gets an apostrophe."""
    if not isinstance(value, str):
        return "" if value is None else value
    text = published(value)
    return f"'{text}" if FORMULA.match(value) and not is_number(value) else text


def is_number(text: str) -> bool:
    """Return True if text is a number with an optional sign, or inf or nan as Python writes them."""
    return re.fullmatch(r"\s*[+-]?(inf|nan|(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?)\s*", text) is not None

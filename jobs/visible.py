"""Show control characters and marks of direction as text: names, errors and output of others may contain them.

In a terminal they move the cursor, change colours and titles, or type; bidi marks reverse the order of what is read.
Everything that is printed or written as a text passes through `visible` on its way out.
"""

from __future__ import annotations

import re

# C0 without tab and line feed, C1, marks and isolates of direction, separators of lines, invisible characters, and
# the bytes of file names that are not UTF-8.
HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
# Escape sequences of colours in the output of programs.
COLOUR = re.compile(r"(\x1b\[[0-9;:]*m)")


def visible(text: str) -> str:
    r"""Return the text with \x1b for an escape, and so on for all of HIDDEN."""
    return HIDDEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def coloured(text: str) -> str:
    """Return the output of a program with its colours and carriage returns, and nothing else that is hidden."""
    parts = COLOUR.split(text)
    parts[::2] = ["\r".join(map(visible, part.split("\r"))) for part in parts[::2]]
    return "".join(parts)


def visible_values(value: object) -> object:
    """Return data, of a plot for instance, with `visible` applied to every text in it."""
    match value:
        case str():
            return visible(value)
        case dict():
            return {key: visible_values(item) for key, item in value.items()}
        case list() | tuple():
            return [visible_values(item) for item in value]
    return value

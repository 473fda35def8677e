"""Show control characters and marks of direction as text: names, errors and output of others may contain them.

In a terminal they move the cursor, change colours and titles, or type; bidi marks reverse the order of what is read.
Everything that is printed or written as a text passes through `visible` on its way out.
"""

from __future__ import annotations

import re

# Code points by the tables of Unicode 16: control characters without tab and line feed, format characters (category
# Cf: marks of direction, joiners, tags), default-ignorable ones (variation selectors, fillers), separators of lines,
# blank symbols and spaces of other widths than a space has, and surrogates, the bytes of file names that are not UTF-8.
# No-break, narrow no-break and ideographic spaces are ordinary in text.
HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u1680"
    "\u17b4\u17b5\u180b-\u180f\u2000-\u200f\u2028-\u202e\u205f-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\ufffe\uffff\ud800-\udfff\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d159"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
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

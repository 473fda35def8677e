"""The terminal of a command, through rich: tables, colours, progress."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from jobs.output import output_is_closed, unguarded
from jobs.visible import visible

# Wide enough for any table: a log file must not lose columns.
LOG_WIDTH = 240


def plain(text: str, style: str = "", **how: Any) -> Text:
    """Return the cell of a table: text without markup or control characters, as wide as it is shown."""
    return Text(visible(text), style, **how)


class PlainConsole(Console):
    """A console that shows text as it is: no markup, no emoji, no control characters but its own."""

    def print(self, *objects: Any, **how: Any) -> None:
        """Print texts, which rich would shorten at control characters, and renderables.

        A line in a file is neither folded, so that a search finds its words, nor cut.
        """
        if not self.is_terminal:
            how.setdefault("soft_wrap", all(isinstance(each, str) for each in objects))
            how.setdefault("crop", False)
        super().print(*(visible(each) if isinstance(each, str) else each for each in objects), **how)

    def on_broken_pipe(self) -> None:
        """End the command as for any closed output; rich would end it with 1, the code of a failed run."""
        output_is_closed()

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of a renderable; those of rich itself move the cursor, those of text do not."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


def console(*, stderr: bool = False) -> Console:
    """Return a console as wide as the terminal, or wide enough for any table in a file."""
    how: dict[str, Any] = {
        "markup": False,
        "emoji": False,
        "highlight": False,
        "file": unguarded(sys.stderr if stderr else sys.stdout),
    }
    probe = PlainConsole(**how)
    return probe if probe.is_terminal else PlainConsole(width=LOG_WIDTH, **how)


def shell_line(words: Iterable[str]) -> str:
    """Return words as a line to type: one with quotation marks inside is put into the other kind of them."""
    return " ".join(
        f'"{word}"' if "'" in word and not set('"$`\\!') & set(word) else shlex.quote(word) for word in words
    )

"""`slurmscale note`: a line of text of a sweep, which status, list and the report show.

It is the file note.txt of the sweep directory, so it is moved and removed with it. Somebody else may have written it.
"""

from __future__ import annotations

from pathlib import Path

from jobs.errors import ConfigError, RunDirError
from jobs.files import exists, read_text
from jobs.output import write_file
from jobs.rundir import SweepDir
from jobs.secrets import redact
from jobs.submit.sweeps.sweep_at import sweep_at
from jobs.visible import HIDDEN

MOST_CHARACTERS = 200
# A character has at most 4 bytes.
MOST_BYTES = 1 << 16


def note(path: Path, text: str | None, *, remove: bool) -> SweepDir:
    """Write or remove the note of a sweep, and return the sweep; an empty text removes it, no text leaves it."""
    sweep = sweep_at(path)
    if sweep.only is not None:
        raise RunDirError(f"{path} is a run, and notes belong to sweeps. Pass {sweep.whole.quoted}.")
    if text is None and not remove:
        return sweep
    line = "" if remove else one_line(text or "")
    if line:
        refuse_unsuitable(text or "", line)
        write_file(sweep.note, f"{redact(line)}\n")
    else:
        sweep.note.unlink(missing_ok=True)
    return sweep


def one_line(text: str) -> str:
    """Return a text with single blanks between its words."""
    return " ".join(text.split())


def refuse_unsuitable(text: str, line: str) -> None:
    """Raise ConfigError for a note of several lines, with control characters, or that is too long for a table."""
    if len(text.strip().splitlines()) > 1:
        raise ConfigError("a note is one line of text, and this one has several. Join them.")
    if found := HIDDEN.search(line):
        raise ConfigError(f"a note is plain text, and this one contains the character {found[0]!r}. Leave it out.")
    if len(line) > MOST_CHARACTERS:
        raise ConfigError(f"a note has at most {MOST_CHARACTERS} characters, and this one has {len(line)}. Shorten it.")


def note_of(sweep: SweepDir) -> str:
    """Return the note of a sweep, shortened to the length of a note; empty without one that can be read.

    A link to another file is not a note: it could show that file in a report.
    """
    if sweep.note.is_symlink() or not exists(sweep.note):
        return ""
    try:
        line = one_line(read_text(sweep.note, MOST_BYTES))
    except OSError:
        return ""
    return line if len(line) <= MOST_CHARACTERS else f"{line[: MOST_CHARACTERS - 1]}…"

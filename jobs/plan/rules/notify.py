"""Rules of `notify`: whom to tell must be there now, not when a run fails at night."""

from __future__ import annotations

import shlex
import shutil
from importlib.util import find_spec
from pathlib import Path

from jobs.plan.rules.rule import Rule
from jobs.schema import Run


def command_exists(run: Run) -> str | None:
    """Require a program that can be executed here."""
    text = run.notify.command
    if text is None:
        return None
    try:
        program = str(Path(next(iter(shlex.split(text)), "")).expanduser())
    except ValueError as error:
        return f"notify.command={text} is no command: {error}. Set notify.command=null, or close the quotation."
    if shutil.which(program) is None:
        return f"notify.command: there is no program {program!r} here. Set notify.command=null, or its path."
    return None


def addresses_exist(run: Run) -> str | None:
    """Require apprise and its configuration file."""
    path = run.notify.apprise
    if path is None:
        return None
    if find_spec("apprise") is None:
        return "notify.apprise needs the package apprise (pip install apprise). Set notify.apprise=null, or install it."
    if not Path(path).expanduser().is_file():
        return f"notify.apprise={path} is not a file. Set notify.apprise=null, or the path of apprise's configuration."
    return None


RULES: tuple[Rule, ...] = (command_exists, addresses_exist)

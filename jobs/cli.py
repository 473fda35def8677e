"""The command line `slurmscale COMMAND`: parse arguments, call the command's function, print a SuiteError.

The commands are the entries of `jobs/command_line/`.
"""

from __future__ import annotations

import difflib
import errno
import os
import sys
from pathlib import Path

from jobs.command_line.grammar import COMMANDS, Parser, parsed, parser
from jobs.errors import SuiteError, interrupt_behind
from jobs.output import drop_unwritable_output, exit_code_of, guarded_streams, output_is_closed
from jobs.secrets import redact
from jobs.visible import visible

UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code, as jobs/command_line/README.md lists them."""
    if "_ARGCOMPLETE" in os.environ:
        complete()
    try:
        with guarded_streams(lambda text: visible(redact(text))):
            return run_command(sys.argv[1:] if arguments is None else arguments)
    except BrokenPipeError:
        output_is_closed()
    except OSError as error:
        # Errors of files name their file.
        if error.filename is not None or error.errno not in UNWRITABLE:
            raise
        drop_unwritable_output()
        print(f"slurmscale: the output cannot be written: {error.strerror}", file=sys.stderr)
        return 2


def run_command(arguments: list[str]) -> int:
    """Run one command and return its exit code."""
    top = parser()
    if answer_about_itself(top, arguments):
        return 0
    if asks_for_json(arguments):
        from jobs.command_line.as_json import print_as_json

        return print_as_json(top, arguments, refusal_of)
    options = parsed(top, arguments)
    try:
        return COMMANDS[options.command].function(options)
    except (Exception, KeyboardInterrupt) as error:
        if (refused := refusal_of(error)) is None:
            raise
        text, code = refused
        print(f"slurmscale {options.command}: {text}", file=sys.stderr)
        return code


def asks_for_json(arguments: list[str]) -> bool:
    """Return whether a command that has an answer is asked for it; argparse takes the beginning of an option too."""
    command = COMMANDS.get(arguments[0])
    asked = any("--json".startswith(each) and len(each) > len("--") for each in arguments)
    return asked and command is not None and command.answer is not None and not {"-h", "--help"} & set(arguments)


def refusal_of(error: BaseException) -> tuple[str, int] | None:
    """Return the text and exit code of an error that the user can correct, or of an interrupt; None for a bug."""
    if interrupt := interrupt_behind(error):
        return "interrupted", exit_code_of(interrupt)
    if isinstance(error, SuiteError):
        return str(error), 2
    if not isinstance(error, PermissionError) or error.filename is None:
        return None
    # A file that does not exist yet is refused by its directory.
    there = os.access(error.filename, os.F_OK)
    readable = os.access(error.filename if there else Path(error.filename).parent, os.R_OK)
    return f"{error.filename} cannot be {'written' if readable else 'read'}: permission denied", 2


def answer_about_itself(top: Parser, arguments: list[str]) -> bool:
    """Print help or version and return True if the arguments request them; refuse an unknown command."""
    if arguments in ([], ["help"]):
        top.print_help()
        return True
    if arguments == ["--version"]:
        print(f"slurmscale {version()}")
        return True
    name = arguments[1] if arguments[0] == "help" else arguments[0]
    if name not in top.commands and not name.startswith("-"):
        near = difflib.get_close_matches(name, top.commands, n=2)
        hint = f"Did you mean {' or '.join(near)}?" if near else f"The commands are {', '.join(top.commands)}."
        override = " An override follows a command, as in slurmscale plan nodes=2." if "=" in name else ""
        top.error(f"there is no command {name!r}. {hint}{override}")
    if arguments[0] == "help":
        top.commands[name].print_help()
    return arguments[0] == "help"


def version() -> str:
    """Return the installed version, or "(not installed)" of a checkout on PYTHONPATH."""
    from importlib import metadata

    try:
        return metadata.version("slurmscale")
    except metadata.PackageNotFoundError:
        return "(not installed)"


def complete() -> None:
    """Print the completions that a shell asks for, and end."""
    import argcomplete

    argcomplete.autocomplete(parser())


if __name__ == "__main__":
    sys.exit(main())

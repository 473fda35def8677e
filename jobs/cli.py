"""The command line `slurmscale COMMAND`: parse arguments, call the command's function, print a SuiteError.

The commands are the entries of `jobs/command_line/`.
"""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

from jobs.command_line.grammar import COMMANDS, Parser, parsed, parser, refuse_unknown_command
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
    if asks_for_json(arguments):
        from jobs.command_line.as_json import print_as_json

        return print_as_json(top, arguments, refusal_of)
    if answer_about_itself(top, arguments):
        return 0
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
    """Return whether a reply is asked for, from a command that has an answer or from one that does not exist.

    argparse takes the beginning of an option too.
    """
    asked = any("--json".startswith(each) and len(each) > len("--") for each in arguments)
    if not asked or arguments[0] == "help" or {"-h", "--help"} & set(arguments):
        return False
    command = COMMANDS.get(arguments[0])
    return command is None or command.answer is not None


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
    """Print help or version and return True if the arguments request them."""
    if arguments in ([], ["help"]):
        top.print_help()
        return True
    if arguments == ["--version"]:
        print(f"slurmscale {version()}")
        return True
    if arguments[0] == "help":
        refuse_unknown_command(top, arguments[1])
        top.commands[arguments[1]].print_help()
        return True
    return False


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

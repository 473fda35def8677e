"""The exception tree of slurmscale.

    SuiteError                 caught by the command line: printed without a traceback, exit code 2
    |-- ConfigError            a composition or a setting that cannot run
    |-- DataError              a data file, record or tokenizer that cannot be used
    |-- RunDirError            a run or sweep directory that is missing, taken or unwritable
    |-- SubmitError            sbatch, squeue or the local launcher refused
    |-- CheckpointError        a checkpoint that cannot be read or written
    |-- UnsuitableFileError    a file that cannot be read (jobs.files)
    |-- SupersededError        a later start of the run has taken it over
    `-- ReportError            nothing to report on

A message contains the problem, its place, the allowed values and the setting to change. Any other exception is a bug
of slurmscale and keeps its traceback.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self


class SuiteError(Exception):
    """An error that the user can correct; its text is the whole message."""


class Problem(str):
    """A line of a ConfigError, with the rule that it comes from and the run that breaks it."""

    code: str
    run: str | None

    def __new__(cls, text: str, code: str = "config", run: str | None = None) -> Self:
        """Return a line; `code` is the name of its rule. Copies are made with the text alone and get the rest after."""
        found = super().__new__(cls, text)
        found.code, found.run = code, run
        return found


class ConfigError(SuiteError):
    """A composition, or a combination of settings, that cannot run; with its problems, where it has several."""

    def __init__(self, text: str, problems: Iterable[Problem] = ()) -> None:
        super().__init__(text)
        self.problems = tuple(problems)


class DataError(SuiteError):
    """A data file, a record in it, or a tokenizer that cannot be used."""


class RunDirError(SuiteError):
    """A run or sweep directory that is missing, taken or unwritable."""


class SubmitError(SuiteError):
    """The launcher refused; the text quotes its message."""


class CheckpointError(SuiteError):
    """A checkpoint that cannot be read or written."""


class SupersededError(SuiteError):
    """A later start of the run has taken it over."""


class ReportError(SuiteError):
    """There is nothing to report on."""


def before_torch_archive(error: BaseException) -> BaseException:
    """Return the OSError behind an error of torch's archive writer, else the error itself.

    Where a file system refuses bytes in the middle of a tensor, torch.save closes its archive and raises "unexpected
    pos 704 vs 598".
    """
    refusal = error.__context__
    return refusal if isinstance(refusal, OSError) and "inline_container.cc" in str(error) else error


def interrupt_behind(error: BaseException | None) -> KeyboardInterrupt | None:
    """Return the interrupt that an error is or came from, None if there is none.

    Ctrl-C in the middle of a library can break its cleaning up, whose error is then raised in place of the interrupt.
    """
    seen = set[int]()
    # OmegaConf raises an error as its own cause's context where OC_CAUSE or a debugger asks for causes: a circle.
    while error is not None and id(error) not in seen:
        if isinstance(error, KeyboardInterrupt):
            return error
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return None

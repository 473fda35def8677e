"""Every way in which slurmscale refuses, as one tree.

    SuiteError                 caught by the command line: printed without a traceback, exit code 2
    |-- ConfigError            a composition or a choice that cannot run
    |-- DataError              a data file, record or tokenizer that cannot be used
    |-- RunDirError            a run or sweep directory that is missing, taken or unwritable
    |-- SubmitError            sbatch, squeue or the local launcher refused
    |-- CheckpointError        a checkpoint that cannot be read or written
    `-- ReportError            nothing to report on

A message says what is wrong, where, what is allowed and what to type. Anything else that escapes is a
bug of ours and keeps its traceback.
"""

from __future__ import annotations


class SuiteError(Exception):
    """A refusal that the user can act on; its text is the whole message."""


class ConfigError(SuiteError):
    """A composition, or a combination of choices, that cannot run."""


class DataError(SuiteError):
    """A data file, a record in it, or a tokenizer that cannot be used."""


class RunDirError(SuiteError):
    """A run or sweep directory that is missing, taken or unwritable."""


class SubmitError(SuiteError):
    """The launcher refused: what it said is quoted."""


class CheckpointError(SuiteError):
    """A checkpoint that cannot be read or written."""


class ReportError(SuiteError):
    """There is nothing to report on."""


def before_torch_archive(error: BaseException) -> BaseException:
    """The OSError behind an error of torch's archive writer, else the error itself.

    Where a file system refuses bytes in the midst of a tensor, torch.save closes the archive that it was writing, and
    raises "unexpected pos 704 vs 598" for it.
    """
    refusal = error.__context__
    return refusal if isinstance(refusal, OSError) and "inline_container.cc" in str(error) else error

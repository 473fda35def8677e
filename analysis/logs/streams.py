"""Standard error beside standard output: files of one job that Slurm or PBS wrote apart, paired by their names.

`train-12.out` and `train-12.err`, `train.o12` and `train.e12`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from analysis.failures.verdict import Verdict
from analysis.logs.file import LogFile
from analysis.parsers.base import Kind
from jobs.failures import FailureCause

STREAM = re.compile(r"\b(?:std)?(?:out|err|log)\b|(?<=\.)[oe](?=\d+$)", re.IGNORECASE)


def job_name(path: Path) -> tuple[Path, str]:
    """The folder and the name of a file, without what tells the output of a job from its errors."""
    return path.parent, STREAM.sub("", path.name)


def with_errors(logs: Mapping[Path, LogFile]) -> dict[Path, LogFile]:
    """The logs, trainings with what their other stream proves of their end where they themselves prove nothing."""
    proofs: dict[tuple[Path, str], list[Verdict]] = defaultdict(list)
    for log in logs.values():
        # Whether a program continued after a survivable error is not visible in a file without steps.
        if log.verdict and not log.verdict.cause.survivable and not steps_in(log):
            proofs[job_name(log.path)].append(replace(log.verdict, file=log.path.name))
    return {path: explained(log, proofs.get(job_name(path), [])) for path, log in logs.items()}


def explained(log: LogFile, proofs: list[Verdict]) -> LogFile:
    """A log with the one verdict that explains its end."""
    if not steps_in(log) or log.verdict is None or log.verdict.cause is not FailureCause.unknown or len(proofs) != 1:
        return log
    return replace(log, verdict=proofs[0])


def steps_in(log: LogFile) -> bool:
    """Whether a file tells steps of a training."""
    return any(kind is Kind.step for _, kind in log.records)

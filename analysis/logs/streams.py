"""Pairing of standard error with standard output: separate files of one job by Slurm or PBS, matched by name.

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
from jobs.failure_causes import FailureCause

STREAM = re.compile(r"\b(?:std)?(?:out|err|log)\b|(?<=\.)[oe](?=\d+$)", re.IGNORECASE)


def job_name(path: Path) -> tuple[Path, str]:
    """Return the folder and name of a file, without the part that distinguishes output from errors."""
    return path.parent, STREAM.sub("", path.name)


def with_errors(logs: Mapping[Path, LogFile]) -> dict[Path, LogFile]:
    """Return the logs; a training of unknown end gets the verdict on its other stream."""
    proofs: dict[tuple[Path, str], list[Verdict]] = defaultdict(list)
    for log in logs.values():
        # A file without steps does not show if a program continued after a survivable error.
        if log.verdict and not log.verdict.cause.survivable and not steps_in(log):
            proofs[job_name(log.path)].append(replace(log.verdict, file=log.path.name))
    return {path: explained(log, proofs.get(job_name(path), [])) for path, log in logs.items()}


def explained(log: LogFile, proofs: list[Verdict]) -> LogFile:
    """Return a training of unknown end with the only verdict in `proofs`; any other log as it is."""
    if not steps_in(log) or log.verdict is None or log.verdict.cause is not FailureCause.unknown or len(proofs) != 1:
        return log
    return replace(log, verdict=proofs[0])


def steps_in(log: LogFile) -> bool:
    """Return True if a file contains steps of a training."""
    return any(kind is Kind.step for _, kind in log.records)

"""Read a run that multiplied matrices."""

from __future__ import annotations

from dataclasses import replace

from analysis.load.ended import Submissions, refuse_unfinished
from analysis.load.run_files import Contents
from analysis.run import RunResult, last_event
from analysis.untrusted import number
from jobs import metrics as m


def read(run: RunResult, _contents: Contents, _submissions: Submissions) -> RunResult:
    """Return a run with its rate. Raise UnusableError if it has not ended."""
    refuse_unfinished(run, last=None)
    rate = number(last_event(run.events, "multiplied"), m.MATRIX_RATE)
    values = {} if rate is None else {m.MATRIX_RATE: rate}
    return replace(run, state="tested", reason="multiplied matrices and trained nothing", values=values)

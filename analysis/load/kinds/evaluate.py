"""Read a run that evaluated a model and trained nothing: it is in no figure and no ranking."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from analysis.load.ended import Submissions, refuse_unfinished
from analysis.load.run_files import Contents
from analysis.run import RunResult, last_event
from analysis.untrusted import number
from jobs import metrics as m
from jobs.metrics import Metric

EVALUATED = "trained nothing, as configured (job.train=false); its results are in the section Evaluations"


def read(run: RunResult, _contents: Contents, _submissions: Submissions) -> RunResult:
    """Return a run with its evaluation. Raise UnusableError if it has not ended."""
    refuse_unfinished(run, last=None)
    values = {**evaluated(run.events), **data_account(run.plan)}
    return replace(run, state="evaluated", reason=EVALUATED, values=values)


def evaluated(events: tuple[Mapping[str, Any], ...]) -> dict[Metric, float]:
    """Return the results of the latest evaluation."""
    event = last_event(events, "evaluated")
    return {metric: value for metric in m.EVALUATION_METRICS if (value := number(event, metric)) is not None}


def data_account(plan: Mapping[str, Any]) -> dict[Metric, float]:
    """Return the account of the data set; empty for a run that was planned without one."""
    account = plan.get("account")
    record = account if isinstance(account, Mapping) else {}
    return {metric: value for metric in m.DATA_METRICS if (value := number(record, metric)) is not None}

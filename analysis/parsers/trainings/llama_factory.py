"""LLaMA-Factory's trainer_log.jsonl: `{"current_steps": 10, "total_steps": 99, "loss": 1.9, ..., "elapsed_time": ...}`.

The time since the start is printed in whole seconds, so a step takes the mean over the steps since the previous line.
`throughput` is a mean since the start, with the start-up, and is not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from analysis.parsers import log_metrics as a
from analysis.parsers.base import DocumentFormat, Kind, Line, LineFormat, Names, Record, numbers
from analysis.untrusted import printed_number
from jobs import metrics as m
from jobs.metrics import Metric

# By pattern and not as JSON, because Python writes NaN, which JSON does not have.
LINE = re.compile(r'^\s*\{"current_steps": .*\}\s*$')
FIELD = re.compile(r'"(\w{1,40})": (?:"([^"]{0,60})"|([^\s,"{}\[\]]{1,40})(?=[,}]))')
ELAPSED = re.compile(r"(?:(\d{1,6}) days?, )?(\d{1,2}):(\d\d):(\d\d)$")
NAMES: Names = {
    "current_steps": (m.STEP, 1),
    "epoch": (a.EPOCH, 1),
    "loss": (m.LOSS, 1),
    "lr": (m.LEARNING_RATE, 1),
    "learning_rate": (m.LEARNING_RATE, 1),
    "eval_loss": (m.EVALUATION_LOSS, 1),
}
PLANNED: Names = {"total_steps": (a.PLANNED_STEPS, 1)}


def parse(lines: Iterable[Line]) -> Iterator[Record]:
    """Return the planned steps, logged steps with their mean time, and evaluations."""
    planned: dict[Metric, float] = {}
    last_step, last_s = 0.0, 0.0
    for line in lines:
        if not LINE.match(line.text):
            continue
        fields = {name: text or number for name, text, number in FIELD.findall(line.text)}
        values = numbers(fields.items(), NAMES)
        if (total := numbers(fields.items(), PLANNED)) != planned:
            planned = total
            yield Record(Kind.setting, line.number, planned, {}, line.rank, line.host)
        if "eval_loss" in fields:
            yield Record(Kind.evaluation, line.number, values, {}, line.rank, line.host)
        elif "loss" in fields and m.STEP in values:
            elapsed_s = seconds(fields.get("elapsed_time", ""))
            if values[m.STEP] <= last_step or (elapsed_s or 0.0) < last_s:
                # A resumed training appends to the same file, and its clock starts again.
                last_step, last_s = values[m.STEP], elapsed_s or 0.0
            elif elapsed_s is not None and elapsed_s > last_s:
                values[m.STEP_TIME] = (elapsed_s - last_s) / (values[m.STEP] - last_step)
                last_step, last_s = values[m.STEP], elapsed_s
            yield Record(Kind.step, line.number, values, {}, line.rank, line.host)


def seconds(text: str) -> float | None:
    """Return a duration such as `1 day, 2:03:04` in seconds; None if it is not one."""
    if not (found := ELAPSED.match(text)):
        return None
    days, hours, minutes, rest = (printed_number(part or "0") or 0.0 for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + rest


def recognises(document: Any) -> bool:
    """Return True for the only line of a file."""
    return isinstance(document, dict) and {"current_steps", "total_steps", "elapsed_time"} <= document.keys()


def parse_line(document: Any) -> Iterator[Record]:
    """Return the step or evaluation of a file with one line, which has no time of a step."""
    values = numbers(document.items(), NAMES)
    yield Record(Kind.setting, 0, numbers(document.items(), PLANNED))
    yield Record(Kind.evaluation if "eval_loss" in document else Kind.step, 0, values)


UPSTREAM = "https://github.com/hiyouga/LLaMA-Factory/blob/v0.9.3/src/llamafactory/train/callbacks.py"
FORMAT = LineFormat("LLaMA-Factory", UPSTREAM, parse, markers=('{"current_steps": ',))
DOCUMENT = DocumentFormat("LLaMA-Factory (one line)", UPSTREAM, recognises, parse_line)

"""Write the curves of a sweep as event files for TensorBoard while its runs go on: `slurmscale watch --tensorboard`.

The source is the records of the runs, so that any sweep can be shown, also one that has ended, and the nodes need
nothing. Needs the package `tensorboard` where it is called. The event files of an earlier call are replaced.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from jobs import metrics as m
from jobs.errors import SubmitError
from jobs.files import opened
from jobs.output import open_to_append, own_directory
from jobs.rundir import TENSORBOARD, RunDir, SweepDir, read_events, records_in
from jobs.runtime.node.use import is_amount, use_of
from jobs.submit.watching.progress import node_of

# TensorBoard finds event files by this part of their names.
EVENT_FILE = "events.out.tfevents.0.slurmscale"
FILE_VERSION = "brain.Event:2"
NO_CURVES = {m.STEP.name, m.ATTEMPT.name}


class Curves:
    """The curves of a sweep."""

    def __init__(self, sweep: SweepDir) -> None:
        """Raise SubmitError if the package is missing."""
        try:
            self.proto = importlib.import_module("tensorboard.compat.proto.event_pb2")
            self.summaries = importlib.import_module("tensorboard.compat.proto.summary_pb2")
            self.record_writer = importlib.import_module("tensorboard.summary.writer.record_writer")
        except ImportError as error:
            raise SubmitError(
                f"--tensorboard needs the package tensorboard, and this Python has none ({error}). Run pip install "
                "--editable '.[tensorboard]' in the checkout."
            ) from error
        self.sweep = sweep
        self.directory = own_directory(sweep.path / TENSORBOARD)
        for old in self.directory.rglob(EVENT_FILE):
            old.unlink()
        self.runs: dict[str, CurvesOfRun] = {}

    def update(self) -> None:
        """Write what the runs have recorded since the last update."""
        for run in self.sweep.runs():
            if run.name not in self.runs:
                self.runs[run.name] = CurvesOfRun(run)
            own = own_directory(self.directory / run.name)
            # A folder of their own: a start that repeats steps would drop them by their seconds.
            for directory, news in ((own, self.runs[run.name].steps), (own / "nodes", self.runs[run.name].nodes)):
                if events := [self.event(*each) for each in news()]:
                    self.append(own_directory(directory) / EVENT_FILE, events)

    def event(self, time_s: float, step: int, scalars: Mapping[str, float]) -> Any:
        """Return an event of TensorBoard; without scalars one that makes it drop the steps from this one on."""
        if not scalars:
            start = self.proto.SessionLog(status=self.proto.SessionLog.START)
            return self.proto.Event(wall_time=time_s, step=step, session_log=start)
        values = [self.summaries.Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        return self.proto.Event(wall_time=time_s, step=step, summary=self.summaries.Summary(value=values))

    def append(self, file: Path, events: Iterable[Any]) -> None:
        """Append events to a file, after its version."""
        with open_to_append(file) as raw:
            writer = self.record_writer.RecordWriter(raw)
            if not raw.seek(0, 2):
                writer.write(self.proto.Event(file_version=FILE_VERSION).SerializeToString())
            for event in events:
                writer.write(event.SerializeToString())


class CurvesOfRun:
    """The curves of one run: the numbers of its steps, and the use of its nodes over seconds."""

    def __init__(self, run: RunDir) -> None:
        self.run = run
        self.read: dict[Path, int] = {}
        """The bytes of each file that are written already."""
        self.last_step = 0
        self.began_s: dict[int, float] = {}
        """The start of the first step of each attempt."""
        self.first_use_s: float | None = None

    def steps(self) -> Iterator[tuple[float, int, dict[str, float]]]:
        """Yield the time, number and values of each step since the last call."""
        for row in self.new_records(self.run.metrics):
            step, attempt = row.get(m.STEP.name), row.get(m.ATTEMPT.name)
            if type(step) is not int or type(attempt) is not int or step < 0:
                continue
            time_s = self.start_of(attempt) + (row[m.ELAPSED.name] if is_amount(row.get(m.ELAPSED.name)) else 0.0)
            if step <= self.last_step:
                yield time_s, step, {}
            self.last_step = step
            known = {
                name: float(row[name]) for name in m.REGISTRY if name not in NO_CURVES and is_number(row.get(name))
            }
            step_time_s, tokens = known.get(m.STEP_TIME.name), known.get(m.TOKENS.name)
            yield time_s, step, known | ({m.TOKENS_PER_S.name: tokens / step_time_s} if tokens and step_time_s else {})

    def nodes(self) -> Iterator[tuple[float, int, dict[str, float]]]:
        """Yield the time, second of the run and values of each record of a node since the last call."""
        for file in self.run.storage_logs:
            if (number := node_of(file)) is None:
                continue
            for record in self.new_records(file):
                if is_amount(record.get("time_s")) and (values := use_of(record)):
                    self.first_use_s = self.first_use_s or record["time_s"]
                    named = {f"{metric.name}/node_{number}": value for metric, value in values.items()}
                    yield record["time_s"], max(0, round(record["time_s"] - self.first_use_s)), named

    def start_of(self, attempt: int) -> float:
        """Return when the first step of an attempt began, in seconds since the epoch; 0 where it is not recorded."""
        if attempt not in self.began_s:
            with suppress(OSError):
                starts = [each for each in read_events(self.run.status) if each["event"] == "started"]
                self.began_s |= {
                    each["attempt"]: datetime.fromisoformat(each["time"]).timestamp()
                    for each in starts
                    if {"attempt", "time"} <= each.keys()
                }
        return self.began_s.setdefault(attempt, 0.0)

    def new_records(self, file: Path) -> Iterator[dict[str, Any]]:
        """Yield the records that were appended since the last call; a line without its end is left for the next one."""
        with suppress(FileNotFoundError), opened(file) as source:
            source.seek(self.read.get(file, 0))
            for line in source:
                if not line.endswith(b"\n"):
                    return
                self.read[file] = self.read.get(file, 0) + len(line)
                yield from records_in([line])


def is_number(value: Any) -> bool:
    """Return True for a finite number, which may be negative."""
    return type(value) in {int, float} and is_amount(abs(value))

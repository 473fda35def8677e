"""trackers/tensorboard/: the curves of every run, for `tensorboard --logdir trackers/tensorboard`."""

from __future__ import annotations

import io
from collections.abc import Iterable

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from analysis.report.export.tracked import TrackedRun
from jobs.submit.watching.tensorboard import EVENT_FILE, FILE_VERSION


def tensorboard_events(runs: Iterable[TrackedRun]) -> dict[str, bytes]:
    """Return the files of all runs by their names; a run without steps has its values at step 0."""
    files = {}
    for run in runs:
        file = io.BytesIO()
        writer = RecordWriter(file)
        writer.write(Event(file_version=FILE_VERSION, wall_time=run.start_s).SerializeToString())
        for step, time_s, values in run.steps or [(0, run.start_s, run.values)]:
            scalars = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
            writer.write(Event(wall_time=time_s, step=step, summary=Summary(value=scalars)).SerializeToString())
        files[f"trackers/tensorboard/{run.file_name}/{EVENT_FILE}"] = file.getvalue()
    return files

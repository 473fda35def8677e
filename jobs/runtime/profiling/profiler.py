"""Profile the steps of engine.profile on its ranks, with torch's profiler; outside the clock of a step.

The profiler starts one step early, so that the first recorded step does not contain its start. After the last one the
ranks wait for each other while traces are written and read, so that no later step contains that.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.profiler import record_function
from torch.profiler import ProfilerActivity, profile

from jobs.errors import ConfigError, RunDirError
from jobs.layout import layout_of
from jobs.output import own_directory
from jobs.ranks import Rank
from jobs.rundir import RunDir
from jobs.runtime.exchange import gather
from jobs.runtime.profiling.trace import GROUPS, PROBE_NUMBERS, STEP, read_trace
from jobs.schema import Profiler, Run

# A thread of gloo takes the next collective of its group: of several at once each thread takes one.
PROBES = 8


class StepProfiler:
    """The profile of this rank. Every rank makes one, and calls its methods in every step."""

    def __init__(self, run: Run, directory: RunDir, rank: Rank, device: torch.device, steps: int) -> None:
        self.run = run
        self.directory = directory
        self.rank = rank
        self.device = device
        self.program, self.steps = run.engine.profile.program, run.engine.profile.steps
        self.chosen = rank.rank in run.engine.profile.ranks
        self.recording: profile | None = None
        self.annotation: record_function | None = None
        self.started = False
        if self.steps and self.steps[-1] > steps:
            raise ConfigError(
                f"engine.profile.steps={self.steps} are not all among the {steps} steps of this run. Set "
                f"engine.profile.steps=[{steps}] or earlier ones."
            )

    def __enter__(self) -> StepProfiler:
        return self

    def __exit__(self, *_error: object) -> None:
        """Stop a recording that a signal or an error cut off; it is not kept."""
        if self.recording is not None:
            self.recording.stop()

    @contextmanager
    def step(self, step: int) -> Iterator[None]:
        """Record a step inside this context, which contains the clock of the step."""
        self.begins(step)
        yield
        self.ends(step)

    def begins(self, step: int) -> None:
        """Start what this step needs, before its clock."""
        if not self.steps:
            return
        if self.program is Profiler.torch:
            if step == self.steps[0] - 1:
                self.start()
            if self.recording is not None and step in self.steps:
                self.annotation = record_function(f"{STEP}{step}")
                self.annotation.__enter__()
        elif step == self.steps[0] and self.chosen:
            # nsys waits for this call (jobs.runtime.profiling.wrapped).
            torch.cuda.profiler.start()

    def ends(self, step: int) -> None:
        """End what records this step, after its clock."""
        if self.annotation is not None:
            self.annotation.__exit__(None, None, None)
            self.annotation = None
        if self.program is Profiler.nsys and self.steps and step == self.steps[-1] and self.chosen:
            torch.cuda.profiler.stop()

    def report(self, step: int) -> list[dict[str, Any]] | None:
        """Return the summary of each profiled rank after the last profiled step, else None; every rank calls it."""
        if not self.started or step != self.steps[-1]:
            return None
        own = self.written() if self.recording is not None else None
        self.recording = None
        ranks = gather(own) if dist.is_initialized() else [own]
        return [each for each in ranks if each is not None]

    def start(self) -> None:
        """Start the profiler on the chosen ranks, and make gloo's threads known; every rank calls it."""
        self.started = True
        axes = axes_of_groups(self.run) if dist.is_initialized() else {}
        if self.chosen:
            gpu = [ProfilerActivity.CUDA] if self.device.type == "cuda" else []
            # Shapes: gloo's collectives have no other size.
            self.recording = profile(activities=[ProfilerActivity.CPU, *gpu], record_shapes=True)
            self.recording.start()
            self.recording.add_metadata_json(GROUPS, json.dumps(axes))
        if axes and dist.get_backend() == "gloo":
            probe_groups()

    def written(self) -> dict[str, Any]:
        """Write the trace, and return its summary; a trace that cannot be written or read does not end the run."""
        assert self.recording is not None
        self.recording.stop()
        file = self.directory.trace(self.rank.rank)
        try:
            own_directory(file.parent)
            file.unlink(missing_ok=True)  # torch would write through a link
            self.recording.export_chrome_trace(str(file))
            found = {"trace": str(file.relative_to(self.directory.path)), "trace_bytes": file.stat().st_size}
            return {"rank": self.rank.rank, **found, **read_trace(file)}
        except (OSError, ValueError, RunDirError) as error:
            print(f"{file}: the profile could not be kept: {error}", flush=True)
            return {"rank": self.rank.rank, "error": str(error)}


def axes_of_groups(run: Run) -> dict[str, str]:
    """Return the axis of each process group of this rank by its name, in the order of their creation."""
    layout = layout_of(run)
    names = dist.distributed_c10d._world.pg_names  # noqa: SLF001 (no public list of groups)
    return {name: layout.axes_between(dist.get_process_group_ranks(group)) for group, name in names.items()}


def probe_groups() -> None:
    """Reduce a tensor of a size of its own in every group, several times at once so that all of its threads do."""
    groups = list(dist.distributed_c10d._world.pg_names)  # noqa: SLF001 (as above)
    probes = [(torch.zeros(PROBE_NUMBERS + i), group) for i, group in enumerate(groups) for _ in range(PROBES)]
    for work in [dist.all_reduce(numbers, group=group, async_op=True) for numbers, group in probes]:
        if work is not None:
            work.wait()

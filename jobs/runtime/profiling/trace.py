"""Read a Chrome trace of torch's profiler: the shares of its steps, the kernels by time, the collectives by axis.

One reader for GPUs, where kernels are events of the device, and for CPUs, where operators are ranges of threads and
gloo's collectives are ranges of its own threads. A moment of a step has the first class of COMPUTE, COMMUNICATION,
COPY and HOST that is under way, else none. The definitions are those of Holistic Trace Analysis
(https://hta.readthedocs.io): idle, compute and non-compute time; overlap is hidden communication / communication.

The profiler adds to the trace the axis of each process group (GROUPS): NCCL's kernels name their group, gloo's ranges
do not, but each of its threads works for one group. Before the steps every group therefore reduces a tensor of a size
of its own (PROBE_NUMBERS).
"""

from __future__ import annotations

import gzip
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jobs import metrics as m
from jobs.files import opened, parse_json, too_large
from jobs.parallelism import PP

# Part of an operator's or kernel's name -> collective. Barriers and waits move no data; a receive is counted as its
# send.
COLLECTIVES = {
    "allreduce": "all_reduce",
    "all_reduce": "all_reduce",
    "allgather": "all_gather",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "all_to_all": "all_to_all",
    "broadcast": "broadcast",
    "send": "send",
}
STEP = "ProfilerStep#"
"""Prefix of the range of a step; tools that read traces of torch know it."""
GROUPS = "slurmscale_axis_of_group"
"""Key in a trace: axis by name of process group, in the order of the probes."""
PROBE_NUMBERS = 250_007
"""Size of the first group's probe; the next ones have one number more each."""
TOP_KERNELS = 10
LONGEST_NAME = 160

OF_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}
OF_HOST = {"cpu_op", "user_annotation", "cuda_runtime", "cuda_driver"}
COLLECTIVE = re.compile(r"gloo:|nccl(Dev)?Kernel")
OPERATOR = re.compile(r"aten::|.*cpp_fused")
MESSAGES = {"gloo:send", "gloo:recv"}
COPY_OPERATOR = re.compile(r"aten::(_foreach_)?(copy|zero|fill)_$")
WAITS = re.compile(r".*Synchronize|cudaStreamWaitEvent|cudaEventQuery")

COMPUTE, COMMUNICATION, COPY, HOST = range(4)
SHARES = (m.COMPUTE_SHARE, m.EXPOSED_COMMUNICATION_SHARE, m.MEMORY_COPY_SHARE, m.HOST_SHARE)


TRACE_BYTES = 4 << 30


class Span(NamedTuple):
    """A stretch of time in microseconds, of one class, under one name; a collective also has an axis."""

    begin: float
    end: float
    kind: int
    name: str
    axis: str = ""


def read_trace(path: Path) -> dict[str, Any]:
    """Return the summary of a compressed trace; raise OSError or ValueError if it cannot be read."""
    with opened(path) as file, gzip.open(file) as trace:
        text = trace.read(TRACE_BYTES + 1)
    if len(text) > TRACE_BYTES:
        raise too_large(path, "what it expands to", TRACE_BYTES)
    return summary(parse_json(text))


def summary(trace: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a rank in a `profile` event; raise ValueError for a trace without steps.

    Shares are those of the time of all steps; times and calls of kernels and collectives are per step.
    """
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    steps = {int(e["name"][len(STEP) :]): (e["ts"], e["ts"] + e["dur"]) for e in events if is_step(e)}
    if not steps:
        raise ValueError(f"the trace has no step ({STEP})")
    on_device = any(event.get("cat") in OF_DEVICE for event in events)
    spans = spans_of(events, trace.get(GROUPS, {}), on_device=on_device)
    time_us = sum(end - begin for begin, end in steps.values())
    classes: defaultdict[int, float] = defaultdict(float)
    communication = 0.0
    under_way: defaultdict[tuple[str, str], float] = defaultdict(float)
    exposed: defaultdict[tuple[str, str], float] = defaultdict(float)
    own: defaultdict[str, float] = defaultdict(float)
    calls: Counter[str] = Counter()
    collective_calls: Counter[tuple[str, str]] = Counter()
    for begin, end in steps.values():
        within = [clipped(span, begin, end) for span in spans if span.end > begin and span.begin < end]
        for length_us, kinds, collectives in moments(within):
            first = min(kinds)
            classes[first] += length_us
            communication += length_us if COMMUNICATION in kinds else 0
            for each in collectives:
                under_way[each] += length_us
                # Collectives that are exposed together share the time, so that their sum is right.
                exposed[each] += length_us / len(collectives) if first == COMMUNICATION else 0
        for span in within:
            if span.kind != HOST:
                own[span.name] += span.end - span.begin
            if span.kind == COMMUNICATION:
                collective_calls[span.axis, span.name] += 1
        calls.update(called(events, begin, end, OF_DEVICE if on_device else OF_HOST))
    shares = {metric.name: classes[kind] / time_us for kind, metric in enumerate(SHARES)}
    return {
        "steps": sorted(steps),
        m.PROFILED_STEP_TIME.name: time_us / 1e6 / len(steps),
        **shares,
        m.IDLE_SHARE.name: max(0.0, 1 - sum(shares.values())),
        m.COMMUNICATION_SHARE.name: communication / time_us,
        "kernels": kernel_entries(own, calls, len(steps)),
        "collectives": [
            {
                "axis": axis,
                "collective": collective_name(name),
                m.COLLECTIVE_CALLS.name: collective_calls[axis, name] / len(steps),
                m.COMMUNICATION_SHARE.name: length_us / time_us,
                m.EXPOSED_COMMUNICATION_SHARE.name: exposed[axis, name] / time_us,
            }
            for (axis, name), length_us in sorted(under_way.items(), key=by_time)
        ],
    }


def kernel_entries(own_us: Mapping[str, float], calls: Mapping[str, int], steps: int) -> list[dict[str, Any]]:
    """Return the kernels with the most time, with their own time and calls per step."""
    return [
        {
            "kernel": name[:LONGEST_NAME],
            m.KERNEL_TIME.name: time_us / 1e6 / steps,
            m.KERNEL_CALLS.name: calls[name] / steps,
        }
        for name, time_us in sorted(own_us.items(), key=by_time)[:TOP_KERNELS]
    ]


def by_time(item: tuple[Any, float]) -> tuple[float, Any]:
    """Return the sort key of a name and its time: most time first."""
    return -item[1], item[0]


def is_step(event: Mapping[str, Any]) -> bool:
    """Return True for the host's range of a step; host and device are synchronized at both of its ends."""
    return event.get("cat") == "user_annotation" and event["name"].startswith(STEP)


# --- events -> spans -------------------------------------------------------------------------------------------


def spans_of(events: Sequence[Mapping[str, Any]], axes: Mapping[str, str], *, on_device: bool) -> list[Span]:
    """Return the spans by class; a collective in a group of one rank does not count."""
    threads: dict[tuple[Any, Any], list[Mapping[str, Any]]] = defaultdict(list)
    for event in events:
        if event.get("cat") in OF_HOST and not event["name"].startswith((STEP, "gloo:")):
            threads[event["pid"], event["tid"]].append(event)
    host = [span for ranges in threads.values() for span in innermost(ranges)]
    if on_device:
        works = [span._replace(kind=HOST) for span in host if not WAITS.match(span.name)]
        return works + [span for event in events if event.get("cat") in OF_DEVICE for span in of_device(event, axes)]
    before = min(event["ts"] for event in events if is_step(event))
    groups = axes_of_threads([event for event in events if event["ts"] < before], list(axes.values()))
    return host + [
        Span(e["ts"], e["ts"] + e["dur"], COMMUNICATION, e["name"], axis)
        for e in events
        if e["name"].startswith("gloo:")
        # Messages between two ranks have no thread of their own. On CPUs only pipeline stages send them.
        and (axis := groups.get((e["pid"], e["tid"]), PP.name if e["name"] in MESSAGES else "unknown"))
    ]


def of_device(event: Mapping[str, Any], axes: Mapping[str, str]) -> Iterator[Span]:
    """Yield the span of an event of a GPU, if it is one of work."""
    name, begin = event["name"], event["ts"]
    if event["cat"] != "kernel":
        yield Span(begin, begin + event["dur"], COPY, name)
    elif not COLLECTIVE.match(name):
        yield Span(begin, begin + event["dur"], COMPUTE, name)
    elif axis := axes.get(str(event.get("args", {}).get("Process Group Name")), "unknown"):
        yield Span(begin, begin + event["dur"], COMMUNICATION, name, axis)


def innermost(ranges: Iterable[Mapping[str, Any]]) -> Iterator[Span]:
    """Yield the stretches of one thread under the name of the innermost of the nested ranges: their own times."""
    stack: list[tuple[str, float]] = []
    now = 0.0

    def until(time: float) -> Iterator[Span]:
        nonlocal now
        while stack:
            name, end = stack[-1]
            if end > now and time > now:
                yield Span(now, min(end, time), kind_of(name), name)
                now = min(end, time)
            if end > time:
                return
            stack.pop()

    for event in sorted(ranges, key=lambda event: (event["ts"], -event["dur"])):
        yield from until(event["ts"])
        now = max(now, event["ts"])
        stack.append((event["name"], event["ts"] + event["dur"]))
    yield from until(float("inf"))


def kind_of(operator: str) -> int:
    """Return the class of a range of a CPU: ranges of autograd, FSDP and c10d contain waiting."""
    if COPY_OPERATOR.match(operator):
        return COPY
    return COMPUTE if OPERATOR.match(operator) else HOST


def axes_of_threads(events: Iterable[Mapping[str, Any]], axes: Sequence[str]) -> dict[tuple[Any, Any], str]:
    """Return the axis of each of gloo's threads that reduced the probe of a group."""
    found = {}
    for event in events:
        dims = event.get("args", {}).get("Input Dims")
        if event["name"].startswith("gloo:") and dims and len(dims[0]) == 1:
            group = dims[0][0] - PROBE_NUMBERS
            if 0 <= group < len(axes):
                found[event["pid"], event["tid"]] = axes[group]
    return found


def collective_name(kernel: str) -> str:
    """Return the name of a collective, from that of NCCL's kernel or gloo's range."""
    short = re.sub(r"gloo:|nccl(Dev)?Kernel_?", "", kernel, count=1)
    return next((name for part, name in COLLECTIVES.items() if part in short.lower()), re.split(r"[(<]", short)[0])


# --- spans -> times --------------------------------------------------------------------------------------------


def clipped(span: Span, begin: float, end: float) -> Span:
    """Return the part of a span inside a step."""
    return span._replace(begin=max(span.begin, begin), end=min(span.end, end))


def moments(spans: Iterable[Span]) -> Iterator[tuple[float, set[int], list[tuple[str, str]]]]:
    """Yield each stretch in which the same spans are under way: its length, their classes, their collectives."""
    edges = sorted((time, change, span) for span in spans for time, change in ((span.begin, 1), (span.end, -1)))
    kinds: Counter[int] = Counter()
    collectives: Counter[tuple[str, str]] = Counter()
    last = 0.0
    for time, change, span in edges:
        if time > last and (under_way := {kind for kind, number in kinds.items() if number}):
            yield time - last, under_way, [each for each, number in collectives.items() if number]
        last = time
        kinds[span.kind] += change
        if span.kind == COMMUNICATION:
            collectives[span.axis, span.name] += change


def called(events: Iterable[Mapping[str, Any]], begin: float, end: float, categories: set[str]) -> Iterator[str]:
    """Yield the name of each event of these categories that begins in a step."""
    return (e["name"] for e in events if e.get("cat") in categories and begin <= e["ts"] < end)

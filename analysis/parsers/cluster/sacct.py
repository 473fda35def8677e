"""Slurm's sacct: `JobID|State|...` with -P or -p, or columns of fixed width under dashes, a row for each job and step.

Any columns may be requested. In fixed width long values are cut and end in `+`: states and kinds of steps are
completed from their beginning, names stay cut, and all other cut values are absent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Line, LineFormat, Record, Text
from jobs.metrics import Metric

RULE = re.compile(r" *-{2,}(?: -{2,})+")
JOB_ID = re.compile(
    r"\d+(?:_(?:\d+|\[[^\]]*\]))?(?:\+\d+)?(?:\.(?:batch|extern|interactive|TBD|\d+(?:\+\d+)?))?|(\d[^.]*\.)([a-z]+)\+|\d\S*\+"
)
STEPS = ("batch", "extern", "interactive")
STATE = re.compile(r"([A-Z_]+)(\+?)(?: by .*)?")
STATES = (
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "COMPLETING", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PENDING",
    "PREEMPTED", "REQUEUED", "RESIZING", "REVOKED", "RUNNING", "SUSPENDED", "TIMEOUT",
)  # fmt: skip
NAMES = {"jobname": Text.job_name, "partition": Text.partition}
WHOLE: dict[str, tuple[Text, re.Pattern[str]]] = {
    "exitcode": (Text.exit_code, re.compile(r"\d+:\d+")),
    "nodelist": (Text.nodes, re.compile(r"(?!None|Unknown)\S+(?<!\+)")),
    **{
        name: (text, re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d"))
        for name, text in (("submit", Text.submitted), ("start", Text.started), ("end", Text.ended))
    },
}
DURATION = re.compile(r"(?:(\d{1,6})-)?(?:(\d\d):)?(\d\d):(\d\d)(?:\.\d+)?")
SIZE = re.compile(r"(\d{1,15}(?:\.\d+)?)([KMGTP])")
RESOURCES = {"cpu": a.CPUS, "gres/gpu": a.GPUS, "node": a.NODES}


def parse(lines: Iterable[Line]) -> Iterator[Record]:
    """Return a job record for each row of all tables."""
    names: list[str] = []
    spans: list[tuple[int, int]] = []
    above = ""
    for line in lines:
        text = line.text.rstrip()
        cells = divided(text, spans)
        if RULE.fullmatch(text):
            spans = [found.span() for found in re.finditer("-+", text)]
            names = [cell.lower() for cell in divided(above, spans)]
        elif {"JobID", "JobIDRaw"} & set(parts := text.split("|")) and len(parts) > 1:
            names, spans = [part.lower() for part in parts], []
        elif names and len(cells) == len(names):
            yield from job(line, dict(zip(names, cells, strict=True)))
        above = text


def divided(text: str, spans: list[tuple[int, int]]) -> list[str]:
    """Return the cells of a row, by fixed width or by bars; none if columns overlap."""
    if not spans:
        return text.split("|")
    if any(text[end : end + 1].strip() for _, end in spans):
        return []
    return [text[start:end].strip() for start, end in spans]


def job(line: Line, row: dict[str, str]) -> Iterator[Record]:
    """Return the record of a row; none if its job ID or state is not valid."""
    number = JOB_ID.fullmatch(row.get("jobid") or row.get("jobidraw") or "")
    state = STATE.fullmatch(row.get("state", "UNKNOWN"))
    if number is None or state is None:
        return
    texts: dict[Text, str] = {}
    if not number[0].endswith("+"):
        texts[Text.job_id] = number[0]
    elif number[1] and (kind := only(STEPS, number[2])):
        texts[Text.job_id] = number[1] + kind
    if "state" in row and (known := only(STATES, state[1]) if state[2] else state[1]):
        texts[Text.state] = known
    texts |= {text: row[name] for name, text in NAMES.items() if row.get(name)}
    texts |= {text: row[name] for name, (text, shape) in WHOLE.items() if shape.fullmatch(row.get(name, ""))}
    values = {
        metric: value for name, (metric, read) in NUMBERS.items() if (value := read(row.get(name, ""))) is not None
    }
    yield Record(Kind.job, line.number, resources(row.get("alloctres", "")) | values, texts, None, line.host)


def only(known: tuple[str, ...], beginning: str) -> str | None:
    """Return the only known word with this beginning; None if there are several or none."""
    found = [each for each in known if each.startswith(beginning)]
    return found[0] if len(found) == 1 else None


def resources(allocated: str) -> dict[Metric, float]:
    """Return the resources in `billing=2,cpu=2,gres/gpu=1,node=1` that have a metric."""
    pairs = (each.partition("=") for each in allocated.split(","))
    return {
        RESOURCES[name]: value for name, _, text in pairs if name in RESOURCES and (value := count(text)) is not None
    }


def count(text: str) -> float | None:
    """Return a whole number; None for any other text."""
    return float(text) if re.fullmatch(r"\d{1,15}", text) else None


def duration(text: str) -> float | None:
    """Return the seconds of [days-]hours:minutes:seconds; None for any other text."""
    if (found := DURATION.fullmatch(text)) is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def size(text: str) -> float | None:
    """Return bytes; None for 0, which means not sampled, and any other text."""
    found = SIZE.fullmatch(text)
    return float(found[1]) * 1024 ** ("KMGTP".index(found[2]) + 1) or None if found else None


NUMBERS: dict[str, tuple[Metric, Callable[[str], float | None]]] = {
    "nnodes": (a.NODES, count),
    "allocnodes": (a.NODES, count),
    "ntasks": (a.RANKS, count),
    "alloccpus": (a.CPUS, count),
    "ncpus": (a.CPUS, count),
    "restarts": (a.RESTARTS, count),
    "elapsed": (a.JOB_TIME, duration),
    "elapsedraw": (a.JOB_TIME, count),
    "timelimit": (a.TIME_LIMIT, duration),
    "planned": (a.WAITING_TIME, duration),
    "reserved": (a.WAITING_TIME, duration),
    "maxrss": (a.HOST_MEMORY_PEAK, size),
}

FORMAT = LineFormat(
    "sacct",
    "https://github.com/SchedMD/slurm/blob/slurm-24-05-4-1/src/sacct/print.c",
    parse,
    section_start=("JobID|", "|JobID", "JobIDRaw|", "JobID  "),
)

"""nvidia-smi's readings: `--query-gpu=... --format=csv` under a header of `name [unit]`, `dmon` under `# gpu pwr ...`.

Caller and driver decide the columns. dmon repeats its header, and a value that a GPU cannot measure is `-`, `N/A` or
`[Not Supported]`. The summary, which many job scripts print, gives only the names of the GPUs; older drivers cut them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Line, LineFormat, Record, Text
from jobs import metrics as m
from jobs.metrics import Metric

PERCENT = 1e-2
MIB = float(1 << 20)
MHZ = 1e6
# Names of a query, then names of dmon, whose MB are MiB.
COLUMNS: dict[str, tuple[Metric, float]] = {
    "utilization.gpu": (a.GPU_BUSY, PERCENT),
    "utilization.memory": (a.GPU_MEMORY_BUSY, PERCENT),
    "memory.used": (a.GPU_MEMORY_USED, MIB),
    "memory.total": (a.GPU_MEMORY, MIB),
    "temperature.gpu": (a.TEMPERATURE, 1),
    "temperature.memory": (a.GPU_MEMORY_TEMPERATURE, 1),
    "power.draw": (a.POWER, 1),
    "power.limit": (a.POWER_LIMIT, 1),
    "clocks.current.sm": (m.GPU_CLOCK, MHZ),
    "clocks.current.memory": (a.GPU_MEMORY_CLOCK, MHZ),
    "sm": (a.GPU_BUSY, PERCENT),
    "mem": (a.GPU_MEMORY_BUSY, PERCENT),
    "fb": (a.GPU_MEMORY_USED, MIB),
    "gtemp": (a.TEMPERATURE, 1),
    "mtemp": (a.GPU_MEMORY_TEMPERATURE, 1),
    "pwr": (a.POWER, 1),
    "pclk": (m.GPU_CLOCK, MHZ),
    "mclk": (a.GPU_MEMORY_CLOCK, MHZ),
}
HEADER_CELL = re.compile(r"[a-z][a-z0-9_.]*(?: \[[^\]]{1,9}\])?")
CELL = re.compile(r"(?P<number>\d{1,12}(?:\.\d{1,9})?)(?: (?P<unit>%|W|MiB|MHz))?|-|N/A|\[[^\]]*\]")
# A time with a lost digit does not match.
# Index, name, persistence mode and bus of a GPU in the summary.
SUMMARY = "| NVIDIA-SMI "
SUMMARY_ROW = re.compile(r"\|\s*\d{1,3}\s+(\w[^|]{1,60}?)\s+(?:On|Off|N/A)\s*\|\s*[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:")
# nvidia-smi -L.
LISTED = re.compile(r"GPU \d{1,3}: (\w.{1,60}?) \(UUID: GPU-[\w-]{1,60}\)\s*$")
CUT = "..."
TIME = re.compile(r"(?:\d{4}/\d\d/\d\d|\d{8})? ?\d\d:\d\d:\d\d(?:\.\d+)?")


def parse(lines: Iterable[Line]) -> Iterator[Record]:
    """Return a sample for each row, even if other lines stand between rows, then the names of the GPUs as a setting."""
    names: list[str] = []
    separator: str | None = None
    gpus: dict[str, Line] = {}
    for line in lines:
        text = line.text.strip()
        if found := SUMMARY_ROW.match(text) or LISTED.match(text):
            if not found[1].endswith(CUT):
                gpus.setdefault(found[1], line)
        elif text.startswith("#"):
            if "gpu" in (above := text.lstrip("# ").split()):
                # A table of processes (pmon), not of GPUs.
                names, separator = [] if "pid" in above else above, None
        elif (asked := queried(text)) is not None:
            names, separator = asked, ","
        elif names and len(cells := text.split(separator)) == len(names):
            yield from sample(line, dict(zip(names, map(str.strip, cells), strict=True)))
    if gpus:
        # Unlike GPUs in one log are a machine of its own, not the first of them.
        first = next(iter(gpus.values()))
        yield Record(Kind.setting, first.number, {}, {Text.gpu_name: " and ".join(gpus)}, None, first.host)


def queried(text: str) -> list[str] | None:
    """Return the columns of a query's header; None if the line is not a header."""
    cells = text.split(", ")
    if "[" not in text or not all(map(HEADER_CELL.fullmatch, cells)):
        return None
    # Newer drivers print the requested name, which may be the older, shorter one.
    names = [cell.partition(" [")[0] for cell in cells]
    return [{"clocks.sm": "clocks.current.sm", "clocks.mem": "clocks.current.memory"}.get(name, name) for name in names]


def sample(line: Line, row: dict[str, str]) -> Iterator[Record]:
    """Return the readings of a row; none if the line is not a row."""
    found = {COLUMNS[name]: CELL.fullmatch(cell) for name, cell in row.items() if name in COLUMNS}
    if not all(found.values()):
        return
    cells = {column: cell for column, cell in found.items() if cell is not None and cell["number"]}
    # In a row with units a number without a unit is torn.
    units = any(cell["unit"] for cell in cells.values())
    values = {
        metric: float(cell["number"]) * unit
        for (metric, unit), cell in cells.items()
        if cell["unit"] or not units or metric in {a.TEMPERATURE, a.GPU_MEMORY_TEMPERATURE}
    }
    if not values:
        return
    time = row.get("timestamp") or f"{row.get('Date', '')} {row.get('Time', '')}".strip()
    device = row.get("gpu") or row.get("index") or row.get("pci.bus_id") or row.get("uuid") or ""
    named = {
        Text.timestamp: time if TIME.fullmatch(time) else "",
        Text.device: device,
        Text.gpu_name: row.get("name", ""),
    }
    yield Record(
        Kind.sample, line.number, values, {text: each for text, each in named.items() if each}, None, line.host
    )


FORMAT = LineFormat(
    "nvidia-smi",
    "https://docs.nvidia.com/deploy/archive/R570/nvidia-smi/index.html",
    parse,
    markers=("(UUID: GPU-",),
    section_start=(SUMMARY, "# gpu ", "#Time ", "#Date ", "utilization.gpu [", "utilization.memory [", "memory.used [",
                   "power.draw [", "clocks.sm [", "clocks.current.sm ["),
)  # fmt: skip

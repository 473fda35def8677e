"""NCCL and RCCL with NCCL_DEBUG=INFO: `node1:4711:4720 [0] NCCL INFO ...`, transports of collectives and their causes.

Every process prints the same lines for every channel, so equal lines become one record at the end, with the number of
the first line and the count of lines. Addresses are left out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Line, LineFormat, Record, Text
from jobs.metrics import Metric
from jobs.runtime.transport import CHANNEL, devices_of, transport_of

NETWORK = re.compile(r"NCCL INFO Using network (\S[\w -]*?)\s*$")
PROVIDER = re.compile(r"NET/OFI Selected [Pp]rovider is ([\w;-]+)")
NVLS = re.compile(r"\b[1-9]\d* nvls channels\b")
COMMUNICATOR = re.compile(r"\bnRanks (\d{1,9}) nNodes (\d{1,9}) localRanks (\d{1,9}) ")
COMPLETE = re.compile(r"\bnranks (\d{1,9}) (?:.* commId (0x[0-9a-f]{1,16}) |.*)- Init COMPLETE")
SETUP = re.compile(r"Init timings\b.* nranks (\d{1,9}) total (\d{1,9}\.\d+) ")
VERSION = re.compile(r"\b([NR]CCL) version {0,9}:? {0,9}(\d+\.\d+\S*)")
PLUGIN = re.compile(r"\b(aws-ofi-[nr]ccl) (\d+\.\d+\S*)")
# A number is followed by a full stop; without one it is torn.
VARIABLE = re.compile(r"\b(\w{0,20}CCL_\w{1,60}) set (?:by environment )?to (?:(-?\d+)\.|(?!-?\d+\s*$)(\S.*?)\.?)\s*$")
WARNING = re.compile(r"(?:([\w.-]{1,64}):\d{1,9}:\d{1,9} \[\d+\] (?:\S.{0,199} )?)?NCCL WARN (\S.*)")
# Most records kept, for logs with ever different warnings; beyond it they are returned and counting restarts.
MOST_KEPT = 10_000


def parse(lines: Iterable[Line]) -> Iterator[Record]:
    """Return versions, variables, networks and communicators as settings, channels as summaries, warnings as events."""
    kept: dict[Hashable, Record] = {}
    counts: Counter[Hashable] = Counter()
    for line in lines:
        # Nearly all lines describe channels.
        channel = CHANNEL.search(line.text)
        key: Hashable = transport_of(channel) if channel else None
        if key not in kept:
            record = Record(Kind.summary, line.number, {}, {Text.transport: str(key)}) if channel else record_of(line)
            if record is None:
                continue
            key = key or (record.kind, record.host, *record.values.items(), *record.texts.items())
            if len(kept) == MOST_KEPT and key not in kept:
                yield from counted(kept, counts)
                kept.clear()
                counts.clear()
            kept.setdefault(key, record)
        counts[key] += line.times
    yield from counted(kept, counts)


def counted(kept: dict[Hashable, Record], counts: Counter[Hashable]) -> Iterator[Record]:
    """Return each record with the number of lines that it represents."""
    for key, record in kept.items():
        yield record._replace(values={**record.values, a.LINES: float(counts[key])})


def record_of(line: Line) -> Record | None:
    """Return the record of any other line, with a host only for warnings."""
    text = line.text
    if "NCCL WARN " in text and (found := WARNING.search(text)):
        return Record(Kind.event, line.number, {}, {Text.message: found[2].rstrip()}, None, found[1] or line.host)
    if found := COMPLETE.search(text):
        texts = {Text.event: "Init COMPLETE"} | ({Text.communicator: found[2]} if found[2] else {})
        return Record(Kind.event, line.number, {a.COMMUNICATOR_RANKS: float(found[1])}, texts)
    if found := SETUP.search(text):
        values = {a.COMMUNICATOR_RANKS: float(found[1]), a.COMMUNICATOR_SETUP_TIME: float(found[2])}
        return Record(Kind.measurement, line.number, values)
    values, texts = setting(text)
    return Record(Kind.setting, line.number, values, texts) if values or texts else None


def setting(text: str) -> tuple[dict[Metric, float], dict[Text, str]]:
    """Return values and texts of a setting of the library."""
    if found := COMMUNICATOR.search(text):
        metrics = a.COMMUNICATOR_RANKS, a.COMMUNICATOR_NODES, a.RANKS_PER_NODE
        return {metric: float(value) for metric, value in zip(metrics, found.groups(), strict=True)}, {}
    if " set " in text and (found := VARIABLE.search(text)):
        return {}, {Text.environment: f"{found[1]}={found[2] or found[3]}"}
    if found := NETWORK.search(text):
        return {}, {Text.transport: f"NET/{found[1]}"}
    network, devices = devices_of(text)
    if network is not None:
        return {}, {Text.transport: network, Text.interfaces: " ".join(devices)} if devices else {}
    if found := PROVIDER.search(text):
        return {}, {Text.transport: "NET/OFI", Text.interfaces: found[1]}
    if NVLS.search(text):
        return {}, {Text.transport: "NVLS"}
    if found := VERSION.search(text) or PLUGIN.search(text):
        return {}, {Text.library: f"{found[1]} {found[2]}"}
    return {}, {}


FORMAT = LineFormat(
    "NCCL INFO",
    "https://github.com/NVIDIA/nccl/blob/v2.26.2-1/src/init.cc",
    parse,
    repeated=(" via NET/", " via COLLNET/", " via P2P/", " via SHM/", " via direct shared memory"),
    dedup_key=CHANNEL,
    markers=(
        "NCCL WARN ", "- Init COMPLETE", "Init timings", " nNodes ", " set by environment to ", "NCCL_IB_HCA set to ",
        "NCCL INFO Using network ", "NET/IB : Using ", "NET/Socket : Using ", "Bootstrap : Using ", "Bootstrap: Using ",
        "NET/OFI ", " nvls channels", "NCCL version ", "RCCL version ",
    ),
)  # fmt: skip

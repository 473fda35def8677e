"""Count what this node reads from and writes to BeeGFS and IBM Storage Scale (GPFS), by their own programs.

They have no counters in /proc. A program is started only where the node has a file system of its kind, and never again
after it has failed: `mmpmon` needs root, `beegfs-ctl` the file with BeeGFS's shared secret.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

# BeeGFS asks all of its servers, for every node of a run.
EVERY_S = 10.0
TIMEOUT_S = 5.0
MMPMON_DIRECTORY = "/usr/lpp/mmfs/bin"
MOUNTED = re.compile(r"^device .* mounted on (\S+) with fstype (beegfs|gpfs)\b", re.MULTILINE)
Moved = tuple[float, float]
"""Bytes read and written."""


@dataclass(frozen=True)
class Program:
    """A program that prints what has been read and written so far."""

    command: tuple[str, ...]
    request: str
    """Its standard input."""
    parse: Callable[[str], Moved | None]

    def moved(self) -> Moved | None:
        """Return the bytes so far; None if it cannot be started, fails, or does not know this node."""
        try:
            printed = subprocess.run(
                self.command, input=self.request, capture_output=True, text=True, timeout=TIMEOUT_S, check=True
            )
        except (OSError, subprocess.SubprocessError, ValueError):
            return None
        return self.parse(printed.stdout)


class FileSystems:
    """The file systems of this node that have such a program."""

    def __init__(self, proc: Path) -> None:
        self.programs = programs(proc)
        self.seen: dict[Program, Moved] = {}
        self.seen_s = 0.0
        self.record()

    def record(self, *, last: bool = False) -> dict[str, Any] | None:
        """Return the bytes since the last record; None if it is too early for another one or nothing moved.

        All file systems count together.
        """
        now_s = time.time()
        if not self.programs or (now_s - self.seen_s < EVERY_S and not last):
            return None
        found = {program: moved for program in self.programs if (moved := program.moved()) is not None}
        before, before_s, self.seen, self.seen_s = self.seen, self.seen_s, found, now_s
        self.programs = list(found)
        known = [(before[each], moved) for each, moved in found.items() if each in before]
        # Counters begin anew where a server starts again.
        grew = [max(0.0, sum(moved[i] - then[i] for then, moved in known)) for i in (0, 1)]
        names = ("mount_read_bytes", "mount_write_bytes")
        when = {"time_s": now_s, "interval_s": now_s - before_s}
        return when | dict(zip(names, grew, strict=True)) if known else None


def programs(proc: Path) -> list[Program]:
    """Return the programs of the file systems that are mounted here."""
    try:
        mounted = MOUNTED.findall((proc / "self/mountstats").read_text())
    except OSError:
        return []
    own = {each.address for addresses in psutil.net_if_addrs().values() for each in addresses}
    found = []
    if any(kind == "gpfs" for _, kind in mounted) and (mmpmon := which("mmpmon", MMPMON_DIRECTORY)):
        found.append(Program((mmpmon, "-p"), "io_s\n", gpfs_bytes))
    for point in sorted({point for point, kind in mounted if kind == "beegfs"}):
        if beegfs_ctl := which("beegfs-ctl"):
            options = ("--clientstats", "--nodetype=storage", "--interval=0", "--rwunit=B", f"--mount={point}")
            found.append(Program((beegfs_ctl, *options), "", lambda text: beegfs_bytes(text, own)))
    return found


def which(name: str, *further: str) -> str | None:
    """Return the path of a program on PATH or in a further directory."""
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *further]))


def gpfs_bytes(text: str) -> Moved | None:
    """Return the bytes in the answers of `mmpmon -p` to io_s or fs_io_s: keywords, each before its value.

    The format is that of IBM Storage Scale 6.0, "Display I/O statistics for the entire node". Caches count.
    """
    found = []
    for line in text.splitlines():
        kind, *words = line.split() or [""]
        values = dict(zip(words[::2], words[1::2], strict=False))
        if kind in {"_io_s_", "_fs_io_s_"} and values.get("_rc_") == "0" and {"_br_", "_bw_"} <= values.keys():
            found.append((float(values["_br_"]), float(values["_bw_"])))
    return (sum(read for read, _ in found), sum(wrote for _, wrote in found)) if found else None


def beegfs_bytes(text: str, own: Collection[str]) -> Moved | None:
    """Return the bytes in lines of `beegfs-ctl --clientstats` with an address of this node; None if no line has one.

    A line is an address and `COUNT [NAME]` for each count that is not 0 (BeeGFS 7, ModeClientStats.cpp). Bytes have six
    digits: of a terabyte, the megabytes.
    """
    lines = [line for line in text.splitlines() if line.split(" ", 1)[0] in own]
    counts = [(name, float(count)) for line in lines for count, name in re.findall(r"([\d.e+]+) \[(B-rd|B-wr)\]", line)]
    read, wrote = (sum(count for name, count in counts if name == each) for each in ("B-rd", "B-wr"))
    return (read, wrote) if lines else None

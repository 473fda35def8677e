"""What runs on each node of the doctor's job: `python -m jobs.doctor.node_check DIRECTORY`, one process a node.

Every node asks every other one by itself and writes what it saw to a file of its own, so that what is broken (a
name, a port, the shared directory) does not keep the rest from being told. Imports nothing that a node may lack.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from jobs.ranks import RENDEZVOUS_PORTS, hosts, node_name, this_rank
from jobs.secrets import redact

# Processes of one srun start within seconds of each other, Python from a cold file system included.
MEET_WITHIN_S = 45.0
# After the last node has given up meeting another one, its file must still be looked for.
SEE_WITHIN_S = MEET_WITHIN_S + 30.0
CONNECT_WITHIN_S = 5.0
# Of so many round trips the fastest tells the clock's offset best.
CLOCK_ROUNDS = 20
POLL_S = 0.1
VERSIONS = ("torch", "litgpt", "lightning", "numpy", "submitit")
GPU_FIELDS = ("index", "name", "driver_version", "temperature.gpu", "ecc.errors.uncorrected.volatile.total",
              "retired_pages.pending")  # fmt: skip
ROW_FIELDS = ("remapped_rows.pending", "remapped_rows.failure")


def main(directory: Path) -> None:
    """Look at this node and at the others from here, and write what was seen."""
    place = this_rank(ranks_per_node=1)
    names = hosts(os.environ["SLURM_JOB_NODELIST"])
    started = time.monotonic()
    # One for each node, since emulated ones share their ports.
    first = RENDEZVOUS_PORTS.index(place.master_port)
    ports = [RENDEZVOUS_PORTS[(first + rank) % len(RENDEZVOUS_PORTS)] for rank in range(len(names))]
    seen: dict[str, dict[str, float]] = {}
    watching = threading.Thread(target=watch_files, args=(directory, names, started + SEE_WITHIN_S, seen))
    watching.start()
    desk = ClockDesk(ports[place.rank])
    with ThreadPoolExecutor(32) as pool:
        others = [rank for rank in range(len(names)) if rank != place.rank]
        met = pool.map(lambda rank: meet(names[rank], ports[rank], names[place.rank], started + MEET_WITHIN_S), others)
        peers = dict(zip((names[rank] for rank in others), met, strict=True))
    put(mark(directory, names[place.rank]), repr(time.time()))
    desk.close_after(set(peers), started + SEE_WITHIN_S)
    watching.join()
    packages = versions()
    report = {
        "node": names[place.rank],
        "slurm_node": node_name(),
        "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "listen_error": desk.error,
        "port": ports[place.rank],
        "addresses": {name: address_of(name) for name in names},
        "peers": peers,
        "files": {name: seen.get(name) for name in peers},
        "versions": packages,
        "gpus": gpus(),
    }
    put(directory / f"node-{place.rank}.json", json.dumps(report))
    if len(names) > 1 and "torch" in packages:
        everyone = all("error" not in seen for seen in peers.values())
        port = RENDEZVOUS_PORTS[(first + len(names)) % len(RENDEZVOUS_PORTS)]
        pairs = measured(names, place.rank, port, directory) if everyone else {"error": "not every node was reached"}
        put(directory / f"pairs-{place.rank}.json", json.dumps(pairs))


def measured(names: list[str], rank: int, port: int, directory: Path) -> dict[str, Any]:
    """Bandwidths with the other nodes, or why there are none."""
    try:
        # Only now: where torch is broken, the report is written already.
        from jobs.doctor.bandwidth import measure  # noqa: PLC0415 - and only here, since a node may have no torch

        return measure(names, rank, port, directory)
    except Exception as error:  # noqa: BLE001 - whatever torch raises is the finding
        return {"error": redact(f"{type(error).__name__}: {error}".splitlines()[0])}


def put(path: Path, text: str) -> None:
    """Write a file that appears whole or not at all."""
    hidden = path.with_name(f".{path.name}.{os.getpid()}.{socket.gethostname()}")
    hidden.write_text(text)
    hidden.rename(path)


# --- names, ports and clocks ---------------------------------------------------------------------------------


class ClockDesk:
    """Listens on a port, as a rendezvous does, and tells everyone who asks what time it is here."""

    def __init__(self, port: int) -> None:
        self.error: str | None = None
        """Why nobody can listen on this port; None where we do."""
        self._served: set[str] = set()
        try:
            if socket.has_dualstack_ipv6():
                self._listener = socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
            else:
                self._listener = socket.create_server(("", port))
        except OSError as error:
            self.error = os.strerror(error.errno) if error.errno else str(error)
            return
        threading.Thread(target=self._serve, daemon=True).start()

    def close_after(self, guests: set[str], deadline: float) -> None:
        """Return when all of them have been served, or at the deadline."""
        while not self.error and not guests <= self._served and time.monotonic() < deadline:
            time.sleep(POLL_S)

    def _serve(self) -> None:
        while True:
            guest, _ = self._listener.accept()
            threading.Thread(target=self._answer, args=(guest,), daemon=True).start()

    def _answer(self, guest: socket.socket) -> None:
        with suppress(OSError), guest, guest.makefile("rw") as talk:
            name = talk.readline().strip()
            for _ in range(CLOCK_ROUNDS):
                if not talk.readline():
                    return
                print(repr(time.time()), file=talk, flush=True)
            self._served.add(name)


def meet(name: str, port: int, me: str, deadline: float) -> dict[str, Any]:
    """How far another node's clock is ahead of ours, or why that node cannot be reached."""
    while True:
        try:
            return clock_of(name, port, me)
        except (OSError, ValueError) as error:
            # Not there yet, unless it stays so.
            if isinstance(error, socket.gaierror) or time.monotonic() > deadline:
                return {"error": getattr(error, "strerror", None) or str(error)}
        time.sleep(POLL_S)


def clock_of(name: str, port: int, me: str) -> dict[str, float]:
    """The other clock's offset, taken in the middle of the fastest round trip."""
    best = {"round_trip_s": float("inf"), "ahead_s": 0.0}
    with (
        socket.create_connection((name, port), timeout=CONNECT_WITHIN_S) as line,
        line.makefile("rw") as talk,
    ):
        print(me, file=talk, flush=True)
        for _ in range(CLOCK_ROUNDS):
            asked = time.time()
            print("?", file=talk, flush=True)
            theirs = float(talk.readline())
            answered = time.time()
            if answered - asked < best["round_trip_s"]:
                best = {"round_trip_s": answered - asked, "ahead_s": theirs - (asked + answered) / 2}
    return best


def address_of(name: str) -> str | None:
    """What a node's name resolves to here; None where it does not."""
    try:
        return str(socket.getaddrinfo(name, None)[0][4][0])
    except OSError:
        return None


# --- the shared directory ------------------------------------------------------------------------------------


def mark(directory: Path, name: str) -> Path:
    """The file by which a node shows that others see what it writes; it holds the time of writing."""
    return directory / f"seen-{name}"


def watch_files(directory: Path, names: list[str], deadline: float, seen: dict[str, dict[str, float]]) -> None:
    """Note when each node's file appears; looking begins before the files are there, as caches of absence do."""
    while len(seen) < len(names) and time.monotonic() < deadline:
        for name in names:
            if name not in seen:
                with suppress(OSError, ValueError):
                    seen[name] = {"written": float(mark(directory, name).read_text()), "seen": time.time()}
        time.sleep(POLL_S)


# --- what is installed ---------------------------------------------------------------------------------------


def versions() -> dict[str, str]:
    """Of Python and the packages whose versions ranks must share; what is not installed is absent."""
    found = {"python": platform.python_version()}
    for package in VERSIONS:
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def gpus() -> list[dict[str, str]] | None:
    """What nvidia-smi says of each GPU that this job sees; None where there is no nvidia-smi, or it fails."""
    if shutil.which("nvidia-smi") is None:
        return None
    found = asked("--query-gpu", GPU_FIELDS)
    # GPUs before the A100 retire pages, later ones remap rows; each says N/A to the other question.
    rows = asked("--query-remapped-rows", ROW_FIELDS) or []
    return None if found is None else [gpu | (rows[i] if i < len(rows) else {}) for i, gpu in enumerate(found)]


def asked(query: str, fields: tuple[str, ...]) -> list[dict[str, str]] | None:
    """One row a GPU; None where nvidia-smi does not answer."""
    command = ["nvidia-smi", f"{query}={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return [dict(zip(fields, map(str.strip, line.split(",")), strict=False)) for line in said.splitlines() if line]


if __name__ == "__main__":
    main(Path(sys.argv[1]))

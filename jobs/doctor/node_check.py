"""Check a node in the job of the doctor: `python -m jobs.doctor.node_check DIRECTORY`, one process per node.

Every node checks every other one and writes a file of its own, so one fault (a name, a port, the shared directory)
hides no other. Imports nothing that a node may lack.
"""

from __future__ import annotations

import hmac
import json
import os
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from jobs.files import parse_json, read_text
from jobs.output import write_file
from jobs.ranks import Rank, hosts, node_name, this_rank
from jobs.rendezvous import Rendezvous, announce, await_file, listen
from jobs.runtime.gpus.nvidia import nvidia_smi
from jobs.runtime.node.system import facts_of_node
from jobs.secrets import redact
from jobs.visitors import first_line, hear

# Processes of one srun start within seconds of each other, even if Python comes from a cold file system.
MEET_WITHIN_S = 45.0
# Files are awaited longer than connections: the last node writes its file after its last attempt to connect.
SEE_WITHIN_S = MEET_WITHIN_S + 30.0
CONNECT_WITHIN_S = 5.0
LARGEST_LINE_BYTES = 512
# Round trips per pair; the fastest gives the best estimate of the clock offset.
CLOCK_ROUNDS = 20
# Importing torch from a cold file system takes up to a minute.
PRODUCT_WITHIN_S = 180.0
POLL_S = 0.1
GPU_FIELDS = ("index", "name", "driver_version", "temperature.gpu", "ecc.errors.uncorrected.volatile.total",
              "retired_pages.pending")  # fmt: skip
ROW_FIELDS = ("remapped_rows.pending", "remapped_rows.failure")


def main(directory: Path) -> None:
    """Check this node, and the others from this node; write the results."""
    place = this_rank(ranks_per_node=1)
    names = hosts(os.environ["SLURM_JOB_NODELIST"])
    started = time.monotonic()
    seen: dict[str, dict[str, float]] = {}
    watching = threading.Thread(target=watch_files, args=(directory, names, started + SEE_WITHIN_S, seen))
    watching.start()
    desks = [directory / f"desk-{rank}.json" for rank in range(len(names))]
    desk = ClockDesk(names[place.rank], desks[place.rank])
    with ThreadPoolExecutor(32) as pool:
        others = [rank for rank in range(len(names)) if rank != place.rank]
        met = pool.map(lambda rank: meet(desks[rank], names[place.rank], names[rank], started + MEET_WITHIN_S), others)
        peers = dict(zip((names[rank] for rank in others), met, strict=True))
    write_file(mark(directory, names[place.rank]), repr(time.time()))
    desk.close_after(set(peers), started + SEE_WITHIN_S)
    watching.join()
    system = facts_of_node({"runs_dir": directory})
    packages = system.get("versions", {})
    report = {
        "node": names[place.rank],
        "slurm_node": node_name(),
        "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "listen_error": desk.error,
        "addresses": {name: address_of(name) for name in names},
        "peers": peers,
        "files": {name: seen.get(name) for name in peers},
        "versions": packages,
        "system": system,
        "gpus": gpus(),
        "product": matrix_product() if "torch" in packages else None,
    }
    write_file(directory / f"node-{place.rank}.json", json.dumps(report))
    if len(names) > 1 and "torch" in packages:
        everyone = all("error" not in seen for seen in peers.values())
        pairs = measured(names, place, directory) if everyone else {"error": "not every node was reached"}
        write_file(directory / f"pairs-{place.rank}.json", json.dumps(pairs))


def measured(names: list[str], place: Rank, directory: Path) -> dict[str, Any]:
    """Return the bandwidths with the other nodes, or the error."""
    try:
        # Here, since the report is written before a broken torch can fail.
        from jobs.doctor.pair_bandwidth import measure  # noqa: PLC0415 - a node may have no torch

        return measure(names, place, directory)
    except Exception as error:  # noqa: BLE001 - whatever torch raises is the finding
        return {"error": redact(f"{type(error).__name__}: {error}".splitlines()[0])}


# --- names, ports and clocks ---------------------------------------------------------------------------------


class ClockDesk:
    """Listens on a port, like a rendezvous, and answers each guest that knows its token with the time of this node."""

    def __init__(self, name: str, file: Path) -> None:
        self.error: str | None = None
        """Reason that this process cannot listen, or announce its port in the file; None if it did."""
        self._served: set[str] = set()
        try:
            self._listener = listen(name)
            self._token = announce(file, name, self._listener.getsockname()[1]).token
        except OSError as error:
            self.error = os.strerror(error.errno) if error.errno else str(error)
            return
        hear(self._listener, self._answer)

    def close_after(self, guests: set[str], deadline: float) -> None:
        """Return when all guests have been served, or at the deadline."""
        while not self.error and not guests <= self._served and time.monotonic() < deadline:
            time.sleep(POLL_S)

    def _answer(self, guest: socket.socket) -> None:
        with suppress(OSError, ValueError), guest, guest.makefile("rw") as talk:
            token, _, name = first_line(guest, LARGEST_LINE_BYTES, CONNECT_WITHIN_S).decode().strip().partition(" ")
            if not hmac.compare_digest(token.encode(), self._token.encode()):
                return
            guest.settimeout(CONNECT_WITHIN_S)
            for _ in range(CLOCK_ROUNDS):
                if not talk.readline(LARGEST_LINE_BYTES):
                    return
                print(repr(time.time()), file=talk, flush=True)
            self._served.add(name)


def meet(desk: Path, me: str, name: str, deadline: float) -> dict[str, Any]:
    """Return the clock offset of another node, or the error if it cannot be reached until the deadline."""
    while True:
        try:
            socket.getaddrinfo(name, None)  # a name that does not resolve is not a matter of files
            return clock_of(await_file(desk, deadline - time.monotonic()), me)
        except (OSError, ValueError) as error:
            # The other node may not listen yet.
            if isinstance(error, socket.gaierror) or time.monotonic() > deadline:
                return {"error": getattr(error, "strerror", None) or str(error)}
        time.sleep(POLL_S)


def clock_of(place: Rendezvous, me: str) -> dict[str, float]:
    """Return the offset of the other clock in s: its time minus the middle of the fastest round trip."""
    best = {"round_trip_s": float("inf"), "ahead_s": 0.0}
    with (
        socket.create_connection((place.address, place.port), timeout=CONNECT_WITHIN_S) as line,
        line.makefile("rw") as talk,
    ):
        print(place.token, me, file=talk, flush=True)
        for _ in range(CLOCK_ROUNDS):
            asked = time.time()
            print("?", file=talk, flush=True)
            theirs = float(talk.readline(LARGEST_LINE_BYTES))
            answered = time.time()
            if answered - asked < best["round_trip_s"]:
                best = {"round_trip_s": answered - asked, "ahead_s": theirs - (asked + answered) / 2}
    return best


def address_of(name: str) -> str | None:
    """Return the address that a node name resolves to here; None if it does not resolve."""
    try:
        return str(socket.getaddrinfo(name, None)[0][4][0])
    except OSError:
        return None


# --- the shared directory ------------------------------------------------------------------------------------


def mark(directory: Path, name: str) -> Path:
    """Return the file of a node that the others wait for; it contains the time of writing."""
    return directory / f"seen-{name}"


def watch_files(directory: Path, names: list[str], deadline: float, seen: dict[str, dict[str, float]]) -> None:
    """Record when the file of each node appears.

    Starts before the files exist, so that a cache of missing files, as network file systems have, is measured too.
    """
    while len(seen) < len(names) and time.monotonic() < deadline:
        for name in names:
            if name not in seen:
                with suppress(OSError, ValueError):
                    seen[name] = {"written": float(read_text(mark(directory, name))), "seen": time.time()}
        time.sleep(POLL_S)


# --- software and GPUs ---------------------------------------------------------------------------------------


def matrix_product() -> dict[str, Any]:
    """Return the result of jobs.doctor.matrix_product with this Python, or its error."""
    command = [sys.executable, "-m", "jobs.doctor.matrix_product"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PRODUCT_WITHIN_S, check=False)
        found: dict[str, Any] = parse_json(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError) as error:
        return {"error": redact(str(error))}
    except (IndexError, ValueError):
        last = done.stderr.strip().splitlines()[-1:] or [f"it ended with exit code {done.returncode}"]
        return {"error": redact(last[0])}
    return found


def gpus() -> list[dict[str, str]] | None:
    """Return the fields of nvidia-smi for each visible GPU; None if nvidia-smi is missing or fails."""
    found = nvidia_smi("--query-gpu", GPU_FIELDS)
    if found is None:
        return None
    # GPUs before the A100 retire pages, later ones remap rows; the other query yields N/A.
    rows = nvidia_smi("--query-remapped-rows", ROW_FIELDS) or []
    return [gpu | (rows[i] if i < len(rows) else {}) for i, gpu in enumerate(found)]


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""The tiny server as a replica over nodes: its first node serves when all others are connected, the others only wait.

A stand-in for vLLM's processes on several nodes: it meets as they do, at a port of the first node, and ends with any of
them. `python spanning_server.py HOST PORT --stages=P --nodes=N --node-rank=R --head=ADDRESS --head-port=PORT`, and
`--headless` on all nodes but the first. With `--breaks` an error of another node ends the first one with an error of
its own and exit code 0, as vLLM's.
"""

from __future__ import annotations

import argparse
import os
import runpy
import socket
import sys
import threading
import time
from pathlib import Path

WITHIN_S = 60.0
ERROR = "The size of tensor a (128) must match the size of tensor b (256) at non-singleton dimension 1"
TRACEBACK = "Traceback (most recent call last):"
WARNING = "resource_tracker: UserWarning: There appear to be 2 leaked semaphore objects to clean up at shutdown"


def main() -> None:
    """Serve on the first node; wait on another one until the first has ended."""
    print("spanning server starts:", *sys.argv[1:], flush=True)
    parser = argparse.ArgumentParser()
    for name in ("host", "port"):
        parser.add_argument(name)
    for name in ("--stages", "--nodes", "--node-rank", "--head-port"):
        parser.add_argument(name, type=int, default=1)
    parser.add_argument("--head")
    for name in ("--headless", "--breaks"):
        parser.add_argument(name, action="store_true")
    given = parser.parse_args()
    if given.headless:
        follow(given.head, given.head_port, breaks=given.breaks)
        return
    if given.nodes > 1:
        # On all addresses, as torch's store.
        with socket.create_server(("", given.head_port)) as door:
            door.settimeout(WITHIN_S)
            for part in [door.accept()[0] for _ in range(given.nodes - 1)]:
                part.settimeout(None)
                threading.Thread(target=end_with, args=[part, 0 if given.breaks else 1], daemon=True).start()
    sys.argv[3:] = []
    runpy.run_path(str(Path(__file__).parents[2] / "jobs/work/serve/stand_in/server.py"), run_name="__main__")


def follow(head: str, port: int, *, breaks: bool) -> None:
    """Connect with the first node, and return when it has ended; or break, and hang as vLLM's workers do."""
    deadline = time.monotonic() + WITHIN_S
    while True:
        try:
            with socket.create_connection((head, port)) as connection:
                if breaks:
                    print(f"{TRACEBACK}\nRuntimeError: {ERROR}", flush=True)
                else:
                    connection.recv(1)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            time.sleep(600 if breaks else 0)
            return


def end_with(part: socket.socket, code: int) -> None:
    """End this process when another one has ended."""
    part.recv(1)
    print("a node of the replica has ended" if code else f"{TRACEBACK}\nKeyError: 'request-7'\n{WARNING}", flush=True)
    os._exit(code)


if __name__ == "__main__":
    main()

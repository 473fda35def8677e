"""Ports of a serving run: a stranger who takes one, drips bytes into one, or sends what no rank sends."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from jobs.failures import KnownCauseError
from jobs.serving.link import LONGEST_MESSAGE, Link
from jobs.serving.piece import Piece
from jobs.serving.ports import is_answered_by, reserved_port, url_of
from jobs.serving.probe import fetched, is_healthy
from jobs.serving.replica import answers
from jobs.visitors import first_line, hear
from jobs.workloads.serve import hello_of
from tests.red_team.conftest import Stranger
from tests.support.waiting import limit_s, wait_until

pytestmark = pytest.mark.red_team

# A server of anybody: it answers every path with status 200.
SERVER = (
    "import sys, time; time.sleep(float(sys.argv[3]))\n"
    "from http.server import BaseHTTPRequestHandler, HTTPServer\n"
    "class Handler(BaseHTTPRequestHandler):\n"
    "    def do_GET(self): self.send_response(200); self.send_header('Content-Length', '0'); self.end_headers()\n"
    "    def log_message(self, *arguments): pass\n"
    "class Server(HTTPServer):\n"
    "    address_family = 10 if ':' in sys.argv[1] else 2\n"
    "Server((sys.argv[1], int(sys.argv[2])), Handler).serve_forever()"
)


def command(host: str, port: int, after_s: float = 0) -> list[str]:
    return [sys.executable, "-c", SERVER, host, str(port), str(after_s)]


@contextmanager
def own(where: Path, host: str, port: int, after_s: float = 0) -> Iterator[Piece]:
    """A server as a rank starts it."""
    piece = Piece("replica 0", command(host, port, after_s), where / "replica.log", {}, "")
    try:
        yield piece
    finally:
        piece.end()


def test_a_port_that_another_user_takes_while_the_server_starts_does_not_answer_for_it(
    tmp_path: Path, stranger: Stranger
) -> None:
    for host, taken in (("127.0.0.1", "127.0.0.1"), ("127.0.0.1", "0.0.0.0")):
        with reserved_port(host) as port, own(tmp_path, host, port, after_s=600) as piece:
            url = url_of(host, port)
            assert not answers(piece, url, "/health")
            thief = ["/usr/bin/env", "python3", "-c", SERVER, taken, str(port), "0"]
            with subprocess.Popen(thief, user=stranger.name, group=stranger.name, extra_groups=[], cwd="/") as process:
                wait_until(partial(is_healthy, url, "/health", 1), 30)
                with pytest.raises(KnownCauseError, match=f"another program on .* has taken port {port} at 127.0.0.1"):
                    answers(piece, url, "/health")
                process.kill()


@pytest.mark.parametrize(
    ("host", "bound"),
    [("127.0.0.1", "127.0.0.1"), ("127.0.0.1", "0.0.0.0"), ("::1", "::1"), ("::1", "::"), ("127.0.0.1", "::")],
)
def test_the_own_server_answers_at_its_port_whatever_address_it_binds(tmp_path: Path, host: str, bound: str) -> None:
    with reserved_port(bound) as port, own(tmp_path, bound, port) as piece:
        wait_until(lambda: answers(piece, url_of(host, port), "/health"), 30)
        with own(tmp_path, bound, 0) as other:
            assert is_answered_by(other.process.pid, host, port) is False, "another program of the same user"


def test_a_child_of_the_server_that_leaves_its_session_is_still_its_own(tmp_path: Path) -> None:
    with reserved_port("127.0.0.1") as port:
        child = f"import subprocess, sys; subprocess.run({command('127.0.0.1', port)!r}, start_new_session=True)"
        piece = Piece("replica 0", [sys.executable, "-c", child], tmp_path / "log", {}, "")
        try:
            wait_until(lambda: answers(piece, url_of("127.0.0.1", port), "/health"), 30)
        finally:
            inner = Path(f"/proc/{piece.process.pid}/task/{piece.process.pid}/children").read_text().split()
            piece.end()
            for pid in inner:
                subprocess.run(["/bin/kill", "-9", pid], check=False)


def test_a_server_that_ends_while_it_is_looked_at_is_not_taken_for_another_program() -> None:
    with reserved_port("127.0.0.1") as port:
        program = (
            "import socket, sys\n"
            "with socket.socket() as door:\n"
            "    door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n"
            f"    door.bind(('127.0.0.1', {port})); door.listen(); print('listens', flush=True); sys.stdin.read()\n"
        )
        for _ in range(20):
            with subprocess.Popen(
                [sys.executable, "-S", "-c", program],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
            ) as server:  # fmt: skip
                assert server.stdin is not None
                assert server.stdout is not None
                assert server.stdout.readline() == b"listens\n"
                server.stdin.close()
                while server.poll() is None:
                    assert is_answered_by(server.pid, "127.0.0.1", port) in {True, None}


# --- first lines -------------------------------------------------------------------------------------------------

TOKEN = "a" * 32
HELLO = {"token": TOKEN, "rank": 1, "node": "node02", "boot": "id"}
STRANGE: dict[str, bytes] = {
    "nothing": b"\n",
    "brackets": b"[" * 4000 + b"\n",
    "objects": b'{"a":' * 800 + b"\n",
    "noise": b"\xff\x00\xfe" * 9 + b"\n",
    "a long line": b"x" * 100_000,
    "a list": b"[1]\n",
    "a number": b"1e999\n",
    "a long number": b"9" * 4000 + b"\n",
    "no token": json.dumps(HELLO | {"token": None}).encode() + b"\n",
    "an odd token": json.dumps(HELLO | {"token": ["\u00e9", 1]}).encode() + b"\n",
    "a surrogate": b'{"token": "\\ud800"}\n',
    "the beginning of the token": json.dumps(HELLO | {"token": TOKEN[:-1]}).encode() + b"\n",
    "rank 0": json.dumps(HELLO | {"rank": 0}).encode() + b"\n",
    "a rank beyond": json.dumps(HELLO | {"rank": 4}).encode() + b"\n",
    "no rank": json.dumps({"token": TOKEN}).encode() + b"\n",
    "an endless rank": json.dumps(HELLO).replace("1,", "1e999,", 1).encode() + b"\n",
    "a rank of lists": json.dumps(HELLO | {"rank": [1]}).encode() + b"\n",
    "half a line": json.dumps(HELLO).encode()[:20],
    "HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a pickle": b"cos\nsystem\n(S'true'\ntR.",
}


def test_strangers_at_the_port_of_rank_0_neither_end_the_meeting_nor_make_a_rank_wait() -> None:
    met: list[int] = []

    def meet(visitor: socket.socket) -> None:
        met.append(hello_of(visitor, TOKEN, 4).rank)
        visitor.close()

    with socket.create_server(("127.0.0.1", 0)) as door:
        hear(door, meet)
        strangers = [socket.create_connection(door.getsockname()) for _ in range(len(STRANGE) + 20)]
        for line, sent in zip(strangers, STRANGE.values(), strict=False):
            with suppress(OSError):  # the answer may be the end of the connection
                line.sendall(sent)
        with socket.create_connection(door.getsockname()) as rank:
            rank.sendall(json.dumps(HELLO).encode() + b"\n")
            wait_until(lambda: bool(met), 30)
        for line in strangers:
            line.close()
    assert met == [1]


def dripping(send: Callable[[socket.socket], None]) -> socket.socket:
    """Return a connection whose other side sends a byte now and then, for as long as it may."""
    near, far = socket.socketpair()

    def drip() -> None:
        with suppress(OSError), far:
            while True:
                send(far)
                time.sleep(0.05)

    threading.Thread(target=drip, daemon=True).start()
    return near


def test_a_line_that_drips_in_ends_at_its_deadline() -> None:
    with dripping(lambda far: far.sendall(b"x")) as line:
        began = time.monotonic()
        assert first_line(line, 4096, 0.3) == b""
        assert time.monotonic() - began < limit_s(10)


def test_bytes_behind_the_first_line_stay_in_the_connection() -> None:
    near, far = socket.socketpair()
    with near, far:
        far.sendall(b"one\ntwo\n")
        assert (first_line(near, 3, 10), near.recv(9)) == (b"one", b"two\n")
        far.sendall(b"four\n")
        assert first_line(near, 3, 10) == b""


OK = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize("head", [b"", OK, OK + b"\r\n", OK + b"Content-Length: 999\r\n\r\n"])
def test_a_server_that_drips_does_not_hold_a_probe_beyond_its_limit(head: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:

        def serve() -> None:
            line, _ = door.accept()
            with suppress(OSError), line:
                line.sendall(head)
                while True:
                    line.sendall(b"X")
                    time.sleep(0.05)

        threading.Thread(target=serve, daemon=True).start()
        began = time.monotonic()
        assert fetched(url_of("127.0.0.1", door.getsockname()[1]), "/health", 0.5) is None
        assert time.monotonic() - began < limit_s(10)


@pytest.mark.parametrize("sent", [b"x" * (2 * LONGEST_MESSAGE), b"[" * 9000 + b"\n", b"{}{}\n", b'{"a": 1}\n' * 20_000])
def test_a_rank_that_sends_no_messages_is_lost(sent: bytes) -> None:
    near, far = socket.socketpair()
    with near, far:
        link = Link(near, "rank 1")
        threading.Thread(target=lambda: far.sendall(sent), daemon=True).start()
        with pytest.raises(KnownCauseError, match="rank 1 has ended"):
            wait_until(lambda: link.received(60) is None, 30)

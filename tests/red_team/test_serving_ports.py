"""Ports of a serving run: a stranger who takes one, drips bytes into one, or sends what no rank sends."""

from __future__ import annotations

import json
import shlex
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from urllib.error import HTTPError

import psutil
import pytest

from jobs.failure_causes import KnownCauseError
from jobs.plan.compose import compose
from jobs.settings.serving import LoadGenerator
from jobs.visitors import first_line, hear
from jobs.work.program.link import LONGEST_MESSAGE, Link
from jobs.work.program.piece import Piece
from jobs.work.program.ports import is_answered_by, reserved_port, url_of
from jobs.work.program.probe import fetched, is_healthy
from jobs.work.program.ranks import hello_of
from jobs.work.serve.listener import MOST_STARTS, Door, Listener
from jobs.work.serve.load import COMMANDS, client_environment, server_key
from tests.red_team.conftest import Stranger
from tests.support.real_run import make_run, printed
from tests.support.serving import CLIENT, LONG_LOAD, in_the_middle, model_directory, tiny_serving
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
def own(where: Path, host: str, bound: str, after_s: float = 0) -> Iterator[Listener]:
    """A server as a rank starts it."""

    def start(ports: Sequence[int]) -> Piece:
        return Piece("replica 0", command(bound, ports[0], after_s), where / "replica.log", {}, "")

    with ExitStack() as stack:
        yield Listener(stack, [Door(host, bound)], start)


def test_a_port_that_another_user_takes_while_the_server_starts_does_not_answer_for_it(
    tmp_path: Path, stranger: Stranger
) -> None:
    for host, taken in (("127.0.0.1", "127.0.0.1"), ("127.0.0.1", "0.0.0.0")):
        with own(tmp_path, host, host, after_s=600) as server:
            url, (port,) = server.url, server.ports
            assert not server.becomes_ready("/health")
            thief = ["/usr/bin/env", "python3", "-c", SERVER, taken, str(port), "0"]
            with subprocess.Popen(thief, user=stranger.name, group=stranger.name, extra_groups=[], cwd="/") as process:
                wait_until(partial(is_healthy, url, "/health", 1), 30)
                with pytest.raises(KnownCauseError, match=f"another program on .* has taken port {port} at 127.0.0.1"):
                    server.answers("/health")
                assert not server.becomes_ready("/health")
                assert (server.url != url, server.starts) == (True, 2), "it starts again at another port"
                process.kill()


@pytest.mark.parametrize(
    ("host", "bound"),
    [("127.0.0.1", "127.0.0.1"), ("127.0.0.1", "0.0.0.0"), ("::1", "::1"), ("::1", "::"), ("127.0.0.1", "::")],
)
def test_the_own_server_answers_at_its_port_whatever_address_it_binds(tmp_path: Path, host: str, bound: str) -> None:
    with own(tmp_path, host, bound) as server, own(tmp_path, host, bound, after_s=600) as other:
        wait_until(lambda: server.becomes_ready("/health"), 30)
        assert is_answered_by(other.piece.process.pid, host, server.ports[0]) is False, "another program, the same user"
        assert server.starts == 1


@pytest.mark.parametrize(("engine", "door"), [("docker", "127.0.0.1"), ("podman", "0.0.0.0")])
def test_a_container_of_a_daemon_is_refused_with_the_way_that_is_supported(
    tmp_path: Path, engine: str, door: str
) -> None:
    # As docker-proxy and rootlessport do: the port is held by a process outside of the session of the command.
    program = tmp_path / engine
    listens = " ".join(map(shlex.quote, [sys.executable, "-c", SERVER]))
    program.write_text(f'#!/bin/sh\n(setsid {listens} "$1" "$2" 0 & echo $! > {tmp_path}/pid)\nsleep 600\n')
    program.chmod(0o755)

    def start(ports: Sequence[int]) -> Piece:
        return Piece("replica 0", [str(program), door, str(ports[0])], tmp_path / "log", {}, "")

    with ExitStack() as stack:
        server = Listener(stack, [Door("127.0.0.1", door)], start)
        wait_until(partial(is_healthy, server.url, "/health", 1), 30)
        with pytest.raises(
            KnownCauseError, match=r"has taken port .*; a container of docker or podman does not run in "
        ):
            server.becomes_ready("/health")
        assert server.starts == 1, "it would hold each port"
        psutil.Process(int((tmp_path / "pid").read_text())).kill()


class Thief:
    """Takes a port of a program before it listens there, a number of times."""

    def __init__(self, stack: ExitStack, times: int, address: str) -> None:
        self.stack, self.times, self.address = stack, times, address

    def take(self, port: int) -> None:
        if self.times:
            self.times -= 1
            door = socket.create_server((self.address, port))
            self.stack.callback(door.close)


@pytest.mark.parametrize(
    ("times", "door", "address"),
    [(1, 0, "127.0.0.1"), (2, 1, ""), (MOST_STARTS - 1, 0, ""), (MOST_STARTS, 1, "127.0.0.1")],
)
def test_a_program_whose_port_is_taken_starts_at_another_one_and_gives_up_after_a_few(
    tmp_path: Path, times: int, door: int, address: str
) -> None:
    used: list[int] = []
    with ExitStack() as stack:
        thief = Thief(stack, times, address)

        def start(ports: Sequence[int]) -> Piece:
            thief.take(ports[door])
            used.extend(ports)
            return Piece("replica 0", command("127.0.0.1", ports[0]), tmp_path / "log", {}, "")

        server = Listener(stack, [Door("127.0.0.1", "127.0.0.1"), Door("127.0.0.1", "")], start)
        if times == MOST_STARTS:
            with pytest.raises(KnownCauseError, match=r"another program on .* has taken port"):
                wait_until(lambda: server.becomes_ready("/health"), 60)
        else:
            wait_until(lambda: server.becomes_ready("/health"), 60)
        assert server.starts == min(times + 1, MOST_STARTS)
        assert len(set(used)) == 2 * server.starts, "no port twice"


@pytest.mark.parametrize(
    "line",
    [
        "OSError: [Errno 98] Address already in use",
        "[Errno 98] error while attempting to bind on address ('127.0.0.1', 8000): address already in use",
        "RuntimeError: The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).",
        "torch.distributed.DistNetworkError: EADDRINUSE",
        "nginx: [emerg] bind() to 127.0.0.1:8000 failed (98: Address already in use)",
        "[ALERT] (7) : Binding [h.conf:9] for frontend load: cannot bind socket (Address already in use) for [::1:80]",
        "listen tcp 127.0.0.1:8000: bind: address already in use",
        "ERROR: [Errno 98] Address is already in use",
    ],
)
def test_a_program_that_ends_because_its_port_was_in_use_for_a_moment_starts_again(tmp_path: Path, line: str) -> None:
    with ExitStack() as stack:
        first = [sys.executable, "-S", "-c", f"import sys; print({line!r}); sys.exit(1)"]

        def start(ports: Sequence[int]) -> Piece:
            again = (tmp_path / "log").exists()
            return Piece("r", command("127.0.0.1", ports[0]) if again else first, tmp_path / "log", {}, "")

        server = Listener(stack, [Door("127.0.0.1", "127.0.0.1")], start)
        wait_until(lambda: server.becomes_ready("/health"), 60)
        assert server.starts == 2


def test_a_program_that_ends_for_another_reason_does_not_start_again(tmp_path: Path) -> None:
    with ExitStack() as stack:
        broken = [sys.executable, "-S", "-c", "print('device in use'); raise SystemExit(3)"]
        server = Listener(
            stack, [Door("127.0.0.1", "")], lambda _ports: Piece("replica 0", broken, tmp_path / "log", {}, "")
        )
        with pytest.raises(KnownCauseError, match=r"replica 0 on .* exited with code 3"):
            wait_until(lambda: server.becomes_ready("/health"), 30)
        assert server.starts == 1


def test_a_child_of_the_server_that_leaves_its_session_is_still_its_own(tmp_path: Path) -> None:
    with reserved_port("127.0.0.1") as port:
        child = f"import subprocess, sys; subprocess.run({command('127.0.0.1', port)!r}, start_new_session=True)"
        piece = Piece("replica 0", [sys.executable, "-c", child], tmp_path / "log", {}, "")
        try:
            wait_until(lambda: is_answered_by(piece.process.pid, "127.0.0.1", port) is True, 30)
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


# --- API key -----------------------------------------------------------------------------------------------------


def test_each_start_has_an_api_key_that_stands_in_no_file_and_on_no_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(COMMANDS, LoadGenerator.vllm, CLIENT)
    model = model_directory(tmp_path / "model")
    own = tiny_serving(model, "ranks_per_node=2", "serving.client_command=null", *LONG_LOAD)
    run = make_run(tmp_path, *own, small=False)
    keys: set[str] = set()
    lines: list[list[str]] = []
    statuses: list[int] = []

    def look(found: list[psutil.Process]) -> None:
        for server in found:
            keys.add(server.environ()["VLLM_API_KEY"])
            (door,) = (each.laddr for each in server.net_connections() if each.status == psutil.CONN_LISTEN)
            for headers in ({}, {"Authorization": "Bearer None"}):
                request = urllib.request.Request(f"http://127.0.0.1:{door.port}/v1/completions", b"{}", headers)
                with pytest.raises(HTTPError) as refused:
                    urllib.request.urlopen(request)
                statuses.append(refused.value.code)
                refused.value.close()
        for each in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # it has ended, and waits to be reaped
                lines.append(each.cmdline())
        found[0].kill()

    assert in_the_middle(run, look) == [1, 1], printed(run)
    (key,) = keys
    assert (len(key), statuses) == (32, [401] * 4)
    assert not any(key in word for line in lines for word in line)
    assert json.loads((run.serving / "warmup.json").read_text())["failed"] == 0, "the load generator has the key"
    assert not [file for file in tmp_path.rglob("*") if file.is_file() and key.encode() in file.read_bytes()]


def test_a_load_generator_that_takes_a_key_only_on_its_command_line_goes_without_one() -> None:
    for client, variables in (("vllm", {"VLLM_API_KEY": "k"}), ("aiperf", {}), ("ab", {})):
        (point,) = compose(
            ["job=serve", "engine=vllm", f"serving.client={client}", "serving.prompts=1"], multirun=False
        )
        assert server_key(point.run, "k") == variables
        assert ("k" in client_environment(point.run, "k").values()) == bool(variables)


def test_a_load_generator_of_ones_own_may_send_no_key_and_needs_none() -> None:
    own = ["job=serve", "engine=vllm", "serving.prompts=1", "serving.client_command=[my-load,'{url}']"]
    (point,) = compose(own, multirun=False)
    assert server_key(point.run, "k") == {}


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

"""Strangers on the network of a run: who reaches its ports runs no code, takes no rank's place, and meets nobody."""

from __future__ import annotations

import io
import os
import pickle
import secrets
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore, PrefixStore, TCPStore  # type: ignore[attr-defined]  # torch lists not all

from jobs.doctor.node_check import ClockDesk, clock_of
from jobs.rendezvous import Rendezvous, announce, await_file
from jobs.run import main
from jobs.rundir import RunDir
from jobs.runtime.data_pickles import DataUnpickler, Sealed, exchange_data_only
from jobs.runtime.exchange import LARGEST_BYTES, broadcast, gather
from tests.support.paths import ROOT
from tests.support.real_run import FORK, _ended, _print_to, events, losses, make_run, printed
from tests.support.waiting import limit_s, wait_until

pytestmark = pytest.mark.red_team

TWO_RANKS = ("ranks_per_node=2", "parallelism=fsdp_full", "job.steps=3", "job.checkpoint_every_steps=3")
# The ports that earlier versions derived from the id of a job.
PORTS = range(10000, 30000)
WITHIN = timedelta(seconds=20)


class Calls:
    """A value whose pickle calls a function."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.called = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.called


def code(where: Path) -> Calls:
    """A value whose pickle creates a file."""
    return Calls(Path.touch, where)


def srun_rank(directory: Path, rank: int, job_id: int, restart: int) -> None:
    """A rank as srun starts it on a node that is called localhost."""
    _print_to(directory / f"rank{rank}.log")
    os.environ.update(SLURM_PROCID=str(rank), SLURM_NTASKS="2", SLURM_LOCALID=str(rank), SLURM_STEP_ID="0",
                      SLURM_JOB_ID=str(job_id), SLURM_JOB_NODELIST="localhost", SLURM_STEP_NODELIST="localhost",
                      SLURM_RESTART_COUNT=str(restart))  # fmt: skip
    main(str(directory))


def start(run: RunDir, rank: int, *, job_id: int, restart: int = 0) -> BaseProcess:
    process = FORK.Process(target=srun_rank, args=(run.path, rank, job_id, restart))
    process.start()
    return process


def finished(run: RunDir, ranks: list[BaseProcess]) -> None:
    codes = [_ended(process, run.path / f"rank{rank}.log", 120) for rank, process in enumerate(ranks)]
    assert codes == [0, 0], printed(run)
    assert events(run, "finished")
    assert not list(run.path.glob("*rendezvous*")), "the token is not needed any more"


@contextmanager
def listening(port: int) -> Iterator[socket.socket]:
    """A stranger who waits at a port for whoever comes."""
    with socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True) as stranger:
        stranger.setblocking(False)
        yield stranger


def nobody_came(stranger: socket.socket) -> bool:
    with suppress(BlockingIOError):
        stranger.accept()
        return False
    return True


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of a run that nobody disturbs."""
    run = make_run(tmp_path_factory.mktemp("quiet"), *TWO_RANKS)
    finished(run, [start(run, rank, job_id=1) for rank in range(2)])
    return losses(run)


@pytest.mark.slow
def test_a_stranger_at_the_port_of_a_job_meets_nobody_and_jobs_with_equal_ports_do_not_meet(
    tmp_path: Path, quiet: list[float]
) -> None:
    job_id = 100_000 + os.getpid() % 10_000
    port = PORTS[job_id % len(PORTS)]
    # The same port by the old arithmetic, at the same time.
    runs = {job_id: make_run(tmp_path / "a", *TWO_RANKS), job_id + len(PORTS): make_run(tmp_path / "b", *TWO_RANKS)}
    # The file of the start before, which died with its port taken by the stranger since.
    announce(next(iter(runs.values())).rendezvous(f"{job_id}.0-0"), "localhost", port)
    with listening(port) as stranger:
        ranks = {
            number: [start(run, rank, job_id=number, restart=1) for rank in range(2)] for number, run in runs.items()
        }
        for number, run in runs.items():
            run.rendezvous(f"{number}.0-0").unlink(missing_ok=True)
            finished(run, ranks[number])
            assert losses(run) == quiet
        assert nobody_came(stranger)


def garbage(place: Rendezvous) -> Iterator[socket.socket]:
    """Connections that send noise, half a request, a request for all memory, or nothing."""
    valid = bytes([0]) + struct.pack("=I", 0x3C85F7CE)  # as torch's store begins
    for data in (
        b"\xff" * 4096,
        secrets.token_bytes(65536),
        valid + bytes([1]) + struct.pack("=Q", 3) + b"a",
        valid + bytes([1]) + struct.pack("=Q", 2**62),
        valid + secrets.token_bytes(4096),
        b"",
    ) * 8:
        line = socket.create_connection((place.address, place.port), timeout=5)
        with suppress(OSError):
            line.sendall(data)
        yield line


@pytest.mark.slow
def test_noise_at_the_port_of_rank_0_does_not_change_a_run(tmp_path: Path, quiet: list[float]) -> None:
    run = make_run(tmp_path, *TWO_RANKS)
    first = start(run, 0, job_id=7)
    file = run.rendezvous("7.0-0")
    place = await_file(file, limit_s(60))
    assert file.stat().st_mode & 0o777 == 0o600
    with ExitStack() as open_lines:
        for line in garbage(place):
            open_lines.enter_context(line)
        finished(run, [first, start(run, 1, job_id=7)])
    assert losses(run) == quiet


def keys_of(place: Rendezvous) -> tuple[TCPStore, list[str]]:
    """The keys that a stranger who found the port reads in the store."""
    store = TCPStore(place.address, place.port, is_master=False, wait_for_workers=False, timeout=WITHIN)
    wait_until(store.list_keys)
    return store, store.list_keys()


def take_place_of_rank_1(run: Path, mark: Path) -> None:
    """A stranger who knows the program and the port, but not the file: joins first, and sends a pickle."""
    _print_to(run / "stranger.log")
    place = await_file(RunDir(run).rendezvous("8.0-0"), 60)  # only to know the port, which can be guessed
    store, keys = keys_of(place)
    assert not any(place.token in key for key in keys)
    joined = PrefixStore(keys[0].split("/")[0], store)
    dist.init_process_group("gloo", store=joined, rank=1, world_size=2, timeout=WITHIN)
    gather(secrets.token_hex(16))
    gather("a proof")
    with suppress(RuntimeError):
        dist.all_gather_object([None, None], code(mark))


@pytest.mark.slow
def test_a_stranger_in_the_place_of_a_rank_is_refused_and_its_pickle_creates_nothing(tmp_path: Path) -> None:
    run, mark = make_run(tmp_path, *TWO_RANKS), tmp_path / "made by the stranger"
    stranger = FORK.Process(target=take_place_of_rank_1, args=(run.path, mark))
    stranger.start()
    assert _ended(start(run, 0, job_id=8), run.path / "rank0.log", 120) == 1
    stranger.join(limit_s(60))
    stranger.kill()
    (failure,) = events(run, "failed")
    assert "Who answers as rank 1 is not of this run" in str(failure["error"]), printed(run)
    assert failure["cause"] == "lost_peer", "another start may succeed"
    assert not mark.exists()


# --- what ranks send each other -------------------------------------------------------------------------------


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of this process, which receives what it sends."""
    before = dist.distributed_c10d._pickler, dist.distributed_c10d._unpickler
    exchange_data_only(b"key")
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    dist.distributed_c10d._pickler, dist.distributed_c10d._unpickler = before


@pytest.mark.usefixtures("alone")
def test_object_collectives_of_libraries_construct_nothing_but_data(tmp_path: Path) -> None:
    mark, received = tmp_path / "mark", [None]
    for sent in (code(mark), {"in": [code(mark)]}):
        with pytest.raises(pickle.UnpicklingError, match=r"names pathlib\S*\.Path.touch|getattr, which is no data"):
            dist.all_gather_object(received, sent)
    assert not mark.exists()
    kept = {
        "error": OSError(28, "full"),
        "values": (1, None, slice(3), torch.Size([2]), torch.float16, torch.strided),
        "tensors": [torch.arange(3), torch.zeros(2, dtype=torch.bfloat16), torch.empty(2, device="meta"),
                    torch.nn.Parameter(torch.ones(1))],
        "path": tmp_path,
    }  # fmt: skip
    dist.all_gather_object(received, kept)
    assert str(received[0]) == str(kept)
    # The values of a tensor are a pickle within the pickle.
    inner = io.BytesIO()
    torch.save(code(mark), inner, _use_new_zipfile_serialization=False)
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        dist.all_gather_object(received, Calls(torch.storage._load_from_bytes, inner.getvalue()))
    assert not mark.exists()


# Each index of a pickle is an entry of a table in the memory of the unpickler in C.
INDEX = pickle.NONE + pickle.LONG_BINPUT + struct.pack("<I", 2**31) + pickle.STOP


@pytest.mark.parametrize("sent", [pickle.dumps("data"), b"", b"x" * 32, b"x" * 32 + INDEX, INDEX])
def test_an_object_that_no_rank_of_the_start_has_sent_is_not_unpickled(sent: bytes) -> None:
    # The message of a start before, and of another run, has the code of another key.
    old = io.BytesIO()
    Sealed(b"token of an earlier start", old).dump("data")
    for received in (sent, old.getvalue(), old.getvalue()[:-1]):
        with pytest.raises(pickle.UnpicklingError, match="no rank of this start has sent"):
            Sealed(b"token", io.BytesIO(received)).load()
    assert Sealed(b"token of an earlier start", io.BytesIO(old.getvalue())).load() == "data"


@pytest.mark.parametrize(
    "name",
    ["os\nsystem", "builtins\neval", "torch\nload", "subprocess\nPopen", "no_such\nmodule",
     "torch.serialization\nload", "functools\npartial",
     "torch.distributed.checkpoint.filesystem\nFileSystemWriter"],
)  # fmt: skip
def test_a_pickle_that_names_a_function_is_refused(name: str) -> None:
    with pytest.raises(pickle.UnpicklingError, match="which is no data"):
        DataUnpickler(io.BytesIO(f"c{name}\n.".encode())).load()


@pytest.mark.usefixtures("alone")
def test_ranks_exchange_values_of_bounded_size() -> None:
    assert gather({"a": [1, None, "ü"]}) == [{"a": [1, None, "ü"]}]
    assert broadcast(["x"]) == ["x"]
    with pytest.raises(ValueError, match="ranks exchange 1 to 1048576"):
        gather("x" * LARGEST_BYTES)


# --- the doctor -----------------------------------------------------------------------------------------------


def test_the_doctor_answers_its_own_nodes_only(tmp_path: Path) -> None:
    desk = ClockDesk("127.0.0.1", tmp_path / "desk.json")
    assert desk.error is None
    place = await_file(tmp_path / "desk.json", 0)
    for guest in (b"a stranger\n?\n", b"x" * 100_000, b"\xff\n?\n"):
        with socket.create_connection((place.address, place.port), timeout=limit_s(30)) as line, suppress(OSError):
            line.sendall(guest)
            assert line.recv(1) == b""
    assert abs(clock_of(place, "node02")["ahead_s"]) < 1


def test_the_doctor_answers_after_strangers_have_taken_all_its_connections(tmp_path: Path) -> None:
    body = (
        "import pathlib, resource, sys; from jobs.doctor.node_check import ClockDesk\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))\n"
        "ClockDesk('127.0.0.1', pathlib.Path(sys.argv[1])); sys.stdin.read()\n"
    )
    file = tmp_path / "desk.json"
    with subprocess.Popen([sys.executable, "-c", body, file], cwd=ROOT, stdin=subprocess.PIPE) as desk:
        place = await_file(file, limit_s(60))
        with ExitStack() as strangers:
            for _ in range(60):
                strangers.enter_context(socket.create_connection((place.address, place.port), timeout=limit_s(30)))
            # Those beyond its descriptors wait in the queue of the port.
            wait_until(lambda: len(list(Path(f"/proc/{desk.pid}/fd").iterdir())) >= 40)
        assert abs(clock_of(place, "node02")["ahead_s"]) < 60
        desk.communicate()

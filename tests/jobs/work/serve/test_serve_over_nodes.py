"""Replicas over several nodes: plans, refusals, vLLM's commands, and real processes of a stand-in server."""

from __future__ import annotations

import json
import socket
import threading
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from analysis.load.run_directory import read_run
from jobs import metrics as m
from jobs.cli import main
from jobs.lease import Lease
from jobs.plan.compose import compose
from jobs.plan.table import plan_notes
from jobs.ranks import Rank
from jobs.rundir import RunDir, read_records
from jobs.schema import Run
from jobs.work.program.ports import own_address, reserved_port
from jobs.work.serve.replica import Head, Seat, command_of, gpus_of
from jobs.work.serve.rules import kv_tokens
from tests.support.cli import printed_words
from tests.support.real_run import events, make_run, printed, train
from tests.support.serving import (
    LONG_LOAD,
    SPANNING,
    failures,
    in_the_middle,
    listed,
    model_directory,
    servers,
    tiny_serving,
)
from tests.support.spanning_server import ERROR
from tests.support.waiting import wait_until

H100 = ("job=serve", "engine=vllm", "cluster=xe9680_h100", "parallelism=tp_pp", "parallelism.tensor=8")
SPANNED = (f"engine.server.command={listed(SPANNING)}", "parallelism=pp", "nodes=2", "ranks_per_node=1")


def planned(*overrides: str) -> Run:
    (point,) = compose([*H100, *overrides], multirun=False)
    return point.run


# --- planned and refused -----------------------------------------------------------------------------------------


def test_a_plan_divides_weights_and_kv_cache_over_tensor_and_pipeline() -> None:
    run = planned("model=llama31_405b", "nodes=4")
    tokens = kv_tokens(run)
    assert tokens is not None
    # Of 0.9 x 80 GiB: a sixteenth of 811.7 GB of weights, and of 63 layers 1 head x 128 of keys and values in 2 bytes.
    most = (0.9 * 80 * 2**30 - 811.7e9 / 16) / (2 * 63 * 128 * 2)
    assert 0.85 * most < tokens < most, "embeddings are on one stage, and working memory takes some"
    notes = " ".join(plan_notes([run]))
    assert (
        "2 of parallelism.tensor=8 x parallelism.pipeline=2 = 16 ranks on 2 nodes each (0..1, 2..3); the first "
        "node of each serves HTTP" in notes
    )
    assert f"predicted {tokens:,} tokens per replica" in notes
    assert "2 x as many in all" in notes


def test_a_plan_draws_a_replica_and_its_layers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *H100, "model=llama31_405b", "nodes=4"]) == 0
    words = printed_words(capsys)
    assert "Each replica: Mesh: 16 ranks = pp 2 x tp 8, on 2 nodes" in words
    assert "pp 1 ranks 8..15 node 1 layers 63..125" in words


def test_a_pipeline_within_a_node_takes_no_second_node() -> None:
    run = planned("model=llama2_70b", "nodes=2", "parallelism.tensor=2", "parallelism.pipeline=2")
    assert "4 of parallelism.tensor=2 x parallelism.pipeline=2 = 4 ranks within a node" in " ".join(plan_notes([run]))


# --- commands ----------------------------------------------------------------------------------------------------


def seat_of(run: Run, where: Path, rank: int) -> Seat:
    of_node = Rank(rank, run.ranks, rank % run.ranks_per_node, "10.0.0.1", "start")
    return Seat(run, Lease(RunDir(where)), of_node, "10.0.0.3", ExitStack(), "key")


def test_vllm_is_started_on_each_node_of_a_replica(tmp_path: Path) -> None:
    run = planned("model=llama31_405b", "nodes=4", f"job.init_from={tmp_path}")
    head = Head(1, "10.0.0.3", 29)
    first, second = (command_of(seat_of(run, tmp_path, rank), head, {"host": "h", "port": 1}) for rank in (16, 24))
    assert first[9:13] == ["--tensor-parallel-size", "8", "--pipeline-parallel-size", "2"]
    assert first[-4:] == ["--nnodes=2", "--node-rank=0", "--master-addr=10.0.0.3", "--master-port=29"]
    assert second[-5:] == ["--nnodes=2", "--node-rank=1", "--master-addr=10.0.0.3", "--master-port=29", "--headless"]
    assert first[1:5] == ["-m", "vllm.entrypoints.cli.main", "serve", str(tmp_path)]


def test_vllm_on_one_node_gets_no_option_of_several(tmp_path: Path) -> None:
    run = planned("model=llama2_70b", "parallelism.pipeline=1", f"job.init_from={tmp_path}")
    command = command_of(seat_of(run, tmp_path, 0), None, {"host": "h", "port": 1})
    assert command[-1] == "--gpu-memory-utilization=0.9"
    (unset,) = compose([*H100, "parallelism.pipeline=1", "model=llama2_70b", f"job.init_from={tmp_path}",
                        "engine.server.memory_fraction=null"], multirun=False)  # fmt: skip
    assert not any("None" in word for word in command_of(seat_of(unset.run, tmp_path, 0), None, {"host": 1, "port": 1}))


def test_a_replica_over_nodes_gets_all_gpus_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    run = planned("model=llama31_405b", "nodes=2")
    assert list(gpus_of(run, Rank(8, 16, 0, "a", "s")).values()) == ["0,1,2,3,4,5,6,7"]


# --- real processes ----------------------------------------------------------------------------------------------


def test_a_port_that_is_reserved_on_all_addresses_is_free_for_its_server() -> None:
    with (
        reserved_port("") as port,
        socket.create_server(("", port)) as door,
        socket.create_connection(("127.0.0.1", port)) as connection,
        door.accept()[0] as accepted,
    ):
        assert own_address(connection) == own_address(accepted) == "127.0.0.1"


def spanned(where: Path, *overrides: str) -> RunDir:
    return make_run(where, *tiny_serving(model_directory(where / "model"), *SPANNED, *overrides), small=False)


def test_a_replica_over_two_nodes_serves_from_the_first_and_a_lost_node_of_it_is_named(tmp_path: Path) -> None:
    run = spanned(tmp_path, *LONG_LOAD)

    def kill_the_second_node(found: list[psutil.Process]) -> None:
        (part,) = [each for each in found if "--headless" in each.cmdline()]
        part.kill()

    assert in_the_middle(run, kill_the_second_node) == [1, 1], printed(run)
    errors = failures(run)
    assert any(
        error.startswith(f"replica 0, node rank 1 on {socket.gethostname()} was ended by SIGKILL; the last line of "
                         "replica-0-node-1.log: spanning server starts")
        for error in errors
    ), errors  # fmt: skip
    logs = [(run.serving / name).read_text() for name in ("replica-0.log", "replica-0-node-1.log")]
    assert "--stages=2 --nodes=2 --node-rank=0" in logs[0]
    assert "stand-in server starts" in logs[0]
    assert "stand-in server starts" not in logs[1]
    assert json.loads((run.serving / "warmup.json").read_text())["failed"] == 0, "the replica has answered before"
    for node in range(2):
        _, *before, last = read_records(run.storage_log(f"rank-{node:05d}"))
        assert {record["phase"] for record in before} >= {"load"}
        assert (last["node_number"], last["phase"]) == (node, "serve"), "the load was under way"
        assert last["node_cpu_s"] > 0


# The first node's server waits, at its first start, until somebody has taken a port of it.
HELD = 'case "$*" in *--headless*) ;; *) if mkdir "$0"; then until [ -e "$0/taken" ]; do sleep 0.05; done; fi ;; esac'


@pytest.mark.parametrize("which", ["port", "head port"])
def test_a_replica_over_nodes_whose_port_is_taken_while_it_starts_meets_at_another_one(
    tmp_path: Path, which: str
) -> None:
    held = ["sh", "-c", f'{HELD}; exec "$@"', str(tmp_path / "held"), *SPANNING]
    run = spanned(tmp_path, f"engine.server.command={listed(held)}", "serving.requests=4")
    with ExitStack() as stack:

        def take() -> None:
            wait_until((tmp_path / "held").exists, 120)
            (words,) = [w for each in servers() if "--headless" not in (w := each.cmdline())]
            found = words[words.index(SPANNING[1]) + 2] if which == "port" else words[-1].partition("=")[2]
            stack.enter_context(socket.create_server(("" if which == "head port" else "127.0.0.1", int(found))))
            (tmp_path / "held/taken").touch()

        thread = threading.Thread(target=take)
        thread.start()
        codes = train(run, timeout_s=120)
        thread.join()
    assert codes == [0, 0], printed(run)
    assert [event["server_requests"] for event in events(run, "served")] == [4]
    assert "start 2 of 4" in printed(run)
    assert [(run.serving / f"replica-0{node}.log").read_text().count("spanning server starts")
            for node in ("", "-node-1")] == [2, 2]  # fmt: skip


@pytest.mark.slow
def test_the_error_of_another_node_is_the_cause_where_the_first_node_ends_as_if_it_were_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = spanned(tmp_path, f"engine.server.command={listed([*SPANNING, '--breaks'])}")
    run.plan.write_text("{}")
    run.serving.mkdir()
    # Of an earlier start, which had another cause.
    for log in ("replica-0.log", "replica-0-node-1.log"):
        (run.serving / log).write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n")
    assert train(run) == [1, 1], printed(run)
    (error,) = failures(run)
    line = 1 + (run.serving / "replica-0-node-1.log").read_text().splitlines().index(f"RuntimeError: {ERROR}")
    where = f"replica-0-node-1.log:{line}: RuntimeError: {ERROR}"
    assert error == f"replica 0 on {socket.gethostname()} exited with code 0; the cause is in {where}"
    assert main(["status", str(run.path.parent)]) == 0
    assert where in printed_words(capsys)
    assert main(["report", str(run.path.parent)]) == 0
    page = (run.path.parent / "report.md").read_text()
    assert f"serving/{where}" in page[page.index("## Runs not used") :]


@pytest.mark.long
def test_two_replicas_over_two_nodes_each_share_a_load(tmp_path: Path) -> None:
    run = spanned(tmp_path, "nodes=4")
    assert train(run) == [0] * 4, printed(run)
    (served,) = events(run, "served")
    assert (served["server_requests"], served["largest_replica_share"]) == (40, 0.5)
    run.plan.write_text("{}")
    found = read_run(run.path)
    assert [node.node.split(" (")[0] for node in found.node_use] == ["node 0", "node 1", "node 2", "node 3"]
    assert 0 < found.values[m.NODE_CPU_BUSY] <= 1
    assert sorted(file.name for file in run.serving.glob("replica-*.log")) == [
        "replica-0-node-1.log", "replica-0.log", "replica-1-node-1.log", "replica-1.log",
    ]  # fmt: skip

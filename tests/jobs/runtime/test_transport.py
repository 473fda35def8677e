"""Transports of collectives: NCCL's log, the record of a run, and the warnings."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from analysis.report.leaderboard import records
from analysis.report.leaderboard_text import notes
from jobs.cli import main
from jobs.rundir import RunDir
from jobs.runtime.transport import (
    SOCKETS_ADVICE,
    gloo_transports,
    interfaces,
    listen_to_nccl,
    read_nccl_transports,
    selected,
    send_gloo_as_nccl,
)
from tests.support.campaigns import SLOWER, leaderboard_of, pairs
from tests.support.fake_runs import a_run, event, finished_run
from tests.support.real_run import events, make_run, printed, train

# Two of four ranks on two nodes, as NCCL 2.26 logs them: rank 0 over the network, rank 1 inside the node.
RANK_0 = """\
NCCL version 2.26.2+cuda12.8
node1:700:731 [0] NCCL INFO NET/IB : No device found.
node1:700:731 [0] NCCL INFO NET/Socket : Using [0]hsn0:192.0.2.1<0> [1]bond0:198.51.100.1<0>
node1:700:731 [0] NCCL INFO Using network Socket
node1:700:731 [0] NCCL INFO comm 0x55d0 rank 0 nRanks 4 nNodes 2 localRanks 2 localRank 0 MNNVL 0
node1:700:731 [0] NCCL INFO Channel 00/0 : 3[1] -> 0[0] [receive] via NET/Socket/1
node1:700:731 [0] NCCL INFO Channel 01/0 : 3[1] -> 0[0] [receive] via NET/Socket/0
node1:700:731 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read
"""
RANK_1 = """\
node1:701:732 [1] NCCL INFO Channel 00/0 : 1[1] -> 0[0] via SHM/direct/direct
node1:701:732 [1] NCCL INFO Channel 00/0 : 1[1] -> 2[0] [send] via NET/IB/0(2)/GDRDMA
node1:701:732 [1] NCCL INFO Channel 01/0 : 1[1] -> 2[0] [send] via NET/IB/3/GDRDMA
"""


@pytest.mark.parametrize(
    ("log_text", "ways"),
    [
        (RANK_0, ["NET/Socket", "P2P/CUMEM"]),
        (RANK_1, ["NET/IB/GDRDMA", "SHM"]),
        # On one node NCCL looks for a network, and sends nothing over it.
        ("".join(RANK_0.splitlines(keepends=True)[:5]), []),
    ],
)
def test_what_nccl_logged_is_read_once_whatever_the_device_and_its_file_goes(
    log_text: str, ways: list[str], tmp_path: Path
) -> None:
    log = RunDir(tmp_path).nccl_log(3)
    log.write_text(log_text)
    assert read_nccl_transports(log) == ways
    assert list(tmp_path.iterdir()) == []
    assert read_nccl_transports(log) == []


def test_nccl_is_asked_to_log_into_a_file_of_the_rank_unless_somebody_asked_before(tmp_path: Path) -> None:
    log = RunDir(tmp_path / "50% more").nccl_log(0)
    log.parent.mkdir()
    log.write_text("of an attempt that ended in its first step")
    environment: dict[str, str] = {}
    listen_to_nccl(log, environment)
    assert not log.exists()
    assert environment.keys() == {"NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"}
    assert environment["NCCL_DEBUG_FILE"].endswith("/50%% more/nccl-0.log"), "NCCL reads %m as a name of its own"
    asked = {"NCCL_DEBUG": "WARN"}
    listen_to_nccl(log, asked)
    assert asked == {"NCCL_DEBUG": "WARN"}


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_of_several_ranks_records_once_an_attempt_how_they_talk(ranks: int, tmp_path: Path) -> None:
    run = make_run(tmp_path, "nodes=1", f"ranks_per_node={ranks}", "parallelism=ddp", "job.steps=2")
    assert train(run) == [0] * ranks, printed(run)
    assert [(event["step"], event["ways"]) for event in events(run, "transport")] == [(1, gloo_transports())] * (
        ranks - 1
    )
    (row,) = rows(run.path)
    assert row["transport"] == ("" if ranks == 1 else gloo_transports()[0])
    assert list(run.path.glob("nccl-*")) == []


@pytest.mark.parametrize(
    ("asked", "interface"),
    [
        ("ib0", "ib0"),
        ("ib", "ib0"),
        ("=ib,eth1", "eth1"),
        ("^docker,eth", "ib0"),
        ("eth1:9000,ib", "ib0"),
        ("hsn", None),
    ],
)
def test_gloo_takes_the_interface_that_nccl_would(asked: str, interface: str | None) -> None:
    assert selected(asked, ["lo", "docker0", "eth0", "ib0", "eth1"]) == interface


@pytest.mark.parametrize(("own", "used"), [("", "lo"), ("eth7", "eth7")])
def test_gloo_keeps_an_interface_of_its_own(own: str, used: str) -> None:
    environment = {"NCCL_SOCKET_IFNAME": "=lo", "GLOO_SOCKET_IFNAME": own}
    send_gloo_as_nccl(environment)
    assert environment["GLOO_SOCKET_IFNAME"] == used


def test_ranks_meet_over_the_interface_of_nccl_and_the_plan_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # The last one, since gloo would take the first that has the host name's address.
    name = interfaces()[-1]
    assert main(["plan", f"+cluster.env.NCCL_SOCKET_IFNAME={name}"]) == 0
    assert f"uses the interface of NCCL_SOCKET_IFNAME={name}" in " ".join(capsys.readouterr().out.split())
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", name)
    run = make_run(tmp_path, "ranks_per_node=2", "parallelism=ddp", "job.steps=1")
    assert train(run) == [0, 0], printed(run)
    assert events(run, "transport")[0]["ways"] == [f"TCP over {name}"]


# --- in a report -------------------------------------------------------------------------------------------------


def rows(path: Path) -> list[dict[str, str]]:
    """runs.csv of a report on a path."""
    assert main(["report", str(path)]) == 0
    return list(csv.DictReader((path / "runs.csv").read_text().splitlines()))


def that_sent_by(path: Path, *ways: str, name: str = "run", nodes: int = 2, emulated: bool = False) -> None:
    """A finished run whose collectives travelled by these ways."""
    directory = finished_run(path, a_run(name, nodes=nodes, ranks_per_node=2), emulated_nodes=emulated)
    event(directory, "transport", attempt=1, step=1, ways=list(ways))


def test_a_report_warns_of_tcp_sockets_between_nodes_with_what_to_look_at(tmp_path: Path) -> None:
    that_sent_by(tmp_path, "NET/Socket", "P2P/CUMEM")
    (row,) = rows(tmp_path)
    assert row["transport"] == "NET/Socket, P2P/CUMEM"
    message = f"Between the nodes of 1 run (run) NCCL sent by NET/Socket. {SOCKETS_ADVICE} Run slurmscale doctor"
    assert message in (tmp_path / "report.md").read_text()


@pytest.mark.parametrize(
    ("ways", "facts"),
    [
        (["NET/IB/GDRDMA", "P2P/CUMEM"], {}),
        (["TCP over eth0"], {}),
        (["NET/Socket"], {"emulated": True}),
        (["NET/Socket"], {"nodes": 1}),
        ([], {}),
    ],
)
def test_where_there_is_nothing_better_or_nothing_known_it_does_not_warn(
    ways: Sequence[str], facts: dict[str, Any], tmp_path: Path
) -> None:
    that_sent_by(tmp_path, *ways, **facts)
    assert len(rows(tmp_path)) == 1
    assert "NCCL sent" not in (tmp_path / "report.md").read_text()


@pytest.mark.parametrize("ways", ["NET/Socket", None, 7, {"a": 1}, [["NET/Socket"], None]])
def test_an_event_that_anybody_wrote_does_not_break_a_report(ways: object, tmp_path: Path) -> None:
    directory = finished_run(tmp_path, a_run(nodes=2))
    event(directory, "transport", ways=ways)
    assert len(rows(tmp_path)) == 1


# --- in a leaderboard --------------------------------------------------------------------------------------------


def sent_by(campaign: Path, pattern: str, *ways: str) -> None:
    paths = list(campaign.glob(pattern))
    assert paths
    for path in paths:
        event(RunDir(path), "transport", attempt=1, step=1, ways=list(ways))


def test_an_attempt_whose_collectives_travelled_otherwise_than_the_baselines_is_reported(tmp_path: Path) -> None:
    for name in ("sockets", "again"):
        pairs(tmp_path, name, SLOWER)
    pairs(tmp_path, "older", SLOWER)
    sent_by(tmp_path, "*-baseline-r*", "NET/IB/GDRDMA", "P2P/CUMEM")
    sent_by(tmp_path, "sockets-r*", "NET/Socket", "P2P/CUMEM")
    sent_by(tmp_path, "again-r*", "NET/IB/GDRDMA", "P2P/CUMEM")
    board = leaderboard_of(tmp_path)
    message = "Collectives of the baseline used NET/IB/GDRDMA, P2P/CUMEM; sockets used NET/Socket, P2P/CUMEM."
    assert message in notes(board)
    changed = {record["attempt"]: record["changed_against_baseline"] for record in records(board)}
    assert changed == {
        "sockets": "transport NET/IB/GDRDMA, P2P/CUMEM → NET/Socket, P2P/CUMEM",
        "again": "nothing",
        "older": "nothing",
    }

"""Transports of collectives: NCCL's log, the record of a run, and the warnings."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis.load.discover import read_runs
from analysis.report.leaderboard import records
from analysis.report.leaderboard_text import notes
from analysis.scaling.groups import scaling_groups
from jobs.cli import main
from jobs.frozen import dump_run
from jobs.network import mismatch
from jobs.rundir import RunDir, load_run
from jobs.runtime.transport import (
    SOCKETS_ADVICE,
    gloo_transports,
    interfaces,
    listen_to_nccl,
    read_nccl,
    selected,
    send_gloo_as_nccl,
    use_network,
)
from jobs.schema import Network, Transport
from tests.support.campaigns import SLOWER, leaderboard_of, pairs
from tests.support.composing import one
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
node1:701:732 [1] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB hsn0:192.0.2.1<0>
node1:701:732 [1] NCCL INFO Channel 00/0 : 1[1] -> 0[0] via SHM/direct/direct
node1:701:732 [1] NCCL INFO Channel 00/0 : 1[1] -> 2[0] [send] via NET/IB/0(2)/GDRDMA
node1:701:732 [1] NCCL INFO Channel 01/0 : 1[1] -> 2[0] [send] via NET/IB/3/GDRDMA
"""


@pytest.mark.parametrize(
    ("log_text", "ways", "devices", "versions"),
    [
        (RANK_0, ["NET/Socket", "P2P/CUMEM"], ["bond0", "hsn0"], ["NCCL 2.26.2+cuda12.8"]),
        (RANK_1, ["NET/IB/GDRDMA", "SHM"], ["mlx5_0:1/RoCE", "mlx5_1:1/RoCE"], []),
        # On one node NCCL looks for a network, and sends nothing over it.
        ("".join(RANK_0.splitlines(keepends=True)[:5]), [], ["bond0", "hsn0"], ["NCCL 2.26.2+cuda12.8"]),
    ],
)
def test_what_nccl_logged_is_read_once_whatever_the_device_and_its_file_goes(
    log_text: str, ways: list[str], devices: list[str], versions: list[str], tmp_path: Path
) -> None:
    log = RunDir(tmp_path).nccl_log(3)
    log.write_text(log_text)
    assert read_nccl(log) == (ways, devices, versions)
    assert list(tmp_path.iterdir()) == []
    assert read_nccl(log) == ([], [], [])


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


# --- a network that was asked for --------------------------------------------------------------------------------

ROCE, SOCKET = (["NET/IB/GDRDMA", "P2P/CUMEM"], ["mlx5_0:1/RoCE", "mlx5_1:1/RoCE"]), (["NET/Socket"], ["hsn0"])


@pytest.mark.parametrize(
    ("asked", "found", "refusal"),
    [
        ({"transport": Transport.roce}, ROCE, None),
        ({"transport": Transport.roce}, (["NET/AWS Libfabric"], []), None),
        ({"transport": Transport.roce}, (["P2P/CUMEM", "SHM"], ["hsn0"]), None),
        ({"transport": Transport.tcp, "interface": "hsn0"}, SOCKET, None),
        ({"transport": Transport.tcp, "interface": "eth0"}, (["TCP over eth0"], []), None),
        ({"adapters": ["mlx5_0", "mlx5_1:1"]}, ROCE, None),
        ({"transport": Transport.roce}, SOCKET,
         "transport=roce was asked for, and collectives between nodes use NET/Socket, on hsn0. Check the adapters"),
        ({"transport": Transport.infiniband}, ROCE, "use NET/IB/GDRDMA, on mlx5_0:1/RoCE, on mlx5_1:1/RoCE. Check"),
        ({"transport": Transport.tcp}, ROCE, "Look for a plugin (NCCL_NET_PLUGIN)"),
        ({"transport": Transport.tcp}, (["NET/IB", "NET/Socket"], ["mlx5_0:1/IB"]), "use NET/IB, NET/Socket, on mlx5"),
        ({"adapters": ["mlx5_0"]}, ROCE, "NCCL uses mlx5_0:1, mlx5_1:1: with mlx5_1:1 as well. Set network.adapters"),
        ({"adapters": ["mlx5_0", "mlx5_1", "mlx5_10"]}, ROCE, "without mlx5_10. Set network.adapters to names that"),
        ({"gpu_direct": True}, ROCE, None),
        ({"gpu_direct": True}, (["NET/AWS Libfabric/GDRDMA"], []), None),
        ({"gpu_direct": False}, (["NET/IB"], ["mlx5_0:1/IB"]), None),
        ({"gpu_direct": True}, (["NET/IB", "NET/IB/GDRDMA", "SHM"], ["mlx5_0:1/IB"]),
         "gpu_direct=true was asked for, and collectives between nodes use NET/IB. The memory of GPUs is copied"),
        ({"gpu_direct": True}, SOCKET, "nodes use NET/Socket. The memory of GPUs is copied through the host's: load"),
        ({"interface": "hsn1"}, SOCKET, "network.interface=hsn1 was asked for, and sockets use hsn0. Set"),
        ({"interface": "eth1"}, (["TCP over eth0"], []), "interface=eth1 was asked for, and sockets use eth0. Set"),
    ],
)  # fmt: skip
def test_the_network_that_was_found_is_compared_with_the_one_asked_for(
    asked: dict[str, Any], found: tuple[list[str], list[str]], refusal: str | None
) -> None:
    text = mismatch(Network(**asked), *found)
    assert (text is None) if refusal is None else (text is not None and refusal in text)


def test_ranks_set_the_network_of_their_run_and_record_that_they_used_it(tmp_path: Path) -> None:
    asked = ("network=tcp", "network.interface=lo", "network.env={NCCL_ALGO: Ring}", "network.adapters=[mlx5_0]")
    network = one(*asked, "cluster=xe9680_h100").run.network
    environment = {"NCCL_IB_DISABLE": "0", "KEPT": "as it was"}
    use_network(network, environment)
    assert environment == {
        "KEPT": "as it was", "NCCL_ALGO": "Ring", "NCCL_IB_DISABLE": "1", "NCCL_NET": "Socket",
        "NCCL_IB_HCA": "=mlx5_0", "NCCL_SOCKET_IFNAME": "=lo", "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    run = make_run(tmp_path, "ranks_per_node=2", "job.steps=3", "job.unmeasured_steps=1", *asked[:2])
    run.plan.write_text("{}")
    assert train(run) == [0, 0], printed(run)
    assert events(run, "transport")[0]["ways"] == ["TCP over lo"]
    (row,) = rows(run.path)
    assert (row["network"], row["transport"], row["not_used_because"]) == ("tcp", "TCP over lo", "")


@pytest.mark.parametrize(
    ("network", "refusal"),
    [
        # No plan allows it on CPUs; a GPU that finds no adapter is in the same position after its first step.
        (Network(transport=Transport.roce), "rank 0: network.transport=roce was asked for, and collectives between "),
        (Network(interface="eth77"), "network.interface=eth77: .* has no such interface that is up and has an address"),
        (
            Network(library="/no/libnccl.so.2"),
            "network.library=/no/libnccl.so.2 cannot be loaded on .*: /no/libnccl.so.2",
        ),
    ],
)
def test_a_run_on_another_network_than_asked_for_ends_in_words_and_is_not_compared(
    network: Network, refusal: str, tmp_path: Path
) -> None:
    directory = make_run(tmp_path, "ranks_per_node=2", "job.steps=9")
    directory.plan.write_text("{}")
    directory.config.write_text(dump_run(replace(load_run(directory.config), network=network)))
    assert train(directory) == [1, 1], printed(directory)
    (row,) = rows(directory.path)
    assert row["state"] == "failed"
    assert re.search(refusal, row["not_used_because"])
    assert row["ended_by"] == "configuration_error", "which no launcher starts again"


def test_a_run_from_before_networks_is_compared_with_one_that_asks_for_none(tmp_path: Path) -> None:
    for name in ("old", "new"):
        directory = finished_run(tmp_path, a_run(name, repeat=1 + (name == "new")))
        if name == "old":
            text = directory.config.read_text()
            directory.config.write_text(re.sub(r"^network:\n(?: .*\n)*", "", text, flags=re.MULTILINE))
            assert text != directory.config.read_text()
    (group,) = scaling_groups(read_runs([tmp_path]))
    assert len(group.points[0].runs) == 2


# --- in a report -------------------------------------------------------------------------------------------------


def rows(path: Path) -> list[dict[str, str]]:
    """runs.csv of a report on a path."""
    assert main(["report", str(path)]) == 0
    return list(csv.DictReader((path / "runs.csv").read_text().splitlines()))


def that_sent_by(
    path: Path, *ways: str, nodes: int = 2, emulated: bool = False, asked: Transport | None = None
) -> None:
    """A finished run whose collectives travelled by these ways."""
    run = replace(a_run(nodes=nodes, ranks_per_node=2), network=Network(transport=asked))
    directory = finished_run(path, run, emulated_nodes=emulated)
    if ways:
        event(directory, "transport", attempt=1, step=1, ways=list(ways))


def test_a_report_warns_of_tcp_sockets_between_nodes_with_what_to_look_at(tmp_path: Path) -> None:
    that_sent_by(tmp_path, "NET/Socket", "P2P/CUMEM")
    (row,) = rows(tmp_path)
    assert row["transport"] == "NET/Socket, P2P/CUMEM"
    message = f"Between the nodes of 1 run (run) NCCL sent by NET/Socket. {SOCKETS_ADVICE} Run slurmscale doctor"
    assert message in (tmp_path / "report.md").read_text()


@pytest.mark.parametrize(("ways", "doubted"), [(["NET/IB", "NET/IB/GDRDMA"], True), (["NET/IB/GDRDMA", "SHM"], False)])
def test_a_report_warns_of_adapters_that_do_not_reach_the_memory_of_gpus(
    ways: list[str], doubted: bool, tmp_path: Path
) -> None:
    that_sent_by(tmp_path, *ways)
    assert len(rows(tmp_path)) == 1
    message = (
        "Between the nodes of 1 run (run) NCCL sent by RDMA without GPUDirect, usually at a third of the bandwidth"
    )
    assert (message in (tmp_path / "report.md").read_text()) == doubted


@pytest.mark.parametrize(
    ("ways", "facts"),
    [
        (["NET/IB/GDRDMA", "P2P/CUMEM"], {}),
        (["TCP over eth0"], {}),
        (["NET/Socket"], {"emulated": True}),
        (["NET/Socket"], {"nodes": 1}),
        (["NET/Socket"], {"asked": Transport.tcp}),
        ([], {}),
    ],
)
def test_where_there_is_nothing_better_or_nothing_known_it_does_not_warn(
    ways: Sequence[str], facts: dict[str, Any], tmp_path: Path
) -> None:
    that_sent_by(tmp_path, *ways, **facts)
    assert len(rows(tmp_path)) == 1
    assert "NCCL sent" not in (tmp_path / "report.md").read_text()


def test_a_report_warns_of_a_transport_that_was_asked_for_and_that_nothing_recorded(tmp_path: Path) -> None:
    that_sent_by(tmp_path, asked=Transport.roce)
    assert len(rows(tmp_path)) == 1
    assert "1 run (run) asked for a transport between nodes, and NCCL's log" in (tmp_path / "report.md").read_text()


def test_a_report_warns_of_ranks_on_cores_far_from_their_gpus(tmp_path: Path) -> None:
    finished_run(tmp_path, a_run(nodes=2), far_from_gpu=[1, 3])
    assert len(rows(tmp_path)) == 1
    message = "In 1 run (run) ranks were bound to cores of another NUMA node than their GPU's (2 ranks of run)"
    assert message in (tmp_path / "report.md").read_text()


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

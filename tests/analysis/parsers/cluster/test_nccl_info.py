"""The lines of NCCL_DEBUG=INFO: transports, interfaces, versions, variables, communicators and warnings."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Line, Record, Text
from analysis.parsers.cluster import nccl_info
from analysis.parsers.detect import read_log
from tests.analysis.parsers.reading import SAMPLES, records, texts

NAME = "NCCL INFO"
SAMPLE = SAMPLES / "nccl_info.txt"


def channels(found: list[Record]) -> dict[str, float]:
    return {each.texts[Text.transport]: each.values[a.LINES] for each in found if each.kind is Kind.summary}


def parsed(*lines: str) -> list[Record]:
    return list(nccl_info.parse(Line(number, text) for number, text in enumerate(lines, 1)))


def test_channels_are_counted_by_what_they_go_over() -> None:
    assert channels(records(SAMPLE, NAME)) == {
        "NET/IB/GDRDMA": 3, "P2P/CUMEM": 2, "NET/AWS Libfabric/GDRDMA": 1, "SHM": 2, "P2P/IPC": 1,
    }  # fmt: skip


def test_networks_are_named_without_addresses() -> None:
    settings = [each.texts for each in records(SAMPLE, NAME) if each.kind is Kind.setting]
    assert [each for each in settings if Text.transport in each] == [
        {Text.transport: "Bootstrap", Text.interfaces: "eth0"},
        {Text.transport: "NET/IB", Text.interfaces: "mlx5_0:1/IB mlx5_1:1/RoCE"},
        {Text.transport: "NET/IB"},
        {Text.transport: "NVLS"},
        {Text.transport: "NET/OFI", Text.interfaces: "efa"},
        {Text.transport: "NET/Socket", Text.interfaces: "hsn0 bond0"},
    ]


def test_versions_and_variables_are_one_record_each() -> None:
    found = records(SAMPLE, NAME)
    assert texts(found, Text.library) == [
        "NCCL 2.26.2+cuda12.8", "aws-ofi-nccl 1.13.2-aws", "RCCL 2.22.3-develop:0123abc",
    ]  # fmt: skip
    variables = [each for each in found if Text.environment in each.texts]
    assert [(each.texts[Text.environment], each.values[a.LINES]) for each in variables] == [
        ("NCCL_IB_HCA=mlx5_0:1,mlx5_1:1", 2), ("NCCL_SOCKET_IFNAME=eth0", 1), ("NCCL_IB_TIMEOUT=22", 1),
    ]  # fmt: skip


def test_communicators_have_ranks_nodes_and_what_joining_took() -> None:
    found = [each for each in records(SAMPLE, NAME) if a.COMMUNICATOR_RANKS in each.values]
    assert [(each.kind, each.line, each.values) for each in found] == [
        (
            Kind.setting, 12,
            {a.COMMUNICATOR_RANKS: 4, a.COMMUNICATOR_NODES: 2, a.RANKS_PER_NODE: 2, a.LINES: 1},
        ),
        (Kind.event, 22, {a.COMMUNICATOR_RANKS: 4, a.LINES: 2}),
        (Kind.measurement, 24, {a.COMMUNICATOR_RANKS: 4, a.COMMUNICATOR_SETUP_TIME: 1.28, a.LINES: 1}),
    ]  # fmt: skip


def test_warnings_keep_their_host_and_their_words() -> None:
    warnings = [each for each in records(SAMPLE, NAME) if Text.message in each.texts]
    assert [(each.host, each.values[a.LINES]) for each in warnings] == [("node2", 1), ("node2", 2)]
    assert warnings[0].texts[Text.message].startswith("NET/IB: Got completion from peer")
    assert warnings[1].texts[Text.message] == "Accept failed Resource temporarily unavailable"


@pytest.mark.parametrize(
    "torn",
    [
        "node1:700:731 [0] NCCL INFO Channel 00/0 : 3[1] -> 0[0] [receive] via NET/I",
        "node1:700:731 [0] NCCL INFO Channel 00/0 : 3[1] -> 0[0] via P2P/CUM",
        "node1:700:731 [0] NCCL INFO NCCL_IB_TIMEOUT set by environment to 2",
        "node1:700:731 [0] NCCL INFO ncclCommInitRank comm 0x55d0 rank 0 nranks 4",
        "node1:700:731 [0] NCCL INFO comm 0x55d0 rank 0 nRanks 4 nNodes 2",
        "node1:700:731 [0] NCCL INFO 8 coll channels, 0 collnet channels, 0 nvls channels, 16 p2p channels",
        "node1:700:731 [0] NCCL INFO NET/IB : No device found.",
    ],
)
def test_a_torn_line_or_an_absent_value_gives_no_record(torn: str) -> None:
    assert parsed(torn) == []


def test_a_channel_through_another_gpu_and_a_warning_of_a_plugin_are_read() -> None:
    (channel, warning) = parsed(
        "node1:700:731 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0(1)/GDRDMA",
        "node1:700:731 [0] int create(plugin_t **):352 NCCL WARN NET/OFI initialization failed",
    )
    assert channel.texts == {Text.transport: "NET/IB/GDRDMA"}
    assert (warning.host, warning.texts) == ("node1", {Text.message: "NET/OFI initialization failed"})


def test_ever_different_warnings_take_no_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_info, "MOST_KEPT", 2)
    found = parsed(*(f"n1:1:2 [0] NCCL WARN peer {peer}" for peer in (1, 1, 2, 3, 3, 3)))
    assert [each.values[a.LINES] for each in found] == [2, 1, 3]


def beside(path: Path) -> list[Record]:
    return next(list(found) for each, found in read_log(path) if each.name == NAME)


def test_one_version_and_one_network_are_reported_of_many_ranks() -> None:
    lines = [f"n{rank // 4}:{rank}:{rank} [{rank % 4}] NCCL INFO " for rank in range(8)]
    found = parsed(
        *(f"{line}NCCL version 2.10.3+cuda11.3" for line in lines[:1]),
        *(f"{line}Channel 00 : {rank}[0] -> {(rank + 1) % 8}[0] via P2P/IPC" for rank, line in enumerate(lines)),
        *(
            f"{line}comm 0x55 rank {rank} nranks 8 cudaDev 0 busId 1000 - Init COMPLETE"
            for rank, line in enumerate(lines)
        ),
    )
    assert texts(found, Text.library) == ["NCCL 2.10.3+cuda11.3"]
    assert channels(found) == {"P2P/IPC": 8}
    assert [each.values for each in found if Text.event in each.texts] == [{a.COMMUNICATOR_RANKS: 8, a.LINES: 8}]

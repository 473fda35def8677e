"""The lines of NCCL_DEBUG=INFO: transports, interfaces, versions, variables, communicators and warnings."""

from __future__ import annotations

import pytest

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Line, Record, Text
from analysis.parsers.cluster import nccl_info
from tests.analysis.parsers.reading import texts


def channels(found: list[Record]) -> dict[str, float]:
    return {each.texts[Text.transport]: each.values[a.LINES] for each in found if each.kind is Kind.summary}


def parsed(*lines: str) -> list[Record]:
    return list(nccl_info.parse(Line(number, text) for number, text in enumerate(lines, 1)))


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

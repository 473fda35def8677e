"""sacct's tables: with bars or of fixed width, with any columns, and with truncated cells."""

from __future__ import annotations

import pytest

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Line, Record, Text
from analysis.parsers.cluster import sacct


def parsed(*lines: str) -> list[Record]:
    return list(sacct.parse(Line(number, text) for number, text in enumerate(lines, 1)))


def test_bars_at_the_end_and_raw_columns_are_read() -> None:
    (found,) = parsed("JobIDRaw|State|ElapsedRaw|Reserved|Restarts|", "17.extern|FAILED|93784|1-00:00:07|2|")
    assert found.values == {a.JOB_TIME: 93784, a.WAITING_TIME: 86407, a.RESTARTS: 2}
    assert found.texts == {Text.job_id: "17.extern", Text.state: "FAILED"}


@pytest.mark.parametrize(
    "row",
    [
        "12|FAILED|1:0|00:01",
        "12|FAILED|1:0|00:01:00|node1|more",
        "twelve|FAILED|1:0|00:01:00|node1",
        "12|has failed|1:0|00:01:00|node1",
        "| grep | 1:0 | 2 | node1",
    ],
)
def test_a_torn_or_foreign_row_gives_no_record(row: str) -> None:
    assert parsed("JobID|State|ExitCode|Elapsed|NodeList", row) == []


def test_placeholders_are_absent() -> None:
    (found,) = parsed(
        "JobID|State|ExitCode|Elapsed|Timelimit|MaxRSS|NNodes|Start|NodeList",
        "12_[3-9%2]|PENDING|0:0|INVALID|UNLIMITED|0||Unknown|None assigned",
    )
    assert (found.values, found.texts) == (
        {}, {Text.job_id: "12_[3-9%2]", Text.state: "PENDING", Text.exit_code: "0:0"},
    )  # fmt: skip


@pytest.mark.parametrize("nodes", ["10.1.2.3,10.1.2.4", "gpu[01515,01517-01519]"])
def test_a_host_list_of_addresses_or_with_commas_is_one_text(nodes: str) -> None:
    (found,) = parsed("JobID|JobName|State|ExitCode|NNodes|AllocTRES|NodeList",
                    f"77|lr=1e-4,wd=0|FAILED|255:0|2|billing=4,cpu=448,gres/gpu=16,node=2|{nodes}")  # fmt: skip
    assert found.texts[Text.nodes] == nodes
    assert found.texts[Text.job_name] == "lr=1e-4,wd=0"
    assert found.values == {a.NODES: 2, a.CPUS: 448, a.GPUS: 16}

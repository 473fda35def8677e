"""sacct's tables: with bars or of fixed width, with any columns, and with truncated cells."""

from __future__ import annotations

import pytest

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Line, Record, Text
from analysis.parsers.cluster import sacct
from tests.analysis.parsers.reading import SAMPLES, records

NAME = "sacct"
SAMPLE = SAMPLES / "sacct.txt"


def parsed(*lines: str) -> list[Record]:
    return list(sacct.parse(Line(number, text) for number, text in enumerate(lines, 1)))


def rows(first: int, last: int) -> dict[str, Record]:
    """Return the rows of the sample on these lines, by job."""
    return {each.texts[Text.job_id]: each for each in records(SAMPLE, NAME) if first <= each.line <= last}


def test_a_row_between_bars_is_a_job_or_a_step() -> None:
    found = rows(1, 14)
    assert found["31800"].kind is Kind.job
    assert found["31800"].values == {a.NODES: 2, a.CPUS: 2, a.GPUS: 8, a.JOB_TIME: 3, a.TIME_LIMIT: 1800}
    assert found["31800"].texts == {
        Text.job_id: "31800",
        Text.job_name: "toy-finetune",
        Text.partition: "gpu",
        Text.state: "COMPLETED",
        Text.exit_code: "0:0",
        Text.submitted: "2026-11-22T02:25:34",
        Text.started: "2026-11-22T02:25:35",
        Text.ended: "2026-11-22T02:25:38",
        Text.nodes: "node[01-02]",
    }
    assert found["31800.0"].values == {a.NODES: 2, a.RANKS: 2, a.CPUS: 2, a.GPUS: 8, a.JOB_TIME: 3}
    assert found["31803.batch"].values[a.HOST_MEMORY_PEAK] == 3244 * 1024


def test_jobs_end_in_the_states_of_slurm() -> None:
    states = {job: each.texts[Text.state] for job, each in rows(1, 14).items()}
    assert {job: state for job, state in states.items() if "." not in job} == {
        "31800": "COMPLETED", "31801": "CANCELLED", "31802": "CANCELLED", "31803": "TIMEOUT", "31808": "NODE_FAIL",
    }  # fmt: skip


def test_a_job_that_never_began_has_no_start_and_no_nodes() -> None:
    never = rows(1, 14)["31801"]
    assert {Text.started, Text.nodes}.isdisjoint(never.texts)
    assert never.values == {a.NODES: 1, a.JOB_TIME: 0, a.TIME_LIMIT: 2 * 86400}


def test_of_fixed_width_what_was_cut_is_completed_where_it_can_be() -> None:
    found = rows(15, 31)
    assert len(found) == 14
    assert found["31802"].texts[Text.state] == "CANCELLED"
    assert found["31804_0.batch"].values == {a.CPUS: 1}
    assert found["31800"].texts[Text.job_name] == "toy-finet+"


def test_what_was_cut_is_else_absent() -> None:
    found = rows(32, 99)
    assert Text.state not in found["31800"].texts, "COMPLETED or COMPLETING"
    assert found["31808"].texts == {Text.job_id: "31808", Text.state: "NODE_FAIL"}, "node+ is no node"
    assert found["31808"].values == {a.CPUS: 2, a.JOB_TIME: 5}
    assert found["31808.0"].values == {a.CPUS: 2, a.GPUS: 16, a.JOB_TIME: 6}


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

"""The section of data sets: one row per set, from the account in the plans of its runs."""

from __future__ import annotations

from pathlib import Path

from analysis.load.kinds.evaluate import data_account
from analysis.report.digest import Digest
from analysis.report.sections.data import data_section
from analysis.run import RunResult

ACCOUNT = {
    "data_samples_read": 1000,
    "data_samples_used": 900,
    "data_samples_held_out": 180,
    "data_samples_cut": 3,
    "data_tokens_mean": 448.25,
    "data_tokens_p50": 441.0,
    "data_tokens_p95": 643.0,
    "data_tokens_max": 985,
    "data_padding_share": 0.125,
}


def run(name: str, account: object, **data: str) -> RunResult:
    event = {"event": "started", "data": f"PubMedQA questions of {name}."}
    return RunResult(
        Path(name), {"data": {"name": name, **data}}, {"account": account}, events=(event,),
        values=data_account({"account": account}),
    )  # fmt: skip


def test_runs_of_one_data_set_share_a_row_with_its_account() -> None:
    runs = [run("a", ACCOUNT), run("a", ACCOUNT), run("a", ACCOUNT, prompt="dolly")]
    section = data_section(Digest(runs))
    assert section is not None
    numbers = ["1,000", "900", "180", "3", "448", "441", "643", "985", "12.5"]
    assert section.rows == [
        ["a", *numbers, "PubMedQA questions of a. 2 runs."],
        ["a, dolly", *numbers, "PubMedQA questions of a. 1 run."],
    ]
    assert section.headings[-2] == "Data padding share (%)"


def test_text_of_equal_windows_and_runs_without_an_account_have_no_row() -> None:
    windows = ACCOUNT | {"data_padding_share": 0.0, "data_samples_held_out": 0}
    assert data_section(Digest([run("a", windows), run("b", None), run("c", {"data_samples_used": "many"})])) is None

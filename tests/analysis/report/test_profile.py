"""Profiles in the report: shares by micro-batch size, kernels and collectives; rates without profiled steps."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from analysis.load.discover import read, read_runs
from analysis.report.content import build
from analysis.report.export.data_frames import read_frames
from analysis.report.report import report
from jobs import metrics as m
from tests.support.fake_runs import a_run, ended, event, finished_run, prepared, started, step, with_job

SHARES = dict(zip((metric.name for metric in m.PROFILE_SHARES), (0.5, 0.25, 0.125, 0.0625, 0.0625), strict=True))


def rank_profile(rank: int = 0, **values: Any) -> dict[str, Any]:
    """The entry of a rank in a `profile` event."""
    collective = {"axis": "dp_shard", "collective": "all_gather", "collective_calls": 28,
                  "communication_share": 0.375, "exposed_communication_share": 0.25}  # fmt: skip
    kernels = [{"kernel": f"gemm<{n}>", "kernel_time_s": 0.01 / n, "kernel_calls": 4 * n} for n in (1, 2)]
    known = {"trace": f"profiles/rank-{rank}.json.gz", "steps": [4, 5], "profiled_step_time_s": 0.5,
             "communication_share": 0.375, "kernels": kernels, "collectives": [collective]}  # fmt: skip
    return {"rank": rank, **SHARES, **known, **values}


def a_sweep(path: Path) -> None:
    """Three micro-batch sizes, written in another order, with less exposed communication the larger they are."""
    for micro_batch in (4, 1, 2):
        run = with_job(a_run(f"run-mbs{micro_batch}", parallelism="fsdp_full", ranks_per_node=2),
                       micro_batch_size=micro_batch)  # fmt: skip
        directory = finished_run(path, run)
        exposed = 0.5 / micro_batch
        shares = {m.EXPOSED_COMMUNICATION_SHARE.name: exposed, m.COMPUTE_SHARE.name: 0.75 - exposed,
                  m.COMMUNICATION_SHARE.name: 0.6}  # fmt: skip
        event(directory, "profile", attempt=1, step=5, ranks=[rank_profile(rank, **shares) for rank in (1, 0)])


def test_shares_are_drawn_by_micro_batch_size_and_sum_to_the_step(tmp_path: Path) -> None:
    a_sweep(tmp_path)
    content = build(read([tmp_path]))
    (figure,) = [each for each in content.figures if each.name == "profile"]
    assert figure.plot is not None
    assert figure.caption.startswith("CPU: profiled steps")
    drawn = figure.plot.to_plotly_json()
    assert [text[-5:] for text in drawn["layout"]["yaxis"]["ticktext"]] == ["MBS 4", "MBS 2", "MBS 1"]
    widths = {trace["name"]: list(trace["x"]) for trace in drawn["data"]}
    assert widths["exposed communication"] == pytest.approx([12.5, 25, 50])
    assert [sum(bar) for bar in zip(*widths.values(), strict=True)] == pytest.approx([100] * 3)
    (shares,) = [each for each in content.sections if each.heading == "Profile of a step"]
    assert [row[:3] for row in shares.rows] == [
        [f"run-mbs{n}", str(n), str(rank)] for n in (1, 2, 4) for rank in (0, 1)
    ]
    assert shares.rows[0][-1] == "all_gather over dp_shard 37.5 %, 28 calls"
    (kernels,) = [each for each in content.sections if each.heading == "Kernels by time"]
    assert kernels.rows[0] == ["run-mbs1", "1", "10.00", "2.00", "4", "gemm<1>"]
    assert len(kernels.rows) == 6


def test_csv_and_frames_have_the_values_of_every_profiled_rank(tmp_path: Path) -> None:
    a_sweep(tmp_path)
    page = report([tmp_path], None)
    assert "gemm&lt;1&gt;" in page.read_text()
    rows = list(csv.DictReader((tmp_path / "profile.csv").read_text().splitlines()))
    hidden = [row for row in rows if row["name"] == "run-mbs2" and row["metric"] == "communication_share"]
    assert [(row["rank"], row["item"], row["axis"], float(row["value"])) for row in hidden] == [
        ("0", "", "", 0.6),
        ("0", "all_gather", "dp_shard", 0.375),
        ("1", "", "", 0.6),
        ("1", "all_gather", "dp_shard", 0.375),
    ]
    frame = read_frames([tmp_path]).profile
    assert len(frame) == len(rows)
    assert frame["value"].sum() == pytest.approx(sum(float(row["value"]) for row in rows))
    runs = {row["name"]: row for row in csv.DictReader((tmp_path / "runs.csv").read_text().splitlines())}
    assert float(runs["run-mbs4"]["exposed_communication_share"]) == pytest.approx(0.125)
    assert float(runs["run-mbs4"]["communication_overlap"]) == pytest.approx(1 - 0.125 / 0.6)


def test_rates_exclude_profiled_steps(tmp_path: Path) -> None:
    run = a_run(steps=6)
    directory = prepared(tmp_path, run)
    started(directory, run)
    for number, step_time_s in enumerate((5.0, 5.0, 0.5, 2.0, 2.0, 0.5), start=1):
        profiled = {m.PROFILED.name: 1} if number in {4, 5} else {}
        step(directory, number, step_time_s=step_time_s, tokens=100, **profiled)
    ended(directory, step=6)
    (read_run,) = read_runs([tmp_path])
    assert read_run.steady_steps == 2
    assert read_run.values[m.TOKENS_PER_S] == pytest.approx(200)
    assert read_run.values[m.TOKENS_TRAINED] == 600


def test_a_run_whose_steps_are_all_profiled_is_not_measured(tmp_path: Path) -> None:
    run = a_run(steps=4)
    directory = prepared(tmp_path, run)
    started(directory, run)
    for number in range(1, 5):
        step(directory, number, **{m.PROFILED.name: 1})
    ended(directory, step=4)
    (read_run,) = read_runs([tmp_path])
    assert read_run.state == "unmeasured"
    assert str(read_run.reason).endswith("are not measured, nor are profiled ones")


@pytest.mark.parametrize(
    "record",
    [
        None,
        [],
        rank_profile() | {"rank": "0"},
        rank_profile(host_share=float("nan")),
        rank_profile(compute_share=0.9),
        rank_profile(compute_share="0.5"),
        {"rank": 0, "error": "No space left on device"},
    ],
)
def test_what_is_no_profile_of_a_rank_is_absent(tmp_path: Path, record: Any) -> None:
    directory = finished_run(tmp_path, a_run())
    damaged = rank_profile(1, kernels=[{"kernel": 3}, 7], collectives="none")
    event_of = {"attempt": 1, "step": 5, "ranks": [damaged] if record is None else [record, damaged]}
    # Not by append_record, which refuses NaN.
    line = json.dumps({"event": "profile", **event_of})
    directory.status.write_text(f"{directory.status.read_text()}{line}\n")
    (read_run,) = read_runs([tmp_path])
    assert [profile.rank for profile in read_run.profiles] == [1]
    assert read_run.profiles[0].kernels == []
    assert read_run.profiles[0].collectives == []

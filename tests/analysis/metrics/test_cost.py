"""Cost of runs: node time, service units, per token, relative to the reference, and the sum."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis.load.discover import read_runs
from analysis.report.report import report
from analysis.run import RunResult
from analysis.scaling.groups import scaling_groups
from jobs import metrics as m
from jobs.cli import main
from jobs.ranges import out_of_range
from jobs.schema import Run
from tests.support.fake_events import clock, compute, killed_once, meet, submit
from tests.support.fake_runs import a_run, ended, event, finished_run, prepared, started, step


def priced(path: Path) -> dict[str, RunResult]:
    """Return the used runs below a path with their cost, by name."""
    return {run.name: run for run in read_runs([path]) if run.used}


def section(path: Path) -> list[list[str]]:
    """The cells of the section, headings first."""
    report([path], None)
    lines = (path / "report.md").read_text().split("## Cost\n\n")[1].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "---" not in line]


def calm(path: Path, name: str, *, ranks: int, seconds: float) -> None:
    """A run of one start, held for so long."""
    directory = prepared(path, a_run(name, ranks_per_node=ranks))
    meet(directory, 4, startup=4, ranks=ranks)
    compute(directory, 1, 6)
    ended(directory, time=clock(seconds))


def test_lost_work_is_paid_and_waiting_is_not(tmp_path: Path) -> None:
    killed_once(prepared(tmp_path, a_run(nodes=1, ranks_per_node=1, steps=10)))
    values = priced(tmp_path)["run"].values
    # 10 of the 100 s were in the queue and 37 between the starts.
    assert values[m.NODE_TIME] == values[m.RANK_TIME] == pytest.approx(53)
    # Steps 5 and 6 were computed twice; the final model is made of 10.
    assert values[m.TOKENS_TRAINED] == 10 * 1024
    assert values[m.RANK_TIME_PER_TOKEN] == pytest.approx(53 / 10240)
    assert m.SERVICE_UNITS not in values


def test_days_between_a_stop_and_the_next_submission_cost_nothing(tmp_path: Path) -> None:
    directory = prepared(tmp_path, a_run(nodes=1, ranks_per_node=1, steps=8))
    submit(directory, 0)
    meet(directory, 14, startup=4)
    compute(directory, 1, 4)
    ended(directory, "stopped", time=clock(30), reason="asked to end (SIGTERM)", step=4)
    days_s = 3 * 86400
    submit(directory, 30 + days_s)
    meet(directory, 54 + days_s, startup=4, attempt=2, from_step=4)
    compute(directory, 5, 8, attempt=2)
    ended(directory, attempt=2, time=clock(70 + days_s))
    # From 10 to 30 and from 50 to 70; before each start 10 and 20 s in the queue.
    assert priced(tmp_path)["run"].values[m.NODE_TIME] == pytest.approx(40)


def test_without_moments_of_its_parts_a_run_of_one_start_cost_its_total_time(tmp_path: Path) -> None:
    run = a_run(nodes=2, ranks_per_node=4)
    directory = prepared(tmp_path, run)
    started(directory, run, time="no moment")
    for number in range(1, 7):
        step(directory, number)
    ended(directory)
    values = priced(tmp_path)["run"].values
    assert (values[m.NODE_TIME], values[m.RANK_TIME]) == (2 * 10, 8 * 10)


def test_a_restarted_run_whose_starts_recorded_too_little_has_no_cost(tmp_path: Path) -> None:
    run = a_run()
    directory = prepared(tmp_path / "s", run)
    for attempt in (1, 2):
        started(directory, run, attempt=attempt, time="no moment")
        for number in range(1, 7):
            step(directory, number, attempt=attempt)
    ended(directory, attempt=2)
    calm(tmp_path / "s", "known", ranks=1, seconds=36)
    assert m.RANK_TIME not in priced(tmp_path)["run"].values
    assert section(tmp_path / "s")[-1][-1] == "not included: 1 run without a time, nodes or ranks"


def test_service_units_are_the_sites_price_of_node_hours(tmp_path: Path) -> None:
    run = a_run()
    killed_once(prepared(tmp_path, replace(run, cluster=replace(run.cluster, service_units_per_node_hour=144))))
    assert priced(tmp_path)["run"].values[m.SERVICE_UNITS] == pytest.approx(144 * 53 / 3600)


@pytest.mark.parametrize(("rate", "wrong"), [(None, False), (0.5, False), (0, True), (-1, True)])
def test_a_price_is_positive(rate: float | None, wrong: bool) -> None:
    run = a_run()
    cluster = replace(run.cluster, service_units_per_node_hour=rate)
    found = list(out_of_range(replace(run, cluster=cluster), counts=False))
    key = "cluster.service_units_per_node_hour"
    words = "is not a positive number. Set {key}=1, another above 0, or null."
    assert found == ([f"{key}={rate:g} {words.format(key=key)}"] if wrong else [])


def test_a_price_does_not_take_runs_out_of_their_line(tmp_path: Path) -> None:
    run = a_run("a")
    finished_run(tmp_path, replace(run, cluster=replace(run.cluster, service_units_per_node_hour=2)))
    finished_run(tmp_path, a_run("b", repeat=2))
    assert [len(group.points) for group in scaling_groups(read_runs([tmp_path]))] == [1]


def test_a_token_costs_more_where_ranks_are_added_in_vain(tmp_path: Path) -> None:
    calm(tmp_path, "one", ranks=1, seconds=36)
    calm(tmp_path, "two", ranks=2, seconds=27)
    headings, *rows = section(tmp_path)
    assert headings == ["Run", "Node-hours", "CPU rank-hours", "Tokens trained (million)",
                        "CPU rank-hours per 1e9 tokens", "Relative cost", "Counted in"]  # fmt: skip
    per_token = [f"{seconds / 6144 / 3600 * 1e9:,.0f}" for seconds in (54, 36, 90 / 2)]
    assert rows == [
        ["two", "0.007500", "0.01500", "0.006144", per_token[0], "1.50", "1 start"],
        ["one", "0.01000", "0.01000", "0.006144", per_token[1], "1.00", "1 start"],
        ["All 2 runs", "0.01750", "0.02500", "0.01229", per_token[2], "—", "all runs found"],
    ]
    with (tmp_path / "runs.csv").open() as file:
        assert {row["name"]: row["relative_cost"] for row in csv.DictReader(file)} == {"one": "1.0", "two": "1.5"}


def paid(run: Run, **prices: Any) -> Run:
    """Return the run on a cluster with prices."""
    return replace(run, cluster=replace(run.cluster, **prices))


def test_money_is_that_of_gpu_hours_and_of_energy_with_the_share_of_the_data_centre(tmp_path: Path) -> None:
    run = paid(a_run(), price_per_gpu_hour=2.5, price_per_kwh=0.3, pue=1.4, currency="EUR")
    run = replace(run, job=replace(run.job, epochs=2))
    held_s = 36.0
    for name, power in (("read", True), ("unread", False)):
        directory = prepared(tmp_path, replace(run, name=name))
        meet(directory, 4, startup=4, ranks=1, device="cuda", device_name="NVIDIA H200")
        compute(directory, 1, 6)
        ended(directory, time=clock(held_s))
        if power:  # 400 W
            lines = [f"2026/01/02 03:00:{second:02d}.000, 0, 400.00 W" for second in range(42)]
            (directory.path / "power-n.csv").write_text("timestamp, index, power.draw [W]\n" + "\n".join(lines) + "\n")
    values = {name: run.values for name, run in priced(tmp_path).items()}
    of_gpu = 2.5 * held_s / 3600
    of_energy = 0.3 * 1.4 * 400 * held_s / 3.6e6
    assert values["unread"][m.PRICE] == pytest.approx(of_gpu)
    assert values["read"][m.PRICE] == pytest.approx(of_gpu + of_energy, rel=0.02)
    assert values["unread"][m.PRICE_PER_TOKEN] == pytest.approx(of_gpu / 6144)
    assert values["unread"][m.PRICE_PER_EPOCH] == pytest.approx(of_gpu * values["unread"][m.EPOCH_TIME] / held_s)
    headings, *rows = section(tmp_path)
    assert headings[-4:-1] == ["Price (EUR)", "Price/epoch (EUR)", "Price/token (EUR per 1e6 tokens)"]
    assert {row[0]: row[-1] for row in rows}["unread"] == "1 start; price in EUR without energy, which was not read"
    text = (tmp_path / "report.md").read_text().split("## Cost of a training of 1B tokens")[1]
    assert "Price (EUR)" in text
    assert "price without energy" in text


def test_without_a_price_or_on_cpus_no_money_is_shown(tmp_path: Path) -> None:
    finished_run(tmp_path, paid(a_run("cpu"), price_per_gpu_hour=2.0))
    finished_run(tmp_path, a_run("gpu"), device="cuda", device_name="NVIDIA H200")
    assert not [name for name, run in priced(tmp_path).items() if m.PRICE in run.values]
    report([tmp_path], None)
    assert "Price" not in (tmp_path / "report.md").read_text()


def test_plan_shows_the_price_of_the_time_limit_and_of_the_prediction(capsys: pytest.CaptureFixture[str]) -> None:
    where = ["plan", "cluster=xe9680_h100", "model=llama2_7b", "parallelism=fsdp_full", "nodes=1", "job=pretrain",
             "job.micro_batch_size=1", "scaling.global_batch_size=64", "wall_time_min=30"]  # fmt: skip
    assert main([*where, "cluster.price_per_gpu_hour=2.5", "cluster.currency=EUR"]) == 0
    text = capsys.readouterr().out
    assert "price <=" in text
    assert "10.00 EUR" in text
    assert "price (EUR)" in text
    assert "at most 4.0 GPU-hours and 10.00 EUR without energy" in text
    assert main(where) == 0
    assert "price" not in capsys.readouterr().out
    assert main([*where, "cluster.pue=0.8"]) == 2
    assert "cluster.pue=0.8 is below 1. Set cluster.pue=1 or more." in capsys.readouterr().err


def test_runs_that_are_not_used_are_reported_to_have_cost_too(tmp_path: Path) -> None:
    calm(tmp_path, "one", ranks=1, seconds=36)
    event(prepared(tmp_path, a_run("lost")), "failed", error="gone")
    assert section(tmp_path)[-1][-1] == "not included: 1 unused run"


def test_on_gpus_the_hours_are_gpu_hours(tmp_path: Path) -> None:
    finished_run(tmp_path, a_run(), device="cuda", device_name="NVIDIA H200")
    assert "GPU-hours" in section(tmp_path)[0]


def test_lost_work_is_named(tmp_path: Path) -> None:
    killed_once(prepared(tmp_path, a_run(steps=10)))
    assert section(tmp_path)[-1][-1] == "2 starts, with 7.00 s of lost work"

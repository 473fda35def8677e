"""Served loads: lines over concurrency and rate, repeats, doubts, costs, the frontier, and samples of the replicas."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis.formatting import ABSENT
from analysis.metrics.serving import cost_of_tokens, read_served
from analysis.parsers import log_metrics as a
from analysis.report.digest import Digest
from analysis.report.figures.serving import serving_figures
from analysis.report.sections.choices import choice_headlines
from analysis.report.sections.served_loads import load_section, replicas_section
from analysis.report.sections.sizing import sizing_section
from analysis.run import RunResult
from analysis.scaling.serving import frontier, load_lines
from jobs import metrics as m
from jobs.rundir import RunDir


def served(
    name: str, concurrency: int, tokens_per_s: float, latency_s: float, *, replicas: int = 1, failed: int = 0,
    rate: float | None = None, where: Path = Path("runs"), event: dict[str, Any] | None = None,
) -> RunResult:  # fmt: skip
    """Return a run on two CPU ranks under a load."""
    serving = {"concurrency": concurrency, "requests_per_s": rate, "requests": 10 * concurrency, "warmup_requests": 4,
               "replicas": replicas, "client": "vllm", "input_tokens": 32, "output_tokens": 256}  # fmt: skip
    config = {"name": name, "nodes": 1, "ranks_per_node": 2, "model": {"name": "tiny"}, "serving": serving,
              "parallelism": {"name": "tp", "tensor": 2 // replicas},
              "cluster": {"service_units_per_node_hour": 9.0}}  # fmt: skip
    run = RunResult(where / name, config, events=({"event": "started", "device": "cpu", "device_name": "A"},))
    values = {
        a.OUTPUT_TOKENS_PER_S: tokens_per_s, a.REQUESTS_PER_S: tokens_per_s / 256, a.REQUESTS_COMPLETED: 100 - failed,
        a.REQUESTS_FAILED: failed, a.REQUEST_LATENCY["p99"]: latency_s, **cost_of_tokens(run, tokens_per_s),
    }  # fmt: skip
    load = None
    if event is not None:
        load = read_served(RunDir(run.path), event)
        values |= load.values
    return RunResult(run.path, config, events=run.events, state="served", reason="served", values=values, served=load)


def a_sweep() -> list[RunResult]:
    return [
        served("one-4", 4, 100.0, 1.0),
        served("one-8-r1", 8, 180.0, 2.0),
        served("one-8-r2", 8, 200.0, 2.2),
        served("one-8-failed", 8, 900.0, 0.1, failed=3),
        served("two-4", 4, 150.0, 0.9, replicas=2),
        served("two-8", 8, 170.0, 3.0, replicas=2),
    ]


def test_runs_form_lines_over_concurrency_with_repeats_and_the_failed_one_counts_in_none() -> None:
    two, one = load_lines(a_sweep())
    assert [line.axis for line in (one, two)] == [a.CONCURRENCY] * 2
    assert (two.label, one.label) == ("tp tensor=1 replicas=2", "tp tensor=2 replicas=1")
    assert [(point.load, len(point.runs), len(point.doubted)) for point in one.points] == [(4, 1, 0), (8, 2, 1)]
    spread = one.points[1].spread(a.OUTPUT_TOKENS_PER_S)
    assert spread is not None
    assert (spread.low, spread.median, spread.high) == (180, 190, 200)


def test_a_point_is_on_the_frontier_if_no_other_is_at_once_faster_and_earlier() -> None:
    lines = load_lines(a_sweep())
    found = {(line.label[-1], point.load) for line in lines for point in line.points if point in frontier(lines)}
    assert found == {("1", 8), ("2", 4)}, "one-4 is beaten by two-4, two-8 by one-8; the failed run is in no median"


def test_a_load_costs_the_ranks_and_nodes_that_it_holds() -> None:
    values = served("x", 4, 100.0, 1.0).values
    assert values[m.OUTPUT_TOKENS_PER_S_PER_RANK] == 50
    assert values[m.RANK_TIME_PER_OUTPUT_TOKEN] == pytest.approx(2 / 100)
    assert values[m.SERVICE_UNITS_PER_OUTPUT_TOKEN] == pytest.approx(9 / 3600 / 100)
    assert cost_of_tokens(served("y", 4, 1.0, 1.0), None) == {}
    assert m.PRICE_PER_OUTPUT_TOKEN not in values


def test_a_load_on_gpus_has_the_price_of_a_million_tokens() -> None:
    def paid(run: RunResult) -> RunResult:
        cluster = {"price_per_gpu_hour": 3.6, "currency": "EUR"}
        run = replace(run, config={**run.config, "cluster": cluster}, events=({"event": "started", "device": "cuda"},))
        return replace(run, values={**run.values, **cost_of_tokens(run, run.values[a.OUTPUT_TOKENS_PER_S])})

    section = load_section(Digest([paid(run) for run in a_sweep()]))
    assert section is not None
    column = section.headings.index("Price/output token (EUR per 1e6 tokens)")
    # Two GPUs at 3.60 an hour, 0.002 a second, for 10,000 s.
    assert next(row for row in section.rows if row[1] == "4")[column] in {"20.00", "13.33"}


def test_the_table_by_load_has_the_spread_of_repeats_and_names_doubts_and_frontier() -> None:
    section = load_section(Digest(a_sweep()))
    assert section is not None
    words = {(row[0][-1], row[1]): row for row in section.rows}
    assert words["1", "8"][-1] == "n = 2, 1 doubtful run; Pareto"
    assert "190.0 (180.0 to 200.0)" in words["1", "8"]
    assert words["2", "8"][-1] == "n = 1"
    only_failed = load_section(Digest([served("a", 4, 9.0, 1.0, failed=1), served("b", 8, 9.0, 1.0, failed=1)]))
    assert only_failed is not None
    assert only_failed.rows[0][-1] == "n = 1, 1 doubtful run only"
    assert load_section(Digest([served("single", 4, 9.0, 1.0)])) is None


def test_the_figures_draw_rate_over_load_and_latency_over_rate_with_hollow_doubts() -> None:
    doubtful = [served("one-16", 16, 950.0, 0.1, failed=3)]
    over, pareto = serving_figures(Digest([*a_sweep(), *doubtful]))
    assert (over.name, pareto.name) == ("serving-concurrency", "serving-pareto")
    assert over.plot is not None
    assert pareto.plot is not None
    _, one = over.plot.data
    assert list(one.y) == [100, 190, 950]
    assert list(one.error_y.array) == [0, 10, 0]
    assert list(one.marker.symbol) == ["square", "square", "square-open"]
    assert list(pareto.plot.data[1].x)[:2] == [50, 95]
    assert "CPU: " in over.caption[:5]
    assert "2 points that no other" in pareto.caption
    by_rate = serving_figures(Digest([served("r1", 64, 50.0, 1.0, rate=1.0), served("r2", 64, 90.0, 1.0, rate=2.0)]))
    assert by_rate[0].name == "serving-offered_requests_per_s"
    assert serving_figures(Digest([served("single", 4, 9.0, 1.0)])) == []


def test_samples_of_replicas_become_peaks_means_shares_and_a_figure(tmp_path: Path) -> None:
    where = RunDir(tmp_path / "run")
    where.serving.mkdir(parents=True)
    gauges = {0: [(0.6, 0, 0, 0.0), (1.0, 2, 0, 0.1), (2.0, 4, 3, 0.5)], 1: [(1.1, 6, 0, 0.2), (9.0, 99, 99, 0.9)]}
    names = ("at_s", "requests_running", "requests_waiting", "kv_cache_use")
    for replica, samples in gauges.items():
        where.replica_samples(replica).write_text("".join(
            json.dumps(dict(zip(names, (1000 + at, *values), strict=True))) + "\n" for at, *values in samples
        ) + '{"at_s": "no number"}\n{"requests_running": 3}\n[1]\n{"at')  # fmt: skip
    event = {
        "event": "served", "load_began_s": 1000.5, "load_ended_s": 1005.0,
        "replicas": [{"replica": 0, "server_requests": 60, "server_preemptions": 7},
                     {"replica": 1, "server_requests": 40}, {"replica": "2"}, "no record"],
    }  # fmt: skip
    run = served("run", 8, 100.0, 1.0, replicas=2, where=tmp_path, event=event)
    assert {metric.name: run.values[metric] for pair in m.GAUGES_OVER_LOAD.values() for metric in pair} == {
        "kv_cache_use_peak": 0.5, "kv_cache_use_mean": pytest.approx(0.8 / 3),
        "requests_running_peak": 10, "requests_running_mean": 9,
        "requests_waiting_peak": 3, "requests_waiting_mean": 1.5,
    }  # fmt: skip
    section = replicas_section(Digest([run]))
    assert section is not None
    assert [row[:6] for row in section.rows] == [
        ["run", "0", "60.0", "60", ABSENT, "7"], ["run", "1", "40.0", "40", ABSENT, ABSENT]
    ]  # fmt: skip
    assert section.rows[0][6:] == ["50.0 / 30.0", "4 / 3.000", "3 / 1.500", "2 samples"]
    assert section.figure is not None
    assert section.figure.plot is not None
    running = section.figure.plot.data[0]
    assert (list(running.x), list(running.y)) == ([0, 1], [8, 10])


def test_a_load_without_times_or_samples_has_counters_only(tmp_path: Path) -> None:
    load = read_served(RunDir(tmp_path), {"replicas": [{"replica": 0, "server_requests": 5}], "load_began_s": "x"})
    assert load.values == {}
    assert load.share(load.replicas[0]) == 1
    assert read_served(RunDir(tmp_path), {}).replicas == []


def test_loads_and_layouts_are_worth_what_their_pairs_show() -> None:
    assert choice_headlines(Digest(a_sweep())) == [
        "On equal ranks, serving.concurrency=8 is 1.13 (tensor=1) and 1.90 (tensor=2) times as fast as 4 on 2 ranks on "
        "1 node (n = 1 to 2, noise cannot be ruled out); parallelism tensor=1 is 1.50 (concurrency=4) and 0.895 "
        "(concurrency=8) times as fast as tensor=2 on 2 ranks on 1 node (n = 1 to 2, noise cannot be ruled out)."
    ]


def test_a_search_sizes_servers_for_users() -> None:
    values = {m.HIGHEST_CONCURRENCY: 50.0}
    found = replace(served("s", 4, 9.0, 1.0, replicas=2), values=values)
    none = replace(served("none", 4, 9.0, 1.0), values={m.HIGHEST_CONCURRENCY: 0.0})
    section = sizing_section(Digest([found, none]))
    assert section is not None
    assert section.headings[2:6] == ("Users of a replica", "64 users", "256 users", "1,024 users")
    # 25 users each: 64 of them take 3 replicas of one rank, and servers have 2 ranks.
    assert [list(row[2:7]) for row in section.rows] == [["25", "3 on 2", "11 on 6", "41 on 21", "164 on 82"]]
    assert sizing_section(Digest([none])) is None

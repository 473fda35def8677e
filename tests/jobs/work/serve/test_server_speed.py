"""Predicted rates and latencies of servers."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest

from jobs.submit.preparation.prepare import plan_of
from jobs.work.serve.rules import kv_tokens
from jobs.work.serve.speed import ServerSpeed, server_speed
from tests.benchmarks.server_speed import quantities, rows
from tests.support.composing import one

SERVER = ("cluster=xe9680_h100", "experiment=serve_llama2", "model=llama31_70b", "job.precision=bfloat16",
          "parallelism.tensor=4", "job.sequence_length=4096", "serving.input_tokens=2048", "serving.output_tokens=512",
          "serving.requests=4000")  # fmt: skip


def predicted(*overrides: str) -> ServerSpeed:
    found = server_speed(one(*SERVER, *overrides).run)
    assert found is not None
    return found


def test_published_servers_are_within_the_interval_and_throughput_within_15_percent_in_the_median() -> None:
    errors = []
    for row in rows():
        for quantity, measured, found in quantities(row):
            assert found.low <= measured <= found.high, row
            if quantity == "output_tokens_per_s":
                errors.append(abs(found.point / measured - 1))
    assert len(errors) >= 12
    assert statistics.median(errors) < 0.15


def test_more_requests_at_once_give_more_tokens_and_each_token_takes_longer() -> None:
    few, many = (predicted(f"serving.concurrency={n}") for n in (8, 64))
    assert many.output_tokens_per_s.point > few.output_tokens_per_s.point
    assert many.time_per_output_token_s.point > few.time_per_output_token_s.point
    assert (few.requests_at_once, many.requests_at_once) == (8, 64)


def test_replicas_without_a_request_add_nothing() -> None:
    two, one_of_two = (predicted("serving.concurrency=" + n) for n in ("2", "1"))
    assert one_of_two.requests_at_once == 1
    assert one_of_two.output_tokens_per_s.point == pytest.approx(two.output_tokens_per_s.point / 2, rel=0.05)
    assert one_of_two.time_to_first_token_s.point == pytest.approx(two.time_to_first_token_s.point, rel=0.05)


def test_requests_beyond_the_kv_cache_wait_and_add_no_throughput() -> None:
    run = one(*SERVER, "serving.concurrency=2000").run
    tokens = kv_tokens(run)
    assert tokens is not None
    held = predicted("serving.concurrency=2000")
    assert held.requests_at_once == 2 * (tokens // 2560)
    more = predicted("serving.concurrency=4000")
    assert more.output_tokens_per_s == held.output_tokens_per_s
    # Little's law: all requests under way are in the server for their number over their rate.
    requests_per_s = more.output_tokens_per_s.point / 512
    in_server_s = more.time_to_first_token_s.point + 512 * more.time_per_output_token_s.point
    assert in_server_s == pytest.approx(4000 / requests_per_s, rel=0.05)


def test_a_rate_below_what_the_server_can_do_is_served_as_it_comes() -> None:
    found = predicted("serving.concurrency=2000", "serving.requests_per_s=2")
    assert found.output_tokens_per_s.point == pytest.approx(2 * 512, rel=0.01)
    assert found.requests_at_once < 100
    assert found.time_to_first_token_s.point < 2


def test_a_step_reads_only_the_experts_that_its_tokens_meet() -> None:
    run = one("cluster=xe9680_h100", "experiment=serve_llama2", "model=mixtral_8x7b", "job.precision=bfloat16",
              "parallelism.tensor=2", "serving.concurrency=4").run  # fmt: skip
    assert run.serving is not None
    few = server_speed(run)
    many = server_speed(replace(run, serving=replace(run.serving, concurrency=400)))
    assert few is not None
    assert many is not None
    assert many.time_per_output_token_s.point > 1.5 * few.time_per_output_token_s.point


def test_the_plan_shows_and_keeps_the_prediction_and_a_cpu_has_none(capsys: pytest.CaptureFixture[str]) -> None:
    from jobs.cli import main

    assert main(["plan", *SERVER]) == 0
    printed = capsys.readouterr().out
    for heading in ("output tokens/s", "TTFT (ms)", "TPOT (ms)", "requests at once", "uncalibrated"):
        assert heading in printed
    kept = plan_of(one(*SERVER).run)["serve"]
    assert kept["basis"].startswith("uncalibrated: ")
    assert kept["output_tokens_per_s"]["low"] < kept["output_tokens_per_s"]["point"]
    assert server_speed(one("experiment=serve_llama2", "rehearsal=cpu").run) is None

"""Serving with a tiny server as a real process: figures, faults, and what is refused."""

from __future__ import annotations

import csv
import itertools
import json
import re
import shutil
import signal
import socket
from pathlib import Path

import psutil
import pytest

from analysis.load.kinds.serve import client_values
from analysis.load.run_directory import read_run
from analysis.parsers import log_metrics as a
from analysis.report.report import report
from jobs import metrics as m
from jobs.cli import main
from jobs.data.tokenizer import load_tokenizer, tokenizer_files
from jobs.errors import ConfigError
from jobs.plan.compose import compose
from jobs.plan.table import plan_notes
from jobs.rundir import RunDir
from jobs.submit.watching.progress import node_lines
from jobs.work.program.ports import reserved_port
from jobs.work.serve.counters import counters, gauges, growth
from jobs.work.serve.load import load_command
from jobs.work.serve.rules import kv_tokens
from jobs.work.serve.search import highest
from tests.support.cli import printed_words
from tests.support.paths import ROOT
from tests.support.real_run import events, make_run, printed, train
from tests.support.required import skip_or_fail
from tests.support.serving import (
    LONG_LOAD,
    SERVER,
    failures,
    in_the_middle,
    listed,
    litgpt_directory,
    model_directory,
    servers,
    tiny_serving,
)


def served_by(where: Path, *overrides: str) -> RunDir:
    return make_run(where, *tiny_serving(model_directory(where / "model"), *overrides), small=False)


def require_balancer(name: str) -> None:
    if shutil.which(name) is None:
        skip_or_fail(f"{name} is not installed: run tests/install.sh serving")


@pytest.mark.parametrize("balancer", ["haproxy", pytest.param("nginx", marks=pytest.mark.long)])
def test_two_replicas_share_a_load_whose_figures_are_in_the_report(tmp_path: Path, balancer: str) -> None:
    require_balancer(balancer)
    run = served_by(
        tmp_path, "ranks_per_node=2", f"serving.balancer={balancer}", "serving.limits.request_latency_s=600"
    )
    assert train(run) == [0, 0], printed(run)
    prompts = [
        json.loads(line)["prompt"].split() for line in (run.serving / "load-prompts.jsonl").read_text().splitlines()
    ]
    # The tiny server counts words, and answers 16 to an odd number of them and 15 to an even one.
    written = sum(15 + len(prompt) % 2 for prompt in prompts)
    run.plan.write_text("{}")
    found = read_run(run.path)
    assert found.state == "served"
    assert {metric: found.values[metric] for metric in (
        a.REQUESTS_COMPLETED, a.REQUESTS_FAILED, a.OUTPUT_TOKENS, m.SERVER_OUTPUT_TOKENS, m.SERVER_INPUT_TOKENS,
        m.SERVER_REQUESTS, m.REQUESTS_TRUNCATED, m.LARGEST_REPLICA_SHARE, m.OUTPUT_TOKENS_GAP,
    )} == {
        a.REQUESTS_COMPLETED: 40, a.REQUESTS_FAILED: 0, a.OUTPUT_TOKENS: written, m.SERVER_OUTPUT_TOKENS: written,
        m.SERVER_INPUT_TOKENS: sum(map(len, prompts)), m.SERVER_REQUESTS: 40,
        m.REQUESTS_TRUNCATED: sum(len(prompt) % 2 for prompt in prompts), m.LARGEST_REPLICA_SHARE: 0.5,
        m.OUTPUT_TOKENS_GAP: 0,
    }  # fmt: skip
    assert found.values[a.GOOD_REQUESTS_PER_S] == pytest.approx(found.values[a.REQUESTS_PER_S], rel=1e-3)
    for replica in range(2):
        first = json.loads(run.replica_samples(replica).read_text().splitlines()[0])
        assert {"at_s", "requests_running", "requests_waiting", "kv_cache_use", "server_requests"} <= first.keys()
    result = json.loads(run.load_result.read_text())
    assert found.values[a.OUTPUT_TOKENS_PER_S] == pytest.approx(written / result["duration"])
    report([tmp_path / "test"], tmp_path / "report")
    page = (tmp_path / "report/report.md").read_text()
    assert "CPU: tiny, load by vllm, good within request latency 600 s" in page[page.index("## Serving") :]
    assert re.search(
        r"CPU: tiny served at [\d,.]+ output tokens/s by 2 replicas at concurrency 4; request latency", page
    )
    assert "No result" not in page
    assert f"| CPU: {run.name} | {socket.gethostname()} |" in page[page.index("## Hardware use") :]
    (line,) = node_lines(run)
    assert line.startswith(f"node 0 ({socket.gethostname()}): CPU ")


def test_runs_with_failed_requests_or_different_counts_are_doubtful(tmp_path: Path) -> None:
    model, rates = model_directory(tmp_path / "model"), {"fast": 500.0, "slow": 100.0}
    for name, rate in rates.items():
        run = make_run(tmp_path, *tiny_serving(model, f"name={name}"), small=False)
        run.plan.write_text("{}")
        with run.status.open("a") as status:
            for event in ("started", "served", "finished"):
                status.write(json.dumps({"event": event, "device": "cpu", "server_output_tokens": 3000}) + "\n")
        run.serving.mkdir()
        run.load_result.write_text(json.dumps({
            "duration": 1.0, "completed": 97, "failed": 3 if name == "fast" else 0, "request_throughput": rate,
            "output_throughput": 10 * rate, "total_output_tokens": 3000 if name == "fast" else 2000,
        }))  # fmt: skip
    report([tmp_path / "test"], tmp_path / "report")
    table = (tmp_path / "report/report.md").read_text().partition("## Serving")[2].partition("##")[0]
    assert table.index("| slow") > table.index("| fast"), "both are doubtful: by rate"
    assert "DOUBTFUL: 3 requests failed, 97 completed" in table
    assert "DOUBTFUL: servers and load generator counted different numbers of output tokens" in table


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        ("{", "serving/load.json cannot be read"),
        ("[1]", "serving/load.json contains no completed request"),
        ('{"duration": 1, "completed": 0, "request_throughput": 0}', "contains no completed request"),
        ('{"duration": 1, "completed": 5, "request_throughput": "NaN"}', "contains no completed request"),
        (None, "serving/load.json cannot be read"),
    ],
)
def test_a_result_that_cannot_be_used_is_a_reason(tmp_path: Path, result: str | None, reason: str) -> None:
    run = served_by(tmp_path)
    run.plan.write_text("{}")
    with run.status.open("a") as status:
        for event in ("started", "served", "finished"):
            status.write(json.dumps({"event": event}) + "\n")
    run.serving.mkdir()
    if result is not None:
        run.load_result.write_text(result)
    found = read_run(run.path)
    assert (found.used, found.state) == (False, "unmeasured")
    assert reason in str(found.reason)


def test_settings_of_another_type_do_not_end_the_report(tmp_path: Path) -> None:
    run = served_by(tmp_path, "name=odd")
    run.plan.write_text("{}")
    run.config.write_text(run.config.read_text().replace("concurrency: 4", "concurrency: many"))
    with run.status.open("a") as status:
        for event in ("started", "served", "finished"):
            status.write(json.dumps({"event": event}) + "\n")
    run.serving.mkdir()
    run.load_result.write_text('{"duration": 2, "completed": 6, "request_throughput": 3}')
    report([tmp_path / "test"], tmp_path / "report")
    assert "3 requests/s by 1 replica" in (tmp_path / "report/report.md").read_text().replace("3.000", "3")


# --- AIPerf ------------------------------------------------------------------------------------------------------


def test_the_load_and_the_limits_of_a_run_reach_aiperf(tmp_path: Path) -> None:
    (point,) = compose(
        ["job=serve", "engine=vllm", "serving.client=aiperf", "serving.client_python=/opt/aiperf/bin/python",
         "serving.limits.time_to_first_token_s=0.5", "serving.limits.time_per_output_token_s=0.05",
         "serving.requests_per_s=7", f"job.init_from={tmp_path}"],
        multirun=False,
    )  # fmt: skip
    files = {"prompts": tmp_path / "prompts.jsonl", "body": tmp_path / "request.json"}
    command = load_command(
        point.run, RunDir(tmp_path), "http://127.0.0.1:9", requests=40, concurrency=4,
        result=tmp_path / "serving/load-4-1.json", **files,
    )  # fmt: skip
    options = dict(itertools.pairwise(command))
    assert command[:4] == ["/opt/aiperf/bin/python", "-m", "aiperf", "profile"]
    assert (options["--request-count"], options["--concurrency"], options["--request-rate"]) == ("40", "4", "7.0")
    assert options["--goodput"] == "time_to_first_token:500 inter_token_latency:50"
    assert (options["--artifact-dir"], options["--profile-export-prefix"]) == (str(tmp_path / "serving"), "load-4-1")


def test_a_result_of_aiperf_has_the_metrics_of_vllms_benchmark(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.serving.mkdir()
    shutil.copy(ROOT / "tests/analysis/parsers/samples/aiperf.json", run.load_result)
    found = client_values(run, "aiperf", "load")
    assert (found[a.REQUESTS_COMPLETED], found[a.REQUESTS_FAILED], found[a.OUTPUT_TOKENS]) == (12, 2, 360)
    assert found[a.TIME_TO_FIRST_TOKEN["mean"]] == pytest.approx(0.064069, rel=1e-4)
    assert found[a.TIME_PER_OUTPUT_TOKEN["mean"]] == pytest.approx(0.0012758, rel=1e-4)


# --- search of the highest concurrency -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kept", "found"),
    [(0, (0, 1)), (1, (1, 2)), (5, (5, 6)), (64, (64, 68)), (100, (96, 104)), (511, (480, 512)), (3000, (2048, None))],
)
def test_a_search_brackets_the_highest_load_within_a_handful_of_loads(kept: int, found: tuple[int, int | None]) -> None:
    tried: list[int] = []

    def keeps(load: int) -> bool:
        tried.append(load)
        return load <= kept

    assert highest(keeps, 64, 2048, 0.1) == found
    assert len(tried) == len(set(tried)) <= 9


def searching(where: Path, capacity: int, *overrides: str) -> RunDir:
    run = served_by(
        where,
        f"engine.server.command={listed([*SERVER, str(capacity)])}",
        "serving.concurrency=2", "serving.requests=4", "serving.warmup_requests=0", *overrides,
    )  # fmt: skip
    assert train(run) == [0], printed(run)
    run.plan.write_text("{}")
    return run


@pytest.mark.slow
def test_the_highest_concurrency_within_a_limit_is_found_in_one_job_and_every_load_is_in_the_report(
    tmp_path: Path,
) -> None:
    run = searching(tmp_path, 4, "serving.limits.request_latency_s=0.4", "serving.search.most_concurrency=64")
    loads = [(event["concurrency"], event["kept"]) for event in events(run, "load")]
    assert loads == [
        (2, True), (2, True), (4, True), (4, True), (8, False), (8, False), (6, False), (6, False), (5, False),
        (5, False), (4, True), (5, False),
    ], "two of three decide, and the answer and the load above it have all three"  # fmt: skip
    assert len(events(run, "started")) == 1
    (served,) = events(run, "served")
    assert served["highest_concurrency"] == 4
    found = read_run(run.path)
    assert found.values[m.HIGHEST_CONCURRENCY] == 4
    assert found.values[a.REQUEST_LATENCY["p99"]] == 0.25
    report([tmp_path / "test"], tmp_path / "report")
    page = (tmp_path / "report/report.md").read_text()
    assert "at concurrency 4; request latency" in page
    assert "the highest found within its limits (request latency 0.4 s)" in page
    search = page[page.index("## Highest concurrency within limits") :]
    assert "concurrency 4 kept 3 of 3: request_latency_p99 0.25 s (0.25 to 0.25), limit 0.4 s" in search
    assert "concurrency 5 kept 0 of 3: request_latency_p99 0.5 s" in search
    by_load = page[page.index("## Serving by load") :].partition("\n## ")[0]
    assert [line.rpartition("n = ")[2][0] for line in by_load.splitlines() if "n = " in line] == list("23322")
    with (tmp_path / "report/runs.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert row["highest_concurrency"] == "4"


def test_a_search_without_an_answer_says_what_to_set(tmp_path: Path) -> None:
    overrides = ("serving.search.repeats=1", "serving.search.most_concurrency=3")
    ceiling = searching(tmp_path / "ceiling", 64, "serving.limits.request_latency_s=600", *overrides)
    (served,) = events(ceiling, "served")
    assert served["highest_concurrency"] == 3
    assert "concurrency 3 kept 1 of 1" in str(served["answer"])
    assert "the highest concurrency is 3 or more. Set serving.search.most_concurrency=6" in str(served["answer"])
    impossible = searching(tmp_path / "impossible", 64, "serving.limits.request_latency_s=0.001", *overrides)
    (served,) = events(impossible, "served")
    assert served["highest_concurrency"] == 0
    assert "no concurrency keeps the limits: concurrency 1 kept 0 of 1: request_latency_p99 0.25 s" in str(
        served["answer"]
    )
    assert "Set a higher limit, a lower serving.output_tokens, or more GPUs per replica" in str(served["answer"])
    report([impossible.path], tmp_path / "report")
    page = (tmp_path / "report/report.md").read_text()
    assert "no concurrency is within its limits (request latency 0.001 s)" in page


def test_a_search_by_a_load_generator_without_the_latency_names_it(tmp_path: Path) -> None:
    run = served_by(
        tmp_path, "serving.warmup_requests=0", "serving.limits.time_to_first_token_s=1",
        "serving.search.most_concurrency=8",
    )  # fmt: skip
    assert train(run) == [1]
    assert "the load generator reports no time_to_first_token_p99_s" in failures(run)[0]


# --- faults --------------------------------------------------------------------------------------------------


def test_a_replica_that_is_killed_in_the_middle_is_named_and_everything_ends(tmp_path: Path) -> None:
    require_balancer("haproxy")
    run = served_by(tmp_path, "ranks_per_node=2", *LONG_LOAD)

    def kill_the_second(found: list[psutil.Process]) -> None:
        found[1].kill()

    assert in_the_middle(run, kill_the_second) == [1, 1], printed(run)
    (error,) = failures(run)
    assert error.startswith("replica ")
    assert f"on {socket.gethostname()} was ended by SIGKILL; the last line of replica-" in error
    assert "stand-in server starts" in error


@pytest.mark.long
def test_a_rank_that_is_killed_takes_its_replica_along_and_ends_the_others(tmp_path: Path) -> None:
    require_balancer("haproxy")
    run = served_by(tmp_path, "ranks_per_node=2", *LONG_LOAD)

    def kill_a_rank(found: list[psutil.Process]) -> None:
        parent = found[1].parent()
        assert parent is not None
        parent.kill()

    assert sorted(map(str, in_the_middle(run, kill_a_rank))) == ["-9", "1"], printed(run)


@pytest.mark.long
def test_a_replica_that_hangs_is_named_after_the_limit(tmp_path: Path) -> None:
    run = served_by(tmp_path, *LONG_LOAD, "engine.hang_timeout_s=6")

    def stop_it(found: list[psutil.Process]) -> None:
        found[0].send_signal(signal.SIGSTOP)

    assert in_the_middle(run, stop_it) == [1], printed(run)
    (error,) = failures(run)
    assert "replica 0 on" in error
    assert "has not answered at /health" in error
    assert "(engine.hang_timeout_s)" in error


@pytest.mark.long
def test_a_run_that_is_asked_to_stop_ends_everything_and_records_it(tmp_path: Path) -> None:
    run = served_by(tmp_path, *LONG_LOAD)

    def ask(found: list[psutil.Process]) -> None:
        parent = found[0].parent()
        assert parent is not None
        parent.send_signal(signal.SIGTERM)

    assert in_the_middle(run, ask) == [0], printed(run)
    (stopped,) = events(run, "stopped")
    assert stopped["reason"] == "asked to end (SIGTERM)"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["engine.server.command=[sleep,'600']", "engine.server.startup_limit_s=1"],
         r"replica 0 on .* does not answer at http://127.0.0.1:.*/health after .* s \(engine.server.startup_limit_s\)"),
        (["engine.server.command=[/no/such/server]"],
         "replica 0 cannot start on .*: /no/such/server: No such file or directory. Set engine.server.python=PATH"),
        (["engine.server.command=[sh,-c,'echo CUDA out of memory; exit 1']"],
         "replica 0 on .* exited with code 1; the cause is in replica-0.log:1: CUDA out of memory"),
        (["serving.client_command=[sh,-c,'echo no such model; exit 3']"],
         "the load generator \\(vllm, warmup\\) on .* exited with code 3; the last line of warmup.log: no such model"),
    ],
)  # fmt: skip
def test_what_does_not_start_is_named(tmp_path: Path, overrides: list[str], words: str) -> None:
    run = served_by(tmp_path, *overrides)
    assert train(run) == [1], printed(run)
    (error,) = failures(run)
    assert re.search(words, error), error
    assert not servers()


@pytest.mark.long
def test_a_balancer_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/sh").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    run = served_by(tmp_path, "ranks_per_node=2")
    assert train(run) == [1, 1], printed(run)
    assert "haproxy cannot start on" in failures(run)[0]
    assert "Install it, load it in cluster.modules, or set serving.balancer to another one." in failures(run)[0]


# --- weights of LitGPT -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_converted_litgpt_directory_computes_the_same_in_transformers(tmp_path: Path) -> None:
    import torch
    from litgpt.config import Config
    from litgpt.model import GPT
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    from jobs.work.serve.conversion import convert

    source = litgpt_directory(tmp_path / "litgpt", "float32")
    convert(source, tmp_path / "hf")
    gpt = GPT(Config.from_file(source / "model_config.yaml"))
    gpt.load_state_dict(torch.load(source / "lit_model.pth", weights_only=True))
    tokens = torch.arange(1, 33).reshape(2, 16)
    with torch.inference_mode():
        theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")(tokens).logits
        torch.testing.assert_close(theirs, gpt(tokens), atol=1e-5, rtol=1e-4)
    eos = load_tokenizer(tokenizer_files(source)).eos_id
    for found in (
        GenerationConfig.from_model_config(AutoConfig.from_pretrained(tmp_path / "hf")),
        GenerationConfig.from_pretrained(tmp_path / "hf"),
    ):
        assert (found.bos_token_id, found.eos_token_id, found.pad_token_id) == (None, eos, None)
    assert (tmp_path / "hf/tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()
    description = (source / "model_config.yaml").read_text()
    (source / "model_config.yaml").write_text(
        description.replace("parallel_residual: false", "parallel_residual: true")
    )
    with pytest.raises(ConfigError, match=r"from Llama it differs by parallel_residual=True"):
        convert(source, tmp_path / "other")
    assert not (tmp_path / "other").exists()


# --- ports and counters ----------------------------------------------------------------------------------------


def test_a_reserved_port_is_given_to_nobody_else_and_its_server_can_listen_there() -> None:
    with reserved_port("127.0.0.1") as port:
        taken = set()
        for _ in range(2000):
            with socket.socket() as other:
                other.bind(("127.0.0.1", 0))
                taken.add(other.getsockname()[1])
        assert port not in taken
        with socket.create_server(("127.0.0.1", port)) as server, socket.create_connection(server.getsockname()):
            pass


def test_counters_are_summed_over_labels_and_grow_from_the_warm_up_on() -> None:
    text = (
        "# TYPE vllm:prompt_tokens_total counter\n"
        'vllm:prompt_tokens_total{engine="0",model_name="a b"} 1.5e+03\n'
        'vllm:prompt_tokens_total{engine="1",model_name="a b"} 500.0\n'
        'vllm:request_success_total{engine="0",finished_reason="stop"} 3.0\n'
        'vllm:request_success_total{engine="0",finished_reason="length"} 4.0\n'
        "vllm:num_requests_running 7.0\nnot a line\n"
    )
    found = counters(text)
    assert found == {m.SERVER_INPUT_TOKENS: 2000, m.SERVER_REQUESTS: 7, m.REQUESTS_TRUNCATED: 4}
    assert gauges(
        'vllm:num_requests_running{engine="0"} 3\nvllm:num_requests_running{engine="1"} 4\n'
        'vllm:kv_cache_usage_perc{engine="0"} 0.25\nvllm:kv_cache_usage_perc{engine="1"} 0.5\n'
        "sglang:num_queue_reqs 2.0\nvllm:num_requests_waiting 1e999\n"
    ) == {m.REQUESTS_RUNNING: 7, m.KV_CACHE_USE: 0.5, m.REQUESTS_WAITING: 2}
    assert growth({m.SERVER_REQUESTS: 5}, found)[m.SERVER_REQUESTS] == 2


# --- refused ---------------------------------------------------------------------------------------------------


def test_a_run_without_a_model_or_with_another_one_is_not_submitted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = model_directory(tmp_path / "model")
    given = ["submit", *tiny_serving(where), f"runs_dir={tmp_path}/runs", "launcher=script"]

    def refusal(*overrides: str) -> str:
        assert main([*given, *overrides]) == 2
        assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").glob("*/*/config.yaml"))
        return printed_words(capsys)

    assert "job=serve has no model to serve. Set job.init_from=DIRECTORY" in refusal("job.init_from=null")
    assert "has no config.json here" in refusal(f"job.init_from={tmp_path}")
    assert "model.layers=4, and the model in job.init_from=" in refusal("model.layers=4")
    (where / "model.safetensors").unlink()
    assert "has no *.safetensors here" in refusal()
    (where / "lit_model.pth").touch()
    assert "has no model_config.yaml here. Set it to a LitGPT directory" in refusal()
    (where / "model_config.yaml").write_text("n_layer: 2\nn_embd: 64\n")
    assert "n_embd is 64 in" in refusal()


def test_a_plan_has_the_kv_cache_of_a_replica_and_warns_of_requests_that_wait() -> None:
    given = ["job=serve", "engine=vllm", "cluster=xe9680_h100", "parallelism=tp", "parallelism.tensor=4",
             "model=llama2_70b"]  # fmt: skip
    (point,) = compose(given, multirun=False)
    tokens = kv_tokens(point.run)
    assert tokens is not None
    # Of 0.9 x 80 GiB: a quarter of 138.0 GB of weights, and of 80 layers 2 heads x 128 of keys and values in 2 bytes.
    most = (0.9 * 80 * 2**30 - 138.0e9 / 4) / (2 * 80 * 2 * 128 * 2)
    assert 0.9 * most < tokens < most, "working memory takes the rest"
    notes = " ".join(plan_notes([point.run]))
    assert f"predicted {tokens:,} tokens per replica: {tokens // 288:,} requests of 32 + 256 tokens at once" in notes
    assert "requests will wait" not in notes
    (many,) = compose([*given, f"serving.concurrency={2 * (tokens // 288) + 2}"], multirun=False)
    assert f"its KV cache holds about {tokens // 288}: requests will wait" in " ".join(plan_notes([many.run]))
    (unknown,) = compose([*given, "engine.server.memory_fraction=null"], multirun=False)
    assert kv_tokens(unknown.run) is None

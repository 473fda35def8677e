"""Serving through the launchers: by a tiny server, and by vLLM on CPUs (make vllm-env)."""

from __future__ import annotations

import csv
import json
import re
import shutil
import threading
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from analysis.load.run_directory import read_run
from analysis.parsers import log_metrics as a
from jobs.cli import main
from jobs.run_events import run_events
from jobs.rundir import RunDir, SweepDir, read_records
from tests.support.cli import printed
from tests.support.real_run import SMALL, events, make_run, train
from tests.support.real_run import printed as output
from tests.support.required import skip_or_fail
from tests.support.serving import (
    CLIENT,
    MODEL,
    SERVER,
    SPANNING,
    failures,
    listed,
    litgpt_directory,
    model_directory,
    tiny_serving,
    vllm_python,
    vllm_serve_command,
    vllm_serving,
    with_random_weights,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow


def row(sweep: SweepDir) -> dict[str, str]:
    assert main(["report", str(sweep.path)]) == 0
    (found,) = csv.DictReader((sweep.path / "runs.csv").read_text().splitlines())
    return found


def checked(run: RunDir, found: dict[str, str], requests: int) -> None:
    """Compare the row of a run with the load generator's result and the counters of the replicas."""
    result = json.loads(run.load_result.read_text())
    assert (result["completed"], result["failed"]) == (requests, 0)
    assert found["state"] == "served"
    assert float(found["output_tokens"]) == result["total_output_tokens"] > 0
    assert float(found["requests_per_s"]) == pytest.approx(requests / result["duration"], rel=1e-3)
    assert float(found["output_tokens_gap"]) == 0, "the server's own count is the client's"
    (served,) = events(run, "served")
    assert served["server_requests"] == requests
    assert served["largest_replica_share"] == 0.5, "round robin"


@pytest.mark.slurm
@pytest.mark.usefixtures("empty_queue")
def test_two_replicas_on_two_nodes_of_slurm_share_a_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = tiny_serving(model_directory(tmp_path / "model"), f"runs_dir={tmp_path}/runs", "sweep=s")
    assert main(["submit", "--wait", *given, "cluster=generic_slurm", "nodes=2"]) == 0, printed(capsys)
    sweep = SweepDir(tmp_path / "runs/s")
    (run,) = sweep.runs()
    (started,) = events(run, "started")
    assert len(started["nodes"]) == 2  # type: ignore[arg-type]  # a list, which events do not declare
    checked(run, row(sweep), 40)
    assert "Emulated nodes on CPU: tiny" in (sweep.path / "report.md").read_text()


def trained_and_served(where: Path, *overrides: str) -> list[str]:
    """Return the overrides of a small training whose model the tiny server serves afterwards."""
    return [
        *SMALL, f"runs_dir={where}/runs", f"data.cache_dir={where}/cache", "sweep=s", "data=stdlib",
        "data.max_samples=32", "data.bpe_vocab_size=300", "data.held_out_samples=4", "model.max_sequence_length=512",
        "job.export=true",
        "stages=all_and_serve", f"stages.serve.engine.server.command={listed(SERVER)}",
        f"stages.serve.serving.client_command={listed(CLIENT)}", "stages.serve.serving.requests=20",
        "stages.serve.serving.concurrency=4", "stages.serve.serving.output_tokens=16", *overrides,
    ]  # fmt: skip


def check_served(sweep: SweepDir) -> None:
    """Compare the load on the trained model, its stage and its row in the report."""
    (run,) = sweep.runs()
    # On Slurm the evaluation runs at the same time.
    assert [name for event in run_events(run) if (name := event["event"]) in {"serve_started", "load_measured"}] == [
        "serve_started",
        "load_measured",
    ]
    assert (
        str(run.export) in (run.served / "serving/request.json").read_text()
        or (run.served / "serving/model/model.safetensors").exists()
    )
    assert main(["report", str(sweep.path)]) == 0
    rows = {row["name"]: row for row in csv.DictReader((sweep.path / "runs.csv").read_text().splitlines())}
    assert rows.keys() == {run.name, f"{run.name}-served"}
    assert rows[f"{run.name}-served"]["state"] == "served"
    assert rows[f"{run.name}-served"]["requests_completed"] == "20"
    assert rows[run.name]["state"] == "finished"


@pytest.mark.long
def test_a_model_that_was_just_trained_is_served_in_the_same_submission(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["submit", "--wait", *trained_and_served(tmp_path, "launcher=local")]) == 0, printed(capsys)
    check_served(SweepDir(tmp_path / "runs/s"))


@pytest.mark.long
@pytest.mark.slurm
@pytest.mark.usefixtures("empty_queue")
def test_a_model_that_was_trained_on_slurm_is_served_by_a_job_that_waits_for_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["submit", "--wait", *trained_and_served(tmp_path, "cluster=generic_slurm")]) == 0, printed(capsys)
    check_served(SweepDir(tmp_path / "runs/s"))


@pytest.mark.long
def test_two_replicas_of_vllm_serve_on_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = with_random_weights(model_directory(tmp_path / "model"))
    given = vllm_serving(vllm_python(), model, f"runs_dir={tmp_path}/runs", "sweep=s", "ranks_per_node=2",
                         "serving.limits.time_to_first_token_s=1e-9", "serving.limits.time_per_output_token_s=1000",
                         )  # fmt: skip
    assert main(["submit", "--wait", *given]) == 0, printed(capsys)
    sweep = SweepDir(tmp_path / "runs/s")
    (run,) = sweep.runs()
    found = row(sweep)
    checked(run, found, 24)
    assert 0 < float(found["time_to_first_token_median_s"]) <= float(found["request_latency_median_s"])
    assert float(found["inter_token_latency_p99_s"]) > 0
    # A server that is behind sends a whole answer at once, so the time of an output token may be 0.
    assert float(found["good_requests_per_s"]) == 0, "no first token comes within a nanosecond"
    samples = [json.loads(line) for i in range(2) for line in run.replica_samples(i).read_text().splitlines()]
    assert {"requests_running", "requests_waiting", "kv_cache_use", "server_preemptions"} <= samples[-1].keys()
    assert 16 < float(found["server_input_tokens"]) / 24 < 64, "32 in the mean"


@pytest.mark.long
def test_vllm_serves_a_litgpt_directory_which_the_run_converts(tmp_path: Path) -> None:
    model = litgpt_directory(tmp_path / "model")
    run = make_run(tmp_path, *vllm_serving(vllm_python(), model, "ranks_per_node=1"), small=False)
    assert train(run) == [0], output(run)
    assert json.loads(run.load_result.read_text())["completed"] == 24
    assert (run.serving / "model/model.safetensors").exists()


def require_litgpt_serve() -> None:
    if find_spec("litserve") is None or shutil.which("ab") is None:
        skip_or_fail("litserve or ab is not installed: run make .venv/engines.done and tests/install.sh serving")


def litgpt_serving(model: Path) -> list[str]:
    """Return the overrides of a load on LitGPT's server."""
    return [
        "job=serve", "engine=litgpt_serve", *MODEL, f"job.init_from={model}", "serving.client=ab", "serving.prompts=1",
        "serving.warmup_requests=2", "serving.output_tokens=8", "ranks_per_node=1",
    ]  # fmt: skip


def killed_in_the_middle(run: RunDir, given: list[str], model: str) -> str:
    """Submit a run, kill one of its replicas during the load, and return the error of the run after all have gone."""

    def kill() -> None:
        wait_until(run.load_log.exists, 600)
        # Its forks have its command line, and after an overflow of process ids perhaps smaller ids.
        replicas = [each for each in psutil.process_iter() if is_replica(each, model)]
        min(replicas, key=psutil.Process.create_time).kill()

    killer = threading.Thread(target=kill)
    killer.start()
    assert main(["submit", "--wait", *given]) != 0
    killer.join()
    wait_until(lambda: not any(is_replica(each, model) for each in psutil.process_iter()))
    (error,) = [str(event["error"]) for event in events(run, "failed") if event["cause"] != "lost_peer"]
    return error


@pytest.mark.long
def test_litgpt_serve_answers_the_load_of_apache_bench(tmp_path: Path) -> None:
    require_litgpt_serve()
    model = litgpt_directory(tmp_path / "model", "float32")
    run = make_run(tmp_path, *litgpt_serving(model), "serving.requests=8", "serving.concurrency=2", small=False)
    assert train(run) == [0], output(run)
    run.plan.write_text("{}")
    found = read_run(run.path)
    assert (found.state, found.values[a.REQUESTS_COMPLETED]) == ("served", 8)
    assert found.values[a.REQUEST_LATENCY["median"]] > 0


@pytest.mark.long
@pytest.mark.slurm
@pytest.mark.usefixtures("empty_queue")
def test_two_replicas_of_a_small_llama_serve_on_slurm_and_one_that_is_killed_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    require_litgpt_serve()
    model = litgpt_directory(tmp_path / "model", "float32")
    given = [*litgpt_serving(model), "cluster=generic_slurm", "nodes=2", f"runs_dir={tmp_path}/runs", "sweep=s"]
    assert main(["submit", "-m", "--wait", *given, "serving.requests=16", "serving.concurrency=2,4"]) == 0, printed(
        capsys
    )
    sweep = SweepDir(tmp_path / "runs/s")
    assert main(["report", str(sweep.path)]) == 0
    rows = list(csv.DictReader((sweep.path / "runs.csv").read_text().splitlines()))
    assert [(row["state"], float(row["requests_completed"])) for row in rows] == [("served", 16)] * 2
    lasting = ("serving.requests=100000", "launcher.requeues=0", "name=killed")
    error = killed_in_the_middle(sweep.run("killed"), [*given, *lasting], str(model))
    assert error.startswith("replica ")
    assert "was ended by SIGKILL" in error


@pytest.mark.long
@pytest.mark.slurm
@pytest.mark.usefixtures("empty_queue")
def test_two_replicas_of_vllm_serve_on_slurm_and_one_that_is_killed_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = with_random_weights(model_directory(tmp_path / "model"))
    given = vllm_serving(vllm_python(), model, f"runs_dir={tmp_path}/runs", "sweep=s", "ranks_per_node=2",
                         "cluster=generic_slurm")  # fmt: skip
    assert main(["submit", "--wait", *given, "name=whole"]) == 0, printed(capsys)
    sweep = SweepDir(tmp_path / "runs/s")
    checked(sweep.run("whole"), row(sweep), 24)
    lasting = ("serving.requests=2000", "serving.output_tokens=128", "launcher.requeues=0", "name=killed")
    error = killed_in_the_middle(sweep.run("killed"), [*given, *lasting], str(model))
    assert error.startswith("replica ")
    assert "was ended by SIGKILL" in error


@pytest.mark.long
@pytest.mark.slurm
@pytest.mark.usefixtures("empty_queue")
def test_a_replica_spans_two_nodes_of_slurm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = tiny_serving(model_directory(tmp_path / "model"), f"runs_dir={tmp_path}/runs", "sweep=s",
                         f"engine.server.command={listed(SPANNING)}")  # fmt: skip
    assert main(["submit", "--wait", *given, *OVER_TWO_NODES]) == 0, printed(capsys)
    check_spanned(SweepDir(tmp_path / "runs/s"), 40)


@pytest.mark.long
@pytest.mark.slurm
@pytest.mark.usefixtures("empty_queue")
def test_vllms_processes_on_two_nodes_of_slurm_meet_and_report_counters_until_the_first_prompt(tmp_path: Path) -> None:
    """Show how far vLLM 0.32 for CPUs comes: it computes no pipeline (its gpu_model_runner.py fails)."""
    model = with_random_weights(model_directory(tmp_path / "model"))
    given = vllm_serving(vllm_python(), model, f"runs_dir={tmp_path}/runs", "sweep=s",
                         f"engine.server.command={listed(vllm_serve_command())}")  # fmt: skip
    assert main(["submit", "--wait", *given, *OVER_TWO_NODES]) != 0
    (run,) = SweepDir(tmp_path / "runs/s").runs()
    assert next(read_records(run.replica_samples(0)))["kv_cache_use"] == 0, "the replica was ready"
    second = (run.serving / "replica-0-node-1.log").read_text()
    assert "Worker_PP1" in second
    assert "in sync_and_gather_intermediate_tensors" in second
    (error, *_) = failures(run)
    assert error.startswith("replica 0")
    assert re.search(r"the cause is in replica-0-node-1\.log:\d+: AssertionError", error), error
    assert not any(is_replica(each, str(model)) for each in psutil.process_iter())


OVER_TWO_NODES = ("cluster=generic_slurm", "nodes=2", "ranks_per_node=1", "parallelism=pp")


def check_spanned(sweep: SweepDir, requests: int) -> None:
    """Compare the row of a run with one replica on two nodes with its result, and find the log of each node."""
    (run,) = sweep.runs()
    found = row(sweep)
    (started,), (served,) = events(run, "started"), events(run, "served")
    assert len(started["nodes"]) == 2  # type: ignore[arg-type]  # a list, which events do not declare
    assert served["server_requests"] == requests
    assert (found["state"], float(found["requests_completed"]), float(found["output_tokens_gap"])) == (
        "served", requests, 0,
    )  # fmt: skip
    assert sorted(file.name for file in run.serving.glob("replica-*.log")) == ["replica-0-node-1.log", "replica-0.log"]
    assert "| 1 | 1 x 2 |" in (sweep.path / "report.md").read_text(), "one replica, TP x PP"


def is_replica(process: psutil.Process, model: str) -> bool:
    try:
        words = process.cmdline()
        return model in words and any("vllm.entrypoints" in word or word == "serve" for word in words)
    except psutil.Error:
        return False

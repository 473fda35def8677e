"""The load: prompts on disk, and the command of the load generator."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from jobs.data.tokenizer import load_tokenizer, tokenizer_files
from jobs.output import write_file
from jobs.rundir import RunDir
from jobs.schema import Run
from jobs.settings.serving import NO_MODEL, LoadGenerator, Serving
from jobs.work.program.substitution import filled
from jobs.work.serve.prompts import pool
from jobs.work.serve.weights import served_directory

# The command `vllm bench serve` does the same, and does not start in vLLM's build for CPUs.
VLLM_BENCHMARK = """\
import argparse
from vllm.benchmarks.serve import add_cli_args, main
parser = argparse.ArgumentParser()
add_cli_args(parser)
main(parser.parse_args())"""
COMMANDS = {
    LoadGenerator.vllm: [
        "{python}", "-c", VLLM_BENCHMARK, "--backend", "openai", "--base-url", "{url}", "--endpoint", "{endpoint}",
        "--model", "{model}", "--dataset-name", "custom", "--dataset-path", "{prompts}", "--skip-chat-template",
        "--custom-output-len", "{output_tokens}", "--num-prompts", "{requests}", "--max-concurrency", "{concurrency}",
        "--request-rate", "{rate}", "--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,90,95,99",
        "--seed", "{seed}", "--disable-tqdm", "--save-result", "--result-filename", "{result}",
    ],
    # Tokens are those that the server reports: text that is tokenized again may have others.
    LoadGenerator.aiperf: [
        "{python}", "-m", "aiperf", "profile", "--model", "{model}", "--tokenizer", "{model}", "--url", "{url}",
        "--custom-endpoint", "{endpoint}", "--endpoint-type", "completions", "--streaming", "--use-server-token-count",
        "--use-legacy-max-tokens", "--input-file", "{prompts}", "--custom-dataset-type", "single_turn",
        "--extra-inputs", "max_tokens:{output_tokens}", "--request-count", "{requests}", "--concurrency",
        "{concurrency}", "--random-seed", "{seed}", "--artifact-dir", "{directory}", "--profile-export-prefix",
        "{name}", "--export-level", "summary", "--ui", "none",
    ],
    LoadGenerator.ab: [
        "ab", "-l", "-q", "-s", "3600", "-n", "{requests}", "-c", "{concurrency}", "-T", "application/json", "-p",
        "{body}", "{url}{endpoint}",
    ],
}  # fmt: skip
# AIPerf 0.13 reads the tokenizer of a local directory only where it believes that it is online.
ENVIRONMENT = {LoadGenerator.aiperf: {"HF_HUB_OFFLINE": "", "TRANSFORMERS_OFFLINE": ""}}
# Variables in which load generators take an API key. AIPerf and ApacheBench take it on their command line only, where
# every user of the node reads it.
KEY_VARIABLES = {LoadGenerator.vllm: "OPENAI_API_KEY"}
# Names of the three limits, of vLLM's benchmark and of AIPerf, whose "inter token latency" is one value per request.
LIMITS = {
    LoadGenerator.vllm: ("ttft", "tpot", "e2el"),
    LoadGenerator.aiperf: ("time_to_first_token", "inter_token_latency", "request_latency"),
}
REMEDY = {
    LoadGenerator.vllm: "Set engine.server.python=PATH to the Python that has vLLM and pandas (its extra `bench`).",
    LoadGenerator.aiperf: "Set serving.client_python=PATH to the Python that has AIPerf (pip install aiperf).",
    LoadGenerator.ab: "Install ApacheBench (Debian: apache2-utils), or set serving.client=vllm.",
}


def prompt_pool(run: Run) -> list[str]:
    """Return the prompts that the requests of a run draw from."""
    assert run.serving is not None
    assert run.job.init_from is not None
    if run.rehearsal is not None and Path(run.job.init_from).name == NO_MODEL:
        return pool(run.serving.prompts, run.serving.input_tokens, run.job.seed, lambda texts: [[0] for _ in texts])
    tokenizer = load_tokenizer(tokenizer_files(Path(run.job.init_from)))
    return pool(run.serving.prompts, run.serving.input_tokens, run.job.seed, tokenizer.raw_encode)


def write_requests(run: Run, directory: RunDir, name: str, prompts: Sequence[str]) -> dict[str, Path]:
    """Write the prompts of a load, one JSON object per line, and the body of ApacheBench's only request."""
    assert run.serving is not None
    files = {"prompts": directory.serving / f"{name}-prompts.jsonl", "body": directory.serving / "request.json"}
    # The key that vLLM's benchmark reads, and AIPerf's.
    lines = (json.dumps({"prompt": prompt, "text": prompt}) for prompt in prompts)
    write_file(files["prompts"], "".join(f"{line}\n" for line in lines))
    model = str(served_directory(run, directory))
    body = {"model": model, "prompt": prompts[0], "max_tokens": run.serving.output_tokens}
    write_file(files["body"], json.dumps(body))
    return files


def load_command(
    run: Run, directory: RunDir, url: str, *, requests: int, concurrency: int, prompts: Path, body: Path, result: Path
) -> list[str]:
    """Return the command that sends this number of requests."""
    s = run.serving
    assert s is not None
    assert run.engine.server is not None
    values = {
        "python": found_python(s.client_python) if s.client_python else server_python(run),
        "url": url,
        "endpoint": run.engine.server.endpoint,
        "model": served_directory(run, directory),
        "prompts": prompts,
        "body": body,
        "result": result,
        "requests": requests,
        # ApacheBench refuses more connections than requests.
        "concurrency": min(concurrency, requests),
        "rate": "inf" if s.requests_per_s is None else s.requests_per_s,
        "output_tokens": s.output_tokens,
        "limits": " ".join(limits(s)),
        "seed": run.job.seed,
        "directory": result.parent,
        "name": result.stem,
    }
    return filled(s.client_command or [*COMMANDS[s.client], *optional(s)], values)


def server_key(run: Run, key: str) -> dict[str, str]:
    """Return the variable by which a server requires an API key; empty if it, or the load generator, takes none.

    A load generator's own command (serving.client_command) may send none.
    """
    assert run.serving is not None
    assert run.engine.server is not None
    variable, sends = run.engine.server.key_variable, run.serving.client in KEY_VARIABLES
    return {variable: key} if variable is not None and sends and run.serving.client_command is None else {}


def client_environment(run: Run, key: str) -> dict[str, str]:
    """Return the variables of a load generator, with the API key if the server requires it."""
    assert run.serving is not None
    assert run.engine.server is not None
    client = run.serving.client
    own = {KEY_VARIABLES[client]: key} if server_key(run, key) else {}
    return run.engine.server.env | ENVIRONMENT.get(client, {}) | own


def optional(serving: Serving) -> list[str]:
    """Return the options of a load generator that only some loads have."""
    given = limits(serving)
    if serving.client is not LoadGenerator.aiperf:
        # vLLM takes each limit as an argument of its own, AIPerf all of them in one.
        return ["--goodput", *given] if given else []
    rate = [] if serving.requests_per_s is None else ["--request-rate", "{rate}"]
    return [*rate, *(["--goodput", "{limits}"] if given else [])]


def limits(serving: Serving) -> list[str]:
    """Return the limits of good requests as the load generator takes them, in milliseconds: `ttft:500`."""
    of = serving.limits
    given = (of.time_to_first_token_s, of.time_per_output_token_s, of.request_latency_s)
    names = LIMITS.get(serving.client, LIMITS[LoadGenerator.vllm])
    return [f"{name}:{1e3 * limit_s:g}" for name, limit_s in zip(names, given, strict=True) if limit_s is not None]


def found_python(python: str) -> str:
    """Return the path of a Python by its name or path."""
    return shutil.which(python) or python


def server_python(run: Run) -> str:
    """Return the Python of server and load generator."""
    assert run.engine.server is not None
    python = run.engine.server.python
    return sys.executable if python is None else found_python(python)

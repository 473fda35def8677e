"""Models in Hugging Face's layout, and runs that serve them by a tiny server or by vLLM."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from jobs.data.tokenizer import CONFIG, train_bpe
from jobs.plan.compose import compose
from jobs.plan.rules.rehearsal import CLIENT_WORDS
from jobs.rundir import RunDir
from tests.support.paths import ROOT
from tests.support.real_run import events, train
from tests.support.required import skip_or_fail
from tests.support.tiny_data import SENTENCES
from tests.support.waiting import wait_until

SHAPE: dict[str, Any] = {
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "hidden_size": 256,
    "intermediate_size": 512,
    "vocab_size": 2048,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
MODEL = ("model.layers=2", "model.heads=4", "model.kv_heads=2", "model.head_size=64", "model.hidden_size=256",
         "model.intermediate_size=512", "model.vocab_size=2048")  # fmt: skip
STAND_IN = ROOT / "jobs/work/serve/stand_in"
CLIENT = ["{python}", str(STAND_IN / "client.py"), *CLIENT_WORDS]
SERVER = ["{python}", str(STAND_IN / "server.py"), "{host}", "{port}"]
SPANNING = [
    "{python}", str(ROOT / "tests/support/spanning_server.py"), "{host}", "{port}", "--stages={pipeline}",
    "--nodes={nodes}", "--node-rank={node_rank}", "--head={head}", "--head-port={head_port}", "{headless}",
]  # fmt: skip
# What `vllm serve` does, which itself does not start in vLLM's build for CPUs.
VLLM_SERVE = (
    "from vllm.entrypoints.cli.serve import FlexibleArgumentParser, ServeSubcommand, make_arg_parser; "
    "ServeSubcommand.cmd(make_arg_parser(FlexibleArgumentParser()).parse_args())"
)
VLLM = ROOT / ".venv-serve/bin/python"
LONG_LOAD = ("serving.requests=4000", "serving.output_tokens=256")


def vllm_python() -> Path:
    """Return the Python of `make vllm-env`; skip the test without it."""
    if not (VLLM.parent.parent / "vllm.done").exists():
        skip_or_fail("vLLM is not installed: run make vllm-env")
    return VLLM


def model_directory(where: Path) -> Path:
    """Make the directory of a Llama of SHAPE, without weights."""
    where.mkdir(parents=True)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", **SHAPE}
    (where / "config.json").write_text(json.dumps(config | {"torch_dtype": "bfloat16"}))
    train_bpe(SENTENCES, SHAPE["vocab_size"], where)
    (where / "model.safetensors").touch()
    assert (where / CONFIG).exists()
    return where


def with_random_weights(directory: Path) -> Path:
    """Give a model directory random weights, by Hugging Face's names of a Llama."""
    import torch
    from safetensors.torch import save_file

    hidden, inner, head = SHAPE["hidden_size"], SHAPE["intermediate_size"], SHAPE["head_dim"]
    queries, keys = SHAPE["num_attention_heads"] * head, SHAPE["num_key_value_heads"] * head
    layer = {
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    shapes = {
        "model.embed_tokens": (SHAPE["vocab_size"], hidden),
        "model.norm": (hidden,),
        "lm_head": (SHAPE["vocab_size"], hidden),
        **{
            f"model.layers.{i}.{name}": shape
            for i in range(SHAPE["num_hidden_layers"])
            for name, shape in layer.items()
        },
    }
    draw = torch.Generator().manual_seed(0)
    weights = {
        f"{name}.weight": (torch.randn(shape, generator=draw) * 0.02).bfloat16() if len(shape) > 1
        else torch.ones(shape, dtype=torch.bfloat16)
        for name, shape in shapes.items()
    }  # fmt: skip
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def litgpt_directory(where: Path, precision: str = "bfloat16") -> Path:
    """Make a LitGPT directory of a Llama of SHAPE with random weights."""
    import torch
    from litgpt.config import Config
    from litgpt.model import GPT
    from litgpt.utils import save_config

    from jobs.engines.litgpt.names import litgpt_fields

    where.mkdir(parents=True)
    (point,) = compose(["launcher=dry", *MODEL, f"model.max_sequence_length={SHAPE['max_position_embeddings']}"],
                       multirun=False)  # fmt: skip
    torch.manual_seed(0)
    config = Config(**litgpt_fields(point.run.model))
    torch.save(GPT(config).to(getattr(torch, precision)).state_dict(), where / "lit_model.pth")
    save_config(config, where)
    train_bpe(SENTENCES, SHAPE["vocab_size"], where)
    return where


def listed(words: list[str]) -> str:
    """Return words as a list on the command line of Hydra."""
    return json.dumps(words)


def tiny_serving(model: Path, *overrides: str) -> list[str]:
    """Return the overrides of a run that serves a model by the tiny server under a small load."""
    return [
        "job=serve", "engine=vllm", *MODEL, f"job.init_from={model}", "ranks_per_node=1",
        f"engine.server.command={listed(SERVER)}", f"serving.client_command={listed(CLIENT)}",
        "serving.requests=40", "serving.warmup_requests=4", "serving.prompts=8", "serving.concurrency=4",
        "serving.output_tokens=16", "engine.server.startup_limit_s=120", *overrides,
    ]  # fmt: skip


def vllm_serving(python: Path, model: Path, *overrides: str) -> list[str]:
    """Return the overrides of a run that serves a model by vLLM on CPUs under a small load."""
    return [
        "job=serve", "engine=vllm_cpu", *MODEL, f"job.init_from={model}", f"engine.server.python={python}",
        "serving.requests=24", "serving.warmup_requests=4", "serving.prompts=8", "serving.concurrency=4",
        "serving.output_tokens=32", *overrides,
    ]  # fmt: skip


def servers() -> list[psutil.Process]:
    """The tiny servers below this process."""
    found = []
    for each in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it ended, or waits only to be reaped
            if any("stand_in/server.py" in word or "support/spanning_server.py" in word for word in each.cmdline()):
                found.append(each)
    return found


def in_the_middle(run: RunDir, act: Callable[[list[psutil.Process]], None]) -> list[int | None]:
    """Train with an act when the load is under way; return the exit codes of the ranks."""
    found: list[psutil.Process] = []

    def wait_and_act() -> None:
        wait_until(run.load_log.exists, 120)
        found.extend(servers())
        act(found)

    with ThreadPoolExecutor(1) as thread:
        acting = thread.submit(wait_and_act)
        codes = train(run, timeout_s=120)
        acting.result()  # an act that failed halfway fails the test, not two minutes later something else
    wait_until(lambda: not any(server.is_running() for server in found), 30)
    return codes


def failures(run: RunDir) -> list[str]:
    return [str(event["error"]) for event in events(run, "failed") if event["cause"] != "lost_peer"]


def vllm_serve_command() -> list[str]:
    """Return the command of engine=vllm, for vLLM's build for CPUs."""
    (point,) = compose(["job=serve", "engine=vllm"], multirun=False)
    assert point.run.engine.server is not None
    python, *_, model = point.run.engine.server.command[:5]
    return [python, "-c", VLLM_SERVE, model, *point.run.engine.server.command[5:]]

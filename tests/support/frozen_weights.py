"""Runs that train adapters or virtual tokens beside frozen weights, and the same training by torch alone."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
import yaml
from litgpt import lora as litgpt_lora
from litgpt.config import Config
from litgpt.model import GPT
from torch import Tensor

from jobs.data import Batches, open_dataset, prepare
from jobs.engines.litgpt.names import litgpt_fields
from jobs.engines.native.weights import values_of
from jobs.rundir import RunDir, load_run
from jobs.runtime.learning_rate import learning_rate
from jobs.schema import Run
from tests.support import ring_on_cpu
from tests.support.real_run import evaluate, events, make_run, printed, train
from tests.support.required import need_bitsandbytes

# Six steps in float32 that end with an export.
FROZEN = (
    "job.epochs=null",
    "job.precision=float32",
    "job.warmup_steps=1",
    "job.export=true",
    "scaling.global_batch_size=8",
)
LORA = ("job=finetune_lora", "job.lora.rank=4", "job.lora.alpha=8", "job.learning_rate=1e-2", *FROZEN)
TOKENS = torch.randint(0, 320, (2, 32), generator=torch.Generator().manual_seed(0))
NF4 = "job.lora.quantize_base=nf4"
FREE = ("job=prompt_tuning", "job.learning_rate=1e-2", *FROZEN)
MLP = ("job=p_tuning", "job.prompt_tuning.virtual_tokens=8", "job.prompt_tuning.encoder_hidden_size=24", *FROZEN,
       "job.learning_rate=1e-3")  # fmt: skip
CUSTOMIZATIONS = {
    "lora": LORA,
    "qlora": (*LORA, NF4),
    "free": FREE,
    "mlp": MLP,
    "lstm": (*MLP, "job.prompt_tuning.encoder=lstm"),
}
"""Adapters, and virtual tokens by their encoder."""
VIRTUAL_TOKENS = ("free", "mlp", "lstm")
ONE = ("parallelism=single", "ranks_per_node=1", "job.micro_batch_size=4")


def base_weights(where: Path, *overrides: str) -> Path:
    """A LitGPT directory of weights large enough for what trains with them to change the loss."""
    run = load_run(make_run(where / "shapes", *FROZEN, *ONE, *overrides).config)
    values, gpt = values_of(None, 5), GPT(Config(**litgpt_fields(run.model)))
    state = {
        name: 4 * values(name, weight.shape, weight.dtype, weight.device) for name, weight in gpt.named_parameters()
    }
    torch.save(state, where / "lit_model.pth")
    return where


def run_on(base: Path, where: Path, *overrides: str) -> RunDir:
    """A finished run whose frozen weights are those of a directory."""
    run = make_run(where, f"job.init_from={base}", *overrides)
    assert set(train(run)) == {0}, printed(run)
    return run


def customized(name: str, base: Path, where: Path, *overrides: str) -> RunDir:
    """A finished run that trains one of CUSTOMIZATIONS on the base."""
    if name == "qlora":
        need_bitsandbytes()
    return run_on(base, where, *CUSTOMIZATIONS[name], *overrides)


def losses_by_torch(run: Run, trained: Sequence[Tensor], logits: Callable[[Tensor], Tensor]) -> list[float]:
    """Losses of the run's six steps by torch's AdamW in this process; `logits` are those of rows of tokens."""
    job = run.job
    data = open_dataset(prepare(run.data, sequence_length=32, vocab_size=320, seed=job.seed))
    batches = Batches(data, global_batch_size=8, micro_batch_size=8, dp=1, dp_rank=0, seed=job.seed)
    adamw = torch.optim.AdamW(trained, betas=(job.beta1, job.beta2), weight_decay=job.weight_decay)
    found = []
    for step in range(1, 7):
        ((inputs, targets, *_),) = batches.step(step).micro_batches
        loss = F.cross_entropy(logits(torch.from_numpy(inputs)).flatten(0, 1), torch.from_numpy(targets).flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, job.clip_norm or torch.inf)
        adamw.param_groups[0]["lr"] = learning_rate(job, step, 6)
        adamw.step()
        adamw.zero_grad()
        found.append(loss.item())
    return found


def lora_run(where: Path, base: Path, *overrides: str) -> RunDir:
    """A run of six steps that trains adapters on the base."""
    return customized("lora", base, where, *overrides)


def logits(export: Path) -> torch.Tensor:
    """Logits of an export in stock LitGPT, by arithmetic in float64: two float32 ones differ by 1e-4 here."""
    gpt = GPT(Config.from_file(export / "model_config.yaml"))
    gpt.load_state_dict(torch.load(export / "lit_model.pth", weights_only=True))
    with torch.no_grad():
        found: torch.Tensor = gpt.double()(TOKENS)
    return found


def logits_of_adapters(run: RunDir, base: Path) -> torch.Tensor:
    """Logits of the base and the exported adapters in litgpt.lora, which adds them in its forward pass."""
    metadata = yaml.safe_load((run.export / "hyperparameters.yaml").read_text())
    chosen = {key: value for key, value in metadata.items() if key.startswith("lora_")}
    gpt = litgpt_lora.GPT(litgpt_lora.Config.from_file(run.export / "model_config.yaml", **chosen))
    adapters = torch.load(run.export / "lit_model.pth.lora", weights_only=True)["model"]
    gpt.load_state_dict(torch.load(base / "lit_model.pth", weights_only=True) | adapters)
    with torch.no_grad():
        found: torch.Tensor = gpt.double().eval()(TOKENS)
    return found


def assert_evaluated_alike(run: RunDir) -> None:
    """Evaluate the export of a run, and without it its checkpoint: their losses are the same."""
    found = []
    for export in (True, False):
        if not export:
            shutil.rmtree(run.export)
        assert evaluate(run) == 0, printed(run)
        found.append(float(str(events(run, "evaluated")[-1]["evaluation_loss"])))
    assert abs(found[0] - found[1]) <= 1e-5, found


def on_a_ring(where: Path, base: Path, *overrides: str) -> RunDir:
    """A finished run whose sequences are cut over ranks.

    Composition refuses context parallelism without GPUs, and the tests bring a kernel for CPUs.
    """
    ring = ("parallelism=cp_fsdp", "job.micro_batch_size=2", "launcher=dry", "cluster.gpus=true",
            "cluster.ranks_per_node=8")  # fmt: skip
    run = make_run(where, f"job.init_from={base}", *ring, *overrides)
    assert set(ring_on_cpu.train(run)) == {0}, printed(run)
    return run

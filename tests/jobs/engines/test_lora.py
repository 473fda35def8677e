"""Native LoRA beside litgpt.lora and PEFT: losses of one process, and adapters as files."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from litgpt import lora as litgpt_lora
from litgpt.config import Config
from litgpt.scripts.convert_lit_checkpoint import copy_weights_llama
from litgpt.scripts.merge_lora import merge_lora
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

from jobs.engines.litgpt.names import litgpt_fields
from jobs.engines.native.customization.lora import AdaptedLinear, adapt_linear, with_adapters
from jobs.engines.native.weights import values_of
from jobs.plan.cost import parameters, trained_parameters
from jobs.plan.predict.states import parameters_held
from jobs.rundir import RunDir, load_run
from jobs.schema import Lora, LoraTarget, Run
from tests.support.frozen_weights import (
    ONE,
    TOKENS,
    base_weights,
    logits,
    lora_run,
    losses_by_torch,
)
from tests.support.real_run import events, losses, steps
from tests.support.training import assert_equal

FEW = "job.lora.targets=[query,value,mlp]"
EXPERTS = ("model.mlp=LLaMAMoE", "model.experts=4", "model.experts_per_token=2")


PARTS = ((16, 8, 8), (True, False, True))


def adapted(dropout: float, *parts: Any) -> AdaptedLinear:
    """A frozen matrix in float64 with a bias and an adapter that is not 0."""
    linear = nn.Linear(24, 32, dtype=torch.float64).requires_grad_(False)
    adapt_linear(linear, Lora(rank=2, alpha=3, dropout=dropout), torch.float64, *parts)
    assert isinstance(linear, AdaptedLinear)
    for parameter in (linear.lora_A, linear.lora_B):
        nn.init.normal_(parameter)
    return linear


@pytest.fixture(scope="module")
def single(one_process: Callable[[str], RunDir]) -> RunDir:
    return one_process("lora")


# --- one matrix ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("parts", [(), PARTS], ids=["whole", "query and value"])
def test_gradients_of_an_adapted_matrix_are_those_of_its_equation(dropout: float, parts: Any) -> None:
    linear = adapted(dropout, *parts)
    x, dy = torch.randn(2, 5, 24, dtype=torch.float64, requires_grad=True), torch.randn(2, 5, 32, dtype=torch.float64)
    trained = (x, linear.lora_A, linear.lora_B)
    state = torch.get_rng_state()
    kept = torch.ones_like(x) if (mask := linear.kept(x, 1, 0)) is None else mask / (1 - dropout)
    inner = F.linear(x * kept, linear.lora_A).chunk(2 if parts else 1, -1)
    results = [F.linear(own, b) for own, b in zip(inner, linear.lora_B.split([16, 8] if parts else 32), strict=True)]
    change = torch.cat((results[0], torch.zeros(2, 5, 8), results[1]), -1) if parts else results[0]
    expected = F.linear(x, linear.weight, linear.bias) + 1.5 * change
    torch.set_rng_state(state)
    found = linear(x)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        torch.autograd.grad(found.mul(1), trained, dy), torch.autograd.grad(expected, trained, dy)
    )


class Counted(AdaptedLinear):
    """Count how often W is needed."""

    needed = 0

    @property
    def plain(self) -> Callable[[torch.Tensor], torch.Tensor]:
        def counted(weight: torch.Tensor) -> torch.Tensor:
            self.needed += 1
            return weight

        return counted


def test_the_second_half_of_a_zero_bubble_schedule_does_not_need_the_frozen_matrix() -> None:
    linear, x = adapted(0.3), torch.randn(5, 24, dtype=torch.float64, requires_grad=True)
    linear.__class__, weights = Counted, [linear.lora_A, linear.lora_B]
    torch.manual_seed(0)
    expected = torch.autograd.grad(linear(x * 1).sum(), (x, *weights))
    torch.manual_seed(0)
    y = linear(x * 1)
    (of_x,), groups = stage_backward_input([y], [torch.ones_like(y)], [x], iter(weights))
    needed = linear.needed
    stage_backward_weight(iter(weights), groups)
    assert linear.needed == needed
    torch.testing.assert_close((of_x, *(weight.grad for weight in weights)), expected)


# --- losses --------------------------------------------------------------------------------------------------


def losses_by_litgpt(run: Run) -> list[float]:
    """Losses of the run's steps by litgpt.lora and torch's AdamW in this process, from the run's first weights."""
    job = run.job
    assert job.lora is not None
    chosen = {f"lora_{target.name}": target in job.lora.targets for target in LoraTarget}
    config = litgpt_lora.Config(**litgpt_fields(run.model), lora_r=4, lora_alpha=8, lora_dropout=0.0, **chosen)
    model, values = litgpt_lora.GPT(config), with_adapters(values_of(job.init_from, job.seed), job.seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(values(name.replace(".linear.", "."), weight.shape, weight.dtype, weight.device))
    litgpt_lora.mark_only_lora_as_trainable(model)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return losses_by_torch(run, trained, model)


def test_losses_are_those_of_litgpts_adapters(single: RunDir) -> None:
    expected = losses_by_litgpt(load_run(single.config))
    assert losses(single) == pytest.approx(expected, abs=1e-6)
    assert expected[-1] < expected[0] - 0.5, "adapters that learn nothing would hide a wrong update"


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("overrides", [(FEW,), EXPERTS, ("engine.loss=chunked",)], ids=" ".join)
def test_losses_are_those_of_litgpts_adapters_in_other_models(overrides: tuple[str, ...], tmp_path: Path) -> None:
    of_model = [each for each in overrides if each != FEW]
    run = lora_run(tmp_path, base_weights(tmp_path, *of_model), *ONE, *overrides)
    assert losses(run) == pytest.approx(losses_by_litgpt(load_run(run.config)), abs=1e-5)


@pytest.mark.slow
@pytest.mark.long
def test_the_degree_of_tp_does_not_change_what_dropout_drops(base: Path, tmp_path: Path) -> None:
    dropout = ("job.lora.dropout=0.3", "job.micro_batch_size=8")
    one = lora_run(tmp_path, base, *ONE, *dropout)
    assert_equal(steps(lora_run(tmp_path, base, "parallelism=tp", "ranks_per_node=2", *dropout)), steps(one))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(
    "layout", [("parallelism=fsdp_full", "ranks_per_node=2"), ("parallelism=tp", "ranks_per_node=2")]
)
def test_frozen_weights_in_bfloat16_train_close_to_float32(
    layout: tuple[str, ...], single: RunDir, base: Path, tmp_path: Path
) -> None:
    run = lora_run(tmp_path, base, *layout, "job.precision=bfloat16")
    assert losses(run) == pytest.approx(losses(single), abs=0.05)


# --- files ---------------------------------------------------------------------------------------------------


def test_the_plan_and_the_record_count_what_trains(single: RunDir) -> None:
    run = load_run(single.config)
    (layout,) = events(single, "layout")
    adapters = torch.load(single.export / "lit_model.pth.lora", weights_only=True)["model"]
    trained = sum(weight.numel() for weight in adapters.values())
    assert layout["parameters_trained"] == trained_parameters(run) == trained
    assert layout["parameters_held"] == parameters_held(run).total == parameters(run.model) + trained


@pytest.mark.filterwarnings("ignore:The `srun` command is available")
def test_litgpts_own_script_merges_the_adapters_to_the_same_logits(single: RunDir, base: Path, tmp_path: Path) -> None:
    export = shutil.copytree(single.export, tmp_path / "export")
    merged = logits(export)
    (export / "lit_model.pth").unlink()
    for directory in (base, export):
        shutil.copy(single.export / "model_config.yaml", directory)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (directory / name).touch()
    merge_lora(export)
    torch.testing.assert_close(logits(export), merged, rtol=0, atol=1e-5)


def test_peft_reads_the_adapters_and_has_the_same_logits(single: RunDir, base: Path, tmp_path: Path) -> None:
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    fields = load_run(single.config).model
    config = transformers.LlamaConfig(
        hidden_size=fields.hidden_size, intermediate_size=fields.intermediate_size, num_hidden_layers=fields.layers,
        num_attention_heads=fields.heads, num_key_value_heads=fields.kv_heads, vocab_size=fields.vocab_size,
        max_position_embeddings=fields.max_sequence_length, rms_norm_eps=fields.norm_eps, head_dim=fields.head_size,
    )  # fmt: skip
    named: dict[str, torch.Tensor] = {}
    copy_weights_llama(Config(**litgpt_fields(fields)), named, torch.load(base / "lit_model.pth", weights_only=True))
    llama = transformers.LlamaForCausalLM(config).eval()
    llama.load_state_dict(named)
    adapted = peft.PeftModel.from_pretrained(llama, single.export / "peft").double()
    with torch.no_grad():
        torch.testing.assert_close(adapted(TOKENS).logits, logits(single.export), rtol=0, atol=1e-5)

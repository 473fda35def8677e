"""Native LoRA beside litgpt.lora and PEFT: losses of one process, and adapters as files."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from litgpt import lora as litgpt_lora
from litgpt.config import Config
from litgpt.scripts.convert_lit_checkpoint import copy_weights_llama
from litgpt.scripts.merge_lora import merge_lora

from jobs.engines.litgpt.names import litgpt_fields
from jobs.engines.native.customization.lora import with_adapters
from jobs.engines.native.weights import values_of
from jobs.plan.cost import parameters, trained_parameters
from jobs.plan.predict.states import parameters_held
from jobs.rundir import RunDir, load_run
from jobs.schema import LoraTarget, Run
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


@pytest.fixture(scope="module")
def single(one_process: Callable[[str], RunDir]) -> RunDir:
    return one_process("lora")


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

"""Prompt tuning and P-tuning beside PEFT: losses of one process, and the exported files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from litgpt.config import Config
from litgpt.model import GPT
from litgpt.scripts.convert_lit_checkpoint import copy_weights_llama

from jobs.data import Batches, with_virtual_tokens
from jobs.data.dataset import IGNORED, Dataset, Tokens
from jobs.engines.litgpt.names import litgpt_fields
from jobs.engines.native.customization.customize import with_first_values
from jobs.engines.native.customization.prompt_files import read_prompt
from jobs.engines.native.customization.prompt_tuning import PROMPT, TOKENS, encoded, with_prompt
from jobs.engines.native.load_sharded import load_sharded
from jobs.engines.native.parallelize import trained_model
from jobs.engines.native.weights import values_of
from jobs.plan.cost import parameters, trained_parameters
from jobs.plan.legality import problems
from jobs.plan.predict.states import parameters_held
from jobs.plan.predict.weights import encoder_weights
from jobs.rundir import RunDir, load_run
from jobs.schema import Batching, Lora, PromptEncoder, PromptTuning, Run
from tests.support.composing import one
from tests.support.frozen_weights import VIRTUAL_TOKENS, losses_by_torch
from tests.support.real_run import events, losses
from tests.support.training import long

TOKENS_OF_TEXT = torch.randint(0, 320, (2, 24), generator=torch.Generator().manual_seed(0))


# --- losses --------------------------------------------------------------------------------------------------


def losses_by_gpt(run: Run) -> list[float]:
    """Losses of the run's steps by stock LitGPT in this process, as a model of two inputs: embeddings before tokens."""
    job = run.job
    assert job.prompt_tuning is not None
    config, prompt = Config(**litgpt_fields(run.model)), job.prompt_tuning
    gpt, hidden = GPT(config), run.model.hidden_size
    values = with_prompt(values_of(job.init_from, job.seed), prompt, config, job.seed)
    with torch.no_grad():
        for name, weight in gpt.named_parameters():
            weight.copy_(values(name, weight.shape, weight.dtype, weight.device))
    gpt.requires_grad_(False)
    cpu = torch.device("cpu")
    tokens = values(TOKENS, (prompt.virtual_tokens, hidden), torch.float32, cpu).requires_grad_()
    shapes = {
        name: (w.rows, w.columns) if w.columns > 1 else (w.rows,) for name, w in encoder_weights(hidden, prompt).items()
    }
    encoder = {
        name: values(f"{PROMPT}encoder.{name}", shape, torch.float32, cpu).requires_grad_()
        for name, shape in shapes.items()
    }
    trained = [tokens, *encoder.values()]

    def logits(inputs: torch.Tensor) -> torch.Tensor:
        """Return the logits behind the virtual tokens."""
        x = gpt.transformer.wte(inputs)
        x = torch.cat([encoded(tokens, encoder).expand(len(x), -1, -1), x], 1)
        for block in gpt.transformer.h:
            x = block(x, gpt.cos[None, : x.shape[1]], gpt.sin[None, : x.shape[1]])
        found: torch.Tensor = gpt.lm_head(gpt.transformer.ln_f(x))[:, prompt.virtual_tokens :]
        return found

    return losses_by_torch(run, trained, logits)


@pytest.mark.parametrize("kind", VIRTUAL_TOKENS)
def test_losses_are_those_of_stock_litgpt_behind_the_embeddings(
    kind: str, one_process: Callable[[str], RunDir]
) -> None:
    expected = losses_by_gpt(load_run(one_process(kind).config))
    assert losses(one_process(kind)) == pytest.approx(expected, abs=1e-5)
    assert kind != "free" or expected[-1] < expected[0] - 0.3, "tokens that learn nothing would hide a wrong update"


@pytest.mark.parametrize("encoder", PromptEncoder)
def test_encoders_are_pefts(encoder: PromptEncoder) -> None:
    peft = pytest.importorskip("peft")
    theirs = peft.PromptEncoder(
        peft.PromptEncoderConfig(
            num_virtual_tokens=5, token_dim=12, num_transformer_submodules=1, encoder_hidden_size=7,
            encoder_reparameterization_type=encoder.name.upper(), encoder_num_layers=2,
        )
    )  # fmt: skip
    named = dict(theirs.named_parameters())
    tokens = named.pop("embedding.weight")
    ours = encoder_weights(12, PromptTuning(virtual_tokens=5, encoder=encoder, encoder_hidden_size=7))
    assert [(w.rows, w.columns) if w.columns > 1 else (w.rows,) for w in ours.values()] == [
        tuple(weight.shape) for weight in named.values()
    ]
    weights = dict(zip(ours, named.values(), strict=True))
    torch.testing.assert_close(encoded(tokens, weights), theirs(torch.arange(5)[None])[0])


class Unequal(Dataset):
    """Eight samples of 3 to 24 random tokens, whose first two have no label."""

    def __init__(self) -> None:
        lengths = np.arange(3, 27, 3, dtype=np.int32)
        super().__init__(Path(), {"description": "", "tokenizer_files": []}, lengths, (lengths - 2).astype(np.int64))

    def sample(self, index: int) -> tuple[Tokens, Tokens]:
        tokens = np.random.default_rng(index).integers(320, size=self.lengths[index] + 1)
        targets = tokens[1:].copy()
        targets[:2] = IGNORED
        return tokens[:-1], targets


def test_rows_of_unequal_samples_have_one_loss_however_they_are_arranged(one_process: Callable[[str], RunDir]) -> None:
    run = load_run(one_process("mlp").config)
    gpt, cpu = trained_model(run), torch.device("cpu")
    values = with_first_values(values_of(run.job.init_from, run.job.seed), gpt, run.job)
    load_sharded(gpt, cpu, values, tensor=1, tied=False)
    found = {}
    for batching in Batching:
        batches = Batches(
            with_virtual_tokens(Unequal(), 8), global_batch_size=8, micro_batch_size=4, dp=1, dp_rank=0, seed=1,
            batching=batching, row_multiple=3,
        )  # fmt: skip
        batch = batches.step(1)
        assert (batch.tokens, batch.labels) == (108, 92)
        assert batch.padded_tokens >= 108 + 8 * 8
        with torch.no_grad():
            found[batching] = sum(
                float(gpt(*micro_batch.converted(torch.from_numpy))) for micro_batch in batch.micro_batches
            )
    assert found[Batching.packed] == pytest.approx(found[Batching.padded], rel=1e-5)
    assert found[Batching.bucketed] == pytest.approx(found[Batching.padded], rel=1e-5)


# --- settings ------------------------------------------------------------------------------------------------


def test_one_customization_trains_at_a_time() -> None:
    run = one("job=p_tuning", "data=docstrings").run
    both = replace(run, job=replace(run.job, lora=Lora(rank=4, alpha=8)))
    assert any("Set job.prompt_tuning=null (LoRA), or job.lora=null (" in problem for problem in problems(both))


# --- files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", VIRTUAL_TOKENS)
def test_the_plan_and_the_record_count_what_trains(kind: str, one_process: Callable[[str], RunDir]) -> None:
    run = load_run(one_process(kind).config)
    (layout,) = events(one_process(kind), "layout")
    # PEFT's PromptEncoder with 8 tokens, hidden size 48 and inner width 24: an MLP, or an LSTM and an MLP.
    trained = {"free": 384, "mlp": 384 + 2_976, "lstm": 384 + 14_208 + 14_208 + 4_704}[kind]
    assert layout["parameters_trained"] == trained_parameters(run) == trained
    assert layout["parameters_held"] == parameters_held(run).total == parameters(run.model) + trained


@pytest.mark.parametrize("kind", [long("free"), "lstm"])
def test_peft_reads_the_export_and_has_the_same_logits(
    kind: str, one_process: Callable[[str], RunDir], base: Path
) -> None:
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    fields = load_run(one_process(kind).config).model
    gpt = GPT(Config(**litgpt_fields(fields)))
    state = torch.load(base / "lit_model.pth", weights_only=True)
    gpt.load_state_dict(state)
    config = transformers.LlamaConfig(
        hidden_size=fields.hidden_size, intermediate_size=fields.intermediate_size, num_hidden_layers=fields.layers,
        num_attention_heads=fields.heads, num_key_value_heads=fields.kv_heads, vocab_size=fields.vocab_size,
        max_position_embeddings=fields.max_sequence_length, rms_norm_eps=fields.norm_eps, head_dim=fields.head_size,
    )  # fmt: skip
    named: dict[str, torch.Tensor] = {}
    copy_weights_llama(gpt.config, named, state)
    llama = transformers.LlamaForCausalLM(config).eval()
    llama.load_state_dict(named)
    prompted = peft.PeftModel.from_pretrained(llama, one_process(kind).export / "peft")
    assert prompted.peft_config["default"].peft_type.name == {"free": "PROMPT_TUNING", "lstm": "P_TUNING"}[kind]
    with torch.no_grad():
        theirs = prompted(TOKENS_OF_TEXT, attention_mask=torch.ones_like(TOKENS_OF_TEXT)).logits
        x = gpt.transformer.wte(TOKENS_OF_TEXT)
        x = torch.cat([read_prompt(one_process(kind).export).expand(2, -1, -1), x], 1)
        for block in gpt.transformer.h:
            x = block(x, gpt.cos[None, :32], gpt.sin[None, :32])
        ours = gpt.lm_head(gpt.transformer.ln_f(x))
    torch.testing.assert_close(theirs, ours, rtol=0, atol=1e-4)

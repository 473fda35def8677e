"""The native engine's decoder beside LitGPT's GPT: one arithmetic, whatever the model's shape."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from litgpt.config import Config
from litgpt.model import GPT

from jobs.engines.litgpt.names import litgpt_fields
from jobs.engines.native.load_sharded import load_sharded
from jobs.engines.native.mixed_precision import autocast
from jobs.engines.native.model import empty_model
from jobs.engines.native.weights import values_of
from jobs.plan.compose import compose

SHAPES = {
    "as many keys as queries": ("model=tiny", "model.kv_heads=4"),
    "grouped queries": ("model=tiny", "model.kv_heads=2"),
    "a single key": ("model=tiny", "model.kv_heads=1"),
    "half of a head turned": ("model=tiny", "model.rope_fraction=0.5"),
    "normalized queries and keys, half of a head turned": (
        "model=tiny",
        "model.norm_qk=true",
        "model.rope_fraction=0.5",
    ),
    "as Gemma 3": (
        "model=tiny",
        *("model.norm_qk=true", "model.norm_unit_offset=true", "model.norm_place=around", "model.mlp=GemmaMLP"),
        *("model.sliding_window=8", "model.full_attention_every=2", "model.rope_local_base=100"),
        *("model.attention_scores_scalar=48", "model.scale_embeddings=true"),
    ),
    "as Gemma 2": (
        "model=tiny",
        *("model.norm_unit_offset=true", "model.norm_place=around", "model.mlp=GemmaMLP"),
        *("model.sliding_window=8", "model.full_attention_every=2", "model.attention_scores_scalar=48"),
        *("model.attention_softcap=2", "model.logits_softcap=3", "model.scale_embeddings=true"),
    ),
    "as OLMo 2": ("model=tiny", "model.norm_place=after", "model.norm_qk=true", "model.norm_qk_whole=true"),
    "sliding windows in all layers": ("model=tiny", "model.sliding_window=8"),
    "norms, biases and residuals of another kind": ("model=pythia_14m", "model.vocab_size=320"),
}


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_decoder_has_the_loss_and_gradients_of_litgpts_gpt(shape: str, precision: torch.dtype) -> None:
    (point,) = compose([*SHAPES[shape], "ranks_per_node=1"], multirun=False)
    model = point.run.model
    ours = empty_model(model, 24)
    load_sharded(ours, torch.device("cpu"), values_of(None, 5), tensor=1, tied=model.tie_embeddings)
    with torch.no_grad():
        for weight in ours.parameters():
            if weight.ndim == 2:
                weight.mul_(4)  # large enough for attention to matter
            else:
                weight.mul_(torch.linspace(0.5, 1.5, len(weight)))  # a norm's scale differs along a head
                weight.copy_((1 + weight).to(precision) - 1)  # LitGPT's norms do not round it, or 1 + it; ours do
    theirs = GPT(Config(**litgpt_fields(model)))
    theirs.load_state_dict(ours.state_dict())
    tokens = torch.randint(model.vocab_size, (3, 25), generator=torch.Generator().manual_seed(1))
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    with torch.autocast("cpu", precision, enabled=precision is not torch.float32):
        loss = ours(inputs, targets, targets.numel())
        expected = F.cross_entropy(theirs(inputs).float().flatten(0, 1), targets.flatten(), reduction="sum")
    loss.backward()
    expected.backward()
    # In bfloat16 the order of a sum shows.
    of_loss, of_gradient = (1e-6, 1e-5) if precision is torch.float32 else (1e-4, 1.5e-2)
    torch.testing.assert_close(loss, expected, rtol=of_loss, atol=0)
    for (name, own), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert own.grad is not None
        assert other.grad is not None
        assert (own.grad - other.grad).norm() <= of_gradient * other.grad.norm(), name


@pytest.mark.parametrize("shape", SHAPES)
def test_without_fsdp_16_bits_on_float32_weights_are_16_bits_between_all_parts(shape: str) -> None:
    (point,) = compose([*SHAPES[shape], "ranks_per_node=1"], multirun=False)
    gpt = empty_model(point.run.model, 24)
    load_sharded(gpt, torch.device("cpu"), values_of(None, 5), tensor=1, tied=point.run.model.tie_embeddings)
    autocast(gpt, torch.device("cpu"), torch.bfloat16)
    given: dict[str, torch.dtype] = {}
    for name, part in gpt.named_modules():
        if name and not name.endswith("wte"):
            part.register_forward_pre_hook(lambda _, inputs, name=name: given.update({name: inputs[0].dtype}))
    tokens = torch.randint(point.run.model.vocab_size, (3, 24))
    loss = gpt(tokens, tokens, tokens.numel())
    assert {"lm_head", "transformer.ln_f", "transformer.h.1"} < set(given)
    assert set(given.values()) == {torch.bfloat16}
    loss.backward()
    assert all(weight.grad is not None and weight.grad.dtype is torch.float32 for weight in gpt.parameters())

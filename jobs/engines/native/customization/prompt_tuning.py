"""Prompt tuning and P-tuning: trained embeddings of virtual tokens in front of every sample, with all weights frozen.

Prompt tuning (https://arxiv.org/abs/2104.08691) trains the embeddings p_1 .. p_n themselves. They begin as those of
tokens of the vocabulary, drawn from the seed. P-tuning (https://arxiv.org/abs/2103.10385) trains vectors e_1 .. e_n and
an encoder, p = encoder(e): an MLP, or an LSTM and an MLP, with shapes of PEFT's PromptEncoder. Afterwards p is enough.

In rows of tokens (jobs.data.virtual_tokens) a virtual token has a negative number, -n .. -1. So its place in a row need
not be known here: rows may be packed, or split over ranks by CP and sequence parallelism.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from litgpt.config import Config
from litgpt.model import GPT
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Replicate

from jobs.engines.native.load_sharded import full, local_shard
from jobs.engines.native.model import prompt_of
from jobs.engines.native.weights import Values, generator_of
from jobs.plan.predict.weights import LSTM_LAYERS, Weight, encoder_weights
from jobs.schema import PromptTuning

PROMPT = "transformer.prompt."
TOKENS = f"{PROMPT}tokens"
EMBEDDING = "transformer.wte.weight"


class Prompt(nn.Module):
    """The virtual tokens, and their encoder if they have one."""

    def __init__(self, tokens: int, hidden: int, encoder: dict[str, Weight]) -> None:
        super().__init__()
        self.tokens = nn.Parameter(torch.empty(tokens, hidden))
        # Pairs keep their order, which a dict would lose there.
        self.encoder = nn.ParameterDict(
            [(name, torch.empty(shape_of(name, weight))) for name, weight in encoder.items()]
        )

    def forward(self, x: Tensor, inputs: Tensor) -> Tensor:
        """Return embeddings with those of virtual tokens; inputs (mbs, seq), x (mbs, seq, hidden).

        Under sequence parallelism x has this rank's positions only, so that its gradients are partial sums.
        """
        read: Callable[[Tensor], Tensor] = local_shard
        if isinstance(self.tokens, DTensor):
            mesh, positions = self.tokens.device_mesh, x.shape[1]
            split = positions < inputs.shape[1]
            read = shared_by_tp(Partial() if split else Replicate())
            if split:
                inputs = inputs.narrow(1, positions * mesh.get_local_rank(), positions)
        # At the places of other tokens a row of no meaning, which gets no gradient.
        rows = F.embedding((inputs + len(self.tokens)).clamp(0, len(self.tokens) - 1), self.embeddings(read))
        return torch.where((inputs < 0)[..., None], rows.to(x.dtype), x)

    def embeddings(self, read: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the embeddings of the virtual tokens (tokens, hidden) from parameters as `read` returns them."""
        weights = {name: read(weight) for name, weight in self.encoder.items()}
        x = read(self.tokens)
        # It costs nothing compared with the model, so 16 bits by autocast would only lose digits.
        with torch.autocast(x.device.type, enabled=False):
            return encoded(x, weights)


def encoded(x: Tensor, weights: dict[str, Tensor]) -> Tensor:
    """Return the encoder's result for vectors (tokens, hidden), of the same shape; without weights the vectors."""
    of_lstm = [weight for name, weight in weights.items() if name.startswith("lstm")]
    if of_lstm:
        inner = of_lstm[1].shape[1]
        zero = x.new_zeros(2 * LSTM_LAYERS, 1, inner)
        # One sequence of all tokens, in both directions: (1, tokens, hidden) -> (1, tokens, 2 inner). In training mode,
        # since cuDNN has no backward pass otherwise; nothing is dropped.
        x = torch.lstm(x[None], (zero, zero), of_lstm, True, LSTM_LAYERS, 0.0, True, True, True)[0][0]
    linear = [weight for name, weight in weights.items() if name.startswith("mlp")]
    for place in range(0, len(linear), 2):
        x = F.linear(F.relu(x) if place else x, linear[place], linear[place + 1])
    return x


def shared_by_tp(gradient: Partial | Replicate) -> Callable[[Tensor], Tensor]:
    """Return a function from a parameter that TP ranks share to its local tensor, with this placement of gradients."""

    def read(weight: Tensor) -> Tensor:
        assert isinstance(weight, DTensor)
        return weight.to_local(grad_placements=[gradient])

    return read


def shape_of(name: str, weight: Weight) -> tuple[int, ...]:
    """Return the shape of an encoder's weight; that of a bias has one number."""
    return (weight.rows,) if "bias" in name else (weight.rows, weight.columns)


def trained_embeddings(gpt: GPT) -> Tensor | None:
    """Return the embeddings of the virtual tokens, in host memory; every rank that holds a shard of them calls it.

    None on a rank that holds none.
    """
    prompt = prompt_of(gpt)
    if prompt is None:
        return None
    assert isinstance(prompt, Prompt)
    return prompt.embeddings(full).cpu()


def add_prompt(gpt: GPT, chosen: PromptTuning, dtype: torch.dtype) -> None:
    """Add virtual tokens of a type to the model, in place."""
    hidden = gpt.config.n_embd
    with gpt.transformer.wte.weight.device:
        gpt.transformer["prompt"] = Prompt(chosen.virtual_tokens, hidden, encoder_weights(hidden, chosen)).to(dtype)


def with_prompt(values: Values, chosen: PromptTuning, config: Config, seed: int) -> Values:
    """Return a source of first weights that draws virtual tokens and encoder, and takes all others from `values`.

    Vectors and matrices of an encoder are drawn as torch draws those of an embedding, a linear layer and an LSTM.
    """
    encoder = encoder_weights(config.n_embd, chosen)

    def value(name: str, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
        if not name.startswith(PROMPT):
            return values(name, shape, dtype, device)
        generator = generator_of(name, seed, device)
        if name != TOKENS:
            bound = 1 / math.sqrt(inputs_of(name.rpartition(".")[2], encoder))
            drawn = torch.empty(*shape, device=device).uniform_(-bound, bound, generator=generator)
        elif encoder:
            drawn = torch.empty(*shape, device=device).normal_(generator=generator)
        else:
            vocabulary = (config.padded_vocab_size, config.n_embd)
            chosen_tokens = torch.randint(config.vocab_size, (shape[0],), generator=generator, device=device)
            drawn = values(EMBEDDING, vocabulary, torch.float32, device)[chosen_tokens]
        return drawn.to(dtype)

    return value


def inputs_of(name: str, encoder: dict[str, Weight]) -> int:
    """Return the number whose root bounds a weight's first values: inputs of a linear layer, width of an LSTM."""
    if name.startswith("lstm"):
        return encoder["lstm_weight_hh_l0"].columns
    return encoder[name.replace("bias", "weight")].columns

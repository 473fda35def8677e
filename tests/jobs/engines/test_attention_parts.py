"""Parts of attention: the rotation in its two forms, and the GPUs and types that have torch's kernels."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from jobs.engines.native.attention import (
    Reach,
    bounds_of_chunks,
    has_flash,
    has_varlen_kernel,
    within_chunks,
    within_samples,
)
from jobs.engines.native.rotary import normalized, rotated, rotated_heads, turned, turned_part


@pytest.mark.parametrize("part", [12, 8], ids=["all of a head", "a part of a head"])
def test_the_compilers_rotation_is_that_of_one_pass(part: int) -> None:
    # 2 sequences of 5 tokens, with 4 heads of queries and 2 of keys and values.
    torch.manual_seed(1)
    angles = torch.rand(1, 5, part // 2).repeat(1, 1, 2)
    cos, sin = angles.cos(), angles.sin()
    given = [torch.randn(2, 5, 8, 12, requires_grad=True) for _ in range(2)]
    with torch.no_grad():
        given[1].copy_(given[0])
    found = [form(qkv, cos, sin, 2, None) for form, qkv in zip((rotated, turned), given, strict=True)]
    for form in found:
        torch.stack([(each * torch.arange(each.numel()).view(each.shape)).sum() for each in form]).sum().backward()
    for own, other in zip(*found, strict=True):
        torch.testing.assert_close(own, other)
    torch.testing.assert_close(given[0].grad, given[1].grad)
    q, _, v = normalized(given[0], 2, None)
    torch.testing.assert_close(rotated_heads(q, cos, sin), turned_part(q, cos[:, :, None], sin[:, :, None]))
    torch.testing.assert_close(found[1][2], v)


def test_chunks_begin_with_each_sample_and_end_with_it() -> None:
    # Samples of 7, 0 and 5 tokens; as many bounds for any samples of this row.
    bounds = torch.tensor([0, 7, 7, 12], dtype=torch.int32)
    assert bounds_of_chunks(bounds, 12, 3).tolist() == [0, 3, 6, 7, 10, 12, 12, 12]


def test_chunks_of_a_row_are_those_of_a_packed_one() -> None:
    torch.manual_seed(1)
    row, chunk, reach = 11, 4, Reach(None, None)
    q, k, v = torch.randn(3, 1, 2, row, 8)
    bounds = bounds_of_chunks(torch.tensor([0, row], dtype=torch.int32), row, chunk)
    found = within_chunks(q, k, v, chunk, reach)
    torch.testing.assert_close(found, within_samples(q, k, v, bounds, chunk, reach))
    own = torch.arange(row) // chunk
    allowed = (own[:, None] == own).tril()
    scores = (q @ k.mT * 8**-0.5).masked_fill(~allowed, -torch.inf)
    torch.testing.assert_close(found, (scores.softmax(-1) @ v).transpose(1, 2))


def queries(size: int, kind: torch.dtype, *, cuda: bool = True) -> Tensor:
    """Return what tells a kernel's queries apart, without a GPU that holds them."""
    found: Any = SimpleNamespace(is_cuda=cuda, dtype=kind, shape=(1, 4, 16, size), device=torch.device("cuda"))
    return found  # type: ignore[no-any-return]


@pytest.mark.parametrize(("capability", "has"), [((7, 5), False), ((8, 0), True), ((9, 0), True)])
def test_flash_attention_is_for_ampere_and_later_in_16_bits_with_heads_of_eights(
    capability: tuple[int, int],
    has: bool,
) -> None:
    with patch("torch.cuda.get_device_capability", return_value=capability):
        assert has_flash(torch.device("cuda")) is has
        assert has_varlen_kernel(queries(64, torch.bfloat16)) is has
        assert has_varlen_kernel(queries(64, torch.float16)) is has
        assert not has_varlen_kernel(queries(64, torch.float32))
        assert not has_varlen_kernel(queries(60, torch.bfloat16))
        assert not has_varlen_kernel(queries(64, torch.bfloat16, cuda=False))

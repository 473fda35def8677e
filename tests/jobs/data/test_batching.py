"""Padded, bucketed and packed batches: the same samples and the same loss, with less padding or none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from jobs.data import Batches, Dataset, MicroBatch, StepBatch, open_dataset
from jobs.data.dataset import IGNORED, TOKENS, Tokens, write_tokens
from jobs.data.packing import dealt, end_to_end
from jobs.engines.native import attention
from jobs.engines.native.loss import chunked, whole
from jobs.engines.native.model import Decoder
from jobs.engines.native.parallelize import wrap_layers
from jobs.plan.legality import warnings
from jobs.rundir import RunDir
from jobs.schema import ActivationCheckpointing, Batching
from tests.support.composing import one
from tests.support.real_run import events, make_run, printed, steps, train
from tests.support.small_decoder import decoder
from tests.support.stored_samples import stored
from tests.support.training import long, rewind

# Some of equal length, two of them as long as can be; every fourth without labels on its first half, four without any.
LENGTHS = [32, 3, 17, 9, 9, 30, 1, 12, 5, 21, 9, 2, 28, 4, 14, 7] * 2
UNLABELLED = [length if i % 8 == 3 else length // 2 if i % 4 == 0 else 0 for i, length in enumerate(LENGTHS)]


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Samples of many lengths."""
    directory = tmp_path_factory.mktemp("uneven") / "data"
    stored(directory, LENGTHS, UNLABELLED)
    tokens = np.random.default_rng(1).integers(1, 320, size=sum(LENGTHS) + len(LENGTHS))
    write_tokens(directory / TOKENS, [tokens], np.uint32)
    return directory


# --- whole runs -----------------------------------------------------------------------------------------------


def prepared(where: Path, data: Path, *overrides: str) -> RunDir:
    run = make_run(where, "job.steps=4", "data.max_samples=null", "job.micro_batch_size=2", *overrides)
    run.data.symlink_to(data)
    return run


def trained(where: Path, data: Path, *overrides: str) -> list[dict[str, float]]:
    """The steps of a run on these samples, global batch 8."""
    run = prepared(where, data, *overrides)
    assert set(train(run)) == {0}, printed(run)
    return steps(run)


@pytest.fixture(scope="module")
def padded(uneven: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, float]]:
    """One process, padded: what every batching and layout must reproduce."""
    return trained(tmp_path_factory.mktemp("padded"), uneven, *LAYOUTS["single"])


LAYOUTS = {
    "single": ("parallelism=single", "ranks_per_node=1"),
    "fsdp": ("parallelism=fsdp_full", "ranks_per_node=2"),
    "tp": ("parallelism=tp", "ranks_per_node=2"),
    "pp": ("parallelism=pp", "ranks_per_node=2"),
}


def assert_equal(rows: list[dict[str, float]], expected: list[dict[str, float]]) -> None:
    assert len(rows) == len(expected) == 4
    for row, other in zip(rows, expected, strict=True):
        assert row["loss"] == pytest.approx(other["loss"], rel=1e-5)
        assert row["gradient_norm"] == pytest.approx(other["gradient_norm"], rel=1e-4)
        assert row["tokens"] == other["tokens"]


@pytest.mark.parametrize("loss", [long("whole"), "chunked"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_packed_rows_compute_the_losses_of_padded_ones(
    layout: str, loss: str, padded: list[dict[str, float]], uneven: Path, tmp_path: Path
) -> None:
    packed = trained(tmp_path, uneven, *LAYOUTS[layout], "job.batching=packed", f"engine.loss={loss}")
    assert_equal(packed, padded)
    for row, other in zip(packed, padded, strict=True):
        if layout == "pp":  # stages exchange whole sequences, of which 8 samples fill less than 8
            assert row["padded_tokens"] % 32 == 0
            assert row["padded_tokens"] < 8 * 32
        elif layout == "tp":  # sequences are cut in two
            assert row["tokens"] <= row["padded_tokens"] < other["padded_tokens"]
        else:
            assert row["tokens"] == row["padded_tokens"] < other["padded_tokens"]


def test_a_bucket_of_one_global_batch_computes_its_loss_with_less_padding(
    padded: list[dict[str, float]], uneven: Path, tmp_path: Path
) -> None:
    settings = ("job.batching=bucketed", "job.bucket_batches=1", "engine.loss=chunked")
    rows = trained(tmp_path, uneven, *LAYOUTS["fsdp"], *settings)
    assert_equal(rows, padded)
    assert sum(row["padded_tokens"] for row in rows) < sum(row["padded_tokens"] for row in padded)


@pytest.mark.parametrize(
    "batching",
    [
        long(("job.batching=packed",)),
        ("job.batching=bucketed", "job.bucket_batches=2"),  # it goes on in the middle of the second bucket
    ],
)
def test_a_resumed_run_goes_on_with_the_batches_of_an_unbroken_one(
    batching: tuple[str, ...], uneven: Path, tmp_path: Path
) -> None:
    run = prepared(tmp_path, uneven, *LAYOUTS["fsdp"], *batching, "job.checkpoint_every_steps=3")
    assert set(train(run)) == {0}, printed(run)
    unbroken = steps(run)
    rewind(run, 3)
    assert set(train(run)) == {0}, printed(run)
    assert [event["from_step"] for event in events(run, "started")] == [0, 3]
    assert_equal(steps(run), unbroken)
    assert [row["padded_tokens"] for row in steps(run)] == [row["padded_tokens"] for row in unbroken]


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        long(("parallelism=fsdp_grad_op", "job.precision=bfloat16", "engine.loss=chunked")),
        long(("parallelism=ddp", "job.precision=bfloat16", "engine.loss=chunked")),
        long(("parallelism=fsdp_hybrid", "engine.activation_checkpointing=selective")),
        long(("parallelism=single", "ranks_per_node=1", "engine.compile=true")),
        long(("parallelism=pp", "parallelism.schedule=ZBVZeroBubble", "model.layers=4", "engine.loss=chunked")),
        long(("parallelism=pp", "parallelism.schedule=Interleaved1F1B", "model.layers=4", "engine.loss=chunked")),
        long(("parallelism=tp", "parallelism.sequence_parallel=false", "parallelism.loss_parallel=false",
              "engine.loss=chunked")),
    ],
)  # fmt: skip
def test_packed_equals_padded_under_every_technique(settings: tuple[str, ...], uneven: Path, tmp_path: Path) -> None:
    if "parallelism=single" not in settings:
        settings = (*settings, "ranks_per_node=2")
    packed = trained(tmp_path, uneven, "name=packed", *settings, "job.batching=packed")
    rows = trained(tmp_path, uneven, "name=padded", *settings, "engine.loss=whole", "engine.compile=false")
    tolerance = 5e-3 if "job.precision=bfloat16" in settings else 1e-5
    assert [row["loss"] for row in packed] == pytest.approx([row["loss"] for row in rows], rel=tolerance)


# --- one forward and backward pass ----------------------------------------------------------------------------


def tensors(micro_batch: MicroBatch[Tokens]) -> MicroBatch[Tensor]:
    return micro_batch.converted(torch.from_numpy)


def batch_of(dataset: Dataset, batching: Batching, **options: Any) -> StepBatch:
    given = {"global_batch_size": 8, "micro_batch_size": 8, "dp": 1, "dp_rank": 0, "seed": 3} | options
    return Batches(dataset, batching=batching, **given).step(1)


def computed(gpt: Decoder, micro_batch: MicroBatch[Tensor]) -> tuple[float, Tensor]:
    """The loss, and all gradients as one vector."""
    gpt.zero_grad()
    loss = gpt(*micro_batch)
    loss.backward()
    gradients = [weight.grad for weight in gpt.parameters() if weight.grad is not None]
    return loss.item(), torch.cat([gradient.flatten() for gradient in gradients])


def far(one: Tensor, other: Tensor) -> float:
    """Return the distance of gradients from others, relative to these."""
    return float((one - other).norm() / other.norm())


@pytest.mark.parametrize("recomputed", ActivationCheckpointing)
def test_a_packed_row_has_the_gradients_of_padded_rows_and_without_its_mask_others(
    recomputed: ActivationCheckpointing, uneven: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpt, data = decoder(), open_dataset(uneven)
    (row,) = map(tensors, batch_of(data, Batching.packed, row_multiple=64).micro_batches)
    (rows,) = map(tensors, batch_of(data, Batching.padded).micro_batches)
    assert row.inputs.shape[1] > (row.targets != IGNORED).sum(), "padding is in the row"
    loss, gradients = computed(gpt, rows)
    wrap_layers(gpt, one(f"engine.activation_checkpointing={recomputed.name}").run)
    packed_loss, packed_gradients = computed(gpt, row)
    assert packed_loss == pytest.approx(loss, rel=1e-5)
    assert far(packed_gradients, gradients) < 1e-5
    monkeypatch.setattr(
        attention, "within_samples", lambda q, k, v, *_: attention.causal(q, k, v, attention.Reach(None, None))
    )
    unmasked_loss, unmasked_gradients = computed(gpt, row)
    assert unmasked_loss != pytest.approx(loss, rel=1e-3)
    assert far(unmasked_gradients, gradients) > 0.1


def test_kernels_that_take_fewer_heads_of_keys_compute_the_same(uneven: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpt, data = decoder(), open_dataset(uneven)
    (rows,) = map(tensors, batch_of(data, Batching.padded).micro_batches)
    loss, gradients = computed(gpt, rows)
    monkeypatch.setattr(attention, "takes_groups", lambda *_, **__: True)
    grouped_loss, grouped_gradients = computed(gpt, rows)
    assert grouped_loss == pytest.approx(loss, rel=1e-6)
    assert far(grouped_gradients, gradients) < 1e-5


@pytest.mark.parametrize("batching", list(Batching))
def test_the_kernel_of_gpus_has_the_windows_that_a_mask_has(
    batching: Batching, uneven: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpt, data = decoder("model.sliding_window=5", "model.full_attention_every=2"), open_dataset(uneven)
    (rows,) = map(tensors, batch_of(data, batching).micro_batches)
    loss, gradients = computed(gpt, rows)
    windows = []

    def varlen(q: Tensor, k: Tensor, v: Tensor, bounds: Tensor, *_: object, **further: Any) -> Tensor:
        left, right = further["window_size"]
        windows.append(left + 1)
        allowed = attention.mask(bounds, len(q), left + 1 or None)
        q, k, v = (each.transpose(0, 1)[None] for each in (q, k, v))
        assert right == 0
        return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, scale=further["scale"])[0].transpose(0, 1)

    monkeypatch.setattr(attention, "has_varlen_kernel", lambda _: True)
    monkeypatch.setattr(attention, "takes_groups", lambda *_, **__: False)
    monkeypatch.setattr(attention, "varlen_attn", varlen)
    kernel_loss, kernel_gradients = computed(gpt, rows)
    assert 5 in windows
    assert kernel_loss == pytest.approx(loss, rel=1e-6)
    assert far(kernel_gradients, gradients) < 1e-5
    wider = computed(decoder(), rows)[0]
    assert wider != pytest.approx(loss, rel=1e-4)


@pytest.mark.parametrize("batching", list(Batching))
def test_the_kernel_of_gpus_has_the_sinks_that_a_mask_has(
    batching: Batching, uneven: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sunk = ("model.attention_sinks=true", "model.sliding_window=5", "model.full_attention_every=2")
    gpt, data = decoder(*sunk), open_dataset(uneven)
    (rows,) = map(tensors, batch_of(data, batching).micro_batches)
    loss, gradients = computed(gpt, rows)
    assert computed(decoder(*sunk[1:]), rows)[0] != pytest.approx(loss, rel=1e-4)
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    calls = []

    def heads_first(*given: Tensor) -> list[Tensor]:
        return [each.transpose(0, 1)[None] for each in given]

    def scores(bounds: Tensor, row: int, left: int) -> Tensor:
        return torch.zeros(row, row).masked_fill(~attention.mask(bounds, row, left + 1 or None), -torch.inf)

    def varlen(q: Tensor, k: Tensor, v: Tensor, bounds: Tensor, *_: object, **further: Any) -> tuple[Tensor, Tensor]:
        assert further["return_aux"].lse
        allowed = scores(bounds, len(q), further["window_size"][0])
        result, sums = flash(*heads_first(q, k, v), attn_mask=allowed, scale=further["scale"])
        return result[0].transpose(0, 1), sums[0]

    def backward(*given: Any) -> list[Tensor]:
        gradient, q, k, v, result, sums, bounds, _, _, _, is_causal, _, scale, (left, _) = given
        assert is_causal == (left < 0)
        calls.append(left + 1)
        found = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            *heads_first(gradient, q, k, v, result), sums[None], 0.0, False, attn_mask=scores(bounds, len(q), left),
            scale=scale,
        )  # fmt: skip
        return [each[0].transpose(0, 1) for each in found]

    monkeypatch.setattr(attention, "has_varlen_kernel", lambda _: True)
    monkeypatch.setattr(attention, "takes_groups", lambda *_, **__: False)
    monkeypatch.setattr(attention, "varlen_attn", varlen)
    monkeypatch.setattr(torch.ops.torch_attn, "_varlen_attn_backward", backward)
    kernel_loss, kernel_gradients = computed(gpt, rows)
    assert set(calls) == {0, 5}
    assert kernel_loss == pytest.approx(loss, rel=1e-6)
    assert far(kernel_gradients, gradients) < 1e-5


def test_a_row_of_padding_alone_has_no_loss_and_no_gradient(uneven: Path) -> None:
    gpt = decoder(chunk=1024)
    nothing = torch.zeros(1, 32, dtype=torch.int64)
    loss, gradients = computed(gpt, MicroBatch(nothing, nothing + IGNORED, 0, torch.tensor([[0, 32]])))
    assert loss == 0
    assert not gradients.any()


def of_head(loss: Callable[[Tensor, Tensor, Tensor], Tensor], hidden: Tensor, weight: Tensor, targets: Tensor,
            ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """A loss and its gradients by hidden states and weight, thrice as large as they are."""
    hidden, weight = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
    value = loss(hidden, weight, targets)
    (3 * value).backward()
    assert hidden.grad is not None
    assert weight.grad is not None
    return value.detach(), hidden.grad, weight.grad


@given(size=st.integers(1, 40), labels=st.integers(0, 30), more=st.integers(0, 40), seed=st.integers(0, 99))
def test_chunks_of_logits_give_the_loss_and_gradients_of_whole_ones(
    size: int, labels: int, more: int, seed: int
) -> None:
    """Pipeline stages know the most labels of several micro-batches, not those of each."""
    torch.manual_seed(seed)
    hidden, weight = torch.randn(3, 10, 8), torch.randn(50, 8)
    targets = torch.full((30,), IGNORED)
    targets[torch.randperm(30)[:labels]] = torch.randint(50, (labels,))
    targets = targets.view(3, 10)
    expected = of_head(lambda h, w, t: whole(F.linear(h, w), t), hidden, weight, targets)
    found = of_head(lambda h, w, t: chunked(h, w, t, labels + more, size), hidden, weight, targets)
    for each, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(each, wanted, rtol=1e-5, atol=1e-5)


def test_the_loss_of_chunks_in_bfloat16_is_summed_in_float32() -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(1, 3000, 8).bfloat16(), torch.randn(50, 8).bfloat16()
    targets = torch.randint(50, (1, 3000))
    loss = chunked(hidden, weight, targets, 3000, 1024)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, whole(F.linear(hidden, weight), targets), rtol=1e-5, atol=0)


def test_logits_beyond_the_range_of_exp_have_a_finite_loss_of_chunks() -> None:
    # exp(89) is more than float32 holds; these logits are up to several hundred.
    torch.manual_seed(0)
    hidden, weight, targets = 10 * torch.randn(1, 40, 8), 10 * torch.randn(50, 8), torch.randint(50, (1, 40))
    expected = of_head(lambda h, w, t: whole(F.linear(h, w), t), hidden, weight, targets)
    for found, wanted in zip(
        of_head(lambda h, w, t: chunked(h, w, t, 40, 16), hidden, weight, targets), expected, strict=True
    ):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-3)


def test_many_chunks_in_bfloat16_add_to_the_gradient_of_the_head_in_float32() -> None:
    # Each label adds nearly the same small amount, which a sum in bfloat16 loses once it is 256 times as large.
    torch.manual_seed(0)
    hidden, weight = (1 + torch.rand(1, 2000, 8)).bfloat16(), torch.randn(50, 8).bfloat16() / 100
    targets = torch.full((1, 2000), 7)
    expected = of_head(lambda h, w, t: whole(F.linear(h, w), t), hidden.double(), weight.double(), targets)[2]
    found = of_head(lambda h, w, t: chunked(h, w, t, 2000, 1), hidden, weight, targets)[2]
    assert far(found.double(), expected) < 1 / 256


# --- which samples, in which rows -----------------------------------------------------------------------------


@st.composite
def layouts(draw: st.DrawFn) -> tuple[int, int, int]:
    """dp, micro_batch_size and accumulation."""
    return draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.integers(1, 3))


def samples_in(micro_batch: MicroBatch[Tokens]) -> list[tuple[list[int], list[int]]]:
    """Inputs and targets of the samples of a packed row, padding too."""
    assert micro_batch.bounds is not None
    (inputs,), (targets,), (bounds,) = micro_batch.inputs, micro_batch.targets, micro_batch.bounds
    assert bounds[0] == 0
    assert bounds[-1] == len(inputs)
    assert micro_batch.labels == np.count_nonzero(targets != IGNORED)
    cut = [np.split(row, bounds[1:-1]) for row in (inputs, targets)]
    return [(ids.tolist(), labels.tolist()) for ids, labels in zip(cut[0], cut[1], strict=True)]


@given(layout=layouts(), n=st.integers(1, 6), data=st.data(), row_multiple=st.sampled_from([1, 2, 9]))
def test_packing_loses_no_token_doubles_none_and_all_ranks_agree(
    layout: tuple[int, int, int], n: int, data: st.DataObject, row_multiple: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    dp, mbs, accumulation = layout
    gbs = dp * mbs * accumulation
    lengths = data.draw(st.lists(st.integers(1, 9), min_size=gbs, max_size=gbs + 9))
    dataset = stored(tmp_path_factory.getbasetemp() / "packed", lengths)
    common: dict[str, Any] = {"global_batch_size": gbs, "micro_batch_size": mbs, "dp": dp, "row_multiple": row_multiple}
    equal = row_multiple == 9
    ranks = [
        Batches(dataset, **common, dp_rank=rank, seed=3, batching=Batching.packed, equal_rows=equal).step(n)
        for rank in range(dp)
    ]
    alone = Batches(dataset, global_batch_size=gbs, micro_batch_size=gbs, dp=1, dp_rank=0, seed=3).step(n)
    rows = [row for rank in ranks for row in rank.micro_batches]
    found = [sample for row in rows for sample in samples_in(row) if sample[0] != [0] * len(sample[0])]
    ((inputs, targets, *_),) = alone.micro_batches
    expected = [(ids[ids > 0].tolist(), labels[ids > 0].tolist()) for ids, labels in zip(inputs, targets, strict=True)]
    assert sorted(found) == sorted(expected)
    for rank in ranks:
        assert len(rank.micro_batches) == accumulation
        assert (rank.labels, rank.tokens) == (alone.labels, alone.tokens)
        assert rank.padded_tokens == sum(row.inputs.size for row in rows)
    sizes = {row.inputs.shape[1] for row in rows}
    assert max(sizes) <= -(-mbs * max(lengths) // row_multiple) * row_multiple
    assert all(size % row_multiple == 0 for size in sizes)
    if equal:
        assert len(sizes) == 1


@given(layout=layouts(), pool=st.integers(1, 5), extra=st.integers(0, 40), data=st.data())
def test_buckets_hold_an_epoch_once_and_are_a_function_of_the_step(
    layout: tuple[int, int, int], pool: int, extra: int, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    dp, mbs, accumulation = layout
    gbs = dp * mbs * accumulation
    lengths = data.draw(st.lists(st.integers(1, 9), min_size=gbs + extra, max_size=gbs + extra))
    dataset = stored(tmp_path_factory.getbasetemp() / "bucketed", lengths)

    def epochs(batching: Batching, order: Callable[[range], list[int]]) -> dict[int, list[list[int]]]:
        ranks = [
            Batches(dataset, global_batch_size=gbs, micro_batch_size=mbs, dp=dp, dp_rank=rank, seed=3,
                    batching=batching, bucket_batches=pool)
            for rank in range(dp)
        ]  # fmt: skip
        count = 2 * ranks[0].steps_per_epoch
        found = {}
        for n in order(range(1, count + 1)):
            micro_batches = [each for rank in ranks for each in rank.step(n).micro_batches]
            found[n] = [row[row > 0].tolist() for inputs, *_ in micro_batches for row in inputs]
        return found

    forward = epochs(Batching.bucketed, list)
    assert epochs(Batching.bucketed, lambda ns: list(reversed(ns))) == forward
    in_order = epochs(Batching.padded, list)
    half = len(forward) // 2
    for epoch in (range(1, half + 1), range(half + 1, 2 * half + 1)):
        for start in range(epoch.start, epoch.stop, pool):  # a pool has the samples that it has when padded
            ns = range(start, min(start + pool, epoch.stop))
            assert sorted(row for n in ns for row in forward[n]) == sorted(row for n in ns for row in in_order[n])
    assert all(len(rows) == gbs for rows in forward.values())


@pytest.mark.parametrize("batching", Batching)
def test_the_samples_of_a_rank_are_those_in_its_rows(batching: Batching, tmp_path: Path) -> None:
    dataset = stored(tmp_path, list(range(3, 35)))
    common: dict[str, Any] = {"global_batch_size": 8, "micro_batch_size": 2, "dp": 2, "seed": 3, "batching": batching}
    ranks = [Batches(dataset, dp_rank=rank, **common) for rank in range(2)]
    for n in (1, 2, 6):
        assert sum(len(rank.samples(n)) for rank in ranks) == 8
        for rank in ranks:
            in_rows = {token for row in rank.step(n).micro_batches for token in row.inputs.ravel().tolist() if token}
            assert in_rows == {token for each in rank.samples(n) for token in dataset.sample(each)[0].tolist()}


def test_micro_batches_of_a_bucket_have_similar_lengths_on_all_ranks(tmp_path: Path) -> None:
    dataset = stored(tmp_path, [1, 2, 3, 4, 5, 6, 7, 8])
    ranks = [batch_of(dataset, Batching.bucketed, micro_batch_size=2, dp=2, dp_rank=rank) for rank in range(2)]
    longest = [[micro_batch.inputs.shape[1] for micro_batch in rank.micro_batches] for rank in ranks]
    assert longest == [[2, 6], [4, 8]]
    assert ranks[0].padded_tokens == 2 * (2 + 6 + 4 + 8)


# --- what is refused, and what is shown -----------------------------------------------------------------------


def test_packing_single_samples_is_warned_of() -> None:
    (warning,) = warnings(
        one("data=docstrings", "job.batching=packed", "job.micro_batch_size=1", "ranks_per_node=1").run
    )
    assert warning.startswith("job.batching=packed has nothing to pack with job.micro_batch_size=1. Set ")


def test_buckets_of_rows_that_are_equally_long_anyway_are_warned_of() -> None:
    settings = ("job.batching=bucketed", "parallelism=pp", "ranks_per_node=2", "job.micro_batch_size=2")
    (warning,) = warnings(one(*settings).run)
    assert warning.startswith("job.batching=bucketed saves no padding with parallelism.pipeline=2 context=1: ")


def test_packed_rows_have_nearly_equal_numbers_of_tokens() -> None:
    lengths = np.array([1, 1, 1, 1, 4], dtype=np.int32)
    assert [int(lengths[row].sum()) for row in dealt(lengths, 2)] == [4, 4]


@pytest.mark.parametrize(("batching", "most"), [(Batching.padded, 4), (Batching.packed, 3.5)])
def test_the_largest_micro_batch_has_the_tokens_of_its_padded_or_packed_rows(
    batching: Batching, most: float, tmp_path: Path
) -> None:
    dataset = stored(tmp_path, [4, 3, 3, 4])
    found = Batches(dataset, global_batch_size=4, micro_batch_size=2, dp=1, dp_rank=0, seed=0, batching=batching)
    assert found.tokens_of_sample(1).used == 3.5
    assert found.tokens_of_sample(1).most == most, "a padded row has 4, a packed one 4 + 3 of two samples"


def test_padding_behind_a_packed_row_stays_within_the_rotary_table(uneven: Path) -> None:
    # Under a pipeline a row has whole sequences, and the rotary table has one.
    row = end_to_end(open_dataset(uneven), np.array([1, 2]), 96, longest=32)
    assert row.bounds is not None
    assert int(row.bounds[0, -1]) == 96
    assert int(np.diff(row.bounds).max()) == 32

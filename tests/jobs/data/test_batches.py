"""Batches: the same samples in step n whatever the layout, and sizes that every rank knows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from jobs.data import Batches, Dataset, StepBatch, held_out_batches, open_dataset
from jobs.data.dataset import IGNORED, write_tokens
from jobs.errors import DataError
from tests.support.stored_samples import stored

SEED = 5


def batches(
    dataset: Dataset, gbs: int, mbs: int = 1, dp: int = 1, dp_rank: int = 0, seed: int = SEED, held_out: int = 0
) -> Batches:
    return Batches(
        dataset, global_batch_size=gbs, micro_batch_size=mbs, dp=dp, dp_rank=dp_rank, seed=seed, held_out=held_out
    )


def rows(batch: StepBatch) -> list[tuple[list[int], list[int]]]:
    """Inputs and targets of every sample, padding taken off; our tokens are never 0."""
    found = []
    for inputs, targets, *_ in batch.micro_batches:
        for row_inputs, row_targets in zip(inputs, targets, strict=True):
            length = int(np.count_nonzero(row_inputs))
            found.append((row_inputs[:length].tolist(), row_targets[:length].tolist()))
    return found


@st.composite
def layouts(draw: st.DrawFn) -> tuple[int, int, int]:
    """dp, micro_batch_size and accumulation."""
    return draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.integers(1, 3))


@given(layout=layouts(), extra=st.integers(0, 30), n=st.integers(1, 12), data=st.data())
def test_the_ranks_together_hold_the_step_of_one_rank_in_its_order(
    layout: tuple[int, int, int], extra: int, n: int, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    dp, mbs, accumulation = layout
    gbs = dp * mbs * accumulation
    lengths = data.draw(st.lists(st.integers(1, 9), min_size=gbs + extra, max_size=gbs + extra))
    dataset = stored(tmp_path_factory.getbasetemp() / "layouts", lengths)
    ranks = [batches(dataset, gbs, mbs, dp, rank).step(n) for rank in range(dp)]
    alone = batches(dataset, gbs).step(n)
    assert [row for rank in ranks for row in rows(rank)] == rows(alone)
    for rank in ranks:
        assert [inputs.shape[0] for inputs, *_ in rank.micro_batches] == [mbs] * accumulation
        assert (rank.labels, rank.tokens) == (alone.labels, alone.tokens)
        assert rank.padded_tokens == sum(inputs.size for each in ranks for inputs, *_ in each.micro_batches)
    assert alone.tokens == alone.padded_tokens == sum(len(inputs) for inputs, _ in rows(alone))


@given(lengths=st.lists(st.integers(2, 9), min_size=4, max_size=20), data=st.data())
def test_labels_are_counted_over_the_global_batch(
    lengths: list[int], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    unlabelled = [data.draw(st.integers(0, length - 1)) for length in lengths]
    dataset = stored(tmp_path_factory.getbasetemp() / "labels", lengths, unlabelled)
    ranks = [batches(dataset, 4, 2, 2, rank).step(1) for rank in range(2)]
    counted = sum(int((targets != IGNORED).sum()) for rank in ranks for _, targets, *_ in rank.micro_batches)
    assert {rank.labels for rank in ranks} == {counted}


def test_a_micro_batch_is_as_long_as_its_longest_sample_and_padded_behind(tmp_path: Path) -> None:
    dataset = stored(tmp_path, [3, 1], unlabelled=[2, 0])
    ((inputs, targets, *_),) = batches(dataset, gbs=2, mbs=2).step(1).micro_batches
    by_length = np.argsort(inputs.min(axis=1))[::-1]  # the padded row holds a 0
    assert inputs[by_length].tolist() == [[1, 2, 3], [5, 0, 0]]
    assert targets[by_length].tolist() == [[IGNORED, IGNORED, 4], [6, IGNORED, IGNORED]]
    assert inputs.dtype == targets.dtype == np.int64


@given(count=st.integers(1, 40), gbs=st.integers(1, 40), epoch=st.integers(0, 3))
def test_an_epoch_visits_samples_once_and_leaves_out_the_incomplete_batch(
    count: int, gbs: int, epoch: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assume(gbs <= count)
    dataset = stored(tmp_path_factory.getbasetemp() / "epochs", [1] * count)
    steps = batches(dataset, gbs)
    assert steps.steps_per_epoch == count // gbs
    first = epoch * steps.steps_per_epoch + 1
    seen = [tuple(row[0]) for n in range(first, first + steps.steps_per_epoch) for row in rows(steps.step(n))]
    assert len(set(seen)) == len(seen) == count // gbs * gbs


def test_the_rate_of_a_step_counts_no_padding(tmp_path: Path) -> None:
    step = batches(stored(tmp_path, [3, 1]), gbs=2, mbs=2).step(1)
    assert (step.tokens, step.padded_tokens) == (4, 6)
    assert step.rate(0.5) == "8 tokens/s"


def test_the_padding_share_is_that_of_all_steps_of_an_epoch(tmp_path: Path) -> None:
    dataset = stored(tmp_path, [3, 9, 1, 6, 2, 7, 4, 8])
    trained = batches(dataset, gbs=4, mbs=2)
    steps = [trained.step(1), trained.step(2)]
    tokens, padded = sum(step.tokens for step in steps), sum(step.padded_tokens for step in steps)
    assert padded > tokens == 40
    assert trained.padding_share() == pytest.approx(1 - tokens / padded)


def test_the_last_samples_are_held_out_of_every_epoch_and_come_in_order_where_they_are_asked_for(
    tmp_path: Path,
) -> None:
    dataset = stored(tmp_path, [3, 1, 4, 1, 5, 9, 2, 6])
    trained = batches(dataset, gbs=2, held_out=3)
    assert trained.steps_per_epoch == 2
    everything = [(inputs.tolist(), targets.tolist()) for inputs, targets in map(dataset.sample, range(8))]
    seen = [row for n in range(1, 41) for row in rows(trained.step(n))]
    assert {tuple(inputs) for inputs, _ in seen} == {tuple(inputs) for inputs, _ in everything[:5]}
    held_out = [
        StepBatch(micro_batches=[each], labels=0, samples=0, tokens=0, padded_tokens=0)
        for each in held_out_batches(dataset, 3, 2)
    ]
    assert [inputs.shape for batch in held_out for inputs, *_ in batch.micro_batches] == [(2, 9), (1, 6)]
    assert [row for batch in held_out for row in rows(batch)] == everything[5:]


def test_data_that_is_too_small_for_what_is_held_out_is_refused(tmp_path: Path) -> None:
    dataset = stored(tmp_path, [5] * 8, unlabelled=[0] * 6 + [5] * 2)
    with pytest.raises(DataError, match=r"3 of them are held out .* Set scaling.global_batch_size=5 or less"):
        batches(dataset, gbs=6, held_out=3)
    with pytest.raises(DataError, match=r"Set a smaller data.held_out_samples"):
        batches(dataset, gbs=6, held_out=8)
    with pytest.raises(DataError, match=r"None of the 2 held-out samples has a label"):
        batches(dataset, gbs=2, held_out=2)


def test_steps_can_be_asked_for_in_any_order(tmp_path: Path) -> None:
    dataset = stored(tmp_path, list(range(1, 24)))
    forward = batches(dataset, 4)
    in_order = [rows(forward.step(n)) for n in range(1, 16)]
    backward = batches(dataset, 4)
    assert [rows(backward.step(n)) for n in range(15, 0, -1)] == in_order[::-1]


def test_epochs_and_seeds_differ_in_order(tmp_path: Path) -> None:
    dataset = stored(tmp_path, [1] * 32)
    one = batches(dataset, 32)
    orders = [rows(one.step(1)), rows(one.step(2)), rows(batches(dataset, 32, seed=SEED + 1).step(1))]
    assert orders[0] != orders[1] != orders[2] != orders[0]


def test_the_order_is_a_permutation_drawn_from_seed_and_epoch(tmp_path: Path) -> None:
    dataset = stored(tmp_path, [1] * 10)
    second_epoch = [row[0][0] for row in rows(batches(dataset, 10).step(2))]
    assert second_epoch == [2 * i + 1 for i in np.random.default_rng((SEED, 1)).permutation(10).tolist()]


def test_a_global_batch_larger_than_the_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError) as refused:
        batches(stored(tmp_path, [1] * 3), gbs=4)
    assert str(refused.value) == (
        "A global batch takes 4 samples and the data has 3: Numbers in order. Set scaling.global_batch_size=3 or less "
        "(scaling.sequences_per_rank when mode=weak), or give more data (data.path, data.max_samples, a smaller "
        "job.sequence_length)."
    )


def test_samples_that_are_held_out_fill_no_global_batch(tmp_path: Path) -> None:
    dataset = stored(tmp_path, [1] * 6)
    assert batches(dataset, gbs=4, held_out=2).steps_per_epoch == 1
    with pytest.raises(DataError, match="2 of them are held out") as refused:
        batches(dataset, gbs=5, held_out=2)
    assert "A global batch takes 5 samples and the data has 6" in str(refused.value)
    assert "Set scaling.global_batch_size=4 or less" in str(refused.value)


def test_data_that_could_fill_a_global_batch_without_labels_is_refused(tmp_path: Path) -> None:
    dataset = stored(tmp_path, [2, 2, 2, 2], unlabelled=[2, 2, 0, 0])
    with pytest.raises(DataError) as refused:
        batches(dataset, gbs=2)
    assert str(refused.value) == (
        "2 of 4 samples have no label, because their prompt fills job.sequence_length and data.mask_prompt=true "
        "excludes it from the loss; a global batch of 2 could have no label. Set a larger job.sequence_length, "
        "data.too_long=refuse to list them, or data.mask_prompt=false."
    )


def test_samples_without_labels_are_kept_where_no_global_batch_can_be_without(tmp_path: Path) -> None:
    dataset = stored(tmp_path, [2, 2, 2, 2], unlabelled=[2, 2, 0, 0])
    assert batches(dataset, gbs=3).step(1).labels > 0


def test_a_directory_that_is_not_prepared_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError) as refused:
        open_dataset(tmp_path)
    assert str(refused.value) == (
        f"{tmp_path} is not prepared data: it has no meta.json. Remove the directory; a run creates it again."
    )


@given(arrays=st.lists(st.lists(st.integers(0, 65535))), most=st.one_of(st.none(), st.integers(1, 30)))
def test_tokens_written_array_by_array_are_one_array(
    arrays: list[list[int]], most: int | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "tokens.npy"
    count = write_tokens(path, (np.array(array, dtype=np.int64) for array in arrays), np.uint16, most)
    expected = [token for array in arrays for token in array][:most]
    assert np.load(path).tolist() == expected
    assert count == len(expected)

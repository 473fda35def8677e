"""Batches that a thread prepares ahead: in order, so many, and no more."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.runtime.prefetch import prefetch
from tests.support.waiting import wait_until


@given(st.integers(0, 9), st.integers(0, 12))
def test_every_step_is_made_once_and_in_order_and_so_many_ahead(depth: int, count: int) -> None:
    made: list[int] = []

    def make(step: int) -> int:
        made.append(step)
        return step

    with prefetch(make, range(count), depth) as ready:
        for position, step in enumerate(ready):
            assert step == position
            assert len(made) <= position + 1 + depth
    assert made == list(range(count))


def test_the_next_batches_are_made_while_a_step_runs() -> None:
    made: list[int] = []
    with prefetch(made.append, range(9), 3) as ready:
        for position in (0, 1):
            next(ready)
            wait_until(lambda: len(made) == position + 1 + 3)  # noqa: B023 (called at once)


def test_what_a_batch_raises_is_raised_in_the_step_that_needs_it() -> None:
    def make(step: int) -> int:
        if step == 2:
            raise ValueError("torn shard")
        return step

    with prefetch(make, range(9), 4) as ready:
        assert (next(ready), next(ready)) == (0, 1)
        with pytest.raises(ValueError, match="torn shard"):
            next(ready)


def test_a_loop_that_stops_early_leaves_no_thread() -> None:
    def making() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name.startswith("batches")]

    def stops() -> Iterator[int]:
        with prefetch(lambda step: step, range(10**9), 3) as ready:
            yield next(ready)
            assert len(making()) == 1
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(stops())
    assert not making()

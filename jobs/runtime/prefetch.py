"""Prefetch batches in a thread; on a GPU into page-locked memory, from which it copies asynchronously."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

import torch

from jobs.data.batches import StepBatch
from jobs.data.dataset import Tokens

Made = TypeVar("Made")


@contextmanager
def prefetch(make: Callable[[int], Made], steps: Iterable[int], depth: int) -> Iterator[Iterator[Made]]:
    """Yield an iterator over make(step) in order, which computes up to `depth` next ones meanwhile, one at a time.

    An error of `make` is raised when that step's result is requested. With depth 0 there is no thread.
    """
    if depth == 0:
        yield map(make, steps)
        return
    thread = ThreadPoolExecutor(1, "batches")
    try:
        yield in_order(thread, make, steps, depth)
    finally:
        thread.shutdown(cancel_futures=True)


def in_order(
    thread: ThreadPoolExecutor, make: Callable[[int], Made], steps: Iterable[int], depth: int
) -> Iterator[Made]:
    """Yield results in order, with at most `depth` more submitted."""
    waiting: deque[Future[Made]] = deque()
    for step in steps:
        waiting.append(thread.submit(make, step))
        if len(waiting) > depth:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def pinned(batch: StepBatch) -> StepBatch:
    """Return the batch in page-locked memory, from which copies to a GPU are asynchronous."""
    return replace(batch, micro_batches=[micro_batch.converted(locked) for micro_batch in batch.micro_batches])


def locked(tokens: Tokens) -> Tokens:
    """Return the tokens in page-locked memory, which the returned array keeps alive."""
    return torch.from_numpy(tokens).pin_memory().numpy()

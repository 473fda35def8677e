"""Batches made ahead of the step that needs them, in a thread; on a GPU in memory that it copies from by itself."""

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
    """What `make` returns for each step, in order; of the next `depth` steps it is made meanwhile, one at a time.

    What `make` raises is raised where that step's is asked for. With depth 0 there is no thread.
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
    """Hand out results while as many as `depth` wait."""
    waiting: deque[Future[Made]] = deque()
    for step in steps:
        waiting.append(thread.submit(make, step))
        if len(waiting) > depth:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def pinned(batch: StepBatch) -> StepBatch:
    """The batch in page-locked memory: a GPU copies it while the rank goes on."""
    return replace(batch, micro_batches=[micro_batch.converted(locked) for micro_batch in batch.micro_batches])


def locked(tokens: Tokens) -> Tokens:
    """The same tokens in page-locked memory, which lives as long as they do."""
    return torch.from_numpy(tokens).pin_memory().numpy()

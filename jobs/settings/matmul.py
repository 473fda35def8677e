"""The keys of `matmul`: work of a run that measures matrix products (job=matmul)."""

from __future__ import annotations

from dataclasses import dataclass

from jobs.ranges import Count


@dataclass(kw_only=True)
class MatrixTest:
    """A product of square matrices, repeated on every rank."""

    size: Count = 4096
    """Rows and columns of a matrix."""
    repeats: Count = 20
    """Products that are timed, after one that is not."""

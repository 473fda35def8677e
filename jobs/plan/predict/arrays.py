"""Arithmetic that holds for numbers and for arrays of draws: predictions need no numpy, fits pass its arrays."""

from __future__ import annotations


def larger(one: float, other: float) -> float:
    """Return the larger of two numbers, or of each pair of two arrays."""
    return (one + other + abs(one - other)) / 2


def smaller(one: float, other: float) -> float:
    """Return the smaller of two numbers, or of each pair of two arrays."""
    return (one + other - abs(one - other)) / 2

"""Versions of packages, as far as they are compared."""

from __future__ import annotations

import re


def major_minor(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version: (2, 11) of 2.11.0+cu126."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])

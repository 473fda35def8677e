"""Packages of this Python: which are missing, and their versions as far as they are compared."""

from __future__ import annotations

import re
from importlib.util import find_spec


def major_minor(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version: (2, 11) of 2.11.0+cu126."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def is_missing(package: str) -> bool:
    """Return whether this Python lacks a package, such as nvidia.dali; import none."""
    # find_spec fails within a package that is missing itself.
    return any(find_spec(name) is None for name in (package.partition(".")[0], package))

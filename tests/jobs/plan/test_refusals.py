"""Refusals of composition: refusals.txt has a line for each mistake, OVERRIDES => WORDS of the refusal.

A heading `== SUBJECT: OVERRIDES` has those that all lines below it share. Overrides are quoted as in a shell.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.composing import refusal


def cases() -> Iterator[tuple[list[str], str]]:
    shared: list[str] = []
    for line in Path(__file__).with_name("refusals.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("== "):
            shared = shlex.split(line.partition(":")[2])
        else:
            overrides, _, words = line.partition("  =>  ")
            yield [*shared, *shlex.split(overrides)], words


@pytest.mark.parametrize(("overrides", "words"), list(cases()))
def test_a_mistake_is_refused_with_a_remedy(overrides: list[str], words: str) -> None:
    assert words
    assert words in " ".join(refusal(*overrides).split())

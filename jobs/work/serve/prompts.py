"""The pool of prompts, made of words of Python's standard library, and the prompts that the requests draw from it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence

from jobs.data.sources import STDLIB
from jobs.errors import DataError
from jobs.files import read_text

MOST_WORDS = 30_000


def words() -> list[str]:
    """Return the words of modules of Python's standard library, in the order of their names."""
    found: list[str] = []
    for path in sorted(STDLIB.glob("*.py")):
        found += read_text(path).split()
        if len(found) > MOST_WORDS:
            break
    if not found:
        raise DataError(f"{STDLIB} has no source text to make prompts of. Use a Python with its standard library.")
    return found


def pool(count: int, mean_tokens: int, seed: int, encode: Callable[[list[str]], Sequence[Sequence[int]]]) -> list[str]:
    """Return prompts of `mean_tokens` tokens in the mean, of lengths uniform from half to one and a half times that.

    `encode` returns the token ids of many texts. A prompt is a passage of the text that ends with a word, where its
    length is nearest to the drawn one.
    """
    text = words()
    sizes = [max(1, len(ids)) for ids in encode([f" {word}" for word in text])]
    draw = random.Random(seed)  # noqa: S311 (prompts are no secrets)
    prompts = []
    for _ in range(count):
        length = draw.uniform(0.5, 1.5) * mean_tokens
        first = draw.randrange(len(text))
        # A word has one token at least, so this many reach the longest prompt of 1.5 x mean_tokens.
        places = [(first + i) % len(text) for i in range(2 * mean_tokens + 1)]
        ends = list(itertools.accumulate(sizes[place] for place in places))
        best = min(range(len(ends)), key=lambda i: abs(ends[i] - length))
        prompts.append(" ".join(text[place] for place in places[: best + 1]))
    return prompts


def drawn(prompts: Sequence[str], requests: int, seed: int) -> list[str]:
    """Return the prompt of each request, drawn at random from the pool."""
    return random.Random(seed).choices(prompts, k=requests)  # noqa: S311 (prompts are no secrets)

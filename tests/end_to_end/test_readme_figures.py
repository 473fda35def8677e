"""Measured speeds in the READMEs are worth what our own report would call them: with n, an interval or "one run".

A block is a paragraph, a list item, or a row of a table with the table's head and the paragraphs before and after it,
its captions. Blocks of code are output of a program, and quotations are sentences of a report.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.readme_text import FILES

NUMBER = r"\d[\d,.]*"
# A measured rate, or a speed beside another one.
SPEED = re.compile(
    rf"{NUMBER}(?: to {NUMBER})? (?:times (?:as (?:fast|many|long|slow)|the throughput|the \w+/s)"
    rf"|(?:real )?(?:tokens|samples|images)/s|% (?:MFU|of the matrix rate))"
)
# The number of runs, a spread or an interval.
WORTH = re.compile(
    rf"\bn = \d|\b[Oo]ne run\b|\b[Mm]edians?\b|\binterval\b|\({NUMBER} to {NUMBER}\)|\b{NUMBER} (?:repeats|results)\b"
)
# An interval of a prediction is none of a measurement.
PREDICTED = re.compile(r"[Pp]redicted\b(?:[^.;|]|\.\d)*")
# A rule or a setting, not a measurement: `1.1 times as slow as the median` in the list of what counts as a straggler.
RULES = ("more than", "at most", "is at least", "A trial that is", "published")


def blocks_of(text: str) -> list[str]:
    """Return the paragraphs, list items and rows of tables of a README, without code and quotations."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    parts = [part for part in re.split(r"\n\s*\n|\n(?=\s*(?:\*|\d+\.) )", text) if part.strip()]
    parts = [part for part in parts if not part.lstrip().startswith(">")]
    found = []
    for i, part in enumerate(parts):
        if not part.startswith("|"):
            found.append(part)
            continue
        head, *rows = part.splitlines()
        around = [each for each in (*parts[max(0, i - 1) : i], *parts[i + 1 : i + 2]) if not each.startswith("|")]
        found += ["\n".join([row, head, *around]) for row in rows or [head]]
    return found


def unsupported(text: str) -> list[str]:
    """Return the speeds of a README that state neither n nor a spread."""
    found = []
    for block in blocks_of(text):
        flat = PREDICTED.sub("", " ".join(block.split()))
        if WORTH.search(flat):
            continue
        around = [(flat[max(0, each.start() - 60) : each.start()], each[0]) for each in SPEED.finditer(flat)]
        found += [before + speed for before, speed in around if not any(rule in before for rule in RULES)]
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(file.parents[1])))
def test_every_measured_speed_has_its_n_its_interval_or_the_words_one_run(file: Path) -> None:
    assert unsupported(file.read_text()) == []


@pytest.mark.parametrize(
    ("claim", "stands"),
    [
        ("It trains 2.9 times as fast as X.", False),
        ("It trains 2.9 times as fast as X, one run each.", True),
        ("It trains 2.9 times as fast as X (n = 5 each).", True),
        ("It trains 2.9 times as fast as X (2.1 to 3.4).", True),
        ("It trains at 12,009 tokens/s.", False),
        ("It trains at 12,009 tokens/s, the median of 5.", True),
        ("86 % of the matrix rate", False),
        ("56 % MFU of the data sheet", False),
        ("On 8 ranks 6.68 times the throughput.", False),
        ("One run each:\n\n| a | 292 images/s |", True),
        ("Speeds:\n\n| a | 292 images/s |", False),
        ("Speeds:\n\n| a | 292 images/s |\n\n*One run; CPU.*", True),
        ("A straggler takes more than 1.1 times as long as the others.", True),
        ("```\n12,009 tokens/s\n```", True),
        ("> B is 0.9488 times as fast as A", True),
        ("It reaches 12 tokens/s. Predicted: 11.5 tokens/s (9 to 14).", False),
        ("Memory falls by 20 %, and MFU is explained below.", True),
    ],
)
def test_the_rule_tells_claims_from_measurements(claim: str, stands: bool) -> None:
    assert (unsupported(claim) == []) is stands

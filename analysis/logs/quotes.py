"""Texts that quote lines of logs: batch scripts, notes, chronicles. They are not runs.

The content decides: whether the lines that would make a run are commented, fenced or quoted, or stand in prose. A log
that begins with its own script is a log, because its steps follow the script.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from itertools import islice
from pathlib import Path

from analysis.parsers.search import LONGEST_LINE, whole_lines

# No script or note is longer.
LOOKED_AT_LINES = 20_000
SCRIPT = re.compile(r"#!|#(?:SBATCH|PBS|BSUB)\b")
HEAD_LINES = 50
# A line of a script in which words of a log are searched, printed or described.
IN_SCRIPT = re.compile(r"\s*#|.*\b(?:grep|awk|sed|echo|printf|cat|if|while|case)\b")
FENCE = re.compile(r"\s*(?:```|~~~)")
QUOTED = re.compile(r"\s*(?:>|[*-] +`|`)")
IN_DOCUMENT = re.compile(r"(?: {4}|\t)\s*\S|\s*\||.*`")
HEADING = re.compile(r"#{1,4} +\w|(?:={4,}|-{4,})$")
WORD = re.compile(r"\(?[A-Za-z][A-Za-z'-]*[),.;:!?]*$")
FEWEST_WORDS, WORDS_SHARE = 6, 0.8
# Hydra refuses a setting in sentences. torchrun's summary has rules like those under headings.
BY_PROGRAM = re.compile(
    r"Set the environment variable HYDRA_FULL_ERROR=1\b|Root Cause \(first observed failure\):$|"
    r"(?:srun|slurmstepd): error: "
)
# A document with headings needs fewer sentences.
FEWEST_SENTENCES, FEWEST_UNDER_HEADINGS, SENTENCES_SHARE = 3, 2, 0.4


def quotes(path: Path, numbers: Collection[int]) -> bool:
    """Return True if the lines with these numbers are quotations in a script or a note. Raise OSError if unreadable."""
    lines = list(islice(texts(path), LOOKED_AT_LINES + 1))
    wanted = [number for number in numbers if 0 < number <= len(lines)]
    if not wanted or len(lines) > LOOKED_AT_LINES:
        return False
    marked = [lines[number - 1] for number in wanted]
    if any(SCRIPT.match(line) for line in lines[:HEAD_LINES]) and all(map(IN_SCRIPT.match, marked)):
        return True
    if all(map(QUOTED.match, marked)) or is_fenced(lines, wanted):
        return True
    if any(map(BY_PROGRAM.match, lines)):
        return False
    headed = any(HEADING.match(line) for line in lines)
    if headed and all(map(IN_DOCUMENT.match, marked)):
        return True
    return is_prose(lines, set(wanted), FEWEST_UNDER_HEADINGS if headed else FEWEST_SENTENCES)


def texts(path: Path) -> Iterator[str]:
    """Yield the lines of a file."""
    for expected, (number, line) in enumerate(whole_lines(path, LONGEST_LINE), start=1):
        # Lines that are too long are left out.
        if number != expected:
            return
        yield line.decode(errors="replace").rstrip()


def is_fenced(lines: list[str], wanted: Collection[int]) -> bool:
    """Return True if all these lines are within code fences of Markdown."""
    inside, fenced = False, set()
    for number, line in enumerate(lines, start=1):
        if FENCE.match(line):
            inside = not inside
        elif inside:
            fenced.add(number)
    return fenced.issuperset(wanted)


def is_prose(lines: list[str], wanted: Collection[int], fewest: int) -> bool:
    """Return True if a good part of the other lines are sentences."""
    others = [line for number, line in enumerate(lines, start=1) if line and number not in wanted]
    sentences = sum(map(is_sentence, others))
    return sentences >= max(fewest, SENTENCES_SHARE * len(others))


def is_sentence(line: str) -> bool:
    """Return True if a line looks written by a person."""
    words = line.split()
    if len(words) < FEWEST_WORDS or not line.lstrip("*- ")[:1].isupper():
        return False
    return sum(WORD.match(word) is not None for word in words) >= WORDS_SHARE * len(words)

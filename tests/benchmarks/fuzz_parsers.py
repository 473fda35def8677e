"""Reading of randomly changed logs: `python -m tests.benchmarks.fuzz_parsers --seconds 60`.

Each input is one or two samples, cut and joined, with odd bytes, markers of formats and odd numbers inserted. Reading
must end, raise nothing and return finite numbers only. Prints the amount read and the longest processor time of an
input. An input that fails is kept, and its path printed.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import tempfile
import time
from pathlib import Path

from tests.support.any_content import CONTENTS, MARKERS, ODD, read_all

MOST_CHANGES = 12
NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
ODD_NUMBERS = [b"nan", b"-inf", b"1e999", b"-0", b"9" * 400, b"0x10", b"1,234", b"", b"1.2.3"]


def changed(rng: random.Random) -> bytes:
    """Return an input."""
    content = bytearray(b"".join(rng.sample(CONTENTS, rng.choice((1, 1, 2)))))
    for _ in range(rng.randint(0, MOST_CHANGES)):
        at = rng.randint(0, len(content))
        end = min(len(content), at + rng.choice((0, 1, 8, 200)))
        change = rng.randrange(6)
        if change == 0:
            content[at:end] = rng.choice(ODD)
        elif change == 1:
            content[at:end] = rng.choice(MARKERS).encode()
        elif change == 2:
            content[at:end] = rng.randbytes(rng.choice((1, 4, 64)))
        elif change == 3:
            content[at:at] = content[at:end] * rng.choice((2, 50))
        elif change == 4 and (number := NUMBER.search(content, at)):
            content[number.start() : number.end()] = rng.choice(ODD_NUMBERS)
        elif change == 5:
            other = rng.choice(CONTENTS)
            start = rng.randint(0, len(other))
            content[at:at] = other[start : start + rng.choice((100, 2000))]
    return bytes(content[: rng.randint(0, len(content))] if rng.random() < 0.2 else content)


def main() -> None:
    """Read inputs until the time is over, and print their number and size."""
    arguments = argparse.ArgumentParser(description="Read logs changed at random; exit code 1 if one fails.")
    arguments.add_argument("--seconds", type=float, default=60, help="how long (default: %(default)g)")
    arguments.add_argument("--seed", type=int, default=0, help="of the random numbers (default: %(default)s)")
    given = arguments.parse_args()
    rng = random.Random(given.seed)
    inputs = size = records = 0
    longest_s, longest_bytes = 0.0, 0
    ends = time.monotonic() + given.seconds
    while time.monotonic() < ends:
        content = changed(rng)
        started_s = time.process_time()
        try:
            records += read_all(content)
        except Exception:
            handle, kept = tempfile.mkstemp(prefix="failed-", suffix=".log")
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            print(f"Input {inputs} of seed {given.seed} fails; it is kept as {Path(kept)}.")
            raise
        took_s = time.process_time() - started_s
        inputs, size = inputs + 1, size + len(content)
        if took_s > longest_s:
            longest_s, longest_bytes = took_s, len(content)
    print(
        f"{inputs:,} inputs, {size / 1e6:,.1f} MB, {records:,} records, nothing raised in {given.seconds:g} s "
        f"(seed {given.seed}); the longest took {longest_s:.2f} s of processor time for {longest_bytes:,} bytes"
    )


if __name__ == "__main__":
    main()

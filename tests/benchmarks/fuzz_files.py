"""Reading of randomly changed files: `python -m tests.benchmarks.fuzz_files --inputs 1000000`.

Every file that is read back is changed, and given to the functions that read it: logs of other programs, all records of
runs, sweeps and campaigns, files of settings, tables and checkpoints. Reading must end, raise only what its callers
handle, open no file for writing elsewhere, start no process and construct nothing that is not data. An input that
fails is kept, and its path printed. `--only log` changes files of one kind.
"""

from __future__ import annotations

import argparse
import os
import pickle
import random
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.any_content import CONTENTS, MARKERS, ODD
from tests.support.readers import REFUSED, Kind, kinds

MOST_CHANGES = 12
LONGEST_CPU_S = 20.0
LONGEST_S = 600.0  # of a reader that waits; a busy machine may take long for little
NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
VALUE = re.compile(rb'(?<=: )[^,\n}\]]+|(?<=":)(?:"[^"]*"|[^,\n}\]]+)')
ODD_NUMBERS = [b"nan", b"-inf", b"1e999", b"-0", b"9" * 400, b"9" * 5000, b"0x10", b"1,234", b"", b"1.2.3"]
ODD_VALUES = [
    b"null", b"[]", b"{}", b'""', b'"x"', b"-1", b"0", b"0.5", b"1e999", b"NaN", b"true", b"9" * 19, b"9" * 400,
    b"9" * 5000, b'"\\ud800"', b"[" * 200 + b"]" * 200, b'{"a": ' * 200 + b"1" + b"}" * 200, b"&a [*a]", b"*b",
    b"!!python/object/apply:os.system [id]", b"!!timestamp x", b"!!binary x", b"2026-13-40", b'"${a}"', b'"${"',
    b'"../../../etc/passwd"', b'"2026-13-40"', b"[1, 2]", b'[{"event": "submitted"}]', b"\0", b"\x1b[31m", b"<<: x",
]  # fmt: skip
PROCESSES = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "socket.connect")
CHANGES = ("os.rename", "os.remove", "os.symlink", "os.link", "os.mkdir", "os.chmod", "os.truncate")


def changed(rng: random.Random, given: bytes, others: list[bytes]) -> bytes:
    """Return an input."""
    content = bytearray(given)
    for _ in range(rng.randint(0, MOST_CHANGES)):
        at = rng.randint(0, len(content))
        end = min(len(content), at + rng.choice((0, 1, 8, 200)))
        change = rng.randrange(9)
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
            other = rng.choice(others)
            start = rng.randint(0, len(other))
            content[at:at] = other[start : start + rng.choice((100, 2000))]
        elif value := VALUE.search(content, at):
            content[value.start() : value.end()] = rng.choice(ODD_VALUES)
    return bytes(content[: rng.randint(0, len(content))] if rng.random() < 0.2 else content)


class Attack:
    """An object whose unpickling runs a command."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return os.system, ("touch /tmp/attacked",)


class Watch:
    """Notes of what reading does to the world, by Python's audit events."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        self.seen: list[str] = []
        self.on = False
        sys.addaudithook(self.note)

    def note(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Note an event that reading must not cause."""
        if not self.on:
            return
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        # A file object of a descriptor was noted when the descriptor was opened.
        again = event == "open" and isinstance(arguments[0], int)
        outside = (writes or event in CHANGES) and not again and not str(arguments[0]).startswith(self.folder)
        if outside or event in PROCESSES:
            self.seen.append(f"{event}{arguments}")


@contextmanager
def limited(watch: Watch) -> Iterator[None]:
    """Raise TimeoutError in a reader that does not end, and AssertionError after one that changed the world."""

    def ends(*_: object) -> None:
        raise TimeoutError(f"it did not end within {LONGEST_CPU_S:g} s of computing, or {LONGEST_S:g} s")

    signal.signal(signal.SIGPROF, ends)
    signal.signal(signal.SIGALRM, ends)
    signal.setitimer(signal.ITIMER_PROF, LONGEST_CPU_S)
    signal.setitimer(signal.ITIMER_REAL, LONGEST_S)
    watch.seen, watch.on = [], True
    try:
        yield
    finally:
        watch.on = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
    assert not watch.seen, watch.seen


def read_one(kind: Kind, content: bytes, watch: Watch) -> bool:
    """Let the readers of a kind read a content; return True if one refused it."""
    kind.path.write_bytes(content)
    refused = False
    for reader in kind.readers:
        try:
            with limited(watch):
                reader()
        except REFUSED:
            refused = True
    kind.path.write_bytes(kind.given[0])
    return refused


def fuzz(rng: random.Random, inputs: int, seconds: float, only: str | None) -> dict[str, Counter[str]]:
    """Read inputs until there are enough or the time is over; return counts by kind."""
    counts: dict[str, Counter[str]] = {}
    ends = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        watch = Watch(Path(folder))
        all_kinds = [kind for kind in kinds(Path(folder)) if only in {None, kind.name}]
        for _ in range(inputs):
            kind = rng.choices(all_kinds, [each.weight for each in all_kinds])[0]
            others = CONTENTS if kind.name == "log" else [*kind.given, pickle.dumps(Attack())]
            content = changed(rng, rng.choice(kind.given), others)
            started_s = time.process_time()
            try:
                refused = read_one(kind, content, watch)
            except Exception:
                handle, kept = tempfile.mkstemp(prefix="failed-", suffix=f"-{kind.path.name}")
                with os.fdopen(handle, "wb") as file:
                    file.write(content)
                print(f"A {kind.name} fails; it is kept as {kept}.")
                raise
            count = counts.setdefault(kind.name, Counter())
            count.update(inputs=1, refused=refused, bytes=len(content))
            count["longest_ms"] = max(count["longest_ms"], int(1e3 * (time.process_time() - started_s)))
            if time.monotonic() > ends:
                break
    return counts


def main() -> None:
    """Read inputs, and print their number, size and longest time by kind."""
    arguments = argparse.ArgumentParser(description="Read files changed at random; exit code 1 if one fails.")
    arguments.add_argument("--inputs", type=int, default=1_000_000, help="how many at most (default: %(default)s)")
    arguments.add_argument("--seconds", type=float, default=float("inf"), help="how long at most (default: no limit)")
    arguments.add_argument("--seed", type=int, default=0, help="of the random numbers (default: %(default)s)")
    arguments.add_argument("--only", help="change files of this kind only")
    given = arguments.parse_args()
    counts = fuzz(random.Random(given.seed), given.inputs, given.seconds, given.only)
    print("| file | inputs | refused | MB | longest |\n| --- | ---: | ---: | ---: | ---: |")
    for name, count in sorted(counts.items()):
        print(f"| {name} | {count['inputs']:,} | {count['refused']:,} | {count['bytes'] / 1e6:,.1f} | "
              f"{count['longest_ms'] / 1e3:.2f} s |")  # fmt: skip
    print(f"{sum(count['inputs'] for count in counts.values()):,} inputs (seed {given.seed}); none failed")


if __name__ == "__main__":
    main()

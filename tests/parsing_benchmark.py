"""How fast logs are read: `make benchmark` prints MB/s of one core, on a gigabyte made here of each kind.

Beside each stands what a plain loop over the lines takes that only looks for the format's mark, in the same run.
"""

from __future__ import annotations

import itertools
import json
import random
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from analysis.parsers.read import read_log

SIZE_BYTES = 1_000_000_000
WORDS = ["loading", "tensor", "connection", "channel", "weights", "0x7f3a", "12.5", "rank3", "INFO", "via", "ring",
         "bootstrap", "graph"]  # fmt: skip
SEED = 0
# One line of measurement in so many of noise.
NOISE_LINES = 5_000


def megatron(step: int) -> str:
    """A line of Megatron-LM."""
    return (
        f" iteration {step:8d}/ 1000000 | consumed samples: {64 * step:12d} | elapsed time per iteration (ms): 640.1 | "
        "learning rate: 1.000E-04 | global batch size:    64 | lm loss: 2.504220E+00 | loss scale: 1.0 | "
        "grad norm: 0.231 | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
    )


def noise(line: Callable[[], str]) -> Iterator[str]:
    """Lines that mean nothing, with a step now and then."""
    words = random.Random(SEED)
    lines = [line() + " ".join(words.choices(WORDS, k=12)) + "\n" for _ in range(NOISE_LINES)]
    for step in itertools.count(1):
        yield from lines
        yield megatron(step)


def nccl() -> str:
    """How a line of NCCL begins."""
    return "node01:4711:4720 [0] NCCL INFO "


def mllog() -> Iterator[str]:
    """Nothing but losses."""
    for step in itertools.count(1):
        event = {
            "namespace": "", "time_ms": 1_700_000_000_000 + step, "event_type": "POINT_IN_TIME", "key": "train_loss",
            "value": 2.25, "metadata": {"file": "train.py", "lineno": 7, "samples_count": 8 * step, "lr": 0.0004},
        }  # fmt: skip
        yield f":::MLLOG {json.dumps(event)}\n"


def measured(name: str, lines: Iterator[str], mark: str, folder: Path) -> None:
    """Write a gigabyte of these lines, read it, and print how fast that was."""
    file = folder / "log"
    with file.open("w") as log:
        while log.tell() < SIZE_BYTES:
            log.write("".join(itertools.islice(lines, 100_000)))
    size_mb = file.stat().st_size / 1e6
    started = time.perf_counter()
    count = sum(1 for _, found in read_log(file) for _ in found)
    parsed_s = time.perf_counter() - started
    started = time.perf_counter()
    with file.open("rb") as log:
        marked = sum(mark.encode() in line for line in log)
    loop_s = time.perf_counter() - started
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"| {name} | {loop_s / parsed_s:.2f} | {size_mb / parsed_s:.0f} MB/s | {size_mb / loop_s:.0f} MB/s | "
        f"{count} of {marked} | {peak_mib:.0f} MiB |",
        flush=True,
    )


def main() -> None:
    """Print the table."""
    print("| log of 1 GB | ratio | read | a loop that looks for the mark | records of marked lines | memory |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as where:
        measured("Megatron-LM, noisy", noise(str), " iteration ", Path(where))
        measured("Megatron-LM in lines of NCCL", noise(nccl), " iteration ", Path(where))
        measured("MLLOG, dense", mllog(), ":::MLLOG", Path(where))


if __name__ == "__main__":
    main()

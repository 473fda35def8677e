"""Reading speed of logs: MB/s of processor time, on a generated gigabyte of each kind.

Compared, in the same run, with a plain loop over the lines that only searches for the format's marker.
`python -m tests.benchmarks.parsing --size-mb 100` is quicker.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from analysis.parsers.detect import read_log

SIZE_MB = 1_000
WORDS = ["loading", "tensor", "connection", "channel", "weights", "0x7f3a", "12.5", "rank3", "INFO", "via", "ring",
         "bootstrap", "graph"]  # fmt: skip
SEED = 0
# Lines of noise for each line of measurement.
NOISE_LINES = 5_000


def megatron(step: int) -> str:
    """Return a line of Megatron-LM."""
    return (
        f" iteration {step:8d}/ 1000000 | consumed samples: {64 * step:12d} | elapsed time per iteration (ms): 640.1 | "
        "learning rate: 1.000E-04 | global batch size:    64 | lm loss: 2.504220E+00 | loss scale: 1.0 | "
        "grad norm: 0.231 | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
    )


def noise(line: Callable[[], str]) -> Iterator[str]:
    """Yield lines without meaning, with a step after every NOISE_LINES."""
    words = random.Random(SEED)
    lines = [line() + " ".join(words.choices(WORDS, k=12)) + "\n" for _ in range(NOISE_LINES)]
    for step in itertools.count(1):
        yield from lines
        yield megatron(step)


def nccl() -> str:
    """Return the beginning of a line of NCCL."""
    return "node01:4711:4720 [0] NCCL INFO "


def nccl_alone() -> Iterator[str]:
    """Yield the output of eight ranks with NCCL_DEBUG=INFO that join one communicator after the other."""
    for number in itertools.count(1):
        for rank in range(8):
            head = f"node{number % 64:02d}:{4711 + rank}:{5711 + rank} [{rank}] NCCL INFO "
            for channel in range(32):
                yield f"{head}Channel {channel:02d}/0 : {rank}[{rank}] -> {rank + 1}[{rank + 1}] via P2P/CUMEM/read\n"
            for channel in range(4):
                network = f"via NET/IB/{channel}/GDRDMA"
                yield f"{head}Channel {channel:02d}/0 : {rank}[{rank}] -> {rank + 8}[{rank}] [send] {network}\n"
            yield f"{head}Connected all rings, use ring PXN 0 GDR 1\n"
            yield f"{head}comm 0x{number:012x} rank {rank} nranks 16 cudaDev {rank} busId {rank}b000 - Init COMPLETE\n"


def mllog() -> Iterator[str]:
    """Yield MLLOG events of losses."""
    for step in itertools.count(1):
        event = {
            "namespace": "", "time_ms": 1_700_000_000_000 + step, "event_type": "POINT_IN_TIME", "key": "train_loss",
            "value": 2.25, "metadata": {"file": "train.py", "lineno": 7, "samples_count": 8 * step, "lr": 0.0004},
        }  # fmt: skip
        yield f":::MLLOG {json.dumps(event)}\n"


def measured(name: str, lines: Iterator[str], mark: str, folder: Path, size_mb: int) -> None:
    """Write `size_mb` of these lines, read them, and print the speed."""
    file = folder / "log"
    with file.open("w") as log:
        while log.tell() < size_mb * 1e6:
            log.write("".join(itertools.islice(lines, 20_000)))
    written_mb = file.stat().st_size / 1e6
    started = time.process_time()
    count = sum(1 for _, found in read_log(file) for _ in found)
    parsed_s = time.process_time() - started
    started = time.process_time()
    with file.open("rb") as log:
        marked = sum(mark.encode() in line for line in log)
    loop_s = time.process_time() - started
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"| {name} | {loop_s / parsed_s:.2f} | {written_mb / parsed_s:.0f} MB/s | {written_mb / loop_s:.0f} MB/s | "
        f"{count} of {marked} | {peak_mib:.0f} MiB |",
        flush=True,
    )


def main() -> None:
    """Print the table."""
    arguments = argparse.ArgumentParser(
        description="Print the reading speed of logs, in MB per second of processor time."
    )
    arguments.add_argument("--size-mb", type=int, default=SIZE_MB, help="size of each log (default: %(default)s)")
    size_mb = arguments.parse_args().size_mb
    print(f"Load of this machine: {os.getloadavg()[0]:.1f}\n")
    print(f"| log of {size_mb} MB | ratio | read | a loop that seeks the marker | records of marked lines | memory |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as where:
        for name, lines, mark in (
            ("Megatron-LM, noisy", noise(str), " iteration "),
            ("Megatron-LM in lines of NCCL", noise(nccl), " iteration "),
            ("NCCL's own lines", nccl_alone(), " via "),
            ("MLLOG, dense", mllog(), ":::MLLOG"),
        ):
            measured(name, lines, mark, Path(where), size_mb)


if __name__ == "__main__":
    main()

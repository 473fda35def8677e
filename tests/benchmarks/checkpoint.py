"""Stall of training by a checkpoint in the background, over that of one in the foreground.

The same real run in both modes, in turn. The last checkpoint of a run, which always waits for the disk, is left out.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

from jobs.runtime.checkpoints.sums import sum_of
from tests.support.real_run import events, make_run, steps, train

REPEATS = 2
# Few wide layers: as in a large model, nearly all bytes are in tensors of megabytes.
MODEL = (
    "model.layers=4",
    "model.hidden_size=1024",
    "model.heads=16",
    "model.kv_heads=16",
    "model.head_size=64",
    "model.intermediate_size=2752",
    "model.vocab_size=8192",
    "job.sequence_length=32",
    "job.micro_batch_size=1",
    # Little arithmetic for this amount of state.
    "scaling.global_batch_size=2",
    "job.steps=40",
    "job.checkpoint_every_steps=8",
    "job.keep_checkpoints=1",
    "data=random",
    "data.max_samples=16",
    "ranks_per_node=2",
    "parallelism=fsdp_full",
)


def main() -> None:
    """Print the ratio with both times, the size and the bandwidth."""
    held_s: dict[bool, list[float]] = {True: [], False: []}
    sums_s: list[float] = []
    write_s, size_bytes = [], 0
    for _ in range(REPEATS):
        for in_background in (False, True):
            with tempfile.TemporaryDirectory() as where:
                setting = f"job.checkpoint_in_background={in_background}".lower()
                run = make_run(Path(where), *MODEL, setting, small=False)
                assert train(run) == [0, 0]
                rows = [row for row in steps(run) if "checkpoint_time_s" in row][:-1]
                held_s[in_background] += [row["checkpoint_time_s"] for row in rows]
                for event in events(run, "checkpoint")[:-1]:
                    write_s.append(float(str(event["checkpoint_write_time_s"])))
                    size_bytes = int(str(event["checkpoint_size_bytes"]))
                # Its two ranks compute the sums of their files at the same time.
                fence = time.process_time()
                for file in run.checkpoints.glob("*/*.distcp"):
                    sum_of(file)
                sums_s.append((time.process_time() - fence) / 2)
    waiting, copying = statistics.median(held_s[False]), statistics.median(held_s[True])
    print(
        f"\ncheckpoint in the background: training stalls for {copying / waiting:.3f} of the time that writing to "
        f"disk takes\n({copying * 1e3:.0f} ms against {waiting * 1e3:.0f} ms, medians of {len(held_s[True])}; "
        f"{size_bytes / 1e9:.2f} GB from 2 ranks, {size_bytes / statistics.median(write_s) / 1e9:.2f} GB/s; CPU)\n"
        f"checksums take {statistics.median(sums_s) / statistics.median(write_s):.2f} of the time of writing"
    )


if __name__ == "__main__":
    main()

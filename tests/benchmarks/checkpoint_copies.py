"""Restart of killed ranks from a slow shared file system, with copies of checkpoints on a disk of the node and without.

    .venv/bin/python -m tests.benchmarks.checkpoint_copies [PAIRS] [MB_PER_S]

The shared file system is an ext4 on a loop device, which a cgroup limits to MB_PER_S in each direction (root, cgroup
v1). Each pair is two runs, in alternating order: two ranks train, are killed after a checkpoint and its copies are
complete, and start again; all files of checkpoints leave the page cache before. Printed are the time of loading, the
time of a step while a copy may be written, and what was read from where.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from analysis.intervals import paired_interval
from jobs import metrics as m
from jobs.rundir import RunDir
from tests.benchmarks.checkpoint import MODEL
from tests.jobs.runtime.test_checkpoint_copies import killed_after
from tests.support.real_run import events, make_run, printed, rank, steps, train

SMALLER = ("model.hidden_size=256", "model.heads=4", "model.kv_heads=4", "model.intermediate_size=688")
EVERY, LAST = 4, 7
DISK_BYTES = 1 << 30
CGROUP = Path("/sys/fs/cgroup/blkio/slurmscale-benchmark")


@contextmanager
def slow_disk(where: Path, mb_per_s: float) -> Iterator[Path]:
    """Mount a file system of a loop device, and limit what processes of CGROUP read and write there."""
    image, place = where / "image", where / "shared"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(DISK_BYTES)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, place], check=True)
    device = place.stat().st_dev
    CGROUP.mkdir(exist_ok=True)
    for way in ("read", "write"):
        limit = f"{os.major(device)}:{os.minor(device)} {int(mb_per_s * 1e6)}"
        (CGROUP / f"blkio.throttle.{way}_bps_device").write_text(limit)
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)
        CGROUP.rmdir()


def limited(directory: Path, number: int, world: int, start: str, *, disk: Path | None, kill: bool) -> None:
    """Run a rank below the limit."""
    (CGROUP / "cgroup.procs").write_text(str(os.getpid()))
    if kill:
        killed_after(LAST, f"step-{LAST // EVERY * EVERY:08d}", directory, disk=disk, copies=1)
    rank(directory, number, world, start)


def forget(*places: Path) -> None:
    """Drop the files of checkpoints from the page cache."""
    for file in (file for place in places for file in place.rglob("*") if file.is_file()):
        opened = os.open(file, os.O_RDONLY)
        os.fsync(opened)
        os.posix_fadvise(opened, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(opened)


def one(place: Path, disk: Path, *, copies: bool) -> tuple[float, float, tuple[float, float]]:
    """Return the seconds of loading after a kill, the median step before, and the GB from copies and shared files."""
    with tempfile.TemporaryDirectory(dir=place) as where:
        saving = (f"job.steps={LAST + 1}", f"job.checkpoint_every_steps={EVERY}")
        wanted = [f"job.checkpoint_copy_dir={disk}"] if copies else []
        run: RunDir = make_run(Path(where), *MODEL, *SMALLER, *saving, *wanted, small=False)
        of_rank = partial(limited, disk=disk if copies else None)
        assert train(run, of_rank=partial(of_rank, kill=True)) == [-9, -9], printed(run)
        step_s = statistics.median(row["step_time_s"] for row in steps(run) if row["step"] > EVERY)
        forget(run.checkpoints, disk)
        assert train(run, of_rank=partial(of_rank, kill=False)) == [0, 0], printed(run)
        start = events(run, "started")[-1]
        assert start["from_step"] == LAST // EVERY * EVERY
        sources = (m.CHECKPOINT_FROM_COPIES, m.CHECKPOINT_FROM_SHARED)
        read_gb = tuple(float(str(start.get(each.name, 0))) / 1e9 for each in sources)
        size_gb = float(str(events(run, "checkpoint")[0]["checkpoint_size_bytes"])) / 1e9
    seconds = float(str(start[m.STARTUP_CHECKPOINT_TIME.name]))
    print(f"{copies=} load {seconds:.2f} s, step {step_s:.3f} s, {size_gb:.3f} GB, read {read_gb}", flush=True)
    return seconds, step_s, (read_gb[0], read_gb[1])


def main(pairs: int = 5, mb_per_s: float = 10.0) -> None:
    """Print medians, and the ratio of each pair as a mean with its interval."""
    loads: dict[bool, list[float]] = {False: [], True: []}
    times: dict[bool, list[float]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as top, slow_disk(Path(top), mb_per_s) as place:
        disk = Path(top, "local")
        disk.mkdir()
        for pair in range(pairs):
            for copies in (False, True) if pair % 2 else (True, False):
                seconds, step_s, _ = one(place, disk, copies=copies)
                loads[copies].append(seconds)
                times[copies].append(step_s)
    for name, found in (("loading", loads), ("step", times)):
        ratios = [with_s / without_s for with_s, without_s in zip(found[True], found[False], strict=True)]
        medians = {copies: f"{statistics.median(found[copies]):.3g} s" for copies in found}
        print(f"{name}: {medians[True]} with copies, {medians[False]} without; ratios {[f'{r:.3f}' for r in ratios]}")
        middle, interval = statistics.geometric_mean(ratios), paired_interval(ratios)
        print(f"  ratio {middle:.3f}, 95 % interval {interval}, n = {pairs} pairs")


if __name__ == "__main__":
    main(*[kind(word) for kind, word in zip((int, float), sys.argv[1:], strict=False)])

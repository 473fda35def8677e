"""Cost of timing the ranks: the ratio of step times with and without it.

The same real run in both modes, in turn: steps of milliseconds through many thin layers, and a window after every step
instead of every tenth. A window lies outside the step time, so times are taken from record to record. The tenth
percentiles are compared, because other load on the machine slows the other steps.
"""

from __future__ import annotations

import statistics
import tempfile
from itertools import pairwise
from pathlib import Path

from tests.support.real_run import make_run, steps, train

REPEATS = 4
UNMEASURED = 10
MODEL = ("model.layers=16", "job.steps=120", f"job.unmeasured_steps={UNMEASURED}", "ranks_per_node=2",
         "parallelism=ddp")  # fmt: skip


def record_to_record_s(every: int) -> list[float]:
    """Return the times between the records of consecutive steady steps of one run."""
    with tempfile.TemporaryDirectory() as where:
        run = make_run(Path(where), *MODEL, f"engine.pace_every_steps={every}")
        assert train(run) == [0, 0]
        elapsed_s = [row["elapsed_s"] for row in steps(run)][UNMEASURED:]
    return [after - before for before, after in pairwise(elapsed_s)]


def main() -> None:
    """Print the ratio and both times."""
    times_s: dict[int, list[float]] = {0: [], 1: []}
    for _ in range(REPEATS):
        for every in times_s:
            times_s[every] += record_to_record_s(every)
    without, timed = (statistics.quantiles(times_s[every], n=10)[0] for every in times_s)
    print(
        f"\nown times of ranks: a step takes {timed / without:.3f} times as long with a window after every step\n"
        f"({timed * 1e3:.2f} ms against {without * 1e3:.2f} ms, tenth percentile of {len(times_s[0])}; 16 thin layers, "
        "2 ranks, CPU)"
    )


if __name__ == "__main__":
    main()

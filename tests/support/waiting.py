"""Wait for the effects of another process, with limits that scale with the speed of this machine.

A limit only ends a test that hangs. Limits are generous, and grow with the time of a fixed piece of work, so that a
slow machine gives the same answer.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess

SLOWNESS = "SLURMSCALE_TEST_SLOWNESS"
# Wall time of the piece of work below on an idle core of an AMD EPYC virtual machine, Python 3.11.
REFERENCE_S = 0.1


def calibrate() -> None:
    """Measure once how much slower this machine is than the reference; child processes inherit the factor."""
    if SLOWNESS not in os.environ:
        wall_s = sorted(_wall_time_s() for _ in range(3))[1]
        os.environ[SLOWNESS] = f"{max(1.0, wall_s / REFERENCE_S):.2f}"


def limit_s(seconds: float) -> float:
    """Return a limit in seconds, chosen on the reference machine, for this machine."""
    return seconds * float(os.environ.get(SLOWNESS, "1"))


def wait_until(condition: Callable[[], object], seconds: float = 180, *, by: BaseProcess | None = None) -> None:
    """Return once the condition holds; fail if it does not within `limit_s(seconds)`, or when the process `by` ends."""
    limit = limit_s(seconds)
    deadline = time.monotonic() + limit
    ended = False
    while not condition():
        assert not ended, f"still false after its process ended with exit code {by and by.exitcode}"
        assert time.monotonic() < deadline, f"still false after {limit:.0f} s"
        # What it did last is seen by one more look.
        ended = by is not None and not by.is_alive()
        time.sleep(0.1)


def _wall_time_s() -> float:
    started = time.perf_counter()
    sum(number * number for number in range(2_000_000))
    return time.perf_counter() - started

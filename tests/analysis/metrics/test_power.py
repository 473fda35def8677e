"""Power in every second of a run against the limits of a contest, by readings of meters and of nvidia-smi."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from analysis.metrics.power import PowerLimits, over_power

BEGIN_S = 1_790_000_000.0
END_S = BEGIN_S + 10


def meter(power_w: Callable[[int], float], step_s: float = 1.0) -> str:
    """Return the table of a meter, which reads at half of every second."""
    count = int(12 / step_s)
    rows = (f"{BEGIN_S - 1 + step_s * i + 0.5},{power_w(round(step_s * i) - 1)}" for i in range(count))
    return "time,power_w\n" + "\n".join(rows) + "\n"


def nvidia(power_w: float) -> str:
    """Return readings of two GPUs by nvidia-smi."""
    lines = ["timestamp, index, power.draw [W]"]
    for second in range(-1, 11):
        at = datetime.fromtimestamp(BEGIN_S + second, UTC).strftime("%Y/%m/%d %H:%M:%S.%f")[:-3]
        lines += [f"{at}, {gpu}, {power_w / 2:.2f} W" for gpu in (0, 1)]
    return "\n".join(lines) + "\n"


def spike(second: int) -> float:
    return 2100.0 if second == 4 else 1500.0


@pytest.mark.parametrize(
    ("logs", "limits", "reason"),
    [
        ([meter(lambda _: 1500), meter(lambda _: 1500)], (3000, 2000), None),
        ([meter(spike), meter(lambda _: 1500)], (4500, 2000),
         "took 2,100 W (power-n0), and the contest allows 2,000 W: 1 of 10 seconds are above it"),
        ([meter(spike), meter(spike)], (4000, None),
         "took 4,200 W (all nodes together), and the contest allows 4,000 W: 1 of 10 seconds are above it"),
        ([meter(lambda second: 1500 + 90 * second), meter(lambda second: 2400 - 90 * second)], (3900, None), None),
        ([nvidia(1900), nvidia(1900)], (4000, 2000), None),
        ([nvidia(1900), nvidia(2200)], (None, 2000), "took 2,200 W (power-n1), and the contest allows 2,000 W: 10 of"),
        ([meter(lambda _: 1500)], (3000, None), "power readings of 1 node, and the contest limits the power of all 2"),
        ([meter(lambda _: 1500), meter(lambda _: 1500, step_s=3)], (9000, None), "has no reading for"),
        ([meter(lambda _: 1500), "time,power_w\nyesterday,9\n2026-01-01T00:00:00,5\n"], (9000, None),
         "has no reading for 10 of 10 seconds of the run"),
    ],
)  # fmt: skip
def test_every_second_of_every_node_is_within_the_limits_or_the_run_does_not_count(
    tmp_path: Path, logs: list[str], limits: tuple[float | None, float | None], reason: str | None
) -> None:
    files = [tmp_path / f"power-n{number}.csv" for number in range(len(logs))]
    for file, text in zip(files, logs, strict=True):
        file.write_text(text)
    found = over_power(files, BEGIN_S, END_S, PowerLimits(*limits), nodes=2)
    assert (found is None) if reason is None else (found is not None and reason in found.replace(".csv", ""))


def test_moments_of_a_meter_may_be_texts_with_their_zone(tmp_path: Path) -> None:
    file = tmp_path / "power-n0.csv"
    rows = (f"{datetime.fromtimestamp(BEGIN_S + i, UTC).isoformat()},700" for i in range(11))
    file.write_text("meter,time,power_w\n" + "\n".join(f"pdu,{row}" for row in rows))
    assert over_power([file], BEGIN_S, END_S, PowerLimits(800, None), nodes=1) is None
    assert "took 700 W" in str(over_power([file], BEGIN_S, END_S, PowerLimits(600, None), nodes=1))
    assert "100 days" in str(over_power([file], BEGIN_S, BEGIN_S + 1e9, PowerLimits(600, None), nodes=1))


@pytest.mark.parametrize(
    ("begin", "end", "missing"),
    [(0.9, 7.1, ""), (0.0, 7.0, "1 of 7 seconds"), (0.9, 9.1, "2 of 10 seconds"), (0.2, 0.9, "1 of 1 seconds")],
)
def test_a_meter_that_starts_with_the_run_need_not_read_in_a_second_that_the_run_does_not_fill(
    begin: float, end: float, missing: str, tmp_path: Path
) -> None:
    file = tmp_path / "power-n0.csv"
    # From the second after the first one on, and to the seventh.
    rows = (f"{BEGIN_S + i + 0.5},700" for i in (1, 2, 3, 4, 5, 6))
    file.write_text("time,power_w\n" + "\n".join(rows) + "\n" + f"{BEGIN_S + 30},700\n")
    found = over_power([file], BEGIN_S + begin, BEGIN_S + end, PowerLimits(800, None), nodes=1)
    assert (found is None) if not missing else (found is not None and f"has no reading for {missing}" in found)
    if found is None:
        assert over_power([file], BEGIN_S + begin, BEGIN_S + end, PowerLimits(600, None), nodes=1) is not None

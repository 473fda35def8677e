"""Energy of power readings: the integral, gaps, clocks that are off, and what nvidia-smi leaves in a run directory."""

from __future__ import annotations

import csv
import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.load.discover import read_runs
from analysis.metrics.energy import LONGEST_GAP_S, energy_j
from analysis.report.report import report
from jobs import metrics as m
from jobs.rundir import RunDir
from tests.support.fake_events import clock, compute, killed_once, meet
from tests.support.fake_runs import a_run, ended, prepared
from tests.support.measured_runs import only

# --- the integral ----------------------------------------------------------------------------------------------


def test_a_constant_power_gives_power_times_time_of_every_device() -> None:
    samples = [(device, float(second), 300.0) for device in ("a", "b") for second in range(-5, 106)]
    energy = energy_j(samples, 0.5, 100.25, expected=2)
    assert energy.energy_j == pytest.approx(2 * 300 * 99.75)
    assert energy.covered == pytest.approx(1)
    assert (energy.devices, energy.left_out, energy.complete) == (("a", "b"), (), True)


def test_a_ramp_is_cut_to_the_interval() -> None:
    energy = energy_j([("a", 0.0, 0.0), ("a", 20.0, 200.0)], 5, 10)
    assert energy.energy_j == pytest.approx(5 * 75)


@given(
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 1000)), min_size=2, max_size=40),
    st.integers(0, 200),
    st.integers(0, 200),
)
def test_order_does_not_matter_and_parts_sum_to_the_whole(
    points: list[tuple[int, int]], begin: int, middle: int
) -> None:
    samples = [("a", float(time_s), float(power_w)) for time_s, power_w in points]
    whole = energy_j(samples, begin, begin + 200)
    assert energy_j(samples[::-1], begin, begin + 200).energy_j == pytest.approx(whole.energy_j)
    cut = begin + min(middle, 199)
    parts = energy_j(samples, begin, cut), energy_j(samples, cut, begin + 200)
    assert sum(part.energy_j for part in parts) == pytest.approx(whole.energy_j)
    assert 0 <= whole.covered_s <= 200


def test_a_gap_is_not_bridged_and_its_time_is_not_covered() -> None:
    seconds = [*range(11), *range(11 + int(LONGEST_GAP_S), 101)]
    energy = energy_j([("a", float(second), 100.0) for second in seconds], 0, 100, expected=1)
    assert energy.energy_j == pytest.approx(100 * (100 - 31))
    assert energy.covered == pytest.approx(0.69)
    assert not energy.complete


def test_readings_at_one_moment_count_as_their_mean() -> None:
    samples = [("a", 0.0, 100.0), ("a", 0.0, 300.0), ("a", 10.0, 200.0)]
    assert energy_j(samples, 0, 10).energy_j == pytest.approx(2000)


def test_a_device_whose_clock_is_off_is_left_out_and_named() -> None:
    samples = [
        (device, since + second, 100.0) for device, since in (("a", 0.0), ("late", 18000.0)) for second in (0, 9)
    ]
    energy = energy_j(samples, 0, 9)
    assert (energy.energy_j, energy.devices, energy.left_out) == (900, ("a",), ("late",))
    assert not energy.complete


@pytest.mark.parametrize("samples", [[], [("a", 5.0, 100.0)], [("a", 1.0, float("nan")), ("a", 2.0, float("inf"))]])
def test_too_few_readings_are_no_energy(samples: list[tuple[str, float, float]]) -> None:
    energy = energy_j(samples, 0, 10)
    assert (energy.energy_j, energy.covered, energy.devices) == (0, None, ())


def mlperf(path: Path, *events: tuple[str, float, object]) -> None:
    """A log of MLPerf: keys, seconds and values."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [
        {"time_ms": 1000 * (1.7e9 + second), "key": key, "value": value, "metadata": {"status": "success"}}
        for key, second, value in events
    ]
    path.write_text("".join(f":::MLLOG {json.dumps(line)}\n" for line in lines))


def test_each_result_of_mlperf_has_the_power_of_its_own_folder_times_the_conversion_efficiency(tmp_path: Path) -> None:
    for name, begin, watts in (("result_0", 0.0, 1000.0), ("result_1", 20.0, 3000.0)):
        mlperf(tmp_path / f"{name}.txt", ("submission_benchmark", begin, "bert"), ("run_start", begin, None),
               ("tracked_stats", begin + 5, {"throughput": 7.0}), ("tracked_stats", begin + 6, {"throughput": 7.0}),
               ("run_stop", begin + 10, None))  # fmt: skip
        readings = [("power_reading", begin + second, watts) for second in range(-1, 13)]
        mlperf(tmp_path / "power" / name / "node_0.txt", ("conversion_eff", begin, 0.9), *readings)
    runs = read_runs([tmp_path])
    assert [run.name for run in runs if run.energy] == ["result_0.txt", "result_1.txt"]
    assert [run.energy.energy_j for run in runs if run.energy] == pytest.approx([9000, 27000])


def test_a_switch_whose_clock_is_hours_off_is_left_out_and_named(tmp_path: Path) -> None:
    mlperf(tmp_path / "result_0.txt", ("submission_benchmark", 0, "bert"), ("run_start", 0, None),
           ("tracked_stats", 5, {"throughput": 7.0}), ("tracked_stats", 6, {"throughput": 7.0}),
           ("run_stop", 10, None))  # fmt: skip
    for name, key, off_s in (("node_0", "power_reading", 0), ("sw_0", "interconnect_power_est", -18_001)):
        readings = [(key, second + off_s, 1000.0) for second in range(-1, 13)]
        mlperf(tmp_path / "power" / "result_0" / f"{name}.txt", ("conversion_eff", off_s, 0.96), *readings)
    (run,) = read_runs([tmp_path])
    assert run.values[m.ENERGY] == pytest.approx(9600)
    assert m.ENERGY_PER_TOKEN not in run.values
    report([tmp_path], tmp_path / "out")
    assert "power of 1 device over 100 % of the time; left out, without a reading from that time: sw_0" in (
        tmp_path / "out" / "report.md"
    ).read_text().replace("\\", "")


# --- of our own runs -------------------------------------------------------------------------------------------


def power_log(directory: RunDir, seconds: range, watts: float = 400.0, node: str = "n1", gpus: int = 1) -> None:
    """Write a file as `TZ=UTC nvidia-smi --query-gpu=timestamp,index,power.draw --format=csv -l 1` does."""
    rows = [
        f"{clock(second)[:19].replace('-', '/').replace('T', ' ')}.500, {gpu}, {watts:.2f} W"
        for second in seconds
        for gpu in range(gpus)
    ]
    text = "\n".join(["timestamp, index, power.draw [W]", *rows, ""])
    (directory.path / f"power-{node}.csv").write_text(text)


def row_of(path: Path) -> dict[str, str]:
    """The report's only row."""
    report([path], None)
    with (path / "runs.csv").open() as file:
        (row,) = csv.DictReader(file)
    return row


def test_the_reader_may_live_in_another_time_zone_than_the_readings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = prepared(tmp_path, a_run())
    calm(directory)
    power_log(directory, range(60))
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("TZ", "Pacific/Apia")
        time.tzset()
        energy = only(tmp_path).energy
    time.tzset()
    assert energy is not None
    assert energy.energy_j == pytest.approx(400 * 30)


def test_power_is_counted_while_a_run_computes_and_not_while_it_waits(tmp_path: Path) -> None:
    directory = prepared(tmp_path, a_run(steps=10))
    killed_once(directory)
    power_log(directory, range(-20, 120))
    # From 10 to 34, when it was killed, and from 70 to 100.
    energy = only(tmp_path).energy
    assert energy is not None
    assert energy.energy_j == pytest.approx(400 * (23 + 30), rel=1e-6)
    row = row_of(tmp_path)
    assert float(row["energy_j"]) == energy.energy_j
    assert float(row["energy_covered"]) == pytest.approx(1)
    assert float(row["energy_per_token_j"]) == pytest.approx(energy.energy_j / (10 * 1024))


def calm(directory: RunDir, ranks: int = 1) -> None:
    """A run of one start, from 10 to 40."""
    meet(directory, 14, startup=4, ranks=ranks)
    compute(directory, 1, 6)
    ended(directory, time=clock(40))


def test_of_several_nodes_each_gpu_is_a_device_of_its_own(tmp_path: Path) -> None:
    run = a_run(nodes=2, ranks_per_node=2)
    directory = prepared(tmp_path, run)
    calm(directory, ranks=4)
    for node in ("n1", "n2"):
        power_log(directory, range(60), node=node, gpus=2)
    energy = only(tmp_path).energy
    assert energy is not None
    assert energy.devices == ("power-n1 GPU 0", "power-n1 GPU 1", "power-n2 GPU 0", "power-n2 GPU 1")
    assert energy.energy_j == pytest.approx(4 * 400 * 30)
    assert "power of 4 devices over 100 % of the time" in (report([tmp_path], None)).read_text()


@pytest.mark.parametrize(
    ("seconds", "gpus", "words"),
    [
        (range(60), 8, "power of 8 devices over 100 % of the time, though 1 device was expected"),
        (range(25), 1, "power of 1 device over 48.3 % of the time"),
        (range(18000, 18060), 1, "no power reading falls into its time, though 1 device was expected; left out, "
                                 "without a reading from that time: power-n1 GPU 0"),
    ],
)  # fmt: skip
def test_energy_that_is_not_the_runs_gives_none_per_token_and_states_it(
    seconds: range, gpus: int, words: str, tmp_path: Path
) -> None:
    directory = prepared(tmp_path, a_run())
    calm(directory)
    power_log(directory, seconds, gpus=gpus)
    assert row_of(tmp_path)["energy_per_token_j"] == ""
    assert f"1 start; {words}" in (tmp_path / "report.html").read_text()


HEADER = "timestamp, index, power.draw [W]\n"


@pytest.mark.parametrize(
    "text", ["", HEADER, "\0\0", "time,watts\n1,2\n", HEADER + "2026/99/99 00:00:00.000, 0, 100.00 W\n"]
)
def test_a_log_without_a_reading_is_no_energy(text: str, tmp_path: Path) -> None:
    directory = prepared(tmp_path, a_run())
    calm(directory)
    (directory.path / "power-n1.csv").write_text(text)
    assert only(tmp_path).energy is None

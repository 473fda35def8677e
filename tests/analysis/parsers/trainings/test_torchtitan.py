"""torchtitan's lines, coloured or not, of old and new versions."""

from __future__ import annotations

from pathlib import Path

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind
from jobs import metrics as m
from tests.analysis.parsers.reading import column, records

NAME = "torchtitan"


def test_the_peak_of_a_gpu_that_is_known_counts_again_after_a_run_on_one_that_is_not(tmp_path: Path) -> None:
    head = "[titan] 2026-03-04 05:06:10,505 - root - "
    step = "step:  1  loss:  8.0  memory:  1.00GiB(1.25%)  tps: 100  tflops: 0.01  mfu: 5.00%\n"
    peak = f"{head}INFO - Peak FLOPS used for computing MFU: "
    unknown = f"{head}WARNING - Peak flops undefined for: NVIDIA B999, fallback to A100\n{peak}3.120e+14\n"
    log = tmp_path / "two_runs.log"
    log.write_text(f"{unknown}{head}INFO - {step}{peak}9.890e+14\n{head}INFO - {step}")
    found = records(log, NAME)
    assert column(found, Kind.setting, a.PEAK_FLOPS_PER_S) == [9.89e14]
    assert [each.values.get(a.MODEL_FLOPS_UTILIZATION) for each in found if each.kind is Kind.step] == [None, 0.05]


def test_a_line_that_every_rank_prints_without_its_rank_is_read_each_time(tmp_path: Path) -> None:
    log = tmp_path / "slurm.out"
    line = "[titan] 2026-03-04 05:06:10,505 - root - INFO - step:  4  loss:  8.5  memory: 12.5GiB(15.75%)  tps: 10,007"
    log.write_text(f"{line}  mfu: 4.5%\n" * 3)
    found = records(log, NAME)
    assert column(found, Kind.step, m.STEP) == [4, 4, 4]
    assert {each.rank for each in found} == {None}

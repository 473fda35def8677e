"""Identity of a configuration, of a repeat and of a run: never that of a file's name."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from analysis.load.discover import read_runs
from analysis.scaling.groups import scaling_groups
from jobs import metrics as m
from tests.support.megatron_logs import megatron, write
from tests.support.mlperf_logs import logged, result

SHAPE = (
    "------------------------ arguments ------------------------\n"
    "  hidden_size ..................................... 4096\n"
    "  num_layers ...................................... {layers}\n"
    "  num_attention_heads ............................. 32\n"
    "  seq_length ...................................... 4096\n"
    "  micro_batch_size ................................ {mbs}\n"
    "-------------------- end of arguments ---------------------\n"
)


def training(step_ms: float, *, batch: int = 16, shape: str = "", offset: float = 0.0) -> str:
    text = megatron([(step, step_ms) for step in range(1, 12)], batch=batch)
    # Losses of another seed.
    return shape + text.replace("lm loss: ", f"lm loss: {int(offset)}" if offset else "lm loss: ")


def speeds(path: Path) -> list[list[int]]:
    """Return the number of repeats of each point of each line."""
    return sorted([len(point.repeats) for point in group.points] for group in scaling_groups(read_runs([path])))


def test_logs_of_equal_file_names_are_not_repeats(tmp_path: Path) -> None:
    write(tmp_path / "X/train.log", training(1000))
    write(tmp_path / "Y/train.log", training(9000))
    assert speeds(tmp_path) == [[1], [1]]


def test_logs_with_equal_settings_on_different_days_are_repeats_whatever_their_names(tmp_path: Path) -> None:
    shape = SHAPE.format(layers=32, mbs=1)
    write(tmp_path / "monday.out", training(1000, shape=shape))
    write(tmp_path / "friday.log", training(1300, shape=shape, offset=1))
    (group,) = scaling_groups(read_runs([tmp_path]))
    assert [point.throughput.n for point in group.points] == [2]
    assert group.points[0].throughput.low < group.points[0].throughput.high


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"layers": 32, "mbs": 1}, {"layers": 16, "mbs": 1}),
        ({"layers": 32, "mbs": 1}, {"layers": 32, "mbs": 2}),
    ],
)
def test_another_shape_or_micro_batch_is_no_repeat(tmp_path: Path, one: dict[str, int], other: dict[str, int]) -> None:
    write(tmp_path / "a.out", training(1000, shape=SHAPE.format(**one)))
    write(tmp_path / "b.out", training(1100, shape=SHAPE.format(**other), offset=1))
    assert speeds(tmp_path) == [[1], [1]]


def test_another_global_batch_is_no_repeat(tmp_path: Path) -> None:
    shape = SHAPE.format(layers=32, mbs=1)
    write(tmp_path / "a.out", training(1000, shape=shape, batch=16))
    write(tmp_path / "b.out", training(1900, shape=shape, batch=32, offset=1))
    assert speeds(tmp_path) == [[1], [1]]


def test_a_grid_of_batches_and_ranks_is_one_line_a_batch(tmp_path: Path) -> None:
    for ranks in (8, 16, 32):
        for batch in (64, 128):
            text = megatron([(step, 1000 * batch / ranks) for step in range(1, 12)], ranks=ranks, batch=batch)
            write(tmp_path / f"{ranks}-{batch}.out", text)
    write(tmp_path / "facts.yaml", "model: llama3-8b\n")
    groups = scaling_groups(read_runs([tmp_path]))
    assert [(group.mode, len(group.points)) for group in groups] == [("strong", 3), ("strong", 3)]
    assert len({group.label for group in groups}) == 2


def test_systems_of_one_size_are_not_repeats_of_each_other(tmp_path: Path) -> None:
    write(tmp_path / "facts.yaml", "nodes: 1\nranks_per_node: 8\n")
    for name, rate in (("air", 10.0), ("water", 14.0)):
        platform = logged("submission_platform", name, 0)
        write(tmp_path / name / "result_0.txt", platform + result(10, rate=rate))
    assert speeds(tmp_path) == [[1], [1]]


def test_logs_of_the_nodes_of_one_job_are_one_run_and_the_slowest_counts(tmp_path: Path) -> None:
    head = "SLURM_JOB_ID=4242\n"
    for node, factor in ((0, 1.0), (1, 1.02)):
        steps = [(step, factor * (1000 + 37 * (step % 5))) for step in range(1, 21)]
        text = megatron(steps).replace("lm loss: ", f"lm loss: {node}" if node else "lm loss: ")
        write(tmp_path / f"node{node}.log", head + text)
    runs = read_runs([tmp_path])
    (used,) = [run for run in runs if run.used]
    assert used.name == "node1.log"
    assert math.isclose(used.values[m.STEP_TIME_MEDIAN], 1.02 * 1.074, rel_tol=1e-3)
    (other,) = [run for run in runs if not run.used]
    assert "node1.log" in str(other.reason)

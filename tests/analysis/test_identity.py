"""Identity of a configuration, of a repeat and of a run: never that of a file's name."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import pytest

from analysis.load.discover import read_runs
from analysis.parsers import log_metrics as a
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


def litgpt(losses: Iterable[float], times_ms: Iterable[float]) -> list[str]:
    """Return the lines of steps that LitGPT prints on each node."""
    return [
        f"Epoch 1 | iter {i} step {i} | loss train: {loss:.3f}, val: n/a | iter time: {time_ms:.2f} ms (step)\n"
        for i, (loss, time_ms) in enumerate(zip(losses, times_ms, strict=True), start=1)
    ]


NODES = (
    litgpt((1.4, 1.3, 1.2, 1.0, 0.8), (9000, 5116, 5091, 5092, 5100)),
    litgpt((1.5, 1.6, 1.3, 0.9, 0.7), (9500, 5088, 7555, 5094, 5101)),
)


def test_the_files_of_ranks_beside_the_output_of_all_are_one_run_and_the_output_of_all_counts(tmp_path: Path) -> None:
    write(tmp_path / "rank.0/stdout", "".join(NODES[0]))
    write(tmp_path / "rank.4/stdout", "".join(NODES[1]))
    write(tmp_path / "whole.o77", "".join(line for both in zip(*NODES, strict=True) for line in both))
    write(tmp_path / "z_copy_of_rank_4.txt", "".join(NODES[1]))
    # The same file name and step count, other losses and times: another run.
    write(tmp_path / "other/stdout", "".join(litgpt((1.4, 1.3, 1.1, 1.0, 0.8), (9100, 5200, 5201, 5202, 5203))))
    runs = {run.name: run for run in read_runs([tmp_path])}
    assert sorted(name for name, run in runs.items() if run.used) == ["other/stdout", "whole.o77"]
    # Every step takes as long as on the slower node.
    assert runs["whole.o77"].values[a.STEPS_PER_S] == pytest.approx(4 / (5.116 + 7.555 + 5.094 + 5.101))


def test_logs_whose_ranks_were_in_one_communicator_are_one_run(tmp_path: Path) -> None:
    init = (
        "n{}:1:2 [0] NCCL INFO ncclCommInitRank comm 0x5 rank {} nranks 8 cudaDev 0 busId 1 commId {} - Init COMPLETE\n"
    )
    for node, lines in enumerate(NODES):
        # A node prints its settings once a rank.
        shared = "n0:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB\n" * (1 + node)
        write(tmp_path / f"node{node}.log", shared + init.format(node, 4 * node, "0x8f6b") + "".join(lines))
    assert [run.name for run in read_runs([tmp_path]) if run.used] == ["node1.log"]
    write(tmp_path / "node1.log", init.format(1, 4, "0x1111") + "".join(NODES[1]))
    assert len([run for run in read_runs([tmp_path]) if run.used]) == 2

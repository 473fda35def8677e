"""The headline and the places of lines: the score or the scaling that a reader came for, and what gains nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.load.discover import read
from analysis.report.content import Report, build
from analysis.report.points_table import PLACE, SOURCE
from tests.analysis.parsers.reading import SAMPLES
from tests.support.fake_runs import a_run, finished_run
from tests.support.megatron_logs import megatron, write
from tests.support.mlperf_logs import system
from tests.support.report_pages import a_scaling_sweep


def built(path: Path) -> Report:
    return build(read([path]))


def column(content: Report, heading: str) -> list[str]:
    """Return a column of the table of results; empty without it."""
    headings, rows = content.points
    return [row.cells[headings.index(heading)] for row in rows] if heading in headings else []


def a_task(folder: Path, number: int, ranks: int, step_ms: float) -> None:
    """Write a log of a model of its own, with its own losses: logs of equal losses are one run."""
    text = megatron([(step, step_ms) for step in range(1, 12)], ranks=ranks)
    write(folder / f"{ranks}.out", text.replace("lm loss: ", f"lm loss: {number + 1}"))
    write(folder / "facts.yaml", f"model: model{number:02}\n")


def test_the_headline_is_the_best_result_and_then_the_line_that_gains_nothing(tmp_path: Path) -> None:
    for ranks, time_s in ((1, 1.0), (2, 0.6)):
        finished_run(tmp_path, a_run(f"a{ranks}", parallelism="ddp", ranks_per_node=ranks), step_time_s=time_s)
        slow = a_run(f"b{ranks}", parallelism="fsdp_full", ranks_per_node=ranks)
        finished_run(tmp_path, slow, step_time_s=1.5 * time_s * ranks**2)
    content = built(tmp_path)
    assert content.headlines == [
        "CPU: tiny with ddp speeds up 1.67 times from 1 to 2 ranks (83.3 % efficiency, strong scaling, one run each); "
        "it reaches 1,707 tokens/s, the highest of 4 points (one run each, compared by their steps).",
        "On equal ranks, parallelism=ddp is 1.50 (1 rank) and 6.00 (2 ranks) times as fast as fsdp_full (n = 1).",
        "Gains nothing: fsdp_full from 1 to 2 ranks (0.417 times, one run each).",
    ]
    assert column(content, "Line") == ["ddp", "ddp", "fsdp_full", "fsdp_full"]
    assert column(content, PLACE) == ["—", "1 of 2", "2 of 2", "—"]


def test_without_a_losing_line_the_headline_names_the_one_that_gains_least(tmp_path: Path) -> None:
    for ranks in (1, 2):
        for layout, power in (("ddp", 1.0), ("fsdp_full", 0.5), ("pp", 0.7)):
            run = a_run(f"{layout}{ranks}", parallelism=layout, ranks_per_node=ranks)
            finished_run(tmp_path, run, step_time_s=1 / ranks**power)
    assert built(tmp_path).headlines[2:] == ["Gains least: fsdp_full from 1 to 2 ranks (1.41 times, one run each)."]


def test_a_line_that_is_slower_on_more_ranks_does_not_speed_up(tmp_path: Path) -> None:
    for ranks, time_s in ((1, 1.0), (2, 2.0)):
        finished_run(tmp_path, a_run(f"a{ranks}", ranks_per_node=ranks), step_time_s=time_s)
    (sentence,) = built(tmp_path).headlines
    assert "gains nothing from 1 to 2 ranks (0.500 times, 25.0 % efficiency" in sentence
    assert "speeds up" not in sentence


def test_tasks_of_single_points_share_a_sentence_and_a_table_instead_of_a_paragraph_each(tmp_path: Path) -> None:
    for i in range(12):
        a_task(tmp_path / f"from{i}", i, 8, 1000.0 + i)
    a_task(tmp_path / "from0", 0, 16, 600.0)
    content = built(tmp_path)
    scaled, others = content.headlines
    assert scaled.startswith("Model model00, from from0: it speeds up 1.67 times from 8 to 16 ranks")
    assert others == (
        "The highest rate per rank is 1.998 samples/s (model01 on 8 ranks, one run). The 11 workloads differ in model, "
        "data or sequence length, and each ran on one number of ranks, so there is no ranking, speedup or efficiency."
    )
    assert column(content, PLACE) == []
    assert column(content, SOURCE) == ["from0", "from0", *(f"from{i}" for i in (1, *range(2, 12)))]


def test_what_scales_comes_before_a_task_of_one_point_whatever_their_names(tmp_path: Path) -> None:
    a_task(tmp_path / "a", 1, 8, 500.0)
    for ranks in (8, 16):
        a_task(tmp_path / "z", 2, ranks, 4000.0 / ranks)
    first, second, *_ = built(tmp_path).headlines
    assert "model02" in first
    assert "speeds up 2.00 times from 8 to 16 ranks" in first
    assert "model01" in second
    assert "; none of its configurations ran on several numbers of ranks" in second


def test_a_score_is_the_headline_of_its_system_with_its_submitter_and_scaling(tmp_path: Path) -> None:
    system(tmp_path / "small", 1, [30.0, 30.1, 30.2, 30.3, 30.4])
    system(tmp_path / "large", 8, [5.0, 5.01, 5.02, 5.03, 5.04])
    (sentence,) = built(tmp_path).headlines
    assert sentence.startswith("MLPerf llama2_70b_lora, Nobody (lies about its size): score 30.2")
    assert "6.02 times as fast on 8 times the ranks" in sentence


def test_a_single_line_has_no_place(tmp_path: Path) -> None:
    finished_run(tmp_path / "one", a_run("one"))
    assert column(built(tmp_path / "one"), PLACE) == []
    a_scaling_sweep(tmp_path / "two")
    assert sorted(column(built(tmp_path / "two"), PLACE)) == ["1 of 2", "2 of 2", "—", "—"]


def test_steps_per_second_are_not_divided_over_ranks_nor_compared_between_tasks(tmp_path: Path) -> None:
    for number, batch in enumerate((16, 64)):
        a_task(tmp_path / str(batch), number, ranks=8, step_ms=1000.0 * batch)
        log = tmp_path / str(batch) / "8.out"
        # Without a batch a step has no samples.
        words = [part for part in log.read_text().split("|") if "global batch" not in part and "consumed" not in part]
        log.write_text("|".join(words))
    content = built(tmp_path)
    assert content.headlines == [
        "The 2 workloads differ in model, data or sequence length, and each ran on one number of ranks, so there is no "
        "ranking, speedup or efficiency."
    ]
    headings, _ = content.points
    assert [heading for heading in headings if "/s" in heading] == ["Steps/s"]


SAMPLE_LOGS = ("aiperf.txt", "fio_3.txt", "litgpt.txt", "maxtext.txt", "megatron.txt", "nccl_tests.txt", "osu.txt",
               "perf_analyzer.csv", "stream.txt", "torchtune.txt", "trainer_state.json", "olmo_2024.txt")  # fmt: skip


@pytest.mark.parametrize("name", SAMPLE_LOGS)
def test_every_sentence_of_the_headline_begins_with_a_capital_letter_or_a_number(name: str) -> None:
    for sentence in build(read([SAMPLES / name])).headlines:
        assert sentence[0].isupper() or sentence[0].isdigit(), sentence


ARGUMENTS = (
    "".join(
        f"  {name} {'.' * (48 - len(name))} {value}\n"
        for name, value in (("num_layers", 32), ("hidden_size", 4096), ("tensor_model_parallel_size", 2))
    )
    + "-------------------- end of arguments ---------------------\n"
)


@pytest.mark.parametrize(
    ("facts", "arguments", "start"),
    [
        ("", "", "The run in job.out reaches 16.00 samples/s on 8 ranks"),
        ("gpu_name: NVIDIA H100 80GB HBM3\n", "", "GPU: the run in job.out reaches 16.00 samples/s on 8 ranks"),
        ("", ARGUMENTS, "32-layer model of hidden size 4,096 with tp2 reaches 16.00 samples/s on 8 ranks"),
        ("model: llama2_7b\n", "", "Model llama2_7b reaches 16.00 samples/s on 8 ranks"),
        ("model: Llama-2-7B\n", ARGUMENTS, "Llama-2-7B with tp2 reaches 16.00 samples/s on 8 ranks"),
        ("model: llama2_7b\ngpu_name: NVIDIA H100 80GB HBM3\n", "", "GPU: llama2_7b reaches 16.00 samples/s on"),
    ],
)
def test_a_log_is_named_by_its_model_else_by_its_dimensions_else_by_its_file(
    tmp_path: Path, facts: str, arguments: str, start: str
) -> None:
    head, *steps = megatron([(step, 1000.0) for step in range(1, 12)]).partition("\n")
    write(tmp_path / "job.out", head + steps[0] + arguments + steps[1])
    write(tmp_path / "facts.yaml", facts or "ranks: 8\n")
    (sentence,) = built(tmp_path).headlines
    assert sentence.startswith(start)


def test_a_log_without_ranks_still_has_its_rate_in_the_headline_unless_it_is_doubted(tmp_path: Path) -> None:
    text = megatron([(step, 1000.0) for step in range(1, 12)], ranks=None)
    write(tmp_path / "a" / "job.out", text)
    write(tmp_path / "b" / "job.out", text.replace("number of nan iterations:   0", "number of nan iterations:   1"))
    believed, doubted = (built(tmp_path / each).headlines for each in "ab")
    assert believed[0].endswith("job.out reaches 16.00 samples/s on all of its ranks together.")
    assert "samples/s" not in doubted[0]

"""The headline and the places of lines: the score or the scaling that a reader came for, and what gains nothing."""

from __future__ import annotations

from pathlib import Path

from analysis.load.discover import read
from analysis.report.content import Report, build
from analysis.report.points_table import PLACE, SOURCE, point_table
from tests.support.fake_runs import a_run, finished_run
from tests.support.megatron_logs import megatron, write
from tests.support.mlperf_logs import system
from tests.support.report_pages import a_scaling_sweep


def built(path: Path) -> Report:
    return build(read([path]))


def column(content: Report, heading: str) -> list[str]:
    """Return a column of the table of results; empty without it."""
    headings, rows = point_table(content.groups)
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
        "at 1,707 tokens/s, the highest of 4 points by the steps of one run each.",
        "Gains nothing: fsdp_full from 1 to 2 ranks (0.417 times, one run each).",
    ]
    assert column(content, "Line") == ["ddp", "ddp", "fsdp_full", "fsdp_full"]
    assert column(content, PLACE) == ["—", "1 of 2", "2 of 2", "—"]


def test_without_a_losing_line_the_headline_names_the_one_that_gains_least(tmp_path: Path) -> None:
    for ranks in (1, 2):
        for layout, power in (("ddp", 1.0), ("fsdp_full", 0.5), ("pp", 0.7)):
            run = a_run(f"{layout}{ranks}", parallelism=layout, ranks_per_node=ranks)
            finished_run(tmp_path, run, step_time_s=1 / ranks**power)
    assert built(tmp_path).headlines[1:] == ["Gains least: fsdp_full from 1 to 2 ranks (1.41 times, one run each)."]


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
    assert scaled.startswith("model00, from from0: it speeds up 1.67 times from 8 to 16 ranks")
    assert others == (
        "up to 1.998 samples/s per rank by model01 on 8 ranks (one run). 11 workloads of unlike model, data or length, "
        "each on one number of ranks: no contest, no speedup and no efficiency."
    )
    assert column(content, PLACE) == []
    assert column(content, SOURCE) == ["from0", "from0", *(f"from{i}" for i in (1, *range(2, 12)))]


def test_a_score_is_the_headline_of_its_system_with_its_submitter_and_scaling(tmp_path: Path) -> None:
    system(tmp_path / "small", 1, [30.0, 30.1, 30.2, 30.3, 30.4])
    system(tmp_path / "large", 8, [5.0, 5.01, 5.02, 5.03, 5.04])
    (sentence,) = built(tmp_path).headlines
    assert sentence.startswith("llama2_70b_lora, Nobody (lies about its size): score 30.2")
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
        "2 workloads of unlike model, data or length, each on one number of ranks: no contest, no speedup and no "
        "efficiency."
    ]
    headings, _ = point_table(content.groups)
    assert [heading for heading in headings if "/s" in heading] == ["Steps/s"]

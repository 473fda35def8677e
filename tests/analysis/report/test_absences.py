"""Every sentence of the page that claims an absence, on a page where it would be false."""

from __future__ import annotations

import shutil
from pathlib import Path

from analysis.load.discover import read, read_runs
from analysis.report.content import build
from analysis.report.page import page
from analysis.scaling.groups import scaling_groups
from tests.analysis.parsers.reading import SAMPLES
from tests.support.fake_runs import a_run, finished_run
from tests.support.megatron_logs import megatron, write
from tests.support.mlperf_logs import logged

DIFFERENT_RANKS = "has points of different rank counts"


def steady_log(ranks: int | None = 8, step_ms: float = 1000.0) -> str:
    return megatron([(step, step_ms) for step in range(1, 12)], ranks=ranks)


def test_no_figure_denies_a_line_of_several_rank_counts_that_is_weak(tmp_path: Path) -> None:
    finished_run(tmp_path / "s", a_run("one", weak=True, ranks_per_node=1))
    finished_run(tmp_path / "s", a_run("two", weak=True, ranks_per_node=2))
    finished_run(tmp_path / "s", a_run("alone", parallelism="fsdp_full"))
    text = page(build(read([tmp_path])))
    assert "no speedup is given for weak scaling" in text
    assert "because no line has points" not in text


def test_the_headline_of_a_task_reports_nothing_of_the_lines_of_another(tmp_path: Path) -> None:
    for ranks in (8, 16):
        write(tmp_path / "a" / f"{ranks}.out", steady_log(ranks))
    write(tmp_path / "a" / "facts.yaml", "model: wide\n")
    write(tmp_path / "b" / "one.out", steady_log(step_ms=1500.0))
    write(tmp_path / "b" / "facts.yaml", "model: narrow\n")
    headlines = build(read([tmp_path])).headlines
    (of_one,) = [each for each in headlines if DIFFERENT_RANKS in each]
    assert "narrow" in of_one
    assert "none of its lines has points of different rank counts" in of_one


def test_ranks_are_called_unknown_only_of_logs_that_lack_them(tmp_path: Path) -> None:
    head = [logged("submission_benchmark", "bert", 0), logged("run_start", None, 60)]
    write(tmp_path / "result_0.txt", "".join([*head, logged("run_stop", None, 600, status="success")]))
    write(tmp_path / "facts.yaml", "ranks: 8\n")
    found = read([tmp_path])
    assert found.runs[0].ranks == 8
    assert scaling_groups(found.runs) == []
    text = page(build(found)).partition("Definitions of the metrics")[0]
    assert "number of ranks" not in text
    assert "times to train" in " ".join(build(found).headlines)


def test_a_log_of_hundreds_of_steps_is_not_reported_to_have_none(tmp_path: Path) -> None:
    # A program that starts its count again at each line: every step is the first of an attempt.
    steps = "".join(megatron([(1, 1000.0)], ranks=None) for _ in range(300))
    (run,) = read_runs([write(tmp_path / "job.out", megatron([]) + steps)])
    assert "no step" not in str(run.reason)
    assert "300" in str(run.reason)


def test_nothing_measured_is_not_reported_beside_a_benchmark(tmp_path: Path) -> None:
    shutil.copy(SAMPLES / "nccl_tests.txt", tmp_path)
    write(tmp_path / "job.out", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.\n")
    content = build(read([tmp_path]))
    assert content.measurements
    assert "Nothing measured" not in page(content)
    assert "0 of 1 run can be used" in content.lead


def test_no_sentence_is_about_all_runs_where_there_is_none(tmp_path: Path) -> None:
    shutil.copy(SAMPLES / "nccl_tests.txt", tmp_path)
    assert "All runs found are used" not in page(build(read([tmp_path])))


def test_nothing_is_called_not_recorded_or_empty_that_a_section_could_only_leave_out(tmp_path: Path) -> None:
    write(tmp_path / "job.out", steady_log())
    text = page(build(read([tmp_path]))).partition("Definitions of the metrics")[0]
    for sentence in ("not recorded", "no run recorded", "no run of these lines", "All runs found are used"):
        assert sentence not in text
    for heading in (">Provenance<", ">Fits<", ">Breakdown of wall time<", ">Runs not used"):
        assert heading not in page(build(read([tmp_path])))

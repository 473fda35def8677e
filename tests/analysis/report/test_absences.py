"""Every sentence of the page that claims an absence, on a page where it would be false."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from analysis.load.discover import read, read_runs
from analysis.report.content import build
from analysis.report.page import page
from analysis.report.points_table import point_table
from analysis.report.sections.cost import counted_in
from analysis.scaling.groups import scaling_groups
from jobs import metrics as m
from tests.analysis.parsers.reading import SAMPLES
from tests.support.campaigns import a_repeat, pairs
from tests.support.fake_runs import a_run, a_sweep_of_layouts, finished_run
from tests.support.megatron_logs import megatron, write
from tests.support.mlperf_logs import logged, system

ONE_RANK_COUNT = "ran on several numbers of ranks"


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
    (of_one,) = [each for each in headlines if ONE_RANK_COUNT in each]
    assert "narrow" in of_one


def test_ranks_are_called_unknown_only_of_logs_that_lack_them(tmp_path: Path) -> None:
    head = [logged("submission_benchmark", "bert", 0), logged("run_start", None, 60)]
    write(tmp_path / "result_0.txt", "".join([*head, logged("run_stop", None, 600, status="success")]))
    write(tmp_path / "facts.yaml", "ranks: 8\n")
    found = read([tmp_path])
    assert found.runs[0].ranks == 8
    assert scaling_groups(found.runs) == []
    text = page(build(found)).partition("Definitions of the metrics")[0]
    assert "number of ranks" not in text
    assert "its time to train is below" in " ".join(build(found).headlines)


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
    assert content.digest.measurements
    assert "Nothing measured" not in page(content)
    assert "0 of 1 run can be used" in content.lead


def test_no_measurements_are_announced_where_there_are_none(tmp_path: Path) -> None:
    write(tmp_path / "readings.txt", "index, power.draw [W]\n0, 212.50 W\n0, 215.00 W\n")
    write(tmp_path / "notes.md", "Ask the site.\n")
    (sentence,) = build(read([tmp_path])).headlines
    assert sentence == "No result: these files contain neither a training run nor a benchmark."
    shutil.copy(SAMPLES / "sacct.txt", tmp_path)
    (sentence,) = build(read([tmp_path])).headlines
    assert "Other measurements are below" in sentence


def test_a_line_of_one_rank_count_is_called_neither_strong_nor_weak(tmp_path: Path) -> None:
    write(tmp_path / "one" / "job.out", steady_log(8))
    headings, rows = point_table(scaling_groups(read_runs([tmp_path])))
    assert "Scaling" not in headings
    write(tmp_path / "one" / "facts.yaml", "model: tall\n")
    write(tmp_path / "one" / "more.out", steady_log(16).replace("lm loss: ", "lm loss: 1"))
    headings, rows = point_table(scaling_groups(read_runs([tmp_path])))
    assert [row.cells[headings.index("Scaling")] for row in rows] == ["strong", "strong"]


def test_a_score_that_lags_is_not_followed_by_dashes(tmp_path: Path) -> None:
    for nodes, minutes, rate in ((1, 20, 10.0), (8, 10, 80.0)):
        system(tmp_path / f"{nodes}", nodes, [minutes] * 3, rate=rate)
        for path in (tmp_path / f"{nodes}").glob("result_*.txt"):
            lines = [line for line in path.read_text().splitlines() if "eval_st" not in line]
            path.write_text("\n".join(lines).replace("samples_count", "n"))
    (warning,) = [text for text in build(read([tmp_path])).warnings if "times the score" in text]
    assert warning.endswith("but only 2.00 times the score in time to train.")


def test_no_sentence_is_about_all_runs_where_there_is_none(tmp_path: Path) -> None:
    shutil.copy(SAMPLES / "nccl_tests.txt", tmp_path)
    assert "All runs found are used" not in page(build(read([tmp_path])))


def test_nothing_is_called_not_recorded_or_empty_that_a_section_could_only_leave_out(tmp_path: Path) -> None:
    write(tmp_path / "job.out", steady_log())
    text = page(build(read([tmp_path]))).partition("Definitions of the metrics")[0]
    for sentence in ("not recorded", "no run recorded", "no run of these lines", "All runs found are used"):
        assert sentence not in text
    for heading in (">Fits<", ">Breakdown of wall time<", ">Runs not used"):
        assert heading not in page(build(read([tmp_path])))


def doubted(path: Path, model: str) -> None:
    """Write a line on 1 and 2 ranks whose second point has a loss far from that of its peers."""
    for repeat in (1, 2, 3):
        finished_run(path, a_run(f"{model}-{repeat}", model=model, repeat=repeat))
    run = a_run(f"{model}-far", model=model, ranks_per_node=2)
    finished_run(path, run, losses=[9.0] * 6)


def test_tasks_whose_losses_are_not_believed_are_not_said_to_have_one_rank_count(tmp_path: Path) -> None:
    for model in ("tiny", "small"):
        doubted(tmp_path / "s", model)
    headlines = build(read([tmp_path])).headlines
    *results, doubt = headlines
    assert len(results) == 2
    for sentence in results:
        assert "too few rank counts of its lines have a loss that is believed" in sentence
        assert ONE_RANK_COUNT not in sentence
    assert "the training on 2 ranks on 1 node is not believed" in doubt


def test_ranks_that_a_log_of_an_unused_run_contains_are_not_denied(tmp_path: Path) -> None:
    write(tmp_path / "measured.out", steady_log(ranks=None))
    write(tmp_path / "short.out", megatron([(1, 1000.0)], ranks=8, batch=32).replace("lm loss: ", "lm loss: 1"))
    found = read([tmp_path])
    assert [run.ranks for run in found.runs] == [None, 8]
    (sentence,) = build(found).headlines
    assert "no log contains" not in sentence
    assert "no log of a measured run contains the number of ranks" in sentence


def test_hours_are_not_called_unrecorded_where_only_the_ranks_are_unknown(tmp_path: Path) -> None:
    finished_run(tmp_path, a_run("r"))
    (run,) = read_runs([tmp_path])
    known = {m.TOTAL_TIME: 3600.0, m.ENERGY: 1.0}
    assert counted_in(replace(run, values=known)) == "no hours: number of nodes or ranks not known"
    assert counted_in(replace(run, values={m.ENERGY: 1.0})) == "no hours: time not known"


def test_a_campaign_without_a_finished_baseline_is_not_said_to_have_no_faster_attempt(tmp_path: Path) -> None:
    a_repeat(tmp_path / "c", "baseline", 1, 10.0, role="baseline", end=None)
    a_repeat(tmp_path / "c", "fast", 1, 5.0)
    (first, *_) = build(read([tmp_path / "c"])).headlines
    assert "no repeat of the baseline has finished" in first
    assert "faster" not in first
    pairs(tmp_path / "few", "fast", ((10.0, 5.0), (10.1, 5.0)))
    a_repeat(tmp_path / "few", "baseline", 1, 10.0, role="baseline")
    (first, *_) = build(read([tmp_path / "few"])).headlines
    assert "nothing is decided yet" in first


def test_an_error_file_that_explains_a_run_is_not_of_unknown_format(tmp_path: Path) -> None:
    write(tmp_path / "job-7.out", steady_log())
    write(tmp_path / "job-7.err", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.\n")
    content = build(read([tmp_path]))
    assert content.unknown == []
    assert "out of memory" in page(content)


def test_a_quantity_recorded_at_one_point_is_not_said_to_be_unrecorded(tmp_path: Path) -> None:
    for ranks, fast in ((1, 1.0), (2, 0.3)):
        finished_run(tmp_path / "s", a_run(f"r{ranks}", ranks_per_node=ranks), step_time_s=fast)
    (tmp_path / "s" / "r2" / "metrics.jsonl").write_text(
        (tmp_path / "s" / "r2" / "metrics.jsonl").read_text().replace("memory_peak_bytes", "another_name")
    )
    text = " ".join(build(read([tmp_path])).warnings)
    assert "memory_peak_bytes was not recorded at both points" in text


def test_bars_without_traffic_do_not_deny_the_traffic_of_others(tmp_path: Path) -> None:
    a_sweep_of_layouts(tmp_path / "s", ranks=(4,))
    content = build(read([tmp_path]))
    assert "No run recorded" not in page(content)

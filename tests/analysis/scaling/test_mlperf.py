"""MLPerf results: state, score and throughput are three things, and each system has its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from analysis.load.discover import read, read_runs
from analysis.parsers import log_metrics as a
from analysis.report.content import build
from analysis.report.page import page
from analysis.scaling.mlperf import scores_lag, systems_of
from tests.support.megatron_logs import write
from tests.support.mlperf_logs import logged, result, system


def without_throughput(minutes: float, *, status: str | None = "success", platform: str = "box", batch: int = 8) -> str:
    """Return a result of a submitter whose program logs neither step times nor throughput."""
    end = {} if status is None else {"status": status}
    return "".join(
        [
            logged("submission_benchmark", "bert", 0),
            logged("submission_org", "Nobody", 0),
            logged("submission_platform", platform, 0),
            logged("global_batch_size", batch, 0),
            logged("run_start", None, 60),
            logged("run_stop", None, 60 + 60 * minutes, **end),
        ]
    )


def test_results_without_throughput_are_used_and_have_a_score(tmp_path: Path) -> None:
    for i, minutes in enumerate((10, 11, 12, 20)):
        write(tmp_path / f"result_{i}.txt", without_throughput(minutes))
    found = read([tmp_path])
    assert [(run.state, run.reason) for run in found.runs] == [("succeeded", None)] * 4
    ((one,),) = systems_of(found.runs)
    assert one.score_s == pytest.approx(60 * 11.5)
    content = build(found)
    html = page(content)
    assert "4 of 4 runs used" in content.lead
    assert "aborted" not in html.partition("Definitions of the metrics")[0].replace("an aborted one being", "")
    assert content.headlines[0].startswith("MLPerf bert, Nobody (box): score 11.50 min")


def test_a_result_without_a_status_is_neither_a_success_nor_aborted(tmp_path: Path) -> None:
    write(tmp_path / "result_0.txt", without_throughput(10, status=None))
    (run,) = read_runs([tmp_path])
    assert (run.state, run.reason) == ("as far as logged", None)


def test_a_placeholder_names_no_submitter(tmp_path: Path) -> None:
    text = without_throughput(10, platform="8xSUBMISSION_PLATFORM_PLACEHOLDER")
    write(tmp_path / "result_0.txt", text.replace("Nobody", "SUBMISSION_ORG_PLACEHOLDER"))
    write(tmp_path / "system.json", json.dumps({"submitter": "Somebody", "system_name": "box", "number_of_nodes": 2}))
    (run,) = read_runs([tmp_path])
    assert (run.setting("system.organization"), run.setting("system.name")) == ("Somebody", "box")


def test_a_convergence_factor_of_one_system_never_goes_to_another(tmp_path: Path) -> None:
    for name, factor in (("a", 1.1), ("b", None)):
        for i, minutes in enumerate((10, 10, 10)):
            write(tmp_path / name / f"result_{i}.txt", without_throughput(minutes, platform=name))
        if factor:
            write(tmp_path / name / "scaling.json", json.dumps({"scaling_factor": factor}))
    scores = {one.platform: one.score_s for line in systems_of(read_runs([tmp_path])) for one in line}
    assert scores == {"a": pytest.approx(660), "b": pytest.approx(600)}


def test_descriptions_of_two_systems_in_one_folder_go_each_to_its_own(tmp_path: Path) -> None:
    for name, nodes in (("small", 1), ("big", 4)):
        description = {"system_name": name, "number_of_nodes": nodes, "accelerators_per_node": 8}
        write(tmp_path / f"{name}.json", json.dumps(description))
        write(tmp_path / f"{name}_result_0.txt", without_throughput(10, platform=name))
    write(tmp_path / "scaling.json", '{"scaling_factor": 1.5}')
    runs = {run.name: run for run in read_runs([tmp_path])}
    assert {name: run.ranks for name, run in runs.items()} == {"big_result_0.txt": 32, "small_result_0.txt": 8}
    assert all(a.CONVERGENCE_FACTOR not in run.values for run in runs.values()), "it is not known whose it is"


def test_throughput_follows_from_the_samples_and_times_of_blocks_without_evaluations(tmp_path: Path) -> None:
    lines = [logged("submission_benchmark", "resnet", 0), logged("run_start", None, 0)]
    for block in range(4):
        start_s = 100.0 * block
        took_s = 80.0 if block else 95.0
        lines += [
            logged("block_start", None, start_s, samples_count=800 * block),
            # Half of the evaluations lie within their block.
            logged("eval_start", None, start_s + took_s - (10 if block % 2 else 0)),
            logged("eval_stop", None, start_s + took_s + (0 if block % 2 else 4)),
            logged("block_stop", None, start_s + took_s, samples_count=800 * (block + 1)),
        ]
    write(tmp_path / "result_0.txt", "".join([*lines, logged("run_stop", None, 400, status="success")]))
    found = read([tmp_path])
    # Without the first block: 3 * 800 samples in 70 + 80 + 70 s.
    assert found.runs[0].values[a.SAMPLES_PER_S] == pytest.approx(2400 / 220)
    assert any("derived" in warning and "result_0.txt" in warning for warning in build(found).warnings)


def test_a_score_lags_only_where_throughput_grows_more_than_a_twentieth_faster(tmp_path: Path) -> None:
    system(tmp_path / "one", 1, (20, 20, 20))
    for i, (minutes, lags) in enumerate(((10, True), (2.6, False), (2.5, False), (2.0, False))):
        system(tmp_path / "eight", 8, [minutes] * 3, rate=80.0)
        found = scores_lag(systems_of(read_runs([tmp_path])))
        assert len(found) == lags, (i, found)
    system(tmp_path / "eight", 8, (10, 10, 10), rate=80.0)
    for name in ("one", "eight"):
        texts = {path: path.read_text() for path in (tmp_path / name).glob("result_*.txt")}
        for path, text in texts.items():
            path.write_text(text.replace("success", "aborted"))
        assert not scores_lag(systems_of(read_runs([tmp_path]))), "without a score nothing is compared"
        for path, text in texts.items():
            path.write_text(text)
    assert len(scores_lag(systems_of(read_runs([tmp_path])))) == 1


def test_no_result_is_called_aborted_that_was_not(tmp_path: Path) -> None:
    system(tmp_path / "one", 1, (10, 10, 10))
    write(tmp_path / "one" / "result_3.txt", result(10, status="aborted"))
    html = page(build(read([tmp_path])))
    assert "1 result aborted" in html
    (tmp_path / "one" / "result_3.txt").unlink()
    assert "result aborted" not in page(build(read([tmp_path])))


def test_of_unet3d_the_four_fastest_and_the_four_slowest_results_are_dropped(tmp_path: Path) -> None:
    minutes = [10.0, 10, 10, 10, 20, 22, 24, 90, 90, 90, 90]
    for i, took in enumerate(minutes):
        write(tmp_path / f"result_{i}.txt", without_throughput(took).replace('"bert"', '"unet3d"'))
    ((one,),) = systems_of(read_runs([tmp_path]))
    assert one.score_s == pytest.approx(60 * 22)
    write(tmp_path / "result_10.txt", without_throughput(90, status="aborted").replace('"bert"', '"unet3d"'))
    ((one,),) = systems_of(read_runs([tmp_path]))
    assert one.score_s == pytest.approx(60 * 22), "a result that missed the target counts as one of the slowest"

"""The Python API: overrides as Python values, states of a sweep, leaderboards and comparisons as data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import slurmscale
from slurmscale import SuiteError
from tests.support.cli import small
from tests.support.fake_runs import a_run, finished_run


def test_dir_has_the_public_names() -> None:
    assert dir(slurmscale) == sorted(slurmscale.__all__)


@pytest.mark.parametrize("function", [slurmscale.compose, slurmscale.plan, slurmscale.submit])
def test_keyword_arguments_are_refused_with_what_to_pass(function: object) -> None:
    assert callable(function)
    with pytest.raises(SuiteError, match=r'Pass \{"nodes": 2\} in place of nodes=2'):
        function("job.steps=2", nodes=2)


def test_plan_and_compose_take_words_lists_and_dictionaries() -> None:
    given: list[Any] = ["model=tiny", {"nodes": [1, 2], "job": {"steps": 7}}]
    assert [(run.nodes, run.job.steps) for run in slurmscale.compose(given, multirun=True)] == [(1, 7), (2, 7)]
    assert [each.ranks for each in slurmscale.plan(*given, multirun=True).runs] == [2, 4]


def test_search_returns_the_layouts_by_expected_time() -> None:
    found = slurmscale.search({"cluster": "xe9680_h100", "model": "llama3_8b", "engine": "nemo", "nodes": [1]})
    assert [each.expected_s for each in found[:20]] == sorted(each.expected_s for each in found[:20])
    assert {each.layout.run.nodes for each in found} == {1}


def test_a_sweep_is_submitted_waited_for_cancelled_and_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = slurmscale.submit(small(tmp_path), {"launcher": "dry"}, wait=True)
    assert sweep.directory == str(tmp_path / "s")
    for found in (slurmscale.wait(sweep), slurmscale.cancel(sweep), slurmscale.resume(sweep, trust=True, wait=True)):
        assert found.counts == {"prepared": 1}
    assert "no run waits or runs" in capsys.readouterr().out
    with pytest.raises(SuiteError, match="does not exist"):
        slurmscale.wait(tmp_path / "nowhere")


def test_a_report_and_a_comparison_return_their_sentences(tmp_path: Path) -> None:
    for name, step_time_s in (("a", 0.5), ("b", 0.25)):
        for repeat in (1, 2, 3):
            run = a_run(f"r{repeat}", repeat=repeat, steps=8, sweep=name)
            finished_run(tmp_path / name, run, step_time_s=step_time_s * (1 + 0.01 * repeat))
    written = slurmscale.report(tmp_path / "a")
    assert str(tmp_path / "a/report.html") in written.files
    assert written.headline[0] in (tmp_path / "a/report.md").read_text()
    compared = slurmscale.compare(tmp_path / "a", tmp_path / "b", output=tmp_path / "c")
    assert all(Path(file).exists() for file in compared.files)
    assert any("2.00" in sentence for sentence in compared.headline), compared.headline


def test_a_directory_without_a_campaign_has_no_leaderboard(tmp_path: Path) -> None:
    finished_run(tmp_path, a_run())
    with pytest.raises(SuiteError, match="is not a campaign"):
        slurmscale.leaderboard(tmp_path)


def test_other_commands_are_functions_with_the_records_that_json_prints(tmp_path: Path) -> None:
    run = finished_run(tmp_path / "s", a_run("done"))
    assert slurmscale.status(tmp_path / "s").runs[0].state == "finished"
    assert slurmscale.explain("job.steps").facts["range"] == "1 or more"
    assert slurmscale.answer("note", sweep=tmp_path / "s", text="quiet night").note == "quiet night"
    assert "layers: 28" in slurmscale.model("Qwen2.5-7B").text
    with pytest.raises(SuiteError, match="was started by hand"):
        slurmscale.logs(run.path)
    with pytest.raises(SuiteError, match="invalid choice: 'fax'"):
        slurmscale.resume(tmp_path / "s", launcher="fax")
    with pytest.raises(SuiteError, match="begins with a dash"):
        slurmscale.answer("note", sweep=tmp_path / "s", text="--remove")


def test_an_expectation_is_checked_before_anything_is_prepared(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match="fast"):
        slurmscale.submit(small(tmp_path), expect="it is fast")
    assert not (tmp_path / "s").exists()
    sweep = slurmscale.submit(small(tmp_path), {"launcher": "dry"}, expect="tokens_per_s >= 10")
    assert sweep.counts == {"prepared": 1}

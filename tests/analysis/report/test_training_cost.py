"""The cost of a training: tokens in, hours and GPU-hours out, with an interval."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.load.discover import read
from analysis.report.digest import Training, digest_of
from analysis.report.sections.training_cost import training_cost_section, training_of
from jobs.cli import main
from jobs.errors import ReportError
from tests.support.fake_runs import a_run, finished_run

TOKENS_A_STEP = 1024


def rows(path: Path, training: Training) -> list[list[str]]:
    section = training_cost_section(digest_of(read([path]), training))
    assert section is not None
    return [list(row) for row in section.rows]


def test_hours_are_tokens_over_throughput_and_gpu_hours_the_ranks_times_that(tmp_path: Path) -> None:
    for ranks in (1, 2):
        for repeat, time_s in ((1, 1.0), (2, 0.8)):
            run = a_run(f"r{ranks}-{repeat}", ranks_per_node=ranks, repeat=repeat)
            finished_run(tmp_path, run, step_time_s=time_s / ranks)
    one, two = rows(tmp_path, Training(3600 * TOKENS_A_STEP * 100))
    # The median of 1 and 1.25 steps a second.
    assert one[1:7] == ["1", "2", "88.89", "88.89", "80.00 to 100.0", "88.89"]
    assert two[1:6] == ["2", "2", "44.44", "88.89", "80.00 to 100.0"]
    assert "measured, smallest to largest repeat, 100 % efficiency" in two[-1]


def test_ranks_that_were_not_measured_are_predicted_by_the_law_or_refused(tmp_path: Path) -> None:
    for ranks in (1, 2, 4, 8):
        finished_run(tmp_path / "law", a_run(f"r{ranks}", ranks_per_node=ranks), step_time_s=0.1 + 0.9 / ranks)
    *_, last = rows(tmp_path / "law", Training(3600 * TOKENS_A_STEP, (8, 16)))
    assert last[1] == "16"
    # Amdahl: 0.1 + 0.9 / 16 s a step.
    assert float(last[4]) == pytest.approx(16 * (0.1 + 0.9 / 16), rel=0.02)
    assert "predicted by" in last[-1]
    assert "outside the measured 4 points" in last[-1]
    finished_run(tmp_path / "one", a_run("r"))
    assert "not measured, and no law to predict it" in rows(tmp_path / "one", Training(1e9, (64,)))[-1][-1]


def test_a_point_measured_once_has_no_interval(tmp_path: Path) -> None:
    finished_run(tmp_path, a_run("r"))
    ((*_, interval, _, words),) = rows(tmp_path, Training(1e9))
    assert interval == "—"
    assert "no interval" in words


@pytest.mark.parametrize("text", ["", "100X", "-1B", "0", "B", "1B@", "1B@0", "1B@2,", "nan", "1e999"])
def test_what_is_no_number_of_tokens_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ReportError, match="--cost-of 100B"):
        training_of(text)


def test_tokens_are_read_with_their_size() -> None:
    assert training_of("1.5T") == Training(1.5e12)
    assert training_of("2e9@64,128") == Training(2e9, (64, 128))


def test_the_command_reports_the_training_asked_for_in_page_and_markdown(tmp_path: Path) -> None:
    finished_run(tmp_path / "s", a_run("r"))
    assert main(["report", str(tmp_path / "s"), "--cost-of", "100B"]) == 0
    for name in ("report.md", "report.html"):
        assert "Cost of a training of 100B tokens" in (tmp_path / "s" / name).read_text()

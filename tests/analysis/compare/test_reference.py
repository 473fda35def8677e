"""A reference: a worse metric fails with its own exit code; other devices and torn files are refused."""

from __future__ import annotations

import csv
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.compare.reference import DEVICE, HOSTS, IDENTITY, SOURCE, RunsTable, parsed, read_reference
from analysis.compare.regression import Check, Regression, Verdict, regression_of
from analysis.load.discover import read
from analysis.parsers.log_metrics import SAMPLES_PER_S
from analysis.report.content import build
from analysis.report.report import report
from analysis.report.runs_columns import COLUMNS
from analysis.report.runs_table import to_csv
from analysis.report.sections.regression import sentence
from jobs.cli import main
from jobs.errors import ReportError
from jobs.schema import Run
from tests.support.campaigns import runs
from tests.support.fake_runs import a_run, event, finished_run, prepared, started, with_engine, with_job
from tests.support.mlperf_logs import system
from tests.support.paths import ROOT
from tests.support.report_pages import Page

STEADY = (0.500, 0.502, 0.498)
MAKE_ONE = "A reference is a runs.csv written by an earlier `slurmscale report DIR`; make one and keep it elsewhere."


def csv_of(sweep: Path) -> str:
    return to_csv(build(read([sweep])).rows)


def compared(before: Path, now: Path, tolerance: float = 0.05, *, allow_missing: bool = False) -> Regression:
    reference, runs_now = (parsed(csv_of(sweep), str(sweep)) for sweep in (before, now))
    return regression_of(reference, runs_now, Path("kept.csv"), tolerance, allow_missing=allow_missing)


def compared_without(where: Path, *emptied: str) -> Regression:
    """The runs of now against those of before, whose cells of these columns are empty."""
    reference = parsed(csv_of(where / "before"), "kept.csv")
    rows = [{**row, **dict.fromkeys(emptied, "")} for row in reference.rows]
    now = parsed(csv_of(where / "now"), "now")
    return regression_of(replace(reference, rows=rows), now, Path("kept.csv"), 0.05, allow_missing=False)


def verdicts(found: Regression) -> dict[str, Verdict]:
    return {check.metric.name if check.metric else check.point: check.verdict for check in found.checks}


def kept(path: Path, like: Run | None = None, **started_with: Any) -> Path:
    """A reference that was written a while ago."""
    runs(path / "before", STEADY, like, **started_with)
    report([path / "before"], path / "kept")
    return path / "kept/runs.csv"


def slower(times: float) -> list[float]:
    return [time_s * times for time_s in STEADY]


# --- exit codes, by real processes -----------------------------------------------------------------------------


def report_by_command(where: Path, reference: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "jobs.cli", "report", "now", "--reference", reference, *options]
    return subprocess.run(
        command, cwd=where, capture_output=True, text=True, check=False, env={"PYTHONPATH": str(ROOT)}
    )


@pytest.mark.parametrize(
    ("times", "options", "code", "verdict"),
    [
        (1.01, [], 0, "PASS"),
        (1.03, [], 3, "REGRESSION"),
        (1.03, ["--tolerance", "0.05"], 0, "PASS"),
        (1.10, ["--tolerance", "0.05"], 3, "REGRESSION"),
    ],
)
def test_a_regression_has_its_own_exit_code_and_last_line(
    tmp_path: Path, times: float, options: Sequence[str], code: int, verdict: str
) -> None:
    reference = kept(tmp_path)
    runs(tmp_path / "now", slower(times))
    done = report_by_command(tmp_path, str(reference), *options)
    assert done.returncode == code, done.stderr
    *_, page, last = done.stdout.splitlines()
    assert page == "now/report.html"
    by_itself = (
        "limits of 1 check by its own spread (false alarms in 5 % of such reports at most if its level is steady)"
    )
    assert last.startswith(f"{verdict} against {reference}, {'tolerance 5 %' if options else by_itself}")


def test_a_reference_that_is_not_there_is_an_error_and_no_regression(tmp_path: Path) -> None:
    runs(tmp_path / "now", STEADY)
    done = report_by_command(tmp_path, "gone.csv")
    assert done.returncode == 2
    assert done.stderr == f"slurmscale report: gone.csv cannot be read: No such file or directory. {MAKE_ONE}\n"


# --- what is judged --------------------------------------------------------------------------------------------


def test_each_metric_is_judged_in_its_own_direction(tmp_path: Path) -> None:
    runs(tmp_path / "before", STEADY)
    runs(tmp_path / "now", slower(0.5))
    for run in (tmp_path / "now").iterdir():
        text = (run / "metrics.jsonl").read_text()
        (run / "metrics.jsonl").write_text(text.replace(str(2**30), str(2**31)))
    found = compared(tmp_path / "before", tmp_path / "now")
    assert verdicts(found) == {
        "tokens_per_s": Verdict.better,
        "memory_peak_bytes": Verdict.worse,
        "final_loss": Verdict.passed,
    }
    assert not found.passed


@pytest.mark.parametrize("last", [1.30, 1.37])
def test_another_loss_fails_in_either_direction_however_fast(tmp_path: Path, last: float) -> None:
    runs(tmp_path / "before", STEADY)
    runs(tmp_path / "now", slower(0.5), losses=[8.0, 4.0, 3.0, 2.0, 1.6, last])
    found = compared(tmp_path / "before", tmp_path / "now")
    assert verdicts(found)["final_loss"] is Verdict.other_loss
    assert not found.passed


def test_a_change_that_is_the_tolerance_passes(tmp_path: Path) -> None:
    runs(tmp_path / "before", (0.5,))
    runs(tmp_path / "now", (0.625,))
    assert compared(tmp_path / "before", tmp_path / "now", 0.2).passed
    assert not compared(tmp_path / "before", tmp_path / "now", 0.199).passed


def test_medians_are_compared_so_that_one_bad_repeat_does_not_fail(tmp_path: Path) -> None:
    runs(tmp_path / "before", STEADY)
    runs(tmp_path / "now", (0.5, 0.5, 5.0))
    found = compared(tmp_path / "before", tmp_path / "now")
    assert found.passed
    assert (
        found.checks[0].why == "n = 3 and 3; repeats spread over 90%, more than the tolerance: the result may be chance"
    )


def by_spread(before: Sequence[float], now: Sequence[float]) -> Regression:
    """The regression of a point with these rates, without a tolerance of the user's."""
    columns = ["name", *IDENTITY, *DEVICE, "not_used_because", "tokens_per_s"]
    tables = [
        RunsTable(columns, [dict.fromkeys(columns, "") | {"nodes": "1", "ranks": "1", "tokens_per_s": repr(value)}
                            for value in values])
        for values in (before, now)
    ]  # fmt: skip
    return regression_of(tables[0], tables[1], Path("kept.csv"), None, allow_missing=False)


@pytest.mark.parametrize("repeats", [3, 6])
def test_unchanged_runs_fail_as_seldom_as_is_stated(repeats: int) -> None:
    chosen = np.random.default_rng(1)
    reports = [
        by_spread(*(np.exp(0.03 * chosen.standard_normal(count)) for count in (repeats, 1))) for _ in range(1000)
    ]
    failed = sum(not found.passed for found in reports)
    assert 25 <= failed <= 75, "one further run, of normal noise: 5 %, within four standard deviations"


def test_the_spread_of_the_reference_sets_the_limit_and_a_fixed_one_is_named(tmp_path: Path) -> None:
    noisy, quiet = (100.0, 120.0, 80.0, 110.0, 95.0), (100.0, 100.4, 99.6, 100.1, 99.9)
    assert by_spread(noisy, [80.0]).passed
    (check,) = by_spread(quiet, [97.0, 97.1, 96.9]).checks
    assert (check.verdict, check.by_spread) == (Verdict.worse, True)
    assert "n = 5 and 3; limit -0.7 % by the spread of the reference" in check.why
    (check,) = by_spread(quiet[:2], [97.0]).checks
    assert check.verdict is Verdict.passed
    assert check.why == "n = 2 and 1; fixed limit 5 %: the reference has fewer than 3 repeats"
    (check,) = by_spread((100.0,) * 4, [94.0]).checks
    assert (check.verdict, check.by_spread) == (Verdict.worse, False)
    assert check.why.endswith("fixed limit 5 %: the reference has no spread")
    assert by_spread((100.0, 100.0001, 100.0), [99.7]).passed, "a change of 0.3 % matters to nobody"


# --- the history of a reference --------------------------------------------------------------------------------

DAYS = (100.0, 100.6, 99.5, 100.3, 99.8, 100.1)


def history(*reports: tuple[str, float]) -> RunsTable:
    """A reference of reports of one run each, by host and rate."""
    columns = ["name", *IDENTITY, *DEVICE, "not_used_because", "tokens_per_s", HOSTS]
    fixed = dict.fromkeys(columns, "") | {"nodes": "1", "ranks": "1"}
    return RunsTable(columns, [
        fixed | {HOSTS: host, "tokens_per_s": repr(rate), SOURCE: f"{day:02d}/runs.csv"}
        for day, (host, rate) in enumerate(reports)
    ])  # fmt: skip


def after(reference: RunsTable, host: str, rate: float) -> Check:
    """The check of a run after the reports of a reference."""
    found = regression_of(reference, history((host, rate)), Path("kept"), None, allow_missing=False)
    (check,) = found.checks
    return check


def test_only_reports_since_the_last_shift_of_the_level_count() -> None:
    steady = history(*(("a", rate) for rate in DAYS))
    shifted = history(*(("a", rate) for rate in (*DAYS, *(0.9 * rate for rate in DAYS))))
    assert after(steady, "a", 90.0).verdict is Verdict.worse
    check = after(shifted, "a", 90.0)
    assert check.verdict is Verdict.passed
    assert "the level of the reference shifted by -10.0 % at 06/runs.csv: only 6 values since then count" in check.why
    assert after(shifted, "a", 87.0).verdict is Verdict.worse
    assert after(shifted, "a", 100.0).verdict is Verdict.better


def test_hosts_that_differ_are_compared_with_themselves_and_an_unknown_one_widens_the_limit() -> None:
    both = history(*((host, rate * speed) for rate in DAYS for host, speed in (("a", 1.0), ("b", 0.9))))
    assert after(both, "b", 90.0).verdict is Verdict.passed
    check = after(both, "a", 90.0)
    assert check.verdict is Verdict.worse
    assert "hosts of the reference differ: only its values on a count" in check.why
    check = after(both, "c", 85.0)
    assert check.verdict is Verdict.passed
    assert "too few values on c: the limit is by the spread of 2 hosts" in check.why
    alike = history(*((host, rate) for rate in DAYS for host in ("a", "b")))
    assert after(alike, "c", 90.0).verdict is Verdict.worse
    assert "hosts" not in after(alike, "c", 100.0).why


def test_repeats_of_one_report_are_one_value_of_a_history() -> None:
    reports = [(day, rate) for day, rate in enumerate(DAYS[:3]) for _ in range(5)]
    several = history(*(("a", rate) for _, rate in reports))
    rows = [{**row, SOURCE: str(day)} for row, (day, _) in zip(several.rows, reports, strict=True)]
    (check,) = regression_of(
        replace(several, rows=rows), history(("a", 98.5)), Path("kept"), None, allow_missing=False
    ).checks
    assert check.level is not None
    assert check.level.values == list(DAYS[:3])
    assert check.verdict is Verdict.passed


def test_a_directory_of_reports_is_a_reference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for day in (1, 2, 3, 4):
        runs(tmp_path / f"before{day}", [time_s * (1 + day / 1000) for time_s in STEADY])
        report([tmp_path / f"before{day}"], tmp_path / f"kept/2026-11-0{day}")
    runs(tmp_path / "now", slower(1.05))
    assert main(["report", str(tmp_path / "now"), "--reference", str(tmp_path / "kept")]) == 3
    assert "REGRESSION against" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        sys.exit(
            main(["report", f"{tmp_path}/now", "-o", f"{tmp_path}/kept/2026-11-04", "--reference", f"{tmp_path}/kept"])
        )
    assert "would overwrite" in capsys.readouterr().err
    with pytest.raises(ReportError, match="has no runs"):
        read_reference(tmp_path / "before1")


def test_a_metric_that_the_reference_has_and_the_runs_lack_fails(tmp_path: Path) -> None:
    runs(tmp_path / "before", (0.5,))
    runs(tmp_path / "now", (0.5,))
    (run,) = (tmp_path / "now").iterdir()
    text = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(text.replace(str(2**30), "null"))
    found = compared(tmp_path / "before", tmp_path / "now")
    assert [check.why for check in found.failing] == ["no run recorded memory_peak_bytes"]


def test_metrics_without_a_value_in_the_reference_are_named_and_not_judged(tmp_path: Path) -> None:
    runs(tmp_path / "before", STEADY)
    runs(tmp_path / "now", slower(9))
    found = compared_without(tmp_path, "tokens_per_s")
    assert found.passed
    assert verdicts(found)["tokens_per_s"] is Verdict.unjudged
    assert sentence(found) == (
        "PASS against kept.csv, tolerance 5 %: none worse, of 2 checks of 1 point; not judged, because the reference "
        "contains no values: tokens_per_s of 1 point."
    )


def test_a_reference_without_any_value_of_what_was_measured_is_refused(tmp_path: Path) -> None:
    runs(tmp_path / "before", STEADY)
    runs(tmp_path / "now", STEADY)
    with pytest.raises(ReportError) as caught:
        compared_without(tmp_path, "tokens_per_s", "memory_peak_bytes", "final_loss")
    assert str(caught.value) == (
        "kept.csv contains no values of tokens_per_s, memory_peak_bytes, final_loss for the measured points, so there "
        "is nothing to compare with. Take the original file, or write it again."
    )
    runs(tmp_path / "before", STEADY, a_run("two", ranks_per_node=2))
    found = compared_without(tmp_path, "tokens_per_s", "memory_peak_bytes", "final_loss")
    assert not found.passed
    assert "1 of the reference not measured; not judged, because the reference contains no values: " in sentence(found)


# --- which points belong together ------------------------------------------------------------------------------


def test_a_point_that_was_not_measured_fails_unless_allowed(tmp_path: Path) -> None:
    runs(tmp_path / "before", STEADY)
    runs(tmp_path / "before", STEADY, a_run("two", ranks_per_node=2))
    runs(tmp_path / "now", STEADY)
    (missing,) = compared(tmp_path / "before", tmp_path / "now").failing
    assert (missing.point, missing.verdict) == ("ddp, 2 ranks on 1 node", Verdict.missing)
    assert missing.why.startswith("no such run; the nearest has ranks 1, not 2")
    assert compared(tmp_path / "before", tmp_path / "now", allow_missing=True).passed


def test_a_point_whose_run_failed_states_why(tmp_path: Path) -> None:
    runs(tmp_path / "before", STEADY)
    directory = prepared(tmp_path / "now", replace(a_run("broken"), sweep="now"))
    started(directory, a_run())
    event(directory, "failed", rank=0, node="node9", error="no such luck")
    (missing,) = compared(tmp_path / "before", tmp_path / "now").failing
    assert missing.why == "broken: failed at step 0 of 6: rank 0 on node9: no such luck"


def test_nothing_compared_is_never_a_pass(tmp_path: Path) -> None:
    runs(tmp_path / "before", STEADY)
    runs(tmp_path / "now", STEADY, with_job(a_run(), micro_batch_size=2))
    assert not compared(tmp_path / "before", tmp_path / "now", allow_missing=True).passed


def test_a_point_that_the_reference_does_not_have_is_listed_and_passes(tmp_path: Path) -> None:
    runs(tmp_path / "before", STEADY)
    runs(tmp_path / "now", STEADY)
    runs(tmp_path / "now", STEADY, a_run("two", ranks_per_node=2))
    found = compared(tmp_path / "before", tmp_path / "now")
    assert found.passed
    assert found.added == ["ddp, 2 ranks on 1 node"]


def test_settings_that_no_column_shows_keep_two_points_apart(tmp_path: Path) -> None:
    compiled = with_engine(a_run("compiled"), "native", compile=True)
    for sweep in ("before", "now"):
        runs(tmp_path / sweep, STEADY)
        runs(tmp_path / sweep, slower(0.5 if sweep == "before" else 1.0), compiled)
    found = compared(tmp_path / "before", tmp_path / "now")
    assert sorted(check.verdict.value for check in found.checks if check.metric and "tok" in check.metric.name) == [
        "WORSE", "passed"
    ]  # fmt: skip
    assert len({check.point for check in found.checks}) == 2


def test_other_settings_without_a_column_are_reported(tmp_path: Path) -> None:
    runs(tmp_path / "before", STEADY)
    runs(tmp_path / "now", STEADY, with_engine(a_run(), "native", compile=True))
    found = compared(tmp_path / "before", tmp_path / "now")
    assert found.passed
    assert found.checks[0].why == "n = 3 and 3; settings without a column of their own differ"


@pytest.mark.parametrize("field", ["micro_batch_size", "sequence_length", "steps", "precision"])
def test_points_of_other_work_are_not_compared(tmp_path: Path, field: str) -> None:
    values: dict[str, Any] = {"micro_batch_size": 2, "sequence_length": 32, "steps": 7, "precision": "bfloat16_mixed"}
    runs(tmp_path / "before", STEADY)
    runs(tmp_path / "now", STEADY)
    for run in (tmp_path / "now").iterdir():
        lines = (run / "config.yaml").read_text().splitlines()
        changed = [f"  {field}: {values[field]}" if line.startswith(f"  {field}:") else line for line in lines]
        assert changed != lines
        (run / "config.yaml").write_text("\n".join(changed))
    found = compared(tmp_path / "before", tmp_path / "now")
    assert not found.compared
    assert f"{field} {values[field]}, not " in found.failing[0].why


def test_an_older_reference_is_matched_on_the_columns_it_has(tmp_path: Path) -> None:
    runs(tmp_path / "before", STEADY)
    runs(tmp_path / "now", STEADY)
    rows = list(csv.reader(csv_of(tmp_path / "before").splitlines()))
    keep = [i for i, name in enumerate(rows[0]) if name not in {"data", "job", "settings_digest"}]
    text = "".join(",".join(row[i] for i in keep) + "\n" for row in rows)
    found = regression_of(
        parsed(text, "old"), parsed(csv_of(tmp_path / "now"), "now"), Path("old"), 0.05, allow_missing=False
    )
    assert found.passed
    assert found.not_matched_on == ["data", "job"]


def test_logs_are_compared_by_rate_and_never_by_a_loss_of_unknown_data(tmp_path: Path) -> None:
    system(tmp_path, 8, (10, 11, 12))
    found = compared(tmp_path, tmp_path)
    assert found.passed
    assert {check.metric for check in found.checks} == {SAMPLES_PER_S}
    assert {check.point for check in found.checks} == {"llama2_70b_lora, 64 ranks on 8 nodes"}


def test_every_column_that_identifies_a_point_is_written() -> None:
    assert set(IDENTITY) <= {column.name for column in COLUMNS}


# --- what is refused -------------------------------------------------------------------------------------------


def test_another_device_is_no_regression(tmp_path: Path) -> None:
    reference = kept(tmp_path, device="cuda", device_name="H100")
    runs(tmp_path / "now", slower(9))
    assert main(["report", str(tmp_path / "now"), "--reference", str(reference)]) == 2
    with pytest.raises(ReportError) as caught:
        compared(tmp_path / "before", tmp_path / "now")
    assert str(caught.value) == (
        "kept.csv was measured on H100 (cuda), these runs on Test CPU (cpu): a difference between devices is no "
        "regression. Use a reference of the same device, or compare the two: slurmscale report --compare A B"
    )


def test_emulated_nodes_are_another_device(tmp_path: Path) -> None:
    runs(tmp_path / "before", STEADY)
    runs(tmp_path / "now", STEADY, emulated_nodes=True)
    with pytest.raises(ReportError, match=r"these runs on Test CPU \(cpu, emulated nodes\)"):
        compared(tmp_path / "before", tmp_path / "now")


def test_a_reference_is_never_overwritten_by_the_report_compared_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs(tmp_path / "now", STEADY)
    report([tmp_path / "now"], None)
    reference = tmp_path / "now/runs.csv"
    before = reference.read_bytes()
    assert main(["report", str(tmp_path / "now"), "--reference", str(reference)]) == 2
    assert "This report would overwrite" in capsys.readouterr().err
    assert reference.read_bytes() == before


@pytest.mark.parametrize("tolerance", ["5", "-0.1", "nan"])
def test_a_tolerance_outside_0_to_1_is_refused(
    tmp_path: Path, tolerance: str, capsys: pytest.CaptureFixture[str]
) -> None:
    reference = kept(tmp_path)
    assert main(["report", str(tmp_path / "before"), "--reference", str(reference), "--tolerance", tolerance]) == 2
    assert "is not in [0, 1). For 5 %, use --tolerance 0.05" in capsys.readouterr().err


def refusal(path: Path, text: str | bytes) -> str:
    (path / "kept.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ReportError) as caught:
        read_reference(path / "kept.csv")
    return str(caught.value).replace(f"{path}/", "")


def test_a_torn_file_is_named_with_its_line(tmp_path: Path) -> None:
    runs(tmp_path / "before", STEADY)
    text = csv_of(tmp_path / "before")
    message = refusal(tmp_path, text[: text.rindex("feedc0de")])
    assert message.startswith("kept.csv, line 4: ")
    assert message.endswith(
        f" cells for {len(text.splitlines()[0].split(','))} columns: the file is cut short or "
        "was edited. Take the original, or write it again."
    )
    assert "line 4: not CSV (unexpected end of data)" in refusal(tmp_path, f'{text[: text.rindex("feedc0de")]}"fe')


@pytest.mark.parametrize("value", ["abc", "-1", "0", "nan", "inf", "1,000"])
def test_an_edited_value_is_named_with_its_line_and_column(tmp_path: Path, value: str) -> None:
    runs(tmp_path / "before", STEADY)
    rows = list(csv.DictReader(csv_of(tmp_path / "before").splitlines()))
    rows[1]["tokens_per_s"] = value
    with (tmp_path / "edited.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    with pytest.raises(ReportError) as caught:
        read_reference(tmp_path / "edited.csv")
    assert str(caught.value) == (
        f"{tmp_path / 'edited.csv'}, line 3, column tokens_per_s: {value!r} is not a tokens_per_s (a number above 0, "
        "in 1/s). Take the original file, or write it again."
    )


def test_other_files_are_refused_with_the_command_that_makes_a_reference(tmp_path: Path) -> None:
    assert refusal(tmp_path, "a,b\n1,2\n") == (f"kept.csv has no column name; its first line begins 'a,b'. {MAKE_ONE}")
    assert "It contains semicolons: a spreadsheet saved it in another form." in refusal(tmp_path, "name;sweep\n1;2\n")
    assert refusal(tmp_path, "") == f"kept.csv has no column name; its first line begins ''. {MAKE_ONE}"
    assert refusal(tmp_path, b"\xff\xfe\x00") == f"kept.csv is not UTF-8 text (byte 0). {MAKE_ONE}"
    (tmp_path / "empty").mkdir()
    with pytest.raises(ReportError, match=r"has no runs\*\.csv and no directory with a runs\.csv"):
        read_reference(tmp_path / "empty")


def test_a_reference_without_a_believed_run_is_refused(tmp_path: Path) -> None:
    prepared(tmp_path / "before", a_run())
    assert refusal(tmp_path, csv_of(tmp_path / "before")) == ("kept.csv contains no valid run to compare with.")


def test_a_column_twice_is_refused(tmp_path: Path) -> None:
    runs(tmp_path / "before", STEADY)
    header, rest = csv_of(tmp_path / "before").split("\n", 1)
    assert refusal(tmp_path, f"{header},name\n{rest}") == (
        "kept.csv contains the column 'name' more than once: it was edited. Take the original."
    )


def test_additions_of_a_spreadsheet_are_ignored(tmp_path: Path) -> None:
    runs(tmp_path / "before", STEADY)
    text = csv_of(tmp_path / "before")
    (tmp_path / "saved.csv").write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    assert read_reference(tmp_path / "saved.csv") == parsed(text, "the runs")


# --- what is shown ---------------------------------------------------------------------------------------------


def test_page_and_terminal_list_worse_metrics_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reference = kept(tmp_path)
    runs(tmp_path / "now", slower(1.25))
    assert main(["report", str(tmp_path / "now"), "--reference", str(reference)]) == 3
    table, *_, verdict = (line for line in capsys.readouterr().out.splitlines() if line.split()[0] != "point")
    worse = "WORSE ddp, 1 rank on 1 node Tokens/s 2,048 1,638 -20.0 % n = 3 and 3; limit -1.3 % by the spread of the"
    assert " ".join(table.split()).startswith(worse)
    limits = (
        "limits of 1 check by its own spread (false alarms in 5 % of such reports at most if its level is steady), "
        "of the others 5 %"
    )
    message = f"REGRESSION against {reference}, {limits}: 1 worse, of 3 checks of 1 point."
    assert verdict == message
    page = Page((tmp_path / "now/report.html").read_text())
    assert page.text.index(message) < page.text.index("Results")
    assert "Against the reference" in page.text
    assert "ddp, 1 rank on 1 node: Tokens/s" in page.text


def test_hostile_text_of_a_reference_stays_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nasty = "[red]<img src=x>\x1b[2J"
    reference = kept(tmp_path, a_run(parallelism="ddp"))
    reference.write_text(reference.read_text().replace(",ddp,", f",{nasty},"))
    runs(tmp_path / "now", STEADY)
    assert main(["report", str(tmp_path / "now"), "--reference", str(reference)]) == 3
    out = capsys.readouterr().out
    assert "\x1b[2J" not in out
    assert "[red]<img src=x>" in out
    assert "img" not in Page((tmp_path / "now/report.html").read_text()).tags()


def test_runs_that_were_copied_into_the_reference_pass(tmp_path: Path) -> None:
    finished_run(tmp_path / "before", a_run())
    assert compared(tmp_path / "before", tmp_path / "before").passed

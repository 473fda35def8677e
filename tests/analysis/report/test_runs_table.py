"""Reading run directories: measured values, unused runs with the reason, and the cells of a row."""

from __future__ import annotations

import csv
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.formatting import csv_cell, is_number, markdown_cell, published, significant
from analysis.load.discover import read_runs
from analysis.report.digest import Digest
from analysis.report.runs_columns import COLUMNS
from analysis.report.runs_table import markdown_table, rows_of, to_csv
from analysis.run import RunResult
from jobs import metrics as m
from jobs.errors import ReportError
from jobs.rundir import RunDir
from tests.support.fake_runs import a_run, ended, event, finished_run, prepared, started, step, with_job
from tests.support.measured_runs import resumed


def only(path: Path) -> RunResult:
    """The single run below a path."""
    runs = read_runs([path])
    assert len(runs) == 1
    return runs[0]


# --- what is measured ------------------------------------------------------------------------------------------


def test_throughput_is_the_tokens_of_steady_steps_over_their_time(tmp_path: Path) -> None:
    finished_run(tmp_path, a_run(ranks_per_node=2), step_time_s=0.25, tokens=1000)
    run = only(tmp_path)
    assert run.used
    assert run.steady_steps == 4
    assert run.values[m.TOKENS_PER_S] == 4000
    assert run.values[m.TOKENS_PER_S_PER_RANK] == 2000


def test_step_time_percentiles_are_those_of_the_steady_steps(tmp_path: Path) -> None:
    run = a_run(steps=13)
    directory = prepared(tmp_path, run)
    started(directory, run)
    for number in range(1, 14):
        step(directory, number, step_time_s=float(number))
    ended(directory)
    values = only(tmp_path).values
    assert values[m.STEP_TIME_MEDIAN] == 8  # of 3 to 13
    assert values[m.STEP_TIME_P10] == 4
    assert values[m.STEP_TIME_P90] == 12


def test_memory_is_the_peak_over_all_steps_and_absent_when_never_recorded(tmp_path: Path) -> None:
    for name, peaks in (("with", [5, 9, 7]), ("without", [None] * 3)):
        run = a_run(name, steps=3)
        directory = prepared(tmp_path, run)
        started(directory, run)
        for number, peak in enumerate(peaks, start=1):
            step(directory, number, memory_peak_bytes=peak, memory_reserved_peak_bytes=peak and peak + 1)
        ended(directory)
    found = {run.name: run.values for run in read_runs([tmp_path])}
    assert (found["with"][m.MEMORY_PEAK], found["with"][m.MEMORY_RESERVED_PEAK]) == (9, 10)
    assert not {m.MEMORY_PEAK, m.MEMORY_RESERVED_PEAK} & set(found["without"])


def test_a_torn_last_line_costs_only_itself(tmp_path: Path) -> None:
    whole = finished_run(tmp_path, a_run())
    with whole.metrics.open("a") as file:
        file.write('{"step":7,"loss":1.0,"step_ti')
    run = only(tmp_path)
    assert run.used
    assert run.values[m.TOKENS_PER_S] == 2048
    assert max(run.losses) == 6


def test_after_a_resume_the_later_record_of_a_step_replaces_the_earlier(tmp_path: Path) -> None:
    resumed(prepared(tmp_path, a_run(steps=8)))
    run = only(tmp_path)
    assert run.losses == {1: 51.0, 2: 52.0, 3: 53.0, 4: 4.0, 5: 5.0, 6: 6.0, 7: 7.0, 8: 8.0}
    assert run.attempts == 2


def test_the_first_steps_of_every_attempt_are_not_steady(tmp_path: Path) -> None:
    resumed(prepared(tmp_path, a_run(steps=8)))
    run = only(tmp_path)
    # Step 3 of attempt 1 (4 and 5 were replaced), steps 6 to 8 of attempt 2.
    assert run.steady_steps == 4
    assert run.values[m.TOKENS_PER_S] == 4 * 1024 / (0.5 + 3 * 0.25)


def test_times_of_attempts_are_summed(tmp_path: Path) -> None:
    resumed(prepared(tmp_path, a_run(steps=8)))
    run = only(tmp_path)
    assert run.values[m.TOTAL_TIME] == 20
    assert sum(run.values[metric] for metric in m.ATTEMPT_METRICS) == 2 * run.values[m.TOTAL_TIME]


def test_values_that_are_no_finite_numbers_are_absent(tmp_path: Path) -> None:
    run = a_run(steps=6)
    directory = prepared(tmp_path, run)
    started(directory, run)
    odd: list[Any] = ["much", True, [1], {}, None, "7"]
    for number, memory in enumerate(odd, start=1):
        step(directory, number, memory_peak_bytes=memory, step_time_s="1e3" if number == 3 else 0.5)
    with directory.metrics.open("a") as file:
        file.write(
            '{"step":6,"attempt":1,"loss":1,"tokens":1024,"step_time_s":0.5,"memory_peak_bytes":1' + "0" * 400 + "}\n"
        )
    ended(directory)
    result = only(tmp_path)
    assert m.MEMORY_PEAK not in result.values
    assert result.steady_steps == 3


# --- runs not used, and why ------------------------------------------------------------------------------------


def failed(directory: RunDir) -> None:
    started(directory, a_run())
    step(directory, 1)
    event(directory, "failed", rank=1, node="node7", error="RuntimeError: out of memory")
    event(directory, "failed", rank=0, node="node6", error="RuntimeError: connection closed by peer")


def stopped(directory: RunDir) -> None:
    started(directory, a_run())
    step(directory, 1)
    step(directory, 2)
    ended(directory, "stopped", step=2, reason="SIGUSR1")


def killed(directory: RunDir) -> None:
    started(directory, a_run())
    step(directory, 1)


def failed_at_start(directory: RunDir) -> None:
    event(directory, "failed", rank=0, node="node0", error="RunDirError: other code")


def short(directory: RunDir) -> None:
    started(directory, a_run())
    step(directory, 1)
    step(directory, 2)
    ended(directory)


def without_loss(directory: RunDir) -> None:
    started(directory, a_run())
    for number in range(1, 7):
        step(directory, number, loss=None if number == 4 else 1.0)
    ended(directory)


def with_nan(directory: RunDir) -> None:
    started(directory, a_run())
    for number in range(1, 6):
        step(directory, number)
    with directory.metrics.open("a") as file:
        file.write('{"step":6,"attempt":1,"loss":NaN,"step_time_s":0.5,"tokens":1024}\n')
    ended(directory)


def without_metrics(directory: RunDir) -> None:
    started(directory, a_run())
    ended(directory)


def on_two_devices(directory: RunDir) -> None:
    started(directory, a_run())
    started(directory, a_run(), attempt=2, device_name="Other CPU")
    ended(directory, attempt=2)


def on_fewer_ranks(directory: RunDir) -> None:
    started(directory, a_run(), ranks=3)
    ended(directory)


def without_config(directory: RunDir) -> None:
    directory.config.unlink()


def of_another_version(directory: RunDir) -> None:
    directory.config.write_text("model:\n  name: tiny\nnodes: 1\n")


def with_broken_config(directory: RunDir) -> None:
    directory.config.write_text("model: [unclosed")


def without_plan(directory: RunDir) -> None:
    directory.plan.unlink()


def with_torn_plan(directory: RunDir) -> None:
    directory.plan.write_text('{"layout": {')


def nothing(_: RunDir) -> None:
    """Only prepared."""


@pytest.mark.parametrize(
    ("history", "state", "reason"),
    [
        (failed, "failed", "failed at step 1 of 6: rank 1 on node7: RuntimeError: out of memory"),
        (failed_at_start, "failed", "failed before its first step: rank 0 on node0: RunDirError: other code"),
        (stopped, "stopped", "stopped at step 2 of 6: SIGUSR1"),
        (killed, "unfinished", "no end recorded; last seen at step 1 of 6: still running, killed, or out of time"),
        (nothing, "not started", "never started"),
        (short, "unmeasured", "no steady step: 2 recorded, and the first 2 of every attempt are not measured"),
        (without_loss, "no loss", "the loss of step 4 is absent or not a finite number"),
        (with_nan, "no loss", "the loss of step 6 is absent or not a finite number"),
        (without_metrics, "unmeasured", "finished, but metrics.jsonl contains no step"),
        (on_two_devices, "mixed", "its attempts ran on different devices: Other CPU, Test CPU"),
        (on_fewer_ranks, "mixed", "ranks: 1 planned, 3 started"),
        (without_config, "unreadable", "no config.yaml"),
        (of_another_version, "unreadable", "config.yaml has no valid ranks_per_node: not a run of this version"),
        (with_broken_config, "unreadable", "config.yaml is not YAML: while parsing a flow sequence"),
        (without_plan, "unreadable", "no plan.json"),
        (with_torn_plan, "unreadable", "plan.json is not JSON: Expecting property name"),
    ],
)
def test_a_run_that_is_not_used_states_why(
    tmp_path: Path, history: Callable[[RunDir], None], state: str, reason: str
) -> None:
    history(prepared(tmp_path, a_run()))
    run = only(tmp_path)
    assert not run.used
    assert run.state == state
    assert str(run.reason).startswith(reason)


def test_a_run_that_failed_and_was_resumed_to_its_end_is_used(tmp_path: Path) -> None:
    directory = prepared(tmp_path, a_run())
    failed(directory)
    started(directory, a_run(), attempt=2, from_step=1)
    for number in range(2, 7):
        step(directory, number, attempt=2)
    ended(directory, attempt=2)
    assert only(tmp_path).used


def test_a_copy_of_a_run_is_not_a_second_measurement(tmp_path: Path) -> None:
    original = finished_run(tmp_path, a_run())
    shutil.copytree(original.path, tmp_path / "run-copy")
    first, second = read_runs([tmp_path])
    assert first.used
    assert second.reason == f"a copy of {original.path.resolve()}"


# --- finding ---------------------------------------------------------------------------------------------------


def test_a_run_given_twice_counts_once(tmp_path: Path) -> None:
    run = finished_run(tmp_path / "demo", a_run())
    (tmp_path / "link").symlink_to(run.path)
    assert len(read_runs([run.path, tmp_path / "demo", tmp_path, tmp_path / "link"])) == 1


def test_what_lies_inside_a_run_or_a_code_snapshot_is_not_searched(tmp_path: Path) -> None:
    run = finished_run(tmp_path, a_run())
    for inner in ("run/checkpoints/step-00000001", "run/export", "code-123", ".preparing-x"):
        shutil.copytree(run.path, tmp_path / "spare", dirs_exist_ok=True)
        shutil.move(tmp_path / "spare", tmp_path / inner)
    assert [found.name for found in read_runs([tmp_path])] == ["run"]


def test_a_lone_config_file_is_not_a_run(tmp_path: Path) -> None:
    finished_run(tmp_path, a_run())
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "config.yaml").write_text("defaults: []\n")
    assert [found.name for found in read_runs([tmp_path])] == ["run"]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda path: None,
            "{path} does not exist. Pass sweeps, runs, logs or directories of them, for example runs/demo",
        ),
        (lambda path: path.write_text("hello"), "{path}: no run in it, and no log of a known format. A run is"),
        (lambda path: path.mkdir(), "{path}: no run in it, and no log of a known format. A run is a directory with"),
    ],
)
def test_a_path_without_runs_is_refused_in_words(tmp_path: Path, make: Callable[[Path], Any], text: str) -> None:
    path = tmp_path / "given"
    make(path)
    with pytest.raises(ReportError) as caught:
        read_runs([path])
    assert str(caught.value).startswith(text.format(path=path))


# --- rows ------------------------------------------------------------------------------------------------------


def test_the_csv_has_every_run_used_or_not_in_full_precision(tmp_path: Path) -> None:
    finished_run(tmp_path, a_run("good"), step_time_s=1 / 3, tokens=1000)
    prepared(tmp_path, a_run("idle"))
    good, idle = csv.DictReader(to_csv(rows_of(Digest(read_runs([tmp_path])))).splitlines())
    assert float(good["tokens_per_s"]) == pytest.approx(3000, rel=1e-15)
    assert float(good["step_time_median_s"]) == 1 / 3
    assert (good["name"], good["dp_replicate"], good["global_batch_size"], good["precision"]) == (
        "good",
        "1",
        "16",
        "float32",
    )
    assert good["code_digest"] == "feedc0de"
    assert good["git_commit"] == "0123abcd"
    assert good["path"] == str((tmp_path / "good").resolve())
    assert (idle["name"], idle["tokens_per_s"], idle["not_used_because"]) == ("idle", "", "never started")


def test_every_metric_of_a_run_is_a_column_under_its_own_name() -> None:
    assert all(column.name == column.metric.name for column in COLUMNS if column.metric)
    assert {*m.RUN_METRICS, *m.ATTEMPT_METRICS, *m.EVALUATION_METRICS} <= {column.metric for column in COLUMNS}


def test_column_names_are_unique() -> None:
    names = [column.name for column in COLUMNS]
    assert len(set(names)) == len(names)


def test_a_name_that_is_a_formula_becomes_text_in_the_csv(tmp_path: Path) -> None:
    directory = finished_run(tmp_path, with_job(a_run('="=1+1"'), steps=6))
    table = list(csv.DictReader(to_csv(rows_of(Digest(read_runs([directory.path])))).splitlines()))
    assert table[0]["name"] == '\'="=1+1"'


@given(st.text())
def test_no_text_reaches_a_spreadsheet_as_a_formula(text: str) -> None:
    cell = str(csv_cell(text))
    assert is_number(cell) or not cell.lstrip().startswith(("=", "+", "-", "@"))
    assert cell.removeprefix("'") == published(text).removeprefix("'")


@given(st.one_of(st.integers(), st.floats(allow_nan=False)))
def test_numbers_reach_the_csv_as_they_are(value: float) -> None:
    assert csv_cell(value) == value


@given(st.lists(st.text(), min_size=2, max_size=2))
def test_a_markdown_cell_stays_in_its_cell(texts: list[str]) -> None:
    table = markdown_table(("A", "B"), [texts])
    assert len(table.splitlines()) == 3
    last = table.splitlines()[2]
    bars = [i for i, letter in enumerate(last) if letter == "|"]
    unescaped = [i for i in bars if (i - len(last[:i].rstrip("\\"))) % 2 == 0]
    assert len(unescaped) == 3


def test_markdown_shows_markup_as_text() -> None:
    assert markdown_cell("<b>*a*</b>\n[x](y)|`z`") == r"&lt;b&gt;\*a\*&lt;/b&gt; \[x\](y)\|\`z\`"


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (5310.4, 4, "5,310"),
        (1234567.0, 4, "1,235,000"),
        (9.9996, 4, "10.00"),
        (0.81234, 3, "0.812"),
        (1.0, 3, "1.00"),
        (0.0, 3, "0"),
        (-12.345, 3, "-12.3"),
        (0.0000123, 3, "1.23e-05"),
    ],
)
def test_numbers_are_shown_with_their_significant_digits(value: float, digits: int, text: str) -> None:
    assert significant(value, digits) == text


@given(st.floats(min_value=1e-12, max_value=1e15), st.integers(min_value=1, max_value=9))
def test_what_is_shown_is_within_half_a_unit_of_the_last_digit(value: float, digits: int) -> None:
    read_back = float(significant(value, digits).replace(",", ""))
    assert abs(read_back - value) <= 0.5000001 * 10.0 ** (math.floor(math.log10(value)) - digits + 1)


def test_what_a_run_writes_is_what_is_read(tmp_path: Path) -> None:
    directory = finished_run(tmp_path, a_run(nodes=2, parallelism="fsdp_full"))
    plan = json.loads(directory.plan.read_text())
    (row,) = rows_of(Digest([only(tmp_path)]))
    values = {column.name: column.value(row) for column in COLUMNS}
    assert values["dp_shard"] == plan["layout"]["dp_shard"] == 2
    assert (values["nodes"], values["ranks"], values["accumulation"]) == (2, 2, 8)
    assert (values["scaling"], values["parallelism"], values["device"]) == ("strong", "fsdp_full", "cpu")

"""`slurmscale logs --attempt` prints the output of an earlier start, wherever its launcher left it."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.cli import main
from jobs.rundir import RunDir, SweepDir, append_record, now
from tests.support.fake_runs import a_run, prepared


def local(where: Path) -> RunDir:
    """A run that a local queue has started three times, in two submissions."""
    run = prepared(where, a_run("r", ranks_per_node=2))
    sweep = SweepDir(where)
    sweep.logs.mkdir()
    record = {"event": "submitted", "run": "r", "launcher": "local", "events_before": 1, "host": "h", "time": now()}
    for queue, ids in {"5": ("11", "12"), "6": ("13",)}.items():
        append_record(sweep.submissions, record | {"job_id": queue})
        for log_id in ids:
            append_record(sweep.submissions, {"event": "launched", "run": "r", "log_id": log_id, "time": now()})
            append_record(sweep.submissions, {"event": "launched", "run": "other", "log_id": f"9{log_id}"})
            for rank in (0, 1):
                sweep.output(log_id, rank).write_text(f"start {log_id} of rank {rank}\n")
    return run


def slurm(where: Path) -> RunDir:
    """A run of two jobs, of which the second was requeued: its starts share a file."""
    run = prepared(where, a_run("r", ranks_per_node=2))
    sweep = SweepDir(where)
    sweep.logs.mkdir()
    record = {"event": "submitted", "run": "r", "launcher": "slurm", "events_before": 1, "host": "h", "time": now()}
    for job_id, starts in {"11": (0,), "20_3": (0, 1)}.items():
        append_record(sweep.submissions, record | {"job_id": job_id})
        lines = [f"slurmscale: started, restart {number}, on n1\nstart {job_id}-{number}\n" for number in starts]
        sweep.output(job_id).write_text("".join(lines))
        sweep.output(job_id, 1).write_text("".join(f"rank 1, start {job_id}-{number}\n" for number in starts))
    return run


@pytest.mark.parametrize(
    ("arguments", "out", "hint"),
    [
        ([], "start 13 of rank 0\n", "attempt 3 of 3; --attempt 1 or 2 prints another one\n"),
        (["--attempt", "1"], "start 11 of rank 0\n", "attempt 1 of 3; --attempt 2 or 3 prints another one\n"),
        (["--attempt", "2", "--rank", "1"], "start 12 of rank 1\n", "attempt 2 of 3; --attempt 1 or 3 prints another"),
        (["--attempt", "3"], "start 13 of rank 0\n", "attempt 3 of 3"),
    ],
)
def test_each_start_of_a_local_run_can_be_printed(
    arguments: list[str], out: str, hint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["logs", str(local(tmp_path).path), *arguments]) == 0
    found = capsys.readouterr()
    assert found.out == out
    assert found.err.startswith(hint)


@pytest.mark.parametrize(
    ("arguments", "starts", "hint"),
    [
        ([], ["20_3-0", "20_3-1"], "attempts 2 to 3 of 3; --attempt 1 prints the earlier one\n"),
        (["--attempt", "1"], ["11-0"], "attempt 1 of 3"),
        (["--attempt", "2"], ["20_3-0"], "attempt 2 of 3"),
        (["--attempt", "3"], ["20_3-1"], "attempt 3 of 3"),
    ],
)
def test_starts_that_share_a_file_of_slurm_are_told_apart(
    arguments: list[str], starts: list[str], hint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["logs", str(slurm(tmp_path).path), *arguments]) == 0
    found = capsys.readouterr()
    assert [line.removeprefix("start ") for line in found.out.splitlines() if line.startswith("start ")] == starts
    assert found.out.count("slurmscale: started") == len(starts), "no line of another attempt"
    assert found.err.startswith(hint)


@pytest.mark.parametrize("number", ["0", "4", "-1", "99999999999"])
def test_a_number_out_of_range_is_answered_with_the_range(
    number: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = local(tmp_path)
    assert main(["logs", str(run.path), f"--attempt={number}"]) == 2
    assert f"r has no attempt {number}: set --attempt to 1 to 3." in capsys.readouterr().err


def test_what_is_not_apart_or_not_there_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = slurm(tmp_path / "s")
    assert main(["logs", str(run.path), "--attempt", "2", "--rank", "1"]) == 2
    assert "Rank 1 of job 20_3 printed all its attempts into one file" in capsys.readouterr().err
    assert main(["logs", str(run.path), "--attempt", "1", "--rank", "1"]) == 0
    assert capsys.readouterr().out == "rank 1, start 11-0\n"
    for file in SweepDir(tmp_path / "s").logs.iterdir():
        file.unlink()
    assert main(["logs", str(run.path), "--attempt", "1"]) == 2
    assert "r has not started yet, so it has no attempt 1." in capsys.readouterr().err
    assert main(["logs", str(run.path)]) == 2
    assert "rank 0 has not started" in capsys.readouterr().err


def test_the_output_of_a_rank_is_printed_although_that_of_the_first_one_is_gone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = slurm(tmp_path)
    SweepDir(tmp_path).output("20_3").unlink()
    assert main(["logs", str(run.path), "--rank", "1"]) == 0
    assert capsys.readouterr().out.startswith("rank 1, start 20_3-0\n")


def test_one_attempt_needs_no_hint_and_is_printed_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = local(tmp_path)
    for log_id in ("11", "12"):
        SweepDir(tmp_path).output(log_id).unlink()
    text = "a" * 3_000_000 + "\r\n\x1b[31mred\x1b[0m \x1b]0;title\x07\n"
    SweepDir(tmp_path).output("13").write_bytes(text.encode() + b"\xff no end of line")
    assert main(["logs", str(run.path), "--attempt", "1"]) == 0
    found = capsys.readouterr()
    assert found.err == ""
    assert found.out == "a" * 3_000_000 + "\n\x1b[31mred\x1b[0m \\x1b]0;title\\x07\n\ufffd no end of line"

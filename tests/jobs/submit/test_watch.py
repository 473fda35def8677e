"""`slurmscale watch`: its lines for known records, their width, its end, and runs that survive its interruption."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from rich.console import Console

from jobs.cli import main
from jobs.ranks import started_after_boot_s
from jobs.rundir import RunDir, SweepDir, append_record, now
from jobs.submit.states import RunState, State, states
from jobs.submit.watching.progress import latest_tokens_per_s, progress_of
from jobs.submit.watching.watch import view
from jobs.submit.watching.watch_keys import DOWN, Order, Screen, chart
from tests.support.fake_runs import a_run, ended, event, finished_run, prepared, started, step, with_job
from tests.support.paths import ROOT
from tests.support.real_run import SMALL
from tests.support.waiting import limit_s


def rendered(found: list[RunState], *, width: int = 160, height: int = 24, stages: Sequence[str] = ()) -> list[str]:
    out = Console(width=width, height=height, force_terminal=True, color_system=None)
    with out.capture() as capture:
        out.print(view(found, list(stages), out))
    return [line.rstrip() for line in capture.get().splitlines()]


def running(sweep: Path, name: str, *, steps: int = 6) -> RunDir:
    run = a_run(name)
    directory = prepared(sweep, run)
    directory.plan.write_text('{"steps": 20}')
    started(directory, run)
    for number in range(1, steps + 1):
        step(directory, number, step_time_s=5.0 if number <= 2 else 0.5, padded_tokens=2048)
    return directory


# --- numbers -------------------------------------------------------------------------------------------------


def test_pace_and_time_left_are_of_the_steady_steps_with_their_checkpoints(tmp_path: Path) -> None:
    run = running(tmp_path, "r")
    step(run, 7, step_time_s=0.5, checkpoint_time_s=1.0, padded_tokens=2048)
    seen = progress_of(run)
    assert (seen.step, seen.total, seen.attempt) == (7, 20, 1)
    assert seen.tokens_per_s == pytest.approx(1024 / 0.5), "without padding"
    assert latest_tokens_per_s(run) == [1024 / 0.5] * 5
    assert seen.left_s == pytest.approx(13 * (5 * 0.5 + 1.0) / 5)


def test_a_run_that_goes_on_has_the_pace_of_its_new_attempt_and_remembers_the_error(tmp_path: Path) -> None:
    run = running(tmp_path, "r")
    event(run, "failed", rank=1, node="node2", error="Killed\nand more", cause="killed", restart=0)
    event(run, "requeued", cause="killed", pause_s=0)
    started(run, a_run("r"), attempt=2, from_step=4, restart=1)
    step(run, 5, attempt=2, step_time_s=9.0)
    assert progress_of(run).tokens_per_s is None, "an attempt's first steps are not steady"
    for number in (6, 7, 8):
        step(run, number, attempt=2, step_time_s=0.25)
    seen = progress_of(run)
    assert seen.tokens_per_s == pytest.approx(1024 / 0.25)
    assert (seen.attempt, seen.last_error) == (2, "Killed")
    (row,) = [line for line in rendered([RunState(run, State.running)]) if line.startswith("r ")]
    assert "8/20" in row
    assert "4,096" in row
    assert "0:00:03" in row
    assert "earlier: Killed" in row


def test_torn_and_foreign_lines_do_not_stop_the_view(tmp_path: Path) -> None:
    run = running(tmp_path, "r")
    with run.metrics.open("a") as file:
        file.write('7\n{"step": 7, "tok')
    assert progress_of(run).step == 6
    run.metrics.unlink()
    assert progress_of(run).step is None


# --- the table -----------------------------------------------------------------------------------------------


def test_a_large_sweep_fits_the_terminal_and_shows_what_matters(tmp_path: Path) -> None:
    found = []
    for number in range(400):
        state = [State.finished, State.running, State.failed, State.queued][number % 4]
        run = prepared(tmp_path, a_run(f"run-{number:03d}-with-a-name-longer-than-its-column-of-a-narrow-terminal"))
        start = f"2026-01-02T03:04:05.{999 - number}" if state is State.queued else None
        found.append(RunState(run, state, "a reason " * 40, expected_start=start))
    for width, height in ((160, 24), (80, 10), (100, 60)):
        lines = rendered(found, width=width, height=height)
        assert len(lines) < height
        text = "\n".join(lines)
        assert all(f"  {word}  " in text for word in ("running", "failed", "queued"))
        assert "100 finished" in lines[-2]
        assert lines[-1].startswith("400 runs: 100 queued, 100 running, 100 finished, 100 failed")
    waits = [line for line in lines if " queued " in line]
    assert waits[0].startswith("run-399"), "the first that Slurm expects to start stands first"
    stages = ["prepare: finished", "evaluate: 400 queued (Dependency)"]
    with_stages = rendered(found, width=80, height=10, stages=stages)
    assert len(with_stages) < 10
    assert with_stages[-2:] == stages


def test_a_small_sweep_is_shown_whole_with_slurms_expected_start(tmp_path: Path) -> None:
    run = prepared(tmp_path, a_run("waits"))
    lines = rendered(
        [RunState(run, State.queued, "Resources", expected_start="2026-01-02T03:04:05")], width=200, height=50
    )
    assert "Resources; expected to start 2026-01-02 03:04:05" in "\n".join(lines)
    assert "not shown" not in "\n".join(lines)


# --- the command ---------------------------------------------------------------------------------------------


def watching(sweep: Path, **options: Any) -> subprocess.Popen[str]:
    # A shell that starts the suite in the background has it and its children ignore Ctrl-C.
    command = ["env", "--default-signal=INT", sys.executable, "-m", "jobs.cli", "watch", str(sweep)]
    return subprocess.Popen(command, cwd=ROOT, text=True, **options)


def submitted(run: RunDir, pid: int) -> None:
    import socket

    append_record(SweepDir(run.path.parent).submissions, {
        "event": "submitted", "run": run.name, "launcher": "local", "job_id": str(pid), "events_before": 0,
        "host": socket.gethostname(), "process_started": started_after_boot_s(pid), "time": now(),
    })  # fmt: skip
    append_record(SweepDir(run.path.parent).submissions,
                  {"event": "launched", "run": run.name, "log_id": "1", "time": now()})  # fmt: skip


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A local queue that waits for the names of its runs."""
    command = [sys.executable, "-m", "jobs.submit.local_queue", str(tmp_path)]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, start_new_session=True)
    yield process
    process.kill()
    process.communicate()


def test_without_a_terminal_every_change_is_a_line_and_the_exit_code_reports_the_end(
    tmp_path: Path, queue: subprocess.Popen[bytes]
) -> None:
    run = running(tmp_path, "r")
    submitted(run, queue.pid)
    seen = watching(tmp_path, stdout=subprocess.PIPE)
    assert seen.stdout is not None
    assert seen.stdout.readline().split(maxsplit=1)[1] == "r: running at step 6\n"
    assert seen.stdout.readline() == "1 run: 1 running\n"
    ended(run, step=20)
    output, _ = seen.communicate(timeout=limit_s(180))
    assert seen.returncode == 0
    assert [line.split(maxsplit=1)[1] for line in output.splitlines()] == ["r: finished at step 6", "run: 1 finished"]


def test_a_sweep_with_a_run_that_failed_ends_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    finished_run(tmp_path, with_job(a_run("fine"), steps=4))
    event(prepared(tmp_path, a_run("broken")), "failed", rank=0, node="n", error="ValueError: no")
    assert main(["watch", str(tmp_path)]) == 1
    assert "broken: failed rank 0 on n: ValueError: no" in capsys.readouterr().out


def test_a_sweep_that_nobody_submitted_ends_with_1_and_names_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepared(tmp_path / "s", a_run("r"))
    assert main(["watch", str(tmp_path / "s")]) == 1
    assert f"A prepared run is not submitted. `slurmscale resume {tmp_path}/s` submits it;" in capsys.readouterr().out


def test_on_a_terminal_the_table_is_drawn_and_ctrl_c_leaves_the_run_alone(
    tmp_path: Path, queue: subprocess.Popen[bytes]
) -> None:
    run = running(tmp_path, "r")
    submitted(run, queue.pid)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 20, 200, 0, 0))
    env = {key: value for key, value in os.environ.items() if key not in {"COLUMNS", "LINES"}} | {"TERM": "xterm"}
    seen = watching(tmp_path, stdout=theirs, stdin=theirs, env=env)
    os.close(theirs)
    drawn = b""
    while b"1 run: 1 running" not in drawn:
        drawn += os.read(ours, 65536)
    seen.send_signal(signal.SIGINT)
    with suppress(OSError):  # what a terminal's reader gets at its end
        while more := os.read(ours, 65536):
            drawn += more
    os.close(ours)
    assert seen.wait(limit_s(180)) == 130
    text = drawn.decode()
    assert "6/20" in text
    assert "2,048" in text
    assert "No longer watching; the runs continue." in text
    assert queue.poll() is None


class Terminal:
    """A watcher on a pseudo-terminal of 80 columns and 24 lines, whose keys are typed."""

    def __init__(self, sweep: Path) -> None:
        self.ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.before = termios.tcgetattr(theirs)
        env = {key: value for key, value in os.environ.items() if key not in {"COLUMNS", "LINES"}} | {"TERM": "xterm"}
        command = ["setsid", "--ctty", "--wait", sys.executable, "-m", "jobs.cli", "watch", str(sweep)]
        self.process = subprocess.Popen(command, cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs, env=env)
        self.theirs = theirs
        self.seen = ""

    def until(self, *words: str) -> str:
        """Return what was drawn since the last call, as soon as it has these words."""
        new, end = "", time.monotonic() + limit_s(60)
        while not all(word in new for word in words):
            assert time.monotonic() < end, f"{words} are not in {new[-3000:]}"
            assert select.select([self.ours], [], [], limit_s(60))[0], f"{words} are not in {new[-3000:]}"
            new += os.read(self.ours, 65536).decode(errors="replace")
        return new

    def press(self, key: str, *words: str) -> str:
        """Type a key, and return what is drawn until it has these words."""
        os.write(self.ours, key.encode())
        return self.until(*words)


@pytest.fixture
def terminal(tmp_path: Path, queue: subprocess.Popen[bytes]) -> Iterator[Terminal]:
    """A terminal that watches a running and a failed run."""
    run = running(tmp_path, "goes-on", steps=12)
    submitted(run, queue.pid)
    event(prepared(tmp_path, a_run("broken")), "failed", rank=0, node="n", error="ValueError: no such file")
    made = Terminal(tmp_path)
    yield made
    made.process.kill()
    made.process.wait()
    os.close(made.ours)
    os.close(made.theirs)


def test_keys_choose_a_run_show_its_log_and_curve_sort_and_leave(terminal: Terminal, tmp_path: Path) -> None:
    drawn = terminal.until("> goes-on", "leave: q")
    assert "\x1b[1;7;31mfailed" in drawn, "a failed run stands out by its word, in inverse and bold"
    terminal.press("\x1b[B", "> broken", "broken: rank 0 on n: ValueError: no such file")
    terminal.press("l", "outside Slurm: its output is in the shell that", "back to the runs: any key")
    terminal.press(" ", "leave: q")
    terminal.press("k", "> goes-on")
    curve = terminal.press("c", "loss (", "tokens_per_s (", "any key")
    assert "steps 1 to 12" in curve
    assert "*" in curve
    terminal.press("\x1b", "leave: q")
    terminal.press("s", "Sorted by name")
    terminal.press("q", "No longer watching; the runs continue.")
    assert terminal.process.wait(limit_s(60)) == 130
    assert termios.tcgetattr(terminal.theirs)[3] == terminal.before[3], "the terminal echoes again"


def test_a_run_is_cancelled_by_a_key_only_after_yes(
    terminal: Terminal, tmp_path: Path, queue: subprocess.Popen[bytes]
) -> None:
    terminal.until("> goes-on", "leave: q")
    terminal.press("x", "Cancel goes-on, which is running? yes: y")
    terminal.press("n", "Nothing was cancelled.")
    assert queue.poll() is None
    terminal.press("x", "yes: y")
    terminal.press("y", "2 runs: 1 failed, 1 cancelled")
    assert terminal.process.wait(limit_s(60)) == 1
    assert {each.run.name: each.state for each in states(SweepDir(tmp_path))}["goes-on"] is State.cancelled


def test_rows_by_step_scroll_to_the_chosen_run(tmp_path: Path) -> None:
    found = [RunState(running(tmp_path, f"r{number:02d}", steps=number), State.running) for number in range(1, 31)]
    screen = Screen(found=found, order=Order.step)
    screen.shown = screen.rows(5)
    assert [each.run.name for each in screen.shown] == ["r30", "r29", "r28", "r27", "r26"]
    for _ in range(8):
        screen.press(DOWN)
        screen.shown = screen.rows(5)
    assert screen.run is not None
    assert screen.run.run.name == "r22"
    assert len(screen.shown) == 5


def test_a_curve_has_the_means_of_its_columns_and_its_range() -> None:
    lines = chart([4.0, 4.0, 3.0, 3.0, 2.0, 2.0], width=3, height=3)
    assert lines == ["         4 |*", "           | *", "         2 |  *"]
    assert chart([1.0], width=50, height=2)[-1] == "         1 |*"


def test_a_watcher_of_a_run_that_is_cancelled_sees_no_other_end(
    tmp_path: Path, queue: subprocess.Popen[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    submitted(running(tmp_path, "r"), queue.pid)
    seen: list[State] = []

    def look_on() -> None:
        while not seen or seen[-1].is_open:
            seen.append(states(SweepDir(tmp_path))[0].state)

    watcher = Thread(target=look_on)
    watcher.start()
    assert main(["cancel", str(tmp_path)]) == 0
    watcher.join(limit_s(60))
    assert set(seen) <= {State.queued, State.running, State.cancelled}
    assert seen[-1] is State.cancelled
    assert "cancelled 1 run of" in capsys.readouterr().out


@pytest.mark.slurm
@pytest.mark.usefixtures("empty_queue")
def test_a_waiting_job_shows_slurms_reason_and_start_and_outlives_the_watcher(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    later = "cluster.sbatch={begin: '2038-01-02T03:04:05'}"
    assert main(["submit", *SMALL, "cluster=generic_slurm", f"runs_dir={tmp_path}", "sweep=s", "name=r", later,
                 f"data.cache_dir={tmp_path}/cache"]) == 0  # fmt: skip
    try:
        from jobs.submit.states import states

        (item,) = states(SweepDir(tmp_path / "s"))
        assert (item.state, item.detail, item.expected_start) == (State.queued, "BeginTime", "2038-01-02T03:04:05")
        seen = watching(tmp_path / "s", stdout=subprocess.PIPE)
        assert seen.stdout is not None
        assert "r: queued BeginTime" in seen.stdout.readline()
        seen.send_signal(signal.SIGINT)
        output, _ = seen.communicate(timeout=limit_s(180))
        assert seen.returncode == 130
        assert f"slurmscale cancel {tmp_path}/s" in output
        assert states(SweepDir(tmp_path / "s")) == [replace(item)]
    finally:
        assert main(["cancel", str(tmp_path / "s")]) == 0


@pytest.mark.long
@pytest.mark.slurm
@pytest.mark.slow
@pytest.mark.usefixtures("empty_queue")
def test_a_real_sweep_is_watched_to_its_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["submit", "-m", *SMALL, "cluster=generic_slurm", f"runs_dir={tmp_path}", "sweep=s", "name=a,b",
                 f"data.cache_dir={tmp_path}/cache"]) == 0  # fmt: skip
    assert main(["watch", str(tmp_path / "s")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "2 runs: 2 finished"
    for name in ("a", "b"):
        assert [line for line in lines if line.endswith(f" {name}: finished at step 6")]

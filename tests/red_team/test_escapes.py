"""Names, errors and output of others reach no terminal and no file as control characters or marks of direction."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table
from rich.text import Text

from jobs.cli import main
from jobs.console import console
from jobs.output import Guarded, guarded_streams
from jobs.rundir import append_record
from jobs.visible import HIDDEN, coloured, visible
from tests.support.cli import run_cli
from tests.support.fake_runs import a_run, event, finished_run, prepared, started

pytestmark = pytest.mark.red_team

# A title of the window, a cleared screen, C1's form of an escape, a reversed file name, an invisible letter, markup.
ATTACK = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp.exe\u2066\u200b\r[red]x[/red]:bomb:"
SHOWN = r"\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp.exe\u2066\u200b\r[red]x[/red]:bomb:"


def received(tmp_path: Path, name: str = "received") -> Path:
    """A stranger's sweep with the attack in names, events, plan, ledger and output."""
    sweep = tmp_path / name
    for nodes in (1, 2):
        finished_run(sweep, a_run(f"good-{nodes}", nodes=nodes, sweep=f"s{ATTACK}"), device_name=f"gpu {ATTACK}")
    run = a_run(f"bad{ATTACK}".replace("/", "_"), sweep=f"s{ATTACK}")
    directory = prepared(sweep, run, host=ATTACK, command=["slurmscale", ATTACK])
    started(directory, run, data=ATTACK)
    event(directory, "failed", error=f"RuntimeError: {ATTACK}", rank=0, node=ATTACK)
    directory.plan.write_text(json.dumps({"steps": ATTACK}))
    common = {"time": "2026-01-02T03:04:05.000+00:00", "launcher": "slurm", "host": "x", "events_before": 0}
    record = {"event": "submitted", "run": directory.name, "job_id": "7", "log_id": "7", **common}
    append_record(sweep / "submissions.jsonl", record)
    (sweep / "logs").mkdir()
    return sweep


def hidden_in(text: str) -> set[str]:
    return {found[0] for found in HIDDEN.finditer(text)}


@pytest.mark.parametrize("command", [["status"], ["status", "--all"], ["watch"], ["report"]])
def test_commands_on_a_received_sweep_print_controls_as_text(command: list[str], tmp_path: Path) -> None:
    sweep = received(tmp_path, f"from {ATTACK.replace('/', '_')}")
    done = run_cli(*command[:1], str(sweep), *command[1:])
    shown = done.stdout + done.stderr
    assert hidden_in(shown) == set(), shown
    assert "\\x1b]0;owned" in shown


def test_in_a_terminal_only_the_colours_of_slurmscale_itself_are_left(tmp_path: Path) -> None:
    done = run_cli("status", str(received(tmp_path)), "--all", FORCE_COLOR="1", COLUMNS="200", TERM="xterm")
    own = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)
    assert own != done.stdout
    assert hidden_in(own) == set()
    assert "\\x1b]0;owned" in own
    # The cell of the run's name is as wide as it is shown, so nothing of it is cut off.
    assert visible(f"bad{ATTACK}").replace("/", "_") in "".join(own.split())


def test_every_file_of_a_report_shows_controls_as_text(tmp_path: Path) -> None:
    sweep = received(tmp_path)
    assert main(["report", str(sweep), "--format", "latex,svg"]) == 0
    names = ["report.md", "runs.csv", "points.tex", "figures/captions.txt"]
    names += [f"figures/{path.name}" for path in (sweep / "figures").glob("*.svg")]
    assert len(names) > 4
    texts = {name: (sweep / name).read_bytes().decode() for name in names}
    # plotly's own script has two of them.
    page = (sweep / "report.html").read_text()
    texts["report.html"] = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    plots = json.loads(re.findall(r'<script type="application/json" id="plots">(.*?)</script>', page, re.DOTALL)[0])
    texts["plots"] = json.dumps(plots, ensure_ascii=False)
    for name, text in texts.items():
        assert hidden_in(text) == set(), name
        assert "\\u202e" not in text or "x1b" in text
    for name in ("report.md", "report.html", "runs.csv"):
        assert "x1b]0;owned" in texts[name].replace("\\]", "]"), name


def test_errors_name_what_they_refuse_without_its_controls(tmp_path: Path) -> None:
    for arguments in (["report", str(tmp_path / ATTACK)], ["status", str(tmp_path / ATTACK)], [f"pl{ATTACK}"],
                      ["plan", f"model={ATTACK}"], ["plan", "--x", ATTACK], ["explain", ATTACK]):  # fmt: skip
        done = run_cli(*arguments)
        assert done.returncode == 2
        assert hidden_in(done.stdout + done.stderr) == set(), arguments
        assert "owned" in done.stderr or "--x" in arguments


def test_the_output_of_libraries_in_c_is_shown_as_text_wherever_it_is_quoted(tmp_path: Path) -> None:
    """They write to the descriptors of a rank, not to Python's streams, so their bytes are in its log as they are."""
    sweep, raw = tmp_path / "received", ATTACK.encode() + b"\xff\xc2\x9b31m"
    prints = {
        "set-up": b"%s\nslurmscale: not started: module load %s failed\n",
        "killed": b"NCCL WARN %s\nsrun: error: node%s: task 0: Killed\n",
        "memory": b"torch.OutOfMemoryError: CUDA out of memory. %s %s\n",
    }
    for number, (name, printed) in enumerate(prints.items(), start=7):
        directory = prepared(sweep, a_run(name))
        record = {"event": "submitted", "run": name, "job_id": "999999999", "launcher": "local",
                  "events_before": 0, "host": socket.gethostname(), "time": "2026-01-02T03:04:05+00:00"}  # fmt: skip
        append_record(sweep / "submissions.jsonl", record, {"event": "launched", "run": name, "log_id": str(number)})
        (sweep / "logs").mkdir(exist_ok=True)
        command = [sys.executable, "-c", "import os, sys; os.write(1, sys.stdin.buffer.read())"]
        with (sweep / f"logs/{number}_0_log.out").open("wb") as log:
            subprocess.run(command, input=printed % (raw, raw), stdout=log, check=True)
        if name == "memory":
            started(directory, a_run(name))
    for command in (
        ["status", str(sweep)],
        ["watch", str(sweep)],
        ["logs", str(sweep / "memory")],
        ["report", str(sweep)],
    ):
        done = run_cli(*command)
        assert hidden_in(done.stdout + done.stderr) <= ({"\r"} if command[0] == "logs" else set()), command
    assert "\\x1b]0;owned" in run_cli("status", str(sweep)).stdout
    for name in ("report.md", "report.html", "runs.csv"):
        text = re.sub(r"<script>.*?</script>", "", (sweep / name).read_text(), flags=re.DOTALL)
        assert "CUDA out of memory" in text
        assert hidden_in(text) == set(), name


def test_logs_prints_colours_and_nothing_else_that_acts(tmp_path: Path) -> None:
    sweep = tmp_path / "received"
    run = a_run("run")
    directory = prepared(sweep, run)
    common = {"time": "2026-01-02T03:04:05.000+00:00", "launcher": "slurm", "host": "x", "events_before": 0}
    append_record(
        sweep / "submissions.jsonl", {"event": "submitted", "run": "run", "job_id": "7", "log_id": "7", **common}
    )
    (sweep / "logs").mkdir()
    (sweep / "logs/7_0_log.out").write_text(f"\x1b[32mgreen\x1b[0m {ATTACK}\n10 %\r20 %\n", newline="")
    done = run_cli("logs", str(directory.path))
    assert done.returncode == 0, done.stderr
    assert "\x1b[32mgreen\x1b[0m \\x1b]0;owned\\x07\\x1b[2J\\x9b31m\\u202egnp.exe" in done.stdout


@given(st.text(st.characters() | st.characters(categories=["Cs", "Cc", "Cf"]), max_size=40))
def test_what_is_visible_has_nothing_hidden_and_stays_as_it_is(text: str) -> None:
    shown = visible(text)
    assert hidden_in(shown) == set()
    assert visible(shown) == shown
    shown.encode()
    rest = re.sub(r"\x1b\[[0-9;:]*m|\r", "", coloured(text))
    assert hidden_in(rest) == set()


def test_text_without_controls_is_not_changed() -> None:
    for text in ("tiny-ddp-n1x1\t1,024\n", "größer ± 5 µs", "日本語 עברית العربية", "👩 💻", "1\u00a0%"):
        assert visible(text) == text


def test_a_table_shows_markup_and_emoji_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("name", "detail")
    table.add_row("[link=https://x]here[/link]", Text(ATTACK))
    out = console()
    out.print(table)
    out.print(ATTACK, soft_wrap=True)
    shown = capsys.readouterr().out
    assert "[link=https://x]here[/link]" in shown
    assert hidden_in(shown) == set()
    assert SHOWN in shown


def test_a_line_that_is_printed_in_parts_is_cleaned_as_a_whole(capsys: pytest.CaptureFixture[str]) -> None:
    with guarded_streams(visible):
        print("a\x1b", end="")
        print("[31m", "b", sep="")
        print("no end of line\x1b", end="", flush=True)
    assert capsys.readouterr().out == "a\\x1b[31mb\nno end of line\\x1b"


def test_a_guarded_stream_is_otherwise_the_stream_itself(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w") as file:
        stream = Guarded(file, visible)
        assert stream.fileno() == file.fileno()
        assert stream.encoding == file.encoding
        stream.writelines(["one\n", "two\x1b\n"])
        stream.flush()
    assert (tmp_path / "out").read_text() == "one\ntwo\\x1b\n"

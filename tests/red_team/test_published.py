"""Reports are shared: no file of one has a secret, a live link or a private file from a log or a received folder."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from analysis import frames
from analysis.formatting import csv_cell, markdown_cell
from jobs.cli import main
from tests.support.fake_runs import a_run, finished_run
from tests.support.megatron_logs import megatron

pytestmark = pytest.mark.red_team

TOKEN = "hf_" + "pUblished" * 4
KEY = "0123456789abcdef" * 2
PASSWORD = "hunter2-published"
OF_THE_ENVIRONMENT = "correct horse battery"
FAILED = f"""Traceback (most recent call last):
  File "x.py", line 1, in <module>
RuntimeError: 401 for https://bob:{PASSWORD}@hub/x?token={TOKEN} WANDB_API_KEY={KEY} as {OF_THE_ENVIRONMENT}
"""
SECRETS = (TOKEN, KEY, PASSWORD, OF_THE_ENVIRONMENT)


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_no_file_of_a_report_contains_a_secret_of_a_log_or_of_a_received_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SITE_PASSWORD", OF_THE_ENVIRONMENT)
    given, out = tmp_path / "given", tmp_path / "out"
    for nodes in (1, 2):
        finished_run(given / "sweep", a_run(f"n{nodes}", nodes=nodes), device_name=f"gpu {TOKEN}")
    provenance = given / "sweep/n1/provenance.json"
    facts = json.loads(provenance.read_text())
    provenance.write_text(json.dumps(facts | {"host": f"login-{TOKEN}", "command": ["x", f"--api-key={KEY}"]}))
    (given / "failed.log").write_text(FAILED)
    (given / f"named-{TOKEN}.log").write_text(FAILED)
    assert main(["report", str(given), "-o", str(out), "--format", "latex,svg,parquet"]) == 0
    written = files_of(out)
    assert "401 for" in written["report.html"].decode()
    assert "401 for" in written["report.md"].decode()
    for name, data in written.items():
        for secret in SECRETS:
            assert secret.encode() not in data, name
    tables = frames(given)
    for frame in (tables.runs, tables.points, tables.steps):
        shown = frame.to_csv()
        assert not any(secret in shown for secret in SECRETS)


@pytest.mark.parametrize(
    "text",
    ["http://evil/x", "see https://evil.example", "ftp://h", "www.evil.example", "WWW.evil.example",
     "@user", "a@b.example", "ping @org/team", "$x$", "$$x$$", "#1", "org/repo#12", "mailto:me",
     "[a](http://evil)", "<http://evil>", "![x](y)",
     "<script>x</script>", "`@user`", "xmpp:me@h", "HTTP://EVIL"],
)  # fmt: skip
def test_nothing_in_a_cell_of_markdown_is_a_link_a_mention_or_a_formula(text: str) -> None:
    shown = markdown_cell(text)
    for live in (
        r"\w://",
        r"(?i)www\.",
        r"@\w",
        r"\$\w",
        r"#\d",
        r"(?i)(mailto|xmpp):",
        r"(?<!\\)[\[`]",
        r"<(?!/?span>)",
    ):
        assert not re.search(live, shown), shown
    assert re.sub(r"</?span>|\\", "", shown).replace("&lt;", "<").replace("&gt;", ">") == text


@pytest.mark.parametrize(
    "sign", [*"=+-@\t\r", *"\uff1d\uff0b\uff0d\uff20\ufe66\ufe62\ufe63\ufe6b\u2212", " =", " \uff1d"]
)
def test_no_cell_of_a_spreadsheet_is_a_formula(sign: str) -> None:
    assert str(csv_cell(f"{sign}1+cmd")).startswith("'")


def test_frames_have_no_escape_sequences(tmp_path: Path) -> None:
    finished_run(tmp_path / "s", a_run("n1"), device_name="gpu \x1b[2J\u200b")
    shown = frames(tmp_path / "s").runs.to_csv()
    assert "\x1b" not in shown
    assert "\\x1b[2J" in shown


NOTES = "RuntimeError: passphrase is horse-battery\n"


def linked(path: Path, target: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


@pytest.mark.parametrize("name", ["a.log", "deep/er/a.log", "facts.yaml", "slurm-7.out", "report.csv"])
def test_a_link_out_of_a_received_folder_is_listed_and_not_read(name: str, tmp_path: Path) -> None:
    private, folder, out = tmp_path / "private/notes.txt", tmp_path / "folder", tmp_path / "out"
    private.parent.mkdir()
    private.write_text(f"Traceback (most recent call last):\n  File 'x'\n{NOTES}")
    finished_run(folder / "s", a_run("n1"))
    linked(folder / name, private)
    assert main(["report", str(folder), "-o", str(out)]) == 0
    for file, data in files_of(out).items():
        assert b"horse-battery" not in data, file
    if name != "facts.yaml":
        assert "a link out of the folder" in (out / "report.md").read_text()
        assert main(["report", str(folder), "-o", str(out), "--follow"]) == 0
        assert "horse-battery" in (out / "report.md").read_text() or name == "report.csv"


@pytest.mark.parametrize(
    "name", ["n1/status.jsonl", "n1/metrics.jsonl", "n1/config.yaml", "n1/plan.json", "logs/7_0_log.out"]
)
def test_a_file_of_a_received_run_that_is_a_link_out_of_its_sweep_is_not_read(name: str, tmp_path: Path) -> None:
    folder, out = tmp_path / "s", tmp_path / "out"
    run = finished_run(folder, a_run("n1"))
    moved = tmp_path / "elsewhere"
    file = folder / name
    if file.exists():
        file.rename(moved)
    else:
        moved.write_text(NOTES)
    linked(file, moved)
    assert main(["report", str(run.path), "-o", str(out)]) == 0
    shown = (out / "report.md").read_text()
    assert "horse-battery" not in shown
    assert ("a link out of the folder" in shown) == name.startswith("n1/")


def test_a_link_within_the_folder_is_read(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s/.kept").write_text(f"Traceback (most recent call last):\n  File 'x'\n{NOTES}")
    (tmp_path / "s/a.log").symlink_to(".kept")
    assert main(["report", str(tmp_path / "s"), "-o", str(tmp_path / "out")]) == 0
    assert "horse-battery" in (tmp_path / "out/report.md").read_text()


@pytest.mark.parametrize("facts", ["ranks: many\n", "rank: 8\n", "- 8\n", "ranks: [\n", "", "x" * 9, "ranks: -1\n"])
def test_a_wrong_facts_file_costs_only_the_runs_beside_it(facts: str, tmp_path: Path) -> None:
    for name, time_ms in (("good", 1000.0), ("wrong", 1200.0)):
        (tmp_path / "given" / name).mkdir(parents=True)
        steps = megatron(((step, time_ms + step) for step in range(1, 9)), ranks=8)
        (tmp_path / "given" / name / "train.log").write_text(steps)
    (tmp_path / "given/wrong/facts.yaml").write_text(facts)
    assert main(["report", str(tmp_path / "given"), "-o", str(tmp_path / "out")]) == 0
    shown = (tmp_path / "out/report.md").read_text()
    assert "facts.yaml" in shown.partition("Runs not used")[2]

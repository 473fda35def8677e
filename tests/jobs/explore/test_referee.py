"""Attempts that run until a verdict: their pairs, their ends, and what the leaderboard shows of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobs.cli import main
from jobs.rundir import SweepDir, provenance_of, read_records

# The noise of a run follows from its name, so that every verdict here is the same on every machine.
SOLVER = """\
import os, random, sys
noise = random.Random([part for part in os.getcwd().split("/") if "-r" in part][-1]).gauss(0, 0.004)
print("time", {8: 6.0, 16: 4.0, 17: 4.0, 32: 2.0, 64: 3.0}[int(sys.argv[1])] * (1 + noise), "s")
print("residual", 0.5 if sys.argv[1] != "64" else 30.0)
"""
PROGRAM: dict[str, Any] = {
    "name": "solver",
    "steps": {"solve": {"command": "{python} solver.py {params.nb}"}},
    "params": {"nb": "16"},
    "files": {"solver.py": SOLVER},
    "metrics": {
        "solve_s": {"pattern": r"time (\S+)", "unit": "s", "better": "low", "definition": "Time of the solution."},
        "residual": {"pattern": r"residual (\S+)", "unit": "1", "definition": "Scaled residual."},
    },
    "merit": "solve_s",
    "gates": {"residual": {"metric": "residual", "at_most": 16.0}},
}
CAMPAIGN = Path("runs/solved")


@pytest.fixture
def campaign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A campaign of a program with known speeds, whose baseline has run once."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLURMSCALE_SITE", str(tmp_path / "site"))
    (tmp_path / "site/program").mkdir(parents=True)
    (tmp_path / "site/program/solver.yaml").write_text(yaml.safe_dump(PROGRAM, sort_keys=False))
    baseline = ("job=program", "program=solver", "ranks_per_node=1", "sweep=solved", "launcher=local")
    assert main(["attempt", "baseline", *baseline, "--repeats", "1", "--wait"]) == 0
    return CAMPAIGN


def judged(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    """Return the exit code and the reply of an attempt that runs until a verdict."""
    capsys.readouterr()
    code = main(["attempt", *words, "--until", "verdict", "--json"])
    reply = json.loads(capsys.readouterr().out)
    assert reply["exit_code"] == code
    return code, reply


def begun(sweep: Path) -> list[str]:
    return [each["run"] for each in read_records(SweepDir(sweep).submissions) if each["event"] == "launched"]


@pytest.mark.long
def test_each_verdict_has_its_exit_code_and_no_later_command_changes_it(
    campaign: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, reply = judged(capsys, "fast", "program.params.nb=32", "--expect", "solve_s <= 0.6 x baseline")
    fast = reply["result"]["verdict"]
    assert (fast["expected"], fast["expected_state"]) == ("solve_s <= 0.6 x baseline", "kept")
    assert (code, fast["verdict"], fast["order"], fast["pairs"]) == (0, "better", 1, 3)
    assert fast["ratio_low"] < 2 < fast["ratio_high"]
    floor = [f"noise-floor{side}-r{number}" for number, side in
             [(1, "-baseline"), (1, ""), (2, ""), (2, "-baseline"), (3, "-baseline"), (3, "")]]  # fmt: skip
    assert begun(campaign)[1:7] == floor, "the baseline runs against itself first, in turns"
    assert fast["noise"]["pairs"] == 3

    before = begun(campaign)
    assert judged(capsys, "fast", "program.params.nb=32")[1]["result"]["verdict"] == fast
    assert begun(campaign) == before, "a verdict is not asked for again"

    code, reply = judged(capsys, "equal", "program.params.nb=17")
    equal = reply["result"]["verdict"]
    assert (code, equal["verdict"], equal["order"]) == (4, "no_difference", 2)
    assert equal["pairs"] > 3, "pairs were added one by one"
    assert 1 / 1.02 < equal["ratio_low"] < equal["ratio_high"] < 1.02
    code, reply = judged(capsys, "slow", "program.params.nb=8")
    assert (code, reply["result"]["verdict"]["verdict"]) == (3, "worse")
    code, reply = judged(capsys, "wrong", "program.params.nb=64")
    assert (code, reply["result"]["verdict"]["verdict"]) == (6, "not_comparable")
    assert "misses the gate residual" in reply["result"]["verdict"]["because"]

    (board,) = reply["result"]["leaderboard"]["campaigns"]
    shown = {each["attempt"]: (each["verdict"], each["ratio_low"], each["ratio_high"]) for each in board["attempts"]}
    assert shown["fast"] == ("faster", fast["ratio_low"], fast["ratio_high"]), "three more attempts change nothing"
    assert shown["equal"] == ("no_difference", equal["ratio_low"], equal["ratio_high"])
    assert shown["noise-floor"][0] == "tie"
    terms = provenance_of(SweepDir(campaign).run("equal-r1"))["attempt"]["until"]
    assert terms == {"order": 2, "minimum_effect": 0.02}

    assert main(["attempt", "equal", "program.params.nb=17", "campaign.minimum_effect=0.1", "--until", "verdict"]) == 2
    assert "Set campaign.minimum_effect=0.02, or use another name." in capsys.readouterr().err
    assert main(["remove", "--yes", str(campaign / "equal-r1")]) == 0
    code, reply = judged(capsys, "equal", "program.params.nb=17")
    assert code == 6
    assert "equal-r1 of its pairs was removed" in reply["result"]["verdict"]["because"]


@pytest.mark.long
def test_spent_pairs_and_a_spent_budget_leave_an_attempt_undecided_and_more_may_follow(
    campaign: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("equal", "program.params.nb=17")
    code, reply = judged(capsys, *words, "campaign.maximum_pairs=3")
    found = reply["result"]["verdict"]
    assert (code, found["verdict"], found["pairs"]) == (5, "undecided", 3)
    assert found["because"] == "campaign.maximum_pairs=3 are run"
    code, reply = judged(capsys, *words, "budget.node_hours=1e-6")
    assert code == 5
    assert "budget.node_hours=1e-06 is not enough" in reply["result"]["verdict"]["because"]
    assert main(["attempt", *words, "--until", "verdict"]) == 4
    assert "Verdict on equal: no difference within 2 %." in capsys.readouterr().out

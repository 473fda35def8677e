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
time_s = {8: 6.0, 16: 4.0, 17: 4.0, 32: 2.0, 64: 3.0}.get(int(sys.argv[1]), 3.0) * (1 + noise)
# A short run flatters every block but the baseline's, by 10 % and a little more for larger ones.
if int(sys.argv[2]) < 100:
    time_s *= 0.1 if sys.argv[1] == "16" else 0.09 - int(sys.argv[1]) / 100_000
print("time", time_s, "s")
print("residual", 0.5 if sys.argv[1] != "64" else 30.0)
"""
PROGRAM: dict[str, Any] = {
    "name": "solver",
    "steps": {"solve": {"command": "{python} solver.py {params.nb} {params.iterations}"}},
    "params": {"nb": "16", "iterations": "100"},
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


@pytest.mark.long
def test_a_proxy_decides_with_the_bias_of_configurations_that_ran_at_both_lengths(
    campaign: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = ("--proxy", "program.params.iterations=10")
    code, reply = judged(capsys, "early", "program.params.nb=17", *short, "--expect", "speed >= 1.05 x baseline")
    early = reply["result"]["verdict"]
    assert (code, early["verdict"], early["pairs"], early["expected_state"]) == (5, "undecided", 3, "not_decided")
    assert early["because"].startswith("better by proxy program.params.iterations=10 alone, whose bias is unknown")
    assert (early["proxy"], early["proxy_configurations"], early["bias"]) == ("program.params.iterations=10", 0, None)
    assert begun(campaign)[1:3] == ["early-baseline-r1", "early-r1"], "a proxy has no noise floor"

    for block in (20, 24, 28):
        for name, more in ((f"long{block}", ()), (f"short{block}", short)):
            assert main(["attempt", name, f"program.params.nb={block}", *more, "--wait"]) == 0
    code, reply = judged(capsys, "early", "program.params.nb=17", *short)
    assert (code, reply["result"]["verdict"]["bias"]) == (5, None), "the bias is that which was known before"
    code, reply = judged(capsys, "equal", "program.params.nb=17", *short, "campaign.maximum_pairs=4")
    equal = reply["result"]["verdict"]
    assert code in {4, 5}
    assert equal["proxy_configurations"] == 3
    assert equal["bias"] == pytest.approx(1.11, abs=0.01)
    assert equal["ratio_low"] < 1 < equal["ratio_high"]
    assert main(["attempt", "fast", "program.params.nb=32", *short, "--until", "verdict"]) == 0
    out = capsys.readouterr().out
    assert "Verdict on fast: better than the baseline." in out
    assert "By proxy program.params.iterations=10: the short ratio was 1.1" in out
    assert main(["package", str(campaign), "fast"]) == 2
    assert "its runs are short (--proxy program.params.iterations=10)" in capsys.readouterr().err
    assert main(["attempt", "fast", "program.params.nb=32", "--until", "verdict"]) == 2
    assert "began with --proxy program.params.iterations=10" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("baseline --proxy program.params.iterations=10", "belongs to an attempt"),
        ("fast program.params.nb=32 --proxy program.params.nb=8", "set by the attempt, and by --proxy"),
        ("fast --proxy program.params.iterations=100", "changes nothing"),
        ("fast --proxy ranks_per_node=2", "an attempt keeps ranks"),
        ("fast --proxy launcher=dry", "does not shorten runs"),
    ],
)
def test_a_proxy_that_no_attempt_can_have_is_refused(
    words: str, text: str, campaign: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["attempt", *words.split()]) == 2
    assert text in capsys.readouterr().err
    assert len(begun(campaign)) == 1

"""Programs in campaigns and tunings: compared by their merit, with equal metrics, gates and inputs."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from analysis.compare.campaign import Verdict, leaderboards
from analysis.compare.contest_rules import kept_inputs
from analysis.load.discover import read_runs
from analysis.load.run_directory import read_run
from jobs.cli import main
from jobs.metrics import Better
from jobs.rundir import append_event
from tests.support.real_run import make_run
from tests.support.training import small_disk

# Its times do not depend on the machine: what it reports follows from its parameters.
SOLVER = """\
import sys
block, repeat = int(sys.argv[1]), int(sys.argv[2])
print("time", {16: 4.0, 32: 2.0, 64: 3.0}[block] + repeat / 1000, "s")
print("residual", 0.5 if block < 64 else 30.0)
"""
PROGRAM: dict[str, Any] = {
    "name": "solver",
    "steps": {"mesh": {"command": "true"}, "solve": {"command": "{python} solver.py {params.nb} {repeat}"}},
    "params": {"nb": "16"},
    "files": {"solver.py": SOLVER},
    "metrics": {
        "solve_s": {"pattern": r"time (\S+)", "unit": "s", "better": "low", "definition": "Time of the solution."},
        "residual": {"pattern": r"residual (\S+)", "unit": "1", "definition": "Scaled residual."},
    },
    "merit": "solve_s",
    "gates": {"residual": {"metric": "residual", "at_most": 16.0}},
    "inputs": {"mesh": {"path": "mesh.dat"}},
}
CHOSEN = ("job=program", "program=solver", "ranks_per_node=1", "sweep=tuned")


@pytest.fixture(autouse=True)
def _workplace(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty directory, with the program file of a site."""
    monkeypatch.chdir(tmp_path)
    (site / "solver.yaml").write_text(yaml.safe_dump(PROGRAM, sort_keys=False))
    (tmp_path / "mesh.dat").write_text("65 million cells")


@pytest.mark.long
def test_attempts_are_judged_by_the_merit_their_gates_and_their_inputs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    attempts = {"baseline": CHOSEN, "a32": ["program.params.nb=32"], "nb64": ["program.params.nb=64"]}
    (tmp_path / "attempts.yaml").write_text(yaml.safe_dump({name: list(keys) for name, keys in attempts.items()}))
    assert main(["campaign", "attempts.yaml", "--wait"]) == 0
    sweep = Path("runs/tuned")
    (tmp_path / "mesh.dat").write_text("65 cells")
    assert (
        main(["attempt", "coarse", "program.params.nb=32", "--campaign", str(sweep), "--repeats", "1", "--wait"]) == 0
    )
    (board,) = leaderboards(read_runs([sweep]))
    assert (board.rules.metric.name, board.rules.metric.better) == ("solve_s", Better.low)
    entries = {entry.trial.name: entry for entry in board.entries}
    assert entries["a32"].verdict is Verdict.faster
    assert entries["a32"].ratio is not None
    assert entries["a32"].ratio.middle == pytest.approx(2, rel=0.01)
    assert entries["nb64"].reasons == ["it misses the gate residual: residual is 30, and at most 16 is required"]
    assert "contents of its inputs" in entries["coarse"].reasons[0], "a smaller mesh is another task"
    capsys.readouterr()
    assert main(["leaderboard", str(sweep)]) == 0
    page = capsys.readouterr().out
    assert "solve_s: time of the solution." in page
    assert "Ratio: the geometric mean of solve_s of the baseline / solve_s of the attempt" in page
    assert "Loss" not in page
    assert "a32: program.params.nb 16 → 32\n  nb64: program.params.nb 32 → 64" in page
    assert "Step mesh time  Step solve time" in " ".join(page.split("Ledger")[1].splitlines()[1:2])
    check_package(sweep, capsys)
    assert main(["attempt", "easier", "program.gates.residual.at_most=50", "--campaign", str(sweep)]) == 2
    assert (
        "program.gates.residual.at_most=50.0, the baseline has 16.0: an attempt keeps ranks, inputs, metrics and "
        "gates. Leave program.gates.residual.at_most out." in capsys.readouterr().err
    )


def check_package(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Package an attempt, repeat it as somebody else, and find a package that was changed or claims too much."""
    assert main(["package", str(sweep), "nb64"]) == 2
    assert "nb64 cannot be claimed: it misses the gate residual" in capsys.readouterr().err
    with small_disk(Path("disk").absolute(), 30_000):
        assert main(["package", str(sweep), "a32", "--output", "disk/full"]) == 2
        assert "disk/full cannot be written: No space left on device. Free some space" in capsys.readouterr().err
        assert list(Path("disk").iterdir()) == []
    assert main(["package", str(sweep), "a32"]) == 0
    package = Path("package-tuned-a32")
    assert yaml.safe_load((package / "campaign.yaml").read_text()) == {
        "baseline": list(CHOSEN), "a32": ["program.params.nb=32"]
    }  # fmt: skip
    page = (package / "README.md").read_text()
    assert "* `program.params.nb 16 → 32`" in page
    assert "* Every run kept the gates residual; inputs, metrics and gates are those of the baseline." in page
    assert "## Speed-up over the baseline\n\n1.999 (solve_s of the baseline / solve_s of the attempt, 95 %" in page
    assert (package / "runs/a32-r1/program/solve-00000.log").read_text().startswith("time 2.001 s")
    assert main(["rerun", str(package)]) == 2
    assert "a32: program.params.nb=32\nRead them, then add --trust." in capsys.readouterr().err
    # The campaign's own baseline was given with the path of the mesh as the site's file has it.
    Path("mesh.dat").write_text("65 million cells")
    assert main(["rerun", str(package), "--trust"]) == 0
    assert "Reproduced: claimed 1.999" in capsys.readouterr().out
    assert main(["package", str(sweep), "a32"]) == 2
    assert "package-tuned-a32 exists" in capsys.readouterr().err
    (package / "claim.json").write_text((package / "claim.json").read_text().replace('"ratio": 1', '"ratio": 3'))
    assert main(["rerun", str(package), "--trust"]) == 2
    assert "package-tuned-a32 has changed since it was made: claim.json." in capsys.readouterr().err


def test_a_tuning_finds_the_best_parameter_that_keeps_the_gates(capsys: pytest.CaptureFixture[str]) -> None:
    tune = ["tune", *CHOSEN, "program.params.nb=16,32,64"]
    assert main([*tune, "tune=merit", "tune.pairs=0"]) == 0
    printed = capsys.readouterr().out
    assert "At most 3 trials; objective merit." in printed
    assert "best: program.params.nb='32' with 2.001 s, the baseline 4.001 s" in printed
    assert "1 do not count" in printed
    assert "nb: '32'" in Path("runs/tuned/experiment/best.yaml").read_text()
    capsys.readouterr()
    assert main(["tune", "tune=merit", "job=program", "program=hpcc,hpl", "ranks_per_node=1"]) == 2
    assert "program: tuning compares configurations of one task" in capsys.readouterr().err
    for wrong, remedy in (
        (["tune.objective=throughput"], "runs of a program are compared by its merit. Set tune=merit."),
        (["tune=merit", "tune.steps=[2,4]"], "Set tune.steps=[1], which is one rung of whole runs."),
    ):
        capsys.readouterr()
        assert main([*tune, *wrong]) == 2
        assert remedy in capsys.readouterr().err


RULES = """\
# @package _global_
# A contest of the solver.
defaults:
  - override /job: program
  - override /program: solver
contest:
  name: solver_cup
  source: tests
  program: solver
  wall_time_min: 10
  floor: true
  node_power_w: 900
  tiers: {basic: [program.params.nb], bonus: [program.env]}
sweep: cup
ranks_per_node: 1
wall_time_min: ${contest.wall_time_min}
"""


@pytest.mark.long
def test_a_contest_of_a_program_is_a_file_of_rules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "site/experiment").mkdir()
    (tmp_path / "site/experiment/solver_cup.yaml").write_text(RULES)
    assert main(["attempt", "baseline", "+experiment=solver_cup", "program.params.nb=32", "--wait"]) == 0
    cup = ["--campaign", "runs/cup", "--wait"]
    assert main(["attempt", "slow", "program.params.nb=16", *cup]) == 0
    capsys.readouterr()
    assert main(["attempt", "other", "program.steps.solve.command=true", *cup]) == 2
    assert "program.steps.solve.command is prohibited: no tier of the contest allows it" in capsys.readouterr().err
    assert main(["leaderboard", "runs/cup"]) == 0
    assert "power readings of 0 nodes" in " ".join(capsys.readouterr().out.split())
    for run in Path("runs/cup").iterdir():
        if run.name.startswith(("slow", "baseline")):
            times = [json.loads(line)["time"] for line in (run / "status.jsonl").read_text().splitlines()]
            begin, end = (datetime.fromisoformat(times[place]).timestamp() for place in (0, -1))
            rows = (f"{second},850" for second in range(int(begin) - 1, int(end) + 2))
            (run / "power-n0.csv").write_text("time,power_w\n" + "\n".join(rows))
    assert main(["leaderboard", "runs/cup"]) == 0
    page = " ".join(capsys.readouterr().out.split())
    assert "Attempt Tier Rank Solve s (s) Ratio" in page
    assert "slow basic 2" in page
    assert "slower *, counts as the baseline" in page


def test_an_input_may_differ_only_if_a_tier_allows_the_parameter_that_names_it(tmp_path: Path, site: Path) -> None:
    (tmp_path / "site/experiment").mkdir()
    (tmp_path / "site/experiment/solver_cup.yaml").write_text(RULES)
    inputs = {"mesh": {"path": "mesh.dat"}, "script": {"path": "{params.nb}.py"}}
    (site / "solver.yaml").write_text(yaml.safe_dump(PROGRAM | {"inputs": inputs}, sort_keys=False))
    run = make_run(tmp_path, "experiment=solver_cup", small=False)
    append_event(run, "inputs", sha256={"mesh": "a", "script": "b"})
    assert kept_inputs(read_run(run.path)) == {"mesh": "a"}

"""Every option that Slurm reads from us has the form --name or --name=value.

Slurm 25.11 made the value of --requeue optional, and getopt takes an optional value from the same word only: of
`--name value` it would read the value as the program. Other options may follow.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.cli import main
from jobs.doctor.node_job import script_of
from jobs.plan.compose import compose
from jobs.rundir import RunDir, SweepDir
from jobs.schema import Run
from jobs.submit.allocations.allocation import SlurmAllocation, Turn
from tests.jobs.submit.releases.test_releases import answers
from tests.support.paths import ROOT

# Options without a value, as we use them.
FLAGS = {"all", "details", "exclusive", "me", "no-kill", "no-requeue", "oneliner", "overlap", "parsable", "quiet",
         "requeue", "test-only", "unbuffered", "version"}  # fmt: skip
COMMANDS = {"salloc", "sbatch", "scancel", "scontrol", "squeue", "srun"}
RUN = ("cluster=generic_slurm", "cluster.gpus=true", "cluster.account=proj", "cluster.qos=high",
       "cluster.constraint=fast", "cluster.exclusive=true", "cluster.memory_gb_per_node=8", "cluster.cpus_per_rank=2",
       "cluster.sbatch={reservation: maint}", "nodes=2", "data=random", "sweep='a b'")  # fmt: skip


def options(script: str) -> Iterator[str]:
    """Yield what a batch script has as options of sbatch and srun: all words before the program."""
    for line in script.splitlines():
        if line.startswith("#SBATCH "):
            yield line.removeprefix("#SBATCH ")
        elif re.match(r"(exec )?srun ", line):
            for word in shlex.split(line)[1 + line.startswith("exec") :]:
                if "python" in word or word == "sh":  # a container starts a shell
                    break
                yield word


def is_written_well(option: str) -> bool:
    """Return True for --name=value, and for the name of a flag."""
    name, equals, _ = option.removeprefix("--").partition("=")
    return option.startswith("--") and (bool(equals) or name in FLAGS)


def check(script: str, at_least: int) -> None:
    found = list(options(script))
    assert [option for option in found if not is_written_well(option)] == []
    assert len(found) >= at_least


@pytest.mark.parametrize(
    ("overrides", "at_least"),
    [
        (["stages=all", "data.held_out_samples=4", "job.export=true"], 60),
        (["launcher.spare_nodes=1"], 15),
        (["cluster.container=/image.sqsh", "cluster.container_runtime=pyxis"], 20),
        (["cluster.launcher=pilot", "launcher.pilot_nodes=2", "launcher.pilot_wall_time_min=30"], 15),
    ],
)
def test_options_of_batch_scripts(
    overrides: list[str], at_least: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["submit", "-m", *RUN, "launcher=dry", f"runs_dir={tmp_path}", "job.steps=6,8", *overrides]) == 0
    check(capsys.readouterr().out, at_least)


def composed(where: Path) -> Run:
    return compose([*RUN, f"runs_dir={where}", "name=r"], multirun=False)[0].run


def test_options_of_the_doctors_job_of_steps_and_of_train_sbatch(tmp_path: Path) -> None:
    run, sweep = composed(tmp_path), SweepDir(tmp_path / "a b")
    check(script_of(run, sweep, tmp_path / "code", "node[01-02]"), 20)
    turn = Turn(sweep, run, RunDir(sweep.path / "r"), tmp_path / "code", ["node01", "node02"], "7_r", 0)
    check(SlurmAllocation("7", ["node01", "node02"]).command(turn), 12)
    check((ROOT / "sbatch/train.sbatch").read_text(), 12)


def test_segments_divide_the_nodes_of_runs_and_not_of_other_jobs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    staged = ["stages=all", "data.held_out_samples=4", "job.export=true", "cluster.sbatch.segment=2"]
    assert main(["submit", *RUN, "launcher=dry", f"runs_dir={tmp_path}", *staged]) == 0
    scripts = capsys.readouterr().out.split("#!/bin/bash")[1:]
    assert [("--segment=2" in script, "--nodes=2" in script) for script in scripts] == (
        [(True, True)] + [(False, False)] * (len(scripts) - 1)
    )
    run, sweep = (
        compose([*RUN, f"runs_dir={tmp_path}", "cluster.sbatch.segment=2"], multirun=False)[0].run,
        SweepDir(tmp_path),
    )
    assert "--segment" not in script_of(run, sweep, tmp_path / "code", None)


def test_options_of_commands_in_the_code() -> None:
    """Lists that begin with a command of Slurm, in all of jobs/; and the calls that the contract has."""
    seen = 0
    for file in (ROOT / "jobs").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            words = node.elts if isinstance(node, ast.List) else node.args if isinstance(node, ast.Call) else []
            if not (words and isinstance(words[0], ast.Constant) and words[0].value in COMMANDS):
                continue
            for word in words[1:]:
                is_text = isinstance(word, ast.Constant | ast.JoinedStr)
                text = ast.unparse(word).removeprefix("f")[1:-1] if is_text else ""
                if text.startswith("--"):
                    seen += 1
                    assert is_written_well(text), f"{file}: {text}"
    assert seen > 15
    for call in answers("22.05.8"):
        assert all(is_written_well(word) for word in shlex.split(call) if word.startswith("--")), call

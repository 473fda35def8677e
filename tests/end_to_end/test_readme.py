"""The README: its commands run, its output is what they print, its tables are complete."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.composing import options
from tests.support.paths import ROOT
from tests.support.readme_text import README


def blocks(language: str) -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
    return [text for kind, text in fenced if kind == language]


COMMANDS = [[line for line in block.splitlines() if line] for block in blocks("sh")]


def run(command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A README line as a shell would run it, with this environment's slurmscale first on PATH."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        ["sh", "-c", command], cwd=cwd, env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_the_commands_for_people_without_a_cluster_run_as_printed(tmp_path: Path) -> None:
    (block,) = [block for block in COMMANDS if any("sweep=try" in line for line in block)]
    for line in block:
        done = run(line, tmp_path)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    assert (tmp_path / "runs/try/report.html").stat().st_size > 100_000


def as_anywhere(printed: str) -> list[list[str]]:
    """The words of each line, whatever the job ids, the time of day and the width of columns."""
    same = re.sub(r"\d+_\[", "N_[", re.sub(r"expected start [\d-]+ ?[\d:]* on", "expected start on", printed))
    return [line.split() for line in same.splitlines()]


@pytest.mark.slow
@pytest.mark.slurm
@pytest.mark.usefixtures("empty_queue")
def test_the_commands_for_people_with_a_cluster_run_as_printed(tmp_path: Path) -> None:
    (block,) = [block for block in COMMANDS if any("sweep=first" in line for line in block)]
    submit, status, report = block
    done = run(submit, tmp_path)
    assert done.returncode == 0, done.stderr
    (printed,) = [block for block in blocks("") if "sweep=first" not in block and "prepared 6 runs" in block]
    assert as_anywhere(done.stdout.replace(str(tmp_path), "/home/you")) == as_anywhere(printed)
    assert run(status, tmp_path).returncode == 0
    waited = run("slurmscale resume --wait runs/first", tmp_path)
    assert waited.returncode == 0, waited.stdout
    assert run(report, tmp_path).returncode == 0


@pytest.mark.slurm
@pytest.mark.usefixtures("empty_queue")
def test_what_the_doctor_says_is_what_it_is_shown_to_say(tmp_path: Path) -> None:
    (command,) = [line for block in COMMANDS for line in block if line.startswith("slurmscale doctor")]
    (printed,) = [block for block in blocks("") if "sbatch --test-only" in block]
    # Root has one account more than other users.
    said = [line for line in as_anywhere(run(command, tmp_path).stdout) if line[1:3] != ["account", "root"]]
    assert said[:-1] == as_anywhere(printed)[:-1]


def test_the_refusals_shown_are_what_mistakes_print(tmp_path: Path) -> None:
    shown = [block for block in blocks("") if block.startswith("slurmscale plan:")]
    mistakes = ("scaling.global_batch_size=8 job.micro_batch_size=3", "parallelism.tensor=8 ranks_per_node=8")
    for refusal, mistake in zip(shown, mistakes, strict=True):
        done = run(f"slurmscale plan {mistake}", tmp_path)
        assert done.returncode == 2
        assert done.stderr == refusal


def test_the_mesh_shown_is_what_plan_draws(tmp_path: Path) -> None:
    (command,) = [line for block in COMMANDS for line in block if line.startswith("slurmscale plan parallelism=")]
    (mesh,) = [block for block in blocks("") if block.startswith("Mesh:")]
    assert mesh in run(command, tmp_path).stdout


def test_the_commands_for_nemo_run_as_printed(tmp_path: Path) -> None:
    (block,) = [block for block in COMMANDS if any("llama2_70b_nemo" in line for line in block)]
    for line in block:
        done = run(line, tmp_path)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"


def test_the_campaign_can_be_typed_as_printed(tmp_path: Path) -> None:
    (attempts,) = [block for block in blocks("yaml") if block.startswith("baseline:")]
    (tmp_path / "attempts.yaml").write_text(attempts)
    ((campaign, leaderboard),) = [block for block in COMMANDS if block[0].startswith("slurmscale campaign")]
    done = run(f"{campaign.removesuffix('--wait')} launcher=dry --repeats 1", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / leaderboard.split()[-1] / "gbs64-r1/config.yaml").exists()


def test_every_make_target_named_exists() -> None:
    named = {shlex.split(line, comments=True)[1] for block in COMMANDS for line in block if line.startswith("make ")}
    assert named >= {"demo", "test", "test-fast", "check"}
    for target in named:
        subprocess.run(["make", "-n", target], cwd=ROOT, check=True, capture_output=True)


def test_the_install_commands_take_the_torch_that_make_takes() -> None:
    makefile = (ROOT / "Makefile").read_text()
    (pin,) = re.findall(r"^TORCH := (.+)$", makefile, flags=re.MULTILINE)
    assert f".venv/bin/pip install {pin}" in README
    assert f"pip install {pin}" in (ROOT / "jobs/submit/launchers/local.py").read_text()


@pytest.mark.parametrize(
    "group",
    [
        "model",
        "parallelism",
        "engine",
        "job",
        "data",
        "scaling",
        "cluster",
        "launcher",
        "stages",
        "experiment",
    ],
)
def test_the_table_of_choices_names_every_file(group: str) -> None:
    (row,) = re.findall(rf"^\| `{group}` \| (.+) \|$", README, flags=re.MULTILINE)
    assert set(options(group)) <= set(re.findall(r"`([^`]+)`", row))


def test_every_file_the_readme_names_is_there() -> None:
    for name in re.findall(r"`((?:jobs|conf|analysis|sbatch|tests)/[\w./]*)`", README) + re.findall(
        r"\]\((\.\w[^)]+)\)", README
    ):
        assert (ROOT / name).exists(), name


def test_every_command_is_in_the_table() -> None:
    from jobs.cli import parser

    names = next(action.choices for action in parser()._actions if action.dest == "command")
    assert names is not None
    for name in names:
        assert f"`slurmscale {name}" in README

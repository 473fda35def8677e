"""The READMEs: their commands run and print the outputs shown, tables are complete, links and paths exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.command_line.grammar import COMMANDS as COMMAND_ENTRIES
from tests.support.composing import options
from tests.support.paths import ROOT
from tests.support.readme_text import FILES, README, anchors, blocks, prose

COMMANDS = [[line for line in block.splitlines() if line] for block in blocks("sh")]


def run(command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a line of a README as a shell does, with this environment's slurmscale first on PATH."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        ["sh", "-c", command], cwd=cwd, env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_the_commands_for_people_without_a_cluster_run_as_printed(tmp_path: Path) -> None:
    preview, block = (
        [line for block in COMMANDS for line in block if any(word in text for text in block)]
        for word in ("launcher=dry cluster=xe9680_h100 nodes=2", "sweep=try")
    )
    for line in [*preview, *block]:
        done = run(line, tmp_path)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    assert (tmp_path / "runs/try/report.html").stat().st_size > 100_000
    (lines,) = [block for block in blocks("python") if block.startswith("import slurmscale")]
    done = subprocess.run([sys.executable, "-c", lines], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def as_anywhere(printed: str) -> list[list[str]]:
    """Return the words of each line, without job ids, times of day and column widths."""
    same = re.sub(r"\d+_\[", "N_[", re.sub(r"expected start [\d-]+ ?[\d:]* on", "expected start on", printed))
    return [line.split() for line in same.splitlines()]


@pytest.mark.slow
@pytest.mark.slurm
@pytest.mark.usefixtures("empty_queue")
def test_the_commands_for_people_with_a_cluster_run_as_printed(tmp_path: Path) -> None:
    (block,) = [block for block in COMMANDS if any("sweep=first" in line for line in block)]
    submit, status, _ = block
    done = run(submit, tmp_path)
    assert done.returncode == 0, done.stderr
    (printed,) = [block for block in blocks("") if "sweep=first" not in block and "prepared 4 runs" in block]
    assert as_anywhere(done.stdout.replace(str(tmp_path), "/home/you")) == as_anywhere(printed)
    assert run(status, tmp_path).returncode == 0
    # Such runs, and reports on them, are of test_slurm.
    assert run("slurmscale cancel runs/first", tmp_path).returncode == 0


@pytest.mark.slurm
@pytest.mark.usefixtures("empty_queue")
def test_the_doctors_printed_findings_are_those_of_the_readme(tmp_path: Path) -> None:
    (command,) = [line for block in COMMANDS for line in block if line.startswith("slurmscale doctor --no-job")]
    (printed,) = [block for block in blocks("") if "sbatch --test-only" in block]
    # Root has one account more than other users.
    found = [line for line in as_anywhere(run(command, tmp_path).stdout) if line[1:3] != ["account", "root"]]
    assert found[:-1] == as_anywhere(printed)[:-1]


def test_the_refusals_shown_are_what_mistakes_print(tmp_path: Path) -> None:
    pair = r"^```sh\n(slurmscale plan [^\n]+)\n```\n```\n(slurmscale plan: .*?)^```$"
    shown = re.findall(pair, README, flags=re.MULTILINE | re.DOTALL)
    assert len(shown) == 4
    for command, refusal in shown:
        done = run(command, tmp_path)
        assert done.returncode == 2
        assert done.stderr == refusal


def test_the_predictions_shown_are_what_plan_prints(tmp_path: Path) -> None:
    pair = r"^```sh\n(slurmscale plan [^`]*?)^```\n```\n([^`]*predicted \(90 %\)[^`]*?)^```$"
    shown = re.findall(pair, README, flags=re.MULTILINE | re.DOTALL)
    assert len(shown) == 3, "of trainings, of a server and of reinforcement learning"
    for command, table in shown:
        printed = "\n".join(line.rstrip() for line in run(command, tmp_path).stdout.splitlines())
        assert table.rstrip() in printed


@pytest.mark.long
@pytest.mark.parametrize("option", ["plan --search", "calibrate --probes"])
def test_the_layouts_and_probes_shown_are_what_is_printed(option: str, tmp_path: Path) -> None:
    pair = rf"^```sh\n(slurmscale {option} .*?)^```\n```\n(.*?)(?:\.\.\.\n)?^```$"
    ((command, shown),) = re.findall(pair, README, flags=re.MULTILINE | re.DOTALL)
    printed = run(command, tmp_path).stdout.splitlines()
    assert [line.rstrip() for line in printed[: len(shown.splitlines())]] == shown.splitlines()


def test_the_mesh_shown_is_what_plan_draws(tmp_path: Path) -> None:
    (command,) = [line for block in COMMANDS for line in block if line.startswith("slurmscale plan parallelism=")]
    (mesh,) = [block for block in blocks("") if block.startswith("Mesh:")]
    assert mesh in run(command, tmp_path).stdout


def test_the_commands_for_nemo_run_as_printed(tmp_path: Path) -> None:
    (block,) = [block for block in COMMANDS if any("llama2_70b_nemo" in line for line in block)]
    for line in block:
        done = run(line, tmp_path)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"


def test_the_cluster_file_shown_is_enough(tmp_path: Path) -> None:
    (cluster,) = [block for block in blocks("yaml") if block.startswith("name: mine")]
    (tmp_path / "site/cluster").mkdir(parents=True)
    (tmp_path / "site/cluster/mine.yaml").write_text(cluster)
    done = run("SLURMSCALE_SITE=site slurmscale plan cluster=mine", tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_campaign_can_be_typed_as_printed(tmp_path: Path) -> None:
    (attempts,) = [block for block in blocks("yaml") if block.startswith("baseline:")]
    (tmp_path / "attempts.yaml").write_text(attempts)
    ((campaign, leaderboard),) = [block for block in COMMANDS if block[0].startswith("slurmscale campaign")]
    done = run(f"{campaign.removesuffix('--wait')} launcher=dry --repeats 1", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / leaderboard.split()[-1] / "gbs64-r1/config.yaml").exists()


def test_every_make_target_named_exists() -> None:
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", README, flags=re.MULTILINE))
    assert named >= {"demo", "test", "test-all", "test-fast", "corpus", "check", "benchmark"}
    for target in named:
        subprocess.run(["make", "-n", target], cwd=ROOT, check=True, capture_output=True)


def test_the_install_commands_take_the_torch_that_make_takes() -> None:
    makefile = (ROOT / "Makefile").read_text()
    (pin,) = re.findall(r"^TORCH \?= (.+)$", makefile, flags=re.MULTILINE)
    assert f".venv/bin/pip install {pin}" in README
    assert f"pip install {pin}" in (ROOT / "jobs/submit/launchers/local.py").read_text()


@pytest.mark.parametrize(
    "group",
    [
        *("model", "parallelism", "engine", "job", "data", "scaling"),
        *("cluster", "launcher", "network", "stages", "tune", "experiment", "rehearsal"),
    ],
)
def test_the_table_of_choices_names_every_file(group: str) -> None:
    _, _, conf = (ROOT / "conf/README.md").read_text().partition("\n## Configuration\n")
    conf, _, _ = conf.partition("\n## ")
    (row,) = re.findall(rf"^\| `{group}` \| (.+) \|$", conf, flags=re.MULTILINE)
    assert set(options(group)) <= set(re.findall(r"`([^`]+)`", row))


def test_every_repository_path_named_exists() -> None:
    inside = r"(?<![\w./-])(?:(?:jobs|conf|analysis|sbatch|tests|\.ci|\.github)/[\w./-]*[\w/]|slurmscale\.py)"
    named = set(re.findall(inside, re.sub(r"\]\(.+?\)", "]", README)))
    assert len(named) > 50
    # A name in capitals is a placeholder, as in conf/model/NAME.yaml.
    missing = [path for path in named if not any(ROOT.glob(re.sub(r"\b[A-Z]+\b(?!\.md)", "*", path)))]
    assert not missing


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_every_relative_link_and_anchor_exists(file: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(file)):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = file.parent / path if path else file
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_a_readme_begins_with_links_to_its_sections(file: Path) -> None:
    beginning = prose(file).split("\n## ")[0]
    assert all(f"(#{anchor})" in beginning for anchor in anchors(file, level="##"))


def test_every_command_is_in_the_table() -> None:
    for file in ("README.md", "jobs/command_line/README.md"):
        text = (ROOT / file).read_text()
        assert [name for name in COMMAND_ENTRIES if f"`slurmscale {name}" not in text] == []

"""The command line: help, answers to mistakes, and Hydra's own options."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

import pytest
import yaml

from jobs.cli import main
from tests.support.cli import run_cli
from tests.support.paths import ROOT


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("status", "slurmscale status: the following arguments are required: SWEEP. Usage:\n  slurmscale status [-h]"),
        ("subimt nodes=2", "slurmscale: there is no command 'subimt'. Did you mean submit? Usage:\n"),
        ("nodes=2", "An override follows a command, as in slurmscale plan nodes=2. Usage:\n"),
        ("logs runs/demo/a --rank first", "slurmscale logs: argument --rank: invalid int value: 'first'. Usage:\n"),
        ("attempt mbs2 job.micro_batch_size=2 --repets 5", "slurmscale attempt: unrecognized arguments: --repets 5; "),
        (
            "plan --nodes 2",
            "slurmscale plan: unrecognized arguments: --nodes; overrides have no dashes, as in nodes=2.",
        ),
        ("cancel runs/a runs/b", "slurmscale cancel: unrecognized arguments: runs/b. Usage:\n"),
        (
            "report runs/a --output=",
            "argument -o/--output: '' is not a path; set one, or leave the option out. Usage:\n",
        ),
        # As an unset variable of a shell leaves it; it would be the current directory.
        ("report ''", "argument DIR: '' is not a path; "),
        ("report --compare '' runs/a", "argument --compare: '' is not a path; "),
        ("leaderboard ''", "argument DIR: '' is not a path; "),
        ("attempt x --campaign ''", "argument --campaign: '' is not a path; "),
        ("calibrate runs/a ''", "slurmscale calibrate: '' is not a path; "),
    ],
)
def test_a_mistake_on_the_command_line_is_answered_with_the_usage(
    typed: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(typed))
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert expected in err
    assert err.endswith("--help explains each.\n")


@pytest.mark.parametrize("typed", [[], ["help"]])
def test_without_a_command_all_commands_are_listed(typed: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(typed) == 0
    out = capsys.readouterr().out
    assert all(f"    {command}" in out for command in ("plan", "submit", "status", "report", "explain"))
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("slurmscale ")


@pytest.mark.parametrize("typed", ["-m nodes=1 repeat=1,2", "nodes=1 -m repeat=1,2", "nodes=1 repeat=1,2 -m"])
def test_options_may_stand_between_the_overrides(typed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *typed.split(), "parallelism=single", "ranks_per_node=1"]) == 0
    assert "tiny-single-n1x1-r2" in capsys.readouterr().out


def test_a_plan_ends_with_the_mesh_and_has_values_only_where_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "cluster=aspire2a"]) == 0
    plan = capsys.readouterr().out
    assert "to submit, set also cluster.account=VALUE" in plan
    assert "micro_batch_size" not in plan
    assert main(["plan", "cluster=aspire2a", "--values"]) == 0
    values = capsys.readouterr().out
    assert "  micro_batch_size: 2\n" in values
    assert values.endswith(plan)


def test_hydras_own_options_print_what_hydra_prints_and_submit_nothing() -> None:
    # Each in a process of its own: Hydra adds a handler to the root logger.
    config = yaml.safe_load(run_cli("submit", "--cfg", "job", "nodes=3").stdout)
    assert (config["nodes"], config["job"]["steps"]) == (3, 20)
    assert "  parallelism: ddp\n" in run_cli("plan", "--info", "defaults-tree").stdout


@pytest.mark.parametrize(
    ("key", "lines"),
    [
        ("job.micro_batch_size", ["type     whole number", "default  2"]),
        ("launcher.requeue_pause_s", ["unit     seconds", "default  30"]),
        ("network.gb_per_s", ["unit     GB/s"]),
        ("budget.node_hours", ["unit     node-hours"]),
        ("contest.node_power_w", ["unit     W"]),
        ("serving.requests_per_s", ["unit     1/s"]),
        ("engine.optimizer_loop", ["type     choice, or null", "default  null", "foreach  One kernel per operation"]),
        ("parallelism", ["fsdp_full  ", "parallelism.tensor             Ranks that share each matrix (TP)."]),
        ("experiment", ["demo  ", "  Strong scaling of a small Llama"]),
    ],
)
def test_a_key_is_explained_from_the_schema_and_the_files(
    key: str, lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", key]) == 0
    out = capsys.readouterr().out
    assert [line for line in lines if line not in out] == []


def test_every_key_of_the_schema_has_a_meaning_and_a_misspelt_one_its_nearest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from jobs.plan.keys import keys

    assert [name for name, key in keys().items() if not key.meaning] == []
    assert main(["explain", "job.stepz"]) == 2
    assert "Did you mean job.steps" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("subm", {"submit "}),
        ("plan model=tiny,mix", {"tiny,mixtral_8x7b "}),
        ("plan job.ste", {"job.steps="}),
        ("plan engine.optimizer_loop=f", {"fused", "foreach"}),
        ("explain job.warm", {"job.warmup_steps "}),
    ],
)
def test_a_shell_completes_commands_choices_keys_and_values(line: str, offered: set[str]) -> None:
    typed = f"slurmscale {line}"
    shell = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_SHELL": "bash", "_ARGCOMPLETE_IFS": "\v", "COMP_LINE": typed,
             "COMP_POINT": str(len(typed)), "COMP_TYPE": "9", "_ARGCOMPLETE_COMP_WORDBREAKS": " \t\n=:"}  # fmt: skip
    # argcomplete answers on file descriptor 8.
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m jobs.cli 8>&1 9>/dev/null"],
        cwd=ROOT, env=os.environ | shell, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert set(done.stdout.split("\v")) == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_of_each_shell_is_printed(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert "_ARGCOMPLETE" in capsys.readouterr().out

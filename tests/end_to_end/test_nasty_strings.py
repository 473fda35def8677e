"""Whatever a string of the configuration holds: it is refused with words, or a script hands it on unharmed.

Scripts are run by bash. What they start records its arguments and environment, which must be those of a harmless
value with only that value changed.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from jobs.errors import SubmitError, SuiteError
from jobs.plan.compose import Point, compose, legal_points
from jobs.plan.legality import problems
from jobs.rundir import RunDir, SweepDir
from jobs.schema import ContainerRuntime, Run
from jobs.submit.pbs.batch_script import script_text as pbs_text
from jobs.submit.preparation.code_store import code_digest
from jobs.submit.slurm import batch_script as script
from tests.support.real_run import SMALL

PLAIN = "plainvalue"
NASTY = [
    *"'\"\\$;&|\n\r\t #!*~%{}(,:=/\0aB7", "é", "\u2028", "`touch pwned`", "$(touch pwned)", "${HOME}", "%j", "--",
    "\n#SBATCH --nodes=99\n", "\n#PBS -l select=99\n", "#SBATCH --x", "'; touch pwned; '", '"; touch pwned; "',
]  # fmt: skip
nasty = st.lists(st.sampled_from(NASTY) | st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6).map("".join)
RECORD = """#!/bin/bash
{{ printf '%s\\0' "${{0##*/}}" "$@"; env -0 | grep -z '^VALUE=\\|^PYTHONPATH='; printf '\\0'; }} >> {where}/record
"""


def field(path: str) -> Callable[[Run, str], None]:
    """Sets one string of a run: a field, an item of a list or a value of a dictionary."""
    *parents, last = path.split(".")

    def change(run: Run, value: str) -> None:
        holder: object = run
        for name in parents:
            holder = holder[name] if isinstance(holder, dict) else getattr(holder, name)
        if isinstance(holder, dict):
            holder[last] = value
        elif isinstance(getattr(holder, last), list):
            setattr(holder, last, [value])
        else:
            setattr(holder, last, value)

    return change


FIELDS = [
    "name", "sweep", "cluster.partition", "cluster.account", "cluster.qos", "cluster.constraint", "cluster.modules",
    "cluster.container", "cluster.container_mounts", "cluster.env.VALUE", "cluster.sbatch.comment",
]  # fmt: skip
# For PBS there is no word for them, and they are refused as such.
SLURMS_OWN = {"cluster.qos", "cluster.constraint", "cluster.sbatch.comment"}


@cache
def composed() -> Run:
    (point,) = compose([*SMALL, "cluster=generic_slurm", "runs_dir=/", "sweep=s", "name=r", "ranks_per_node=1",
                        "cluster.python=rank"], multirun=False)  # fmt: skip
    return point.run


def a_run(where: Path) -> Run:
    run = deepcopy(composed())
    run.runs_dir, run.data.cache_dir = str(where), str(where / "cache")
    return run


def outcome(run: Run, kind: str) -> tuple[list[list[str]], list[str]]:
    """The directives of a run's script as words, and what it starts: arguments and environment."""
    where = Path(run.runs_dir)
    sweep = SweepDir(where / str(run.sweep))
    directory = sweep.run(str(run.name))
    if kind == "pbs":
        run.cluster.container_runtime = ContainerRuntime.apptainer
    # The script checks the digest of the code before it runs anything.
    code = sweep.code(code_digest({Path("jobs.py"): b""}))
    code.mkdir(parents=True)
    (code / "jobs.py").touch()
    directory.path.mkdir(parents=True)
    directory.code.symlink_to(code)
    own = RunDir(directory.path)
    text = script.script_text(run, own, sweep) if kind == "slurm" else pbs_text(run, own, sweep, own.pbs_script)
    (where / "bin").mkdir()
    (where / "home").mkdir()
    for program in ("srun", "rank", "apptainer", "module"):
        (where / "bin" / program).write_text(RECORD.format(where=shlex.quote(str(where))))
        (where / "bin" / program).chmod(0o755)
    sweep.logs.mkdir(parents=True, mode=0o700)
    (where / "script").write_text(text)
    # The part of a PBS script that runs on a node takes its number, the first node, a port and the job.
    done = subprocess.run(["bash", where / "script", *(["0", "localhost", "1", "1"] if kind == "pbs" else [])],
                          cwd=where / "home", env={"PATH": f"{where}/bin:{os.environ['PATH']}", "HOME": str(where)},
                          capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert not list((where / "home").iterdir()), "the script made a file"
    lines = [line.replace(str(where), "WHERE") for line in text.split("\n\n# ")[0 if kind == "pbs" else 1].split("\n")]
    # PBS takes few characters in a job's name, so it is given a likeness.
    lines = [line for line in lines if line.startswith(("#SBATCH", "#PBS")) and not line.startswith("#PBS -N")]
    directives = [shlex.split(line) for line in lines]
    started = (where / "record").read_bytes().decode(errors="surrogateescape")
    return directives, started.replace(str(where), "WHERE").split("\0")


def fresh() -> Path:
    """A new place; a hypothesis test has but one tmp_path."""
    return Path(tempfile.mkdtemp())


@pytest.mark.parametrize(
    ("kind", "key"), [*(("slurm", key) for key in FIELDS), *(("pbs", key) for key in FIELDS if key not in SLURMS_OWN)]
)
def test_a_string_is_refused_with_words_or_reaches_its_place_unharmed(
    kind: str, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Python at this path runs the program that ends and requeues a run; here that program does nothing.
    monkeypatch.setattr(sys, "executable", "/bin/true")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    change = field(key)

    def with_value(value: str) -> Run:
        run = a_run(fresh())
        change(run, value)
        return run

    harmless = outcome(with_value(PLAIN), kind)
    passed = []

    @settings(max_examples=8, derandomize=True, suppress_health_check=list(HealthCheck))
    @example('it\'s "odd" $(touch pwned) `touch pwned`; touch pwned #SBATCH --nodes=99')
    @example("a b")
    @example("two\nlines\n#SBATCH --nodes=99\n#PBS -l select=99")
    @given(nasty)
    def check(value: str) -> None:
        run = with_value(value)
        try:
            legal_points([Point(run, [])], problems)
            found = outcome(run, kind)
            refusal = ""
        except SuiteError as error:
            refusal = str(error)
        if refusal:
            assert any(f"{verb} " in refusal for verb in ("Set", "Use", "Remove", "Type")), refusal
            return
        passed.append(value)
        directives, started = harmless
        assert found == (
            [[word.replace(PLAIN, value) for word in line] for line in directives],
            [text.replace(PLAIN, value) for text in started],
        )

    check()
    if kind == "slurm" or key in {"cluster.modules", "cluster.container", "cluster.env.VALUE"}:
        assert any("touch pwned" in value for value in passed), "nothing nasty came through"


@pytest.mark.parametrize(
    ("key", "name"), [("env", "A B"), ("env", "X=1; touch pwned; Y"), ("env", ""), ("sbatch", "x\n#SBATCH --nodes"),
                      ("sbatch", "a b")]
)  # fmt: skip
def test_a_name_that_is_none_is_refused(key: str, name: str, tmp_path: Path) -> None:
    run = a_run(tmp_path)
    getattr(run.cluster, key)[name] = "value"
    sweep = SweepDir(tmp_path / "s")
    with pytest.raises(SubmitError, match=rf"cluster\.{key}: .* is not (the name of a variable|an option of sbatch)"):
        script.script_text(run, sweep.run("r"), sweep)


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("time", "this option is not allowed. Set wall_time_min=MINUTES."),
        ("nodes", "Set nodes=NUMBER."),
        ("array", "Set launcher.max_running=NUMBER to limit the runs at a time."),
        ("output", "`slurmscale logs` reads that file: remove the option."),
    ],
)
def test_an_option_that_the_script_has_already_is_refused_with_its_key(
    option: str, expected: str, tmp_path: Path
) -> None:
    run = a_run(tmp_path)
    run.cluster.sbatch[option] = "5"
    sweep = SweepDir(tmp_path / "s")
    with pytest.raises(SubmitError) as refused:
        script.script_text(run, sweep.run("r"), sweep)
    assert str(refused.value).startswith(f"cluster.sbatch.{option}: ")
    assert expected in str(refused.value)

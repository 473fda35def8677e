"""The package: the files of a wheel, which runs from anywhere, and light commands that stay light."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from tests.support.paths import ROOT

OURS = ("jobs", "analysis", "conf", "sbatch")


@pytest.fixture
def strangers(tmp_path: Path) -> Path:
    """A project whose packages have the names of ours, and end every program that imports them."""
    for name in OURS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('a stranger')")
    return tmp_path


def run_beside(strangers: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a project that has folders of our names in its directory, and before ours on PYTHONPATH."""
    env = {**os.environ, "PYTHONPATH": f"{strangers}:{ROOT}"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=strangers, env=env, capture_output=True, text=True, check=False
    )


@pytest.mark.long
@pytest.mark.slow
def test_a_run_and_its_report_ignore_packages_of_the_same_names(strangers: Path) -> None:
    submit = ["submit", "--wait", "data=random", "job.steps=4", "ranks_per_node=1", "sweep=s"]
    for command in (submit, ["status", "runs/s"], ["report", "runs/s"]):
        done = run_beside(strangers, "-m", "slurmscale", *command)
        assert done.returncode == 0, done.stdout + done.stderr
    assert (strangers / "runs/s/report.html").exists()


def test_the_python_api_composes_plans_submits_and_reads_states(strangers: Path) -> None:
    program = """
import slurmscale

(run,) = slurmscale.compose("nodes=2", "cluster=aspire2a")
assert (run.ranks, run.cluster.account) == (8, None)
small, large = slurmscale.plan("nodes=1,2", "job.micro_batch_size=1", multirun=True).runs
assert (small.ranks, large.ranks, large.plan["accumulation"]) == (2, 4, 2)
sweep = slurmscale.submit("launcher=dry", "sweep=s")
assert [each.state for each in slurmscale.status(sweep).runs] == ["prepared"]
try:
    slurmscale.compose("nodez=2")
except slurmscale.SuiteError as error:
    assert "Did you mean nodes" in str(error)
assert slurmscale.main(["plan"]) == 0
"""
    done = run_beside(strangers, "-c", program)
    assert done.returncode == 0, done.stdout + done.stderr


def test_another_package_that_is_imported_already_is_an_error_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs/__init__.py").touch()
    done = run_beside(tmp_path, "-c", "import jobs, slurmscale")
    assert "ImportError: slurmscale has a package named 'jobs', and this program has imported another" in done.stderr
    assert f"{tmp_path}/jobs/__init__.py. Import slurmscale before it" in done.stderr


@pytest.mark.slow
def test_a_wheel_holds_the_module_and_its_packages_and_works_from_another_directory(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path], cwd=ROOT, check=True,
                   capture_output=True)  # fmt: skip
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {
        *OURS,
        "slurmscale.py",
        "slurmscale-stubs",
    }
    assert {"conf/model/tiny.yaml", "sbatch/train.sbatch", "jobs/submit/trust/integrity.sh", "jobs/secret_shapes.csv",
            "analysis/report/page.html.j2", "analysis/report/page.js", "analysis/report/plotly.js/plotly-basic.min.js",
            "analysis/report/plotly.js/LICENSE",
            "analysis/compare/published.csv", "analysis/failures/catalogue/texts.toml",
            "analysis/failures/catalogue/gpu_errors.csv"} <= set(names)  # fmt: skip

    home = tmp_path / "venv"
    venv.create(home, with_pip=True)
    python = home / "bin/python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel], check=True)
    # The wheel's dependencies come from this environment; its own editable install is not seen this way.
    (site,) = home.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    # A stranger's `jobs` in the current directory must not be taken for ours.
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs/__init__.py").write_text("raise SystemExit('a stranger')")
    preview = ["submit", "launcher=dry", "cluster=generic_slurm", f"runs_dir={tmp_path}/runs", "sweep=s", "name=r"]
    done = subprocess.run([home / "bin/slurmscale", *preview], cwd=tmp_path, env={**os.environ, "PYTHONPATH": ""},
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "#SBATCH --nodes=1" in done.stdout
    assert (tmp_path / "runs/s/r/code/jobs/run.py").exists()

    # Without its dependencies it says what to install, and a type checker still knows its API.
    (site / "dependencies.pth").unlink()
    done = subprocess.run([home / "bin/slurmscale", "plan"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": ""},
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 2
    assert f"which this Python lacks. Run: {python} -m pip install " in done.stderr
    assert " 'hydra-core<1.4,>=1.3.2' " in done.stderr
    assert "mypy" not in done.stderr, "no requirements of extras"
    program = tmp_path / "program.py"
    program.write_text(
        "import slurmscale\nslurmscale.plan('nodes=2').runs[0].ranks + 1\nslurmscale.compose(multirun='yes')\n"
    )
    checker = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--config-file=",
        "--python-executable",
        str(python),
        str(program),
    ]
    done = subprocess.run(checker, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [
        'program.py:3: error: Argument "multirun" to "compose" has incompatible type "str"; '
        'expected "bool"  [arg-type]',
        "Found 1 error in 1 file (checked 1 source file)",
    ]


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["submit", "--help"], ["plan", "model=llama31_405b", "cluster=xe9680_h100", "job.micro_batch_size=1"],
     ["doctor"], ["status", "nowhere"], ["explain", "job"], ["report", "nowhere"]],
)  # fmt: skip
def test_light_commands_import_no_torch(arguments: list[str]) -> None:
    code = f"""
import sys
from jobs.cli import main
try:
    main({arguments!r})
except SystemExit:
    pass
heavy = {{"torch", "litgpt", "lightning", "transformers"}} & set(sys.modules)
if {arguments[0]!r} != "report":
    heavy |= {{"pandas", "plotly", "argcomplete"}} & set(sys.modules)
sys.exit(f"imported {{heavy}}" if heavy else 0)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_local_run_without_torch_states_what_to_install(tmp_path: Path) -> None:
    # As on a login node: an installed torch is hidden by a finder that does not find it.
    code = f"""
import sys, importlib.util
from jobs.cli import main
from jobs import versions
versions.find_spec = lambda name: None if name == "torch" else importlib.util.find_spec(name)
sys.exit(main(["submit", "data=random", "runs_dir={tmp_path}"]))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "where Python has no torch. Run pip install torch==" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_help_names_every_command() -> None:
    done = subprocess.run([sys.executable, "-m", "jobs.cli", "--help"], cwd=ROOT, capture_output=True, text=True,
                          check=True)  # fmt: skip
    for command in ("plan", "submit", "status", "logs", "cancel", "resume", "report"):
        assert f"    {command}" in done.stdout


def test_output_cut_by_head_is_no_error(tmp_path: Path) -> None:
    if shutil.which("head") is None:
        pytest.skip("needs head")
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m jobs.cli plan | head -n 1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""


def test_no_file_names_a_place_of_one_machine() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    for name in listed.stdout.split("\0"):
        if name and name != "tests/end_to_end/test_package.py" and (ROOT / name).suffix != ".png":
            text = (ROOT / name).read_text(errors="replace")
            assert "/root/" not in text, name
            assert str(ROOT) not in text, name

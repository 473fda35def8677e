"""How a command ends when its reader, its user or its Python does not let it finish: one line or none, no traceback."""

from __future__ import annotations

import ast
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import slurmscale
from jobs.errors import interrupt_behind
from tests.support.fake_runs import a_run, finished_run, prepared
from tests.support.waiting import limit_s

HERE = Path(slurmscale.HERE)
COMMANDS = (
    ["--version"],
    ["report", "--help"],
    ["explain", "launcher"],
    ["completion", "bash"],
    ["plan", "model=tiny", "--cfg", "job"],
    ["status", "SWEEP"],
    ["watch", "SWEEP"],
)


def started(*words: str, stdout: int = subprocess.PIPE) -> subprocess.Popen[str]:
    """Start a command of slurmscale."""
    command = [sys.executable, "-m", "slurmscale", *words]
    return subprocess.Popen(command, cwd=HERE, text=True, stdout=stdout, stderr=subprocess.PIPE)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_command_whose_reader_is_gone_ends_in_silence_with_141(command: list[str], tmp_path: Path) -> None:
    prepared(tmp_path, a_run("r"))
    reader, writer = os.pipe()
    os.close(reader)
    words = [str(tmp_path) if word == "SWEEP" else word for word in command]
    ended = started(*words, stdout=writer)
    os.close(writer)
    _, said = ended.communicate(timeout=limit_s(180))
    assert (ended.returncode, said) == (141, "")


def test_a_reader_that_leaves_early_is_no_failed_run() -> None:
    done = subprocess.run(
        f"{sys.executable} -m slurmscale explain job 2>&1 | head -1; exit ${{PIPESTATUS[0]}}",
        shell=True, executable="/bin/bash", cwd=HERE, capture_output=True, text=True, timeout=limit_s(180), check=False,
    )  # fmt: skip
    assert done.returncode in {0, 141}
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""


@pytest.mark.parametrize("cleanup", ["pass", "raise AttributeError('half made')"])
@pytest.mark.parametrize("module", ["hydra", "rich.console", "jobs.plan.compose", "jobs.cli"])
def test_ctrl_c_while_modules_are_imported_is_one_line(module: str, cleanup: str) -> None:
    interrupting = (
        "import os, signal, sys, slurmscale\n"
        "class Interrupt:\n"
        "    @staticmethod\n"
        "    def find_spec(name, path=None, target=None):\n"
        f"        if name == {module!r}:\n"
        "            try: os.kill(os.getpid(), signal.SIGINT)\n"
        f"            finally: {cleanup}\n"
        "sys.meta_path.insert(0, Interrupt)\n"
        "sys.exit(slurmscale.main(['plan', 'model=tiny']))\n"
    )
    done = subprocess.run([sys.executable, "-c", interrupting], cwd=HERE, capture_output=True, text=True, check=False)
    assert done.returncode == 130
    assert re.fullmatch(r"slurmscale( plan)?: interrupted\n", done.stderr)


@pytest.mark.parametrize("how", ["from slurmscale import main", "import runpy; runpy.run_module('slurmscale')"])
@pytest.mark.parametrize("module", ["jobs.errors", "jobs.answers"])
def test_ctrl_c_before_the_command_can_answer_ends_it_by_the_signal_alone(
    how: str, module: str, tmp_path: Path
) -> None:
    # The script of the package as pip writes it, and `python -m slurmscale`.
    how = how.replace("('slurmscale')", "('slurmscale', run_name='__main__')")
    (tmp_path / "slurmscale").write_text(
        "import os, signal, sys\n"
        "class Interrupt:\n"
        "    @staticmethod\n"
        "    def find_spec(name, path=None, target=None):\n"
        f"        if name == {module!r}: os.kill(os.getpid(), signal.SIGINT)\n"
        f"sys.path.insert(0, {str(HERE)!r})\n"
        "sys.meta_path.insert(0, Interrupt)\n"
        f"{how}\nsys.exit(main(['--version']))\n"
    )
    script = [sys.executable, str(tmp_path / "slurmscale")]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")
    ignoring = subprocess.run(
        ["bash", "-c", f"trap '' INT; exec {shlex.join(script)}"], capture_output=True, text=True, check=False
    )
    assert (ignoring.returncode, ignoring.stderr) == (0, "")


def test_a_program_that_imports_the_api_keeps_its_answer_to_ctrl_c() -> None:
    program = "import signal, slurmscale; assert signal.getsignal(signal.SIGINT) is signal.default_int_handler"
    subprocess.run([sys.executable, "-c", program], cwd=HERE, check=True)


def test_ctrl_c_at_any_early_time_leaves_no_traceback() -> None:
    entered = "import slurmscale, sys; print('entered', flush=True); sys.exit(slurmscale.main(['plan', 'model=tiny']))"
    for delay_s in (0.05, 0.3, 0.8):
        ended = subprocess.Popen(
            [sys.executable, "-c", entered], cwd=HERE, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        with ended:
            assert ended.stdout is not None
            assert ended.stdout.readline() == "entered\n"
            time.sleep(delay_s)
            ended.send_signal(signal.SIGINT)
            _, said = ended.communicate(timeout=limit_s(180))
        # Python itself ends by the signal, which shells report as 130, once the command has returned.
        assert ended.returncode in {0, 130, -signal.SIGINT}
        assert said.count("\n") <= 1


def test_the_entry_is_parsed_by_old_pythons_which_print_the_version_they_lack() -> None:
    source = (HERE / "slurmscale.py").read_text(encoding="utf-8")
    ast.parse(source, feature_version=(3, 6))
    assert "from __future__ import annotations" not in source
    pretending = "import sys, runpy; sys.version_info = (3, 9, 18); runpy.run_module('slurmscale', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", pretending], cwd=HERE, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "slurmscale needs Python 3.11; this is 3.9\n")


def test_a_python_without_the_packages_gets_the_command_that_installs_them() -> None:
    done = subprocess.run(
        [sys.executable, "-S", "-m", "slurmscale", "plan"], cwd=HERE, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert re.fullmatch(
        r"slurmscale needs the package \w+, which this Python lacks\. Run: .* install .*\n", done.stderr
    )


def test_each_dependency_has_its_module_among_the_required() -> None:
    project = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {re.split(r"[<>=;\[ ]", each)[0].lower().replace("-", "_") for each in project["dependencies"]}
    modules = metadata.packages_distributions()
    found = {name.lower().replace("-", "_") for module in slurmscale.REQUIRED for name in modules.get(module, [])}
    assert names <= found


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_a_command_with_closed_streams_does_its_work_and_writes_into_no_other_file(closed: str, tmp_path: Path) -> None:
    program = f"{shlex.join([sys.executable, '-m', 'slurmscale', 'status', 's'])} {closed}"
    finished_run(tmp_path / "s", a_run("r", steps=1))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    ended = subprocess.run(
        ["bash", "-c", program],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(HERE)},
        capture_output=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert {path: path.read_bytes() for path in before} == before


def test_output_that_a_full_disk_refuses_is_an_error_in_one_line() -> None:
    program = [sys.executable, "-m", "slurmscale", "explain", "job.steps"]
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(program, cwd=HERE, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr == "slurmscale: the output cannot be written: No space left on device\n"


def test_the_causes_of_an_error_may_form_a_circle() -> None:
    # OmegaConf's do where OC_CAUSE or a debugger asks for them.
    error, cause, interrupt = ValueError(), TypeError(), KeyboardInterrupt()
    error.__cause__, cause.__context__ = cause, error
    assert interrupt_behind(error) is None
    cause.__context__ = interrupt
    assert interrupt_behind(error) is interrupt

"""Attacks on queued code: a job whose code somebody changed, or could change, ends before any of it runs."""

from __future__ import annotations

import json
import os
import py_compile
import shutil
import socket
import stat
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from jobs.cli import main
from jobs.errors import RunDirError
from jobs.private import defect
from jobs.run_events import run_events
from jobs.rundir import SweepDir, append_record, load_run, now, read_events
from jobs.runtime.gpus.gpu import keep_kernels
from jobs.submit.allocations.pilot import Pilot, Turn
from jobs.submit.launchers.pilot import job_script
from jobs.submit.preparation.code_store import link_code, stored
from jobs.submit.trust.integrity import refuse_changed, submitted_as
from tests.red_team.conftest import Stranger
from tests.support.cli import printed_words, small
from tests.support.paths import ROOT
from tests.support.waiting import wait_until

pytestmark = pytest.mark.red_team


def prepared_script(runs: Path, *overrides: str) -> Path:
    """Return the batch script of a run, as `sbatch` gets it."""
    given = [*small(runs), "cluster=generic_slurm", f"data.cache_dir={runs.parent}/cache", "name=r", *overrides]
    assert main(["submit", "launcher=script", *given]) == 0
    return runs / "s/r/job.sbatch"


def started(script: Path, where: Path) -> subprocess.CompletedProcess[str]:
    """Run a batch script as Slurm does, with an srun that only says that it started the ranks."""
    srun = where / "programs/srun"
    srun.parent.mkdir(exist_ok=True)
    srun.write_text("#!/bin/bash\necho started\n")
    srun.chmod(0o755)
    env = os.environ | {"PATH": f"{srun.parent}:{os.environ['PATH']}"}
    return subprocess.run(["bash", script], env=env, capture_output=True, text=True, check=False)


def snapshot(script: Path) -> Path:
    """The code of a run, whose files its owner makes writable."""
    code = (script.parent / "code").resolve()
    for path in code.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    return code


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o027, 0o077])
def test_nobody_else_can_change_or_read_a_snapshot_whatever_the_umask(umask: int, tmp_path: Path) -> None:
    previous = os.umask(umask)
    try:
        code = (prepared_script(tmp_path / "runs").parent / "code").resolve()
    finally:
        os.umask(previous)
    modes = {(path.is_dir(), stat.S_IMODE(path.lstat().st_mode)) for path in (code.parent, code, *code.rglob("*"))}
    assert modes == {(True, 0o700), (False, 0o400)}


def replaced(code: Path) -> None:
    shutil.copytree(code, code.with_name("copy"))
    shutil.rmtree(code)
    code.with_name("copy").rename(code)
    with (code / "jobs/submit/requeue.py").open("a") as file:
        file.write("\n")


def sent_elsewhere(code: Path) -> None:
    shutil.copytree(code, code.parent / "elsewhere")
    shutil.rmtree(code)
    code.symlink_to("elsewhere")


def linked(code: Path) -> None:
    (code / "jobs/errors.py").unlink()
    (code / "jobs/errors.py").symlink_to("/dev/null")


def opened_to_a_group(code: Path) -> None:
    os.chown(code / "jobs", -1, 4242)
    (code / "jobs").chmod(0o770)


CHANGES: dict[str, Callable[[Path], object]] = {
    "a file was changed": lambda code: (code / "sbatch/__init__.py").write_text("# changed"),
    "a file was added": lambda code: (code / "sitecustomize.py").write_text(""),
    "a file was removed": lambda code: (code / "jobs/errors.py").unlink(),
    "a file became a link": linked,
    "a file belongs to somebody else": lambda code: os.chown(code / "jobs/errors.py", 4242, 4242),
    "a folder belongs to somebody else": lambda code: os.chown(code / "jobs", 4242, 4242),
    "others may write a file": lambda code: (code / "jobs/run.py").chmod(0o666),
    "a group may write a folder": opened_to_a_group,
    "it was replaced": replaced,
    "it became a link": sent_elsewhere,
    "it is gone": shutil.rmtree,
}


@pytest.mark.skipif(os.geteuid() != 0, reason="giving files away needs root")
def test_a_job_whose_snapshot_is_not_the_submitted_one_ends_before_any_of_its_code_runs(tmp_path: Path) -> None:
    script = prepared_script(tmp_path / "runs")
    code, sound = snapshot(script), tmp_path / "sound"
    shutil.copytree(code, sound)
    witness = tmp_path / "witness"
    assert "started\n" in started(script, tmp_path).stdout
    for name, change in CHANGES.items():
        # Whatever else was changed, code that runs leaves a trace.
        with (code / "jobs/__init__.py").open("a") as file:
            file.write(f"\nopen({str(witness)!r}, 'w')\n")
        change(code)
        refused = started(script, tmp_path)
        assert (refused.returncode, witness.exists()) == (1, False), name
        assert "started\n" not in refused.stdout, name
        assert refused.stderr.startswith(f"slurmscale: not started: {code}"), (name, refused.stderr)
        code.unlink() if code.is_symlink() else shutil.rmtree(code, ignore_errors=True)
        shutil.copytree(sound, code)
    assert "started\n" in started(script, tmp_path).stdout


def test_a_local_queue_does_not_start_changed_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = prepared_script(tmp_path / "runs")
    sweep = SweepDir(tmp_path / "runs/s")
    (snapshot(script) / "jobs/run.py").write_text("")
    queue = [sys.executable, "-m", "jobs.submit.local_queue", str(sweep.path)]
    subprocess.run(queue, cwd=ROOT, input=json.dumps(submitted_as([sweep.run("r")])), text=True, check=True)
    (failed,) = [event for event in run_events(sweep.run("r")) if event["event"] == "failed"]
    assert failed["cause"] == "launch_failure"
    assert "is not the code that was submitted" in failed["error"]
    assert main(["resume", "--launcher", "local", str(sweep.path)]) == 2
    assert "is not the code that was submitted" in printed_words(capsys)


def test_a_local_queue_starts_only_the_code_that_a_run_was_submitted_with(tmp_path: Path) -> None:
    script = prepared_script(tmp_path / "runs")
    sweep, submitted = SweepDir(tmp_path / "runs/s"), snapshot(script).name
    codes = submitted_as([sweep.run("r")])
    led_to_other_code(sweep)
    queue = [sys.executable, "-m", "jobs.submit.local_queue", str(sweep.path)]
    subprocess.run(queue, cwd=ROOT, input=json.dumps(codes), text=True, check=True)
    (failed,) = [event for event in run_events(sweep.run("r")) if event["event"] == "failed"]
    assert (failed["cause"], f"was submitted with {submitted}" in failed["error"]) == ("launch_failure", True)


def test_a_pilot_starts_only_the_code_that_a_run_was_submitted_with(tmp_path: Path) -> None:
    prepared_script(tmp_path / "runs", "launcher.pilot_nodes=1", "launcher.pilot_wall_time_min=30")
    sweep = SweepDir(tmp_path / "runs/s")
    run, directory = load_run(sweep.run("r").config), sweep.run("r")
    submitted = directory.code.resolve().name
    script = job_script(sweep, [(run, directory)], "s")
    codes = submitted_as([directory])
    assert f"<<< '{json.dumps(codes)}'" in script
    led_to_other_code(sweep)
    pilot = Pilot.__new__(Pilot)
    pilot.sweep, pilot.codes, pilot.running = sweep, codes, {}
    pilot.launch(Turn(run, directory, 0), ["n1"])
    assert not pilot.running
    (failed,) = [event for event in run_events(directory) if event["event"] == "failed"]
    assert (failed["cause"], f"was submitted with {submitted}" in failed["error"]) == ("launch_failure", True)


@pytest.mark.parametrize("change", ["edited", "gone", "a link"])
def test_a_queue_and_a_pilot_start_only_the_configuration_that_was_submitted(change: str, tmp_path: Path) -> None:
    prepared_script(tmp_path / "runs", "launcher.pilot_nodes=1", "launcher.pilot_wall_time_min=30")
    sweep = SweepDir(tmp_path / "runs/s")
    directory = sweep.run("r")
    codes, run = submitted_as([directory]), load_run(directory.config)
    text = directory.config.read_text().replace("env: {}", f"env: {{PYTHONPATH: {tmp_path}}}")
    assert str(tmp_path / "witness") not in text
    (tmp_path / "sitecustomize.py").write_text(f"open({str(tmp_path / 'witness')!r}, 'w')")
    directory.config.unlink()
    if change == "edited":
        directory.config.write_text(text)
    if change == "a link":
        (tmp_path / "theirs.yaml").write_text(text)
        directory.config.symlink_to(tmp_path / "theirs.yaml")
    pilot = Pilot.__new__(Pilot)
    pilot.sweep, pilot.codes, pilot.running = sweep, codes, {}
    pilot.launch(Turn(run, directory, 0), ["n1"])
    assert not pilot.running
    queue = [sys.executable, "-m", "jobs.submit.local_queue", str(sweep.path)]
    with subprocess.Popen(queue, cwd=ROOT, stdin=subprocess.PIPE, text=True) as process:
        given = {"launcher": "local", "job_id": str(process.pid), "host": socket.gethostname(), "events_before": 0}
        append_record(sweep.submissions, {"event": "submitted", "run": "r", "time": now(), **given})
        process.communicate(json.dumps(codes))
    assert process.returncode == 0
    failed = [event for event in run_events(directory) if event["event"] == "failed"]
    assert len(failed) == 2
    words = "is damaged: it is missing" if change == "gone" else "was changed since the run was submitted"
    assert all(f"config.yaml {words}" in event["error"] for event in failed)
    assert not (tmp_path / "witness").exists()


WRITES, READS = 7, 5


def listed(path: Path, *, user: int | None = None, group: int | None = None, may: int = WRITES) -> None:
    """Give a user or group access to a path by an access control list of POSIX, as setfacl does."""
    none = 0xFFFFFFFF
    named = [(0x02, may, user)] if user is not None else []
    of_groups = [(0x08, may, group)] if group is not None else []
    entries = [(0x01, 7, none), *named, (0x04, 0, none), *of_groups, (0x10, may, none), (0x20, 0, none)]
    data = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(path, "system.posix_acl_access", data)
    except OSError as error:
        pytest.skip(f"the file system of {path} has no access control lists: {error.strerror}")


@pytest.mark.parametrize("who", ["user", "group"])
@pytest.mark.parametrize("place", ["", "s", "s/logs", "s/r/code/jobs"])
def test_a_path_that_an_access_control_list_lets_others_write_is_refused(
    place: str, who: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = prepared_script(tmp_path / "runs")
    assert "started\n" in started(script, tmp_path).stdout
    listed((tmp_path / "runs" / place).resolve(), **{who: 4242})
    refused = started(script, tmp_path)
    assert refused.returncode == 1
    assert "access control list" in refused.stderr or "is writable by group" in refused.stderr
    assert main(["resume", "--launcher", "local", str(tmp_path / "runs/s")]) == 2
    capsys.readouterr()


def test_an_access_control_list_that_lets_others_only_read_is_taken(tmp_path: Path) -> None:
    script = prepared_script(tmp_path / "runs")
    for place in ("", "s", "s/logs"):
        listed(tmp_path / "runs" / place, user=4242, may=READS)
    assert "started\n" in started(script, tmp_path).stdout


# Prints what getfacl of the package acl prints with the options of the check: that package may be missing here.
GETFACL = """\
import os, struct, sys
kinds = {1: "user:", 2: "user:", 4: "group:", 8: "group:", 16: "mask:", 32: "other:"}
data = os.getxattr(sys.argv[-1], "system.posix_acl_access")[4:]
for kind, may, number in struct.iter_unpack("<HHI", data):
    rights = "".join(letter if may & bit else "-" for letter, bit in zip("rwx", (4, 2, 1)))
    print(f"{kinds[kind]}{number if kind in (2, 8) else ''}:{rights}")
"""
OWNER, USER, GROUP, NAMED_GROUP, MASK, OTHER = 1, 2, 4, 8, 16, 32
ME, MY_GROUP, NOBODY = os.getuid(), os.getgid(), 0xFFFFFFFF


def with_list(
    path: Path, *entries: tuple[int, int, int], mask: int = 7, default: bool = False, mode: int | None = None
) -> None:
    """Give a path an access control list, or the one that what is made in it inherits."""
    every = sorted([(OWNER, 7, NOBODY), (GROUP, 0, NOBODY), (MASK, mask, NOBODY), (OTHER, 0, NOBODY), *entries])
    data = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in every)
    try:
        os.setxattr(path, f"system.posix_acl_{'default' if default else 'access'}", data)
    except OSError as error:
        pytest.skip(f"the file system of {path} has no access control lists: {error.strerror}")
    if mode is not None:
        path.chmod(mode)


REFUSED: dict[str, Callable[[Path], None]] = {
    "a user may write": lambda path: with_list(path, (USER, 7, 4242)),
    "a user may write and not read": lambda path: with_list(path, (USER, 2, 4242)),
    "a group may write": lambda path: with_list(path, (NAMED_GROUP, 6, 4242)),
    "the group root may write": lambda path: with_list(path, (NAMED_GROUP, 7, 0 if MY_GROUP else 1)),
    "one of three may write": lambda path: with_list(path, (USER, 5, 4241), (USER, 5, 4242), (USER, 7, 4243)),
    "a user whose id ends as mine": lambda path: with_list(path, (USER, 7, int(f"42{ME}"))),
    "a user whose id begins as mine": lambda path: with_list(path, (USER, 7, int(f"9{ME}9"))),
    "myself and another one": lambda path: with_list(path, (USER, 7, ME), (USER, 7, 4242)),
    "a sticky directory": lambda path: with_list(path, (USER, 7, 4242), mode=0o1770),
    "a directory with setgid": lambda path: with_list(path, (USER, 7, 4242), mode=0o2770),
    "all users by the mode": lambda path: path.chmod(0o777),
    "all users of a sticky directory": lambda path: path.chmod(0o1777),
    "other users by the list": lambda path: path.chmod(0o702),
}
TAKEN: dict[str, Callable[[Path], None]] = {
    "a private one": lambda path: path.chmod(0o700),
    "a user may read": lambda path: with_list(path, (USER, 5, 4242), mask=5),
    "the mask forbids to write": lambda path: with_list(path, (USER, 7, 4242), mask=5),
    "the mask forbids all": lambda path: with_list(path, (USER, 7, 4242), (NAMED_GROUP, 7, 4242), mask=0),
    "a mask that nobody uses": lambda path: with_list(path, (USER, 5, 4242)),
    "myself": lambda path: with_list(path, (USER, 7, ME)),
    "root": lambda path: with_list(path, (USER, 7, 0)),
    "what is made in it is for others": lambda path: with_list(path, (USER, 7, 4242), default=True),
    "mode 0750": lambda path: path.chmod(0o750),
    "read only": lambda path: path.chmod(0o500),
    "setgid": lambda path: path.chmod(0o2700),
}


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A private sweep below a directory of others, where getfacl can be run."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "getfacl").write_text(f"#!{sys.executable} -S\n{GETFACL}")
    (programs / "getfacl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    (tmp_path / "runs/s/logs").mkdir(parents=True, mode=0o700)
    for path in (tmp_path / "runs", tmp_path / "runs/s"):
        path.chmod(0o700)
    return tmp_path / "runs/s"


@pytest.mark.parametrize("how", REFUSED)
def test_a_directory_that_others_may_write_in_whatever_way_is_refused(how: str, sweep: Path) -> None:
    REFUSED[how](sweep / "logs")
    with pytest.raises(RunDirError, match="is writable by"):
        refuse_changed(sweep, None)


@pytest.mark.parametrize("how", TAKEN)
def test_a_directory_that_nobody_else_may_write_is_taken(how: str, sweep: Path) -> None:
    TAKEN[how](sweep)
    refuse_changed(sweep, None)
    if how == "what is made in it is for others":
        (sweep / "made").mkdir(mode=0o700)
        refuse_changed(sweep / "made", None)
        assert not (sweep / "made").stat().st_mode & 0o070


@pytest.mark.parametrize("program", ["#!/bin/sh\nexit 1\n", "#!/no/such/program\n", None])
def test_a_list_that_cannot_be_read_is_refused(program: str | None, sweep: Path) -> None:
    with_list(sweep, (USER, 7, ME))
    refuse_changed(sweep, None)
    file = Path(shutil.which("getfacl") or "")
    if program is None:
        file.unlink()
        if shutil.which("getfacl"):
            pytest.skip("getfacl is installed")
    else:
        file.write_text(program)
    with pytest.raises(RunDirError, match="has an access control list that may let others write"):
        refuse_changed(sweep, None)


def test_a_stranger_with_an_access_control_list_gets_no_job_to_start_what_she_wrote(
    stranger: Stranger, project: Path
) -> None:
    runs = project / "runs"
    script = prepared_script(runs)
    for place in (runs, runs / "s", runs / "s/r"):
        listed(place, user=int(stranger.run("id", "-u").stdout))
    assert stranger.run("mv", runs / "s/r/config.yaml", runs / "s/r/moved.yaml").returncode == 0
    refused = started(script, project)
    assert refused.returncode == 1
    assert "access control list" in refused.stderr


def test_the_writers_of_a_list_of_nfs4_are_named_in_a_warning(tmp_path: Path) -> None:
    script = prepared_script(tmp_path / "runs")
    program = tmp_path / "programs/nfs4_getfacl"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/sh\necho 'A::OWNER@:rwaDxtTnNcCoy'\necho 'A:g:team@site:rxtncy'\necho 'A::mallory@site:rwax'\n"
    )
    program.chmod(0o755)
    done = started(script, tmp_path)
    assert "started\n" in done.stdout
    assert "slurmscale: warning: " in done.stderr
    assert "(A::mallory@site:rwax)" in done.stderr


def test_the_first_screen_of_a_batch_script_calls_one_program_that_is_checked_itself(tmp_path: Path) -> None:
    script = prepared_script(tmp_path / "runs")
    lines = script.read_text().splitlines()
    (called,) = [number for number, line in enumerate(lines) if line.startswith("refuse_changed ")]
    assert called < 40
    check = snapshot(script) / "jobs/submit/trust/integrity.sh"
    sound = check.read_text()
    check.write_text("refuse_changed() { :; }\n")
    assert "is gone or was changed" in started(script, tmp_path).stderr
    # The check may be changed together with the name of the code: the digest in the script stays.
    check.write_text(sound)
    assert "started\n" in started(script, tmp_path).stdout


def led_to_other_code(sweep: SweepDir) -> None:
    """Plant a sound snapshot of other code, and let the run lead to it."""
    other = stored(sweep, {Path("sitecustomize.py"): b""})
    link_code(sweep.run("r"), other, sweep.run("r").path)


def test_output_is_written_through_no_link(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = prepared_script(tmp_path / "runs")
    logs = tmp_path / "runs/s/logs"
    (tmp_path / "elsewhere").mkdir()
    logs.rmdir()
    logs.symlink_to(tmp_path / "elsewhere")
    words = f"{logs} is a link, and output is never written through one. Remove it."
    assert words in started(script, tmp_path).stderr
    for command in (["resume", "--launcher", "local", str(logs.parent)], ["submit", *small(tmp_path / "runs")]):
        assert main(command) == 2
        assert words in printed_words(capsys)
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.slurm
@pytest.mark.usefixtures("empty_queue")
def test_a_job_of_slurm_whose_code_changed_while_it_waited_ends_and_status_shows_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    later = "cluster.sbatch={begin: now+1hour}"
    assert main(["submit", *small(tmp_path), "cluster=generic_slurm", "name=r", later]) == 0
    sweep, witness = SweepDir(tmp_path / "s"), tmp_path / "witness"
    with (snapshot(sweep.run("r").batch_script) / "jobs/__init__.py").open("a") as file:
        file.write(f"\nopen({str(witness)!r}, 'w')\n")
    (submitted,) = [event for event in read_events(sweep.submissions) if event["event"] == "submitted"]
    subprocess.run(["scontrol", "update", f"JobId={submitted['job_id']}", "StartTime=now"], check=True)
    wait_until(lambda: not subprocess.run(["squeue", "-h"], capture_output=True, check=True).stdout)
    assert main(["status", str(sweep.path)]) == 0
    shown = printed_words(capsys)
    assert "is not the code that was submitted" in shown
    assert "1 run: 1 failed" in shown
    assert not witness.exists()


def test_planted_bytecode_is_not_run(tmp_path: Path) -> None:
    script = prepared_script(tmp_path / "runs")
    module = snapshot(script) / "jobs/__init__.py"
    sound = module.read_text()
    witness = tmp_path / "witness"
    module.write_text(f"open({str(witness)!r}, 'w')")
    # Python reads this bytecode whatever the file contains.
    py_compile.compile(str(module), doraise=True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    module.write_text(sound)
    assert "started\n" in started(script, tmp_path).stdout
    assert not witness.exists()


@pytest.mark.parametrize("how", ["by its group", "by all"])
def test_a_stranger_who_can_replace_the_sweep_gets_no_job_to_start_it(
    how: str, stranger: Stranger, project: Path
) -> None:
    runs = project / "team/runs"
    script = prepared_script(runs)
    code, kept = snapshot(script), project / "job.sbatch"
    shutil.copy(script, kept)
    if how == "by its group":
        os.chown(project / "team", 0, int(stranger.run("id", "-g").stdout))
    (project / "team").chmod(0o775 if how == "by its group" else 0o757)
    moved = stranger.run("mv", runs, project / "team/theirs")
    assert moved.returncode == 0, moved.stderr
    planted = f'mkdir -p {code}/jobs; echo \'open("{project}/team/witness", "w")\' > {code}/jobs/__init__.py'
    assert stranger.run("sh", "-c", planted).returncode == 0
    refused = started(kept, project)
    assert refused.returncode == 1
    assert "the code of the run, is gone or was changed. Submit the run again." in refused.stderr
    assert not (project / "team/witness").exists()


def test_a_sweep_below_the_directory_of_a_stranger_is_refused(
    stranger: Stranger, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project.chmod(0o1777)
    assert stranger.run("mkdir", "-m", "777", project / "free").returncode == 0
    (project / "free/mine").mkdir()
    assert stranger.run("chmod", "755", project / "free").returncode == 0
    assert main(["submit", "launcher=script", *small(project / "free/mine/runs"), "name=r"]) == 2
    assert f"{project}/free belongs to user " in " ".join("".join(capsys.readouterr()).split())


@pytest.mark.parametrize("attack", ["none", "a link", "open to others", "of a stranger", "a file"])
@pytest.mark.parametrize("where", ["a home", "the temporary files of a node"])
def test_compiled_kernels_are_not_read_from_a_cache_that_a_stranger_made(
    where: str, attack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if attack == "of a stranger" and os.geteuid() != 0:
        pytest.skip("giving a directory away needs root")
    (tmp_path / "node").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "node"))
    if where == "a home":
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        planted = tmp_path / "cache/slurmscale/kernels"
    else:
        monkeypatch.setenv("XDG_CACHE_HOME", "/proc/none")
        planted = tmp_path / f"node/slurmscale-{os.getuid()}"
    planted.parent.mkdir(parents=True, exist_ok=True)
    if attack == "a file":
        planted.touch()
    else:
        planted.mkdir(mode=0o700)
    if attack == "a link":
        planted.rename(tmp_path / "theirs")
        planted.symlink_to(tmp_path / "theirs")
    if attack == "open to others":
        planted.chmod(0o777)
    if attack == "of a stranger":
        os.chown(planted, 4242, 4242)
    for variable in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        monkeypatch.delenv(variable)
    keep_kernels()
    used = {Path(os.environ.pop(f"{compiler}_CACHE_DIR")) for compiler in ("TORCHINDUCTOR", "TRITON")}
    (private,) = {path.parent.parent if where == "a home" and attack == "none" else path.parents[2] for path in used}
    assert (private == planted) == (attack == "none")
    assert defect(private) == ""

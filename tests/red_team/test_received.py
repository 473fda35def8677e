"""A stranger's folder: looking at it runs nothing, and running it needs a decision."""

from __future__ import annotations

import grp
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from jobs.cli import main
from jobs.plan.compose import compose
from jobs.rundir import RunDir, SweepDir, append_record, event_record, now
from jobs.submit.preparation.code_store import files_of, link_code, stored
from jobs.submit.trust.own_sweeps import state_directory
from jobs.submit.trust.received import executed_by
from tests.support.cli import printed_words, small
from tests.support.fake_runs import a_run, finished_run
from tests.support.paths import ROOT
from tests.support.waiting import limit_s

pytestmark = pytest.mark.red_team


def received(where: Path, *overrides: str) -> SweepDir:
    """A folder that somebody else made and this user copied: of the same content, at another place."""
    given = [*small(where / "theirs"), "launcher=script", "cluster=generic_slurm", "name=r", *overrides]
    assert main(["submit", *given]) == 0
    shutil.copytree(where / "theirs", where / "copy", symlinks=True)
    return SweepDir(where / "copy/s")


def wait_in_backlog(sweep: SweepDir) -> None:
    waiting = {
        "time": now(),
        "event": "waiting",
        "run": "r",
        "limit": "QOSMaxSubmitJobPerUserLimit",
        "events_before": 1,
    }
    append_record(sweep.submissions, waiting)


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with the calls of commands that change something in Slurm."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("sbatch", "scancel", "scontrol"):
        (programs / name).write_text(f'#!/bin/bash\necho {name} "$@" >> {tmp_path}/calls\n')
        (programs / name).chmod(0o755)
    for name in ("squeue", "sacct"):
        (programs / name).write_text("#!/bin/bash\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return tmp_path / "calls"


@pytest.mark.parametrize("command", [["status"], ["status", "--all"], ["logs"], ["report"]])
def test_looking_at_a_received_sweep_submits_nothing_of_it(
    command: list[str], tmp_path: Path, calls: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = received(tmp_path)
    wait_in_backlog(sweep)
    before = sweep.submissions.read_bytes()
    main([*command, str(sweep.run("r").path if command == ["logs"] else sweep.path)])
    assert not calls.exists()
    assert sweep.submissions.read_bytes() == before
    if command == ["status"]:
        assert "not submitted by you, so only shown" in printed_words(capsys)


def test_watching_a_received_sweep_submits_nothing_of_it(tmp_path: Path, calls: Path) -> None:
    sweep = received(tmp_path)
    wait_in_backlog(sweep)
    before = sweep.submissions.read_bytes()
    for command in (["watch"], ["resume", "--wait"]):
        watching = subprocess.Popen(
            [sys.executable, "-c", f"from jobs.cli import main; main({[*command, str(sweep.path)]!r})"],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        assert watching.stdout is not None
        assert watching.stdout.readline()
        watching.kill()
        watching.communicate()
    assert not calls.exists() or calls.read_text().splitlines() == []
    assert sweep.submissions.read_bytes() == before


def test_resume_shows_what_a_received_sweep_would_run_and_asks_for_trust(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["cluster.setup=[source /opt/site.sh]", "cluster.modules=[cuda/12]", "cluster.python=/opt/python",
            "cluster.container=/opt/image.sif", "cluster.pbs={l: project}", "network.library=/opt/libnccl.so.2",
            "network.env={NCCL_TUNER_PLUGIN: /opt/tuner.so}"]  # fmt: skip
    sweep = received(tmp_path, *more)
    changed = sweep.run("r").code.resolve() / "jobs/run.py"
    changed.chmod(0o600)
    changed.write_text("")
    capsys.readouterr()
    before = {path: path.read_bytes() for path in sweep.path.rglob("*") if path.is_file() and path != sweep.lock}
    assert main(["resume", str(sweep.path)]) == 2
    shown = printed_words(capsys)
    for words in (
        "/opt/python -u -m jobs.run", "not the installed code: 1 files differ (jobs/run.py)",
        "set-up line: source /opt/site.sh", "module: cuda/12", "container: /opt/image.sif", "PBS option: l=project",
        "library of collectives: /opt/libnccl.so.2", "environment: NCCL_TUNER_PLUGIN=/opt/tuner.so",
        f"run `slurmscale resume --trust {sweep.path}`",
    ):  # fmt: skip
        assert words in shown
    assert {path: path.read_bytes() for path in before} == before
    assert main(["resume", "--trust", str(sweep.path)]) == 2
    assert "is not the code that was submitted" in printed_words(capsys), "trust is no reason to run changed code"


def test_the_programs_that_would_serve_a_trained_model_are_shown(tmp_path: Path) -> None:
    serve = "stages.serve"
    (point,) = compose([
        *small(tmp_path), "stages=all_and_serve", "data.held_out_samples=8", "job.export=true", "name=r",
        "model.max_sequence_length=512", f"{serve}.engine.server.command=[/opt/server]",
        f"{serve}.engine.server.python=/opt/python", f"{serve}.engine.server.env={{HOOK: /opt/hook}}",
        f"{serve}.serving.client_command=[/opt/load]", f"{serve}.serving.client_python=/opt/load/python",
    ], multirun=False)  # fmt: skip
    shown = set(executed_by(point.run, RunDir(tmp_path)))
    assert shown >= {
        "server: /opt/server", "Python of the server: /opt/python", "server environment: HOOK=/opt/hook",
        "load generator: /opt/load", "Python of the load generator: /opt/load/python",
    }  # fmt: skip


def test_resume_shows_what_others_can_change_of_that_which_would_run(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = project / "shared"
    shared.mkdir()
    for name in ("python", "image.sif"):
        (shared / name).touch()
    shared.chmod(0o777)
    (project / "private").mkdir()
    (project / "private/python").symlink_to(shared / "python")
    for python, container in ((f"{shared}/python -X dev", f"{shared}/image.sif"), (f"{project}/private/python", None)):
        where = project / python.split("/")[-2]
        where.mkdir(exist_ok=True)
        given = [f"cluster.python={python!r}", f"cluster.container={container or 'null'}"]
        sweep = received(project / f"of-{where.name}", *given)
        sweep.run("r").checkpoints.symlink_to(project / "elsewhere")
        capsys.readouterr()
        assert main(["resume", str(sweep.path)]) == 2
        shown = printed_words(capsys)
        assert f"others can change it: {shared} is writable by other users (mode 777)" in shown
        assert shown.count("others can change it") == (2 if container else 1)
        assert f"checkpoints are read, written and removed in: {project}/elsewhere" in shown


def test_trust_is_remembered_and_a_replaced_folder_is_not_trusted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = received(tmp_path)
    assert main(["resume", str(sweep.path)]) == 2
    assert "equal to the installed code" in printed_words(capsys)
    assert main(["resume", "--trust", str(sweep.path)]) == 0
    script = (sweep.run("r").path / "job.sbatch").read_text()
    assert str(sweep.path) in script
    assert str(tmp_path / "theirs") not in script, "their directory is neither checked nor written by my job"
    assert main(["resume", str(sweep.path)]) == 0
    shutil.rmtree(sweep.path)
    shutil.copytree(tmp_path / "theirs/s", sweep.path, symlinks=True)
    assert main(["resume", str(sweep.path)]) == 2
    assert "was not submitted by you" in printed_words(capsys)


def in_backlog(where: Path) -> SweepDir:
    """A sweep of this user with a run that waits for Slurm to accept more jobs."""
    given = [*small(where), "launcher=script", "cluster=generic_slurm", "name=r"]
    assert main(["submit", *given]) == 0
    wait_in_backlog(SweepDir(where / "s"))
    return SweepDir(where / "s")


@pytest.mark.parametrize("change", ["code", "configuration"])
def test_a_changed_sweep_with_the_id_of_ones_own_is_not_launched(
    change: str, tmp_path: Path, calls: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = in_backlog(tmp_path)
    run = sweep.run("r")
    if change == "code":
        # A sound snapshot: its name is the digest of its files.
        planted = files_of(run.code_snapshot) | {Path("sitecustomize.py"): b"print('planted')"}
        link_code(run, stored(sweep, planted), run.path)
    else:
        run.config.write_text(run.config.read_text().replace("setup: []", "setup: [touch planted]"))
        assert "touch planted" in run.config.read_text()
    for command in ("status", "resume"):
        main([command, str(sweep.path)])
        assert f"{run.path} executes other code or settings than you submitted" in printed_words(capsys)
    assert not calls.exists()
    assert main(["resume", "--trust", "--launcher", "script", str(sweep.path)]) == 2
    assert ("not the installed code" if change == "code" else "touch planted") in printed_words(capsys)


def test_a_copy_of_ones_own_sweep_at_its_place_is_not_ones_own(
    tmp_path: Path, calls: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = in_backlog(tmp_path)
    shutil.copytree(sweep.path, tmp_path / "copy", symlinks=True)
    sweep.path.rename(tmp_path / "aside")
    (tmp_path / "copy").rename(sweep.path)
    main(["status", str(sweep.path)])
    assert "not submitted by you, so only shown" in printed_words(capsys)
    assert main(["resume", str(sweep.path)]) == 2
    assert "moved or copied" in printed_words(capsys)
    assert not calls.exists()


def test_an_unknown_home_directory_of_the_record_is_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "~nosuchuser")
    assert main(["submit", *small(tmp_path), "launcher=local", "name=r"]) == 2
    assert "the record of your sweeps, cannot be used: this machine does not know that home" in printed_words(capsys)


PATH_CHARACTERS = {
    # Python would run the sitecustomize.py of another directory.
    "a:b": "a colon, where Python would split PYTHONPATH",
    # Slurm's %j %A %a %t %u, of which submitit expands some in the paths of launcher=local.
    "a%j": "a %, which Slurm and submitit would expand in the names of logs",
    "50%": "a %, which Slurm and submitit would expand in the names of logs",
}


@pytest.mark.parametrize("name", PATH_CHARACTERS)
def test_the_path_of_a_sweep_is_read_as_it_is_by_python_and_slurm(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for given in ([f"sweep={name}", f"runs_dir={tmp_path}"], ["sweep=s", f"runs_dir={tmp_path}/{name}"]):
        for launcher in ("local", "dry", "pilot"):
            assert main(["plan", "cluster=generic_slurm", f"launcher={launcher}", *given]) == 2
            assert f"has {PATH_CHARACTERS[name]}. Set " in printed_words(capsys)
    sweep = received(tmp_path)
    (tmp_path / name).mkdir()
    sweep.path.rename(tmp_path / name / "s")
    assert main(["resume", "--trust", "--launcher", "local", f"{tmp_path}/{name}/s"]) == 2
    assert f"{tmp_path}/{name}/s has {PATH_CHARACTERS[name]}" in printed_words(capsys)


def test_a_link_does_not_hide_a_colon(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a:b").mkdir()
    (tmp_path / "link").symlink_to("a:b")
    assert main(["submit", "launcher=dry", "sweep=s", f"runs_dir={tmp_path}/link"]) == 2
    assert f"{tmp_path}/a:b/s has a colon" in printed_words(capsys)


@pytest.mark.parametrize("name", ["a%j", "%a-%A", "%t"])
def test_logs_are_read_where_they_lie_below_any_name(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = finished_run(tmp_path / name / "s", a_run("r"))
    sweep = SweepDir(run.path.parent)
    submitted = {"run": "r", "launcher": "slurm", "job_id": "7", "events_before": 0, "host": "node0", "time": now()}
    append_record(sweep.submissions, {"event": "submitted"} | submitted)
    sweep.logs.mkdir()
    (sweep.logs / "7_0_log.out").write_text("printed by the rank\n")
    assert main(["logs", str(run.path)]) == 0
    assert capsys.readouterr().out == "printed by the rank\n"


def test_a_trusted_group_is_shown_and_is_one_of_the_user(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    groups = {grp.getgrgid(number).gr_name for number in os.getgroups()}
    mine = grp.getgrgid(os.getgid()).gr_name
    foreign = next(group.gr_name for group in grp.getgrall() if group.gr_name not in groups | {mine})
    sweep = received(tmp_path, f"cluster.trusted_group={mine}")
    config = sweep.run("r").config
    config.write_text(config.read_text().replace(f"trusted_group: {mine}", f"trusted_group: {foreign}"))
    assert main(["resume", str(sweep.path)]) == 2
    assert f"members who may change its directories: {foreign}" in printed_words(capsys)
    assert main(["resume", "--trust", str(sweep.path)]) == 2
    assert f"cluster.trusted_group={foreign}: you are not a member of this group." in printed_words(capsys)


def test_resume_keeps_the_order_of_the_submission(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = [*small(tmp_path), "launcher=script", "cluster=generic_slurm"]
    for name in ("b", "a", "c"):
        assert main(["submit", *given, f"name={name}"]) == 0
    sweep = SweepDir(tmp_path / "s")
    for name in ("b", "c", "a"):
        append_record(sweep.submissions, event_record("waiting", run=name, limit="x", events_before=1))
    append_record(sweep.submissions, event_record("cancelled", runs=["a", "b", "c"]))
    printed_words(capsys)
    assert main(["resume", "--launcher", "script", str(sweep.path)]) == 0
    scripts = re.findall(r"sbatch \S+/s/(.)/job.sbatch", printed_words(capsys))
    assert scripts == ["b", "c", "a"]


def test_nothing_is_submitted_into_a_received_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = received(tmp_path)
    given = [*small(sweep.path.parent), "launcher=local", "cluster=generic_slurm", "name=other"]
    assert main(["submit", *given]) == 2
    assert f"{sweep.path} exists and was not submitted by you, or is a preview." in printed_words(capsys)
    assert not sweep.run("other").path.exists()


def test_the_record_and_the_directories_above_it_are_not_writable_by_others_whatever_the_umask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home/.local/state"))
    before = os.umask(0)
    try:
        made = state_directory()
    finally:
        os.umask(before)
    for each in (made, *made.parents[:3]):
        assert each.stat().st_mode & 0o022 == 0, each


@pytest.mark.parametrize("attack", ["a link", "open to others", "of a stranger"])
def test_a_record_that_others_can_write_is_refused(
    attack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    (state / "slurmscale").mkdir(mode=0o700, parents=True)
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    if attack == "a link":
        (state / "slurmscale").rename(state / "theirs")
        (state / "slurmscale").symlink_to("theirs")
    elif attack == "open to others":
        (state / "slurmscale").chmod(0o707)
    elif os.geteuid() == 0:
        os.chown(state / "slurmscale", 4242, 4242)
    else:
        pytest.skip("giving a directory away needs root")
    assert main(["submit", *small(tmp_path), "launcher=local", "name=r"]) == 2
    assert f"{state}/slurmscale, the record of your sweeps, cannot be used: " in printed_words(capsys)
    assert not (tmp_path / "s/r").exists()


def test_a_lock_that_somebody_holds_in_tmp_stops_no_local_queue(tmp_path: Path) -> None:
    finished_run(tmp_path / "s", a_run("r"))
    with FileLock(tmp_path / f"slurmscale-local-{os.getuid()}.lock"):
        queue = [sys.executable, "-m", "jobs.submit.local_queue", str(tmp_path / "s")]
        env = os.environ | {"TMPDIR": str(tmp_path)}
        subprocess.run(queue, cwd=ROOT, env=env, input='{"r": "code-0"}', text=True, check=True, timeout=limit_s(30))

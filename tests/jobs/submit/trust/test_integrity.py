"""Sweep directories belong to one user: nobody else can put files there that a job would execute."""

from __future__ import annotations

import grp
import os
import pwd
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.cli import main
from jobs.errors import RunDirError
from jobs.rundir import code_store
from jobs.submit.trust.integrity import refuse_changed
from tests.support.cli import printed, small


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o022])
def test_a_sweep_is_private_whatever_the_umask(umask: int, tmp_path: Path) -> None:
    previous = os.umask(umask)
    try:
        assert main(["submit", "launcher=dry", f"runs_dir={tmp_path}/new/runs", "sweep=s"]) == 0
    finally:
        os.umask(previous)
    modes = {
        path: stat.S_IMODE((tmp_path / path).stat().st_mode) for path in ("new/runs", "new/runs/s", "new/runs/s/logs")
    }
    assert modes == {"new/runs": 0o755, "new/runs/s": 0o700, "new/runs/s/logs": 0o700}


@pytest.mark.parametrize(("shared", "mode"), [("runs", 0o777), ("runs/s", 0o777), ("runs/s/logs", 0o1777)])
def test_a_sweep_that_others_can_write_is_neither_launched_nor_started(
    shared: str, mode: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = [*small(tmp_path / "runs"), f"data.cache_dir={tmp_path}/cache", "cluster=generic_slurm"]
    assert main(["submit", "launcher=script", *overrides, "name=r"]) == 0
    fake = tmp_path / "srun"
    fake.write_text("#!/bin/bash\necho started\n")
    fake.chmod(0o755)

    def started() -> subprocess.CompletedProcess[str]:
        env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
        return subprocess.run(["bash", tmp_path / "runs/s/r/job.sbatch"], env=env, capture_output=True,
                              text=True, check=False)  # fmt: skip

    assert "started\n" in started().stdout
    (tmp_path / shared).chmod(mode)
    printed(capsys)
    assert main(["resume", str(tmp_path / "runs/s")]) == 2
    words = f"{tmp_path / shared} is writable by other users (mode {mode:o}), who could inject code into your jobs."
    assert f"{words} Run `chmod go-w {tmp_path / shared}`, or set runs_dir=PATH." in printed(capsys)
    refused = started()
    assert refused.returncode == 1
    assert words in refused.stderr
    assert "started\n" not in refused.stdout


def test_a_sticky_directory_above_is_good_enough(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs").chmod(0o1777)
    assert main(["submit", "launcher=dry", f"runs_dir={tmp_path}/runs", "sweep=s"]) == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a directory away needs root")
def test_a_sweep_of_somebody_else_is_not_started(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["submit", "launcher=script", *small(tmp_path / "runs"), "name=r"]) == 0
    os.chown(tmp_path / "runs/s/logs", 4242, -1)
    printed(capsys)
    assert main(["resume", str(tmp_path / "runs/s")]) == 2
    assert f"{tmp_path}/runs/s/logs belongs to user 4242" in printed(capsys)


@pytest.fixture
def member_of_users() -> Iterator[grp.struct_group]:
    """A group that this process is a member of, and no private one."""
    group, before = grp.getgrnam("users"), os.getgroups()
    os.setgroups([*before, group.gr_gid])
    yield group
    os.setgroups(before)


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a directory to another group needs root")
def test_a_project_space_of_a_group_is_used_only_if_the_group_is_trusted(
    member_of_users: grp.struct_group, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    os.chown(project, 4242, member_of_users.gr_gid)
    project.chmod(0o2770)
    overrides = ["launcher=script", *small(project / "mine/runs"), "name=r"]
    words = (
        f"{project} is writable by group users (mode 2770), who could inject code into your jobs. Run `chmod g-w "
        f"{project}`, or set cluster.trusted_group=users if you trust all its members, or runs_dir=PATH."
    )
    for refused, remedy in [
        ([], words),
        (["cluster.trusted_group=root"], words),
        (["cluster.trusted_group=daemon"], "cluster.trusted_group=daemon: you are not a member of this group. "),
        (["cluster.trusted_group=nosuch"], "cluster.trusted_group=nosuch: "),
    ]:
        assert main(["submit", *overrides, *refused]) == 2
        assert remedy in printed(capsys)
        assert not list(project.iterdir()), "nothing is prepared"
    assert main(["submit", *overrides, "cluster.trusted_group=users"]) == 0
    sweep = project / "mine/runs/s"
    assert f"\nrefuse_changed users {sweep} {code_store(sweep.parent)}/code-" in (sweep / "r/job.sbatch").read_text()
    refuse_changed(sweep, "users", [(sweep / "r/code").resolve()])
    with pytest.raises(RunDirError, match="is writable by group users"):
        refuse_changed(sweep, None)
    sweep.chmod(0o707)
    with pytest.raises(RunDirError, match="is writable by other users"):
        refuse_changed(sweep, "users")


def test_the_private_group_of_a_user_is_the_user(tmp_path: Path) -> None:
    user = pwd.getpwuid(os.getuid())
    if grp.getgrgid(user.pw_gid).gr_name != user.pw_name:
        pytest.skip("this user has no private group")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs").chmod(0o775)
    assert main(["submit", "launcher=dry", f"runs_dir={tmp_path}/runs", "sweep=s"]) == 0

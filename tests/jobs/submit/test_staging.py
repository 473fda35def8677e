"""The environment of the ranks on a disk of each node: packed once, unpacked once a node, never in the way of a run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from jobs.submit.preparation import staging
from jobs.submit.preparation.container import rank_python
from tests.support.composing import one
from tests.support.fake_runs import a_run
from tests.support.paths import ROOT
from tests.support.waiting import limit_s

SCRIPT = ROOT / staging.SCRIPT
SHOW = "import os, sys; print(sys.prefix, os.environ['SLURMSCALE_STAGED'], sep='|')"


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """The link to the archive of a small environment."""
    venv.create(tmp_path / "env", symlinks=True)
    store = tmp_path / "store"
    store.mkdir(mode=0o700)
    staging.write_archive(store / "env-1.tar", {"prefix": tmp_path / "env"})
    (store / "link").symlink_to("env-1.tar")
    return store / "link"


def start(link: Path, directory: Path) -> subprocess.Popen[str]:
    """Start a rank that prints its environment."""
    command = ["bash", str(SCRIPT), str(link), str(directory), sys.executable, "-c", SHOW]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def shown(rank: subprocess.Popen[str]) -> list[str]:
    """The environment in which a rank ran, and what it found of the copy."""
    printed, errors = rank.communicate(timeout=limit_s(60))
    assert rank.returncode == 0, errors
    return printed.strip().split("|")


@pytest.fixture
def venv_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The Python of an environment of its own, as the one that submits."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "env"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "env/bin/python"))
    return tmp_path / "env/bin/python"


@pytest.mark.usefixtures("venv_python")
def test_one_rank_of_a_node_unpacks_the_environment_and_all_run_the_copy(packed: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    copy = disk / f"slurmscale-{os.getuid()}/env-1"
    found = [shown(rank) for rank in [start(packed, disk) for _ in range(3)]]
    assert sorted(found) == [[f"{copy}/prefix", f"found in {copy}"]] * 2 + [[f"{copy}/prefix", f"unpacked in {copy}"]]
    assert shown(start(packed, disk)) == [f"{copy}/prefix", f"found in {copy}"], "a later start is warm"
    assert copy.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.usefixtures("venv_python")
def test_what_prevents_a_copy_is_on_record_and_the_rank_runs_its_python_where_it_is(
    packed: Path, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    assert shown(start(packed, disk))[1] == f"not staged: this node has no directory {disk}"
    disk.mkdir()
    assert shown(start(tmp_path / "none", disk))[1] == f"not staged: {tmp_path}/none leads to no archive"
    large = packed.parent / "env-2.tar"
    large.touch()
    os.truncate(large, 10**13)
    (packed.parent / "large").symlink_to(large.name)
    prefix, why = shown(start(packed.parent / "large", disk))
    assert (prefix, why.endswith(" GB needed)"), " GB are missing in " in why) == (sys.prefix, True, True)
    (packed.parent / "env-3.tar").write_text("no archive")
    (packed.parent / "broken").symlink_to("env-3.tar")
    assert "could not be unpacked in" in shown(start(packed.parent / "broken", disk))[1]
    (disk / f"slurmscale-{os.getuid()}").chmod(0o755)
    assert "is not a directory of yours that only you can enter" in shown(start(packed, disk))[1]


def test_an_environment_is_packed_once_until_it_changes(
    tmp_path: Path, venv_python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "env/lib/site-packages"
    (site / "own-1.dist-info").mkdir(parents=True)
    venv_python.parent.mkdir()
    venv_python.write_text("")
    (tmp_path / "elsewhere").mkdir()
    record = {"url": f"file://{tmp_path}/elsewhere", "dir_info": {"editable": True}}
    (site / "own-1.dist-info/direct_url.json").write_text(json.dumps(record))
    monkeypatch.setattr(sys, "path", [str(site)])
    monkeypatch.setattr(sys, "base_prefix", sys.prefix)
    run = one("cluster=generic_slurm", f"runs_dir={tmp_path}", "cluster.stage_environment=/tmp", "launcher=slurm").run
    (line,) = staging.packed([run])
    assert line.startswith(f"environment: {tmp_path}/env is on a local disk (")
    assert not staging.archive_link(run).exists()
    monkeypatch.setattr(staging, "LOCAL_TYPES", frozenset())
    line, left = staging.packed([run])
    assert "each node unpacks " in line
    assert left.startswith(f"environment: packages in {tmp_path}/elsewhere stay there (own-1.dist-info).")
    first = staging.archive_link(run).resolve()
    staging.packed([run])
    assert staging.archive_link(run).resolve() == first
    (site / "new.py").write_text("")
    staging.packed([run])
    assert staging.archive_link(run).resolve() != first
    assert first.exists(), "queued runs that lead to it are not hurt"


def test_ranks_start_by_the_script_only_where_it_is_asked_for() -> None:
    run = one("cluster=generic_slurm", "launcher=slurm", "cluster.stage_environment=/local/scratch").run
    words = rank_python(run)
    assert words.startswith('bash "${PYTHONPATH%%:*}"/jobs/submit/preparation/staged_python.sh ')
    assert words.endswith(f" /local/scratch {sys.executable}")
    assert rank_python(a_run()) == sys.executable

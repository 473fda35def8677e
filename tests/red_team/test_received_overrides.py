"""Overrides in a stranger's table or campaign: they set keys, and import, read and write nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.cli import main
from jobs.errors import ConfigError
from jobs.plan.compose import compose
from tests.support.paths import ROOT
from tests.support.waiting import limit_s

pytestmark = pytest.mark.red_team

STRANGE = (
    "hydra.searchpath=[pkg://received.notes]",
    "+hydra.searchpath=[pkg://received.notes]",
    "'hydra.searchpath'=[file:///tmp]",
    "hydra.sweeper.params.nodes='1,2'",
    "hydra.job.env_set.LD_PRELOAD=x",
    "hydra/launcher=joblib",
    "hydra/launcher@hydra.launcher=joblib",
    "+received.notes=x",
    "+job.foo=1",
    "~model",
    "~tune=halving",
    "model@model2=tiny",
    "model@_global_=tiny",
    "model=../../etc",
    "model=/etc/passwd",
    "model=nobody",
    "experiment=./notes",
    "job/../model=tiny",
    "data.path=${oc.env:SECRET}",
    "data.path=$\\{oc.env:SECRET\\}",
    "data.path='a${oc.env:SECRET}'",
    "cluster.env={A: '${oc.env:SECRET}'}",
    "cluster.modules=[a,'${oc.env:SECRET}']",
    "model=${oc.env:SECRET}",
    "nodes=1,2",
    "nodes=range(1,3)",
    "notes=x",
    "model=[tiny]",
)


@pytest.mark.parametrize("override", STRANGE)
def test_a_received_override_that_is_more_than_a_value_is_refused(
    override: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "only-here")
    with pytest.raises(ConfigError) as refused:
        compose(["nodes=1", override], multirun=False, received=True)
    assert "only-here" not in str(refused.value)
    assert override in str(refused.value) or f"{override.partition('=')[0]} is not a configuration key" in str(
        refused.value
    )


def test_a_received_override_sets_keys_and_chooses_files_as_always() -> None:
    overrides = ["model=pythia_14m", "nodes=2", "cluster.env.A=1_0", "cluster.env={B: x}", "+experiment=demo",
                 "job.clip_norm=null", "data.path='/a b'"]  # fmt: skip
    (received,) = compose(overrides, multirun=False, received=True)
    (own,) = compose([*overrides, f"sweep={received.run.sweep}"], multirun=False)
    assert received.run == own.run


def plant(folder: Path) -> None:
    """Modules that leave a file behind when they are imported: one of a package, and names that programs import."""
    (folder / "received").mkdir()
    for name in ("received/__init__", "received/notes", "rich", "numpy", "yaml", "pathlib", "hydra_plugins"):
        (folder / f"{name}.py").write_text(f"import os\nopen({str(folder / 'PWN')!r}, 'w').write(__name__)\n")


@pytest.mark.parametrize("path", [str(ROOT), f"{ROOT}:", f".:{ROOT}"])
def test_no_module_of_the_current_directory_is_imported(path: str, tmp_path: Path) -> None:
    plant(tmp_path)
    (tmp_path / "table.csv").write_text(
        "model,data,nodes,step_time_s,hydra.searchpath\ntiny,random,1,3.0,[pkg://received.notes]\n"
    )
    (tmp_path / "c/baseline-r1").mkdir(parents=True)
    attempt = {
        "name": "baseline",
        "role": "baseline",
        "repeat": 1,
        "changes": ["hydra.searchpath=[pkg://received.notes]"],
    }
    (tmp_path / "c/baseline-r1/provenance.json").write_text(json.dumps({"attempt": attempt}))
    if path != str(ROOT):
        # Python's own start-up imports it from PYTHONPATH.
        (tmp_path / "pathlib.py").unlink()
    for arguments in (["calibrate", "table.csv"], ["attempt", "x", "job.seed=1", "--campaign", "c"]):
        done = subprocess.run(
            [sys.executable, "-m", "slurmscale", *arguments], cwd=tmp_path, capture_output=True, text=True,
            env={**os.environ, "PYTHONPATH": path}, timeout=limit_s(60), check=False,
        )  # fmt: skip
        assert (done.returncode, (tmp_path / "PWN").exists()) == (2, False), done.stderr
        assert "hydra.searchpath" in done.stderr


@pytest.mark.parametrize("name", ["../../../../x", "/etc/x", "a/b", "..", "x\ty"])
def test_a_calibration_stays_in_its_folder_whatever_the_cluster_is_called(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    site = tmp_path / "a/b/c/d/site"
    site.mkdir(parents=True)
    monkeypatch.setenv("SLURMSCALE_SITE", str(site))
    (tmp_path / "t.csv").write_text(
        "cluster,model,data,nodes,job.precision,parallelism,step_time_s,cluster.name\n"
        f"xe9680_h100,llama2_7b,random,1,bfloat16,fsdp_full,3.0,'{name}'\n"
    )
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert main(["calibrate", str(tmp_path / "t.csv")]) == 0, capsys.readouterr().err
    (made,) = {path for path in tmp_path.rglob("*") if path.is_file()} - before
    assert made.parent == site / "calibration"

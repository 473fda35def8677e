"""sbatch/train.sbatch: the numbers that it takes from an allocation, whichever of its variables Slurm sets."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from jobs.submit.environment import unset_line
from tests.support.paths import ROOT


def run_script(where: Path, **allocation: str) -> subprocess.CompletedProcess[str]:
    """Run the script with a Python and an srun that print their arguments."""
    (where / "bin").mkdir()
    for name, more in (
        ("srun", ""),
        ("python", 'echo "wrote the batch script of 1 run; submit with"; echo "    sbatch x"'),
    ):
        (where / "bin" / name).write_text(f'#!/bin/bash\necho {name} "$@"\n{more}\n')
        (where / "bin" / name).chmod(0o755)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SLURM")}
    return subprocess.run(
        ["bash", ROOT / "sbatch/train.sbatch", "model=tiny"],
        cwd=where, capture_output=True, text=True, check=False,
        env=environment | allocation | {
            "PATH": f"{where}/bin:{os.environ['PATH']}", "SLURM_JOB_ID": "9", "SLURMSCALE_HOME": str(ROOT),
            "SLURMSCALE_PYTHON": f"{where}/bin/python",
        },
    )  # fmt: skip


def test_it_drops_what_it_inherits_as_the_other_batch_scripts_do() -> None:
    assert f"\n{unset_line()}\n" in (ROOT / "sbatch/train.sbatch").read_text()


@pytest.mark.parametrize(
    ("allocation", "nodes", "per_node"),
    [
        ({"SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS": "8"}, 2, 4),
        ({"SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS": "8", "SLURM_NTASKS_PER_NODE": "4"}, 2, 4),
        ({"SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS_PER_NODE": "4"}, 2, 4),
        ({"SLURM_JOB_NUM_NODES": "3", "SLURM_NTASKS_PER_NODE": "2(x3)"}, 3, 2),
        ({"SLURM_NNODES": "2", "SLURM_NTASKS_PER_NODE": "4"}, 2, 4),
        ({"SLURM_JOB_NUM_NODES": "2"}, 2, 1),
        ({}, 1, 1),
    ],
)
def test_ranks_are_taken_from_what_slurm_sets(
    allocation: dict[str, str], nodes: int, per_node: int, tmp_path: Path
) -> None:
    done = run_script(tmp_path, **allocation)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"launcher=script nodes={nodes} ranks_per_node={per_node} " in done.stdout
    assert f"srun --nodes={nodes} --ntasks={nodes * per_node} " in done.stdout
    assert "submit with" not in done.stdout, "this job runs it already"
    assert f"this job runs it; output is in {tmp_path}/runs/sbatch/logs" in done.stdout


@pytest.mark.parametrize(("tasks", "nodes"), [("3", "2"), ("1", "2"), ("5", "4")])
def test_tasks_that_nodes_cannot_share_equally_are_refused(tasks: str, nodes: str, tmp_path: Path) -> None:
    done = run_script(tmp_path, SLURM_NTASKS=tasks, SLURM_JOB_NUM_NODES=nodes)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{tasks} tasks on {nodes} nodes" in done.stderr
    assert "Set --ntasks-per-node" in done.stderr

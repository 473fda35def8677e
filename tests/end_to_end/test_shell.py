"""Submitting from shells and to sites that set variables, formats and limits of their own, on a real Slurm."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.rundir import SweepDir, load_run
from jobs.submit.environment import unset_line
from jobs.submit.sweeps.submissions import latest_submissions
from tests.support.cli import run_cli, small
from tests.support.paths import ROOT
from tests.support.real_run import events
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("empty_queue")]

# Variables of a rank of torchrun.
TORCHRUN = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "x"}  # fmt: skip
# Variables of a step of another job.
JOB = {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_MEM_PER_CPU": "100",
       "SLURM_MEM_PER_NODE": "100", "SLURM_GPUS_PER_NODE": "4", "SLURM_CPU_BIND": "mask_cpu:0x8",
       "SLURM_EXPORT_ENV": "NONE", "SLURM_RESTART_COUNT": "3", "SUBMITIT_EXECUTOR": "slurm"}  # fmt: skip
# Formats and filters that a user may set.
FORMATS = {"SQUEUE_FORMAT": "%u", "SQUEUE_STATES": "RUNNING", "SQUEUE_PARTITION": "debug", "SACCT_FORMAT": "User",
           "SLURM_TIME_FORMAT": "relative", "SINFO_FORMAT": "%N", "SCANCEL_STATE": "RUNNING",
           "SLURM_CLUSTERS": "slurmscale"}  # fmt: skip
# Options of sbatch that change what a run is.
OPTIONS = {"SBATCH_EXPORT": "NONE", "SBATCH_ARRAY_INX": "0-3", "SBATCH_JOB_NAME": "theirs", "SBATCH_NO_REQUEUE": "1"}
ON_SLURM = "cluster=generic_slurm"


def queue(field: str) -> list[str]:
    return subprocess.run(
        ["squeue", "-h", "-r", "-o", field], capture_output=True, text=True, check=True
    ).stdout.split()


def output_of(*arguments: str, code: int = 0, env: dict[str, str] | None = None) -> str:
    done = run_cli(*arguments, cwd=None, **(env or {}))
    printed = done.stdout + done.stderr
    assert done.returncode == code, printed
    return printed


@pytest.mark.long
@pytest.mark.slow
def test_a_run_keeps_its_ranks_and_memory_whatever_shell_submits_it(tmp_path: Path) -> None:
    two = [ON_SLURM, *small(tmp_path), "nodes=2", "cluster.memory_gb_per_node=1", "name=r"]
    printed = output_of("submit", "--wait", *two, env={**TORCHRUN, **JOB, **FORMATS, **OPTIONS})
    (started,) = events(SweepDir(tmp_path / "s").run("r"), "started")
    assert (started["ranks"], started["restart"]) == (2, 0)
    assert "not used: SBATCH_ARRAY_INX, SBATCH_EXPORT, SBATCH_JOB_NAME, SBATCH_NO_REQUEUE of this shell" in printed
    assert "1 run: 1 finished" in output_of("status", str(tmp_path / "s"), env={**FORMATS, **JOB})


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(
    ("by_hand", "export"), [("job.sbatch", "ALL"), ("job.sbatch", "NONE"), ("train.sbatch", "ALL")]
)
def test_a_script_submitted_by_hand_keeps_its_ranks_and_memory(by_hand: str, export: str, tmp_path: Path) -> None:
    two = [*small(tmp_path), "nodes=2", "name=r"]
    output_of("submit", "launcher=script", ON_SLURM, *two, "cluster.memory_gb_per_node=1")
    run = SweepDir(tmp_path / "s").run("r")
    script = [str(run.batch_script)]
    if by_hand == "train.sbatch":
        overrides = [each for each in two if not each.startswith(("runs_dir", "sweep", "nodes", "name"))]
        script = ["--nodes=2", "--mem=1G", str(ROOT / "sbatch/train.sbatch"), *overrides]
    shell = (
        TORCHRUN | JOB | {"SBATCH_EXPORT": export, "SLURMSCALE_HOME": str(ROOT), "SLURMSCALE_PYTHON": sys.executable}
    )
    job_id = subprocess.run(["sbatch", "--parsable", *script], cwd=tmp_path, env=os.environ | shell, check=True,
                            capture_output=True, text=True).stdout.strip()  # fmt: skip
    if by_hand == "train.sbatch":
        run = SweepDir(tmp_path / "runs/sbatch").run(f"job-{job_id}")
    wait_until(lambda: job_id not in queue("%i"))
    (started,) = events(run, "started")
    assert started["ranks"] == 2
    assert events(run, "finished")
    assert f"\n{unset_line()}\n" in Path(script[-1] if by_hand == "job.sbatch" else script[2]).read_text()


@pytest.mark.long
@pytest.mark.slow
def test_ranks_of_this_machine_do_not_take_those_of_a_torchrun_shell(tmp_path: Path) -> None:
    output_of("submit", "--wait", *small(tmp_path), "ranks_per_node=2", "name=r", env={**TORCHRUN, **JOB})
    (started,) = events(SweepDir(tmp_path / "s").run("r"), "started")
    assert started["ranks"] == 2


def test_a_waiting_run_is_queued_in_every_format_and_is_not_submitted_again(tmp_path: Path) -> None:
    output_of("submit", ON_SLURM, *small(tmp_path), "cluster.sbatch={begin: now+1hour}", "nodes=2", env=FORMATS)
    assert "1 run: 1 queued" in output_of("status", str(tmp_path / "s"), env=FORMATS)
    assert "0 to resume" in output_of("resume", str(tmp_path / "s"), env=FORMATS)
    assert len(queue("%i")) == 1
    output_of("cancel", str(tmp_path / "s"), env=FORMATS)
    wait_until(lambda: not queue("%i"))


# --- options of sbatch in the shell ---------------------------------------------------------------------------


def test_an_option_in_the_shell_sets_a_key_that_is_not_set(tmp_path: Path) -> None:
    shell = {"SBATCH_ACCOUNT": "research", "SBATCH_PARTITION": "spare", "SBATCH_GRES": "gpu:8"}
    later = "cluster.sbatch={begin: now+1hour}"
    printed = output_of("submit", ON_SLURM, *small(tmp_path), later, "name=r", env=shell)
    assert "SBATCH_ACCOUNT=research of this shell is used as cluster.account\n" in printed
    assert "not used: SBATCH_GRES of this shell" in printed
    cluster = load_run(SweepDir(tmp_path / "s").run("r").config).cluster
    assert (cluster.account, cluster.partition) == ("research", "spare")
    assert queue("%a|%P|%b") == ["research|spare|N/A"]


def test_an_option_in_the_shell_that_contradicts_a_key_is_refused(tmp_path: Path) -> None:
    given = [ON_SLURM, *small(tmp_path), "cluster.partition=gpu"]
    printed = output_of("submit", *given, code=2, env={"SBATCH_PARTITION": "spare", "SBATCH_TIMELIMIT": "1:00:00"})
    assert (
        "SBATCH_PARTITION=spare of this shell contradicts cluster.partition=gpu. Run `unset SBATCH_PARTITION`"
        in printed
    )
    assert "SBATCH_TIMELIMIT" not in printed
    assert not (tmp_path / "s").exists()
    assert queue("%i") == []


# --- sites ---------------------------------------------------------------------------------------------------


def test_a_shell_that_would_ask_another_cluster_is_refused(tmp_path: Path) -> None:
    sweep = str(tmp_path / "s")
    there = {"SLURM_CLUSTERS": "slurmscale"}
    output_of("submit", *small(tmp_path), ON_SLURM, "cluster.sbatch={begin: now+1hour}", env=there)
    message = output_of("resume", sweep, code=2)
    assert "were submitted with SLURM_CLUSTERS=slurmscale, and this shell has SLURM_CLUSTERS=" in message
    assert "Run `export SLURM_CLUSTERS=slurmscale`." in message
    more = ["submit", *small(tmp_path), ON_SLURM, "name=more"]
    assert "this shell has SLURM_CLUSTERS=" in output_of(*more, code=2)
    assert "1 run: 1 queued" in output_of("status", sweep, env=there)
    assert len(queue("%i")) == 1


def test_runs_wait_for_drained_nodes_and_those_that_can_never_run_are_refused(tmp_path: Path) -> None:
    nodes = "nodename=node[01-04]"
    subprocess.run(["scontrol", "update", nodes, "state=drain", "reason=test"], check=True)
    try:
        printed = output_of("submit", "-m", ON_SLURM, *small(tmp_path), "nodes=1,4")
        assert "expected start not known while node[01-04] accept no jobs: tiny-ddp-n4x1" in printed
        assert len(queue("%i")) == 2
        too_much = output_of(
            "submit", ON_SLURM, *small(tmp_path), "cluster.memory_gb_per_node=999", "name=never", code=2
        )
        assert "Memory specification can not be satisfied" in too_much
        assert len(queue("%i")) == 2
        assert not (tmp_path / "s/never").exists()
    finally:
        subprocess.run(["scancel", "--me"], check=True)
        subprocess.run(["scontrol", "update", nodes, "state=resume"], check=True)


def test_a_list_of_partitions_is_refused_only_if_none_can_run_the_job(tmp_path: Path) -> None:
    later = "cluster.sbatch={begin: now+1hour}"
    output_of("submit", ON_SLURM, *small(tmp_path), "nodes=2", "cluster.partition='debug,gpu'", later)
    (partitions,) = queue("%P")
    assert set(partitions.split(",")) == {"debug", "gpu"}
    printed = output_of(
        "submit", ON_SLURM, *small(tmp_path), "nodes=5", "cluster.partition='debug,gpu'", "name=n", code=2
    )
    assert "nodes=5, but partition debug gives a job at most 1" in printed


def test_job_ids_are_found_among_the_lines_of_a_wrapper_of_sbatch(tmp_path: Path) -> None:
    real = shutil.which("sbatch")
    (tmp_path / "sbatch").write_text(
        f'#!/bin/bash\necho "job 7 of 100 today"\n{real} "$@" || exit\necho "9 hours left"\n'
    )
    (tmp_path / "sbatch").chmod(0o755)
    later = "cluster.sbatch={begin: now+1hour}"
    path = f"{tmp_path}:{os.environ['PATH']}"
    output_of("submit", "-m", ON_SLURM, *small(tmp_path), "nodes=1,2", "repeat=1,2", later, env={"PATH": path})
    recorded = [each.job_id for each in latest_submissions(SweepDir(tmp_path / "s")).values()]
    assert sorted(recorded) == sorted(queue("%i"))


def test_a_site_without_arrays_gets_single_jobs(tmp_path: Path) -> None:
    real = {name: shutil.which(name) for name in ("sbatch", "scontrol")}
    (tmp_path / "scontrol").write_text(
        f'#!/bin/bash\n{real["scontrol"]} "$@" | sed "s/^MaxArraySize .*/MaxArraySize = 0/"\n'
    )
    (tmp_path / "sbatch").write_text(
        f'#!/bin/bash\nscript=$(cat)\nif grep -q -- --array <<< "$* $script"; then\n'
        f'    echo "sbatch: error: Invalid job array specification" >&2; exit 1\nfi\n'
        f'exec {real["sbatch"]} "$@" <<< "$script"\n'
    )
    for name in real:
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    given = ["-m", ON_SLURM, *small(tmp_path), "repeat=1,2", "cluster.sbatch={begin: now+1hour}"]
    output_of("submit", *given, "launcher.max_running=1", env={"PATH": path})
    assert all(job_id.isdigit() for job_id in queue("%i"))
    first, second = sorted(queue("%i"), key=int)
    assert sorted(queue("%E")) == ["(null)", f"afterany:{first}(unfulfilled)"], f"{second} waits for its turn"


def test_gpus_have_one_line_with_their_type(tmp_path: Path) -> None:
    gpus = ["cluster.gpus=true", "cluster.gpu_type=a100", "cluster.ranks_per_node=4", "ranks_per_node=4"]
    given = [ON_SLURM, *small(tmp_path), *gpus]
    output_of("submit", "launcher=script", *given, "name=r")
    script = SweepDir(tmp_path / "s").run("r").batch_script.read_text()
    assert script.count("#SBATCH --gpus") == 1
    assert "#SBATCH --gpus-per-node=a100:4\n" in script
    for option in ("gres: 'gpu:a100:4'", "gpus-per-task: 1"):
        assert "cluster.gpu_type=NAME" in output_of("submit", *given, f"cluster.sbatch={{{option}}}", code=2)

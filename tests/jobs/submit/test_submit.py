"""Submitting without a cluster: preparing, dry runs, scripts, this machine, and everything that can go wrong."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from jobs.cli import main
from jobs.private import make_private
from jobs.ranks import node_name, started_after_boot_s
from jobs.run_events import run_events
from jobs.rundir import RunDir, SweepDir, append_event, append_record, code_store, load_run, now, read_records
from jobs.submit.job_state import JobState
from jobs.submit.launchers.local import LAUNCHER
from jobs.submit.preparation import prepare
from jobs.submit.preparation.container import CODE_FIRST
from jobs.submit.states import State, states
from jobs.submit.sweeps.submissions import Submission
from tests.support.cli import files, printed, run_cli, script_of, small
from tests.support.paths import ROOT
from tests.support.real_run import SMALL, losses
from tests.support.required import skip_or_fail
from tests.support.waiting import wait_until

# --- preparing -----------------------------------------------------------------------------------------------


def test_a_dry_run_prepares_everything_shows_the_script_and_imports_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from jobs.cli import main;"
        "overrides = ['launcher=dry', 'cluster=generic_slurm', 'ranks_per_node=2', 'nodes=1,2', 'sweep=s'];"
        f"code = main(['submit', '-m', *overrides, 'runs_dir={tmp_path}']);"
        "assert 'torch' not in sys.modules and 'litgpt' not in sys.modules; sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "#SBATCH --nodes=1" in done.stdout
    assert "#SBATCH --nodes=2" in done.stdout
    run = SweepDir(tmp_path / "s").run("tiny-ddp-n2x2")
    assert {"config.yaml", "plan.json", "provenance.json", "status.jsonl"} <= files(run.path)
    assert not (tmp_path / "s/submissions.jsonl").exists()


def test_the_plan_table_shows_the_grid_the_batch_and_the_cost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["submit", "launcher=dry", "cluster=xe9680_h100", "nodes=2", "model=llama2_7b", "wall_time_min=90",
          "job.micro_batch_size=1", "scaling.global_batch_size=64", "gpu.memory_gb=null",
          f"runs_dir={tmp_path}"])  # fmt: skip
    row = next(line for line in printed(capsys).splitlines() if line.startswith("llama2_7b-ddp-n2x8"))
    assert " ".join(row.split()[1:]) == "2 16 16 x 1 x 1 1 x 4 = 64 6,738,415,616 108 1:30:00 24.0"


def test_provenance_names_the_commit_the_versions_and_the_overrides(tmp_path: Path) -> None:
    main(["submit", "launcher=dry", f"runs_dir={tmp_path}", "sweep=s", "job.seed=7"])
    facts = json.loads((tmp_path / "s/tiny-ddp-n1x2/provenance.json").read_text())
    assert {"python", "torch", "submitit"} <= facts["versions"].keys()
    assert "job.seed=7" in facts["overrides"]
    assert SweepDir(tmp_path / "s").code(facts["code_digest"]).is_dir()


def test_equal_code_is_kept_once_for_all_sweeps_of_a_directory_and_each_run_leads_to_it(tmp_path: Path) -> None:
    for sweep, name in (("s", "r1"), ("s", "r2"), ("t", "r1")):
        main(["submit", "launcher=dry", f"runs_dir={tmp_path}", f"sweep={sweep}", f"name={name}"])
    (code,) = code_store(tmp_path).iterdir()
    assert {link.resolve() for link in tmp_path.glob("[st]/*/code")} == {code}
    assert (code / "jobs/run.py").read_text() == (ROOT / "jobs/run.py").read_text()
    assert sum(1 for _ in (tmp_path / "t").rglob("*")) < 12, "a sweep has no copy"


def test_a_run_directory_that_exists_is_never_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["submit", "launcher=script", *small(tmp_path)]
    assert main(arguments) == 0
    before = files(tmp_path)
    assert main(arguments) == 2
    assert "exists, and a run is never overwritten. Run `slurmscale resume" in printed(capsys)
    assert main(["submit", "-m", *arguments[1:], "nodes=1,2"]) == 2
    assert files(tmp_path) == before


def test_when_two_shells_prepare_one_sweep_at_once_the_refused_one_removes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    submit = ["submit", *small(tmp_path), "launcher=script"]

    def after_another_shell(sweep: Path) -> None:
        """Make the sweep directory after another shell has submitted the same sweep."""
        monkeypatch.setattr(prepare, "make_private", make_private)
        assert main(submit) == 0
        make_private(sweep)

    monkeypatch.setattr(prepare, "make_private", after_another_shell)
    assert main(submit) == 2
    assert "exists, and a run is never overwritten" in printed(capsys)
    assert load_run(SweepDir(tmp_path / "s").runs()[0].config).name == "tiny-ddp-n1x2"


def test_a_point_that_no_engine_runs_refuses_the_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    zero = ("engine=deepspeed", "parallelism=zero2")
    assert main(["submit", "-m", "job=pretrain,finetune_lora", *zero, f"runs_dir={tmp_path}"]) == 2
    assert "engine=deepspeed trains all weights, not adapters (job.lora). Set job=finetune_full" in printed(capsys)
    assert files(tmp_path) == set()


def test_resume_names_a_damaged_run_and_launches_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["submit", "-m", *small(tmp_path), "launcher=script", "repeat=1,2"]) == 0
    first, second = SweepDir(tmp_path / "s").runs()
    first.config.write_text("sweep: s\n")
    printed(capsys)
    assert main(["resume", str(tmp_path / "s")]) == 2
    output = printed(capsys)
    assert f"{first.name} is not launched: {first.config} is damaged" in output
    assert f"sbatch {second.path}" in output


def test_one_submission_has_one_launcher_and_one_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["submit", "-m", "launcher=local,dry", "name=${launcher.kind}", f"runs_dir={tmp_path}"]) == 2
    assert "launcher cannot be swept over" in printed(capsys)
    assert main(["submit", "-m", "launcher=dry", "sweep=a,b", "name=${sweep}", f"runs_dir={tmp_path}"]) == 2
    assert "runs_dir and sweep cannot be swept over" in printed(capsys)
    assert files(tmp_path) == set()


def test_bad_data_is_found_at_submission_and_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.json").write_text("[{")
    assert main(["submit", "data=alpaca", f"data.path={tmp_path}/bad.json", f"data.cache_dir={tmp_path}/cache",
                 f"runs_dir={tmp_path}/runs"]) == 2  # fmt: skip
    assert "bad.json" in printed(capsys)
    assert not (tmp_path / "runs").exists()


def test_a_global_batch_larger_than_the_data_is_refused_at_submission(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["submit", *small(tmp_path), "scaling.global_batch_size=64"]) == 2
    assert "64" in printed(capsys)
    assert files(tmp_path) == set()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
@pytest.mark.parametrize(
    ("options", "expected"), [("size=64k", "No space left on device"), ("ro", "Read-only file system")]
)
def test_a_full_or_read_only_disk_leaves_no_run(
    options: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", disk], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("this machine lets nobody mount a tmpfs")
    try:
        assert main(["submit", "-m", "launcher=dry", "nodes=1,2,4", "job.micro_batch_size=1", f"runs_dir={disk}"]) == 2
        assert files(disk) == set()
    finally:
        subprocess.run(["umount", disk], check=True)
    message = printed(capsys)
    assert expected in message
    assert "set another place with runs_dir=PATH" in message


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_sweep_on_a_disk_that_became_read_only_is_neither_resumed_nor_cancelled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", disk], capture_output=True, check=False).returncode:
        pytest.skip("this machine lets nobody mount a tmpfs")
    try:
        assert main(["submit", "launcher=dry", f"runs_dir={disk}", "sweep=s"]) == 0
        (disk / "s/.lock").unlink(missing_ok=True)
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        for command in ("resume", "cancel"):
            capsys.readouterr()
            assert main([command, str(disk / "s")]) == 2
            assert "/s/.lock cannot be written: Read-only file system. Nothing was submitted or cancelled." in printed(
                capsys
            )
    finally:
        subprocess.run(["umount", disk], check=True)


def test_slurm_without_sbatch_states_where_to_go(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["submit", "cluster=generic_slurm", f"runs_dir={tmp_path}"]) == 2
    assert "needs sbatch, which is not on this machine's PATH. Log in to the login node of the cluster" in printed(
        capsys
    )
    assert files(tmp_path) == set()


def test_slurm_commands_without_a_controller_state_where_to_go(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("sbatch") is None:
        skip_or_fail("no Slurm commands here: `make test` or tests/install.sh slurm installs them")
    if Path("/etc/slurm/slurm.conf").exists():
        pytest.skip("this machine belongs to a cluster")
    monkeypatch.delenv("SLURM_CONF", raising=False)
    assert main(["submit", "cluster=generic_slurm", f"runs_dir={tmp_path}"]) == 2
    shown = printed(capsys)
    assert "launcher=slurm: no Slurm controller answers here (" in shown
    assert "Log in to the login node of the cluster" in shown
    assert files(tmp_path) == set()


def test_what_a_batch_script_cannot_carry_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["submit", "launcher=dry", "cluster=generic_slurm", f"runs_dir={tmp_path}", 'sweep="a\\j"']) == 2
    assert "has a control character or a backslash, which a Slurm batch script cannot contain" in printed(capsys)
    told_now = run_cli("submit", "launcher=dry", "cluster=generic_slurm", f"runs_dir={tmp_path}",
                       'cluster.partition="gpu\n#SBATCH --nodes=99"')  # fmt: skip
    assert told_now.returncode == 2
    assert "has a control character, which a Slurm batch script cannot contain" in told_now.stderr


# --- batch scripts -------------------------------------------------------------------------------------------


def test_the_cluster_decides_header_setup_and_container(tmp_path: Path) -> None:
    script = script_of(
        tmp_path, "cluster=xe9680_h100", "ranks_per_node=2", "cluster.partition=gpu", "cluster.account=research",
        "cluster.qos=high", "cluster.modules=[cuda/12.4]", "cluster.cpus_per_rank=12", "cluster.memory_gb_per_node=100",
        "cluster.container=/images/a b.sqsh", "cluster.container_mounts=[/data:/data]",
        "cluster.env={NCCL_DEBUG: INFO}",
        "cluster.setup=[source /opt/site.sh]", "cluster.sbatch={reservation: night}", "cluster.python=python3",
    )  # fmt: skip
    for line in (
        "#SBATCH --partition=gpu",
        "#SBATCH --account=research",
        "#SBATCH --qos=high",
        "#SBATCH --gpus-per-node=2",
        "#SBATCH --cpus-per-task=12",
        "#SBATCH --mem=100G",
        "#SBATCH --exclusive",
        "#SBATCH --reservation=night",
        "load_module cuda/12.4",
        "source /opt/site.sh",
        "export NCCL_DEBUG=INFO",
    ):
        assert line in script.splitlines()
    mounts = f"{tmp_path}:{tmp_path},{tmp_path}/cache:{tmp_path}/cache,/data:/data"
    image = f"'--container-image=/images/a b.sqsh' --container-mounts={mounts}"
    assert f"{image} {CODE_FIRST} python3 -u -m jobs.run" in script
    assert "wckey" not in script


def test_a_run_is_asked_to_stop_before_its_limit_and_a_short_one_not_at_once(tmp_path: Path) -> None:
    assert "#SBATCH --signal=USR2@90" in script_of(tmp_path, "sweep=long")
    assert "#SBATCH --signal=USR2@15" in script_of(tmp_path, "sweep=short", "wall_time_min=1")


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_a_written_script_is_valid_shell_whatever_the_run_is_called(tmp_path: Path) -> None:
    where = tmp_path / 'it\'s a "place" $(touch pwned)'
    assert main(["submit", "launcher=script", *SMALL, f"runs_dir={quoted(where)}", f"data.cache_dir={tmp_path}/cache",
                 f"sweep={quoted('s; $HOME')}", f"name={quoted('r `id`')}"]) == 0  # fmt: skip
    script = where / "s; $HOME/r `id`/job.sbatch"
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
    fake = tmp_path / "srun"
    fake.write_text('#!/bin/bash\nprintf "%s\\n" "${@: -1}"\n')
    fake.chmod(0o755)
    done = subprocess.run(["bash", script], env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}, cwd=tmp_path,
                          capture_output=True, text=True, check=True)  # fmt: skip
    assert done.stdout.splitlines()[-1] == str(script.parent)
    assert not (tmp_path / "pwned").exists()


def quoted(value: object) -> str:
    """A value as Hydra's grammar takes it literally."""
    return "'" + str(value).replace("'", "\\'") + "'"


def test_equal_resources_share_one_array_and_others_do_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["submit", "-m", "launcher=dry", "cluster=generic_slurm", "nodes=1,2", "repeat=range(1,4)",
          "job.micro_batch_size=1", f"runs_dir={tmp_path}"])  # fmt: skip
    assert printed(capsys).count("batch script of 3 runs") == 2


def test_runs_with_checkpoints_of_unequal_size_share_one_array(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["submit", "-m", "launcher=dry", "cluster=generic_slurm", "launcher.stop_before_limit_s=90,200",
          f"runs_dir={tmp_path}"])  # fmt: skip
    assert printed(capsys).count("batch script of 2 runs") == 1


# --- this machine --------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.slow
def test_a_local_sweep_returns_at_once_runs_one_by_one_and_finishes(tmp_path: Path) -> None:
    where = tmp_path / 'odd "place" \n with $everything'
    where.mkdir()
    arguments = [*(o for o in small(tmp_path) if not o.startswith("runs_dir")), f"runs_dir={quoted(where)}"]
    # Python imports this module at its start, here by a variable of the ranks.
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(
        f"import os, pathlib\npathlib.Path({str(tmp_path / 'site')!r}, os.environ['PROBE']).touch()\n"
    )
    arguments += [f"+cluster.env.PYTHONPATH={tmp_path / 'site'}", "+cluster.env.PROBE=of_the_cluster"]
    done = run_cli("submit", "-m", *arguments, "ranks_per_node=1,2", "job.checkpoint_every_steps=2")
    assert done.returncode == 0, done.stderr
    sweep = SweepDir(where / "s")
    waiting = run_cli("status", str(sweep.path))
    assert "tiny-ddp-n1x2  queued" in waiting.stdout
    finished = run_cli("resume", "--wait", str(sweep.path))
    assert "0 to resume" in finished.stdout
    assert finished.returncode == 0, finished.stdout
    assert "2 runs: 2 finished" in run_cli("status", str(sweep.path)).stdout
    assert (tmp_path / "site/of_the_cluster").exists(), "cluster.env"
    one, two = (losses(sweep.run(f"tiny-ddp-n1x{ranks}")) for ranks in (1, 2))
    assert one == pytest.approx(two, abs=1e-5)
    assert "finished at step 4 of 4" in run_cli("logs", str(sweep.run("tiny-ddp-n1x2").path)).stdout
    spans = [(e[0]["time"], e[-1]["time"]) for run in sweep.runs() if (e := list(read_records(run.status))[1:])]
    assert spans[0][1] < spans[1][0], "the second run started before the first had ended"


@pytest.mark.slow
def test_a_queued_run_executes_the_code_and_configuration_that_were_submitted(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    for package in ("jobs", "conf", "analysis", "sbatch"):
        shutil.copytree(ROOT / package, checkout / package, ignore=shutil.ignore_patterns("__pycache__"))
    done = run_cli("submit", *small(tmp_path), "ranks_per_node=1", cwd=checkout, PYTHONPATH=str(checkout))
    assert done.returncode == 0, done.stderr
    for file in ("jobs/run.py", "jobs/work/train/loop.py"):
        (checkout / file).write_text("raise SystemExit('the edited code ran')")
    (checkout / "conf/job/pretrain.yaml").write_text("broken: [")
    run = SweepDir(tmp_path / "s").run("tiny-ddp-n1x1")
    wait_until(lambda: any(e["event"] in {"finished", "failed"} for e in run_events(run)))
    assert [e["event"] for e in read_records(run.status)] == ["prepared", "started", "layout", "finished"]


@pytest.mark.long
@pytest.mark.slow
def test_cancel_stops_the_running_run_and_resume_continues_it_from_its_checkpoint(tmp_path: Path) -> None:
    overrides = [*small(tmp_path), "job.steps=2000", "job.checkpoint_every_steps=5", "job.min_learning_rate=1e-4"]
    assert run_cli("submit", "-m", *overrides, "ranks_per_node=1,2").returncode == 0
    sweep = SweepDir(tmp_path / "s")
    first, second = sweep.runs()
    wait_until(lambda: list(first.checkpoints.glob("step-*")) if first.checkpoints.exists() else False)
    assert "cancelled 2 runs" in run_cli("cancel", str(sweep.path)).stdout
    assert "2 runs: 2 cancelled" in run_cli("status", str(sweep.path)).stdout
    stopped_at = losses(first)
    assert not list(second.path.glob("metrics.jsonl"))
    assert run_cli("resume", str(sweep.path)).returncode == 0
    wait_until(lambda: len(losses(first)) > len(stopped_at))
    started = [e for e in read_records(first.status) if e["event"] == "started"]
    assert started[-1]["from_step"] == len(stopped_at)
    run_cli("cancel", str(sweep.path))
    assert losses(first)[: len(stopped_at)] == stopped_at


@pytest.mark.long
@pytest.mark.slow
def test_a_rank_killed_outright_is_named_and_the_next_run_still_runs(tmp_path: Path) -> None:
    overrides = [*small(tmp_path), "job.steps=20000", "launcher.requeues=0", "ranks_per_node=2"]
    assert run_cli("submit", "-m", *overrides, "name=a,b").returncode == 0
    sweep = SweepDir(tmp_path / "s")
    first, second = sweep.runs()
    wait_until(lambda: len(losses(first)) > 2)
    for process in psutil.process_iter(["cmdline"]):
        is_rank = "submitit.core._submit" in (line := " ".join(process.info["cmdline"] or [])) and str(tmp_path) in line
        if is_rank and process.environ()["SUBMITIT_LOCAL_GLOBALID"] == "1":
            process.kill()
    who = f"rank 1 on {node_name()}: rank 1 ended without recording a cause: signal 9 (Killed)"
    wait_until(lambda: who in run_cli("status", str(sweep.path)).stdout)
    wait_until(lambda: states(sweep)[0].state is State.failed)
    wait_until(lambda: len(losses(second)) > 2)
    run_cli("cancel", str(sweep.path))


def test_a_queue_that_has_no_command_line_yet_is_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    monkeypatch.setattr(psutil.Process, "cmdline", lambda _process: [])
    submission = Submission("r", "local", str(queue.pid), 0, socket.gethostname(), started_after_boot_s(queue.pid))
    assert LAUNCHER.states([submission]) == {"r": JobState("PENDING")}, "it is the first one"
    monkeypatch.chdir(tmp_path)
    LAUNCHER.cancel(SweepDir(tmp_path), [submission.job_id])
    assert queue.poll() is None, "a process that may be another one was ended"
    queue.communicate(b"\n")
    assert LAUNCHER.states([submission]) == {}


# --- looking at sweeps ---------------------------------------------------------------------------------------


def test_of_a_long_sweep_submit_shows_the_first_runs_and_how_many_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["submit", "-m", "launcher=dry", "repeat=range(1,61)", f"runs_dir={tmp_path}", "sweep=s"]) == 0
    shown = printed(capsys)
    assert "tiny-ddp-n1x2-r50 " in shown
    assert "tiny-ddp-n1x2-r51 " not in shown
    assert "... and 10 runs more; `slurmscale plan` shows them all\n60 runs\n" in shown


def test_a_folder_that_is_no_sweep_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("status", "cancel", "resume", "logs"):
        assert main([command, str(tmp_path)]) == 2
        assert "is not a sweep directory: it contains no run with a config.yaml" in printed(capsys)


def test_a_prepared_run_without_a_launch_states_how_to_launch_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["submit", "launcher=dry", f"runs_dir={tmp_path}", "sweep=s"])
    assert main(["status", str(tmp_path / "s")]) == 0
    assert "1 run: 1 prepared" in printed(capsys)
    assert main(["logs", str(tmp_path / "s/tiny-ddp-n1x2")]) == 2
    assert "was never submitted. Run `slurmscale resume" in printed(capsys)


def test_a_run_of_another_machine_is_neither_called_lost_nor_cancelled_from_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["submit", "launcher=script", *small(tmp_path), "name=r"])
    sweep = SweepDir(tmp_path / "s")
    # A process of that id lives here, but it is not theirs.
    record = {"event": "submitted", "run": "r", "launcher": "local", "job_id": str(os.getpid()), "events_before": 1}
    append_record(sweep.submissions, record | {"host": "another", "process_started": 0.0, "time": now()})
    printed(capsys)
    assert main(["status", str(sweep.path)]) == 0
    assert "started on another: ask there" in printed(capsys)
    assert main(["cancel", str(sweep.path)]) == 2
    assert "on that machine" in printed(capsys)
    assert main(["resume", str(sweep.path)]) == 0
    assert "0 to resume" in printed(capsys)


def test_status_shows_what_the_folder_knows_where_slurm_cannot_be_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    main(["submit", "launcher=script", *small(tmp_path), "name=r"])
    sweep = SweepDir(tmp_path / "s")
    record = {"event": "submitted", "run": "r", "launcher": "slurm", "job_id": "7", "events_before": 1}
    append_record(sweep.submissions, record | {"host": "login", "time": now()})
    monkeypatch.setenv("PATH", str(tmp_path))
    printed(capsys)
    assert main(["status", str(sweep.path)]) == 0
    shown = " ".join(printed(capsys).split())
    assert "1 run: 1 queued" in shown
    assert "Slurm does not answer here: squeue is not on this machine's PATH." in shown
    append_event(sweep.run("r"), "finished", step=4)
    assert main(["status", str(sweep.path)]) == 0
    assert "1 run: 1 finished" in printed(capsys)


def test_a_rank_refuses_code_other_than_the_submitted(tmp_path: Path) -> None:
    main(["submit", "launcher=script", *small(tmp_path), "ranks_per_node=1", "name=r"])
    run = RunDir(tmp_path / "s/r")
    env = os.environ | {
        "PYTHONPATH": str(ROOT),
        "RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "SLURMSCALE_START": "x",
    }
    done = subprocess.run([sys.executable, "-m", "jobs.run", run.path], cwd=ROOT, env=env, capture_output=True,
                          text=True, check=False)  # fmt: skip
    assert done.returncode != 0
    assert "This run was submitted with the code in" in done.stderr
    assert [e["event"] for e in run_events(run)] == ["prepared", "failed"]

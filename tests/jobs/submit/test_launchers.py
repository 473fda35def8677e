"""Launchers: every kind has one, and launcher=dry shows what that of the cluster would do."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from jobs.cli import main
from jobs.plan.compose import compose
from jobs.ranks import started_after_boot_s
from jobs.rundir import RunDir, SweepDir, append_event, append_record
from jobs.schema import LauncherKind
from jobs.submit.cancellation import QUEUE, queue_process
from jobs.submit.launchers import launcher_of
from jobs.submit.launchers.local import queue_is_alive
from jobs.submit.launchers.slurm import described, first_of
from jobs.submit.slurm.commands import room
from jobs.submit.sweeps.intents import stage_task
from jobs.submit.sweeps.ledger import uninterrupted
from jobs.submit.sweeps.submissions import Submission
from tests.support.cli import files, printed, printed_words, small
from tests.support.paths import ROOT
from tests.support.waiting import wait_until


@pytest.mark.parametrize("kind", LauncherKind)
def test_every_launcher_kind_has_a_module_and_a_configuration_file(kind: LauncherKind) -> None:
    assert type(launcher_of(kind)).__module__ == f"jobs.submit.launchers.{kind.name}"
    assert yaml.safe_load((ROOT / f"conf/launcher/{kind.name}.yaml").read_text())["kind"] == kind.name


def test_a_process_id_that_another_queue_got_meanwhile_is_not_taken_for_this_one(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, *QUEUE, str(tmp_path)], stdin=subprocess.PIPE) as queue:
        its_id = str(queue.pid)
        wait_until(lambda: queue_process(its_id) is not None, 60)
        began_s = started_after_boot_s(its_id)
        known = Submission("r", "local", its_id, 0, process_started=began_s)
        assert queue_is_alive(known)
        assert not queue_is_alive(replace(known, process_started=began_s - 60))
        queue.kill()


def test_signals_that_a_submission_holds_back_are_delivered_again_afterwards() -> None:
    before = signal.getsignal(signal.SIGINT), signal.pthread_sigmask(signal.SIG_BLOCK, [])
    with uninterrupted():
        assert {signal.SIGINT, signal.SIGTERM} <= signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert (signal.getsignal(signal.SIGINT), signal.pthread_sigmask(signal.SIG_BLOCK, [])) == before


def preview(where: Path, capsys: pytest.CaptureFixture[str], *overrides: str) -> str:
    assert main(["submit", "-m", *small(where), "launcher=dry", *overrides]) == 0
    assert not [name for name in files(where) if name.endswith(("job.sbatch", "job.pbs", "submissions.jsonl"))]
    return printed(capsys)


def test_dry_shows_the_pbs_script_on_a_pbs_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = preview(tmp_path, capsys, "cluster=gadi_gpuvolta", "cluster.account=ab12", "nodes=1,2", "repeat=1,2")
    assert shown.count("PBS job script of 2 runs\n#!/bin/bash\n#PBS -N ") == 2
    assert "#PBS -l ngpus=8\n" in shown
    assert "#SBATCH" not in shown


def test_dry_shows_the_processes_on_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluated = ["stages=all", "data.held_out_samples=8", "job.export=true"]
    shown = preview(tmp_path, capsys, "ranks_per_node=1,2", *evaluated)
    assert (
        "--- 2 runs on this machine, one after the other\n"
        "    tiny-ddp-n1x1: 1 process for at most 1:00:00\n"
        "    tiny-ddp-n1x2: 2 processes for at most 1:00:00\n"
        "    stage evaluate after each run\n"
        "    stage report after all runs\n"
    ) in shown


def test_dry_shows_the_one_job_of_a_cluster_whose_launcher_is_pilot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pilot = ["cluster.launcher=pilot", "launcher.pilot_nodes=4", "launcher.pilot_wall_time_min=90"]
    shown = preview(tmp_path, capsys, "cluster=generic_slurm", "nodes=1,2", *pilot)
    assert shown.count("#SBATCH --nodes=") == 1
    assert "--- pilot of 2 runs\n#!/bin/bash\n" in shown
    assert "#SBATCH --nodes=4\n" in shown


def test_dry_refuses_stages_that_the_launcher_of_the_cluster_cannot_chain(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["launcher=dry", "cluster=gadi_gpuvolta", "cluster.account=ab12", "stages=all", "data.held_out_samples=8"]
    for kind, other in (("pbs_script", "pbs"), ("pilot", "slurm")):
        chosen = [f"cluster.launcher={kind}", "launcher.pilot_nodes=4", "launcher.pilot_wall_time_min=90"]
        assert main(["submit", *small(tmp_path), *given, "job.export=true", *chosen]) == 2
        shown = printed_words(capsys)
        assert f"which launcher={kind} does not support. Set stages=train and run" in shown
        assert f"or set launcher={other}." in shown


def test_a_cluster_whose_launcher_starts_nothing_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["submit", *small(tmp_path), "cluster.launcher=dry"]) == 2
    assert "cluster.launcher=dry of local starts no runs. Set the launcher of the cluster" in printed(capsys)
    assert files(tmp_path) == set()


def test_a_site_file_may_still_choose_its_launcher_in_its_defaults(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults = "defaults:\n  - override /launcher@_global_.launcher: pbs_script\n  - _self_\n"
    older = defaults + (ROOT / "conf/cluster/generic_slurm.yaml").read_text()
    (tmp_path / "site/cluster").mkdir(parents=True)
    (tmp_path / "site/cluster/mine.yaml").write_text(older)
    monkeypatch.setenv("SLURMSCALE_SITE", str(tmp_path / "site"))
    assert main(["submit", *small(tmp_path / "runs"), "cluster=mine", "name=r"]) == 0
    assert f"    qsub {tmp_path}/runs/s/r/job.pbs\n" in printed(capsys)


def test_the_runs_of_an_array_are_described_by_the_first_and_what_a_site_may_refuse(tmp_path: Path) -> None:
    given = [*small(tmp_path), "cluster=generic_slurm", "cluster.partition=gpu", "nodes=2", "wall_time_min=30"]
    given += ["name=r", "ranks_per_node=1"]
    point = (compose(given, multirun=False)[0].run, RunDir(tmp_path / "s" / "r"))
    wanted = "(cluster.partition=gpu, nodes=2, ranks_per_node=1, wall_time_min=30)"
    assert described([point]) == f"r {wanted}"
    assert described([point] * 3) == f"r and 2 more {wanted}"
    assert first_of([point]) == "r"
    assert first_of([point] * 3) == "r, the first of 3"


SBATCH = """#!/bin/bash
echo "$*" >> {calls}
for word; do case $word in --array=0-*) size=$((${{word#--array=0-}} + 1)) ;; esac; done
[ "${{size:-1}}" -le {most} ] || {{ echo "sbatch: error: QOSMaxSubmitJobPerUserLimit" >&2; exit 1; }}
"""


@pytest.mark.parametrize(("most", "tests"), [(9, 1), (8, 1), (0, 2), (3, 5), (1, 4), (7, 5)])
def test_as_many_jobs_as_slurm_has_room_for_are_found_with_few_questions(
    most: int, tests: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sbatch").write_text(SBATCH.format(calls=tmp_path / "calls", most=most))
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found, limit = room("#!/bin/bash\n", 8, None)
    assert found == min(most, 8)
    assert limit == ("" if most >= 8 else "QOSMaxSubmitJobPerUserLimit")
    assert len((tmp_path / "calls").read_text().splitlines()) <= tests


def test_a_stage_on_record_has_the_number_of_events_before_it(tmp_path: Path) -> None:
    sweep, run = SweepDir(tmp_path), RunDir(tmp_path / "r")
    run.path.mkdir()
    for kind in ("prepared", "started", "finished"):
        append_event(run, kind)
    append_record(sweep.stages, {"event": "stage_started", "stage": "report"})
    of_run = {"event": "stage_submitted", "stage": "evaluate", "run": "r", "events_before": 3, "wall_time_min": 5}
    assert stage_task(sweep, "evaluate", run, wall_time_min=5) == of_run
    assert stage_task(sweep, "report", None) == {"event": "stage_submitted", "stage": "report", "events_before": 1}

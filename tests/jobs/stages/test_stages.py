"""Stages around training: jobs that wait for each other, never for ever, and record their outcome."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.cli import main
from jobs.errors import DataError
from jobs.plan.compose import compose
from jobs.rundir import RunDir, SweepDir, append_record, event_record, load_run, now, read_plan, read_records
from jobs.submit.preparation.prepare import prepared
from jobs.submit.slurm.stages import SlurmStages
from jobs.submit.stage_states import stage_lines, stage_states
from jobs.submit.stages import Chain, MissingStages
from jobs.submit.states import State, states
from jobs.submit.trust.integrity import submitted_as
from tests.support.cli import printed_words, run_cli
from tests.support.paths import ROOT
from tests.support.processes import process_of
from tests.support.real_run import SMALL, events, last_of_each
from tests.support.waiting import wait_until

CHAIN = ("stages=all", "data.held_out_samples=4", "job.checkpoint_every_steps=20")
on_slurm = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.usefixtures("empty_queue")]


def chained(where: Path, *overrides: str) -> list[str]:
    given = [*SMALL, *CHAIN, f"runs_dir={where}", "sweep=s", f"data.cache_dir={where}/cache", *overrides]
    return last_of_each(given)


def stage_event(sweep: SweepDir, kind: str) -> list[dict[str, object]]:
    return [event for event in read_records(sweep.stages) if event["event"] == kind]


def made(given: list[str], *, multirun: bool) -> tuple[SweepDir, list[RunDir]]:
    """A sweep that is prepared and not launched."""
    with prepared(compose(given, multirun=multirun)) as those:
        return those.sweep, [directory for _, directory in those.runs]


def prepare_stage(sweep: SweepDir, names: list[str]) -> subprocess.CompletedProcess[str]:
    """The stage as its job does it: in a process of its own."""
    command = [sys.executable, "-m", "jobs.stages.prepare", str(sweep.path), *names]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


# --- without a scheduler -------------------------------------------------------------------------------------


def test_a_dry_run_shows_a_script_of_each_stage_with_resources_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["launcher=dry", "cluster=xe9680_h100", "cluster.partition=gpu", "cluster.constraint=h100",
            "cluster.sbatch={reservation: r7}", "stages.prepare.partition=cpu", "stages.prepare.memory_gb=48",
            "parallelism=ddp", "nodes=2", "scaling.global_batch_size=16"]  # fmt: skip
    assert main(["submit", *chained(tmp_path, *more)]) == 0
    shown = capsys.readouterr().out
    scripts = {part.split(maxsplit=1)[0]: part for part in shown.split("--- stage ")[1:]}
    assert list(scripts) == ["prepare", "evaluate", "report"]
    for script in scripts.values():
        assert "#SBATCH --nodes=1\n" in script
        assert f"\nrefuse_changed '' {tmp_path}/s {SweepDir(tmp_path / 's').code_store}/code-" in script
        assert f"export PYTHONPATH={SweepDir(tmp_path / 's').code_store}/code-" in script
        assert "trap requeue" not in script
    assert f"-u -m jobs.stages.prepare {tmp_path}/s tiny-ddp-n2x8" in scripts["prepare"]
    assert {"--partition=cpu", "--mem=48G", "--cpus-per-task=4"} <= set(scripts["prepare"].split())
    assert "gpus" not in scripts["prepare"]
    assert "h100" not in scripts["prepare"], "what was chosen for the nodes of one partition may not be in another"
    assert "r7" not in scripts["prepare"]
    assert {"--partition=gpu", "--gpus-per-node=1", "--constraint=h100", "--reservation=r7"} <= set(
        scripts["evaluate"].split()
    )
    assert "gpus" not in scripts["report"]


def test_a_chain_for_finished_runs_only_has_the_stages_after_them(tmp_path: Path) -> None:
    sweep, (directory,) = made(chained(tmp_path, "cluster=generic_slurm"), multirun=False)
    missing = MissingStages(load_run(directory.config), directory, None, ("evaluate",))
    scripts = Chain(SlurmStages(), sweep, [], [missing], 1).scripts()
    assert [line for line in scripts if line.startswith("--- ")] == ["--- stage evaluate", "--- stage report"]


def test_one_submission_has_one_chain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["submit", "-m", *chained(tmp_path, "launcher=dry", "stages=all,train")]) == 2
    assert "stages cannot be swept over" in printed_words(capsys)
    assert not (tmp_path / "s").exists()


def test_where_a_stage_prepares_the_data_files_that_are_not_there_are_found_before(tmp_path: Path) -> None:
    given = chained(tmp_path, "cluster=generic_slurm", "data=text", "data.path=nowhere.txt", "data.bpe_vocab_size=300")
    with pytest.raises(DataError, match=r"nowhere.txt does not exist"):
        made(given, multirun=False)
    assert not (tmp_path / "s").exists()


def test_the_stage_makes_equal_data_once_links_it_and_completes_the_plans(tmp_path: Path) -> None:
    given = chained(tmp_path, "cluster=generic_slurm", "job.steps=null", "job.epochs=2", "job.seed=1,2", "nodes=1,2",
                    "name=s${job.seed}-${nodes}")  # fmt: skip
    sweep, runs = made(given, multirun=True)
    names = [directory.name for directory in runs]
    for directory in runs:
        assert not directory.data.exists()
        assert "steps" not in read_plan(directory)
    done = prepare_stage(sweep, names)
    assert done.returncode == 0, done.stderr
    assert stage_event(sweep, "prepared")[0]["datasets"] == 2
    for directory in runs:
        assert read_plan(directory)["steps"] == 2, "16 samples less 4 held out are one global batch of 8"
        assert read_plan(directory)["account"]["data_samples_held_out"] == 4
    targets = {directory.name: directory.data.resolve() for directory in runs}
    assert targets["s1-1"] == targets["s1-2"] != targets["s2-1"]


def test_data_that_one_run_cannot_use_starts_none_and_all_state_why(tmp_path: Path) -> None:
    given = chained(tmp_path, "cluster=generic_slurm", "scaling.global_batch_size=8,16",
                    "name=g${scaling.global_batch_size}")  # fmt: skip
    sweep, _ = made(given, multirun=True)
    done = prepare_stage(sweep, ["g8", "g16"])
    assert done.returncode == 1
    errors = {name: str(events(sweep.run(name), "failed")[0]["error"]) for name in ("g8", "g16")}
    assert errors["g16"].startswith("its data could not be prepared: A global batch takes 16 samples")
    assert errors["g8"].startswith("nothing was started: the data of g16 could not be prepared: A global batch takes")
    assert not sweep.run("g8").data.exists()
    assert "4 of them are held out" in str(stage_event(sweep, "prepare_failed")[0]["error"])


def test_a_stage_whose_local_queue_is_gone_is_lost_and_one_that_did_its_work_finished(tmp_path: Path) -> None:
    sweep = SweepDir(tmp_path)
    of_run = {"evaluate": {"run": "r"}, "report": {}}
    (tmp_path / "r").mkdir()
    for stage, whose in of_run.items():
        append_record(sweep.submissions, {"time": now(), "event": "stage_submitted", "stage": stage, **whose,
                      "launcher": "local", "job_id": "999999999", "host": os.uname().nodename, "events_before": 0,
                      "process_started": 1.0})  # fmt: skip
    append_record(sweep.run("r").status, {"event": "evaluated"})
    assert stage_lines(stage_states(sweep)) == [
        "evaluate: 1 finished",
        "report: lost (its job is gone and recorded no end)",
    ]


@pytest.mark.long
def test_a_refused_stage_is_recorded_and_ends_no_local_queue(tmp_path: Path) -> None:
    given = chained(tmp_path, "ranks_per_node=1", "name=damaged,other_code,good", "job.init_from=null")
    sweep, runs = made(given, multirun=True)
    codes = submitted_as(runs)
    for directory in runs:
        append_record(directory.status, event_record("finished", step=2))
    sweep.run("damaged").config.write_text("sweep: [")
    _, digest = codes["other_code"].split()
    subprocess.run(
        [sys.executable, "-m", "jobs.submit.local_queue", str(sweep.path)],
        cwd=ROOT, input=json.dumps(codes | {"other_code": f"code-0 {digest}"}), text=True, check=True,
    )  # fmt: skip
    (refused,) = events(sweep.run("other_code"), "evaluate_failed")
    assert "and the run was submitted with code-0. Submit the run again." in str(refused["error"])
    assert not events(sweep.run("other_code"), "evaluate_started")
    assert events(sweep.run("good"), "evaluate_started")
    assert stage_event(sweep, "reported")


@pytest.mark.long
@pytest.mark.slow
def test_on_this_machine_runs_are_evaluated_in_turn_and_the_report_made_at_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = chained(
        tmp_path, f"job.init_from=null,{tmp_path}/nowhere", "job.init_from_is_remote=true", "ranks_per_node=1"
    )
    done = run_cli("submit", "-m", "--wait", *given)
    assert done.returncode == 1
    message = " ".join(done.stdout.split())
    assert "evaluate: 1 finished, 1 failed (training has not finished: " in message
    assert "has neither lit_model.pth nor *.safetensors" in message
    assert "report: finished" in message
    assert "evaluation_loss" in (tmp_path / "s/runs.csv").read_text()
    assert main(["resume", "--launcher", "script", str(tmp_path / "s")]) == 2
    assert "Use --launcher slurm, --launcher pbs or --launcher local." in printed_words(capsys)


# --- a real Slurm --------------------------------------------------------------------------------------------


def submitted(sweep: SweepDir) -> list[tuple[str, str | None]]:
    """Return the submissions to Slurm in order: stage (train for a run) and run."""
    return [
        (record.get("stage", "train"), record.get("run"))
        for record in read_records(sweep.submissions)
        if record["event"] in {"submitted", "stage_submitted"}
    ]


def job_of(sweep: SweepDir, stage: str) -> str:
    """The latest job of a stage."""
    return [str(r["job_id"]) for r in read_records(sweep.submissions) if r.get("stage") == stage][-1]


def queue() -> str:
    return subprocess.run(["squeue", "-h", "-r"], capture_output=True, text=True, check=True).stdout


class TestOnSlurm:
    pytestmark = on_slurm

    @pytest.mark.long
    def test_evaluation_waits_for_the_end_of_a_run_that_went_on_by_itself_and_the_report_for_all(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        more = ["cluster=generic_slurm", f"job.init_from=null,{tmp_path}/nowhere", "job.steps=300",
                "job.init_from_is_remote=true", "launcher.requeues=1", "launcher.requeue_pause_s=1",
                "stages.evaluate.partition=debug", "stages.evaluate.cpus=2"]  # fmt: skip
        assert main(["submit", "-m", *chained(tmp_path, *more)]) == 0
        sweep = SweepDir(tmp_path / "s")
        good, bad = sweep.runs()
        stages = ["prepare", "train", "train", "evaluate", "evaluate", "report"]
        assert [stage for stage, _ in submitted(sweep)] == stages
        wait_until(lambda: events(good, "checkpoint"))
        process_of(good, 0).kill()
        wait_until(lambda: stage_event(sweep, "reported"), 720)
        assert [event["restart"] for event in events(good, "started")] == [0, 1]
        (evaluated,) = events(good, "evaluated")
        assert evaluated["step"] == 300
        assert events(good, "evaluate_started")[0]["node"] in {"node05", "node06"}, "the nodes of partition debug"
        assert str(events(good, "evaluate_started")[0]["time"]) > str(events(good, "finished")[0]["time"])
        capsys.readouterr()
        assert main(["status", str(sweep.path)]) == 0
        shown = printed_words(capsys)
        assert "2 runs: 1 finished, 1 failed" in shown
        assert "evaluate: 1 finished, 1 cancelled (its dependency failed) report: finished" in shown
        assert "evaluation_loss" in (sweep.path / "runs.csv").read_text()
        shown_job = subprocess.run(["scontrol", "-o", "show", "job", job_of(sweep, "report")], capture_output=True,
                                   text=True, check=True).stdout  # fmt: skip
        assert "JobName=s-report" in shown_job

        # An evaluation that failed is the only thing that a finished run gets again, whatever Slurm remembers.
        record = good.status.read_text()
        good.status.write_text(record.replace('"event":"evaluated"', '"event":"evaluate_failed","error":"as if"'))
        before = len(submitted(sweep))
        assert main(["resume", str(sweep.path)]) == 0
        again = submitted(sweep)[before:]
        assert again == [("train", bad.name), ("evaluate", bad.name), ("evaluate", good.name), ("report", None)]
        wait_until(lambda: events(good, "evaluated"))
        wait_until(lambda: not queue())

    @pytest.mark.long
    def test_a_run_that_failed_for_good_is_evaluated_and_reported_after_resume_has_finished_it(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        more = ["cluster=generic_slurm", "job.steps=150", "launcher.requeues=0", "name=one", "stages.prepare=null"]
        assert main(["submit", *chained(tmp_path, *more)]) == 0
        sweep = SweepDir(tmp_path / "s")
        (run,) = sweep.runs()
        wait_until(lambda: events(run, "checkpoint"))
        process_of(run, 0).kill()
        wait_until(lambda: stage_event(sweep, "reported") and not queue(), 720)
        assert [item.state for item in states(sweep)] == [State.failed]
        cancelled = "evaluate: 1 cancelled (its dependency failed)"
        assert stage_lines(stage_states(sweep)) == [cancelled, "report: finished"]
        before = len(submitted(sweep))
        capsys.readouterr()
        assert main(["resume", "--wait", str(sweep.path)]) == 0, printed_words(capsys)
        assert submitted(sweep)[before:] == [("train", run.name), ("evaluate", run.name), ("report", None)]
        assert int(str(events(run, "started")[1]["from_step"])) >= 20
        (evaluated,) = events(run, "evaluated")
        assert evaluated["step"] == 150
        assert stage_lines(stage_states(sweep)) == ["evaluate: 1 finished", "report: finished"]
        assert len(stage_event(sweep, "reported")) == 2
        assert "evaluation_loss" in (sweep.path / "runs.csv").read_text()
        wait_until(lambda: not queue())

    @pytest.mark.long
    def test_data_that_cannot_be_prepared_ends_the_whole_chain_and_resume_begins_it_again(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        text = tmp_path / "text.txt"
        text.write_text("too short")
        more = ["cluster=generic_slurm", "data=text", f"data.path={text}", "data.bpe_vocab_size=260", "job.steps=null",
                "job.epochs=3", "scaling.global_batch_size=4"]  # fmt: skip
        assert main(["submit", *chained(tmp_path, *more)]) == 0
        sweep = SweepDir(tmp_path / "s")
        (run,) = sweep.runs()
        wait_until(lambda: stage_event(sweep, "reported") and not queue())
        (found,) = states(sweep)
        assert found.state is State.failed
        assert found.detail.startswith("its data could not be prepared: ")
        assert found.detail.endswith("give more text.")
        lines = stage_lines(stage_states(sweep))
        assert lines[0].startswith(f"prepare: failed ({text} has ")
        assert lines[1:] == ["evaluate: 1 cancelled (its dependency failed)", "report: finished"]
        assert not events(run, "started")

        text.write_text("It waits in the queue until its nodes are free. " * 20)
        assert main(["resume", "--wait", str(sweep.path)]) == 0, printed_words(capsys)
        assert read_plan(run)["steps"] > 0
        assert read_plan(run)["steps"] == events(run, "finished")[0]["step"]
        assert len(events(run, "evaluated")) == 1

    def test_a_stage_that_sbatch_refuses_takes_all_back_and_cancel_ends_stages_too(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        later = ["cluster=generic_slurm", "cluster.sbatch={begin: now+1hour}"]
        real = shutil.which("sbatch")
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin/sbatch").write_text(
            f'#!/bin/bash\nif [ "$1" != --test-only ] && grep -q job-name=s-report "${{@: -1}}"; then\n'
            f'    echo "sbatch: error: site says no" >&2; exit 1\nfi\nexec {real} "$@"\n'
        )
        (tmp_path / "bin/sbatch").chmod(0o755)
        with monkeypatch.context() as patch:
            patch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
            assert main(["submit", *chained(tmp_path, *later)]) == 2
        assert "sbatch refused stages.report: site says no. Nothing of this submission is left" in printed_words(capsys)
        wait_until(lambda: not queue())
        assert not (tmp_path / "s").exists()

        assert main(["submit", *chained(tmp_path, *later, "stages.report.wall_time_min=100000")]) == 2
        assert "Set stages.report.wall_time_min=120 or less." in printed_words(capsys)

        assert main(["submit", "-m", *chained(tmp_path, *later, "repeat=1,2")]) == 0
        printed_words(capsys)
        assert main(["status", str(tmp_path / "s")]) == 0
        shown = printed_words(capsys)
        assert "2 runs: 2 queued prepare: queued (BeginTime) evaluate: 2 queued" in shown
        assert "report: queued" in shown
        assert main(["cancel", str(tmp_path / "s")]) == 0
        assert "cancelled 2 runs and 4 stages" in printed_words(capsys)
        wait_until(lambda: not queue())
        found = [line.partition(" (")[0] for line in stage_lines(stage_states(SweepDir(tmp_path / "s")))]
        assert found == ["prepare: cancelled", "evaluate: 2 cancelled", "report: cancelled"]
        assert {item.state for item in states(SweepDir(tmp_path / "s"))} == {State.cancelled}

        # A stage that was ended by hand records nothing; the stages that waited for it are cancelled, with the reason.
        assert main(["submit", *(o for o in chained(tmp_path, *later, "sweep=t") if o != "sweep=s")]) == 0
        other = SweepDir(tmp_path / "t")
        subprocess.run(["scancel", job_of(other, "prepare")], check=True)
        wait_until(lambda: states(other)[0].state is State.failed)
        detail = f"its data could not be prepared: job {job_of(other, 'prepare')} ended without recording a cause"
        assert states(other)[0].detail == detail

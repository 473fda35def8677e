"""The stages around training as jobs of PBS: on the stand-in, which deletes and releases what waits as OpenPBS does."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.cli import main
from jobs.rundir import SweepDir, read_records
from jobs.submit.pbs.job_end import resubmitted
from jobs.submit.stage_states import stage_lines, stage_states
from jobs.submit.states import State, states
from jobs.submit.sweeps.submissions import latest_submissions
from tests.jobs.submit.pbs.test_launcher import process_of
from tests.support.cli import files, printed, printed_words, small
from tests.support.fake_runs import event
from tests.support.pbs.fixture import PbsStandIn
from tests.support.real_run import events, last_of_each
from tests.support.waiting import wait_until

CHAIN = ("stages=all", "data.held_out_samples=4", "job.checkpoint_every_steps=20")


def given(where: Path, *more: str) -> list[str]:
    words = [*small(where), "cluster=generic_slurm", "launcher=pbs", "ranks_per_node=1", *CHAIN, *more]
    return last_of_each(words)


def stages(sweep: SweepDir) -> list[str]:
    return stage_lines(stage_states(sweep))


def jobs_of(sweep: SweepDir) -> dict[str, str]:
    """The jobs of the ledger, each with its stage and its run."""
    return {
        str(record["job_id"]): f"{record.get('stage', 'train')} {record.get('run', '')}".strip()
        for record in read_records(sweep.submissions)
        if record["event"] in {"submitted", "stage_submitted"}
    }


def depends(pbs: PbsStandIn, job_id: str) -> str | None:
    """The jobs for which a job waits, without the name of their server."""
    found = pbs.job(job_id).get("depend")
    parts = [each for each in str(found or "").replace("@pbshead", "").replace(".pbshead", "").split(",") if each]
    return ",".join(each for each in parts if each.startswith("after")) or None


def has_reported(sweep: SweepDir) -> bool:
    return any(event["event"] == "reported" for event in read_records(sweep.stages))


# --- one chain


def test_a_chain_waits_in_order_is_on_record_and_is_cancelled_from_its_end(
    pbs: PbsStandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (pbs.directory / "hold").touch()
    assert main(["submit", "-m", *given(tmp_path, "repeat=1,2", "name=r${repeat}", "launcher.max_running=1")]) == 0
    sweep = SweepDir(tmp_path / "s")
    shown = printed(capsys)
    assert "submitted 2 runs: 2, 4\nsubmitted stage prepare: 1\nsubmitted stage evaluate: 3, 5\n" in shown
    assert jobs_of(sweep) == {
        "1": "prepare", "2": "train r1", "3": "evaluate r1", "4": "train r2", "5": "evaluate r2", "6": "report"
    }  # fmt: skip
    assert {job_id: depends(pbs, job_id) for job_id in pbs.jobs()} == {
        "1": None, "2": "afterok:1", "3": "afterany:2", "4": "afterok:1,afterany:2", "5": "afterany:4",
        "6": "afterany:2:4:3:5",
    }  # fmt: skip
    assert pbs.job("1")["Resource_List"]["select"] == "1:ncpus=4:mpiprocs=1"
    wait_until(lambda: set(pbs.jobs().values()) == {"Q", "H"})
    assert stages(sweep) == [
        "prepare: queued (Not Running: Not enough free nodes available)",
        "evaluate: 2 queued (waits for job 2; waits for job 4)",
        "report: queued (waits for job 2, 4, 3, 5)",
    ]
    assert [item.detail for item in states(sweep)] == ["waits for job 1", "waits for job 1, 2"]
    assert main(["resume", str(sweep.path)]) == 0
    assert len(pbs.jobs()) == 6, "nothing is missing"
    pbs.does("qhold", "1")
    assert stages(sweep)[0].startswith("prepare: queued (held by PBS: JobHeld (Hold_Types=u): Job held by")
    pbs.does("qrls", "1")

    capsys.readouterr()
    assert main(["cancel", str(sweep.path)]) == 0
    assert "cancelled 2 runs and 4 stages" in printed_words(capsys)
    assert pbs.calls("qdel") == ["qdel 6 5 3 1 2 4"]
    assert pbs.calls("qalter") == []
    assert stages(sweep) == ["prepare: cancelled", "evaluate: 2 cancelled", "report: cancelled"]
    assert {item.state for item in states(sweep)} == {State.cancelled}


def test_one_run_is_cancelled_and_neither_the_report_nor_the_next_run_with_it(pbs: PbsStandIn, tmp_path: Path) -> None:
    (pbs.directory / "hold").touch()
    more = ("repeat=1,2,3", "name=r${repeat}", "launcher.max_running=1", "stages.prepare=null")
    assert main(["submit", "-m", *given(tmp_path, *more)]) == 0
    assert depends(pbs, "7") == "afterany:1:3:5:2:4:6"
    wait_until(lambda: pbs.jobs()["3"] == "H")
    assert main(["cancel", str(tmp_path / "s/r2")]) == 0
    assert pbs.alive() == ["1", "2", "5", "6", "7"]
    assert depends(pbs, "5") == "afterany:1", "still one run at a time"
    assert depends(pbs, "7") == "afterany:1:5:2:6"
    assert stages(SweepDir(tmp_path / "s"))[0].startswith("evaluate: 2 queued (waits for job")


def test_the_jobs_that_wait_for_a_run_wait_for_the_job_in_which_it_goes_on(
    pbs: PbsStandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (pbs.directory / "hold").touch()
    assert main(["submit", "-m", *given(tmp_path, "repeat=1,2", "name=r${repeat}", "launcher.max_running=1")]) == 0
    sweep = SweepDir(tmp_path / "s")

    def goes_on(name: str) -> bool:
        event(sweep.run(name), "checkpoint", step=20)
        return resubmitted(sweep.run(name), latest_submissions(sweep)[name], sweep)

    assert goes_on("r1")
    assert len(pbs.jobs()) == 7, "its stages are not submitted again"
    assert jobs_of(sweep)["7"] == "train r1"
    waits = {job_id: depends(pbs, job_id) for job_id in ("3", "4", "5", "6", "7")}
    assert waits == {
        "3": "afterany:7", "4": "afterok:1,afterany:7", "5": "afterany:4", "6": "afterany:7:4:3:5", "7": None
    }  # fmt: skip
    assert pbs.job("7")["depend"] == "beforeany:3.pbshead@pbshead:4.pbshead@pbshead:6.pbshead@pbshead"
    assert "beforeany" not in pbs.job("2").get("depend", "")
    (pbs.directory / "bin/qalter").write_text("#!/bin/sh\necho 'qalter: Unauthorized Request' >&2; exit 159\n")
    assert goes_on("r2"), "stages that start too early say so in their records"
    assert "what waits for the end of r2 starts when this job has ended: Unauthorized Request" in printed_words(capsys)


def test_a_stage_that_qsub_refuses_takes_the_whole_chain_back(
    pbs: PbsStandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (pbs.directory / "hold").touch()
    real = (pbs.directory / "bin/qsub").read_text().replace("#!/bin/sh", "")
    (pbs.directory / "bin/qsub").write_text(
        f"#!/bin/sh\ngrep -q 'N s-report' $1 && sed -i s/ncpus/nosuchres/ $1\n{real}"
    )
    assert main(["submit", *given(tmp_path, "name=one")]) == 2
    assert "qsub refused stages.report: Unknown resource: nosuchres." in (shown := printed_words(capsys))
    assert "Nothing of this submission is left in the queue" in shown
    assert (len(pbs.jobs()), pbs.alive()) == (3, [])
    assert not (tmp_path / "s").exists()


# --- refusals and previews


@pytest.mark.parametrize(
    ("answer", "more", "words"),
    [
        (("job_history_enable", "False"), "", "Stages need the history of jobs, which this PBS does not keep (job_hi"),
        (("pbs_version", "19.1.3"), "", "this PBS is release 19.1.3: before OpenPBS 20 and PBS Professional 2020 they"),
        (None, "stages.report.partition=gpu", "stages.report.partition=gpu does not exist here; the queues are"),
        (
            None,
            "cluster.partition=normal stages.report.wall_time_min=1500",
            "Set stages.report.wall_time_min=1440 or",
        ),
        (None, "stages.evaluate.partition='a b'", "stages.evaluate: cluster.partition='a b': a #PBS line cannot"),
    ],
)
def test_what_no_server_can_chain_and_no_queue_can_run_is_refused_before_anything_is_prepared(
    answer: tuple[str, str] | None, more: str, words: str, pbs: PbsStandIn, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    if answer is not None:
        key, value = answer
        real = (pbs.directory / "bin/qstat").read_text().replace("exec ", "")
        change = f"""sed 's/"{key}":\\t"[^"]*"/"{key}":\\t"{value}"/'"""
        (pbs.directory / "bin/qstat").write_text(f"{real.rstrip()} | {change}\n")
    given_by = more.split(" ") if "'" not in more else [more]
    assert main(["submit", *given(tmp_path, "name=one", *filter(None, given_by))]) == 2
    assert words in printed_words(capsys)
    assert files(tmp_path) <= {"cache"}


def test_a_preview_shows_the_valid_scripts_of_all_stages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ["launcher=dry", "cluster=aspire2a", "cluster.account=1234", "cluster.pbs={storage: scratch/ab12}",
            "stages.prepare.partition=cpu", "stages.prepare.memory_gb=48", "ranks_per_node=4", "nodes=2",
            "cluster.env={NCCL_DEBUG: INFO}", "scaling.global_batch_size=16"]  # fmt: skip
    assert main(["submit", *given(tmp_path, "name=one", *more)]) == 0
    shown = capsys.readouterr().out
    scripts = {part.split(maxsplit=1)[0]: part.partition("\n")[2] for part in shown.split("--- stage ")[1:]}
    assert list(scripts) == ["prepare", "evaluate", "report"]
    last = scripts["report"].partition("Only a preview")[0]
    for name, script in (scripts | {"report": last}).items():
        assert f"#PBS -N s-{name}\n" in script
        assert "#PBS -P 1234\n" in script
        assert "#PBS -l storage=scratch/ab12\n" in script
        assert f"\nrefuse_changed '' {tmp_path}/s " in script
        assert "export NCCL_DEBUG=INFO\n" in script
        assert re.search(rf"\nexec \S+ -u -m jobs.stages.{name} {tmp_path}/s", script)
        (tmp_path / name).write_text(script)
        shellcheck = (Path(sys.executable).parent / "shellcheck", "--exclude=SC1091")
        checked = subprocess.run((*shellcheck, tmp_path / name), capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stdout + checked.stderr
    assert {"-l select=1:ncpus=4:mem=48gb:mpiprocs=1", "-q cpu"} <= set(re.findall(r"#PBS (.*)", scripts["prepare"]))
    assert "#PBS -l select=1:ncpus=4:ngpus=1:mpiprocs=1\n" in scripts["evaluate"]
    assert "ngpus" not in scripts["report"]


# --- from qsub to the report


@pytest.mark.long
@pytest.mark.slow
def test_runs_are_prepared_evaluated_and_reported_also_if_one_of_them_failed(
    pbs: PbsStandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = (f"job.init_from=null,{tmp_path}/nowhere", "job.init_from_is_remote=true", "launcher.requeues=0")
    assert main(["submit", "-m", *given(tmp_path, *more)]) == 0
    sweep = SweepDir(tmp_path / "s")
    good, bad = sweep.runs()
    wait_until(lambda: has_reported(sweep) and not pbs.alive(), 720)
    assert [str(event["job_id"]) for event in events(good, "evaluate_started")] == ["3"]
    assert str(events(good, "evaluate_started")[0]["time"]) > str(events(good, "finished")[0]["time"])
    capsys.readouterr()
    assert main(["status", str(sweep.path)]) == 0
    shown = printed_words(capsys)
    assert "2 runs: 1 finished, 1 failed" in shown
    assert "prepare: finished evaluate: 1 finished, 1 failed (training has not finished: " in shown
    assert shown.endswith("report: finished")
    assert "evaluation_loss" in (sweep.path / "runs.csv").read_text()
    assert "slurmscale: started, restart 0, on localhost" in sweep.output("3").read_text()

    # An evaluation that failed is the only thing that a finished run gets again.
    record = good.status.read_text()
    good.status.write_text(record.replace('"event":"evaluated"', '"event":"evaluate_failed","error":"as if"'))
    known = jobs_of(sweep)
    assert main(["resume", str(sweep.path)]) == 0
    again = [what for job_id, what in jobs_of(sweep).items() if job_id not in known]
    assert again == [f"train {bad.name}", f"evaluate {bad.name}", f"evaluate {good.name}", "report"]
    wait_until(lambda: not pbs.alive(), 720)
    assert len(events(good, "evaluated")) == 1


@pytest.mark.long
@pytest.mark.slow
def test_a_run_that_failed_for_good_is_evaluated_and_reported_after_resume_has_finished_it(
    pbs: PbsStandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ("job.steps=150", "launcher.requeues=0", "name=one", "stages.prepare=null")
    assert main(["submit", *given(tmp_path, *more)]) == 0
    sweep = SweepDir(tmp_path / "s")
    (run,) = sweep.runs()
    wait_until(lambda: events(run, "checkpoint"))
    process_of(run, 0).kill()
    wait_until(lambda: has_reported(sweep) and not pbs.alive(), 720)
    assert [item.state for item in states(sweep)] == [State.failed]
    assert stages(sweep)[0].startswith("evaluate: 1 failed (training has not finished: rank 0 ended")
    known = jobs_of(sweep)
    capsys.readouterr()
    assert main(["resume", "--wait", str(sweep.path)]) == 0, printed(capsys)
    again = [what for job_id, what in jobs_of(sweep).items() if job_id not in known]
    assert again == ["train one", "evaluate one", "report"]
    assert int(str(events(run, "started")[1]["from_step"])) >= 20
    (evaluated,) = events(run, "evaluated")
    assert evaluated["step"] == 150
    assert stages(sweep) == ["evaluate: 1 finished", "report: finished"]
    assert sum(event["event"] == "reported" for event in read_records(sweep.stages)) == 2
    wait_until(lambda: not pbs.alive())


@pytest.mark.parametrize("command", ["status", "resume"])
def test_what_waits_for_a_run_that_qdel_deleted_before_it_ran_does_not_wait_for_ever(
    command: str, pbs: PbsStandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (pbs.directory / "hold").touch()
    more = ("repeat=1,2,3", "name=r${repeat}", "launcher.max_running=1", "stages.prepare=null")
    assert main(["submit", "-m", *given(tmp_path, *more)]) == 0
    wait_until(lambda: set(pbs.jobs().values()) == {"Q", "H"})
    pbs.does("qdel", "1")
    assert set(pbs.alive()) == {"2", "3", "4", "5", "6", "7"}, "PBS holds what waits for it"
    capsys.readouterr()
    assert main([command, str(tmp_path / "s")]) == 0
    shown = printed_words(capsys)
    assert "cancelled job 2, which waited for job 1: that was deleted before it ran, and PBS never starts it" in shown
    for freed in ("3", "7"):
        assert f"job {freed} no longer waits for job 1, deleted before it ran" in shown
    assert "2" not in pbs.alive()
    assert (depends(pbs, "3"), depends(pbs, "7")) == (None, "afterany:3:5:4:6")
    sweep = SweepDir(tmp_path / "s")
    if command == "status":
        assert "evaluate: 2 queued (waits for job 3; waits for job 5), 1 cancelled" in shown
        assert states(sweep)[0].state is State.cancelled
    else:
        assert {"train r1", "evaluate r1"} <= {jobs_of(sweep)[job_id] for job_id in pbs.alive()}


@pytest.mark.long
@pytest.mark.slow
def test_data_that_cannot_be_prepared_starts_nothing_and_resume_begins_again(
    pbs: PbsStandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("too short")
    more = ["data=text", f"data.path={text}", "data.bpe_vocab_size=260", "job.steps=null", "job.epochs=3",
            "scaling.global_batch_size=4"]  # fmt: skip
    assert main(["submit", *given(tmp_path, "name=one", *more)]) == 0
    sweep = SweepDir(tmp_path / "s")
    run = sweep.run("one")
    wait_until(lambda: not pbs.alive())
    (found,) = states(sweep)
    assert found.state is State.failed
    assert found.detail.startswith("its data could not be prepared: ")
    assert [line.partition(" (")[0] for line in stages(sweep)] == [
        "prepare: failed", "evaluate: 1 cancelled", "report: cancelled"
    ]  # fmt: skip
    assert not events(run, "started")
    text.write_text("It waits in the queue until its nodes are free. " * 20)
    assert main(["resume", "--wait", str(sweep.path)]) == 0, printed_words(capsys)
    assert len(events(run, "evaluated")) == 1
    assert has_reported(sweep)

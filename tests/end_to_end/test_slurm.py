"""Submitting to a real Slurm: accepted and refused jobs, and jobs that survive a closed shell."""

from __future__ import annotations

import csv
import os
import re
import shutil
import signal
import subprocess
import sys
import venv
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from jobs.cli import main
from jobs.plan.compose import compose
from jobs.run_events import run_events
from jobs.rundir import RunDir, SweepDir, read_records
from jobs.submit.launchers.slurm import arrays
from jobs.submit.preparation import staging
from jobs.submit.slurm.commands import most_tasks
from jobs.submit.states import State, states
from tests.support.cli import printed
from tests.support.nemo.real_nemo import shimmed_python
from tests.support.paths import ROOT
from tests.support.real_run import SMALL, losses
from tests.support.training import DEEP, long
from tests.support.waiting import limit_s, wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("empty_queue")]


def small(where: Path) -> list[str]:
    return [*SMALL, "cluster=generic_slurm", f"runs_dir={where}", "sweep=s", f"data.cache_dir={where}/cache",
            "job.steps=4"]  # fmt: skip


def queue() -> list[str]:
    return subprocess.run(["squeue", "-h", "-r"], capture_output=True, text=True, check=True).stdout.splitlines()


def accounting(job_id: str, fields: str) -> list[list[str]]:
    """Rows of sacct for a job and its array tasks; accounting lags, so wait for it."""
    rows: list[list[str]] = []

    def complete() -> bool:
        text = subprocess.run(["sacct", "-X", "-n", "-P", "-j", job_id, "-o", f"{fields},State"],
                              capture_output=True, text=True, check=True).stdout  # fmt: skip
        rows[:] = [line.split("|") for line in text.splitlines()]
        return bool(rows) and all(row[-1] not in {"PENDING", "RUNNING"} for row in rows)

    wait_until(complete)
    return rows


def ended(run: RunDir) -> bool:
    return any(event["event"] in {"finished", "failed"} for event in run_events(run))


def job_ids(sweep: SweepDir) -> dict[str, str]:
    return {r["run"]: r["job_id"] for r in read_records(sweep.submissions) if r["event"] == "submitted"}


# --- what arrives --------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.slow
def test_each_point_of_a_node_sweep_runs_on_its_own_number_of_nodes_and_reports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["submit", "-m", *small(tmp_path), "nodes=1,2", "repeat=1,2"]) == 0
    sweep = SweepDir(tmp_path / "s")
    ids = job_ids(sweep)
    assert main(["resume", "--wait", str(sweep.path)]) == 0, printed(capsys)
    for nodes in (1, 2):
        arrays = {ids[f"tiny-ddp-n{nodes}x1-r{repeat}"] for repeat in (1, 2)}
        (main_id,) = {job_id.split("_")[0] for job_id in arrays}
        assert arrays == {f"{main_id}_0", f"{main_id}_1"}, "equal resources share one array"
        assert {tuple(row) for row in accounting(main_id, "NNodes")} == {(str(nodes), "COMPLETED")}
    seen = {
        len(event["nodes"]): event["ranks"]
        for run in sweep.runs()
        for event in read_records(run.status)
        if event["event"] == "started"
    }
    assert seen == {1: 1, 2: 2}
    first = losses(sweep.run("tiny-ddp-n1x1-r1"))
    assert all(losses(run) == pytest.approx(first, abs=1e-5) for run in sweep.runs())
    assert main(["report", str(sweep.path)]) == 0
    page = (sweep.path / "report.html").read_text()
    assert "mulated" in page
    assert "from 1 to 2 ranks" in page


@pytest.mark.slow
@pytest.mark.long
def test_ranks_run_a_copy_of_their_environment_and_the_next_run_on_the_node_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    env, disk = tmp_path / "env", tmp_path / "disk"
    disk.mkdir()
    venv.create(env, symlinks=True)
    (site,) = env.glob("lib/python*/site-packages")
    packages = [path for path in sys.path if path.endswith("site-packages")]
    (site / "packages.pth").write_text("\n".join(packages))
    monkeypatch.setattr(sys, "prefix", str(env))
    monkeypatch.setattr(sys, "executable", str(env / "bin/python"))
    # Here all file systems are local: one that is not needs a network. The Python below the environment stays there.
    monkeypatch.setattr(sys, "base_prefix", str(env))
    monkeypatch.setattr(staging, "LOCAL_TYPES", frozenset())
    points = ["repeat=1,2", "launcher.max_running=1", f"cluster.stage_environment={disk}"]
    assert main(["submit", "-m", "--wait", *small(tmp_path), *points]) == 0, printed(capsys)
    starts = [
        event for run in SweepDir(tmp_path / "s").runs() for event in run_events(run) if event["event"] == "started"
    ]
    (copy,) = (disk / f"slurmscale-{os.getuid()}").glob("env-*[0-9a-f]")
    assert sorted(str(start["environment"]) for start in starts) == [f"found in {copy}", f"unpacked in {copy}"]
    assert all(float(start["startup_staging_time_s"]) > 0 for start in starts)
    assert all(float(start["startup_import_time_s"]) > 0 for start in starts)


@pytest.mark.slow
@pytest.mark.long
def test_a_sweep_over_products_and_both_engines_ends_in_one_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = [*DEEP, "job.steps=5"]
    products = ["fsdp_full", "tp_fsdp", "pp_fsdp", "tp_pp_fsdp"]
    one_by_one = "launcher.max_running=1"
    native = ["-m", *small(tmp_path), *model, "nodes=2", "ranks_per_node=2", f"parallelism={','.join(products)}",
              one_by_one]  # fmt: skip
    nemo = ["-m", *small(tmp_path), *model, "engine=nemo", "parallelism=tp,pp", "ranks_per_node=2", one_by_one,
            f"cluster.python={shimmed_python(tmp_path)}"]  # fmt: skip
    assert main(["submit", *native]) == 0, printed(capsys)
    assert main(["submit", *nemo]) == 0, printed(capsys)
    sweep = SweepDir(tmp_path / "s")
    assert main(["resume", "--wait", str(sweep.path)]) == 0, printed(capsys)
    names = {run.name for run in sweep.runs()}
    assert names == {f"tiny-{product}-n2x2" for product in products} | {"tiny-nemo-tp-n1x2", "tiny-nemo-pp-n1x2"}
    first = losses(sweep.run("tiny-fsdp_full-n2x2"))
    assert all(losses(run) == pytest.approx(first, abs=1e-5) for run in sweep.runs())
    assert main(["report", str(sweep.path)]) == 0
    rows = list(csv.DictReader((sweep.path / "runs.csv").read_text().splitlines()))
    assert {(row["engine"], row["pp"], row["tp"]) for row in rows} == {
        ("native", "1", "1"), ("native", "1", "2"), ("native", "2", "1"), ("native", "2", "2"),
        ("nemo", "1", "2"), ("nemo", "2", "1"),
    }  # fmt: skip
    page = (sweep.path / "report.html").read_text()
    assert "Layouts side by side" in page
    assert "Memory and communication per rank" in page


def test_a_pair_of_unequal_resources_takes_turns_as_jobs_that_wait_for_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # As an A/B of placements (cluster.sbatch.segment), which this release of Slurm does not have.
    later = "cluster.sbatch={begin: now+1hour}"
    baseline = [*SMALL, "cluster=generic_slurm", f"data.cache_dir={tmp_path}/cache", "job.steps=4", later]
    campaign = str(tmp_path / "c")
    assert main(["attempt", "baseline", *baseline, "--campaign", campaign, "--repeats", "1"]) == 0, printed(capsys)
    assert main(["attempt", "wide", "cluster.cpus_per_rank=2", "--campaign", campaign, "--repeats", "2"]) == 0
    jobs = job_ids(SweepDir(tmp_path / "c"))
    turns = ["wide-baseline-r1", "wide-r1", "wide-r2", "wide-baseline-r2"]
    asked = queued("%C", "%E")
    assert [asked[jobs[name]][0] for name in turns] == ["1", "2", "2", "1"]
    assert "(null)" in asked[jobs[turns[0]]][1]
    for earlier, name in pairwise(turns):
        assert asked[jobs[name]][1] == f"afterany:{jobs[earlier]}(unfulfilled)"
    assert main(["cancel", campaign]) == 0


def queued(*fields: str) -> dict[str, list[str]]:
    """These fields of squeue for each job."""
    command = ["squeue", "--noheader", f"--format=%i {' '.join(fields)}"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return {job: values for job, *values in map(str.split, lines)}


def test_no_more_runs_than_wanted_start_at_once_whatever_they_ask_for(tmp_path: Path) -> None:
    later = "cluster.sbatch={begin: now+1hour}"
    sweep = ["nodes=1,2", "repeat=1,2", "launcher.max_running=2", later]
    assert main(["submit", "-m", *small(tmp_path), *sweep]) == 0
    jobs = sorted(job_ids(SweepDir(tmp_path / "s")).values(), key=int)
    waits = {job: depends for job, (depends,) in queued("%E").items()}
    # Two arrays of two would be four at once.
    assert [waits[job] for job in jobs[2:]] == [f"afterany:{job}(unfulfilled)" for job in jobs[:2]]
    assert {waits[job] for job in jobs[:2]} == {"(null)"}


def test_the_demo_sweep_goes_through_slurm_as_it_is(tmp_path: Path) -> None:
    assert "`slurmscale submit -m experiment=demo cluster=generic_slurm`" in (ROOT / "README.md").read_text()
    later = "cluster.sbatch={begin: now+1hour}"
    assert main(["submit", "-m", "experiment=demo", "cluster=generic_slurm", f"runs_dir={tmp_path}", later]) == 0
    ids = job_ids(SweepDir(tmp_path / "demo"))
    assert len(ids) == len(queue()) == 8
    assert len({job_id.split("_")[0] for job_id in ids.values()}) == 2, "one array for each number of ranks"


def test_submit_reports_when_and_where_each_distinct_script_would_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_TIME_FORMAT", "relative")  # a user's own taste, which must not confuse us
    later = ["cluster.sbatch={begin: 2035-03-04T05:06:00}"]
    assert main(["submit", "-m", *small(tmp_path), "nodes=2", "repeat=1,2", *later]) == 0
    assert main(["submit", *small(tmp_path), "name=alone"]) == 0
    shown = printed(capsys)
    assert "expected start 2035-03-04 05:06 on node[01-02]: tiny-ddp-n2x1-r1, the first of 2\n" in shown
    # Slurm decides when and where; a start after midnight has its date. A time later than now on nodes that are idle is
    # wrong, and is not printed.
    alone = re.findall(r"^expected start (?:\d{4}-\d\d-\d\d )?\d\d:\d\d on node\d\d: alone$", shown, flags=re.MULTILINE)
    assert shown.count("expected start") == 1 + len(alone)


@pytest.mark.long
@pytest.mark.slow
def test_editing_code_and_configuration_while_jobs_wait_does_not_change_them(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    for package in ("jobs", "conf", "analysis", "sbatch"):
        shutil.copytree(ROOT / package, checkout / package, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(
        [sys.executable, "-m", "jobs.submit", *small(tmp_path), "cluster.sbatch={begin: now+5}"],
        cwd=checkout, env=os.environ | {"PYTHONPATH": str(checkout)}, check=True, capture_output=True,
    )  # fmt: skip
    for file in ("jobs/run.py", "jobs/work/train/loop.py", "jobs/errors.py"):
        (checkout / file).write_text("raise SystemExit('the edited code ran')")
    (checkout / "conf/job/pretrain.yaml").write_text("steps: 99")
    run = SweepDir(tmp_path / "s").run("tiny-ddp-n1x1")
    wait_until(lambda: ended(run))
    events = list(read_records(run.status))
    assert [event["event"] for event in events] == ["prepared", "started", "layout", "finished"]
    assert events[-1]["step"] == 4


@pytest.mark.long
@pytest.mark.slow
def test_a_script_written_for_sbatch_and_train_sbatch_run_the_same_training(tmp_path: Path) -> None:
    assert main(["submit", "launcher=script", *small(tmp_path), "nodes=2", "name=written"]) == 0
    sweep = SweepDir(tmp_path / "s")
    subprocess.run(["sbatch", sweep.run("written").batch_script], check=True, capture_output=True)
    overrides = [o for o in small(tmp_path) if not o.startswith(("runs_dir", "sweep", "cluster"))]
    by_hand = subprocess.run(
        ["sbatch", "--parsable", "--nodes=2", ROOT / "sbatch/train.sbatch", *overrides],
        cwd=tmp_path, env=os.environ | {"SLURMSCALE_HOME": str(ROOT), "SLURMSCALE_PYTHON": sys.executable},
        check=True, capture_output=True, text=True,
    ).stdout.strip()  # fmt: skip
    hand = SweepDir(tmp_path / "runs/sbatch").run(f"job-{by_hand}")
    for run in (sweep.run("written"), hand):
        wait_until(partial(ended, run))
    assert losses(hand) == pytest.approx(losses(sweep.run("written")), abs=1e-5)
    for folder in (sweep.path, hand.path.parent):
        done = subprocess.run([sys.executable, "-m", "jobs.cli", "status", folder], cwd=ROOT, capture_output=True,
                              text=True, check=True)  # fmt: skip
        assert "1 run: 1 finished" in done.stdout
    logs = subprocess.run([sys.executable, "-m", "jobs.cli", "logs", "--rank", "0", hand.path], cwd=ROOT,
                          capture_output=True, text=True, check=True)  # fmt: skip
    assert "finished at step 4 of 4" in logs.stdout


# --- looking after it ----------------------------------------------------------------------------------------


def test_status_names_queued_runs_with_slurms_reason_and_cancel_ends_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    later = ["cluster.sbatch={begin: now+1hour}"]
    assert main(["submit", "-m", *small(tmp_path), "nodes=1,2", *later]) == 0
    printed(capsys)
    assert main(["status", str(tmp_path / "s")]) == 0
    shown = printed(capsys)
    assert "2 runs: 2 queued" in shown
    assert "BeginTime" in shown
    assert main(["cancel", str(tmp_path / "s")]) == 0
    assert "cancelled 2 runs" in printed(capsys)
    wait_until(lambda: not queue())
    assert main(["status", str(tmp_path / "s")]) == 0
    assert "2 runs: 2 cancelled" in printed(capsys)


@pytest.mark.long
@pytest.mark.slow
def test_resume_skips_finished_runs_and_submits_the_cancelled_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["submit", *small(tmp_path), "name=done"]) == 0
    assert main(["submit", *small(tmp_path), "name=waiting", "cluster.sbatch={begin: now+1hour}"]) == 0
    sweep = SweepDir(tmp_path / "s")
    wait_until(lambda: any(e["event"] == "finished" for e in read_records(sweep.run("done").status)))
    assert main(["cancel", str(sweep.path)]) == 0
    wait_until(lambda: not queue())
    printed(capsys)
    assert main(["resume", str(sweep.path)]) == 0
    assert "2 runs: 1 finished, 1 cancelled; 1 to resume" in printed(capsys)
    assert len(queue()) == 1
    assert [r["run"] for r in read_records(sweep.submissions) if r["event"] == "submitted"] == [
        "done", "waiting", "waiting"
    ]  # fmt: skip


@pytest.mark.slow
def test_a_cancelled_job_stops_at_a_step_boundary_and_states_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["submit", *small(tmp_path), "nodes=2", "job.steps=100000", "job.checkpoint_every_steps=50000"]) == 0
    run = SweepDir(tmp_path / "s").run("tiny-ddp-n2x1")
    wait_until(lambda: len(losses(run)) > 2 if run.metrics.exists() else False)
    assert main(["cancel", str(tmp_path / "s")]) == 0
    wait_until(lambda: not queue())
    printed(capsys)
    main(["status", str(tmp_path / "s")])
    assert "1 run: 1 cancelled" in printed(capsys)
    assert [e["event"] for e in read_records(run.status) if e["event"] not in {"node_load", "pace"}] == [
        "prepared", "started", "transport", "layout", "checkpoint", "stopped"
    ]  # fmt: skip


@pytest.mark.slow
def test_a_run_that_fails_shows_its_error_in_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(
            ["submit", *small(tmp_path), "nodes=2", f"job.init_from={tmp_path}/nowhere", "job.init_from_is_remote=true"]
        )
        == 0
    )
    run = SweepDir(tmp_path / "s").run("tiny-ddp-n2x1")
    wait_until(lambda: ended(run))
    assert states(SweepDir(run.path.parent))[0].detail != "starting", (
        "a job that winds up after its ranks failed is not starting"
    )
    wait_until(lambda: not queue())
    printed(capsys)
    main(["status", str(tmp_path / "s")])
    shown = printed(capsys)
    assert "1 run: 1 failed" in shown
    assert "has neither lit_model.pth nor *.safetensors" in " ".join(shown.split())


MODULE = """() {
    if [ "$2" = old ]; then echo "Load.c(213):ERROR:105: Unable to locate old" >&2; return 0; fi
    if [ "$2" = new ]; then echo "Lmod has detected the following error: new" >&2; return 1; fi
}"""


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["cluster.modules=[old]"],
         "module load old failed with exit code 1 (Load.c(213):ERROR:105: Unable to locate old)"),
        long(["cluster.modules=[new]"],
             "module load new failed with exit code 1 (Lmod has detected the following error: new)"),
        (["cluster.setup=['source {site}','source /nowhere.sh','echo reached > {site}']"],
         "source /nowhere.sh failed with exit code 1 ("),
        (["cluster.python=/nowhere/python"],
         "srun cannot start /nowhere/python (No such file or directory). Set cluster.python to"),
        long(["cluster.python='python3 -c \"raise SystemExit(chr(120))\"'"],
             "srun reports: Exited with exit code 1; the last line of its log: x"),
    ],
)  # fmt: skip
def test_a_run_whose_environment_fails_ends_at_once_and_status_quotes_the_line(
    overrides: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Jobs inherit the function of the shell. Old Environment Modules report an error and return 0; Lmod returns 1.
    monkeypatch.setenv("BASH_FUNC_module%%", MODULE)
    # A site's script may read variables that are not set, and contain commands that fail.
    site = tmp_path / "site.sh"
    site.write_text('false\n[ -n "$NOT_SET" ]\ntrue\n')
    overrides = [override.replace("{site}", str(site)) for override in overrides]
    assert main(["submit", *small(tmp_path), *overrides]) == 0
    sweep = SweepDir(tmp_path / "s")
    wait_until(lambda: states(sweep)[0].state is State.failed)
    assert words in states(sweep)[0].detail
    assert "reached" not in site.read_text()


# --- refusals ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["cluster.partition=nosuch"], "=nosuch does not exist here; the partitions are debug, gpu, spare."),
        (["cluster.account=nosuch"], "Invalid account or account/partition combination specified"),
        (["cluster.qos=nosuch"], "(cluster.qos=nosuch, nodes=1, ranks_per_node=1, wall_time_min=60): "
         "allocation failure: Invalid qos specification. Nothing was submitted."),
        (["nodes=8"], "nodes=8, but partition gpu gives a job at most 4. Set nodes=4 or less."),
        (["cluster.partition=debug", "nodes=2", "wall_time_min=10"], "partition debug gives a job at most 1."),
        (["wall_time_min=1000"], "partition gpu allows 120 (MaxTime=02:00:00). Set wall_time_min=120 or less."),
        (["cluster.gpus=true", "cluster.ranks_per_node=99", "ranks_per_node=16", "scaling.global_batch_size=16"],
         "Requested node configuration is not available"),
        (["cluster.constraint=nosuch"], "Invalid feature specification"),
    ],
)  # fmt: skip
def test_what_slurm_cannot_run_is_refused_with_its_words_and_leaves_nothing(
    overrides: list[str], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["submit", *small(tmp_path), *overrides]) == 2
    assert expected in printed(capsys)
    assert queue() == []
    assert not (tmp_path / "s").exists()


def test_one_refused_point_of_a_sweep_submits_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["submit", "-m", *small(tmp_path), "cluster.qos=normal,nosuch"]) == 2
    assert "Nothing was submitted" in printed(capsys)
    assert queue() == []
    assert not (tmp_path / "s").exists()


def test_a_refusal_in_the_middle_takes_back_what_was_submitted_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A site's submit plugin may accept a test and refuse the real thing: an sbatch that refuses 2-node scripts.
    (tmp_path / "bin").mkdir()
    real = shutil.which("sbatch")
    (tmp_path / "bin/sbatch").write_text(
        f'#!/bin/bash\nif [ "$1" != --test-only ] && grep -q nodes=2 "${{@: -1}}"; then\n'
        f'    echo "sbatch: error: site says no" >&2; exit 1\nfi\nexec {real} "$@"\n'
    )
    (tmp_path / "bin/sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    later = ["cluster.sbatch={begin: now+1hour}"]
    assert main(["submit", "-m", *small(tmp_path), "nodes=1,2", *later]) == 2
    shown = printed(capsys)
    assert "site says no" in shown
    assert "Nothing of this submission is left in the queue." in shown
    wait_until(lambda: not queue())


def test_what_slurm_does_not_take_back_stays_on_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    real = shutil.which("sbatch")
    (tmp_path / "bin/sbatch").write_text(
        f'#!/bin/bash\nif [ "$1" != --test-only ] && grep -q nodes=2 "${{@: -1}}"; then exit 1; fi\nexec {real} "$@"\n'
    )
    (tmp_path / "bin/scancel").write_text('#!/bin/bash\necho "scancel: error: controller is down" >&2; exit 1\n')
    for name in ("sbatch", "scancel"):
        (tmp_path / "bin" / name).chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
        later = "cluster.sbatch={begin: now+1hour}"
        assert main(["submit", "-m", *small(tmp_path), "nodes=1,2", later]) == 2
    assert "could not be cancelled (controller is down). They are on record" in printed(capsys)
    assert len(queue()) == 1
    assert main(["cancel", str(tmp_path / "s")]) == 0
    wait_until(lambda: not queue())


def test_ctrl_c_in_the_middle_of_submitting_leaves_every_submitted_job_on_record(tmp_path: Path) -> None:
    # A slow sbatch, so that the signal surely falls between two submissions.
    (tmp_path / "bin").mkdir()
    real = shutil.which("sbatch")
    (tmp_path / "bin/sbatch").write_text(f'#!/bin/bash\n[ "$1" = --test-only ] || sleep 1\nexec {real} "$@"\n')
    (tmp_path / "bin/sbatch").chmod(0o755)
    submitting = subprocess.Popen(
        [sys.executable, "-m", "jobs.cli", "submit", "-m", *small(tmp_path), "nodes=1,2,4",
         "cluster.sbatch={begin: now+1hour}"],
        cwd=ROOT, env=os.environ | {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}, start_new_session=True,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    wait_until(lambda: len(queue()) == 1)
    # As a terminal does it: to the whole foreground group, sbatch included.
    os.killpg(submitting.pid, signal.SIGINT)
    output, _ = submitting.communicate(timeout=limit_s(180))
    assert submitting.returncode == 130
    sweep = SweepDir(tmp_path / "s")
    recorded = job_ids(sweep)
    assert len(recorded) == len(queue()) < 3
    assert f"Interrupted: {len(recorded)} of 3 runs were submitted and are on record." in output
    assert main(["resume", str(sweep.path)]) == 0
    assert len(job_ids(sweep)) == len(queue()) == 3


def test_arrays_stay_below_the_sites_limit(tmp_path: Path) -> None:
    most = most_tasks()
    for tasks, is_taken in ((most, True), (most + 1, False)):
        tested = subprocess.run(["sbatch", "--test-only", f"--array=0-{tasks - 1}", "--wrap=true"], check=False)
        assert (tested.returncode == 0) is is_taken
    run = compose(["cluster=generic_slurm"], multirun=False)[0].run
    runs = [(run, RunDir(tmp_path / str(number))) for number in range(5)]
    for _, directory in runs:
        directory.path.mkdir()
        directory.code.symlink_to(ROOT)
    assert [len(group) for group in arrays(runs, most=2)] == [2, 2, 1]

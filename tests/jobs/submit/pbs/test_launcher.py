"""launcher=pbs on the stand-in for PBS: real processes from qsub to the records, and what a user sees of them."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest

from jobs.cli import main
from jobs.plan.compose import compose
from jobs.rundir import RunDir, SweepDir, read_records
from jobs.submit.pbs.batch_script import HeldTurn, script_text
from jobs.submit.states import RunState, State, states
from jobs.submit.watching.progress import last_step
from tests.support.cli import files, printed, printed_words, small
from tests.support.interrupted import dying_shell
from tests.support.pbs.fixture import PbsStandIn
from tests.support.real_run import events, losses, make_run, train
from tests.support.training import long
from tests.support.waiting import limit_s, wait_until

ENDLESS = ("job.steps=100000", "job.checkpoint_every_steps=20", "data.max_samples=64")


def given(where: Path, *more: str) -> list[str]:
    return [*small(where), "cluster=generic_slurm", "launcher=pbs", "ranks_per_node=1", *more]


def submitted(where: Path, *more: str) -> SweepDir:
    assert main(["submit", *given(where, "name=one", *more)]) == 0
    return SweepDir(where / "s")


def only(sweep: SweepDir) -> RunState:
    (found,) = states(sweep)
    return found


def is_at_step(sweep: SweepDir, step: int) -> bool:
    return (last_step(sweep.run("one")) or 0) >= step


def has_saved(sweep: SweepDir, step: int) -> bool:
    """Return True if a checkpoint of that step or a later one is complete: they are written while steps go on."""
    return any(int(path.name[5:]) >= step for path in sweep.run("one").checkpoints.glob("step-*"))


# --- from qsub to the end


@pytest.mark.slow
@pytest.mark.parametrize("program", ["pbsdsh", long("ssh"), long("mpirun")])
def test_two_nodes_of_two_ranks_train_with_the_losses_of_one_rank(
    program: str, pbs: PbsStandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    as_root = "cluster.env={OMPI_ALLOW_RUN_AS_ROOT: '1', OMPI_ALLOW_RUN_AS_ROOT_CONFIRM: '1'}"
    code = main(["submit", "--wait", *given(tmp_path, "name=one", "nodes=2", f"cluster.pbs_start={program}", as_root,
                                            "ranks_per_node=2", "cluster.cpus_per_rank=1")])  # fmt: skip
    sweep = SweepDir(tmp_path / "s")
    logs = "".join(file.read_text() for file in sorted(sweep.logs.glob("1_*_log.out")))
    assert code == 0, printed(capsys) + logs
    (started,) = [event for event in read_records(sweep.run("one").status) if event["event"] == "started"]
    assert (started["ranks"], started["job_id"]) == (4, "1")
    assert main(["logs", str(sweep.path / "one")]) == 0
    assert "slurmscale: started, restart 0, on localhost" in printed(capsys)
    assert pbs.job("1")["Resource_List"]["select"] == "2:ncpus=2:mpiprocs=1"
    reference = make_run(tmp_path / "reference", "ranks_per_node=1", "job.steps=4")
    assert train(reference) == [0]
    assert losses(sweep.run("one")) == pytest.approx(losses(reference), abs=1e-5)


def test_a_run_in_the_queue_shows_the_reason_of_pbs_and_no_run_is_lost(
    pbs: PbsStandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = submitted(tmp_path, "nodes=3")
    wait_until(lambda: only(sweep).detail == "Can Never Run: Not enough total nodes available")
    assert only(sweep).state is State.queued
    pbs.does("qhold", "1")
    assert only(sweep).state is State.held
    assert main(["status", str(sweep.path)]) == 0
    assert "held by PBS: JobHeld (Hold_Types=u): Job held by" in printed_words(capsys)
    assert "run `qrls 1`" in only(sweep).detail
    (pbs.directory / "down").touch()
    assert only(sweep).state is State.queued
    assert "PBS does not answer here: Connection refused" in only(sweep).detail


def test_at_most_so_many_runs_are_in_nodes_at_once(pbs: PbsStandIn, tmp_path: Path) -> None:
    (pbs.directory / "hold").touch()
    assert main(["submit", "-m", *given(tmp_path, "repeat=1,2,3", "launcher.max_running=2")]) == 0
    waits = "afterany:1.pbshead@pbshead"
    assert [pbs.job(job_id).get("depend") for job_id in ("1", "2", "3")] == ["beforeany:3.pbshead@pbshead", None, waits]
    wait_until(lambda: states(SweepDir(tmp_path / "s"))[2].detail == "waits for job 1")


# --- ends


@pytest.mark.slow
def test_a_cancelled_run_is_stopped_by_qdel_and_continues_from_its_checkpoint(
    pbs: PbsStandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = submitted(tmp_path, *ENDLESS)
    wait_until(lambda: has_saved(sweep, 20))
    assert only(sweep).state is State.running
    assert main(["cancel", str(sweep.path)]) == 0
    assert pbs.calls("qdel") == ["qdel 1"]
    wait_until(lambda: not pbs.alive())
    assert (only(sweep).state, pbs.job("1")["substate"]) == (State.cancelled, 91)
    assert main(["cancel", str(sweep.path)]) == 0
    assert "no run waits or runs" in printed(capsys)
    assert pbs.calls("qdel") == ["qdel 1"]
    assert main(["resume", str(sweep.path)]) == 0
    wait_until(lambda: only(sweep).state is State.running)
    starts = [event for event in read_records(sweep.run("one").status) if event["event"] == "started"]
    assert (starts[-1]["job_id"], starts[-1]["from_step"] >= 20) == ("2", True)


@pytest.mark.slow
def test_a_job_that_pbs_runs_again_continues_from_its_checkpoint(pbs: PbsStandIn, tmp_path: Path) -> None:
    """An operator's qrerun, or a node that was lost: processes are killed, and the job keeps its id."""
    sweep = submitted(tmp_path, *ENDLESS)
    wait_until(lambda: has_saved(sweep, 20))
    pbs.does("qrerun", "1")
    again = (State.running, "restart 1, after a requeue by PBS")
    wait_until(lambda: (only(sweep).state, only(sweep).detail) == again)
    assert pbs.job("1").get("run_count") == 2
    starts = [event for event in read_records(sweep.run("one").status) if event["event"] == "started"]
    assert [(event["restart"], event["job_id"]) for event in starts] == [(0, "1"), (1, "1")]
    assert starts[1]["from_step"] >= 20


@pytest.mark.slow
def test_a_run_at_its_time_limit_is_told_by_pbs(pbs: PbsStandIn, tmp_path: Path) -> None:
    """The ranks are killed before they could stop: here PBS ends the job before the script expects it."""
    (pbs.directory / "limit_s").write_text("3")
    python = tmp_path / "python"
    python.write_text("#!/bin/bash\ntrap '' TERM\nsleep 600 & wait; wait; sleep 600\n")
    python.chmod(0o755)
    sweep = submitted(tmp_path, f"cluster.python={python}")
    wait_until(lambda: not pbs.alive())
    assert pbs.job("1")["Exit_status"] == -29
    assert (only(sweep).state, only(sweep).detail) == (
        State.failed, "PBS ended it at its walltime. Set wall_time_min"
    )  # fmt: skip
    (output,) = sweep.logs.glob("*.o1")
    assert "=>> PBS: job killed: walltime 3 exceeded limit 3" in output.read_text()


@pytest.mark.slow
@pytest.mark.long
def test_a_run_stops_in_time_with_a_checkpoint_and_is_resumed(pbs: PbsStandIn, tmp_path: Path) -> None:
    sweep = submitted(tmp_path, *ENDLESS, "wall_time_min=1")
    wait_until(lambda: only(sweep).state is State.stopped)
    assert only(sweep).detail == "time limit near, or preempted (SIGUSR2)"
    assert pbs.job("1")["Exit_status"] == 0
    saved = max(int(path.name[5:]) for path in sweep.run("one").checkpoints.glob("step-*"))
    assert saved == last_step(sweep.run("one"))
    assert main(["resume", str(sweep.path)]) == 0
    wait_until(lambda: is_at_step(sweep, saved + 1))


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("kill -KILL $$", "rank 0 on {node}: rank 0 ended without recording a cause: signal 9 (Killed)"),
        ("exit 3", "rank 0 on {node}: rank 0 ended without recording a cause: exit code 3"),
    ],
)
def test_a_rank_that_dies_in_silence_is_named(script: str, words: str, pbs: PbsStandIn, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/bash\n{script}\n")
    python.chmod(0o755)
    sweep = submitted(tmp_path, f"cluster.python={python}", "nodes=2", "launcher.requeues=0")
    wait_until(lambda: not pbs.alive())
    node = subprocess.run(["hostname"], capture_output=True, text=True, check=True).stdout.strip()
    found = only(sweep)
    assert found.state is State.failed
    assert found.detail.replace("rank 1", "rank 0") == words.format(node=node)


def test_a_set_up_line_that_fails_is_the_reason(pbs: PbsStandIn, tmp_path: Path) -> None:
    sweep = submitted(tmp_path, "cluster.setup=['echo no such licence && false']")
    wait_until(lambda: not pbs.alive())
    assert only(sweep).state is State.failed
    assert "echo no such licence && false failed with exit code 1 (no such licence)" in only(sweep).detail


# --- restarts in the job


def process_of(run: RunDir, rank: int) -> psutil.Process:
    """The process of a rank, not the `timeout` that has started it."""
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            is_rank = "python" in process.name() and process.cmdline()[-1:] == [str(run.path)]
            if is_rank and process.environ().get("RANK") == str(rank):
                return process
    raise AssertionError(f"no process of rank {rank}")


@pytest.mark.slow
@pytest.mark.parametrize("program", ["pbsdsh", long("ssh"), long("mpirun")])
def test_a_run_that_lost_a_rank_restarts_once_in_its_job_from_the_last_checkpoint(
    program: str, pbs: PbsStandIn, tmp_path: Path
) -> None:
    as_root = "cluster.env={OMPI_ALLOW_RUN_AS_ROOT: '1', OMPI_ALLOW_RUN_AS_ROOT_CONFIRM: '1'}"
    sweep = submitted(
        tmp_path, *ENDLESS, "nodes=2", "launcher.requeue_pause_s=1", f"cluster.pbs_start={program}", as_root
    )
    run = sweep.run("one")
    wait_until(lambda: has_saved(sweep, 40))
    other = process_of(run, 0)
    process_of(run, 1).kill()
    wait_until(lambda: len(events(run, "started")) == 2 and only(sweep).state is State.running)
    node = socket.gethostname()
    assert only(sweep).detail == f"restart 1, after killed (rank 1 on {node})"
    assert [event["cause"] for event in events(run, "requeued")] == ["killed"]
    starts = events(run, "started")
    assert [(event["restart"], event["job_id"]) for event in starts] == [(0, "1"), (1, "1")]
    assert int(str(starts[1]["from_step"])) >= 40
    assert not other.is_running(), "the ranks of the other node have ended before"
    assert pbs.job("1").get("run_count") == 1, "the job itself goes on"
    assert main(["cancel", str(sweep.path)]) == 0
    wait_until(lambda: not pbs.alive())
    assert only(sweep).state is State.cancelled
    assert len(events(run, "started")) == 2


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(
    ("settings", "cause"),
    [
        (("job.learning_rate=1000", "job.min_learning_rate=1000", "job.warmup_steps=0"), "diverged"),
        (("job.init_from=/nowhere", "job.init_from_is_remote=true"), "refused"),
    ],
)
def test_what_would_fail_again_does_not_restart(
    settings: tuple[str, ...], cause: str, pbs: PbsStandIn, tmp_path: Path
) -> None:
    sweep = submitted(tmp_path, *ENDLESS, *settings)
    wait_until(lambda: not pbs.alive())
    run = sweep.run("one")
    assert only(sweep).state is State.failed
    assert events(run, "failed")[-1]["cause"] == cause
    assert events(run, "requeued") == []
    assert sweep.output("1").read_text().count("slurmscale: started") == 1


@pytest.mark.slow
@pytest.mark.long
def test_a_run_whose_job_has_no_time_left_is_left_to_resume(pbs: PbsStandIn, tmp_path: Path) -> None:
    sweep = submitted(tmp_path, *ENDLESS, "wall_time_min=1")
    run = sweep.run("one")
    wait_until(lambda: has_saved(sweep, 20))
    process_of(run, 0).kill()
    wait_until(lambda: not pbs.alive())
    assert "s left; `slurmscale resume" in sweep.output("1").read_text()
    assert (only(sweep).state, events(run, "requeued")) == (State.failed, [])
    assert main(["resume", str(sweep.path)]) == 0
    wait_until(lambda: only(sweep).state is State.running)
    assert int(str(events(run, "started")[-1]["from_step"])) >= 20


@pytest.mark.slow
@pytest.mark.long
def test_a_run_at_its_time_limit_goes_on_in_a_job_that_its_job_submits(pbs: PbsStandIn, tmp_path: Path) -> None:
    sweep = submitted(tmp_path, *ENDLESS, "wall_time_min=1", "cluster.pbs_resubmit=true")
    run = sweep.run("one")
    wait_until(lambda: "2" in pbs.alive() and only(sweep).state is State.running)
    assert only(sweep).job_id == "2"
    stopped = events(run, "stopped")
    assert [event["cause"] for event in stopped] == ["time_limit"]
    starts = events(run, "started")
    assert [event["job_id"] for event in starts] == ["1", "2"]
    assert starts[1]["from_step"] == stopped[0]["step"]
    assert "slurmscale: one goes on in another job: submitted 1 run: 2" in sweep.output("1").read_text()
    assert main(["cancel", str(sweep.path)]) == 0


# --- refusals


def test_what_a_queue_can_never_run_is_refused_before_anything_is_prepared(
    pbs: PbsStandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for more, words in (
        (["cluster.partition=gpu"], "cluster.partition=gpu does not exist here; the queues are normal, workq."),
        (["cluster.partition=normal", "wall_time_min=1500"], "wall_time_min=1500, but queue normal allows 1440"),
        (["cluster.qos=high"], "cluster.qos is an option of Slurm, and launcher=pbs writes for PBS."),
    ):
        assert main(["submit", *given(tmp_path, *more)]) == 2
        assert words in printed(capsys)
    (pbs.directory / "down").touch()
    assert main(["submit", *given(tmp_path)]) == 2
    assert "launcher=pbs: no PBS server answers here (Connection refused; cannot connect to server" in printed(capsys)
    assert files(tmp_path) <= {"cache"}


def test_without_qsub_the_user_learns_where_to_go(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    assert main(["submit", *given(tmp_path)]) == 2
    shown = printed_words(capsys)
    assert "launcher=pbs and pbs_pilot need qsub, which is not on this machine's PATH." in shown
    assert "launcher=pbs_script to write scripts for later" in shown


@pytest.mark.parametrize(
    ("has_slurm", "remedy"), [(True, "Slurm is here: set launcher=slurm."), (False, "Set launcher=pbs_script.")]
)
def test_the_qstat_that_slurm_brings_for_users_of_torque_is_no_pbs(
    has_slurm: bool, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # What qstat of Debian's slurm-wlm-torque 22.05.8 printed for `qstat -B -f -F json`.
    usage = "Unknown option: F\nUsage:\n    qstat [-f] [-a|-i|-r] [-n [-1]] [-G|-M] [-u user_list] [-? | --help]"
    programs = {"qstat": f"echo '{usage}' >&2\nexit 2", "qsub": "exit 1", **({"sbatch": "exit 1"} if has_slurm else {})}
    (tmp_path / "bin").mkdir()
    for name, script in programs.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert main(["submit", *given(tmp_path / "runs", "name=one")]) == 2
    assert printed_words(capsys).endswith(
        "launcher=pbs needs PBS Pro or OpenPBS. The qstat of this machine has no option -F: it is Torque's, or what "
        f"Slurm brings for users of Torque (slurm-torque). {remedy}"
    )
    assert not files(tmp_path / "runs")


@pytest.mark.parametrize(
    ("refuses", "words"),
    [
        ("touch {where}/full", "PBS accepts no more of your jobs now (would exceed complex's per-user limit of jobs"),
        ("sed -i s/ncpus/nosuchres/ $1", "Unknown resource: nosuchres. This server has no such resource."),
    ],
)
def test_a_sweep_that_qsub_takes_in_part_is_taken_back(
    refuses: str, words: str, pbs: PbsStandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (pbs.directory / "hold").touch()
    real = (pbs.directory / "bin/qsub").read_text().replace("#!/bin/sh", "")
    (pbs.directory / "bin/qsub").write_text(
        f"#!/bin/sh\nif [ -e {pbs.directory}/state.json ]; then {refuses.format(where=pbs.directory)}; fi\n{real}"
    )
    assert main(["submit", "-m", *given(tmp_path, "repeat=1,2", "cluster.cpus_per_rank=1")]) == 2
    shown = printed_words(capsys)
    assert words in shown
    assert "of this submission is left in the queue" in shown
    assert pbs.alive() == []


def test_the_job_of_another_program_is_never_ended(
    pbs: PbsStandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (pbs.directory / "hold").touch()
    sweep = submitted(tmp_path)
    other = tmp_path / "other.pbs"
    other.write_text("#!/bin/bash\n#PBS -N other\n")
    pbs.does("qsub", str(other))
    (record,) = [record for record in read_records(sweep.submissions) if record["event"] == "submitted"]
    # Without the name of its job nothing but the id is left to go by.
    forged = {key: value for key, value in record.items() if key != "mark"} | {"job_id": "2"}
    with sweep.submissions.open("a") as ledger:
        ledger.write(json.dumps(forged) + "\n")
    assert main(["cancel", str(sweep.path)]) == 2
    assert "names job 2, but PBS has it as other of" in printed_words(capsys)
    assert "2" in pbs.alive()


# --- a shell that dies


@pytest.mark.parametrize("moment", ["after", "before", "instead"])
def test_a_job_of_a_shell_that_was_killed_is_adopted_or_given_up(
    moment: str, pbs: PbsStandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (pbs.directory / "hold").touch()
    sweep = SweepDir(tmp_path / "s")
    shell = dying_shell(tmp_path, moment, "KILL", "submit", *given(tmp_path, "name=one"), program="qsub")
    shell.communicate(timeout=limit_s(180))
    assert shell.returncode == -signal.SIGKILL
    if moment == "after":
        wait_until(pbs.alive)
    assert main(["resume", str(sweep.path)]) == 0
    shown = printed_words(capsys)
    assert "1 run: 1 queued; 0 to resume" in shown
    assert ("adopted job 1, whose submission was interrupted" in shown) == (moment == "after")
    if moment == "before":
        (tmp_path / "go").touch()
        wait_until(pbs.alive)
        assert main(["status", str(sweep.path)]) == 0
        assert "adopted job 1" in printed_words(capsys)
    if moment == "instead":
        assert "PBS has not shown its job yet" in only(sweep).detail
        long_ago = (datetime.now(UTC) - timedelta(hours=1)).isoformat(timespec="milliseconds")
        aged = [record | {"time": long_ago} for record in read_records(sweep.submissions)]
        sweep.submissions.write_text("".join(json.dumps(record) + "\n" for record in aged))
        assert main(["resume", str(sweep.path)]) == 0
        assert "never reached PBS: its submission was interrupted" in printed_words(capsys)
    assert pbs.alive() == ["1"]
    assert only(sweep).job_id == "1"


# --- the script


@pytest.mark.parametrize("program", ["pbsdsh", "ssh", "mpirun"])
def test_the_script_is_valid_shell_and_shellcheck_finds_nothing(program: str, tmp_path: Path) -> None:
    layout = ["nodes=2", "ranks_per_node=2", "cluster.cpus_per_rank=4"]
    run = compose(given(tmp_path, *layout, f"cluster.pbs_start={program}"), multirun=False)[0].run
    sweep = SweepDir(tmp_path / "s")
    directory = RunDir(sweep.path / "one")
    directory.path.mkdir(parents=True)
    directory.code.symlink_to(sweep.code("0" * 32))
    file, held = tmp_path / "script", tmp_path / "held"
    file.write_text(script_text(run, directory, sweep, file, name="one-0", after="afterany:7"))
    held.write_text(script_text(run, directory, sweep, held, held=HeldTurn("7-1", 0, [0, 4])))
    assert "#PBS -W depend=afterany:7\n" in file.read_text()
    assert "#PBS" not in held.read_text()
    shellcheck = (Path(sys.executable).parent / "shellcheck", "--exclude=SC1091")
    for command in (("bash", "-n", file), ("bash", "-n", held), (*shellcheck, file, held)):
        checked = subprocess.run(command, capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stdout + checked.stderr

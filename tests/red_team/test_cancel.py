"""A ledger that names the jobs and processes of somebody else: `cancel` ends none of them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from jobs.cli import main
from jobs.ranks import started_after_boot_s
from jobs.rundir import SweepDir, append_record, now
from jobs.submit.cancellation import ForeignJobsError, cancel_jobs, end_queues
from jobs.submit.trust.own_sweeps import own as own_sweep
from tests.support.cli import printed_words, small
from tests.support.paths import ROOT
from tests.support.waiting import wait_until

pytestmark = pytest.mark.red_team


def sweep_naming(where: Path, launcher: str, job_id: str, **more: object) -> SweepDir:
    """A sweep whose ledger claims that its only run is this job."""
    assert main(["submit", "launcher=script", *small(where), "cluster=generic_slurm", "name=r"]) == 0
    sweep = SweepDir(where / "s")
    claim = {"event": "submitted", "run": "r", "launcher": launcher, "job_id": job_id, "events_before": 1}
    append_record(sweep.submissions, claim | {"host": socket.gethostname(), "time": now()} | more)
    return sweep


@contextmanager
def leading_a_session(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, start_new_session=True, stdin=subprocess.PIPE, cwd=ROOT)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_cancel_ends_no_process_that_is_not_a_queue_of_the_sweep(tmp_path: Path) -> None:
    # A queue of another sweep waits for the names of its runs.
    queue = (sys.executable, "-m", "jobs.submit.local_queue", str(tmp_path / "mine/s"))
    for number, command in enumerate((("sleep", "600"), queue)):
        with leading_a_session(*command) as theirs:
            began = started_after_boot_s(theirs.pid)
            sweep = sweep_naming(tmp_path / str(number), "local", str(theirs.pid), process_started=began)
            main(["cancel", str(sweep.path)])
            assert theirs.poll() is None


@pytest.mark.parametrize("job_id", ["-1", "0", "--me", "abc", "1e3", "99999999999999999999"])
def test_a_process_id_that_is_none_is_no_process(job_id: str, tmp_path: Path) -> None:
    sweep = sweep_naming(tmp_path, "local", job_id)
    assert main(["status", str(sweep.path)]) == 0
    assert main(["cancel", str(sweep.path)]) == 0


# --- whose job it is ---------------------------------------------------------------------------------------------

# The text of a script of slurmscale; the test of real jobs below has whole ones.
OURS = "#!/bin/bash\n#SBATCH --job-name=s-0a1b2c3d\necho 'slurmscale: not started: x' >&2\n"
THEIRS = "#!/bin/bash\njupyter lab\n"


@dataclass
class World:
    """A folder that somebody sent, my own folders, and a job of mine that the folder's ledger names."""

    root: Path
    command: str = ""
    work_dir: str = "/"
    stored: str = OURS

    @property
    def sweep(self) -> Path:
        """The folder that was sent, among my runs."""
        return self.root / "runs/s"

    def write(self, name: str, text: str = OURS) -> Path:
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file


def script_of_another_sweep(world: World) -> None:
    world.command = str(world.write("runs/mine/logs/0a1b2c3d.sbatch"))
    world.write("runs/s/logs/0a1b2c3d.sbatch")


def script_that_was_here_before(world: World) -> None:
    """My sweep was at this place, and was moved away."""
    world.command = str(world.sweep / "logs/0a1b2c3d.sbatch")


def another_script_where_mine_was(world: World) -> None:
    world.command = str(world.write("runs/s/logs/0a1b2c3d.sbatch", OURS + "# another one"))


def a_script_by_hand_where_mine_was(world: World) -> None:
    world.command = str(world.write("runs/s/r/job.sbatch", OURS + "# another one"))


def a_script_by_hand_of_another_program(world: World) -> None:
    world.command, world.stored = str(world.write("runs/s/r/job.sbatch", THEIRS)), THEIRS


def a_job_of_train_sbatch(world: World) -> None:
    """The names of such run directories can be guessed."""
    world.command, world.work_dir = str(world.write("checkout/sbatch/train.sbatch")), str(world.root)
    (world.sweep / "job-7").mkdir()


def a_known_script_that_was_removed(world: World) -> None:
    world.command, world.stored = str(world.root / "gone/jupyter.sh"), THEIRS
    world.write("runs/s/logs/jupyter.sh", THEIRS)


def a_script_of_mine_that_was_removed(world: World) -> None:
    world.command = str(world.root / "gone/0a1b2c3d.sbatch")
    world.write("runs/s/logs/0a1b2c3d.sbatch", OURS + "# another one")


def logs_that_lead_to_my_scripts(world: World) -> None:
    world.command = str(world.write("mine/logs/0a1b2c3d.sbatch"))
    (world.sweep / "logs").rmdir()
    (world.sweep / "logs").symlink_to(world.root / "mine/logs")


def a_run_that_leads_to_my_scripts(world: World) -> None:
    world.command = str(world.write("mine/r/job.sbatch"))
    (world.sweep / "x").symlink_to(world.root / "mine/r")


def a_link_at_the_name_of_my_script(world: World) -> None:
    world.command = str(world.root / "gone/0a1b2c3d.sbatch")
    (world.sweep / "logs/0a1b2c3d.sbatch").symlink_to(world.write("mine/0a1b2c3d.sbatch"))


def a_script_below_its_runs(world: World) -> None:
    world.command = str(world.write("runs/s/r/deeper/job.sbatch"))


def words_behind_the_script(world: World) -> None:
    world.command = f"{world.write('mine/job.sbatch')} {world.sweep}/logs/0a1b2c3d.sbatch"


def a_script_without_a_place(world: World) -> None:
    world.command = "(null)"


def a_fifo_at_the_name_of_my_script(world: World) -> None:
    world.command = str(world.root / "gone/0a1b2c3d.sbatch")
    os.mkfifo(world.sweep / "logs/0a1b2c3d.sbatch")


ATTACKS = [
    script_of_another_sweep, script_that_was_here_before, another_script_where_mine_was,
    a_script_by_hand_where_mine_was, a_script_by_hand_of_another_program, a_job_of_train_sbatch,
    a_known_script_that_was_removed, a_script_of_mine_that_was_removed, logs_that_lead_to_my_scripts,
    a_run_that_leads_to_my_scripts, a_link_at_the_name_of_my_script, a_script_below_its_runs, words_behind_the_script,
    a_script_without_a_place, a_fifo_at_the_name_of_my_script,
]  # fmt: skip


def its_script(world: World) -> None:
    world.command = str(world.write("runs/s/logs/0a1b2c3d.sbatch"))


def its_script_by_hand(world: World) -> None:
    world.command = f"{world.write('runs/s/r/job.sbatch')} with words"


def its_script_before_it_was_moved(world: World) -> None:
    world.command = str(world.root / "gone/0a1b2c3d.sbatch")
    world.write("runs/s/logs/0a1b2c3d.sbatch")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """The world, with programs that answer as Slurm does about job 7."""
    programs = tmp_path / "programs"
    programs.mkdir()
    answers = {"squeue": "cat row", "scontrol": '[ "$1" = write ] && cat stored', "scancel": 'echo "$@" >> cancelled',
               "sacct": "true"}  # fmt: skip
    for name, answer in answers.items():
        (programs / name).write_text(f"#!/bin/sh\ncd {tmp_path}\n{answer}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    (tmp_path / "runs/s/logs").mkdir(parents=True)
    (tmp_path / "runs/s/r").mkdir()
    return World(tmp_path)


def cancelled(world: World, *, own: bool = False) -> bool:
    (world.root / "row").write_text(f"7\t7\t7\tname\t{world.work_dir}\t{world.command}\n")
    (world.root / "stored").write_text(world.stored)
    if own:
        own_sweep(SweepDir(world.sweep))
    with suppress(ForeignJobsError):
        cancel_jobs(SweepDir(world.sweep), ["7"])
    return (world.root / "cancelled").exists()


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_folder_that_names_my_job_does_not_end_it(world: World, attack: Callable[[World], None]) -> None:
    attack(world)
    assert not cancelled(world)


@pytest.mark.parametrize("claim", [its_script, its_script_by_hand, its_script_before_it_was_moved])
def test_a_job_with_the_very_script_of_a_sweep_is_ended(world: World, claim: Callable[[World], None]) -> None:
    claim(world)
    assert cancelled(world)


@pytest.mark.parametrize("claim", [another_script_where_mine_was, a_job_of_train_sbatch])
def test_a_sweep_on_record_ends_its_jobs_by_their_place(world: World, claim: Callable[[World], None]) -> None:
    claim(world)
    assert cancelled(world, own=True)


def test_a_queue_that_was_started_elsewhere_by_the_same_words_is_not_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("mine", "received"):
        (tmp_path / place / "runs/s").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "received")
    command = [sys.executable, "-m", "jobs.submit.local_queue", "runs/s"]
    # The queue waits for the names of its runs.
    for place, survives in (("mine", True), ("received", False)):
        with subprocess.Popen(command, cwd=tmp_path / place, start_new_session=True, stdin=subprocess.PIPE,
                              env=os.environ | {"PYTHONPATH": str(ROOT)}) as queue:  # fmt: skip
            process = psutil.Process(queue.pid)
            while len(process.cmdline()) < 4:
                time.sleep(0.1)
            end_queues(SweepDir(Path("runs/s")), [str(queue.pid)])
            assert (queue.poll() is None) == survives
            queue.kill()


# --- jobs of a real Slurm ----------------------------------------------------------------------------------------


def queue() -> list[str]:
    answer = subprocess.run(["squeue", "-h", "-o", "%i"], capture_output=True, text=True, check=True)
    return answer.stdout.split()


@pytest.fixture
def a_job_of_mine(empty_queue: None, tmp_path: Path) -> str:
    """A job that has nothing to do with slurmscale."""
    script = tmp_path / "mine.sh"
    script.write_text("#!/bin/bash\nsleep 600\n")
    submit = ["sbatch", "--parsable", "--begin=now+1hour", "--job-name=precious-0a1b2c3d", str(script)]
    return subprocess.run(submit, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.slurm
def test_a_foreign_ledger_cancels_no_job_of_slurm(
    a_job_of_mine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = sweep_naming(tmp_path, "slurm", a_job_of_mine)
    assert main(["cancel", str(sweep.path)]) == 2
    assert f"names job {a_job_of_mine}, but Slurm has {tmp_path}/mine.sh" in printed_words(capsys)
    intent = {"event": "intended", "mark": "precious-0a1b2c3d", "launcher": "slurm", "host": "here", "time": now(),
              "tasks": [{"event": "submitted", "run": "r", "events_before": 1}], "array": False}  # fmt: skip
    append_record(sweep.submissions, intent, {"event": "cancelled", "mark": intent["mark"], "time": now()})
    for command in ("status", "cancel"):
        main([command, str(sweep.path)])
    assert queue() == [a_job_of_mine]


@pytest.mark.slurm
@pytest.mark.parametrize("word", ["--me", "--user=root", "-u root", "all", "1,2", "{}; true", "{}_[0-9]", "+{}"])
def test_words_that_are_no_job_id_reach_no_scancel(word: str, a_job_of_mine: str, tmp_path: Path) -> None:
    sweep = sweep_naming(tmp_path, "slurm", word.format(a_job_of_mine))
    main(["cancel", str(sweep.path)])
    assert queue() == [a_job_of_mine]


@pytest.mark.slurm
def test_a_link_to_my_scripts_does_not_make_my_jobs_the_sweeps(a_job_of_mine: str, tmp_path: Path) -> None:
    sweep = sweep_naming(tmp_path, "slurm", a_job_of_mine)
    sweep.logs.rmdir()
    sweep.logs.symlink_to(tmp_path)
    assert main(["cancel", str(sweep.path)]) == 2
    assert queue() == [a_job_of_mine]


@pytest.mark.slurm
@pytest.mark.usefixtures("empty_queue")
def test_cancel_still_ends_the_jobs_of_the_sweep(tmp_path: Path) -> None:
    later = "cluster.sbatch={begin: now+1hour}"
    given = [*small(tmp_path), "launcher=slurm", "cluster=generic_slurm", "repeat=1,2", later]
    assert main(["submit", "-m", *given]) == 0
    assert queue()
    assert main(["cancel", str(tmp_path / "s")]) == 0
    wait_until(lambda: not queue())

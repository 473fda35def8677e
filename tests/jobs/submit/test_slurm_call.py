"""Calls of Slurm: what is repeated while it is away and what is not, and lines in its answers that are not its own.

Messages and rows are recorded from Slurm 22.05; commands that print them stand in for a Slurm that cannot be broken
that way on purpose.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from jobs.cli import main
from jobs.doctor.cluster import nodes_by_partition
from jobs.errors import SubmitError
from jobs.explore import tune as command_of_tuning
from jobs.submit import scheduler_call
from jobs.submit.job_state import GONE, UNKNOWN
from jobs.submit.launchers.slurm import Slurm
from jobs.submit.scheduler_call import AwayError, NoAnswerError, QueueFullError, patience
from jobs.submit.slurm import commands as slurm_commands
from jobs.submit.slurm.accounting import accounting_of
from jobs.submit.slurm.call import ask
from jobs.submit.sweeps.submissions import Submission

CONNECT = "Unable to contact slurm controller (connect failure)"
Command = Callable[[str, str], Path]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Put a command of Slurm first on PATH; it appends its arguments to the file that is returned."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setattr(scheduler_call, "FIRST_PAUSE_S", 0.01)

    def made(name: str, script: str) -> Path:
        calls = tmp_path / f"{name}.calls"
        calls.touch()
        (tmp_path / "bin" / name).write_text(f'#!/bin/bash\necho "$*" >> {calls}\n{script}\n')
        (tmp_path / "bin" / name).chmod(0o755)
        return calls

    return made


def after(failures: int, message: str, answer: str, calls: str) -> str:
    """Return a script that fails a number of times before it answers."""
    return f"""[ "$(wc -l < {calls})" -gt {failures} ] || {{ printf '%s\\n' "{message}" >&2; exit 1; }}; {answer}"""


AWAY = [
    f"slurm_load_jobs error: {CONNECT}",
    f"squeue: error: some plugin warned\nslurm_load_jobs error: {CONNECT}",
    "slurm_load_jobs error: Unable to contact slurm controller (send failure)",
    "slurm_load_jobs error: Unable to contact slurm controller (receive failure)",
    "slurm_load_jobs error: Unable to contact slurm controller (shutdown failure)",
    "slurm_load_jobs error: Socket timed out on send/recv operation",
    "slurm_load_jobs error: Zero Bytes were transmitted or received",
    "slurm_load_jobs error: Slurm backup controller in standby mode",
    "slurm_load_jobs error: Communication connection failure",
    "slurm_load_jobs error: Communication shutdown failure",
    "slurm_load_jobs error: Message receive failure",
    "slurm_load_jobs error: Connection refused",
    "slurm_load_jobs error: Connection reset by peer",
    "slurm_load_jobs error: Connection timed out",
    "slurm_load_jobs error: No route to host",
    "slurm_load_jobs error: Network is unreachable",
    "slurm_load_jobs error: Broken pipe",
    "slurm_load_jobs error: Transport endpoint is not connected",
    "slurm_load_jobs error: Resource temporarily unavailable",
    "slurm_load_jobs error: Protocol authentication error",
    "squeue: error: Munge encode failed: Failed to access munge.socket.2: No such file or directory",
    "slurm_load_jobs error: Rate limit exceeded, please retry with a slower rate",
    "/usr/bin/squeue: fork: retry: Resource temporarily unavailable",
    "wrapper: getaddrinfo: Temporary failure in name resolution",
]


@pytest.mark.parametrize("message", AWAY)
def test_a_question_is_asked_again_while_slurm_is_away(
    message: str, command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = command("squeue", after(2, message, "echo '7|RUNNING|N/A|None'", f"{tmp_path}/squeue.calls"))
    assert slurm_commands.queue()["7"].state == "RUNNING"
    assert len(calls.read_text().splitlines()) == 3
    printed = capsys.readouterr().err
    assert printed.startswith("slurmscale: Slurm does not answer (")
    assert printed.count("\n") == 1, "the user reads once that the command waits"


REFUSED = [
    "slurm_load_jobs error: Invalid job id specified",
    "slurm_load_jobs error: Access/permission denied",
    "slurm_load_jobs error: Invalid user id",
    "sbatch: error: Batch job submission failed: Invalid partition name specified",
    "sbatch: error: Batch job submission failed: Requested node configuration is not available",
    "sbatch: error: site says: set --account and try again",
    "slurm_load_jobs error: Incompatible versions of client and server code",
    "squeue: error: Could not establish a configuration source",
]


@pytest.mark.parametrize("message", REFUSED)
def test_a_refusal_is_believed_at_once(message: str, command: Command) -> None:
    calls = command("squeue", f"printf '%s\\n' '{message}' >&2; exit 1")
    with pytest.raises(SubmitError) as error:
        ask("squeue")
    assert not isinstance(error.value, AwayError)
    assert len(calls.read_text().splitlines()) == 1


def test_a_night_of_tuning_outlives_a_controller_that_a_command_would_not_wait_for(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The question between two batches stands for the tuning; `status` gives up at the second call."""
    monkeypatch.setattr(scheduler_call, "INTERACTIVE_S", 0.0)
    away = f"slurm_load_jobs error: {CONNECT}"
    command("squeue", after(6, away, "echo '7|RUNNING|N/A|None'", f"{tmp_path}/squeue.calls"))

    def between_batches(_overrides: list[str]) -> tuple[None, int]:
        return None, 0 if slurm_commands.queue()["7"].state == "RUNNING" else 1

    monkeypatch.setattr(command_of_tuning, "tune", between_batches)
    with pytest.raises(AwayError), patience(0):
        slurm_commands.queue()
    assert main(["tune", "model=tiny", "job.micro_batch_size=interval(1,4)"]) == 0


def test_patience_is_for_all_calls_together_and_ends(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = command("squeue", f"echo 'slurm_load_jobs error: {CONNECT}' >&2; exit 1")
    monkeypatch.setattr(scheduler_call, "FIRST_PAUSE_S", 0.2)
    with patience(1):
        with pytest.raises(AwayError, match="connect failure"):
            ask("squeue")
        first = len(calls.read_text().splitlines())
        time.sleep(1)
        with pytest.raises(AwayError):
            ask("squeue", "--me")
        assert len(calls.read_text().splitlines()) == first + 1, "the second call waits no longer"
    assert first > 1


def test_an_outage_of_long_ago_leaves_all_patience_to_the_next(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program or a notebook that calls us for days."""
    command("squeue", f"echo 'slurm_load_jobs error: {CONNECT}' >&2; exit 1")
    monkeypatch.setattr(scheduler_call, "ANOTHER_OUTAGE_S", 0.1)
    with patience(0.5):
        with pytest.raises(AwayError):
            ask("squeue")
        time.sleep(0.6)
        (tmp_path / "squeue.calls").write_text("")
        calls = command("squeue", after(1, f"slurm_load_jobs error: {CONNECT}", "echo ok", f"{tmp_path}/squeue.calls"))
        assert ask("squeue") == "ok\n"
    assert len(calls.read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("message", "times", "error"),
    [
        (f"sbatch: error: Batch job submission failed: {CONNECT}", 3, None),
        ("sbatch: error: Batch job submission failed: Slurm backup controller in standby mode", 3, None),
        ("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", 1, NoAnswerError),
        ("sbatch: error: Batch job submission failed: Zero Bytes were transmitted or received", 1, NoAnswerError),
        ("sbatch: error: Batch job submission failed: Unable to contact slurm controller (receive failure)", 1,
         NoAnswerError),
        ("sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying", 1, QueueFullError),
        ("sbatch: error: Batch job submission failed: Resource temporarily unavailable", 1, QueueFullError),
        ("sbatch: error: AssocMaxSubmitJobLimit", 1, QueueFullError),
    ],
)  # fmt: skip
def test_sbatch_runs_again_only_if_no_controller_can_have_its_job(
    message: str, times: int, error: type[SubmitError] | None, command: Command, tmp_path: Path
) -> None:
    calls = command("sbatch", after(2, message, "echo 'Welcome to the cluster'; echo 71", f"{tmp_path}/sbatch.calls"))
    if error is None:
        assert slurm_commands.submit_script(tmp_path / "a.sbatch") == "71"
    else:
        with pytest.raises(error):
            slurm_commands.submit_script(tmp_path / "a.sbatch")
    assert len(calls.read_text().splitlines()) == times


@pytest.mark.parametrize(
    "message",
    [
        "allocation failure: Resource temporarily unavailable",
        "sbatch: error: Slurm job queue full, sleeping and retrying.",
    ],
)
def test_a_full_controller_leaves_the_rest_in_the_backlog(message: str, command: Command) -> None:
    # As of three jobs two fit.
    size = '[[ "$*" =~ --array=0-([0-9]+) ]] && size=$((BASH_REMATCH[1] + 1))'
    command("sbatch", f"{size}; [ ${{size:-1}} -le 2 ] || {{ echo '{message}' >&2; exit 1; }}")
    assert slurm_commands.room("#!/bin/sh", 3, None) == (2, "MaxJobCount")


@pytest.mark.parametrize(
    ("answer_of_show", "requeues"),
    [("JobId=7 JobState=RUNNING Restarts=1", 2), ("JobId=7 JobState=PENDING Restarts=1", 1),
     ("JobId=7 JobState=RUNNING Restarts=2", 1)],
)  # fmt: skip
def test_a_requeue_whose_answer_was_lost_does_not_end_the_next_start(
    answer_of_show: str, requeues: int, command: Command, tmp_path: Path
) -> None:
    calls = f"{tmp_path}/scontrol.calls"
    log = command(
        "scontrol",
        f'[ "$1" = requeue ] || {{ echo "{answer_of_show}"; exit; }}\n'
        f"[ $(grep -c requeue {calls}) -gt 1 ] || {{ echo 'Socket timed out on send/recv operation' >&2; exit 1; }}",
    )
    slurm_commands.requeue("7", restart=1)
    assert sum(line.startswith("requeue") for line in log.read_text().splitlines()) == requeues


# --- what an answer contains besides -------------------------------------------------------------------------

ODD_LINES = [
    "Welcome to the cluster | maintenance on Monday | 08:00 | all nodes",
    "",
    "    ",
    "squeue: warning: something | old",
    "--- | --- | --- | ---",
    "WARNING: quota of /home | 97% | used | x",
    "12|running|N/A|None",
    "JobID|State|NodeList",
    "\tTab\tbed\tline",
    "\x1b[31m7|RUNNING|N/A|None\x1b[0m",
    "caf\xe9 7|",
]


@pytest.mark.parametrize(
    ("printed", "job_id"),
    [
        ("123", "123"),
        ("123;second", "123"),
        ("Checking your budget ...\\n123", "123"),
        ("Submitted batch job 123", "123"),
        ("Submitted batch job 123 on cluster second", "123"),
        ("Submitted batch job 123\\n123", "123"),
        ("2026\\n123", None),
        ("account 12 has 3 hours", None),
    ],
)
def test_the_job_id_of_sbatch_is_read_among_the_lines_of_a_wrapper_or_found_by_its_name(
    printed: str, job_id: str | None, command: Command
) -> None:
    command("sbatch", f"printf '{printed}\\n'")
    if job_id is None:
        with pytest.raises(NoAnswerError, match=r"several job ids|no job id"):
            slurm_commands.submit_script(Path("job.sbatch"))
    else:
        assert slurm_commands.submit_script(Path("job.sbatch")) == job_id


@pytest.mark.parametrize(("size", "most"), [("1001", 1001), ("2", 2), ("1", 1), ("0", 1), ("(null)", 1001), ("", 1001)])
def test_an_array_has_as_many_tasks_as_the_site_allows(size: str, most: int, command: Command) -> None:
    command("scontrol", f"echo 'MaxArraySize            = {size}'")
    assert slurm_commands.most_tasks() == most


@pytest.mark.parametrize("odd", ODD_LINES)
def test_a_line_of_a_wrapper_hides_no_job(odd: str, command: Command) -> None:
    quoted = odd.replace("'", "'\\''")
    both = f"printf '%s\\n' '{quoted}'; printf '%s\\n' '{quoted}' >&2"
    command(
        "squeue", f"{both}; echo '24_1|PENDING|2026-11-28T05:00:00|Resources|31|s-0a1b2c3d|/s/logs/0a1b2c3d.sbatch'"
    )
    command("sacct", f"{both}; echo '7|FAILED|node01|2026-11-28T04:00:00|s-00000000'; {both}")
    command("scontrol", f"{both}; echo 'PartitionName=gpu Default=YES TotalNodes=4'; echo 'JobId=7 JobState=RUNNING'")
    job = slurm_commands.queue()["24_1"]
    assert slurm_commands.queue()["31"].state == "PENDING", "ranks of an array know this number"
    assert (job.state, job.reason, job.expected_start) == ("PENDING", "Resources", "2026-11-28T05:00:00")
    assert accounting_of(["7"]).end_of("7").state == "FAILED"
    assert slurm_commands.partitions()["gpu"]["TotalNodes"] == "4"
    assert slurm_commands.shown_job("7")["JobState"] == "RUNNING"


def test_messages_are_asked_for_in_english_but_jobs_keep_the_users_language(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "tr_TR.UTF-8")
    monkeypatch.setenv("SQUEUE_FORMAT", "%A")
    command("squeue", 'echo "7|RUNNING|$LC_ALL|$SQUEUE_FORMAT"')
    command("sbatch", f'echo "$LC_ALL" > {tmp_path}/language; echo 7')
    assert ask("squeue") == "7|RUNNING|C.UTF-8|\n"
    slurm_commands.submit_script(tmp_path / "a.sbatch")
    assert (tmp_path / "language").read_text() == "tr_TR.UTF-8\n"


# --- hidden, lost and reused ---------------------------------------------------------------------------------


def test_jobs_and_partitions_that_a_site_hides_are_seen(command: Command) -> None:
    command("squeue", '[[ " $* " == *" -a "* ]] && echo "24|PENDING|N/A|Resources|s-0a1b2c3d|/s/logs/0a1b2c3d.sbatch"')
    command(
        "scontrol",
        'echo "PartitionName=gpu Default=YES Hidden=NO TotalNodes=4"\n'
        '[[ " $* " == *" --all "* ]] && echo "PartitionName=hid Hidden=YES TotalNodes=1"',
    )
    command("sinfo", '[[ " $* " == *" -a "* ]] && echo "hid|node01|idle|32|256000|gpu:8|none"')
    assert slurm_commands.queue()["24"].state == "PENDING"
    assert nodes_by_partition()["hid"][0].gpus == 8
    slurm_commands.refuse_beyond_partition("hid", 1, 10)
    with pytest.raises(SubmitError, match=r"=no does not exist here; the partitions are gpu\."):
        slurm_commands.refuse_beyond_partition("no", 1, 10)


@pytest.mark.parametrize("accounting", ["PENDING", "RUNNING", "SUSPENDED", "REQUEUED", "RESIZING"])
@pytest.mark.parametrize(
    ("controller", "state", "unknown"),
    [
        ("echo 'JobId=24 JobState=PENDING Reason=Resources'", "PENDING", False),
        ("echo 'JobId=24 JobState=RUNNING Reason=None'", "RUNNING", False),
        ("echo 'JobId=24 JobState=SUSPENDED Reason=None'", "SUSPENDED", False),
        ("echo 'JobId=24 JobState=COMPLETED Reason=None'", GONE, False),
        (f"echo 'slurm_load_jobs error: {CONNECT}' >&2; exit 1", UNKNOWN, False),
        ("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", GONE, True),
    ],
)
def test_the_controller_itself_decides_about_a_job_that_accounting_has_not_ended(
    accounting: str, controller: str, state: str, unknown: bool, command: Command
) -> None:
    command("sacct", f"echo '24|{accounting}|None assigned|2026-11-28T04:00:00|s-0a1b2c3d'")
    command("scontrol", controller)
    with patience(0):
        ended = {"24": accounting_of(["24"]).end_of("24")}
        job = (ended | slurm_commands.unlisted(ended))["24"]
    assert (job.state, job.is_unknown_to_controller) == (state, unknown)


def test_each_task_of_an_array_has_the_state_that_the_controller_reports(command: Command) -> None:
    command("sacct", "echo '24_[2-9%2]|PENDING|None assigned|x|s-1'; echo '24_1|RUNNING|node01|x|s-1'")
    command(
        "scontrol",
        "echo 'JobId=24 ArrayJobId=24 ArrayTaskId=2-9%2 JobState=PENDING Reason=Resources'\n"
        "echo 'JobId=25 ArrayJobId=24 ArrayTaskId=1 JobState=RUNNING Reason=None'",
    )
    tasks = ("24_1", "24_2", "24_9")
    found = slurm_commands.unlisted({task: accounting_of(tasks).end_of(task) for task in tasks})
    assert {job_id: job.state for job_id, job in found.items()} == {
        "24_1": "RUNNING", "24_2": "PENDING", "24_9": "PENDING"
    }  # fmt: skip


def submission(mark: str | None = "s-0a1b2c3d") -> Submission:
    # Slurm prints the time of its own zone, without naming it.
    submitted_at = datetime.fromisoformat("2026-11-28T04:00:00").astimezone()
    return Submission("r", "slurm", "24", 0, mark=mark, time=submitted_at.isoformat())


@pytest.mark.parametrize(
    ("described", "ours"),
    [
        ("s-0a1b2c3d|/runs/s/logs/0a1b2c3d.sbatch", True),
        ("renamed|/runs/s/logs/0a1b2c3d.sbatch", True),
        ("s-0a1b2c3d|(null)", True),
        ("na|me with | bars|/runs/s|x/logs/0a1b2c3d.sbatch", True),
        ("", True),
        ("s-ffffffff|/runs/s/logs/ffffffff.sbatch", False),
        ("train|/home/me/train.sh --lr 1", False),
        ("s-0a1b2c3d0|/x.sh", False),
    ],
)
def test_the_id_of_another_job_is_not_taken_for_the_runs(described: str, ours: bool) -> None:
    assert submission().is_its_job(described) is ours
    assert submission(mark=None).is_its_job(described), "a job submitted by hand has no name of ours"


@pytest.mark.parametrize(
    ("rows", "state"),
    [
        ("24|COMPLETED|node01|2020-01-01T00:00:00|old-1\n24|FAILED|node02|2026-11-28T04:00:01|s-0a1b2c3d", "FAILED"),
        ("24|FAILED|node02|2026-11-28T04:00:01|s-0a1b2c3d\n24|COMPLETED|node01|2027-01-01T00:00:00|new-1", "FAILED"),
        ("24|COMPLETED|node01|2020-01-01T00:00:00|old-1", GONE),
        ("24|TIMEOUT|node01|2026-11-28T04:00:01|renamed by me", "TIMEOUT"),
        ("24|CANCELLED by 0|None assigned|Unknown|s-0a1b2c3d", "CANCELLED"),
        ("24|COMPLETED|node01", "COMPLETED"),
    ],
)
def test_accounting_of_an_earlier_or_later_job_of_the_same_id_is_left_out(
    rows: str, state: str, command: Command
) -> None:
    command("sacct", f"cat <<'E'\n{rows}\nE")
    assert accounting_of(["24"]).end_of("24", submission()).state == state


def test_two_submissions_with_one_id_each_have_their_own_end(command: Command) -> None:
    """A cluster that begins its ids again gives an old sweep's id to a new one; `list` asks for both at once."""
    rows = "24|COMPLETED|n1|2026-11-20T04:00:00|s-00000001\n24|FAILED|n2|2026-11-28T04:00:01|s-0a1b2c3d"
    calls = command("sacct", f"cat <<'E'\n{rows}\nE")
    old, new = (replace(submission(mark), key=key) for mark, key in (("s-00000001", "a"), ("s-0a1b2c3d", "b")))
    ends = Slurm().ends([new, old])
    assert {key: end.state for key, end in ends.items()} == {"a": "COMPLETED", "b": "FAILED"}
    assert len(calls.read_text().splitlines()) == 1


def test_a_broken_database_of_accounting_slows_no_command_down(command: Command) -> None:
    calls = command("sacct", "echo 'sacct: error: Problem talking to the database: Connection refused' >&2; exit 1")
    job = accounting_of(["24"]).end_of("24")
    assert job.state == GONE
    assert job.reason == "accounting does not answer: Problem talking to the database: Connection refused"
    assert len(calls.read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("begin", "nodes", "script", "expected"),
    [
        ("2035-03-04T05:06:00", "allocated", "", "2035-03-04 05:06 on node03"),
        ("2035-03-04T05:06:00", "idle", "", None),
        ("2035-03-04T05:06:00", "idle", "#SBATCH --begin=2035-03-04T05:06:00", "2035-03-04 05:06 on node03"),
        ("2035-03-04T05:06:00", "mixed\nidle", "", "2035-03-04 05:06 on node03"),
    ],
)
def test_a_late_start_on_idle_nodes_is_in_doubt_and_not_reported(
    begin: str, nodes: str, script: str, expected: str | None, command: Command
) -> None:
    command("sbatch", f"echo 'sbatch: Job 9 to start at {begin} using 1 processors on nodes node03 in partition a' >&2")
    command("sinfo", f"printf '{nodes}'")
    command("scontrol", "echo PartitionName=a Default=YES State=UP")
    assert slurm_commands.test_script(f"#!/bin/sh\n{script}\n", 1, None) == expected


def test_a_job_of_a_partition_that_is_down_has_no_expected_start(command: Command) -> None:
    command("sbatch", "echo 'sbatch: Job 9 to start at 2035-03-04T05:06:00 using 1 processors on nodes node03' >&2")
    command("sinfo", "echo allocated")
    command("scontrol", "echo PartitionName=a State=DOWN Default=YES; echo PartitionName=b State=UP")
    for partition, expected in ((None, "a is down"), ("a", "a is down"), ("a,b", "05:06"), ("b", "05:06")):
        assert expected in str(slurm_commands.test_script("#!/bin/sh\n", 1, partition))


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        ("MaxTime=00:00:00 TotalNodes=4", "partition a allows a job no time (MaxTime=00:00:00). Set another"),
        ("MaxTime=00:01:00 MaxNodes=UNLIMITED TotalNodes=0", "partition a gives a job no nodes (MaxNodes=UNLIMITED, "
         "TotalNodes=0). Set another cluster.partition, or ask the administrators."),
        ("MaxTime=00:02:00 TotalNodes=4", "Set wall_time_min=2 or less."),
    ],
)  # fmt: skip
def test_a_partition_that_runs_no_job_at_all_is_refused_without_a_value_that_it_would_not_take(
    limits: str, sentence: str, command: Command
) -> None:
    command("scontrol", f"echo PartitionName=a Default=YES {limits}")
    with pytest.raises(SubmitError) as refused:
        slurm_commands.refuse_beyond_partition("a", 1, 3)
    assert sentence in str(refused.value)


def test_the_time_left_is_that_of_the_controllers_clock(command: Command) -> None:
    command(
        "scontrol",
        '[ "$2" = config ] && { echo "Configuration data as of 2001-02-03T04:00:00"; exit; }\n'
        "echo 'JobId=7 JobState=RUNNING EndTime=2001-02-03T05:00:00'",
    )
    assert slurm_commands.time_left_s("7") == 3600

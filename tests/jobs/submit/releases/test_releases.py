"""One contract for every release of Slurm in use: what our readers make of its answers.

`calls.txt` has the recorded answers of Slurm 22.05.8 to all calls. CHANGES lists, with its source, what later releases
print instead; each release has the changes of those before it, too. Our code reads no JSON of Slurm, whose fields
change with each release, only the formats that it asks for by name and the lines of `scontrol`.
"""

from __future__ import annotations

import getpass
import os
import re
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import pytest

from analysis.failures.verdict import verdict_on
from jobs.doctor import cluster
from jobs.doctor.site_checks import preemption
from jobs.errors import SubmitError
from jobs.failure_causes import FailureCause
from jobs.plan.compose import compose
from jobs.runtime.node.system import scheduler
from jobs.submit.job_state import JobState
from jobs.submit.requeue import end_by_slurm
from jobs.submit.slurm import commands as slurm_commands
from jobs.submit.slurm.accounting import accounting_of

CALLS = Path(__file__).with_name("calls.txt")
RELEASES = ("22.05.8", "23.02.7", "23.11.10", "24.05.5", "24.11.6", "25.05.3", "25.11.3", "26.05.1")
SHOW_JOB = r"scontrol --all --oneliner (--details )?show job"
SHOW_PARTITION = r"scontrol --all --oneliner show partition"


@dataclass(frozen=True)
class Change:
    """A text that a release prints in place of another one, by regular expressions, in the output of some calls."""

    since: str
    source: str
    """A file of https://github.com/SchedMD/slurm with its words, or a public sample."""
    call: str
    before: str
    after: str


CHANGES = [
    Change("23.02", "CHANGELOG/slurm-23.02.md: Requested TRES and allocated TRES will now always be printed",
           SHOW_JOB, r" TRES=(\S+)", r" ReqTRES=\1 AllocTRES=\1"),
    Change("23.02", "CHANGELOG/slurm-23.02.md: clients displaying job information will only show the script name",
           f"squeue|{SHOW_JOB}", r"\.sbatch 200", ".sbatch"),
    Change("23.02", "CHANGELOG/slurm-23.02.md: Add MaxCPUsPerSocket to partition configuration",
           SHOW_PARTITION, r" MaxCPUsPerNode=\S+", r"\g<0> MaxCPUsPerSocket=UNLIMITED"),
    Change("23.11", "CHANGELOG/slurm-23.11.md: Remove 'none' plugins; scontrol show config will report (null) now",
           "scontrol show config", r"\S+/none$", "(null)"),
    Change("24.05", "CHANGELOG/slurm-24.05.md: Add ExclusiveTopo to a partition definition",
           SHOW_PARTITION, " ExclusiveUser=NO", r" ExclusiveTopo=NO\g<0>"),
    Change("24.05", "CHANGELOG/slurm-24.05.md: Add new 'BLOCKED' state to a node",
           "sinfo -a -h -N", r"node06\|idle", "node06|blocked"),
    Change("25.05", "a public `scontrol show job` of September 2025",
           SHOW_JOB, r" Licenses=\(null\)(.*) Power=", r" Licenses=(null) LicensesAlloc=(null)\1"),
    Change("25.05", "the same", SHOW_JOB, "TresPerNode=gres:gpu:2", "TresPerNode=gres/gpu:2"),
    # The words of a shell that look like fields; the place is that of public samples of 25.11.
    Change("25.11", 'CHANGELOG/slurm-25.11.md: scontrol - Add "SubmitLine" field to show job',
           SHOW_JOB, r" Command=\S+",
           r"\g<0> SubmitLine=sbatch --parsable --comment=x JobState=FAILED NodeList=node99 EndTime=Unknown"),
    Change("25.11", "CHANGELOG/slurm-25.11.md: Job stderr string will be blank unless it has been explicitly set",
           SHOW_JOB, r" StdErr=\S+", " StdErr="),
    Change("25.11", 'CHANGELOG/slurm-25.11.md: nodes in the MIXED+FAIL state will now appear as "FAILING"',
           "sinfo -a -h -N", r"node05\|idle(.*)\|none", r"node05|failing\1|bad fan"),
    Change("26.05", "a public `scontrol show job` of October 2026",
           SHOW_JOB, r" OverSubscribe=\S+", r"\g<0> Exclusive=NO"),
    Change("26.05", "CHANGELOG/slurm-26.05.md: Exclusive= replaces ExclusiveUser and ExclusiveTopo of partitions",
           SHOW_PARTITION, " ExclusiveTopo=NO ExclusiveUser=NO", " Exclusive=NO"),
    Change("26.05", "CHANGELOG/slurm-26.05.md: scontrol - Print 'Job 12_23 not found' errors on stderr",
           SHOW_JOB, "^(Job 11_9 not found)", r"! \1"),
]  # fmt: skip

STAND_IN = r"""#!/bin/bash
call="${0##*/} $*"
call=${call//$'\t'/\\t}
while IFS= read -r line; do
    case $line in
    "$ "*) [ "${line:2}" = "$call" ] && found=yes || found= ;;
    "! "*) [ -z "$found" ] || echo "${line:2}" >&2 ;;
    "? "*) [ -z "$found" ] || exit "${line:2}" ;;
    *) [ -z "$found" ] || { echo "$line"; answered=yes; } ;;
    esac
    [ -z "$found" ] || known=yes
done < CALLS
[ -n "$known" ] || { echo "no record of: $call" >&2; exit 97; }
"""


def answers(release: str) -> dict[str, str]:
    """Return the answers of a release by call; what was put together is what a release prints."""
    recorded = CALLS.read_text().replace("UID", str(os.getuid())).replace("USER", getpass.getuser())
    blocks = re.split(r"^\$ ", recorded, flags=re.MULTILINE)[1:]
    found = {call: answer for call, _, answer in (block.partition("\n") for block in blocks)}
    for change in CHANGES:
        if change.since > release:
            continue
        changed = {
            call: re.sub(change.before, change.after, answer, flags=re.MULTILINE)
            for call, answer in found.items()
            if re.match(change.call, call)
        }
        assert any(found[call] != answer for call, answer in changed.items()), f"changes nothing: {change}"
        found |= changed
    return {call: answer.replace(RELEASES[0], release) for call, answer in found.items()}


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Commands first on PATH that answer as a release of Slurm does, and refuse every call without a record."""
    calls = "".join(f"$ {call}\n{answer}" for call, answer in answers(request.param).items())
    (tmp_path / "calls.txt").write_text(calls)
    for name in ("squeue", "sacct", "sinfo", "scontrol", "sbatch", "sacctmgr"):
        file = tmp_path / "bin" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(STAND_IN.replace("CALLS", str(tmp_path / "calls.txt")))
        file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    return str(request.param)


def test_jobs_in_the_queue_are_read_alike(release: str) -> None:
    slurm_commands.require()
    queue = slurm_commands.queue()
    assert {job_id: job.state for job_id, job in queue.items()} == {
        "11": "PENDING", "11_1": "PENDING", "11_0": "RUNNING", "13": "RUNNING", "12": "RUNNING", "16": "RUNNING",
    }  # fmt: skip
    assert queue["11_1"].reason == "JobArrayTaskLimit"
    since = datetime(2026, 11, 30, 8).astimezone()
    # Accounting alone has the last one.
    found = {"first-1a2b3c4d": "11", "first-5e6f7a8b": "12", "first-77777777": "16", "first-99999999": "9"}
    assert slurm_commands.jobs_named(set(found), since) == found
    jobs = {job.job_id: job for job in slurm_commands.queued_jobs(["11", "12", "16"])}
    assert {job_id: (job.array, job.own_id, job.name) for job_id, job in jobs.items()} == {
        "11_1": ("11", "11", "first-1a2b3c4d"),
        "11_0": ("11", "13", "first-1a2b3c4d"),
        "12": ("12", "12", "first-5e6f7a8b"),
        "16": ("16", "16", "first-77777777"),
    }
    arguments = " 200" if release.startswith("22.05") else ""
    assert jobs["12"].command == f"/home/ada/runs/first/logs/5e6f7a8b.sbatch{arguments}"


def test_the_controllers_record_of_a_job_is_read_alike(release: str) -> None:
    tasks = slurm_commands.shown_tasks("11")
    assert {task: job["JobState"] for task, job in tasks.items()} == {"11_1": "PENDING", "11_0": "RUNNING"}
    job = slurm_commands.shown_job("12")
    wanted = ("JobState", "Reason", "Restarts", "NodeList", "BatchHost", "PreemptTime", "EndTime", "WorkDir")
    assert [job[name] for name in wanted] == [
        "RUNNING", "None", "0", "node01", "node01", "None", "2026-11-30T07:08:38", "/home/ada/runs/first",
    ]  # fmt: skip
    arguments = " 200" if release.startswith("22.05") else ""
    assert job["Command"] == f"/home/ada/runs/first/logs/5e6f7a8b.sbatch{arguments}"
    assert end_by_slurm(job) is None
    assert slurm_commands.time_left_s("12") == 578
    assert slurm_commands.share_of_a_node("11") == (2, 2)
    assert slurm_commands.host_list(["node01", "node02", "node04"]) == "node[01-02,04]"
    with pytest.raises(SubmitError, match="Invalid job id specified"):
        slurm_commands.shown_job("99999")
    with pytest.raises(SubmitError, match="Job 11_9 not found"):
        slurm_commands.shown_job("11_9")


@pytest.mark.usefixtures("release")
def test_a_submission_and_accounting_are_read_alike() -> None:
    script = "/home/ada/runs/first/logs/5e6f7a8b.sbatch"
    assert slurm_commands.submit_script(Path(script)) == "14"
    assert str(slurm_commands.test_script("#!/bin/bash\n", 1, None)).endswith("07:29 on node01")
    starts = accounting_of(["10", "11", "12", "16", "25999"]).starts
    assert {task: [start.state.state for start in found] for task, found in starts.items()} == {
        "10": ["COMPLETED"], "12": ["RUNNING"], "11_0": ["RUNNING"], "11_1": ["PENDING"],
        "16": ["FAILED"],
    }  # fmt: skip
    assert slurm_commands.most_tasks() == 1001
    assert slurm_commands.are_idle("node[03-04]")
    assert slurm_commands.unavailable_nodes(None) == ""


def test_the_doctor_describes_the_cluster_alike(release: str) -> None:
    site = cluster.ask_slurm()
    assert site.config["SLURM_VERSION"] == release
    assert (site.has_accounting, site.seconds("KillWait"), site.accounting_error) == (True, 5, None)
    assert {name: (its["MaxTime"], its["TotalNodes"]) for name, its in site.partitions.items()} == {
        "gpu": ("02:00:00", "4"), "": ("02:00:00", "4"), "spare": ("02:00:00", "4"), "debug": ("00:30:00", "2"),
    }  # fmt: skip
    unusable = {node.name for nodes in site.nodes.values() for node in nodes if not node.is_usable}
    # A node that waits in a block of another job works; a failing one does not.
    assert unusable == ({"node05"} if release >= "25.11" else set())
    assert {(node.cpus, node.gpus) for nodes in site.nodes.values() for node in nodes} == {(32, 8)}
    assert [row["Account"] for row in site.associations] == ["research", "root"]
    assert site.qos["short"]["MaxWall"] == "00:05:00"
    assert preemption(site).found.startswith("preempt/partition_prio, REQUEUE: partition spare with 5 s of grace")
    # A site without preemption names the plugin as it does that of its topology.
    off = site.config["TopologyPlugin"].replace("topology", "preempt")
    assert preemption(replace(site, config=site.config | {"PreemptType": off})).found == "off"
    assert scheduler({"SLURM_JOB_ID": "12"}).endswith(release)


@pytest.mark.parametrize(
    ("option", "since"),
    [("segment=2", "24.05"), ("exclusive=topo", "24.05"), ("requeue=expedite", "25.11"), ("nice=100", "22.05")],
)
def test_an_option_that_a_release_lacks_is_refused_there(option: str, since: str, release: str) -> None:
    override = f"cluster.sbatch.{option}"
    overrides = ["cluster=generic_slurm", "launcher=slurm", "nodes=2", "data=random", override]
    run = compose(overrides, multirun=False)[0].run
    if release >= since:
        slurm_commands.refuse_newer_options([run])
        return
    needs = f"{override} needs Slurm {since} or newer, and sbatch is of {release[:5]} here. Remove the option"
    with pytest.raises(SubmitError, match=re.escape(needs)):
        slurm_commands.refuse_newer_options([run])


def test_a_job_that_may_be_expedited_waits_and_is_alive() -> None:
    """Slurm 25.11: the state between the failed script of `--requeue=expedite` and the last epilog."""
    job = JobState("EXPEDITING")
    assert job.is_alive
    assert job.waits


@pytest.mark.parametrize(
    ("since", "lines", "cause"),
    [
        # A public log of 2026; the tasks that are ended with the first one explain nothing.
        ("26.05", ["srun: error: nid002888: task 58: Killed",
                   "[2026-04-29T23:36:37.809] error: *** STEP 52222788.0 ON nid002888 CANCELLED AT "
                   "2026-04-29T23:36:37 DUE TO TASK FAILURE ***",
                   "srun: error: nid002888: tasks 0-57,59-63: Terminated",
                   "srun: Force Terminated StepId=52222788.0"], FailureCause.killed),
        # CHANGELOG/slurm-26.05.md: Error if --requeue has an invalid option; --gres=gpu and --gpus-per-node exclude
        # each other; srun refuses to start with auth/jwt.
        ("26.05", ["sbatch: error: Invalid --requeue specification"], FailureCause.refused),
        ("26.05", ["srun: fatal: --gres=gpu and --gpus-per-node are mutually exclusive"], FailureCause.refused),
        # slurm_errno.c: a segment that does not fit.
        ("24.05", ["sbatch: error: Batch job submission failed: Requested topology configuration is not available"],
         FailureCause.refused),
    ],
)  # fmt: skip
def test_messages_of_later_releases_name_the_cause(
    since: str, lines: list[str], cause: FailureCause, tmp_path: Path
) -> None:
    log = tmp_path / f"slurm-{since}.out"
    log.write_text("\n".join(lines) + "\n")
    assert verdict_on(log).cause is cause

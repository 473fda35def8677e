"""The guides of `slurmscale skills` on a real Slurm: tasks whose ends are checked by the queue and the records.

As in tests/end_to_end/test_skills.py, the caller knows a guide and the replies to --json, and cancels nothing that it
was not asked to.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jobs.run_events import run_events
from jobs.rundir import RunDir
from tests.support.caller import Caller
from tests.support.processes import process_of
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.usefixtures("empty_queue")]

TINY = "cluster=generic_slurm model=tiny data=random job.sequence_length=32 job.micro_batch_size=1 ranks_per_node=1"
LATER = "'cluster.sbatch={begin: now+1hour}'"


def shell(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def queued() -> dict[str, str]:
    """Return the states of the jobs in the queue, by id."""
    return dict(line.split() for line in shell("squeue", "-h", "-r", "-o", "%i %t").splitlines())


def job_of(reply: dict[str, Any]) -> str:
    """Return the job of the only run of a reply."""
    (run,) = reply["result"]["runs"]
    return str(run["job_id"])


def asking(guide: str, place: Path, *verbs: str, may: str | None = None) -> Caller:
    """Return a caller that may also use the verbs that make its task."""
    caller = Caller(guide, place, may=frozenset({may} if may else ()))
    caller.verbs |= set(verbs)
    return caller


def measures_a_speed_up_over_nodes(place: Path) -> None:
    caller = Caller("scale-a-model", place)
    line = f"-m {TINY} nodes=1,2 job.steps=4 scaling.global_batch_size=4 sweep=scaling"
    assert [run["ranks"] for run in caller.ask(f"plan {line}")["result"]["runs"]] == [1, 2]
    sweep = caller.ask(f"submit {line}")["result"]["directory"]
    assert caller.ask(f"status {sweep} --follow")["result"]["counts"] == {"finished": 2}
    headline = caller.ask(f"report {sweep}")["result"]["headline"]
    assert any("mulated" in sentence and "from 1 to 2 ranks" in sentence for sentence in headline)


def names_the_reason_of_a_wait_and_leaves_the_job(place: Path) -> None:
    caller = asking("why-did-my-run-die", place, "submit")
    reply = caller.ask(f"submit {TINY} {LATER} sweep=waits")
    (run,) = caller.ask("status runs/waits")["result"]["runs"]
    assert (run["state"], run["is_open"]) == ("queued", True)
    assert "BeginTime" in run["detail"]
    assert run["expected_start"]
    assert queued() == {job_of(reply): "PD"}


def sees_that_a_held_run_waits_for_a_person(place: Path) -> None:
    caller = asking("why-did-my-run-die", place, "submit")
    job = job_of(caller.ask(f"submit {TINY} {LATER} sweep=kept"))
    shell("scontrol", "hold", job)
    (run,) = caller.ask("status runs/kept")["result"]["runs"]
    assert run["state"] == "held"
    assert "scontrol release" in run["detail"]
    assert queued() == {job: "PD"}


def cancels_the_sweep_that_it_was_asked_to_and_no_other(place: Path) -> None:
    caller = asking("why-did-my-run-die", place, "submit", "cancel", may="cancel")
    kept = job_of(caller.ask(f"submit {TINY} {LATER} sweep=kept"))
    unwanted = job_of(caller.ask(f"submit {TINY} {LATER} sweep=unwanted"))
    assert set(queued()) == {kept, unwanted}
    (run,) = caller.ask("cancel runs/unwanted")["result"]["runs"]
    assert (run["state"], run["is_open"]) == ("cancelled", False)
    wait_until(lambda: set(queued()) == {kept})
    assert caller.ask("status runs/kept")["result"]["counts"] == {"queued": 1}


def continues_a_cancelled_run_from_its_checkpoint(place: Path) -> None:
    caller = asking("why-did-my-run-die", place, "submit", "cancel", may="cancel")
    run = under_way(caller, place, "launcher.requeues=0")
    caller.ask("cancel runs/first")
    caller.ask("status runs/first --follow", code=1)
    reply = caller.ask("resume runs/first --wait")
    assert (reply["result"]["counts"], reply["result"]["runs"][0]["step"]) == ({"finished": 1}, 200)
    starts = [event["from_step"] for event in run_events(run) if event["event"] == "started"]
    assert len(starts) == 2
    assert starts[1] > 0


def finds_why_a_run_died_and_continues_it(place: Path) -> None:
    caller = asking("why-did-my-run-die", place, "submit")
    run = under_way(caller, place, "launcher.requeues=0")
    process_of(run, 0).kill()
    caller.ask("status runs/first --follow", code=1)
    (died,) = caller.ask("status runs/first")["result"]["runs"]
    assert (died["state"], died["cause"]) == ("failed", "killed"), "a cause of the machine: the guide resumes it"
    assert caller.ask(f"logs {died['directory']}")["result"]["last_lines"]
    assert caller.ask("resume runs/first --wait")["result"]["counts"] == {"finished": 1}


def under_way(caller: Caller, place: Path, *more: str) -> RunDir:
    """Return a run of the sweep `first` that has its first checkpoint."""
    steps = "job.steps=200 job.checkpoint_every_steps=20"
    (found,) = caller.ask(f"submit {TINY} {steps} {' '.join(more)} sweep=first name=r")["result"]["runs"]
    run = RunDir(place / found["directory"])
    wait_until(lambda: any(event["event"] == "checkpoint" for event in run_events(run)))
    return run


QUEUED = (
    names_the_reason_of_a_wait_and_leaves_the_job,
    sees_that_a_held_run_waits_for_a_person,
    cancels_the_sweep_that_it_was_asked_to_and_no_other,
)
RUN = (
    measures_a_speed_up_over_nodes,
    continues_a_cancelled_run_from_its_checkpoint,
    finds_why_a_run_died_and_continues_it,
)
TASKS = [*QUEUED, *(pytest.param(task, marks=pytest.mark.long) for task in RUN)]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.__name__)
def test_a_caller_that_has_only_a_guide_and_json_on_slurm(task: Callable[[Path], None], tmp_path: Path) -> None:
    task(tmp_path)

"""The client of PBS, on recorded outputs of an OpenPBS and on the stand-in of the tests."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from jobs.errors import SubmitError
from jobs.submit import scheduler_call
from jobs.submit.job_state import JobState
from jobs.submit.pbs import commands
from jobs.submit.pbs.call import document, parsed, refusal
from jobs.submit.pbs.states import state_of
from jobs.submit.scheduler_call import AwayError, NoAnswerError, QueueFullError, patience
from tests.support.paths import ROOT
from tests.support.pbs.fixture import PbsStandIn

RECORDED = ROOT / "tests/support/pbs/recorded"


def recorded(name: str) -> str:
    return (RECORDED / f"{name}.txt").read_text()


def recorded_jobs(name: str) -> dict[str, dict[str, Any]]:
    text = recorded(name)
    # Some recordings have lost the lines of Variable_List but for its end.
    text = re.sub(r"^\t\t\t\},\n(?=\t\t\t\"comment)", "", text, flags=re.MULTILINE) if "grep -vE" in text else text
    return dict(json.loads(text[text.index("{\n") : text.rindex("\n}") + 2])["Jobs"])


@pytest.mark.parametrize(
    ("name", "job", "state", "reason"),
    [
        ("10_qstat_json", "14.pbshead", "RUNNING", None),
        ("23_after_ok", "14.pbshead", "COMPLETED", None),
        ("27_signal", "24.pbshead", "FAILED", "its script was ended by SIGUSR1 (Exit_status=266)"),
        ("30_qdel_queued", "18.pbshead", "CANCELLED", "with qdel"),
        ("40_walltime_exceeded", "28.pbshead", "TIMEOUT", "PBS ended it at its walltime. Set wall_time_min"),
        ("41_array_finished", "29[0].pbshead", "COMPLETED", None),
    ],
)
def test_the_state_of_a_recorded_job_is_known(name: str, job: str, state: str, reason: str | None) -> None:
    found = state_of(recorded_jobs(name)[job])
    assert (found.state, found.reason) == (state, reason)


def test_a_job_that_waits_says_for_what() -> None:
    held = {"job_state": "H", "Hold_Types": "u", "comment": "Job held by user1 on Sat Nov 28 00:34:28 2026"}
    assert state_of(held).is_held
    after = {"job_state": "H", "Hold_Types": "s", "depend": "afterany:14.pbshead@pbshead", "Job_Name": "b",
             "Submit_arguments": "b.pbs"}  # fmt: skip
    assert state_of(after) == JobState("PENDING", "waits for job 14", described="b|b.pbs")
    never = {"job_state": "Q", "comment": "Can Never Run: Not enough total nodes available"}
    assert state_of(never).reason == "Can Never Run: Not enough total nodes available"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("13_err_queue", "Unknown queue. cluster.partition is not a queue of this server. `qstat -Q` lists them"),
        ("14_err_walltime", "Job violates queue and/or server resource limits. The queue (cluster.partition) allows"),
        ("15_err_select", "Illegal attribute or resource value select.ncpus. Correct the value in cluster.pbs"),
        ("16_err_resource", "Unknown resource: nosuchres. This server has no such resource. Remove it"),
        ("33_badname", "illegal -N value"),
    ],
)
def test_a_refusal_of_qsub_names_what_to_set(name: str, words: str) -> None:
    output = "\n".join(line for line in recorded(name).splitlines() if not line.startswith(("$ ", "[exit")))
    error = refusal(output)
    assert str(error).startswith(words)
    assert not isinstance(error, AwayError | QueueFullError)
    assert "usage" not in str(error)


def test_a_server_that_is_away_a_full_queue_and_a_lost_answer_are_told_apart() -> None:
    away = refusal("Connection refused\nqsub: cannot connect to server pbshead (errno=15010)\n")
    assert type(away) is AwayError
    assert type(refusal("Couldn't connect to cluster: pbshead\n")) is AwayError
    assert type(refusal("qsub: would exceed complex's per-user limit of jobs in 'Q' state")) is QueueFullError
    assert type(refusal("qsub: End of File")) is NoAnswerError


def test_json_that_pbs_writes_wrongly_is_read() -> None:
    text = (
        '{\n\t"Jobs":\t{\n\t\t"1.s":\t{\n\t\t\t"Variable_List":\t{\n'
        '\t\t\t\t"A":\t007,\n\t\t\t\t"B":\t1e5x,\n\t\t\t\t"C":\t"a\\d \t tab",\n\t\t\t\t"D":\t12\n\t\t\t},\n'
        '\t\t\t"comment":\t"say \\"hi\\" \\\\ \\u00e9"\n\t\t}\n\t}\n}\n'
    )
    job = parsed(text, "qstat")["Jobs"]["1.s"]
    assert job["Variable_List"] == {"A": "007", "B": "1e5x", "C": "a\\d \t tab", "D": 12}
    assert job["comment"] == 'say "hi" \\ é'
    with pytest.raises(SubmitError, match="qstat printed no valid JSON"):
        parsed('{"Jobs": {"1.s": ', "qstat")


def test_unknown_and_finished_jobs_are_no_failure_of_the_others(pbs: PbsStandIn, tmp_path: Path) -> None:
    script = tmp_path / "ok.pbs"
    script.write_text("#!/bin/bash\n#PBS -N ok\ntrue\n")
    (pbs.directory / "hold").touch()
    first, second = commands.submit(script), commands.submit(script)
    assert (first, second) == ("1", "2")
    commands.delete([first, "99"])
    found = commands.jobs([first, second, "99"])
    assert {job_id: state_of(job).state for job_id, job in found.items()} == {"1": "CANCELLED", "2": "PENDING"}
    # Without the history the server names the finished job on stderr, and shows the other.
    assert document("qstat", "-f", "-F", "json", first, second)["Jobs"].keys() == {"2.pbshead"}
    assert document("qstat", "-x", "-f", "-F", "json", first, second)["Jobs"].keys() == {"1.pbshead"}, "as recorded"


def test_a_server_without_history_still_shows_the_jobs_that_are_not_over(pbs: PbsStandIn, tmp_path: Path) -> None:
    """Its refusal of -x was not recorded: the words are those of its setting."""
    for name in ("qstat", "qselect"):
        program = pbs.directory / "bin" / name
        refuses = 'case " $* " in *" -x "*) echo "$0: job_history_enable is set to false" >&2; exit 36 ;; esac'
        program.write_text(program.read_text().replace("#!/bin/sh\n", f"#!/bin/sh\n{refuses}\n"))
    script = tmp_path / "ok.pbs"
    script.write_text("#!/bin/bash\n#PBS -N mark-1\ntrue\n")
    (pbs.directory / "hold").touch()
    assert commands.submit(script) == "1"
    assert commands.named({"mark-1", "mark-2"}, datetime.now(UTC)) == {"mark-1": "1"}
    assert commands.jobs(["1"])["1"]["Job_Name"] == "mark-1"


def test_a_server_that_is_away_is_asked_again(
    pbs: PbsStandIn, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scheduler_call, "FIRST_PAUSE_S", 0.01)
    (pbs.directory / "down").touch()
    # Long enough for two calls of a slow machine.
    with patience(4), pytest.raises(AwayError, match="cannot connect to server pbshead"):
        commands.jobs(["1"])
    assert len(pbs.calls("qstat")) > 1
    assert "slurmscale: PBS does not answer (Connection refused; cannot connect to server" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("wanted", "queue", "words"),
    [
        (
            {"walltime": 25 * 3600},
            "normal",
            "wall_time_min=1500, but queue normal allows 1440 (resources_max",
        ),
        ({}, "gpu", "cluster.partition=gpu does not exist here; the queues are normal, workq."),
        ({"walltime": 25 * 3600}, None, ""),
        ({"walltime": 60}, "blink", "queue blink allows a job 30 s (resources_max.walltime). Set another"),
    ],
)
def test_a_job_beyond_its_queue_is_named_with_the_limit(
    wanted: dict[str, int], queue: str | None, words: str, pbs: PbsStandIn
) -> None:
    known = commands.queues()
    known |= {"blink": {"resources_max": {"walltime": "00:00:30"}}} if queue == "blink" else {}
    sentences = commands.beyond_queue(known, commands.server()["default_queue"], queue, wanted)
    assert "".join(sentences).startswith(words)
    assert words or not "".join(sentences)


def test_the_stand_in_prints_json_in_the_shape_of_the_recordings(pbs: PbsStandIn) -> None:
    for command, name in ((["qstat", "-B", "-f", "-F", "json"], "02_server"), (["pbsnodes", "-a"], "04_nodes")):
        lines = pbs.does(*command).stdout.splitlines()
        kept = [line for line in recorded(name).splitlines()[1:-1] if "timestamp" not in line]
        assert [line for line in lines if "timestamp" not in line] == kept
    answer = pbs.does("qstat", "-f", "-F", "json", "99999")
    assert answer.returncode == 153
    assert [line for line in (answer.stderr + answer.stdout).splitlines() if "timestamp" not in line] == [
        line for line in recorded("19_err_jobid").splitlines()[1:7] if "timestamp" not in line
    ]

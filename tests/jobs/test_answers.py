"""--json: one document that its schema describes, after success, refusal and failure, and no other output."""

from __future__ import annotations

import itertools
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from analysis.report.report import report
from jobs.cli import main
from jobs.command_line.grammar import COMMANDS
from jobs.rundir import SweepDir, append_record, event_record, provenance_of, write_json
from tests.support.campaigns import pairs
from tests.support.fake_runs import a_run, ended, finished_run, prepared, started
from tests.support.hub_models import write_hub_model
from tests.support.real_run import SMALL
from tests.support.waiting import limit_s

ANSWERING = [command.name for command in COMMANDS.values() if command.answer is not None]


@pytest.fixture(autouse=True)
def _workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a directory with a sweep of a finished and a failed run, and a campaign."""
    monkeypatch.chdir(tmp_path)
    sweep = SweepDir(tmp_path / "runs/first")
    good = finished_run(sweep.path, a_run("good"))
    write_json(good.provenance, provenance_of(good) | {"overrides": ["model=tiny"]})
    bad = prepared(sweep.path, a_run("bad"))
    started(bad, a_run("bad"))
    ended(bad, "failed", step=2, error="CUDA out of memory", cause="out_of_gpu_memory")
    for run in ("good", "bad"):
        append_record(
            sweep.submissions,
            event_record("submitted", run=run, launcher="local", job_id="1", events_before=1, host="login"),
        )
    kept = report([tmp_path / "runs/first"], tmp_path / "before")
    (tmp_path / "kept.csv").write_text(kept.with_name("runs.csv").read_text())
    write_hub_model(tmp_path / "hub")
    pairs(tmp_path / "runs/camp", "fast", ((10.0, 8.0), (10.2, 8.1), (9.9, 8.0)))


def reply(capsys: pytest.CaptureFixture[str], line: str) -> dict[str, Any]:
    """Return the reply to a command, which its schema accepts and whose exit code is the command's."""
    words = shlex.split(line)
    schema = schema_of(capsys, words[0])
    code = main([*words, "--json"])
    return checked(capsys.readouterr().out, code, schema)


def schema_of(capsys: pytest.CaptureFixture[str], command: str) -> Any:
    """Return the schema of a command."""
    capsys.readouterr()
    assert main(["schema", command]) == 0
    schema = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator.check_schema(schema)
    return schema


def checked(printed: str, code: int, schema: Any) -> dict[str, Any]:
    """Return a reply that its schema accepts and that has the exit code of its command."""
    found: dict[str, Any] = json.loads(printed)
    jsonschema.validate(found, schema)
    assert found["exit_code"] == code
    partly = found["refusal"] is not None and found["refusal"]["kind"] == "partial"
    assert (found["result"] is None) is (found["refusal"] is not None and not partly)
    for reason in (found["refusal"] or {"reasons": ()})["reasons"]:
        assert reason["code"]
        assert reason["message"]
    assert found["refusal"] is None or found["refusal"]["reasons"]
    return found


LARGE = (
    "model=llama3_8b cluster=xe9680_h100 data=random job.precision=bfloat16 scaling.global_batch_size=8 "
    "parallelism.context=1 job.micro_batch_size=1"
)
DONE: dict[str, Callable[[Any], Any]] = {
    "plan -m nodes=1,2": lambda result: [each["ranks"] for each in result["runs"]] == [2, 4],
    "explain job.steps": lambda result: result["facts"]["range"] == "1 or more",
    "explain checkpoint": lambda result: "job.checkpoint_every_steps" in {each["name"] for each in result["keys"]},
    "list": lambda result: {each["counts"]["finished"] for each in result["sweeps"]} == {1, 6},
    "leaderboard runs/camp": lambda result: result["campaigns"][0]["attempts"][0]["verdict"] == "faster",
    "report runs/camp": lambda result: all(Path(file).is_file() for file in result["files"]),
    "submit launcher=dry sweep=seen": lambda result: result["counts"] == {"prepared": 1},
    "clone runs/first/good launcher=dry sweep=copy": lambda result: result["counts"] == {"prepared": 1},
    "note runs/first 'old driver'": lambda result: result["note"] == "old driver",
    "remove runs/first/good --yes": lambda result: result["removed"][0].endswith("good") and result["freed_bytes"] > 0,
    "data data=stdlib job.steps=2": lambda result: result["sets"][0]["account"]["data_samples_used"] > 0,
    "images shards --count 4 --shards 2": lambda result: (result["images"], result["size_bytes"] > 0) == (4, True),
    "model Qwen2.5-7B": lambda result: (result["file"], "layers: 28" in result["text"]) == (None, True),
    "convert hub --output new": lambda result: Path(result["file"], "lit_model.pth").is_file(),
    "cluster mine --gpu h100_sxm --output mine.yaml": lambda result: Path(result["file"]).is_file(),
    "tune launcher=dry job.micro_batch_size=1,2": lambda result: not result["ended"],
    f"plan --search {LARGE}": lambda result: (
        result["runs"] == []
        and {each["expert"] for each in result["search"]["fastest"]} == {1}
        and len(result["search"]["fastest"]) == 10
        and result["search"]["pareto"]
    ),
    f"calibrate --probes {LARGE}": lambda result: (
        result["file"] is None and all(each["identifies"] for each in result["probes"]["probes"])
    ),
    "report runs/first --reference kept.csv --allow-missing": lambda result: (
        result["reference"]["passed"] and {each["metric"] for each in result["reference"]["checks"]} >= {"final_loss"}
    ),
    "skills read-these-logs": lambda result: result["skills"][0]["text"].startswith("---"),
    "attempt baseline launcher=dry sweep=tried": lambda result: (
        result == {"sweep": None, "leaderboard": None, "verdict": None}
    ),
}


@pytest.mark.parametrize("line", DONE)
def test_a_command_answers_with_data(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = reply(capsys, line)
    assert found["exit_code"] == 0
    assert DONE[line](found["result"])


def test_the_states_of_a_sweep_have_steps_and_causes(capsys: pytest.CaptureFixture[str]) -> None:
    found = reply(capsys, "status runs/first --check")
    assert found["exit_code"] == 1
    runs = {each["name"]: each for each in found["result"]["runs"]}
    assert (runs["good"]["state"], runs["good"]["step"], runs["good"]["cause"]) == ("finished", 6, None)
    assert (runs["bad"]["state"], runs["bad"]["is_open"]) == ("failed", False)
    assert runs["bad"]["cause"] == "out_of_gpu_memory"


def test_a_real_run_is_submitted_waited_for_and_left_alone_by_what_follows(capsys: pytest.CaptureFixture[str]) -> None:
    schema = schema_of(capsys, "submit")

    def typed(*words: str) -> dict[str, Any]:
        line = [sys.executable, "-m", "slurmscale", *words, "--json"]
        done = subprocess.run(line, capture_output=True, text=True, timeout=limit_s(300), check=False)
        return checked(done.stdout, done.returncode, schema | {"properties": {**schema["properties"], "command": {}}})

    found = typed("submit", *SMALL, "launcher=local", "ranks_per_node=1", "sweep=real", "job.steps=3", "--wait")
    (run,) = found["result"]["runs"]
    assert (found["exit_code"], run["state"], run["step"], run["steps"]) == (0, "finished", 3, 3)
    sweep = found["result"]["directory"]
    for command in ("resume", "cancel"):
        again = typed(command, sweep)
        assert (again["exit_code"], again["result"]) == (0, found["result"])
    assert again["next_commands"] == [f"slurmscale resume {sweep}"]
    assert found["next_commands"] == [f"slurmscale status {sweep}", f"slurmscale report {sweep}"]


def test_a_sweep_is_followed_by_one_line_per_change(capsys: pytest.CaptureFixture[str]) -> None:
    schema = schema_of(capsys, "status")
    line = [*SMALL, "launcher=local", "ranks_per_node=1", "sweep=followed", "job.steps=3", "-m", "job.seed=1,2"]
    assert main(["submit", *line]) == 0
    capsys.readouterr()
    code = main(["status", "runs/followed", "--json", "--follow"])
    lines = [checked(each, json.loads(each)["exit_code"], schema) for each in capsys.readouterr().out.splitlines()]
    assert code == 0
    assert lines[-1]["result"]["counts"] == {"finished": 2}
    assert len(lines[0]["result"]["runs"]) == 2
    for before, after in itertools.pairwise(lines):
        assert before["result"]["counts"] != after["result"]["counts"] or after["result"]["runs"]
    followed: dict[str, list[str]] = {}
    for each in (run for found in lines for run in found["result"]["runs"]):
        followed.setdefault(each["name"], []).append(each["state"])
    assert all(states[-1] == "finished" and len(set(states)) > 1 for states in followed.values())


def test_follow_without_json_names_watch(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["status", "runs/first", "--follow"])
    assert "slurmscale watch" in capsys.readouterr().err


def test_what_was_planned_is_submitted_by_the_next_command(capsys: pytest.CaptureFixture[str]) -> None:
    found = reply(capsys, "plan -m cluster=gadi_gpuvolta job.precision=float16 nodes=1,2 scaling.global_batch_size=64")
    assert found["result"]["unset"] == ["cluster.account"]
    assert found["next_commands"] == [
        "slurmscale submit -m cluster=gadi_gpuvolta job.precision=float16 nodes=1,2 scaling.global_batch_size=64 "
        "cluster.account=VALUE"
    ]


def test_what_got_worse_than_a_reference_is_named_and_ends_with_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finished_run(tmp_path / "runs/slow", a_run("good"), step_time_s=5.0)
    found = reply(capsys, "report runs/slow --reference kept.csv")
    worse = [each for each in found["result"]["reference"]["checks"] if each["verdict"] == "worse"]
    assert found["exit_code"] == 3
    assert [each["metric"] for each in worse] == ["tokens_per_s"]
    assert worse[0]["relative_change"] < -0.05
    assert found["result"]["headline"][0].startswith("REGRESSION")


def test_the_layouts_and_probes_that_are_answered_are_those_that_are_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    layouts = reply(capsys, f"plan --search {LARGE}")
    assert main(["plan", "--search", *LARGE.split()]) == 0
    printed = capsys.readouterr().out
    assert all(" ".join(each["overrides"]) in printed for each in layouts["result"]["search"]["fastest"])
    assert reply(capsys, layouts["next_commands"][0].removeprefix("slurmscale "))["exit_code"] == 0
    probes = reply(capsys, f"calibrate --probes {LARGE}")
    assert main(["calibrate", "--probes", *LARGE.split()]) == 0
    printed = capsys.readouterr().out
    assert all(command in printed for command in probes["next_commands"])


def test_the_beginning_of_the_option_is_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--js"]) == 0
    assert json.loads(capsys.readouterr().out)["command"] == "list"


REFUSED: dict[str, tuple[str, dict[str, str] | None]] = {
    "plan cluster=xe9680_h100 ranks_per_node=16": ("ConfigError", {"ranks_per_node": "8"}),
    "submit job.warmup_steps=-1": ("ConfigError", {"job.warmup_steps": "0"}),
    "plan --search nodes=1": ("ConfigError", None),
    "plan --search --why": ("usage", None),
    "clone runs/first/good nodes=0": ("ConfigError", None),
    "logs runs/first/good": ("RunDirError", None),
    "note runs/first/good text": ("RunDirError", None),
    "remove runs/first": ("ConfigError", None),
    "data data=text": ("DataError", None),
    "images shards --count 0": ("ConfigError", None),
    "model nobodys-model": ("ConfigError", None),
    "cluster mine --gpu none_such": ("ConfigError", None),
    "calibrate runs/first": ("ConfigError", None),
    "package runs/camp slow": ("RunDirError", None),
    "package runs/camp fast": ("RunDirError", None),
    "tune --next runs/camp": ("RunDirError", None),
    "rerun nowhere": ("ConfigError", None),
    "tune --next runs/camp nodes=1": ("usage", None),
    "tune nodes=1": ("ConfigError", None),
    "doctor cluster=local": ("ConfigError", None),
    "report runs/camp --open": ("ReportError", None),
    "report runs/camp --live": ("ReportError", None),
    "explain nothing_like_it": ("ConfigError", None),
    "attempt other/name x=1": ("ConfigError", None),
    "campaign none.yaml": ("ConfigError", None),
    "list nowhere": ("RunDirError", None),
    "status nowhere": ("RunDirError", None),
    "cancel nowhere": ("RunDirError", None),
    "resume runs/first/none": ("RunDirError", None),
    "leaderboard runs/first": ("ReportError", None),
    "report nowhere": ("ReportError", None),
}


@pytest.mark.parametrize("line", REFUSED)
def test_a_refusal_is_data_with_the_overrides_that_mend_it(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = reply(capsys, line)
    kind, remedy = REFUSED[line]
    assert (found["exit_code"], found["refusal"]["kind"]) == (2, kind)
    assert found["refusal"]["message"]
    if remedy is not None:
        assert remedy in found["refusal"]["remedies"]
        words = " ".join(f"{key}={value}" for key, value in remedy.items())
        assert reply(capsys, f"plan {line.partition(' ')[2]} {words}")["exit_code"] == 0


REASONS: dict[str, tuple[str, str, str, str | None, dict[str, str] | None]] = {
    "nodez=3": ("unknown_key", "nodez", "3", None, {"nodes": "3"}),
    "model=llama3_8c": ("unknown_choice", "model", "llama3_8c", "one of deepseek_v2_lite", {"model": "llama3_8b"}),
    "nodes=abc": ("wrong_type", "nodes", "abc", "whole number; 1 or more", {"nodes": "NUMBER"}),
    "nodes=0": ("counts_are_in_range", "nodes", "0", "whole number; 1 or more", {"nodes": "1"}),
    "nodes=1,2": ("several_values", "nodes", "1,2", "whole number; 1 or more", None),
    "engine=native serving.concurrency=2": ("unread_key", "serving.concurrency", "2", "whole number", None),
    "job.precision=float17": ("wrong_type", "job.precision", "float17", "one of float32, bfloat16", None),
    "parallelism=pp parallelism.pipeline=3": (
        "pipeline_stages_share_layers", "parallelism.pipeline", "3", "whole number; 1 or more",
        {"parallelism.pipeline": "2"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("line", REASONS)
def test_a_reason_has_code_key_value_and_what_is_allowed(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, key, value, allowed, remedy = REASONS[line]
    reason = reply(capsys, f"plan {line}")["refusal"]["reasons"][0]
    assert (reason["code"], reason["key"], reason["value"] or "") == (code, key, value)
    assert (reason["allowed"] or "").startswith(allowed or "")
    assert remedy is None or remedy in reason["remedies"]
    if remedy is None or {"NUMBER", "VALUE"} & set(remedy.values()):
        return
    kept = [each for each in line.split() if each.partition("=")[0] not in {key, *remedy}]
    mended = reply(capsys, shlex.join(["plan", *kept, *(f"{name}={each}" for name, each in remedy.items())]))
    assert reason["code"] not in {each["code"] for each in (mended["refusal"] or {"reasons": ()})["reasons"]}


def test_each_reason_of_each_point_names_its_run(capsys: pytest.CaptureFixture[str]) -> None:
    found = reply(capsys, "plan -m nodes=0,-1 job.steps=-1")["refusal"]["reasons"]
    assert len({reason["run"] for reason in found}) == 2
    assert {reason["key"] for reason in found} == {"nodes", "job.steps"}


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        ("status nowhere", "sweep", "nowhere"),
        ("report ./not-there", "paths", "not-there"),
        ("report runs/first --format tex", "--format", "tex"),
        ("report runs/first --cost-of many", "--cost-of", "many"),
        ("model ./no-such-model", "what", "./no-such-model"),
        ("skills cook-a-meal", "name", "cook-a-meal"),
        ("attempt x --until never", "--until", "never"),
        ("attempt x", None, None),
        ("attempt no", None, None),
        ("logs no", "run", "no"),
    ],
)
def test_a_refusal_of_no_key_names_the_argument(
    line: str, key: str | None, value: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    (reason,) = reply(capsys, line)["refusal"]["reasons"]
    assert (reason["key"], reason["value"]) == (key, value)


@pytest.mark.parametrize("line", ["reprot runs/first --json", "--json", "nodes=2 --json"])
def test_a_command_that_does_not_exist_is_refused_as_data(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    schema = schema_of(capsys, "plan") | {"properties": schema_of(capsys, "plan")["properties"] | {"command": True}}
    code = main(line.split())
    found = checked(capsys.readouterr().out, code, schema)
    assert (code, found["command"], found["refusal"]["kind"]) == (2, "", "usage")


def test_what_was_not_done_is_a_reason_beside_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    found = reply(capsys, "cancel runs/first")
    assert (found["exit_code"], found["refusal"]["kind"]) == (2, "partial")
    assert "bad may restart: started on login" in found["refusal"]["reasons"][0]["message"]
    assert found["result"]["counts"] == {"finished": 1, "failed": 1}


def test_names_that_are_not_utf8_are_data_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/runs/odd\xff")
    try:
        Path(odd).mkdir()
    except OSError:
        pytest.skip("this file system takes UTF-8 only")
    for command in ("status", "report", "logs", "leaderboard"):
        found = reply(capsys, shlex.join([command, odd]))
        assert "odd\\xff" in found["refusal"]["message"]


def test_every_command_that_answers_was_asked() -> None:
    asked = {line.split()[0] for line in (*DONE, *REFUSED, "status")}
    assert asked == set(ANSWERING)


def test_a_usage_error_is_data_too(capsys: pytest.CaptureFixture[str]) -> None:
    found = reply(capsys, "status runs/first --nonsense")
    assert found["refusal"]["kind"] == "usage"
    assert "unrecognized arguments: --nonsense" in found["refusal"]["message"]

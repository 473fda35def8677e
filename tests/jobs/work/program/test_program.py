"""Programs of other people as runs: real processes on every rank, what they print in the report, and refusals."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from analysis.load.run_directory import read_run
from analysis.metrics.programs import MissingNumberError, program_values
from analysis.report.report import report
from jobs import metrics as m
from jobs.cli import main
from jobs.failure_causes import FailureCause
from jobs.rundir import RunDir, load_run
from tests.support.composing import one, refusal
from tests.support.real_run import FORK, events, make_run, printed, rank, train
from tests.support.training import small_disk
from tests.support.waiting import wait_until

COUNT = """\
import os, sys
points = int(sys.argv[1])
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], "on node", os.environ["GROUP_RANK"])
for step in range(1, 5):
    print(f"step {{step}} rate", 100 * step * points, "points/s error", 1 / points)
"""
PROGRAM: dict[str, Any] = {
    "name": "count",
    "steps": {
        "make": {"command": "{python} -c 'open(\"made.txt\", \"w\").write(\"{nodes} nodes\")'"},
        "count": {"command": "{python} count.py {params.points}", "start": "rank"},
    },
    "params": {"points": "10"},
    "parameters": {"points": {"meaning": "Points of a rank", "type": "integer", "at_least": 1, "at_most": 1000}},
    "files": {"count.py": COUNT},
    "metrics": {
        "points_per_s": {
            "pattern": r"rate (\d+)", "unit": "1/s", "better": "high", "definition": "Points counted per second.",
            "skip": 1, "take": "median",
        },
        "relative_error": {"pattern": r"error ([\d.]+)", "unit": "1", "definition": "Error of the estimate."},
    },
    "merit": "points_per_s",
    "gates": {"error": {"metric": "relative_error", "at_most": 0.5}},
}  # fmt: skip


def program(site: Path, **changes: Any) -> None:
    """Write the program file `count` with changes of its keys."""
    (site / "count.yaml").write_text(yaml.safe_dump(PROGRAM | changes, sort_keys=False))


GO = "{python} go.py"
CHOSEN = ("job=program", "program=count")


def made(where: Path, *overrides: str) -> RunDir:
    run = make_run(where, *CHOSEN, "ranks_per_node=1", *overrides, small=False)
    run.plan.write_text("{}")
    return run


def finished(run: RunDir, ranks: int = 1) -> None:
    assert train(run) == [0] * ranks, printed(run)


def test_every_rank_runs_the_steps_and_the_declared_numbers_are_the_result(site: Path, tmp_path: Path) -> None:
    program(site)
    run = made(tmp_path, "nodes=2")
    finished(run, ranks=2)
    assert (run.work / "made.txt").read_text() == "2 nodes"
    assert "rank 1 of 2 on node 1" in run.program_log("count", 1).read_text()
    assert [event["program_step"] for event in events(run, "step_ended")] == ["make", "count"]
    assert "rank 0 of 2 on node 0" in (run.path / "rank0.log").read_text(), "rank 0 repeats its output in the job's log"
    found = read_run(run.path)
    assert found.used, found.reason
    values = {metric.name: value for metric, value in found.values.items()}
    assert values["points_per_s"] == 3000, "the median of 2000, 3000 and 4000"
    assert values["relative_error"] == 0.1
    assert found.rate is not None
    assert found.rate.name == "points_per_s"
    parts_s = [values["step_make_time_s"], values["step_count_time_s"]]
    assert 0 < min(parts_s) < values["program_time_s"] == pytest.approx(sum(parts_s))
    other = made(tmp_path, "nodes=1")
    finished(other)
    report([tmp_path / "test"], tmp_path / "report")
    page = (tmp_path / "report/report.md").read_text()
    assert "Emulated nodes on CPU: count gains nothing from 1 to 2 ranks (1.00 times, 50.0 % efficiency" in page
    assert "| Points/s |" in page
    assert "1 / batch" not in page
    assert "points_per_s" in (tmp_path / "report/runs.csv").read_text().partition("\n")[0].split(",")


def test_without_a_merit_the_wall_time_of_all_steps_is_compared(site: Path, tmp_path: Path) -> None:
    program(site, merit=None, steps={"nothing": {"command": "sleep 0.3"}}, metrics={}, gates={}, params={},
            parameters={})  # fmt: skip
    run = made(tmp_path)
    finished(run)
    found = read_run(run.path)
    assert found.rate is not None
    assert (found.rate.name, found.rate.unit) == ("runs_per_s", "1/s")
    assert found.values[found.rate] == pytest.approx(1 / found.values[m.PROGRAM_TIME])
    assert found.values[m.PROGRAM_TIME] >= 0.3


def test_a_log_has_a_file_for_each_attempt_and_the_last_one_counts(site: Path, tmp_path: Path) -> None:
    write = (
        "import os\nfrom pathlib import Path\n"
        "for version in range(2):\n"
        "    table = Path(f'csv/version_{{version}}/metrics.csv')\n"
        "    table.parent.mkdir(parents=True)\n"
        "    rows = [f'0,{{step}},{2 - version - step / 100},0.5' for step in range(20 * version, 20 * version + 20)]\n"
        "    table.write_text('\\n'.join(['epoch,step,loss,step_time_s', *rows]) + '\\n')\n"
        "    os.utime(table, (version + 1, version + 1))\n"
    )
    program(site, steps={"go": {"command": GO}}, files={"go.py": write}, params={}, parameters={}, metrics={}, gates={},
            merit=None, log={"file": "csv/version_*/metrics.csv"})  # fmt: skip
    run = made(tmp_path)
    finished(run)
    found = read_run(run.path)
    assert found.used, found.reason
    assert found.values[m.STEP_TIME_MEDIAN] == pytest.approx(0.5)
    assert max(found.losses) == 40
    report([tmp_path / "test"], tmp_path / "report")
    page = (tmp_path / "report/report.html").read_text()
    assert "In logs of other programs, the first reported step" in page


def test_a_log_of_all_ranks_is_that_of_the_rank_that_prints_the_steps(site: Path, tmp_path: Path) -> None:
    line = (
        " iteration %8d/      20 | consumed samples: %d | elapsed time per iteration (ms): 500.0 | "
        "learning rate: 1.0E-04 | global batch size:     4 | lm loss: 2.0E+00 |"
    )
    steps = "range(1, 21) if os.environ['RANK'] == '1' else ()"
    write = f"import os\nfor step in {steps}:\n    print('{line}' % (step, 4 * step))\n"
    program(site, steps={"go": {"command": GO, "start": "rank"}}, files={"go.py": write}, params={}, parameters={},
            metrics={}, gates={}, merit=None, log={"file": "{run_directory}/program/go-*.log"})  # fmt: skip
    run = made(tmp_path, "ranks_per_node=2")
    finished(run, ranks=2)
    found = read_run(run.path)
    assert found.used, found.reason
    assert found.values[m.STEP_TIME_MEDIAN] == pytest.approx(0.5)
    assert found.plan["global_batch_size"] == 4


def test_a_merit_of_its_own_needs_no_rate_of_the_log(site: Path, tmp_path: Path) -> None:
    lines = "\n".join(
        f"print({{'loss': {3 - step / 10}, 'learning_rate': 0.1, 'epoch': {step}.0}})" for step in range(9)
    )
    rate = {"pattern": "rate (.*)", "unit": "1/s", "better": "high", "definition": "A rate."}
    program(site, steps={"go": {"command": GO}}, files={"go.py": f"{lines}\nprint('rate 5')\n"}, params={},
            parameters={}, metrics={"rate": rate}, gates={}, merit=None, log={})  # fmt: skip
    without = made(tmp_path)
    finished(without)
    assert read_run(without.path).reason == "program.log: it reports neither step time nor throughput"
    run = made(tmp_path, "program.merit=rate", "name=merit")
    finished(run)
    found = read_run(run.path)
    assert found.used, found.reason
    assert found.rate is not None
    assert (found.rate.name, len(found.losses)) == ("rate", 9)


def test_a_process_that_fails_names_its_step_and_ends_those_of_all_ranks(site: Path, tmp_path: Path) -> None:
    fails = "import os, sys, time\nif os.environ['RANK'] == '1': sys.exit('no mesh for rank 1')\ntime.sleep(600)\n"
    program(site, files={"count.py": fails})
    run = made(tmp_path, "nodes=1", "ranks_per_node=2")
    began = time.monotonic()
    assert train(run) == [1, 1]
    assert time.monotonic() - began < 120
    failures = {event["rank"]: event for event in events(run, "failed")}
    assert failures[1]["error"] == (
        f"step count on {failures[1]['node']} exited with code 1; the last line of count-00001.log: no mesh for rank 1"
    )
    found = read_run(run.path)
    assert (found.state, found.used) == ("failed", False)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"steps": {"count": {"command": "no-such-solver --fast"}}},
         "step count cannot start on .*: no-such-solver: No such file or directory. Set program.steps.count.command"),
        ({"steps": {"count": {"command": "sleep 600", "time_limit_min": 0.01}}},
         r"step count has not ended for 0.01 min \(program.steps.count.time_limit_min\); its output is in"),
        ({"steps": {"count": {"command": "bash -c 'echo begun; sleep 600'"}}, "silent_limit_min": 0.02},
         r"step count has printed nothing for 0.02 min \(program.silent_limit_min\)"),
        ({"steps": {"count": {"command": "cat {inputs.mesh}"}}, "inputs": {"mesh": {"path": "/nowhere/mesh"}}},
         "program.inputs.mesh: there is no /nowhere/mesh. Set program.inputs.mesh.path=PATH"),
    ],
)  # fmt: skip
def test_a_program_that_cannot_go_on_ends_with_a_sentence(
    site: Path, tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    program(site, **{"params": {}, "parameters": {}, "metrics": {}, "gates": {}, "merit": None, "files": {}} | changes)
    run = made(tmp_path)
    assert train(run) == [1]
    (failure,) = events(run, "failed")
    assert re.search(reason, str(failure["error"])), failure["error"]


@pytest.mark.parametrize(
    ("changes", "state", "reason"),
    [
        ({"metrics": PROGRAM["metrics"] | {"drag": {"pattern": r"Cd\s*=\s*(\S+)", "unit": "1", "definition": "Drag."}}},
         "unmeasured", r"program.metrics.drag: no line of .*count-00000.log matches Cd\\s.*; the nearest is: "),
        ({"gates": {"error": {"metric": "relative_error", "at_least": 0.2, "at_most": 0.3}}},
         "gate missed", "it misses the gate error: relative_error is 0.1, and at least 0.2 and at most 0.3 is"),
        ({"gates": {"steps": {"absent": "step [2-3]"}}}, "gate missed",
         "it misses the gate steps: count-00000.log has the line 'step 2 rate 2000 points/s error 0.1'"),
        ({"metrics": PROGRAM["metrics"] | {"x": {"json": "a.b", "file": "none.json", "unit": "1", "definition": "X."}}},
         "unmeasured", "program.metrics.x: .*none.json cannot be read: No such file or directory"),
        ({"metrics": PROGRAM["metrics"] | {"x": {"pattern": "(points)", "unit": "1", "definition": "X."}}},
         "unmeasured", r"program.metrics.x: .*count-00000.log has no number where \(points\) matches, but 'points'"),
        ({"metrics": {"points_per_s": PROGRAM["metrics"]["points_per_s"] | {"skip": 4}}, "gates": {}},
         "unmeasured", "count-00000.log has 4 values, and the first 4 are left out"),
    ],
)  # fmt: skip
def test_a_run_without_its_number_or_outside_its_gate_counts_nowhere(
    site: Path, tmp_path: Path, changes: dict[str, Any], state: str, reason: str
) -> None:
    program(site, **changes)
    run = made(tmp_path)
    finished(run)
    found = read_run(run.path)
    assert (found.state, found.used) == (state, False)
    assert re.search(reason, str(found.reason)), found.reason


TARGET = {"unit": "s", "definition": "Time to the target.", "better": "low", "take": "first"}
LOG = "step 1 loss 4.5 at 10 s\nstep 2 loss 3.2 at 20 s\nstep 3 loss 3.4 at 30 s\nstep 4 loss 3.1 at 40 s\n"
PSNR = "".join(f'{{"t": {t}, "eval": {{"psnr": {psnr}}}}}\n' for t, psnr in ((5, 28.0), (9, 31.5), (12, 30.9)))
DRAG = "iteration,drag,time\n1,0.43,3\n2,0.31,6\n3,0.285,9\n4,0.284,12\n"


def test_the_time_to_a_target_is_that_of_the_first_line_that_keeps_its_limits(site: Path, tmp_path: Path) -> None:
    files = {"log.txt": LOG, "score.jsonl": PSNR, "forces.csv": DRAG}
    pattern = r"loss (?P<loss>\S+) at (?P<value>\S+) s"
    metrics = {
        "to_loss_s": {"pattern": pattern, "file": "log.txt", "where": {"of": "loss", "at_most": 3.28}, **TARGET},
        "to_psnr_s": {"json": "t", "file": "score.jsonl", "where": {"of": "eval.psnr", "at_least": 30.0}, **TARGET},
        "to_drag_s": {
            "csv": "time", "file": "forces.csv", "where": {"of": "drag", "at_least": 0.28, "at_most": 0.29}, **TARGET
        },
    }  # fmt: skip
    shared: dict[str, Any] = {"steps": {"no": {"command": "true"}}, "gates": {}, "params": {}, "parameters": {}}
    program(site, **shared, files=files, metrics=metrics, merit="to_loss_s")
    run = made(tmp_path)
    finished(run)
    found = {metric.name: value for metric, value in read_run(run.path).values.items()}
    assert {name: found.get(name) for name in metrics} == {"to_loss_s": 20, "to_psnr_s": 9, "to_drag_s": 9}

    metrics["to_loss_s"]["where"] = {"of": "loss", "at_most": 3.0}
    program(site, **shared, files=files, metrics=metrics, merit="to_loss_s")
    run = made(tmp_path / "again")
    finished(run)
    reason = read_run(run.path).reason
    assert "loss is never at most 3 in " in str(reason)
    assert str(reason).endswith("the nearest of 4 is 3.1")


def test_numbers_are_read_from_files_of_the_program(site: Path, tmp_path: Path) -> None:
    files = {
        "out.json": '{"results": [{"rate": 2.5}, {"rate": 7}]}',
        "out.jsonl": '{"loss": 3.0}\n{"loss": 1.0}\n{"other": 1}\n',
        "out.csv": "step,energy\n1,-3.5\n2,nan\n3,-4.5\n",
        "out.{nodes}.txt": "1,234.5 GFLOPS\n",
    }
    of = {"definition": "A number.", "unit": "1"}
    metrics = {
        "rate": {"json": "results.1.rate", "file": "out.json", **of},
        "mean_loss": {"json": "loss", "file": "out.jsonl", "take": "mean", **of},
        "energy": {"csv": "energy", "file": "{directory}/out.csv", "take": "least", **of},
        "flops": {"pattern": r"(?P<value>\S+) (?:G)FLOPS", "file": "out.txt", **of, "unit": "FLOP/s", "factor": 1e9},
    }
    files["out.txt"] = files.pop("out.{nodes}.txt")
    program(site, steps={"no": {"command": "true"}}, files=files, metrics=metrics, gates={}, merit=None, params={},
            parameters={})  # fmt: skip
    run = made(tmp_path)
    finished(run)
    found = {metric.name: value for metric, value in read_run(run.path).values.items()}
    assert {name: found.get(name) for name in metrics} == {
        "rate": 7, "mean_loss": 2, "energy": -4.5, "flops": 1.2345e12,
    }  # fmt: skip


def test_a_number_that_is_not_where_it_was_declared_is_reported_with_what_is_there(site: Path, tmp_path: Path) -> None:
    of = {"definition": "A number.", "unit": "1"}
    files = {"out.json": '{"results": [{"rate": 2.5}], "n": 1}', "out.csv": "step,energy\n1,-3.5\n"}
    for metric, there in (
        ({"json": "result.0.rate", "file": "out.json"}, "no number at result.0.rate; the document has results, n"),
        ({"json": "results.1.rate", "file": "out.json"}, "no number at results.1.rate; results has 0 to 0"),
        ({"json": "results.0.speed", "file": "out.json"}, "no number at results.0.speed; results.0 has rate"),
        ({"csv": "2", "file": "out.csv"}, "no number in a column 2; its first line is 'step,energy'"),
    ):
        program(site, steps={"no": {"command": "true"}}, files=files, metrics={"x": {**metric, **of}}, gates={},
                merit=None, params={}, parameters={})  # fmt: skip
        run = made(tmp_path, f"name=r{len(there)}")
        run.work.mkdir()
        for name, text in files.items():
            (run.work / name).write_text(text)
        with pytest.raises(MissingNumberError, match=re.escape(there)):
            program_values(load_run(run.config), run, {})


LONG = """\
import os, pathlib, signal, sys, time
done = int(pathlib.Path(sys.argv[1]).read_text()) if len(sys.argv) > 1 else 0
def save(*_):
    pathlib.Path(f"state-{{done}}.txt").write_text(str(done)); sys.exit(0)
signal.signal(signal.SIGUSR1, save)
pathlib.Path("pid").write_text(str(os.getpid()))
print("from", done, flush=True)
while done < 40:
    done += 1
    if len(sys.argv) == 1: time.sleep(0.1 if done < 3 else 60)
print("counted", done)
"""


@pytest.mark.parametrize(
    ("write", "value"),
    [
        ("'d\xe9bit rate 5\\nrate 7,5\\nrate 7\\n'.encode('latin-1')", 7),
        ("'rate 7\\nrate 1,808\\n'.encode('utf-16')", 1808),
        ("b'\\x1b[32mrate \\x1b[1m9\\x1b[0m\\r\\n'", 9),
        ("b'x' * 70_000_000 + b'\\nrate 6 \\0\\xff\\n'", 6),
    ],
)
def test_numbers_are_found_in_any_encoding_with_colours_and_behind_very_long_lines(
    site: Path, tmp_path: Path, write: str, value: float
) -> None:
    program(
        site, files={"go.py": f"import sys\nsys.stdout.buffer.write({write})\n"}, steps={"go": {"command": GO}},
        params={}, parameters={}, gates={},
        metrics={"points_per_s": {**PROGRAM["metrics"]["points_per_s"], "pattern": r"rate (\S+)", "skip": 0,
                                  "take": "last"}},
    )  # fmt: skip
    run = made(tmp_path)
    finished(run)
    found = read_run(run.path)
    assert found.used, found.reason
    assert found.values[found.rate or m.PROGRAM_TIME] == value
    assert (run.path / "rank0.log").stat().st_size < 20_000_000, "the log of the job repeats 16 MiB at most"


def test_a_program_that_fills_the_disk_fails_for_that_reason(site: Path, tmp_path: Path) -> None:
    program(
        site, files={"go.py": "while True: print('x' * 10_000)\n"}, steps={"go": {"command": GO}}, params={},
        parameters={}, gates={}, metrics={}, merit=None,
    )  # fmt: skip
    with small_disk(tmp_path / "disk", 2**23):
        run = made(tmp_path / "disk")
        assert train(run) == [1]
        failed = events(run, "failed")[0]
        assert re.match("step go on .* exited with code 1; the file system of .*/program is full, so its last lines",
                        str(failed["error"]))  # fmt: skip
        assert failed["cause"] == "storage"


@pytest.mark.parametrize("place", ["", "{run_directory}/work/"])
def test_an_interrupted_program_saves_and_goes_on_where_it_was(site: Path, tmp_path: Path, place: str) -> None:
    program(
        site, files={"long.py": LONG}, params={}, parameters={}, gates={}, merit=None, stop_signal="USR1",
        steps={"prepare": {"command": "bash -c 'echo x >> prepared.txt'"}, "long": {"command": "{python} long.py"}},
        metrics={"counted": {"pattern": r"counted (\d+)", "unit": "1", "definition": "Counted."}},
        resume={"file": f"{place}state-*.txt", "arguments": "{checkpoint}"},
    )  # fmt: skip
    run = made(tmp_path)
    first = FORK.Process(target=rank, args=(run.path, 0, 1, "first"))
    first.start()
    log = run.program_log("long", 0)
    wait_until(lambda: log.exists() and "from 0" in log.read_text())
    assert first.pid is not None
    # Slurm signals all processes of a step: the program may end before its rank looks.
    program_id = int((run.work / "pid").read_text())
    os.kill(program_id, signal.SIGUSR1)
    os.kill(first.pid, signal.SIGUSR2)
    first.join()
    assert first.exitcode == 0, printed(run)
    (stopped,) = events(run, "stopped")
    assert stopped["reason"] == "time limit near, or preempted (SIGUSR2)"
    assert len(events(run, "checkpoint")) == 1, "a restart after the time limit needs it"
    finished(run)
    assert (run.work / "prepared.txt").read_text() == "x\n", "a finished step is not repeated"
    assert "step long continues from" in printed(run)
    found = read_run(run.path)
    assert {metric.name: value for metric, value in found.values.items()}["counted"] == 40
    assert found.attempts == 2


def test_a_checkpoint_whose_writing_was_interrupted_is_not_continued(site: Path, tmp_path: Path) -> None:
    resume = {"file": "saved-*", "complete": "state.json", "arguments": "{checkpoint}"}
    program(site, steps={"go": {"command": "echo from"}}, params={}, parameters={}, files={}, metrics={}, gates={},
            merit=None, resume=resume)  # fmt: skip
    run = made(tmp_path)
    for name in ("saved-10", "saved-20", "saved-30"):
        (run.work / name).mkdir(parents=True)
        if name != "saved-30":
            (run.work / name / "state.json").touch()
    for seconds, name in enumerate(("saved-10", "saved-20", "saved-30")):
        os.utime(run.work / name, (seconds, seconds))
    finished(run)
    assert run.program_log("go", 0).read_text() == f"from {run.work}/saved-20\n"


def test_the_environment_of_a_process_has_its_place_and_nothing_of_ours(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    program(site, files={"sibling.py": "NUMBER = 5\n", "count.py": "import sibling, os\nprint('rate', sibling.NUMBER)\n"
            "print('error 0.1', os.environ['PLACE'], os.environ['MASTER_PORT'], 'PYTHONSAFEPATH' in os.environ)\n"},
            env={"PLACE": "{rank}/{ranks} of {params.points}"}, steps=PROGRAM["steps"],
            metrics={"points_per_s": PROGRAM["metrics"]["points_per_s"] | {"skip": 0},
                     "relative_error": PROGRAM["metrics"]["relative_error"]})  # fmt: skip
    run = made(tmp_path)
    finished(run)
    line = run.program_log("count", 0).read_text().splitlines()[1].split()
    assert line[:5] == ["error", "0.1", "0/1", "of", "10"]
    assert 1024 < int(line[5]) < 65536
    assert line[6] == "False"


# --- composition -----------------------------------------------------------------------------------------------

NUMBER = {"unit": "1", "definition": "X."}
REFUSED = [
    ({"steps": {"count": {"command": "bash -c 'echo ${SCRATCH}'"}}}, (),
     "Interpolation key 'SCRATCH' not found (key: program.steps.count.command). ${KEY} is the value of a configuration "
     "key; write \\${NAME} for text that a shell replaces."),
    ({"files": {"run.sh": "echo ${X:-1}"}}, (), "write \\${NAME} for text that a shell replaces."),
    ({"steps": {}}, (), "none is chosen"),
    ({"steps": {"a b": {"command": "x"}}}, (), "a name of a step has letters, digits, _ and - only"),
    ({"steps": {"a": {"command": "echo 'x"}}}, (), "No closing quotation. Close the quotation mark"),
    ({"steps": {"a": {"command": " "}}}, (), "program.steps.a.command is empty"),
    ({"name": ""}, (), "program.name is not set"),
    ({"steps": {"a": {"command": "cd x && make > log"}}}, (),
     "program.steps.a.command contains &&, which a shell would read, and none does. Write bash -c '...' around it, or"),
    ({"steps": {"a": {"command": "make |tee log"}}}, (), "program.steps.a.command contains |tee, which a shell would"),
    ({"steps": {"a": {"command": "x `date`"}}}, (), "program.steps.a.command contains `, which a shell would read"),
    ({"steps": {"a": {"command": "x \\${HOME}"}}}, (), "program.steps.a.command contains ${HOME}, which a shell would"),
    ({"steps": {"a": {"command": "make >log"}}}, (), "program.steps.a.command contains >log, which a shell would"),
    ({"steps": {"a": {"command": "make; ./x"}}}, (), "program.steps.a.command contains ;, which a shell would read"),
    ({"steps": {"a": {"command": "$HOME/x {params.points}"}}}, (), "program.steps.a.command contains $HOME, which a"),
    ({"steps": {"a": {"command": "OMP_NUM_THREADS=4 ./x {params.points}"}}}, (),
     "begins with OMP_NUM_THREADS=4, which a shell would read, and none does. Set program.steps.a.env.OMP_NUM_THREADS"),
    ({"steps": {"a": {"command": "x {params.pionts}"}}}, (), "{params.pionts} has no value. Did you mean params"),
    ({"steps": {"a": {"command": "x {node} {params.points}"}}}, (), "{node} has no value. Did you mean node_rank"),
    ({"files": {"a": "{rank} {params.points}"}}, (), "program.files.a: {rank} has no value"),
    ({"files": {"a": "{parallelism.dp_shard} {params.points}"}}, (), "{parallelism.dp_shard} has no value"),
    ({"files": {"../a": ""}}, (), "program.files: '../a' is not a path inside the working directory"),
    ({"files": {"a": "{params.points}", "a/b": ""}}, (), "program.files: 'a' is a file, and 'a/b' would be in it."),
    ({"resume": {"file": "ck-*", "complete": ""}}, (), "program.resume.complete='' is not a file in a checkpoint"),
    ({"resume": {"file": "ck-*", "complete": "../a"}}, (), "program.resume.complete='../a' is not a file in a checkp"),
    ({"files": {"/etc/a": ""}}, (), "program.files: '/etc/a' is not a path inside the working directory"),
    ({"env": {"A B": "x"}}, (), "program.env.A B: a name of a variable has letters, digits and _"),
    ({}, ("program.params.point=3",), "program.params.point: program=count does not use it. Did you mean points?"),
    ({}, ("program.params.points=0",), "program.params.points=0 must be at least 1 and at most 1000"),
    ({}, ("program.params.points=1e3",), "program.params.points=1e3 is not a whole number"),
    ({}, ("program.params.points=many",), "program.params.points=many is not a whole number"),
    ({"parameters": {"points": {"meaning": "X.", "one_of": ["10", "20"]}}}, ("program.params.points=15",),
     "program.params.points=15 is not allowed. Set program.params.points=10 or 20"),
    ({"parameters": {"points": {"meaning": "X.", "at_least": 1}}}, (),
     "program.parameters.points is at least 1, and its type is text. Set program.parameters.points.type=integer or"),
    ({"parameters": {"points": {"meaning": "X.", "type": "number", "at_least": 2, "at_most": 1}}}, (),
     "program.parameters.points.at_least=2 is above its at_most=1. Exchange them."),
    ({"parameters": {"other": {"meaning": "X."}}}, (), "there is no program.params.other"),
    ({"parameters": {"other": {"meaning": "X.", "type": "words"}}}, (), "there is no program.params.other"),
    ({"metrics": {"x": NUMBER}, "merit": None, "gates": {}}, (), "program.metrics.x has no source; it needs one of"),
    ({"metrics": {"x": {**NUMBER, "json": "a", "csv": "b"}}, "merit": None, "gates": {}}, (), "has json and csv"),
    ({"metrics": {"x": {**NUMBER, "json": "a"}}, "merit": None, "gates": {}}, (), "Set program.metrics.x.file=PATH"),
    ({"metrics": {"x": {**NUMBER, "json": "a[0].b", "file": "c"}}, "merit": None, "gates": {}}, (),
     "program.metrics.x.json=a[0].b: the parts of a path are joined by dots. Set program.metrics.x.json=a.0.b."),
    ({"metrics": {"x": {**NUMBER, "pattern": "a"}}, "merit": None, "gates": {}}, (), "it has no group"),
    ({"metrics": {"x": {**NUMBER, "pattern": "a(("}}, "merit": None, "gates": {}}, (), "Correct the regular"),
    ({"metrics": {"x": {**NUMBER, "pattern": "(a)", "where": {"of": "loss", "at_most": 3}}}, "merit": None,
      "gates": {}}, (),
     "program.metrics.x.where.of=loss: the pattern has no group of this name. Write (?P<loss>\\S+) into it."),
    ({"metrics": {"x": {**NUMBER, "json": "a", "file": "b", "where": {"of": "loss"}}}, "merit": None, "gates": {}}, (),
     "program.metrics.x.where has no limit"),
    ({"metrics": {"X": {**NUMBER, "pattern": "(a)"}}, "merit": None, "gates": {}}, (), "small letters, digits and _"),
    ({"metrics": {"x": {**NUMBER, "pattern": "(a)", "step": "no"}}, "merit": None, "gates": {}}, (),
     "program.metrics.x.step=no: there is no such step. Set program.metrics.x.step=make or count"),
    ({"metrics": {"tokens_per_s": {**NUMBER, "pattern": "(a)"}}, "merit": None, "gates": {}}, (),
     "tokens_per_s of the registry is in 1/s"),
    ({"merit": "speed"}, (), "there is no such metric. Set program.merit=points_per_s or relative_error"),
    ({"merit": "relative_error"}, (), "neither a high nor a low relative_error is better"),
    ({"gates": {"g": {"metric": "no", "at_most": 1}}}, (), "program.gates.g.metric=no: there is no such metric"),
    ({"gates": {"g": {"metric": "relative_error"}}}, (), "program.gates.g has no limit"),
    ({"gates": {"g": {"metric": "relative_error", "at_least": 5, "at_most": 1}}}, (),
     "program.gates.g.at_least=5 is above its at_most=1. Exchange them."),
    ({"gates": {"g": None}}, (), "(key: program.gates.g). It is a section: set program.gates.g.KEY=VALUE with one of"),
    ({"steps": {"a": {"cmd": "x"}}}, (),
     "program.steps.a.cmd is not a configuration key. Did you mean program.steps.a.command"),
    ({"gates": {"g": {"at_most": 1}}}, (), "program.gates.g needs either a metric or absent"),
    ({"gates": {"g": {"absent": "a("}}}, (), "program.gates.g.absent=a(: "),
    ({"inputs": {"x": {"path": "/x", "locked": "abc"}}}, (), "is not a SHA-256 (64 digits of 0-9 and a-f)"),
    ({"stop_within_s": -1.0}, (), "program.stop_within_s=-1 is not a positive number"),
    ({"steps": {"a": {"command": "x {params.points}", "time_limit_min": 0}}}, (), "program.steps.a.time_limit_min=0"),
    ({}, ("job.learning_rate=1e-3",), "job.learning_rate=1e-3 has no effect on job=program: program=count does"),
    ({}, ("model=llama2_7b",), "model=llama2_7b has no effect on job=program"),
    ({}, ("parallelism.tensor=1",), "parallelism.tensor=1 has no effect on job=program"),
    ({}, ("job=pretrain",), "program=count starts a program, and job=pretrain trains. Set job=program"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "overrides", "words"), REFUSED)
def test_a_program_that_cannot_run_as_described_is_refused_with_the_remedy(
    site: Path, changes: dict[str, Any], overrides: tuple[str, ...], words: str
) -> None:
    program(site, **changes)
    chosen = ["program=count", *(["job=program"] if not any(each.startswith("job=") for each in overrides) else [])]
    assert words in refusal(*chosen, *overrides)


def test_a_job_without_a_program_asks_for_one() -> None:
    assert "job=program starts a program, and none is chosen. Set program=gromacs, " in refusal("job=program")


def test_a_key_that_a_name_uses_is_read_and_a_parameter_stays_as_it_was_typed(site: Path) -> None:
    program(site, steps={"a": {"command": "x {job.learning_rate} {parallelism.tensor} {params.points} {params.code}"}},
            params={"points": "10", "code": "x"}, metrics={}, gates={}, merit=None)  # fmt: skip
    run = one(*CHOSEN, "job.learning_rate=2e-3", "parallelism.tensor=1", "program.params.code=0x_12e3").run
    assert run.program is not None
    assert run.program.params["code"] == "0x_12e3"
    assert run.job.learning_rate == 2e-3


def test_an_input_that_is_missing_on_this_machine_is_refused_before_anything_is_prepared(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for path, key in (("{params.points}.dat", "program.params.points"), ("mesh.dat", "program.inputs.mesh.path")):
        program(site, inputs={"mesh": {"path": path}})
        assert main(["submit", *CHOSEN, "ranks_per_node=1", "launcher=local"]) == 2
        assert f"Set {key}=PATH." in capsys.readouterr().err
        assert not (tmp_path / "runs").exists()


def test_a_locked_input_that_has_changed_refuses_the_run(site: Path, tmp_path: Path) -> None:
    mesh = tmp_path / "mesh.txt"
    mesh.write_text("1 2 3")
    locked = {"mesh": {"path": str(mesh), "locked": hashlib.sha256(b"1 2 3").hexdigest()}}
    program(site, inputs=locked, files={"count.py": COUNT + "# {inputs.mesh}\n"})
    run = made(tmp_path)
    mesh.write_text("1 2 4")
    assert train(run) == [1]
    (failure,) = events(run, "failed")
    assert failure["cause"] == FailureCause.refused.name
    assert f"program.inputs.mesh: {mesh} has changed" in str(failure["error"])
    mesh.write_text("1 2 3")
    finished(run)
    (inputs,) = events(run, "inputs")
    assert inputs["sha256"] == {"mesh": locked["mesh"]["locked"]}


def test_the_keys_of_a_section_by_name_are_listed_and_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "program.metrics"]) == 0
    assert "program.metrics.NAME.per" in capsys.readouterr().out
    assert main(["explain", "program.steps.solve.ready"]) == 0
    assert "program.steps.solve.ready.within_min" in capsys.readouterr().out
    assert main(["explain", "program.metrics.flops.take"]) == 0
    page = " ".join(capsys.readouterr().out.split())
    assert "meaning Choice among several values. type choice default last choices first" in page
    assert main(["explain", "program.metrics.flops.patern"]) == 2
    assert "program.metrics.flops.patern is not a configuration key." in capsys.readouterr().err


def test_a_parameter_is_explained_like_a_key(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program(site)
    assert main(["explain", "program.params.points", "program=count"]) == 0
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["program.params.points"], ["meaning", "Points of a rank"], ["type", "integer"],
        ["range", "at least 1 and at most 1000"], ["default", "10"],
    ]  # fmt: skip
    assert main(["explain", "program.params.point", "program=count"]) == 2
    assert "program=count has points. Set program=NAME after the key." in capsys.readouterr().err

"""Programs on a real Slurm with emulated nodes: steps that call srun, servers, requeues that continue, campaigns."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from analysis.compare.campaign import Verdict, leaderboards
from analysis.load.discover import read_runs
from analysis.load.run_directory import read_run
from jobs.cli import main
from jobs.run_events import run_events
from jobs.rundir import SweepDir
from tests.end_to_end.test_slurm import job_ids
from tests.support import nvml
from tests.support.cli import printed
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.long, pytest.mark.slow, pytest.mark.usefixtures("empty_queue")]

# Saves the count at SIGTERM, and continues from it.
COUNT = """\
import pathlib, signal, sys, time
done = int(pathlib.Path(sys.argv[1]).read_text()) if len(sys.argv) > 1 else 0
def save(*_):
    pathlib.Path("state.txt").write_text(str(done)); sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("from", done, flush=True)
while done < 6:
    done += 1
    time.sleep(0.2 if done < 4 or len(sys.argv) > 1 else 600)
print("counted", done)
"""
PROGRAM = {
    "name": "count",
    "steps": {
        "place": {"command": "bash -c 'echo rank $RANK of $WORLD_SIZE on $SLURMD_NODENAME'", "start": "rank"},
        "inner": {"command": "srun --nodes={nodes} --ntasks={ranks} bash -c 'echo inner $SLURM_PROCID'"},
        "count": {"command": "{params.count}"},
    },
    "params": {"count": "echo counted 6"},
    "parameters": {"count": {"meaning": "The last step", "type": "words"}},
    "files": {"count.py": COUNT},
    "metrics": {"counted": {"pattern": r"counted (\d+)", "unit": "1", "definition": "Counted.", "better": "high"}},
    "merit": "counted",
    "resume": {"file": "state.txt", "arguments": "{checkpoint}"},
}


@pytest.fixture
def chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The overrides that choose the program of a site."""
    (tmp_path / "site/program").mkdir(parents=True)
    (tmp_path / "site/program/count.yaml").write_text(yaml.safe_dump(PROGRAM, sort_keys=False))
    monkeypatch.setenv("SLURMSCALE_SITE", str(tmp_path / "site"))
    return ["job=program", "program=count", "cluster=generic_slurm", f"runs_dir={tmp_path}", "sweep=s"]


def test_a_program_runs_on_the_nodes_of_each_point_and_its_steps_may_call_srun(
    chosen: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["submit", "-m", *chosen, "nodes=1,2", "ranks_per_node=1"]) == 0, printed(capsys)
    sweep = SweepDir(tmp_path / "s")
    assert main(["resume", "--wait", str(sweep.path)]) == 0, printed(capsys)
    run = sweep.run("count-n2x1")
    places = [run.program_log("place", rank).read_text().split() for rank in range(2)]
    assert [words[:4] for words in places] == [["rank", "0", "of", "2"], ["rank", "1", "of", "2"]]
    assert places[0][-1] != places[1][-1], "two nodes"
    assert sorted(run.program_log("inner", 0).read_text().splitlines()) == ["inner 0", "inner 1"]
    assert all(read_run(each.path).used for each in sweep.runs())


def test_a_requeued_program_goes_on_from_its_checkpoint(
    chosen: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["submit", *chosen, "program.params.count=python3 count.py", "ranks_per_node=1"]) == 0, printed(capsys)
    sweep = SweepDir(tmp_path / "s")
    (run,) = sweep.runs()
    log = run.program_log("count", 0)
    wait_until(lambda: log.exists() and "from 0" in log.read_text())
    subprocess.run(["scontrol", "requeue", job_ids(sweep)[run.name]], check=True)
    assert main(["resume", "--wait", str(sweep.path)]) == 0, printed(capsys)
    assert [event["event"] for event in run_events(run)].count("started") == 2
    assert "from 0" in log.read_text()
    assert "counted 6" in log.read_text()
    assert read_run(run.path).used


SERVER = """\
import http.server, sys
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(sys.argv[3].encode())
http.server.HTTPServer((sys.argv[1], int(sys.argv[2])), Answer).serve_forever()
"""
SERVED: dict[str, Any] = {
    "name": "served",
    "steps": {
        "answers": {
            "command": "python3 server.py {address} {port}",
            "start": "node",
            "ready": {"path": "/", "every": True},
        },
        "load": {"command": "curl --silent --show-error --no-progress-meter {servers.answers.urls}"},
        "result": {"command": "bash -c 'echo; echo rate {params.rate}'"},
    },
    "params": {"rate": "1"},
    "files": {"server.py": SERVER.replace("sys.argv[3]", "__import__('os').environ['SLURMD_NODENAME']")},
    "metrics": {"rate": {"pattern": r"rate (\S+)", "unit": "1/s", "definition": "Rate.", "better": "high"}},
    "merit": "rate",
}


def test_servers_on_two_nodes_answer_a_load_and_attempts_take_turns_in_an_array(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "site/program").mkdir(parents=True)
    (tmp_path / "site/program/served.yaml").write_text(yaml.safe_dump(SERVED, sort_keys=False))
    monkeypatch.setenv("SLURMSCALE_SITE", str(tmp_path / "site"))
    chosen = ["job=program", "program=served", "cluster=generic_slurm", f"runs_dir={tmp_path}", "sweep=s", "nodes=2"]
    assert main(["attempt", "baseline", *chosen, "ranks_per_node=1", "--wait", "--repeats", "1"]) == 0, printed(capsys)
    sweep = SweepDir(tmp_path / "s")
    run = sweep.run("baseline-r1")
    nodes = next(event for event in run_events(run) if event["event"] == "started")["nodes"]
    assert run.program_log("load", 0).read_text() == "".join(nodes), "both nodes answered"
    faster = ["attempt", "faster", "program.params.rate=2", "--campaign", str(sweep.path), "--wait"]
    assert main(faster) == 0, printed(capsys)
    ((entry,),) = (board.entries for board in leaderboards(read_runs([sweep.path])))
    assert entry.ratios == [2.0, 2.0, 2.0]
    assert entry.verdict is Verdict.tie, "pairs that are all equal prove nothing"


def test_a_server_and_its_load_on_nodes_of_two_partitions_are_one_job_that_is_requeued_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = SERVED["steps"]["answers"] | {"nodes": "1"}
    asks = "bash -c 'curl --silent {servers.answers.url}; echo; echo to $SLURMD_NODENAME; sleep {params.wait}'"
    load = {"command": asks, "nodes": "1", "partition": "debug", "gpus": False}
    parts = SERVED | {
        "steps": SERVED["steps"] | {"answers": answers, "load": load},
        "params": {"rate": "1", "wait": "0"},
    }
    (tmp_path / "site/program").mkdir(parents=True)
    (tmp_path / "site/program/served.yaml").write_text(yaml.safe_dump(parts, sort_keys=False))
    monkeypatch.setenv("SLURMSCALE_SITE", str(tmp_path / "site"))
    chosen = ["job=program", "program=served", "cluster=generic_slurm", "cluster.partition=gpu", "nodes=2",
              "ranks_per_node=1", "wall_time_min=10", "launcher.max_running=1", f"runs_dir={tmp_path}"]  # fmt: skip
    assert main(["submit", "-m", *chosen, "sweep=s", "program.params.wait=20,0"]) == 0, printed(capsys)
    sweep = SweepDir(tmp_path / "s")
    first, second = sorted(sweep.runs(), key=lambda run: int(job_ids(sweep)[run.name]))
    log = first.program_log("load", 1)
    wait_until(lambda: log.exists() and "to node" in log.read_text())
    assert [event["event"] for event in run_events(second)] == ["prepared"], "it waits for its turn"
    subprocess.run(["scontrol", "requeue", job_ids(sweep)[first.name]], check=True)
    assert main(["resume", "--wait", str(sweep.path)]) == 0, printed(capsys)
    starts = [[event for event in run_events(run) if event["event"] == "started"] for run in (first, second)]
    assert [len(each) for each in starts] == [2, 1]
    server, client = starts[1][0]["nodes"]
    words = second.program_log("load", 1).read_text().split()
    assert words == [server, "to", client]
    assert server in {f"node0{number}" for number in range(1, 5)}
    assert client in {"node05", "node06"}
    assert all(read_run(each.path).used for each in sweep.runs())


def test_a_cancelled_run_gives_its_gpus_back_what_they_had(
    chosen: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = tmp_path / "nvml/gpus.json"
    gpus.parent.mkdir()
    shutil.copy(str(nvml.__file__), gpus.parent / "pynvml.py")
    gpus.write_text(json.dumps(nvml.some_gpus(1)))
    monkeypatch.setenv("PYTHONPATH", str(gpus.parent))
    limited = ["gpu=h100_sxm", "cluster.gpu_power_limit_w=300", "cluster.gpu_clock_mhz=1200"]
    given = [*chosen, *limited, "program.params.count=python3 count.py", "ranks_per_node=1"]
    assert main(["submit", *given]) == 0, printed(capsys)
    sweep = SweepDir(tmp_path / "s")
    (run,) = sweep.runs()
    log = run.program_log("count", 0)
    wait_until(lambda: log.exists() and "from 0" in log.read_text())
    assert json.loads(gpus.read_text())[0]["limit_mw"] == 300_000
    assert main(["cancel", str(sweep.path)]) == 0, printed(capsys)
    wait_until(lambda: json.loads(gpus.read_text())[0]["history"][2:] == [["locked", None], ["limit_mw", 700_000]])

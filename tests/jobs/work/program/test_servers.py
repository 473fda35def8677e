"""Programs with servers: real processes at ports of their own, and the step that uses them."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from analysis.load.run_directory import read_run
from jobs.plan.cost import gpu_hours_limit
from jobs.ranks import Rank
from jobs.rundir import RunDir
from jobs.runtime.gpus.limits import has_gpus
from jobs.submit.slurm.batch_script import task_script
from jobs.submit.slurm.resources import resources
from jobs.work.program.work import WORK
from tests.support.composing import one, refusal
from tests.support.real_run import FORK, events, make_run, printed, rank, train
from tests.support.waiting import wait_until

# Answers each GET with its own name, or with that of a server behind it.
SERVER = """\
import http.server, sys, urllib.request
name, address, port, *behind = sys.argv[1:]
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        texts = [urllib.request.urlopen(url + self.path).read() for url in behind] or [name.encode()]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b" ".join(texts))
print("opens", flush=True)
http.server.HTTPServer((address, int(port)), Answer).serve_forever()
"""
LOAD = """\
import os, sys, time, urllib.request
began = time.monotonic()
answers = [urllib.request.urlopen(sys.argv[1] + "/x").read().decode() for _ in range(20)]
print(answers[0], "of", os.environ["ANSWERS_OF"])
print("rate", len(answers) / (time.monotonic() - began))
"""
START = "{python} server.py"
PROGRAM: dict[str, Any] = {
    "name": "served",
    "steps": {
        "worker": {
            "command": START + " worker{node_rank} {address} {port}", "start": "node", "nodes": "{params.workers}",
            "ready": {"path": "/health", "every": True},
        },
        "gateway": {
            "command": START + " gateway {address} {port} {servers.worker.urls}", "nodes": "1", "ready": {},
        },
        "load": {"command": "{python} load.py {servers.gateway.url}", "env": {"ANSWERS_OF": "{servers.worker.urls}"}},
    },
    "params": {"workers": "2"},
    "files": {"server.py": SERVER, "load.py": LOAD, "list.txt": "{servers.worker.addresses}"},
    "metrics": {
        "answers_per_s": {"pattern": r"rate (\S+)", "unit": "1/s", "better": "high", "definition": "Answers."},
    },
    "merit": "answers_per_s",
}  # fmt: skip


def program(site: Path, steps: dict[str, Any] | None = None, **changes: Any) -> None:
    """Write the program file `served` with changes of its steps and keys."""
    given = {name: PROGRAM["steps"].get(name, {}) | step for name, step in (steps or PROGRAM["steps"]).items()}
    (site / "served.yaml").write_text(yaml.safe_dump(PROGRAM | changes | {"steps": given}, sort_keys=False))


CHOSEN = ("job=program", "program=served", "ranks_per_node=1")
ONE = ("nodes=1", "program.params.workers=1")


def made(where: Path, *overrides: str) -> RunDir:
    run = make_run(where, *CHOSEN, *overrides, small=False)
    run.plan.write_text("{}")
    return run


def pids(run: RunDir) -> list[int]:
    """Return the processes that work in the directory of a run."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").readlink() == run.work:
                found.append(int(process.name))
        except OSError:
            continue
    return found


def test_servers_on_their_own_nodes_answer_the_step_that_follows(site: Path, tmp_path: Path) -> None:
    program(site)
    run = made(tmp_path, "nodes=3")
    assert train(run) == [0, 0, 0], printed(run)
    output = run.program_log("load", 0).read_text()
    urls = re.search(r"worker0 worker1 of http://127.0.0.1:(\d+) http://127.0.0.1:(\d+)\n", output)
    assert urls, "the gateway on the third node reached both workers, and the load the gateway"
    assert urls[1] != urls[2]
    assert (run.work / "list.txt").read_text() == f"127.0.0.1:{urls[1]},127.0.0.1:{urls[2]}"
    assert [each.name for each in sorted(run.program.glob("*.log"))] == [
        "gateway-00002.log", "load-00000.log", "worker-00000.log", "worker-00001.log"
    ]  # fmt: skip
    assert [event["program_step"] for event in events(run, "server_ready")] == ["worker", "gateway"]
    assert [event["program_step"] for event in events(run, "step_ended")] == ["load"]
    assert pids(run) == [], "no server outlives the run"
    found = read_run(run.path)
    assert found.used, found.reason
    values = {metric.name: value for metric, value in found.values.items()}
    assert values["answers_per_s"] > 0
    assert values["server_startup_time_s"] == max(float(str(event["time_s"])) for event in events(run, "server_ready"))
    assert values["program_time_s"] == events(run, "step_ended")[0]["time_s"], "the start of servers is not work"


ENDS = "import sys\nprint('model not found')\nsys.exit(3)\n"
SLEEPS = "import time\ntime.sleep(600)\n"
REFUSES = SERVER.replace("send_response(200)", "send_response(503)")
LOCAL_ONLY = SERVER.replace("(address, int(port))", "('127.0.0.3', int(port))")


@pytest.mark.parametrize(
    ("server", "ready", "reason"),
    [
        (ENDS, {}, "step worker on .* exited with code 3; the last line of worker-00000.log: model not found"),
        (SLEEPS, {}, r"step worker on .* is not ready after 0.03 min \(program.steps.worker.ready.within_min\): it "
                     r"does not listen at 127.0.0.1, port \d+ \(its {address} and {port}\); its output is in .*work"),
        (LOCAL_ONLY, {}, "it does not listen at 127.0.0.1, port"),
        (REFUSES, {"path": "/v1/models"}, "/v1/models does not answer with status 200"),
        (SERVER, {"line": "Application startup complete"}, "no line that it printed matches Application startup"),
        (SLEEPS, {"line": "up"}, "no line that it printed matches up, and it printed nothing; `stdbuf -oL` before"),
        ("", {}, "step worker on .* is a server, and ended with exit code 0 before the last step did; its output is"),
    ],
)  # fmt: skip
def test_a_server_that_does_not_become_ready_ends_the_run_with_what_is_missing(
    site: Path, tmp_path: Path, server: str, ready: dict[str, Any], reason: str
) -> None:
    steps = {"worker": {"ready": {"within_min": 0.03, **ready}}, "load": {"command": "true", "env": {}}}
    program(site, steps, files={"server.py": server}, metrics={}, merit=None)
    run = made(tmp_path, *ONE)
    assert train(run) == [1]
    assert re.search(reason, str(events(run, "failed")[0]["error"])), printed(run)
    assert pids(run) == []


def test_a_server_that_ends_under_its_load_ends_the_run_and_is_its_cause(site: Path, tmp_path: Path) -> None:
    once = "import os, socket\ns = socket.create_server((address, int(port)))\ns.accept()[0].recv(1)\nos._exit(7)\n"
    dies = SERVER.replace("print(", once + "print(", 1)
    asks = "bash -c 'echo sent > /dev/tcp/{servers.worker.address}/{servers.worker.port}; sleep 600'"
    steps = {"worker": {"ready": {}}, "load": {"command": asks, "env": {}}}
    program(site, steps, files={"server.py": dies}, metrics={}, merit=None)
    run = made(tmp_path, "nodes=2", "program.params.workers=2", "program.steps.worker.ready.every=false")
    assert train(run) == [1, 1]
    failures = {event["rank"]: str(event["error"]) for event in events(run, "failed")}
    assert re.match("step worker on .* exited with code 7", failures[0])
    assert pids(run) == []


def test_a_line_of_its_output_and_a_signal_of_its_own_suit_a_server_without_a_port(site: Path, tmp_path: Path) -> None:
    helper = (
        "import signal, sys, time\nsignal.signal(signal.SIGINT, lambda *_: open('ended', 'w').close() or sys.exit())\n"
    )
    steps = {"worker": {"ready": {"line": "^waits for work$"}}, "load": {"command": "sleep 600", "env": {}}}
    program(
        site, steps, files={"server.py": helper + "print('waits for work', flush=True)\ntime.sleep(600)"}, metrics={},
        merit=None, stop_signal="INT", resume={"file": "saved-*"},
    )  # fmt: skip
    run = made(tmp_path, *ONE)
    process = FORK.Process(target=rank, args=(run.path, 0, 1, "first"))
    process.start()
    wait_until(lambda: run.program_log("load", 0).exists())
    assert process.pid is not None
    os.kill(process.pid, signal.SIGUSR2)
    process.join()
    assert [event["event"] for event in events(run, "stopped")] == ["stopped"], printed(run)
    assert (run.work / "ended").exists(), "the server was asked by the signal of the program"
    assert pids(run) == []


def test_the_port_of_a_server_that_another_program_took_ends_the_run(site: Path, tmp_path: Path) -> None:
    # The server of the step never listens: a process outside of its session does, at the port that it was given.
    thief = (
        "import subprocess, sys, time\n"
        "code = 'import socket, time; s = socket.create_server((\"127.0.0.1\", ' + sys.argv[3] + ')); time.sleep(60)'\n"
        "subprocess.Popen(['setsid', '--fork', sys.executable, '-c', code])\ntime.sleep(600)\n"
    )
    program(site, {"worker": {"ready": {}}, "load": {"command": "true", "env": {}}}, files={"server.py": thief},
            metrics={}, merit=None)  # fmt: skip
    run = made(tmp_path, *ONE)
    assert train(run) == [1]
    assert re.search(
        r"another program on .* listens at 127.0.0.1, port \d+, which was chosen for step worker",
        str(events(run, "failed")[0]["error"]),
    ), printed(run)
    for pid in pids(run):
        os.kill(pid, signal.SIGKILL)


APART = ("cluster=generic_slurm", "nodes=4", "program.steps.gateway.partition=cpu", "program.steps.gateway.gpus=false")
REFUSED = [
    ({"worker": {}}, ONE, "program.steps.worker is a server (ready), and no step follows that would end. Add a step"),
    ({"worker-1": {"command": "x", "ready": {}}, "load": {}}, ONE, "program.steps.worker-1: a name of a server has"),
    ({"worker": {"time_limit_min": 3}, "load": {}}, ONE, "program.steps.worker.time_limit_min: a server runs until"),
    ({"worker": {"ready": {"line": "up", "path": "/"}}, "load": {}}, ONE, "steps.worker.ready has path and line; it"),
    ({"worker": {"command": "{python} -m http.server 8000", "ready": {}}, "load": {}}, ONE,
     "program.steps.worker never gets its {port}, at which it has to listen to be ready. Use {port} in its command or"),
    ({"worker": {"ready": {"line": "("}}, "load": {}}, ONE, "program.steps.worker.ready.line=(: missing ), unterminat"),
    ({"worker": {"nodes": "{params.workers}x"}, "load": {}}, ONE, "program.steps.worker.nodes=1x is not a whole numb"),
    ({"worker": {}, "load": {"nodes": "0"}}, ONE, "program.steps.load.nodes=0 is not a whole number above 0."),
    (None, ("nodes=2",), "nodes=2: the steps of program=served take 2 + 1 nodes up to step gateway. Set nodes=3"),
    ({"worker": {}, "load": {"command": "wget {servers.gateway.url}", "env": {}}}, ONE,
     "program.steps.load.command: {servers.gateway.url} has no value. Did you mean servers.worker.url"),
    ({"worker": {}, "load": {"command": "wget {port}", "env": {}}}, ONE, "steps.load.command: {port} has no value."),
    ({"worker": {}, "load": {"gpus": False}}, ONE,
     "program.steps.load.gpus: the step has no nodes of its own. Set program.steps.load.nodes=NUMBER."),
    (None, (*APART, "launcher=pilot", "launcher.pilot_nodes=4", "launcher.pilot_wall_time_min=30"),
     "launcher=pilot: the steps of this program ask for different nodes (partition, gpus or memory_gb), which is a "
     "heterogeneous job of Slurm. Set launcher=slurm, or remove these keys from program.steps."),
    (None, (*APART, "program.steps.gateway.partition="),
     "program.steps.gateway.partition is empty. Set the name of a partition, or null."),
    (None, (*APART, "program.steps.gatewy.gpus=true"),
     "gatewy.gpus=true: program.steps has no gatewy. Did you mean gateway? Set a key of worker, gateway or load, or "
     "write gatewy into the file of program=served."),
    (None, (*APART, "launcher.spare_nodes=1"), "launcher.spare_nodes=1: the steps of this program ask for different"),
]  # fmt: skip


@pytest.mark.parametrize(("steps", "overrides", "words"), REFUSED)
def test_servers_that_cannot_run_as_described_are_refused_with_the_remedy(
    site: Path, steps: dict[str, Any] | None, overrides: tuple[str, ...], words: str
) -> None:
    bare: dict[str, Any] = {} if steps is None else {"files": {}, "metrics": {}, "merit": None}
    if steps is not None and "{params" not in str(PROGRAM["steps"]["worker"] | steps.get("worker", {})):
        bare["params"] = {}
    program(site, steps, **bare)
    assert words in refusal(*CHOSEN, *overrides)


def test_the_plan_shows_where_servers_run(site: Path) -> None:
    program(site)
    notes = dict(WORK.notes(one(*CHOSEN, "nodes=4").run))
    assert notes["server worker"].endswith("(one process on each node, nodes 0 to 1)")
    assert notes["server gateway"].endswith("(one process, node 2)")
    assert notes["step load"].startswith("{python} load.py {servers.gateway.url} (one process)")


def test_nodes_of_other_partitions_are_further_components_of_the_job(site: Path) -> None:
    program(site)
    run = one(*CHOSEN, *APART, "cluster.partition=gpu", "cluster.gpus=true", "cluster.memory_gb_per_node=64",
              "program.steps.gateway.memory_gb=8", "wall_time_min=30", "cluster.price_per_gpu_hour=2").run  # fmt: skip
    notes = dict(WORK.notes(run))
    assert notes["server gateway"].endswith("(one process, node 2 of partition cpu, without GPUs)")
    assert gpu_hours_limit(run) == 1.5, "three nodes with one GPU each for half an hour"
    script = task_script("start", ["/sweep/run"], Path("/a sweep/logs"), resources(run, Path("/code")))
    options = re.sub(r"\n\n# setup.*", "", script, flags=re.DOTALL).partition("\n#SBATCH hetjob\n")
    assert {"#SBATCH --partition=gpu", "#SBATCH --nodes=2", "#SBATCH --gpus-per-node=1", "#SBATCH --mem=64G"} <= set(
        options[0].splitlines()
    )
    assert options[2].split("#SBATCH hetjob\n") == [
        "#SBATCH --partition=cpu\n#SBATCH --nodes=1\n#SBATCH --ntasks-per-node=1\n#SBATCH --mem=8G\n"
        "#SBATCH --time=30\n",
        "#SBATCH --partition=gpu\n#SBATCH --nodes=1\n#SBATCH --ntasks-per-node=1\n#SBATCH --gpus-per-node=1\n"
        "#SBATCH --mem=64G\n#SBATCH --time=30",
    ]
    (srun,) = re.findall(r"^srun .*", script, flags=re.MULTILINE)
    assert "'--output=/a sweep/logs/'\"$SLURM_JOB_ID\"'_%t_log.out'" in srun, "of srun %j is a number of the component"
    assert " --het-group=0-2 start " in srun
    limited = [has_gpus(run, Rank(number, 4, 0, "n1", "s")) for number in range(4)]
    assert limited == [True, True, False, True], "where limits of GPUs are set"

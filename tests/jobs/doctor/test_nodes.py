"""The doctor's job: facts that real processes collect, the finding on every flaw, and a whole job in Slurm."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from jobs.cli import main
from jobs.doctor import node_job
from jobs.doctor.node_job import NodeJob, collected
from jobs.doctor.nodes import judged
from jobs.doctor.report import Finding, exit_code
from jobs.rundir import SweepDir
from tests.support.cli import printed_words
from tests.support.doctoring import GPU, a_run, report, troubles
from tests.support.paths import ROOT
from tests.support.waiting import limit_s, wait_until


def look_around(directory: Path, node_list: str, ranks: list[int], *, patience_s: float) -> NodeJob:
    """Some ranks of a node check as real processes, outside Slurm; of the other nodes there is only the name."""
    nodes = node_list.split(",")
    (directory / "logs").mkdir()
    (directory / "nodes").write_text(node_list)
    code = (
        "import sys, pathlib; from jobs.doctor import node_check as check; "
        "check.MEET_WITHIN_S, check.SEE_WITHIN_S = float(sys.argv[1]), float(sys.argv[1]) + 1; "
        "check.main(pathlib.Path(sys.argv[2]))"
    )
    slurm = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "0", "SLURM_LOCALID": "0",
             "SLURM_NTASKS": str(len(nodes)), "SLURM_JOB_NODELIST": node_list,
             "SLURM_STEP_NODELIST": node_list}  # fmt: skip
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(patience_s), str(directory)],
            env=os.environ | slurm | {"SLURM_PROCID": str(rank), "SLURMD_NODENAME": nodes[rank]},
            cwd=ROOT,
        )
        for rank in ranks
    ]
    assert [process.wait(120) for process in started] == [0] * len(ranks)
    return collected(SweepDir(directory), "77")


def judgements(findings: list[Finding]) -> dict[str, str]:
    return {finding.what: f"{finding.verdict.value}: {finding.found}" for finding in findings}


@pytest.mark.slow
@pytest.mark.long
def test_a_name_that_does_not_resolve_and_a_node_that_does_not_answer_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_job, "FILES_WITHIN_S", 0.0)  # what is not there now will not come
    job = look_around(tmp_path, "127.0.0.1,127.0.0.2,127.0.0.3,nosuch.invalid", [0, 1], patience_s=1)
    findings = judged(a_run("cluster.gpus=false"), job)
    found = judgements(findings)
    assert found["names"] == "wrong: not resolved: nosuch.invalid on 127.0.0.1, nosuch.invalid on 127.0.0.2"
    assert "127.0.0.1 to 127.0.0.3 (" in found["ports"]
    assert "desk-2.json did not appear within" in found["ports"]
    assert found["runs_dir"].startswith("wrong: files not seen: ")
    assert "127.0.0.3's on 127.0.0.1, nosuch.invalid's on 127.0.0.1" in found["runs_dir"]
    assert "127.0.0.3, nosuch.invalid wrote nothing to" in found["nodes"]
    assert found["matrix product"] == "ok: right on the CPU of every node", "torch runs in a process of its own"
    (blind,) = [finding for finding in judged(a_run(), job) if finding.what == "matrix product"]
    assert blind.found.startswith("127.0.0.1, 127.0.0.2: this torch was built for CPUs. Install a torch for ")
    assert exit_code(findings) == 1
    assert job.pairs["127.0.0.1"] == {"error": "not every node was reached"}, "torch would wait for the rest"


def on_two_nodes(**second: Any) -> list[Finding]:
    return judged(
        a_run(), NodeJob(Path("/runs/doctor"), "77", ["n1", "n2"], [report("n1"), report("n2", **second)], {}, "")
    )


def test_healthy_gpus_are_named_with_their_driver() -> None:
    findings = on_two_nodes()
    assert troubles(findings) == []
    assert judgements(findings)["GPUs"] == "ok: 8 a node: NVIDIA H100 80GB HBM3, driver 570.1"


def sick(**what: str) -> dict[str, Any]:
    return {
        "gpus": [*report("n2")["gpus"][:-1], GPU | {"index": "7"} | {k.replace("__", "."): v for k, v in what.items()}]
    }


@pytest.mark.parametrize(
    ("second", "verdict", "what", "expected"),
    [
        ({"addresses": {"n1": "10.0.0.1", "n2": "127.0.1.1"}}, "warning", "own name", "to itself: n2"),
        ({"listen_error": "Address already in use"}, "wrong", "ports", "cannot listen: n2 (Address already in use)"),
        ({"peers": {"n1": {"error": "timed out"}}}, "wrong", "ports", "no connection: n2 to n1 (timed out)"),
        ({"files": {"n1": {"written": 100.0, "seen": 131.0}}}, "warning", "runs_dir", "late: n1's on n2 after 31 s"),
        ({"files": {"n1": None}}, "wrong", "runs_dir", "not seen: n1's on n2"),
        ({"versions": {"python": "3.12.1", "torch": "2.9.0"}}, "wrong", "versions", "n2: python 3.12.1, torch 2.9.0"),
        ({"gpus": None}, "warning", "GPUs", "no answer from nvidia-smi on n2"),
        ({"gpus": report("n2")["gpus"][:7]}, "wrong", "GPUs", "8 a node requested, but n2 has 7"),
        ({"product": {"error": "no kernels for Tesla V100", "installed": "torch 2.13.0 (CUDA 13.0)"}}, "wrong",
         "matrix product", "n2: no kernels for Tesla V100 (torch 2.13.0 (CUDA 13.0))"),
        (sick(name="NVIDIA L4"), "warning", "GPUs", "NVIDIA L4, driver 570.1 on n2"),
        (sick(temperature__gpu="91"), "warning", "GPU health", "GPU 7 of n2: 91 C"),
        (sick(retired_pages__pending="Yes"), "warning", "GPU health", "GPU 7 of n2: page retirement pending"),
        (sick(remapped_rows__failure="1"), "warning", "GPU health", "GPU 7 of n2: row remapping failed"),
        (sick(ecc__errors__uncorrected__volatile__total="3"), "warning", "GPU health", "3 uncorrected ECC errors"),
    ],
)  # fmt: skip
def test_each_flaw_of_a_node_is_named(second: dict[str, Any], verdict: str, what: str, expected: str) -> None:
    ((kind, where, text),) = troubles(on_two_nodes(**second))
    assert (kind, where) == (verdict, what)
    assert expected in text


def test_a_clock_that_is_off_is_named_by_how_much_and_does_not_make_files_look_late() -> None:
    first = report("n1", peers={"n2": {"round_trip_s": 1e-4, "ahead_s": -75.0}},
                   files={"n2": {"written": 25.0, "seen": 100.3}})  # fmt: skip
    ((kind, what, text),) = troubles(
        judged(a_run(), NodeJob(Path("/runs/doctor"), "77", ["n1", "n2"], [first, report("n2")], {}, ""))
    )
    assert (kind, what) == ("warning", "clocks")
    assert "off n1's: n2 by -75.0 s" in text


def test_a_job_of_which_nothing_is_seen_states_what_it_may_be() -> None:
    job = NodeJob(Path("/runs/doctor"), "77", [], [], {}, "srun: error: no such file")
    ((verdict, _, message),) = troubles(judged(a_run(), job))
    assert verdict == "wrong"
    assert "The job wrote nothing to /runs/doctor (job 77); its last output: srun: error: no such file" in message
    assert "set runs_dir=PATH on a shared file system" in message


def test_the_code_of_a_job_that_waits_stays_young(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No run leads to it, and `remove` deletes copies that nothing has used for an hour."""
    code = tmp_path / "code-1"
    code.mkdir()
    os.utime(code, (0, 0))
    (tmp_path / "squeue").write_text("#!/bin/sh\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    node_job.wait_for("7", tmp_path, code, Console())
    assert code.stat().st_mtime > 0


# --- a real Slurm --------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.slurm
@pytest.mark.usefixtures("empty_queue")
def test_a_job_looks_at_two_nodes_and_leaves_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = ["cluster=generic_slurm", "cluster.memory_gb_per_node=8", f"runs_dir={tmp_path}/runs with space"]
    assert main(["doctor", "--nodelist", "node[02-03]", *run]) == 0
    shown = printed_words(capsys)
    for finding in (
        "on node[02-03]; Ctrl-C cancels it",
        "node02, node03 found",
        "ok nodes emulated: fewer machines booted than nodes; 2 reported",
        "ok names every node resolves all of them",
        "ok ports every pair connects",
        "ok clocks within",
        "ok runs_dir writable everywhere; a node's file is seen by the others within",
        "ok versions python 3.",
        "ok GPUs none requested",
        "ok matrix product right on the CPU of every node",
        "ok all-reduce emulated: gloo, ",
        "ok transport gloo: TCP over",
    ):
        assert finding in shown
    (path,) = tmp_path.glob("*/doctor-*/report.json")
    written = json.loads(path.read_text())
    assert [node["slurm_node"] for node in written["nodes"]] == ["node02", "node03"]
    assert written["pairs"]["node02"]["gb_per_s"]["node03"] > 0.01
    assert written["pairs"].keys() == {"node02", "node03"}
    assert {finding["verdict"] for finding in written["findings"]} == {"ok", "warning"}


@pytest.mark.slurm
@pytest.mark.usefixtures("empty_queue")
def test_ctrl_c_takes_a_job_that_waits_back(tmp_path: Path) -> None:
    waiting = subprocess.Popen(
        # The children of a shell in the background ignore Ctrl-C.
        ["env", "--default-signal=INT", sys.executable, "-m", "jobs.cli", "doctor", "cluster=generic_slurm",
         f"runs_dir={tmp_path}", "cluster.sbatch={begin: now+1hour}"],
        cwd=ROOT, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert waiting.stdout is not None
    for line in waiting.stdout:
        if line.startswith("waits: BeginTime, expected to start 20"):
            break
    waiting.send_signal(signal.SIGINT)
    waiting.communicate(timeout=limit_s(180))
    assert waiting.returncode == 130
    wait_until(lambda: not subprocess.run(["squeue", "-h"], capture_output=True, check=True).stdout)


@pytest.mark.slurm
@pytest.mark.usefixtures("empty_queue")
@pytest.mark.parametrize(
    ("options", "code", "expected"),
    [
        (["--nodes", "9"], 1, "wrong test job refused: nodes=9, but partition gpu gives a job at most 4."),
        (["--nodelist", "node77"], 1, "wrong test job refused: Batch job submission failed: Invalid node name "
         "specified Fix the findings above, choose nodes with --nodes or --nodelist, or use --no-job."),
        (["--nodelist", "node[01-"], 2, "--nodelist=node[01- is not a list of nodes in Slurm's notation. "
         "Give node[01-04] or node01,node03."),
    ],
)  # fmt: skip
def test_nodes_that_cannot_be_had_are_refused(
    options: list[str], code: int, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", *options, "cluster=generic_slurm", f"runs_dir={tmp_path}"]) == code
    assert expected in printed_words(capsys)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slurm
@pytest.mark.usefixtures("empty_queue")
def test_a_runs_dir_that_cannot_be_is_refused_before_a_job_is_sent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(["doctor", "cluster=generic_slurm", f"runs_dir={tmp_path}/file/runs"]) == 2
    assert "Not a directory, so no job was submitted. Set another place with runs_dir=PATH." in printed_words(capsys)

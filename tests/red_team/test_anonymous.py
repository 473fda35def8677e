"""`report --anonymous`: no file of a report names people, machines, accounts, jobs, addresses or places."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from analysis.anonymous import Pseudonyms
from analysis.load.discover import read_runs
from jobs.cli import main
from jobs.rundir import append_record
from tests.support.fake_runs import a_run, ended, event, finished_run, prepared, started
from tests.support.megatron_logs import megatron

pytestmark = pytest.mark.red_team

NAMES = (
    "alovelace", "gborg", "qturing", "nid00417", "nid00418", "nid00999", "gpuhost7", "login-blue", "supermuc.example",
    "pr28fa", "hgx_queue", "pmem_prio", "maint_week", "chemistry-grp", "8675309", "8675310", "10.141.7.23",
    "fd00:beef::17", "a4:bf:01:9c:11:7e", "ada@lovelace.example", "projects/turbine", "secret-corpus",
    "GPU-8f6c3a51-1111-2222-3333-444455556666", "blue-machine", "gitlab.lovelace.example",
)  # fmt: skip
TRACEBACK = """srun: error: nid00417: task 3: Exited with exit code 1
Traceback (most recent call last):
  File "/home/alovelace/venv/lib/python3.11/site-packages/torch/x.py", line 1, in <module>
RuntimeError: [nid00999:4711] user=gborg of /lustre/projects/turbine/data failed at 10.141.7.23:29500 (job 8675309)
"""


def runs_with_names(sweep: Path) -> None:
    """Names in every place of run directories that a report reads."""
    for nodes in (1, 2):
        run = a_run(f"alovelace-n{nodes}", nodes=nodes, sweep="alovelace-sweep")
        cluster = replace(
            run.cluster, name="blue-machine", account="pr28fa", partition="hgx_queue", qos="pmem_prio",
            trusted_group="chemistry-grp", sbatch={"reservation": "maint_week", "mail-user": "ada@lovelace.example"},
        )  # fmt: skip
        data = replace(run.data, path="/lustre/projects/turbine/secret-corpus.jsonl", cache_dir="/scratch/alovelace/c")
        run = replace(run, runs_dir="/lustre/projects/turbine/runs", cluster=cluster, data=data)
        names = [f"nid0041{7 + rank}" for rank in range(nodes)]
        directory = finished_run(
            sweep, run, nodes=names, job_id="8675309", device_name="H100 GPU-8f6c3a51-1111-2222-3333-444455556666",
            data="/lustre/projects/turbine/secret-corpus.jsonl, 12 MB", step_time_s=0.5 / nodes,
        )  # fmt: skip
        facts = json.loads(directory.provenance.read_text())
        command = [
            "/home/alovelace/bin/slurmscale",
            "submit",
            "cluster.account=pr28fa",
            "runs_dir=/lustre/projects/turbine",
        ]
        more = {"host": "login-blue.supermuc.example", "user": "alovelace", "command": command}
        directory.provenance.write_text(json.dumps(facts | more))
        directory.storage_log("rank-00000").parent.mkdir(exist_ok=True)
        append_record(
            directory.storage_log("rank-00000"), {"node": "nid00417", "node_number": 0},
            {"time_s": 1.0, "interval_s": 1.0, "phase": "train", "node_cpu_s": 1.0, "node_cpus": 2},
        )  # fmt: skip
    failed = a_run("qturing-failed", sweep="alovelace-sweep")
    directory = prepared(sweep, failed)
    started(directory, failed, nodes=["nid00418"], job_id="8675310")
    error = (
        "RuntimeError: no route from nid00418 to fd00:beef::17 (a4:bf:01:9c:11:7e) for ~qturing/x; "
        "ask ada@lovelace.example"
    )
    ended(directory, "failed", cause="lost_peer", rank=0, node="nid00418", error=error)
    event(directory, "hung", node="nid00418", host="gpuhost7")


def logs_with_names(folder: Path) -> None:
    """Names in logs of other programs, their file names and accounting."""
    folder.mkdir(parents=True)
    (folder / "slurm-8675310.out").write_text(TRACEBACK)
    text = megatron([(step, 100.0) for step in range(1, 40)], prefix="gpuhost7:")
    (folder / "qturing.log").write_text(
        f"gpuhost7:123:456 [0] NCCL INFO Bootstrap : Using eth0\nsee https://gitlab.lovelace.example/x\n{text}"
    )
    (folder / "nid00999-train.log").write_text(megatron([(step, 200.0) for step in range(1, 40)]))


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("given")
    runs_with_names(where / "sweep")
    logs_with_names(where / "logs")
    return where


def named_in(folder: Path, names: tuple[str, ...]) -> list[tuple[str, str]]:
    return [
        (str(file.relative_to(folder)), name)
        for file in sorted(folder.rglob("*"))
        if file.is_file()
        for name in names
        if name.lower().encode() in file.read_bytes().lower() or name.lower() in str(file.relative_to(folder)).lower()
    ]


def test_no_file_of_an_anonymous_report_contains_a_name(
    given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "qturing")
    formats = ["--format", "latex,svg,parquet"]
    assert main(["report", str(given), "-o", str(tmp_path / "plain"), *formats]) == 0
    found = {name for _, name in named_in(tmp_path / "plain", NAMES)}
    assert len(found) > 15, f"the report is about these names: {found}"
    assert main(["report", str(given), "-o", str(tmp_path / "out"), *formats, "--anonymous"]) == 0
    assert named_in(tmp_path / "out", (*NAMES, str(given))) == []
    text = (tmp_path / "out/report.md").read_text()
    for pseudonym in ("user-1", "node 1", "node 2", "path 1"):
        assert pseudonym in text, pseudonym
    files = {file.name for file in (tmp_path / "plain").rglob("*")}
    assert files == {file.name for file in (tmp_path / "out").rglob("*")}
    plain = (tmp_path / "plain/report.md").read_text()
    assert re.findall(r"[\d,.]+ tokens/s", plain) == re.findall(r"[\d,.]+ tokens/s", text), "numbers stay"
    assert main(["report", str(given), "-o", str(tmp_path / "again"), *formats, "--anonymous"]) == 0
    for file in ("report.html", "report.md", "runs.csv"):
        assert (tmp_path / "again" / file).read_bytes() == (tmp_path / "out" / file).read_bytes(), (
            "same input, same bytes"
        )


@pytest.mark.parametrize("kind", ["--compare", "--reference"])
def test_comparisons_are_anonymous_too(kind: str, given: Path, tmp_path: Path) -> None:
    sweep, other = given / "sweep", tmp_path / "other"
    runs_with_names(other)
    arguments = ["--compare", str(sweep), str(other)]
    if kind == "--reference":
        assert main(["report", str(sweep), "-o", str(tmp_path / "before")]) == 0
        arguments = [str(sweep), "--reference", str(tmp_path / "before/runs.csv")]
    assert main(["report", *arguments, "-o", str(tmp_path / "out"), "--anonymous"]) == 0
    assert named_in(tmp_path / "out", (*NAMES, str(given), str(tmp_path))) == []


TEXTS = {
    "user=gborg was denied": "user=user 1 was denied",
    "gborg-n2": "user-1-n2",
    "run of gborg_x.log": "run of user-1_x.log",
    "/home/gborg/runs/x failed": "path 1 failed",
    'File "/lustre/p/a b/x.py", line 3': 'File "path 1 b/x.py", line 3',
    "~gborg/x": "path 1",
    "on nid00417 and nid00418": "on node 1 and node 2",
    "NID00417 and nid00417.hpc.example": "node 1 and node-1.hpc.example",
    "nid[00417-00420,00431]": "nodes 1",
    "mail to gborg@uni.example": "mail to mail 1",
    "ssh gborg@login1": "ssh mail 1",
    "10.1.2.3:29500 and [::1] and 127.0.0.1": "address 1:29500 and [::1] and 127.0.0.1",
    "fe80::1ff:fe23:4567:890a": "address 1",
    "job 1234567 ended": "job 1 ended",
    "JobId=12 and slurm-12.out": "JobId=1 and slurm-job-1.out",
    "GPU-8f6c3a51-1111-2222-3333-444455556666": "id 1",
    "--partition=hgx_queue --account=pr28fa": "--partition=partition 1 --account=account 1",
    "https://git.uni.example/a": "https://node 1/a",
}
KEPT = (
    "step 120 of 400 in 0.5 s", "tokens/s and bytes/s", "rank 0 of 8", "https://github.com/org/repo", "torch 2.13.0",
    "12:34:56 to 12:40:00", "2026-01-02 03:04:05 UTC", "and/or", "partition=gpu", "user=root", "1,234,567 tokens",
    "CPU: tiny at 8 ranks", "/v1/completions", "/proc/meminfo", "1.5e-3", "3.11.2", "fsdp_full, tp 2 x pp 4",
    "node 0 to node 3", "50 %", "GBS 16 = MBS 1 x DP 8 x 2", "H100 80GB HBM3", "a ratio of 1:4", "key: value",
)  # fmt: skip


@pytest.fixture
def names() -> Pseudonyms:
    found = Pseudonyms([])
    found.collected(
        "user=gborg hostname=nid00417 nodelist=nid00418 partition=hgx_queue account=pr28fa partition=gpu user=root"
    )
    return found


@pytest.mark.parametrize("text", TEXTS)
def test_a_name_is_replaced_wherever_it_stands(text: str, names: Pseudonyms) -> None:
    assert names.replaced(text) == TEXTS[text]


@pytest.mark.parametrize("text", KEPT)
def test_what_names_nobody_stays(text: str, names: Pseudonyms) -> None:
    names.collected(text)
    assert names.replaced(text) == text


def test_a_text_that_is_published_twice_keeps_its_pseudonyms(names: Pseudonyms) -> None:
    once = [names.replaced(f"job {number} ended") for number in range(4_000_000, 4_000_015)]
    assert once[-1] == "job 15 ended"
    assert [names.replaced(text) for text in once] == once


def test_the_place_of_a_run_is_hidden_where_its_path_has_blanks(tmp_path: Path) -> None:
    sweep = tmp_path / "Turbine Blades/of ada"
    finished_run(sweep, a_run("r"))
    names = Pseudonyms(read_runs([sweep]))
    shown = names.replaced(f"{sweep}/r: see {sweep}/r/status.jsonl")
    assert shown == "path 1: see path 2"


def test_the_help_names_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["report", "--help"])
    assert "--anonymous" in capsys.readouterr().out

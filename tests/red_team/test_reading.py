"""Files of another person that are read: none of them hangs, fills the memory, runs code or costs the others.

Every command is a process of its own with a limit on time and memory.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import json
import lzma
import os
import pickle
import re
import resource
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any, cast

import lightning
import pytest
import torch
import torch.distributed as dist
import yaml
import zstandard
from torch.distributed import HashStore  # type: ignore[attr-defined]  # torch has it, and does not list it

from jobs.cli import main
from jobs.engines.litgpt.fabric import load_checkpoint
from jobs.engines.native.checkpoint import read_into, save_sharded
from jobs.engines.native.weights import open_checkpoint
from jobs.errors import CheckpointError
from jobs.rendezvous import RendezvousError, await_file
from jobs.rundir import RunDir, SweepDir, append_record
from jobs.runtime.checkpoints.pickles import load_as_data
from jobs.runtime.checkpoints.sums import SUMS
from jobs.submit.job_state import GONE
from jobs.submit.slurm.accounting import accounting_of
from jobs.submit.slurm.job_log import restarts
from tests.analysis.parsers.reading import SAMPLES
from tests.support.fake_runs import a_run, finished_run
from tests.support.nemo.real_nemo import Nemo
from tests.support.paths import ROOT
from tests.support.real_run import events, make_run, printed, train
from tests.support.training import long
from tests.support.waiting import limit_s

pytestmark = pytest.mark.red_team

MEMORY_BYTES = 4 << 30
GIB = 1 << 30
TERABYTE = 1 << 40


def run_bounded(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command of slurmscale with limits on time and memory."""
    return subprocess.run(
        [sys.executable, "-m", "jobs.cli", *arguments],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=limit_s(60),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES)),
    )


# --- files that no reader may open, parse or expand without a limit --------------------------------------------


def fifo(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def listening(path: Path) -> None:
    # A path of a socket has 107 bytes at most.
    here = os.open(path.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"/proc/self/fd/{here}/{path.name}")
    os.close(here)


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(TERABYTE)


def laughs(path: Path) -> None:
    """Ten names, each repeated ten times by the next."""
    lines = ["a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 20)]
    path.write_text("\n".join(lines) + "\n")


def laughing_merges(path: Path) -> None:
    lines = ["a0: &a0 {x: 1, y: 2}"]
    lines += [f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 10)}]}}" for i in range(1, 20)]
    path.write_text("\n".join(lines) + "\n")


def loop(path: Path) -> None:
    path.write_text("a: &a [*a]\n")


def odd_tag(path: Path) -> None:
    path.write_text("name: !!timestamp never\n")


def nested(path: Path) -> None:
    path.write_text("[" * 100_000 + "]" * 100_000)


def rather_nested(path: Path) -> None:
    """Deep enough for functions that walk it, not for the parser."""
    path.write_text('{"a":' * 500 + "1" + "}" * 500)


def long_integer(path: Path) -> None:
    path.write_text(f'{{"ranks": {"9" * 5000}}}')


BAD = {
    "config.yaml": (fifo, endless, listening, sparse, laughs, laughing_merges, loop, odd_tag, nested),
    "plan.json": (fifo, endless, sparse, nested, rather_nested, long_integer),
    "provenance.json": (fifo, endless, sparse, nested, rather_nested, long_integer),
    "status.jsonl": (fifo, endless, listening, sparse),
    "metrics.jsonl": (fifo, endless, listening, sparse),
    "power-n1.csv": (sparse,),
}
ATTACKS = [(name, attack) for name, attacks in BAD.items() for attack in attacks]


def a_hostile_sweep(sweep: Path) -> None:
    """A run that is as it should be, and one for each attack."""
    finished_run(sweep, a_run("good"))
    for name, attack in ATTACKS:
        run = finished_run(sweep, a_run(run_name(name, attack)), process_started="2026-01-02T03:04:00+00:00")
        file = run.path / name
        file.unlink(missing_ok=True)
        attack(file)


def run_name(name: str, attack: Callable[[Path], None]) -> str:
    return f"{name.partition('.')[0]}-{attack.__name__}"


def test_a_bad_file_of_a_run_costs_its_own_row_of_a_report(tmp_path: Path) -> None:
    a_hostile_sweep(tmp_path / "demo")
    done = run_bounded("report", str(tmp_path / "demo"), "--output", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    with (tmp_path / "out/runs.csv").open() as table:
        rows = {row["name"] or Path(row["path"]).name: row["not_used_because"] for row in csv.DictReader(table)}
    assert len(rows) == 1 + len(ATTACKS)
    assert not rows["good"]
    for name, attack in ATTACKS:
        assert name in rows[run_name(name, attack)]


def test_a_bad_file_of_a_run_costs_its_own_row_of_status(tmp_path: Path) -> None:
    a_hostile_sweep(tmp_path / "demo")
    done = run_bounded("status", "--all", str(tmp_path / "demo"))
    assert done.returncode == 0, done.stderr
    shown = " ".join(done.stdout.split())
    assert f"{1 + len(ATTACKS)} runs" in shown
    assert shown.count("status.jsonl cannot be read") == len(BAD["status.jsonl"])
    assert run_bounded("watch", str(tmp_path / "demo")).returncode == 1


@pytest.mark.parametrize("attack", [fifo, sparse, laughs, nested])
def test_a_bad_configuration_is_refused_by_every_command_that_reads_it(
    attack: Callable[[Path], None], tmp_path: Path
) -> None:
    run = finished_run(tmp_path / "demo", a_run("run"))
    run.config.unlink()
    run.status.write_text("")
    attack(run.config)
    resumed = run_bounded("resume", str(tmp_path / "demo"))
    assert resumed.returncode == 2
    assert f"{run.config} is damaged: " in resumed.stdout  # among what the received sweep would run
    printed_logs = run_bounded("logs", str(run.path))
    assert printed_logs.returncode == 2
    assert f"{run.config} is damaged: " in printed_logs.stderr


@pytest.mark.parametrize(
    ("kind", "attack"),
    [
        *(("site", attack) for attack in (fifo, endless, sparse, laughs, laughing_merges, loop, odd_tag, nested)),
        *(("campaign", attack) for attack in (fifo, laughs, nested)),
    ],
)
def test_a_bad_file_of_settings_is_refused(kind: str, attack: Callable[[Path], None], tmp_path: Path) -> None:
    file = tmp_path / "cluster/ours.yaml" if kind == "site" else tmp_path / "contest.yaml"
    file.parent.mkdir(exist_ok=True)
    attack(file)
    command = {"campaign": ("campaign", str(file)), "site": ("plan", "cluster=ours")}[kind]
    done = run_bounded(*command, **({"SLURMSCALE_SITE": str(tmp_path)} if kind == "site" else {}))
    assert done.returncode == 2
    assert str(file) in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("attack", [fifo, laughs, nested])
def test_bad_facts_cost_only_the_runs_beside_them(attack: Callable[[Path], None], tmp_path: Path) -> None:
    for name in ("beside", "elsewhere"):
        (tmp_path / name).mkdir()
        shutil.copy(SAMPLES / "litgpt.txt", tmp_path / name / "log.txt")
    attack(tmp_path / "beside/facts.yaml")
    done = run_bounded("report", str(tmp_path), "--output", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert "facts.yaml" in (tmp_path / "out/report.md").read_text()
    assert "Traceback" not in done.stderr


# --- files that cannot be opened -------------------------------------------------------------------------------


def directory(path: Path) -> None:
    path.mkdir()


def itself(path: Path) -> None:
    path.symlink_to(path.name)


def below_a_file(path: Path) -> None:
    path.symlink_to("/etc/passwd/x")


def long_name(path: Path) -> None:
    path.symlink_to("x" * 300)


UNOPENABLE = (fifo, directory, itself, below_a_file, long_name, sparse)
COMMANDS = ("status", "watch", "cancel", "resume", "logs")


def a_submitted_sweep(sweep: Path, launcher: str = "hand", **changed: object) -> RunDir:
    """A sweep with two runs that have finished, and a ledger with their submissions."""
    runs = [finished_run(sweep, a_run(name)) for name in ("good", "other")]
    for run in runs:
        ids = {"job_id": "7", "events_before": 0, "host": "node0", "time": "2026-01-02T03:04:05+00:00"}
        append_record(SweepDir(sweep).submissions, {"event": "submitted", "run": run.name, "launcher": launcher} | ids)
    if changed:
        append_record(SweepDir(sweep).submissions, changed)
    return runs[0]


@pytest.mark.parametrize("attack", UNOPENABLE)
def test_a_ledger_that_cannot_be_read_is_one_refusal_of_every_command(
    attack: Callable[[Path], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = a_submitted_sweep(tmp_path / "demo")
    ledger = SweepDir(tmp_path / "demo").submissions
    ledger.unlink()
    attack(ledger)
    for command in COMMANDS:
        assert main([command, str(run.path if command == "logs" else tmp_path / "demo")]) == 2
        assert f"{ledger} cannot be read: " in capsys.readouterr().err


@pytest.mark.parametrize("attack", UNOPENABLE)
@pytest.mark.parametrize("name", ["status.jsonl", "plan.json", "metrics.jsonl"])
def test_a_file_of_a_run_that_cannot_be_opened_costs_its_own_row(
    name: str, attack: Callable[[Path], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = a_submitted_sweep(tmp_path / "demo")
    (run.path / name).unlink()
    attack(run.path / name)
    assert main(["status", str(tmp_path / "demo")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "2 runs" in shown
    assert ("status.jsonl cannot be read: it is" in shown or "status.jsonl cannot be read: a" in shown) == (
        name == "status.jsonl"
    )
    assert main(["cancel", str(tmp_path / "demo")]) == 0
    assert main(["watch", str(tmp_path / "demo")]) == (name == "status.jsonl")


@pytest.mark.parametrize("attack", UNOPENABLE)
def test_stages_that_cannot_be_read_cost_their_own_line(
    attack: Callable[[Path], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    submitted = {"event": "stage_submitted", "stage": "report", "launcher": "local", "job_id": "7", "host": "node0",
                 "events_before": 0}  # fmt: skip
    run = a_submitted_sweep(tmp_path / "demo")
    append_record(SweepDir(tmp_path / "demo").submissions, submitted)
    attack(tmp_path / "demo/stages.jsonl")
    assert main(["status", str(tmp_path / "demo")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "2 runs: 2 finished" in shown
    assert re.search("report: failed .stages.jsonl cannot be read: (it|a) ", shown)
    assert main(["cancel", str(tmp_path / "demo")]) == 0
    assert main(["watch", str(tmp_path / "demo")]) == 1
    assert main(["resume", str(tmp_path / "demo")]) == 2, "received"
    assert main(["resume", "--trust", str(tmp_path / "demo")]) == 0
    assert main(["logs", str(run.path)]) == 2, "started by hand"
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("attack", [itself, below_a_file, long_name])
@pytest.mark.parametrize("name", ["stages.jsonl", ".lock", "logs", "figures", "good/config.yaml", "good/code", "x"])
def test_a_link_to_nowhere_costs_no_command(
    name: str, attack: Callable[[Path], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = a_submitted_sweep(tmp_path / "demo")
    (tmp_path / "demo" / name).unlink(missing_ok=True)
    attack(tmp_path / "demo" / name)
    for command in ("status", "cancel", "resume", "logs", "report"):
        # Each ends with an exit code, not with an exception.
        assert main([command, str(run.path if command == "logs" else tmp_path / "demo")]) in {0, 2}
    assert "2 runs" in capsys.readouterr().out or name == "good/config.yaml"


@pytest.mark.parametrize("attack", [fifo, directory, endless, itself, long_name])
def test_a_log_that_cannot_be_read_is_refused(
    attack: Callable[[Path], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = a_submitted_sweep(tmp_path / "demo", launcher="slurm")
    (tmp_path / "demo/logs").mkdir()
    attack(tmp_path / "demo/logs/7_0_log.out")
    assert main(["logs", str(run.path)]) == 2
    assert "7_0_log.out cannot be read: " in capsys.readouterr().err


def test_a_log_of_any_size_is_printed_in_pieces(tmp_path: Path) -> None:
    run = a_submitted_sweep(tmp_path / "demo", launcher="slurm")
    (tmp_path / "demo/logs").mkdir()
    sparse(tmp_path / "demo/logs/7_0_log.out")
    limit = ["prlimit", f"--as={GIB}", sys.executable, "-m", "jobs.cli", "logs", str(run.path)]
    with subprocess.Popen(limit, cwd=ROOT, stdout=subprocess.PIPE) as logs:
        try:
            assert logs.stdout is not None
            assert logs.stdout.read(8 << 20).startswith(rb"\x00\x00")
        finally:
            logs.kill()


# --- single records --------------------------------------------------------------------------------------------

LONG = "x" * 300
SUBMITTED: dict[str, object] = {
    "event": "submitted", "run": "good", "launcher": "slurm", "job_id": "8", "events_before": 0, "host": "node0",
    "time": "2026-01-02T03:04:05+00:00",
}  # fmt: skip
INTENDED: dict[str, object] = {
    "event": "intended",
    "mark": "m",
    "launcher": "slurm",
    "host": "h",
    "array": True,
    "tasks": [],
}
RECORDS: list[Mapping[str, object]] = [
    *(
        {"event": "cancelled", "job_id": job_id}
        for job_id in ("7_[0-99999999999]", f"7_[{','.join(['0-99999999'] * 300)}]", "7_[,]", "7_[-]", "7_[5-2]", LONG)
    ),
    {"event": "cancelled", "runs": [[1], {}]},
    {"event": "cancelled", "runs": 5},
    *(SUBMITTED | {"time": time} for time in ("never", "0001-01-01T00:00:00", "0001-01-01T00:00:00+00:00")),
    *(SUBMITTED | {"time": time} for time in ("9999-12-31T23:59:59-12:00", "2026-01-02T03:04:05")),
    *(SUBMITTED | {"run": name} for name in (LONG, "é" * 150, "submissions.jsonl", "good/../../x")),
    *(SUBMITTED | {"job_id": job_id} for job_id in (LONG, "9" * 2000, "--wrap=x", "--me", "1_[0-3]", "8 9", "\ud800")),
    {"event": "launched", "run": "good", "log_id": LONG},
    SUBMITTED | {"event": "stage_submitted", "stage": "evaluate", "run": "x" * 3000},
    SUBMITTED | {"event": "stage_submitted", "stage": "prepare", "job_id": LONG},
    INTENDED | {"time": "never"},
    INTENDED | {"time": "2026-01-02T03:04:05"},
    *(
        INTENDED | {"time": "2026-01-02T03:04:05+00:00", "tasks": [task]}
        for task in (
            {"event": "cancelled", "runs": 5},
            {"event": "submitted", "run": LONG, "events_before": 0},
            {"event": "submitted", "run": ["good"], "events_before": 0},
            {"event": "submitted", "run": "good", "events_before": 0, "time": "never", "job_id": "--me"},
        )
    ),
]


@pytest.fixture
def slurm_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that gets the arguments of every Slurm command, of which each prints nothing."""
    programs, calls = tmp_path / "programs", tmp_path / "calls"
    programs.mkdir()
    for name in ("squeue", "sacct", "scontrol", "scancel", "sbatch"):
        (programs / name).write_text(f'#!/bin/sh\necho "{name} $*" >> {calls}\n')
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return calls


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: str(record)[:80])
def test_a_bad_record_of_a_ledger_costs_no_command(
    record: Mapping[str, object], slurm_calls: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = a_submitted_sweep(tmp_path / "demo")
    run.status.write_text("")
    with SweepDir(tmp_path / "demo").submissions.open("a") as ledger:
        ledger.write(json.dumps(record) + "\n")
    began = time.process_time()
    for command in ("status", "logs", "cancel"):
        assert main([command, str(run.path if command == "logs" else tmp_path / "demo")]) in {0, 2}
    assert time.process_time() - began < 5
    assert "2 runs" in capsys.readouterr().out
    for call in slurm_calls.read_text().splitlines() if slurm_calls.exists() else ():
        assert call.startswith(("squeue ", "scontrol ")) or re.fullmatch(r"sacct .* (-j [0-9,]+|-S \S+)", call)


def test_accounting_is_asked_for_job_ids_only(slurm_calls: Path) -> None:
    accounting = accounting_of(["--wrap=x", "--me", "9" * 2000, "12_3", "13"])
    assert accounting.end_of("12_3").state == accounting.end_of("--wrap=x").state == GONE
    assert slurm_calls.read_text().rstrip().endswith(" -j 12,13")
    assert accounting_of(["--me"]).end_of("--me").state == GONE


def test_a_number_of_restarts_without_end_is_none(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(f"slurmscale: started, restart 2\nslurmscale: started, restart {'9' * 5000}\n")
    assert restarts(log) == 2


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("_name_or_path", "${oc.env:HF_TOKEN}"), ("intermediate_size", "${oc.decode:1}"), ("_name_or_path", "\ud800"),
        ("num_hidden_layers", {"a": 1}), ("hidden_size", "many"), ("rms_norm_eps", [1]), ("rope_scaling", 1),
    ],
)  # fmt: skip
def test_a_model_file_of_a_received_configuration_has_values_only(
    key: str, value: object, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURMSCALE_SITE", str(tmp_path / "site"))
    good: dict[str, object] = {"architectures": ["LlamaForCausalLM"], "num_attention_heads": 8, "hidden_size": 64,
                               "num_hidden_layers": 2, "intermediate_size": 128, "vocab_size": 100,
                               "max_position_embeddings": 64, "rms_norm_eps": 1e-5}  # fmt: skip
    (tmp_path / "received").mkdir()
    for given, code in ((good | {key: value}, 2), (good, 0)):
        (tmp_path / "received/config.json").write_text(json.dumps(given))
        assert main(["model", str(tmp_path / "received")]) == code
        assert (tmp_path / "site/model/received.yaml").exists() == (code == 0)
    assert "config.json is not the configuration of a language model: " in capsys.readouterr().err


# --- single values ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *product(["plan.json global_batch_size"], [[1], {}, "x", 1.5]),
        *product(["job.sequence_length"], ["x", [1], {}, 0.5]),
        *product(["scaling.mode", "parallelism.name", "engine.kind"], [[1], {}, 5]),
        ("model.layers", "two"),
        ("gpu", [1]),
    ],
)
def test_a_setting_of_another_type_costs_its_own_row(key: str, value: object, tmp_path: Path) -> None:
    finished_run(tmp_path / "demo", a_run("good"))
    run = finished_run(tmp_path / "demo", a_run("bad", nodes=2))
    file = run.plan if key.startswith("plan.json ") else run.config
    settings = yaml.safe_load(file.read_text())
    *sections, name = key.removeprefix("plan.json ").split(".")
    inner = settings
    for section in sections:
        inner = inner[section]
    inner[name] = value
    file.write_text(json.dumps(settings) if file == run.plan else yaml.safe_dump(settings))
    assert main(["report", str(tmp_path / "demo"), "--output", str(tmp_path / "out"), "--format", "latex"]) == 0
    with (tmp_path / "out/runs.csv").open() as table:
        rows = {Path(row["path"]).name: row["not_used_because"] for row in csv.DictReader(table)}
    assert not rows["good"]
    assert f"{file.name} has no valid {key.rpartition(' ')[2]}" in rows["bad"]


@pytest.mark.parametrize(("key", "value"), [("num_attention_heads", 0), ("rope_theta", 1e999), ("hidden_size", "x")])
def test_a_number_that_no_model_has_is_refused(
    key: str, value: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"], "num_attention_heads": 2, "hidden_size": 8, "num_hidden_layers": 2,
        "intermediate_size": 16, "vocab_size": 64, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
    }  # fmt: skip
    (tmp_path / "m").mkdir()
    (tmp_path / "m/config.json").write_text(json.dumps(config | {key: value}))
    assert main(["model", str(tmp_path / "m/config.json")]) == 2
    assert "is not the configuration of a language model" in capsys.readouterr().err


# --- the rendezvous --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        "", "garbage", "[]", "5", "{}", "[" * 4000, '{"address": "a", "port": 1}', "9" * 4000, "{" * 9000,
        '{"address": [], "port": "x", "token": 5}', '{"address": "a", "port": 0, "token": "t"}',
        '{"address": "a", "port": true, "token": "t"}', '{"address": "a", "port": 99999, "token": "t"}',
        '{"address": "a", "port": 1, "token": "t", "more": 1}', fifo, directory, endless, sparse, itself,
    ],
)  # fmt: skip
def test_a_bad_file_of_a_rendezvous_is_refused(content: str | Callable[[Path], None], tmp_path: Path) -> None:
    file = tmp_path / "rendezvous-1.json"
    file.write_text(content) if isinstance(content, str) else content(file)
    with pytest.raises(RendezvousError, match="is not the file of a rendezvous"):
        await_file(file, 0)


# --- logs ------------------------------------------------------------------------------------------------------


def zeros(path: Path) -> None:
    """A gigabyte of zeros in a megabyte."""
    path.write_bytes(gzip.compress(bytes(16 << 20)) * 64)


def expanding(compressor: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """A gigabyte of text in a few kilobytes: concatenated streams of the same lines."""

    def attack(path: Path) -> None:
        path.write_bytes(compressor(b"iteration 1 | loss 1.0\n" * (1 << 20)) * 45)

    attack.__name__ = f"expanding_{compressor.__name__}"
    return attack


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(19).compress(data)


def xz(data: bytes) -> bytes:
    return lzma.compress(data)


def bz(data: bytes) -> bytes:
    return bz2.compress(data)


@pytest.mark.parametrize(
    "attack",
    [fifo, endless, listening, sparse, zeros, expanding(zstd), long(expanding(xz)), long(expanding(bz)), nested],
)
def test_a_bad_log_costs_its_own_row(attack: Callable[[Path], None], tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    shutil.copy(SAMPLES / "litgpt.txt", logs / "good.log")
    attack(logs / "bad.log")
    done = run_bounded("report", str(logs), "--output", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "out/report.md").read_text()
    assert "good.log" in (tmp_path / "out/runs.csv").read_text()
    assert "bad.log" in text
    if attack is not nested:
        assert "bad.log (not read: it" in text or "bad.log (not read: a row" in text


def test_links_out_of_a_folder_and_folders_without_end_are_read_around(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    shutil.copy(SAMPLES / "litgpt.txt", tmp_path / "elsewhere.log")
    (logs / "link.log").symlink_to(tmp_path / "elsewhere.log")
    (logs / "itself.log").symlink_to("itself.log")
    (logs / "above").symlink_to(tmp_path)
    deep = f"{logs}/d"
    # Deeper than Python's own walk of directories can follow.
    for _ in range(1200):
        Path(deep).mkdir()
        deep += "/d"
    done = run_bounded("report", str(logs), "--follow", "--output", str(tmp_path / "out"))
    # pytest cannot remove it either.
    subprocess.run(["rm", "-r", f"{logs}/d"], check=True)
    assert done.returncode == 0, done.stderr
    assert "link.log" in (tmp_path / "out/runs.csv").read_text()


# --- pickles ---------------------------------------------------------------------------------------------------


class Malicious:
    """An object whose unpickling makes a file."""

    def __init__(self, made: Path) -> None:
        self.made = made

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str, ...]]:
        return (os.system, (f"touch '{self.made}'",))


@contextmanager
def alone() -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_the_metadata_of_a_checkpoint_runs_no_code(tmp_path: Path) -> None:
    run = make_run(tmp_path, "job.checkpoint_every_steps=3", "ranks_per_node=1")
    assert train(run) == [0]
    newest = run.checkpoints / "step-00000006"
    made = tmp_path / "made"
    (newest / ".metadata").write_bytes(pickle.dumps(Malicious(made)))
    # Without sums, as an earlier release wrote it.
    (newest / "checksums.json").unlink()
    assert train(run) == [0], printed(run)
    (refused,) = events(run, "checkpoint_unreadable")
    assert "posix.system, which is no data" in str(refused["error"])
    assert not made.exists()


@pytest.mark.parametrize("name", ["/dev/zero", "../../../other", ""])
def test_the_metadata_of_a_checkpoint_names_only_its_own_files(name: str, tmp_path: Path) -> None:
    with alone():
        save_sharded({"a": torch.zeros(2)}, tmp_path / "c")
        metadata = pickle.loads((tmp_path / "c/.metadata").read_bytes())
        for index, info in metadata.storage_data.items():
            metadata.storage_data[index] = type(info)(name, info.offset, info.length)
        (tmp_path / "c/.metadata").write_bytes(pickle.dumps(metadata))
        with pytest.raises(CheckpointError, match="which is not a file of the checkpoint"):
            read_into({"a": torch.zeros(2)}, tmp_path / "c")


def test_a_checkpoint_with_a_fifo_among_its_files_is_refused(tmp_path: Path) -> None:
    with alone():
        save_sharded({"a": torch.zeros(2)}, tmp_path / "c")
        (part,) = (tmp_path / "c").glob("*.distcp")
        part.unlink()
        fifo(part)
        with pytest.raises(CheckpointError, match="is not a regular file"):
            read_into({"a": torch.zeros(2)}, tmp_path / "c")


def test_an_object_in_a_checkpoint_runs_no_code(tmp_path: Path) -> None:
    made = tmp_path / "made"
    with alone():
        save_sharded({"a": Malicious(made)}, tmp_path / "c")
        with pytest.raises(CheckpointError, match="system"):
            read_into({"a": 0}, tmp_path / "c")
    assert not made.exists()


@pytest.mark.parametrize("attack", [fifo, endless, "pickle"])
def test_weights_to_start_from_run_no_code(attack: Callable[[Path], None] | str, tmp_path: Path) -> None:
    made = tmp_path / "made"
    if isinstance(attack, str):
        torch.save({"model": Malicious(made)}, tmp_path / "lit_model.pth")
    else:
        attack(tmp_path / "lit_model.pth")
    with pytest.raises(CheckpointError, match="cannot be read as a LitGPT checkpoint"):
        open_checkpoint(tmp_path)
    assert not made.exists()


@pytest.mark.slow
@pytest.mark.long
def test_litgpt_runs_no_code_of_the_weights_that_it_reads_a_second_time(tmp_path: Path) -> None:
    run = make_run(tmp_path, "engine=litgpt", "engine.compile=true", "ranks_per_node=1", "job.steps=2",
                   "data.held_out_samples=4")  # fmt: skip
    assert train(run) == [0], printed(run)
    made = tmp_path / "made"
    # Made by the first start, and not made again.
    torch.save({"transformer.wte.weight": Malicious(made)}, run.path / "litgpt/start/lit_model.pth")
    assert train(run) == [1]
    assert "Weights only load failed" in str(events(run, "failed")[-1]["error"])
    assert not made.exists()


@pytest.mark.filterwarnings("ignore:The .srun. command")
def test_litgpts_fine_tuning_runs_no_code_of_its_weights(tmp_path: Path) -> None:
    made = tmp_path / "made"
    torch.save({"weight": Malicious(made)}, tmp_path / "lit_model.pth")
    fabric = lightning.Fabric(accelerator="cpu", devices=1)
    load_as_data()
    model = torch.nn.Linear(2, 2)
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        load_checkpoint(cast(Any, fabric), model, tmp_path / "lit_model.pth")
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        fabric.load_raw(tmp_path / "lit_model.pth", model)
    assert not made.exists()


@pytest.mark.slow
@pytest.mark.long
def test_nemos_checkpoints_run_no_code(tmp_path: Path) -> None:
    nemo = Nemo(tmp_path / "log")
    try:
        run = make_run(tmp_path, "engine=nemo", "engine.distributed_optimizer=false", "parallelism=single",
                       "ranks_per_node=1", "job.checkpoint_every_steps=3")  # fmt: skip
        assert nemo.train(run) == [0], printed(run)
        made, weights = tmp_path / "made", run.checkpoints / "step-00000006/weights"
        # Whoever can write the files can remove their checksums as well.
        (weights.parent / SUMS).unlink()
        torch.save(Malicious(made), weights / "common.pt")
        assert nemo.train(run) == [1]
        (weights / ".metadata").write_bytes(pickle.dumps(Malicious(made)))
        assert nemo.train(run) == [1]
    finally:
        nemo.close()
    assert ["posix.system" in str(event["error"]) for event in events(run, "failed")] == [True, True]
    assert not made.exists()


@pytest.mark.slow
@pytest.mark.long
def test_files_changed_at_random_are_read_or_refused() -> None:
    fuzz = [sys.executable, "-W", "ignore", "-m", "tests.benchmarks.fuzz_files", "--inputs", "10000"]
    done = subprocess.run(fuzz, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "10,000 inputs (seed 0); none failed" in done.stdout, done.stderr[-3000:]

"""Notices on a real Slurm: once through a killed rank and a requeue of the administrator, whoever watches."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.cli import main
from jobs.run_events import run_events
from jobs.rundir import RunDir
from tests.support.processes import process_of
from tests.support.real_run import SMALL
from tests.support.waiting import limit_s, wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.long, pytest.mark.usefixtures("empty_queue")]


def count(run: RunDir, name: str) -> int:
    return sum(event["event"] == name for event in run_events(run))


def test_a_killed_and_a_requeued_run_tells_each_restart_and_its_end_once(tmp_path: Path) -> None:
    teller = tmp_path / "tell"
    teller.write_text(f"#!/bin/bash\n{{ cat; echo; }} >> {tmp_path}/told.jsonl\n")
    teller.chmod(0o755)
    line = [*SMALL, "cluster=generic_slurm", f"runs_dir={tmp_path}", "sweep=s", "name=r", "ranks_per_node=1",
            f"data.cache_dir={tmp_path}/cache", "job.steps=3000", "job.checkpoint_every_steps=20",
            "launcher.requeue_pause_s=0", f"notify.command={teller}"]  # fmt: skip
    assert main(["submit", *line]) == 0
    run = RunDir(tmp_path / "s/r")
    watchers = [
        subprocess.Popen([sys.executable, "-m", "slurmscale", "watch", str(tmp_path / "s")], stdout=subprocess.DEVNULL)
        for _ in range(2)
    ]
    wait_until(lambda: count(run, "checkpoint") > 0)
    process_of(run, 0).kill()
    wait_until(lambda: count(run, "started") == 2)
    starts = count(run, "checkpoint")
    wait_until(lambda: count(run, "checkpoint") > starts)
    (job,) = {event["job_id"] for event in run_events(run) if event["event"] == "started"}
    subprocess.run(["scontrol", "requeue", str(job)], check=True)
    assert [each.wait(limit_s(400)) for each in watchers] == [0, 0]
    told = [json.loads(each) for each in (tmp_path / "told.jsonl").read_text().splitlines()]
    events = [(each["event"], each["run"]) for each in told]
    assert sorted(events, key=str).count(("finished", "r")) == 1
    assert events.count(("sweep_ended", None)) == 1
    assert events.count(("requeued", "r")) == count(run, "requeued")
    assert count(run, "started") == 3

"""The ledger of hosts: from the records of runs to the hosts that a job leaves out."""

from __future__ import annotations

import math
import random
import statistics
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from jobs.doctor.host_record import host_findings
from jobs.failure_causes import FailureCause, record_failure
from jobs.rundir import RunDir, append_event, append_record, load_run
from jobs.schema import Run
from jobs.submit.hosts.evidence import EVIDENCE_DAYS, Speed
from jobs.submit.hosts.ledger import Ledger, Standing, explained, ledger_of, without_known_bad
from jobs.submit.slurm import commands as slurm_commands
from jobs.submit.sweeps.sweep_at import sweeps_in
from tests.support.real_run import make_run

SLURM = ("cluster=generic_slurm", "launcher=slurm", "cluster.partition=gpu")


def a_run(where: Path, name: str, nodes: tuple[str, ...], *, fails_on: str = "", cause: str = "killed") -> RunDir:
    """A run of a site that started on these nodes, and failed on one of them."""
    run = make_run(where, *SLURM, f"name={name}", f"nodes={len(nodes)}", "scaling.global_batch_size=16")
    append_record(run.path.parent / "submissions.jsonl", {"event": "owned", "id": "0" * 32})
    append_event(run, "started", attempt=1, restart=0, job_id="7", nodes=list(nodes))
    if fails_on:
        record_failure(run, FailureCause[cause], rank=0, node=fails_on, error="it was", restart=0)
    return run


def standings(ledger: Ledger) -> dict[str, Standing]:
    return {host.name: host.standing for host in ledger.hosts}


def a_site(where: Path) -> Run:
    """A site on which node03 fails more often than the others, and its last run."""
    for number in range(8):
        pair = ("node01", "node02") if number % 2 else ("node03", "node04")
        a_run(where, f"r{number}", pair, fails_on="node03" if number in {0, 2, 4} else "")
    return load_run(a_run(where, "last", ("node01", "node02")).config)


def test_a_host_fails_if_its_faults_are_more_than_those_of_the_others_allow(tmp_path: Path) -> None:
    run = a_site(tmp_path)
    ledger = ledger_of(Path(run.runs_dir), "generic_slurm")
    assert standings(ledger) == {
        "node03": Standing.failing, "node01": Standing.good, "node02": Standing.good, "node04": Standing.good,
    }  # fmt: skip
    (bad,) = ledger.bad
    day = f"{datetime.now(UTC):%Y-%m-%d}"
    assert bad.reason == (
        f"3 faults in 4 starts (3 killed; test/r0, test/r2, test/r4), the latest on {day}; the other hosts 0 in 14"
    )
    rows = host_findings(run)
    assert [row.what for row in rows] == ["hosts", "host node03"]
    assert rows[0].found == f"4 in 9 starts of the last {EVIDENCE_DAYS} days: 1 failing, 3 good"
    assert ledger_of(Path(run.runs_dir), "another_cluster").hosts == []


def test_evidence_expires(tmp_path: Path) -> None:
    run = a_site(tmp_path)
    later = time.time() + timedelta(days=EVIDENCE_DAYS, hours=1).total_seconds()
    assert ledger_of(Path(run.runs_dir), "generic_slurm", later).hosts == []


def test_a_program_that_is_killed_everywhere_blames_no_host(tmp_path: Path) -> None:
    for number in range(8):
        a_run(tmp_path, f"r{number}", (f"node0{number % 4 + 1}",), fails_on=f"node0{number % 4 + 1}")
    # Errors of the program are no faults of a host.
    for number in range(4):
        a_run(tmp_path, f"code{number}", ("node05",), fails_on="node05", cause="code")
    ledger = ledger_of(tmp_path, "generic_slurm")
    assert not ledger.bad
    assert standings(ledger)["node05"] is Standing.good


def test_a_host_is_slow_by_the_compute_times_of_several_runs(tmp_path: Path) -> None:
    for name, ratio in (("a", 1.3), ("b", 1.2), ("c", 1.25)):
        run = a_run(tmp_path, name, ("node01", "node02"))
        entry = {"rank": 1, "node": "node02", "own_time_s": ratio, "others_own_time_s": 1.0}
        even = {"rank": 0, "node": "node01", "own_time_s": 1.0, "others_own_time_s": 1.0}
        append_event(run, "pace", attempt=1, step=10, slowest_ranks=[entry, even])
    (slow,) = ledger_of(tmp_path, "generic_slurm").bad
    assert (slow.name, slow.standing) == ("node02", Standing.slow)
    assert slow.reason == "computes 1.25 times as long as the others, in 3 of 3 runs with it (test/a, test/b, test/c)"


def test_the_share_of_variance_that_hosts_explain_is_that_which_was_put_in() -> None:
    def shares(between: float, within: float) -> list[float]:
        """The shares of sites of 40 hosts with 5 repeats on each."""
        found = []
        for seed in range(20):
            chance = random.Random(seed)
            offsets = [chance.gauss(0, between) for _ in range(40)]
            share = explained(
                Speed(Path("r"), "same", (f"n{host}",), math.exp(offset + chance.gauss(0, within)))
                for host, offset in enumerate(offsets) for _ in range(5)
            )  # fmt: skip
            assert share is not None
            assert (share.runs, share.places) == (200, 40)
            found.append(share.share)
        return found

    # Standard error of these means: 0.02 and 0.007.
    assert statistics.fmean(shares(0.05, 0.05)) == pytest.approx(0.5, abs=0.06)
    assert statistics.fmean(shares(0.0, 0.05)) < 0.04
    one_place = [Speed(Path("r"), "same", ("n",), 1.0), Speed(Path("s"), "same", ("n",), 2.0)]
    assert explained(one_place) is None
    assert explained([]) is None


def test_known_bad_hosts_are_named_and_left_out_only_on_request_and_if_the_partition_can_spare_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = a_site(tmp_path)
    ((same,), (line,)) = without_known_bad([run])
    assert same == run
    assert line.startswith("hosts: node03 is failing: 3 faults in 4 starts (3 killed; ")
    assert line.endswith("; launcher.exclude_known_bad=true leaves such hosts out")
    asks = replace(run, launcher=replace(run.launcher, exclude_known_bad=True))
    monkeypatch.setattr(slurm_commands, "partitions", lambda: {"gpu": {"TotalNodes": "4"}})
    ((without,), (line,)) = without_known_bad([asks])
    assert without.cluster.sbatch["exclude"] == "node03"
    assert line.startswith("hosts: node03 is excluded (failing: 3 faults in 4 starts")
    monkeypatch.setattr(slurm_commands, "partitions", lambda: {"gpu": {"TotalNodes": "2"}})
    ((kept,), (line,)) = without_known_bad([asks])
    assert "exclude" not in kept.cluster.sbatch
    assert line == "hosts: node03 is failing, and the partition cannot do without it"
    assert [sweep.path.name for sweep in sweeps_in(tmp_path)] == ["test"]

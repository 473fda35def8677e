"""Every kind of file that is read back, as it should be, with the functions that read it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]  # torch has it, and does not list it

from analysis.compare.reference import read_reference
from analysis.failures.runs import read_sweep
from analysis.load.discover import read, submissions
from analysis.load.run_directory import read_run
from analysis.logs.facts import read_facts
from analysis.report.report import report
from jobs.engines.native.checkpoint import read_into, save_sharded
from jobs.errors import SuiteError
from jobs.explore.campaign.campaign import recorded
from jobs.explore.campaign.campaign_file import read_trials
from jobs.explore.campaign.code_snapshot import digest_of
from jobs.failure_causes import FailureCause, record_failure
from jobs.files import UnsuitableFileError, read_yaml
from jobs.lease import Lease, owners, successor
from jobs.plan.choices import place_of, refuse_missing_site
from jobs.plan.compose import compose
from jobs.rundir import SweepDir, append_record, load_run, now
from jobs.submit.stage_states import events_of, latest_stages
from jobs.submit.states import decide
from jobs.submit.sweeps.history import History
from jobs.submit.sweeps.submissions import intents, latest_submissions, submissions_on_record, unannounced
from jobs.submit.watching.progress import last_step, progress_of
from tests.support.any_content import CONTENTS, read_records
from tests.support.fake_runs import a_run, finished_run

# What callers of readers handle.
REFUSED = (SuiteError, UnsuitableFileError)


@dataclass
class Kind:
    """A kind of file."""

    name: str
    path: Path
    readers: Sequence[Callable[[], object]]
    weight: float = 1.0
    given: list[bytes] = field(default_factory=list)
    """Contents as they should be; the first one is there while other files are changed."""

    def __post_init__(self) -> None:
        self.given = self.given or [self.path.read_bytes()]


def kinds(folder: Path) -> list[Kind]:
    """Write a sweep, a table, settings and a checkpoint below a folder; return all files that are read."""
    sweep = SweepDir(folder / "sweep")
    run = finished_run(sweep.path, a_run("run"), process_started="2026-01-02T03:04:00+00:00")
    finished_run(sweep.path, a_run("other"))
    write_ledger(sweep)
    Lease(run).take()
    record_failure(run, FailureCause.lost_peer, rank=1, node="n1", error="gone", restart=0)
    (failure,) = run.failures.iterdir()
    report([sweep.path], folder / "page")
    whole = partial(read, [sweep.path])

    def of_run() -> None:
        read_run(run.path, submissions(sweep.path).get("run", ()))

    def of_status() -> None:
        progress_of(run)
        last_step(run)
        for submission in latest_submissions(sweep).values():
            history = History(sweep.run(submission.run), submission)
            decide(history, None)
            _ = history.ranks_met, history.starts_again

    def of_ledger() -> None:
        submissions_on_record(sweep)
        intents(sweep)
        unannounced(sweep)
        for key, submission in latest_stages(sweep).items():
            events_of(sweep, key, submission)
        submissions(sweep.path)
        read_sweep(sweep.path)
        of_status()

    return [
        Kind("config", run.config, (lambda: load_run(run.config), of_run)),
        Kind("plan", run.plan, (of_run, lambda: progress_of(run)), 2),
        Kind("provenance", run.provenance, (of_run, lambda: (recorded(run), digest_of(run))), 2),
        Kind("status", run.status, (of_run, of_status), 2),
        Kind("metrics", run.metrics, (of_run, of_status), 2),
        Kind("failure", failure, (of_run, of_status), 2),
        Kind("owner", run.owners / "000001.json", (lambda: (owners(run), successor(run, "7", 0)),), 2),
        Kind("ledger", sweep.submissions, (of_ledger,), 2),
        Kind("sweep", run.status, (whole, partial(report, [sweep.path], folder / "page")), 0.01),
        Kind("reference", folder / "page/runs.csv", (lambda: read_reference(folder / "page/runs.csv"),), 2),
        *settings(folder / "settings"),
        *checkpoint(folder / "checkpoint"),
        Kind("log", written(folder / "log", CONTENTS[0]), (lambda: read_records(folder / "log"),), 3, CONTENTS),
    ]


def write_ledger(sweep: SweepDir) -> None:
    """Write one event of each kind that readers of the ledger know."""
    common = {"time": now(), "launcher": "local", "host": "login", "events_before": 1}
    task = {"event": "submitted", "run": "run", "events_before": 1}
    append_record(
        sweep.submissions,
        {"event": "intended", "mark": "m", "tasks": [task], "array": True, "clusters": "c", **common},
        {"event": "submitted", "run": "run", "job_id": "7_0", "mark": "m", "process_started": 1.5, **common},
        {"event": "submitted", "run": "other", "job_id": "8", "nodes": 2, "after": "6", **common},
        {"event": "launched", "run": "other", "log_id": "8-1", "place": "n[1-2]"},
        {"event": "stage_submitted", "stage": "evaluate", "run": "run", "job_id": "9", **common},
        {"event": "waiting", "run": "run", "limit": "MaxJobs", "events_before": 1, "time": now()},
        {"event": "cancelled", "job_id": "7_[0-1]", "runs": ["run"]},
        {"event": "adopted", "mark": "m", "job_id": "7", "announced": False},
        {"event": "void", "mark": "n"},
    )


def settings(folder: Path) -> list[Kind]:
    """Return the files of settings that a user or a site writes."""
    os.environ["SLURMSCALE_SITE"] = str(folder)
    site = written(
        folder / "cluster/ours.yaml", b"defaults:\n  - generic_slurm\n\nname: ours\npartition: gpu\nmodules: [a]\n"
    )
    facts = written(folder / "facts.yaml", b"ranks: 16\nnodes: 2\nmodel: llama3-8b\ngated: true\n")
    trials = written(folder / "campaign.yaml", b"baseline:\n  - data=random\nddp: [parallelism=ddp]\nagain:\n")

    def of_site() -> None:
        refuse_missing_site()
        # Only of a file that Hydra has composed.
        with suppress(ValueError):
            read_yaml(site)
            place_of("cluster/ours", "partition")

    return [
        Kind("site", site, (of_site,), 2),
        Kind("composed site", site, (lambda: compose(["cluster=ours"], multirun=False),), 0.05),
        Kind("facts", facts, (lambda: read_facts(facts),), 2),
        Kind("campaign", trials, (lambda: read_trials(trials),), 2),
    ]


def checkpoint(folder: Path) -> list[Kind]:
    """Return the files of a distributed checkpoint."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    save_sharded({"a": torch.arange(8.0), "b": torch.ones(2, 2), "c": "text"}, folder)

    def load() -> None:
        read_into({"a": torch.zeros(8), "b": torch.zeros(2, 2), "c": ""}, folder)

    (part,) = folder.glob("*.distcp")
    return [Kind("checkpoint metadata", folder / ".metadata", (load,)), Kind("checkpoint", part, (load,))]


def written(path: Path, content: bytes) -> Path:
    """Write a file; return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path

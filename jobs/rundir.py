"""The run directory and the sweep directory: all file names, and the format of records.

    runs/.code-UID/code-3f9c.../        code that this user submitted, shared by the sweeps of runs/ (submit.code_store)
    runs/demo/                          a sweep
        submissions.jsonl               one line per intent, submission or cancellation of runs or stages
        stages.jsonl                    events of stages outside runs: prepare_started, prepared, reported, ...
        logs/                           output of the launcher and the ranks, and the submitted scripts
                                        (flat: Slurm does not create a directory for a job's output)
        note.txt                        a line of text, written by `slurmscale note`
        tensorboard/                    event files, written by `slurmscale watch --tensorboard`
        report.html report.md runs.csv  written by `slurmscale report`, also measurements.csv, profile.csv; with
                                        --format figures/, tables/, report.docx and others
        tiny-ddp-n1x2/                  a run
            config.yaml                 the frozen Run
            plan.json                   layout and predictions, written before the run
            provenance.json             git state, versions, host, command; the attempt of a campaign's run
            code -> ../../.code-UID/code-3f9c...
            status.jsonl                events: prepared, started, transport, layout, pace, profile, checkpoint,
                                        finished, stopped, failed, evaluated, ...
            metrics.jsonl               a header line, then one line per step
            power-NODE.csv              power in every second (cluster.record_power), or your own readings
            nccl-RANK.log               NCCL's connections; after the first step the `transport` event is read from
                                        it, and the file is removed
            failures/                   one file per failure of a rank (jobs.run_events)
            owners/000001.json          the starts that took the run over; only the latest one writes into it
            rendezvous-START.json       address, port and token by which the ranks of one start meet (jobs.rendezvous)
            heartbeats/                 the current work of each rank
            hangs/                      stacks and collectives of ranks that hung
            storage/rank-00000.jsonl    bytes that a rank read and wrote, by interval and phase; evaluate.jsonl of the
                                        stage of that name (jobs.runtime.storage_io). The first rank of a node also
                                        writes the use of the node (jobs.runtime.node.use)
            system/node-00000.json      the system of a node: server, CPU, GPUs, network, file systems, software
                                        (jobs.runtime.node.system)
            profiles/rank-0.json.gz     Chrome trace of the profiled steps of a rank; the `profile` event has their
                                        shares. Also the files of nsys and rocprofv3
            checkpoints/step-00000020/  torch.distributed.checkpoint directories
            export/                     a LitGPT checkpoint directory
            serving/                    of a run that serves: prompts, logs of replicas, balancer and load generator,
                                        the load generator's results, and counters and gauges of each replica in each
                                        second (replica-0.jsonl)
            served/                     a run directory: the load on the trained model (jobs.stages.serve)
            program/ work/              of a run that starts a program: what its processes printed, and its own files
            images/                     of a run that makes its images, until it has finished: the shards
            storage-results/            of a run that starts fio: its results
            slurmscale-storage-test/    of a run that measures storage, while it does: its files

A record is a line of JSON appended in one write, by one process at a time. A reader skips incomplete lines: the last
line of a killed job may be truncated, and the file of a running job grows.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shlex
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jobs.errors import ConfigError, RunDirError
from jobs.event_fields import checked_event
from jobs.files import (
    YAML_BYTES,
    UnsuitableFileError,
    exists,
    parse_json,
    parse_yaml,
    read_bytes,
    read_lines,
    read_object,
    reason,
)
from jobs.frozen import interpolation_in, run_of
from jobs.output import open_to_append, write_file
from jobs.schema import Run
from jobs.secrets import redacted

SCHEMA_VERSION = 1
# Prefix of the first line of each start of a batch script in the log of its job.
BATCH_STARTED = "slurmscale: started"
# Prefix of the last line of a batch script that ends before its ranks start.
NOT_STARTED = "slurmscale: not started: "
# Files of `slurmscale report`, which it may write into a sweep directory or next to logs.
WRITTEN = {"report.html", "report.md", "runs.csv", "leaderboard.csv", "measurements.csv", "profile.csv",
           "runs.parquet", "points.tex", "report.docx", "report.xlsx"}  # fmt: skip
FIGURES, TABLES = "figures", "tables"
# The ledger in the folder of `slurmscale tune`; the folder holds two sweeps.
TUNING = "tuning.jsonl"
# Name and role of the attempt with which the others of a campaign are compared, in the provenance of its runs.
BASELINE = "baseline"
# The attempt that is the baseline again, by which the noise between equal runs is measured.
NOISE_FLOOR = "noise-floor"
# Event files of TensorBoard, a folder a run (jobs.submit.watching.tensorboard).
TENSORBOARD = "tensorboard"
# Files of a sweep directory that are not runs.
NOTICES = "notices.jsonl"
RESERVED = {"submissions.jsonl", "stages.jsonl", "note.txt", NOTICES, FIGURES, TABLES, TENSORBOARD, *WRITTEN}
RESERVED_BEGINNINGS = ("code-", "logs", ".")


def as_file_name(text: str) -> str:
    """Return a text as the name of a file: other characters than letters, digits and ._=+- become _."""
    return re.sub(r"[^A-Za-z0-9._=+-]", "_", text)


def is_reserved(name: str) -> bool:
    """Return True if a run of this name would replace another file of its sweep directory."""
    return name in RESERVED or name.startswith(RESERVED_BEGINNINGS)


def is_power_log(name: str) -> bool:
    """Return True if the name of a file in a run directory is one of power readings."""
    return name.startswith("power") and name.endswith(".csv")


@dataclass(frozen=True)
class RunDir:
    """The files of one run."""

    path: Path

    @property
    def name(self) -> str:
        """The run's name."""
        return self.path.name

    @property
    def config(self) -> Path:
        """The frozen Run."""
        return self.path / "config.yaml"

    @property
    def plan(self) -> Path:
        """Layout and predictions."""
        return self.path / "plan.json"

    @property
    def provenance(self) -> Path:
        """Git state, versions, host and command of the submission."""
        return self.path / "provenance.json"

    @property
    def code(self) -> Path:
        """Link to the code this run executes."""
        return self.path / "code"

    @property
    def code_snapshot(self) -> Path:
        """The code that this run executes, without links."""
        # Path.resolve raises RuntimeError for a link to itself.
        return Path(os.path.realpath(self.code))

    @property
    def data(self) -> Path:
        """Link to the tokenized samples this run trains on; absent in a dry run."""
        return self.path / "data"

    @property
    def status(self) -> Path:
        """Events of the run."""
        return self.path / "status.jsonl"

    @property
    def metrics(self) -> Path:
        """Per-step numbers."""
        return self.path / "metrics.jsonl"

    @property
    def power_logs(self) -> list[Path]:
        """Power readings of its nodes: ours, or those of nvidia-smi or a meter."""
        try:
            names = os.listdir(self.path)  # noqa: PTH208 (pathlib is several times slower: a second for 10,000 runs)
        except OSError:
            return []
        found = [self.path / name for name in sorted(names) if is_power_log(name)]
        return [path for path in found if path.is_file()]

    def power_log(self, node: str) -> Path:
        """Return the file of a node's power readings."""
        return self.path / f"power-{node}.csv"

    def nccl_log(self, rank: int) -> Path:
        """Return the path of NCCL's log of this rank, which exists until its first step is done."""
        return self.path / f"nccl-{rank}.log"

    def rendezvous(self, start: str) -> Path:
        """Return the file by which the ranks of a start find each other; it exists until they have met."""
        return self.path / f"rendezvous-{start}.json"

    @property
    def failures(self) -> Path:
        """One file per failure of a rank (jobs.run_events)."""
        return self.path / "failures"

    @property
    def owners(self) -> Path:
        """One file per start that took the run over (jobs.lease)."""
        return self.path / "owners"

    @property
    def heartbeats(self) -> Path:
        """The last heartbeat of each rank."""
        return self.path / "heartbeats"

    @property
    def hangs(self) -> Path:
        """Stacks and collectives of ranks that hung."""
        return self.path / "hangs"

    @property
    def profiles(self) -> Path:
        """Traces of profiled ranks."""
        return self.path / "profiles"

    def trace(self, rank: int) -> Path:
        """Return the Chrome trace of a rank's profiled steps."""
        return self.profiles / f"rank-{rank}.json.gz"

    def storage_log(self, name: str) -> Path:
        """Return the record of a process's reads and writes."""
        return self.path / "storage" / f"{name}.jsonl"

    @property
    def storage_logs(self) -> list[Path]:
        """The records of all its processes' reads and writes."""
        return sorted((self.path / "storage").glob("*.jsonl"))

    def system_record(self, node: int) -> Path:
        """Return the record of the system of a node, by its number in the run."""
        return self.path / "system" / f"node-{node:05d}.json"

    @property
    def system_records(self) -> list[Path]:
        """The records of the systems of all its nodes."""
        return sorted((self.path / "system").glob("node-*.json"))

    @property
    def checkpoints(self) -> Path:
        """Checkpoint directories."""
        return self.path / "checkpoints"

    @property
    def export(self) -> Path:
        """LitGPT checkpoint directory written at the end."""
        return self.path / "export"

    @property
    def serving(self) -> Path:
        """Prompts, logs and results of a run that serves."""
        return self.path / "serving"

    @property
    def served(self) -> Path:
        """The run directory of the load on the trained model (stages.serve)."""
        return self.path / "served"

    @property
    def load_result(self) -> Path:
        """The measured load's result, as vLLM's benchmark writes it."""
        return self.serving / "load.json"

    @property
    def load_log(self) -> Path:
        """The output of the load generator; ApacheBench's result."""
        return self.serving / "load.log"

    @staticmethod
    def load_of_search(concurrency: int, repeat: int) -> str:
        """Return the name of a load of a search, before .json, .log and -prompts.jsonl in serving/."""
        return f"load-{concurrency}-{repeat}"

    def replica_samples(self, number: int) -> Path:
        """Return the counters and gauges of a replica over time."""
        return self.serving / f"replica-{number}.jsonl"

    @property
    def program(self) -> Path:
        """Output of the processes of a program."""
        return self.path / "program"

    def program_log(self, step: str, rank: int) -> Path:
        """Return the output of a process of a step."""
        return self.program / f"{step}-{rank:05d}.log"

    @property
    def work(self) -> Path:
        """Working directory of a program, unless it has another."""
        return self.path / "work"

    @property
    def images(self) -> Path:
        """Shards of a run that makes its images."""
        return self.path / "images"

    @property
    def storage_results(self) -> Path:
        """Results of the programs that a test of storage starts."""
        return self.path / "storage-results"

    def fio_result(self, rank: int) -> Path:
        """Return the result of a rank's fio, as it writes it."""
        return self.storage_results / f"fio-{rank:05d}.json"

    @property
    def fio_results(self) -> list[Path]:
        """The results of all ranks' fio."""
        return sorted(self.storage_results.glob("fio-*.json"))

    @property
    def batch_script(self) -> Path:
        """The script that launcher=script writes for `sbatch`."""
        return self.path / "job.sbatch"

    @property
    def pbs_script(self) -> Path:
        """The script that launcher=pbs_script writes for `qsub`."""
        return self.path / "job.pbs"


@dataclass(frozen=True)
class SweepDir:
    """The files of one sweep, or of one run in it: then its other runs are not seen."""

    path: Path
    only: str | None = None
    """The name of the one run that is meant; None for all."""

    @property
    def whole(self) -> SweepDir:
        """The sweep with all of its runs."""
        return SweepDir(self.path)

    def has(self, name: str | None) -> bool:
        """Return True if a run of this name is meant."""
        return self.only in {None, name}

    @property
    def quoted(self) -> str:
        """The path of what is meant, quoted for a shell."""
        return shlex.quote(str(self.path if self.only is None else self.path / self.only))

    @property
    def submissions(self) -> Path:
        """Ledger of submissions and cancellations."""
        return self.path / "submissions.jsonl"

    @property
    def lock(self) -> Path:
        """Lock of the shell or job that submits, so that a concurrent one waits for the first one's records."""
        return self.path / ".lock"

    @property
    def stages(self) -> Path:
        """Events of the stages before and after the runs."""
        return self.path / "stages.jsonl"

    @property
    def note(self) -> Path:
        """A line of text of the user."""
        return self.path / "note.txt"

    @property
    def logs(self) -> Path:
        """Output of ranks and launcher."""
        return self.path / "logs"

    def output(self, log_id: str, rank: int | str = 0) -> Path:
        """Return the log of a rank of a job, as submitit names it; that of rank 0 is also that of the batch script."""
        return self.logs / f"{log_id}_{rank}_log.out"

    @property
    def code_store(self) -> Path:
        """This user's copies of submitted code, next to the sweep."""
        return code_store(Path(os.path.realpath(self.path)).parent)

    def code(self, digest: str) -> Path:
        """Return the code snapshot with this content digest."""
        return self.code_store / f"code-{digest}"

    def run(self, name: str) -> RunDir:
        """Return the run of this name."""
        return RunDir(self.path / name)

    def runs(self) -> list[RunDir]:
        """Return all runs that are meant, by name."""
        # There may be thousands of files next to the runs: the types of entries come with their names. Only links are
        # followed, later, because one that leads nowhere must not hide the others.
        try:
            with os.scandir(self.path) as entries:
                may_be = [each.name for each in entries if each.is_symlink() or each.is_dir(follow_symlinks=False)]
                names = sorted(filter(self.has, may_be))
        except OSError:
            return []
        return [run for run in map(self.run, names) if exists(run.config)]


def code_store(runs_dir: Path) -> Path:
    """Return the directory of the code that this user submitted from a directory of sweeps, without links.

    One for each user: members of a group may share the directory, and nobody runs code that others can change.
    """
    return Path(os.path.realpath(runs_dir)) / f".code-{os.getuid()}"


def now() -> str:
    """Return the current time as records contain it: UTC, ISO 8601, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def append_record(path: Path, *records: dict[str, Any]) -> None:
    """Append one JSON line per record, all in a single write: whole among processes of a node, not between NFS clients.

    An incomplete line of a killed writer is terminated first, so that only that line is lost. Raise OSError if a
    full disk takes only a part of the line, and RunDirError where the file is a link. Without records do nothing.
    """
    if not records:
        return
    lines = "".join(f"{json.dumps(redacted(each), allow_nan=False, separators=(',', ':'))}\n" for each in records)
    with open_to_append(path) as file:
        size = file.seek(0, os.SEEK_END)
        if size:
            file.seek(size - 1)
            if file.read(1) != b"\n":
                lines = "\n" + lines
        data = lines.encode()
        # A line without its end of line is complete: the next writer adds it.
        if file.write(data) < len(data) - 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a record file in order; skip incomplete lines. A missing file has none."""
    with suppress(FileNotFoundError):
        yield from records_in(read_lines(path))


def records_in(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects among the lines of a record file."""
    for line in lines:
        try:
            record = parse_json(line.decode(errors="replace"))
        except ValueError:
            continue
        if isinstance(record, dict):
            yield record


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a record file in order; skip other records, and events without their required fields."""
    yield from filter(None, map(checked_event, read_records(path)))


def unreadable_event(path: Path, error: OSError, failure: str = "failed") -> dict[str, Any]:
    """Return the failure that stands for events that cannot be read.

    So they cost the row of their own run or stage, and no command or queue.
    """
    return event_record(failure, error=f"{path.name} cannot be read: {reason(error)}")


def read_plan(run: RunDir) -> dict[str, Any]:
    """Return plan.json; empty if it is missing, incomplete or not JSON."""
    try:
        return read_object(run.plan)
    except (FileNotFoundError, UnsuitableFileError, ValueError):
        return {}


def provenance_of(run: RunDir) -> dict[str, Any]:
    """Return provenance.json; empty if it cannot be read or is not JSON."""
    try:
        return read_object(run.provenance)
    except (OSError, ValueError):
        return {}


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write JSON atomically: a concurrent reader sees the old text or the new."""
    write_file(path, json.dumps(redacted(value), indent=1, allow_nan=False) + "\n")


def event_record(event: str, **fields: Any) -> dict[str, Any]:
    """Return an event with the current time; fields that are None are omitted."""
    return {"time": now(), "event": event, **{key: value for key, value in fields.items() if value is not None}}


def append_event(run: RunDir, event: str, **fields: Any) -> None:
    """Append an event to status.jsonl."""
    append_record(run.status, event_record(event, **fields))


def load_run(path: Path, digest: str | None = None) -> Run:
    """Return the frozen Run of a config.yaml.

    Raise RunDirError if the file is missing, damaged, truncated or has another digest (SHA-256), and ConfigError if it
    is not a run of this version. The bytes that are compared are the ones that are read.
    """
    if not os.path.lexists(path) and exists(RunDir(path.parent).status):
        raise damaged(path, "it is missing")
    if not os.path.lexists(path):
        raise RunDirError(
            f"{path.parent} is not a run directory: it has no {path.name}. Pass the directory of one run; "
            f"slurmscale status SWEEP --all lists those of a sweep."
        )
    try:
        content = read_bytes(path, YAML_BYTES)
        if digest not in {None, hashlib.sha256(content).hexdigest()}:
            raise RunDirError(f"{path} was changed since the run was submitted. Submit the run again.")
        written = parse_yaml(content)
    except PermissionError:
        raise
    except (OSError, ValueError) as error:
        raise damaged(path, reason(error)) from error
    if not isinstance(written, dict):
        raise damaged(path, "it contains no settings")
    if (expanded := interpolation_in(written)) is not None:
        raise ConfigError(
            f"{path}: {expanded} is an interpolation, and a frozen configuration has none: it could read variables of "
            "your environment. Remove it, or write \\${ for the text ${."
        )
    # Keys of a later version may be missing; if the remaining keys form no run, the file was truncated.
    missing = [field.name for field in fields(Run) if field.name not in written]
    try:
        return run_of(written)
    except ValueError as error:
        if missing:
            raise damaged(path, f"it has no {missing[0]}") from error
        raise ConfigError(f"{path} is not the configuration of a run of this version: {error}") from error


def load_to_launch(directory: RunDir, digest: str | None = None) -> Run:
    """Return the frozen Run of a run directory, in the sweep where it is now: it may have been moved or received.

    Raise RunDirError if a digest is given and the file has another one.
    """
    run = load_run(directory.config, digest)
    run.runs_dir, run.sweep = str(directory.path.parent.parent), directory.path.parent.name
    return run


def damaged(path: Path, how: str) -> RunDirError:
    """Return the error for a config.yaml that was changed or removed after it was written."""
    return RunDirError(
        f"{path} is damaged: {how}. Restore it from a copy, or move {path.parent} away and run "
        "slurmscale submit with the overrides in its provenance.json."
    )

"""Tests of storage with real ranks and real files: their figures in the report, and what is refused."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]  # torch has it, and does not list it
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from analysis.load.run_directory import read_run
from analysis.report.report import report
from jobs import metrics as m
from jobs.cli import main
from jobs.engines.native.parallelize import device_mesh
from jobs.layout import layout_of
from jobs.plan.compose import compose
from jobs.plan.legality import warnings
from jobs.rundir import RunDir, load_run
from jobs.settings.storage import CheckpointIo
from jobs.work.storage.rules import one_test
from jobs.work.storage.space import needed_bytes, node_memory_bytes
from jobs.work.storage.state import CPU, state_of
from jobs.work.work import work_of
from tests.support.cli import printed_words
from tests.support.real_run import SMALL_MODEL, events, make_run, printed, train
from tests.support.required import skip_or_fail

MODEL = (*SMALL_MODEL, "job.sequence_length=32")


def section(where: Path, heading: str) -> str:
    report([where / "test"], where / "report")
    return (where / "report/report.md").read_text().partition(f"## {heading}")[2].partition("\n## ")[0]


def test_every_rank_writes_and_reads_its_part_of_a_checkpoint(tmp_path: Path) -> None:
    storage = tmp_path / "storage"
    storage.mkdir()
    run = make_run(
        tmp_path, *MODEL, "job=checkpoint_io", "parallelism=fsdp_full", "ranks_per_node=2", f"storage.path={storage}",
        "storage.checkpoint.repeats=2", "storage.checkpoint.fraction=0.5", small=False,
    )  # fmt: skip
    assert train(run) == [0, 0], printed(run)
    assert list(storage.iterdir()) == [], "the files of the test are removed"
    written, read = events(run, "checkpoint_written"), events(run, "checkpoint_read")
    assert [each["repeat"] for each in (*written, *read)] == [1, 2, 1, 2]
    for event in (*written, *read):
        assert sum(rank["size_bytes"] for rank in event["ranks"]) == event["checkpoint_size_bytes"]  # type: ignore[attr-defined]
    run.plan.write_text("{}")
    found = read_run(run.path)
    assert found.state == "tested"
    times_s = sorted(float(str(each["checkpoint_write_time_s"])) for each in written)
    assert found.values[m.CHECKPOINT_WRITE_TIME] == pytest.approx(sum(times_s) / 2)
    assert found.values[m.CHECKPOINT_IO_STRAGGLERS["read"]] >= 1
    assert found.storage is not None, "rates over time are recorded"
    table = section(tmp_path, "Storage tests: checkpoints")
    assert re.search(r"CPU.*: checkpoint of tiny \(native\), REDUCED to 0\.5 of its rows", table)
    assert ("WARM: " in table) is (found.values[m.CACHED_SHARE] > 0.01)


@contextmanager
def group_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def shapes(state: Any, prefix: str = "") -> dict[str, tuple[tuple[int, ...], str]]:
    """The tensors of a state, by the names of its checkpoint."""
    found: dict[str, tuple[tuple[int, ...], str]] = {}
    for name, value in state.items():
        if isinstance(value, dict):
            found |= shapes(value, f"{prefix}{name}.")
        elif value.ndim:
            found[f"{prefix}{name}"] = (tuple(value.shape), str(value.dtype))
    return found


@pytest.mark.slow
def test_the_state_has_the_tensors_of_a_checkpoint_that_training_writes(tmp_path: Path) -> None:
    run = make_run(tmp_path, "ranks_per_node=1", "job.steps=1", "job.checkpoint_every_steps=1")
    assert train(run) == [0], printed(run)
    (checkpoint,) = run.checkpoints.glob("step-*")
    written = FileSystemReader(checkpoint).read_metadata().state_dict_metadata
    expected = {
        name: (tuple(entry.size), str(entry.properties.dtype))
        for name, entry in written.items()
        if isinstance(entry, TensorStorageMetadata) and tuple(entry.size)
    }
    test = compose([*MODEL, "job=checkpoint_io", "ranks_per_node=1"], multirun=False)[0].run
    with group_of_one():
        assert shapes(state_of(test, device_mesh(layout_of(test), CPU))) == expected
        test.storage.checkpoint.fraction = 0.5  # type: ignore[union-attr]
        half = shapes(state_of(test, device_mesh(layout_of(test), CPU)))
    assert half.keys() == expected.keys()
    assert {name: shape[0] for name, (shape, _) in half.items()} == {
        name: -(-shape[0] // 2) for name, (shape, _) in expected.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tar", "text", "megatron_binary"])
def test_workers_of_all_ranks_read_each_sample_once(tmp_path: Path, kind: str) -> None:
    run = make_run(
        tmp_path, "job=data_read", "ranks_per_node=2", f"storage.data.format={kind}", "storage.data.files=5",
        "storage.data.samples=101", "storage.data.sample_bytes=20000", "storage.data.workers=2",
        "storage.data.step_s=0.01", small=False,
    )  # fmt: skip
    assert train(run) == [0, 0], printed(run)
    passes = events(run, "data_read")
    assert [each["cache"] for each in passes] == ["cold", "warm"]
    for each in passes:
        assert sum(rank["samples"] for rank in each["ranks"]) == 101  # type: ignore[attr-defined]
    run.plan.write_text("{}")
    found = read_run(run.path).values
    assert found[m.DATA_READ_RATES["warm", "bytes"]] == pytest.approx(
        20000 * found[m.DATA_READ_RATES["warm", "samples"]], rel=0.02
    )
    assert 0 < found[m.DATA_READ_WAITING["warm"]] < 1
    assert f"CPU: {kind} with 2 workers a rank, 0.01 s of work" in section(tmp_path, "Storage tests: data")


@pytest.mark.slow
def test_the_results_of_fio_on_every_rank_are_summed(tmp_path: Path) -> None:
    if shutil.which("fio") is None:
        skip_or_fail("fio is not installed: run tests/install.sh storage")
    run = make_run(
        tmp_path, "job=fio", "ranks_per_node=2", "storage.fio.size_mib=4", "storage.fio.pattern=randwrite",
        "storage.fio.block_kib=16", "storage.fio.jobs=2", "storage.fio.direct=false", small=False,
    )  # fmt: skip
    assert train(run) == [0, 0], printed(run)
    run.plan.write_text("{}")
    bandwidths = [json.loads(file.read_text())["jobs"][0]["write"]["bw_bytes"] for file in run.fio_results]
    assert len(bandwidths) == 2
    assert read_run(run.path).values[m.FIO_BANDWIDTH] == sum(bandwidths)
    assert "fio randwrite of 16 KiB, through the page cache" in section(tmp_path, "Storage tests: fio")


def test_an_fio_that_says_much_ends_and_its_last_words_are_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin/fio"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nhead -c 200000 /dev/zero | tr '\\0' x >&2\necho bad engine >&2\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    run = make_run(tmp_path, "job=fio", "ranks_per_node=1", small=False)
    assert train(run) != [0]
    (failure,) = events(run, "failed")
    said = str(failure["error"])
    assert "fio ended with exit code 3: xxx" in said
    assert said.endswith("bad engine")


def fake_data_run(where: Path, share: float | None) -> RunDir:
    """A run whose events say what share of its files was cached before its first pass."""
    run = make_run(where, "job=data_read", "ranks_per_node=1", "storage.data.files=8", small=False)
    run.plan.write_text("{}")
    passes = [("cold", share, 4.0), ("warm", 1.0, 1.0)]
    with run.status.open("a") as status:
        for event in (
            {"event": "started", "device": "cpu"},
            *(
                {"event": "data_read", "cache": cache, "cached_share": cached, "data_read_time_s": time_s,
                 "ranks": [{"rank": 0, "samples": 100, "size_bytes": 4000, "time_s": time_s, "waited_s": time_s}]}
                for cache, cached, time_s in passes
            ),
            {"event": "finished"},
        ):  # fmt: skip
            status.write(json.dumps(event) + "\n")
    return run


@pytest.mark.parametrize(
    ("share", "label"),
    [(0.0, None), (0.004, None), (0.5, "WARM: 50.0 % of the pages were cached"), (None, "WARM: the share of cached")],
)
def test_a_read_is_cold_only_if_the_caches_were_empty(tmp_path: Path, share: float | None, label: str | None) -> None:
    values = read_run(fake_data_run(tmp_path, share).path).values
    assert values[m.DATA_READ_RATES["warm", "samples"]] == 100
    assert values.get(m.DATA_READ_RATES["cold", "samples"]) == (25 if label is None else None)
    text = section(tmp_path, "Storage tests: data")
    assert "WARM" not in text if label is None else label in text


def test_a_storage_without_the_space_is_refused_with_the_share_that_fits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # More than any disk: the model of a trillion parameters, with 14 bytes each.
    assert main([
        "submit", "job=checkpoint_io", "model=llama3_1t", "storage.checkpoint.content=mixed", "launcher=local",
        f"runs_dir={tmp_path}", "sweep=s",
    ]) == 2  # fmt: skip
    assert re.search(
        rf"needs 16,549\.1 GB in {tmp_path}/s, which has [\d.,]+ GB free\. Set "
        r"storage\.checkpoint\.fraction=[\de.-]+ or less, or storage\.path=DIRECTORY on a larger storage",
        printed_words(capsys),
    )
    assert not (tmp_path / "s").exists(), "nothing was prepared"


@pytest.mark.slow
def test_a_storage_that_the_nodes_do_not_see_ends_every_rank_with_the_reason(tmp_path: Path) -> None:
    run = make_run(
        tmp_path, *MODEL, "job=checkpoint_io", "ranks_per_node=2", f"storage.path={tmp_path}/absent", small=False
    )
    assert train(run) == [1, 1]
    assert {(event["cause"], str(event["error"]).partition(": ")[2]) for event in events(run, "failed")} == {
        ("refused", f"storage.path={tmp_path}/absent is not a directory on this node. Set storage.path=DIRECTORY, "
                    "which all nodes see.")
    }  # fmt: skip


def test_a_checkpoint_of_the_largest_model_has_no_warnings_of_a_training() -> None:
    largest = [
        "model=llama3_1t",
        "parallelism=tp_pp_fsdp",
        "parallelism.tensor=8",
        "parallelism.pipeline=64",
        "nodes=128",
    ]
    run = compose(["experiment=mlperf_storage_checkpoint", *largest], multirun=False)[0].run
    assert warnings(run) == []
    assert node_memory_bytes(run) == pytest.approx(needed_bytes(run) / run.nodes, rel=0.2)


def test_a_run_makes_one_test() -> None:
    run = compose(["job=data_read"], multirun=False)[0].run
    assert run.storage is not None
    run.storage.checkpoint = CheckpointIo()
    assert one_test(run) == (
        "storage has checkpoint and data; a run needs one. Set job=checkpoint_io, data_read or fio, and no other "
        "section of storage."
    )


def test_settings_of_the_run_are_read_back(tmp_path: Path) -> None:
    run = load_run(make_run(tmp_path, "job=fio", small=False).config)
    assert run.storage is not None
    assert run.storage.fio is not None
    assert run.storage.fio.block_kib == 1024
    assert not work_of(run).reads_samples

"""Exports for experiment trackers: their own programs open them, and every value is that of runs.csv."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from analysis.report.report import report
from tests.support.fake_runs import a_run, finished_run
from tests.support.report_pages import a_hostile_sweep

LOSSES = (8.0, 4.0, 3.0, 2.5, 2.25, 2.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The exports of a sweep of two runs."""
    place = tmp_path_factory.mktemp("trackers")
    for seed, time_s in ((1, 0.5), (2, 0.4)):
        finished_run(place / "demo", a_run(f"r{seed}", repeat=seed), step_time_s=time_s, losses=LOSSES)
    report([place / "demo"], place / "out", ["mlflow,wandb,tensorboard,prometheus,github"])
    return place / "out"


@pytest.fixture
def runs(folder: Path) -> pd.DataFrame:
    """The rows of runs.csv."""
    return pd.read_csv(folder / "runs.csv").set_index("name")


def test_mlflow_reads_settings_values_and_curves(runs: pd.DataFrame, folder: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{folder}/trackers/mlflow.db")
    (experiment,) = (each for each in client.search_experiments() if each.name != "Default")
    found = {each.info.run_name: each for each in client.search_runs([experiment.experiment_id])}
    assert set(found) == {"r1", "r2"}
    assert found["r2"].data.params["job.steps"] == "6"
    assert found["r2"].data.metrics["tokens_per_s"] == runs.loc["r2", "tokens_per_s"]
    curve = client.get_metric_history(found["r1"].info.run_id, "step/loss")
    assert [(each.step, each.value) for each in curve] == list(enumerate(LOSSES, 1))


def test_tensorboard_reads_the_curves(folder: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    (directory, _) = sorted((folder / "trackers/tensorboard").iterdir())
    events = accumulator.EventAccumulator(str(directory)).Reload()
    assert [(each.step, each.value) for each in events.Scalars("loss")] == list(enumerate(LOSSES, 1))


def records_of(file: Path) -> Iterator[bytes]:
    """Yield the records of a log in LevelDB's format, which follows W&B's header of 7 bytes.

    A block has 32 KiB; each part of a record in it has a checksum (4 bytes), a length (2) and a type (1: whole,
    2: first, 3: middle, 4: last).
    """
    data, place, parts = file.read_bytes(), 7, b""
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        length, kind = struct.unpack("<HB", data[place + 4 : place + 7])
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in {1, 4}:
            yield parts
            parts = b""


def test_wandb_has_the_curves_and_values_in_its_offline_runs(runs: pd.DataFrame, folder: Path) -> None:
    messages = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    (file, _) = sorted((folder / "trackers/wandb").glob("*/run-*.wandb"))
    losses: list[float] = []
    names: list[str] = []
    summary: dict[str, str] = {}
    for data in records_of(file):
        record = messages.Record()
        record.ParseFromString(data)
        if record.HasField("run"):
            names.append(record.run.display_name)
        items = {each.key or each.nested_key[0]: each.value_json for each in record.history.item}
        losses += [json.loads(items["loss"])] if "loss" in items else []
        summary |= {each.key or each.nested_key[0]: each.value_json for each in record.summary.update}
    assert set(names) == {"r1"}
    assert losses == list(LOSSES)
    assert json.loads(summary["tokens_per_s"]) == runs.loc["r1", "tokens_per_s"]


def test_prometheus_parses_the_gauges(runs: pd.DataFrame, folder: Path) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    text = (folder / "slurmscale.prom").read_text()
    families = {each.name: each for each in parser.text_string_to_metric_families(text)}
    values = {each.labels["run"]: each.value for each in families["slurmscale_tokens_per_s"].samples}
    assert values == runs["tokens_per_s"].to_dict()
    assert [(each.labels, each.value) for each in families["slurmscale_runs"].samples] == [({"state": "finished"}, 2)]


def test_a_pull_request_has_the_headline_and_the_points(folder: Path) -> None:
    text = (folder / "pull_request.md").read_text()
    page = (folder / "report.md").read_text()
    assert text.startswith("### ")
    points = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(points) == 2
    assert all(line in page for line in points)


@pytest.mark.parametrize(
    ("formats", "names"),
    [
        ("tensorboard,prometheus,github", {"slurmscale.prom", "pull_request.md"}),
        # It takes its time for each run. wandb's has the same texts, and takes as long.
        pytest.param("mlflow", {"mlflow.db"}, marks=pytest.mark.long),
    ],
)
def test_names_that_are_no_paths_or_labels_do_no_harm_and_no_secret_is_exported(
    formats: str, names: set[str], tmp_path: Path
) -> None:
    a_hostile_sweep(tmp_path / "demo")
    report([tmp_path / "demo"], tmp_path / "out", [formats], anonymous=True)
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert {path.name for path in files} >= names
    for file in files:
        assert str(tmp_path).encode() not in file.read_bytes(), file

"""Published results: the table agrees with the documents, and a run is shown beside those that it reproduces."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from analysis.compare.published import (
    METRICS,
    PER_GPU,
    Published,
    experiment_of,
    figures_for,
    gpu_family,
    obstacle,
    published,
    table,
)
from analysis.load.discover import read_runs
from analysis.report.digest import Digest
from analysis.report.report import report
from analysis.report.sections.published import published_section
from analysis.scaling.groups import scaling_groups
from jobs import metrics as m
from jobs.cli import main
from jobs.plan.compose import compose
from jobs.plan.cost import parameters
from jobs.rundir import RunDir
from jobs.schema import Model, Run
from tests.support.composing import options
from tests.support.fake_runs import a_run, ended, event, finished_run, prepared, started, step

FACTORS = {"": 1, "s": 1, "min": 60, "%": 0.01, "G/node": 1e9, "KB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9, "GB": 1e9,
           "TB": 1e12}  # fmt: skip
EXPERIMENT = "experiment=llama2_7b_nemo"


# --- the figures -----------------------------------------------------------------------------------------------


def in_si(figure: Published) -> float:
    """The value that stands in the table, by an arithmetic of its own."""
    if figure.printed_unit == "min:s":
        minutes, seconds = figure.printed.split(":")
        return 60 * int(minutes) + int(seconds)
    found = re.fullmatch(r"([\d.]+) ?(\S*)", figure.printed)
    assert found is not None, figure.printed
    return float(found[1]) * FACTORS[found[2] or figure.printed_unit]


def test_every_value_is_the_printed_one_in_the_unit_of_its_metric() -> None:
    rows = table("published.csv")
    assert len(rows) == len(published())
    for row, figure in zip(rows, published(), strict=True):
        gpus = figure.gpus if row["metric"] == "tokens_per_s" else 1
        assert gpus * figure.value == pytest.approx(in_si(figure)), figure
        assert row["unit"] == METRICS[row["metric"]].unit


def test_every_row_has_a_dated_source_and_what_makes_it_comparable() -> None:
    for figure in published():
        assert figure.document.title, figure
        assert re.match(r"20\d\d", figure.document.date), figure
        assert figure.value > 0, figure
        assert figure.metric.unit != "FLOP/s", figure
        if figure.metric in PER_GPU:
            assert gpu_family(figure.gpu), figure
            assert figure.sequence_length, figure
            assert figure.micro_batch_size, figure
            assert figure.precision in {"bfloat16", "float8"}, figure


def test_published_rates_are_a_sane_share_of_the_peak_of_their_gpu() -> None:
    shares = [share_of_peak(each) for each in published() if each.metric in PER_GPU]
    assert len(shares) > 90
    assert 0.05 < min(shares) <= max(shares) < 0.75


@cache
def composed_model(name: str) -> Model:
    """Return the values of a model file."""
    (point,) = compose([f"model={name}"], multirun=False)
    return point.run.model


def share_of_peak(figure: Published) -> float:
    """Return the MFU of a rate by 6 N + 12 L a s, without the embedding; a published MFU as it is."""
    if figure.metric is m.MFU:
        return figure.value
    model, peak = composed_model(str(figure.model)), {"A100": 312e12, "H100": 989e12}[str(gpu_family(figure.gpu))]
    weights = parameters(model) - model.vocab_size * model.hidden_size
    assert figure.sequence_length is not None
    flops = 6 * weights + 12 * model.layers * model.hidden_size * figure.sequence_length
    return figure.value * flops / (peak * (2 if figure.precision == "float8" else 1))


# --- rates of one GPU --------------------------------------------------------------------------------------------


def a_gpu_run(where: Path, *overrides: str, device: str = "NVIDIA H100 80GB HBM3") -> RunDir:
    """Write a finished run on GPUs."""
    (point,) = compose(
        ["job.precision=bfloat16", "job.steps=12", "job.sequence_length=8192", "data=random", f"runs_dir={where}",
         "parallelism=fsdp_full", *overrides],
        multirun=False,
    )  # fmt: skip
    directory = finished_run(where, replace(point.run, name="run"), device="gpu", device_name=device)
    plan = json.loads(directory.plan.read_text()) | {"parameters": parameters(point.run.model)}
    directory.plan.write_text(json.dumps(plan))
    return directory


def rates_beside(where: Path) -> dict[tuple[str, int], Published]:
    (run,) = read_runs([where])
    return {(each.software, each.gpus): each for each in figures_for(run) if each.metric in PER_GPU}


def test_a_run_on_another_number_of_gpus_stands_beside_the_nearest_published_size(tmp_path: Path) -> None:
    a_gpu_run(tmp_path, "model=llama31_8b", "nodes=2", "ranks_per_node=8")
    beside = rates_beside(tmp_path)
    assert ("NVIDIA NeMo", 16) in beside
    assert ("torchtitan, FSDP + torch.compile, selective checkpointing", 8) in beside
    assert {each.precision for each in beside.values()} == {"bfloat16"}
    section = published_section(Digest(groups=scaling_groups(read_runs([tmp_path]))))
    assert section is not None
    rows = [row for row in section.rows if row[1] == "Tokens/s/rank"]
    assert rows
    assert all(row[5] != "—" for row in rows)


@pytest.mark.parametrize(
    ("overrides", "device"),
    [
        (["model=llama31_8b", "job.sequence_length=4096"], "NVIDIA H100 80GB HBM3"),
        (["model=llama31_8b"], "NVIDIA H100 PCIe"),
        (["model=llama31_8b"], "NVIDIA A100-SXM4-80GB"),
        (["model=mistral_large_2407"], "NVIDIA H100 80GB HBM3"),
    ],
)
def test_another_sequence_gpu_or_model_has_no_rate_beside_it(overrides: list[str], device: str, tmp_path: Path) -> None:
    a_gpu_run(tmp_path, *overrides, "nodes=2", "ranks_per_node=8", device=device)
    assert not [each for each in rates_beside(tmp_path).values() if each.metric is m.TOKENS_PER_S_PER_RANK]


def test_an_mfu_stands_beside_models_of_similar_size_without_a_ratio(tmp_path: Path) -> None:
    a_gpu_run(tmp_path, "model=llama2_7b", "job.sequence_length=4096", "nodes=1", "ranks_per_node=8")
    (run,) = read_runs([tmp_path])
    found = [each for each in figures_for(run) if each.metric is m.MFU]
    assert {each.model for each in found} == {"mpt_7b"}
    assert all("model llama2_7b, published mpt_7b" in str(obstacle(run, each)) for each in found)


def test_the_figures_of_one_row_of_a_table_share_its_settings() -> None:
    measured = {"variant", "metric", "value", "unit", "printed", "printed_unit", "gpu", "hardware"}
    settings: dict[tuple[str, str, str], dict[str, str]] = {}
    for row in table("published.csv"):
        place, own = (row["document"], row["table"], row["row"]), {k: v for k, v in row.items() if k not in measured}
        assert settings.setdefault(place, own) == own
    for figure in published():
        assert figure.gpus % figure.nodes == 0
        assert figure.gpus % ((figure.tensor or 1) * (figure.pipeline or 1)) == 0


def test_the_experiments_named_are_there_and_compose_to_the_published_settings() -> None:
    named = {each.experiment for each in published() if each.experiment}
    assert named == {"llama2_7b_nemo", "llama2_70b_nemo", "apac_hpc_ai_2024", "resnet50_powerscale"}
    assert named <= set(options("experiment"))
    for figure in published():
        if figure.experiment:
            run = of_experiment(
                f"experiment={figure.experiment}", *(["data.path=/data"] if figure.data == "alpaca" else [])
            )
            settings = [
                (run.model.name, figure.model),
                (run.nodes, figure.nodes),
                (run.ranks, figure.gpus),
                (run.parallelism.tensor, figure.tensor),
                (run.parallelism.pipeline, figure.pipeline),
                (run.global_batch_size, figure.global_batch_size),
                (run.job.sequence_length, figure.sequence_length),
                (run.job.steps, figure.steps),
                (run.job.epochs, figure.epochs),
            ]
            assert all(theirs in {None, ours} for ours, theirs in settings)


# --- beside runs -----------------------------------------------------------------------------------------------


@cache
def of_experiment(*overrides: str) -> Run:
    return replace(compose([*overrides, "name=r", "sweep=s"], multirun=False)[0].run, name="r")


def trained(where: Path, run: Run, overrides: list[str], *, step_time_s: float = 5.0, **started_with: Any) -> RunDir:
    """A run of which all steps take as long, with a checkpoint of 80 GB that took 100 s to write."""
    directory = prepared(where, run, overrides=overrides)
    started(directory, run, startup_time_s=2.0, **started_with)
    for number in range(1, (run.job.steps or 40) + 1):
        step(directory, number, step_time_s=step_time_s)
    event(directory, "checkpoint", step=run.job.steps, checkpoint_size_bytes=80e9, checkpoint_write_time_s=100.0)
    ended(directory, step=run.job.steps, time="2026-01-02T04:00:00.000+00:00")
    return directory


def rows(where: Path) -> list[dict[str, str]]:
    section = published_section(Digest(groups=scaling_groups(read_runs([where]))))
    assert section is not None
    return [dict(zip(section.headings, row, strict=True)) for row in section.rows]


def test_submit_records_the_experiment(tmp_path: Path) -> None:
    arguments = [EXPERIMENT, "launcher=dry", f"runs_dir={tmp_path}", "sweep=s"]
    assert main(["submit", *arguments]) == 0
    (run,) = read_runs([tmp_path])
    assert experiment_of(run) == "llama2_7b_nemo"
    assert len(figures_for(run)) == 5


def test_a_run_of_an_experiment_stands_beside_what_was_published_of_it(tmp_path: Path) -> None:
    run = of_experiment(EXPERIMENT)
    h100 = {"device": "cuda", "device_name": "NVIDIA H100 80GB HBM3"}
    trained(tmp_path, run, [EXPERIMENT], step_time_s=4.0, **h100)
    trained(tmp_path, replace(run, name="again", repeat=2), [EXPERIMENT], step_time_s=6.0, **h100)
    time, size, writing, *storage, rate = rows(tmp_path)
    assert time["Line"] == "GPU: llama2_7b with tp on 8 ranks on 1 node"
    assert (time["Metric"], time["n"], time["Published"]) == ("Useful time (s)", "2", "199.2")
    assert time["Measured"] == "200.0 (160.0 to 240.0)"
    assert time["Measured / published"] == "1.00 (0.803 to 1.20)"
    assert time["Differences, and the source"] == (
        "GPU (NVIDIA H100 80GB HBM3); published: 8 NVIDIA H100 SXM, Dell PowerEdge XE9680; InfiniBand NDR; PowerScale "
        "F600. Software: engine nemo, torch 2.13.0; published: NVIDIA NeMo Framework v23.11. Precision: bfloat16; "
        "published: not stated. Data: random; published: The Pile, 2 shards. 3.32 min in table 4 of H20044."
    )
    assert size["Differences, and the source"] == "Differs as above. 100 GB in table 4 of H20044."
    assert (size["Measured / published"], writing["Measured / published"]) == ("0.800", "0.667")
    assert [row["Measured / published"] for row in storage] == ["—", "—"]
    assert (rate["Metric"], rate["Published"]) == ("Tokens/s/rank", "9,600")
    assert "96 NVIDIA H100 80GB HBM3" in rate["Differences, and the source"]
    assert all(row["Differences, and the source"].startswith("Not measured by this run. ") for row in storage)


def test_a_cpu_or_emulated_measurement_states_it_first(tmp_path: Path) -> None:
    run = of_experiment(EXPERIMENT)
    trained(tmp_path / "cpu", run, [EXPERIMENT])
    trained(tmp_path / "emulated", run, [EXPERIMENT], emulated_nodes=True)
    (first, *_), (second, *_) = rows(tmp_path / "cpu"), rows(tmp_path / "emulated")
    assert first["Line"].startswith("CPU: llama2_7b")
    assert first["Differences, and the source"].startswith("CPU (Test CPU); published: 8 NVIDIA H100 SXM")
    assert second["Line"].startswith("Emulated nodes on CPU: ")
    section = published_section(Digest(groups=scaling_groups(read_runs([tmp_path / "emulated"]))))
    assert section is not None
    assert section.note.startswith("Emulated nodes on CPU: ")


@pytest.mark.parametrize(
    ("override", "why"),
    [
        ("model=tiny", "model tiny, published llama2_7b"),
        ("ranks_per_node=4", "ranks 4, published 8"),
        ("scaling.global_batch_size=72", "GBS 72, published 144"),
        ("job.steps=20", "steps 20, published 40"),
        ("job.sequence_length=2048", "sequence length 2048, published 4096"),
    ],
)
def test_there_is_no_ratio_where_the_task_is_another(override: str, why: str, tmp_path: Path) -> None:
    run = of_experiment(EXPERIMENT, override, *(["model.max_sequence_length=4096"] if "tiny" in override else []))
    trained(tmp_path, run, [EXPERIMENT, override])
    time, *_ = rows(tmp_path)
    assert time["Measured / published"] == "—"
    assert time["Measured"] != "—"
    assert time["Differences, and the source"].startswith(f"No ratio: {why}. ")


def test_another_layout_or_precision_of_the_experiment_is_compared_and_listed(tmp_path: Path) -> None:
    changed = ["parallelism.tensor=4", "job.precision=float32"]
    trained(tmp_path, of_experiment(EXPERIMENT, *changed), [EXPERIMENT, *changed])
    time, *_ = rows(tmp_path)
    assert time["Measured / published"] == "1.00"
    assert "Precision: float32; published: not stated. TP: 4; published: 2." in time["Differences, and the source"]


def test_equal_settings_are_recognised_without_the_experiment(tmp_path: Path) -> None:
    trained(tmp_path / "equal", of_experiment(EXPERIMENT), [])
    assert len(rows(tmp_path / "equal")) == 5
    trained(tmp_path / "other", of_experiment(EXPERIMENT, "parallelism.tensor=4"), ["parallelism.tensor=4"])
    assert published_section(Digest(groups=scaling_groups(read_runs([tmp_path / "other"])))) is None


def test_an_epoch_of_unknown_length_has_no_ratio(tmp_path: Path) -> None:
    overrides = ["model=llama31_8b", "parallelism=fsdp_full", "data=pubmedqa", "data.path=x", "nodes=2",
                 "ranks_per_node=8", "job.steps=null", "job.epochs=3", "job.micro_batch_size=1",
                 "scaling.global_batch_size=16"]  # fmt: skip
    trained(tmp_path / "any", of_experiment(*overrides), overrides, step_time_s=30.0)
    without, with_roce = rows(tmp_path / "any")
    assert (without["Measured"], without["Published"], with_roce["Published"]) == ("400.0", "1,220", "1,071")
    assert without["Measured / published"] == with_roce["Measured / published"] == "—"
    assert "No ratio: the samples of an epoch of the run are unknown." in without["Differences, and the source"]
    assert "RoCE not enabled" in without["Differences, and the source"]
    asked = [*overrides, "network=roce", "cluster=xe9680_mi300x"]
    trained(tmp_path / "roce", of_experiment(*asked), asked, step_time_s=30.0)
    assert [row["Published"] for row in rows(tmp_path / "roce")] == ["1,071"]


def test_a_report_of_other_runs_reports_nothing_of_documents(tmp_path: Path) -> None:
    finished_run(tmp_path, a_run())
    assert "Measured and published" not in report([tmp_path], None).read_text()


def test_the_page_shows_it(tmp_path: Path) -> None:
    trained(tmp_path, of_experiment(EXPERIMENT), [EXPERIMENT])
    text = unescape(report([tmp_path], None).read_text())
    assert "Measured and published</h2>" in text
    assert "3.32 min in table 4 of H20044." in text
    assert (
        "H20044: Scale AI Training and Fine-Tuning with Dell PowerScale and PowerEdge Servers (Dell, 2024-05)." in text
    )
    assert "## Measured and published" in (tmp_path / "report.md").read_text()

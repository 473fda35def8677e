"""Published results, and the conditions under which a run may be compared with them.

published.csv has one row per figure, published_documents.csv one row per document: numbers, settings and citations as
printed; a cell is empty if the document does not state the value. The samples of an epoch are those of the data that it
names (conf/experiment/README.md). Tokens/s of all GPUs become those of one GPU. No
FLOP/s are kept: programs count them by different formulas (analysis.metrics.mfu). An MFU is kept if its document
counts as analysis.metrics.mfu does, 6 N + 12 L a s. The time that H20044 prints for 40 steps cannot include its
checkpoint: 3.32 minutes less 2:30 would be 2.4 PFLOP/s for each GPU, more than an H100 has.
"""

from __future__ import annotations

import csv
import functools
import math
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from analysis.parsers import log_metrics as a
from analysis.run import RunResult
from analysis.untrusted import as_list, as_number, lookup, number
from jobs import metrics as m
from jobs.metrics import Metric

METRICS = {each.name: each for each in vars(a).values() if isinstance(each, Metric)} | m.REGISTRY
COUNTS = (
    "parameters", "nodes", "gpus", "tensor", "pipeline",
    "micro_batch_size", "global_batch_size", "sequence_length", "steps", "epochs", "samples",
)  # fmt: skip
# Rates of one GPU, which runs of other sizes reach as well.
PER_GPU = {m.TOKENS_PER_S_PER_RANK, m.MFU}
# A published MFU is compared with runs whose models have a number of weights within this factor.
SIMILAR = 1.5
GPU_FAMILY = re.compile(r"\b(?:GH200|GB200|GB300|A100|H100|H200|B200|B300|MI\d{3}X)", re.IGNORECASE)
# GPUs of a family that are slower than its others.
SLOWER_FORMS = ("PCIE", "NVL")
# The beginning of an override that selects a file of conf/experiment.
EXPERIMENT = "experiment="
# The parts of the training loop of a run that was started once.
LOOP = (m.FIRST_STEP_TIME, m.WARMUP_TIME, m.STEADY_TIME, m.CHECKPOINT_TOTAL_TIME)

# Files of conf/cluster by the names of their machines.
MACHINES = {"NCI Gadi": "gadi_gpuvolta", "NSCC SG Aspire-2A": "aspire2a"}
# The transport of a figure, by its variant.
TRANSPORTS = {"RoCE enabled": "roce", "RoCE not enabled": "tcp"}


@dataclass(frozen=True)
class Document:
    """A document with published results."""

    document: str
    """Its key in published.csv."""
    title: str
    publisher: str
    date: str
    """As exact as the document states it: 2024, or 2024-05."""
    number: str

    @property
    def name(self) -> str:
        """Its number, or its title if it has none."""
        return self.number or self.title

    @property
    def citation(self) -> str:
        """The full citation: `H20044: Scale AI Training (Dell, 2024-05)`."""
        title = f"{self.number}: {self.title}" if self.number else self.title
        return f"{title} ({', '.join(filter(None, (self.publisher, self.date)))})"


@dataclass(frozen=True)
class Published:
    """One published figure with its settings; None or empty if the document does not state them."""

    document: Document
    table: str
    row: str
    """The cells that name the row, joined by bars."""
    experiment: str
    """The file of conf/experiment that reproduces it."""
    model: str
    """As in conf/model, if it is there."""
    parameters: int | None
    """Stated by documents whose models are not in conf/model."""
    nodes: int
    gpus: int
    gpu: str
    hardware: str
    software: str
    precision: str
    tensor: int | None
    pipeline: int | None
    micro_batch_size: int | None
    global_batch_size: int | None
    sequence_length: int | None
    steps: int | None
    epochs: int | None
    samples: int | None
    """Samples of an epoch."""
    data: str
    """As in conf/data, if the data must be equal."""
    data_as_published: str
    variant: str
    metric: Metric
    value: float
    """In the metric's unit."""
    printed: str
    """As printed in the table."""
    printed_unit: str
    """Set if only the heading has the unit."""

    @property
    def source(self) -> str:
        """The figure as printed, with its place: `3.32 min in table 4 of H20044`."""
        return f"{self.as_printed} in {self.place}"

    @property
    def as_printed(self) -> str:
        """The figure as printed, with its unit."""
        return " ".join(filter(None, (self.printed, self.printed_unit)))

    @property
    def place(self) -> str:
        """The place of the figure: `table 4 of H20044`."""
        where = f"table {self.table}" if self.table.isdigit() else f"the table under {self.table}"
        return f"{where} of {self.document.name}"


def table(name: str) -> list[dict[str, str]]:
    """Return the rows of one of the data files."""
    text = (files("analysis") / "compare" / name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


@functools.cache
def published() -> tuple[Published, ...]:
    """Return all published results."""
    documents = {row["document"]: Document(**row) for row in table("published_documents.csv")}
    return tuple(figure(row, documents) for row in table("published.csv"))


def figure(row: Mapping[str, str], documents: Mapping[str, Document]) -> Published:
    """Return the figure of one row."""
    other = {*COUNTS, "document", "metric", "value", "unit"}
    settings: dict[str, Any] = {name: text for name, text in row.items() if name not in other}
    settings |= {name: int(row[name]) if row[name] else None for name in COUNTS}
    metric, value = METRICS[row["metric"]], float(row["value"])
    if metric is m.TOKENS_PER_S:
        metric, value = m.TOKENS_PER_S_PER_RANK, value / settings["gpus"]
    return Published(document=documents[row["document"]], metric=metric, value=value, **settings)


# --- compared with a run ----------------------------------------------------------------------------------------------


def experiment_of(run: RunResult) -> str | None:
    """Return the experiment file that the run was composed from; None if there is none."""
    return experiment_in(str(each) for each in as_list(run.provenance.get("overrides")))


def experiment_in(overrides: Iterable[str]) -> str | None:
    """Return the experiment file that overrides name; None if they name none."""
    named = [each.removeprefix(EXPERIMENT) for each in overrides if each.startswith(EXPERIMENT)]
    return named[-1] if named else None


def figures_for(run: RunResult) -> list[Published]:
    """Return the results published for the run's experiment, or else for equal settings, and the rates of its GPU."""
    label = run.setting("images.storage")
    named = [
        each
        for each in published()
        if each.experiment and each.experiment == experiment_of(run) and label in {None, each.variant}
        if not of_another_machine(run, each)
    ]
    equal = [each for each in published() if not list(conflicts(run, each))]
    per_gpu = [each for each in equal if each.metric in PER_GPU]
    return (named or [each for each in equal if each not in per_gpu]) + nearest_sizes(per_gpu, run.ranks or 1)


def of_another_machine(run: RunResult, figure: Published) -> bool:
    """Return True if both are of machines that are known by name, and these differ."""
    machine, own = MACHINES.get(figure.hardware), run.setting("cluster.name")
    return machine is not None and own in MACHINES.values() and own != machine


def nearest_sizes(figures: Sequence[Published], ranks: int) -> list[Published]:
    """Return the figure with the nearest number of GPUs for each program, model and precision."""
    nearest: dict[tuple[str, ...], Published] = {}
    for each in figures:
        key = (each.document.document, each.software, each.model, each.variant, each.metric.name)
        distance = abs(math.log(each.gpus / ranks))
        if key not in nearest or distance < abs(math.log(nearest[key].gpus / ranks)):
            nearest[key] = each
    return list(nearest.values())


def conflicts(run: RunResult, figure: Published) -> Iterator[str]:
    """Yield the settings of a run that are known to differ from those of a figure."""
    if figure.metric in PER_GPU:
        yield from conflicts_per_gpu(run, figure)
        return
    both = {**task(run, figure), "tensor": (run.setting("parallelism.tensor"), figure.tensor)}
    both["pipeline"] = run.setting("parallelism.pipeline"), figure.pipeline
    both["data"] = run.setting("data.name"), figure.data or None
    if asked := run.setting("network.transport"):
        both["network"] = asked, TRANSPORTS.get(figure.variant)
    for name, (ours, theirs) in both.items():
        if theirs is not None and ours != theirs:
            yield name


def conflicts_per_gpu(run: RunResult, figure: Published) -> Iterator[str]:
    """Yield the settings that make the rate of a GPU another one; the number of GPUs is none of them."""
    if gpu_family(str(run.started.get("device_name"))) != gpu_family(figure.gpu):
        yield "GPU"
    if arithmetic(run) != figure.precision:
        yield "precision"
    if run.setting("job.sequence_length") != figure.sequence_length:
        yield "sequence length"
    if run.freezes_weights:
        yield "trained weights"
    weights = as_number(lookup(run.plan, "parameters"))
    if figure.metric is not m.MFU or not weights or not figure.parameters:
        if run.setting("model.name") != figure.model:
            yield "model"
    elif abs(math.log(weights / figure.parameters)) > math.log(SIMILAR):
        yield "number of weights"


def gpu_family(device: str) -> str | None:
    """Return the family of a device that computes equally fast: `H100`, `H100 PCIE`; None if it is not known."""
    found = GPU_FAMILY.search(device)
    if found is None:
        return None
    form = next((form for form in SLOWER_FORMS if form in device.upper()), "")
    return f"{found[0].upper()} {form}".rstrip()


def arithmetic(run: RunResult) -> str | None:
    """Return the type of a run's matrix products as published.csv names it; None if it is not known."""
    named = str(run.setting("job.precision")).lower()
    if run.setting("engine.float8") is True or "fp8" in named or "float8" in named:
        # The figures are of 8 bits.
        return None if run.setting("engine.float8_recipe") == "nvfp4" else "float8"
    return "bfloat16" if "bf16" in named or "bfloat16" in named else None


def task(run: RunResult, figure: Published) -> dict[str, tuple[Any, Any]]:
    """Return the settings that must be equal for a ratio: of the run, and as published."""
    if figure.metric in PER_GPU:
        return {"model": (run.setting("model.name"), figure.model)}
    return {
        "model": (run.setting("model.name"), figure.model),
        "nodes": (run.setting("nodes"), figure.nodes),
        "ranks": (run.ranks, figure.gpus),
        "GBS": (lookup(run.plan, "global_batch_size") or run.setting("scaling.global_batch_size"),
                figure.global_batch_size),
        "sequence length": (run.setting("job.sequence_length"), figure.sequence_length),
        "steps": (run.setting("job.steps"), figure.steps),
        "epochs": (run.setting("job.epochs"), figure.epochs),
    }  # fmt: skip


def obstacle(run: RunResult, figure: Published) -> str | None:
    """Return why a run and a figure have no ratio; None if they may have one."""
    if run.rehearses:
        return "a rehearsal measures nothing of the experiment"
    for name, (ours, theirs) in task(run, figure).items():
        if theirs is not None and ours != theirs:
            return f"{name} {'unknown' if ours is None else ours}, published {theirs}"
    if figure.epochs is not None:
        return unequal_epochs(run, figure)
    return None


def unequal_epochs(run: RunResult, figure: Published) -> str | None:
    """Return why an epoch of a run is another one than that of a figure; an incomplete last batch is left out."""
    drawn, batch = run.values.get(m.SAMPLES_TRAINED), as_number(lookup(run.plan, "global_batch_size"))
    epochs = as_number(run.setting("job.epochs"))
    if figure.samples is None:
        return "the document does not state the number of samples of an epoch"
    if not drawn or not epochs or not batch:
        return "the samples of an epoch of the run are unknown"
    own = drawn / epochs
    return (
        None if abs(own - figure.samples) < batch else f"samples of an epoch {own:,.0f}, published {figure.samples:,}"
    )


def measured(run: RunResult, metric: Metric) -> float | None:
    """Return a metric of a run, also one that only comparisons use; None if it was not measured."""
    if metric is m.CHECKPOINT_WRITE_TIME:
        events = [event for event in run.events if event["event"] == "checkpoint"]
        times_s = [time_s for event in events if (time_s := number(event, metric)) is not None]
        return statistics.median(times_s) if times_s else run.values.get(metric)
    if metric is a.TRAINING_TIME and run.attempts == 1:
        times = [run.values.get(part) for part in LOOP]
        return None if None in times else math.fsum(filter(None, times))
    return run.values.get(metric)

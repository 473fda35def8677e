"""A day with a GPU: what works, compiled graphs, matrix rate, dense training, epochs beside stock LitGPT, memory.

    python -m tests.benchmarks.gpu --output DIR --data alpaca.json --tokenizer tokenizer.model

Each stage is a process of its own of at most ten minutes. It leaves DIR/STAGE.csv, its figures with device, date,
versions and command, and the records of its runs in DIR/runs, from which `slurmscale report` makes a page. A stage
whose file exists is kept, so the command continues where it was cut off; remove a file to measure again. Runs of a
stage that was killed are ended first. At the end DIR/summary.csv contains the ratios. Every run is a `slurmscale
submit` with random weights, as users run it. `--rehearsal` runs tiny models on a CPU, whose figures have no meaning.

Requires 64 GB of memory and 30 GB of disk in $TMPDIR; the stages of an epoch also need the data and the tokenizer.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

import torch

from analysis.load.discover import read_runs
from analysis.metrics.mfu import work_of
from analysis.run import RunResult
from jobs import metrics as m
from jobs.rundir import RunDir, SweepDir, read_records
from jobs.runtime.gpus.gpu import installed
from tests.benchmarks.gpu_memory import SPACE, configurations, this_gpu

STAGE_S, RUNS_S = 600, 560
SAMPLES, HELD_OUT = 1000, 8
# Each adds one change to the one before.
STOCK = ("engine=litgpt",)
PADDED = ("engine=native", "engine.optimizer_loop=fused")
PACKED = (*PADDED, "job.batching=packed", "engine.loss=chunked")
# 4 packed samples are 920 tokens on average, too few to fill the products of a GPU; 16 are about as many as DENSE has.
LARGER = (*PACKED, "engine.kernels=liger_or_torch", "engine.prefetch_batches=2", "job.micro_batch_size=16")
# All samples of a step at once: gradients are never added, and appear while activations go.
WHOLE = (*LARGER, "job.micro_batch_size=32", "engine.activation_checkpointing=selective")
EPOCHS = {"stock": STOCK, "padded": PADDED, "packed": PACKED, "larger": LARGER, "whole": WHOLE}
EPOCH = ("job=finetune_full", "data=alpaca", f"data.max_samples={SAMPLES}", f"data.held_out_samples={HELD_OUT}",
         "data.too_long=truncate", "job.sequence_length=512", "job.micro_batch_size=4", "scaling.global_batch_size=32",
         "job.clip_norm=null", "job.warmup_steps=3")  # fmt: skip
# Rows of equal length need no packing, and padded ones take cuDNN's attention.
DENSE = (*PADDED, "engine.loss=chunked", "engine.prefetch_batches=2", "job=pretrain", "data=random",
         "data.max_samples=64", "job.sequence_length=4096", "job.micro_batch_size=1", "scaling.global_batch_size=8",
         "job.steps=6", "job.unmeasured_steps=2")  # fmt: skip
# torch's kernels keep 0.90 GB of activations a layer for 4,096 tokens, 83 GB in all: more than a GPU of 80 GB has.
WITHOUT_LIGER = ("engine.activation_checkpointing=selective",)
SHARED = ("parallelism=single", "ranks_per_node=1", "job.precision=bfloat16", "engine.parameters=bfloat16")
SHORT = ("job.sequence_length=128", "job.micro_batch_size=4", "scaling.global_batch_size=8")
SMALL = ("model.layers=1", "model.hidden_size=64", "model.heads=4", "model.kv_heads=2", "model.head_size=16",
         "model.intermediate_size=128", "model.vocab_size=512", "model.max_sequence_length=64",
         "job.sequence_length=64", "job.steps=3", "job.unmeasured_steps=1", "job.warmup_steps=1",
         "engine.compile=false")  # fmt: skip
OF_EACH = ((m.TOKENS_PER_S, "tokens/s"), (m.STARTUP_TIME, "s"), (m.MEMORY_PEAK, "B"), (m.FINAL_LOSS, ""))
SLURMSCALE = (sys.executable, "-m", "jobs.cli")
# Twenty configurations in stages of at most ten minutes.
MEMORY_SEEDS, MEMORY_RUNS = (1, 2, 3, 4, 5), 4
COLUMNS = ("what", "value", "unit", "device", "date", "versions", "command")
Figure = tuple[str, float, str]


@dataclass(frozen=True)
class Bench:
    """The options of the command, and a directory for runs."""

    folder: Path
    output: Path
    data: Path | None
    tokenizer: Path | None
    rehearsal: bool

    def submitted(self, name: str, overrides: Iterable[str], **environment: str) -> tuple[list[RunResult], str]:
        """Return results and output of submitted runs, and keep their records; cancel them before the stage's limit."""
        given = ["-m", "--wait", f"runs_dir={self.folder}", f"sweep={name}", *overrides]
        try:
            subprocess.run([*SLURMSCALE, "submit", *given], check=False, timeout=RUNS_S, env=os.environ | environment)
        except subprocess.TimeoutExpired:
            cancel(self.folder)
        if not (self.folder / name).is_dir():
            sys.exit(f"{name}: refused")
        logs = []
        for run in SweepDir(self.folder / name).runs():
            command = [*SLURMSCALE, "logs", str(run.path)]
            logs.append(subprocess.run(command, check=False, capture_output=True, text=True).stdout)
            records = self.output / "runs" / name / run.name
            records.mkdir(parents=True, exist_ok=True)
            for file in (run.config, *run.path.glob("*.json*")):
                shutil.copy(file, records)
        runs = [run for run in read_runs([self.folder / name]) if run.used]
        if not runs:
            print("\n".join(logs))
            sys.exit(f"{name}: no run finished")
        return runs, "\n".join(logs)

    def model(self) -> tuple[str, ...]:
        """Return the model of the long stages."""
        return ("model=tiny", "model.vocab_size=32000") if self.rehearsal else ("model=llama2_7b",)


@contextmanager
def empty_folder(output: Path) -> Iterator[Path]:
    """Yield a directory for the runs of a stage; end the runs there, also those of a stage that was killed."""
    folder = Path(tempfile.gettempdir()) / f"gpu-day-{sha256(bytes(output.resolve())).hexdigest()[:12]}"
    try:
        cancel(folder)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        yield folder
    finally:
        cancel(folder)
        shutil.rmtree(folder, ignore_errors=True)


def cancel(folder: Path) -> None:
    """End the runs of all sweeps in a directory."""
    for ledger in folder.glob("*/submissions.jsonl"):
        subprocess.run([*SLURMSCALE, "cancel", str(ledger.parent)], check=False)


def works(bench: Bench) -> list[Figure]:
    """Return each test of the GPU: passed, failed or skipped."""
    report = bench.folder / "tests.xml"
    # pytest-benchmark, where a machine has it, refuses to run beside workers.
    options = ("-q", "-p", "no:randomly", "-p", "no:benchmark")
    command = [sys.executable, "-m", "pytest", *options, "tests/jobs/engines/test_gpu.py"]
    # A test is two processes at most, and needs little of the GPU.
    workers = min(8, len(os.sched_getaffinity(0)) // 2)
    subprocess.run([*command, f"--junitxml={report}", f"--numprocesses={workers}"], check=False, timeout=RUNS_S)
    found = []
    for case in ElementTree.parse(report).iter("testcase"):
        ends = {child.tag for child in case} & {"failure", "error", "skipped"}
        how = "skipped" if "skipped" in ends else "failed" if ends else "passed"
        found.append((str(case.get("name")), float(how == "passed"), how))
    return found


def graphs(bench: Bench) -> list[Figure]:
    """Return the graph breaks and recompilations of one compiled run."""
    small = (*SMALL, "model=tiny") if bench.rehearsal else ("model=llama2_7b", "model.layers=12", *DENSE)
    own = (*SHARED, "data=random", *small, "engine.compile=true")
    runs, output = bench.submitted("graphs", own, TORCH_LOGS="recompiles,graph_breaks")
    return [
        ("graph breaks", len(re.findall(r"Graph break", output)), "breaks"),
        ("recompilations", len(re.findall(r"Recompiling function", output)), "recompilations"),
        *of_runs("graphs", runs),
    ]


def rate(bench: Bench) -> list[Figure]:
    """Return the median rate of a bfloat16 product of two square matrices on a warm device: 2 n^3 operations."""
    size, warm_s = (512, 0.5) if bench.rehearsal else (8192, 8.0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    a, b = (torch.randn(size, size, dtype=torch.bfloat16, device=device) for _ in range(2))
    times_s: list[float] = []
    began = time.perf_counter()
    while time.perf_counter() - began < 2 * warm_s:
        started = time.perf_counter()
        a @ b
        if device.type == "cuda":
            torch.cuda.synchronize()
        if started - began > warm_s:
            times_s.append(time.perf_counter() - started)
    return [("matrix rate", 2 * size**3 / statistics.median(times_s), "FLOP/s")]


def dense(bench: Bench) -> list[Figure]:
    """Return the rate of training on full rows."""
    kernels = (
        ("engine.kernels=liger", *this_gpu()) if find_spec("liger_kernel") and not bench.rehearsal else WITHOUT_LIGER
    )
    # A CPU without units for bfloat16 takes half a minute for a step with a vocabulary of 32,000.
    less = (*SHORT, "model.vocab_size=512") if bench.rehearsal else ()
    runs, _ = bench.submitted("dense", (*bench.model(), *SHARED, *DENSE, *kernels, *less))
    flops_per_s = [work_of(run).model_flops * run.values[m.TOKENS_PER_S] for run in runs]
    return [("dense", each, "FLOP/s") for each in flops_per_s] + of_runs("dense", runs)


def epoch(name: str) -> Callable[[Bench], list[Figure]]:
    """Return the stage of one epoch of Alpaca."""

    def stage(bench: Bench) -> list[Figure]:
        if bench.data is None or bench.tokenizer is None:
            sys.exit("an epoch needs --data FILE and --tokenizer FILE")
        # LitGPT expects a configuration beside the tokenizer.
        directory = bench.folder / "tokenizer"
        directory.mkdir()
        (directory / "tokenizer.model").write_bytes(bench.tokenizer.read_bytes())
        (directory / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer"}')
        given = (f"data.path={bench.data.resolve()}", f"data.tokenizer={directory}")
        # With the card's name, memory and speed are predicted before the run.
        more = (*SHORT, "data.max_samples=72") if bench.rehearsal else this_gpu()
        runs, _ = bench.submitted(name, (*bench.model(), *SHARED, *EPOCH, *EPOCHS[name], *given, *more))
        # The clock's time from the first step's begin to the last one's end, with all between the steps.
        times_s = [
            max(row[m.ELAPSED.name] for row in read_records(RunDir(run.path).metrics) if m.STEP.name in row)
            for run in runs
        ]
        return [(f"epoch {name}", each, "s") for each in times_s] + of_runs(name, runs)

    return stage


def choices(precision: str) -> Callable[[Bench], list[Figure]]:
    """Return the stage of the choices of experiment=one_gpu in one precision."""

    def stage(bench: Bench) -> list[Figure]:
        less = SMALL if bench.rehearsal else ()
        runs, _ = bench.submitted(f"choices-{precision}", ("experiment=one_gpu", f"job.precision={precision}", *less))
        return [figure for run in runs for figure in of_runs(run.name, [run])]

    return stage


def techniques(bench: Bench) -> list[Figure]:
    """Return speed and memory of one choice at a time.

    Products of float32, optimizers on float32 weights, updates in backward, sums in products, and adapters.
    """
    fixed = ("experiment=one_gpu", "engine.activation_checkpointing=none", "engine.compile=false")
    adapters = ("job=finetune_lora", "job.epochs=null", "job.precision=bfloat16", "job.lora.dropout=0,0.1")
    # Few tokens, so that gradients decide the peak and not activations.
    update = ("job.precision=bfloat16", "engine.parameters=bfloat16", "engine.activation_checkpointing=full",
              "job.micro_batch_size=1", "scaling.global_batch_size=1", "job.sequence_length=512", "job.clip_norm=null",
              "engine.update_in_backward=false,true")  # fmt: skip
    sums = ("job.precision=bfloat16", "engine.parameters=bfloat16", "engine.sums_in_products=false,true")
    found: list[Figure] = []
    for name, varied in (
        ("tf32", ("job.precision=float32", "engine.tf32=false,true")),
        ("optimizer", ("job.precision=bfloat16", "job.optimizer=adamw,muon")),
        ("update", update),
        ("sums", sums),
        ("adapters", adapters),
    ):
        less = SMALL if bench.rehearsal else ()
        runs, _ = bench.submitted(f"techniques-{name}", (*fixed, *varied, *less))
        found += [figure for run in runs for figure in of_runs(run.name, [run])]
    return found


def first_step(bench: Bench) -> list[Figure]:
    """Return the time of the first compiled step without kept kernels, and with those that the job before it kept."""
    kept = {f"{compiler}_CACHE_DIR": str(bench.folder / compiler) for compiler in ("TORCHINDUCTOR", "TRITON")}
    found: list[Figure] = []
    for kernels in ("none", "kept"):
        less = SMALL if bench.rehearsal else ()
        chosen = ("experiment=one_gpu", "engine.activation_checkpointing=none", *less, "engine.compile=true")
        runs, _ = bench.submitted(f"kernels-{kernels}", (*chosen, "job.precision=bfloat16"), **kept)
        found += [(f"first step, kernels {kernels}", run.values[m.FIRST_STEP_TIME], "s") for run in runs]
    return found


def memory(seed: int) -> Callable[[Bench], list[Figure]]:
    """Return a stage of random configurations: memory predicted first, then measured; a run that fails has no peak."""

    def stage(bench: Bench) -> list[Figure]:
        found: list[Figure] = []
        count = 1 if bench.rehearsal else MEMORY_RUNS
        for i, (overrides, predicted) in enumerate(configurations(seed, count, rehearsal=bench.rehearsal)):
            name, tensors = f"{seed}.{i} {' '.join(overrides[-len(SPACE) :])}", predicted.allocated
            found += [(f"{end} memory {name}", getattr(tensors, end), "B") for end in ("point", "low", "high")]
            try:
                (run,), _ = bench.submitted(f"memory-{seed}.{i}", overrides)
            except SystemExit:
                continue
            # A CPU has the peak of a process, which contains Python and torch.
            unit = "B" if torch.cuda.is_available() else "B of a process on a CPU"
            found.append((f"peak memory {name}", run.values[m.MEMORY_PEAK], unit))
        return found

    return stage


def of_runs(name: str, runs: list[RunResult]) -> list[Figure]:
    """Return the figures of every run."""
    return [
        (f"{metric.name} {name}", run.values[metric], unit)
        for run in runs
        for metric, unit in OF_EACH
        if metric in run.values
    ]


STAGES: dict[str, Callable[[Bench], list[Figure]]] = {
    "works": works,
    "graphs": graphs,
    "rate_before": rate,
    "dense": dense,
    "rate_after": rate,
    **{f"epoch_{name}": epoch(name) for name in EPOCHS},
    "choices_bfloat16": choices("bfloat16"),
    "techniques": techniques,
    "first_step": first_step,
    **{f"memory_{seed}": memory(seed) for seed in MEMORY_SEEDS},
    "choices_float32": choices("float32"),
}


def summarized(found: Mapping[str, Mapping[str, float]]) -> list[Figure]:
    """Return the ratios of the figures of the stages: epochs beside stock LitGPT, dense beside the matrix rate."""
    times_s = {name: found.get(f"epoch_{name}", {}).get(f"epoch {name}") for name in EPOCHS}
    stock_s = times_s.pop("stock")
    tokens_per_s = {name: found.get(f"epoch_{name}", {}).get(f"{m.TOKENS_PER_S.name} {name}") for name in EPOCHS}
    stock_tokens_per_s = tokens_per_s.pop("stock")
    rates = [found[stage]["matrix rate"] for stage in ("rate_before", "rate_after") if stage in found]
    reached = found.get("dense", {}).get("dense")
    return [
        *(
            (f"epoch {name}", stock_s / each, "times stock LitGPT")
            for name, each in times_s.items()
            if stock_s and each
        ),
        *(
            (f"steady steps {name}", each / stock_tokens_per_s, "times the tokens/s of stock LitGPT")
            for name, each in tokens_per_s.items()
            if stock_tokens_per_s and each
        ),
        *predictions({what: value for stage in found.values() for what, value in stage.items()}),
        *([("dense", reached / statistics.mean(rates), "of the matrix rate")] if reached and rates else []),
    ]


def predictions(values: Mapping[str, float]) -> list[Figure]:
    """Return the median error of predicted memory, and the share of peaks in their intervals; nothing from CPUs."""
    names = [what.removeprefix("peak memory ") for what in values if what.startswith("peak memory ")]
    if not names or not torch.cuda.is_available():
        return []
    rows = [[values[f"{what} memory {name}"] for what in ("point", "low", "high", "peak")] for name in names]
    return [
        ("error of predicted memory", statistics.median(abs(point / peak - 1) for point, _, _, peak in rows), "median"),
        ("peaks in their interval", sum(low <= peak <= high for _, low, high, peak in rows) / len(rows), "share"),
    ]


def kept(path: Path, found: Iterable[Figure], where: Mapping[str, str]) -> None:
    """Write figures to a CSV, complete or not at all."""
    writing = path.with_suffix(".writing")
    with writing.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows({"what": what, "value": value, "unit": unit, **where} for what, value, unit in found)
    writing.rename(path)


def where_measured(options: argparse.Namespace) -> dict[str, str]:
    """Return device, date, versions and command."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    versions = [installed()]
    for package in ("litgpt", "lightning", "liger_kernel", "torchao"):
        try:
            versions.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return {
        "device": f"{device}, rehearsal" if options.rehearsal else device,
        "date": datetime.now(UTC).date().isoformat(),
        "versions": ", ".join(versions),
        "command": shlex.join(["python", "-m", "tests.benchmarks.gpu", *sys.argv[1:]]),
    }


def main() -> None:
    """Measure one stage, or all that have no file yet; print and write the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="directory of the figures")
    parser.add_argument("--data", type=Path, help="JSON list of instruction, input, output")
    parser.add_argument("--tokenizer", type=Path, help="tokenizer.model of 32,000 tokens")
    parser.add_argument("--stage", choices=STAGES, help="measure this stage only, in this process")
    parser.add_argument("--rehearsal", action="store_true", help="run tiny models, on the CPU if there is no GPU")
    options = parser.parse_args()
    if not options.rehearsal and not torch.cuda.is_available():
        parser.error(f"torch sees no GPU here ({installed()}). Use --rehearsal to run tiny models on the CPU.")
    for file in (options.data, options.tokenizer):
        if file and not file.is_file():
            parser.error(f"{file} is no file. Set --data and --tokenizer, in make DATA and TOKENIZER.")
    options.output.mkdir(parents=True, exist_ok=True)
    where = where_measured(options)
    for file in sorted(options.output.glob("*.csv")):
        if others := {row["device"] for row in rows_of(file)} - {where["device"]}:
            names = ", ".join(sorted(others))
            parser.error(f"{file} is of {names}, and this is {where['device']}. Set --output, in make GPU_DAY.")
    if options.stage:
        with empty_folder(options.output) as folder:
            found = STAGES[options.stage](
                Bench(folder, options.output, options.data, options.tokenizer, options.rehearsal)
            )
        kept(options.output / f"{options.stage}.csv", found, where)
        return
    failed = [stage for stage in STAGES if not measured(stage, options.output)]
    rows = {stage: rows_of(options.output / f"{stage}.csv") for stage in STAGES if stage not in failed}
    values = {stage: {row["what"]: float(row["value"]) for row in found} for stage, found in rows.items()}
    ratios = summarized(values)
    kept(options.output / "summary.csv", ratios, where)
    every = [(row["what"], float(row["value"]), row["unit"]) for found in rows.values() for row in found]
    for what, value, unit in (*ratios, *every):
        print(f"  {what:60} {value:12.4g} {unit}")
    if failed:
        sys.exit(f"failed, repeated by the same command: {', '.join(failed)}")


def measured(stage: str, output: Path) -> bool:
    """Measure a stage in a process of its own, unless its file exists; return whether the file exists then."""
    file, began = output / f"{stage}.csv", time.perf_counter()
    if not file.exists():
        try:
            subprocess.run([sys.executable, "-m", "tests.benchmarks.gpu", *sys.argv[1:], "--stage", stage],
                           check=False, timeout=STAGE_S)  # fmt: skip
        except subprocess.TimeoutExpired:
            print(f"{stage}: ended after {STAGE_S} s")
        print(f"{stage}: {time.perf_counter() - began:.0f} s", flush=True)
    return file.exists()


def rows_of(file: Path) -> list[dict[str, str]]:
    """Return the figures of a stage."""
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


if __name__ == "__main__":
    main()

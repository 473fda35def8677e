"""Full fine-tuning of a 7B model on one GPU: the native engine beside stock LitGPT, and on full rows.

    python -m tests.benchmarks.gpu --data alpaca.json --tokenizer tokenizer.model --output figures.csv

Takes about ten minutes on a GPU with 80 GB; requires 64 GB of memory and 30 GB of disk in $TMPDIR. Every run is a
`slurmscale submit` with random weights, as users run it; `--rehearsal` does the same with a tiny model on a CPU, whose
figures have no meaning. The output of a failed run is printed, and the next run starts. Ratios are printed first; the
CSV of figures contains hardware, date, versions and command. The dense case is compared with the rate of a square
matrix product, measured on the same device before.
"""

from __future__ import annotations

import argparse
import csv
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import torch

from analysis.load.discover import read_runs
from analysis.metrics.mfu import work_of
from analysis.run import RunResult
from jobs import metrics as m
from jobs.rundir import SweepDir

SAMPLES, HELD_OUT = 1000, 8
# Each adds one change to the one before.
STOCK = ("engine=litgpt",)
PADDED = ("engine=native", "engine.optimizer=fused")
PACKED = (*PADDED, "job.batching=packed", "engine.loss=chunked")
EVERYTHING = (*PACKED, "engine.kernels=liger_or_torch", "engine.prefetch_batches=2")
EPOCHS = {"stock": STOCK, "padded": PADDED, "packed": PACKED, "everything": EVERYTHING}
EPOCH = (
    "job=finetune_full",
    "data=alpaca",
    f"data.max_samples={SAMPLES}",
    f"data.held_out_samples={HELD_OUT}",
    "data.too_long=truncate",
    "job.sequence_length=512",
    "job.micro_batch_size=4",
    "scaling.global_batch_size=32",
    "job.clip_norm=null",
    "job.warmup_steps=3",
)
DENSE = (
    *EVERYTHING,
    "job=pretrain",
    "data=random",
    "data.max_samples=64",
    "job.sequence_length=4096",
    "job.micro_batch_size=1",
    "scaling.global_batch_size=8",
    "job.steps=6",
    "job.unmeasured_steps=2",
)
SHARED = ("parallelism=single", "ranks_per_node=1", "job.precision=bfloat16", "engine.parameters=bfloat16")
REHEARSAL = ("job.sequence_length=128", "job.micro_batch_size=4", "scaling.global_batch_size=8")
# The figures of every run.
OF_EACH = (
    ("speed", m.TOKENS_PER_S, "tokens/s"),
    ("start-up", m.STARTUP_TIME, "s"),
    ("memory", m.MEMORY_PEAK, "B"),
    ("loss", m.FINAL_LOSS, ""),
)
COLUMNS = ("what", "value", "unit", "against", "device", "date", "versions", "command")


def matrix_rate_flops_per_s(size: int, repeats: int = 20) -> float:
    """Return the median rate of a bfloat16 product of two square matrices on this device: 2 n^3 operations."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    a, b = (torch.randn(size, size, dtype=torch.bfloat16, device=device) for _ in range(2))
    times_s = []
    for _ in range(3 + repeats):
        started = time.perf_counter()
        a @ b
        if device.type == "cuda":
            torch.cuda.synchronize()
        times_s.append(time.perf_counter() - started)
    del a, b
    torch.cuda.empty_cache()  # leaves the memory to the runs
    return 2 * size**3 / statistics.median(times_s[3:])


def measured(folder: Path, name: str, overrides: tuple[str, ...]) -> RunResult | None:
    """Submit a run with these overrides and return its result; print its output and return None if it fails."""
    began = time.perf_counter()
    sweep, command = folder / name, [sys.executable, "-m", "jobs.cli"]
    done = subprocess.run(
        [*command, "submit", "--wait", f"runs_dir={folder}", f"sweep={name}", *overrides], check=False
    )
    if done.returncode:
        for run in SweepDir(sweep).runs():
            subprocess.run([*command, "logs", str(run.path)], check=False)
        result = None
    else:
        (result,) = read_runs([sweep])
    shutil.rmtree(sweep, ignore_errors=True)  # LitGPT's first and last weights: 27 GB
    print(f"{name}: {time.perf_counter() - began:.0f} s from submission to record", flush=True)
    return result


def training_time_s(run: RunResult) -> float:
    """Return the time from the first step to the last."""
    return sum(run.values.get(part, 0.0) for part in (m.FIRST_STEP_TIME, m.WARMUP_TIME, m.STEADY_TIME))


def tokenizer_directory(folder: Path, tokenizer: Path) -> Path:
    """Return a directory with the tokenizer beside its configuration, as LitGPT expects."""
    folder.mkdir()
    (folder / "tokenizer.model").write_bytes(tokenizer.read_bytes())
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer"}')
    return folder


def plans(folder: Path, options: argparse.Namespace) -> dict[str, tuple[str, ...]]:
    """Return the overrides of each run, in the order of the runs."""
    tokenizer = tokenizer_directory(folder / "tokenizer", options.tokenizer)
    model = ("model=tiny", "model.vocab_size=32000") if options.rehearsal else ("model=llama2_7b",)
    given = (f"data.path={options.data.resolve()}", f"data.tokenizer={tokenizer}")
    less = REHEARSAL if options.rehearsal else ()
    fewer = ("data.max_samples=72",) if options.rehearsal else ()
    epochs = {name: (*model, *SHARED, *own, *EPOCH, *given, *less, *fewer) for name, own in EPOCHS.items()}
    return epochs | {"dense": (*model, *SHARED, *DENSE, *less)}


def figures(runs: Mapping[str, RunResult], rate: float) -> list[tuple[str, float, str, str]]:
    """Return the figures of the runs so far: name, value, unit, baseline; ratios first."""
    epochs = {name: run for name, run in runs.items() if name in EPOCHS}
    times_s = {name: training_time_s(run) for name, run in epochs.items()}
    stock_time_s = times_s.get("stock")
    dense = [work_of(run).model_flops * run.values[m.TOKENS_PER_S] for name, run in runs.items() if name == "dense"]
    return [
        *(
            (f"epoch {name}", stock_time_s / time_s, "times faster", "stock LitGPT")
            for name, time_s in times_s.items()
            if stock_time_s and name != "stock"
        ),
        *(("dense model FLOP/s", each / rate, "of the matrix rate", "the same device, just before") for each in dense),
        *((f"epoch {name}", time_s, "s", "") for name, time_s in times_s.items()),
        *(
            (f"{label} {name}", run.values[metric], unit, "")
            for label, metric, unit in OF_EACH
            for name, run in runs.items()
            if metric in run.values
        ),
        *(("dense model FLOP/s", each, "FLOP/s", "") for each in dense),
        ("matrix rate", rate, "FLOP/s", ""),
    ]


def kept(path: Path, found: Sequence[tuple[str, float, str, str]], where: Mapping[str, str]) -> None:
    """Write the figures to a CSV, with device, date, versions and command."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            {"what": what, "value": value, "unit": unit, "against": against, **where}
            for what, value, unit, against in found
        )


def main() -> None:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="JSON list of instruction, input, output")
    parser.add_argument("--tokenizer", type=Path, required=True, help="tokenizer.model of 32,000 tokens")
    parser.add_argument("--output", type=Path, help="CSV of the figures")
    parser.add_argument("--rehearsal", action="store_true", help="run a tiny model, on the CPU if there is no GPU")
    options = parser.parse_args()
    for file in (options.data, options.tokenizer):
        if not file.is_file():
            parser.error(
                f"{file} is not a file. Set the samples with --data FILE and the tokenizer with --tokenizer FILE."
            )
    if not options.rehearsal and not torch.cuda.is_available():
        parser.error("torch sees no GPU here. Use --rehearsal to run a tiny model on the CPU.")
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    versions = " ".join(f"{package} {version(package)}" for package in ("torch", "litgpt", "lightning"))
    where = {
        "device": f"{device}, rehearsal" if options.rehearsal else device,
        "date": datetime.now(UTC).date().isoformat(),
        "versions": versions,
        "command": shlex.join(["python", "-m", "tests.benchmarks.gpu", *sys.argv[1:]]),
    }
    rate = matrix_rate_flops_per_s(512 if options.rehearsal else 8192)
    runs: dict[str, RunResult] = {}
    with tempfile.TemporaryDirectory() as folder:
        overrides = plans(Path(folder), options)
        for name, own in overrides.items():
            run = measured(Path(folder), name, own)
            if run:
                runs[name] = run
            found = figures(runs, rate)
            if options.output:  # after every run, since a time limit may end the next
                kept(options.output, found, where)
    print(f"\n{where['device']}, {where['date']}, {versions}")
    for what, value, unit, against in found:
        print(f"  {what:20} {value:12.4g} {unit}{f' ({against})' if against else ''}")
    failed = sorted(overrides.keys() - runs.keys())
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()

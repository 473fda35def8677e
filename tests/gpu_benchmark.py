"""One GPU, a 7B model, every weight trained: stock LitGPT beside ours on the same samples, and ours on full rows.

    python -m tests.gpu_benchmark --data alpaca.json --tokenizer tokenizer.model --gpu h200_sxm

Under ten minutes on an H200. Every run is a `slurmscale submit` of random weights, so what is measured is what users
run; `--rehearsal` takes the same way with a tiny model on a CPU, whose figures say nothing. Ratios come first, the
figures go to a CSV with hardware, date, versions and command. The dense case is held against the rate of a square
matrix product measured on that device just before.
"""

from __future__ import annotations

import argparse
import csv
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import torch

from analysis.find import read_runs
from analysis.records import RunResult
from analysis.utilization import work_of
from jobs import metrics as m

SAMPLES, HELD_OUT = 1000, 8
# One change at a time, each beside the ones before it.
STOCK = ("engine=litgpt",)
PADDED = ("engine=native", "engine.optimizer=fused")
PACKED = (*PADDED, "job.batching=packed", "engine.loss=chunked")
EVERYTHING = (*PACKED, "kernels=liger_or_torch", "engine.prefetch_batches=2")
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
COLUMNS = ("what", "value", "unit", "against", "device", "date", "versions", "command")


def matrix_rate_flops_per_s(size: int, repeats: int = 20) -> float:
    """The median rate of a bfloat16 product of two square matrices on this device: 2 n^3 operations."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    a, b = (torch.randn(size, size, dtype=torch.bfloat16, device=device) for _ in range(2))
    times_s = []
    for _ in range(3 + repeats):
        started = time.perf_counter()
        a @ b
        if device.type == "cuda":
            torch.cuda.synchronize()
        times_s.append(time.perf_counter() - started)
    return 2 * size**3 / statistics.median(times_s[3:])


def measured(folder: Path, name: str, overrides: tuple[str, ...]) -> RunResult:
    """A run of these overrides, from submission to its record."""
    command = [sys.executable, "-m", "jobs.cli", "submit", "--wait", f"runs_dir={folder}", f"sweep={name}", *overrides]
    subprocess.run(command, check=True)
    (run,) = read_runs([folder / name])
    return run


def training_time_s(run: RunResult) -> float:
    """From the first step to the last."""
    return sum(run.values.get(part, 0.0) for part in (m.FIRST_STEP_TIME, m.WARMUP_TIME, m.STEADY_TIME))


def tokenizer_directory(folder: Path, tokenizer: Path) -> Path:
    """The tokenizer as LitGPT wants it: beside its configuration."""
    folder.mkdir()
    (folder / "tokenizer.model").write_bytes(tokenizer.read_bytes())
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer"}')
    return folder


def figures(folder: Path, options: argparse.Namespace) -> list[tuple[str, float, str, str]]:
    """What was measured: name, value, unit, against what; ratios first."""
    rate = matrix_rate_flops_per_s(512 if options.rehearsal else 8192)
    tokenizer = tokenizer_directory(folder / "tokenizer", options.tokenizer)
    model = ("model=tiny", "model.vocab_size=32000") if options.rehearsal else ("model=llama2_7b", f"gpu={options.gpu}")
    given = (f"data.path={options.data}", f"data.tokenizer={tokenizer}")
    less = (*REHEARSAL, "data.max_samples=72") if options.rehearsal else ()
    epochs = {
        name: measured(folder, name, (*model, *SHARED, *own, *EPOCH, *given, *less)) for name, own in EPOCHS.items()
    }
    dense = measured(folder, "dense", (*model, *SHARED, *DENSE, *(REHEARSAL if options.rehearsal else ())))
    achieved = work_of(dense).model_flops * dense.values[m.TOKENS_PER_S]
    stock = epochs.pop("stock")
    times_s = {"stock": training_time_s(stock), **{name: training_time_s(run) for name, run in epochs.items()}}
    return [
        *((f"epoch {name}", times_s["stock"] / times_s[name], "times faster", "stock LitGPT") for name in epochs),
        ("dense model FLOP/s", achieved / rate, "of the matrix rate", "the same device and run"),
        *((f"epoch {name}", time_s, "s", "") for name, time_s in times_s.items()),
        *(
            (f"start-up {name}", run.values[m.STARTUP_TIME], "s", "")
            for name, run in {"stock": stock, **epochs}.items()
        ),
        *((f"memory {name}", run.values[m.MEMORY_PEAK], "B", "") for name, run in {"stock": stock, **epochs}.items()),
        *((f"loss {name}", run.values[m.FINAL_LOSS], "", "") for name, run in {"stock": stock, **epochs}.items()),
        ("dense model FLOP/s", achieved, "FLOP/s", ""),
        ("matrix rate", rate, "FLOP/s", ""),
    ]


def main() -> None:
    """Measure, print, and keep the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="JSON list of instruction, input, output")
    parser.add_argument("--tokenizer", type=Path, required=True, help="tokenizer.model of 32,000 tokens")
    parser.add_argument("--gpu", default="h200_sxm", help="a file of conf/gpu: which GPU this is")
    parser.add_argument("--output", type=Path, help="CSV of the figures")
    parser.add_argument("--rehearsal", action="store_true", help="a tiny model, on a CPU if need be")
    options = parser.parse_args()
    if not options.rehearsal and not torch.cuda.is_available():
        parser.error("torch sees no GPU here. Type --rehearsal to take the same way with a tiny model on the CPU.")
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    versions = " ".join(f"{package} {version(package)}" for package in ("torch", "litgpt", "lightning"))
    where = {
        "device": f"{device}, rehearsal" if options.rehearsal else device,
        "date": datetime.now(UTC).date().isoformat(),
        "versions": versions,
        "command": shlex.join(["python", "-m", "tests.gpu_benchmark", *sys.argv[1:]]),
    }
    with tempfile.TemporaryDirectory() as folder:
        found = figures(Path(folder), options)
    print(f"\n{where['device']}, {where['date']}, {versions}")
    for what, value, unit, against in found:
        print(f"  {what:20} {value:12.4g} {unit}{f' ({against})' if against else ''}")
    if options.output:
        with options.output.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(
                {"what": what, "value": value, "unit": unit, "against": against, **where}
                for what, value, unit, against in found
            )


if __name__ == "__main__":
    main()

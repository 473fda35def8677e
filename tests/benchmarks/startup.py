"""Time from the start of a process to the end of its first step: the native engine beside LitGPT.

Both fine-tune the same checkpoint on the same records, in turns, each in a process started by `slurmscale submit`.
LitGPT's time includes all its work before the first step, such as validation. One CPU rank, 4 million weights.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from analysis.load.discover import read_runs
from analysis.run import RunResult
from jobs import metrics as m
from tests.support.tiny_data import ALPACA, huggingface_tokenizer, tokenizer_config, write_json

REPEATS = 5
TASK = ("model=tiny", "ranks_per_node=1", "parallelism=single", "job=finetune_full", "job.epochs=null", "job.steps=2",
        "job.precision=float32", "job.warmup_steps=1", "job.clip_norm=null", "job.sequence_length=128",
        "job.micro_batch_size=8", "scaling.global_batch_size=8", "data=alpaca", "data.max_samples=null",
        "data.held_out_samples=8", "data.too_long=truncate", "job.unmeasured_steps=1")  # fmt: skip


def submitted(folder: Path, name: str, *overrides: str) -> RunResult:
    """Submit a run, wait for it, and return its result."""
    command = [sys.executable, "-m", "jobs.cli", "submit", "--wait", f"runs_dir={folder}", f"sweep={name}", *overrides]
    subprocess.run(command, check=True, capture_output=True)
    (run,) = read_runs([folder / name])
    return run


def first_step_done_s(run: RunResult) -> float:
    """Return the time from the start of rank 0's process to the end of its first step."""
    return run.values[m.STARTUP_TIME] + run.values[m.FIRST_STEP_TIME]


def main() -> None:
    """Print the ratio and both times."""
    times_s: dict[str, list[float]] = {"litgpt": [], "native": []}
    with tempfile.TemporaryDirectory() as where:
        folder = Path(where)
        data = write_json(folder / "alpaca.json", ALPACA * 25)
        tokenizer = tokenizer_config(huggingface_tokenizer(folder / "tokenizer"), eos_token="</s>")
        given = (*TASK, f"data.path={data}", f"data.tokenizer={tokenizer}")
        first = submitted(folder, "first", *given, "job.export=true")
        checkpoint = f"job.init_from={first.path / 'export'}"
        for repeat in range(REPEATS):
            for engine, times in times_s.items():
                run = submitted(folder, f"{engine}{repeat}", *given, checkpoint, f"engine={engine}")
                times.append(first_step_done_s(run))
    ratios = [ours / theirs for theirs, ours in zip(times_s["litgpt"], times_s["native"], strict=True)]
    theirs, ours = (statistics.median(times) for times in times_s.values())
    print(
        f"\nstart to first step: {statistics.median(ratios):.2f} of LitGPT's ({min(ratios):.2f} to {max(ratios):.2f}; "
        f"medians of {REPEATS}: {ours:.1f} s against {theirs:.1f} s; one rank, CPU)"
    )


if __name__ == "__main__":
    main()

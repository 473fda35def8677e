"""Stock LitGPT's full fine-tuning beside the native engine on the same samples: padded, bucketed, packed.

    python -m tests.batching_benchmark --data alpaca.json --tokenizer tokenizer.model --vocabulary 32000 --steps 16

`litgpt.finetune.full.setup()` runs as it is. Before each of its steps ours take theirs on the samples of its next
batch, in the same process, with the same threads and allocator. Making batches counts for ours, and not for it. The
learning rate is 0 on both sides, so that the loss of every step can be compared; updates are computed all the same.
Peak memory is that of a process for each side. A CPU's ratios say nothing of a GPU's.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import litgpt.finetune.full as stock
import numpy as np
import torch
import torch.distributed as dist
from litgpt.args import EvalArgs, LogArgs, TrainArgs
from litgpt.config import Config
from litgpt.data import JSON
from litgpt.model import GPT
from litgpt.tokenizer import Tokenizer
from litgpt.utils import save_config
from torch.distributed import HashStore  # type: ignore[attr-defined]  # torch has it, and does not list it

from jobs.compose import compose
from jobs.data import Batches, Dataset
from jobs.data.dataset import IGNORED, Tokens
from jobs.data.tokenizer import train_bpe
from jobs.engines.litgpt_names import litgpt_fields
from jobs.engines.parallelize import device_mesh, parallel_model
from jobs.layout import layout_of
from jobs.schema import Batching, Run
from jobs.workloads.train import Trainer

MICRO_BATCH, LENGTH, POOL = 32, 512, 8
BPE = 4096
MODEL = (
    "model=tiny",
    "model.layers=6",
    "model.hidden_size=256",
    "model.heads=8",
    "model.kv_heads=8",
    "model.head_size=32",
    "model.intermediate_size=768",
    f"model.max_sequence_length={LENGTH}",
    f"job.sequence_length={LENGTH}",
    f"job.micro_batch_size={MICRO_BATCH}",
    f"scaling.global_batch_size={MICRO_BATCH}",
    "job.learning_rate=0",
    "job.min_learning_rate=0",
    "job.clip_norm=null",
    "parallelism=single",
    "ranks_per_node=1",
    "engine.loss=chunked",
)
MEASURED_ALONE = ("stock", "padded", "packed")


class EnoughSteps(Exception):  # noqa: N818 (it is no error)
    """Leaves LitGPT's training when all is measured."""


class Given(Dataset):
    """The samples of LitGPT's batches, by its shift: the input at n is answered by the token after it."""

    def __init__(self, samples: list[dict[str, torch.Tensor]]) -> None:
        self.samples = [(sample["input_ids"][:-1].numpy(), sample["labels"][1:].numpy()) for sample in samples]
        lengths = np.array([len(inputs) for inputs, _ in self.samples], dtype=np.int32)
        labels = np.array([np.count_nonzero(targets != IGNORED) for _, targets in self.samples], dtype=np.int64)
        super().__init__(Path(), {"description": "LitGPT's batches."}, lengths, labels)

    def sample(self, index: int) -> tuple[Tokens, Tokens]:
        """As everywhere."""
        return self.samples[index]


@dataclass
class Ours:
    """The native engine under one batching, with what its steps took and gave."""

    run: Run
    clock: Callable[[], float]
    times_s: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.name = self.run.job.batching.name
        device = torch.device("cpu")
        mesh = device_mesh(layout_of(self.run), device)
        model = parallel_model(self.run, mesh, device, begins=lambda _: None)
        self.trainer = Trainer(self.run, model, device, mesh, steps=10**6)

    def step(self, samples: list[dict[str, torch.Tensor]]) -> None:
        """As many steps as the samples make."""
        data = Given(samples)
        count = len(samples) // MICRO_BATCH
        for number in range(1, count + 1):
            started = self.clock()
            batches = Batches(
                data, global_batch_size=MICRO_BATCH, micro_batch_size=MICRO_BATCH, dp=1, dp_rank=0, seed=0,
                batching=self.run.job.batching, bucket_batches=POOL,
            )  # fmt: skip
            loss, _, _ = self.trainer.step(number, batches.step(number))
            self.times_s.append(self.clock() - started)
            self.losses.append(loss)


def ours(batching: Batching, vocabulary: int, checkpoint: Path, clock: Callable[[], float]) -> Ours:
    """The native engine from LitGPT's weights."""
    overrides = [*MODEL, f"model.vocab_size={vocabulary}", f"job.batching={batching.name}"]
    (point,) = compose([*overrides, f"job.init_from={checkpoint}"], multirun=False)
    return Ours(point.run, clock)


class Alternating(JSON):  # type: ignore[misc]  # LitGPT publishes no types
    """LitGPT's data, tokenized before; whenever it asks for a batch, a step of its own has ended."""

    def measure(self, steps: int, sides: list[Ours], clock: Callable[[], float]) -> None:
        """Let these take their steps between LitGPT's."""
        self.steps, self.sides, self.clock = steps, sides, clock
        self.times_s: list[float] = []
        self.tokens: list[int] = []
        self.pool: list[dict[str, torch.Tensor]] = []

    def setup(self, stage: str = "") -> None:
        """Tokenize all samples."""
        super().setup(stage)
        self.tokenized: Any = list(self.train_dataset)

    def train_dataloader(self) -> Any:
        """LitGPT's, in this process."""
        loader = super().train_dataloader()
        side_by_side, started = loader.collate_fn, 0.0

        def collate(samples: list[dict[str, torch.Tensor]]) -> object:
            nonlocal started
            if self.tokens:
                self.times_s.append(self.clock() - started)
            if len(self.tokens) == self.steps:
                raise EnoughSteps
            self.tokens.append(sum(len(sample["input_ids"]) for sample in samples))
            self.pool += samples
            for side in self.sides:
                if side.run.job.batching is not Batching.bucketed:
                    side.step(samples)
                elif len(self.pool) == POOL * MICRO_BATCH:
                    side.step(self.pool)
            self.pool = [] if len(self.pool) == POOL * MICRO_BATCH else self.pool
            batch = side_by_side(samples)
            started = self.clock()
            return batch

        return torch.utils.data.DataLoader(
            self.tokenized, batch_size=self.batch_size, shuffle=True, drop_last=True,
            generator=torch.Generator().manual_seed(self.seed), collate_fn=collate,
        )  # fmt: skip


def litgpt_checkpoint(directory: Path, data: Path, tokenizer: Path, vocabulary: int) -> Path:
    """A LitGPT checkpoint directory of random weights, with this tokenizer or a BPE trained on the data."""
    directory.mkdir(parents=True)
    if vocabulary == BPE:
        texts = [text for record in json.loads(data.read_text()) for text in record.values() if isinstance(text, str)]
        train_bpe(texts, BPE, directory)
    else:
        shutil.copy(tokenizer, directory)
        (directory / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer"}')
    (point,) = compose([*MODEL, f"model.vocab_size={vocabulary}"], multirun=False)
    config = Config(**litgpt_fields(point.run.model))
    torch.manual_seed(1)
    gpt = GPT(config)
    gpt.apply(gpt._init_weights)
    torch.save(gpt.state_dict(), directory / "lit_model.pth")
    save_config(config, directory)
    return directory


def finetune(checkpoint: Path, out: Path, data: Alternating) -> list[float]:
    """LitGPT's own run until the data says that it is enough; its losses."""
    with suppress(EnoughSteps):
        stock.setup(
            checkpoint,
            out,
            precision="32-true",
            data=data,
            train=TrainArgs(
                save_interval=None, log_interval=1, global_batch_size=MICRO_BATCH, micro_batch_size=MICRO_BATCH,
                lr_warmup_steps=1, epochs=10**6, max_seq_length=LENGTH,
            ),
            eval=EvalArgs(interval=10**6, max_new_tokens=1, max_iters=1, final_validation=False),
            log=LogArgs(),
            optimizer={"class_path": "torch.optim.AdamW", "init_args": {"lr": 0.0}},
        )  # fmt: skip
    (written,) = out.rglob("metrics.csv")
    with written.open() as file:
        return [float(row["loss"]) for row in csv.DictReader(file)]


def alone(who: str, data: Alternating, checkpoint: Path, out: Path, vocabulary: int) -> None:
    """Print this process's peak memory in bytes after the steps of one side."""
    if who == "stock":
        finetune(checkpoint, out, data)
    else:
        data.sides = [ours(Batching[who], vocabulary, checkpoint, data.clock)]
        data.connect(Tokenizer(checkpoint), MICRO_BATCH, LENGTH)
        data.setup()
        with suppress(EnoughSteps):
            for _ in data.train_dataloader():
                pass
    print("peak", own_peak_memory_bytes())


def own_peak_memory_bytes() -> int:
    """Of this program: what getrusage tells begins with the memory of the process that started it."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) * 1024


def peak_memory_bytes(who: str, options: argparse.Namespace) -> int:
    """Of a process that runs one side alone for three steps."""
    command = [sys.executable, "-m", "tests.batching_benchmark", "--alone", who, "--steps", "3"]
    command += ["--data", options.data, "--tokenizer", options.tokenizer, "--vocabulary", str(options.vocabulary)]
    command += ["--threads", str(options.threads)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(done.stdout.split("peak ")[-1])


def ratio(theirs: list[float], own: list[float]) -> str:
    """The median and range of how many times faster we were."""
    ratios = [a / b for a, b in zip(theirs, own, strict=True)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def report(data: Alternating, losses: list[float], sides: list[Ours], options: argparse.Namespace) -> None:
    """Print ratios first, then what they are made of."""
    print(f"\nvocabulary {options.vocabulary}, {len(data.tokens)} steps of {MICRO_BATCH} samples, the first warms up")
    seconds = "CPU seconds" if options.cpu_time else "seconds"
    print(
        f"{seconds}, {torch.get_num_threads()} threads, {os.cpu_count()} cores, torch {torch.__version__}, float32, CPU"
    )
    print("times stock's real tokens/s, median (range) of steps")
    one_by_one = [side for side in sides if side.run.job.batching is not Batching.bucketed]
    for side in one_by_one:
        print(f"  {side.name:9} {ratio(data.times_s[1:], side.times_s[1:])}")
    for side in sides:
        if side not in one_by_one and side.times_s:
            done = range(0, len(side.times_s), POOL)
            theirs, own = ([sum(times[i : i + POOL]) for i in done] for times in (data.times_s, side.times_s))
            print(f"  {side.name:9} {ratio(theirs, own)}, by the {POOL} steps of a pool")
    print("real tokens/s, median step")
    for name, times in (("stock", data.times_s), *((side.name, side.times_s) for side in one_by_one)):
        print(f"  {name:9} {sum(data.tokens[1:]) / sum(times[1:]):,.0f}  {statistics.median(times[1:]):.2f} s")
    print("largest difference of a step's mean loss to stock's, as part of it")
    for side in one_by_one:
        print(f"  {side.name:9} {max(abs(a - b) / a for a, b in zip(losses, side.losses, strict=True)):.1e}")
    print("peak memory", flush=True)
    peaks = {who: peak_memory_bytes(who, options) for who in MEASURED_ALONE}
    for who, peak in peaks.items():
        print(f"  {who:9} {peak / 2**30:.2f} GiB, {peak / peaks['stock']:.2f} of stock's")


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", required=True, help="JSON list of instruction, input, output")
    parser.add_argument("--tokenizer", required=True, help="tokenizer.model of 32,000 tokens")
    parser.add_argument("--vocabulary", type=int, choices=(BPE, 32000), default=BPE)
    parser.add_argument("--steps", type=int, default=2 * POOL, help=f"bucketed needs {POOL} or more")
    parser.add_argument("--alone", choices=MEASURED_ALONE, help="print the peak memory of one side")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="compute threads of all sides")
    parser.add_argument("--cpu-time", action="store_true", help="of one thread, on a machine that others use too")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    with tempfile.TemporaryDirectory() as where:
        checkpoint = litgpt_checkpoint(
            Path(where) / "checkpoint", Path(options.data), Path(options.tokenizer), options.vocabulary
        )
        data = Alternating(json_path=Path(options.data), val_split_fraction=0.05, num_workers=0)
        clock = time.process_time if options.cpu_time else time.perf_counter
        data.measure(options.steps, [], clock)
        if options.alone:
            alone(options.alone, data, checkpoint, Path(where) / "out", options.vocabulary)
        else:
            data.sides = [ours(batching, options.vocabulary, checkpoint, clock) for batching in Batching]
            losses = finetune(checkpoint, Path(where) / "out", data)
            report(data, losses, data.sides, options)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Stock LitGPT's full fine-tuning beside the native engine on the same samples: padded, bucketed, packed.

    python -m tests.benchmarks.batching --data alpaca.json --tokenizer tokenizer.model --vocabulary 32000 --steps 16

`litgpt.finetune.full.setup()` runs unchanged. Each side is a process of its own. They take their steps in turns, on the
same samples, with the same number of threads, so that other load affects all sides equally. The time of making batches
is included for the native engine only. The learning rate is 0 on all sides, so that the losses of each step can be
compared; updates are computed nevertheless. Ratios of a CPU do not predict those of a GPU.
"""

from __future__ import annotations

import argparse
import csv
import json
import multiprocessing
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
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

from jobs.data import Batches, Dataset
from jobs.data.dataset import IGNORED, Tokens
from jobs.data.tokenizer import train_bpe
from jobs.engines.litgpt.names import litgpt_fields
from jobs.engines.native.parallelize import device_mesh, parallel_model
from jobs.engines.native.trainer import Trainer
from jobs.layout import layout_of
from jobs.plan.compose import compose
from jobs.runtime.process_group import keep_freed_memory
from jobs.schema import Batching

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
    "engine.optimizer_loop=fused",
)
STOCK = "stock"
Sample = dict[str, torch.Tensor]


class EnoughSteps(Exception):  # noqa: N818 (it is no error)
    """Ends LitGPT's training after the last measured step."""


class Given(Dataset):
    """The samples of LitGPT's batches, shifted as LitGPT does: the target of input n is token n + 1."""

    def __init__(self, samples: list[Sample]) -> None:
        self.samples = [(sample["input_ids"][:-1].numpy(), sample["labels"][1:].numpy()) for sample in samples]
        lengths = np.array([len(inputs) for inputs, _ in self.samples], dtype=np.int32)
        labels = np.array([np.count_nonzero(targets != IGNORED) for _, targets in self.samples], dtype=np.int64)
        super().__init__(Path(), {"description": "LitGPT's batches."}, lengths, labels)

    def sample(self, index: int) -> tuple[Tokens, Tokens]:
        """Return inputs and targets of one sample."""
        return self.samples[index]


@dataclass(frozen=True)
class Measured:
    """Times, tokens and losses of the steps of one side."""

    times_s: list[float]
    tokens: list[int]
    losses: list[float]
    peak_bytes: int


def own_trainer(batching: Batching, vocabulary: int, checkpoint: Path) -> Trainer:
    """Return a trainer of the native engine with LitGPT's weights."""
    overrides = [*MODEL, f"model.vocab_size={vocabulary}", f"job.batching={batching.name}"]
    (point,) = compose([*overrides, f"job.init_from={checkpoint}"], multirun=False)
    device = torch.device("cpu")
    mesh = device_mesh(layout_of(point.run), device)
    model = parallel_model(point.run, mesh, device, begins=lambda _: None)
    return Trainer(point.run, model, device, mesh, steps=10**6)


def steps(trainer: Trainer, samples: list[Sample]) -> list[float]:
    """Train on all samples, and return the loss of each step."""
    batches = Batches(
        Given(samples), global_batch_size=MICRO_BATCH, micro_batch_size=MICRO_BATCH, dp=1, dp_rank=0, seed=0,
        batching=trainer.run.job.batching, bucket_batches=POOL,
    )  # fmt: skip
    return [trainer.step(number, batches.step(number))[0] for number in range(1, len(samples) // MICRO_BATCH + 1)]


class InTurns(JSON):  # type: ignore[misc]  # LitGPT publishes no types
    """LitGPT's data, tokenized in advance; each batch waits for the turn of its side.

    A request for a batch means that the step before has ended, and so ends the turn.
    """

    def take_turns(self, turns: Connection, clock: Callable[[], float]) -> None:
        """Set the connection that grants turns, and the clock of the steps."""
        self.turns, self.clock = turns, clock
        self.times_s: list[float] = []
        self.tokens: list[int] = []

    def setup(self, stage: str = "") -> None:
        """Tokenize all samples."""
        super().setup(stage)
        self.tokenized: Any = list(self.train_dataset)

    def train_dataloader(self) -> Any:
        """Return LitGPT's batches, made in this process."""
        return self.batches(super().train_dataloader().collate_fn)

    def batches(self, collate: Callable[[list[Sample]], Any]) -> Any:
        """Return the batches in LitGPT's order, made by `collate`, whose time is not measured."""
        started = 0.0

        def in_turn(samples: list[Sample]) -> Any:
            nonlocal started
            if self.tokens:
                self.times_s.append(self.clock() - started)
                self.turns.send(None)
            if not self.turns.recv():
                raise EnoughSteps
            self.tokens.append(sum(len(sample["input_ids"]) for sample in samples))
            batch = collate(samples)
            started = self.clock()
            return batch

        return torch.utils.data.DataLoader(
            self.tokenized, batch_size=self.batch_size, shuffle=True, drop_last=True,
            generator=torch.Generator().manual_seed(self.seed), collate_fn=in_turn,
        )  # fmt: skip


def litgpt_checkpoint(directory: Path, data: Path, tokenizer: Path, vocabulary: int) -> Path:
    """Write a LitGPT checkpoint of random weights, with this tokenizer or a BPE trained on the data."""
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


def stock_losses(checkpoint: Path, out: Path, data: InTurns) -> list[float]:
    """Run LitGPT until the data raises EnoughSteps, and return its losses."""
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


def own_losses(batching: Batching, vocabulary: int, checkpoint: Path, data: InTurns) -> list[float]:
    """Run the native engine on the same samples, and return its losses; making batches is part of its time."""
    trainer = own_trainer(batching, vocabulary, checkpoint)
    data.connect(Tokenizer(checkpoint), MICRO_BATCH, LENGTH)
    data.setup()
    pool_size = MICRO_BATCH * (POOL if batching is Batching.bucketed else 1)
    pool: list[Sample] = []
    losses: list[float] = []
    with suppress(EnoughSteps):
        for samples in data.batches(list):
            pool += samples
            if len(pool) == pool_size:
                losses += steps(trainer, pool)
                pool = []
    return losses


def side(who: str, turns: Connection, where: Path, options: argparse.Namespace) -> None:
    """Run one side in this process, and send a Measured after the last turn."""
    torch.set_num_threads(options.threads)
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    data = InTurns(json_path=Path(options.data), val_split_fraction=0.05, num_workers=0)
    data.take_turns(turns, time.process_time if options.cpu_time else time.perf_counter)
    checkpoint = where / "checkpoint"
    if who == STOCK:
        losses = stock_losses(checkpoint, where / "out", data)
    else:
        keep_freed_memory()
        losses = own_losses(Batching[who], options.vocabulary, checkpoint, data)
    turns.send(Measured(data.times_s, data.tokens, losses, own_peak_memory_bytes()))
    dist.destroy_process_group()


def own_peak_memory_bytes() -> int:
    """Return the peak memory of this program; getrusage would include that of the process that started it."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) * 1024


def measure(where: Path, options: argparse.Namespace) -> dict[str, Measured]:
    """Run all sides in turns, and return the measurements of each."""
    spawn = multiprocessing.get_context("spawn")
    turns: dict[str, Connection] = {}
    processes = []
    for who in (STOCK, *(batching.name for batching in Batching)):
        turns[who], theirs = spawn.Pipe()
        processes.append(spawn.Process(target=side, args=(who, theirs, where, options), daemon=True))
        processes[-1].start()
        theirs.close()  # so that the end of a process is seen here
    for _ in range(options.steps):
        for turn in turns.values():
            turn.send(True)
            turn.recv()
    measured: dict[str, Measured] = {}
    for who, turn in turns.items():
        turn.send(False)
        measured[who] = turn.recv()
    for process in processes:
        process.join()
    return measured


def ratio(theirs: list[float], own: list[float]) -> str:
    """Return the speedup over stock: median and range over steps, and the ratio of the sums."""
    ratios = [a / b for a, b in zip(theirs, own, strict=True)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}); {sum(theirs) / sum(own):.2f}"


def report(measured: dict[str, Measured], options: argparse.Namespace) -> None:
    """Print ratios first, then times, losses and memory."""
    theirs = measured.pop(STOCK)
    print(f"\nvocabulary {options.vocabulary}, {options.steps} steps of {MICRO_BATCH} samples, the first warms up")
    seconds = "CPU seconds" if options.cpu_time else "seconds"
    print(f"{seconds}, {options.threads} threads, {os.cpu_count()} cores, torch {torch.__version__}, float32, CPU")
    print("times stock's real tokens/s: median (range) of steps; of all steps together")
    for who, own in measured.items():
        if who != Batching.bucketed.name:
            print(f"  {who:9} {ratio(theirs.times_s[1:], own.times_s[1:])}")
        elif options.steps >= POOL:
            pools = range(0, options.steps - POOL + 1, POOL)
            sums = ([sum(times[i : i + POOL]) for i in pools] for times in (theirs.times_s, own.times_s))
            print(f"  {who:9} {ratio(*sums)}, by the {POOL} steps of a pool")
    print("real tokens/s, median step")
    for who, one in (STOCK, theirs), *measured.items():
        if who != Batching.bucketed.name:
            times = one.times_s[1:]
            print(f"  {who:9} {sum(one.tokens[1:]) / sum(times):,.0f}  {statistics.median(times):.2f} s")
    print("largest difference of a step's mean loss to stock's, as part of it")
    for who, own in measured.items():
        if who != Batching.bucketed.name:
            difference = max(abs(a - b) / a for a, b in zip(theirs.losses, own.losses, strict=True))
            print(f"  {who:9} {difference:.1e}")
    print("peak memory of the process")
    for who, one in (STOCK, theirs), *measured.items():
        print(f"  {who:9} {one.peak_bytes / 2**30:.2f} GiB, {one.peak_bytes / theirs.peak_bytes:.2f} of stock's")


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", required=True, help="JSON list of instruction, input, output")
    parser.add_argument("--tokenizer", required=True, help="tokenizer.model of 32,000 tokens")
    parser.add_argument("--vocabulary", type=int, choices=(BPE, 32000), default=BPE)
    parser.add_argument("--steps", type=int, default=2 * POOL, help=f"bucketed needs {POOL} or more")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="compute threads of each side")
    parser.add_argument("--cpu-time", action="store_true", help="of one thread, on a machine that others use too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as where:
        litgpt_checkpoint(Path(where) / "checkpoint", Path(options.data), Path(options.tokenizer), options.vocabulary)
        report(measure(Path(where), options), options)


if __name__ == "__main__":
    main()

"""`slurmscale data`: prepare the data of the overrides and print the account of each data set."""

from __future__ import annotations

from pathlib import Path

from jobs import metrics as m
from jobs.answers import DataAnswer, DataSetAnswer
from jobs.console import console, plain
from jobs.data import open_dataset
from jobs.data.account import Account
from jobs.data.megatron_binary import write_documents
from jobs.data.sources import source_files
from jobs.data.tokenized import encoded_documents
from jobs.data.tokenizer import load_tokenizer
from jobs.errors import ConfigError
from jobs.fitted_table import FittedTable
from jobs.plan.compose import compose
from jobs.runtime.steps import batches_of, samples_of
from jobs.schema import Run, Source

COLUMNS = {
    "read": (m.DATA_SAMPLES_READ, ",.0f"),
    "used": (m.DATA_SAMPLES_USED, ",.0f"),
    "held out": (m.DATA_SAMPLES_HELD_OUT, ",.0f"),
    "cut": (m.DATA_SAMPLES_CUT, ",.0f"),
    "tokens mean": (m.DATA_TOKENS_MEAN, ",.1f"),
    "p50": (m.DATA_TOKENS_P50, ",.1f"),
    "p95": (m.DATA_TOKENS_P95, ",.1f"),
    "max": (m.DATA_TOKENS_MAX, ",.0f"),
}


def make_data(overrides: list[str], *, multirun: bool, megatron: Path | None = None) -> DataAnswer:
    """Prepare the data of every point, each data set once, print its account, and return them; start no run.

    Data sets that exist are not made again, so a command that was interrupted continues with the rest. With `megatron`,
    also write the documents of the one data set in Megatron's binary format.
    """
    runs = [point.run for point in compose(overrides, multirun=multirun, to_submit=False)]
    made: dict[str, Path] = {}
    first: dict[Path, Run] = {}
    for run in runs:
        first.setdefault(samples_of(run, made).directory, run)
    if megatron is not None:
        refuse_megatron(runs, len(first))
    table = FittedTable()
    table.whole("data")
    for column in (*COLUMNS, "padding to the sequence length", "padding in an epoch"):
        table.number(column)
    sets = [data_set(directory, run) for directory, run in first.items()]
    for each in sets:
        table.add_row(plain(each.name), *numbers(each.account), f"{each.padding_share_of_an_epoch:.1%}")
    out = console()
    out.print(table)
    for each in sets:
        out.print(f"{each.description} In {each.directory}", soft_wrap=True)
    count = None if megatron is None else write_megatron(runs[0], next(iter(first)), megatron)
    if count is not None:
        out.print(f"{count:,} documents in {megatron}.bin and {megatron}.idx", soft_wrap=True)
    return DataAnswer(sets, count)


def data_set(directory: Path, run: Run) -> DataSetAnswer:
    """Return a prepared data set as a run reads it."""
    dataset = open_dataset(directory)
    return DataSetAnswer(
        name=label(run),
        directory=str(directory),
        description=dataset.description,
        account=dict(dataset.account),
        padding_share_of_an_epoch=batches_of(run, dataset, rank=0).padding_share(),
    )


def refuse_megatron(runs: list[Run], sets: int) -> None:
    """Raise ConfigError unless there is one data set of text."""
    source = runs[0].data.source
    if sets != 1:
        raise ConfigError(f"--megatron writes one data set, and these are {sets}. Leave out -m.")
    if source not in (Source.text, Source.stdlib):
        raise ConfigError(
            f"--megatron writes the documents of text, and data.source={source.name} has none. Set data=text "
            "data.path=PATH."
        )
    if runs[0].data.max_samples is not None:
        raise ConfigError("--megatron writes whole documents. Set data.max_samples=null.")


def write_megatron(run: Run, directory: Path, prefix: Path) -> int:
    """Write the documents with the tokenizer of a data set, and return their number."""
    tokenizer = load_tokenizer({file.name: file for file in open_dataset(directory).tokenizer_files})
    return write_documents(prefix, encoded_documents(source_files(run.data), tokenizer, run.data), tokenizer.size)


def label(run: Run) -> str:
    """Return the name of the data, with its prompt template if one was chosen."""
    prompt = "" if run.data.prompt is None else f", {Path(run.data.prompt).stem}"
    return f"{run.data.name}{prompt}"


def numbers(account: Account) -> list[str]:
    """Return the cells of an account."""
    padding = f"{account[m.DATA_PADDING_SHARE.name]:.1%}"
    return [*(format(account[metric.name], form) for metric, form in COLUMNS.values()), padding]

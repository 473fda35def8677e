"""Methodology in words, from the configuration of the runs, and the steps that make them again.

Only our own runs have a configuration; logs of other programs have the table of provenance.
"""

from __future__ import annotations

import hashlib
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from analysis.formatting import counted, listed, one_line, plural
from analysis.metrics.step_variation import STEADY_RULE
from analysis.report.digest import Digest
from analysis.report.figures.style import Section
from analysis.run import RunResult
from analysis.untrusted import as_list, lookup
from jobs import metrics as m
from jobs.files import YAML_BYTES, read_bytes
from jobs.rundir import RunDir
from jobs.schema import Cluster
from jobs.work.work import KINDS

METHODOLOGY, REPRODUCTION = "Methodology", "Reproduction"
DEFAULTS = {each.name: getattr(each.default, "name", each.default) for each in fields(Cluster)}
MOST_VALUES = 8
MOST_LISTED = 12
MOST_SETTINGS = 40


def methodology_section(digest: Digest) -> Section | None:
    """Return what was run and how it was measured, a row for each subject; None without runs of ours."""
    runs = own(digest)
    if not runs:
        return None
    # The steps of a program are read from its log, by the rules of logs.
    trained = [run for run in runs if run.steady_steps and run.setting("job.unmeasured_steps") is not None]
    rows = [
        ["Model", of_each(runs, model)],
        ["Start", of_each(trained, weights)],
        ["Data", of_each(trained, data)],
        ["Length", of_each(trained, length)],
        ["Batch", of_each(trained, batch)],
        ["Optimizer", of_each(trained, optimizer)],
        ["Precision", of_each(trained, precision)],
        ["Engine and layout", of_each(trained, layout)],
        ["Other work", of_each(runs, other_work)],
        ["Nodes and ranks", of_each(runs, lambda run: f"{plural(run.ranks or 0, 'rank')} on {nodes(run)}")],
        ["Warm-up and what is excluded", excluded(trained)],
        ["Step time", m.STEP_TIME.definition if trained else ""],
        ["Repeats", repeats(digest, trained)],
        ["Runs left out", left_out(digest)],
    ]
    note = (
        "Sentences from the frozen configuration of the runs, with the number of runs where they differ; to be edited "
        "into a paper. Predictions and published values are not part of it."
    )
    return Section(METHODOLOGY, note, ("Subject", "Method"), [row for row in rows if row[1]])


def reproduction_section(digest: Digest) -> Section | None:
    """Return commands, cluster, versions, seeds and digests, and how to run again; None without runs of ours."""
    runs = own(digest)
    if not runs:
        return None
    commands = (as_list(run.provenance.get("command")) for run in runs)
    # The program is on the PATH of the reader, not at the author's place.
    typed = [shlex.join([Path(str(first)).name, *map(str, rest)]) for first, *rest in filter(None, commands)]
    commits = [str(commit) for run in runs if (commit := lookup(run.provenance, "git.commit"))]
    dirty = any(lookup(run.provenance, "git.dirty") is True for run in runs)
    rows = [
        ["Commands", joined(typed, len(runs))],
        ["Overrides of a run", f"{runs[0].name}: {overrides(runs[0])}" if overrides(runs[0]) else ""],
        ["Code", joined(commits, len(runs)) + (", with uncommitted changes" if dirty else "")],
        ["Digest of the code", of_each(runs, lambda run: text(run.provenance.get("code_digest")))],
        ["Cluster", of_each(runs, lambda run: settings(run, "cluster"))],
        ["Versions at submission", of_each(runs, versions)],
        ["Seeds", of_each(runs, lambda run: text(run.setting("job.seed")))],
        ["Data", of_each(runs, lambda run: text(run.started.get("data")))],
        ["SHA-256 of config.yaml", digests(runs)],
        ["Run all again", again(typed, commits)],
        ["Run one again", f"slurmscale clone {shlex.quote(str(runs[0].path))}; changes follow as KEY=VALUE"],
    ]
    note = (
        "What it takes to make these runs again. In the directory of a run, config.yaml has every setting and "
        "provenance.json the overrides; the table System has the nodes. Data and weights are not part of them."
    )
    return Section(REPRODUCTION, note, ("Item", "Value"), [row for row in rows if row[1]])


def own(digest: Digest) -> list[RunResult]:
    """Return the runs of ours that measured something."""
    return [run for run in digest.recorded if run.log is None and run.config]


def of_each(runs: Sequence[RunResult], words: Callable[[RunResult], str]) -> str:
    """Return what is said of the runs, each with its number of runs unless it holds for all."""
    return joined([said for run in runs if (said := one_line(words(run)))], len(runs))


def joined(values: Iterable[str], runs: int) -> str:
    """Return distinct values, each with its number of runs unless all have it."""
    return "; ".join(counted(values, runs, MOST_VALUES))


def text(value: Any) -> str:
    """Return a value as text; empty if it is absent."""
    return "" if value is None else str(value)


# --- methodology ---------------------------------------------------------------------------------------------------


def model(run: RunResult) -> str:
    """Return the model with its weights."""
    count = run.plan.get("parameters")
    name = text(run.setting("images.network") or run.setting("model.name"))
    return f"{name} ({count:,} weights)" if name and isinstance(count, int) and count else name


def weights(run: RunResult) -> str:
    """Return where weights begin, and which of them train."""
    start = run.setting("job.init_from")
    words = f"weights of {start}" if start else "random weights"
    rank = run.setting("job.lora.rank")
    if rank is not None:
        return f"{words}, frozen, with LoRA of rank {rank}"
    tokens = run.setting("job.prompt_tuning.virtual_tokens")
    return f"{words}, frozen, with {plural(tokens, 'virtual token')}" if isinstance(tokens, int) else words


def data(run: RunResult) -> str:
    """Return the data with its limits."""
    name, limit = text(run.setting("images.name") or run.setting("data.name")), run.setting("data.max_samples")
    words = f"{name}, at most {limit:,} samples" if isinstance(limit, int) else name
    share = run.setting("data.test_split")
    return f"{words}, {100 * share:g} % held out" if isinstance(share, float) and share else words


def length(run: RunResult) -> str:
    """Return the length of the training and of its samples."""
    steps, epochs, tokens = (run.setting(f"job.{key}") for key in ("steps", "epochs", "sequence_length"))
    counts = ((epochs, "epoch"), (steps, "step"))
    words = next((plural(count, noun) for count, noun in counts if isinstance(count, int)), "")
    return f"{words}, samples of at most {tokens:,} tokens" if words and isinstance(tokens, int) else words


def batch(run: RunResult) -> str:
    """Return the global batch and its parts."""
    whole, parts = run.plan.get("global_batch_size"), run.setting("job.micro_batch_size")
    if not isinstance(whole, int):
        return ""
    words = f"{whole:,} samples a step, {parts} at a time on a rank"
    batching = run.setting("job.batching")
    return words if batching in {None, "padded"} else f"{words}, {batching}"


def optimizer(run: RunResult) -> str:
    """Return the optimizer with its hyperparameters."""
    job = {key: run.setting(f"job.{key}") for key in HYPERPARAMETERS}
    known = [f"{words} {value:g}" for key, words in HYPERPARAMETERS.items() if (value := job[key]) is not None]
    return f"AdamW: {', '.join(known)}" if known else ""


HYPERPARAMETERS = {
    "learning_rate": "learning rate",
    "min_learning_rate": "down by a cosine to",
    "warmup_steps": "linear warm-up over steps",
    "weight_decay": "weight decay",
    "beta1": "beta1",
    "beta2": "beta2",
    "clip_norm": "gradient norm at most",
}


def precision(run: RunResult) -> str:
    """Return the types of arithmetic and of weights."""
    arithmetic, held = run.setting("job.precision"), run.setting("engine.parameters")
    words = f"arithmetic in {arithmetic}, weights and optimizer in {held}"
    if run.setting("engine.float8") is not True:
        return words
    recipe = run.setting("engine.float8_recipe")
    return f"{words}, linear layers in {'float8' if recipe is None else f'few bits ({recipe})'}"


def layout(run: RunResult) -> str:
    """Return engine, strategy and what saves memory."""
    recomputed = run.setting("engine.activation_checkpointing")
    words = f"{run.setting('engine.kind')}, {run.setting('parallelism.name')}"
    if recomputed in {None, "none"}:
        return words
    count = run.setting("engine.checkpointed_layers")
    of_layers = f" of the first {count:,} layers of a stage" if isinstance(count, int) else ""
    return f"{words}, activation checkpointing {recomputed}{of_layers}"


def other_work(run: RunResult) -> str:
    """Return the settings of work other than training."""
    return "; ".join(filter(None, (settings(run, section) for section in KINDS)))


def settings(run: RunResult, section: str) -> str:
    """Return the settings of a section as overrides, without those that are empty or the schema's defaults."""
    prefix, usual = f"{section}.", DEFAULTS if section == "cluster" else {}
    found = [
        f"{key}={value}"
        for key, value in run.settings.items()
        if key.startswith(prefix) and value not in (None, "", False, [], {}, usual.get(key.removeprefix(prefix)))
    ]
    return listed(found, MOST_SETTINGS)


def nodes(run: RunResult) -> str:
    """Return the number of nodes, and that they are emulated."""
    count = run.setting("nodes")
    emulated = " emulated" if run.started.get("emulated_nodes") is True else ""
    return f"{count}{emulated} node{'' if count == 1 else 's'}"


def excluded(runs: Sequence[RunResult]) -> str:
    """Return what steady values leave out."""
    if not runs:
        return ""
    first = sorted({run.config["job"]["unmeasured_steps"] for run in runs})
    steps = "first step" if first == [1] else f"first {' or '.join(map(str, first))} steps"
    return (
        f"The {steps} of every start {'is' if first == [1] else 'are'} not measured, nor are start-up, profiled steps "
        "and the time in which "
        "training waits for a checkpoint or an evaluation. " + STEADY_RULE.replace(" (slow_steps below)", "")
    )


def repeats(digest: Digest, runs: Sequence[RunResult]) -> str:
    """Return the number of repeats, and how they are summarized."""
    ours = {run.path for run in runs}
    points = (point for group in digest.groups for point in group.points)
    counts = sorted({point.throughput.n for point in points if point.runs[0].path in ours})
    if not counts:
        return ""
    few = "one run" if counts == [1] else f"{counts[0]} to {counts[-1]} runs" if counts[1:] else f"{counts[0]} runs"
    return (
        f"{few[0].upper()}{few[1:]} of each point. Values are medians over repeats, with the smallest and the largest; "
        "from six repeats on with a distribution-free confidence interval of the median."
    )


def left_out(digest: Digest) -> str:
    """Return the number of runs that are not used, by state."""
    recorded = {run.path for run in digest.recorded}
    unused = [run for run in digest.runs if run.path not in recorded]
    if not unused:
        return f"None of {plural(len(digest.runs), 'run')}."
    states = ", ".join(f"{count:,} {state}" for state, count in sorted(Counter(run.state for run in unused).items()))
    return f"{len(unused):,} of {plural(len(digest.runs), 'run')}: {states}. The page has the reason of each."


# --- reproduction --------------------------------------------------------------------------------------------------


def overrides(run: RunResult) -> str:
    """Return the overrides of a run as words of a shell."""
    return shlex.join(str(each) for each in as_list(run.provenance.get("overrides")))


def versions(run: RunResult) -> str:
    """Return the versions of the submitting Python."""
    found = lookup(run.provenance, "versions")
    return ", ".join(f"{name} {version}" for name, version in sorted(found.items())) if isinstance(found, dict) else ""


def digests(runs: Sequence[RunResult]) -> str:
    """Return the SHA-256 of the frozen configuration of the first runs; runs.csv tells all of them apart."""
    found = []
    for run in runs[:MOST_LISTED]:
        with suppress(OSError):
            content = read_bytes(RunDir(run.path).config, YAML_BYTES)
            found.append(f"{run.name} {hashlib.sha256(content).hexdigest()}")
    more = len(runs) - MOST_LISTED
    return "; ".join(found) + (f"; and {more:,} more" if found and more > 0 else "")


def again(commands: Sequence[str], commits: Sequence[str]) -> str:
    """Return how to make all runs again."""
    if not commands:
        return ""
    at = f" at commit {commits[0]}" if len(set(commits)) == 1 else ""
    return f"Install slurmscale{at}, and run the commands above with a new sweep=NAME."

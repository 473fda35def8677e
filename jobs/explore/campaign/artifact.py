"""The appendix of an artifact as the SC conference asks for it, of a packaged attempt, under the template's headings.

A package does not know the paper: its DOI, tables and figures are left to the author, in places marked AUTHOR.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence

from analysis.compare.campaign import Entry, Leaderboard
from analysis.compare.contest_rules import input_hashes
from analysis.formatting import plural
from analysis.metrics.systems import facts_of
from analysis.run import RunResult
from analysis.untrusted import lookup
from jobs import metrics as m
from jobs.runtime.node.system_facts import TITLES

HARDWARE = [
    TITLES[name] for name in ("server", "cpu", "sockets", "cores", "memory_gib", "gpus", "adapters", "file_systems")
]
SOFTWARE = [
    TITLES[name] for name in ("os", "kernel", "gpu_driver", "toolkit", "versions", "server_versions", "container")
]
PAIRS = 3
"""Pairs that `slurmscale rerun` repeats."""
RERUN = ("    sha256sum -c SHA256SUMS", "    slurmscale rerun . --trust")


def appendix(board: Leaderboard, entry: Entry, claim: str, same: Iterable[str], changed: Iterable[str]) -> str:
    """Return the artifact description and evaluation of an attempt; `claim` is a sentence on its speed-up."""
    run, name = entry.trial.first, entry.trial.name
    lines = [
        "# Appendix: Artifact Description/Artifact Evaluation",
        "",
        "# Artifact Description (AD)",
        "",
        "## Overview of Contributions and Artifacts",
        "",
        "### Paper's Main Contributions",
        "",
        f"* C1: {name} of {board.path.name}. {claim}",
        "",
        "### Computational Artifacts",
        "",
        "* A1: this directory. AUTHOR: its DOI.",
        "",
        "| Artifact ID | Contributions Supported | Related Paper Elements |",
        "| --- | --- | --- |",
        "| A1 | C1 | AUTHOR: tables and figures |",
        "",
        "## Artifact Identification",
        "",
        "### Computational Artifact A1",
        "",
        "#### Relation To Contributions",
        "",
        "It has configuration, events and output of every run that the claim follows from, and repeats them. Changed:",
        "",
        *(f"* `{each}`" for each in changed),
        "",
        "The same task:",
        "",
        *(f"* {each}" for each in same),
        "",
        "#### Expected Results",
        "",
        f"{claim} On other hardware the ratio may differ.",
        "",
        "#### Expected Reproduction Time (in Minutes)",
        "",
        minutes(board, entry),
        "",
        "#### Artifact Setup (incl. Inputs)",
        "",
        "##### Hardware",
        "",
        f"* {plural(int(run.setting('nodes')), 'node')}, {plural(run.ranks or 0, 'rank')}",
        *facts(run, HARDWARE),
        "",
        "##### Software",
        "",
        *facts(run, SOFTWARE),
        "",
        "##### Datasets / Inputs",
        "",
        *inputs(run),
        "",
        "##### Installation and Deployment",
        "",
        f"* slurmscale {lookup(run.provenance, 'versions.slurmscale')}, commit {lookup(run.provenance, 'git.commit')}, "
        f"code digest {run.provenance.get('code_digest')}; all versions are in `runs/*/provenance.json`.",
        "* The files of the site that the configuration names are in site/.",
        "",
        "#### Artifact Execution",
        "",
        f"Baseline and attempt run in turns, {plural(PAIRS, 'pair')}. Read `campaign.yaml` first: its commands run on "
        "your machine.",
        "",
        *RERUN,
        "",
        "#### Artifact Analysis (incl. Outputs)",
        "",
        "`slurmscale leaderboard runs/rerun-PACKAGE` shows ratio, interval and verdict; the claimed ones are in "
        "`claim.json`.",
        "",
        "# Artifact Evaluation (AE)",
        "",
        "## Computational Artifact A1",
        "",
        "### Artifact Setup (incl. Inputs)",
        "",
        "Programs, data and model must be at the paths of campaign.yaml. `slurmscale doctor` checks the cluster.",
        "",
        "### Artifact Execution",
        "",
        *RERUN,
        "",
        "### Artifact Analysis (incl. Outputs)",
        "",
        "It ends with `Reproduced` and exit code 0 if the verdict is the claimed one and both intervals overlap, else "
        "with the reason and exit code 1.",
        "",
    ]
    return "\n".join(lines)


def minutes(board: Leaderboard, entry: Entry) -> str:
    """Return the expected time of a repetition."""
    assert board.baseline is not None
    total = m.PROGRAM_TIME if entry.trial.first.setting("program.name") else m.TOTAL_TIME
    sides = [
        [time_s for run in runs if (time_s := run.values.get(total)) is not None]
        for runs in (board.baseline.runs, entry.trial.used)
    ]
    if not all(sides):
        return "The runs did not record their total time. AUTHOR: setup and execution."
    of_a_pair_s = sum(map(statistics.median, sides))
    return f"Execution: {PAIRS * of_a_pair_s / 60:.3g} for the runs themselves. AUTHOR: setup."


def facts(run: RunResult, titles: Sequence[str]) -> Iterator[str]:
    """Yield the facts of the first node of a run."""
    node = next(iter(facts_of(run)), None)
    if node is None:
        yield "* not recorded"
        return
    yield from (f"* {title}: {node.facts[title]}" for title in titles if title in node.facts)


def inputs(run: RunResult) -> list[str]:
    """Return the model, the data, or the program with its inputs, of a run."""
    if (program := run.setting("program.name")) is not None:
        hashes = [f"* Input {name}: SHA-256 {digest}" for name, digest in sorted(input_hashes(run).items())]
        return [f"* Program {program}: {run.setting('program.about') or 'its steps are in config.yaml'}", *hashes]
    keys = {"Model": ("model.name", "job.init_from"), "Data": ("data.name", "data.path")}
    known = {title: [str(value) for key in each if (value := run.setting(key))] for title, each in keys.items()}
    return [f"* {title}: {' at '.join(words)}" for title, words in known.items() if words]

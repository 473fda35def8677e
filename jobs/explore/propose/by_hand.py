"""`slurmscale tune --next CAMPAIGN`: the next attempts of a hand-made campaign, each with its reason.

Reasons are what the best attempt measured: memory left, padding, exposed communication; and what failed. Only changes
that compose, are legal and were not tried are proposed; nothing is submitted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from analysis.compare.campaign import Leaderboard, Verdict, leaderboards, previews
from analysis.failures.runs import failures
from analysis.load.discover import read_runs
from analysis.run import RunResult
from analysis.untrusted import as_number, lookup
from jobs import metrics as m
from jobs.answers import ProposedAttempt, TuningAnswer
from jobs.console import shell_line
from jobs.errors import ConfigError, RunDirError
from jobs.explore.campaign.campaign import opened, recorded
from jobs.failure_causes import FailureCause
from jobs.plan.compose import compose
from jobs.plan.keys import key_of
from jobs.plan.rules.memory import GIB
from jobs.rundir import BASELINE, RunDir, read_records
from jobs.submit.preparation.preview import only_previewed

MEMORY_LEFT = 0.8
"""A rank with more than a fifth of its memory free can hold more: the allocator needs a tenth for fragments."""
PADDING = 0.05
COMMUNICATION = 0.1
"""Smallest shares of tokens and of the step that are worth an attempt: a smaller gain is lost in noise."""


@dataclass(frozen=True)
class Proposal:
    """An attempt to make next."""

    changes: tuple[str, ...]
    reason: str

    @property
    def name(self) -> str:
        """Return a name for the attempt, made of the values that it changes."""
        return "-".join(each.rpartition(".")[2].replace("=", "_") for each in self.changes)


def next_attempts(folder: Path) -> TuningAnswer:
    """Print the next attempts of a campaign, with their reasons, and return them."""
    campaign = opened(folder)
    runs = read_runs([campaign.sweep.path])
    board = next(iter(leaderboards(runs)), None)
    if board is None and previews(runs):
        raise RunDirError(only_previewed(campaign.sweep))
    if board is None or not any(run.used for run in board.runs):
        raise RunDirError(f"{campaign.sweep.path} has no finished run to learn from. Wait for its first attempt.")
    best, changes = best_of(board)
    print(f"Best so far: {best.name}{f' ({shell_line(changes)})' if changes else ''}")
    tried = {
        tuple(sorted(known["changes"]))
        for run in runs
        if (known := recorded(RunDir(run.path))) is not None and known["name"] != BASELINE
    }
    found = [each for each in proposals(best, runs) if tuple(sorted(merged(changes, each.changes))) not in tried]
    legal = [
        each
        for each in found
        if is_legal([*campaign.base, *merged(changes, each.changes)], received=campaign.is_received)
    ]
    proposed = [ProposedAttempt(each.name, merged(changes, each.changes), each.reason) for each in legal]
    for attempt in proposed:
        line = shell_line(attempt.overrides)
        print(f"\n{attempt.reason}\n  slurmscale attempt {attempt.name} {line} --campaign {campaign.sweep.quoted}")
    if not legal:
        print("No next attempt follows from what was measured; profile the best one: engine.profile.steps=3")
    return TuningAnswer(str(campaign.sweep.path), False, list(changes), None, None, proposed)


def best_of(board: Leaderboard) -> tuple[RunResult, Sequence[str]]:
    """Return a run of the best attempt that is faster than the baseline, else of the baseline, and its changes."""
    for entry in board.entries:
        if entry.verdict is Verdict.faster:
            run = entry.trial.used[0]
            return run, (recorded(RunDir(run.path)) or {"changes": []})["changes"]
    return next(run for run in board.runs if run.used), []


def merged(changes: Sequence[str], further: Sequence[str]) -> list[str]:
    """Return overrides of which later ones replace earlier ones of the same key."""
    return list({key_of(each): each for each in (*changes, *further)}.values())


def is_legal(overrides: list[str], *, received: bool) -> bool:
    """Return whether a run of these overrides can be submitted."""
    try:
        compose(overrides, multirun=False, received=received)
    except ConfigError:
        return False
    return True


# --- reasons ---------------------------------------------------------------------------------------------------


def proposals(best: RunResult, runs: Sequence[RunResult]) -> Iterator[Proposal]:
    """Yield the attempts that follow from the measurements of the best run, and from failures."""
    for rule in (memory_left, padding, communication):
        yield from rule(best)
    if any(each.cause is FailureCause.out_of_gpu_memory for each in failures(runs).values()):
        reason = "An attempt ran out of GPU memory: recompute the inner activations of layers instead of keeping them."
        yield Proposal(("engine.activation_checkpointing=selective",), reason)


def memory_left(run: RunResult) -> Iterator[Proposal]:
    """Yield a larger micro-batch and less recomputation where memory is left."""
    size, peak = as_number(run.setting("gpu.memory_gb")), run.values.get(m.MEMORY_PEAK)
    batch = as_number(run.setting("job.micro_batch_size"))
    if not size or not peak or not batch or peak > MEMORY_LEFT * size * GIB:
        return
    left = f"Memory left: the fullest GPU used {peak / GIB:.1f} of {size:g} GiB ({100 * peak / size / GIB:.0f} %). "
    yield Proposal((f"job.micro_batch_size={2 * int(batch)}",), left + "A larger micro-batch has larger products.")
    if run.setting("engine.activation_checkpointing") not in {"none", None}:
        reason = left + "Keep activations instead of computing them twice."
        yield Proposal(("engine.activation_checkpointing=none",), reason)


def padding(run: RunResult) -> Iterator[Proposal]:
    """Yield batches without padding where much of the work is padding."""
    rows = [row for row in read_records(run.path / "metrics.jsonl") if m.PADDED_TOKENS.name in row]
    padded = sum(as_number(row.get(m.PADDED_TOKENS.name)) or 0 for row in rows)
    share = 1 - sum(as_number(row.get(m.TOKENS.name)) or 0 for row in rows) / padded if padded else 0.0
    if share > PADDING and run.setting("job.batching") == "padded":
        reason = f"Padding: {100 * share:.0f} % of the positions that were computed hold no token. "
        yield Proposal(("job.batching=packed",), reason + "Packed rows have none.")
        yield Proposal(("job.batching=bucketed",), reason + "Samples of similar length in a micro-batch have less.")


def communication(run: RunResult) -> Iterator[Proposal]:
    """Yield layouts with less traffic where communication takes a large share of the step."""
    measured = run.values.get(m.EXPOSED_COMMUNICATION_SHARE)
    share, how = (measured, "measured by the profile") if measured is not None else (predicted_share(run), "predicted")
    if share is None or share < COMMUNICATION:
        return
    reason = f"Communication: {100 * share:.0f} % of a step waits for it ({how}). "
    if run.setting("parallelism.sharding") == "FULL_SHARD":
        yield Proposal(("parallelism=fsdp_grad_op",), reason + "Weights that stay gathered are gathered once a step.")
        if as_number(run.setting("nodes")) not in {None, 1}:
            yield Proposal(("parallelism=fsdp_hybrid",), reason + "Gather weights inside a node only.")
    if (as_number(run.setting("parallelism.tensor")) or 1) > 1:
        yield Proposal(("parallelism=fsdp_full",), reason + "Sharded weights need fewer messages than split products.")


def predicted_share(run: RunResult) -> float | None:
    """Return the predicted share of communication in a step; None if nothing was predicted."""
    terms = lookup(run.plan, "speed.terms_s")
    if not isinstance(terms, dict):
        return None
    seconds = {key: as_number(value) or 0.0 for key, value in terms.items()}
    total = sum(seconds.values())
    return sum(value for key, value in seconds.items() if key.endswith("_parallel")) / total if total else None

"""Rules of a contest, checked before a run starts; analysis.compare.campaign_rules judges what the run did."""

from __future__ import annotations

from jobs.plan.rules.rule import Rule
from jobs.schema import Contest, Run


def departures(run: Run) -> list[str]:
    """Return the reasons why a run is only a rehearsal of its contest: `model tiny, not llama2_7b`."""
    if run.contest is None:
        return []
    both = {"model": (run.model.name, run.contest.model), "data": (run.data.name, run.contest.data)}
    return [f"{key} {own}, not {wanted}" for key, (own, wanted) in both.items() if own != wanted]


def rule_of(run: Run, key: str) -> str:
    """Return the rule that a value breaks, and for a rehearsal the key that changes the rule."""
    assert run.contest is not None
    other = f" A rehearsal's baseline may have another: contest.{key}=VALUE." if departures(run) else ""
    return f"The rule is contest.{key}={getattr(run.contest, key)} of {run.contest.name}.{other}"


def world_is_the_contests(run: Run) -> str | None:
    """Require the contest's nodes and ranks per node."""
    for key in ("nodes", "ranks_per_node"):
        own, wanted = getattr(run, key), getattr(run.contest, key, getattr(run, key))
        if own != wanted:
            return f"{key}={own} is another machine than the contest's. Set {key}={wanted}. {rule_of(run, key)}"
    return None


def time_limit_is_the_contests(run: Run) -> str | None:
    """Require the contest's time limit or less."""
    if run.contest is not None and run.wall_time_min > run.contest.wall_time_min:
        most = run.contest.wall_time_min
        return (
            f"wall_time_min={run.wall_time_min} is more than the contest gives. Set wall_time_min={most} or less. "
            f"{rule_of(run, 'wall_time_min')}"
        )
    return None


def data_are_whole(run: Run) -> str | None:
    """Require all samples of the contest, and no others."""
    if run.contest is None:
        return None
    if run.data.max_samples != run.contest.samples:
        return (
            f"data.max_samples={run.data.max_samples} is another epoch than the contest's. "
            f"Set data.max_samples={run.contest.samples}. {rule_of(run, 'samples')}"
        )
    if run.data.held_out_samples:
        return (
            f"data.held_out_samples={run.data.held_out_samples} shortens the epoch. Set data.held_out_samples=0. "
            f"{rule_of(run, 'samples')}"
        )
    return None


def training_is_whole(run: Run) -> str | None:
    """Require all epochs of the contest."""
    if run.contest is not None and (run.job.steps is not None or run.job.epochs != run.contest.epochs):
        given = f"job.steps={run.job.steps}" if run.job.steps is not None else f"job.epochs={run.job.epochs}"
        return (
            f"{given} is not the contest's length of training. Set job.epochs={run.contest.epochs} job.steps=null. "
            f"{rule_of(run, 'epochs')}"
        )
    return None


def sequences_are_the_contests(run: Run) -> str | None:
    """Require the contest's sequence length."""
    wanted = run.contest.sequence_length if run.contest else run.job.sequence_length
    if run.job.sequence_length != wanted:
        return (
            f"job.sequence_length={run.job.sequence_length} is not the contest's. Set job.sequence_length={wanted}. "
            f"{rule_of(run, 'sequence_length')}"
        )
    return None


def all_weights_are_trained(run: Run) -> str | None:
    """Refuse adapters unless the contest allows them."""
    if run.contest is not None and run.job.lora is not None and not run.contest.lora:
        return f"job.lora does not count. Set job.lora=null. {rule_of(run, 'lora')}"
    return None


def judgement_is_possible(run: Run) -> str | None:
    """Require thresholds that can judge a loss."""
    contest: Contest | None = run.contest
    if contest is None:
        return None
    if contest.loss_steps < 1:
        return f"contest.loss_steps={contest.loss_steps} is not a positive number. Set contest.loss_steps=1 or more."
    for key in ("loss_tolerance", "loss_spreads"):
        value = getattr(contest, key)
        if not 0 <= value < float("inf"):
            return f"contest.{key}={value:g} is not a finite number of 0 or more. Set contest.{key}=NUMBER."
    return None


# --- warnings ------------------------------------------------------------------------------------------------


def run_is_a_rehearsal(run: Run) -> str | None:
    """Warn of a run that does not count in the contest."""
    if found := departures(run):
        assert run.contest is not None
        return f"a rehearsal of {run.contest.name}, which counts nowhere: {'; '.join(found)}."
    return None


RULES: tuple[Rule, ...] = (
    judgement_is_possible,
    world_is_the_contests,
    time_limit_is_the_contests,
    data_are_whole,
    training_is_whole,
    sequences_are_the_contests,
    all_weights_are_trained,
)
WARNINGS: tuple[Rule, ...] = (run_is_a_rehearsal,)

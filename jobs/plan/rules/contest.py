"""Rules of a contest, checked before a run starts; analysis.compare.contest_rules judges what the run did.

A key that must have the contest's value is a field of jobs.schema.Contest, a line of REQUIRED here, and a line of the
experiment file. A limit on what a run did is a field and a line there too, and a function in
analysis.compare.contest_rules.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter

from jobs.plan.rules.rule import Rule, value_at
from jobs.schema import Counted, Run

# The field of Contest whose value a key must have.
REQUIRED = {
    "nodes": "nodes",
    "ranks_per_node": "ranks_per_node",
    "data.max_samples": "samples",
    "job.epochs": "epochs",
    "job.sequence_length": "sequence_length",
}


def departures(setting: Callable[[str], object]) -> list[str]:
    """Return the reasons why a run, given by its settings, is only a rehearsal: `model tiny, not llama2_7b`."""
    wanted = {key: setting(f"contest.{key}") for key in ("model", "data", "program")}
    both = [(key, setting(f"{key}.name"), name) for key, name in wanted.items() if name is not None]
    found = [f"{key} {own}, not {name}" for key, own, name in both if own != name]
    # The rehearsal of a program has its name, and another size.
    is_small = wanted["program"] is not None and setting("rehearsal") not in (None, {})
    return [*found, "made small by rehearsal"] if is_small else found


def rule_of(run: Run, field: str) -> str:
    """Return the rule that a value breaks, and for a rehearsal the key that changes the rule."""
    assert run.contest is not None
    other = f" A rehearsal's baseline may have another: contest.{field}=VALUE." if run_is_a_rehearsal(run) else ""
    return f"The rule is contest.{field}={getattr(run.contest, field)} of {run.contest.name}.{other}"


def training_is_whole(run: Run) -> str | None:
    """Require training by epochs, on all samples."""
    if run.contest is None or run.contest.epochs is None:
        return None
    if run.job.steps is not None:
        return (
            f"job.steps={run.job.steps} is not the contest's length of training. Set job.epochs={run.contest.epochs} "
            f"job.steps=null. {rule_of(run, 'epochs')}"
        )
    if run.data.holds_out:
        split, last = run.data.test_split, run.data.held_out_samples
        key, none = ("held_out_samples", 0) if split is None else ("test_split", "null")
        value = last if split is None else f"{split:g}"
        return f"data.{key}={value} shortens the epoch. Set data.{key}={none}. {rule_of(run, 'samples')}"
    return None


def values_are_the_contests(run: Run) -> str | None:
    """Require the contest's values of the keys in REQUIRED."""
    wrong = []
    for key, field in REQUIRED.items() if run.contest else ():
        own, wanted = attrgetter(key)(run), getattr(run.contest, field)
        # Steps in place of epochs are training_is_whole's.
        if wanted is not None and own != wanted and (key != "job.epochs" or run.job.steps is None):
            wrong.append(f"{key}={own} is not the contest's. Set {key}={wanted}. {rule_of(run, field)}")
    return "\n".join(wrong) or None


def time_limit_is_the_contests(run: Run) -> str | None:
    """Require the contest's time limit or less."""
    if run.contest is not None and run.wall_time_min > run.contest.wall_time_min:
        most = run.contest.wall_time_min
        return (
            f"wall_time_min={run.wall_time_min} is more than the contest gives. Set wall_time_min={most} or less. "
            f"{rule_of(run, 'wall_time_min')}"
        )
    return None


def all_weights_are_trained(run: Run) -> str | None:
    """Refuse adapters unless the contest allows them, and virtual tokens."""
    if run.contest is not None and run.job.lora is not None and not run.contest.lora:
        return f"job.lora does not count. Set job.lora=null. {rule_of(run, 'lora')}"
    if run.contest is not None and run.job.prompt_tuning is not None:
        return f"job.prompt_tuning does not count. Set job.prompt_tuning=null. The contest is {run.contest.name}."
    return None


def target_is_counted(run: Run) -> str | None:
    """Require a loss to be reached exactly where the time until then is compared."""
    if run.contest is None or (run.contest.counted is Counted.target) is (run.contest.target_loss is not None):
        return None
    if run.contest.target_loss is None:
        return "contest.counted=target needs the loss to be reached. Set contest.target_loss=NUMBER."
    return f"contest.target_loss={run.contest.target_loss:g} is not read. Set contest.counted=target."


def score_keeps_a_run(run: Run) -> str | None:
    """Require more runs for the official score than it leaves out."""
    rules = run.contest
    if rules is None or not rules.dropped:
        return None
    if rules.runs is None:
        return f"contest.dropped={rules.dropped} is not read. Set contest.runs=NUMBER, the runs of a score."
    if rules.runs <= 2 * rules.dropped:
        return (
            f"contest.runs={rules.runs} leaves no run without the {rules.dropped} fastest and {rules.dropped} slowest "
            f"(contest.dropped). Set contest.runs={2 * rules.dropped + 1} or more."
        )
    return None


def service_units_have_a_price(run: Run) -> str | None:
    """Require the price of a node-hour where a budget counts service units."""
    if run.budget.service_units is not None and run.cluster.service_units_per_node_hour is None:
        return (
            f"budget.service_units={run.budget.service_units:g} needs the price of a node. Set "
            "cluster.service_units_per_node_hour=NUMBER, or budget.node_hours in its place."
        )
    return None


# --- warnings ------------------------------------------------------------------------------------------------


def run_is_a_rehearsal(run: Run) -> str | None:
    """Warn of a run that does not count in the contest."""
    if run.contest is None or not (found := departures(lambda key: value_at(run, key))):
        return None
    return f"a rehearsal of {run.contest.name}, which counts nowhere: {'; '.join(found)}."


RULES: tuple[Rule, ...] = (
    training_is_whole,
    values_are_the_contests,
    time_limit_is_the_contests,
    all_weights_are_trained,
    target_is_counted,
    score_keeps_a_run,
    service_units_have_a_price,
)
WARNINGS: tuple[Rule, ...] = (run_is_a_rehearsal,)

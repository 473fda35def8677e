"""Options of `cluster.sbatch` whose values are known: their form, and what they depend on.

sbatch checks every other option itself. A wrong value of one of these would be found after minutes in the queue, or
never.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from jobs.plan.rules.rule import Rule, divisors, either
from jobs.schema import Run


@dataclass(frozen=True)
class Option:
    """The values of an option of sbatch."""

    form: re.Pattern[str]
    allowed: str
    example: str
    since: str = ""
    """The first release of Slurm that has it; empty: all that are in use."""
    later: Mapping[str, str] = field(default_factory=dict)
    """Values that came later, each with its first release."""


# https://slurm.schedmd.com/sbatch.html; releases by CHANGELOG/slurm-24.05.md and RELEASE_NOTES.md of 25.11.
OPTIONS = {
    "exclusive": Option(re.compile("user|mcs|topo"), "user, mcs or topo", "user", later={"topo": "24.05"}),
    "licenses": Option(
        re.compile(r"[^\s,|:]+(:[1-9]\d*)?([,|][^\s,|:]+(:[1-9]\d*)?)*"), "NAME:COUNT, several with commas", "matlab:2"
    ),
    "nice": Option(re.compile(r"-?\d{1,10}"), "a whole number; a larger one lets others go first", "100"),
    "requeue": Option(re.compile("expedite"), "expedite; launcher.requeues sets all else", "expedite", "25.11"),
    "reservation": Option(re.compile(r"[^\s,]+(,[^\s,]+)*"), "the name of a reservation, several with commas", "maint"),
    "segment": Option(re.compile(r"[1-9]\d{0,4}"), "the nodes of a segment, at least 1", "1", "24.05"),
    "switches": Option(re.compile(r"[1-9]\d*(@[\d:-]+)?"), "COUNT or COUNT@TIME", "1"),
}


def values_have_their_form(run: Run) -> str | None:
    """Require the values of known options to be such that sbatch understands them."""
    for name, option in OPTIONS.items():
        value = run.cluster.sbatch.get(name)
        if value is not None and not option.form.fullmatch(value):
            return (
                f"cluster.sbatch.{name}={value}: allowed is {option.allowed}. "
                f"Set cluster.sbatch.{name}={option.example}."
            )
    return None


def segments_fill_the_nodes(run: Run) -> str | None:
    """Require the nodes of a job to be whole segments: Slurm would leave it pending, or refuse it."""
    segment = run.cluster.sbatch.get("segment", "")
    nodes = (run.launcher.pilot_nodes or 0) if run.starter.one_job else run.job_nodes
    if segment.isdecimal() and int(segment) and nodes % int(segment):
        spares = f" (with {run.launcher.spare_nodes} spare)" if run.launcher.spare_nodes else ""
        return (
            f"cluster.sbatch.segment={segment} does not divide the {nodes} nodes of the job{spares}. "
            f"Set cluster.sbatch.segment={either(divisors(nodes))}."
        )
    return None


def nodes_are_shared_or_not(run: Run) -> str | None:
    """Require one of whole nodes and shared ones; since Slurm 23.02 sbatch refuses both."""
    if run.cluster.exclusive and "oversubscribe" in run.cluster.sbatch:
        return (
            "cluster.exclusive=true asks for whole nodes, and cluster.sbatch.oversubscribe for shared ones. "
            "Set cluster.exclusive=false, or remove the option."
        )
    return None


def expedited_jobs_are_requeued(run: Run) -> str | None:
    """Require restarts to be allowed for a job that Slurm is asked to start again at once."""
    if run.cluster.sbatch.get("requeue") == "expedite" and not run.launcher.requeues:
        return (
            "cluster.sbatch.requeue=expedite lets Slurm start the job again, and launcher.requeues=0 forbids it. "
            "Set launcher.requeues=3, or remove the option."
        )
    return None


def newer(run: Run) -> dict[str, str]:
    """Return the options of a run that not all releases in use have, as assignments, each with its first release."""
    given = {name: value for name, value in run.cluster.sbatch.items() if name in OPTIONS}
    found = {f"cluster.sbatch.{name}={value}": OPTIONS[name].later.get(value, OPTIONS[name].since)
             for name, value in given.items()}  # fmt: skip
    return {option: since for option, since in found.items() if since}


RULES: tuple[Rule, ...] = (
    values_have_their_form,
    segments_fill_the_nodes,
    nodes_are_shared_or_not,
    expedited_jobs_are_requeued,
)

"""Stragglers on the page: a sentence among the bottlenecks, a warning, a row each."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.formatting import listed, plural, short, shown, significant, title
from analysis.metrics.stragglers import Straggler
from analysis.report.digest import Digest
from analysis.report.figures.style import Section
from analysis.report.sections.step_variation import LONGEST_NAME, named
from analysis.run import RunResult
from jobs import metrics as m

MOST_NAMED = 4


def who(straggler: Straggler) -> str:
    """Return a straggler's name: a rank, with its node if known, or all ranks of a node."""
    first, last = straggler.ranks
    if straggler.node is None:
        return f"rank {first:,}"
    node = short(straggler.node, LONGEST_NAME)
    return f"rank {first:,} on {node}" if first == last else f"all ranks of {node} ({first:,} to {last:,})"


def cost(straggler: Straggler) -> str:
    """Return a straggler's slowdown, its slow part and a lower bound of its cost as text."""
    others = "the own time of the fastest rank" if straggler.beside_fastest else "the median own time of the others"
    return (
        f"{significant(straggler.own_time_s / straggler.others_own_time_s, 3)} times {others}, mostly "
        f"{part(straggler)}, which costs at least {shown(m.STRAGGLER_SHARE, straggler.share)} % of the step time"
    )


def part(straggler: Straggler) -> str:
    """Return the slow part of a straggler's step."""
    return "getting batches" if straggler.by_batch else "the forward passes of layers"


def ranks_straggle(runs: Sequence[RunResult]) -> list[str]:
    """Warn of stragglers: the runs that lose most to them, each with its worst one."""
    held = sorted((run for run in runs if run.stragglers), key=lambda run: (-run.values[m.STRAGGLER_SHARE], run.name))
    if not held:
        return []
    return [
        f"Stragglers in {len(held)} of {plural(len(runs), 'run')}: {named(held, in_words)}. "
        f"{m.STRAGGLER_SHARE.name} is defined below."
    ]


def in_words(run: RunResult) -> str:
    """Return the stragglers of a run and the cost of the worst one as text."""
    found = run.stragglers or []
    worst = "" if len(found) == 1 else "the worst "
    return f"waits for {listed(list(map(who, found)), MOST_NAMED)}: {worst}{cost(found[0])}"


def straggler_section(digest: Digest) -> Section | None:
    """Return a row for each straggler of these runs; None if there are none."""
    note = (
        f"Ranks and nodes that the others wait for. {m.STRAGGLER_SHARE.name}: {m.STRAGGLER_SHARE.definition} "
        f"{m.OWN_TIME.name}: {m.OWN_TIME.definition} For logs it is the time of "
        "the forward pass, compared with that of the fastest rank."
    )
    rows = [
        [
            run.name,
            shown(m.OWN_TIME, each.own_time_s),
            shown(m.OTHERS_OWN_TIME, each.others_own_time_s),
            shown(m.STRAGGLER_SHARE, each.share),
            f"{each.windows:,}",
            f"{who(each)}, {part(each)}",
        ]
        for run in digest.used
        for each in run.stragglers or []
    ]
    numbers = map(title, (m.OWN_TIME, m.OTHERS_OWN_TIME, m.STRAGGLER_SHARE))
    headings = ("Run", *numbers, "Slow windows", "Straggler, slow part")
    return Section("Stragglers", note, headings, rows) if rows else None

"""The result of the regression gate: a table in the terminal with the verdict last, a sentence and a table on the page.

analysis.compare.regression judges; nothing is judged here.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from analysis.compare.loss import FINAL_LOSS_TOLERANCE
from analysis.compare.regression import (
    FAILING,
    FALSE_ALARMS,
    SMALLEST,
    TOLERANCE,
    WORSE,
    Check,
    Regression,
    Verdict,
)
from analysis.formatting import ABSENT, one_line, percent, plural, shown, shown_spread, title
from analysis.intervals import FEWEST_FOR_MEAN, NORMALITY
from analysis.report.figures.style import Section
from jobs.answers import ReferenceAnswer, ReferenceCheck
from jobs.console import console, plain
from jobs.fitted_table import FittedTable

HEADING = "Against the reference"
COLOURS = {Verdict.passed: "green", Verdict.better: "cyan", Verdict.unjudged: "yellow"}
MOST_SHOWN = 40
MOST_ADDED = 12


def sentence(found: Regression) -> str:
    """Return PASS, REGRESSION if a point got worse, or FAIL if a point is missing, with the numbers compared."""
    points = len({check.point for check in found.compared})
    against = f"against {found.reference}, {limits(found)}"
    held = [f"{name} of {plural(count, 'point')}" for name, count in found.unjudged.items()]
    unjudged = [f"not judged, because the reference contains no values: {', '.join(held)}"] if held else []
    if not found.compared and not held:
        return f"FAIL {against}: no point of the reference was measured, so nothing could be compared."
    counts = Counter(check.verdict for check in found.checks)
    beside = [f"{counts[Verdict.missing]} of the reference not measured"] if counts[Verdict.missing] else []
    beside += [f"{len(found.added)} not in the reference"] if found.added else []
    rest = "".join(f"; {each}" for each in (", ".join(beside), *unjudged) if each)
    of = f"{plural(len(found.compared), 'check')} of {plural(points, 'point')}"
    worse = [f"{counts[verdict]} {verdict.value.lower()}" for verdict in WORSE if counts[verdict]]
    if worse:
        return f"REGRESSION {against}: {', '.join(worse)}, of {of}{rest}."
    return f"{'PASS' if found.passed else 'FAIL'} {against}: none worse, of {of}{rest}."


def limits(found: Regression) -> str:
    """Return how much a metric may change."""
    if found.tolerance is not None:
        return f"tolerance {percent(found.tolerance)}"
    if not found.by_spread:
        return f"tolerance {percent(TOLERANCE)} (the reference has no spread of its own)"
    return (
        f"limits of {plural(found.by_spread, 'check')} by its own spread (false alarms in {percent(FALSE_ALARMS)} of "
        f"such reports at most if its level is steady), of the others {percent(TOLERANCE)}"
    )


def change_words(check: Check) -> str:
    """Return the change against the reference with its sign: `-8.1 %`."""
    return ABSENT if check.change is None else f"{check.change * 100:+.1f} %"


def ordered(found: Regression) -> list[Check]:
    """Return the failing checks first, then those that were not judged, then the others in their order."""
    return sorted(found.checks, key=lambda check: (check.verdict not in FAILING, check.verdict is not Verdict.unjudged))


def section(found: Regression) -> Section:
    """Return the table of checks, one row per metric of a point."""
    rows = []
    for check in ordered(found):
        numbers = [shown_spread(check.metric, each) for each in (check.reference, check.now)] if check.metric else []
        what = f"{check.point}: {title(check.metric)}" if check.metric else check.point
        words = "; ".join(part for part in (check.verdict.value, check.why) if part)
        rows.append([what, *(numbers or [ABSENT, ABSENT]), change_words(check), words])
    rows += [[point, ABSENT, ABSENT, ABSENT, "not in the reference"] for point in found.added]
    note = (
        f"Medians over repeats against those of {found.reference}. {rule(found)} The final loss fails if it differs by "
        f"more than {percent(FINAL_LOSS_TOLERANCE)}, because then it is not the same computation. A point of the "
        f"reference that was not measured {'is listed' if found.allow_missing else 'fails'}; a point that the "
        "reference does not contain is listed."
    )
    if found.not_matched_on:
        note += f" Not matched on columns that this reference does not contain: {', '.join(found.not_matched_on)}."
    return Section(HEADING, note, ("Point", "Reference", "Now", "Change", "Verdict"), rows)


def rule(found: Regression) -> str:
    """Return when a metric is worse."""
    fixed = f"changed by more than {percent(TOLERANCE if found.tolerance is None else found.tolerance)} in its"
    if not found.by_spread:
        return f"A metric is worse if it {fixed} unfavourable direction."
    return (
        f"A metric of which the reference has {FEWEST_FOR_MEAN} different values or more (repeats, of a directory the "
        "median of each report on the same hosts, since the last shift of its level) is worse if its median is beyond "
        "the limit, in its unfavourable direction, that one further value of the reference would exceed with a "
        f"probability of {percent(FALSE_ALARMS / found.by_spread)} (Student's t prediction interval of the "
        f"logarithms), and by more than {percent(SMALLEST)}. So unchanged runs fail in {percent(FALSE_ALARMS)} of such "
        "reports at most, if they vary as the repeats of the reference do: repeats of one hour vary less than those of "
        f"a month. {NORMALITY} Another metric is worse if it {fixed} unfavourable direction."
    )


def show(found: Regression, page: Path) -> None:
    """Print the table, the page's path and, last, the verdict."""
    table = FittedTable(key=1)
    for heading in ("", "point", "metric"):
        table.whole(heading)
    for heading in ("reference", "now", "change"):
        table.number(heading)
    table.text("")
    checks = ordered(found)
    for check in checks[:MOST_SHOWN]:
        numbers = [shown(check.metric, each.median if each else None) if check.metric else ABSENT
                   for each in (check.reference, check.now)]  # fmt: skip
        # Text, because the contents of a file are no markup.
        cells = [check.point, title(check.metric) if check.metric else "", *numbers, change_words(check), check.why]
        colour = COLOURS.get(check.verdict, "red")
        table.add_row(plain(check.verdict.value, colour), *(plain(one_line(cell)) for cell in cells))
    out = console()
    out.print(table)
    if len(checks) > MOST_SHOWN:
        out.print(f"and {plural(len(checks) - MOST_SHOWN, 'check')} more, all on the page")
    for point in found.added[:MOST_ADDED]:
        out.print(plain(f"not in the reference: {one_line(point)}"))
    print(page)
    print(one_line(sentence(found)))


def answer_of(found: Regression) -> ReferenceAnswer:
    """Return the record of a comparison with a reference."""
    return ReferenceAnswer(
        str(found.reference),
        found.passed,
        FALSE_ALARMS if found.by_spread else None,
        [check_answer(each) for each in ordered(found)],
        list(found.added),
    )


def check_answer(check: Check) -> ReferenceCheck:
    """Return the record of a check."""
    before, now = check.reference, check.now
    return ReferenceCheck(
        check.point,
        None if check.metric is None else check.metric.name,
        check.verdict.name,
        None if before is None else before.median,
        0 if before is None else before.n,
        None if now is None else now.median,
        0 if now is None else now.n,
        check.change,
        check.by_spread,
        check.why or None,
        None if check.level is None else check.level.shifted_at,
        check.level is not None and check.level.hosts_differ,
    )

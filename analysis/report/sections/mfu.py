"""How a page tells of MFU and HFU: a row a run, with all that went into it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from analysis.formatting import ABSENT, plural, shown, title
from analysis.metrics.mfu import tells_of_flops, utilization
from analysis.report.figures.style import Section
from analysis.run import RunResult, hardware
from jobs import metrics as m

HEADING = "Model FLOPs utilization"
SHARED = "In all rows with an MFU"


def utilization_section(runs: Sequence[RunResult]) -> Section | None:
    """A row of each run with an MFU; those without one share a row for each reason.

    Of logs those are in it that tell of their model's shape or of FLOPs: of an image model nobody asks for it.
    """
    known, reasons = [], defaultdict(list)
    for run in runs:
        found = utilization(run)
        if found.values:
            known.append((run, found))
        elif run.log is None or tells_of_flops(run):
            reasons["; ".join(found.said)].append(run)
    said = Counter(clause for _, found in known for clause in found.said)
    shared = [clause for clause, count in said.items() if count == len(known) > 1]
    rows = [
        [
            run.name,
            f"{run.ranks:,}",
            *(shown(metric, found.values.get(metric)) for metric in (m.MFU, m.HFU)),
            "; ".join(clause for clause in found.said if clause not in shared),
        ]
        for run, found in known
    ]
    rows += [[SHARED, "", "", "", "; ".join(shared)]] if shared else []
    for reason, members in reasons.items():
        more = f" and {plural(len(members) - 1, 'more run')}" if len(members) > 1 else ""
        ranks = ", ".join(f"{count:,}" for count in sorted({run.ranks for run in members if run.ranks}))
        rows.append([f"{members[0].name}{more}", ranks, ABSENT, ABSENT, reason])
    told = [run for run, _ in known] + [run for members in reasons.values() for run in members]
    note = (
        f"{hardware(told)}: {m.MFU.definition} {m.HFU.definition} A peak is known of the devices "
        " that conf/gpu, or a file gpu/NAME.yaml of your site, names (gpu.device_name)."
    )
    headings = ("Run", "Ranks", title(m.MFU), title(m.HFU), "What went into it, or why there is none")
    return Section(HEADING, note, headings, rows) if rows else None

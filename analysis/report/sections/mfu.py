"""The table of MFU and HFU: one row per run, with all inputs."""

from __future__ import annotations

from collections import Counter, defaultdict

from analysis.formatting import ABSENT, plural, shown, title
from analysis.metrics.mfu import reports_flops
from analysis.report.digest import Digest
from analysis.report.figures.style import Section
from analysis.run import DEVICES, hardware
from jobs import metrics as m

HEADING = "Model FLOPs utilization"
SHARED = "In all rows with an MFU"


def utilization_section(digest: Digest) -> Section | None:
    """Return a row for each run with an MFU, and one for each reason that runs have none; None if there are none.

    Logs without an MFU are included only if they contain the model's shape or FLOPs: image models do not, and runs on
    images have no MFU. Runs on CPUs have none, because conf/gpu has the peaks of GPUs only.
    """
    known, reasons = [], defaultdict(list)
    for run in digest.used:
        if (found := run.utilization) is None or run.setting("images") is not None:
            continue
        if found.values:
            known.append((run, found))
        elif DEVICES.get(str(run.started.get("device"))) != "CPU" and (run.log is None or reports_flops(run)):
            reasons["; ".join(found.explanation)].append(run)
    counts = Counter(clause for _, found in known for clause in found.explanation)
    shared = [clause for clause, count in counts.items() if count == len(known) > 1]
    rows = [
        [
            run.name,
            f"{run.ranks:,}",
            *(shown(metric, found.values.get(metric)) for metric in (m.MFU, m.HFU)),
            "; ".join(clause for clause in found.explanation if clause not in shared),
        ]
        for run, found in known
    ]
    rows += [[SHARED, "", "", "", "; ".join(shared)]] if shared else []
    for reason, members in reasons.items():
        more = f" and {plural(len(members) - 1, 'more run')}" if len(members) > 1 else ""
        ranks = ", ".join(f"{count:,}" for count in sorted({run.ranks for run in members if run.ranks}))
        rows.append([f"{members[0].name}{more}", ranks, ABSENT, ABSENT, reason])
    listed = [run for run, _ in known] + [run for members in reasons.values() for run in members]
    note = (
        f"{hardware(listed)}: {m.MFU.definition} {m.HFU.definition} Peaks are known for the devices in conf/gpu and in "
        "files gpu/NAME.yaml of your site (gpu.device_name)."
    )
    headings = ("Run", "Ranks", title(m.MFU), title(m.HFU), "Inputs, or the reason for no value")
    return Section(HEADING, note, headings, rows) if rows else None

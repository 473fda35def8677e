"""The tables of profiles: shares and collectives of each rank, and the kernels that take the most time."""

from __future__ import annotations

from analysis.formatting import percent, shown, significant, title
from analysis.report.digest import Digest
from analysis.report.figures.profile import HEADING, shown_runs
from analysis.report.figures.style import Section
from jobs import metrics as m

MOST_RANKS = 8
MOST_KERNEL_RUNS = 8
KERNELS_HEADING = "Kernels by time"
SHARES = (m.COMPUTE_SHARE, m.COMMUNICATION_SHARE, m.EXPOSED_COMMUNICATION_SHARE, m.MEMORY_COPY_SHARE, m.HOST_SHARE,
          m.IDLE_SHARE)  # fmt: skip


def profile_section(digest: Digest) -> Section | None:
    """Return a row for each profiled rank of each run; None if there is none."""
    note = (
        "One row per profiled rank: shares of its profiled steps, which the rates exclude. Communication is exposed or "
        f"hidden under compute. {m.COMMUNICATION_OVERLAP.name}: {m.COMMUNICATION_OVERLAP.definition} Collectives: "
        "share of the step and calls a step, by axis of the rank grid. On CPUs gloo's reduce-scatter is an all-reduce. "
        "The Chrome traces are in `profiles/` of each run directory."
    )
    rows = [
        [
            run.name,
            str(run.setting("job.micro_batch_size")),
            f"{profile.rank:,}",
            shown(m.PROFILED_STEP_TIME, profile.step_time_s),
            *(shown(metric, profile.shares[metric]) for metric in SHARES),
            shown(m.COMMUNICATION_OVERLAP, profile.overlap),
            "; ".join(
                f"{each.collective} over {each.axis} {percent(each.share)}, {each.calls:,.4g} calls"
                for each in profile.collectives
            )
            or "none",
        ]
        for run in shown_runs(digest.used)
        for profile in run.profiles[:MOST_RANKS]
    ]
    headings = ("Run", "MBS", "Rank", title(m.PROFILED_STEP_TIME), *map(title, SHARES), title(m.COMMUNICATION_OVERLAP),
                "Collectives")  # fmt: skip
    return Section(HEADING, note, headings, rows) if rows else None


def kernel_section(digest: Digest) -> Section | None:
    """Return a row for each of the kernels with the most time, of the first profiled rank of each run."""
    listed = [run for run in shown_runs(digest.used) if run.profiles[0].kernels]
    note = (
        "The kernels that take the most time in a profiled step, of the first profiled rank of "
        f"{'each run' if len(listed) <= MOST_KERNEL_RUNS else f'the first {MOST_KERNEL_RUNS} runs'}. "
        f"{m.KERNEL_TIME.name}: {m.KERNEL_TIME.definition} Kernels on several streams overlap."
    )
    rows = [
        [
            run.name,
            str(run.setting("job.micro_batch_size")),
            shown(m.KERNEL_TIME, kernel.time_s),
            significant(100 * kernel.time_s / run.profiles[0].step_time_s, 3),
            f"{kernel.calls:,.4g}",
            kernel.name,
        ]
        for run in listed[:MOST_KERNEL_RUNS]
        for kernel in run.profiles[0].kernels
    ]
    headings = ("Run", "MBS", title(m.KERNEL_TIME), "Share of step (%)", title(m.KERNEL_CALLS), "Kernel")
    return Section(KERNELS_HEADING, note, headings, rows) if rows else None

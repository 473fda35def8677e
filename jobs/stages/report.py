"""The stage after all others: the report of the sweep, with its failed runs.

`python -m jobs.stages.report SWEEP`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from jobs.output import own_program
from jobs.rundir import SweepDir
from jobs.stages.record import on_record


def main(sweep_path: str) -> None:
    """Write the files of `slurmscale report`."""
    sweep = SweepDir(Path(sweep_path))
    with on_record(sweep.stages, "report"):
        from analysis.report.report import report

        report([sweep.path], None)


if __name__ == "__main__":
    with own_program():
        main(sys.argv[1])

"""Run `slurmscale submit OVERRIDES` as `python -m jobs.submit OVERRIDES`."""

from __future__ import annotations

import sys

from jobs.cli import main

if __name__ == "__main__":
    sys.exit(main(["submit", *sys.argv[1:]]))

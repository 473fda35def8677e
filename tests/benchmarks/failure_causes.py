"""Recall and precision of the failure causes, on error texts that the catalogue was not made from.

The texts of tests/analysis/failures/unseen.csv are lines as programs print them, cut to the decisive ones, with names
and numbers replaced; their causes are those that the source's discussion states. 134 texts were collected before the
catalogue was changed and divided by a hash of the text: two of five were held back, so that no signature was made from
them, but the author had read them. The texts `collected_later` were collected after the change and read by it once;
then signatures were made for them, too, and the same was done with those `collected_last` and with each `round_N`.
analysis/failures/README.md has the figures at these first readings, which a later run cannot repeat. Sets 10 to 24 of
that table are not in the file.

A path that a setting names, a size that does not fit, a checkpoint of another model and a missing permission are
`refused`; a missing or unfit package, library, driver, compiler, processor or GPU is a `launch_failure`; another
exception of a program or library, a segmentation fault and a failed assertion of a kernel are `code`; SIGKILL without
its sender is `killed`. An exit code, SIGBUS or a report of another process's end is `unknown`. A hint names no cause.

The texts of tests/analysis/failures/job_ends.jsonl are whole ends of jobs' logs, 15 to 60 lines each. Language models
composed them around wordings of public threads and stated their causes, by the definitions above, without a look at the
catalogue or at earlier sets. They are read as `slurmscale report` reads a log. A fifth of them finished, or died with
no reason in the log.

`python -m tests.benchmarks.failure_causes` prints the figures of each set; `--list SET` prints the texts that were
read wrongly. A text whose cause is `unknown` counts against precision if a cause is named, and never for recall.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from analysis.failures.signatures import matches, search
from analysis.failures.verdict import decide
from analysis.logs.file import read_log_file
from tests.support.paths import ROOT

TEXTS = ROOT / "tests" / "analysis" / "failures" / "unseen.csv"
JOB_ENDS = TEXTS.with_name("job_ends.jsonl")
UNKNOWN = "unknown"


class Case(NamedTuple):
    """An error text with its true cause."""

    set: str
    cause: str
    source: str
    text: str
    whole: bool = False
    """The end of a whole log."""

    @property
    def named(self) -> str:
        """The cause that the catalogue names."""
        if self.whole:
            return named_in_log(self.text)
        return decide(matches(search().lines([self.text.encode()]))).cause.name


@dataclass(frozen=True)
class Score:
    """Counts over texts."""

    known: int
    """Texts whose cause is known."""
    named: int
    """Texts for which a cause is named."""
    right: int

    @property
    def recall(self) -> float:
        """The share of the known causes that are named."""
        return self.right / self.known

    @property
    def precision(self) -> float:
        """The share of the named causes that are right."""
        return self.right / self.named


def named_in_log(text: str) -> str:
    """Return the cause that a report names for a log with this text."""
    with TemporaryDirectory() as folder:
        log = Path(folder) / "job.log"
        log.write_text(f"{text}\n", encoding="utf-8")
        verdict = read_log_file(log).verdict
    return UNKNOWN if verdict is None else verdict.cause.name


def read_cases() -> Iterator[Case]:
    """Yield the error texts, then the ends of logs."""
    with TEXTS.open(newline="", encoding="utf-8") as file:
        yield from (case_of(row, whole=False) for row in csv.DictReader(file))
    with JOB_ENDS.open(encoding="utf-8") as lines:
        yield from (case_of(json.loads(line), whole=True) for line in lines)


def case_of(row: Mapping[str, str], *, whole: bool) -> Case:
    """Return the case of a row."""
    return Case(row["set"], row["cause"], row["source"], row["text"], whole)


def score(cases: Iterable[Case]) -> Score:
    """Return the counts over these texts."""
    pairs = [(case.cause, case.named) for case in cases]
    return Score(
        known=sum(true != UNKNOWN for true, _ in pairs),
        named=sum(named != UNKNOWN for _, named in pairs),
        right=sum(true == named != UNKNOWN for true, named in pairs),
    )


def main() -> None:
    """Print recall and precision of each set, or the texts of a set that were read wrongly."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", metavar="SET", help="print the texts of this set that were read wrongly")
    arguments = parser.parse_args()
    cases = list(read_cases())
    for name in dict.fromkeys(case.set for case in cases):
        found = score(case for case in cases if case.set == name)
        print(
            f"{name}: {sum(case.set == name for case in cases)} texts, recall {found.right} of {found.known} "
            f"({100 * found.recall:.0f} %), precision {found.right} of {found.named} ({100 * found.precision:.0f} %)"
        )
    for case in cases:
        if case.set == arguments.list and case.named != case.cause:
            print(f"\n{case.cause}, read as {case.named}: {case.source}\n{case.text}")


if __name__ == "__main__":
    main()

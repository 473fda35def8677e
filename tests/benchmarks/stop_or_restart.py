"""Error of the decision STOP or RESTART, on labelled ends of logs.

    .venv/bin/python -m tests.benchmarks.stop_or_restart

The ends are those of tests.benchmarks.failure_causes: texts of public threads, and whole ends of logs that language
models composed. The right decision is that of the true cause, the decision is that of the cause that is read from the
text. Ends whose true cause is unknown have no right decision and are left out. Signatures were made for most of these
texts after they had been read once, so the figures are those of known texts: the recall of new ones, in
analysis/failures/README.md, is lower, and a cause that is not read is a RESTART.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from scipy.stats import binomtest

from jobs.failure_causes import FailureCause
from jobs.submit.decision.decide import decide
from tests.benchmarks.failure_causes import UNKNOWN, read_cases


@dataclass(frozen=True)
class Errors:
    """Counts over labelled ends."""

    restarts: int
    """Ends after which a RESTART is right."""
    wrong_stops: int
    stops: int
    wrong_restarts: int
    pairs: Counter[tuple[str, str]]
    """True and read cause of each wrong decision."""


def errors(*, whole: bool) -> Errors:
    """Return the errors on texts, or on `whole` ends of logs."""
    pairs: Counter[tuple[str, str]] = Counter()
    right: Counter[bool] = Counter()
    wrong: Counter[bool] = Counter()
    for case in read_cases():
        if case.whole is not whole or case.cause == UNKNOWN:
            continue
        named = case.named
        wanted, found = decide(FailureCause[case.cause]).restart, decide(FailureCause[named]).restart
        right[wanted] += 1
        if wanted != found:
            wrong[wanted] += 1
            pairs[case.cause, named] += 1
    return Errors(right[True], wrong[True], right[False], wrong[False], pairs)


def share(wrong: int, number: int) -> str:
    """Return a share of wrong decisions with its 95 % interval (Wilson)."""
    low, high = binomtest(wrong, number).proportion_ci(method="wilson")
    return f"{wrong} of {number} ({100 * wrong / number:.1f} %, {100 * low:.1f} to {100 * high:.1f})"


def main() -> None:
    """Print the shares of wrong STOP and wrong RESTART."""
    for name, whole in (("texts", False), ("ends of logs", True)):
        found = errors(whole=whole)
        print(f"{name}: wrong STOP {share(found.wrong_stops, found.restarts)}, "
              f"wrong RESTART {share(found.wrong_restarts, found.stops)}")  # fmt: skip
        for (true, named), count in found.pairs.most_common():
            print(f"    {true} read as {named}: {count}")


if __name__ == "__main__":
    main()

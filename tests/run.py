"""Run the tests, and each test that fails once more by itself: `python -m tests.run [pytest's arguments]`.

A test that passes alone is flaky: it is named at the end and does not fail the run, unless more than MOST_FLAKY tests
failed. The list of known flaky tests with their causes, in tests/README.md, is kept empty.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.support.paths import ROOT

MOST_FLAKY = 3
TESTS_FAILED = 1  # pytest's exit code
LAST_FAILED = ROOT / ".pytest_cache/v/cache/lastfailed"


def main(arguments: list[str]) -> int:
    """Return the exit code of pytest, or 0 when every failed test passed by itself."""
    LAST_FAILED.unlink(missing_ok=True)
    code = pytest(*arguments)
    if code != TESTS_FAILED:
        return code
    failed = failed_tests(LAST_FAILED)
    if not 0 < len(failed) <= MOST_FLAKY:
        print(f"{len(failed)} tests failed, more than the {MOST_FLAKY} that are run again: {' '.join(failed)}")
        return code
    print(f"running {len(failed)} failed tests again, one by one", flush=True)
    flaky = [test for test in failed if pytest(test, "-n", "0") == 0]
    for test in failed:
        print(f"{'FLAKY (failed, then passed by itself)' if test in flaky else 'FAILED (twice)'}: {test}")
    return 0 if flaky == failed else code


def pytest(*arguments: str) -> int:
    """Run pytest in a process of its own and return its exit code."""
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], cwd=ROOT, check=False).returncode


def failed_tests(path: Path) -> list[str]:
    """Return the ids of the tests that failed in pytest's latest run; none where pytest recorded none."""
    return sorted(json.loads(path.read_text())) if path.exists() else []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

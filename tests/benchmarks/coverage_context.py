"""A plugin of pytest for mutation_scores: coverage records which test executes a line, also in other processes.

coverage starts in each Python process that has COVERAGE_PROCESS_START. A test's name is the context of what its own
process executes; forks inherit it with coverage's options, other processes and jobs with the variable COVERED_TEST.
"""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest
from coverage import Coverage


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Name the test that runs from now on."""
    os.environ["COVERED_TEST"] = item.nodeid
    if coverage := Coverage.current():
        coverage.set_option("run:context", item.nodeid)
        coverage.switch_context(item.nodeid)
    return (yield)

"""The pytest fixture `slurm`, one real Slurm for the whole session, and `empty_queue`, which leaves it as it was.

It does not decide what a test may do with it: jobs of earlier tests may still be queued. tests/conftest.py imports it.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.support.required import skip_or_fail
from tests.support.slurm.cluster import SlurmCluster, SlurmUnavailable
from tests.support.slurm.host import SLURM_PREFIXES
from tests.support.waiting import wait_until


@pytest.fixture(scope="session")
def slurm() -> Iterator[SlurmCluster]:
    """A running Slurm whose commands answer in this process; skips, or fails where CI requires it, without one."""
    with ExitStack() as stack:
        try:
            cluster = stack.enter_context(SlurmCluster())
        except SlurmUnavailable as reason:
            skip_or_fail(str(reason))
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        # If the tests run inside a job of another Slurm, its variables would change sbatch and srun.
        for name in [name for name in os.environ if name.startswith(SLURM_PREFIXES)]:
            patch.delenv(name)
        for name, value in cluster.env.items():
            patch.setenv(name, value)
        yield cluster


@pytest.fixture
def empty_queue(slurm: SlurmCluster) -> Iterator[None]:
    """No job of another test before, none of this one after: the tests share one Slurm, in random order.

    A node that a busy machine kept from answering for a moment is waited for too: it would be counted as down.
    """
    _empty(slurm)
    yield
    _empty(slurm)


def _empty(cluster: SlurmCluster) -> None:
    subprocess.run(["scancel", "--me"], check=True)
    wait_until(lambda: not subprocess.run(["squeue", "-h"], capture_output=True, check=True).stdout)
    wait_until(cluster.all_idle)

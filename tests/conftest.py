"""Fixtures that several test files share."""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from omegaconf import DictConfig
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from jobs.plan import compose
from tests.support.paths import ROOT
from tests.support.pbs.fixture import pbs
from tests.support.slurm.fixture import empty_queue, slurm
from tests.support.waiting import calibrate

__all__ = ["empty_queue", "pbs", "slurm"]

# The duration of an example depends on the load of the machine, not only on the code.
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# The same examples everywhere, so that a change that passes here passes anywhere; --hypothesis-profile=explore looks
# for others.
settings.register_profile("any machine", settings.get_profile("explore"), derandomize=True, max_examples=50)
settings.load_profile("any machine")


def pytest_configure(config: pytest.Config) -> None:
    """Calibrate the limits of this session once; xdist's workers inherit the factor."""
    calibrate()
    # A shell starts background jobs with SIGINT ignored, and the commands under test would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Return the scheduler of the workers: `--dist=loadgroup` of xdist 3.8 groups nothing in pytest 9.2."""
    return ModulesWithFixtures(config, log)


class ModulesWithFixtures(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Deal single tests, but modules with a fixture of their own whole: it is made once, not once on each worker."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.split("::", maxsplit=1)[0]
        return path if shares_a_fixture(ROOT / path) else nodeid


@functools.cache
def shares_a_fixture(path: Path) -> bool:
    """Return whether tests of a module share a fixture."""
    return 'scope="module"' in path.read_text()


@pytest.hookimpl(trylast=True)  # behind -m, which leaves tests out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of Slurm last: its jobs need the cores, and its variables stay in the environment.

    Modules that stay together come before single tests, which fill the end of the run evenly.
    """
    of_slurm = {item.path for item in items if needs_slurm(item)}

    def place(item: pytest.Item) -> tuple[bool, bool, bool]:
        whole = shares_a_fixture(item.path)
        return needs_slurm(item) or (whole and item.path in of_slurm), not whole, needs_slurm(item)

    items.sort(key=place)


def needs_slurm(item: pytest.Item) -> bool:
    """Return whether a test starts jobs of the real Slurm."""
    return item.get_closest_marker("slurm") is not None


@pytest.fixture(scope="session")
def state_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The record of the sweeps that tests submit, and compiled kernels; local queues of one session take turns."""
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="session", autouse=True)
def _composed_once() -> Iterator[None]:
    """Let Hydra compose equal choices of the shipped files once: it needs 0.4 s, in some thousand tests."""
    uncached = compose.composed_base
    cached = functools.lru_cache(maxsize=256)(lambda choices: uncached(list(choices)))

    def composed_base(choices: list[str]) -> DictConfig:
        return uncached(choices) if "SLURMSCALE_SITE" in os.environ else cached(tuple(choices))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compose, "composed_base", composed_base)
        yield


@pytest.fixture(autouse=True)
def _fresh_patience() -> None:
    """Tests share a process, and a scheduler that was away in one of them leaves less patience to the next."""
    if (module := sys.modules.get("jobs.submit.scheduler_call")) is not None:
        module._patience[:] = [module.Patience(module.INTERACTIVE_S)]


@pytest.fixture(autouse=True)
def _no_surrounding_configuration(monkeypatch: pytest.MonkeyPatch, state_home: Path) -> None:
    """Tests see neither a user's site files and record nor a launcher that happens to run them."""
    monkeypatch.setenv("XDG_STATE_HOME", str(state_home))
    for compiler in ("TORCHINDUCTOR", "TRITON"):
        monkeypatch.setenv(f"{compiler}_CACHE_DIR", str(state_home / compiler))
    for name in list(os.environ):
        if name.startswith(("SLURMSCALE_SITE", "SUBMITIT_")) or name in {"RANK", "WORLD_SIZE", "LOCAL_RANK"}:
            monkeypatch.delenv(name)

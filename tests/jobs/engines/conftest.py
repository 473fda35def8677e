"""Import LitGPT as a rank does before the tests here do: all of it imports bitsandbytes, which starts CUDA."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from jobs.rundir import RunDir
from jobs.runtime.imports import import_litgpt_alone

import_litgpt_alone()


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights that customizations freeze."""
    from tests.support.frozen_weights import base_weights

    return base_weights(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="session")
def one_process(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], RunDir]:
    """The finished run of one process that has a customization, by its name; tests only read it."""
    from tests.support.frozen_weights import ONE, customized

    @cache
    def run(name: str) -> RunDir:
        return customized(name, base, tmp_path_factory.mktemp(name), *ONE)

    return run

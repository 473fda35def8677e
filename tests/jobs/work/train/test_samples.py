"""jobs.runtime.steps: the samples of runs, at submission and where a run reads them."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import patch

import pytest

from jobs.errors import DataError
from jobs.rundir import RunDir
from jobs.runtime import steps
from jobs.runtime.steps import samples, samples_of
from jobs.schema import Run
from tests.support.composing import one
from tests.support.tiny_data import ALPACA, huggingface_tokenizer, tokenizer_config, write_json


def run_on(kind: str, where: Path, seed: int) -> Run:
    """A run on random tokens, or on a file of Alpaca's kind."""
    given: tuple[str, ...] = ("data=random", "data.max_samples=16")
    if kind == "file":
        path = write_json(where / "alpaca.json", ALPACA * 4)
        tokenizer = tokenizer_config(huggingface_tokenizer(where / "tokenizer"), eos_token="</s>")
        given = ("data=alpaca", f"data.path={path}", f"data.tokenizer={tokenizer}", "data.too_long=truncate")
    return one("job.steps=3", *given, f"data.cache_dir={where}/cache", f"job.seed={seed}").run


@pytest.mark.parametrize(("kind", "directories"), [("random", 2), ("file", 1)])
def test_only_random_samples_depend_on_the_seed_and_equal_ones_are_made_once(
    kind: str, directories: int, tmp_path: Path
) -> None:
    made: dict[str, Path] = {}
    found = [samples_of(run_on(kind, tmp_path, seed), made) for seed in (1, 2, 2)]
    assert len({each.directory for each in found}) == len(made) == directories
    assert found[1].directory == found[2].directory
    assert [each.steps for each in found] == [3, 3, 3]


def test_rows_are_measured_in_one_step_at_least(tmp_path: Path) -> None:
    run = run_on("file", tmp_path, 1)
    found = {}
    for samples_a_step in (0.5, 1, 2):
        with patch.object(steps, "MEASURED_SAMPLES", int(samples_a_step * run.global_batch_size)):
            found[samples_a_step] = samples_of(run, {}).tokens
    assert found[0.5] == found[1] != found[2]


def test_the_rank_that_checks_refuses_samples_that_changed_since_the_submission(tmp_path: Path) -> None:
    run = run_on("file", tmp_path, 1)
    found = samples_of(run, {})
    directory = RunDir(tmp_path / "run")
    directory.path.mkdir()
    directory.data.symlink_to(found.directory)
    directory.plan.write_text(json.dumps(found.planned()))
    assert samples(run, directory, check=True) == samples(run, directory) == found.directory
    directory.plan.write_text(json.dumps(found.planned() | {"data_digest": "0" * 64}))
    assert samples(run, directory) == found.directory, "others leave it to that rank"
    with pytest.raises(DataError, match="changed"):
        samples(run, directory, check=True)

"""jobs.work.train.loop: what happens in which step."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from jobs.engines.native.traffic import Traffic
from jobs.engines.native.trainer import Trainer
from jobs.metrics import ELAPSED
from tests.support.real_run import make_run, printed, rank, steps, train

SEEN = "seen.txt"


def watched_rank(directory: Path, number: int, world: int, start: str) -> None:
    """One rank, which notes when its collectives are counted and when it validates."""
    enter: Any = Traffic.__enter__

    def note(what: str) -> None:
        with (directory / SEEN).open("a") as file:
            file.write(f"{what}\n")

    def counts(self: Any) -> Any:
        note("counts")
        return enter(self)

    def validates(self: Trainer, step: int, *_given: Any, last: bool = False) -> None:
        # The first micro-batch of a step finds no gradients, as the plan's memory says.
        assert all(parameter.grad is None for parameter in self.model.gpt.parameters())
        note(f"validates {step}{' last' if last else ''}")

    with patch.object(Traffic, "__enter__", counts), patch.object(Trainer, "validate", validates):
        rank(directory, number, world, start)


@pytest.mark.parametrize("unmeasured", [1, 3])
def test_one_step_counts_collectives_and_each_step_may_validate(unmeasured: int, tmp_path: Path) -> None:
    run = make_run(
        tmp_path, "parallelism=single", "ranks_per_node=1", "job.steps=4", f"job.unmeasured_steps={unmeasured}"
    )
    assert train(run, of_rank=watched_rank) == [0], printed(run)
    expected = ["validates 1", "validates 2", "validates 3", "validates 4 last"]
    # Counting slows a step, so it is one that steady values leave out.
    expected.insert(min(2, unmeasured) - 1, "counts")
    assert (run.path / SEEN).read_text().splitlines() == expected
    rows = steps(run)
    assert 0 < sum(row["step_time_s"] for row in rows) < rows[-1][ELAPSED.name]

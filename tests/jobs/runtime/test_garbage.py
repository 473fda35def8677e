"""Python collects its garbage between steps and never inside one."""

from __future__ import annotations

import gc
import json
from pathlib import Path

from jobs.data.batches import StepBatch
from jobs.engines.native.trainer import Trainer
from tests.support.real_run import make_run, printed, rank, train

MADE = 100_000


def watched_rank(directory: Path, number: int, world: int, place: str) -> None:
    """One rank that writes in which steps it collected garbage, and how often it did so between steps."""
    inside: list[int] = []
    done: list[int] = []
    found: dict[str, list[int]] = {"in steps": [], "between steps": [], "searched": []}
    compute = Trainer.step
    kept = []

    def watched(self: Trainer, step: int, batch: StepBatch) -> tuple[float, float | None, float]:
        inside.append(step)
        try:
            return compute(self, step, batch)
        finally:
            inside.clear()
            done.append(step)
            found["searched"].append(len(gc.get_objects()))
            if step == 1:
                # As modules do that a kernel imports when it is first used.
                kept.extend([[number] for number in range(MADE)])

    def collecting(phase: str, _: object) -> None:
        if phase == "start":
            found["in steps" if inside else "between steps"].append(len(done))

    gc.callbacks.append(collecting)
    Trainer.step = watched  # type: ignore[method-assign]
    try:
        rank(directory, number, world, place)
    finally:
        (directory / "garbage.json").write_text(json.dumps(found))


def test_garbage_is_collected_between_steps_only(tmp_path: Path) -> None:
    run = make_run(tmp_path, "parallelism=single", "ranks_per_node=1", "job.steps=40", "job.epochs=null")
    assert train(run, of_rank=watched_rank) == [0], printed(run)
    found = json.loads((run.path / "garbage.json").read_text())
    assert found["in steps"] == []
    assert set(range(1, 40)) <= set(found["between steps"])
    # Neither what existed before the first step nor what it made is searched after every step.
    assert max(found["searched"]) < MADE

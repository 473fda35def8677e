"""Products of matrices on every rank, without training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from jobs.schema import Run
from jobs.work.work import Work

BYTES = 4


class Matmul(Work):
    """Matrix products in float32."""

    entry_point = "jobs.work.matmul.measure:measure"
    not_read: Mapping[str, str] = {
        "job.lora": "null", "job.prompt_tuning": "null", "job.export": "false", "job.init_from": "null",
        "engine.profile.steps": "[]", "stages.prepare": "null", "stages.evaluate": "null", "stages.serve": "null",
    }  # fmt: skip

    def unread(self, run: object) -> dict[str, str]:
        """Return all that describes a language model."""
        return dict.fromkeys(("model", "data", "parallelism"), "it multiplies matrices of matmul.size")

    def parameters(self, run: Run) -> int:
        """Return 0: there is no model."""
        return 0

    def rank_bytes(self, run: Run) -> float:
        """Return the size of two factors and the product."""
        assert run.matmul is not None
        return 3 * BYTES * run.matmul.size**2

    def notes(self, run: Run) -> Iterable[tuple[str, str]]:
        """Yield the operations of a product."""
        assert run.matmul is not None
        yield "matmul", f"{2 * run.matmul.size**3 / 1e12:.3g} TFLOP for each product"


WORK = Matmul()

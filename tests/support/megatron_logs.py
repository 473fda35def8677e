"""Logs in Megatron's shape."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path


def megatron(steps: Iterable[tuple[int, float]], *, batch: int = 16, ranks: int | None = 8, prefix: str = "") -> str:
    """A Megatron-LM log with these steps and step times in ms."""
    head = (
        f"------------------------ arguments ------------------------\n  world_size {'.' * 37} {ranks}\n"
        if ranks
        else ""
    )
    return head + "".join(
        f"{prefix} iteration {step:8d}/    1000 | consumed samples: {step * batch:12d} | elapsed time per iteration "
        f"(ms): {time_ms:.1f} | learning rate: 1.0E-04 | global batch size: {batch:5d} | lm loss: "
        f"{8 - math.log(step):.6E} | loss scale: 1.0 | grad norm: 1.000 | number of skipped iterations:   0 | "
        "number of nan iterations:   0 |\n"
        for step, time_ms in steps
    )


def write(path: Path, text: str) -> Path:
    """A file with its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path

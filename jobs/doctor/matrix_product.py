"""Multiply matrices with the torch of the ranks, on every GPU that it sees, else on the CPU; print the result as JSON.

The doctor starts it as a process of its own on each node: a torch that does not fit the machine may end its process.
"""

from __future__ import annotations

import json
from typing import Any

import torch

from jobs.runtime.gpus.gpu import installed, unusable

SIDE = 256


def checked() -> dict[str, Any]:
    """Return torch and driver, the number of GPUs that multiply, and the error of the first one that does not."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    found: dict[str, Any] = {"installed": installed(), "gpus": 0, "no_gpu": None if count else unusable(0, 1)}
    try:
        for index in range(count):
            problem = unusable(index, count) or product_problem(torch.device("cuda", index), torch.float16)
            if problem:
                return found | {"error": f"GPU {index}: {problem}"}
            found["gpus"] += 1
        return found | {"error": None if count else product_problem(torch.device("cpu"), torch.float32)}
    except RuntimeError as error:  # of CUDA, such as "no kernel image is available"
        return found | {"error": f"GPU {found['gpus']}: {str(error).splitlines()[0]}"}


def product_problem(device: torch.device, dtype: torch.dtype) -> str | None:
    """Return what is wrong with a matrix product on the device."""
    ones = torch.ones(SIDE, SIDE, device=device, dtype=dtype)
    return None if bool((ones @ ones == SIDE).all()) else f"a matrix product on {device} has a wrong result"


if __name__ == "__main__":
    print(json.dumps(checked()))

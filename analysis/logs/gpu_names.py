"""torch's names of the GPUs that logs name otherwise; an ambiguous name is kept.

gpu_names.csv contains names in MLPerf's system descriptions that state model, form factor and memory, and so identify
one device of conf/gpu. It omits GPUs that conf/gpu does not have, such as GB200, and plain H100 or H200.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Mapping
from importlib.resources import files


def device_name(reported: str) -> str:
    """Return torch's name of a GPU; the reported name if it is not known."""
    return names().get(reported.casefold(), reported)


@functools.cache
def names() -> Mapping[str, str]:
    """Return torch's names by the reported names in lower case."""
    text = (files("analysis") / "logs" / "gpu_names.csv").read_text(encoding="utf-8")
    return {row["reported"].casefold(): row["device_name"] for row in csv.DictReader(text.splitlines())}

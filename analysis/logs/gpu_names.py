"""GPUs as torch calls them, whatever a log calls them: a name that leaves the device open stays as it is.

gpu_names.csv has the names of MLPerf's system descriptions that say model, form factor and memory, and so one device of
conf/gpu. Not in it: GB200 and others that conf/gpu does not have, and H100 or H200 alone.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Mapping
from importlib.resources import files


def device_name(said: str) -> str:
    """What torch calls a GPU; the same name where it is not known."""
    return names().get(said.casefold(), said)


@functools.cache
def names() -> Mapping[str, str]:
    """The name that torch gives by the other one in small letters."""
    text = (files("analysis") / "logs" / "gpu_names.csv").read_text(encoding="utf-8")
    return {row["said"].casefold(): row["device_name"] for row in csv.DictReader(text.splitlines())}

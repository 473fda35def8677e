"""The keys of `report`: the quantity and the table in which a study is published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from jobs.metrics import CHECKPOINT_WRITE_TIME, MEMORY_PEAK, PERCENT, RUN_METRICS, DisplayUnit

MIN_S = "min:s"
"""Minutes and seconds, as in 2:30."""
UNITS: Mapping[str, Mapping[str, DisplayUnit]] = {
    base: {name: DisplayUnit(name, size) for name, size in sizes.items()}
    for base, sizes in {
        "s": {"s": 1.0, "ms": 1e-3, "min": 60.0, MIN_S: 1.0, "h": 3600.0},
        "B": {"B": 1.0, "MB": 1e6, "GB": 1e9, "TB": 1e12, "MiB": 2.0**20, "GiB": 2.0**30},
        "B/s": {"B/s": 1.0, "KB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9},
        "J": {"J": 1.0, "MJ": 1e6, "kWh": 3.6e6},
        "1": {"1": 1.0, PERCENT.name: PERCENT.size, "million": 1e6, "billion": 1e9},
        "1/s": {"1/s": 1.0, "thousand/s": 1e3},
    }.items()
}
"""Units in which a quantity of a base unit can be shown."""
OF_LOGS = {
    "training_time_s": "s",
    "samples_per_s": "1/s",
    "samples_per_s_per_rank": "1/s",
    "requests_per_s": "1/s",
    "output_tokens_per_s": "1/s",
    "time_to_first_token_median_s": "s",
    "time_to_first_token_p99_s": "s",
    "request_latency_median_s": "s",
    "request_latency_p99_s": "s",
    "storage_cpu_busy": "1",
    "storage_operations_per_node": "1",
}
"""Base units of the quantities that runs share with logs of other programs (analysis.parsers.log_metrics)."""


@dataclass(kw_only=True)
class StudyTable:
    """The table in which a study is published, and its quantity, which is also drawn."""

    quantity: list[str]
    """Metrics in the cells of the table, by their names in runs.csv, such as [epoch_time_s]; the first one is drawn."""
    rows: list[str]
    """Keys whose values make the rows, such as [model.name, nodes]."""
    columns: list[str] = field(default_factory=list)
    """Keys whose values make the columns, such as [network.name]; empty: a column for each quantity."""
    units: dict[str, str] = field(default_factory=dict)
    """Unit of a quantity, such as useful_time_s: min; the others have that of all tables."""
    words: dict[str, str] = field(default_factory=dict)
    """Words that table and figure show for a key, a value or a quantity, such as network.name: RoCE and roce: "Yes";
    values that are listed here stand in this order."""
    side_files: list[str] = field(default_factory=list)
    """CSV files of counters that another machine recorded, such as [filer.csv], in the directory of the sweep or run:
    a column `time` (ISO 8601 with its zone, or seconds since 1970) and columns of numbers, such as CPU %. Rows of the
    nodes of a filer have equal times. A column with the words of a quantity of the table is this quantity. They are
    read when `slurmscale report` is run."""
    caption: str = ""
    """Heading of the table; empty: the quantities."""


def is_side_file(name: str) -> bool:
    """Return True for the name of a CSV file without a directory: others' files are not read."""
    return name.endswith(".csv") and "/" not in name and not name.startswith(".")


def base_units() -> dict[str, str]:
    """Return the base unit of each quantity of a run."""
    return OF_LOGS | {metric.name: metric.unit for metric in (*RUN_METRICS, MEMORY_PEAK, CHECKPOINT_WRITE_TIME)}

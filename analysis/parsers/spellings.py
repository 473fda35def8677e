"""Spellings of speeds and times: one table for all formats whose users or programs choose the names of their values.

A name is compared in lower case, its words joined by `_`, without a leading `train` or `perf` and a trailing `step`.
`throughput`, `ips` and `items` are not in the table: they do not state what is counted, nor over which ranks.
"""

from __future__ import annotations

import re
from functools import lru_cache

from analysis.parsers import log_metrics as a
from jobs import metrics as m
from jobs.metrics import Metric

SECONDS = "|_s|_sec|_seconds|_in_s"
TIMES = r"(?:step|iteration)_(?:time|timing|duration)|time_per_(?:step|iteration)|elapsed_time_per_iteration"
PER_S = r"_per_(?:s|sec|second)"
OF_RANK = r"_per_(?:gpu|device|rank|chip)"
EACH_RANK = rf"{PER_S}{OF_RANK}|{OF_RANK}{PER_S}"
TABLE: tuple[tuple[re.Pattern[str], Metric, float], ...] = tuple(
    (re.compile(pattern), metric, unit)
    for pattern, metric, unit in (
        (rf"(?:{TIMES})(?:{SECONDS})", m.STEP_TIME, 1),
        (rf"(?:{TIMES})(?:_in)?_ms|ms_per_step", m.STEP_TIME, 1e-3),
        (r"s(?:ec|econds)?_per_(?:step|iteration)", m.STEP_TIME, 1),
        (rf"(?:global_)?tok(?:en)?s?{PER_S}", m.TOKENS_PER_S, 1),
        (rf"tok(?:en)?s?(?:{EACH_RANK})|device_tok(?:en)?s?{PER_S}|tgs", m.TOKENS_PER_S_PER_RANK, 1),
        (rf"(?:global_)?(?:samples|sequences|images){PER_S}|total_ips", a.SAMPLES_PER_S, 1),
        (rf"(?:samples|sequences|images)(?:{EACH_RANK})|device_samples{PER_S}", a.SAMPLES_PER_S_PER_RANK, 1),
        (rf"epoch_(?:time|duration)(?:{SECONDS})", a.EPOCH_TIME, 1),
    )
)
NEUTRAL = re.compile(r"^(?:train(?:ing)?|perf|performance)_|_step$")


@lru_cache(maxsize=4096)
def spelled(name: str) -> tuple[Metric, float] | None:
    """Return the metric of a name and the factor from its unit to base units; None if it is not in the table."""
    divided = re.sub(r"/(?=(?:s|sec|second|gpu|device|rank)\b)", "_per_", name.strip().lower())
    words = re.sub(r"[\s/|.()-]+", "_", divided).strip("_")
    for each in (words, NEUTRAL.sub("", words), NEUTRAL.sub("", NEUTRAL.sub("", words))):
        for pattern, metric, unit in TABLE:
            if pattern.fullmatch(each):
                return metric, unit
    return None

"""llm.c, modded-nanogpt, nanoGPT: `step 5/99 | loss 3.1 | ...`, `step:5/99 train_loss:3.1 ...`, `iter 5: loss 3.1 ...`.

A log of modded-nanogpt begins with its own source code, whose print statements resemble the lines; its clock excludes
the first steps and the evaluations. llm.c also writes a file of lines like `s:5 trl:3.1`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Line, LineFormat, Names, Record, numbers
from jobs import metrics as m

NUMBER = r"[-+]?(?:\d[\d.]*(?:e[-+]?\d+)?|nan|inf)"
# Every one of these also has the mean of all steps so far, which differs from that of steady ones.
CLOCK = rf"train_time:(?:(?P<total_ms>{NUMBER})ms|(?P<total_s>{NUMBER})s)(?: step_avg:|$)"
# Group names are field names; `before` counts the steps before this one, `step` the finished ones.
PATTERNS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    (
        Kind.step,
        re.compile(rf"^step:(?P<step>\d+)/(?P<planned>\d+)(?:[ ,]+train_loss:(?P<loss>{NUMBER}))?[ ,]+{CLOCK}"),
    ),
    (
        Kind.evaluation,
        re.compile(
            rf"^step:(?P<step>\d+)/(?P<planned>\d+) val_loss:(?P<validation>{NUMBER})(?: val_bpb:\S+)?[ ,]+{CLOCK}"
        ),
    ),
    (
        Kind.step,
        re.compile(
            rf"^step +(?P<step>\d+)/(?P<planned>\d+)(?: \||:) (?:train )?loss (?P<loss>{NUMBER}) "
            rf"(?:(?=.*\| norm (?P<norm>{NUMBER}) )|)(?:(?=.*\| lr (?P<rate>{NUMBER}) )|)"
            rf"(?=.* (?P<speed>\d+) tok/s).*?\b(?P<time_ms>\d[\d.]*) ms\b"
        ),
    ),
    (
        Kind.step,
        re.compile(rf"^iter (?P<before>\d+): loss (?P<loss>{NUMBER}), time (?P<time_ms>{NUMBER})ms(?:, mfu |$)"),
    ),
    (
        Kind.evaluation,
        re.compile(rf"^step (?P<step>\d+): train loss {NUMBER}, val loss (?P<validation>{NUMBER})$"),
    ),
    (
        Kind.step,
        re.compile(rf"^s:(?P<before>\d+) trl:(?P<loss>{NUMBER})(?: lr:(?P<rate>{NUMBER}) norm:(?P<norm>{NUMBER}))?$"),
    ),
    (Kind.evaluation, re.compile(rf"^s:(?P<step>\d+) tel:(?P<validation>{NUMBER})$")),
)
# Any program may print these: accept them only after a line with one of the patterns above.
LATER_PATTERNS = (
    (Kind.evaluation, re.compile(rf"^val loss (?P<validation>{NUMBER})$")),
    (Kind.summary, re.compile(rf"^total average iteration time: (?P<mean_ms>{NUMBER}) ms$")),
    (
        Kind.summary,
        re.compile(
            r"^peak memory (?:consumption|allocated): (?P<memory>\d+) MiB(?: reserved: (?P<reserved>\d+) MiB)?$"
        ),
    ),
)
NAMES: Names = {
    "step": (m.STEP, 1),
    "planned": (a.PLANNED_STEPS, 1),
    "loss": (m.LOSS, 1),
    "validation": (m.EVALUATION_LOSS, 1),
    "norm": (m.GRADIENT_NORM, 1),
    "rate": (m.LEARNING_RATE, 1),
    "time_ms": (m.STEP_TIME, 1e-3),
    "mean_ms": (a.MEAN_STEP_TIME, 1e-3),
    "total_ms": (a.STEPS_TIME, 1e-3),
    "total_s": (a.STEPS_TIME, 1),
    "speed": (m.TOKENS_PER_S, 1),
    "memory": (m.MEMORY_PEAK, 1 << 20),
    "reserved": (m.MEMORY_RESERVED_PEAK, 1 << 20),
}


def parse(lines: Iterable[Line]) -> Iterator[Record]:
    """Return steps, evaluations, and memory or mean time at the end."""
    patterns = PATTERNS
    for line in lines:
        for kind, pattern in patterns:
            if found := pattern.match(line.text):
                fields = found.groupdict()
                values = numbers(fields.items(), NAMES)
                before = numbers([("step", fields.get("before"))], NAMES)
                yield Record(
                    kind,
                    line.number,
                    (values | {metric: step + 1 for metric, step in before.items()}),
                    {},
                    line.rank,
                    line.host,
                )
                patterns = PATTERNS + LATER_PATTERNS
                break


FORMAT = LineFormat(
    "nanoGPT family",
    "https://github.com/karpathy/llm.c/blob/master/train_gpt2.cu, "
    "https://github.com/KellerJordan/modded-nanogpt/blob/master/train_gpt.py, "
    "https://github.com/karpathy/nanoGPT/blob/master/train.py (each as of 2025)",
    parse,
    markers=(" train_time:", " tok/s", ", time ", " trl:", " tel:", "val loss ", "peak memory ",
             "total average iteration time: "),
)  # fmt: skip

"""torchtune: a bar a step, `1|26|Loss: 1.25:  26%|... | 26/101 [06:45<17:27, 13.96s/it]`, of rank 0.

Each step's bar is drawn twice, last with the count of the next step; the first one counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from analysis.parsers import metrics as a
from analysis.parsers.record import Kind, Line, LineFormat, Record
from analysis.untrusted import printed_number
from jobs import metrics as m

BAR = re.compile(r"\b(\d{1,6})\|(\d{1,12})\|Loss: ([^:|\s]+):? .*?(?:, *([\d.]{1,12})(s/it|it/s)\]|$)")


def parse(lines: Iterable[Line]) -> Iterator[Record]:
    """A record for each step."""
    before = ("", "")
    for line in lines:
        found = BAR.search(line.text)
        if found is None or (found[1], found[2]) == before:
            continue
        before = found[1], found[2]
        values = {a.EPOCH: float(found[1]), m.STEP: float(found[2])}
        if (loss := printed_number(found[3])) is not None:
            values[m.LOSS] = loss
        if rate := printed_number(found[4] or ""):
            values[a.STEP_TIME_SMOOTHED] = rate if found[5] == "s/it" else 1 / rate
        yield Record(Kind.step, line.number, values, {}, line.rank, line.host)


FORMAT = LineFormat(
    "torchtune",
    "https://github.com/meta-pytorch/torchtune/blob/v0.6.1/recipes/full_finetune_distributed.py",
    parse,
    needles=("|Loss: ",),
)

"""DeepSpeed-Chat's throughput."""

from __future__ import annotations

from analysis.parsers import log_metrics as a
from tests.analysis.parsers.reading import SAMPLES, records


def test_a_micro_batch_of_a_rank_has_its_time_and_size_and_what_is_not_known_is_absent() -> None:
    first, second = (each.values for each in records(SAMPLES / "deepspeed_chat.txt", "DeepSpeed-Chat"))
    assert first == {
        a.PARAMETERS: 1.375e9, a.MICRO_BATCH_TIME: 1.25, a.SAMPLES_PER_S_PER_RANK: 6.4, a.MICRO_BATCH_SIZE: 8,
    }  # fmt: skip
    assert second == {a.SAMPLES_PER_S_PER_RANK: 6.5, a.MICRO_BATCH_SIZE: 8}

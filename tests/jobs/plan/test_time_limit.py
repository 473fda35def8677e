"""The time before its time limit at which a run is asked to stop: enough to write its last checkpoint."""

from __future__ import annotations

import pytest

from jobs.plan.compose import compose
from jobs.plan.table import plan_notes
from jobs.plan.time_limit import limit_min, stop_before_limit_s
from jobs.schema import Run
from tests.support.training import refusal

SEVENTY_B = ("model=llama2_70b", "cluster=xe9680_h100", "nodes=6", "parallelism=fsdp_full", "job.micro_batch_size=1")
SAVING = "job.checkpoint_every_steps=100"


def composed(*overrides: str) -> Run:
    return compose(list(overrides), multirun=False, to_submit=False)[0].run


@pytest.mark.parametrize(
    ("overrides", "stop_s"),
    [
        ([SAVING], 90),
        ([SAVING, "wall_time_min=1"], 15),
        # 69.0 G parameters x 12 bytes, twice at 1 GB/s, and 90 s.
        ([*SEVENTY_B, SAVING, "wall_time_min=600"], 1745),
        ([*SEVENTY_B, SAVING, "wall_time_min=600", "job.precision=bfloat16", "engine.parameters=bfloat16"], 918),
        ([*SEVENTY_B, SAVING, "wall_time_min=60"], 900),
        ([*SEVENTY_B, "wall_time_min=600"], 90),
        ([*SEVENTY_B, SAVING, "launcher.stop_before_limit_s=400"], 400),
    ],
)
def test_a_run_is_asked_to_stop_in_time_for_its_checkpoint(overrides: list[str], stop_s: int) -> None:
    assert stop_before_limit_s(composed(*overrides)) == stop_s


def test_the_plan_contains_the_time_to_save_and_warns_if_it_is_short() -> None:
    text = "\n".join(plan_notes([composed(*SEVENTY_B, SAVING, "wall_time_min=60")]))
    assert "900 s before the time limit, to write a checkpoint of 828 GB" in text
    assert "may need 1745 s at 1 GB/s" in text
    assert "Set wall_time_min=117 or more, or launcher.stop_before_limit_s=SECONDS." in text
    text = "\n".join(plan_notes([composed(*SEVENTY_B, SAVING, "wall_time_min=117")]))
    assert "1745 s before the time limit" in text
    assert "may need" not in text


def test_a_time_to_save_longer_than_the_limit_is_refused() -> None:
    assert "Set launcher.stop_before_limit_s=3599 or less, or null." in refusal("launcher.stop_before_limit_s=3600")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("90", 90), ("5:30", 5), ("1:30:00", 90), ("2-3", 3060), ("1-0:30", 1470), ("1-01:00:00", 1500)]
    + [(text, None) for text in ("UNLIMITED", "", "1:2:3:4", "soon")],
)
def test_limits_of_slurm_are_minutes_in_every_format(text: str, expected: int | None) -> None:
    assert limit_min(text) == expected

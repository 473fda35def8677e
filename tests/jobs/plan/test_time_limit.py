"""The time before its time limit at which a run is asked to stop: enough to write its last checkpoint."""

from __future__ import annotations

import re

import pytest

from jobs.plan.compose import compose
from jobs.plan.table import plan_notes
from jobs.plan.time_limit import limit_min, stop_before_limit_s
from jobs.schema import Run
from tests.support.composing import refusal

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


LONG = ("model=llama3_8b", "cluster=xe9680_h100", "parallelism=fsdp_full", "job.precision=bfloat16", "data=random",
        "job.sequence_length=4096", "scaling.global_batch_size=64", "job.steps=5000")  # fmt: skip


def test_a_plan_warns_of_predicted_hours_beyond_the_time_limit_with_what_to_set() -> None:
    text = "\n".join(plan_notes([composed(*LONG)]))
    found = re.search(
        r"uncalibrated: predicted ([\d.]+) hours \([\d.]+ to ([\d.]+)\) exceed wall_time_min=60: without checkpoints "
        r"nothing of the run is left. Set (wall_time_min=\d+), or (job.checkpoint_every_steps=\d+ "
        r"launcher.requeues=\d+)",
        text,
    )
    assert found
    assert 1 < float(found[1]) < float(found[2]) <= int(found[3].partition("=")[2]) / 60 < float(found[2]) + 1
    for remedy in (found[3], found[4]):
        assert "exceed" not in "\n".join(plan_notes([composed(*LONG, *remedy.split())]))


def test_restarts_that_continue_from_checkpoints_count_in_the_time_limit() -> None:
    given = (*LONG, "job.checkpoint_every_steps=100", "wall_time_min=120")
    text = "\n".join(plan_notes([composed(*given)]))
    assert re.search(r"predicted to need [34] starts of wall_time_min=120, each from a checkpoint", text)
    assert "exceed" not in text
    text = "\n".join(plan_notes([composed(*given, "launcher.requeues=1")]))
    assert (
        "exceed wall_time_min=120 x 2 starts: the run ends unfinished after launcher.requeues=1 restarts. Set" in text
    )
    text = "\n".join(plan_notes([composed(*given, "launcher.requeues=1", "cluster.max_wall_time_min=120")]))
    assert re.search(r"restarts. Set launcher.requeues=\d\.", text)


def test_a_time_to_save_longer_than_the_limit_is_refused() -> None:
    assert "Set launcher.stop_before_limit_s=3599 or less, or null." in refusal("launcher.stop_before_limit_s=3600")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("90", 90), ("5:30", 6), ("1:30:00", 90), ("2-3", 3060), ("1-0:30", 1470), ("1-01:00:00", 1500)]
    + [("0:30", 1), ("00:00:30", 1), ("0:59:30", 60), ("0:90", 2), ("0-0:0:1", 1), ("0", 0)]
    + [(text, None) for text in ("UNLIMITED", "", "1:2:3:4", "soon")],
)
def test_limits_of_slurm_are_minutes_in_every_format(text: str, expected: int | None) -> None:
    assert limit_min(text) == expected

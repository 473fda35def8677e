"""The bias of short runs, as a campaign's pairs at both lengths give it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jobs.explore.campaign.campaign import Campaign
from jobs.explore.campaign.proxies import record_of
from jobs.rundir import SweepDir
from tests.support.campaigns import a_repeat
from tests.support.fake_runs import a_run

PROXY = ["job.steps=3"]
LONG, SHORT = (5.0, 4.0, 3.0, 2.0), (5.0, 4.0, 3.0)
NOISE = (1.0, 1.004, 0.997)


def tried(campaign: Path, name: str, batch: int, ratio: float, proxy: Sequence[str] | None, pairs: int = 3) -> None:
    """Write an attempt with another micro-batch that is faster by this ratio, at full length or by a proxy."""
    both: dict[str, Any] = {"losses": LONG, "samples": 16}
    if proxy is not None:
        both = {"losses": SHORT, "samples": 12, "recorded": {"proxy": {"overrides": list(proxy), "biases": {}}}}
    run = a_run(steps=len(both["losses"]))
    other = replace(run, job=replace(run.job, micro_batch_size=batch))
    for number, noise in enumerate(NOISE[:pairs], start=1):
        a_repeat(campaign, name, number, 10.0, role="baseline", run=run, **both)
        a_repeat(campaign, name, number, 10.0 * noise / ratio, run=other, **both)


def test_the_bias_is_of_configurations_that_ran_often_enough_at_both_lengths(tmp_path: Path) -> None:
    a_repeat(tmp_path, "baseline", 1, 10.0, role="baseline")
    standard = a_run().job.micro_batch_size
    for batch, long, short in ((16, 1.2, 1.26), (32, 0.9, 0.99), (64, 1.1, 1.1)):
        tried(tmp_path, f"long{batch}", batch, long, None)
        tried(tmp_path, f"short{batch}", batch, short, PROXY)
    tried(tmp_path, "only-short", 128, 1.3, PROXY)
    tried(tmp_path, "only-long", 256, 1.3, None)
    tried(tmp_path, "other-length", 256, 1.5, ["job.steps=2"])
    tried(tmp_path, "few-long", 512, 1.3, None, pairs=2)
    tried(tmp_path, "few-short", 512, 1.4, PROXY)
    tried(tmp_path, "same-long", standard, 1.0, None)
    tried(tmp_path, "same-short", standard, 1.0, PROXY)
    found = record_of(Campaign(SweepDir(tmp_path), []), PROXY)
    assert found["overrides"] == PROXY
    assert found["biases"] == {
        "short16": pytest.approx(1.26 / 1.2),
        "short32": pytest.approx(0.99 / 0.9),
        "short64": pytest.approx(1.0),
    }


def test_a_campaign_that_has_nothing_yet_knows_no_bias(tmp_path: Path) -> None:
    assert record_of(Campaign(SweepDir(tmp_path / "none"), []), PROXY) == {"overrides": PROXY, "biases": {}}

"""`plan` shows the published time of an experiment and its prediction, and says where one of them is implausible."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jobs.cli import main


def published_lines(capsys: pytest.CaptureFixture[str], *overrides: str) -> list[str]:
    assert main(["plan", "-m", *overrides]) == 0
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith("published (")]


def test_a_published_time_above_every_published_mfu_is_called_implausible(
    capsys: pytest.CaptureFixture[str],
) -> None:
    (line,) = published_lines(capsys, "experiment=llama2_7b_nemo")
    assert "3.32 min in table 4 of H20044, 4.98 s a step; predicted 4." in line
    assert "The published time is in the interval and implausible: it would be an" in line
    assert "MFU of 69%, above the 46% of MosaicML LLM Foundry, the highest published MFU on this GPU" in line


def test_a_published_time_below_the_interval_is_called_implausible(capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = published_lines(capsys, "experiment=llama2_7b_nemo", "gpu.link_gb_per_s=5")
    assert "One of the two is implausible, more likely the published time: it is shorter than the interval" in line


def test_json_has_the_published_time_its_prediction_and_which_of_them_is_implausible(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def published(*overrides: str) -> list[dict[str, Any]]:
        assert main(["plan", *overrides, "--json"]) == 0
        (run,) = json.loads(capsys.readouterr().out)["result"]["runs"]
        return list(run["published"])

    (time,) = published("experiment=llama2_7b_nemo")
    assert (time["published_s"], time["steps"], time["published_step_time_s"]) == pytest.approx((199.2, 40, 4.98))
    assert time["predicted_low_s"] < time["published_s"] < time["predicted_s"] < time["predicted_high_s"]
    assert (time["position"], time["implausible"]) == ("within", "published")
    assert time["implied_mfu"] == pytest.approx(0.69, abs=0.01)
    assert time["implied_mfu"] > time["highest_published_mfu"]
    (agreeing,) = published("experiment=llama2_70b_nemo")
    assert (agreeing["position"], agreeing["implausible"], agreeing["implied_mfu"]) == ("within", None, None)
    assert published("model=tiny") == []


def test_a_published_time_in_the_interval_agrees(capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = published_lines(capsys, "experiment=llama2_70b_nemo")
    assert line.endswith("they agree")


def test_each_network_has_its_own_published_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    tcp, roce = published_lines(capsys, "experiment=llama31_70b_deepspeed")
    assert "network=tcp): 17160 s" in tcp
    assert "network=roce): 8120 s" in roce
    assert "The document does not state the global batch and the sequence length" in roce


@pytest.mark.parametrize("overrides", ["experiment=llama2_7b_nemo nodes=2", "experiment=llama2_7b_nemo rehearsal=cpu",
                                       "experiment=llama2_7b_nemo job.steps=41", "model=llama2_7b"])  # fmt: skip
def test_another_run_than_the_published_one_has_none(overrides: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert not published_lines(capsys, *overrides.split())

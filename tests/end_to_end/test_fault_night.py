"""The night of faults: what is drawn, and ten faults of it on the emulated Slurm."""

from __future__ import annotations

import pytest

from tests.benchmarks.fault_night import KINDS, NOT_MADE, drawn, main


def test_faults_are_drawn_by_the_shares_of_llama_3() -> None:
    interruptions = sum(number for kind in KINDS for number in kind.stands_for.values())
    assert interruptions + NOT_MADE == 419
    names = [kind.name for kind in drawn(4000, seed=1)]
    assert names == [kind.name for kind in drawn(4000, seed=1)]
    for kind in KINDS:
        share = sum(kind.stands_for.values()) / interruptions
        assert names.count(kind.name) / len(names) == pytest.approx(share, abs=0.03)


@pytest.mark.slurm
@pytest.mark.faults
@pytest.mark.slow
@pytest.mark.long
def test_all_of_ten_faults_recover_and_nobody_acts(capsys: pytest.CaptureFixture[str]) -> None:
    # Of this seed all five kinds, at most three after each other.
    assert main(["--faults", "10", "--at-once", "4", "--seed", "51"]) == 0
    assert "recovered 10, human acts 0" in capsys.readouterr().out

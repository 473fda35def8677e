"""The precision of a file becomes float16 on GPUs without bfloat16, and the plan says so."""

from __future__ import annotations

import pytest

from jobs.cli import main
from jobs.errors import ConfigError
from jobs.schema import Precision
from tests.support.composing import one

CONTEST = ("experiment=apac_hpc_ai_2024", "cluster=gadi_gpuvolta", "cluster.account=mine", "data.path=alpaca")


def test_a_v100_takes_float16_in_place_of_an_experiments_bfloat16(capsys: pytest.CaptureFixture[str]) -> None:
    assert one(*CONTEST).run.job.precision is Precision.float16
    assert one(*CONTEST, "gpu=a100_sxm_40gb").run.job.precision is Precision.bfloat16
    assert main(["plan", *CONTEST]) == 0
    assert "float16 with loss scaling, because v100_sxm2_32gb has no bfloat16" in " ".join(
        capsys.readouterr().out.split()
    )


def test_a_precision_that_is_typed_stays() -> None:
    assert one(*CONTEST, "job.precision=float32").run.job.precision is Precision.float32
    with pytest.raises(ConfigError, match=r"bfloat16 needs an NVIDIA GPU of compute capability 8\.0"):
        one(*CONTEST, "job.precision=bfloat16")

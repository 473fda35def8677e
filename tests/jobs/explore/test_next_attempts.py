"""`slurmscale tune --next`: proposals from what a campaign measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from jobs.cli import main
from jobs.plan.compose import compose
from jobs.rundir import append_record, write_json
from jobs.schema import Run
from tests.support.campaigns import a_repeat
from tests.support.cli import printed_words

BASE = ["model=llama2_7b", "cluster=xe9680_h100", "cluster.account=a", "data=docstrings", "job=finetune_full",
        "data.tokenizer=/t", "job.init_from=/w", "job.init_from_is_remote=true", "nodes=2",
        "parallelism=fsdp_full", "scaling.global_batch_size=64", "job.micro_batch_size=1"]  # fmt: skip


def campaign(where: Path, *further: str) -> Path:
    """A campaign of one baseline run on GPUs: 20 of 80 GiB, half of the positions padding, 30 % communication."""
    overrides = [*BASE, f"runs_dir={where}", "sweep=c", *further]
    run: Run = compose(overrides, multirun=False)[0].run
    directory = a_repeat(where / "c", "baseline", 1, 8.0, role="baseline", run=replace(run, sweep="c"))
    write_json(
        directory.provenance, {"attempt": {"name": "baseline", "role": "baseline", "repeat": 1, "changes": overrides}}
    )
    last = {"step": 4, "attempt": 1, "loss": 2.0, "step_time_s": 1.0, "samples": 16, "tokens": 512}
    append_record(directory.metrics, last | {"padded_tokens": 1024, "memory_peak_bytes": 20 * 2**30})
    plan = {"speed": {"terms_s": {"matrices": 0.7, "data_parallel": 0.3}}}
    write_json(directory.plan, plan)
    return where / "c"


def test_memory_left_padding_and_communication_lead_to_attempts_with_their_reasons(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = campaign(tmp_path)
    assert main(["tune", "--next", str(folder)]) == 0
    out = printed_words(capsys)
    assert "Best so far: baseline-r1" in out
    assert "Memory left: the fullest GPU used 20.0 of 80 GiB (25 %)." in out
    assert f"slurmscale attempt micro_batch_size_2 job.micro_batch_size=2 --campaign {folder}" in out
    assert "of the positions that were computed hold no token. Packed rows have none." in out
    assert "Communication: 30 % of a step waits for it (predicted)." in out
    assert "slurmscale attempt parallelism_fsdp_hybrid parallelism=fsdp_hybrid" in out
    assert sorted(path.name for path in folder.glob("*-r*")) == ["baseline-r1"]


def test_next_refuses_overrides_and_what_is_no_campaign(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["tune", "--next", str(tmp_path), "nodes=2"])
    assert "--next reads a campaign and takes no overrides; leave nodes=2 out" in printed_words(capsys)
    assert main(["tune", "--next", str(tmp_path)]) == 2
    assert "is not a campaign: it has no baseline" in printed_words(capsys)

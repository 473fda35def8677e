"""The section Customization: what each way to adapt one model trains, holds, takes and reaches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from analysis.load.run_directory import read_run
from analysis.report.digest import Digest
from analysis.report.sections.customization import customization_section
from jobs.schema import Lora, LoraTarget, PromptTuning, Run
from tests.support.fake_runs import a_run, ended, event, finished_run, prepared, started, with_job

ADAPTERS = Lora(rank=4, alpha=4, targets=[LoraTarget.query])


def finished(sweep: Path, run: Run, trained: int, loss: float) -> Path:
    """A run that trained some weights and was evaluated."""
    directory = finished_run(sweep, run)
    event(directory, "layout", attempt=1, step=2, parameters_held=1234, parameters_trained=trained, collectives=[])
    event(directory, "evaluated", step=6, evaluation_loss=loss)
    return directory.path


def test_customizations_stand_side_by_side_with_the_fewest_trained_weights_first(tmp_path: Path) -> None:
    full = finished(tmp_path, with_job(a_run("full"), name="finetune_full"), 1_234_000, 2.0)
    lora = finished(tmp_path, with_job(a_run("lora"), name="finetune_lora", lora=ADAPTERS), 64_000, 2.5)
    prompt = with_job(a_run("prompt"), name="prompt_tuning", prompt_tuning=PromptTuning(virtual_tokens=2))
    tuned = finished(tmp_path, prompt, 4096, 3.0)
    scored = with_job(a_run("scored"), name="evaluate", train=False)
    directory = prepared(tmp_path, replace(scored, job=replace(scored.job, steps=None, epochs=None)))
    started(directory, scored)
    event(directory, "evaluated", step=0, evaluation_loss=3.5)
    ended(directory, step=0)
    section = customization_section(Digest([read_run(path) for path in (full, lora, tuned, directory.path)]))
    assert section is not None
    assert section.headings[:4] == ("Run", "Model", "Job", "Parameters trained")
    assert [row[2:4] for row in section.rows] == [
        ["evaluate", "0"], ["prompt_tuning", "4,096"], ["finetune_lora", "64,000"],
        ["finetune_full", "1,234,000"],
    ]  # fmt: skip
    place = [heading.partition(" (")[0] for heading in section.headings].index("Evaluation loss")
    assert [row[place] for row in section.rows] == ["3.5000", "3.0000", "2.5000", "2.0000"]
    assert customization_section(Digest([read_run(full)])) is None, "nothing is beside it"

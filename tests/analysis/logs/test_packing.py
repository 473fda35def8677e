"""Logs of packed and of padded samples: two configurations, never repeats of one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from analysis.load.discover import read_runs
from analysis.report.report import report
from analysis.scaling.groups import scaling_groups
from tests.support.megatron_logs import write

MAY_BE_PADDING = "its tokens may include padding, which older releases of torchtune count"
NOT_STATED = "neither the log nor a configuration next to it states dataset.packed"


def steps(rate: int) -> str:
    """The lines of torchtune's metric logger."""
    return "".join(
        f"Step {step} | loss:{2.5 - step / 100} lr:2e-05 tokens_per_second_per_gpu:{rate + step % 3} \n"
        for step in range(1, 31)
    )


def configuration(packed: str, *, listed: bool = False) -> str:
    """Return the configuration that a recipe prints, whose validation data are packed the other way."""
    first, rest = ("- ", "  ") if listed else ("  ", "  ")
    other = "false" if packed.lower() == "true" else "true"
    return (
        "INFO:torchtune.utils._logging:Running FullFinetuneRecipeDistributed with resolved config:\n\n"
        "batch_size: 4\ncheckpointer:\n  _component_: torchtune.training.FullModelHFCheckpointer\n"
        f"dataset:\n{first}_component_: torchtune.datasets.alpaca_dataset\n{rest}packed: {packed}\n"
        f"dataset_val:\n  _component_: torchtune.datasets.alpaca_dataset\n  packed: {other}\nepochs: 1\n\n"
    )


def override(packed: str) -> str:
    """The command as a job script prints it."""
    return f"+ tune run full_finetune_distributed --config llama3/8B_full dataset.packed={packed}\n"


@pytest.mark.parametrize("stated", [configuration, override, lambda packed: configuration(packed, listed=True)])
def test_packed_and_padded_runs_of_torchtune_are_no_repeats_and_are_named_by_it(
    tmp_path: Path, stated: Callable[[str], str]
) -> None:
    write(tmp_path / "facts.yaml", "ranks: 8\nmodel: llama\n")
    for name, packed, rate in (("a", "True", 900), ("b", "true", 910), ("c", "False", 400)):
        write(tmp_path / f"{name}.out", stated(packed) + steps(rate))
    runs = {run.name: run for run in read_runs([tmp_path])}
    groups = {group.label: sorted(run.name for run in group.runs) for group in scaling_groups(runs.values())}
    assert groups == {"llama batching=packed": ["a.out", "b.out"], "llama batching=padded": ["c.out"]}
    assert not runs["a.out"].remarks
    assert runs["c.out"].remarks == [f"c.out: {MAY_BE_PADDING}."]


def test_the_configuration_of_torchtune_next_to_its_metrics_states_the_packing(tmp_path: Path) -> None:
    for name, packed in (("a", "true"), ("b", "false")):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "torchtune_config.yaml", configuration(packed).partition("\n\n")[2])
        write(tmp_path / name / "log_1.txt", steps(900))
    runs = {run.name: run.setting("job.batching") for run in read_runs([tmp_path])}
    assert runs == {"a/log_1.txt": "packed", "b/log_1.txt": "padded"}


def test_a_report_states_that_tokens_of_unknown_packing_may_be_padding(tmp_path: Path) -> None:
    write(tmp_path / "facts.yaml", "ranks: 8\n")
    write(tmp_path / "log_1.txt", steps(900))
    (run,) = read_runs([tmp_path])
    assert run.setting("job.batching") is None
    assert run.remarks == [f"log_1.txt: {MAY_BE_PADDING}; {NOT_STATED}."]
    report([tmp_path], None)
    assert MAY_BE_PADDING in (tmp_path / "report.md").read_text()

"""Evaluation: the loss of the trained weights on samples that no step saw, whatever layout wrote them."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from litgpt.config import Config
from litgpt.model import GPT

from analysis.load.discover import read_runs
from analysis.report.report import report
from analysis.report.runs_columns import COLUMNS
from jobs import metrics as m
from jobs.data import open_dataset, prepare
from jobs.rundir import RunDir, append_event, load_run
from tests.support.real_run import evaluate, events, losses, make_run, printed, train
from tests.support.training import long

HELD_OUT = 5
# One thread: a forked process has none of its parent's pool of them.
EVALUATED = ("stages=all", "stages.prepare=null", "stages.report=null", "stages.evaluate.cpus=1",
             f"data.held_out_samples={HELD_OUT}")  # fmt: skip


def loss_by_hand(run: RunDir) -> float:
    """The mean loss of the exported weights over the last samples, by stock LitGPT, sample by sample."""
    config = load_run(run.config)
    gpt = GPT(Config.from_file(run.export / "model_config.yaml"))
    gpt.load_state_dict(torch.load(run.export / "lit_model.pth", weights_only=True))
    data = open_dataset(
        prepare(config.data, sequence_length=config.job.sequence_length, vocab_size=config.model.vocab_size,
                seed=config.job.seed)
    )  # fmt: skip
    total, labels = 0.0, 0
    for sample in range(len(data) - HELD_OUT, len(data)):
        inputs, targets = data.sample(sample)
        with torch.no_grad():
            logits = gpt(torch.from_numpy(inputs)[None])[0]
        total += F.cross_entropy(logits, torch.from_numpy(targets), reduction="sum").item()
        labels += len(targets)
    return total / labels


@pytest.mark.parametrize(("parallelism", "ranks"), [("single", 1), long("tp_fsdp", 4), long("pp_fsdp", 4)])
def test_the_loss_of_a_checkpoint_of_any_layout_is_the_one_computed_by_hand(
    parallelism: str, ranks: int, tmp_path: Path
) -> None:
    run = make_run(tmp_path, *EVALUATED, f"parallelism={parallelism}", f"ranks_per_node={ranks}", "job.export=true",
                   "job.checkpoint_every_steps=4", "job.micro_batch_size=2")  # fmt: skip
    assert set(train(run)) == {0}, printed(run)
    expected = loss_by_hand(run)
    assert evaluate(run) == 0, printed(run)
    shutil.rmtree(run.export)
    assert evaluate(run) == 0, printed(run)
    for found in events(run, "evaluated"):
        assert found["step"] == 6
        assert found[m.EVALUATION_LOSS.name] == pytest.approx(expected, abs=1e-6)
        assert found[m.EVALUATION_PERPLEXITY.name] == pytest.approx(math.exp(expected), rel=1e-6)
        assert found[m.EVALUATION_SAMPLES.name] == HELD_OUT
        assert found[m.EVALUATION_LABELS.name] == HELD_OUT * 32
    assert len(events(run, "evaluated")) == 2


def test_samples_held_out_change_nothing_but_the_samples_trained_on(tmp_path: Path) -> None:
    """Held-out samples have no part in training: other text there gives equal losses."""
    found = []
    endings = {"first": "one ending " * 40, "second": "quite another one " * 40}
    for name, tail, held_out in (("first", endings["first"], HELD_OUT), ("second", endings["second"], HELD_OUT),
                                 ("third", endings["second"], 0)):  # fmt: skip
        text = tmp_path / name / "text.txt"
        text.parent.mkdir()
        # Bytes are the tokens of a BPE this small, so equal text has equal samples.
        text.write_text("It waits in the queue until its nodes are free. " * 8 + tail)
        run = make_run(tmp_path / name, "data=text", f"data.path={text}", "data.bpe_vocab_size=257",
                       "data.max_samples=16", f"data.held_out_samples={held_out}", "parallelism=single",
                       "ranks_per_node=1")  # fmt: skip
        assert train(run) == [0], printed(run)
        found.append(losses(run))
    assert found[0] == found[1]
    assert found[0] != found[2], "without samples held out, the same other text changes the losses"


def test_a_run_that_has_not_finished_is_not_evaluated_and_states_why(tmp_path: Path) -> None:
    run = make_run(tmp_path, *EVALUATED, "job.checkpoint_every_steps=4")
    append_event(run, "stopped", step=2, reason="time limit near")
    assert evaluate(run) == 1
    (failed,) = events(run, "evaluate_failed")
    assert "training has not finished: time limit near. Run `slurmscale resume" in str(failed["error"])


def test_a_checkpoint_cut_short_is_put_aside_and_the_one_before_it_is_evaluated(tmp_path: Path) -> None:
    run = make_run(tmp_path, *EVALUATED, "parallelism=single", "ranks_per_node=1", "job.checkpoint_every_steps=3")
    assert train(run) == [0], printed(run)
    newest = run.checkpoints / "step-00000006"
    for file in newest.iterdir():
        file.write_bytes(file.read_bytes()[:10])
    assert evaluate(run) == 0, printed(run)
    assert events(run, "evaluated")[0]["step"] == 3
    assert not newest.exists()


def test_the_report_has_the_loss_of_the_evaluation_where_there_was_one(tmp_path: Path) -> None:
    run = make_run(tmp_path, *EVALUATED, "parallelism=single", "ranks_per_node=1", "job.checkpoint_every_steps=3",
                   "job.unmeasured_steps=1")  # fmt: skip
    assert train(run) == [0], printed(run)
    run.plan.write_text("{}")
    (before,) = read_runs([run.path])
    assert m.EVALUATION_LOSS not in before.values
    append_event(run, "evaluated", **{m.EVALUATION_LOSS.name: 4.56789, m.EVALUATION_PERPLEXITY.name: 96.34})
    (after,) = read_runs([run.path])
    assert after.values[m.EVALUATION_LOSS] == 4.56789
    assert {metric.name for metric in m.EVALUATION_METRICS} <= {column.name for column in COLUMNS}
    page = report([run.path], tmp_path / "report").read_text()
    assert "4.5679" in page

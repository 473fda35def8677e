"""Runs without training: prompt templates and examples, scored on held-out samples by the weights at hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from litgpt.config import Config
from litgpt.model import GPT

from analysis.report.report import report
from jobs import metrics as m
from jobs.data import open_dataset, prepare
from jobs.data.dataset import IGNORED
from jobs.rundir import RunDir, load_run
from tests.support.real_run import SMALL_MODEL, events, make_run, printed, train
from tests.support.tiny_data import write_json

SHAPE = ("model.max_sequence_length=256", "job.sequence_length=256", "parallelism=single", "ranks_per_node=1",
         "data=alpaca", "data.bpe_vocab_size=257", "data.max_samples=null", "data.test_split=0.25",
         "data.mask_prompt=true", "data.prompt=question_answer")  # fmt: skip


def by_hand(weights: Path, run: RunDir) -> tuple[float, float]:
    """The loss and the share of samples whose response stock LitGPT generates token by token."""
    config = load_run(run.config)
    gpt = GPT(Config.from_file(weights / "model_config.yaml"))
    gpt.load_state_dict(torch.load(weights / "lit_model.pth", weights_only=True))
    data = open_dataset(
        prepare(config.data, sequence_length=config.job.sequence_length, vocab_size=config.model.vocab_size,
                seed=config.job.seed)
    )  # fmt: skip
    total, labels, matches = 0.0, 0, 0
    for sample in range(len(data) - data.held_out, len(data)):
        inputs, targets = (torch.from_numpy(each) for each in data.sample(sample))
        response = targets[targets != IGNORED]
        text = inputs[: len(inputs) - len(response) + 1]
        with torch.no_grad():
            logits = gpt(inputs[None])[0]
            for _ in response:
                text = torch.cat([text, gpt(text[None])[0, -1].argmax()[None]])
        total += F.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum").item()
        labels += len(response)
        matches += torch.equal(text[-len(response) :], response)
    return total / labels, matches / data.held_out


def test_loss_and_exact_match_are_those_of_stock_litgpt_and_its_generation(tmp_path: Path) -> None:
    rows = [{"instruction": f"Say {i}.", "output": "yes" if i % 3 else "no!"} for i in range(24)]
    data = f"data.path={write_json(tmp_path / 'alpaca.json', rows)}"
    first = make_run(tmp_path, *SHAPE, data, "name=first", "job.export=true", "job.steps=24", "job.micro_batch_size=6",
                     "scaling.global_batch_size=6", "job.warmup_steps=1", "job.learning_rate=2e-2")  # fmt: skip
    assert train(first) == [0], printed(first)
    for shots in (0, 1):
        run = make_run(tmp_path, *SMALL_MODEL, *SHAPE, data, f"name=shots{shots}", "job=evaluate",
                       "job.precision=float32", f"data.shots={shots}", f"job.init_from={first.export}",
                       small=False)  # fmt: skip
        assert train(run) == [0], printed(run)
        (found,) = events(run, "evaluated")
        loss, share = by_hand(first.export, run)
        assert found[m.EVALUATION_LOSS.name] == pytest.approx(loss, abs=1e-5)
        assert found[m.EVALUATION_EXACT_MATCH.name] == share
        if not shots:
            assert 0 < share < 1, "else any count would pass"
        assert [event["event"] for kind in ("started", "finished") for event in events(run, kind)] == [
            "started", "finished",
        ]  # fmt: skip
        assert not events(run, "failed")
        run.plan.write_text("{}")
    sweep = tmp_path / "test"
    page = report([sweep], tmp_path / "report").read_text()
    assert "Evaluations" in page
    text = (tmp_path / "report/report.md").read_text()
    table = text[text.index("## Evaluations") :]
    assert table.index("question_answer") < table.index("6 samples")
    assert "CPU: tiny from" in table
    assert "CPU: the lowest loss of 2 evaluations of tiny without training is " in text
    assert "shots" not in text[text.index("## Runs not used") : text.index("## Files given")]

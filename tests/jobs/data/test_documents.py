"""Documents in windows of text: packed rows keep attention within each of them, padded rows do not."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from jobs.data import Batches, Dataset, open_dataset, prepare
from jobs.data.megatron_binary import COUNTS, HEADER, VERSION
from jobs.engines.native.model import Decoder
from jobs.errors import ConfigError
from jobs.plan.legality import warnings
from jobs.schema import Batching, Source
from jobs.work.evaluate.evaluate import mean_loss
from tests.support.composing import one
from tests.support.real_run import evaluate, events, losses, make_run, printed, train
from tests.support.small_decoder import decoder
from tests.support.tiny_data import SENTENCES, data_config, huggingface_tokenizer, tokenizer_config

END = 1
"""Id of </s> in the tokenizer of these tests."""
WINDOW = 32


def text_of(where: Path, documents: list[str]) -> Path:
    """A file of JSON lines, one document each."""
    where.mkdir(parents=True, exist_ok=True)
    (where / "train.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    return where / "train.jsonl"


def dataset(where: Path, documents: list[str], *, held_out: int = 0) -> Dataset:
    tokenizer = tokenizer_config(huggingface_tokenizer(where / "tokenizer"), eos_token="</s>")
    given = {"path": str(text_of(where / "text", documents)), "tokenizer": str(tokenizer), "held_out_samples": held_out}
    data = data_config(where / "cache", Source.text, **given)
    return open_dataset(prepare(data, sequence_length=WINDOW, vocab_size=512, seed=1))


def documents_alone(gpt: Decoder, data: Dataset, samples: list[int]) -> torch.Tensor:
    """The summed loss of samples that are cut behind every end token, each piece computed by itself."""
    total = torch.zeros(())
    for sample in samples:
        inputs, targets = data.sample(sample)
        ends = [at + 1 for at in np.flatnonzero(inputs == END).tolist() if at + 1 < len(inputs)]
        for first, last in zip([0, *ends], [*ends, len(inputs)], strict=True):
            piece = (torch.from_numpy(each[None, first:last]) for each in (inputs, targets))
            total = total + gpt(*piece, last - first)
    return total


@pytest.mark.parametrize(
    "documents",
    [
        SENTENCES,
        [text[: 1 + 7 * i] for i, text in enumerate(SENTENCES)],
        [" ".join(SENTENCES), *(["a"] * 40), SENTENCES[4]],
        ["x"] * 200,
    ],
    ids=["sentences", "of all lengths", "long and tiny", "tiny"],
)
def test_a_packed_row_has_the_loss_and_gradients_of_each_document_alone(documents: list[str], tmp_path: Path) -> None:
    data, gpt = dataset(tmp_path, documents), decoder("model.vocab_size=512")
    batches = Batches(data, global_batch_size=4, micro_batch_size=4, dp=1, dp_rank=0, seed=3, batching=Batching.packed)
    (row,) = (each.converted(torch.from_numpy) for each in batches.step(1).micro_batches)
    expected = documents_alone(gpt, data, batches.samples(1))
    expected.backward()
    wanted = [weight.grad for weight in gpt.parameters()]
    gpt.zero_grad(set_to_none=True)
    loss = gpt(*row)
    loss.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    for weight, gradient in zip(gpt.parameters(), wanted, strict=True):
        torch.testing.assert_close(weight.grad, gradient, rtol=1e-3, atol=1e-3)
    assert row.bounds is not None
    whole = gpt(*row._replace(bounds=torch.tensor([[*range(0, 5 * WINDOW, WINDOW)]])))
    assert whole.item() != pytest.approx(loss.item(), rel=5e-5), "attention across documents is something else"


def test_the_held_out_loss_of_packed_text_is_that_of_each_document_alone(tmp_path: Path) -> None:
    data, gpt = dataset(tmp_path, SENTENCES, held_out=5), decoder("model.vocab_size=512")
    held_out = list(range(len(data) - 5, len(data)))
    expected = documents_alone(gpt, data, held_out).item() / (5 * WINDOW)
    for size in (1, 2, 8):
        assert mean_loss(gpt, data, size, torch.device("cpu"), packed=True) == pytest.approx(expected, rel=1e-5)
    assert mean_loss(gpt, data, 2, torch.device("cpu")) != pytest.approx(expected, rel=1e-3)


@pytest.mark.slow
@pytest.mark.long
def test_every_layout_trains_packed_text_alike_and_its_evaluation_agrees(tmp_path: Path) -> None:
    text = ("data=text", f"data.path={text_of(tmp_path, SENTENCES * 4)}", "data.bpe_vocab_size=300",
            "job.batching=packed", "job.micro_batch_size=2", "job.steps=3", "job.learning_rate=1e-2",
            "job.checkpoint_every_steps=3", "data.held_out_samples=4", "stages=all",
            "stages.prepare=null", "stages.report=null", "stages.evaluate.cpus=1")  # fmt: skip
    found, evaluated = {}, {}
    for layout, ranks in (("single", 1), ("fsdp_full", 2), ("tp", 2), ("pp", 2)):
        run = make_run(tmp_path / layout, *text, f"parallelism={layout}", f"ranks_per_node={ranks}")
        assert set(train(run)) == {0}, printed(run)
        assert evaluate(run) == 0, printed(run)
        found[layout] = losses(run)
        evaluated[layout] = events(run, "evaluated")[-1]["evaluation_loss"]
    padded = make_run(tmp_path / "padded", *text, "job.batching=padded", "parallelism=single", "ranks_per_node=1")
    assert set(train(padded)) == {0}, printed(padded)
    for layout in ("fsdp_full", "tp", "pp"):
        assert found[layout] == pytest.approx(found["single"], rel=1e-5), layout
        assert evaluated[layout] == pytest.approx(evaluated["single"], rel=1e-5), layout
    assert losses(padded)[1:] != pytest.approx(found["single"][1:], rel=1e-6)


@pytest.mark.parametrize(
    ("lengths", "documents", "begins"),
    [
        ([4, 1, 7], [0, 1, 2, 3], [0, 4, 5]),
        ([4, 1, 7], [0, 2, 3], [0, 5]),
        ([4, 1, 7], [0, 3], [0]),
        ([2, 3, 2, 3, 2], [0, 1, 4, 5], [0, 2, 10]),
    ],
)
def test_documents_of_several_sequences_begin_once_in_megatrons_files(
    lengths: list[int], documents: list[int], begins: list[int], tmp_path: Path
) -> None:
    ids = np.arange(10, 10 + sum(lengths), dtype="<u2")
    starts = np.cumsum([0, *lengths[:-1]], dtype="<i8")
    (tmp_path / "p.bin").write_bytes(ids.tobytes())
    (tmp_path / "p.idx").write_bytes(
        HEADER + COUNTS.pack(VERSION, 8, len(lengths), len(documents)) + np.array(lengths, "<i4").tobytes()
        + (2 * starts).tobytes() + np.array(documents, "<i8").tobytes()
    )  # fmt: skip
    data = data_config(tmp_path / "cache", Source.megatron_binary, path=str(tmp_path / "p"))
    found = open_dataset(prepare(data, sequence_length=3, vocab_size=512, seed=1))
    first = [3 * sample + at for sample in range(len(found)) for at in found.further_documents(sample)]
    # One at the beginning of a window needs no mark.
    assert first == [begin for begin in begins if begin % 3 and begin < 3 * len(found)]


def test_samples_of_instructions_and_data_of_earlier_versions_have_one_document_each(tmp_path: Path) -> None:
    data = dataset(tmp_path, SENTENCES)
    assert any(data.further_documents(sample) for sample in range(len(data)))
    (data.directory / "documents.npy").unlink()
    assert not any(open_dataset(data.directory).further_documents(sample) for sample in range(len(data)))


def test_virtual_tokens_in_packed_text_are_refused_as_only_the_first_document_would_see_them(tmp_path: Path) -> None:
    text = ("data=text", f"data.path={text_of(tmp_path, SENTENCES)}", "job=p_tuning", "job.batching=packed",
            "job.micro_batch_size=2", "ranks_per_node=1")  # fmt: skip
    with pytest.raises(ConfigError, match=r"of which only the first in a sample has the virtual tokens"):
        one(*text)
    assert one(*text, "job.batching=padded").run.job.virtual_tokens
    assert one(*text, "data=docstrings").run.job.virtual_tokens


def test_packing_single_windows_of_text_is_not_warned_of(tmp_path: Path) -> None:
    text = ("data=text", f"data.path={text_of(tmp_path, SENTENCES)}")
    for data in (text, ("data=stdlib",)):
        run = one(*data, "job.batching=packed", "job.micro_batch_size=1", "ranks_per_node=1").run
        assert "nothing to pack" not in " ".join(warnings(run))

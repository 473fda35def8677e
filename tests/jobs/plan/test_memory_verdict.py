"""The predicted memory of a run beside that of its GPU: refused, tight or fits, in a plan, and term by term."""

from __future__ import annotations

import pytest

from jobs.cli import main
from jobs.errors import ConfigError
from jobs.plan.legality import warnings
from jobs.plan.predict.memory import Prediction, memory
from jobs.plan.rules.memory import Verdict, verdict
from jobs.plan.table import plan_notes
from jobs.schema import Run
from tests.support.composing import one

LLAMA3 = ("cluster=xe9680_h100", "model=llama3_8b", "parallelism=fsdp_full", "job.precision=bfloat16", "data=random",
          "job.sequence_length=8192", "scaling.global_batch_size=64", "engine.loss=whole")  # fmt: skip
SELECTIVE = "engine.activation_checkpointing=selective"


def of(*overrides: str) -> Run:
    return one(*LLAMA3, "job.micro_batch_size=1", *overrides).run


def predicted(*overrides: str) -> Prediction:
    return memory(of("gpu.memory_gb=null", *overrides))


def test_activations_that_cannot_fit_are_refused_with_what_makes_them_fit() -> None:
    with pytest.raises(ConfigError) as refused:
        one(*LLAMA3, "job.micro_batch_size=4")
    text = str(refused.value)
    assert "llama3_8b does not fit gpu=h100_sxm (uncalibrated: predicted " in text
    assert "most of it activations" in text
    assert "set gpu.memory_check=false to try it anyway" in text
    assert "Nearest that can run: job.micro_batch_size=1; or engine.activation_checkpointing=full; or " in text
    for change in ("job.micro_batch_size=1", "engine.activation_checkpointing=full", "gpu.memory_gb=null"):
        assert one(*LLAMA3, "job.micro_batch_size=4", change)


def test_adapters_of_a_70b_fit_one_80_gb_gpu_with_a_base_in_4_bits_only() -> None:
    one_gpu = ("cluster=xe9680_h100", "model=llama31_70b", "job=finetune_lora", "parallelism=single", "data=random",
               "ranks_per_node=1", "job.micro_batch_size=1", "engine.activation_checkpointing=full",
               "job.sequence_length=2048")  # fmt: skip
    with pytest.raises(ConfigError, match=r"training states alone take 147\.7 GB"):
        one(*one_gpu)
    run = one(*one_gpu, "job.lora.quantize_base=nf4").run
    assert not [line for line in warnings(run) if "memory" in line]
    # Half a byte, 1/64 and 4/16384 for each of 80 layers' numbers; embedding and head, and adapters in float32.
    matrices, ends = 80 * (10240 * 8192 + 8192 * 8192 + 3 * 8192 * 28672), 2 * 128256 * 8192
    norms = (2 * 80 + 1) * 8192
    expected = matrices * (1 / 2 + 1 / 64 + 4 / 16384) + 2 * (ends + norms) + 4 * 414_187_520
    assert memory(run).terms["weights"].point == pytest.approx(expected, rel=1e-6)


def test_only_the_lower_end_of_the_interval_refuses() -> None:
    low = predicted().device.low / 2**30
    assert of(f"gpu.memory_gb={low * 1.01}")
    with pytest.raises(ConfigError, match="does not fit"):
        of(f"gpu.memory_gb={low * 0.99}")


@pytest.mark.parametrize(("share", "kind"), [(1.01, "memory"), (0.99, "warning")])
def test_a_plan_reports_that_memory_fits_or_is_tight(share: float, kind: str) -> None:
    high = predicted(SELECTIVE).device.high / 2**30
    run = of(SELECTIVE, f"gpu.memory_gb={high * share}")
    (note,) = [note for note in plan_notes([run]) if "predicted" in note]
    words = "fits" if kind == "memory" else "memory is tight"
    assert note.startswith(
        f"{kind} (llama3_8b-fsdp_full-n1x8): uncalibrated: {words}, predicted 59.6 GB (54.6 to 68.2)"
    )
    assert any("memory is tight" in warning for warning in warnings(run)) == (kind == "warning")


def test_tight_memory_has_the_size_with_recomputation_and_the_rows_of_the_lower_end() -> None:
    least = f"gpu.memory_gb={predicted('data=docstrings').device.high / 2**30 * 0.9}"
    run = of("data=docstrings", least)
    (warning,) = [each for each in warnings(run) if "memory is tight" in each]
    assert " with rows of 64 tokens, to " in warning
    full = "engine.activation_checkpointing=full"
    assert f"; {predicted(full).device.point / 1e9:.1f} with {full}, enough from " in warning
    enough = int(warning.split("engine.checkpointed_layers=")[1].removesuffix(" on"))
    assert enough > 1
    for count, found in ((enough - 1, Verdict.tight), (enough, Verdict.fits)):
        chosen = of("data=docstrings", least, full, f"engine.checkpointed_layers={count}")
        assert verdict(chosen, memory(chosen)) is found


def test_an_evaluation_whose_weights_do_not_fit_is_refused_without_advice_to_shard_them() -> None:
    evaluation = ("cluster=xe9680_h100", "job=evaluate", "ranks_per_node=1", "parallelism=single", "data=docstrings",
                  "data.test_split=0.2")  # fmt: skip
    with pytest.raises(ConfigError, match=r"its weights in float32 take 282\.2 GB, and an evaluation is one process\."):
        one(*evaluation, "model=llama3_70b")
    held = memory(one(*evaluation, "model=llama3_8b").run)
    assert held.terms["weights"].point == 4 * 8_030_261_248
    assert held.device.point < 1.2 * held.terms["weights"].point, "nothing is kept for backward"


def test_without_the_memory_check_there_is_a_prediction_and_no_refusal_and_a_cpu_has_neither() -> None:
    (note,) = [note for note in plan_notes([of("gpu.memory_gb=null")]) if "predicted" in note]
    assert ": uncalibrated: memory is tight, predicted " in note
    assert not [note for note in plan_notes([one().run]) if "predicted" in note]


def test_why_prints_every_term_and_their_sum(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--why", *LLAMA3, "job.micro_batch_size=1", SELECTIVE]) == 0
    lines = capsys.readouterr().out.splitlines()
    table = lines[lines.index("predicted memory of the GPU with the most:") + 2 :]
    rows = [line.split()[-30:] for line in table[: table.index("")]]
    text = "\n".join(" ".join(row) for row in rows)
    for term in ("activations", "optimizer", "loss", "weights", "communication", "fragments", "framework"):
        assert term in text
    assert "GPU memory 59.6 54.6 to 68.2 uncalibrated" in text


def test_short_answers_lower_the_interval_and_not_the_point() -> None:
    text, answers = predicted(), predicted("data=docstrings")
    assert answers.device.point == text.device.point
    assert answers.device.low < 0.5 * text.device.low
    assert answers.terms["weights"] == text.terms["weights"], "rows do not change what is exact"
    padded = ("parallelism=pp", "parallelism.pipeline=2", "data=docstrings")
    assert predicted(*padded).device.low > 0.5 * predicted(*padded).device.point, "a pipeline pads every row"


def test_adapters_take_the_activations_of_their_inputs_only() -> None:
    lora = ("job=finetune_lora", "data=random")
    full, adapters = predicted("job=finetune_full", "data=random"), predicted(*lora)
    # Those of all matrices, but for the closing one's, which backward computes again.
    assert 0.8 < adapters.terms["activations"].point / full.terms["activations"].point < 0.9
    few = predicted(*lora, "job.lora.targets=[query]").terms["activations"].point
    assert few < 0.95 * adapters.terms["activations"].point


@pytest.mark.parametrize(
    "engine",
    [
        ("engine=litgpt", "engine.compile=true", "engine.loss=null"),
        ("engine=nemo", "parallelism=tp", "parallelism.tensor=1", "engine.loss=null"),
        ("engine=deepspeed", "parallelism=zero3", "engine.loss=null"),
    ],
    ids=" ".join,
)
def test_other_engines_have_wider_intervals(engine: tuple[str, ...]) -> None:
    kept, native = predicted(*engine).terms["activations"], predicted().terms["activations"]
    assert kept.high - kept.low > native.high - native.low
    assert 0.7 < kept.point / native.point < 2


def test_other_engines_have_still_wider_intervals_with_adapters() -> None:
    nemo = ("engine=nemo", "parallelism=tp", "parallelism.tensor=1", "engine.loss=null", "data=docstrings")
    widths = [
        kept.high / kept.point
        for job in ("finetune_full", "finetune_lora")
        for kept in [predicted(*nemo, f"job={job}", "job.sequence_length=8192").terms["activations"]]
    ]
    assert widths[0] < widths[1]

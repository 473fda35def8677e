"""Losses and norms that are NaN or infinite, and skipped updates: such a log is doubted, and never named fastest."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from analysis.load.discover import read
from analysis.parsers import log_metrics as a
from analysis.report.content import build
from jobs import metrics as m
from tests.support.measured_runs import one_run
from tests.support.megatron_logs import megatron, write

STEPS = 24
# The first step whose loss is not a number.
BAD = 9


def losses(spelling: str) -> list[str]:
    """Printed losses, of which all from BAD on are not numbers."""
    return [f"{4 - step / 50:.4f}" if step < BAD else spelling for step in range(1, STEPS + 1)]


# Format -> the number of the first step, and a line of a step, as the format's program prints it.
STEP_LINES = {
    "megatron": (1, " iteration {step:8d}/ 500 | elapsed time per iteration (ms): 740.0 | global batch size: 48 | "
                 "lm loss: {loss} | number of skipped iterations: 0 | number of nan iterations: 0 |"),
    "hugging_face": (1, "{{'loss': {loss}, 'grad_norm': 1.5, 'learning_rate': 2e-05, 'epoch': {tenth}}}"),
    "torchtitan": (1, "[titan] 2026-04-05 06:07:{step:02d},120 - root - INFO - step: {step:2d}  loss: {loss}  "
                   "grad_norm:  0.7  memory: 31.20GiB(39.10%)  tps: 7,310  tflops: 260.10  mfu: 26.30%"),
    "litgpt": (1, "Epoch 1 | iter {step} step {step} | loss train: {loss}, val: n/a | iter time: 310.50 ms (step)"),
    "nanogpt": (0, "iter {step}: loss {loss}, time 88.10ms, mfu 31.00%"),
    "modded": (1, "step:{step}/90 train_loss:{loss} train_time:{fifty}ms step_avg:50.00ms"),
    "mllog": (1, ':::MLLOG {{"time_ms": {step}000, "key": "train_loss", "value": {loss}, '
              '"metadata": {{"samples_count": {samples}}}}}'),
    "nanotron": (1, "04/05/2026 06:07:{step:02d} [INFO|DP=0|PP=0|TP=0|h7]: iteration: {step} / 90 | "
                 "consumed_tokens: 65.5K | elapsed_time_per_iteration_ms: 410 | tokens_per_sec: 159K | "
                 "lm_loss: {loss} | lr: 0.0003"),
    "nemo": (0, "Training epoch 0, iteration {step}/89 | lr: 0.0001 | global_batch_size: 8 | global_step: {step} | "
             "reduced_train_loss: {loss} | train_step_timing in s: 0.61"),
    "torchtune": (1, "Step {step} | loss:{loss} lr:2e-05 tokens_per_second_per_gpu:910.5 "),
    "dllogger": (1, "DLL 2026-04-05 06:07:{step:02d}.000000 - Epoch: 0 Iteration: {step}  train.loss : {loss} "
                 "train.ips : 940.0 "),
    "paddle": (1, "[2026/04/05 06:07:{step:02d}] ppcls INFO: [Train][Epoch 1/3][Iter: {step}/900]lr: 0.10000, "
               "loss: {loss}, batch_cost: 0.25000s, ips: 512.00000 samples/s"),
    "aws": (0, "I [train.py:99] Batch {step} Loss: {loss}, Speed: 7.25 samples/sec, lr: 0.000200"),
}  # fmt: skip


def golden(spelling: str) -> str:
    values = {str(step): float(loss) for step, loss in enumerate(losses(spelling), 1)}
    return json.dumps({
        "lm loss": {"start_step": 1, "end_step": STEPS, "step_interval": 1, "values": values},
        "iteration-time": {"values": {str(step): 0.5 for step in range(1, STEPS + 1)}},
    })  # fmt: skip


def trainer_state(spelling: str) -> str:
    history = ", ".join(
        f'{{"epoch": {step / 10}, "loss": {loss}, "step": {step}}}' for step, loss in enumerate(losses(spelling), 1)
    )
    return f'{{"log_history": [{history}], "max_steps": 90, "train_batch_size": 2}}'


DOCUMENTS = {"golden": golden, "trainer_state": trainer_state}


def printed(form: str, spelling: str) -> str:
    """Return a log of a format, whose losses from BAD on have this spelling."""
    if form in DOCUMENTS:
        return DOCUMENTS[form](spelling)
    first, line = STEP_LINES[form]
    return "".join(
        line.format(step=step, loss=loss, tenth=step / 10, fifty=50 * step, samples=16 * step) + "\n"
        for step, loss in enumerate(losses(spelling), first)
    )


SPELLED = {
    "megatron": (
        "NAN",
        "nan",
        "NaN",
        "-nan",
        "inf",
        "-INF",
        "Infinity",
        "nan.0",
        "1.#QNAN",
        "-nan(ind)",
        "∞",
        "-∞",
        "1e999",
        "-3.5e+200",
    ),
    "hugging_face": ("nan", "inf", "-inf", "'nan'"),
    "torchtitan": ("nan", "inf", "-inf"),
    "litgpt": ("nan", "inf"),
    "nanogpt": ("nan", "inf"),
    "modded": ("nan", "inf"),
    "mllog": ("NaN", "Infinity", "-Infinity"),
    "nanotron": ("nan", "inf"),
    "nemo": ("nan", "inf", "nan.0"),
    "torchtune": ("nan", "inf", "∞"),
    "dllogger": ("nan", "-inf", "NaN"),
    "paddle": ("nan", "inf"),
    "aws": ("nan", "inf"),
    "golden": ("nan", "inf"),
    "trainer_state": ("NaN", "Infinity"),
}


@pytest.mark.parametrize(("form", "spelling"), [(form, each) for form, all_of in SPELLED.items() for each in all_of])
def test_a_loss_that_is_no_number_is_a_doubt_without_a_final_loss(tmp_path: Path, form: str, spelling: str) -> None:
    run = one_run(write(tmp_path / "job.out", printed(form, spelling)))
    assert m.FINAL_LOSS not in run.values
    assert "the loss is NaN or infinite" in run.disbelieved
    named = [f"step {BAD}", f"logged step {BAD}"]
    assert any(f"from {each} on" in run.disbelieved for each in named)


@pytest.mark.parametrize("form", SPELLED)
def test_the_same_log_with_finite_losses_has_no_doubt(tmp_path: Path, form: str) -> None:
    run = one_run(write(tmp_path / "job.out", printed(form, "3.1415")))
    assert run.values[m.FINAL_LOSS] == pytest.approx(3.1415)
    assert not run.disbelieved


def test_an_evaluation_without_a_label_is_no_divergence_of_litgpt(tmp_path: Path) -> None:
    lines = "".join(
        f"Epoch 1 | iter {step} step {step} | loss train: 1.{step:03d}, val: {'n/a' if step < 9 else 'nan'} | "
        "iter time: 250.00 ms (step)\n"
        for step in range(1, STEPS + 1)
    )
    run = one_run(write(tmp_path / "log.out", lines))
    assert run.state != "diverged"
    assert run.values[m.FINAL_LOSS] == pytest.approx(1 + STEPS / 1000)


@pytest.mark.parametrize("form", ["megatron", "torchtune"])
@pytest.mark.parametrize("spelling", ["None", "null", "nan+0j", "n/a"])
def test_losses_that_cannot_be_read_to_the_end_are_a_doubt_without_a_final_loss(
    tmp_path: Path, form: str, spelling: str
) -> None:
    run = one_run(write(tmp_path / "job.out", printed(form, spelling)))
    assert m.FINAL_LOSS not in run.values
    assert f"no loss can be read from step {BAD} on ({STEPS - BAD + 1} of {STEPS} logged steps)" in run.disbelieved


def test_a_last_line_without_its_loss_is_torn_and_no_doubt(tmp_path: Path) -> None:
    text = printed("megatron", "2.5")
    run = one_run(write(tmp_path / "job.out", text[: text.rindex("lm loss")] + "\n"))
    assert not run.disbelieved
    assert run.values[m.FINAL_LOSS] == pytest.approx(2.5)


@pytest.mark.parametrize("time", ["0.0", "-3.0", "inf", "nan"])
@pytest.mark.parametrize("share", ["some", "all"])
def test_a_time_that_no_step_takes_is_counted_and_has_no_rate(tmp_path: Path, time: str, share: str) -> None:
    lines = megatron([(step, 400.0) for step in range(1, 25)]).splitlines(keepends=True)
    first = 12 if share == "some" else 0
    torn = [re.sub(r"\(ms\): *[\d.]+", f"(ms): {time}", line) for line in lines[first:]]
    run = one_run(write(tmp_path / "job.out", "".join([*lines[:first], *torn])))
    sentence = "of 23 logged steps after the first print a time of 0 or less, or none that is finite, and have no rate"
    assert sentence in " ".join([*run.remarks, run.reason or ""])
    assert run.used is (share == "some")
    assert run.values.get(m.STEP_TIME_MEDIAN) == (pytest.approx(0.4) if run.used else None)


def test_a_loss_that_became_a_number_again_was_none_first_and_not_from_there_on(tmp_path: Path) -> None:
    text = printed("megatron", "nan").splitlines(keepends=True)
    later = printed("megatron", "2.5").splitlines(keepends=True)
    run = one_run(write(tmp_path / "log.out", "".join([*text[:BAD], *later[BAD:]])))
    assert "the loss is NaN or infinite first at step 9 (1 of 24 logged steps)" in run.disbelieved


def test_a_diverged_run_is_never_named_fastest(tmp_path: Path) -> None:
    write(tmp_path / "slow.out", megatron([(step, 900.0) for step in range(1, 20)]))
    bad = megatron([(step, 300.0) for step in range(1, 20)], batch=32).replace("loss scale: 1.0", "loss scale: 0.5")
    write(tmp_path / "bad.out", re.sub(r"lm loss: 5\S+", "lm loss: NAN", bad))
    page = build(read([tmp_path]))
    assert "bad.out" in " ".join(page.warnings)
    assert not any("106.7" in each for each in page.headlines), "32 samples in 0.3 s"
    assert any("17.78" in each for each in page.headlines), "16 samples in 0.9 s"


def test_megatrons_count_of_nan_iterations_is_a_doubt(tmp_path: Path) -> None:
    text = megatron([(step, 500.0) for step in range(1, 20)]).replace("nan iterations:   0", "nan iterations:   1")
    assert "19 of 19 logged steps" in one_run(write(tmp_path / "job.out", text)).disbelieved


@pytest.mark.parametrize("norms", [("inf", "nan", "1.25"), ("1.25", "inf", "1.1"), ("nan", "0.9", "0.8")])
def test_a_norm_that_is_finite_again_was_a_skipped_update_of_loss_scaling(
    tmp_path: Path, norms: tuple[str, ...]
) -> None:
    every = (*norms, *["1.0"] * 60)
    text = "".join(f"{{'loss': 2.25, 'grad_norm': {norm}, 'epoch': {i / 9}}}\n" for i, norm in enumerate(every))
    assert not one_run(write(tmp_path / "job.out", text)).disbelieved


@pytest.mark.parametrize("spelling", ["nan", "inf", "-inf"])
def test_a_norm_that_stays_no_number_is_a_doubt(tmp_path: Path, spelling: str) -> None:
    norms = ["1.0"] * 6 + [spelling] * 2
    text = "".join(f"{{'loss': 0.0, 'grad_norm': {norm}, 'epoch': {i / 9}}}\n" for i, norm in enumerate(norms))
    run = one_run(write(tmp_path / "job.out", text))
    assert "gradient norm is NaN or infinite from logged step 7 on" in run.disbelieved
    assert m.FINAL_LOSS not in run.values


@pytest.mark.parametrize(("skipped", "used", "doubted"), [(0, True, False), (1, True, False), (4, True, True),
                                                          (15, False, True), (29, False, True)])  # fmt: skip
def test_a_run_that_skipped_most_updates_has_no_useful_throughput(
    tmp_path: Path, skipped: int, *, used: bool, doubted: bool
) -> None:
    lines = megatron([(step, 200.0) for step in range(1, 31)]).splitlines()
    torn = [
        line.replace("skipped iterations:   0", "skipped iterations:   1") if index > 31 - skipped else line
        for index, line in enumerate(lines)
    ]
    run = one_run(write(tmp_path / "job.out", "\n".join(torn) + "\n"))
    assert (run.used, bool(run.disbelieved)) == (used, doubted)
    assert (a.SAMPLES_PER_S in run.values) is used


def test_deepspeeds_skipped_steps_count(tmp_path: Path) -> None:
    text = "".join(
        f"[2026-04-05 06:{step:02d}:00,000] [INFO] [logging.py:96:log_dist] [Rank 0] step={step}, skipped={step - 1}, "
        f"lr=[1e-05], mom=[[0.9, 0.999]]\n[2026-04-05 06:{step:02d}:00,001] [INFO] [timer.py:260:stop] "
        f"epoch=0/micro_step={step}/global_step={step}, RunningAvgSamplesPerSec=9.5, CurrSamplesPerSec=9.5, "
        "MemAllocated=1.5GB, MaxMemAllocated=2.5GB\n"
        for step in range(1, 25)
    )
    run = one_run(write(tmp_path / "job.out", text))
    assert not run.used
    assert "skipped their update" in (run.reason or "")

"""Logs of trainings that the samples do not show: older versions, launchers' prefixes, odd and torn values."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Line, Record, Text
from analysis.parsers.detect import read_log
from analysis.parsers.trainings import deepspeed_chat, dllogger, litgpt
from analysis.parsers.trainings.lightning_csv import is_header
from jobs import metrics as m
from tests.analysis.parsers.reading import SAMPLES, column, parsed, records, texts

# --- DeepSpeed-Chat's throughput and evaluations -------------------------------------------------------------------


def test_an_evaluation_is_its_result_below_its_heading() -> None:
    lines = (
        "ppl: 3.5",
        "***** Evaluating perplexity, Epoch 1/2 *****",
        "ppl: 2.0625",
        "***** Evaluating reward, Epoch 1/2 *****",
        "chosen_last_scores (higher is better) : 2.5, acc (higher is better) : 0.625",
    )
    found = parsed(deepspeed_chat.parse, *lines)
    assert [(each.line, each.kind, each.values) for each in found] == [
        (3, Kind.evaluation, {m.EVALUATION_PERPLEXITY: 2.0625}),
        (5, Kind.evaluation, {a.EVALUATION_SCORE: 0.625}),
    ]


# --- DLLogger's lines on the terminal and in its file --------------------------------------------------------------


def test_bert_in_tensorflow_counts_iterations_without_epochs_and_its_summary_has_no_step() -> None:
    when = "2026-03-04 05:06:0"
    found = parsed(
        dllogger.parse,
        f"DLL {when}1.5 - Iteration: 100  Rank : 0 throughput_train : 812.5 total_loss : 8.25 ",
        f"DLL {when}2.5 - 200 throughput_train : 825.0 learning_rate : 0.001 ",
        f'DLLL {{"datetime": "{when}3.5", "step": 300, "data": {{"throughput_train": 850.0}}}}',
        f"DLL {when}4.5 -  throughput_train : 840.25 ",
        f"DLL {when}5.5 - saved the model : no step ",
    )
    assert [(each.kind, each.values) for each in found] == [
        (Kind.step, {m.STEP: 100, a.SAMPLES_PER_S: 812.5, m.LOSS: 8.25}),
        (Kind.step, {m.STEP: 200, a.SAMPLES_PER_S: 825.0, m.LEARNING_RATE: 0.001}),
        (Kind.step, {m.STEP: 300, a.SAMPLES_PER_S: 850.0}),
        (Kind.summary, {a.SAMPLES_PER_S: 840.25}),
    ]


# --- The lines and the state file of the Trainer of transformers, in its several versions --------------------------


def test_each_node_prints_its_own_end_and_rank_0_a_block_of_it(tmp_path: Path) -> None:
    log = tmp_path / "slurm.out"
    ends = [f"{{'train_runtime': {time}, 'train_samples_per_second': 2.5, 'train_steps_per_second': 0.039, "
            "'train_loss': 6.5, 'epoch': 1.0}\n" for time in (400.5, 400.25)]  # fmt: skip
    rows = ("train_runtime = 0:06:40.25", "train_samples_per_second = 2.5", "train_steps_per_second = 0.039")
    log.write_text("".join([*ends, "***** train metrics *****\n", *(f"  {row}\n" for row in rows)]))
    found = records(log, "Hugging Face Trainer")
    assert column(found, Kind.summary, a.TRAINING_TIME) == [400.5, 400.25, 400.25]
    assert column(found, Kind.summary, a.SAMPLES_PER_S) == [2.5] * 3


# --- Sparse tables of Lightning's CSVLogger ------------------------------------------------------------------------


def test_a_loss_of_nan_is_marked_other_words_and_a_torn_row_are_absent(tmp_path: Path) -> None:
    table = tmp_path / "metrics.csv"
    table.write_text("\ufeffepoch,step,train/loss,val/loss\r\n0,0,nan,\r\n0,1,2.5,inf\r\n0,2,2.2")
    assert [each.values for each in records(table, "Lightning CSV")] == [
        {a.EPOCH: 0, m.STEP: 1, a.LOSS_NOT_FINITE: 1},
        {a.EPOCH: 0, m.STEP: 2, m.LOSS: 2.5},
        {a.EPOCH: 0, m.STEP: 2, a.LOSS_NOT_FINITE: 1},
    ]


@pytest.mark.parametrize(
    "header", ["", "epoch,step", "Epoch,Step,Loss", "step,loss", "the epoch, step,x", "epoch|step|a"]
)
def test_other_first_lines_are_no_header(header: str) -> None:
    assert not is_header(header)


# --- LitGPT's lines of three generations: which time is that of a step and which that of a micro-batch -------------


def test_pretraining_prints_the_time_that_remains_and_a_table() -> None:
    printed = (
        "Epoch 1 | iter 2 step 2 | loss train: 9.500, val: n/a | iter time: 250.00 ms (step) remaining time: 0:01:00",
        "| - Training Time : 62.50 s",
        "| - Tok/sec       : 4096.00 tok/s",
        "| - Memory Used   : 1.50 GB",
    )
    found = parsed(litgpt.parse, *printed)
    assert [each.values for each in found] == [
        {a.EPOCH: 1, a.MICRO_BATCHES_DONE: 2, m.STEP: 2, m.LOSS: 9.5, m.STEP_TIME: 0.25},
        {a.TRAINING_TIME: 62.5},
        {m.TOKENS_PER_S: 4096},
        {m.MEMORY_PEAK: 1.5e9},
    ]


def test_the_end_of_a_stranger_s_log_is_not_litgpt_s() -> None:
    lines = [Line(1, "Training time: 3.00s"), Line(2, " 'num_nodes': 2,"), Line(3, "Memory used: 1.00 GB")]
    assert list(litgpt.parse(lines)) == []


# --- Lines of Megatron-LM and its forks: numbers in base units, and absent where a line leaves them open -----------


def test_a_misspelt_field_is_read_and_a_line_broken_in_two_keeps_its_first_half(tmp_path: Path) -> None:
    log = tmp_path / "job.out"
    log.write_text(
        " iteration       50/     200 | consumed samples:        25600 | elapsed time per iteration (ms): 51200.0 | "
        "learning rate: 1.000E-06 | gloabl batch size:   512 | lm loss: 9.5E+00 |\n loss scale: 1.0 |\n"
    )
    (step,) = records(log, "Megatron-LM")
    assert (step.values[a.GLOBAL_BATCH_SIZE], step.values[m.STEP_TIME]) == (512, 51.2)


def test_of_steps_that_were_all_skipped_there_is_a_time_and_no_loss(tmp_path: Path) -> None:
    log = tmp_path / "job.out"
    log.write_text(
        " iteration       10/     100 | consumed samples:          320 | elapsed time per iteration (ms): 512.5 | "
        "learning rate: 0.000E+00 | global batch size:    32 | loss scale: 4194304.0 | "
        "number of skipped iterations:  10 | number of nan iterations:   0 |\n"
    )
    (step,) = records(log, "Megatron-LM")
    assert step.values[m.STEP_TIME] == 0.5125
    assert step.values[a.SKIPPED_STEPS] == 10
    assert m.LOSS not in step.values


# --- Megatron-LM's golden values -----------------------------------------------------------------------------------


def test_in_the_older_layout_the_first_value_is_that_of_step_1(tmp_path: Path) -> None:
    series = {"start_step": 0, "end_step": 11, "step_interval": 5, "values": [10.5, 10.25, 10.0]}
    (tmp_path / "golden.json").write_text(json.dumps({"lm loss": series, "iteration_timing_avg": 0.5}))
    found = records(tmp_path / "golden.json", "Megatron-LM golden values")
    assert column(found, Kind.step, m.STEP) == [1, 6, 11]
    assert column(found, Kind.step, m.LOSS) == [10.5, 10.25, 10.0]


@pytest.mark.parametrize(
    "odd",
    [
        '{"lm loss": 3}',
        '{"lm loss": {"values": {"a": 1, "2": [], "3": true}}}',
        '{"lm loss": {"values": [1]}}',
        '{"lm loss": {"start_step": 1e308, "step_interval": 1e308, "values": [null, null, 2]}}',
    ],
)
def test_anything_but_a_series_gives_no_record(odd: str, tmp_path: Path) -> None:
    (tmp_path / "golden.json").write_text(odd)
    assert not [record for _, found in read_log(tmp_path / "golden.json") for record in found]


# --- MLPerf's log lines: the time to train by its rule, power, and the keys of older rounds ------------------------


def test_a_result_without_run_stop_has_no_time_to_train(tmp_path: Path) -> None:
    torn = tmp_path / "log"
    torn.write_text((SAMPLES / "mllog.txt").read_text().partition("run_stop")[0])
    assert column(records(torn, "MLPerf MLLOG"), Kind.summary, a.TIME_TO_TRAIN) == []


def test_gpt3_of_round_3_counts_tokens_and_has_step_times_instead_of_throughputs(tmp_path: Path) -> None:
    entries = [
        ("submission_benchmark", "gpt3", {}),
        ("global_batch_size", 1536, {}),
        ("tracked_stats", {"train_step_timing": 6.25, "reduced_train_loss": 2.75}, {"samples_count": 1_207_959_552}),
        ("tracked_stats", {"throughput": 450_000.5}, {"step": 12}),
    ]
    lines = [
        ":::MLLOG " + json.dumps({"time_ms": 1_700_000_000_000, "key": key, "value": value, "metadata": metadata})
        for key, value, metadata in entries
    ]
    (tmp_path / "result_0.txt").write_bytes("\r\n".join(lines).encode())
    timed, rated = (each for each in records(tmp_path / "result_0.txt", "MLPerf MLLOG") if each.kind is Kind.step)
    assert timed.values == {
        a.UNIX_TIME: 1.7e9, a.TOKENS_DONE: 1_207_959_552, m.STEP_TIME: 6.25, m.LOSS: 2.75, a.GLOBAL_BATCH_SIZE: 1536,
    }  # fmt: skip
    assert rated.values == {a.UNIX_TIME: 1.7e9, a.SAMPLES_DONE: 12, m.TOKENS_PER_S: 450_000.5}


# --- The files beside an MLPerf result: nodes, GPUs, network and scaling factor ------------------------------------


def test_what_is_left_open_is_absent(tmp_path: Path) -> None:
    file = tmp_path / "system.json"
    blank = {"system_name": "toy", "number_of_nodes": "N/A", "accelerators_per_node": "", "host_networking": "N/A"}
    file.write_text(json.dumps(blank | {"submitter": None, "framework": ["PyTorch"]}))
    (found,) = records(file, "MLPerf system description")
    assert (found.values, found.texts) == ({}, {Text.system: "toy"})


@pytest.mark.parametrize("factor", [1.05, None, "1.05", float("inf")])
def test_a_scaling_factor_stands_alone(tmp_path: Path, factor: object) -> None:
    file = tmp_path / "scaling.json"
    file.write_text(json.dumps({"scaling_factor": factor}))
    if factor in (1.05, "1.05"):
        assert column(records(file, "MLPerf system description"), Kind.setting, a.CONVERGENCE_FACTOR) == [1.05]
    else:
        with pytest.raises(AssertionError):
            records(file, "MLPerf system description")


# --- Lines of MXNet's Speedometer, of its own programs and of MLPerf's ---------------------------------------------


def test_workers_of_a_parameter_server_each_print_their_own_rate(tmp_path: Path) -> None:
    rates = [3341.48, 2816.69, 2520.16, 2521.97]
    of_workers = records(SAMPLES / "mxnet_workers.txt", "MXNet Speedometer")
    assert column(of_workers, Kind.step, a.SAMPLES_PER_S) == []
    assert column(of_workers, Kind.step, a.SAMPLES_PER_S_PER_RANK) == rates
    assert [each.rank for each in of_workers if each.kind is Kind.step] == [0, 1, 0, 1]
    assert texts(of_workers, Text.model) == ["mlp"], "repeated arguments are one record"
    # Without the arguments it shows by the second process that prints.
    log = tmp_path / "log"
    log.write_text("".join((SAMPLES / "mxnet_workers.txt").read_text().splitlines(keepends=True)[2:]))
    assert column(records(log, "MXNet Speedometer"), Kind.step, a.SAMPLES_PER_S_PER_RANK) == rates


# --- NeMo's lines and bars: steps counted from 1 and never rounded, no meaningless means ---------------------------


@pytest.mark.parametrize("prefix", ["", "3: ", "pretraining/0 ", "[default0]:", "[2026-03-04T05:06:07+00:00] "])
def test_iterations_are_read_behind_the_prefix_of_any_launcher(prefix: str, tmp_path: Path) -> None:
    log = tmp_path / "job.out"
    line = "Training epoch 0, iteration 49/99 | lr: 1e-05 | global_batch_size: 128 | reduced_train_loss: 5.5"
    log.write_text(f"{prefix}{line} | train_step_timing in s: 12.5 | consumed_samples: 6400\n")
    (step,) = records(log, "NeMo")
    assert (step.values[m.STEP], step.values[m.STEP_TIME], step.values[a.GLOBAL_BATCH_SIZE]) == (50, 12.5, 128)


# --- NeMo's configurations: the model and the run as far as they are stated reliably -------------------------------


def nemo_changed(path: Path, old: str, new: str) -> Path:
    """NeMo 1's configuration with a line changed."""
    text = (SAMPLES / "nemo_configuration.txt").read_text()
    assert text.count(old) == 1
    (path / "job.out").write_text(text.replace(old, new))
    return path / "job.out"


def test_an_expression_is_no_number(tmp_path: Path) -> None:
    path = nemo_changed(tmp_path, "ffn_hidden_size: 11008", "ffn_hidden_size: ${multiply:4,${.hidden_size}}")
    (found,) = records(path, "NeMo configuration", beside=("NeMo",))
    assert a.INTERMEDIATE_SIZE not in found.values


@pytest.mark.parametrize(
    ("old", "new", "text", "expected"),
    [
        ("fp8: false", "fp8: true", Text.precision, "fp8"),
        ("precision: bf16", "precision: '16'", Text.precision, "fp16"),
        ("seed: 1234", "peft:\n        peft_scheme: ptuning", Text.uncovered, "peft_scheme ptuning"),
        ("seed: 1234", "multi_latent_attention: true", Text.uncovered, "multi_latent_attention true"),
    ],
)
def test_settings_that_decide_about_the_formula_and_the_peak_are_texts(
    old: str, new: str, text: Text, expected: str, tmp_path: Path
) -> None:
    (found,) = records(nemo_changed(tmp_path, old, new), "NeMo configuration", beside=("NeMo",))
    assert found.texts[text] == expected


def test_a_fine_tuning_prints_its_layout_and_adapters_but_not_the_model_that_it_loads(tmp_path: Path) -> None:
    text = (SAMPLES / "nemo_configuration.txt").read_text()
    head, tail = text.split("      num_layers: 32\n")[0], text.split("      seed: 1234\n")[1]
    adapters = "      peft:\n        peft_scheme: lora\n        lora_tuning:\n          adapter_dim: 16\n"
    (tmp_path / "job.out").write_text(f"{head}{adapters}      seed: 77\n{tail.replace('mmap', 'jsonl')}")
    (found,) = records(tmp_path / "job.out", "NeMo configuration", beside=("NeMo",))
    assert found.values == {
        a.NODES: 2, a.RANKS_PER_NODE: 8, a.RANKS: 16, a.PLANNED_STEPS: 100, a.MICRO_BATCH_SIZE: 1,
        a.GLOBAL_BATCH_SIZE: 16, a.TENSOR_PARALLEL_SIZE: 2, a.PIPELINE_PARALLEL_SIZE: 1, a.SEQUENCE_LENGTH: 4096,
        a.SEED: 77, a.LORA_RANK: 16,
    }  # fmt: skip


# --- torchtitan's lines, coloured or not, of old and new versions --------------------------------------------------


def test_the_peak_of_a_gpu_that_is_known_counts_again_after_a_run_on_one_that_is_not(tmp_path: Path) -> None:
    head = "[titan] 2026-03-04 05:06:10,505 - root - "
    step = "step:  1  loss:  8.0  memory:  1.00GiB(1.25%)  tps: 100  tflops: 0.01  mfu: 5.00%\n"
    peak = f"{head}INFO - Peak FLOPS used for computing MFU: "
    unknown = f"{head}WARNING - Peak flops undefined for: NVIDIA B999, fallback to A100\n{peak}3.120e+14\n"
    log = tmp_path / "two_runs.log"
    log.write_text(f"{unknown}{head}INFO - {step}{peak}9.890e+14\n{head}INFO - {step}")
    found = records(log, "torchtitan")
    assert column(found, Kind.setting, a.PEAK_FLOPS_PER_S) == [9.89e14]
    assert [each.values.get(a.MODEL_FLOPS_UTILIZATION) for each in found if each.kind is Kind.step] == [None, 0.05]


def test_a_line_that_every_rank_prints_without_its_rank_is_read_each_time(tmp_path: Path) -> None:
    log = tmp_path / "slurm.out"
    line = "[titan] 2026-03-04 05:06:10,505 - root - INFO - step:  4  loss:  8.5  memory: 12.5GiB(15.75%)  tps: 10,007"
    log.write_text(f"{line}  mfu: 4.5%\n" * 3)
    found = records(log, "torchtitan")
    assert column(found, Kind.step, m.STEP) == [4, 4, 4]
    assert {each.rank for each in found} == {None}


# --- torchtitan's configurations: the model and its precision as far as they are stated reliably -------------------


MODEL = {
    a.LAYERS: 2, a.HIDDEN_SIZE: 256, a.VOCABULARY_SIZE: 2048, a.HEADS: 16, a.KV_HEADS: 16, a.INTERMEDIATE_SIZE: 768,
    a.GATED: 1, a.TIED_EMBEDDINGS: 0,
}  # fmt: skip


def titan_changed(path: Path, old: str, new: str, *, times: int = -1) -> Record:
    """The first configuration with some of its text changed."""
    text = (SAMPLES / "torchtitan_configuration.txt").read_text()
    assert old in text
    (path / "job.out").write_text(text.replace(old, new, times))
    return records(path / "job.out", "torchtitan configuration")[0]


def test_queries_may_share_keys_and_embeddings_may_be_tied(tmp_path: Path) -> None:
    shared = titan_changed(tmp_path, '            "n_kv_heads": null', '            "n_kv_heads": 4')
    assert shared.values == MODEL | {a.KV_HEADS: 4}
    tied = titan_changed(tmp_path, '"enable_weight_tying": false', '"enable_weight_tying": true')
    assert tied.values == MODEL | {a.TIED_EMBEDDINGS: 1}


@pytest.mark.parametrize(
    ("old", "new", "uncovered"),
    [
        ('"moe": null', '"moe": {', "moe"),
        ('          "moe": null', '          "delta_net": {', "delta_net"),
        ('      "vocab_size": 2048', '      "mtp_layers": [', "mtp_layers"),
        ('            "qk_norm": null', '            "wkv_a": {', "wkv_a"),
        ('            "n_heads": 16', '            "n_heads": 32', "layers of several kinds"),
    ],
)
def test_parts_that_the_formula_does_not_cover_are_texts(old: str, new: str, uncovered: str, tmp_path: Path) -> None:
    assert titan_changed(tmp_path, old, new, times=1).texts[Text.uncovered] == uncovered


def test_a_shape_in_which_layers_differ_is_absent(tmp_path: Path) -> None:
    found = titan_changed(tmp_path, '            "n_heads": 16', '            "n_heads": 32', times=1)
    assert not {a.HEADS, a.KV_HEADS} & found.values.keys()


def test_a_log_that_ends_within_the_model_gives_no_record(tmp_path: Path) -> None:
    text = (SAMPLES / "torchtitan_configuration.txt").read_text()
    (tmp_path / "job.out").write_text(text[: text.index('"training"')])
    assert [record for _, found in read_log(tmp_path / "job.out") for record in found] == []


def test_lines_of_another_rank_in_between_are_not_mixed_up(tmp_path: Path) -> None:
    lines = (SAMPLES / "torchtitan_configuration.txt").read_text().splitlines()
    mixed = [text for line in lines for text in (f"[rank0]:{line}", '[rank1]:      "dim": 512,')]
    (tmp_path / "job.out").write_text("\n".join(mixed))
    assert records(tmp_path / "job.out", "torchtitan configuration")[0].values == MODEL

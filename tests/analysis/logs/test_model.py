"""MFU of other programs' logs: from the model that they print, by our own formula, beside their own value."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis.load.discover import read_runs
from analysis.metrics.mfu import utilization
from analysis.report.caveats import warnings
from analysis.report.digest import Digest
from analysis.report.report import report
from analysis.run import RunResult
from jobs import metrics as m
from tests.analysis.parsers.reading import SAMPLES
from tests.support.megatron_logs import megatron, write

# Llama-2 7B, for a Megatron-LM of core 0.12.
LLAMA2_7B = {
    "num_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "kv_channels": 128,
    "group_query_attention": False,
    "num_query_groups": 1,
    "ffn_hidden_size": 11008,
    "swiglu": True,
    "untie_embeddings_and_output_weights": True,
    "num_experts": None,
    "seq_length": 4096,
    "params_dtype": "torch.bfloat16",
    "world_size": 8,
}
WEIGHTS, N = 6_738_415_616, 6_607_343_616
FLOPS = 6 * N + 12 * 32 * 4096 * 4096
H100 = "gpu_name: NVIDIA H100 80GB HBM3\n"
UNREPORTED = "unreported"


def arguments(values: dict[str, object]) -> str:
    """Megatron-LM's table of arguments."""
    rows = "".join(f"  {name} {'.' * (48 - len(name))} {value}\n" for name, value in sorted(values.items()))
    return f"{'-' * 24} arguments {'-' * 24}\n{rows}{'-' * 20} end of arguments {'-' * 21}\n"


def log(path: Path, *, time_ms: Any = 8000.0, facts: Any = H100, **changed: object) -> RunResult:
    """Return a run of 16 sequences a step on 8 ranks, read from a log."""
    values = {name: value for name, value in (LLAMA2_7B | changed).items() if value != UNREPORTED}
    vocabulary = " > padded vocab (size: 31990) with 10 dummy tokens (new size: 32000)\n"
    write(path / "job.out", arguments(values) + vocabulary + megatron(((i, time_ms) for i in range(1, 9)), ranks=None))
    write(path / "facts.yaml", facts)
    (run,) = read_runs([path])
    return run


def section(path: Path) -> str:
    """Return the report's section on utilization."""
    text = (report([path], path / "out").parent / "report.md").read_text()
    return text.partition("## Model FLOPs utilization")[2].partition("\n## ")[0]


def test_a_log_has_the_mfu_of_its_arguments_by_our_own_formula(tmp_path: Path) -> None:
    run = log(tmp_path)
    assert run.plan["parameters"] == WEIGHTS
    # 16 x 4096 tokens in 8 s on 8 ranks.
    assert run.values[m.MFU] == pytest.approx(FLOPS * 1024 / 989e12)
    assert m.HFU not in run.values
    shown = section(tmp_path)
    assert "N = 6,607,343,616" in shown
    assert "dense bfloat16 of NVIDIA H100 80GB HBM3" in shown


def test_heads_are_grouped_and_experts_counted_only_where_the_arguments_state_it(tmp_path: Path) -> None:
    grouped = log(tmp_path / "grouped", group_query_attention=True, num_query_groups=8)
    assert grouped.plan["parameters"] == WEIGHTS - 32 * 2 * 4096 * (32 - 8) * 128
    experts = log(
        tmp_path / "experts", num_experts=8, moe_router_topk=2, moe_ffn_hidden_size=14336, ffn_hidden_size=14336,
        group_query_attention=True, num_query_groups=8,
    )  # fmt: skip
    # Mixtral 8x7B.
    assert experts.plan["parameters"] == 46_702_792_704
    assert "N = 12,748,853,248" in " ".join(utilization(experts).explanation)


def test_a_table_of_2021_describes_a_model_of_two_matrices_whose_head_is_its_embedding(tmp_path: Path) -> None:
    later = ("swiglu", "untie_embeddings_and_output_weights", "group_query_attention", "num_query_groups")
    run = log(tmp_path, **dict.fromkeys(later, UNREPORTED), ffn_hidden_size=16384, params_dtype="torch.float16")
    assert run.setting("model.tie_embeddings") is True
    assert run.plan["parameters"] == pytest.approx(32 * 12 * 4096**2 + 32000 * 4096, rel=1e-3)
    assert "dense float16" in " ".join(utilization(run).explanation)


@pytest.mark.parametrize(
    ("changed", "facts", "why"),
    [
        ({"num_layers": UNREPORTED}, H100,
         "the log does not report tied_embeddings, and no facts.yaml next to it does"),
        ({"ffn_hidden_size": UNREPORTED}, H100,
         "the log does not report parameters or intermediate_size, and no facts.yaml next to it does"),
        ({"seq_length": UNREPORTED}, H100,
         "the log does not report sequence_length, and no facts.yaml next to it does"),
        ({}, "nodes: 1\n",
         "the peak of an unnamed device is not known: write `gpu_name: NAME` into a facts.yaml next to it"),
        ({}, "gpu_name: NVIDIA H9000\n", "the peak of NVIDIA H9000 is not known"),
        ({"fp8": "hybrid"}, H100, "the peak in fp8 hybrid is not known for certain (known: bf16 and fp16)"),
        ({"params_dtype": "torch.float32"}, H100,
         "the peak in float32 is not known for certain (known: bf16 and fp16)"),
        ({"multi_latent_attention": True}, H100,
         "the formula does not cover its model (multi_latent_attention True)"),
    ],
)  # fmt: skip
def test_with_any_number_missing_there_is_no_mfu_but_the_reason(
    changed: dict[str, object], facts: str, why: str, tmp_path: Path
) -> None:
    run = log(tmp_path, facts=facts, **changed)
    assert m.MFU not in run.values
    assert utilization(run).explanation == [f"no MFU: {why}"]


@pytest.mark.parametrize(("hidden", "heads"), [(1024, 16), (2048, 16), (4096, 32), (12288, 96)])
def test_a_table_of_a_version_with_a_fixed_inner_width_has_the_mfu_of_one_that_prints_it(
    tmp_path: Path, hidden: int, heads: int
) -> None:
    shape: dict[str, object] = {"hidden_size": hidden, "num_attention_heads": heads, "swiglu": UNREPORTED}
    derived: dict[str, object] = {"kv_channels": hidden // heads, "ffn_hidden_size": 4 * hidden}
    lines: tuple[dict[str, object], ...] = (dict.fromkeys(derived, UNREPORTED), derived)
    short, long = (log(tmp_path / f"{i}", time_ms=60000.0, **shape, **own) for i, own in enumerate(lines))
    assert short.values[m.MFU] == pytest.approx(long.values[m.MFU])
    assert short.plan["parameters"] == long.plan["parameters"]


@pytest.mark.parametrize(("tensor", "padded"), [(1, 50304), (2, 50432), (8, 51200)])
def test_the_vocabulary_is_padded_as_megatron_pads_it(tmp_path: Path, tensor: int, padded: int) -> None:
    sizes: dict[str, object] = {
        **LLAMA2_7B,
        "vocab_size": 50257,
        "make_vocab_size_divisible_by": 128,
        "tensor_model_parallel_size": tensor,
    }
    write(tmp_path / "job.out", arguments(sizes) + megatron(((i, 8000.0) for i in range(1, 9)), ranks=None))
    write(tmp_path / "facts.yaml", H100)
    (run,) = read_runs([tmp_path])
    assert run.setting("model.vocab_size") == padded
    assert m.MFU in run.values


def test_above_the_peak_is_an_error_that_names_its_inputs_and_is_not_used(tmp_path: Path) -> None:
    run = log(tmp_path, time_ms=200.0)
    assert run.used
    assert m.MFU not in run.values
    (message,) = [each for each in warnings(Digest([run])) if "more than the device can do" in each]
    assert message.startswith("job.out: an MFU or HFU of 19")
    assert "(gpu_name is NVIDIA H100 80GB HBM3)" in message


def test_what_the_log_claims_of_itself_stands_beside_and_is_never_taken(tmp_path: Path) -> None:
    run = log(tmp_path)
    claimed = 1.1 * FLOPS * 1024 / 1e12
    field = f" | throughput per GPU (TFLOP/s/GPU): {claimed} | learning"
    write(tmp_path / "job.out", (tmp_path / "job.out").read_text().replace(" | learning", field))
    (claiming,) = read_runs([tmp_path])
    assert claiming.values[m.MFU] == run.values[m.MFU]
    assert f"the log reports {claimed:.2f} TFLOP/s per rank, +10 % from this" in section(tmp_path)


def claiming(path: Path, flops_per_token: float, facts: str = H100) -> RunResult:
    """Return a run whose log prints the TFLOP/s of a formula."""
    log(path, facts=facts)
    field = f" | throughput per GPU (TFLOP/s/GPU): {flops_per_token * 1024 / 1e12:.1f} | learning"
    write(path / "job.out", (path / "job.out").read_text().replace(" | learning", field))
    (run,) = read_runs([path])
    return run


@pytest.mark.parametrize("facts", [H100, "gpu_name: NVIDIA H9000\n"])
@pytest.mark.parametrize(
    ("flops_per_token", "formula"),
    [
        (FLOPS, "full attention (6 N + 12 L a s)"),
        (FLOPS - 6 * 32 * 4096 * 4096, "causal attention (6 N + 6 L a s)"),
        (1.5 * FLOPS, "none of the known formulas"),
    ],
)
def test_the_formula_that_reproduces_the_printed_flops_is_named(
    flops_per_token: float, formula: str, facts: str, tmp_path: Path
) -> None:
    run = claiming(tmp_path, flops_per_token, facts)
    assert f"the TFLOP/s of the log are counted by {formula}" in utilization(run).explanation


def test_flops_of_different_formulas_are_not_to_be_compared(tmp_path: Path) -> None:
    full, causal = (claiming(tmp_path / name, flops) for name, flops in (("a", FLOPS), ("b", FLOPS - 6 * 32 * 2**24)))
    assert not any("TFLOP/s by different" in text for text in warnings(Digest([full])))
    (message,) = [text for text in warnings(Digest([full, causal])) if "TFLOP/s by different" in text]
    assert "causal attention (6 N + 6 L a s) in 1 log; full attention (6 N + 12 L a s) in 1 log" in message
    assert full.utilization is not None
    either = f"{full.utilization.formula} or full attention with the embedding (6 N' + 12 L a s)"
    unsure = replace(full, utilization=replace(full.utilization, formula=either))
    assert not any("TFLOP/s by different" in text for text in warnings(Digest([full, unsure]))), "both may be the same"
    assert any("TFLOP/s by different" in text for text in warnings(Digest([causal, unsure])))


def test_what_no_log_states_a_facts_file_may(tmp_path: Path) -> None:
    write(tmp_path / "job.out", megatron((i, 8000.0) for i in range(1, 9)))
    known = (
        "layers: 32\nheads: 32\nhead_size: 128\nhidden_size: 4096\nvocab_size: 32000\ntied_embeddings: false\n"
        f"sequence_length: 4096\nprecision: bf16\nparameters: {WEIGHTS}\n{H100}"
    )
    write(tmp_path / "facts.yaml", known)
    (run,) = read_runs([tmp_path])
    assert run.values[m.MFU] == pytest.approx(FLOPS * 1024 / 989e12)
    write(tmp_path / "facts.yaml", known + "lora_rank: 8\n")
    (frozen,) = read_runs([tmp_path])
    assert frozen.values[m.MFU] == pytest.approx((FLOPS - 2 * N) * 1024 / 989e12)


def test_a_torchtitan_log_reports_ranks_model_precision_and_device(tmp_path: Path) -> None:
    head = "[rank0]:[titan] 2026-01-02 03:04:05,006 - root - INFO - "
    lines = [
        "Running with args: {'model': {'converters': []}, 'training': {'mixed_precision_param': 'bfloat16'}}",
        "Building 2-D device mesh with ['dp_shard', 'tp'], [4, 2]",
        "Building llama3 8B with TransformerModelArgs(_enforced='none', dim=4096, n_layers=32, n_heads=32, "
        "n_kv_heads=8, vocab_size=128256, multiple_of=1024, ffn_dim_multiplier=1.3, norm_eps=1e-05, max_seq_len=8192)",
        "CUDA capacity: NVIDIA H100 80GB HBM3 (0) with 79.10GiB memory",
        "Model llama3 8B size: 8,030,261,248 total parameters",
        "Trainer is initialized with local batch size 1, global batch size 8, sequence length 8192, total steps 4",
        *(
            f"step:  {i}  loss:  8.0  memory:  1.25GiB(1.58%)  tps: 7,000  tflops: 396.00  mfu: 40.00%"
            for i in range(1, 5)
        ),
    ]
    write(tmp_path / "titan.log", "".join(f"{head}{line}\n" for line in lines))
    (run,) = read_runs([tmp_path])
    assert run.ranks == 8
    flops = 6 * (8_030_261_248 - 128256 * 4096) + 12 * 32 * 4096 * 8192
    assert run.values[m.MFU] == pytest.approx(flops * 7000 / 989e12)
    assert "the log reports 40.00 % MFU, -2.4 % from this" in utilization(run).explanation
    write(tmp_path / "titan.log", (tmp_path / "titan.log").read_text().replace("[]}", "['float8']}"))
    (quantized,) = read_runs([tmp_path])
    assert m.MFU not in quantized.values, "the arithmetic of its products is unknown"


def test_a_nanotron_log_reports_its_model_and_its_ranks(tmp_path: Path) -> None:
    head = "01/02/2026 03:04:05 [INFO|DP=0|PP=0|TP=0]: "
    model = {"hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32, "num_hidden_layers": 32,
             "num_key_value_heads": 32, "tie_word_embeddings": False}  # fmt: skip
    lines = [
        "Config(general=GeneralArgs(project='test',",
        "       parallelism=ParallelismArgs(dp=4,",
        "                                   pp=1,",
        "                                   tp=2,",
        "       model=ModelArgs(model_config=LlamaConfig(bos_token_id=1,",
        *(f"                                      {name}={value}," for name, value in model.items()),
        "                                      vocab_size=32000),",
        "                  dtype=torch.bfloat16,",
        "       tokens=TokensArgs(sequence_length=4096,",
        *(
            f"iteration: {i} / 8 | consumed_tokens: {i * 65.5:.3g}K | elapsed_time_per_iteration_ms: 8K | "
            "tokens_per_sec: 8.19K | tokens_per_sec_per_gpu: 1.02K | lm_loss: 10.9 | lr: 1e-05"
            for i in range(1, 9)
        ),
    ]
    write(tmp_path / "nano.log", "".join(f"{head}{line}\n" for line in lines))
    write(tmp_path / "facts.yaml", H100)
    (run,) = read_runs([tmp_path])
    assert (run.ranks, run.plan["parameters"]) == (8, WEIGHTS)
    assert run.values[m.MFU] == pytest.approx(FLOPS * 8190 / 8 / 989e12)


def nemo_1(path: Path, old: str = "", new: str = "") -> RunResult:
    """Return NeMo's run of 16 sequences a step on 16 ranks, read from a log."""
    text = (SAMPLES / "nemo_configuration.txt").read_text()
    assert old in text
    write(path / "job.out", text.replace(old, new))
    write(path / "facts.yaml", H100)
    (run,) = read_runs([path])
    return run


def test_a_nemo_log_has_the_mfu_of_the_configuration_that_it_prints(tmp_path: Path) -> None:
    run = nemo_1(tmp_path)
    assert run.plan["parameters"] == WEIGHTS
    # 16 x 4096 tokens in 8 s on 16 ranks.
    assert run.values[m.MFU] == pytest.approx(FLOPS * 512 / 989e12)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        # Fine-tuning, whose samples may be padded.
        ("data_impl: mmap", "train_ds: null", "tokens/s"),
        ("num_layers: 32", "num_layers: ???", "the log does not report tied_embeddings"),
        ("Padded vocab_size", "", "the log does not report vocab_size"),
        ("fp8: false", "fp8: true", "the peak in fp8 is not known for certain"),
        ("seed: 1234", "peft:\n        peft_scheme: ptuning", "does not cover its model (peft_scheme ptuning)"),
    ],
)
def test_a_nemo_log_without_one_of_them_has_no_mfu_but_the_reason(old: str, new: str, why: str, tmp_path: Path) -> None:
    run = nemo_1(tmp_path, old, new)
    assert m.MFU not in run.values
    (message,) = utilization(run).explanation
    assert why in message


def test_a_nemo_2_log_has_its_model_from_the_checkpoint_s_model_yaml_beside_it(tmp_path: Path) -> None:
    log = (SAMPLES / "nemo_resumed.txt").read_text()
    write(tmp_path / "job.out", log)
    write(tmp_path / "model.yaml", (SAMPLES / "nemo_model.yaml").read_text())
    write(tmp_path / "facts.yaml", f"{H100}precision: bf16\n")
    (run,) = read_runs([tmp_path])
    # The number that NeMo prints in the log.
    assert run.plan["parameters"] == 16_976
    assert run.ranks == 1
    assert "no MFU" in utilization(run).explanation[0]
    assert "tokens/s" in utilization(run).explanation[0], "samples may be padded"
    write(tmp_path / "job.out", log.replace(" | train_step", " | tokens_per_sec_per_gpu: 1.28e+03 | train_step"))
    (run,) = read_runs([tmp_path])
    weights = 16_976 - 384 * 16
    assert run.values[m.MFU] == pytest.approx((6 * weights + 12 * 2 * 16 * 32) * 1280 / 989e12)

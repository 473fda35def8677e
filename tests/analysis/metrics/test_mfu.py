"""MFU and HFU: published numbers reproduced, the reasons for a missing one, and no impossible values."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis.load.discover import read_runs
from analysis.metrics.mfu import known_gpus, utilization
from analysis.report.digest import Digest
from analysis.report.export.paper import drawn
from analysis.report.figures.page import figures
from analysis.report.report import report
from analysis.scaling.groups import scaling_groups
from jobs import metrics as m
from jobs.parallelism import Schedule
from jobs.plan.cost import parameters
from jobs.rundir import RunDir
from jobs.schema import ActivationCheckpointing, Gpu, LatentAttention, Lora, Mlp, Model, Precision, Run
from tests.support.fake_runs import a_run, finished_run, with_engine, with_job
from tests.support.measured_runs import only

H100 = Gpu(name="h100", source="a data sheet", device_name="NVIDIA H100 80GB HBM3", peak_bf16_tflops=989)
LLAMA2_7B = Model(
    name="llama2_7b",
    source="tests",
    layers=32,
    heads=32,
    kv_heads=32,
    hidden_size=4096,
    head_size=128,
    intermediate_size=11008,
    vocab_size=32000,
    max_sequence_length=4096,
)
# The embedding has 32,000 x 4,096 of the 6,738,415,616 weights.
N = 6_607_343_616
ATTENTION = 12 * 32 * 4096 * 4096


def a_gpu_run(name: str = "run", *, model: Model = LLAMA2_7B, gpu: Gpu = H100, sequence: int = 4096, **job: Any) -> Run:
    """16 sequences a step on 4 ranks."""
    run = replace(a_run(name, ranks_per_node=4), model=model, gpu=gpu)
    return with_job(run, **{"precision": Precision.bfloat16, "sequence_length": sequence} | job)


def measured(sweep: Path, run: Run, tokens_per_s: float, *, tokens: int | None = None, **started: Any) -> RunDir:
    """The run directory of a run of this speed."""
    tokens = 16 * run.job.sequence_length if tokens is None else tokens
    known = {"device": "cuda", "device_name": H100.device_name}
    directory = finished_run(sweep, run, step_time_s=tokens / tokens_per_s, tokens=tokens, **(known | started))
    planned(directory, parameters=parameters(run.model))
    return directory


def planned(directory: RunDir, **values: Any) -> None:
    """Change a plan."""
    directory.plan.write_text(json.dumps(json.loads(directory.plan.read_text()) | values))


def of(path: Path, run: Run, tokens_per_s: float = 40_000, **fields: Any) -> dict[str, float]:
    """MFU and HFU of such a run, by name."""
    measured(path, run, tokens_per_s, **fields)
    return {metric.name: value for metric, value in utilization(only(path)).values.items()}


# --- values ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tf32", "peak"), [(True, 494.5e12), (False, 67e12)])
def test_mfu_of_float32_is_of_the_peak_of_its_products(tmp_path: Path, tf32: bool, peak: float) -> None:
    gpu = replace(H100, peak_tf32_tflops=494.5, peak_fp32_tflops=67)
    run = a_gpu_run(precision=Precision.float32, gpu=gpu)
    run = replace(run, engine=replace(run.engine, tf32=tf32))
    assert of(tmp_path, run, 4_000)["mfu"] == pytest.approx((6 * N + ATTENTION) * 1_000 / peak)


def test_mfu_is_palms_formula_with_the_head_and_without_the_embedding(tmp_path: Path) -> None:
    mfu = (6 * N + ATTENTION) * 10_000 / 989e12
    assert of(tmp_path, a_gpu_run()) == {"mfu": pytest.approx(mfu), "hfu": pytest.approx(mfu)}
    assert 0.46 < mfu < 0.47


@pytest.mark.parametrize(
    ("weights", "hidden", "layers", "tokens_per_s_per_rank", "mfu"),
    [(6_658_859_008, 4096, 32, 10_475, 0.4571), (6_658_859_008, 4096, 32, 9_670, 0.4220),
     (64_862_437_376, 8192, 80, 1_007, 0.4125)],
)  # fmt: skip
def test_mfu_is_what_llm_foundry_publishes_of_mpt_on_h100(
    weights: int, hidden: int, layers: int, tokens_per_s_per_rank: float, mfu: float, tmp_path: Path
) -> None:
    # github.com/mosaicml/llm-foundry, scripts/train/benchmarking/README.md at 8c8dd48; MPT's head is its embedding.
    heads = hidden // 128
    mpt = replace(LLAMA2_7B, layers=layers, hidden_size=hidden, heads=heads, vocab_size=50432, tie_embeddings=True)
    planned(measured(tmp_path, a_gpu_run(model=mpt, sequence=2048), 4 * tokens_per_s_per_rank), parameters=weights)
    assert utilization(only(tmp_path)).values[m.MFU] == pytest.approx(mfu, abs=3e-4)


def test_full_activation_checkpointing_computes_the_layers_but_not_the_head_again(tmp_path: Path) -> None:
    run = with_engine(a_gpu_run(), "native", activation_checkpointing=ActivationCheckpointing.full)
    found = of(tmp_path, run)
    again = 2 * (N - 32000 * 4096) + ATTENTION / 3
    assert found["hfu"] / found["mfu"] == pytest.approx(1 + again / (6 * N + ATTENTION))
    assert 1.32 < found["hfu"] / found["mfu"] < 4 / 3


@pytest.mark.parametrize(
    ("count", "parallelism", "share"),
    [
        (12, {}, 12 / 32),
        (3, {"pipeline": 4}, 12 / 32),
        (3, {"pipeline": 2, "schedule": Schedule.Interleaved1F1B, "stages_per_rank": 4}, 24 / 32),
        (3, {"pipeline": 2, "schedule": Schedule.Interleaved1F1B}, 12 / 32),
    ],
)
def test_of_the_first_layers_of_each_stage_only_these_are_computed_again(
    count: int, parallelism: dict[str, Any], share: float, tmp_path: Path
) -> None:
    full = ActivationCheckpointing.full
    run = with_engine(a_gpu_run(), "native", activation_checkpointing=full, checkpointed_layers=count)
    found = of(tmp_path, replace(run, parallelism=replace(run.parallelism, **parallelism)))
    again = share * (2 * (N - 32000 * 4096) + ATTENTION / 3)
    assert found["hfu"] / found["mfu"] == pytest.approx(1 + again / (6 * N + ATTENTION))


@pytest.mark.parametrize(("engine", "has_hfu"), [("native", True), ("nemo", False)])
def test_of_selective_checkpointing_hfu_is_known_where_it_computes_no_product_again(
    engine: str, has_hfu: bool, tmp_path: Path
) -> None:
    run = with_engine(a_gpu_run(), engine, activation_checkpointing=ActivationCheckpointing.selective)
    found = of(tmp_path, run)
    assert ("hfu" in found) is has_hfu
    assert found.get("hfu", found["mfu"]) == found["mfu"]


def test_frozen_weights_have_no_gradient(tmp_path: Path) -> None:
    run = with_engine(a_gpu_run(lora=Lora(rank=8, alpha=8)), "nemo")
    assert of(tmp_path, run)["mfu"] == pytest.approx((4 * N + ATTENTION) * 10_000 / 989e12)


def test_of_experts_those_count_that_a_token_is_sent_to(tmp_path: Path) -> None:
    experts = replace(LLAMA2_7B, mlp=Mlp.LLaMAMoE, experts=8, experts_per_token=2)
    active = N + 32 * (3 * 4096 * 11008 + 4096 * 8)  # one more than the dense model has, and the router
    assert of(tmp_path, a_gpu_run(model=experts))["mfu"] == pytest.approx((6 * active + ATTENTION) * 1e4 / 989e12)


def test_experts_have_a_width_of_their_own(tmp_path: Path) -> None:
    experts = replace(LLAMA2_7B, mlp=Mlp.LLaMAMoE, experts=8, experts_per_token=2, moe_intermediate_size=5504)
    # Two of half the width, and the router.
    active = N + 32 * 4096 * 8
    assert of(tmp_path, a_gpu_run(model=experts))["mfu"] == pytest.approx((6 * active + ATTENTION) * 1e4 / 989e12)


def test_of_latent_attention_values_count_with_their_own_size_and_of_dense_layers_all_weights(tmp_path: Path) -> None:
    latent = LatentAttention(kv_lora_rank=512, rope_head_size=64, value_head_size=64)
    model = replace(
        LLAMA2_7B, mlp=Mlp.LLaMAMoE, experts=8, experts_per_token=2, moe_intermediate_size=5504, dense_layers=12,
        shared_experts=1, latent=latent,
    )  # fmt: skip
    of_layer = 32 * 128 * 4096 + 4096 * 576 + 512 + 32 * (64 + 64) * 512 + 4096 * 32 * 64
    expert = 3 * 4096 * 5504
    met = 32 * (of_layer + 2 * 4096) + 12 * 3 * 4096 * 11008 + 20 * (3 * expert + 4096 * 8) + 4096 + 32000 * 4096
    attention = 12 * 32 * 32 * (128 + 64) // 2 * 4096
    assert of(tmp_path, a_gpu_run(model=model))["mfu"] == pytest.approx((6 * met + attention) * 1e4 / 989e12)


def test_of_chunks_and_windows_attention_is_what_they_let_a_token_attend_to(tmp_path: Path) -> None:
    # 24 layers with chunks of 1,536 in sequences of 4,096: two, and one of 1,024. Twice the pairs, for each token.
    chunks = (2 * 1536**2 + 1024**2) / 4096
    windows = 2 * 1536 - 1536**2 / 4096
    for number, (chunked, attended) in enumerate({True: chunks, False: windows}.items()):
        model = replace(LLAMA2_7B, sliding_window=1536, full_attention_every=4, chunked_window=chunked)
        attention = 12 * 32 * 128 * (8 * 4096 + 24 * attended)
        (where := tmp_path / str(number)).mkdir()
        assert of(where, a_gpu_run(model=model))["mfu"] == pytest.approx((6 * N + attention) * 1e4 / 989e12)


def test_every_second_layer_may_have_experts(tmp_path: Path) -> None:
    model = replace(
        LLAMA2_7B, mlp=Mlp.LLaMAMoE, experts=8, experts_per_token=2, moe_intermediate_size=5504, experts_every=2
    )
    # Two of half the width, and the router, in half of the layers.
    active = N + 16 * 4096 * 8
    assert of(tmp_path, a_gpu_run(model=model))["mfu"] == pytest.approx((6 * active + ATTENTION) * 1e4 / 989e12)


def test_of_short_samples_attention_is_that_of_their_mean_length(tmp_path: Path) -> None:
    assert of(tmp_path, a_gpu_run(), tokens=16 * 512)["mfu"] == pytest.approx((6 * N + ATTENTION / 8) * 1e4 / 989e12)


# --- none, and why ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run", "started", "why"),
    [
        (a_gpu_run(), {"device_name": "AMD Instinct MI999"}, "the peak of AMD Instinct MI999 is not known"),
        (a_gpu_run(), {"device_name": "NVIDIA H100 80GB HBM3 MIG 1g.10gb"},
         "the peak of NVIDIA H100 80GB HBM3 MIG 1g.10gb is not known"),
        (a_gpu_run(), {"device_name": None}, "the peak of an unnamed device is not known"),
        (a_gpu_run(precision=Precision.float32), {}, "the peak of NVIDIA H100 80GB HBM3 in float32 is not known"),
        (a_gpu_run(), {"emulated_nodes": True}, "nodes are emulated, so ranks may share a device"),
        (with_engine(a_gpu_run(precision=Precision.float32), "nemo"), {},
         "NeMo's matrix products in float32 may be TF32, which has a different peak"),
    ],
)  # fmt: skip
def test_without_a_peak_there_is_no_mfu_and_the_page_states_why(
    run: Run, started: dict[str, Any], why: str, tmp_path: Path
) -> None:
    measured(tmp_path, run, 1000, **started)
    page = report([tmp_path], None).read_text()
    assert f"no MFU: {why}".replace("'", "&#39;") in page
    with (tmp_path / "runs.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert (row["mfu"], row["hfu"]) == ("", "")


def test_float8_beside_bfloat16_leaves_no_mfu(tmp_path: Path) -> None:
    measured(tmp_path, with_engine(a_gpu_run(), "native", float8=True), 40_000)
    assert utilization(only(tmp_path)).explanation == [
        "no MFU: only linear layers multiply in few bits, so no single peak applies"
    ]


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        ({"parameters": None}, "the number of weights is not known"),
        ({"parameters": "many"}, "the number of weights is not known"),
        (
            {"parameters": 1234},
            "131,072,000 weights of embedding and idle experts leave no weights for the model's layers",
        ),
    ],
)
def test_a_plan_that_does_not_report_the_weights_leaves_no_mfu(plan: dict[str, Any], why: str, tmp_path: Path) -> None:
    planned(measured(tmp_path, a_gpu_run(), 40_000), **plan)
    assert utilization(only(tmp_path)).explanation == [f"no MFU: {why}"]


def test_a_log_that_does_not_report_the_architecture_has_no_mfu(tmp_path: Path) -> None:
    measured(tmp_path, a_gpu_run(), 40_000)
    run = only(tmp_path)
    foreign = replace(run, config={key: value for key, value in run.config.items() if key not in {"model", "engine"}})
    assert utilization(foreign).explanation == ["no MFU: model.layers is not known"]


def test_more_tokens_than_the_global_batch_holds_are_not_believed(tmp_path: Path) -> None:
    measured(tmp_path, a_gpu_run(), 40_000, tokens=16 * 4096 + 1)
    message = "no MFU: a step of 65,537 tokens is more than 16 sequences of 4,096 hold"
    assert utilization(only(tmp_path)).explanation == [message]


def test_more_than_the_device_can_do_is_not_shown_and_its_inputs_are_suspected(tmp_path: Path) -> None:
    measured(tmp_path, a_gpu_run("fast"), 4 * 30_000)
    page = report([tmp_path], None).read_text()
    (warning,) = [line for line in page.splitlines() if line.startswith("<li>fast: an MFU")]
    assert warning == (
        "<li>fast: an MFU or HFU of 140 % of the peak is more than the device can do, so it is not shown. One of its "
        "inputs is wrong: the device (gpu.device_name is NVIDIA H100 80GB HBM3), the arithmetic type (job.precision is "
        "bfloat16), the peak (989.0 TFLOP/s), the weights (N = 6,607,343,616) or the speed (30,000 tokens/s per "
        "rank).</li>"
    )
    with (tmp_path / "runs.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert (row["mfu"], row["hfu"]) == ("", "")


# --- where peaks come from -------------------------------------------------------------------------------------


def test_a_run_whose_configuration_names_no_gpu_gets_the_peak_of_the_device_that_it_found(tmp_path: Path) -> None:
    found = of(tmp_path, a_gpu_run(gpu=Gpu(name="none", source="tests")))
    assert found["mfu"] == pytest.approx((6 * N + ATTENTION) * 10_000 / 989e12)


def test_every_gpu_is_another_device_with_a_source_and_a_peak() -> None:
    devices = [gpu["device_name"] for gpu in known_gpus() if gpu["name"] != "none"]
    assert len(set(devices)) == len(devices) > 5
    for gpu in known_gpus():
        assert gpu["source"]
        peaks = [gpu[key] for key in gpu if key.startswith("peak_")]
        assert all(10 < peak < 10_000 for peak in peaks)
        assert peaks or gpu["name"] == "none"


FORMULA = (
    "6 N + 12 L a s = 4.609e10 FLOP a token with N = 6,607,343,616 (output head in; 131,072,000 weights of embedding "
    "and idle experts out), L = 32, a = 4,096, s = 4,096: attention is 14.0 % of it, causal mask not deducted"
)
PEAK = "peak 989.0 TFLOP/s, dense bfloat16 of NVIDIA H100 80GB HBM3 (a data sheet)"
NOT_RECOMPUTED = "HFU adds nothing (activation checkpointing: none)"


def test_the_page_prints_all_that_went_into_it(tmp_path: Path) -> None:
    measured(tmp_path, a_gpu_run(), 40_000)
    page = report([tmp_path], None).read_text()
    assert f"{FORMULA}; 460.9 TFLOP/s per rank; {PEAK}; {NOT_RECOMPUTED}" in page


def test_what_is_the_same_in_all_runs_is_stated_once(tmp_path: Path) -> None:
    measured(tmp_path, a_gpu_run("a"), 40_000)
    measured(tmp_path, with_job(a_gpu_run("b"), learning_rate=1.0), 20_000)
    page = report([tmp_path], None).read_text()
    assert page.count(FORMULA) == 1
    rows = (tmp_path / "report.md").read_text().splitlines()
    assert f"| In all rows with an MFU |  |  |  | {FORMULA}; {PEAK}; {NOT_RECOMPUTED} |" in rows
    assert "| b | 4 | 23.3 | 23.3 | 230.4 TFLOP/s per rank |" in rows


def test_runs_without_mfu_for_one_reason_share_a_row(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        run = a_run(name, ranks_per_node=1 if name == "a" else 2)
        finished_run(tmp_path, run, device="cuda", device_name="Test GPU")
    report([tmp_path], None)
    row = "| a and 2 more runs | 1, 2 | — | — | no MFU: the peak of Test GPU is not known |"
    assert row in (tmp_path / "report.md").read_text().splitlines()


def test_runs_on_cpus_which_have_no_peak_have_no_section_of_mfu(tmp_path: Path) -> None:
    finished_run(tmp_path, a_run())
    report([tmp_path], None)
    assert "Model FLOPs utilization" not in (tmp_path / "report.md").read_text()


# --- figures ---------------------------------------------------------------------------------------------------


def test_what_a_token_costs_and_how_busy_the_devices_were_is_drawn_over_the_ranks(tmp_path: Path) -> None:
    for ranks in (4, 8):
        run = replace(a_gpu_run(f"r{ranks}"), ranks_per_node=ranks)
        measured(tmp_path, run, 10_000 * ranks**0.9)
    runs = read_runs([tmp_path])
    drawn_of = {figure.name: figure for figure in figures(Digest(groups=scaling_groups(runs)))}
    for metric, size in ((m.MFU, 0.01), (m.RANK_TIME_PER_TOKEN, 3600 / 1e9)):
        figure = drawn_of[metric.name]
        assert figure.plot is not None
        (line,) = figure.plot.data
        assert list(line.x) == [4, 8]
        assert list(line.y) == pytest.approx([run.values[metric] / size for run in sorted(runs, key=lambda r: r.name)])
        assert metric.definition in figure.caption
    assert {f"figures/{name}.svg" for name in ("mfu", "rank_time_per_token_s")} <= drawn(
        drawn_of.values(), ["svg"]
    ).keys()
    assert m.ENERGY_PER_TOKEN.name not in drawn_of, "nothing was read"


def test_without_an_mfu_there_is_no_figure_of_it(tmp_path: Path) -> None:
    finished_run(tmp_path, a_run())
    assert m.MFU.name not in {figure.name for figure in figures(Digest(groups=scaling_groups(read_runs([tmp_path]))))}

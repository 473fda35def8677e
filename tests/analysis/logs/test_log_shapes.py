"""Shapes of logs that were misread once: torn ends, batches that grow, tables of GPUs, units in headings, cut rows."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import analysis
from analysis.failures.verdict import verdict_on
from analysis.load.discover import read
from analysis.logs.measurements import measurements
from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Text
from analysis.report.caveats import warnings
from analysis.report.content import build
from analysis.report.digest import Digest
from jobs import metrics as m
from jobs.failure_causes import FailureCause
from tests.support.measured_runs import one_run
from tests.support.megatron_logs import megatron, write


@pytest.mark.parametrize("cut", [*range(10, 200, 12)])
def test_a_torn_last_line_takes_nothing_from_the_run(tmp_path: Path, cut: int) -> None:
    whole = megatron([(step, 500.0) for step in range(1, 12)], batch=24)
    torn = megatron([(12, 500.0)], batch=24, ranks=None)[:cut]
    run = one_run(write(tmp_path / "job.out", whole + torn))
    assert run.plan["global_batch_size"] == 24
    assert run.values[a.SAMPLES_PER_S] == pytest.approx(48.0)


def test_a_log_that_was_copied_without_its_last_line_end_loses_no_step_and_one_that_was_cut_off_is_named(
    tmp_path: Path,
) -> None:
    lines = [f"s:{step} trl:{3 - step / 10:.4f}" for step in range(1, 11)]
    losses, said = {}, {}
    for name, text in {"whole": "\n".join(lines), "torn": "\n".join(lines)[:-2]}.items():
        found = read([write(tmp_path / name / "main.log", text)])
        losses[name] = [each.values[m.LOSS] for each in found.logs[0].of(Kind.step)][-1]
        said[name] = [text for text in warnings(Digest(runs=found.runs, logs=found.logs)) if "no line end" in text]
    assert losses == {"whole": 2.0, "torn": 2.1}
    assert said["whole"] == []
    assert "trl:2.00 of main.log" in said["torn"][0]


@pytest.mark.parametrize(
    ("nodes", "devices", "micro", "accumulation", "stated"),
    [(1, 4, 8, 2, 64), (2, 4, 8, 2, 64), (2, 4, 16, 1, 64), (3, 8, 2, 4, 64), (4, 1, 5, 3, 15), (2, 2, 3, 1, 6)],
)
@pytest.mark.parametrize("every", [1, 5])
def test_a_batch_of_litgpt_is_that_of_all_nodes_by_its_micro_batches(
    tmp_path: Path, nodes: int, devices: int, micro: int, accumulation: int, stated: int, every: int
) -> None:
    text = f"{{'devices': {devices},\n 'num_nodes': {nodes},\n 'train': TrainArgs(\n  global_batch_size={stated},\n"
    text += f"  micro_batch_size={micro},\n  max_steps=40)}}\n"
    for done in range(1, 30 * accumulation + 1):
        if done % (every * accumulation) == 0 or every == 1:
            update = " (step)" if done % accumulation == 0 else ""
            text += f"Epoch 1 | iter {done} step {done // accumulation} | loss train: 2.50, val: n/a | "
            text += f"iter time: 250.00 ms{update}\n"
    run = one_run(write(tmp_path / "job.out", text))
    batch = nodes * devices * micro * accumulation
    assert run.plan["global_batch_size"] == batch
    if every == 1 or accumulation == 1:
        assert run.values[a.SAMPLES_PER_S] == pytest.approx(batch / (0.25 * accumulation))
    said = [each for each in run.remarks if "not the" in each]
    assert bool(said) is (batch != stated)


@pytest.mark.parametrize(
    ("accumulation", "lines", "expected"),
    [(32, range(1, 41), None), (8, range(1, 321, 10), 8), (8, range(1, 33, 10), None), (4, range(2, 79), 4)],
)
def test_a_batch_of_a_short_or_coarse_log_of_litgpt_is_counted_only_if_its_lines_allow_one_number(
    accumulation: int, lines: range, expected: int | None, tmp_path: Path
) -> None:
    text = "{'devices': 1,\n 'num_nodes': 1,\n 'train': TrainArgs(\n  global_batch_size=32,\n  micro_batch_size=1,\n}\n"
    text += "".join(
        f"Epoch 1 | iter {done} step {done // accumulation} | loss train: 2.50, val: n/a | iter time: 250.00 ms"
        f"{' (step)' if done % accumulation == 0 else ''}\n"
        for done in lines
    )
    run = one_run(write(tmp_path / "job.out", text))
    assert run.plan["global_batch_size"] == (expected or 32)
    assert any("not the" in each for each in run.remarks) is (expected is not None)


def test_a_batch_that_grows_makes_segments_and_the_rate_is_that_of_the_last(tmp_path: Path) -> None:
    parts = [(1, 8, 400.0), (11, 16, 500.0), (21, 40, 800.0)]
    text = megatron([])
    for first, batch, time_ms in parts:
        text += megatron([(step, time_ms) for step in range(first, first + 10)], batch=batch, ranks=None)
    run = one_run(write(tmp_path / "job.out", text))
    assert run.plan["global_batch_size"] == 40
    assert run.values[a.SAMPLES_PER_S] == pytest.approx(50.0)
    (remark,) = run.remarks
    assert "8 in 9 steps (20 samples/s)" in remark.replace("20.00", "20")
    assert remark in warnings(Digest([run]))


GPUS = ("NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA A100-SXM4-40GB", "NVIDIA GH200 480GB", "NVIDIA L40S")
TABLES = {
    "535": "|   {i}  {name:<30} On  | 00000000:{bus}:00.0 Off |                    0 |",
    "550": "|   {i}  {name:<30} On  |   00000000:{bus}:00.0 Off |                    0 |",
    "570": "|  {i}  {name:<32} Off |   00000009:{bus}:00.0 Off |                  Off |",
    "lower case": "|   {i}   {name:<30} N/A |  0000:{bus}:00.0  Off |                    0 |",
    "list": "GPU {i}: {name} (UUID: GPU-1b2c3d4e-0000-1111-2222-33334444{bus}ab)",
}


@pytest.mark.parametrize("name", GPUS)
@pytest.mark.parametrize("table", TABLES)
def test_the_gpus_of_every_nvidia_smi_are_named(tmp_path: Path, table: str, name: str) -> None:
    rows = [TABLES[table].format(i=i, name=name, bus=f"{i + 3:02X}") for i in range(4)]
    head = "" if table == "list" else "| NVIDIA-SMI 575.51.03   Driver Version: 575.51.03   CUDA Version: 12.9 |\n"
    run = one_run(
        write(tmp_path / "job.out", head + "\n".join(rows) + "\n" + megatron([(s, 500.0) for s in range(1, 9)]))
    )
    assert name.removeprefix("NVIDIA ")[:4] in run.started["device_name"]


def test_unlike_gpus_of_one_log_are_both_named(tmp_path: Path) -> None:
    rows = [TABLES["list"].format(i=i, name=name, bus=f"{i:02d}") for i, name in enumerate(GPUS[:2])]
    run = one_run(write(tmp_path / "job.out", "\n".join(rows) + "\n" + megatron([(s, 500.0) for s in range(1, 9)])))
    assert run.started["device_name"] == f"{GPUS[0]} and {GPUS[1]}"


@pytest.mark.parametrize(
    ("rates", "times"),
    [(rate, time)
     for rate in ("SUMMARY rate (in ops/sec): (of 3 iterations)", "SUMMARY rate: (of 1 iterations)",
                  "SUMMARY: (of 2 iterations)")
     for time in ("SUMMARY time (in ms/op): (of 3 iterations)", "SUMMARY time (in sec/op): (of 1 iterations)",
                  "SUMMARY time (in us/op): (of 1 iterations)", "SUMMARY time (in ops/sec): (of 2 iterations)",
                  "SUMMARY time: (of 2 iterations)", "SUMMARY time (in seconds): (of 2 iterations)", "")],
)  # fmt: skip
@pytest.mark.parametrize("times_first", [False, True])
def test_times_of_mdtest_are_no_rates(tmp_path: Path, rates: str, times: str, *, times_first: bool) -> None:
    columns = "   Operation    Max   Min   Mean   Std Dev"
    row = "   File stat       {0:.3f}     {0:.3f}     {0:.3f}     0.000\n"
    tables = [f"{rates}\n{columns}\n{row.format(71234.5)}\n",
              f"{times}\n{columns}\n{row.format(14.25)}\n" if times else ""]  # fmt: skip
    text = "mdtest-4.1.0 was launched with 8 total task(s) on 2 node(s)\n"
    text += "".join(reversed(tables) if times_first else tables) + "-- finished at 04/05/2026 06:07:08 --\n"
    found = measurements(read([write(tmp_path / "mdtest.txt", text)]).logs)
    assert [each.values.get(a.IO_OPERATIONS_PER_S) for each in found] == [71234.5]


HEAD = "#       size         count      type   redop    root" + 2 * "     time   algbw   busbw #wrong"
DEBUG = "n3:7:9 [{}] NCCL INFO AllReduce: opCount 4 sendbuff 0x7f recvbuff 0x7e count 9 [nranks=4]\n"


@pytest.mark.parametrize("between", [0, 1, 2, 7])
@pytest.mark.parametrize("middle", ["     sum      -1", "     sum", ""])
@pytest.mark.parametrize("halved", [False, True])
def test_rows_of_nccl_tests_are_read_though_lines_of_nccl_cut_them(
    tmp_path: Path, between: int, middle: str, *, halved: bool
) -> None:
    debug = "".join(DEBUG.format(rank) for rank in range(between))
    half = debug if halved else ""
    text = f"# nThread 1\n{HEAD}\n" + "".join(
        f"{size:12d}  {size // 4:12d}   float{middle}"
        f"{debug or '  '}   {time}   {size / 1e5:.2f}   {size / 2e5:.2f}      0"
        f"{half or '  '}   {time + 1}   {size / 1e5:.2f}   {size / 2e5:.2f}      0\n"
        for size, time in ((65536, 21.5), (131072, 30.25), (262144, 48.5))
    )
    text += "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 0.9000\n"
    found = measurements(read([write(tmp_path / "nccl.txt", text)]).logs)
    rows = [each for each in found if a.MESSAGE_SIZE in each.values]
    assert [(each.values[a.MESSAGE_SIZE], each.texts[Text.variant]) for each in rows] == [
        (size, place) for size in (65536, 131072, 262144) for place in ("out-of-place", "in-place")
    ]
    assert [each.values[a.COLLECTIVE_TIME] for each in rows] == pytest.approx(
        [time * 1e-6 for first in (21.5, 30.25, 48.5) for time in (first, first + 1)]
    )


def child(code: int, at: str) -> str:
    """torchrun's summary of one process."""
    return (
        f"Root Cause (first observed failure):\n[0]:\n  time      : 2026-05-06_{at}\n  host      : gpu-b12\n"
        f"  rank      : 21 (local_rank: 5)\n  exitcode  : {code} (pid: 77)\n  error_file: <N/A>\n"
    )


def timed_out(at: str) -> str:
    """NCCL's watchdog of a rank that waited."""
    return (
        f"[rank3]:[E506 {at}.250000000 ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=88, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for "
        "600003 milliseconds "
        "before timing out.\n"
    )


@pytest.mark.parametrize("prefix", ["[1,0]<stdout>:", "[default0]:", "[rank0]: ", "0: ", "node7: ", ""])
def test_the_arguments_of_megatron_are_read_behind_the_prefix_of_a_launcher(tmp_path: Path, prefix: str) -> None:
    text = "".join(f"{prefix}{line}\n" for line in megatron([(step, 500.0) for step in range(1, 9)]).splitlines())
    assert one_run(write(tmp_path / "job.out", text)).ranks == 8


def test_the_page_names_the_rank_that_failed_first_and_its_host(tmp_path: Path) -> None:
    steps = megatron([(step, 500.0) for step in range(1, 12)])
    write(tmp_path / "job.out", f"{steps}{timed_out('07:10:11')}{child(1, '07:00:10')}")
    page = build(read([tmp_path]))
    assert "exitcode  : 1 (pid: 77) (rank 21 on gpu-b12)" in " ".join(page.warnings)
    assert page.rows[0].run.state == "unknown (possibly code error)"


@pytest.mark.parametrize("code", [1, 2, 3, 13, 127, -9, -6, -11, 137])
@pytest.mark.parametrize("summary_first", [True, False])
def test_a_process_that_ended_before_the_others_timed_out_is_the_first_failure(
    tmp_path: Path, code: int, *, summary_first: bool
) -> None:
    parts = [child(code, "07:00:10"), timed_out("07:10:11")]
    verdict = verdict_on(write(tmp_path / "job.out", "".join(parts if summary_first else reversed(parts))))
    assert (verdict.rank, verdict.host) == (21, "gpu-b12")
    assert verdict.cause is not FailureCause.hung


@pytest.mark.parametrize("code", [1, -6])
def test_a_process_that_ended_because_it_timed_out_is_a_consequence(tmp_path: Path, code: int) -> None:
    verdict = verdict_on(write(tmp_path / "job.out", timed_out("07:10:11") + child(code, "07:10:20")))
    assert verdict.cause is FailureCause.hung


def test_torchruns_summary_alone_is_a_failure_with_its_rank(tmp_path: Path) -> None:
    (log,) = read([write(tmp_path / "job.out", child(1, "07:00:10"))]).logs
    assert log.verdict is not None
    assert (log.verdict.cause, log.verdict.possible) == (FailureCause.unknown, FailureCause.code)
    assert (log.verdict.rank, log.verdict.host) == (21, "gpu-b12")


@pytest.mark.parametrize("factor", [1.06, 1.1, 1.25, 1.6])
@pytest.mark.parametrize("at", [15, 30, 42])
def test_steps_that_become_slower_for_good_are_remarked(tmp_path: Path, factor: float, at: int) -> None:
    times_ms = [2000.0] + [500.0 * (factor if step >= at else 1) + step % 3 for step in range(2, 61)]
    run = one_run(write(tmp_path / "job.out", megatron(enumerate(times_ms, 1))))
    assert any(f"from step {at} on its steps take {abs(100 * factor - 100):.0f} %" in each for each in run.remarks)


def test_noise_and_single_slow_steps_are_no_lasting_change(tmp_path: Path) -> None:
    times_ms = [500.0 + 60 * ((7 * step) % 11) / 11 + (900 if step == 40 else 0) for step in range(60)]
    assert not one_run(write(tmp_path / "job.out", megatron(enumerate(times_ms, 1)))).remarks


def aws_fsdp(rates: list[float]) -> str:
    """A log with samples per second, without times."""
    return "".join(f"Batch {step} Loss: 8.5, Speed: {rate:.2f} samples/sec\n" for step, rate in enumerate(rates))


def torchtune(rates: list[float]) -> str:
    """The file of torchtune's metric logger, with tokens per second of a GPU, without times."""
    return "".join(
        f"Step {step} | loss:1.25 lr:2e-05 tokens_per_second_per_gpu:{rate:.2f} \n"
        for step, rate in enumerate(rates, 1)
    )


RATES_ONLY = [(aws_fsdp, "samples_per_s"), (torchtune, "tokens_per_s_per_rank")]


@pytest.mark.parametrize(("log", "metric"), RATES_ONLY)
def test_rates_that_fall_over_a_log_without_step_times_are_a_drift(
    tmp_path: Path, log: Callable[[list[float]], str], metric: str
) -> None:
    rates = [900.0 / (1 + 0.3 * step / 120) + (7 * step) % 5 for step in range(121)]
    write(tmp_path / "facts.yaml", "ranks: 8\n")
    write(tmp_path / "job.out", log(rates))
    run = one_run(tmp_path)
    (sentence,) = [each for each in warnings(Digest([run])) if "drifted" in each]
    assert re.search(
        rf"job\.out rose by 2[56]\.\d % of its median from step \d to 12\d \(the inverse of its {metric}", sentence
    )


@pytest.mark.parametrize(("log", "metric"), RATES_ONLY)
def test_rates_that_fall_for_good_are_remarked_with_both_rates(
    tmp_path: Path, log: Callable[[list[float]], str], metric: str
) -> None:
    rates = [900.0 * (0.8 if step >= 39 else 1) + step % 3 for step in range(60)]
    run = one_run(write(tmp_path / "job.out", log(rates)))
    at = 40
    assert (
        f"job.out: from step {at} on its {metric} is 20 % lower (901 before, 721 after); its rate is a mean of both."
        in (run.remarks)
    )


@pytest.mark.parametrize(("log", "metric"), RATES_ONLY)
def test_noise_of_rates_is_no_drift(tmp_path: Path, log: Callable[[list[float]], str], metric: str) -> None:
    run = one_run(write(tmp_path / "job.out", log([900.0 + 60 * ((7 * step) % 11) / 11 for step in range(120)])))
    assert not [each for each in (*warnings(Digest([run])), *run.remarks) if metric in each]


def test_a_contradiction_of_facts_yaml_is_a_reservation(tmp_path: Path) -> None:
    write(tmp_path / "job.out", megatron([(step, 500.0) for step in range(1, 9)]))
    write(tmp_path / "facts.yaml", "ranks: 64\n")
    assert one_run(tmp_path).reservations == ["facts.yaml has ranks 64, the log 8"]


def test_a_file_with_speeds_that_no_parser_reads_is_no_mere_description(tmp_path: Path) -> None:
    write(tmp_path / "known.out", megatron([(step, 500.0) for step in range(1, 9)]))
    nccl = "n1:5:6 [0] NCCL INFO NCCL version 2.27.3+cuda12.9\n"
    write(tmp_path / "send.out", nccl + "size 4 MiB: 21.75 GB/s\n")
    write(tmp_path / "plain.out", nccl)
    uses = {each.name: (each.use.name, "21.75 GB/s" in each.reason) for each in read([tmp_path]).uses}
    assert uses["send.out"] == ("listed", True)
    assert uses["plain.out"] == ("description", False)


def metrics_in(paths: list[Path]) -> set[str]:
    """The metrics that modules name, as a.NAME of logs and m.NAME of ours."""
    return {
        f"{node.value.id}.{node.attr}"
        for path in paths
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        if node.value.id in {"a", "m"} and re.fullmatch(r"[A-Z][A-Z0-9_]+", node.attr)
    }


def test_every_metric_that_a_parser_of_trainings_fills_has_a_reader() -> None:
    root = Path(analysis.__file__).parent
    parsers = root / "parsers"
    filling = [
        *parsers.glob("trainings/*.py"),
        *parsers.glob("cluster/*.py"),
        parsers / "base.py",
        parsers / "spellings.py",
    ]
    reading = [path for path in root.rglob("*.py") if parsers not in path.parents]
    assert metrics_in(filling) <= metrics_in(reading)

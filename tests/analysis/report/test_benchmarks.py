"""Benchmarks that are no training: their headlines, tables, files and figures."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

import analysis
from analysis.load.discover import read
from analysis.report.content import Report, build
from analysis.report.markdown import markdown
from analysis.report.report import report
from tests.analysis.parsers.reading import SAMPLES

GB = 1e9
SIZES = [4**power for power in range(5, 16)]


def nccl_tests(path: Path, ranks: int, peak: float, wrong: int = 0) -> Path:
    """Write the table of all_reduce_perf on so many ranks, with a bus bandwidth in GB/s that the size saturates."""
    lines = ["# Collective test starting: all_reduce_perf"]
    lines += [
        f"#  Rank {rank:2} Group  0 Pid   4242 on     gpu01 device  0 [0000:1b:00] NVIDIA H100 80GB HBM3"
        for rank in range(ranks)
    ]
    for size in SIZES:
        bus = 2 * (ranks - 1) / ranks
        time_us = 20 + size * bus / (peak * 1e3)
        half = f"{time_us:9.2f} {size / time_us / 1e3:7.2f} {size * bus / time_us / 1e3:7.2f} {wrong:6d}"
        lines.append(f"{size:12d} {size // 4:13d}     float     sum      -1 {half} {half}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*lines, "# Avg bus bandwidth    : 100.0"]) + "\n")
    return path


def served(directory: Path, rates: dict[int, float], failed: int = 0) -> None:
    """Write a result of vLLM's serving benchmark for each concurrency: its output tokens/s."""
    directory.mkdir(parents=True, exist_ok=True)
    known = json.loads((SAMPLES / "vllm_bench.json").read_text())
    for concurrency, rate in rates.items():
        result = known | {"max_concurrency": concurrency, "output_throughput": rate, "failed": failed}
        (directory / f"c{concurrency}.json").write_text(json.dumps(result | {"p99_ttft_ms": 10.0 * concurrency}))


def content_of(path: Path) -> Report:
    return build(read([path]))


def test_collectives_have_a_headline_with_peak_bandwidth_and_smallest_latency(tmp_path: Path) -> None:
    nccl_tests(tmp_path / "fabric.out", ranks=8, peak=480)
    (headline,) = content_of(tmp_path).headlines
    assert headline == (
        "NVIDIA H100 80GB HBM3, nccl-tests, all_reduce (fabric.out): 478 GB/s bus bandwidth with 1 GiB messages, "
        "the peak of 11 sizes; 20.00 µs with the smallest, 1 KiB."
    )


def test_the_smallest_message_counts_although_its_bandwidth_is_printed_as_zero(tmp_path: Path) -> None:
    path = nccl_tests(tmp_path / "fabric.out", ranks=8, peak=480)
    small = (
        f"{8:12d} {2:13d}     float     sum      -1     9.50    0.00    0.00      0     9.25    0.00    0.00      0\n"
    )
    head, tail = path.read_text().split("        1024 ", 1)
    path.write_text(f"{head}{small}        1024 {tail}")
    (headline,) = content_of(tmp_path).headlines
    assert headline.endswith("the peak of 12 sizes; 9.250 µs with the smallest, 8 B.")


def perf_analyzer(requests: Sequence[tuple[int, int, int, float]]) -> str:
    """Return the blocks that perf_analyzer prints for a concurrency, lengths of prompt and answer, and a rate."""
    return "".join(
        f"Request concurrency: {concurrency}\n  Client: \n    Request count: 100\n"
        f"    Throughput: {rate / answer:.4f} infer/sec\n    Avg latency: 480000 usec\n"
        f"Output Tokens/sec: {rate}\nAvg Input Seq Length: {prompt} tokens\nAvg Output Seq Length: {answer} tokens\n"
        for concurrency, prompt, answer, rate in requests
    )


def test_loads_of_other_lengths_are_never_pooled(tmp_path: Path) -> None:
    short, long = ((1, 270, 130, 400.0), (64, 271, 120, 8000.0)), ((1, 8630, 514, 500.0), (64, 8632, 512, 6000.0))
    (tmp_path / "served.txt").write_text(perf_analyzer([*short, *long]))
    content = content_of(tmp_path)
    assert [headline.partition("): ")[2] for headline in content.headlines] == [
        "8,000 output tokens/s at concurrency 64, 270 input and 125 output tokens a request, the most of 2 loads.",
        "6,000 output tokens/s at concurrency 64, 8,631 input and 513 output tokens a request, the most of 2 loads.",
    ]
    (figure,) = content.figures
    assert figure.plot is not None
    assert [list(trace.y) for trace in figure.plot.data] == [[400.0, 8000.0], [500.0, 6000.0]]


def test_collectives_have_a_figure_over_the_message_size(tmp_path: Path) -> None:
    nccl_tests(tmp_path / "a.out", ranks=8, peak=480)
    nccl_tests(tmp_path / "b.out", ranks=32, peak=370)
    (figure,) = content_of(tmp_path).figures
    assert figure.plot is not None
    assert figure.plot.layout.xaxis.type == "log"
    assert figure.plot.layout.xaxis.title.text == "Message size"
    assert {tuple(trace.x) for trace in figure.plot.data} == {tuple(map(float, SIZES))}
    assert {trace.name for trace in figure.plot.data} == {
        f"all_reduce, {variant}, {file}" for variant in ("in-place", "out-of-place") for file in ("a.out", "b.out")
    }


def test_wrong_results_are_a_doubt_of_the_headline(tmp_path: Path) -> None:
    nccl_tests(tmp_path / "fabric.out", ranks=8, peak=480, wrong=3)
    (headline,) = content_of(tmp_path).headlines
    assert "DOUBTFUL: 66 wrong values in the results." in headline


def test_files_of_one_load_each_are_one_series(tmp_path: Path) -> None:
    served(tmp_path, {1: 60.0, 8: 400.0, 64: 900.0, 256: 850.0})
    content = content_of(tmp_path)
    (headline,) = content.headlines
    assert "900.0 output tokens/s at concurrency 64, the most of 4 loads; time to first token p99 0.6400 s" in headline
    figure = next(each for each in content.figures if each.name == "output_tokens_per_s-concurrency")
    assert figure.plot is not None
    (trace,) = figure.plot.data
    assert list(trace.x) == [1, 8, 64, 256]
    assert list(trace.y) == [60.0, 400.0, 900.0, 850.0]


def test_failed_requests_are_a_doubt_of_the_headline(tmp_path: Path) -> None:
    served(tmp_path, {8: 400.0, 64: 900.0}, failed=5)
    assert "DOUBTFUL: 10 requests failed." in content_of(tmp_path).headlines[0]


@pytest.mark.parametrize("ranks", [(16, 16), (16, 32)])
def test_a_series_of_files_does_not_mix_rank_counts(ranks: tuple[int, int], tmp_path: Path) -> None:
    for number, (count, size) in enumerate(zip(ranks, (1048576, 4194304), strict=True)):
        text = (SAMPLES / "ior.json").read_text().replace('"tasks": 16', f'"tasks": {count}')
        (tmp_path / f"{number}.json").write_text(with_transfers(text, size))
    plots = [each.plot for each in content_of(tmp_path).figures if each.plot is not None]
    lines = [trace for plot in plots for trace in plot.data if trace.type == "scatter"]
    assert len(lines) == (2 if len(set(ranks)) == 1 else 0)  # write and read


def with_transfers(text: str, size: int) -> str:
    """Return a result of IOR with another transfer size."""

    def changed(value: object) -> object:
        if isinstance(value, dict):
            return {key: size / 1024 if key == "xferKiB" else changed(each) for key, each in value.items()}
        return [changed(each) for each in value] if isinstance(value, list) else value

    return json.dumps(changed(json.loads(text)))


def test_storage_has_a_sentence_a_file_and_a_bar_a_test(tmp_path: Path) -> None:
    (tmp_path / "mdtest.txt").write_text((SAMPLES / "mdtest.txt").read_text())
    content = content_of(tmp_path)
    assert content.headlines == [
        "Storage, mdtest (mdtest.txt): directory creation 2,000 I/O operations/s; file stat 3,000 I/O operations/s."
    ]
    (figure,) = content.figures
    assert figure.plot is not None
    assert list(figure.plot.data[0].x) == [2000.0, 3000.0]


def test_every_value_is_in_the_csv_the_frame_and_the_table(tmp_path: Path) -> None:
    for number in range(20):
        nccl_tests(tmp_path / "logs" / f"{number}.out", ranks=8, peak=480)
    out = tmp_path / "page"
    report([tmp_path / "logs"], out)
    with (out / "measurements.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    bandwidths = [row for row in rows if row["metric"] == "bus_bandwidth_bytes_per_s" and row["axis"]]
    assert len(bandwidths) == 20 * len(SIZES) * 2
    assert {row["unit"] for row in bandwidths} == {"B/s"}
    assert {float(row["at"]) for row in bandwidths} == set(map(float, SIZES))
    frame = analysis.frames(tmp_path / "logs").measurements
    assert len(frame) == len(rows)
    assert list(frame.columns) == list(rows[0])
    assert frame["value"].dtype == "Float64"
    assert frame.loc[frame["metric"] == "bus_bandwidth_bytes_per_s", "value"].max() > 400 * GB
    table = markdown(content_of(tmp_path / "logs"))
    assert table.count(".out |") == 20 * (2 * len(SIZES) + 1)


def test_a_report_of_runs_has_no_file_of_measurements(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "job.out").write_text((SAMPLES / "megatron.txt").read_text())
    report([tmp_path / "logs"], tmp_path / "page")
    assert not (tmp_path / "page" / "measurements.csv").exists()

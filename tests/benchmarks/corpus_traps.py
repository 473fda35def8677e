"""The traps of the corpus: what a careless reader of real logs gets wrong, checked on the report of those logs.

`python -m tests.benchmarks.corpus_traps [DIRECTORY]` prints a line for each of the 19 traps that the README of the
corpus lists, by its number, and the number caught. Exit code 1: fewer are caught than CAUGHT records. Where the corpus
has only some of a trap's files (5, 11, 12, 15, 16, 19), tests on logs of our own cover the others.
"""

from __future__ import annotations

import argparse
import functools
import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from analysis.load.discover import Found, read
from analysis.parsers import log_metrics as a
from analysis.report.content import build
from analysis.run import RunResult
from jobs import metrics as m
from tests.benchmarks.corpus import column
from tests.support.paths import ROOT

# The number caught on 2026-11-25.
CAUGHT = 19


@functools.cache
def found(path: Path) -> Found:
    """Return the runs and logs of a folder."""
    return read([path])


def runs(path: Path) -> list[RunResult]:
    """Return the runs of a folder."""
    return list(found(path).runs)


def sizes(path: Path) -> set[tuple[int | None, int | None]]:
    """Return ranks and nodes of the runs."""
    return {(run.ranks, run.setting("nodes")) for run in runs(path)}


def near(one: float | None, other: float, within: float = 1e-3) -> bool:
    """Return True if two values are about equal."""
    return one is not None and math.isclose(one, other, rel_tol=within)


def peak(path: Path, form: str, metric: m.Metric) -> float | None:
    """Return the largest value of a metric in the measurements of a file."""
    return max(column(path, form, None, metric), default=None)


# --- the traps ---------------------------------------------------------------------------------------------------


def names_lie(corpus: Path) -> bool:
    """64x is 64 GPUs on 8 nodes, ngpu1024 is 256 nodes of 4, and the gpu32 of a file name is no number of ranks."""
    ibm = sizes(corpus / "mlperf/v5.0_IBM+CoreWeave+NVIDIA_llama31_405b")
    tensorflow = sizes(corpus / "resnet_dali/paddleperf_tensorflow")
    oracle = sizes(corpus / "mlperf/v4.1_Oracle_llama2_70b_lora")
    return oracle == {(64, 8)} and (1024, 256) in ibm and tensorflow == {(None, None)}


def units_change(corpus: Path) -> bool:
    """Samples, not tokens, in v3 gpt3; bits in all_reduce_bench; K of 1000 in nanotron; KB of 1024 in fio 2."""
    gpt3 = [run.values.get(a.SAMPLES_PER_S) for run in runs(corpus / "mlperf/v3.0_NVIDIA_CoreWeave_gpt3")]
    bits = peak(corpus / "allreduce_bench/bigscience/n1_16gb_all_reduce_bench.txt", "all_reduce_bench.py",
                a.ALGORITHM_BANDWIDTH)  # fmt: skip
    (nanotron,) = runs(corpus / "nanotron/excerpts")
    fio = peak(corpus / "fio/excerpts/fio_2_old_aggrb.txt", "fio", a.IO_BANDWIDTH)
    return (
        all(rate is not None and rate < 1100 for rate in gpt3)
        and bits is not None
        and bits < 100e9
        and near(nanotron.values.get(m.TOKENS_PER_S), 15_840, 0.01)
        and fio is not None
        and (fio / 1024).is_integer()
    )


def score_is_no_throughput(corpus: Path) -> bool:
    """A page with both states that the score lags, and that the global batch changes."""
    dell = build(found(corpus / "mlperf/v4.1_Dell_llama2_70b_lora")).warnings
    gpt3 = build(found(corpus / "mlperf/v3.0_NVIDIA_CoreWeave_gpt3")).warnings
    return any("times the score" in text for text in dell) and any("global batch changes" in text for text in gpt3)


def aborted(corpus: Path) -> bool:
    """An aborted result is not used, and listed."""
    return [run.state for run in runs(corpus / "mlperf/v3.0_Dell_resnet") if not run.used] == ["aborted"]


def warm_up(corpus: Path) -> bool:
    """The first step is in no rate: 302 s against 92 s."""
    by_name = {run.name: run for run in runs(corpus / "primus/hisohara_mi300x_8n")}
    run = by_name["run-llama2-70B-2N.log"]
    return run.values[m.FIRST_STEP_TIME] > 1.2 * run.values[m.STEP_TIME_MEDIAN] and near(
        1 / run.values[a.STEPS_PER_S], run.values[m.STEP_TIME_MEDIAN], 0.02
    )


def bars_and_returns(corpus: Path) -> bool:
    """Bars with carriage returns: every step of Primus counts once, and each of torchtune's twice drawn bars."""
    steps = {run.steady_steps for run in runs(corpus / "primus/hisohara_mi300x_8n")}
    drawn = column(corpus / "torchtune/excerpts/torchtune_multinode_bar.txt", "torchtune", None, m.STEP)
    return min(steps) >= 48 and max(steps) <= 50 and len(drawn) == len(set(drawn)) > 0


def colours_and_line_ends(corpus: Path) -> bool:
    """Colours within prefixes, and CRLF: losses are complete."""
    (seven,) = [
        run for run in runs(corpus / "primus/hisohara_mi300x_8n") if "7B-8N" in run.name and "llama" in run.name
    ]
    lightning = runs(corpus / "lightning_csv/slm_training")
    return len(seven.losses) == 50 and all(len(run.losses) > 200 for run in lightning)


def interleaved(corpus: Path) -> bool:
    """Equal lines of ranks are no sum; of the nodes of a job the slowest counts, in whatever files they print."""
    (titan,) = [run for run in runs(corpus / "torchtitan/excerpts") if "no_rank_filter" in run.name]
    once = len(titan.losses) == 2 and near(titan.values.get(m.TOKENS_PER_S_PER_RANK), 10_007, 0.01)
    (used,) = [run for run in runs(corpus / "litgpt/apac2024_reference_aspire2") if run.used]
    return once and near(4 / used.values[a.STEPS_PER_S], 5.11608 + 7.55583 + 5.0944 + 5.26657)


def two_clocks(corpus: Path) -> bool:
    """The readings of a switch whose clock is five hours off are in no energy."""
    (run,) = runs(corpus / "power/mlperf_v4.1_dell_8xXE9680_power")
    return near(run.values.get(m.ENERGY), 16.2e6)


def nonsense(corpus: Path) -> bool:
    """No NaN and no placeholder of -1 is a loss, nor a reason that a run failed."""
    everything = [run for folder in ("torchtitan", "nemo", "megatron", "deepspeed") for run in runs(corpus / folder)]
    losses = [loss for run in everything for loss in run.losses.values()]
    return min(losses) > 0 and all(map(math.isfinite, losses)) and not any("nan" in run.state for run in everything)


def speeds_of_growing_models(corpus: Path) -> bool:
    """A model that grows with the nodes is no scaling, and no efficiency is given."""
    content = build(found(corpus / "megatron/bigscience_gpt2_base_n4_to_n64"))
    said = " ".join(content.headlines)
    given_none = re.search(r"\bno\b[^.]*\befficiency\b", said) is not None
    return len(content.digest.groups) == 3 and given_none and "% efficiency" not in said


def repeats(corpus: Path) -> bool:
    """Repeats have a spread, and one far from the others is named."""
    content = build(found(corpus / "mlperf/v4.1_Dell_llama2_70b_lora"))
    return any("21 % from the median of its 10 repeats" in text for text in content.warnings)


def truncated(corpus: Path) -> bool:
    """Pieces that end within a line are read, and none vanishes: each file has a use."""
    folders = sorted(corpus.glob("*/excerpts"))
    return all(len(found(folder).uses) == len(list(folder.iterdir())) for folder in folders)


def names_disagree(corpus: Path) -> bool:
    """The batch is that of the content: two nodes' micro-batches until a step, twice the GBS of a name."""
    every = [run for run in runs(corpus / "litgpt/apac2024_jiraphatl_aspire2") if run.losses]
    return all(f"GBS{run.plan['global_batch_size'] / 2:.0f}." in run.name for run in every)


def restarts(corpus: Path) -> bool:
    """A version that begins anew is a training of its own; repeats of MLPerf are no attempts."""
    lightning = runs(corpus / "lightning_csv/slm_training")
    gpt3 = runs(corpus / "mlperf/v3.0_NVIDIA_CoreWeave_gpt3")
    return {run.state for run in lightning} <= {"as far as logged", "unmeasured"} and all(run.used for run in gpt3)


def code_in_logs(corpus: Path) -> bool:
    """Traces of shells and environments are no steps; a README that quotes lines is no run."""
    quoting = found(corpus / "nemo/dgxc_benchmarking_readmes")
    batches = {run.setting("job.micro_batch_size") for run in runs(corpus / "litgpt/apac2024_jiraphatl_aspire2")}
    return not quoting.runs and batches == {16, 32, 64}


def placeholders(corpus: Path) -> bool:
    """A placeholder names no submitter, and an average with a hand-written unit is no value."""
    names = {run.setting("system.organization") for run in runs(corpus / "mlperf/v4.1_Oracle_llama2_70b_lora")}
    summaries = column(corpus / "nccl_tests/excerpts/avg_busbw_with_unit.txt", "nccl-tests", None, a.BUS_BANDWIDTH)
    return names == {"Oracle"} and all(value > 50e9 for value in summaries)


def rounded_rates(corpus: Path) -> bool:
    """Rates printed as 0.05 requests/s follow from counts and duration."""
    path = corpus / "vllm/excerpts/vllm_bench_serve_2026_peak_fields.txt"
    (rate,) = column(path, "vLLM and SGLang serving benchmark", None, a.REQUESTS_PER_S)
    return near(rate, 50 / 1044.4, 1e-3)


def nothing_there(corpus: Path) -> bool:
    """A system without results is not reported to have failed."""
    return all(run.used for run in runs(corpus / "mlperf/v5.0_Dell_llama2_70b_lora"))


TRAPS = (
    names_lie, units_change, score_is_no_throughput, aborted, warm_up, bars_and_returns, colours_and_line_ends,
    interleaved, two_clocks, nonsense, speeds_of_growing_models, repeats, truncated, names_disagree, restarts,
    code_in_logs, placeholders, rounded_rates, nothing_there,
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Check every trap, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("directory", nargs="?", type=Path, default=ROOT.parent / "shared" / "corpus")
    corpus: Path = parser.parse_args(arguments).directory
    if not corpus.is_dir():
        print(f"Nothing is checked: there is no corpus at {corpus}. Pass its directory.")
        return 0
    caught = 0
    for number, trap in enumerate(TRAPS, start=1):
        right = trap(corpus)
        caught += right
        print(f"{number:2} {'caught' if right else 'MISSED'}: {trap.__doc__}", flush=True)
    print(f"{caught} of {len(TRAPS)} traps caught")
    return 1 if caught < CAUGHT else 0


if __name__ == "__main__":
    sys.exit(main())

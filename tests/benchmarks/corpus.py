"""Compare what is read from a corpus of real logs with the figures that the sources of the logs state.

`python -m tests.benchmarks.corpus [DIRECTORY]` prints a line for each wrong or missing figure, then the number of
figures compared, right, wrong and missing. True figures come from corpus_figures.csv, from the `meta.json` beside the
logs, from the reports that the programs wrote beside their logs, and for published.csv from the documents in
DIRECTORY/../seeds. Exit code 1: fewer figures are compared or right than `BASELINE` records, or reading a file raises.
"""

from __future__ import annotations

import argparse
import csv
import functools
import json
import math
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from analysis.compare.published import METRICS, published
from analysis.failures.verdict import verdict_on
from analysis.load.discover import read, read_runs
from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Record, Text
from analysis.parsers.detect import read_log
from analysis.scaling.groups import scaling_groups
from analysis.scaling.mlperf import systems_of
from jobs import metrics as m
from jobs.failure_causes import FailureCause
from jobs.metrics import Metric
from tests.support.paths import ROOT

# The numbers of figures compared and right on 2026-11-25; raise them with each repair.
BASELINE = {"compared": 1980, "right": 1980}

FIGURES = Path(__file__).with_name("corpus_figures.csv")
GIB = 1 << 30
PERCENTILES = (
    a.TIME_TO_FIRST_TOKEN, a.TIME_PER_OUTPUT_TOKEN, a.INTER_TOKEN_LATENCY, a.REQUEST_LATENCY, a.IO_LATENCY,
    a.COMPLETION_LATENCY,
)  # fmt: skip
# The names of metrics and texts in corpus_figures.csv.
NAMED: dict[str, Metric | Text] = {
    **METRICS,
    **{each.name: each for group in PERCENTILES for each in group.values()},
    **{f"text.{each.name}": each for each in Text},
}
# The failure cause for the first words of a source's class.
CLASSES = {
    "GPU OOM": FailureCause.out_of_gpu_memory,
    "CUDA OOM": FailureCause.out_of_gpu_memory,
    "host OOM": FailureCause.out_of_host_memory,
    "time limit": FailureCause.time_limit,
    "preemption": FailureCause.preempted,
    "requeue": FailureCause.requeued,
    "cancelled": FailureCause.cancelled,
    "container/launch": FailureCause.launch_failure,
    "NCCL timeout": FailureCause.hung,
    "SIGKILL": FailureCause.killed,
    "SIGABRT": FailureCause.aborted,
    "application error": FailureCause.code,
    "rendezvous/network": FailureCause.lost_peer,
    "GPU memory fault": FailureCause.hardware,
    "NVLink/GPU hardware": FailureCause.hardware,
    "GPU fell off the bus": FailureCause.hardware,
    "GPU/PCIe hardware": FailureCause.hardware,
}
MDTEST_OPERATIONS = {"write": "file creation", "stat": "file stat", "read": "file read", "delete": "file removal"}
# Documents, settings, scripts and side outputs, and two excerpts that end before their first row or step.
NO_LOGS = (
    "meta.json", "README.md", ".ini", ".yaml", ".sh", ".slurm", "/stderr", "package_checker_params",
    "_storage_report.json", "per_epoch_stats.json", "slurm_source_strings.txt", "dmon_pucm_columns.txt",
    "litgpt_pretrain_2023_measured_tflops.txt",
)  # fmt: skip


class Figure(NamedTuple):
    """One comparison."""

    source: str
    """Path of the log or folder, relative to the corpus."""
    name: str
    true: Any
    """A number, a text, or a list of them."""
    found: Any
    """None or an empty list where nothing was found."""
    within: float = 1e-6
    """Relative tolerance of numbers."""

    @property
    def verdict(self) -> str:
        """`right`, `wrong` or `missing`."""
        if equal(self.true, self.found, self.within):
            return "right"
        return "missing" if self.found is None or self.found == [] else "wrong"


def equal(true: Any, found: Any, within: float) -> bool:
    """Return True if two values are the same; numbers may differ by the relative tolerance."""
    if isinstance(true, list) and isinstance(found, list):
        return len(true) == len(found) and all(equal(*pair, within) for pair in zip(true, found, strict=True))
    if isinstance(true, int | float) and isinstance(found, int | float):
        return math.isclose(true, found, rel_tol=within)
    return bool(true == found)


@functools.lru_cache(maxsize=16)
def records(path: Path) -> dict[str, list[Record]]:
    """Return the records of one file by the name of their format."""
    return {form.name: list(found) for form, found in read_log(path)}


def column(path: Path, form: str, kind: Kind | None, name: Metric | Text) -> list[Any]:
    """Return the values of one metric or text in the records of one format and kind, or of any kind."""
    chosen = [each for each in records(path).get(form, []) if kind in {None, each.kind}]
    if isinstance(name, Text):
        return [each.texts[name] for each in chosen if name in each.texts]
    return [each.values[name] for each in chosen if name in each.values]


# --- the sources of true figures ---------------------------------------------------------------------------------

PICKS: dict[str, Callable[[list[Any]], Any]] = {
    "all": lambda values: values,
    "count": len,
    "distinct": lambda values: sorted(set(values)),
    "first": lambda values: values[0] if values else None,
    "last": lambda values: values[-1] if values else None,
    "max": lambda values: max(values, default=None),
    "median": lambda values: statistics.median(values) if values else None,
    "sum": lambda values: sum(values) if values else None,
}


def typed_figures(corpus: Path) -> Iterator[Figure]:
    """Compare the figures of corpus_figures.csv, typed from the documents that quote or publish the logs."""
    for row in csv.DictReader(FIGURES.read_text(encoding="utf-8").splitlines()):
        path = corpus / row["source"]
        if path.exists():
            name = NAMED[row["figure"]]
            is_text = isinstance(name, Text) and row["pick"] != "count"
            true: Any = [each if is_text else float(each) for each in row["true"].split(";")]
            values = column(path, row["format"], Kind[row["kind"]] if row["kind"] else None, name)
            within = float(row["within"] or 1e-6)
            if row["pick"] == "any":
                found: Any = [value for value in values if equal(true[0], value, within)][:1]
            else:
                found = PICKS[row["pick"]](values)
            if row["pick"] not in {"all", "distinct", "any"}:
                true = true[0]
            label = f"{row['format']}, {row['kind']}: {row['figure']}, {row['pick']}"
            yield Figure(row["source"], label, true, found, within)


def mlperf_results(corpus: Path) -> Iterator[Figure]:
    """Compare each MLPerf result with `per_run` of meta.json, computed by the method of mlperf_logging."""
    for case in sorted((corpus / "mlperf").rglob("meta.json")):
        for name, true in json.loads(case.read_text())["per_run"].items():
            file = next((path for path in (case.with_name(name), case.with_name(f"{name}.gz")) if path.exists()), None)
            if file is not None:
                of_file = functools.partial(column, file, "MLPerf MLLOG")
                figures = functools.partial(Figure, str(file.relative_to(corpus)))
                times_min = [time_s / 60 for time_s in of_file(Kind.summary, a.TIME_TO_TRAIN)]
                yield figures("time to train", [true["ttt_min"]] if true["ttt_min"] else [], times_min, 1e-4)
                if true["ttt_min"]:
                    yield figures("status", true["status"], *of_file(Kind.summary, Text.state)[:1] or [None])
                for metric, key in ((a.GLOBAL_BATCH_SIZE, "global_batch_size"), (a.SEED, "seed"),
                                    (a.ACCUMULATION, "gradient_accumulation_steps")):  # fmt: skip
                    if true[key] is not None:
                        yield figures(key, [true[key]], sorted(set(of_file(Kind.setting, metric))))
                yield figures("benchmark", [true["submission_benchmark"]], sorted(set(of_file(None, Text.benchmark))))
                scores = of_file(Kind.evaluation, a.EVALUATION_SCORE)
                yield figures("evaluations", true["n_eval"], len(scores))
                yield figures("last evaluation", true["last_eval"], scores[-1] if scores else None)
                if true["throughput_median_raw"] is not None:
                    rates = of_file(Kind.step, a.SAMPLES_PER_S) or of_file(Kind.step, m.TOKENS_PER_S)
                    rate = sorted(rates)[len(rates) // 2] if rates else None
                    yield figures("median throughput", true["throughput_median_raw"], rate)


def mlperf_systems(corpus: Path) -> Iterator[Figure]:
    """Compare size, hardware and score of each MLPerf system."""
    for case in sorted((corpus / "mlperf").rglob("meta.json")):
        true, source = json.loads(case.read_text()), str(case.parent.relative_to(corpus))
        figures, system = functools.partial(Figure, source), case.with_name(f"{case.parent.name}.json")
        of_system = functools.partial(column, system, "MLPerf system description", Kind.setting)
        yield figures("nodes", [float(true["nodes"])], of_system(a.NODES))
        yield figures("GPUs of a node", [float(true["gpus_per_node"])], of_system(a.GPUS_PER_NODE))
        yield figures("GPU", [true["hardware"]], of_system(Text.gpu_name))
        scaling, factor = true["true_figures"]["rcp_scaling"], case.with_name("scaling.json")
        if scaling:
            found = column(factor, "MLPerf system description", Kind.setting, a.CONVERGENCE_FACTOR)
            yield figures("convergence factor", [scaling["scaling_factor"]], found)
        ((score, *_), *_) = systems_of(read_runs([case.parent]))
        # The figure has four decimals, and so has the mean that it was computed from.
        true_score = true["true_figures"]["score_min = olympic_mean x scaling_factor"]
        yield figures("score", true_score, score.score_s and score.score_s / 60, 1e-4)
        yield figures("GPUs", true["gpus"], score.ranks)
        yield figures("nodes of a run", int(true["nodes"]), score.results[0].setting("nodes"))


def failure_causes(corpus: Path) -> Iterator[Figure]:
    """Compare the cause of each failed job; complete ones have none."""
    directory = corpus / "failures" / "excerpts"
    for case in json.loads((directory / "meta.json").read_text())["files"]:
        file, true = directory / case["file"], case.get("true", "").removeprefix("class=")
        if file.exists() and true:
            expected = next(ending for words, ending in CLASSES.items() if true.startswith(words))
            yield Figure(str(file.relative_to(corpus)), "failure cause", expected, verdict_on(file).cause)
    for log in sorted((corpus / "litgpt").rglob("*.o8*")):
        found = verdict_on(log).cause
        yield Figure(str(log.relative_to(corpus)), "failure cause", FailureCause.unknown, found)
    for log in sorted((corpus / "megatron/bigscience_gpt2_base_n4_to_n64").glob("*.out")):
        yield Figure(str(log.relative_to(corpus)), "failure cause", FailureCause.cancelled, verdict_on(log).cause)


def dlio_reports(corpus: Path) -> Iterator[Figure]:
    """Compare DLIO's summaries with the report that MLPerf Storage wrote beside them."""
    for summary in sorted((corpus / "dlio").glob("*/*summary.json")):
        report = json.loads(
            summary.with_name(f"{summary.name.partition('__run1')[0]}__mlperf_storage_report.json").read_text()
        )
        of_file = functools.partial(column, summary, "DLIO (JSON)")
        figures = functools.partial(Figure, str(summary.relative_to(corpus)))
        stated = [each["train_throughput_samples_per_second"] for each in report["runs"].values()]
        rates = of_file(Kind.summary, a.SAMPLES_PER_S)
        yield figures("samples per second", [each for each in stated if each in rates] or stated, rates)
        yield figures("ranks", [float(report["overall"]["train_num_accelerators"])], of_file(Kind.setting, a.RANKS))
        yield figures("epochs", 5, len(of_file(Kind.measurement, a.SAMPLES_PER_S)))


def io500_reports(corpus: Path) -> Iterator[Figure]:
    """Compare IO500's summary with each of its files, and with the outputs of mdtest that it quotes."""
    for table in sorted((corpus / "ior").glob("*/result_summary.txt")):
        for name, number, unit in re.findall(r"\[RESULT\] +(\S+) +([\d.]+) (\S+)", table.read_text()):
            metric, base = (a.IO_BANDWIDTH, GIB) if unit == "GiB/s" else (a.IO_OPERATIONS_PER_S, 1000)
            places = [(table, "IO500", name), (table.with_name("result.txt"), "IO500", name)]
            if name.startswith("mdtest"):
                places.append((table.with_name(f"{name}.txt"), "mdtest", MDTEST_OPERATIONS[name.rpartition("-")[2]]))
            for path, form, benchmark in places:
                rows = [each for each in records(path)[form] if each.texts.get(Text.benchmark) == benchmark]
                found = [each.values[metric] for each in rows if metric in each.values]
                yield Figure(str(path.relative_to(corpus)), f"{name}, {unit}", [float(number) * base], found)


def series(corpus: Path) -> Iterator[Figure]:
    """Compare losses and step times of tables that the csv and json modules read whole."""
    for path in sorted((corpus / "megatron/golden_values_json").glob("*golden_values*.json")):
        whole = json.loads(path.read_text())
        for metric, name in ((m.LOSS, "lm loss"), (m.STEP_TIME, "iteration-time")):
            numbers = [value for value in whole[name]["values"].values() if value != "nan"]
            found = column(path, "Megatron-LM golden values", Kind.step, metric)
            yield Figure(str(path.relative_to(corpus)), name, numbers, found)
    for path in sorted((corpus / "lightning_csv").rglob("metrics.csv")):
        rows = list(csv.DictReader(path.read_text().splitlines()))
        for kind, metric, name in (
            (Kind.step, m.LOSS, "train_loss_step"),
            (Kind.summary, a.MEAN_LOSS, "train_loss_epoch"),
            (Kind.evaluation, m.EVALUATION_LOSS, "val_loss"),
        ):
            numbers = [float(row[name]) for row in rows if row.get(name)]
            yield Figure(str(path.relative_to(corpus)), name, numbers, column(path, "Lightning CSV", kind, metric))
    for path in sorted((corpus / "hf_trainer/trainer_state_json").glob("trainer_state.json")):
        numbers = [each["loss"] for each in json.loads(path.read_text())["log_history"] if "loss" in each]
        found = column(path, "Hugging Face trainer_state.json", Kind.step, m.LOSS)
        yield Figure(str(path.relative_to(corpus)), "loss", numbers, found)


def whole_runs(corpus: Path) -> Iterator[Figure]:
    """Compare figures of whole runs: parameters, speedups, energy; and find logs that no parser reads."""
    primus = {
        "run-llama2-70B-2N.log": (68_976_648_192, 16, 2),
        "run-llama2-7B-8N.log": (6_738_415_616, 64, 8),
        "run-mixtral-8x7B-8N.log": (46_702_792_704, 64, 8),
    }
    for run in read_runs([corpus / "primus/hisohara_mi300x_8n"]):
        parameters, ranks, nodes = primus[run.name]
        figures = functools.partial(Figure, f"primus/hisohara_mi300x_8n/{run.name}")
        yield figures("parameters", parameters, run.plan.get("parameters"))
        yield figures("GPUs", ranks, run.ranks)
        yield figures("nodes", nodes, run.setting("nodes"))
    dell = "mlperf/v4.1_Dell_llama2_70b_lora"
    line = max(scaling_groups(read_runs([corpus / dell])), key=lambda group: len(group.points))
    found = [spread.median for point in line.points if (spread := line.speedup(point))]
    yield Figure(dell, "speedup on 1, 2, 4 and 8 nodes", [1.0, 1.687, 3.431, 6.677], found, 1e-3)
    power = "power/mlperf_v4.1_dell_8xXE9680_power"
    (run,) = read_runs([corpus / power])
    yield Figure(power, "energy without the switch, whose clock is wrong", 16.2e6, run.values.get(m.ENERGY), 1e-3)
    unknown = [name for name in read([corpus]).unknown if not name.endswith(NO_LOGS)]
    yield Figure(".", "logs that no parser reads", [], sorted(unknown))


def published_figures(corpus: Path) -> Iterator[Figure]:
    """Compare each row of published.csv with the table of its document, if the documents lie beside the corpus."""
    texts = [path.read_text(encoding="utf-8").replace("™", "") for path in corpus.parent.glob("seeds/*.txt")]
    for figure in published() if texts else ():
        text = next((each for each in texts if figure.document.title in each), None)
        if text is None:  # of a document that does not lie there
            continue
        rows = [re.split(r"\t| / ", line) for line in text.splitlines()]
        named = [cells for cells in rows if all(cell in cells for cell in figure.row.split("|"))]
        found = [cell for cells in named for cell in cells if cell == figure.printed][:1]
        yield Figure(figure.document.name, f"{figure.row}, {figure.variant}", [figure.printed], found)


SOURCES = (
    typed_figures,
    mlperf_results,
    mlperf_systems,
    failure_causes,
    dlio_reports,
    io500_reports,
    series,
    whole_runs,
    published_figures,
)


# --- the report --------------------------------------------------------------------------------------------------


def figures_of(corpus: Path) -> Iterator[Figure]:
    """Return every comparison."""
    for source in SOURCES:
        yield from source(corpus)


def shortened(value: Any) -> str:
    """Return a value as text of at most 80 characters."""
    text = str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def print_report(figures: Iterable[Figure]) -> Counter[str]:
    """Print the wrong and the missing figures; return the number of figures with each verdict and of all."""
    counts = Counter(compared=0, right=0, wrong=0, missing=0)
    for figure in figures:
        counts.update(["compared", figure.verdict])
        if figure.verdict != "right":
            true, found = shortened(figure.true), shortened(figure.found)
            print(f"{figure.verdict}: {figure.source}: {figure.name} is {true}, found {found}")
    return counts


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", nargs="?", type=Path, default=ROOT.parent / "shared" / "corpus")
    corpus: Path = parser.parse_args(arguments).directory
    if not corpus.is_dir():
        print(f"Nothing is compared: there is no corpus at {corpus}. Pass its directory.")
        return 0
    started_s = time.monotonic()
    counts = print_report(figures_of(corpus))
    print(
        f"{counts['compared']} figures compared: {counts['right']} right, {counts['wrong']} wrong, "
        f"{counts['missing']} missing ({time.monotonic() - started_s:.0f} s)"
    )
    worse = [name for name, before in BASELINE.items() if counts[name] < before]
    for name in worse:
        print(f"Worse than on record: {counts[name]} figures {name}, before {BASELINE[name]}.")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())

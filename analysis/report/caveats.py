"""Warnings about doubtful comparisons: losses that disagree, other code or hosts, slow steps or networks.

A fast wrong run does not win: a run whose final loss leaves that of its peers is marked, never named fastest, and
never silently dropped.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from analysis.compare.loss import loss_gaps
from analysis.failures.runs import Failure
from analysis.formatting import listed, plural
from analysis.logs.facts import SWITCHES
from analysis.logs.file import LogFile
from analysis.metrics.mfu import EITHER
from analysis.metrics.shared_nodes import side_by_side
from analysis.parsers import log_metrics as a
from analysis.report.digest import Digest
from analysis.report.doubts import beyond_ideal, first_of, references_loaded, repeats_apart, shared_nodes
from analysis.report.sections.node_use import nodes_differ
from analysis.report.sections.step_variation import steps_are_slow, steps_drift, steps_far_out, summary_differs
from analysis.report.sections.stragglers import ranks_straggle
from analysis.report.sections.system import systems_differ
from analysis.run import FACTS_FILE, RunResult
from analysis.scaling.groups import Group
from analysis.scaling.mlperf import scores_lag
from analysis.untrusted import as_list, lookup
from jobs.metrics import Metric
from jobs.network import GPU_DIRECT_ADVICE, SOCKETS, copies_through_host
from jobs.runtime.transport import SOCKETS_ADVICE

MOST_HOSTS = 8


def warnings(digest: Digest) -> list[str]:
    """Return the warnings of a report."""
    used, groups, doubts = digest.used, digest.groups, digest.doubts
    beside = side_by_side(digest.runs)
    own = [run for run in used if run.log is None]
    logs = [run for run in used if run.log is not None]
    believed = [run for run in own if run.path not in doubts]
    rules = (
        engines_differ,
        code_differs,
        tree_is_dirty,
        hosts_differ,
        networks_unknown,
        sockets_between_nodes,
        rdma_without_gpu_direct,
        ranks_far_from_gpus,
        batch_differs,
        planned,
    )
    of_logs = (
        facts_contradicted,
        places_impossible,
        ended_badly,
        ranks_unknown,
        several_attempts,
        remarked,
        derived,
        devices_unknown,
    )
    return (
        work_differs(groups)
        + beyond_ideal(groups, beside)
        + references_loaded(groups)
        + repeats_apart(groups)
        + shared_nodes(used, beside)
        + scores_lag(digest.systems)
        + disbelieved(used, doubts)
        + loss_disagreement(believed)
        + above_the_peak(used)
        + formulas_differ(used)
        + [text for rule in rules for text in rule(own)]
        + [text for rule in of_logs for text in rule(logs)]
        + cut_off(digest.logs)
        + [
            text
            for rule in (
                steps_far_out,
                summary_differs,
                steps_are_slow,
                steps_drift,
                ranks_straggle,
                nodes_differ,
                systems_differ,
            )
            for text in rule(used)
        ]
    )


def disbelieved(runs: list[RunResult], doubts: Mapping[Path, str]) -> list[str]:
    """Report runs that are not believed."""
    sentences = [
        f"{run.name}: {doubts[run.path]}. It is marked and never named fastest: a fast wrong run does not win."
        for run in runs
        if run.path in doubts
    ]
    return first_of(sentences, "Further such runs, each marked in the table of runs")


def loss_disagreement(runs: list[RunResult]) -> list[str]:
    """Report layouts whose losses differ at the same step: one sentence per set of peers, the widest gap first."""
    sentences = [
        f"{plural(gap.runs, 'run')} that should compute the same losses differ by up to {gap.distance * 100:.2f} %, at "
        f"step {gap.step}: {gap.low.losses[gap.step]:.5g} in {gap.low.name}, {gap.high.losses[gap.step]:.5g} in "
        f"{gap.high.name}. Find out which is right before comparing their speed: a fast wrong run does not win."
        for gap in loss_gaps(runs)
    ]
    return first_of(sentences, "Further sets of runs whose losses differ by less")


def above_the_peak(runs: list[RunResult]) -> list[str]:
    """Report runs whose FLOP/s exceed the peak of their devices."""
    sentences = [run.utilization.impossible for run in runs if run.utilization and run.utilization.impossible]
    return first_of(sentences, "Further runs whose utilization is impossible")


def formulas_differ(runs: list[RunResult]) -> list[str]:
    """Report logs whose TFLOP/s were counted by different formulas, unless one formula reproduces all of them."""
    counts = Counter(run.utilization.formula for run in runs if run.utilization and run.utilization.formula)
    if not counts or set.intersection(*(set(formula.split(EITHER)) for formula in counts)):
        return []
    named = "; ".join(f"{formula} in {plural(count, 'log')}" for formula, count in sorted(counts.items()))
    return [
        f"The logs count TFLOP/s by different formulas: {named}. Do not compare these figures; tokens/s and the MFU of "
        "this page compare."
    ]


def engines_differ(runs: list[RunResult]) -> list[str]:
    """Report runs of different engines, which differ in more than their layout."""
    counts = Counter(str(run.setting("engine.kind")) for run in runs)
    if len(counts) < 2:
        return []
    listed = ", ".join(f"{engine} ({plural(count, 'run')})" for engine, count in sorted(counts.items()))
    return [f"Engines differ: {listed}. Between them, a difference in speed is one of code, not only of layout."]


def code_differs(runs: list[RunResult]) -> list[str]:
    """Report runs of different code, which are not one experiment."""
    counts = Counter(str(run.provenance.get("code_digest", "unknown")) for run in runs)
    listed = ", ".join(f"{digest} ({plural(count, 'run')})" for digest, count in sorted(counts.items()))
    return [f"The runs executed different code, by digest: {listed}."] if len(counts) > 1 else []


def tree_is_dirty(runs: list[RunResult]) -> list[str]:
    """Report runs from uncommitted code."""
    dirty = sum(lookup(run.provenance, "git.dirty") is True for run in runs)
    if not dirty:
        return []
    return [
        f"{dirty} of {plural(len(runs), 'run')} came from a git tree with uncommitted changes: no commit is that code."
    ]


def hosts_differ(runs: list[RunResult]) -> list[str]:
    """Report more hosts than the largest run needs: points ran on different machines."""
    nodes = [[str(node) for node in as_list(run.started.get("nodes"))] for run in runs]
    hosts = sorted({host for each in nodes for host in each})
    if len(hosts) <= max((len(set(each)) for each in nodes), default=0):
        return []
    return [
        f"Not every point ran on the same hosts ({listed(hosts, MOST_HOSTS)}): that they are equally fast is assumed, "
        "not measured."
    ]


def networks_unknown(runs: list[RunResult]) -> list[str]:
    """Report runs that ask for a transport and did not record the one that they used."""
    asked = [run for run in runs if run.setting("network.transport") or run.setting("network.gpu_direct")]
    unknown = [run for run in asked if run.setting("nodes") > 1 and not run.transports]
    if not unknown:
        return []
    names = listed([run.name for run in unknown], 3)
    return [
        f"{plural(len(unknown), 'run')} ({names}) asked for a transport between nodes, and NCCL's log did not contain "
        "the one that was used. Unset NCCL_DEBUG in the environment of the ranks, and run them again."
    ]


def sockets_between_nodes(runs: list[RunResult]) -> list[str]:
    """Report runs on several real nodes between which NCCL used TCP without being asked."""
    over = [
        run.name
        for run in runs
        if SOCKETS in run.transports
        and run.setting("network.transport") != "tcp"
        and run.setting("nodes") > 1
        and run.started.get("emulated_nodes") is not True
    ]
    if not over:
        return []
    named = ", ".join(over[:3]) + (", ..." if len(over) > 3 else "")
    return [
        f"Between the nodes of {plural(len(over), 'run')} ({named}) NCCL sent by {SOCKETS}. {SOCKETS_ADVICE} Run "
        "slurmscale doctor to measure the bandwidth of pairs of nodes."
    ]


def rdma_without_gpu_direct(runs: list[RunResult]) -> list[str]:
    """Report runs whose RDMA adapters did not reach the memory of GPUs: a third of the bandwidth, or less.

    33 instead of 93 GB/s, and 10 instead of 180, in reports to NCCL (github.com/NVIDIA/nccl/issues).
    """
    over = [run.name for run in runs if run.setting("nodes") > 1 and copies_through_host(run.transports)]
    if not over:
        return []
    return [
        f"Between the nodes of {plural(len(over), 'run')} ({listed(over, 3)}) NCCL sent by RDMA without GPUDirect, "
        f"usually at a third of the bandwidth or less. {GPU_DIRECT_ADVICE} network.gpu_direct=true requires it."
    ]


def ranks_far_from_gpus(runs: list[RunResult]) -> list[str]:
    """Report runs whose scheduler bound ranks to cores of another NUMA node than that of their GPU."""
    far = {run.name: len(ranks) for run in runs if (ranks := as_list(run.started.get("far_from_gpu")))}
    if not far:
        return []
    name, count = next(iter(far.items()))
    return [
        f"In {plural(len(far), 'run')} ({listed(list(far), 3)}) ranks were bound to cores of another NUMA node than "
        f"their GPU's ({plural(count, 'rank')} of {name}): launches and copies cross sockets. Let the scheduler bind "
        "nearest cores (sbatch --gpus-per-task, --gpu-bind=closest), or none (--cpu-bind=none): ranks then choose them."
    ]


def batch_differs(runs: list[RunResult]) -> list[str]:
    """Report global batches of different size, whose losses are not comparable."""
    sizes = sorted({size for run in runs if isinstance(size := run.plan.get("global_batch_size"), int)})
    if len(sizes) < 2:
        return []
    listed = ", ".join(f"{size:,}" for size in sizes)
    return [
        f"Global batches differ ({listed} sequences), as weak scaling implies or by choice: throughput may be "
        "compared, losses and steps to a given loss may not."
    ]


def ended_badly(runs: list[RunResult]) -> list[str]:
    """Report logs of runs that failed, whose steps count nevertheless."""
    failed = [run for run in runs if run.log and run.log.verdict and run.log.verdict.is_failure]
    sentences = [
        f"{run.name} failed ({run.state}); its steps until then count. {Failure.of(run.path.name, verdict).proof}"
        for run in failed
        if run.log and (verdict := run.log.verdict) and verdict.line and verdict.proof
    ]
    return first_of(sentences, "Further logs of failed runs")


def several_attempts(runs: list[RunResult]) -> list[str]:
    """Report trainings of several attempts, and files that may belong to one."""
    sentences = [run.log.note for run in runs if run.log and run.log.note]
    return first_of(sentences, "Further logs of several attempts")


def remarked(runs: list[RunResult]) -> list[str]:
    """Report what else the reader of the rate of a log must know."""
    return first_of([text for run in runs for text in run.remarks], "Further such remarks on logs")


def cut_off(logs: Iterable[LogFile]) -> list[str]:
    """Report logs whose last number may be cut off and was not read, with what to do if it is whole."""
    torn = [log for log in logs if log.torn]
    if not torn:
        return []
    named = listed([f"{log.torn} of {log.path.name}" for log in torn], MOST_HOSTS)
    return [
        f"The last line of {plural(len(torn), 'log')} has no line end, so its last number may be cut off and is not "
        f"read: {named}. If it is whole, add a line end to the file."
    ]


def derived(runs: list[RunResult]) -> list[str]:
    """Report throughputs that the program did not report."""
    how: dict[str, list[str]] = defaultdict(list)
    for run in runs:
        if run.derived:
            how[run.derived].append(run.name)
    return [
        f"The throughput of {plural(len(names), 'run')} ({listed(names, MOST_HOSTS)}) is {text}: the program reports "
        "none of whole steps."
        for text, names in how.items()
    ]


def devices_unknown(runs: list[RunResult]) -> list[str]:
    """Report logs that do not name their device, with the line to add."""
    unknown = [run.name for run in runs if run.started.get("device_name") is None]
    if not unknown:
        return []
    return [
        f"Device unknown in {plural(len(unknown), 'log')} ({listed(unknown, MOST_HOSTS)}): unlike devices are not told "
        f"apart, and there is no MFU. Write `gpu_name: NAME` into a {FACTS_FILE} next to the logs."
    ]


def facts_contradicted(runs: list[RunResult]) -> list[str]:
    """Report numbers in logs that contradict facts.yaml."""
    sentences = []
    for run in runs:
        for metric, fact in run.log.facts.items() if run.log else ():
            reported, used = value_in_log(run, metric), FACTS_FILE
            batch = run.plan.get("global_batch_size")
            if metric is a.GLOBAL_BATCH_SIZE and batch != fact:
                # A batch reported with each step overrides facts.yaml.
                reported, used = batch, "the log"
            if reported is not None and reported != fact:
                numbers = [
                    str(bool(each)).lower() if metric.name in SWITCHES else f"{each:,.0f}" for each in (fact, reported)
                ]
                sentences.append(
                    f"{FACTS_FILE} has {metric.name} {numbers[0]}, {run.name} has {numbers[1]}; "
                    f"the value of {used} is used."
                )
    return first_of(sentences, f"Further numbers in logs that contradict {FACTS_FILE}")


def value_in_log(run: RunResult, metric: Metric) -> float | None:
    """Return a number of the log itself; ranks also by nodes times ranks per node."""
    reported = run.log.settings if run.log else {}
    if metric is a.RANKS and metric not in reported and {a.NODES, a.RANKS_PER_NODE} <= reported.keys():
        return reported[a.NODES] * reported[a.RANKS_PER_NODE]
    return reported.get(metric)


def places_impossible(runs: list[RunResult]) -> list[str]:
    """Report logs whose nodes and ranks contradict each other because of facts.yaml."""
    sentences = []
    for run in runs:
        nodes, per_node, ranks = (run.setting(name) for name in ("nodes", "ranks_per_node", "ranks"))
        stated = run.log is not None and not {a.NODES, a.RANKS_PER_NODE, a.RANKS}.isdisjoint(run.log.facts)
        if stated and nodes and ranks and (nodes > ranks or (per_node and nodes * per_node != ranks)):
            each = f" with {plural(per_node, 'rank')} each" if per_node else ""
            sentences.append(
                f"With {FACTS_FILE}, {run.name} has {plural(ranks, 'rank')} on {plural(nodes, 'node')}{each}, which "
                f"is impossible: correct nodes, ranks_per_node or ranks in {FACTS_FILE}."
            )
    return first_of(sentences, f"Further logs whose nodes and ranks are impossible with {FACTS_FILE}")


def work_differs(groups: Iterable[Group]) -> list[str]:
    """Report lines whose points did not do the same work."""
    sentences = [
        f"{group.described}: {why}. Its speedup and efficiency compare throughputs only, and neither strong nor weak "
        "scaling; how many samples a given quality takes may differ from point to point."
        for group in groups
        if (why := group.unequal_work)
    ]
    return first_of(sentences, "Further lines of unequal work")


def ranks_unknown(runs: list[RunResult]) -> list[str]:
    """Report logs without a number of ranks."""
    without = [run.name for run in runs if run.ranks is None]
    if not without:
        return []
    which = f"{', '.join(without[:3])}{', ...' if len(without) > 3 else ''}"
    logs, them = ("log does", "it") if len(without) == 1 else ("logs do", "them")
    return [
        f"{len(without):,} {logs} not contain the number of ranks ({which}): measured, but in no line and no "
        f"figure. Write `ranks: N` into a {FACTS_FILE} next to {them}."
    ]


def planned(runs: list[RunResult]) -> list[str]:
    """Report the warnings of the plans."""
    counts = Counter(str(text) for run in runs for text in as_list(run.plan.get("warnings")))
    return [f"Warned before submission, for {plural(count, 'run')}: {text}" for text, count in sorted(counts.items())]

"""Logs of other programs as runs of the report: their measurements, comparisons and warnings."""

from __future__ import annotations

import csv
import json
import os
import shutil
from pathlib import Path

import pytest

from analysis.failures.runs import failures
from analysis.load.discover import read, read_runs
from analysis.parsers import log_metrics as a
from analysis.report.caveats import warnings
from analysis.report.content import build
from analysis.report.digest import Digest
from analysis.report.page import page
from analysis.report.report import report
from analysis.report.runs_table import rows_of, to_csv
from analysis.scaling.groups import scaling_groups
from analysis.scaling.mlperf import systems_of
from jobs import metrics as m
from tests.analysis.parsers.reading import SAMPLES
from tests.support.measured_runs import one_run
from tests.support.megatron_logs import megatron, write
from tests.support.mlperf_logs import logged, result, system


def known_device(messages: list[str]) -> list[str]:
    """Leave out the advice to name the GPU, which small logs do not."""
    return [message for message in messages if not message.startswith("Device unknown in ")]


def test_the_first_step_and_slow_ones_after_it_are_not_measured(tmp_path: Path) -> None:
    times_ms = [9000, 3000, *[1000] * 8]
    run = one_run(write(tmp_path / "job.out", megatron(enumerate(times_ms, 1))))
    assert run.steady_steps == 8
    assert run.values[m.STEP_TIME_MEDIAN] == 1.0
    assert run.values[m.FIRST_STEP_TIME] == 9.0
    assert run.values[a.SAMPLES_PER_S] == pytest.approx(16.0)


def test_at_most_three_quarters_of_an_attempt_are_warm_up(tmp_path: Path) -> None:
    run = one_run(write(tmp_path / "job.out", megatron(enumerate([4000, 3000, 2000, 1800, 1400, 1000], 1))))
    assert run.steady_steps == 2


def test_steps_that_a_later_attempt_made_again_count_once_and_its_first_is_warm_up(tmp_path: Path) -> None:
    first = megatron([(step, 1000.0) for step in range(1, 11)])
    again = megatron([(6, 5000.0)] + [(step, 2000.0) for step in range(7, 16)])
    run = one_run(write(tmp_path / "job.out", first + again))
    assert run.losses.keys() == set(range(1, 16))
    # Steps 2 to 5 of the first attempt and 7 to 15 of the second.
    assert run.steady_steps == 4 + 9
    assert run.values[m.STEP_TIME_MEDIAN] == 2.0


def test_of_ranks_that_report_of_one_step_the_slowest_counts(tmp_path: Path) -> None:
    lines = "".join(
        megatron([(step, 1000.0 + 100 * rank)], ranks=None, prefix=f"{rank}:")
        for step in range(1, 9)
        for rank in (0, 1, 2)
    )
    run = one_run(write(tmp_path / "job.out", megatron([]) + lines))
    assert run.steady_steps == 7
    assert run.values[m.STEP_TIME_MEDIAN] == pytest.approx(1.2)
    assert run.values[a.SAMPLES_PER_S] == pytest.approx(16 / 1.2)


def test_another_ranks_log_of_the_same_run_is_no_second_measurement(tmp_path: Path) -> None:
    times_ms = [5000, *[1000 + 37 * (i % 5) for i in range(20)]]
    write(tmp_path / "rank0.log", megatron(enumerate(times_ms, 1)))
    write(tmp_path / "rank1.log", megatron((i, time + 1) for i, time in enumerate(times_ms, 1)))
    write(tmp_path / "repeat.log", megatron((i, 1.05 * time) for i, time in enumerate(times_ms, 1)))
    states = {run.name: run.state for run in read_runs([tmp_path])}
    assert states == {"rank0.log": "as far as logged", "rank1.log": "copy", "repeat.log": "as far as logged"}


def test_a_training_that_the_terminal_and_a_file_with_more_digits_report_is_one_run(tmp_path: Path) -> None:
    terminal = (SAMPLES / "dllogger_1_0.txt").read_text().splitlines(keepends=True)
    write(tmp_path / "terminal.log", "".join(terminal[:12]))
    shutil.copy(SAMPLES / "dllogger_1_0.jsonl", tmp_path / "log.json")
    write(tmp_path / "repeat.log", "".join(terminal[12:]))
    states = {run.name: run.state for run in read_runs([tmp_path])}
    assert states == {"log.json": "as far as logged", "terminal.log": "copy", "repeat.log": "as far as logged"}


def test_runs_whose_model_no_log_reports_are_not_compared_until_the_user_states_it(tmp_path: Path) -> None:
    for ranks, time_ms in ((8, 1000.0), (16, 500.0)):
        write(tmp_path / f"n{ranks}.out", megatron(((step, time_ms) for step in range(1, 9)), ranks=ranks))
    assert [len(group.points) for group in scaling_groups(read_runs([tmp_path]))] == [1, 1]
    write(tmp_path / "facts.yaml", "model: llama3-8b\n")
    (group,) = scaling_groups(read_runs([tmp_path]))
    assert (group.model, group.mode) == ("llama3-8b", "strong")
    speedup = group.speedup(group.points[1])
    assert speedup is not None
    assert speedup.median == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("batches", "mode", "work"),
    [
        ((8, 8), "strong", None),
        ((8, 16), "weak", None),
        ((8, 12), "changing batch", "the global batch changes: 8 on 8 ranks, 12 on 16 ranks"),
    ],
)
def test_how_the_work_grows_is_recognised_by_the_batch(
    tmp_path: Path, batches: tuple[int, int], mode: str, work: str | None
) -> None:
    for ranks, batch in zip((8, 16), batches, strict=True):
        steps = ((step, 1000.0) for step in range(1, 9))
        write(tmp_path / f"n{ranks}.out", megatron(steps, ranks=ranks, batch=batch))
    write(tmp_path / "facts.yaml", "model: llama3-8b\n")
    found = read([tmp_path])
    (group,) = scaling_groups(found.runs)
    assert (group.mode, group.unequal_work) == (mode, work)
    message = " ".join(warnings(Digest(found.runs, [group])))
    html = page(build(found))
    assert (work in message and work in html) if work else "global batch changes" not in message + html


def test_a_log_that_does_not_report_its_ranks_is_measured_and_states_what_to_write(tmp_path: Path) -> None:
    write(tmp_path / "job.out", megatron(((step, 1000.0) for step in range(1, 9)), ranks=None))
    found = read([tmp_path])
    assert found.runs[0].used
    assert scaling_groups(found.runs) == []
    (message,) = known_device(warnings(Digest(found.runs)))
    assert message.startswith("1 log does not contain the number of ranks (job.out)")
    assert message.endswith("Write `ranks: N` into a facts.yaml next to it.")
    answer = (
        "No scaling result: no log of a measured run contains the number of ranks; see the warnings for what to add. "
        "job.out reaches 16.00 samples/s on all of its ranks together."
    )
    assert build(found).headlines == [answer]
    html = page(build(found))
    assert ">All measured runs</h2>" in html
    assert ">Results</h2>" not in html
    assert ">Figures</h2>" not in html
    write(tmp_path / "facts.yaml", "ranks: 8\n")
    assert [group.points[0].ranks for group in scaling_groups(read_runs([tmp_path]))] == [8]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rank: 8\n", "rank is not known. Known keys: nodes, ranks, ranks_per_node,"),
        ("ranks: many\n", "ranks is 'many', and must be a whole number above 0."),
        ("ranks: 0\n", "ranks is 0, and must be a whole number above 0."),
        ("model: 8\n", "model is 8, and must be a text."),
        ("- 8\n", "contains no settings. Write one per line, for example: ranks: 16"),
        ("ranks: [8\n", "cannot be read: while parsing a flow sequence"),
    ],
)
def test_a_run_beside_wrong_facts_is_not_used_and_says_why(tmp_path: Path, text: str, expected: str) -> None:
    write(tmp_path / "job.out", megatron([(1, 1000.0)]))
    path = write(tmp_path / "facts.yaml", text)
    (run,) = read_runs([tmp_path])
    assert (run.used, run.state) == (False, "unreadable")
    assert str(path) in str(run.reason)
    assert expected in str(run.reason)


def test_a_fact_that_the_log_contradicts_is_used_and_warned_of(tmp_path: Path) -> None:
    write(tmp_path / "job.out", megatron(((step, 1000.0) for step in range(1, 9)), ranks=16))
    write(tmp_path / "facts.yaml", "ranks: 16\nmodel: llama3-8b\n")
    assert known_device(warnings(Digest(read_runs([tmp_path])))) == []
    write(tmp_path / "facts.yaml", "ranks: 8\nglobal_batch_size: 32\n")
    runs = read_runs([tmp_path])
    assert runs[0].ranks == 8
    assert known_device(warnings(Digest(runs))) == [
        "facts.yaml has ranks 8, job.out has 16; the value of facts.yaml is used.",
        "facts.yaml has global_batch_size 32, job.out has 16; the value of the log is used.",
    ]


def test_ranks_of_facts_go_before_the_nodes_that_others_report(tmp_path: Path) -> None:
    system(tmp_path, 2, (10,))
    write(tmp_path / "facts.yaml", "ranks: 8\n")
    (run,) = read_runs([tmp_path])
    assert (run.ranks, run.setting("nodes")) == (8, None)


def test_nodes_that_are_known_of_some_runs_only_are_not_reported_of_all(tmp_path: Path) -> None:
    write(tmp_path / "one/job.out", megatron(((step, 1000.0) for step in range(1, 9)), ranks=1))
    write(tmp_path / "one/facts.yaml", "nodes: 1\n")
    write(tmp_path / "many/job.out", megatron(((step, 900.0) for step in range(1, 9)), ranks=16))
    assert "1 to 16 ranks on 1 node (nodes of 1 run unknown)" in build(read([tmp_path])).lead


def test_more_nodes_than_ranks_in_facts_are_warned_of(tmp_path: Path) -> None:
    write(tmp_path / "job.out", megatron((step, 1000.0) for step in range(1, 9)))
    write(tmp_path / "facts.yaml", "nodes: 16\n")
    assert known_device(warnings(Digest(read_runs([tmp_path])))) == [
        "With facts.yaml, job.out has 8 ranks on 16 nodes, which is impossible: correct nodes, ranks_per_node or "
        "ranks in facts.yaml."
    ]


def test_an_mlperf_score_drops_the_fastest_and_the_slowest_and_an_aborted_result_is_the_slowest(tmp_path: Path) -> None:
    system(tmp_path / "one", 1, (10, 11, 12, 20))
    system(tmp_path / "two", 2, (5, 6, 7), rate=18.0)
    write(tmp_path / "two" / "result_3.txt", result(1, rate=18.0, status="aborted"))
    write(tmp_path / "two" / "scaling.json", '{"scaling_factor": 1.1}')
    ((one_node, two_nodes),) = systems_of(read_runs([tmp_path]))
    assert one_node.score_s == pytest.approx(60 * (11 + 12) / 2)
    assert two_nodes.score_s == pytest.approx(60 * (6 + 7) / 2 * 1.1)
    write(tmp_path / "two" / "result_4.txt", result(1, status="aborted"))
    ((_, two_nodes),) = systems_of(read_runs([tmp_path]))
    assert two_nodes.score_s is None


def test_time_to_train_and_throughput_are_distinguished(tmp_path: Path) -> None:
    system(tmp_path / "one", 1, (10, 10, 10), rate=10.0)
    system(tmp_path / "two", 2, (8, 8, 8), rate=18.0, batch=16)
    text = (report([tmp_path], tmp_path / "out").parent / "report.md").read_text()
    row = next(line for line in text.splitlines() if "Nobody (lies about its size) | 2 | 16 | 16 | 3 |" in line)
    cells = [cell.strip() for cell in row.split("|")]
    assert cells[-4:-1] == ["1.25", "1.80", "global batch 16 against 8 of the reference"]


def test_a_score_that_scales_worse_than_the_throughput_is_refused_with_what_it_is_made_of(tmp_path: Path) -> None:
    system(tmp_path / "one", 1, (10, 10, 10), rate=10.0)
    system(tmp_path / "two", 2, (8, 8, 8), rate=18.0)
    (message,) = warnings(Digest(read_runs([tmp_path])))
    assert message == (
        "llama2_70b_lora from 8 to 16 ranks: 1.80 times the throughput, but only 1.25 times the score in time to "
        "train. Samples to the target: 40 and 40; in evaluations: 1.0 and 1.2 % of the time."
    )


def test_a_repeat_that_is_far_from_the_others_is_named(tmp_path: Path) -> None:
    for name, rate in zip("abcde", (10.0, 10.1, 9.9, 8.0, 10.0), strict=True):
        write(tmp_path / name / "result_0.txt", result(10, rate=rate))
    write(tmp_path / "facts.yaml", "nodes: 1\nranks_per_node: 8\n")
    runs = read_runs([tmp_path])
    (message,) = known_device(warnings(Digest(runs, scaling_groups(runs))))
    assert message.startswith(
        "d/result_0.txt has 8.000 samples/s, 20 % from the median of its 5 repeats, llama2_70b_lora"
    )


def test_an_aborted_result_is_listed_and_not_measured(tmp_path: Path) -> None:
    run = one_run(write(tmp_path / "result_0.txt", result(10, status="aborted")))
    assert (run.state, run.reason) == ("aborted", "the log reports its end as: aborted")


def test_the_description_of_a_system_is_found_by_the_folder_of_its_results(tmp_path: Path) -> None:
    write(tmp_path / "results" / "big" / "llama2_70b_lora" / "result_0.txt", result(10))
    for name, nodes in (("big", 4), ("small", 1)):
        description = {"system_name": name, "number_of_nodes": nodes, "accelerators_per_node": 8}
        write(tmp_path / "systems" / f"{name}.json", json.dumps(description))
    (run,) = read_runs([tmp_path])
    assert (run.setting("nodes"), run.ranks) == (4, 32)


def test_what_no_parser_knows_is_listed_and_nothing_is_reported_of_it(tmp_path: Path) -> None:
    write(tmp_path / "job.out", megatron((step, 1000.0) for step in range(1, 9)))
    write(tmp_path / "notes.txt", "the cluster was slow today\n")
    (tmp_path / "weights.bin").write_bytes(bytes(range(32)) * 4096)
    assert list(read([tmp_path]).unknown) == ["notes.txt", "weights.bin"]
    html = page(build(read([tmp_path])))
    assert "Files of unknown format" in html
    assert "<code>weights.bin</code>" in html


# The part of the manifest that AIPerf 0.13.0 wrote beside the samples that names files.
PHASES = [
    {
        "phase_kind": kind,
        "phase_name": kind,
        "metrics_csv": f"phases/{kind}/profile_export_aiperf.csv",
        "metrics_json": f"phases/{kind}/profile_export_aiperf.json",
    }
    for kind in ("warmup", "profiling")
]


def profile_of_aiperf(path: Path, *, phases: str) -> list[str]:
    """The files in which results are found, of a folder as AIPerf leaves it with this manifest."""
    whole, warm_up = ((SAMPLES / f"aiperf_{name}.json").read_text() for name in ("profiling", "warm_up"))
    for name, text in {"": whole, "phases/warmup": warm_up, "phases/profiling": whole}.items():
        write(path / name / "profile_export_aiperf.json", text)
    write(path / "phase_manifest.json", phases)
    return [str(log.path.relative_to(path)) for log in read([path]).logs]


def test_the_phases_of_a_benchmark_are_no_results_beside_its_own(tmp_path: Path) -> None:
    found = profile_of_aiperf(tmp_path, phases=json.dumps({"phases": PHASES, "schema_version": 1}))
    assert found == ["profile_export_aiperf.json"]


def test_of_several_phases_that_were_profiled_each_is_a_result(tmp_path: Path) -> None:
    more = PHASES[1] | {"metrics_json": "phases/more/profile_export_aiperf.json"}
    assert profile_of_aiperf(tmp_path, phases=json.dumps({"phases": [*PHASES, more]})) == [
        "phases/profiling/profile_export_aiperf.json",
        "profile_export_aiperf.json",
    ]


@pytest.mark.parametrize("phases", ["", "[]", '{"phases": [1, {"phase_kind": "warmup", "metrics_json": 1}]}'])
def test_a_manifest_that_names_no_files_hides_none(phases: str, tmp_path: Path) -> None:
    assert len(profile_of_aiperf(tmp_path, phases=phases)) == 3


def test_a_report_beside_logs_is_no_log_of_the_next_report(tmp_path: Path) -> None:
    write(tmp_path / "job.out", megatron((step, 1000.0) for step in range(1, 9)))
    first = report([tmp_path], None).read_bytes()
    assert list(read([tmp_path]).unknown) == []
    assert report([tmp_path], None).read_bytes() == first


def test_a_single_log_may_be_given(tmp_path: Path) -> None:
    path = write(tmp_path / "job.out", megatron((step, 1000.0) for step in range(1, 9)))
    assert one_run(path).name == "job.out"


def test_a_benchmark_of_collectives_has_a_table(tmp_path: Path) -> None:
    logs = tmp_path / "fabric"
    logs.mkdir()
    shutil.copy(SAMPLES / "nccl_tests.txt", logs)
    content = build(read([tmp_path]))
    assert (content.title, content.lead) == ("Report: fabric", "1 log without a training run.")
    section = next(each for each in content.sections if each.heading == "nccl-tests")
    assert section.headings[:2] == ("File", "Message size (B)")
    assert "bus_bandwidth_bytes_per_s" in page(content)


def test_a_log_of_a_failed_run_states_the_line_that_proves_why(tmp_path: Path) -> None:
    text = megatron((step, 1000.0) for step in range(1, 9)) + "slurmstepd: error: Detected 1 oom-kill event(s) in "
    write(tmp_path / "job.out", text + "StepId=7.0. Some of the step tasks have been OOM Killed.\n")
    (run,) = read_runs([tmp_path])
    assert run.state == "out of host memory"
    message = " ".join(warnings(Digest([run])))
    assert "job.out failed (out of host memory); its steps until then count. job.out:11: slurmstepd: error:" in message


def test_what_a_log_does_not_state_a_table_of_sacct_beside_it_may(tmp_path: Path) -> None:
    write(tmp_path / "slurm-7.out", megatron((step, 1000.0) for step in range(1, 9)))
    write(tmp_path / "sacct.txt", "JobID|State|ExitCode\n7|FAILED|90:0\n7.0|OUT_OF_MEMORY|0:125\n")
    (run,) = read_runs([tmp_path])
    assert run.state == "out of host memory"
    (sentence,) = [each for each in warnings(Digest([run])) if "failed (" in each]
    assert sentence.endswith("its steps until then count. sacct.txt:3: 7.0 OUT_OF_MEMORY, exit code 0:125")
    (row,) = csv.DictReader(to_csv(rows_of(Digest([run]), failures([run]))).splitlines())
    assert row["ended_by"] == "out_of_host_memory"


# Files that are not logs: documents, settings, scripts, and the empty or unparsed side outputs of these tools.
NO_LOGS = ("README.md", ".ini", ".yaml", ".sh", ".slurm", "/stderr", "package_checker_params", "_storage_report.json",
           "per_epoch_stats.json", "slurm_source_strings.txt")  # fmt: skip
# The excerpt ends before its first row or step.
BEGINNINGS = {"dmon_pucm_columns.txt", "litgpt_pretrain_2023_measured_tflops.txt"}


# --- jobs that died before their first step, and errors in a file of their own ----------------------------------

OUT_OF_MEMORY = (
    "loading\nTraceback (most recent call last):\n"
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.\n"
)


def test_a_job_that_died_before_its_first_step_is_listed_with_what_proves_why(tmp_path: Path) -> None:
    run = one_run(write(tmp_path / "slurm-7.out", OUT_OF_MEMORY))
    assert (run.state, run.reason, run.used) == ("out of gpu memory", "it ended before it reported any step", False)
    assert build(read([tmp_path])).headlines == [
        "No result from slurm-7.out (out of gpu memory): it ended before it reported any step."
    ]
    (ended,) = failures([run]).values()
    assert ended.proof == "slurm-7.out:3: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB."


def test_transports_that_nccl_printed_before_a_death_are_no_result(tmp_path: Path) -> None:
    transports = "n1:7:8 [0] NCCL INFO Channel 02/0 : 0[0] -> 1[1] via P2P/IPC\n"
    run = one_run(write(tmp_path / "slurm-7.out", transports + OUT_OF_MEMORY))
    assert (run.state, run.used) == ("out of gpu memory", False)
    assert len(failures([run])) == 1


def test_text_of_which_nothing_is_known_is_no_run(tmp_path: Path) -> None:
    write(tmp_path / "train.out", megatron([(1, 9), (2, 5)]))
    write(tmp_path / "notes.txt", "the run was slow\n")
    assert len(read_runs([tmp_path])) == 1


@pytest.mark.parametrize(
    ("output", "errors"),
    [("train-7.out", "train-7.err"), ("train.o7", "train.e7"), ("7_0_log.out", "7_0_log.err"), ("stdout", "stderr")],
)
def test_errors_in_a_file_of_their_own_report_why_the_training_beside_them_ended(
    tmp_path: Path, output: str, errors: str
) -> None:
    log = write(tmp_path / output, megatron([(step, 5) for step in range(1, 9)]))
    write(tmp_path / errors, OUT_OF_MEMORY)
    (run,) = read_runs([tmp_path])
    assert (run.name, run.state) == (output, "out of gpu memory")
    assert run.used
    (ended,) = failures([run]).values()
    assert ended.proof == f"{errors}:3: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB."
    assert failures([one_run(log)]) == {}, "without that file there is no evidence"


def test_a_traceback_beside_a_training_may_be_one_that_it_went_on_after(tmp_path: Path) -> None:
    write(tmp_path / "train.out", megatron([(step, 5) for step in range(1, 9)]))
    write(tmp_path / "train.err", "Traceback (most recent call last):\nKeyError: 'metrics server'\n")
    (run,) = read_runs([tmp_path])
    assert (run.state, failures([run])) == ("as far as logged", {})


def test_errors_of_another_job_report_nothing_of_this_one(tmp_path: Path) -> None:
    write(tmp_path / "train-7.out", megatron([(step, 5) for step in range(1, 9)]))
    write(tmp_path / "train-8.err", OUT_OF_MEMORY)
    states = {run.name: run.state for run in read_runs([tmp_path])}
    assert states == {"train-7.out": "as far as logged", "train-8.err": "out of gpu memory"}


def test_files_whose_names_are_no_text_are_read_and_named(tmp_path: Path) -> None:
    write(tmp_path / "train.out", megatron([(step, 5) for step in range(1, 9)]))
    odd = os.fsdecode(b"caf\xe9.dat")
    write(tmp_path / odd, "x")
    found = read([tmp_path])
    assert (len(found.runs), found.unknown) == (1, [odd])
    assert "caf" in page(build(found))


# --- the steady rate, and steps far out of it -------------------------------------------------------------------


def test_one_torn_step_is_named_and_not_in_the_rate(tmp_path: Path) -> None:
    times_ms = [*[1000 + (i % 3) for i in range(20)], 12000]
    run = one_run(write(tmp_path / "job.out", megatron(enumerate(times_ms, 1))))
    assert run.values[a.SAMPLES_PER_S] == pytest.approx(16.0, rel=2e-3)
    assert run.far_out_s == {21: 12.0}
    (sentence,) = [each for each in warnings(Digest([run])) if "step 21" in each and "not in its rate" in each]
    assert "12.00 s" in sentence
    assert "-35 %" in sentence, "what the rate would be with it"


def test_slow_steps_that_come_again_and_again_are_in_the_rate(tmp_path: Path) -> None:
    times_ms = [3000 if i % 5 == 0 else 1000 + (i % 3) for i in range(40)]
    run = one_run(write(tmp_path / "job.out", megatron(enumerate(times_ms, 1))))
    assert run.far_out_s == {}
    assert run.values[a.SAMPLES_PER_S] == pytest.approx(16 / 1.4, rel=0.05)


def test_a_summary_of_the_log_that_differs_from_its_steps_is_named(tmp_path: Path) -> None:
    steps = "".join(
        f"DLL 2026-01-02 03:04:{i:02d}.0 - Epoch: 0 Iteration: {i}  train.loss : 6.{i} train.total_ips : 100.0 img/s\n"
        for i in range(1, 12)
    )
    summary = "DLL 2026-01-02 03:05:00.0 - ()  train.total_ips : {} img/s\n"
    found = one_run(write(tmp_path / "a.log", steps + summary.format(99.0)))
    assert not [each for each in warnings(Digest([found])) if "summary" in each]
    found = one_run(write(tmp_path / "b.log", steps + summary.format(80.0)))
    (sentence,) = [each for each in warnings(Digest([found])) if "summary" in each]
    assert "b.log" in sentence
    assert "80.00" in sentence


def test_a_time_that_several_nodes_print_is_that_of_the_slowest(tmp_path: Path) -> None:
    text = (SAMPLES / "litgpt_two_nodes.txt").read_text()
    first, second = (line for line in text.splitlines() if "Training time" in line)
    turned = text.replace(first, "").replace(second, f"{second}\n{first}")
    times = {
        one_run(write(tmp_path / f"{i}.log", each)).values[a.TRAINING_TIME] for i, each in enumerate((text, turned))
    }
    assert times == {32.5}


def test_steps_that_a_log_does_not_count_are_no_axis(tmp_path: Path) -> None:
    head = "".join([logged("submission_benchmark", "bert", 0), logged("run_start", None, 0)])
    events = "".join(logged("train_loss", 9 - i / 10, 10 * i, samples_count=64 * i) for i in range(1, 12))
    (run,) = read_runs([write(tmp_path / "a" / "r.txt", head + logged("global_batch_size", 16, 0) + events)])
    assert list(run.losses) == [4 * i for i in range(1, 12)], "64 samples are four steps"
    (run,) = read_runs([write(tmp_path / "b" / "r.txt", head + events)])
    assert not run.steps_are_numbered


def test_a_rate_of_one_digit_is_no_step_time(tmp_path: Path) -> None:
    bar = "Epoch 0:   5%|5    | {0}/100 [{1:02d}:00<01:00, {2}it/s, v_num=, loss=9.0, global_step={0}.0]\n"
    rounded = one_run(write(tmp_path / "a.log", "".join(bar.format(i, i, "0.02") for i in range(1, 9))))
    assert m.STEP_TIME_MEDIAN not in rounded.values
    exact = one_run(write(tmp_path / "b.log", "".join(bar.format(i, i, "2.53") for i in range(1, 9))))
    assert exact.values[m.STEP_TIME_MEDIAN] == pytest.approx(1 / 2.53)


def test_a_launcher_adds_the_nodes_that_the_program_does_not_state(tmp_path: Path) -> None:
    log = "NNODES: 2\nGPUS_PER_NODE: 4\n" + megatron([(step, 1000.0) for step in range(1, 9)])
    run = one_run(write(tmp_path / "job.out", log))
    assert run.setting("ranks") == 8
    assert (run.setting("nodes"), run.setting("ranks_per_node")) == (2, 4)


def test_a_launcher_that_contradicts_the_program_adds_nothing(tmp_path: Path) -> None:
    log = "NNODES: 3\n" + megatron([(step, 1000.0) for step in range(1, 9)])
    run = one_run(write(tmp_path / "job.out", log))
    assert (run.setting("ranks"), run.setting("nodes")) == (8, None)


def test_lines_of_a_launcher_alone_are_no_log_and_describe_none_beside_them(tmp_path: Path) -> None:
    write(tmp_path / "job.out", megatron([(step, 1000.0) for step in range(1, 9)]))
    (tmp_path / "notes.txt").write_text("NNODES=4\nGPUS_PER_NODE=4\n")
    (run,) = read_runs([tmp_path])
    assert run.setting("nodes") is None


def micro_batches(log_every: int = 1) -> str:
    """Twelve steps of four micro-batches of 50, 60, 70 and 80 ms, as LitGPT prints them."""
    lines = []
    for micro in range(1, 49):
        step, left = divmod(micro, 4)
        if micro % log_every == 0:
            time_ms = (80.0, 50.0, 60.0, 70.0)[left]
            lines.append(f"Epoch 1 | iter {micro} step {step} | loss train: {9 - micro / 10:.3f}, val: n/a"
                         f" | iter time: {time_ms:.2f} ms{'' if left else ' (step)'}\n")  # fmt: skip
    return "".join(lines)


def test_a_step_takes_the_time_of_its_micro_batches_if_all_of_them_are_logged(tmp_path: Path) -> None:
    run = one_run(write(tmp_path / "job.out", micro_batches()))
    assert run.values[m.STEP_TIME_MEDIAN] == pytest.approx(0.26)
    assert run.values[a.STEPS_PER_S] == pytest.approx(1 / 0.26)
    assert list(run.losses) == list(range(1, 13))
    every_second = one_run(write(tmp_path / "other" / "job.out", micro_batches(log_every=2)))
    assert every_second.reason == "it reports the times of micro-batches, not of whole steps"

"""Calibration: constants recovered from runs made with them, the file of a site, and what is refused."""

from __future__ import annotations

import csv
from dataclasses import replace
from datetime import date
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from jobs.cli import main, run_command
from jobs.errors import ConfigError
from jobs.files import read_yaml
from jobs.plan.calibrate import MeasuredRun, calibrate_on
from jobs.plan.legality import warnings
from jobs.plan.measured_table import read_table
from jobs.plan.predict.calibration import (
    STEP_TIME_PRIOR,
    Fit,
    calibration_of,
    memory_prior,
    parsed_fit,
    read_calibration,
    record,
)
from jobs.plan.predict.constants import MemoryConstants, StepTimeConstants
from jobs.plan.predict.fit import MOST_RUNS, STEP_TIME, Candidates, Sample, choose, fitted, memory_of, shifts
from jobs.plan.predict.interval import Interval
from jobs.plan.predict.memory import MemoryWork, counted_bytes, memory, memory_work
from jobs.plan.predict.speed import speed
from jobs.plan.predict.step_time import StepWork, step_time, step_time_s, step_work
from jobs.schema import EngineKind, Run
from tests.benchmarks.plan_benchmark import judged_sources
from tests.benchmarks.plan_tables import measurements
from tests.support.composing import one
from tests.support.fake_runs import finished_run

DEFAULTS = StepTimeConstants()
TRUE = replace(DEFAULTS, matrix_share=0.7, layer_launch_s=6e-3, network_efficiency=0.3, link_efficiency=0.45)
TRUE_MEMORY = MemoryConstants(activations=1.6, loss=0.7)
NOISE = 0.02
COMMON = ("cluster=xe9680_h100", "gpu.memory_gb=null", "engine=nemo", "job.sequence_length=4096",
          "job.precision=bfloat16", "scaling.global_batch_size=256", "engine.overlap_communication=false")  # fmt: skip
TODAY = date(2026, 11, 25)


@cache
def space() -> list[Run]:
    """Layouts of two models on one to eight nodes."""
    base = {model: one(*COMMON, f"model={model}", "parallelism=tp").run for model in ("llama31_8b", "llama2_13b")}
    runs = []
    for model in base.values():
        for nodes in (1, 2, 8):
            for tensor in (1, 2, 4, 8):
                for micro_batch in (1, 4):
                    parallelism = replace(model.parallelism, tensor=tensor)
                    job = replace(model.job, micro_batch_size=micro_batch)
                    runs.append(replace(model, nodes=nodes, parallelism=parallelism, job=job))
    return runs


@cache
def works() -> list[StepWork]:
    found = [step_work(run) for run in space()]
    return [work for work in found if work is not None]


def noisy(value: float, random: np.random.Generator) -> float:
    return value * float(np.exp(NOISE * random.standard_normal()))


def measured(work: StepWork, random: np.random.Generator) -> float:
    return noisy(step_time(work, TRUE).total, random)


def measured_runs() -> list[MeasuredRun]:
    """Runs with the step times and memory of the true constants."""
    random, found = np.random.default_rng(3), []
    for i, run in enumerate(space()[::10]):
        work = step_work(run)
        assert work is not None
        size = noisy(counted_bytes(memory_work(run), TRUE_MEMORY), random)
        found.append(MeasuredRun(f"run{i}", run, measured(work, random), size))
    return found


def step_interval(fit: Fit[StepTimeConstants], work: StepWork) -> Interval:
    return fit.interval(lambda constants: step_time_s(work, constants))


def test_all_runs_recover_the_constants_that_they_separate() -> None:
    # The rates of matrices and of memory, and those of a network and of its decay, trade against each other.
    random = np.random.default_rng(4)
    samples = [Sample(work, measured(work, random)) for work in works()]
    found = STEP_TIME.constants_at(shifts(STEP_TIME, samples))
    for name in ("layer_launch_s", "link_efficiency"):
        assert getattr(found, name) == pytest.approx(getattr(TRUE, name), rel=0.1), name
    assert TRUE.matrix_share < found.matrix_share < DEFAULTS.matrix_share


def test_five_runs_chosen_once_predict_the_step_time_and_the_memory_of_the_others() -> None:
    runs, all_works = space(), works()
    quantity = memory_of(EngineKind.nemo)
    held = [memory_work(run) for run in runs]
    true_times = [step_time(work, TRUE).total for work in all_works]
    true_sizes = [counted_bytes(work, TRUE_MEMORY) for work in held]
    random = np.random.default_rng(0)
    times, sizes = ([noisy(value, random) for value in true] for true in (true_times, true_sizes))
    tried = choose([Candidates(STEP_TIME, all_works), Candidates(quantity, held)], lambda i: [times[i], sizes[i]])
    assert len(set(tried)) == MOST_RUNS
    fit = fitted(STEP_TIME, [Sample(all_works[i], times[i]) for i in tried], "own")
    judge(times, true_times, [step_interval(STEP_TIME_PRIOR, x) for x in all_works],
          [step_interval(fit, x) for x in all_works])  # fmt: skip
    of_memory = fitted(quantity, [Sample(held[i], sizes[i]) for i in tried], "own")
    assert of_memory.constants.activations == pytest.approx(1.6, rel=0.15)
    judge(sizes, true_sizes, *([of_memory_interval(each, x) for x in held] for each in (quantity.prior, of_memory)))


def of_memory_interval(fit: Fit[MemoryConstants], work: MemoryWork) -> Interval:
    return fit.interval(lambda constants: counted_bytes(work, constants))


def judge(found: list[float], true: list[float], before: list[Interval], after: list[Interval]) -> None:
    """Fitted predictions are near, those by defaults are not, and the intervals hold most of the measurements."""
    errors = [
        np.median([abs(each.point / value - 1) for each, value in zip(intervals, true, strict=True)])
        for intervals in (before, after)
    ]
    assert errors[1] < 0.05 < 0.12 < errors[0]
    assert np.mean([each.low < value < each.high for each, value in zip(after, found, strict=True)]) > 0.8


def test_the_chosen_runs_are_of_several_kinds() -> None:
    """Computation hides the network of every run on many nodes, so none of them lowers its uncertainty in the fit."""
    base = one("cluster=xe9680_h100", "gpu.memory_gb=null", "model=llama2_13b", "parallelism=fsdp_full",
               "job.precision=bfloat16", "scaling.global_batch_size=1024", "job.sequence_length=2048",
               "job.micro_batch_size=2").run  # fmt: skip
    runs = [replace(base, nodes=nodes) for nodes in (16, 20, 24, 28, 32, 40, 48, 64)]
    long = [replace(base.job, sequence_length=length, micro_batch_size=1) for length in (8192, 16384, 32768, 65536)]
    runs += [replace(base, nodes=1, job=job) for job in long]
    found = [work for run in runs if (work := step_work(run)) is not None]
    tried = choose([Candidates(STEP_TIME, found)], lambda i: [step_time_s(found[i], DEFAULTS)])
    assert {runs[i].nodes > 1 for i in tried} == {True, False}


def test_a_run_that_failed_is_replaced_and_a_faulty_one_pulls_little() -> None:
    all_works, random = works()[::3], np.random.default_rng(2)
    times = [measured(work, random) for work in all_works]
    (first, *_) = choose([Candidates(STEP_TIME, all_works)], lambda i: [times[i]], 1)
    tried = choose([Candidates(STEP_TIME, all_works)], lambda i: None if i == first else [times[i]])
    assert tried[0] == first
    assert len(tried) == MOST_RUNS + 1
    samples = [Sample(all_works[i], times[i]) for i in tried[1:]]
    found = fitted(STEP_TIME, [*samples, Sample(all_works[0], 20 * times[0])], "one of them 20 times too slow")
    errors = [abs(step_time(work, found.constants).total / step_time(work, TRUE).total - 1) for work in all_works]
    assert np.median(errors) < 0.1


def test_one_run_far_from_all_others_does_not_weaken_what_these_say() -> None:
    work = works()[0]
    slow, fast = (Sample(work, factor * step_time(work, DEFAULTS).total) for factor in (1.3, 0.6))
    found = fitted(STEP_TIME, [slow] * 4 + [fast], "five")
    assert step_time(work, found.constants).total == pytest.approx(slow.measured, rel=0.04)
    assert found.noise > STEP_TIME_PRIOR.noise


def test_the_interval_is_wider_for_a_run_that_is_composed_unlike_the_fitted_ones_and_stays_so_in_the_file() -> None:
    # One node, where matrices decide; on eight nodes most of the time is the network's.
    near, far = works()[4], works()[-1]
    samples = [Sample(work, step_time(work, DEFAULTS).total) for work in works()[:6]]
    fit = fitted(STEP_TIME, samples, "six")
    widths = {}
    for name, each in (("with", fit), ("without", replace(fit, runs=()))):
        widths[name] = [x.high / x.low for x in (step_interval(each, near), step_interval(each, far))]
    assert widths["with"][0] == widths["without"][0], "it is one of the fitted ones"
    assert widths["with"][1] > 1.1 * widths["without"][1]
    kept = record(fit)
    assert np.allclose(parsed_fit(kept, DEFAULTS).runs, fit.runs, rtol=1e-4)
    del kept["runs"]
    assert parsed_fit(kept, DEFAULTS).runs == (), "files of before have none"
    with pytest.raises(ValueError, match="its runs do not have 12 numbers each"):
        parsed_fit({**kept, "runs": [[1.0]]}, DEFAULTS)


def test_a_run_far_off_its_prediction_narrows_no_interval() -> None:
    (work, *_), logs = works(), np.zeros(len(STEP_TIME.deviations))
    predicted, (slopes,) = step_time(work, DEFAULTS).total, STEP_TIME.derivatives(works()[:1], logs)

    def variance(*times: float) -> float:
        return float(slopes @ STEP_TIME.covariance([Sample(work, time) for time in times], logs) @ slopes)

    assert variance(predicted) < 0.5 * variance()
    assert variance(20 * predicted) > 0.8 * variance()


def test_runs_narrow_the_interval_and_none_leave_the_published_constants() -> None:
    (work, *_) = works()
    sample = Sample(work, step_time(work, TRUE).total)
    wide, narrow = (step_interval(fit, work) for fit in (STEP_TIME_PRIOR, fitted(STEP_TIME, [sample] * 3, "own")))
    assert narrow.high / narrow.low < wide.high / wide.low
    assert fitted(STEP_TIME, [], "nothing").constants == DEFAULTS
    assert memory_prior(EngineKind.native).noise < memory_prior(EngineKind.nemo).noise


def test_calibrate_writes_one_dated_file_for_step_time_and_memory_that_plan_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURMSCALE_SITE", str(tmp_path))
    made = measured_runs()
    text = calibrate_on(made, None, TODAY).text
    file = tmp_path / "calibration" / "xe9680_h100-2026-11-25.yaml"
    assert f"{file}: set cluster.calibration={file}" in text
    assert "h100_sxm, engine=nemo:" in text
    assert "run0: step time measured " in text
    assert "run0: memory measured " in text
    calibrated = (*COMMON, "model=llama31_8b", "parallelism=tp", "parallelism.tensor=4", "nodes=2",
                  "job.micro_batch_size=4", "cluster.calibration=calibration/" + file.name)  # fmt: skip
    run = one(*calibrated).run
    basis = f"calibrated: fitted to {len(made)} runs on h100_sxm by nemo, 2026-11-25"
    found, held, plain = speed(run), memory(run), memory(one(*calibrated, "cluster.calibration=null").run)
    work = step_work(run)
    assert found is not None
    assert work is not None
    assert found.basis == held.basis == basis
    true_s = step_time(work, TRUE).total
    assert found.step_time_s.low < true_s < found.step_time_s.high
    assert abs(found.step_time_s.point / true_s - 1) < 0.15 < abs(step_time(work, DEFAULTS).total / true_s - 1)
    true = counted_bytes(memory_work(run), TRUE_MEMORY)
    assert held.allocated.low < true < held.allocated.high
    assert abs(held.allocated.point / true - 1) < 0.1 < abs(plain.allocated.point / true - 1)
    # The verdict is that of the calibrated interval.
    between = (held.device.low + plain.device.low) / 2 / 2**30
    assert plain.device.low < held.device.low
    with pytest.raises(ConfigError, match=r"does not fit .* \(calibrated: predicted "):
        one(*calibrated, f"gpu.memory_gb={between}")
    assert main(["plan", "--why", *calibrated]) == 0
    printed = capsys.readouterr().out
    assert printed.count(basis) == 2
    with pytest.raises(ConfigError, match=r"exists\. Remove it, or set another file with --output FILE\.yaml\."):
        calibrate_on(made, None, TODAY)
    other = one("cluster=xe9680_h100", "model=tiny", f"cluster.calibration={file}").run
    assert calibration_of(other).memory is None
    assert any(
        "has no fit of gpu=h100_sxm engine=native, so predictions are uncalibrated" in x for x in warnings(other)
    )


def test_calibrate_names_a_run_that_the_fit_does_not_explain(tmp_path: Path) -> None:
    first, *others = measured_runs()
    disturbed = replace(first, step_time_s=4 * (first.step_time_s or 0))
    lines = calibrate_on([disturbed, *others], tmp_path / "c.yaml", TODAY).text.splitlines()
    named = [line.strip() for line in lines if "the fit does not explain: check this run, and measure it again" in line]
    assert [line.partition(":")[0] for line in named] == ["run0"]


def test_among_few_runs_one_that_is_slow_beyond_all_machines_is_not_chosen_and_named(tmp_path: Path) -> None:
    runs = measured_runs()
    plain = calibrate_on(runs, tmp_path / "plain.yaml", TODAY, 2)
    (usual, *_) = read_yaml(tmp_path / "plain.yaml")["fits"][0]["runs"]
    slow = [replace(x, step_time_s=20 * (x.step_time_s or 0)) if x.name == usual["name"] else x for x in runs]
    told = calibrate_on(slow, tmp_path / "c.yaml", TODAY, 2).text
    assert f"{usual['name']}: step time measured " in told
    assert " s of the defaults: measure it again; it was not chosen" in told
    assert usual["name"] not in [each["name"] for each in read_yaml(tmp_path / "c.yaml")["fits"][0]["runs"]]
    assert "measure it again" not in plain.text


def test_a_gpu_of_any_name_is_calibrated(tmp_path: Path) -> None:
    (first, *_) = measured_runs()
    run = replace(first.run, gpu=replace(first.run.gpu, name="rtx_pro_6000"))
    assert "rtx_pro_6000, engine=nemo:" in calibrate_on([replace(first, run=run)], tmp_path / "c.yaml", TODAY).text


def test_runs_with_limited_gpus_teach_nothing_about_others(tmp_path: Path) -> None:
    (first, second, *_) = measured_runs()
    limited = replace(first.run, cluster=replace(first.run.cluster, gpu_power_limit_w=300.0))
    text = calibrate_on([replace(first, run=limited), second], tmp_path / "c.yaml", TODAY).text
    assert text.startswith("1 run left out: their GPUs were limited (cluster.gpu_...)")
    assert [each["name"] for each in read_yaml(tmp_path / "c.yaml")["fits"][0]["runs"]] == [second.name]


def test_wrong_files_and_runs_are_refused_in_words(tmp_path: Path) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text("fits: [{gpu: a, engine: nemo, step_time: {constants: {matrix_share: 1}}}]\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"is not a calibration: its constants are matrix_share, not .*"
                       r"cluster\.calibration=null for published constants"):  # fmt: skip
        read_calibration(file)
    with pytest.raises(ConfigError, match=r"cluster\.calibration: .*missing\.yaml is not a calibration"):
        one("model=tiny", f"cluster.calibration={tmp_path / 'missing.yaml'}")
    with pytest.raises(ConfigError, match=r"No finished run on a known GPU.*Pass sweeps, run directories or tables"):
        calibrate_on([MeasuredRun("tiny", one("model=tiny").run, 1.0)], None, TODAY)
    with pytest.raises(ConfigError, match=r"--most 0: fit to 1 run or more"):
        calibrate_on([], None, TODAY, 0)


def test_a_table_of_keys_is_calibrated_to_a_few_rows_and_the_others_are_predicted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, file = tmp_path / "runs.csv", tmp_path / "mine.yaml"
    keys: dict[str, object] = {**dict(line.split("=", 1) for line in COMMON)}
    rows = [
        keys
        | {
            "parallelism": "tp",
            "model": each.run.model.name,
            "nodes": each.run.nodes,
            "parallelism.tensor": each.run.parallelism.tensor,
            "job.micro_batch_size": each.run.job.micro_batch_size,
            "step_time_s": each.step_time_s,
            "memory_bytes": each.memory_bytes if i else "",
        }
        for i, each in enumerate(measured_runs())
    ]
    with table.open("w", newline="", encoding="utf-8") as lines:
        writer = csv.DictWriter(lines, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    assert run_command(["calibrate", str(table), "--most", "2", "--output", str(file)]) == 0
    printed = capsys.readouterr().out
    assert f"step time of {len(rows) - 2} runs held out: median error " in printed
    assert "memory of " in printed
    found = read_calibration(file).fits["h100_sxm", "nemo"]
    assert found.step_time is not None
    assert found.step_time.constants.matrix_share < DEFAULTS.matrix_share
    table.write_text("model,nodes,step_time_s\ntiny,1,fast\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"runs\.csv:2: step_time_s is 'fast'\. Write a number above 0, or leave"):
        read_table(table)
    table.write_text("model,nodes,step_time_s\ntiny,0,1\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"runs\.csv:2: [\s\S]*nodes=0 is not a positive number"):
        read_table(table)
    table.write_text("model,nodes\ntiny,1\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="has no column step_time_s or memory_bytes"):
        read_table(table)


def test_the_command_fits_the_steady_steps_of_runs_on_the_configured_device(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = tmp_path / "sweep"
    for i, run in enumerate(space()[:3]):
        work = step_work(run)
        assert work is not None
        named = replace(run, name=f"run{i}", job=replace(run.job, steps=6, epochs=None, unmeasured_steps=2))
        device = run.gpu.device_name if i else "Test CPU"
        finished_run(sweep, named, step_time_s=step_time(work, TRUE).total, device_name=device)
    file = tmp_path / "mine.yaml"
    assert run_command(["calibrate", str(sweep), "--output", str(file)]) == 0
    printed = capsys.readouterr().out
    assert "run0" not in printed
    assert f"{sweep / 'run1'}: step time measured" in printed
    found = read_calibration(file).fits["h100_sxm", "nemo"].step_time
    assert found is not None
    assert str(found.fitted_to).startswith("2 runs on h100_sxm")
    assert found.constants.matrix_share < DEFAULTS.matrix_share


SWEEP = "source,model,gpu,n_nodes,n_gpus,dp,tp,pp,zero_stage,mbs,gbs,tokens_per_s,memory_gb,status"


def test_the_benchmark_reads_a_directory_of_tables_by_their_names(tmp_path: Path) -> None:
    rows = [
        f"s,{model},H100,1,8,{8 // tp},{tp},1,1,{size},{8 // tp * 64},{rate},{memory},{status}"
        for model, tp, size, rate, memory, status in [
            *(("1B", tp, size, 2e5, 5 + 12 * size / tp, "ok") for tp in (1, 2, 4, 8) for size in (1, 2, 4)),
            ("8B", 1, 8, "nan", "nan", "no_result"),
            ("1B", 8, 1, "nan", "nan", "no_result"),
        ]
    ]
    (tmp_path / "nanotron_ultrascale_sweep.csv").write_text("\n".join([SWEEP, *rows]) + "\n")
    ((source, found),) = judged_sources(measurements(tmp_path))
    assert source == "nanotron_ultrascale_sweep/h100_sxm"
    assert len(found.chosen) == MOST_RUNS
    for scored in (found.speed(found.after), found.memory(found.after)):
        assert scored is not None
        assert scored.rows == 12 - MOST_RUNS, "those that fitted the constants are not judged"
    assert found.verdicts()["does not fit", "no result"] == 1, "170 GB of states"
    assert found.verdicts()["fits", "no result, though as much memory ran"] == 1

"""Attempts of one training, in one log or a file each: merged by contents, counted once; not if ambiguous."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from analysis.load.discover import read_runs
from analysis.parsers import log_metrics as a
from analysis.report.caveats import warnings
from analysis.report.digest import Digest
from analysis.report.report import report
from analysis.run import RunResult
from jobs import metrics as m
from tests.analysis.parsers.reading import SAMPLES
from tests.support.megatron_logs import megatron, write


def attempt(
    path: Path,
    steps: Iterable[int],
    *,
    resumed_at: int | None = None,
    time_ms: float = 1000.0,
    directory: str = "checkpoints/a",
    saved_at: int | None = None,
    stamp: str = "",
    batch: int = 16,
) -> Path:
    """A Megatron-LM log of these steps; the first one takes five times as long."""
    steps = list(steps)
    text = megatron(((i, 5 * time_ms if i == steps[0] else time_ms) for i in steps), batch=batch)
    head, first, rest = text.partition(" iteration ")
    if resumed_at:
        head += f"  successfully loaded checkpoint from {directory} [ t 1/1, p 1/1 ] at iteration {resumed_at}\n"
    text = head + first + rest
    if stamp:
        text = re.sub(r"(?m)^ iteration", f" [{stamp}] iteration", text)
    if saved_at:
        text += f"  successfully saved checkpoint from iteration {saved_at:7d} to {directory} [ t 1/1, p 1/1 ]\n"
    return write(path, text)


def by_name(path: Path) -> dict[str, RunResult]:
    return {run.name: run for run in read_runs([path])}


def test_attempts_are_one_training_whose_steps_count_once_and_whose_lost_work_is_reported(tmp_path: Path) -> None:
    attempt(tmp_path / "slurm-7.out", range(1, 56), saved_at=50)
    attempt(tmp_path / "slurm-9.out", range(51, 101), resumed_at=50)
    runs = by_name(tmp_path)
    first, last = runs["slurm-7.out"], runs["slurm-9.out"]
    assert (first.used, first.state) == (False, "attempt")
    assert first.reason == "attempt 1 of 2 of the training that ends in slurm-9.out; its steps count there"
    assert list(last.losses) == list(range(1, 101))
    assert last.attempts == 2
    # The first step of each attempt is warm-up; steps 51 to 55 of the first attempt were lost.
    assert last.steady_steps == 49 + 49
    assert last.values[m.LOST_TIME] == pytest.approx(5)
    assert [(loss.cause, round(loss.time_s, 6)) for loss in last.lost_to] == [("unknown", 5.0)]
    (message,) = [each for each in warnings(Digest([last])) if "attempts" in each]
    assert message == (
        "slurm-9.out contains the last of 2 attempts of one training (slurm-7.out, slurm-9.out), according to its "
        "resume line. Lost: 5 steps, 5.00 s. Repeated steps count once."
    )
    assert "attempt 1 of 2" in (report([tmp_path], tmp_path / "out").parent / "report.md").read_text()


def test_three_attempts_of_which_two_start_from_the_same_checkpoint_are_in_the_order_of_their_times(
    tmp_path: Path,
) -> None:
    attempt(tmp_path / "c.out", range(1, 56), stamp="2026-01-02 03:00:00")
    attempt(tmp_path / "b.out", range(51, 59), resumed_at=50, stamp="2026-01-02 04:00:00")
    attempt(tmp_path / "a.out", range(51, 81), resumed_at=50, stamp="2026-01-02 05:00:00")
    runs = by_name(tmp_path)
    assert {name: run.state for name, run in runs.items() if not run.used} == {"b.out": "attempt", "c.out": "attempt"}
    assert list(runs["a.out"].losses) == list(range(1, 81))
    # 5 steps of c, and all 8 of b, whose first one took 5 s.
    assert runs["a.out"].values[m.LOST_TIME] == pytest.approx(5 + 12)


def test_without_times_that_would_order_them_they_are_left_apart_and_that_is_reported(tmp_path: Path) -> None:
    attempt(tmp_path / "a.out", range(1, 56))
    attempt(tmp_path / "b.out", range(51, 59), resumed_at=50)
    attempt(tmp_path / "c.out", range(51, 81), resumed_at=50)
    runs = by_name(tmp_path)
    assert [run.used for run in runs.values()] == [True] * 3
    message = [each for each in warnings(Digest(list(runs.values()))) if "is not merged" in each]
    assert message == [
        f"{one} resumes a training from step 50; it is not merged with a.out and {other}, because their order is "
        "ambiguous."
        for one, other in (("b.out", "c.out"), ("c.out", "b.out"))
    ]


def test_of_two_trainings_the_one_that_saved_the_checkpoint_goes_on(tmp_path: Path) -> None:
    attempt(tmp_path / "a.out", range(1, 56), saved_at=50, directory="ckpt/a", time_ms=900.0)
    attempt(tmp_path / "b.out", range(1, 56), saved_at=50, directory="ckpt/b")
    attempt(tmp_path / "c.out", range(51, 81), resumed_at=50, directory="ckpt/b")
    runs = by_name(tmp_path)
    assert {name for name, run in runs.items() if run.used} == {"a.out", "c.out"}
    assert runs["b.out"].state == "attempt"


def test_of_two_trainings_that_do_not_report_their_checkpoints_none_is_guessed(tmp_path: Path) -> None:
    attempt(tmp_path / "a.out", range(1, 56), time_ms=900.0)
    attempt(tmp_path / "b.out", range(1, 56))
    attempt(tmp_path / "c.out", range(51, 81), resumed_at=50)
    runs = by_name(tmp_path)
    assert [run.used for run in runs.values()] == [True] * 3
    assert any("is not merged with a.out and b.out" in each for each in warnings(Digest(list(runs.values()))))


@pytest.mark.parametrize(
    "other",
    [
        {"steps": range(51, 81)},  # does not report that it resumed, as a first file whose beginning was cut off
        {"steps": range(51, 81), "resumed_at": 50, "batch": 32},
        {"steps": range(71, 91), "resumed_at": 70},  # a file between them is missing
        {"steps": range(1, 81)},
    ],
)
def test_different_trainings_are_never_joined(other: dict[str, object], tmp_path: Path) -> None:
    attempt(tmp_path / "job.1", range(1, 56), time_ms=900.0)
    attempt(tmp_path / "job.2", **other)  # type: ignore[arg-type]
    runs = by_name(tmp_path)
    assert [(run.used, run.attempts) for run in runs.values()] == [(True, 1)] * 2


def test_a_fork_with_another_learning_rate_is_another_training(tmp_path: Path) -> None:
    attempt(tmp_path / "a.out", range(1, 81))
    fork = attempt(tmp_path / "b.out", range(51, 81), resumed_at=50)
    fork.write_text(fork.read_text().replace("learning rate: 1.0E-04", "learning rate: 3.0E-04"))
    assert [(run.used, run.attempts) for run in by_name(tmp_path).values()] == [(True, 1)] * 2


@pytest.mark.parametrize(
    ("line", "step"),
    [
        ("[rank0]:[titan] 2026-01-02 03:04:05,006 - root - INFO - Training starts at step 3.",
         "[rank0]:[titan] 2026-01-02 03:04:05,006 - root - INFO - step: {i}  loss:  {loss:.4f}  memory:  1.25GiB(1.58%)"
         "  tps: 7,000  tflops: 396.00  mfu: 40.00%"),
        ("01/02/2026 03:04:05 [INFO|DP=0|PP=0|TP=0]: [Start training] datetime: 2026-01-02 | mbs: 2 | grad_accum: 1 | "
         "train_steps: 9 | start_iteration_step: 2 | consumed_train_samples: 8",
         "01/02/2026 03:04:05 [INFO|DP=0|PP=0|TP=0]: iteration: {i} / 9 | consumed_tokens: {i}K | "
         "elapsed_time_per_iteration_ms: 50 | tokens_per_sec: 14.2K | tokens_per_sec_per_gpu: 1.78K "
         "| lm_loss: {loss:.1f}"),
    ],
)  # fmt: skip
def test_other_programs_state_in_their_own_words_where_they_go_on(line: str, step: str, tmp_path: Path) -> None:
    settings = {
        "titan": "[rank0]:[titan] Building 1-D device mesh with ['dp_shard'], [8]",
        "nano": "[INFO|DP=0|PP=0|TP=0]: Config(model=ModelArgs(model_config=LlamaConfig(hidden_size=16,",
    }["titan" if "titan" in line else "nano"]
    for name, first, head in (("a", 1, ""), ("b", 3, f"{line}\n")):
        lines = "".join(step.format(i=i, loss=9 - i) + "\n" for i in range(first, first + 4))
        lines = lines.replace("03:04:05", "03:04:05" if name == "a" else "04:04:05")
        write(tmp_path / f"{name}.log", f"{settings}\n{head}{lines}")
    write(tmp_path / "facts.yaml", "ranks: 8\n")
    runs = by_name(tmp_path)
    assert runs["a.log"].state == "attempt"
    assert list(runs["b.log"].losses) == [1, 2, 3, 4, 5, 6]
    assert a.STEPS_PER_S in runs["b.log"].values or m.TOKENS_PER_S in runs["b.log"].values


# --- in one log ------------------------------------------------------------------------------------------------


def in_one_log(path: Path, *attempts: Path) -> RunResult:
    """The run of a log that holds these one after the other."""
    write(path / "job.out", "".join(attempt.read_text() for attempt in attempts))
    (run,) = read_runs([path / "job.out"])
    return run


def test_a_log_of_a_requeued_job_reports_what_was_computed_twice_on_the_page_and_in_the_table(tmp_path: Path) -> None:
    first = attempt(tmp_path / "1" / "part", range(1, 56), saved_at=50)
    run = in_one_log(tmp_path / "log", first, attempt(tmp_path / "2" / "part", range(51, 101), resumed_at=50))
    assert list(run.losses) == list(range(1, 101))
    assert (run.attempts, run.steady_steps) == (2, 49 + 49)
    assert [run.values[m.LOST_STEPS], run.values[m.LOST_TIME]] == pytest.approx([5, 5])
    page = report([tmp_path / "log"], tmp_path / "out").parent
    assert (
        "job.out contains 2 attempts of one training. Lost: 5 steps, 5.00 s. Repeated steps count once."
        in (page / "report.md").read_text()
    )
    (row,) = csv.DictReader((page / "runs.csv").read_text().splitlines())
    assert [float(row[name]) for name in ("lost_steps", "lost_time_s", "attempts")] == pytest.approx([5, 5, 2])


def test_an_attempt_that_goes_on_where_the_one_before_ended_lost_nothing(tmp_path: Path) -> None:
    first = attempt(tmp_path / "1" / "part", range(1, 51))
    run = in_one_log(tmp_path / "log", first, attempt(tmp_path / "2" / "part", range(51, 61), resumed_at=50))
    assert (run.attempts, run.values[m.LOST_STEPS], run.values[m.LOST_TIME]) == (2, 0, 0)


def test_of_lines_of_ten_steps_those_after_a_checkpoint_between_two_are_lost(tmp_path: Path) -> None:
    first = attempt(tmp_path / "1" / "part", range(10, 101, 10))
    run = in_one_log(tmp_path / "log", first, attempt(tmp_path / "2" / "part", range(80, 121, 10), resumed_at=75))
    assert list(run.losses) == list(range(10, 121, 10))
    # Five steps from the line of step 80, ten each from 90 and 100.
    assert [run.values[m.LOST_STEPS], run.values[m.LOST_TIME]] == pytest.approx([25, 25])


def test_steps_that_no_later_attempt_reached_again_are_lost_too(tmp_path: Path) -> None:
    parts = [
        attempt(tmp_path / "1" / "part", range(1, 56)),
        attempt(tmp_path / "2" / "part", range(41, 51), resumed_at=40),
        attempt(tmp_path / "3" / "part", range(31, 36), resumed_at=30),
    ]
    run = in_one_log(tmp_path / "log", *parts)
    assert list(run.losses) == list(range(1, 36))
    # 41 to 55, then 31 to 40 of the first attempt; 41 to 50 of the second, whose first step took 5 s.
    assert (run.attempts, run.values[m.LOST_STEPS]) == (3, 25 + 10)
    assert run.values[m.LOST_TIME] == pytest.approx(25 + 14)


def test_of_a_log_that_begins_anew_nothing_is_reported_to_be_lost(tmp_path: Path) -> None:
    first = attempt(tmp_path / "1" / "part", range(1, 56))
    run = in_one_log(tmp_path / "log", first, attempt(tmp_path / "2" / "part", range(1, 11), time_ms=900.0))
    assert run.attempts == 1
    assert not {m.LOST_STEPS, m.LOST_TIME} & run.values.keys()
    assert run.log is not None
    assert run.log.note is None


# --- real logs of programs that were killed and resumed ------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "steps", "lost_steps", "lost_s"),
    [
        ("litgpt_resumed.txt", 9, 2, 0.54429 + 0.56375),
        # Lines of micro-batches: none of them contains the time of their step.
        ("litgpt_resumed_accumulating.txt", 9, 1, None),
        ("nemo_resumed.txt", 9, 2, 0.2906 + 0.05391),
        # No line names its step.
        ("hf_trainer_resumed.txt", None, None, None),
    ],
)
def test_a_killed_and_resumed_training_is_two_attempts(
    file: str, steps: int | None, lost_steps: int | None, lost_s: float | None
) -> None:
    (run,) = read_runs([SAMPLES / file])
    assert run.attempts == 2
    assert run.values.get(m.LOST_STEPS) == lost_steps
    assert run.values.get(m.LOST_TIME) == (None if lost_s is None else pytest.approx(lost_s))
    if steps:
        assert (min(run.losses), max(run.losses)) == (1, steps)


@pytest.mark.parametrize(
    ("file", "resumed"),
    [("litgpt_resumed.txt", "Resuming training from"), ("nemo_resumed.txt", "Restored all states")],
)
def test_the_same_attempts_in_files_of_their_own_are_joined_and_lose_the_same(
    file: str, resumed: str, tmp_path: Path
) -> None:
    (whole,) = read_runs([SAMPLES / file])
    text = (SAMPLES / file).read_text()
    begin = "{'access_token'" if file.startswith("litgpt") else "GPU available"
    at = text.index(begin, text.index(begin) + 1)
    assert at < text.index(resumed)
    write(tmp_path / "1.out", text[:at])
    write(tmp_path / "2.out", text[at:])
    runs = by_name(tmp_path)
    assert runs["1.out"].state == "attempt"
    for metric in (m.LOST_STEPS, m.LOST_TIME):
        assert runs["2.out"].values[metric] == pytest.approx(whole.values[metric])
    assert runs["2.out"].losses == whole.losses


@pytest.mark.parametrize(
    ("epochs", "resumed", "kept"),
    [
        ((0.1, 0.2, 0.3, 0.4, 0.5), (0.4, 0.5, 0.6), (5.0, 4.0, 3.0, 2.0, 1.0, 0.0)),
        # With two digits, the first steps of a long epoch look alike: only what is surely repeated is lost.
        ((0.01, 0.01, 0.02, 0.02, 0.03), (0.02, 0.02, 0.03), (5.0, 4.0, 3.0, 2.0, 2.0, 1.0, 0.0)),
    ],
)
def test_steps_without_numbers_that_a_resumed_start_repeats_count_once_by_their_epochs(
    tmp_path: Path, epochs: tuple[float, ...], resumed: tuple[float, ...], kept: tuple[float, ...]
) -> None:
    def steps(epochs: Iterable[float], first: float) -> str:
        lines = enumerate(epochs)
        return "".join(f"{{'loss': {first - i}, 'learning_rate': 1e-05, 'epoch': {epoch}}}\n" for i, epoch in lines)

    again = "  Continuing training from global step 3\n"
    write(tmp_path / "train.log", steps(epochs, 5.0) + again + steps(resumed, 2.0))
    (run,) = by_name(tmp_path).values()
    assert tuple(run.losses.values()) == kept
    assert run.attempts == 2

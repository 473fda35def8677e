"""Trainer of transformers: dictionaries (`{'loss': 2.5, ..., 'epoch': 0.1}`), blocks of metrics, trainer_state.json.

Dictionaries do not contain their step. The rates at the end divide all planned steps by the time of this process, so
they are ignored for resumed runs; a log does not show if its version 5 corrects them. Before 4.7
train_samples_per_second contained steps per second. num_input_tokens_seen includes padding or not, by an option that
is not printed, and train_tokens_per_second of a step is a mean since the start: both are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from analysis.parsers import log_metrics as a
from analysis.parsers.base import RESUMED, DocumentFormat, Kind, Line, LineFormat, Names, Record, Text, numbers
from analysis.untrusted import as_list
from jobs import metrics as m
from jobs.metrics import Metric

# Complete only with its closing brace. transformers 5 quotes the numbers.
LOGGED = re.compile(r"\{'(?:loss|(?:eval|train)_\w+)': [^{}]*'epoch': [^{}]*\}")
PAIR = re.compile(r"'(\w+)': '?([^\s',{}]+)")
BLOCK = re.compile(r"\*{5} (?:train|eval) metrics \*{5}")
BLOCK_ROW = re.compile(r"(?:^|>> ) *(\w+) += +(\S.*?) *$")
DURATION = re.compile(r"^(?:(\d+) days?, )?(\d+):(\d\d):(\d\d(?:\.\d+)?)$")
LAST_SETTING = "Total optimization steps"
SETTING_NAMES: Names = {
    "Instantaneous batch size per device": (a.MICRO_BATCH_SIZE, 1),
    "Total train batch size (w. parallel, distributed & accumulation)": (a.GLOBAL_BATCH_SIZE, 1),
    "Gradient Accumulation steps": (a.ACCUMULATION, 1),
    LAST_SETTING: (a.PLANNED_STEPS, 1),
}
SETTING = re.compile(rf"({'|'.join(map(re.escape, SETTING_NAMES))}) = ([\d,]+)$")
STATE_NAMES: Names = {"max_steps": (a.PLANNED_STEPS, 1), "train_batch_size": (a.MICRO_BATCH_SIZE, 1)}
# The second form is printed by transformers 5.
CONTINUING = re.compile(
    r"(?:Continuing training from|Resuming training from checkpoint with epoch \d+ and) global step 0*([1-9]\d{0,11})"
)
PROGRESS: Names = {"step": (m.STEP, 1), "epoch": (a.EPOCH, 1)}
STEP_NAMES: Names = {
    **PROGRESS,
    "loss": (m.LOSS, 1),
    "grad_norm": (m.GRADIENT_NORM, 1),
    "learning_rate": (m.LEARNING_RATE, 1),
}
TRAINING_NAMES: Names = {
    **PROGRESS,
    "train_runtime": (a.TRAINING_TIME, 1),
    "train_samples": (a.TRAINING_SAMPLES, 1),
    "train_loss": (a.MEAN_LOSS, 1),
    "train_samples_per_second": (a.SAMPLES_PER_S, 1),
    "train_steps_per_second": (a.STEPS_PER_S, 1),
}
OLD_TRAINING_NAMES: Names = {**TRAINING_NAMES, "train_samples_per_second": (a.STEPS_PER_S, 1)}
# Divided by all steps, including those before a run was resumed.
BY_ALL_STEPS = {a.MEAN_LOSS, a.SAMPLES_PER_S, a.STEPS_PER_S}
# Tolerance: losses are logged with four digits, as means over the steps since the last line.
LEAST_OWN_PART = 0.99
EVALUATION_NAMES: Names = {
    "loss": (m.EVALUATION_LOSS, 1),
    "accuracy": (a.EVALUATION_SCORE, 1),
    "runtime": (m.EVALUATION_TIME, 1),
    "samples": (m.EVALUATION_SAMPLES, 1),
}


def parse(lines: Iterable[Line]) -> Iterator[Record]:
    """Return settings when they change, steps, evaluations, and the end of a training."""
    settings: dict[Metric, float] = {}
    given: dict[Metric, float] = {}
    resumed = False
    block: dict[str, object] = {}
    heading: Line | None = None
    for line in lines:
        row = BLOCK_ROW.search(line.text)
        if heading and row:
            block[row[1]] = duration(row[2])
            continue
        if heading:
            yield from logged(block, heading, resumed=resumed)
            heading = None
        if found := LOGGED.search(line.text):
            yield from logged(dict(PAIR.findall(found[0])), line, resumed=resumed)
        elif BLOCK.search(line.text):
            block, heading = {}, line
        elif found := SETTING.search(line.text):
            settings |= numbers([(found[1], found[2].replace(",", ""))], SETTING_NAMES)
            if found[1] == LAST_SETTING and settings != given:
                given = dict(settings)
                yield Record(Kind.setting, line.number, given, {}, line.rank, line.host)
        elif found := CONTINUING.search(line.text):
            resumed = True
            yield Record(
                Kind.event, line.number, {m.STEP: float(found[1])}, {Text.event: RESUMED}, line.rank, line.host
            )
    if heading:
        yield from logged(block, heading, resumed=resumed)


def parse_state(document: Any) -> Iterator[Record]:
    """Return the history in a checkpoint, whose entries contain their steps."""
    yield Record(Kind.setting, 0, numbers(document.items(), STATE_NAMES))
    summed, last_step = 0.0, 0.0
    for entry in as_list(document.get("log_history")):
        if not isinstance(entry, dict):
            continue
        values = numbers(entry.items(), {**STEP_NAMES, **TRAINING_NAMES})
        step = values.get(m.STEP, 0.0)
        # A resumed process divides the sum of its own losses by the number of all steps.
        resumed = values.get(a.MEAN_LOSS, 0.0) * step < LEAST_OWN_PART * summed
        yield from logged(entry, Line(0, ""), resumed=resumed)
        if m.LOSS in values:
            summed, last_step = summed + values[m.LOSS] * (step - last_step), step


def logged(reported: Mapping[str, object], line: Line, *, resumed: bool) -> Iterator[Record]:
    """Return the record of one dictionary or block, if it is of one of the three kinds."""
    # With several evaluation sets the prefix contains the name of the set: eval_code_runtime.
    prefix = next(
        (name.removesuffix("_runtime") for name in reported if name.startswith("eval_") and name.endswith("_runtime")),
        "eval",
    )
    texts: dict[Text, str] = {}
    # If tokens are counted, a step also contains train_runtime so far.
    if "loss" in reported:
        kind, values = Kind.step, numbers(reported.items(), STEP_NAMES)
    elif "train_runtime" in reported:
        kind = Kind.summary
        values = numbers(
            reported.items(), TRAINING_NAMES if "train_steps_per_second" in reported else OLD_TRAINING_NAMES
        )
        # The mean loss is 0 if no step was made.
        if resumed or values.get(a.MEAN_LOSS) == 0:
            values = {metric: value for metric, value in values.items() if metric not in BY_ALL_STEPS}
    elif any(name.startswith(f"{prefix}_") for name in reported):
        kind = Kind.evaluation
        names = {f"{prefix}_{name}": metric for name, metric in EVALUATION_NAMES.items()}
        values = numbers(reported.items(), {**PROGRESS, **names, "perplexity": (m.EVALUATION_PERPLEXITY, 1)})
        texts = {Text.benchmark: prefix[5:]} if prefix != "eval" else {}
    else:
        return
    yield Record(kind, line.number, values, texts, line.rank, line.host)


def duration(text: str) -> object:
    """Return the seconds of `1 day, 2:03:04.05`; return any other text unchanged."""
    found = DURATION.match(text)
    if found is None:
        return text
    days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


FORMAT = LineFormat(
    "Hugging Face Trainer",
    "https://github.com/huggingface/transformers/blob/v4.57.6/src/transformers/trainer.py (log, train)",
    parse,
    markers=("{'loss': ", "{'eval_", "{'train_", "Continuing training from global step",
             "Resuming training from checkpoint", *SETTING_NAMES,
             "***** train metrics *****", "***** eval metrics *****", "_runtime ", "_samples ", "_loss ",
             "_accuracy ", "epoch     ", "_per_second ", " perplexity "),
)  # fmt: skip
STATE_FORMAT = DocumentFormat(
    "Hugging Face trainer_state.json",
    "https://github.com/huggingface/transformers/blob/v4.57.6/src/transformers/trainer_callback.py (TrainerState)",
    recognises=lambda document: isinstance(document, dict) and isinstance(document.get("log_history"), list),
    parse=parse_state,
)

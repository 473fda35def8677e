"""LitGPT, fine-tuning and pretraining: `Epoch 1 | iter 4 step 2 | loss train: 1.2, val: n/a | iter time: 50.00 ms`.

Rank 0 of every node prints, so two nodes print each line twice with different numbers. `iter time` is the time of a
micro-batch, and of a step only without accumulation (iter = step); `step` counts finished steps, and `val` repeats the
latest evaluation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from analysis.parsers import log_metrics as a
from analysis.parsers.base import RESUMED, Kind, Line, LineFormat, Record, Text, numbers
from analysis.untrusted import is_not_finite
from jobs import metrics as m
from jobs.metrics import Metric

# 2023: "iter 4 step 2: loss 1.2, iter time: 50.00ms (optimizer.step)"; for a while in March 2024
# "Ep 1 | iter 4 | step 2: loss train (curr): 1.2, val (prev val iter): None | iter time: 50.00 ms (opt.step)".
STEP = re.compile(
    r"(?:\bEp(?:och)? (?P<epoch>\d+) \| )?\biter (?P<iter>\d+) (?:\| )?st[eE]p (?P<step>\d+)(?::| \|) "
    r"loss (?:train(?: \(curr\))?: )?(?P<loss>\S+?),(?: val(?: \(prev val iter\))?: (?P<val>\S+) \|)? "
    r"iter time: (?P<time>[\d.]+) ?ms(?P<update> \((?:opt\.|optimizer\.)?step\))?"
)
STEP_NAMES = {
    "epoch": (a.EPOCH, 1),
    "iter": (a.MICRO_BATCHES_DONE, 1),
    "step": (m.STEP, 1),
    "loss": (m.LOSS, 1),
    "val": (m.EVALUATION_LOSS, 1),
}
EVALUATION = re.compile(r"\b(?:iter|step) (?P<iter>\d+): val loss (?P<loss>\S+), val time: (?P<time>[\d.]+) ?ms")
FINAL_EVALUATION = re.compile(r"^Final evaluation \| val loss: (?P<loss>\S+) \| val ppl: (?P<perplexity>\S+)$")
EVALUATION_NAMES = {
    "iter": (a.MICRO_BATCHES_DONE, 1),
    "loss": (m.EVALUATION_LOSS, 1),
    "time": (m.EVALUATION_TIME, 1e-3),
    "perplexity": (m.EVALUATION_PERPLEXITY, 1),
}
# The configuration as Python prints it; ranks print it at the same time, so lines interleave.
CONFIGURATION = "TrainArgs("
# Folders of a training, not of a model: step-00001000, run_20261127.
OF_A_RUN = re.compile(r"(?:step|iter|epoch|run|checkpoint|ckpt|version|final)s?[-_]?\d", re.IGNORECASE)
SETTING = re.compile(r"^[ {]*'?(\w+)(?:=|': )(\d+),$")
SETTING_NAMES = {
    "devices": (a.RANKS_PER_NODE, 1),
    "num_nodes": (a.NODES, 1),
    "global_batch_size": (a.GLOBAL_BATCH_SIZE, 1),
    "micro_batch_size": (a.MICRO_BATCH_SIZE, 1),
    "max_steps": (a.PLANNED_STEPS, 1),
    "max_seq_length": (a.SEQUENCE_LENGTH, 1),
    "lora_r": (a.LORA_RANK, 1),
    # If the configuration describes the model instead of naming it.
    "n_layer": (a.LAYERS, 1),
    "n_embd": (a.HIDDEN_SIZE, 1),
    "n_head": (a.HEADS, 1),
    "n_query_groups": (a.KV_HEADS, 1),
    "head_size": (a.HEAD_SIZE, 1),
    "intermediate_size": (a.INTERMEDIATE_SIZE, 1),
    "padded_vocab_size": (a.VOCABULARY_SIZE, 1),
}
PRECISION = re.compile(r"^[ {]*'precision': '([\w-]+)',$")
CHECKPOINT = re.compile(
    r"^[ {]*'?checkpoint_dir'?(?:=|: )(?:Posix|Windows|Pure\w*)?(?:Path\()?['\"]([^'\"]{1,300})['\"]\)?,$"
)
MLP = re.compile(r"\bmlp_class_name='(\w+)',$")
RESUMING = re.compile(r"^Resuming training from (\S+)$")
GATED = {"LLaMAMLP": 1.0, "GptNeoxMLP": 0.0}
TIED = re.compile(r"\btie_embeddings=(True|False|None),$")
# Lines at the end of each node; newer versions print a table.
END = re.compile(r"^(?:\| - )?(Training [Tt]ime|Memory [Uu]sed|Tok/sec) *: +([\d.]+) ?(?:s|GB|tok/s) *$")
END_NAMES = {
    "training time": (a.TRAINING_TIME, 1),
    "memory used": (m.MEMORY_PEAK, 1e9),
    "tok/sec": (m.TOKENS_PER_S, 1),
}


def parse(lines: Iterable[Line]) -> Iterator[Record]:
    """Return settings once a run, micro-batches, evaluations, and the end of each node."""
    settings: dict[Metric, float] = {}
    texts: dict[Text, str] = {}
    # Line of the configuration that is not returned yet; and if a line was certainly LitGPT's.
    configured: int | None = None
    known = False
    for line in lines:
        if found := STEP.search(line.text):
            if configured is not None:
                yield Record(Kind.setting, configured, settings, texts)
                settings, texts, configured = {}, {}, None
            known = True
            yield Record(Kind.step, line.number, step(found), {}, line.rank, line.host)
        elif CONFIGURATION in line.text:
            configured, known = configured or line.number, True
        elif found := EVALUATION.search(line.text) or FINAL_EVALUATION.match(line.text):
            values = numbers(found.groupdict().items(), EVALUATION_NAMES)
            yield Record(Kind.evaluation, line.number, values, {}, line.rank, line.host)
        elif known and (found := END.match(line.text)):
            values = numbers([(found[1].lower(), found[2])], END_NAMES)
            yield Record(Kind.summary, line.number, values, {}, line.rank, line.host)
        elif found := RESUMING.match(line.text):
            event = {Text.event: RESUMED, Text.checkpoint: found[1]}
            yield Record(Kind.event, line.number, {}, event, line.rank, line.host)
        else:
            stated, words = setting(line.text)
            settings, texts = settings | stated, texts | words
    if configured is not None:
        yield Record(Kind.setting, configured, settings, texts)


def setting(text: str) -> tuple[dict[Metric, float], dict[Text, str]]:
    """Return what a line of the printed configuration states; both empty for any other line."""
    if found := SETTING.match(text):
        return numbers([(found[1], found[2])], SETTING_NAMES), {}
    if found := PRECISION.match(text):
        return {}, {Text.precision: found[1]}
    if found := CHECKPOINT.match(text):
        return {}, tuned(found[1])
    if found := MLP.search(text):
        return ({a.GATED: GATED[found[1]]}, {}) if found[1] in GATED else ({}, {Text.uncovered: found[1]})
    if found := TIED.search(text):
        return {a.TIED_EMBEDDINGS: float(found[1] == "True")}, {}
    return {}, {}


def tuned(checkpoint: str) -> dict[Text, str]:
    """Return the model that is tuned, such as checkpoints/meta-llama/Llama-2-7b-hf; empty for a folder of another name.

    Names of models have a size or a version.
    """
    name = checkpoint.rstrip("/").rpartition("/")[2]
    return {Text.model: name} if any(map(str.isdigit, name)) and not OF_A_RUN.match(name) else {}


def step(found: re.Match[str]) -> dict[Metric, float]:
    """Return the numbers of a micro-batch."""
    # Lines of 2023 have no epoch, and some versions count from 0: there iter = step proves nothing.
    whole = found["epoch"] and found["update"] and found["iter"] == found["step"]
    time = {"time": (m.STEP_TIME if whole else a.MICRO_BATCH_TIME, 1e-3)}
    fields = found.groupdict()
    if fields["val"] and is_not_finite(fields["val"]):
        # The last evaluation once more; without a label it is the mean of nothing, and training is not.
        del fields["val"]
    return numbers(fields.items(), STEP_NAMES | time)


FORMAT = LineFormat(
    "LitGPT",
    "https://github.com/Lightning-AI/litgpt/blob/v0.5.12/litgpt/finetune/full.py (fit)",
    parse,
    markers=("iter time: ", ": val loss ", "Final evaluation | val loss: ", "Training time: ", "| - Training Time ",
             "Memory used: ", "| - Memory Used ", "| - Tok/sec ", CONFIGURATION, "'devices': ", "'num_nodes': ",
             "'precision': '",
             "checkpoint_dir", " global_batch_size=", " micro_batch_size=", " max_steps=", " max_seq_length=",
             "'lora_r': ", " n_layer=", " n_embd=", " n_head=", " n_query_groups=", " head_size=",
             " intermediate_size=", " padded_vocab_size=", " mlp_class_name='", " tie_embeddings=",
             "Resuming training from "),
)  # fmt: skip

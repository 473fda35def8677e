"""torchtitan's configuration as JSON, printed if `print_config` is set: precision and, since 0.3, the model.

Every layer has its own section, and classes are not named. analysis.parsers.trainings.torchtitan reads batches, lengths
and the mesh, which are always printed.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Line, LineFormat, Record, Text
from analysis.untrusted import printed_number
from jobs.metrics import Metric

OPENING = "Running with configs: {"
# Lines before the configuration that report quantization, which the configuration of 0.3 omits.
QUANTIZED = (
    "Float8 training active with recipe ",
    "Converted Linear layers to MXFP8Linear",
    "Converted Linear layers to NVFP4Linear",
    "Converted GroupedExperts to use dynamic ",
)
ENTRY = re.compile(r'^( +)"(\w+)": (.*?),?\s*$')
Entries = Mapping[str, Counter[str]]
"""Values at each place, such as `training.steps`, with their counts: places in layers occur once per layer."""

MODEL, LAYER = "model_spec.model.", "model_spec.model.layers."
SHAPE = {
    f"{MODEL}dim": a.HIDDEN_SIZE,
    f"{MODEL}vocab_size": a.VOCABULARY_SIZE,
    f"{LAYER}attention.n_heads": a.HEADS,
    f"{LAYER}attention.n_kv_heads": a.KV_HEADS,
    f"{LAYER}attention.head_dim": a.HEAD_SIZE,
    f"{LAYER}feed_forward.w1.out_features": a.INTERMEDIATE_SIZE,
}
GATE, TIED = f"{LAYER}feed_forward.w3.out_features", f"{MODEL}enable_weight_tying"
# In 0.2: quantization.
CONVERTERS = "model.converters"
PRECISION = "training.mixed_precision_param"
LAYERS = f"{LAYER}attention"
REPORTED = {*SHAPE, GATE, TIED, CONVERTERS, PRECISION, LAYERS}
# Sections of a model that the FLOPs formula covers, by their parent.
COVERED = {
    MODEL: {"lm_head", "tok_embeddings", "norm", "layers"},
    LAYER: {"attention", "feed_forward", "attention_norm", "ffn_norm"},
    f"{LAYER}attention.": {"inner_attention", "qkv_linear", "wo", "qk_norm", "rope"},
}


def parse(lines: Iterable[Line]) -> Iterator[Record]:
    """Return a record of settings for each configuration."""
    begin: Line | None = None
    quantized = False
    entries: dict[str, Counter[str]] = defaultdict(Counter)
    uncovered: dict[str, None] = {}
    above: list[tuple[int, str]] = []
    for line in lines:
        if OPENING in line.text:
            yield from settings(begin, entries, uncovered, quantized=quantized)
            quantized = quantized and begin is None
            begin, entries, uncovered, above = line, defaultdict(Counter), {}, []
        elif begin is not None and line.rank != begin.rank:
            continue
        elif any(marker in line.text for marker in QUANTIZED):
            yield from settings(begin, entries, uncovered, quantized=quantized)
            begin, quantized = None, True
        elif begin is not None and (found := ENTRY.match(line.text)):
            depth, name, value = len(found[1]), found[2], found[3]
            above = [section for section in above if section[0] < depth] + [(depth, name)]
            place = ".".join(each for _, each in above)
            if place in REPORTED:
                entries[place][value.strip('"')] += 1
            if extra := not_covered(place.removesuffix(name), name, value):
                uncovered[extra] = None
    yield from settings(begin, entries, uncovered, quantized=quantized)


def not_covered(section: str, name: str, value: str) -> str | None:
    """Return the feature in an entry that the FLOPs formula does not cover; None if it covers it."""
    if section.startswith(MODEL) and name == "rank":
        return "LoRA"
    return name if value in {"{", "["} and name not in COVERED.get(section, {name}) else None


def settings(begin: Line | None, entries: Entries, uncovered: Iterable[str], *, quantized: bool) -> Iterator[Record]:
    """Return the settings of a configuration; places at which layers differ are left out."""
    # The section after the model is missing if the log ends within the model.
    if begin is None or PRECISION not in entries:
        return
    quantized = quantized or entries.get(CONVERTERS, {"[]": 1}) != {"[]": 1}
    layers = entries[LAYERS].total() if LAYERS in entries else 0
    equal = {
        place: next(iter(values))
        for place, values in entries.items()
        if len(values) == 1 and (values.total() == layers or not place.startswith(LAYER))
    }
    numbers = {metric: printed_number(equal.get(place, "")) for place, metric in SHAPE.items()}
    values: dict[Metric, float] = {metric: number for metric, number in numbers.items() if number is not None}
    extra = [*uncovered, *(["layers of several kinds"] if len(equal) < len(entries) else [])]
    if layers:
        values[a.LAYERS] = float(layers)
        if equal.get(f"{LAYER}attention.n_kv_heads") == "null" and a.HEADS in values:
            values[a.KV_HEADS] = values[a.HEADS]
        if a.INTERMEDIATE_SIZE in values:
            values[a.GATED] = float(GATE in equal)
        values[a.TIED_EMBEDDINGS] = float(equal.get(TIED) == "true")
    texts = {} if quantized or PRECISION not in equal else {Text.precision: equal[PRECISION]}
    if extra:
        texts[Text.uncovered] = ", ".join(extra)
    if values or texts:
        yield Record(Kind.setting, begin.number, values, texts, begin.rank, begin.host)


FORMAT = LineFormat(
    "torchtitan configuration",
    "https://github.com/pytorch/torchtitan/blob/v0.3.0/torchtitan/trainer.py",
    parse,
    markers=QUANTIZED,
    section_start=(OPENING,),
    # Later sections are not used.
    section_end=('"parallelism": {',),
)

"""torchtitan's configuration as JSON, printed where `print_config` is set: its precision and, since 0.3, its model.

Every layer is a section of its own, and classes are not named. What is printed of batches, lengths and the mesh in any
case, analysis.parsers.torchtitan reads.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping

from analysis.parsers import metrics as a
from analysis.parsers.base import Kind, Line, LineFormat, Record, Text
from analysis.untrusted import printed_number
from jobs.metrics import Metric

OPENING = "Running with configs: {"
# Said before it: what is quantized, the configuration of 0.3 leaves out.
QUANTIZED = (
    "Float8 training active with recipe ",
    "Converted Linear layers to MXFP8Linear",
    "Converted Linear layers to NVFP4Linear",
    "Converted GroupedExperts to use dynamic ",
)
ENTRY = re.compile(r'^( +)"(\w+)": (.*?),?\s*$')
Said = Mapping[str, Counter[str]]
"""What stands at each place, as in `training.steps`, and how often: of layers as often as there are layers."""

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
# Of 0.2: what is quantized.
CONVERTERS = "model.converters"
PRECISION = "training.mixed_precision_param"
LAYERS = f"{LAYER}attention"
TOLD = {*SHAPE, GATE, TIED, CONVERTERS, PRECISION, LAYERS}
# The sections of a model whose FLOPs the formula covers, by what they are in.
COVERED = {
    MODEL: {"lm_head", "tok_embeddings", "norm", "layers"},
    LAYER: {"attention", "feed_forward", "attention_norm", "ffn_norm"},
    f"{LAYER}attention.": {"inner_attention", "qkv_linear", "wo", "qk_norm", "rope"},
}


def parse(lines: Iterable[Line]) -> Iterator[Record]:
    """A record of settings for each configuration."""
    begin: Line | None = None
    quantized = False
    said: dict[str, Counter[str]] = defaultdict(Counter)
    uncovered: dict[str, None] = {}
    above: list[tuple[int, str]] = []
    for line in lines:
        if OPENING in line.text:
            yield from settings(begin, said, uncovered, quantized=quantized)
            quantized = quantized and begin is None
            begin, said, uncovered, above = line, defaultdict(Counter), {}, []
        elif begin is not None and line.rank != begin.rank:
            continue
        elif any(mark in line.text for mark in QUANTIZED):
            yield from settings(begin, said, uncovered, quantized=quantized)
            begin, quantized = None, True
        elif begin is not None and (found := ENTRY.match(line.text)):
            depth, name, value = len(found[1]), found[2], found[3]
            above = [section for section in above if section[0] < depth] + [(depth, name)]
            place = ".".join(each for _, each in above)
            if place in TOLD:
                said[place][value.strip('"')] += 1
            if extra := not_covered(place.removesuffix(name), name, value):
                uncovered[extra] = None
    yield from settings(begin, said, uncovered, quantized=quantized)


def not_covered(section: str, name: str, value: str) -> str | None:
    """What an entry of a section tells that the formula of FLOPs does not cover."""
    if section.startswith(MODEL) and name == "rank":
        return "LoRA"
    return name if value in {"{", "["} and name not in COVERED.get(section, {name}) else None


def settings(begin: Line | None, said: Said, uncovered: Iterable[str], *, quantized: bool) -> Iterator[Record]:
    """What a configuration says for sure: of a place where layers differ nothing."""
    # What follows the model is not there where a log ends within it.
    if begin is None or PRECISION not in said:
        return
    quantized = quantized or said.get(CONVERTERS, {"[]": 1}) != {"[]": 1}
    layers = said[LAYERS].total() if LAYERS in said else 0
    alike = {
        place: next(iter(values))
        for place, values in said.items()
        if len(values) == 1 and (values.total() == layers or not place.startswith(LAYER))
    }
    numbers = {metric: printed_number(alike.get(place, "")) for place, metric in SHAPE.items()}
    values: dict[Metric, float] = {metric: number for metric, number in numbers.items() if number is not None}
    extra = [*uncovered, *(["layers of several kinds"] if len(alike) < len(said) else [])]
    if layers:
        values[a.LAYERS] = float(layers)
        if alike.get(f"{LAYER}attention.n_kv_heads") == "null" and a.HEADS in values:
            values[a.KV_HEADS] = values[a.HEADS]
        if a.INTERMEDIATE_SIZE in values:
            values[a.GATED] = float(GATE in alike)
        values[a.TIED_EMBEDDINGS] = float(alike.get(TIED) == "true")
    texts = {} if quantized or PRECISION not in alike else {Text.precision: alike[PRECISION]}
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
    # Nothing after it is of use here.
    section_end=('"parallelism": {',),
)

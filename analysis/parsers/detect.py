"""Which formats a file holds, by its content, and what each of them says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from analysis.parsers import (
    all_reduce_bench,
    apache_bench,
    deepspeed,
    deepspeed_chat,
    dlio,
    dllogger,
    fio,
    genai_perf,
    hf_trainer,
    io500,
    ior,
    lightning_csv,
    litgpt,
    mdtest,
    megatron,
    megatron_golden,
    mllog,
    mlperf_system,
    mxnet,
    nanogpt,
    nanotron,
    nccl_info,
    nccl_tests,
    nemo,
    nemo_configuration,
    nvidia_smi,
    paddleclas,
    perf_analyzer,
    sacct,
    torchtitan,
    torchtitan_configuration,
    torchtune,
    vllm_bench,
)
from analysis.parsers.base import DocumentFormat, Format, LineFormat, Record
from analysis.parsers.search import BLOCK_BYTES, LONGEST_LINE, Search, blocks, whole_lines

FORMATS: tuple[Format, ...] = (
    # Before MLLOG, which tells the evaluation of all workers.
    mxnet.FORMAT,
    mllog.FORMAT,
    megatron.FORMAT,
    megatron_golden.FORMAT,
    deepspeed.FORMAT,
    deepspeed_chat.FORMAT,
    torchtitan.FORMAT,
    torchtitan_configuration.FORMAT,
    torchtune.FORMAT,
    torchtune.METRICS,
    dllogger.FORMAT,
    paddleclas.FORMAT,
    nccl_tests.FORMAT,
    litgpt.FORMAT,
    hf_trainer.FORMAT,
    hf_trainer.STATE_FORMAT,
    nemo.FORMAT,
    nemo_configuration.FORMAT,
    nanotron.FORMAT,
    nanogpt.FORMAT,
    lightning_csv.FORMAT,
    all_reduce_bench.FORMAT,
    nccl_info.FORMAT,
    nvidia_smi.FORMAT,
    sacct.FORMAT,
    mlperf_system.FORMAT,
    vllm_bench.FORMAT,
    vllm_bench.DOCUMENT,
    apache_bench.FORMAT,
    genai_perf.FORMAT,
    genai_perf.DOCUMENT,
    genai_perf.REQUESTS,
    perf_analyzer.FORMAT,
    perf_analyzer.REPORT_FORMAT,
    ior.FORMAT,
    ior.DOCUMENT,
    io500.FORMAT,
    mdtest.FORMAT,
    fio.FORMAT,
    fio.DOCUMENT,
    dlio.FORMAT,
    dlio.DOCUMENT,
)
LINE_FORMATS = tuple(each for each in FORMATS if isinstance(each, LineFormat))
DOCUMENT_FORMATS = tuple(each for each in FORMATS if isinstance(each, DocumentFormat))
SEARCHES = {each.name: Search(each.needles, each.opens, each.closes, alike=each.alike) for each in LINE_FORMATS}
ANY_FORMAT = Search(tuple({mark: None for each in LINE_FORMATS for mark in each.needles + each.opens + each.repeated}))
# Not a log whose lines begin with "[2026-01-02 03:04:05]" or "[rank0]:", or with a Python dictionary.
BEGINS_DOCUMENT = re.compile(rb"\s*(?:\{\s*[\"}]|\[\s*(?:[\[{\"\]]|(?:-?[\d.eE+]+|true|false|null)\s*[,\]]))")
# Parsed JSON takes ten times its size in memory.
LARGEST_DOCUMENT_BYTES = 64 << 20


def read_log(path: Path) -> Iterator[tuple[Format, Iterator[Record]]]:
    """Each format that the file may hold, with its records as they are read; of one that it holds not, none.

    Raises OSError where the file cannot be read, and nothing else whatever it holds.
    """
    first = next(blocks(path), b"")
    if BEGINS_DOCUMENT.match(first) and (whole := document(path)) is not None:
        yield from ((each, each.parse(whole)) for each in DOCUMENT_FORMATS if each.recognises(whole))
        return
    if BEGINS_DOCUMENT.match(first):
        yield from ((each, of_lines(path, each)) for each in DOCUMENT_FORMATS if each.in_lines)
    header = first[:LONGEST_LINE].decode(errors="replace").lstrip("\ufeff").lstrip().partition("\n")[0].rstrip()
    held = marks_of(path)
    for each in LINE_FORMATS:
        if each.is_header is not None and each.is_header(header):
            yield each, each.parse(Search(everything=True).lines(blocks(path)))
        elif not held.isdisjoint(each.needles + each.opens + each.repeated):
            yield each, each.parse(SEARCHES[each.name].lines(blocks(path)))


def marks_of(path: Path) -> set[str]:
    """Which of the formats' marks are in a file."""
    wanted = ANY_FORMAT
    for block in blocks(path):
        if found := {wanted.marks[mark] for mark, _, _ in wanted.found(block)}:
            # A log is full of few of them: each is looked for until it is found.
            wanted = Search(tuple(mark for mark in wanted.marks if mark not in found))
    return set(ANY_FORMAT.marks) - set(wanted.marks)


def of_lines(path: Path, form: DocumentFormat) -> Iterator[Record]:
    """What the lines say that are each a document of a format."""
    mark = (form.in_lines or "").encode()
    for number, line in whole_lines(path, LARGEST_DOCUMENT_BYTES):
        if mark in line and form.recognises(said := loaded(line)):
            for record in form.parse(said):
                yield record._replace(line=number)


def document(path: Path) -> object:
    """The JSON document that a file is; None where it is none, or a larger one than memory should hold."""
    content: list[bytes] = []
    for block in blocks(path):
        content.append(block)
        if len(content) * BLOCK_BYTES > LARGEST_DOCUMENT_BYTES:
            return None
    return loaded(b"".join(content))


def loaded(text: bytes) -> object:
    """The JSON document that a text is; None where it is none."""
    try:
        found: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found

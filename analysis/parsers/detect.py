"""Detect the formats in a file by its content, and read the records of each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from analysis.parsers.base import DocumentFormat, Format, LineFormat, Record
from analysis.parsers.benchmarks import (
    all_reduce_bench,
    apache_bench,
    dlio,
    elbencho,
    fio,
    genai_perf,
    hpcg,
    hpl,
    io500,
    ior,
    mdtest,
    nccl_tests,
    osu,
    perf_analyzer,
    stream,
    vllm_bench,
)
from analysis.parsers.cluster import launcher, nccl_info, nvidia_smi, sacct
from analysis.parsers.search import BLOCK_BYTES, LONGEST_LINE, Search, blocks, whole_lines, without_torn_number
from analysis.parsers.trainings import (
    aws_fsdp,
    composer,
    deepspeed,
    deepspeed_chat,
    dllogger,
    hf_trainer,
    lightning_csv,
    litgpt,
    llama_factory,
    maxtext,
    megatron,
    megatron_golden,
    mllog,
    mlperf_system,
    mxnet,
    nanogpt,
    nanotron,
    nemo,
    nemo_configuration,
    olmo,
    paddleclas,
    torchtitan,
    torchtitan_configuration,
    torchtune,
)
from jobs.files import DOCUMENT_BYTES, parse_json

FORMATS: tuple[Format, ...] = (
    # Before MLLOG, which reports the evaluation of all workers.
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
    torchtune.CONFIGURATION,
    dllogger.FORMAT,
    paddleclas.FORMAT,
    litgpt.FORMAT,
    hf_trainer.FORMAT,
    hf_trainer.STATE_FORMAT,
    nemo.FORMAT,
    nemo_configuration.FORMAT,
    nanotron.FORMAT,
    nanogpt.FORMAT,
    maxtext.FORMAT,
    composer.FORMAT,
    olmo.FORMAT,
    llama_factory.FORMAT,
    llama_factory.DOCUMENT,
    aws_fsdp.FORMAT,
    lightning_csv.FORMAT,
    all_reduce_bench.FORMAT,
    # After the trainings, whose ranks may be more than those of a check before them.
    nccl_tests.FORMAT,
    nccl_info.FORMAT,
    launcher.FORMAT,
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
    elbencho.FORMAT,
    osu.FORMAT,
    stream.FORMAT,
    hpl.FORMAT,
    hpcg.FORMAT,
)
LINE_FORMATS = tuple(each for each in FORMATS if isinstance(each, LineFormat))
DOCUMENT_FORMATS = tuple(each for each in FORMATS if isinstance(each, DocumentFormat))
SEARCHES = {
    each.name: Search(each.markers, each.section_start, each.section_end, dedup_key=each.dedup_key)
    for each in LINE_FORMATS
}
ANY_FORMAT = Search(tuple(dict.fromkeys(marker for each in LINE_FORMATS for marker in each.file_markers)))
# Does not match logs whose lines begin with "[2026-01-02 03:04:05]" or "[rank0]:", or with a Python dictionary.
BEGINS_DOCUMENT = re.compile(rb"\s*(?:\{\s*[\"}]|\[\s*(?:[\[{\"\]]|(?:-?[\d.eE+]+|true|false|null)\s*[,\]]))")


def read_log(path: Path) -> Iterator[tuple[Format, Iterator[Record]]]:
    """Return each format that the file may contain, with an iterator over its records, which may be empty.

    Raise OSError if the file cannot be read, and nothing else for any content.
    """
    first = next(blocks(path), b"")
    if BEGINS_DOCUMENT.match(first) and (whole := document(path)) is not None:
        yield from ((each, each.parse(whole)) for each in DOCUMENT_FORMATS if each.recognises(whole))
        return
    if BEGINS_DOCUMENT.match(first):
        yield from ((each, of_lines(path, each)) for each in DOCUMENT_FORMATS if each.in_lines)
    header = first[:LONGEST_LINE].decode(errors="replace").lstrip("\ufeff").lstrip().partition("\n")[0].rstrip()
    present = markers_in(path)
    for each in LINE_FORMATS:
        if each.is_header is not None and each.is_header(header):
            yield each, each.parse(Search(everything=True).lines(without_torn_number(blocks(path))))
        elif not present.isdisjoint(each.file_markers):
            yield each, each.parse(SEARCHES[each.name].lines(without_torn_number(blocks(path))))


def markers_in(path: Path) -> set[str]:
    """Return the markers of all formats that are in a file."""
    wanted = ANY_FORMAT
    for block in blocks(path):
        if found := {wanted.all_markers[marker] for marker, _, _ in wanted.found(block)}:
            # A log is full of a few markers: stop searching for each once it is found.
            wanted = Search(tuple(marker for marker in wanted.all_markers if marker not in found))
    return set(ANY_FORMAT.all_markers) - set(wanted.all_markers)


def of_lines(path: Path, form: DocumentFormat) -> Iterator[Record]:
    """Return the records of those lines that are each a document of a format."""
    marker = (form.in_lines or "").encode()
    for number, line in whole_lines(path, DOCUMENT_BYTES):
        if marker in line and form.recognises(whole := loaded(line)):
            for record in form.parse(whole):
                yield record._replace(line=number)


def document(path: Path) -> object:
    """Return the JSON document in a file; None if it is not one, or is too large for memory."""
    content: list[bytes] = []
    for block in blocks(path):
        content.append(block)
        if len(content) * BLOCK_BYTES > DOCUMENT_BYTES:
            return None
    return loaded(b"".join(content))


def loaded(text: bytes) -> object:
    """Return the JSON document in a text; None if it is not one."""
    try:
        found: object = parse_json(text)
    except ValueError:
        return None
    return found

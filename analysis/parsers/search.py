"""Lines of a log of any size: found by what they contain, freed of what launchers put in front of them.

A log is mostly noise. Whole blocks of it are searched for a format's needles at once (Aho-Corasick), and only the
lines that hold one become Python strings. Memory is a block or two, whatever the size of the file and of its lines.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import IO, Any

import zstandard
from ahocorasick_rs import BytesAhoCorasick, Implementation

from analysis.parsers.base import Line, LocalRank, Whose

BLOCK_BYTES = 1 << 22
# A longer line is cut: no format has one, a binary file does.
LONGEST_LINE = 1 << 16
# Nearly every line of a block with one needle in so many bytes has it.
DENSE_BYTES = 512
# Bytes that no UTF-8 has. Given only few marks, the library jumps to the rarest byte of each, as it believes, and in a
# log that is full of those stops at every one of them; with so many more it reads on at full speed.
DECOYS = [b"\xf8", b"\xf9", b"\xfa", b"\xfb"]
DECOMPRESS: dict[bytes, Callable[[IO[bytes]], Any]] = {
    b"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\x00": lzma.LZMAFile,
    b"\x28\xb5\x2f\xfd": lambda file: zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True),
}
UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
# Of a compressed file; bz2 says of a damaged one what the system says of one that cannot be read.
TORN = (EOFError, OSError, zlib.error, lzma.LZMAError, zstandard.ZstdError)


def blocks(path: Path) -> Iterator[bytes]:
    """A file's content, decompressed, as UTF-8 and in blocks that end where a line ends if any does.

    A compressed file that is torn ends where it is torn. Raises OSError where a file cannot be read.
    """
    rest = b""
    for block in utf_8(read(path)):
        end = block.rfind(b"\n") + 1
        if end:
            yield rest + block[:end]
            rest = block[end:]
        else:
            rest += block
        if len(rest) >= BLOCK_BYTES:
            yield rest
            rest = b""
    if rest:
        yield rest


def whole_lines(path: Path, longest: int) -> Iterator[tuple[int, bytes]]:
    """Each line with its number; one of more bytes than that is left out."""
    pieces: list[bytes] = []
    number, size = 1, 0
    for block in blocks(path):
        *ended, begun = block.split(b"\n")
        for piece in ended:
            if size + len(piece) <= longest:
                yield number, b"".join((*pieces, piece))
            pieces, size = [], 0
            number += 1
        size += len(begun)
        pieces = [*pieces, begun] if size <= longest else []
    if pieces:
        yield number, b"".join(pieces)


def read(path: Path) -> Iterator[bytes]:
    """A file's bytes, decompressed."""
    with path.open("rb") as raw:
        first = raw.read(max(map(len, DECOMPRESS)))
        raw.seek(0)
        decompress = next((how for magic, how in DECOMPRESS.items() if first.startswith(magic)), None)
        if decompress is not None:
            yield from decompressed(decompress(raw))
            return
        while block := raw.read(BLOCK_BYTES):
            yield block


def decompressed(file: Any) -> Iterator[bytes]:
    """The content of a compressed file in blocks, as far as it is whole."""
    pieces: list[bytes] = []
    size = 0
    with suppress(*TORN):
        # Of a whole block that is torn a plain read would give nothing.
        while piece := file.read1(BLOCK_BYTES):
            pieces.append(piece)
            size += len(piece)
            if size >= BLOCK_BYTES:
                yield b"".join(pieces)
                pieces, size = [], 0
    yield b"".join(pieces)


def utf_8(given: Iterator[bytes]) -> Iterator[bytes]:
    """Text as PowerShell and some Windows editors save it made UTF-8 without a mark; everything else as it is."""
    first = next(given, b"").removeprefix(codecs.BOM_UTF8)
    if not first.startswith(UTF_16):
        yield first
        yield from given
        return
    decoder = codecs.getincrementaldecoder("utf-16")("replace")
    for block in (first, *given):
        yield decoder.decode(block).encode()


# Colours, and bytes that end a string elsewhere.
NOT_TEXT = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\0")
# What stands before a colon and is no host, though it looks like node12: fp16, top5, step10, urllib3.MaxRetryError,
# IOR-3.0.1.
NO_HOST = (
    r"(?:(?:(?:[bf]p|bf|u?int|float|top|tf|step|epoch|iter|layer|stage|head|fold|run|try|version|rank)[-_]?|[A-Z])\d+"
    r"|[\w.]*(?:Error|Exception|Warning)|[A-Za-z]+-\d+(?:\.\d+)+\w*)"
)
PREFIX = re.compile(
    rf"""
    [ ]*(?P<label>\d{{1,6}}):[ ]                                      # srun --label
    | \[rank(?P<rank>\d+)\]:[ ]?                                   # torch's own log
    | \[default(?P<local>\d+)\]:[ ]?                               # torchrun --tee
    | \[rank-(?P<primus>\d+)/\d+\]                                  # Primus, after its time
    | \[\d{{8}}[ ][\d:]{{8}}\](?=\[rank-)
    | \[trainer\d+\|(?P<trainer>\d+)\]:[ ]?
    | (?:\w{{3}}[ ]\w{{3}}[ ]+\d+[ ][\d:]{{8}}[ ]\d{{4}}[ ]?)?        # mpirun --timestamp-output
      \[1,(?P<mpi>\d+)\]<std(?:out|err|diag)>:?[ ]?                  # mpirun --tag-output
    | (?!{NO_HOST}:)(?P<host>[A-Za-z](?=[\w.-]*\d)[\w.-]{{1,62}}):[ ](?!\(g)  # pdsh, DeepSpeed; not the jobs of fio
    | (?=[\w-]*[A-Za-z])[\w-]{{1,12}}/(?P<nemo_run>\d+)[ ]             # NeMo-Run, its name cut off
    | \[\d{{4}}-\d\d-\d\dT[\d:]+(?:[+-]\d\d:\d\d|Z)\][ ]            # kubectl, docker
    | \[\d+\][ ]                                                    # line numbers of an editor in a pasted log
    """,
    re.VERBOSE,
)

# No prefix begins so, but most lines that are of interest do.
NO_PREFIX = {":", "{", "#", "|", ""}


@dataclass(frozen=True)
class Search:
    """Which lines of a log matter."""

    needles: tuple[str, ...] = ()
    """Those with one of these texts ..."""
    opens: tuple[str, ...] = ()
    """... and all from one with one of these on ..."""
    closes: tuple[str, ...] = ()
    """... up to one with one of these."""
    everything: bool = False
    """All lines."""
    alike: re.Pattern[str] | None = None
    """Of lines in which this matches the same text only the first of a block, with their number."""

    @cached_property
    def marks(self) -> tuple[str, ...]:
        """All texts to look for."""
        return self.needles + self.opens + self.closes

    @cached_property
    def automaton(self) -> BytesAhoCorasick:
        """Finds all of them in one pass."""
        marks = [mark.encode() for mark in self.marks]
        # Of the three the fastest by far, and the one that takes most memory: a few hundred kB for all formats.
        return BytesAhoCorasick(marks + DECOYS if len(marks) > 1 else marks, implementation=Implementation.DFA)

    @cached_property
    def alike_in_bytes(self) -> re.Pattern[bytes]:
        """The first match of a line, with the rest of the line."""
        return re.compile(b"(" + (self.alike.pattern if self.alike else "(?!)").encode() + rb")[^\r\n]*")

    def tally(self, block: bytes) -> tuple[Counter[str], list[tuple[int, int, int]]]:
        """How many lines are alike, by the text that they share, and the first of each as a needle that was found."""
        counts: Counter[bytes] = Counter(self.alike_in_bytes.findall(block))
        firsts: dict[bytes, tuple[int, int, int]] = {}
        for match in self.alike_in_bytes.finditer(block) if counts else ():
            firsts.setdefault(match[1], (0, *match.span(1)))
            if len(firsts) == len(counts):
                break
        return Counter({text.decode(): count for text, count in counts.items()}), [*firsts.values()]

    def found(self, block: bytes) -> list[tuple[int, int, int]]:
        """Which mark is where, also marks that overlap: those of another format may begin within one of this."""
        decoy = len(self.marks)
        matches = self.automaton.find_matches_as_indexes(block, overlapping=True)
        return [match for match in matches if match[0] < decoy]

    def is_dense(self, block: bytes) -> bool:
        """Whether there is but one mark, and so often that to look into every line takes less time than to find it."""
        if len(self.marks) != 1 or self.opens or block.count(self.marks[0].encode()) * DENSE_BYTES < len(block):
            return False
        # Lines too long, of which a piece around the mark is given, are not among them.
        half = LONGEST_LINE // 2
        return all(block.find(b"\n", at, at + half) >= 0 for at in range(0, len(block) - half, half))

    def lines(self, content: Iterable[bytes]) -> Iterator[Line]:
        """The lines that matter, without prefixes, colours and NUL bytes; of a bar that redraws itself every state."""
        number = 1
        inside, alike = self.everything, self.alike
        for block in content:
            tally, firsts = self.tally(block) if alike is not None else (Counter[str](), [])
            dense = alike is None and self.is_dense(block)
            spans, inside = ([(0, len(block))], False) if dense else self.spans(block, firsts, inside=inside)
            counted = 0
            for start, end in spans:
                number += block.count(b"\n", counted, start)
                text = block[start:end].decode(errors="replace")
                if "\x1b" in text or "\0" in text:
                    text = NOT_TEXT.sub("", text)
                for further, printed in enumerate(text.split("\n")):
                    if dense and self.marks[0] not in printed:
                        continue
                    for state in printed.split("\r") if "\r" in printed else (printed,):
                        if state:
                            said, at = state[:LONGEST_LINE], number + further
                            line = Line(at, said) if said[0] in NO_PREFIX else cleaned(said, at)
                            if alike is not None and (match := alike.search(line.text)):
                                line = line._replace(times=tally.pop(match[0], 0))
                            yield line
                number += further
                counted = end
            number += block.count(b"\n", counted)

    def spans(
        self, block: bytes, firsts: list[tuple[int, int, int]], *, inside: bool
    ) -> tuple[list[tuple[int, int]], bool]:
        """From where to where a block matters, given whether a section was open before it and whether one still is."""
        if self.everything:
            return [(0, len(block))], True
        first_open, first_close = len(self.needles), len(self.needles) + len(self.opens)
        found: list[tuple[int, int]] = []
        opened = 0 if inside else None
        start = end = 0
        matches = self.found(block)
        for mark, at, _ in sorted([*matches, *firsts], key=itemgetter(2)) if firsts else matches:
            if at >= end:
                # The line that it is in; of a very long one a piece.
                start = max(block.rfind(b"\n", end, at) + 1, end, at - LONGEST_LINE)
                end = block.find(b"\n", at, at + LONGEST_LINE)
                if end < 0:
                    end = min(len(block), at + LONGEST_LINE)
            if opened is None and mark < first_open:
                if found and start == found[-1][1] + 1:
                    found[-1] = found[-1][0], end
                elif not found or found[-1][1] < end:
                    found.append((start, end))
            elif opened is None and mark < first_close:
                opened = start
                if found and found[-1][1] == end:
                    # The same line had a needle before: it is given with the section.
                    found[-1] = found[-1][0], max(start - 1, found[-1][0])
            elif opened is not None and mark >= first_close:
                found.append((opened, end))
                opened = None
        if opened is not None:
            found.append((opened, len(block)))
        return found, opened is not None


def cleaned(text: str, number: int) -> Line:
    """A line without its prefixes, and whose it is."""
    rank: Whose = None
    host: str | None = None
    while text[:1] not in NO_PREFIX and (prefix := PREFIX.match(text)):
        if prefix.lastgroup == "host":
            host = prefix["host"]
        elif prefix.lastgroup == "local":
            rank = LocalRank(int(prefix["local"]))
        elif prefix.lastgroup is not None:
            rank = int(prefix[prefix.lastgroup])
        text = text[prefix.end() :]
    return Line(number, text, rank, host)

"""Find the relevant lines of a log of any size by their markers, and strip the prefixes of launchers.

A log is mostly noise. Blocks are searched for all markers of a format at once (Aho-Corasick), and only lines with a
marker become Python strings. Memory is a block or two, independent of the size of the file and of its lines.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import math
import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from operator import itemgetter
from pathlib import Path
from typing import IO, Any

import zstandard
from ahocorasick_rs import BytesAhoCorasick, Implementation

from analysis.parsers.base import Line, LocalRank, RankLabel
from jobs.files import opened, too_large

BLOCK_BYTES = 1 << 22
# Longer lines are cut: no format has them, binary files do.
LONGEST_LINE = 1 << 16
# With a marker in at least every 512 bytes of a block, nearly every line has it.
DENSE_BYTES = 512
# Bytes that UTF-8 never contains. With few patterns the library jumps to what it believes the rarest byte of each, and
# stops at every occurrence in a log full of them; with these additional patterns it scans at full speed instead.
DECOYS = [b"\xf8", b"\xf9", b"\xfa", b"\xfb"]
DECOMPRESS: dict[bytes, Callable[[IO[bytes]], Any]] = {
    b"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\x00": lzma.LZMAFile,
    b"\x28\xb5\x2f\xfd": lambda file: zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True),
}
# Limits: logs of any size are read, but not a small file that expands to a large one. Text is compressed to a tenth,
# the same lines of many ranks to a hundredth; gzip reaches a thousandth, for zeros.
MOST_EXPANSION = 500
FREE_BYTES = 256 << 20
# A crash leaves some blocks of zeros; a sparse file may have terabytes.
MOST_ZEROS_BYTES = 64 << 20
UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
# Errors of damaged compressed files; bz2 raises OSError, as the system does for unreadable files.
TORN = (EOFError, OSError, zlib.error, lzma.LZMAError, zstandard.ZstdError)

# No number contains one of these: a comma may stand between digits, and a colon in a time.
SEPARATORS = (b" ", b"\t", b"\r", b"\n", b"|", b";", b"=")
# A number that ends with one of these may go on: 123, 1,234., 12:0, 1e-.
DIGIT = re.compile(rb"[0-9]")
MAY_GO_ON = tuple(b"%c" % each for each in b"0123456789.,:eE+-")
NUMBER = re.compile(rb"[+-]?[0-9][0-9.,:eE+-]*")
DIGITS = re.compile(rb"[0-9]+")
SIGNS = b"+-"
BLANKS = re.compile(rb"[ \t]+")
# C and Python print exponents of at least two digits, and none of a measurement has three.
EXPONENT = re.compile(rb"[0-9][eE][+-][0-9]{2,}$")
THOUSANDS = re.compile(rb"[+-]?[0-9]{1,3}(,[0-9]{3})*,?[0-9]{0,3}(\.[0-9]*)?")
# Lines before the last one that show how the program prints its last number.
LOOKED_BACK_BYTES = 1 << 18
# A float of 64 bits has 15 to 17 digits; without the last of them it differs by less than 1e-12.
DIGITS_ENOUGH = 12
DIGITS_OF_ONE = 2
# An integer without its last digit is a tenth.
LARGEST_STEP = 3


def blocks(path: Path) -> Iterator[bytes]:
    """Return a file's content, decompressed, as UTF-8, in blocks that end at a line end if they contain one.

    A truncated compressed file is read as far as it goes. Raise OSError if a file cannot be read.
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


def without_torn_number(content: Iterable[bytes]) -> Iterator[bytes]:
    """Return blocks without a number that may be cut off at their end: see `torn_number`."""
    before, last = b"", b""
    for block in content:
        if last:
            yield last
        before, last = (before + last)[-LOOKED_BACK_BYTES:], block
    if last := last[: len(last) - torn_bytes(before, last)]:
        yield last


def torn_number(path: Path) -> str:
    """Return the number at the end of a file that is not read, because it may be cut off; empty if it is whole.

    Raise OSError if the file cannot be read.
    """
    before, last = b"", b""
    for block in blocks(path):
        before, last = (before + last)[-LOOKED_BACK_BYTES:], block
    return last[len(last) - torn_bytes(before, last) :].decode(errors="replace")


def torn_bytes(before: bytes, last: bytes) -> int:
    """Return the length of the number that ends the last line, if it may be cut off; else 0.

    A line without a line end is that of a program that was killed or is still writing, 123 the beginning of 1234.5; or
    it was copied without its end. A number is whole in a file of one line, and if it has the form of those that end
    the lines with the same words before it: 0.50 below 1.25 and 0.75 is, 0.5 is not.
    """
    earlier, _, line = (before + last).rpartition(b"\n")
    if not earlier or not line.endswith(MAY_GO_ON):
        return 0
    words, number = worded_number(line)
    if not DIGIT.search(number) or EXPONENT.search(number):
        return 0
    lines = [worded_number(each.rstrip()) for each in earlier.split(b"\n")]
    if is_whole(last_cell(number), [last_cell(other) for its_words, other in lines if its_words == words]):
        return 0
    return len(number)


def worded_number(line: bytes) -> tuple[bytes, bytes]:
    """Return the words of a line before its last number, with all other numbers and blanks alike, and that number.

    The cells of a row with commas but no blanks are one number; its words are the number of its cells.
    """
    begin = max(map(line.rfind, SEPARATORS)) + 1
    cells = line.count(b",") if begin == 0 else 0
    words = b"%d" % cells if cells else line[:begin]
    return BLANKS.sub(b" ", NUMBER.sub(b"0", words)), line[begin:]


def last_cell(number: bytes) -> bytes:
    """Return the last cell of a row with commas, with the comma before an empty one; a number as it is: 1,234."""
    return number if THOUSANDS.fullmatch(number) else number[number.rfind(b",", 0, -1) + 1 :]


def is_whole(number: bytes, others: Sequence[bytes]) -> bool:
    """Return True if a number has the form of others, and by these nothing is missing at its end.

    The form is the number with one digit for each row of digits, 0.0 of 12.75. One other of as many digits is enough,
    or two of no more digits; an integer must not be far below them, either.
    """
    form = DIGITS.sub(b"0", number.lstrip(SIGNS))
    forms = [DIGITS.sub(b"0", other.lstrip(SIGNS)) for other in others]
    alike = [other for other, its_form in zip(others, forms, strict=True) if its_form == form]
    if not alike or any(each != form and each.startswith(form) for each in forms):
        return False
    digits, longest = len(last_digits(number)), max(len(last_digits(other)) for other in alike)
    if number == b"0":
        return True
    if form == b"0" and int(number) < max(map(int, alike)) / LARGEST_STEP:
        return False
    enough = digits >= min(longest, DIGITS_ENOUGH)
    return enough and (len(alike) > 1 or (digits == longest >= DIGITS_OF_ONE))


def last_digits(number: bytes) -> bytes:
    """Return the digits at the end of a number."""
    return number[len(number.rstrip(b"0123456789")) :]


def whole_lines(path: Path, longest: int) -> Iterator[tuple[int, bytes]]:
    """Return each line of at most `longest` bytes with its number."""
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
    """Return a file's bytes, decompressed. Raise OSError for one that is larger than its content is worth."""
    with opened(path) as raw:
        first = raw.read(max(map(len, DECOMPRESS)))
        size_bytes = raw.seek(0, os.SEEK_END)
        raw.seek(0)
        decompress = next((how for magic, how in DECOMPRESS.items() if first.startswith(magic)), None)
        if decompress is None:
            yield from bounded(iter(partial(raw.read, BLOCK_BYTES), b""), path)
        else:
            most = max(FREE_BYTES, MOST_EXPANSION * size_bytes)
            yield from bounded(decompressed(decompress(raw)), path, most)


def bounded(given: Iterable[bytes], path: Path, most: float = math.inf) -> Iterator[bytes]:
    """Return blocks; raise OSError when there are more than `most` bytes, or too many zeros in a row."""
    size = zeros = 0
    for block in given:
        size += len(block)
        zeros = 0 if block.strip(b"\0") else zeros + len(block)
        if zeros > MOST_ZEROS_BYTES:
            raise too_large(path, "a row of zeros in it", MOST_ZEROS_BYTES)
        if size > most:
            raise too_large(path, f"its content, {MOST_EXPANSION} times its size,", int(most))
        yield block


def decompressed(file: Any) -> Iterator[bytes]:
    """Return the content of a compressed file in blocks, as far as it is intact."""
    pieces: list[bytes] = []
    size = 0
    with suppress(*TORN):
        # read() would discard a truncated final block; read1() returns what was decoded.
        while piece := file.read1(BLOCK_BYTES):
            pieces.append(piece)
            size += len(piece)
            if size >= BLOCK_BYTES:
                yield b"".join(pieces)
                pieces, size = [], 0
    yield b"".join(pieces)


def utf_8(given: Iterator[bytes]) -> Iterator[bytes]:
    """Convert UTF-16, as PowerShell and some Windows editors write it, to UTF-8; drop byte-order marks."""
    first = next(given, b"").removeprefix(codecs.BOM_UTF8)
    if not first.startswith(UTF_16):
        yield first
        yield from given
        return
    decoder = codecs.getincrementaldecoder("utf-16")("replace")
    for block in (first, *given):
        yield decoder.decode(block).encode()


# ANSI colours and NUL bytes.
NOT_TEXT = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\0")
# Words before a colon that look like node12 and are not hosts: fp16, top5, step10, urllib3.MaxRetryError, IOR-3.0.1.
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

# No prefix begins with these characters, but most relevant lines do.
NO_PREFIX = {":", "{", "#", "|", ""}


@dataclass(frozen=True)
class Search:
    """Selection of the relevant lines of a log."""

    markers: tuple[str, ...] = ()
    """Lines with one of these texts are relevant."""
    section_start: tuple[str, ...] = ()
    """So are all lines from one with one of these texts ..."""
    section_end: tuple[str, ...] = ()
    """... up to one with one of these texts."""
    everything: bool = False
    """All lines are relevant."""
    dedup_key: re.Pattern[str] | None = None
    """Lines with the same match are represented by the first one of a block, with their number."""

    @cached_property
    def all_markers(self) -> tuple[str, ...]:
        """All texts to search for."""
        return self.markers + self.section_start + self.section_end

    @cached_property
    def automaton(self) -> BytesAhoCorasick:
        """Automaton that finds all markers in one pass."""
        patterns = [marker.encode() for marker in self.all_markers]
        # By far the fastest of three implementations; it takes the most memory, a few hundred kB for all formats.
        return BytesAhoCorasick(patterns + DECOYS if len(patterns) > 1 else patterns, implementation=Implementation.DFA)

    @cached_property
    def dedup_key_in_bytes(self) -> re.Pattern[bytes]:
        """Pattern for the first match in a line, followed by the rest of the line."""
        return re.compile(b"(" + (self.dedup_key.pattern if self.dedup_key else "(?!)").encode() + rb")[^\r\n]*")

    def tally(self, block: bytes) -> tuple[Counter[str], list[tuple[int, int, int]]]:
        """Count lines by `dedup_key`; return the counts, and the first line of each as a found marker."""
        counts: Counter[bytes] = Counter(self.dedup_key_in_bytes.findall(block))
        firsts: dict[bytes, tuple[int, int, int]] = {}
        for match in self.dedup_key_in_bytes.finditer(block) if counts else ():
            firsts.setdefault(match[1], (0, *match.span(1)))
            if len(firsts) == len(counts):
                break
        return Counter({text.decode(): count for text, count in counts.items()}), [*firsts.values()]

    def found(self, block: bytes) -> list[tuple[int, int, int]]:
        """Return (marker, start, end) for each marker, overlapping ones included: one may begin within another."""
        decoy = len(self.all_markers)
        matches = self.automaton.find_matches_as_indexes(block, overlapping=True)
        return [match for match in matches if match[0] < decoy]

    def is_dense(self, block: bytes) -> bool:
        """Return True if there is only one marker, so frequent that testing every line is faster than searching."""
        if (
            len(self.all_markers) != 1
            or self.section_start
            or block.count(self.all_markers[0].encode()) * DENSE_BYTES < len(block)
        ):
            return False
        # Not for lines too long to be kept whole: only a piece around the marker is returned.
        half = LONGEST_LINE // 2
        return all(block.find(b"\n", at, at + half) >= 0 for at in range(0, len(block) - half, half))

    def lines(self, content: Iterable[bytes]) -> Iterator[Line]:
        """Return the relevant lines without prefixes, colours and NUL bytes; each state of a bar is one."""
        number = 1
        inside, dedup_key = self.everything, self.dedup_key
        for block in content:
            tally, firsts = self.tally(block) if dedup_key is not None else (Counter[str](), [])
            dense = dedup_key is None and self.is_dense(block)
            spans, inside = ([(0, len(block))], False) if dense else self.spans(block, firsts, inside=inside)
            counted = 0
            for start, end in spans:
                number += block.count(b"\n", counted, start)
                text = block[start:end].decode(errors="replace")
                if "\x1b" in text or "\0" in text:
                    text = NOT_TEXT.sub("", text)
                for further, printed in enumerate(text.split("\n")):
                    if dense and self.all_markers[0] not in printed:
                        continue
                    for state in printed.split("\r") if "\r" in printed else (printed,):
                        if state:
                            kept, at = state[:LONGEST_LINE], number + further
                            line = Line(at, kept) if kept[0] in NO_PREFIX else cleaned(kept, at)
                            if dedup_key is not None and (match := dedup_key.search(line.text)):
                                line = line._replace(times=tally.pop(match[0], 0))
                            yield line
                number += further
                counted = end
            number += block.count(b"\n", counted)

    def spans(
        self, block: bytes, firsts: list[tuple[int, int, int]], *, inside: bool
    ) -> tuple[list[tuple[int, int]], bool]:
        """Return the relevant (start, end) spans of a block, and `inside` (a section is open) for the next block."""
        if self.everything:
            return [(0, len(block))], True
        first_open, first_close = len(self.markers), len(self.markers) + len(self.section_start)
        found: list[tuple[int, int]] = []
        opened = 0 if inside else None
        start = end = 0
        matches = self.found(block)
        for marker, at, _ in sorted([*matches, *firsts], key=itemgetter(2)) if firsts else matches:
            if at >= end:
                # The line that contains the marker; a piece of a very long one.
                start = max(block.rfind(b"\n", end, at) + 1, end, at - LONGEST_LINE)
                end = block.find(b"\n", at, at + LONGEST_LINE)
                if end < 0:
                    end = min(len(block), at + LONGEST_LINE)
            if opened is None and marker < first_open:
                if found and start == found[-1][1] + 1:
                    found[-1] = found[-1][0], end
                elif not found or found[-1][1] < end:
                    found.append((start, end))
            elif opened is None and marker < first_close:
                opened = start
                if found and found[-1][1] == end:
                    # The line also has a marker: it is returned with the section.
                    found[-1] = found[-1][0], max(start - 1, found[-1][0])
            elif opened is not None and marker >= first_close:
                found.append((opened, end))
                opened = None
        if opened is not None:
            found.append((opened, len(block)))
        return found, opened is not None


def cleaned(text: str, number: int) -> Line:
    """Return a line without its prefixes, with the rank and host that they state."""
    rank: RankLabel = None
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

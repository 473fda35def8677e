"""Read files that another person may have written: the only module that opens and parses them.

A file that is no regular file, is too large or cannot be read raises OSError, whose `strerror` is the reason; content
that is not JSON or YAML, or is nested or repeated without bound, raises ValueError. Nothing waits for a FIFO, expands
without a limit, or constructs anything but plain data. No limit refuses what a run of the largest cluster writes:

    YAML_BYTES           a frozen Run has 6 kB, a campaign of 10,000 attempts 600 kB; a parser takes seconds a megabyte
    YAML_NODES           after expansion of its aliases, a value counts each time that it is repeated
    DOCUMENT_BYTES       JSON takes ten times its size in memory; the `layout` of 10,000 ranks has 1 MB
    RECORD_BYTES         a line of a record file, as an event with numbers of every rank
    RECORD_FILE_BYTES    read as a whole; 10 million steps of 300 bytes have 3 GB
    DEEPEST              our own files have 8 levels, traces of profilers 20
    LONGEST_INTEGER      digits; a longer one is infinite as a float
"""

from __future__ import annotations

import errno
import io
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from jobs.errors import SuiteError

YAML_BYTES = 1 << 20
YAML_NODES = 200_000
DOCUMENT_BYTES = 64 << 20
RECORD_BYTES = 16 << 20
RECORD_FILE_BYTES = 16 << 30
DEEPEST = 100
LONGEST_INTEGER = 300
LARGEST_INTEGER = 10**LONGEST_INTEGER

READ_AT_ONCE_BYTES = 1 << 20
KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
REASONS = {
    errno.ENXIO: "it is a socket, not a regular file",
    errno.ELOOP: "it is a link that leads to itself",
    errno.ENOTDIR: "a part of its path is a file, not a directory",
    errno.ENAMETOOLONG: "it is a link to a name that is too long, or has one",
}
OUT_OF_THE_FOLDER = "it is a link out of the folder, which may come from somebody else"
# Possessive: a repetition that may give back keeps a state for each character.
NO_BRACKETS = re.compile(r'"(?:[^"\\]++|\\.)*+"|[^][{}"]++', re.DOTALL)
# libyaml, if PyYAML was built with it, is ten times as fast.
YAML_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# PyYAML's constructors raise any of these for a value that does not fit its tag, such as !!timestamp a.
OF_CONSTRUCTORS = (yaml.YAMLError, ValueError, TypeError, AttributeError, LookupError, OverflowError, RecursionError)


class UnsuitableFileError(SuiteError, OSError):
    """A file that is not a regular file, is larger than a limit, or cannot be opened; `strerror` is the reason."""

    def __str__(self) -> str:
        return f"{self.filename} cannot be read: {self.strerror}. Remove it, or restore it from a copy."


# --- bytes -----------------------------------------------------------------------------------------------------


def descriptor(path: str | Path) -> int:
    """Return a descriptor of a regular file, for reading; links are followed, and no FIFO or device is waited for.

    Raise FileNotFoundError, PermissionError, or UnsuitableFileError for any other reason.
    """
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):
        raise
    except OSError as error:
        words = REASONS.get(error.errno or 0) or error.strerror or str(error)
        raise UnsuitableFileError(error.errno, words, str(path)) from error
    kind = stat.S_IFMT(os.fstat(opened).st_mode)
    if kind == stat.S_IFREG and not leads_out(path, opened):
        return opened
    os.close(opened)
    if kind == stat.S_IFREG:
        raise UnsuitableFileError(errno.EXDEV, OUT_OF_THE_FOLDER, str(path))
    raise UnsuitableFileError(errno.EINVAL, f"it is {KINDS.get(kind, 'special')}, not a regular file", str(path))


CONFINED: list[str] = []
"""Directories with a slash at the end; a file in one of them is read only if no link leads out of all of them."""


def confine(directories: Iterable[Path]) -> None:
    """Read files in these directories only where no link leads out of them: others may have made the links.

    It holds until the next call. The directories have no links in their paths.
    """
    CONFINED[:] = [f"{str(directory).rstrip('/')}/" for directory in directories]


def leads_out(path: str | Path, opened: int) -> bool:
    """Return True if a file in a confined directory was opened through a link that leads out of all of them."""
    if not CONFINED or not os.path.abspath(path).startswith(tuple(CONFINED)):  # noqa: PTH100 (resolve follows links)
        return False
    # The file that is open, whatever the link leads to by now.
    return not os.readlink(f"/proc/self/fd/{opened}").startswith(tuple(CONFINED))  # noqa: PTH115 (faster)


def exists(path: str | Path) -> bool:
    """Return True if there is a file or directory; a link that leads nowhere is none."""
    return os.path.exists(path)  # noqa: PTH110 (Path.exists raises OSError for a link to a name that is too long)


def is_file(path: str | Path) -> bool:
    """Return True if there is a regular file; a link that leads nowhere is none."""
    return os.path.isfile(path)  # noqa: PTH113 (as above)


def is_directory(path: str | Path) -> bool:
    """Return True if there is a directory."""
    return os.path.isdir(path)  # noqa: PTH112 (as above)


def file_names(directory: str | Path) -> list[str]:
    """Return the names of the regular files in a directory; no link is followed.

    Raise FileNotFoundError, PermissionError, or UnsuitableFileError for any other reason.
    """
    try:
        # Opening the directory makes NFS ask the server for its present content.
        opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            with os.scandir(opened) as entries:
                return [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]
        finally:
            os.close(opened)
    except (FileNotFoundError, PermissionError):
        raise
    except OSError as error:
        not_one = error.errno in {errno.ENOTDIR, errno.ELOOP}
        words = "it is a link or not a directory" if not_one else error.strerror or str(error)
        raise UnsuitableFileError(error.errno, words, str(directory)) from error


def opened(path: str | Path) -> io.BufferedReader:
    """Return a regular file, open for reading."""
    return os.fdopen(descriptor(path), "rb")


def reason(error: OSError | ValueError) -> str:
    """Return why a file was not read, in one line."""
    words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(words.split())


def too_large(path: str | Path, what: str, most: int) -> UnsuitableFileError:
    """Return the error for a file above a limit."""
    return UnsuitableFileError(errno.EFBIG, f"{what} is larger than {most >> 20:,} MiB", str(path))


def read_bytes(path: str | Path, most: int = DOCUMENT_BYTES, longest_line: int | None = None) -> bytes:
    """Return the content of a regular file of at most `most` bytes, without lines longer than `longest_line`.

    A sparse file of terabytes is one line.
    """
    parts: list[bytes] = []
    size = line = 0
    # os.read is faster than pathlib and file objects: 10,000 runs have 50,000 files.
    source = descriptor(path)
    try:
        while part := os.read(source, READ_AT_ONCE_BYTES):
            parts.append(part)
            size += len(part)
            if size > most:
                raise too_large(path, "it", most)
            if longest_line is not None and size > longest_line:
                end = part.rfind(b"\n")
                line = line + len(part) if end < 0 else len(part) - end - 1
                if line > longest_line:
                    raise too_large(path, "a line", longest_line)
    except OSError as error:
        # An error of os.read has no file name.
        error.filename = str(path)
        raise
    finally:
        os.close(source)
    return b"".join(parts)


def read_text(path: str | Path, most: int = DOCUMENT_BYTES) -> str:
    """Return the text of a regular file; what is not UTF-8 is replaced."""
    return read_bytes(path, most).decode(errors="replace")


def read_tail(path: str | Path, most: int) -> str:
    """Return the last `most` bytes of a regular file as text; it may begin within a character."""
    with opened(path) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - most))
        return file.read(most).decode(errors="replace")


def read_lines(path: str | Path) -> Iterator[bytes]:
    """Yield the lines of a record file of any size; raise OSError at a line longer than RECORD_BYTES."""
    with opened(path) as file:
        while line := file.readline(RECORD_BYTES + 1):
            if len(line) > RECORD_BYTES:
                raise too_large(path, "a line", RECORD_BYTES)
            yield line


# --- JSON ------------------------------------------------------------------------------------------------------


def whole_number(digits: str) -> int:
    """Return an integer of JSON."""
    if len(digits) > LONGEST_INTEGER:
        raise ValueError(f"an integer has more than {LONGEST_INTEGER} digits")
    return int(digits)


JSON = json.JSONDecoder(parse_int=whole_number)


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text. Raise ValueError for any other text."""
    if isinstance(text, bytes):
        text = text.decode()
    # A byte-order mark, as programs of Windows write it; a parser may ignore it (RFC 8259, section 8.1).
    text = text.removeprefix("\ufeff")
    try:
        value = JSON.decode(text)
    except RecursionError:
        raise nested_deeper() from None
    if text.count("[") + text.count("{") > DEEPEST and json_depth_exceeds(text):
        raise nested_deeper()
    return value


def json_depth_exceeds(text: str) -> bool:
    """Return True if a JSON text is nested deeper than DEEPEST: each round removes the innermost brackets."""
    brackets = NO_BRACKETS.sub("", text)
    for _ in range(DEEPEST):
        brackets = brackets.replace("[]", "").replace("{}", "")
    return bool(brackets)


def nested_deeper() -> ValueError:
    """Return the error for a document that is nested too deep."""
    return ValueError(f"it is nested deeper than {DEEPEST} levels")


def read_json(path: str | Path) -> Any:
    """Return the value in a JSON file. Raise OSError, or ValueError for any other text."""
    return parse_json(read_bytes(path))


def read_object(path: str | Path) -> dict[str, Any]:
    """Return the object in a JSON file. Raise OSError, or ValueError for any other content."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004 (refused like any other content)
    return value


# --- YAML ------------------------------------------------------------------------------------------------------


def parse_yaml(text: str | bytes, loader: Any = YAML_LOADER) -> Any:
    """Return the value of a YAML text by a safe loader. Raise ValueError for any other text, in one line."""
    try:
        # Only aliases repeat a value; nearly all files have none, and counting takes as long as loading.
        if b"*" in text if isinstance(text, bytes) else "*" in text:
            refuse_expansion(text)
        value = yaml.load(text, loader)  # noqa: S506 (every caller gives a safe one)
    except OF_CONSTRUCTORS as error:
        if isinstance(error, RecursionError) or "maximum nesting depth" in str(error):
            raise nested_deeper() from None
        raise ValueError(" ".join(str(error).split()) or "a value does not fit its tag") from error
    refuse_depth(value)
    return value


def refuse_expansion(text: str | bytes) -> None:
    """Raise ValueError if a YAML text is nested too deep, or has too many values, aliases counted as what they repeat.

    Raise yaml.YAMLError if it is not YAML.
    """
    sizes: dict[str | None, int] = {}
    open_nodes: list[tuple[str | None, int]] = []
    total = 0
    for event in yaml.parse(text, YAML_LOADER):
        anchor = getattr(event, "anchor", None)
        if isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append((anchor, total))
            if len(open_nodes) > DEEPEST:
                raise nested_deeper()
            # Until it ends, an alias of it within itself would never end.
            sizes.pop(anchor, None)
            total += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            name, before = open_nodes.pop()
            sizes[name] = total - before
        elif isinstance(event, yaml.ScalarEvent):
            sizes[anchor] = 1
            total += 1
        elif isinstance(event, yaml.AliasEvent):
            if anchor not in sizes:
                raise ValueError(f"the alias *{anchor} repeats itself, or nothing")
            total += sizes[anchor]
        if total > YAML_NODES:
            raise ValueError(f"its aliases expand to more than {YAML_NODES:,} values")


def refuse_depth(value: Any) -> None:
    """Raise ValueError if a value without cycles is nested deeper than DEEPEST, or has too long an integer."""
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > DEEPEST:
            raise nested_deeper()
        below: list[Any] = []
        for each in level:
            # Exact types, which are all that a safe loader makes of collections: isinstance takes twice the time.
            kind = type(each)
            if kind is dict:
                below += each.values()
            elif kind is list:
                below += each
            elif kind is int and not -LARGEST_INTEGER < each < LARGEST_INTEGER:
                raise ValueError(f"an integer has more than {LONGEST_INTEGER} digits")
        level = below


def read_yaml(path: str | Path, loader: Any = YAML_LOADER) -> Any:
    """Return the value in a YAML file. Raise OSError, or ValueError for any other text."""
    return parse_yaml(read_bytes(path, YAML_BYTES), loader)


def flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested mappings as one mapping with dotted keys; lists stay values."""
    items: dict[str, Any] = {}

    def add(values: Mapping[str, Any], prefix: str) -> None:
        for key, value in values.items():
            # YAML and JSON yield dict; isinstance of Mapping would take most of the time here.
            if isinstance(value, dict):
                add(value, f"{prefix}{key}.")
            else:
                items[f"{prefix}{key}"] = value

    add(values, "")
    return items

"""Write files, and guard the standard streams of a process that must outlive a full disk.

A directory may come from somebody else, who may have put links at the names that we write. No link there is followed:
`write_file` replaces it, `open_to_append` and `own_directory` refuse it.
"""

from __future__ import annotations

import atexit
import codecs
import errno
import io
import os
import secrets
import signal
import stat
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TextIO, cast

from jobs.errors import ConfigError, RunDirError, SuiteError
from jobs.pieces import Pieces
from jobs.secrets import redact, redacted_traceback

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
CLOSED_PIPE = 128 + signal.SIGPIPE


def write_file(path: Path, data: str | bytes, mode: int = 0o666) -> None:
    """Write a file atomically: a reader sees the old content or the new; a link at its name is replaced.

    The umask takes its bits from the mode.
    Raise OSError with the path of the file if the directory cannot be written or is full; then the old file stays.
    """
    # Nobody can guess the name and put a link there; O_EXCL refuses one all the same.
    writing = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(writing, flags, mode), "wb") as file:
            file.write(data.encode("utf-8") if isinstance(data, str) else data)
        writing.replace(path)
    except BaseException as error:
        with suppress(OSError):
            writing.unlink()
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise


def write_output(path: Path, text: str) -> None:
    """Write a file that the user asked for, and the directories above it; raise ConfigError if that fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, text)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror} ({error.filename}). Set another place with --output."
        ) from error


def open_to_append(path: Path) -> io.FileIO:
    """Open a file to read it and to append to it; raise RunDirError if it is a link of any kind or no regular file."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise RunDirError(f"{path} is a link, and records are never written through one. Remove it.") from None
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(descriptor)
        why = "is not a regular file, so no record can be appended to it. Remove it."
        if stat.S_ISREG(found.st_mode):
            why = "has another name as well, a hard link, and records are never written through one. Make it a copy."
        raise RunDirError(f"{path} {why}")
    return io.FileIO(descriptor, "ab+")


def own_directory(path: Path, mode: int = 0o777) -> Path:
    """Make a directory inside one of ours, unless it exists, and return it; raise RunDirError if it is a link."""
    path.mkdir(exist_ok=True, mode=mode)
    if path.is_symlink():
        raise RunDirError(f"{path} is a link, and files are never written through one. Remove it.")
    return path


class Descriptor(io.FileIO):
    """An open file descriptor; a write that finds no space is dropped."""

    def write(self, data: Any) -> int:
        """Write bytes and return their number, also where they were dropped."""
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            return memoryview(data).nbytes


class Guarded:
    """A text stream that passes on what it gets after `clean` has replaced what must not be in it; see jobs/pieces.py.

    Bytes that are written to its `buffer` take the same way.
    """

    def __init__(self, stream: TextIO, clean: Callable[[str], str]) -> None:
        self.unguarded = stream
        self._bytes = GuardedBytes(self)
        self._pieces = Pieces(clean)
        # Threads print too; a signal handler may print while its thread does.
        self._lock = threading.RLock()

    def write(self, text: str) -> int:
        """Pass on the lines that are complete."""
        with self._lock:
            self._write(self._pieces.add(text))
        return len(text)

    @property
    def buffer(self) -> BinaryIO:
        """The binary side of this stream."""
        return cast(BinaryIO, self._bytes)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several texts."""
        self.write("".join(lines))

    def flush(self) -> None:
        """Pass on everything but a word that may not be complete."""
        with self._lock:
            self._write(self._pieces.flush())
        self._flush()

    def end(self) -> None:
        """Pass on everything, before text of another program or at the end of this one."""
        with self._lock:
            self._write(self._pieces.end())
        self._flush()

    def _flush(self) -> None:
        try:
            self.unguarded.flush()
        except BrokenPipeError:
            output_is_closed()

    def _write(self, text: str) -> None:
        if not text:
            return
        try:
            self.unguarded.write(text)
        except BrokenPipeError:
            output_is_closed()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unguarded, name)


class GuardedBytes(io.BufferedIOBase):
    """The binary side of a guarded stream; bytes that are not UTF-8 become text."""

    def __init__(self, stream: Guarded) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")

    def write(self, data: Any) -> int:
        """Write bytes as text."""
        self._stream.write(self._decoder.decode(bytes(data)))
        return memoryview(data).nbytes

    def flush(self) -> None:
        """Flush the stream."""
        self._stream.flush()

    def fileno(self) -> int:
        """Return the file descriptor behind the stream."""
        return self._stream.unguarded.fileno()

    def isatty(self) -> bool:
        """Return True if the stream is a terminal."""
        return self._stream.unguarded.isatty()

    def writable(self) -> bool:
        """Return True."""
        return True


def unguarded(stream: TextIO) -> TextIO:
    """Return the stream behind a guarded one, for text that is clean and follows what was written."""
    if isinstance(stream, Guarded):
        stream.end()
    return behind(stream)


def behind(stream: TextIO) -> TextIO:
    """Return the stream behind a guarded one."""
    return stream.unguarded if isinstance(stream, Guarded) else stream


def exit_code_of(interrupt: KeyboardInterrupt) -> int:
    """Return the exit code of a shell command that a signal ended: 128 and the number of the signal."""
    return 128 + int(interrupt.args[0] if interrupt.args else signal.SIGINT)


def output_is_closed() -> NoReturn:
    """End the command in silence: the reader of its output, `head` for instance, has closed the pipe.

    Raises SystemExit, which no handler of errors takes for a fault of a file, with the code of a program that SIGPIPE
    ends. What is still to be printed is dropped.
    """
    drop_unwritable_output()
    raise SystemExit(CLOSED_PIPE)


def drop_unwritable_output() -> None:
    """Drop what is still to be printed to a standard stream that cannot be written, or the exit would report it."""
    for stream in map(behind, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            with Path(os.devnull).open("wb") as nowhere:
                os.dup2(nowhere.fileno(), stream.fileno())


def open_closed_streams() -> None:
    """Open standard streams that the caller has closed (`>&-`), or the next file that is opened would be one of them.

    What is printed there is dropped, as the caller asked for.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8"))  # noqa: SIM115, PTH123


@contextmanager
def guarded_streams(clean: Callable[[str], str]) -> Iterator[None]:
    """Pass the standard streams, and the traceback of an error that nothing catches, through `clean`."""
    open_closed_streams()
    print_errors_redacted()
    out, err = Guarded(sys.stdout, clean), Guarded(sys.stderr, clean)
    with redirect_stdout(cast(TextIO, out)), redirect_stderr(cast(TextIO, err)):
        try:
            yield
        finally:
            out.end()
            err.end()


def print_errors_redacted() -> None:
    """Print the traceback of an error that nothing catches, in any thread, as one text without secrets."""

    def show(error: BaseException | None) -> None:
        if error is not None:
            print(redacted_traceback(error), end="", file=sys.stderr, flush=True)

    sys.excepthook = lambda _type, error, _traceback: show(error)
    threading.excepthook = lambda thread: show(thread.exc_value)


@contextmanager
def own_program() -> Iterator[None]:
    """Guard the standard streams of a program, and end it with the text of a SuiteError inside this context."""
    outlive_full_disk()
    try:
        yield
    except SuiteError as error:
        sys.exit(f"slurmscale: {error}")


def outlive_full_disk() -> None:
    """Make sys.stdout and sys.stderr drop what a full disk refuses, and replace secrets in what they write.

    Without this, print, flush and exit would raise OSError.
    """
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        with suppress(OSError):
            getattr(sys, name).flush()
        file = io.BufferedWriter(Descriptor(descriptor, "wb", closefd=False))
        text = io.TextIOWrapper(file, encoding="utf-8", errors="backslashreplace", line_buffering=True)
        guarded = Guarded(text, redact)
        # Some libraries print to the stream that Python keeps under the other name.
        for stream in (name, f"__{name}__"):
            setattr(sys, stream, guarded)
        atexit.register(guarded.end)
    print_errors_redacted()

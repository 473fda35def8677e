"""What was worked out from files in an earlier report, kept by their content in the user's cache directory.

A key is a digest of all that its value follows from: the files' bytes and this program's code. A changed file, or
another release, thus never finds an old value. An input may have a stamp as well, which stays the same only as long as
all of that does: where it is the same, nothing need be read. Values are JSON, never pickles. There is one file (a
shelf) for the inputs of one directory; it is written whole and renamed into place: no locks, which network file systems
often lack. Of two reports at once the later one's shelf stays. What cannot be read, or is not as it was written, is as
if it were not there; a place that cannot be written keeps nothing.

    shelf = Shelf.of(directory, cache_directory())
    key = digest(b"kind of value", content)
    value = shelf.get(name, key)
    if value is None:
        value = ...
        shelf.put(name, key, value)
    shelf.save()

For a file too large for memory `hashlib.file_digest` gives what stands for its content.
"""

from __future__ import annotations

import functools
import hashlib
import os
import stat
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import zstandard

SUFFIX = ".json.zst"
# Of all shelves together: 10,000 runs of 50 steps take 4 MB.
MOST_BYTES = 512 << 20


@functools.cache
def code_digest() -> bytes:
    """What stands for the code that works values out: any other gives other keys."""
    found = hashlib.sha256()
    root = Path(__file__).parents[1]
    for package in ("analysis", "jobs"):
        for file in sorted((root / package).rglob("*.py")):
            found.update(file.read_bytes())
    return found.digest()


def digest(*parts: bytes | None) -> str:
    """The key of a value that follows from these parts; None is a part that is not there.

    By SHA-256, for which processors have instructions.
    """
    # Its length before each, so that no two lists of parts are the same bytes.
    marked = (each for part in parts for each in (b"-" if part is None else b"%d:" % len(part), part or b""))
    return hashlib.sha256(b"".join((code_digest(), *marked))).hexdigest()


def cache_directory() -> Path | None:
    """A directory below $XDG_CACHE_HOME, else ~/.cache, that is made for this user alone; None where there is none."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    with suppress(OSError, RuntimeError):
        folder = (base if base.is_absolute() else Path.home() / ".cache") / "slurmscale" / "report"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
        # What others can write could say anything.
        if found.st_uid == os.getuid() and not stat.S_IMODE(found.st_mode) & 0o077:
            return folder
    return None


@dataclass
class Shelf:
    """The values of the inputs of one directory: under each input's name its value, with the key that it belongs to."""

    file: Path | None
    entries: dict[str, tuple[str, Any]] = field(default_factory=dict)
    shared: list[Any] = field(default_factory=list)
    """What several values have in common: they hold its number."""
    stamps: dict[str, Any] = field(default_factory=dict)
    changed: bool = False

    @classmethod
    def of(cls, directory: Path, folder: Path | None) -> Shelf:
        """The shelf of a directory of inputs in a cache directory; without one it is empty and keeps nothing."""
        if folder is None:
            return cls(None)
        file = folder / f"{hashlib.sha256(os.fsencode(directory)).hexdigest()}{SUFFIX}"
        with suppress(OSError, zstandard.ZstdError, ValueError, TypeError):
            entries, shared, stamps = orjson.loads(zstandard.ZstdDecompressor().decompress(file.read_bytes()))
            # The shelves that were not looked at for longest go first.
            os.utime(file)
            return cls(file, dict(entries), list(shared), dict(stamps))
        return cls(file)

    def get(self, name: str, key: str) -> Any:
        """The value of an input; None where none was worked out for this key."""
        kept, value = self.entries.get(name, (None, None))
        return value if kept == key else None

    def get_unchanged(self, name: str, stamp: Any) -> Any:
        """The value of an input that has still this stamp; None where it has another, or the stamp is None."""
        return self.entries[name][1] if stamp is not None and self.stamps.get(name) == stamp else None

    def put(self, name: str, key: str, value: Any, stamp: Any = None) -> None:
        """Keep a value and its input's stamp, which JSON gives back as they are."""
        try:
            name.encode()
        except UnicodeEncodeError:
            # A file's name of bytes that are no text, which JSON does not hold.
            return
        self.entries[name], self.stamps[name] = (key, value), stamp
        self.changed = True

    def share(self, part: Any) -> int:
        """The number of a part of values that JSON gives back as it is; equal parts have one."""
        text = orjson.dumps(part)
        if text not in self.numbers:
            self.numbers[text] = len(self.shared)
            self.shared.append(part)
        return self.numbers[text]

    @functools.cached_property
    def numbers(self) -> dict[bytes, int]:
        """The number of each shared part by its text."""
        return {orjson.dumps(part): number for number, part in enumerate(self.shared)}

    def save(self) -> None:
        """Write the shelf where it has changed, and remove the oldest ones where all of them are too large."""
        if self.file is None or not self.changed:
            return
        content = zstandard.ZstdCompressor(write_checksum=True).compress(
            orjson.dumps([self.entries, self.shared, self.stamps])
        )
        with suppress(OSError):
            # Its name is random until it is whole, and it is this user's alone.
            with tempfile.NamedTemporaryFile(dir=self.file.parent, delete=False) as writing:
                writing.write(content)
            Path(writing.name).replace(self.file)
            make_room(self.file.parent)


def make_room(folder: Path) -> None:
    """Remove the files that nobody looked at for longest, until the others are small enough."""
    found = sorted(((file.stat(), file) for file in folder.iterdir()), key=lambda item: item[0].st_mtime, reverse=True)
    size = 0
    for status, file in found:
        size += status.st_size
        if size > MOST_BYTES:
            file.unlink(missing_ok=True)

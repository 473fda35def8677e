"""The code that runs execute: one copy of each version per user, in a directory next to the sweeps that share it.

    runs/.code-UID/code-DIGEST/     this user's copy; nodes that see a sweep of runs/ see it
    runs/demo/tiny-ddp-n1x2/code -> ../../.code-UID/code-DIGEST

A copy is never changed: its name is the digest of its files, which every job checks before it runs any of them
(trust/integrity.sh). A sweep of an earlier version has its copy inside.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import jobs
from jobs.errors import RunDirError, SuiteError
from jobs.files import read_bytes
from jobs.output import own_directory
from jobs.rundir import RunDir, SweepDir, code_store, load_run

PACKAGES = ("jobs", "analysis", "conf", "sbatch")
INSTALLED = Path(jobs.__file__).parent.parent
NAME = re.compile(r"code-[0-9a-f]{32}")
# A submission that has just asked for a copy has not yet made the run directories that lead to it.
UNUSED_S = 3600.0


def snapshot_code(sweep: SweepDir) -> Path:
    """Return the copy of the running code in the store of a sweep; equal code is stored once."""
    return stored(sweep, packaged_code())


def stored(sweep: SweepDir, contents: Mapping[Path, bytes]) -> Path:
    """Return the copy of these files in the store of a sweep, made unless it exists.

    Nobody writes its files, and only its owner can read them, whatever the umask.
    """
    target = sweep.code(code_digest(contents))
    own_directory(target.parent, mode=0o700)
    if not target.exists():
        with tempfile.TemporaryDirectory(prefix=".new-", dir=target.parent) as staging:
            for path, content in contents.items():
                copy = Path(staging) / "code" / path
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(content)
            for copy in (Path(staging) / "code", *(Path(staging) / "code").rglob("*")):
                copy.chmod(0o700 if copy.is_dir() else 0o400)
            try:
                (Path(staging) / "code").rename(target)
            except OSError:
                if not target.exists():  # else another submission has made the same copy
                    raise
    # Its age is that of its last use, for remove_unused_code.
    with suppress(PermissionError):  # somebody else's, which the check of integrity refuses with its reason
        os.utime(target)
    return target


def packaged_code() -> dict[Path, bytes]:
    """Return the files of the running code, by their path in a checkout."""
    return files_of(INSTALLED)


def files_of(code: Path) -> dict[Path, bytes]:
    """Return the files of a copy of code, or of the installed code, by their path in it; bytecode is left out."""
    roots = [code / package for package in PACKAGES] if code == INSTALLED else [code]
    files = sorted(file for root in roots for file in root.rglob("*"))
    return {
        file.relative_to(code): read_bytes(file) for file in files if file.is_file() and "__pycache__" not in file.parts
    }


def code_digest(contents: Mapping[Path, bytes]) -> str:
    """Return the digest of these files: 32 hexadecimal digits of SHA-256, as integrity.sh computes them."""
    sums = {os.fsencode(path): hashlib.sha256(content).hexdigest() for path, content in contents.items()}
    lines = b"".join(digest.encode() + b"  ./" + path + b"\n" for path, digest in sorted(sums.items()))
    return hashlib.sha256(lines).hexdigest()[:32]


def restore_code(sweep: SweepDir, directories: Iterable[RunDir]) -> None:
    """Put the code of runs into the store next to their sweep if it is not there: the sweep was moved or received.

    Raises RunDirError for code that is nowhere to be found.
    """
    for directory in directories:
        code = directory.code_snapshot
        at_its_place = code.parent in {sweep.code_store, Path(os.path.realpath(sweep.path))}
        if (at_its_place and code.exists()) or not directory.code.is_symlink() or not NAME.fullmatch(code.name):
            continue
        target = sweep.code(code.name.removeprefix("code-"))
        if not target.exists():
            if (source := source_of(directory)) is None:
                raise RunDirError(
                    f"{directory.path}: its code, {code.name}, is not in {sweep.code_store}, and the installed code is "
                    "another one. Copy it there from the .code-... directory next to the place of the sweep where it "
                    "was submitted, or submit the run again."
                )
            stored(sweep, files_of(source))
        link_code(directory, target, directory.path)


def source_of(directory: RunDir) -> Path | None:
    """Return where the code of a run is that is not next to its sweep; None if it is nowhere.

    It is the installed code, or in a store at the place of the sweep now or when it was submitted.
    """
    code = directory.code_snapshot
    places = [INSTALLED, directory.path.parent.parent / code.parent.name / code.name]
    with suppress(SuiteError, OSError):
        places.append(Path(load_run(directory.config).runs_dir, code.parent.name, code.name))
    for place in places:
        with suppress(OSError):
            if code.name == f"code-{code_digest(files_of(place))}":
                return place
    return None


def link_code(directory: RunDir, code: Path, place: Path) -> None:
    """Let a run directory, which is or will be at a place, lead to its code; the link survives a move of runs_dir."""
    link = directory.path / f".code-{secrets.token_hex(8)}"
    link.symlink_to(os.path.relpath(code, os.path.realpath(place)))
    link.replace(directory.code)


def remove_unused_code(runs_dir: Path, new: Collection[Path] | None = None) -> list[Path]:
    """Remove this user's copies of code that no run in the sweeps of a directory leads to, and return their paths.

    One that was used within UNUSED_S stays. With the `new` copies of a submission that is taken back, only these are
    looked at, however young they are. Raises OSError, and removes none, if a sweep of this user cannot be read.
    """
    store = code_store(runs_dir)
    if not store.is_dir() or store.is_symlink():
        return []
    sweeps = [path for path in store.parent.iterdir() if path.is_dir() and path != store]
    # Nobody else can run this user's copies.
    own = [sweep for sweep in sweeps if os.access(sweep, os.R_OK | os.X_OK) or sweep.stat().st_uid == os.getuid()]
    used = {RunDir(run).code_snapshot for sweep in own for run in sweep.iterdir() if (run / "code").is_symlink()}
    old = [path for path in sorted(store.iterdir()) if time.time() - path.stat().st_mtime > UNUSED_S]
    if new is not None:
        old = [path for path in new if path.exists()]
    unused = [path for path in old if path not in used]
    for path in unused:
        # Under its name an interruption would leave a part of it, which a later submission takes for the whole.
        doomed = store / f".{path.name}.{secrets.token_hex(8)}"
        path.rename(doomed)
        shutil.rmtree(doomed)
    with suppress(OSError):  # copies are left
        store.rmdir()
    return unused

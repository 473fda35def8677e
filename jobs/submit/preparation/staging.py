"""The Python environment of the ranks as one archive, which each node unpacks to a disk of its own.

    runs/.environments-UID/env-DIGEST.tar     packed at submission, kept by the digest of its listing
    /tmp/slurmscale-UID/env-DIGEST            unpacked by the first rank of a node (staged_python.sh)

512 ranks that import torch open tens of thousands of small files each on one file system; the archive is one large read
for a node. The code of a sweep, a few hundred files, stays in its store, where every job checks it.
"""

from __future__ import annotations

import hashlib
import io
import os
import secrets
import shlex
import stat
import sys
import tarfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlparse

from jobs.errors import SubmitError
from jobs.files import read_object, read_text
from jobs.private import defect, make_private
from jobs.runtime.node.system import file_systems
from jobs.schema import Run
from jobs.submit.preparation.code_store import INSTALLED

SCRIPT = "jobs/submit/preparation/staged_python.sh"
LOCAL_TYPES = frozenset(
    {"btrfs", "erofs", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "squashfs", "tmpfs", "xfs", "zfs"}
)
"""Types of file systems on disks, or in the memory, of one machine; every other type counts as shared."""
# A submission refreshes the age of its archive.
UNUSED_S = 30 * 86_400.0


def packed(runs: Iterable[Run]) -> list[str]:
    """Pack the environment of this Python for runs that stage it, unless that is done; return sentences for the user.

    A run whose environment is on local disks runs it there, also if an earlier one was packed.
    """
    wanted = next((run for run in runs if stages_environment(run)), None)
    if wanted is None:
        return []
    places, link = environment(), archive_link(wanted)
    kinds = file_systems(places)
    if all(kind_of(kinds, name) in LOCAL_TYPES for name in places):
        link.unlink(missing_ok=True)
        return [f"environment: {sys.prefix} is on a local disk ({kinds['prefix']}), and is not copied"]
    if kind_of(kinds, "base") in LOCAL_TYPES:
        del places["base"]
    make_private(link.parent)
    if problem := defect(link.parent):
        raise SubmitError(f"{link.parent} holds environments that your jobs run: {problem}. Nothing was launched.")
    archive = link.parent / f"env-{listing_digest(places)}.tar"
    if not archive.exists():
        write_archive(archive, places)
    os.utime(archive)
    aside = link.parent / f".{secrets.token_hex(8)}"
    aside.symlink_to(archive.name)
    aside.replace(link)
    remove_old(link.parent, archive)
    size_gb = archive.stat().st_size / 1e9
    return [
        f"environment: each node unpacks {archive} ({size_gb:.2g} GB) to {wanted.cluster.stage_environment}",
        *(
            f"environment: packages in {place} stay there ({source}). Install them without --editable to copy them too"
            for place, source in outside(places.values())
        ),
    ]


def stages_environment(run: Run) -> bool:
    """Return True if the ranks of a run start by the script of this module."""
    return run.cluster.stage_environment is not None and not run.starter.on_this_machine


def staged_python(run: Run, python: str) -> str:
    """Return the shell words that start a Python command by its copy on the node; the code is first on PYTHONPATH."""
    words = shlex.join([str(archive_link(run)), str(run.cluster.stage_environment)])
    return f'bash "${{PYTHONPATH%%:*}}"/{SCRIPT} {words} {python}'


def archive_link(run: Run) -> Path:
    """Return the link to the archive of this Python's environment, next to the sweeps: nodes see them."""
    store = Path(os.path.realpath(run.runs_dir)) / f".environments-{os.getuid()}"
    return store / hashlib.sha256(os.fsencode(sys.prefix)).hexdigest()[:16]


def environment() -> dict[str, Path]:
    """Return the directories of this Python: the environment, and the one that it was made from, if it is another."""
    base = {} if sys.base_prefix == sys.prefix else {"base": Path(sys.base_prefix)}
    return {"prefix": Path(sys.prefix), **base}


def kind_of(kinds: Mapping[str, str], name: str) -> str:
    """Return the type of the file system of a place, from "TYPE (SOURCE)"; empty if it is not known."""
    return kinds.get(name, "").partition(" ")[0]


def files_below(place: Path) -> Iterator[Path]:
    """Yield everything below a directory, in one order."""
    for directory, folders, files in os.walk(place):
        folders.sort()
        yield from (Path(directory, name) for name in sorted([*folders, *files]))


def listing_digest(places: Mapping[str, Path]) -> str:
    """Return the digest of paths, sizes and times, and of links: contents of gigabytes would take minutes."""
    digest = hashlib.sha256()
    for name, place in places.items():
        digest.update(f"{name} {place}\n".encode())
        for path in files_below(place):
            found = path.lstat()
            # The time of a directory changes with bytecode that is written to it.
            facts = str(path.readlink()) if stat.S_ISLNK(found.st_mode) else ""
            facts = f"{found.st_size} {found.st_mtime_ns}" if stat.S_ISREG(found.st_mode) else facts
            digest.update(os.fsencode(f"{path} {facts}\n"))
    return digest.hexdigest()[:32]


def write_archive(archive: Path, places: Mapping[str, Path]) -> None:
    """Write the archive aside and rename it, so that no node finds a part of it."""
    aside = archive.with_name(f".new-{secrets.token_hex(8)}")
    executable = os.path.relpath(sys.executable, sys.prefix)
    origin = os.fsencode("\n".join([sys.prefix, sys.base_prefix, executable, ""]))
    header = tarfile.TarInfo("origin")
    header.size = len(origin)
    try:
        with tarfile.open(aside, "w") as tar:
            tar.addfile(header, io.BytesIO(origin))
            for name, place in places.items():
                tar.add(os.path.realpath(place), arcname=name)
        aside.chmod(0o400)
        aside.replace(archive)
    finally:
        aside.unlink(missing_ok=True)


def remove_old(store: Path, kept: Path) -> None:
    """Remove archives that no submission has used for UNUSED_S, and parts of those that were interrupted."""
    for path in [*store.glob("env-*.tar"), *store.glob(".new-*")]:
        with suppress(OSError):
            if path != kept and time.time() - path.stat().st_mtime > UNUSED_S:
                path.unlink()


def outside(places: Iterable[Path]) -> list[tuple[Path, str]]:
    """Return directories of packages outside these places, each with the name of the file that leads to it."""
    places = list(places)
    found: dict[Path, str] = {}
    for site in (Path(each) for each in sys.path if Path(each).name in {"site-packages", "dist-packages"}):
        if not any(site.is_relative_to(place) for place in places):
            continue
        for file in sorted(site.glob("*.pth")):
            lines = read_text(file).splitlines()
            found |= {Path(line): file.name for line in lines if line.startswith("/") and Path(line).is_dir()}
        for file in sorted(site.glob("*.dist-info/direct_url.json")):
            if path := editable(file):
                found.setdefault(path, file.parent.name)
    # The code of a run comes from its store.
    own = [*places, INSTALLED]
    return [(path, file) for path, file in found.items() if not any(path.is_relative_to(place) for place in own)]


def editable(file: Path) -> Path | None:
    """Return the directory of a package that was installed with --editable, from its direct_url.json (PEP 610)."""
    try:
        record = read_object(file)
    except (OSError, ValueError):
        return None
    settings = record.get("dir_info")
    is_editable = isinstance(settings, dict) and settings.get("editable") is True
    return Path(unquote(urlparse(str(record.get("url"))).path)) if is_editable else None

"""The files that a program reads: their hashes, for the record and against other contents."""

from __future__ import annotations

import hashlib
from pathlib import Path

from jobs.files import opened
from jobs.schema import Run
from jobs.work.program import placeholders as names
from jobs.work.program.substitution import names_in, text_of


def paths_of(run: Run) -> dict[str, Path]:
    """Return the path of each input by its name."""
    assert run.program is not None
    values = names.known_values(run)
    return {name: Path(text_of(given.path, values)) for name, given in run.program.inputs.items()}


def key_of_path(run: Run, name: str) -> str:
    """Return the key that sets the path of an input: the parameter that it is made of, if it is one."""
    assert run.program is not None
    used = names_in([run.program.inputs[name].path])
    (only,) = used if len(used) == 1 else ("",)
    return f"program.{only}" if only.startswith("params.") else f"program.inputs.{name}.path"


def sha256_of(path: Path) -> str | None:
    """Return the SHA-256 of a file, and of a directory that of the names, sizes and hashes of its files.

    None for a path that does not exist.
    """
    if path.is_dir():
        listed = hashlib.sha256()
        for file in sorted(each for each in path.rglob("*") if each.is_file()):
            listed.update(f"{file.relative_to(path)}\0{sha256_of(file)}\n".encode())
        return listed.hexdigest()
    try:
        with opened(path) as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    except FileNotFoundError:
        return None


def changed_inputs(run: Run, *, must_exist: bool) -> list[str]:
    """Return a sentence for each input that is locked and has another content, or that must exist and does not."""
    assert run.program is not None
    lines = []
    for name, path in paths_of(run).items():
        locked = run.program.inputs[name].locked
        if not path.exists():
            if must_exist:
                lines.append(f"program.inputs.{name}: there is no {path}. Set {key_of_path(run, name)}=PATH.")
        elif locked is not None and (found := sha256_of(path)) != locked:
            lines.append(
                f"program.inputs.{name}: {path} has changed: its SHA-256 is {found}, and "
                f"program.inputs.{name}.locked={locked}. Restore the file, or set locked to the new hash."
            )
    return lines

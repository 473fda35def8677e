"""requirements.lock: it agrees with pyproject.toml, and every package in it has hashes."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.paths import ROOT

PINNED = re.compile(
    r"^(?P<name>[\w.-]+)==(?P<version>\S+)(?: ;.*)? \\\n(?P<hashes>(?: {4}--hash=\S+(?: \\)?\n)+)", re.MULTILINE
)
LOCKED_EXTRAS = ("train", "paper", "images", "tensorboard")


def locked() -> dict[str, str]:
    text = (ROOT / "requirements.lock").read_text()
    found = {entry["name"]: entry["version"] for entry in PINNED.finditer(text)}
    # Nothing else: no address of an index, no line without a hash.
    assert PINNED.sub("", text) == ""
    return found


def direct() -> Iterator[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lists = [project["dependencies"], *(project["optional-dependencies"][extra] for extra in LOCKED_EXTRAS)]
    return (Requirement(text) for requirements in lists for text in requirements)


def test_every_line_of_the_lock_is_a_version_with_sha256_hashes() -> None:
    text = (ROOT / "requirements.lock").read_text()
    hashes = re.findall(r"--hash=(\S+)", text)
    assert locked()
    assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", each) for each in hashes)


def test_the_lock_has_every_direct_dependency_but_torch_in_the_range_of_the_project() -> None:
    versions = locked()
    wrong = [
        str(requirement)
        for requirement in direct()
        if canonicalize_name(requirement.name) != "torch"
        and not requirement.specifier.contains(versions.get(canonicalize_name(requirement.name), "0"))
    ]
    assert wrong == []
    assert not {name for name in versions if name == "torch" or name.startswith("nvidia-")}

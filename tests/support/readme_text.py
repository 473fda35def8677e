"""The text of the manuals: README.md, INSTALL.md, and the README.md of every folder that has one."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.paths import ROOT

ROOMS = ("analysis", "conf", "jobs", "sbatch", "tests")
FILES = [
    *sorted(ROOT.glob("[A-Z]*.md"), reverse=True),
    *sorted(f for r in ROOMS for f in (ROOT / r).rglob("README.md")),
]
FILES = [file for file in FILES if file.name != "CHANGELOG.md"]
README = "\n".join(path.read_text() for path in FILES)


def blocks(language: str) -> list[str]:
    """Return the fenced blocks of a language, "" for blocks without one."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
    return [text for kind, text in fenced if kind == language]


def prose(file: Path) -> str:
    """Return the text of a README without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", file.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(file: Path, level: str = "##+") -> list[str]:
    """Return the anchors that GitHub gives to the headings of a file."""
    headings = re.findall(rf"^{level} (.+)$", prose(file), flags=re.MULTILINE)
    return [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]

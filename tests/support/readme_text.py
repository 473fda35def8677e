"""The README's text."""

from __future__ import annotations

from tests.support.paths import ROOT

README = (ROOT / "README.md").read_text()

"""The site of program files that tests write."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a site's program files."""
    monkeypatch.setenv("SLURMSCALE_SITE", str(tmp_path / "site"))
    (tmp_path / "site/program").mkdir(parents=True)
    return tmp_path / "site/program"

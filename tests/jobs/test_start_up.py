"""Commands import what they use and no more: start-up is most of the time of a command that looks something up."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import slurmscale
from tests.support.fake_runs import a_run, prepared
from tests.support.waiting import limit_s

TRAINING = {"torch", "litgpt", "transformers", "pynvml"}
TABLES = {"pandas", "scipy", "plotly", "pyarrow"}
COMPOSING = {"hydra", "numpy", "tokenizers", "sentencepiece"}
FORBIDDEN = {
    ("--version",): TRAINING | TABLES | COMPOSING | {"rich", "omegaconf", "yaml"},
    ("help",): TRAINING | TABLES | COMPOSING | {"rich", "omegaconf", "yaml"},
    ("report", "MISSING"): TRAINING | TABLES | COMPOSING | {"omegaconf", "yaml"},
    ("report", "--compare", "SWEEP", "MISSING"): TRAINING | TABLES | COMPOSING | {"omegaconf", "yaml"},
    ("status", "SWEEP"): TRAINING | TABLES | COMPOSING,
    ("watch", "SWEEP"): TRAINING | TABLES | COMPOSING,
    ("cancel", "SWEEP"): TRAINING | TABLES | COMPOSING,
    ("logs", "MISSING"): TRAINING | TABLES | COMPOSING,
    ("explain", "job.steps"): TRAINING | TABLES | {"numpy", "tokenizers", "sentencepiece", "rich"},
    ("plan", "model=tiny"): TRAINING | {"pandas", "plotly", "pyarrow", "tokenizers", "sentencepiece"},
    ("model", "Qwen2.5-0.5B"): TRAINING | TABLES,
}


@pytest.mark.parametrize("command", FORBIDDEN, ids=" ".join)
def test_a_command_imports_nothing_that_it_does_not_use(command: tuple[str, ...], tmp_path: Path) -> None:
    prepared(tmp_path / "sweep", a_run("r"))
    places = {"SWEEP": str(tmp_path / "sweep"), "MISSING": str(tmp_path / "missing")}
    words = [places.get(word, word) for word in command]
    program = (
        "import sys, slurmscale\n"
        f"try: slurmscale.main({words!r})\n"
        "except SystemExit: pass\n"
        f"print('imported', *sorted({FORBIDDEN[command]!r} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=slurmscale.HERE, capture_output=True, text=True, timeout=limit_s(120),
        check=True,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1].split() == ["imported"]

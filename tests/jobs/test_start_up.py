"""Commands import what they use and no more: start-up is most of the time of a command that looks something up."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import slurmscale
from jobs.rundir import SweepDir, append_record, event_record
from tests.support.fake_runs import a_run, finished_run
from tests.support.waiting import limit_s

TRAINING = {"torch", "litgpt", "transformers", "pynvml"}
TABLES = {"pandas", "scipy", "plotly", "pyarrow"}
COMPOSING = {"hydra", "omegaconf", "antlr4", "numpy", "tokenizers", "sentencepiece"}
SCRIPTS = {"submitit", "asyncio", "jinja2", "email", "jobs.plan.predict.memory"}
ON_A_SWEEP = TRAINING | TABLES | COMPOSING | SCRIPTS
FORBIDDEN = {
    ("--version",): TRAINING | TABLES | COMPOSING | {"rich", "yaml"},
    ("help",): TRAINING | TABLES | COMPOSING | {"rich", "yaml"},
    ("report", "MISSING"): TRAINING | TABLES | COMPOSING | {"yaml"},
    ("report", "--compare", "SWEEP", "MISSING"): TRAINING | TABLES | COMPOSING | {"yaml"},
    ("status", "SWEEP"): ON_A_SWEEP | {"filelock"},
    ("status", "SWEEP", "--json"): ON_A_SWEEP | {"filelock"},
    ("watch", "SWEEP"): ON_A_SWEEP | {"filelock"},
    ("logs", "SWEEP/r"): ON_A_SWEEP | {"filelock"},
    ("cancel", "SWEEP"): ON_A_SWEEP,
    ("resume", "SWEEP"): ON_A_SWEEP,
    ("explain", "job.steps"): TRAINING
    | TABLES
    | {"numpy", "tokenizers", "sentencepiece", "rich", "jobs.plan.legality"},
    ("plan", "model=tiny"): TRAINING | {"pandas", "plotly", "pyarrow", "tokenizers", "sentencepiece"},
    ("model", "Qwen2.5-0.5B"): TRAINING | TABLES,
}


@pytest.mark.parametrize("command", FORBIDDEN, ids=" ".join)
def test_a_command_imports_nothing_that_it_does_not_use(command: tuple[str, ...], tmp_path: Path) -> None:
    sweep = SweepDir(tmp_path / "SWEEP")
    finished_run(sweep.path, a_run("r"))
    record = event_record("submitted", run="r", launcher="local", job_id="1", events_before=1, host="login")
    append_record(sweep.submissions, record)
    words = [word.replace("SWEEP", str(sweep.path)).replace("MISSING", str(tmp_path / "missing")) for word in command]
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

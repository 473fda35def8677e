"""Nothing vanishes: every file that was given is a run, a measurement, a description, or listed with the reason."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.load.account import Use
from analysis.load.discover import read, read_runs
from analysis.report.content import build
from analysis.report.markdown import markdown
from analysis.report.page import page
from analysis.report.sections.benchmarks import measurement_sections
from jobs.errors import ReportError
from tests.analysis.parsers.reading import SAMPLES
from tests.support.megatron_logs import megatron, write

TRAINING = megatron([(step, 1000.0 + step) for step in range(1, 12)])
OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.\n"
MEMORY = (
    "[Rank 0] (after 2 iterations) memory (MB) | allocated: 1.0 | max allocated: 2.0 | reserved: 3.0 | "
    "max reserved: 4.0\n"
)
SCRIPT = f"#!/bin/bash\n#SBATCH --nodes=2\nsrun python train.py\n# result:{TRAINING.splitlines()[-1]}\n"
CHRONICLE = (
    "# Chronicle\n\nOn Monday we started the training again with a lower learning rate.\n\n```\n"
    f"{TRAINING.splitlines()[-1]}\n```\n\nIt died at night and nobody noticed it until the morning.\n"
)
CONTENTS = {
    "training": TRAINING,
    "died": OUT_OF_MEMORY,
    "died after a reading": MEMORY + OUT_OF_MEMORY,
    "settings and death": megatron([]) + OUT_OF_MEMORY,
    "script": SCRIPT,
    "chronicle": CHRONICLE,
    "prose": "the cluster was slow today\n",
    "facts": None,
    "empty": "",
    "reading": MEMORY,
    **{sample.name: sample.read_text() for sample in sorted(SAMPLES.glob("*.txt"))},
    **{sample.name: sample.read_text() for sample in sorted(SAMPLES.glob("*.json"))},
}


PLACES = st.tuples(st.sampled_from(sorted(CONTENTS)), st.sampled_from("ab"), st.sampled_from(["log", "err"]))


@settings(max_examples=15, deadline=None)
@given(st.lists(PLACES))
def test_the_account_contains_every_file_once_and_each_where_it_states(
    chosen: list[tuple[str, str, str]],
) -> None:
    root = Path(tempfile.mkdtemp())
    try:
        names = set()
        for i, (what, folder, ending) in enumerate(chosen):
            text = CONTENTS[what]
            name = f"{folder}/facts.yaml" if text is None else f"{folder}/job-{i // 2}.{ending}"
            write(root / name, "nodes: 1\n" if text is None else text)
            names.add(name)
        try:
            found = read([root])
        except ReportError:
            return
        content = build(found)
        html, text = page(content), markdown(content)
        assert Counter(each.name for each in found.uses) == Counter(names)
        by_use = {use: {each.name for each in found.uses if each.use is use} for use in Use}
        assert by_use[Use.run] == {row.run.name for row in content.rows}
        rows = {cell for section in measurement_sections(content.digest) for row in section.rows for cell in row}
        assert all(any(name.endswith(cell) for cell in rows if cell) for name in by_use[Use.measurement])
        listed = [each for each in found.uses if each.use is Use.listed]
        assert all(each.reason for each in listed)
        assert {each.name for each in content.listed} | set(found.unknown) == by_use[Use.listed]
        assert content.account in html
        assert content.account in text
        assert f"Given: {len(names)} file" in content.account
    finally:
        shutil.rmtree(root)


@pytest.mark.parametrize("what", ["died", "died after a reading", "settings and death"])
def test_a_job_that_ran_out_of_memory_is_in_a_list(tmp_path: Path, what: str) -> None:
    write(tmp_path / "job.log", str(CONTENTS[what]))
    (run,) = read_runs([tmp_path])
    assert run.state == "out of gpu memory"


@pytest.mark.parametrize("text", [SCRIPT, CHRONICLE, CHRONICLE.replace("```", ""), "> " + TRAINING.splitlines()[-1]])
def test_scripts_and_notes_that_quote_a_log_are_not_runs(tmp_path: Path, text: str) -> None:
    write(tmp_path / "quoting", text)
    write(tmp_path / "job.log", TRAINING)
    found = read([tmp_path])
    assert [run.name for run in found.runs] == ["job.log"]
    assert "<code>quoting</code>: a script or a text that quotes lines of a log" in page(build(found))


def test_a_chronicle_of_failures_is_not_a_failed_run(tmp_path: Path) -> None:
    text = CHRONICLE.replace(TRAINING.splitlines()[-1], OUT_OF_MEMORY.strip())
    write(tmp_path / "chronicle", text)
    write(tmp_path / "job.log", TRAINING)
    assert [run.name for run in read_runs([tmp_path])] == ["job.log"]


def test_a_log_that_begins_with_its_script_is_a_run(tmp_path: Path) -> None:
    write(tmp_path / "job.log", SCRIPT + TRAINING)
    (run,) = read_runs([tmp_path])
    assert run.used


def test_torchruns_summary_with_its_rules_is_a_log_and_no_document(tmp_path: Path) -> None:
    rule = 60 * "-"
    write(
        tmp_path / "job.log",
        "Traceback (most recent call last):\n"
        "ImportError: /lib64/libc.so.6: version `GLIBC_2.32' not found (required by flash_attn_2_cuda.so)\n"
        f"train.py FAILED\n{rule}\nFailures:\n  <NO_OTHER_FAILURES>\n{rule}\nRoot Cause (first observed failure):\n"
        "[0]:\n  rank      : 0 (local_rank: 0)\n  exitcode  : 1 (pid: 7)\n",
    )
    (run,) = read_runs([tmp_path])
    assert run.state == "launch failure"

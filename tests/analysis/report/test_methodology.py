"""The methodology in words, and what it takes to make runs again."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from pathlib import Path

from analysis.load.discover import read_runs
from analysis.report.digest import Digest
from analysis.report.report import report
from analysis.report.sections.methodology import methodology_section, reproduction_section
from analysis.scaling.groups import scaling_groups
from jobs.rundir import RunDir
from tests.support.fake_runs import a_run, event, finished_run, prepared
from tests.support.megatron_logs import megatron, write


def test_the_method_is_in_words_from_the_configuration_and_names_what_is_left_out(tmp_path: Path) -> None:
    for repeat in (1, 2):
        finished_run(tmp_path, a_run(f"a{repeat}", repeat=repeat, nodes=2))
    run = a_run("b")
    finished_run(tmp_path, replace(run, job=replace(run.job, epochs=3, steps=6, clip_norm=1.0)))
    event(prepared(tmp_path, a_run("lost")), "failed", error="gone")
    runs = read_runs([tmp_path])
    section = methodology_section(Digest(runs=runs, groups=scaling_groups(runs)))
    assert section is not None
    found = {row[0]: row[1] for row in section.rows}
    assert found["Model"] == "tiny (1,234 weights)"
    assert (
        found["Length"]
        == "6 steps, samples of at most 64 tokens (2 runs); 3 epochs, samples of at most 64 tokens (1 run)"
    )
    assert "linear warm-up over steps 1" in found["Optimizer"]
    assert "gradient norm at most 1 (1 run)" in found["Optimizer"]
    assert found["Precision"] == "arithmetic in float32, weights and optimizer in float32"
    assert found["Nodes and ranks"] == "2 ranks on 2 nodes (2 runs); 1 rank on 1 node (1 run)"
    assert found["Warm-up and what is excluded"].startswith("The first 2 steps of every start are not measured")
    assert found["Repeats"].startswith("1 to 2 runs of each point.")
    assert found["Runs left out"] == "1 of 4 runs: 1 failed. The page has the reason of each."


def test_what_it_takes_to_run_again_is_commands_code_cluster_seeds_and_digests(tmp_path: Path) -> None:
    finished_run(tmp_path, a_run("one"))
    section = reproduction_section(Digest(runs=read_runs([tmp_path])))
    assert section is not None
    found = {row[0]: row[1] for row in section.rows}
    config = RunDir(tmp_path / "one").config.read_bytes()
    assert found["SHA-256 of config.yaml"] == f"one {hashlib.sha256(config).hexdigest()}"
    assert found["Commands"] == "slurmscale submit -m nodes=1,2"
    assert found["Seeds"] == "1"
    assert "cluster.ranks_per_node=2" in found["Cluster"]
    assert "cluster.currency" not in found["Cluster"], "nobody set it"
    assert found["Run one again"] == f"slurmscale clone {tmp_path}/one; changes follow as KEY=VALUE"
    report([tmp_path], tmp_path / "page", anonymous=True)
    assert str(tmp_path) not in (tmp_path / "page/report.md").read_text()


def test_logs_of_other_programs_have_neither(tmp_path: Path) -> None:
    write(tmp_path / "a.out", megatron([(step, 1000.0) for step in range(1, 12)]))
    report([tmp_path], tmp_path / "page")
    assert not re.search("^## (Methodology|Reproduction)", (tmp_path / "page/report.md").read_text(), re.MULTILINE)

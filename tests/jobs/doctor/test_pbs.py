"""The doctor on a PBS cluster: its findings on the stand-in, and on recorded nodes with every flaw."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jobs.cli import main
from jobs.doctor.pbs_checks import PbsSite, ask_pbs, pbs_run_checks, pbs_site_checks
from jobs.plan.compose import compose
from jobs.plan.legality import value_problems
from jobs.schema import Run
from tests.support.cli import printed_words
from tests.support.doctoring import troubles
from tests.support.pbs.fixture import PbsStandIn


def a_run(*more: str) -> Run:
    given = ["cluster=generic_slurm", "launcher=pbs", "nodes=2", "cluster.cpus_per_rank=4", *more]
    return compose(given, multirun=False, judge=value_problems)[0].run


def test_a_recorded_site_is_described_and_a_run_that_fits_has_no_trouble(
    pbs: PbsStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "cluster=generic_slurm", "launcher=pbs", "nodes=2", "cluster.cpus_per_rank=4"]) == 0
    shown = printed_words(capsys)
    assert "ok PBS 23.06.06, server pbshead: Active" in shown
    assert "ok queue normal Execution; a job gets at most walltime=24:00:00; 0 queued, 0 running" in shown
    assert "ok nodes 2 with 4 GPUs, 64 CPUs, 440 GiB; free now: 2 of 2 nodes, 8 of 8 GPUs" in shown
    assert "ok start of nodes cluster.pbs_start=pbsdsh: " in shown
    assert "ok qsub -l select=2:ncpus=4:mpiprocs=1 -l place=scatter -l walltime=01:00:00 -r y" in shown
    (pbs.directory / "down").touch()
    assert main(["doctor", "cluster=generic_slurm", "launcher=pbs"]) == 2
    assert "no PBS server answers here (Connection refused; cannot connect to server pbshead" in printed_words(capsys)


def flawed(site: PbsSite) -> PbsSite:
    down = {**site.nodes["pn02"], "state": "down,job-exclusive", "comment": "node down: communication closed"}
    closed = {**site.queues["normal"], "started": "False"}
    server = dict(site.server) | {"job_history_enable": "False", "scheduling": "False", "node_fail_requeue": 0}
    return replace(site, server=server, queues=dict(site.queues) | {"normal": closed},
                   nodes=dict(site.nodes) | {"pn02": down})  # fmt: skip


def test_each_flaw_of_a_site_is_named_once(pbs: PbsStandIn) -> None:
    findings = pbs_site_checks(flawed(ask_pbs()))
    found = {what: words for _, what, words in troubles(findings)}
    assert list(found) == ["PBS", "queue normal", "unusable nodes", "history", "lost nodes"]
    assert found["unusable nodes"].startswith("pn02 down,job-exclusive (node down: communication closed)")
    (nodes,) = [each.found for each in findings if each.what == "nodes"]
    assert "free now: 1 of 2 nodes, 4 of 8 GPUs" in nodes


@pytest.mark.parametrize(
    ("more", "what", "words"),
    [
        (["cluster.partition=gpu"], "queue", "cluster.partition=gpu does not exist here"),
        (
            ["cluster.partition=normal", "wall_time_min=1500"],
            "queue",
            "wall_time_min=1500, but queue normal allows 1440",
        ),
        (["nodes=3"], "nodes", "2 of 2 have ncpus=4; 2 of them free now, and the run asks for 3"),
        (["cluster.cpus_per_rank=100"], "nodes", "0 of 2 have ncpus=100"),
        (["cluster.memory_gb_per_node=500"], "nodes", "0 of 2 have ncpus=4, mem=500"),
        (["cluster.cpus_per_rank=null"], "CPUs", "not requested"),
        (["cluster.pbs_start=mpirun"], "start of nodes", "cluster.pbs_start=mpirun is not on the PATH here"),
        (["cluster.qos=high"], "qsub", "cluster.qos is an option of Slurm"),
    ],
)
def test_a_run_that_the_site_cannot_start_is_told_why(
    more: list[str], what: str, words: str, pbs: PbsStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{pbs.directory}/bin")
    found = {what: words for _, what, words in troubles(pbs_run_checks(ask_pbs(), a_run(*more)))}
    assert found[what].startswith(words)

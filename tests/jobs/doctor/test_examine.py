"""The doctor on login nodes: its findings on a real Slurm, and on made-up ones with every flaw."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jobs.cli import main
from jobs.doctor.cluster import Node, Site, gpus_of, tres
from jobs.doctor.report import exit_code
from jobs.doctor.run_checks import run_checks
from jobs.doctor.site_checks import site_checks
from tests.support.cli import printed_words
from tests.support.doctoring import a_run, troubles

# --- made-up clusters ----------------------------------------------------------------------------------------


NODE = Node(name="n1", state="idle", cpus=64, memory_mib=512_000, gpus=8, reason="")
PARTITION = {"PartitionName": "main", "State": "UP", "MaxTime": "1-00:00:00", "TotalNodes": "4", "PriorityTier": "1"}
SITE = Site(
    config={
        "SLURM_VERSION": "24.05.1",
        "ClusterName": "made-up",
        "MaxArraySize": "1001",
        "MaxJobCount": "10000",
        "AccountingStorageType": "accounting_storage/slurmdbd",
        "PreemptType": "preempt/none",
        "JobRequeue": "1",
        "EnforcePartLimits": "ALL",
        "KillWait": "30 sec",
    },
    partitions={"main": PARTITION, "": PARTITION},
    nodes={"main": [replace(NODE, name=f"n{number}") for number in range(1, 5)]},
    associations=[{"Account": "physics", "QOS": "long,normal", "DefaultQOS": "normal"}],
    qos={
        "normal": {"Name": "normal"},
        "long": {"Name": "long", "MaxWall": "00:30:00", "MaxTRESPerUser": "gres/gpu=16"},
    },
    accounting_error=None,
)


def test_a_site_without_flaws_and_a_run_that_fits_it_have_no_trouble() -> None:
    findings = site_checks(SITE) + run_checks(SITE, a_run())
    assert troubles(findings) == []
    assert exit_code(findings) == 0


@pytest.mark.parametrize(
    ("config", "verdict", "expected"),
    [
        ({"AccountingStorageType": "(null)"}, "warning", "accounting"),
        ({"AccountingStorageType": "accounting_storage/none"}, "warning", "accounting"),
        ({"KillWait": "5 sec"}, "warning", "KillWait"),
        ({"MaxArraySize": "0"}, "warning", "sweeps"),
    ],
)
def test_each_setting_that_concerns_us_is_judged(config: dict[str, str], verdict: str, expected: str) -> None:
    assert [(kind, what) for kind, what, _ in troubles(site_checks(replace(SITE, config=SITE.config | config)))] == [
        (verdict, expected)
    ]


def test_accounting_that_does_not_answer_is_quoted() -> None:
    ((_, what, message),) = troubles(
        site_checks(replace(SITE, accounting_error="Connection refused", associations=[], qos={}))
    )
    assert what == "accounting"
    assert "sacctmgr reports: Connection refused" in message


def test_nodes_that_take_no_jobs_are_named_with_slurms_reason() -> None:
    down = replace(NODE, name="n9", state="drained", reason="bad DIMM")
    site = replace(SITE, nodes={"main": [*SITE.nodes["main"][:1], down]})
    ((_, what, message),) = troubles(site_checks(site))
    assert what == "unusable nodes"
    assert "n9 drained (bad DIMM)" in message
    ((verdict, _, message),) = troubles(run_checks(site, a_run()))
    assert verdict == "warning"
    assert "1 of 2 nodes of main accept jobs now" in message
    assert "set nodes=1 or less" in message


def test_a_closed_partition_is_a_warning_and_wrong_for_the_run_that_wants_it() -> None:
    closed = PARTITION | {"State": "DRAIN"}
    site = replace(SITE, partitions={"main": closed, "": closed})
    assert [kind for kind, _, _ in troubles(site_checks(site))] == ["warning"]
    assert troubles(run_checks(site, a_run())) == [
        ("wrong", "partition", "main is DRAIN: Set cluster.partition=ANOTHER.")
    ]


def test_partitions_that_others_preempt_without_grace_are_named() -> None:
    idle = PARTITION | {"PartitionName": "idle", "PriorityTier": "0", "PreemptMode": "REQUEUE", "GraceTime": "0"}
    site = replace(
        SITE,
        config=SITE.config | {"PreemptType": "preempt/partition_prio", "PreemptMode": "REQUEUE"},
        partitions=SITE.partitions | {"idle": idle},
        nodes=SITE.nodes | {"idle": SITE.nodes["main"]},
    )
    ((_, what, message),) = troubles(site_checks(site))
    assert what == "preemption"
    assert "partition idle with 0 s of grace, after SIGTERM" in message
    assert "job.checkpoint_every_steps=N" in message
    graced = replace(site, partitions=site.partitions | {"idle": idle | {"GraceTime": "60"}})
    assert troubles(site_checks(graced)) == []


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["cluster.partition=nosuch"], "cluster.partition=nosuch does not exist here; the partitions are main."),
        (["nodes=8", "scaling.global_batch_size=64"], "nodes=8, but partition main gives a job at most 4.: "
         "Set nodes=4 or less."),
        (["wall_time_min=5000"], "wall_time_min=5000, but partition main allows 1440 (MaxTime=1-00:00:00).: "
         "Set wall_time_min=1440 or less."),
        (["cluster.ranks_per_node=16"], "16 needed; 0 of 4 nodes of main have them, others have 8: "
         "Set ranks_per_node=8 or less"),
        (["cluster.cpus_per_rank=12"], "96 needed; 0 of 4 nodes of main have them, others have 64: "
         "Set cluster.cpus_per_rank=8 or less."),
        (["cluster.memory_gb_per_node=2000"], "2000 needed; 0 of 4 nodes of main have them, others have 500: "
         "Set cluster.memory_gb_per_node=500 or less."),
        (["cluster.account=nosuch"], "cluster.account=nosuch is not one of your accounts (physics): "
         "Set cluster.account=physics."),
        (["cluster.qos=nosuch"], "cluster.qos=nosuch is not one of your QOS (long, normal): Set cluster.qos=long."),
        (["cluster.qos=long"], "wall_time_min=60, but MaxWall=00:30:00: Set wall_time_min=30 or less."),
        (["cluster.qos=long", "wall_time_min=30", "nodes=4"], "32 of gres/gpu needed, but MaxTRESPerUser=gres/gpu=16: "
         "Set fewer nodes, or another cluster.qos."),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_wrong_and_states_what_to_type(overrides: list[str], expected: str) -> None:
    findings = run_checks(SITE, a_run(*overrides))
    ((verdict, _, text),) = troubles(findings)
    assert verdict == "wrong"
    assert expected in text
    assert exit_code(findings) == 1


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["cluster.gpus=false"], "cluster.gpus=false, but nodes have 8 GPUs: Set gpus: true"),
        (["ranks_per_node=4"], "4 of 8, on exclusive nodes: Set ranks_per_node=8"),
        (["cluster.max_nodes=40"], "cluster.max_nodes=40, but partition main allows 4: Set max_nodes: 4"),
    ],
)
def test_what_is_more_often_an_oversight_than_a_wish_is_a_warning(overrides: list[str], expected: str) -> None:
    ((verdict, _, text),) = troubles(run_checks(SITE, a_run(*overrides)))
    assert verdict == "warning"
    assert expected in text


def test_a_batch_that_submit_would_refuse_is_a_warning_only() -> None:
    ((verdict, what, message),) = troubles(run_checks(SITE, a_run("scaling.global_batch_size=30")))
    assert (verdict, what) == ("warning", "layout and batch")
    assert "GBS 30 is not a multiple of MBS 1 x DP 16 = 16.: Set scaling.global_batch_size=16 or 32" in message


def test_a_default_of_memory_is_a_warning_until_memory_is_asked_for() -> None:
    site = replace(SITE, config=SITE.config | {"DefMemPerCPU": "1000"})
    assert troubles(run_checks(site, a_run())) == []
    ((verdict, what, message),) = troubles(run_checks(site, a_run("cluster.memory_gb_per_node=null")))
    assert (verdict, what) == ("warning", "memory")
    assert "DefMemPerCPU=1000 (MiB)" in message


@pytest.mark.parametrize(
    ("gres", "count"), [("gpu:8", 8), ("gpu:a100:4(S:0-1),gpu:v100:2,nvme:1", 6), ("(null)", 0), ("shard:gpu:3", 0)]
)
def test_gpus_are_counted_whatever_their_type(gres: str, count: int) -> None:
    assert gpus_of(gres) == count


def test_limits_with_units_are_left_out() -> None:
    assert tres("cpu=64,gres/gpu=8,mem=250G,node=2") == {"cpu": 64, "gres/gpu": 8, "node": 2}


def test_a_cluster_without_slurm_is_refused_with_what_to_type(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 2
    assert (
        "cluster=local has launcher=local, and doctor checks Slurm and PBS clusters. Set cluster=generic_slurm"
        in printed_words(capsys)
    )


# --- a real Slurm --------------------------------------------------------------------------------------------


@pytest.mark.slurm
@pytest.mark.usefixtures("empty_queue")
def test_a_real_slurm_is_described_and_a_run_that_fits_is_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    fitting = ["cluster=generic_slurm", "cluster.gpus=true", "nodes=2", "cluster.memory_gb_per_node=8"]
    assert main(["doctor", "--no-job", *fitting]) == 0
    shown = printed_words(capsys)
    for fact in (
        "partition gpu the default; 4 nodes (4 idle); 8 GPUs, 32 CPUs, 250 GiB a node; up to 02:00:00",
        "partition debug 2 nodes (2 idle); 8 GPUs, 32 CPUs, 250 GiB a node; a job gets at most 1; up to 00:30:00",
        "arrays of at most 1001 runs",
        "ok accounting accounting_storage/slurmdbd",
        "account research QOS high,normal,short",
        "QOS short MaxWall=00:05:00",
        "partition spare with 5 s of grace, after SIGTERM",
        "ok requeue JobRequeue=1",
        "ok EnforcePartLimits NO",
        "warning KillWait 5 s",
        "ok GPUs a node 1 of 8",
        "ok nodes and time nodes=2, wall_time_min=60",
        "ok account and QOS your default account",
        "ok sbatch --test-only expected start",
    ):
        assert fact in shown
    assert "on node[01-02]" in shown
    assert "1 warning" in shown


@pytest.mark.slurm
@pytest.mark.usefixtures("empty_queue")
def test_what_a_real_slurm_refuses_is_wrong_in_its_words_and_in_ours(capsys: pytest.CaptureFixture[str]) -> None:
    beyond = ["cluster=generic_slurm", "cluster.gpus=true", "cluster.ranks_per_node=16"]
    assert main(["doctor", "--no-job", *beyond]) == 1
    shown = printed_words(capsys)
    assert "wrong GPUs a node 16 needed; 0 of 4 nodes of gpu have them, others have 8" in shown
    assert "wrong sbatch --test-only refused:" in shown
    assert "Requested node configuration is not available" in shown

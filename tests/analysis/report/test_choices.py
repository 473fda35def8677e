"""What each swept choice is worth: ratios of points that differ in it alone, and single-node points of all networks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis.compare.choices import comparisons
from analysis.load.discover import read
from analysis.metrics.mfu import Utilization
from analysis.report.content import Report, build
from analysis.report.digest import Digest
from analysis.report.sections.mfu import utilization_section
from analysis.run import RunResult
from analysis.scaling.groups import scaling_groups
from jobs import metrics as m
from tests.support.documents import roce_study
from tests.support.fake_runs import a_run, finished_run


def built(*paths: Path) -> Report:
    return build(read(paths))


def rows(content: Report) -> list[list[str]]:
    """Return the table of choices; empty without it."""
    found = [section for section in content.sections if section.heading == "What each choice is worth"]
    return [list(row) for section in found for row in section.rows]


def test_the_two_commands_of_the_roce_study_give_its_four_conclusions(tmp_path: Path) -> None:
    content = built(*roce_study(tmp_path))
    headline = " ".join(content.headlines)
    assert "llama31_70b with zero3 roce keeps 126 % efficiency from 8 to 16 ranks (2.51 times the tokens/s" in headline
    assert "llama31_8b with zero3 roce keeps 92.4 % efficiency from 8 to 16 ranks (1.85 times the tokens/s" in headline
    assert (
        "On equal ranks, network=roce is 2.11 (llama31_70b) and 1.14 (llama31_8b) times as fast as tcp on 16 ranks on "
        "2 nodes (n = 1)." in content.headlines
    )
    assert [row[5] for row in rows(content)] == ["2.11", "1.14"]
    # The run on one node is a point of both networks, and stands beside its published time once.
    assert [(group.label, len(group.points)) for group in content.digest.groups if group.model == "llama31_8b"] == [
        ("llama31_8b zero3 roce", 2),
        ("llama31_8b zero3 tcp", 2),
    ]
    (published,) = [section for section in content.sections if section.heading == "Measured and published"]
    assert len(published.rows) == 6


def test_three_repeats_give_an_interval_and_equal_ones_are_not_called_faster(tmp_path: Path) -> None:
    for repeat, slower in ((1, 0.99), (2, 1.0), (3, 1.01)):
        for parallelism, time_s in (("ddp", 1.0), ("fsdp_full", 1.5), ("pp", 1.0)):
            run = a_run(f"{parallelism}{repeat}", parallelism=parallelism, repeat=repeat)
            finished_run(tmp_path, run, step_time_s=slower * time_s)
    content = built(tmp_path)
    assert rows(content) == [
        ["parallelism=ddp", "fsdp_full", "tiny, 1 rank on 1 node", "3 and 3", "tokens/s", "1.50",
         "95 % interval 1.47 to 1.53"],
        ["parallelism=pp", "fsdp_full", "tiny, 1 rank on 1 node", "3 and 3", "tokens/s", "1.50",
         "95 % interval 1.47 to 1.53"],
    ]  # fmt: skip
    equal = tmp_path / "equal"
    for parallelism in ("ddp", "pp"):
        for repeat, slower in ((1, 0.99), (2, 1.0), (3, 1.01)):
            run = a_run(f"{parallelism}{repeat}", parallelism=parallelism, repeat=repeat)
            finished_run(equal, run, step_time_s=slower)
    assert built(equal).headlines[-1] == (
        "On equal ranks, parallelism=pp cannot be distinguished from ddp on 1 rank on 1 node (ratio 1.00, n = 3, 95 % "
        "interval 0.978 to 1.02)."
    )


def a_point(name: str, config: dict[str, Any], rate: float, *overrides: str, accumulation: int = 1) -> RunResult:
    """A measured run of a model with these settings."""
    known = {"nodes": 1, "ranks_per_node": 8, "model": {"name": "m"}, "parallelism": {"name": "tp", "tensor": 8}}
    return RunResult(
        Path(name),
        {**known, **config},
        {"global_batch_size": 16, "accumulation": accumulation},
        {"overrides": list(overrides)},
        values={m.TOKENS_PER_S: rate},
    )


@pytest.mark.parametrize(
    ("one", "other", "found"),
    [
        # The micro-batch follows from the global batch.
        ({"scaling": {"global_batch_size": 1}, "job": {"micro_batch_size": 1}},
         {"scaling": {"global_batch_size": 16}, "job": {"micro_batch_size": 16}}, ["global_batch_size=16 1"]),
        # A setting that the name of a section stands for, and one that an override sets beside it.
        ({"nodes": 2, "network": {"name": "tcp", "transport": "tcp"}},
         {"nodes": 2, "network": {"name": "roce", "transport": "roce"}}, ["network=roce tcp"]),
        ({"parallelism": {"name": "ddp", "tensor": 1}}, {"parallelism": {"name": "tp", "tensor": 2}}, []),
        # Weights and tokenizer are those of the model; the path behind a label is that of the storage.
        ({"job": {"init_from": "/w/m"}}, {"model": {"name": "n"}, "job": {"init_from": "/w/n"}}, ["model=n m"]),
        ({"images": {"storage": "4 nodes", "path": "/mnt/4"}}, {"images": {"storage": "8 nodes", "path": "/mnt/8"}},
         ["images.storage=8 nodes 4 nodes"]),
        ({"images": {"decoder": "pillow"}}, {"images": {"decoder": "dali"}}, ["images.decoder=dali pillow"]),
        # Two choices at once are worth nothing that could be said of one of them.
        ({"images": {"decoder": "pillow"}, "engine": {"compile": False}},
         {"images": {"decoder": "dali"}, "engine": {"compile": True}}, []),
    ],
)  # fmt: skip
def test_a_choice_is_what_two_points_differ_in_alone(one: Any, other: Any, found: list[str]) -> None:
    overrides = ("parallelism.tensor=2",) if other.get("parallelism") else ()
    runs = [a_point("a", one, 10.0, *overrides), a_point("b", other, 20.0, *overrides)]
    assert [f"{e.choice}={e.value} {e.against}" for e in comparisons(scaling_groups(runs), [], [])] == found


def test_micro_batches_of_their_own_are_no_part_of_the_global_batch() -> None:
    runs = [
        a_point(f"{size}-{batch}", {"scaling": {"global_batch_size": batch}, "job": {"micro_batch_size": size}},
                float(size * batch), "job.micro_batch_size=1", accumulation=batch // size)
        for size in (1, 2) for batch in (8, 16)
    ]  # fmt: skip
    found = comparisons(scaling_groups(runs), [], [])
    assert {(e.choice, e.value, e.against, e.ratio.middle) for e in found} == {
        ("job.micro_batch_size", "2", "1", 2.0),
        ("scaling.global_batch_size", "16", "8", 2.0),
    }


def test_a_network_is_worth_nothing_on_one_node_and_a_library_of_collectives_may_be(tmp_path: Path) -> None:
    for nodes in (1, 2):
        for name, library in (("a", None), ("b", None), ("msccl", "/lib/librccl.so")):
            network = replace(a_run().network, name=name, library=library)
            run = replace(a_run(f"{name}{nodes}", nodes=nodes), network=network)
            finished_run(tmp_path, run, step_time_s={"a": 1.0, "b": 1.5, "msccl": 2.0}[name] / nodes)
    content = built(tmp_path)
    assert [[run.name for run in group.runs] for group in content.digest.groups] == [
        ["a1", "a2"], ["b1", "b2"], ["msccl1", "msccl2"],
    ]  # fmt: skip
    assert sorted((row[0], row[1], row[2].split(" on ")[1], row[5]) for row in rows(content)) == [
        ("network library=none", "library=librccl.so", "1 node", "1.33"),
        ("network library=none", "library=librccl.so", "1 node", "2.00"),
        ("network=a", "msccl", "2 nodes", "2.00"),
        ("network=b", "msccl", "2 nodes", "1.33"),
    ]


def test_lines_are_named_after_labels_and_not_after_what_these_decide() -> None:
    runs = [
        a_point(
            f"{nodes}-{batch}",
            {
                "images": {"storage": f"{nodes} storage nodes", "path": f"/mnt/powerscale_{nodes}/imagenet"},
                "scaling": {"global_batch_size": batch},
                "job": {"micro_batch_size": batch},
            },
            1.0,
        )
        for nodes in (4, 8)
        for batch in (1, 16)
    ]
    assert [group.label for group in scaling_groups(runs)] == [
        f"tp storage={nodes} storage nodes global_batch_size={batch}" for nodes in (4, 8) for batch in (1, 16)
    ]


def test_a_line_has_no_name_for_what_follows_from_a_choice_and_no_common_part_of_a_path() -> None:
    machines: list[tuple[str, str, list[str], str]] = [
        ("a", "A100", ["rms_norm"], "bfloat16"), ("a", "A100", ["rope", "swiglu"], "bfloat16"),
        ("b", "V100", ["rope", "swiglu"], "float16"),
    ]  # fmt: skip
    runs = [
        a_point(
            "".join(map(str, [cluster, *kernels])),
            {
                "cluster": {"name": cluster},
                "gpu": {"name": gpu},
                "engine": {"kernels": "liger" if len(kernels) == 1 else "torch", "liger_kernels": kernels},
                "job": {"precision": precision},
            },
            1.0,
        )
        for cluster, gpu, kernels, precision in machines
    ]
    assert [group.label for group in scaling_groups(runs)] == ["tp a kernels=liger", "tp a kernels=torch",
                                                               "tp b kernels=torch"]  # fmt: skip
    filers = [
        a_point(name, {"images": {"path": f"/mnt/{name}/imagenet"}}, rate) for name, rate in (("x", 1.0), ("y", 2.0))
    ]
    assert [group.label for group in scaling_groups(filers)] == ["tp path=x", "tp path=y"]
    assert [(each.value, each.against) for each in comparisons(scaling_groups(filers), [], [])] == [("y", "x")]
    lists = [a_point(str(kernels), {"engine": {"liger_kernels": kernels}}, 1.0) for _, _, kernels, _ in machines[:2]]
    assert [group.label for group in scaling_groups(lists)] == [
        "tp liger_kernels=rms_norm",
        "tp liger_kernels=rope+swiglu",
    ]


def test_a_micro_batch_that_decides_the_global_batch_names_the_line() -> None:
    runs = [
        a_point(f"{size}", {"scaling": {"global_batch_size": batch}, "job": {"micro_batch_size": size}}, 1.0)
        for size, batch in ((8, 256), (32, 256), (64, 512))
    ]
    assert [group.label for group in scaling_groups(runs)] == [f"tp micro_batch_size={size}" for size in (32, 64, 8)]


def test_a_comparison_on_one_node_and_one_on_two_over_the_same_network_are_at_the_same_settings() -> None:
    runs = [
        a_point(
            f"{nodes}-{tensor}",
            {"nodes": nodes, "network": {"name": "default"}, "parallelism": {"name": "tp", "tensor": tensor}},
            float(tensor),
            "parallelism.tensor=1",
        )
        for nodes in (1, 2) for tensor in (1, 2)
    ]  # fmt: skip
    assert {each.where for each in comparisons(scaling_groups(runs), [], [])} == {"tp"}


def test_runs_on_images_have_no_sentence_on_mfu() -> None:
    run = replace(a_point("a", {"images": {"decoder": "dali"}}, 1.0), utilization=Utilization(explanation=["no MFU"]))
    assert utilization_section(Digest([run])) is None

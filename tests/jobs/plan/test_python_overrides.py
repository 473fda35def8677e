"""Overrides as Python values: what a program gives is what the run has."""

from __future__ import annotations

from functools import reduce
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from jobs.errors import ConfigError
from jobs.parallelism import Sharding
from jobs.plan.compose import Point, compose
from jobs.plan.python_overrides import override_lines

# Each has a meaning in Hydra's grammar, in YAML, in a shell, or for Python's own conversions.
TEXTS = (
    *("0123", "1_000", "1e3", ".5", "3.10", "-0", "0x1F", "16:30:00", "2026-11-27", "1,2", "a,b", "", "null", "None"),
    *("true", "No", "nan", "{x: 1}", "{", "[1, 2]", "]", "(1)", "range(1,3)", "choice(a,b)", "a=b", "=", "a: b", "#x"),
    *(" lead and trail ", "a  b", "it's", 'say "hi"', "''", '"', "\\", "end\\", "\\\\", "\\'", "a\\'b\\", "x\\,y"),
    *("~tilde", "$HOME", "$(id)", "100 %", "*", "!", "&x", "@y", "ünï", "日本", "a\tb", "+a", "-b", "--c", "%j_%t"),
    *("/data/my runs", "?", "|", ";", "<a>", "`b`", "a/b@c"),
)


SOME = ("0123", "1,2", "a b", "it's", "{x}", "true", "end\\")


def points(*given: object, multirun: bool = False) -> list[Point]:
    lines = override_lines(given, multirun=multirun)
    return compose(lines, multirun=multirun, to_submit=False, judge=lambda _run: [])


def value_of(point: Point, key: str) -> object:
    return reduce(getattr, key.split("."), point.run)


def test_any_text_is_itself_in_a_list_and_in_a_mapping() -> None:
    entries = {f"V{number}": text for number, text in enumerate(TEXTS)}
    (point,) = points({"cluster": {"env": entries, "modules": list(TEXTS), "qos": TEXTS[0]}})
    assert point.run.cluster.env == entries
    assert point.run.cluster.modules == list(TEXTS)
    assert point.run.cluster.qos == TEXTS[0]


def test_a_list_is_a_sweep_with_multirun_and_text_in_it_is_itself() -> None:
    found = points({"cluster.account": SOME, "nodes": range(1, 3)}, "sweep=s", multirun=True)
    assert [(point.run.cluster.account, point.run.nodes) for point in found] == list(product(SOME, (1, 2)))
    groups = points({"model": ["tiny", "pythia_14m"], "parallelism": "ddp"}, multirun=True)
    assert [point.run.model.name for point in groups] == ["tiny", "pythia_14m"]


def test_a_key_that_takes_a_list_is_swept_by_a_list_of_lists() -> None:
    (one,) = points({"cluster.modules": ["a", "b"]}, multirun=True)
    assert one.run.cluster.modules == ["a", "b"]
    several = points({"cluster.modules": [["a"], ["b", "c, d"]]}, multirun=True)
    assert [point.run.cluster.modules for point in several] == [["a"], ["b", "c, d"]]
    mappings = points({"cluster.env": [{"A": "1"}, {"A": "2"}]}, multirun=True)
    assert [point.run.cluster.env for point in mappings] == [{"A": "1"}, {"A": "2"}]


@pytest.mark.parametrize(
    ("given", "key", "expected"),
    [
        ({"job": {"steps": np.int64(7)}}, "job.steps", 7),
        ({"job": {"steps": "7"}}, "job.steps", 7),
        (["job.seed=6", ({"job.steps": 7},)], "job.steps", 7),
        ({"job.learning_rate": 1e-05}, "job.learning_rate", 1e-05),
        ({"job.learning_rate": np.float64(0.25)}, "job.learning_rate", 0.25),
        ({"job.clip_norm": None}, "job.clip_norm", None),
        ({"job.clip_norm": 1}, "job.clip_norm", 1.0),
        (
            {"parallelism": "fsdp_full", "parallelism.sharding": Sharding.SHARD_GRAD_OP},
            "parallelism.sharding",
            Sharding.SHARD_GRAD_OP,
        ),
        ({"engine.compile": True}, "engine.compile", True),
        ({"data.cache_dir": Path("/a b/c")}, "data.cache_dir", "/a b/c"),
        ({"name": "${model.name}-x"}, "name", "tiny-x"),
        ({"cluster.setup": ("a; b", "echo 'c, d'")}, "cluster.setup", ["a; b", "echo 'c, d'"]),
        ({"cluster.sbatch": {"gpu-bind": "none", "12": "x"}}, "cluster.sbatch", {"gpu-bind": "none", "12": "x"}),
    ],
)
def test_values_keep_their_meaning(given: object, key: str, expected: object) -> None:
    (point,) = points(given)
    assert (value_of(point, key), type(value_of(point, key))) == (expected, type(expected))


@pytest.mark.parametrize(
    ("given", "multirun", "expected"),
    [
        (3, False, "3 is not an override. Pass text such as"),
        (None, False, "None is not an override."),
        (b"nodes=1", False, "b'nodes=1' is not an override."),
        ({"nodes", "steps"}, False, "is not an override."),
        ({3: 1}, False, "3 is not the name of a key."),
        ({"job": {"a b": 1}}, False, "'a b' in job is not the name of a key."),
        ({"nodes=2": 1}, False, "'nodes=2' is not the name of a key."),
        ({"nodes": {1, 2}}, False, "nodes: {1, 2} is a set. Pass text, a number, True, False, None, a list or"),
        ({"cluster.env": {"A B": "1"}}, False, "cluster.env: 'A B' cannot be a name in it."),
        ({"nodes": [1, 2]}, False, "nodes takes one value, and [1, 2] are several. For a sweep over them pass"),
        ({"model": ["tiny"]}, False, "model takes one value, and ['tiny'] are several."),
        ({"nodes": []}, True, "nodes: the list of its values is empty, so the sweep has no run."),
    ],
)
def test_what_is_no_override_is_refused_in_words(given: object, multirun: bool, expected: str) -> None:
    with pytest.raises(ConfigError) as refused:
        override_lines([given], multirun=multirun)
    assert expected in str(refused.value)

"""Optimizers of the user: built with the run's groups and rates, saved and resumed, refused before a submission."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from jobs.engines.native.optimizers.optimizer import optimizer_of
from jobs.engines.native.optimizers.own import made
from jobs.errors import ConfigError
from tests.support.composing import one
from tests.support.real_run import losses, make_run, printed, train
from tests.support.training import long, rewind

NADAM = "job.optimizer_class=torch.optim.NAdam"
OWN = (NADAM, "job.optimizer_arguments={decoupled_weight_decay: true, momentum_decay: 1e-3}",
       "job.weight_decay_on=matrices", "job.checkpoint_every_steps=3")  # fmt: skip
SETTINGS = {"lr": 0.1, "weight_decay": 0.01, "betas": [0.9, 0.95]}
CLASSES = """
import torch
from torch.optim import Optimizer, SGD

class NoRate(Optimizer):
    def __init__(self, params, weight_decay): pass

class NoDecay(Optimizer):
    def __init__(self, params, lr): super().__init__(params, {"lr": lr})

class NotOne:
    pass
"""


def test_it_gets_the_rate_the_decay_and_its_own_arguments() -> None:
    run = one(*OWN, "job.learning_rate=0.5", "job.weight_decay=0.25", "job.beta2=0.9").run
    weights = [nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))]
    groups = [{"params": weights[:1]}, {"params": weights[1:], "weight_decay": 0.0}]
    optimizer = optimizer_of(run).build(groups, run, torch.device("cpu"))
    assert isinstance(optimizer, torch.optim.NAdam)
    first, second = optimizer.param_groups
    assert (first["lr"], first["weight_decay"], second["weight_decay"]) == (0.5, 0.25, 0.0)
    assert list(first["betas"]) == [0.9, 0.9]
    assert (first["decoupled_weight_decay"], first["momentum_decay"]) == (True, 1e-3)


def test_a_class_that_cannot_be_made_is_refused_with_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "of_a_user.py").write_text(CLASSES)
    monkeypatch.syspath_prepend(tmp_path)
    cases = [
        ("of_a_user.Missing", {}, "cannot be imported: AttributeError: module 'of_a_user' has no attribute 'Missing'"),
        ("no_such_package.Own", {}, "cannot be imported: ModuleNotFoundError: No module named 'no_such_package'"),
        ("of_a_user.NotOne", {}, "is no subclass of torch.optim.Optimizer"),
        ("torch.optim.LBFGS", {}, "computes the loss several times in a step"),
        ("of_a_user.NoRate", {}, "takes no lr, which job.learning_rate sets"),
        ("of_a_user.NoDecay", {}, "takes no weight_decay, and job.weight_decay=0.01. Set job.weight_decay=0."),
        ("of_a_user.SGD", {"momentum": "-1"}, "refuses its arguments: ValueError: Invalid momentum value: -1"),
        ("of_a_user.SGD", {"speed": "1"}, "unexpected keyword argument 'speed'"),
    ]
    for path, arguments, words in cases:
        with pytest.raises(ConfigError) as refused:
            made([nn.Parameter(torch.zeros(2))], path, SETTINGS, arguments)
        assert f"job.optimizer_class={path} " in str(refused.value)
        assert words in str(refused.value)
    made([nn.Parameter(torch.zeros(2))], "of_a_user.NoDecay", SETTINGS | {"weight_decay": 0.0}, {})


@pytest.mark.slow
def test_it_is_tried_before_a_submission_as_the_ranks_import_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "named_by_a_user.py").write_text(f"print('hello')\n{CLASSES}")
    (tmp_path / "ends.py").write_text("import os, sys\nprint('a warning', file=sys.stderr, flush=True)\nos._exit(3)\n")
    good = one("job.optimizer_class=named_by_a_user.SGD").run
    ends = one("job.optimizer_class=ends.SGD").run
    wrong = one("job.optimizer_class=named_by_a_user.Missing", "cluster.env.SOME=value").run
    elsewhere = one("job.optimizer_class=named_by_a_user.Missing", "cluster.python=/opt/python").run
    optimizer_of(elsewhere).refuse_unready(elsewhere)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    optimizer_of(good).refuse_unready(good)
    with pytest.raises(ConfigError, match=rf"^{wrong.name}: job.optimizer_class=named_by_a_user.Missing cannot be"):
        optimizer_of(wrong).refuse_unready(wrong)
    with pytest.raises(ConfigError, match=r"class=ends\.SGD ended the process that tried it, with exit status 3\."):
        optimizer_of(ends).refuse_unready(ends)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["parallelism=fsdp_full", long("parallelism=tp parallelism.tensor=2")])
def test_its_runs_have_the_losses_of_one_process_and_resume_exactly(layout: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", *OWN, "ranks_per_node=2", *layout.split())
    assert set(train(run)) == {0}, printed(run)
    found = losses(run)
    alone = make_run(tmp_path / "alone", *OWN, "parallelism=single", "ranks_per_node=1")
    assert train(alone) == [0], printed(alone)
    assert losses(alone) == pytest.approx(found, abs=1e-4)
    rewind(run, 3)
    assert set(train(run)) == {0}, printed(run)
    assert losses(run) == found

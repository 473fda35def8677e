"""The servers of Dell's validated designs: each of their studies plans on each server, or is refused with what fits."""

from __future__ import annotations

import pytest

from jobs.errors import ConfigError
from jobs.plan.compose import compose
from tests.support.training import long

GPUS = {"r760xa_l40s": ("l40s", 4), "xe8640_h100": ("h100_sxm", 4), "xe9680_h100": ("h100_sxm", 8)}
MODELS = ("llama2_7b", "llama2_13b", "llama2_70b")
STUDIES = {
    "serving": ("experiment=serve_llama2", "serving.concurrency=64"),
    "full": ("experiment=customization", "repeat=1", "job=finetune_full", "data.path=a.json"),
    "lora": ("experiment=customization", "repeat=1", "job=finetune_lora", "data.path=a.json"),
    "500 steps": ("experiment=llama2_500_steps", "network=infiniband"),
}


def planned(study: str, cluster: str, model: str) -> str:
    """Return the GPU and ranks of a node that a study is planned for, or its refusal."""
    pipeline = ("parallelism=tp_pp", "parallelism.tensor=4", "parallelism.pipeline=4", "nodes=4")
    layout = pipeline if study == "500 steps" and model == "llama2_70b" else ()
    try:
        (point,) = compose(
            [*STUDIES[study], f"cluster={cluster}", f"model={model}", *layout], multirun=True, to_submit=False
        )
    except ConfigError as refused:
        return str(refused)
    return f"{point.run.gpu.name} x {point.run.ranks_per_node}"


@pytest.mark.parametrize("cluster", [each if each == "xe9680_h100" else long(each) for each in GPUS])
def test_a_study_of_each_model_plans_on_each_server_or_is_refused_with_what_fits(cluster: str) -> None:
    for study in STUDIES:
        for model in MODELS:
            found = planned(study, cluster, model)
            if found != "{} x {}".format(*GPUS[cluster]):
                assert "does not fit gpu=" in found, (study, model, found)
                assert "Nearest that can run: " in found, (study, model, found)


def test_a_full_fine_tuning_of_70b_on_four_l40s_is_refused_with_what_fits() -> None:
    found = planned("full", "r760xa_l40s", "llama2_70b")
    assert "llama2_70b does not fit gpu=l40s of 48 GB" in found
    assert "Nearest that can run: nodes=" in found

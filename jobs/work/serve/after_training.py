"""The load on the model that a run has trained (stages.serve), as a run of its own: one replica on one rank."""

from __future__ import annotations

from dataclasses import replace

from jobs.parallelism import Parallelism, Strategy
from jobs.schema import Run, Stages
from jobs.settings.serving import Balancer


def run_after(run: Run, directory: str) -> Run:
    """Return the run that serves the weights in this directory under the load of stages.serve.

    Its longest request is the longest that a server has to take.
    """
    stage = run.stages.serve
    assert stage is not None
    longest = stage.serving.input_tokens * 3 // 2 + stage.serving.output_tokens
    return replace(
        run,
        name=f"{run.name}-served",
        nodes=1,
        ranks_per_node=1,
        parallelism=Parallelism(name="single", strategy=Strategy.single),
        engine=stage.engine,
        serving=replace(stage.serving, replicas=1, balancer=Balancer.none),
        stages=Stages(),
        contest=None,
        job=replace(
            run.job,
            name="serve",
            train=False,
            init_from=directory,
            sequence_length=longest,
            lora=None,
            export=False,
            checkpoint_every_steps=None,
        ),
    )

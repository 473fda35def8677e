"""Predicted steps of reinforcement learning: completions are generated, scored by forward passes, and trained on.

    step = generation + forward passes + training

The ranks generate as replicas of a server, all completions of a step at once, and training waits for the longest. A
forward pass is a third of a training step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from jobs.metrics import STEP_TIME
from jobs.plan.cost import parameters_of
from jobs.plan.predict.activations import WIDTHS
from jobs.plan.predict.interval import Interval
from jobs.plan.predict.memory import Prediction, memory
from jobs.plan.predict.speed import speed
from jobs.plan.predict.states import kv_bytes_per_token
from jobs.plan.rules.memory import usable_bytes
from jobs.schema import Run
from jobs.work.program.like_training import like_training, rollout_numbers
from jobs.work.serve.speed import TOKEN_SPREAD, around, replica_of

UNCALIBRATED = "uncalibrated: by published rows of servers and trainings, not of reinforcement learning"
FORWARD_SHARE = 1 / 3
"""Part of a training step that is forward: two products of three are backward."""
SPREAD = 1.3 * TOKEN_SPREAD
"""Limits of the time of generation over the point, and the point over them: lengths vary, too."""


@dataclass(frozen=True)
class RolloutSpeed:
    """A predicted step, and its parts."""

    step_time_s: Interval
    generation_s: Interval
    completions_per_s: Interval
    """Rate of all ranks together, over the whole step."""
    memory: Prediction
    """Memory of a GPU, with what the server reserves."""

    def record(self) -> dict[str, object]:
        """Return the prediction as plan.json contains it."""
        return {
            "basis": UNCALIBRATED,
            STEP_TIME.name: self.step_time_s.record(6),
            "generation_s": self.generation_s.record(6),
            "completions_per_s": self.completions_per_s.record(6),
            "device_bytes": self.memory.device.record(),
        }


def rollout_speed(run: Run) -> RolloutSpeed | str | None:
    """Return the predicted step of a program that declares rollouts, why there is none, or None for another program."""
    assert run.program is not None
    if run.program.predicted is None or run.program.predicted.rollouts is None:
        return None
    like = like_training(run)
    if isinstance(like, str):
        return like
    values = rollout_numbers(run, run.program.predicted.rollouts)
    # Memory is that of the longest rows, and time that of the mean ones.
    length = int(values["prompt_tokens"] + values["completion_tokens"])
    trained = speed(replace(like, job=replace(like.job, sequence_length=length)))
    generation_s = generated_s(like, values)
    if trained is None or generation_s is None:
        return "unknown: the rates of the GPU are not known (gpu.memory_gb_per_s and its peak)"
    generation = around(generation_s, SPREAD)
    forward = trained.step_time_s.scaled(FORWARD_SHARE * values["forward_passes"])
    step = (trained.step_time_s + forward).and_independent(generation)
    return RolloutSpeed(step, generation, step.divides(like.global_batch_size), with_server(like, values))


def generated_s(like: Run, values: dict[str, float]) -> float | None:
    """Return the time until all completions of a step are generated; None if the rates of the GPU are not known."""
    tensor = int(values["tensor"])
    layout = replace(like.parallelism, tensor=tensor, pipeline=1, context=1, expert=1, data_shard=None)
    server = replace(like, parallelism=layout, job=replace(like.job, train=False))
    prompt, mean = int(values["prompt_tokens"]), int(values["completion_tokens"])
    if (replica := replica_of(server, prompt, mean)) is None:
        return None
    # Completions of each replica, and how many of them its memory holds at once.
    count = like.global_batch_size * tensor / like.ranks
    held = min(count, cached_tokens(server, values) // (prompt + mean)) if like.gpu.memory_gb else count
    waves = ceil(count / max(1.0, held))
    at_once = count / waves
    # A step of decode takes a + b x requests. The longest completion of a wave needs all steps; requests leave them, so
    # that they are in as many as their mean length. Prompts are computed once.
    alone = replica.step_s(1)
    each = (replica.step_s(at_once) - alone) / max(1.0, at_once - 1)
    return waves * (values["longest_tokens"] * alone + each * (at_once - 1) * mean) + count * replica.prefill_s()


def cached_tokens(server: Run, values: dict[str, float]) -> float:
    """Return the tokens that the KV cache of a replica holds: what weights leave of the memory that it reserves."""
    assert server.gpu.memory_gb is not None
    reserved = values["memory_fraction"] * usable_bytes(server, server.gpu.memory_gb)
    weights = parameters_of(server) * WIDTHS[server.job.precision] / values["tensor"]
    return max(0.0, reserved - weights) / kv_bytes_per_token(server)


def with_server(like: Run, values: dict[str, float]) -> Prediction:
    """Return the predicted memory of the training and of the server on the same GPU."""
    trained = memory(like)
    if like.gpu.memory_gb is None:
        return trained
    reserved = values["memory_fraction"] * usable_bytes(like, like.gpu.memory_gb)
    terms = {**trained.terms, "server": Interval(reserved, reserved, reserved)}
    return replace(trained, terms=dict(sorted(terms.items(), key=lambda item: -item[1].point)))

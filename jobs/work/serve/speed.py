"""Predicted throughput and latency of a server under its load: a roofline of prefill and decode, batched continuously.

A step of decode makes one token of every request at once. It reads all weights, and the keys and values of all
requests:

    step(b) = bytes / memory bandwidth + FLOPs / matrix rate + all-reduces of TP + work of the scheduler

Of b requests with answers of O tokens, b / O end at each step, and as many prompts are computed in their place, which
the others wait for: a token takes T(b) = step(b) + b / O x prefill, and b / T(b) tokens/s leave the server.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from jobs.layout import layout_of
from jobs.parallelism import TP
from jobs.plan.cost import parameters_met
from jobs.plan.predict.activations import WIDTHS
from jobs.plan.predict.communication import Exchange, group_of, links_of, seconds
from jobs.plan.predict.constants import StepTimeConstants
from jobs.plan.predict.flops import FORWARD_FLOPS_PER_ATTENDED, FORWARD_FLOPS_PER_WEIGHT
from jobs.plan.predict.interval import Interval
from jobs.plan.predict.states import kv_bytes_per_token
from jobs.plan.predict.step_time import matmul_flops_per_s, peak_flops_per_s
from jobs.schema import Run
from jobs.work.serve.replicas import replicas_of
from jobs.work.serve.rules import kv_tokens

UNCALIBRATED = "uncalibrated: by published rows of other servers, not fitted to runs on this cluster"
MEMORY_SHARE = 0.75
"""Part of the memory bandwidth that decode reaches. With the next two constants the predicted throughput of 12
published rows is 0.82 to 1.35 times the measured one (tests/README.md, Predicted servers)."""
ALL_REDUCE_S = 20e-6
"""Time of one small all-reduce of TP in a node, two of which a layer waits for."""
SCHEDULER_S = 1e-3
"""Time between two steps in which the server chooses requests and samples tokens."""
TOKEN_SPREAD, FIRST_TOKEN_SPREAD = 1.5, 2.5
"""Limits of the intervals over the point, and the point over them."""


@dataclass(frozen=True)
class ServerSpeed:
    """Predicted rates of all replicas together, and latencies of a request."""

    output_tokens_per_s: Interval
    time_per_output_token_s: Interval
    time_to_first_token_s: Interval
    requests_at_once: float
    """Those that all replicas compute at once; others wait for memory."""

    def record(self) -> dict[str, object]:
        """Return the prediction as plan.json contains it."""
        known = {each.name: getattr(self, each.name) for each in fields(self)}
        return {"basis": UNCALIBRATED} | {
            name: value.record(6) if isinstance(value, Interval) else value for name, value in known.items()
        }


@dataclass(frozen=True)
class Replica:
    """A replica with the model and the degrees of a run, whose requests have these tokens in the mean."""

    run: Run
    memory_bytes_per_s: float
    flops_per_s: float
    input_tokens: int
    output_tokens: int

    def step_s(self, requests: float) -> float:
        """Return the time in which each of some requests at once gets one token: the sum over pipeline stages."""
        run, tensor = self.run, self.run.parallelism.tensor
        # A replica with a pipeline computes as many batches at once as it has stages.
        batch = max(1.0, requests / run.parallelism.pipeline)
        length = self.input_tokens + self.output_tokens / 2
        cached = batch * length * kv_bytes_per_token(run) * run.parallelism.pipeline
        weights = parameters_met(run.model, batch) * WIDTHS[run.job.precision] / tensor
        flops = FORWARD_FLOPS_PER_WEIGHT * parameters_met(run.model) * batch / tensor
        read_s = (cached + weights) / (MEMORY_SHARE * self.memory_bytes_per_s)
        return read_s + flops / self.flops_per_s + self.exchange_s(batch) + SCHEDULER_S

    def prefill_s(self) -> float:
        """Return the time of the prompt of one request."""
        run, tensor = self.run, self.run.parallelism.tensor
        model, tokens = run.model, self.input_tokens
        # A token attends to half of the prompt in the mean.
        attended = model.layers * model.heads * (model.head_size + model.value_size) / 2 * tokens / 2
        each = FORWARD_FLOPS_PER_WEIGHT * parameters_met(run.model) + FORWARD_FLOPS_PER_ATTENDED * attended
        flops = tokens * each / tensor
        weights = parameters_met(run.model, tokens) * WIDTHS[run.job.precision] / tensor
        read_s = weights / (MEMORY_SHARE * self.memory_bytes_per_s)
        return max(flops / self.flops_per_s, read_s) + self.exchange_s(tokens)

    def exchange_s(self, tokens: float) -> float:
        """Return the time of TP's all-reduces: two in each layer, each of tokens x hidden numbers."""
        run = self.run
        group = group_of(run, layout_of(run), (TP,))
        if group.ranks == 1:
            return 0.0
        count = 2 * run.model.layers
        sent = 2 * group.share * tokens * run.model.hidden_size * WIDTHS[run.job.precision]
        waits = count * ALL_REDUCE_S if group.domains == 1 else 0.0
        return waits + seconds(Exchange(group, count * sent, count), links_of(run), StepTimeConstants())

    def token_s(self, requests: float) -> float:
        """Return the time of a token where this many requests are under way, with the prompts in between."""
        return self.step_s(requests) + requests / self.output_tokens * self.prefill_s()

    def requests_for(self, requests_per_s: float, most: float) -> float:
        """Return the requests at once that end at a rate (Little's law), at most `most`: the rate grows with them."""
        low, high = 0.0, most
        for _ in range(40):
            middle = (low + high) / 2
            ended = middle / (self.output_tokens * self.token_s(middle))
            low, high = (middle, high) if ended < requests_per_s else (low, middle)
        return high


def replica_of(run: Run, input_tokens: int, output_tokens: int) -> Replica | None:
    """Return a replica whose requests have these tokens; None if the rates of its GPU are not known."""
    peak, memory = peak_flops_per_s(run), run.gpu.memory_gb_per_s
    if peak is None or memory is None:
        return None
    rate = matmul_flops_per_s(run, peak) * StepTimeConstants().matrix_share
    return Replica(run, memory * 1e9, rate, input_tokens, output_tokens)


def server_speed(run: Run) -> ServerSpeed | None:
    """Return the predicted speed of a run that serves; None if the rates of its GPU are not known."""
    assert run.serving is not None
    load, count = run.serving, replicas_of(run)
    if (replica := replica_of(run, load.input_tokens, load.output_tokens)) is None:
        return None
    sent = load.concurrency / count
    # A cache that is too small for a request of the mean length still holds a shorter one.
    held = None if (tokens := kv_tokens(run)) is None else max(1, tokens // (load.input_tokens + load.output_tokens))
    at_once = sent if held is None else min(sent, held)
    if load.requests_per_s is not None:
        at_once = replica.requests_for(load.requests_per_s / count, at_once)
        sent = at_once
    token_s, prefill_s = replica.token_s(at_once), replica.prefill_s()
    # A prompt waits for those of other requests as at a counter with one clerk: 1 / (1 - the share of time of these).
    # Requests that find no memory wait until one ends, every output_tokens x token_s / at_once.
    busy = max(0.0, at_once - 1) / load.output_tokens * prefill_s / token_s
    waiting_s = (sent - at_once) * load.output_tokens * token_s / max(at_once, 1e-9)
    first_s = prefill_s / (1 - busy) + SCHEDULER_S + waiting_s
    return ServerSpeed(
        around(count * at_once / token_s, TOKEN_SPREAD),
        around(token_s, TOKEN_SPREAD),
        around(first_s, FIRST_TOKEN_SPREAD),
        count * at_once,
    )


def around(point: float, spread: float) -> Interval:
    """Return an interval that is a ratio."""
    return Interval(point, point / spread, point * spread)

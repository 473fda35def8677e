"""Rules of runs that serve. Checked at composition, so without torch, vLLM and the model's files."""

from __future__ import annotations

from dataclasses import fields

from jobs.engines.litgpt.names import keys_beyond_litgpt
from jobs.parallelism import CP, PP, Schedule, StageSplit, Strategy
from jobs.plan.predict.memory import memory
from jobs.plan.predict.states import kv_bytes_per_token, states
from jobs.plan.rules.memory import usable_bytes
from jobs.plan.rules.rule import Rule, divisors, either, undivided
from jobs.schema import Run
from jobs.settings.serving import Balancer, Layout, LoadGenerator
from jobs.work.program.substitution import names_in, unknown_names
from jobs.work.serve.names import CLIENT, SERVER
from jobs.work.serve.replicas import replica_nodes, replica_ranks, replicas_of

MOST_LISTED = 4
"""Replicas whose nodes a plan lists."""


def search_has_a_limit(run: Run) -> str | None:
    """Require limits, a range and repeats of a search of the highest concurrency."""
    assert run.serving is not None
    s, search = run.serving, run.serving.search
    if search.most_concurrency is None:
        return None
    if not any(getattr(s.limits, each.name) is not None for each in fields(s.limits)):
        return (
            "serving.search finds the highest concurrency within limits, and no limit is set. Set "
            "serving.limits.time_to_first_token_s, time_per_output_token_s or request_latency_s, or "
            "serving.search.most_concurrency=null."
        )
    if search.most_concurrency < s.concurrency:
        return (
            f"serving.search.most_concurrency={search.most_concurrency} is below serving.concurrency={s.concurrency}, "
            f"at which the search begins. Set serving.search.most_concurrency={s.concurrency} or more, or a lower "
            "serving.concurrency."
        )
    if s.requests_per_s is not None:
        return (
            f"serving.requests_per_s={s.requests_per_s:g} holds the load at a rate, and serving.search changes its "
            "concurrency. Set serving.requests_per_s=null, or serving.search.most_concurrency=null."
        )
    return None


def replicas_fit_ranks(run: Run) -> str | None:
    """Require TP groups within a node, replicas that are a part of a node or whole nodes, and a rank for each place."""
    p, per_node, size = run.parallelism, run.ranks_per_node, replica_ranks(run)
    if per_node % p.tensor:
        widths = [width for width in divisors(per_node) if width <= p.tensor]
        return (
            f"parallelism.tensor={p.tensor} puts a TP group on several nodes, or leaves ranks without one: it does not "
            f"divide ranks_per_node={per_node}. Set parallelism.tensor={either(widths)}; a pipeline spans nodes "
            "(parallelism.pipeline)."
        )
    if not fills_nodes(size, per_node):
        lengths = (n for n in divisors(run.model.layers) if run.ranks % (n * p.tensor) == 0)
        near = [n for n in lengths if fills_nodes(n * p.tensor, per_node)]
        return (
            f"parallelism.tensor={p.tensor} x parallelism.pipeline={p.pipeline} = {size} ranks are neither a part of "
            f"a node nor whole nodes (ranks_per_node={per_node}). Set parallelism.pipeline={either(near)}."
        )
    assert run.serving is not None
    wanted = run.serving.replicas
    most = run.ranks // size
    if wanted is not None and wanted > most:
        return (
            f"serving.replicas={wanted} x {degrees_in_words(run)} = {wanted * size} ranks, and nodes={run.nodes} x "
            f"ranks_per_node={per_node} are {run.ranks}. Set serving.replicas={most} or less, or nodes="
            f"{-(-wanted * size // per_node)}."
        )
    return None


def fills_nodes(ranks: int, per_node: int) -> bool:
    """Return whether replicas of this many ranks divide a node, or are whole nodes."""
    return per_node % ranks == 0 or ranks % per_node == 0


def replica_in_words(run: Run) -> str:
    """Return the ranks of a replica as a product: `parallelism.tensor=8 x parallelism.pipeline=2 = 16 ranks`."""
    return f"{degrees_in_words(run)} = {replica_ranks(run)} ranks"


def degrees_in_words(run: Run) -> str:
    """Return TP and PP, the latter above 1: `parallelism.tensor=8 x parallelism.pipeline=2`."""
    p = run.parallelism
    return f"parallelism.tensor={p.tensor}" + (f" x parallelism.pipeline={p.pipeline}" if p.pipeline > 1 else "")


def only_tensor_and_pipeline(run: Run) -> str | None:
    """Refuse other parallelism: a replica is a pipeline of TP groups."""
    p = run.parallelism
    whole = "".join(f" {each}" for each in undivided(run, (PP, CP)))
    if p.strategy not in (Strategy.single, Strategy.ddp):
        return (
            f"parallelism={p.name} does not serve: a replica is a group of parallelism.tensor x pipeline ranks. Set "
            f"parallelism=tp parallelism.tensor=NUMBER{whole}, or parallelism=ddp{whole} for replicas of one rank."
        )
    if p.context > 1:
        return (
            f"parallelism.context={p.context} does not serve: a replica is a group of parallelism.tensor x pipeline "
            "ranks. Set parallelism.context=1."
        )
    return None


def pipeline_is_the_servers(run: Run) -> str | None:
    """Refuse pipelines of a training, and those that the command of the server leaves out."""
    assert run.engine.server is not None
    p = run.parallelism
    if p.pipeline == 1:
        return None
    chosen = {
        "schedule=1F1B": p.schedule is not Schedule["1F1B"],
        "stages_per_rank=null": (p.stages_per_rank or 1) > 1,
        "stage_layers=null": p.stage_layers is not None,
        "stage_split=even": p.stage_split is not StageSplit.even,
    }
    given = [f"parallelism.{remedy}" for remedy, is_set in chosen.items() if is_set]
    if given:
        return (
            f"{given[0].partition('=')[0]} is of the pipeline of a training, and a server orders and divides its own. "
            f"Set {' '.join(given)}."
        )
    names = names_in([*run.engine.server.command, *run.engine.server.arguments])
    if "pipeline" not in names:
        return (
            f"parallelism.pipeline={p.pipeline}, and engine.server.command has no {{pipeline}}: this server would load "
            "the model undivided. Set parallelism.pipeline=1, or add the option of its pipeline."
        )
    if replica_nodes(run) > 1 and not {"node_rank", "head"} <= names:
        return (
            f"a replica of {replica_in_words(run)} spans {replica_nodes(run)} nodes of {run.ranks_per_node}, and "
            "engine.server.command has no {node_rank} and {head}: this server stays within a node. Set "
            "parallelism.pipeline=1, or add the options by which its nodes find each other."
        )
    return None


def balancer_joins_replicas(run: Run) -> str | None:
    """Require a balancer in front of several replicas."""
    assert run.serving is not None
    if run.serving.balancer is Balancer.none and replicas_of(run) > 1:
        return (
            f"serving.balancer=none, and {replicas_of(run)} replicas need one. Set serving.balancer=haproxy or nginx, "
            "or serving.replicas=1."
        )
    return None


def load_is_the_clients(run: Run) -> str | None:
    """Refuse a load that the load generator cannot send."""
    assert run.serving is not None
    s = run.serving
    if s.client is LoadGenerator.ab and (s.prompts > 1 or s.requests_per_s is not None):
        return (
            "serving.client=ab sends one prompt as fast as answers come. Set serving.prompts=1 "
            "serving.requests_per_s=null, or serving.client=vllm."
        )
    assert run.engine.server is not None
    endpoint = run.engine.server.endpoint
    if s.client is not LoadGenerator.ab and s.client_command is None and not endpoint.endswith("/completions"):
        return (
            f"serving.client={s.client.name} speaks the OpenAI interface, and engine.server.endpoint={endpoint} is "
            "not part of it. Set serving.client=ab serving.prompts=1, or an engine with that interface."
        )
    if s.client is LoadGenerator.ab and s.requests < s.concurrency:
        return (
            f"serving.client=ab needs as many requests as serving.concurrency={s.concurrency}. Set serving.requests="
            f"{s.concurrency} or more."
        )
    limited = any(getattr(s.limits, each.name) is not None for each in fields(s.limits))
    if limited and s.client_command and not any("{limits}" in word for word in s.client_command):
        return (
            "serving.limits reach no load generator: serving.client_command has no {limits}. Add it, or set no limits."
        )
    if limited and s.client is LoadGenerator.ab:
        return "serving.client=ab measures no good requests. Set serving.client=vllm, or serving.limits to null each."
    # Lengths of prompts are uniform from half to one and a half times the mean (prompts.pool).
    longest = s.input_tokens * 3 // 2 + s.output_tokens
    if longest > run.job.sequence_length:
        return (
            f"a request of serving.input_tokens={s.input_tokens} (at most {s.input_tokens * 3 // 2}) and "
            f"serving.output_tokens={s.output_tokens} is longer than job.sequence_length={run.job.sequence_length}. "
            f"Set job.sequence_length={longest} or more, or shorter requests."
        )
    return None


def model_is_the_servers(run: Run) -> str | None:
    """Refuse a model that LitGPT's server does not have."""
    assert run.engine.server is not None
    scaling, keys = run.model.rope_scaling, keys_beyond_litgpt(run.model)
    if scaling is not None and scaling.is_yarn:
        keys.append("model.rope_scaling.beta_slow (YaRN)")
    if run.engine.server.layout is Layout.litgpt and keys:
        return (
            f"engine.server.layout=litgpt is of LitGPT's server, which does not have {', '.join(keys)} "
            f"({run.model.name}). Choose another model, or set engine=vllm."
        )
    return None


def commands_have_known_names(run: Run) -> str | None:
    """Refuse {names} in a command that nothing replaces."""
    assert run.serving is not None
    assert run.engine.server is not None
    server, client = run.engine.server, run.serving.client_command
    lines = []
    for key, words, known in (
        ("engine.server.command", [*server.command, *server.arguments], SERVER),
        ("serving.client_command", client, CLIENT),
    ):
        if words is not None and not words:
            lines.append(f"{key} is empty. Set {key}=[PROGRAM,...], or choose the file of an engine.")
        unknown = unknown_names(words or [], known)
        if unknown:
            names = either(f"{{{name}}}" for name in sorted(known))
            lines.append(f"{key}: {{{unknown[0]}}} is not a name that is replaced. Use {names}.")
    return "\n".join(lines) or None


def kv_tokens(run: Run) -> int | None:
    """Return the predicted tokens of a replica's KV cache: what weights and working memory leave of its GPUs.

    None if the GPU's memory is not known, or the server reserves none.
    """
    assert run.engine.server is not None
    if run.gpu.memory_gb is None or run.engine.server.memory_fraction is None:
        return None
    # The prediction contains the cache of one request; all that the rest leaves becomes cache.
    others = memory(run).device.point - states(run).kv_cache
    return max(0, int(usable_bytes(run, run.gpu.memory_gb) - others) // kv_bytes_per_token(run))


def kv_cache_note(run: Run) -> str | None:
    """Return the predicted capacity of a replica's KV cache in tokens and requests; None if it is not known."""
    assert run.serving is not None
    if (tokens := kv_tokens(run)) is None:
        return None
    s = run.serving
    length, longest = s.input_tokens + s.output_tokens, run.job.sequence_length
    return (
        f"predicted {tokens:,} tokens per replica: {tokens // length:,} requests of {s.input_tokens} + "
        f"{s.output_tokens} tokens at once, {tokens // longest:,} of job.sequence_length={longest}; {replicas_of(run)} "
        "x as many in all"
    )


def replica_note(run: Run) -> str | None:
    """Return the places of replicas with a pipeline; None for others, which the mesh shows."""
    if run.parallelism.pipeline == 1:
        return None
    nodes, count = replica_nodes(run), replicas_of(run)
    if nodes == 1:
        return f"{count} of {replica_in_words(run)} within a node"
    places = [f"{first}..{first + nodes - 1}" for first in range(0, count * nodes, nodes)]
    listed = ", ".join(places) if count <= MOST_LISTED else f"{places[0]}, {places[1]}, ..., {places[-1]}"
    return f"{count} of {replica_in_words(run)} on {nodes} nodes each ({listed}); the first node of each serves HTTP"


def requests_wait_for_memory(run: Run) -> str | None:
    """Warn if the KV cache of a replica does not hold its part of the concurrent requests."""
    assert run.serving is not None
    if (tokens := kv_tokens(run)) is None:
        return None
    s = run.serving
    held, most = -(-s.concurrency // replicas_of(run)), tokens // (s.input_tokens + s.output_tokens)
    if held <= most:
        return None
    return (
        f"serving.concurrency={s.concurrency} is {held} requests per replica, and its KV cache holds about {most}: "
        "requests will wait. Set a lower serving.concurrency, more replicas, or more GPUs per replica "
        "(parallelism.tensor, parallelism.pipeline)."
    )


def ranks_are_idle(run: Run) -> str | None:
    """Warn of ranks that belong to no replica."""
    used = replicas_of(run) * replica_ranks(run)
    return (
        f"{run.ranks - used} of {run.ranks} ranks belong to no replica (serving.replicas)" if used < run.ranks else None
    )


RULES: tuple[Rule, ...] = (
    replicas_fit_ranks,
    only_tensor_and_pipeline,
    pipeline_is_the_servers,
    balancer_joins_replicas,
    load_is_the_clients,
    search_has_a_limit,
    commands_have_known_names,
    model_is_the_servers,
)
WARNINGS: tuple[Rule, ...] = (requests_wait_for_memory, ranks_are_idle)

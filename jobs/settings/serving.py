"""The keys of serving: `engine.server`, the program of a replica, and `serving`, the replicas and their load."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from jobs.ranges import Below1, Count, NoneOrMore, Positive, Share

NO_MODEL = "stand-in"
"""The value of job.init_from of a rehearsal, whose server has no model and takes words for tokens."""


class Layout(Enum):
    """Layout of the directory of a model."""

    huggingface = "huggingface"
    """Hugging Face's: config.json, tokenizer.json, *.safetensors; a LitGPT directory is converted first."""
    litgpt = "litgpt"
    """LitGPT's: model_config.yaml, tokenizer.json, lit_model.pth."""


@dataclass(kw_only=True)
class Server:
    """A server of the OpenAI interface; a replica is one process, over nodes one on each of them."""

    command: list[str]
    """Words of its command. {python}, {model}, {host}, {port}, {tensor}, {pipeline}, {precision}, {max_length},
    {output_tokens} and {memory_fraction} are replaced; over nodes also {nodes}, {node_rank} (0 is the node that serves
    HTTP), {head} and {head_port} (address and a free port of that node), and {headless}, which is --headless on all
    other nodes. A word whose name has no value is left out."""
    name: str = "vllm"
    """Name of the program in the names of its runs."""
    arguments: list[str] = field(default_factory=list)
    """Further words at the end of the command."""
    python: str | None = None
    """Python of server and load generator ({python}), where their packages need an environment of their own; null: that
    of the ranks."""
    env: dict[str, str] = field(default_factory=dict)
    """Environment variables of server and load generator."""
    key_variable: str | None = None
    """Environment variable in which the server takes the API key that requests must have. Each start makes a new key,
    and the load generator gets it if it takes one from the environment, as vLLM's does. null: no key."""
    layout: Layout = Layout.huggingface
    """Layout of the model's directory that it reads."""
    endpoint: str = "/v1/completions"
    """Path that takes prompts."""
    health: str = "/health"
    """Path that answers with status 200 when a replica is ready."""
    metrics: str | None = "/metrics"
    """Path of its counters in Prometheus' text format; null: it has none."""
    memory_fraction: Share | None = 0.9
    """Part of each GPU's memory that the server reserves for weights, working memory and KV cache; null: it reserves
    none."""
    startup_limit_s: Count = 1800
    """Longest time from the start of a replica until it is ready."""


class Balancer(Enum):
    """Program in front of the replicas, which sends them requests in turn (round robin)."""

    none = "none"
    """None: the load goes to the only replica."""
    haproxy = "haproxy"
    """HAProxy."""
    nginx = "nginx"
    """nginx."""


class LoadGenerator(Enum):
    """Program that sends the requests."""

    vllm = "vllm"
    """vLLM's serving benchmark: requests, tokens and latencies."""
    aiperf = "aiperf"
    """NVIDIA's AIPerf: the same, by worker processes."""
    ab = "ab"
    """ApacheBench: one prompt, whole answers, times in milliseconds, no tokens."""


@dataclass(kw_only=True)
class Limits:
    """Latencies within which a request is a good one; the report then has the rate of good requests. null: no limit.

    A search takes them as limits of a percentile.
    """

    time_to_first_token_s: Positive | None = None
    """From sending a request to its first token."""
    time_per_output_token_s: Positive | None = None
    """Time of a token after the first, in the mean over a request."""
    request_latency_s: Positive | None = None
    """From sending a request to the end of its answer."""


class Percentile(Enum):
    """Statistic of the latencies of a load that its limits are about."""

    median = "median"
    """Half of the requests are within them."""
    p90 = "p90"
    """90 % are."""
    p95 = "p95"
    """95 % are."""
    p99 = "p99"
    """99 % are."""


@dataclass(kw_only=True)
class Search:
    """Search of the highest concurrency whose latencies stay within `serving.limits`, in one job.

    It begins at `serving.concurrency`, doubles or halves it until one load is within the limits and one is not, then
    halves the distance of the two. Each load has as many requests as `serving.requests` are in proportion to its
    concurrency, so that all last about as long.
    """

    most_concurrency: Count | None = None
    """Highest concurrency to try; null: no search, one load."""
    percentile: Percentile = Percentile.p99
    """Statistic of a load's latencies that is within the limits."""
    repeats: Count = 3
    """Loads of a concurrency; most of them decide. The next ones are left out once that is certain, except at the
    answer and above it."""
    resolution: Below1 = 0.1
    """Distance at which the search ends, as a part of the concurrency found; a distance of 1 always ends it."""


@dataclass(kw_only=True)
class Serving:
    """Replicas of a server, the balancer in front, and the load; TP x PP GPUs are one replica."""

    replicas: Count | None = None
    """Replicas of the server; null: as many as the ranks hold."""
    balancer: Balancer | None = None
    """Program in front of the replicas; null: haproxy, for one replica none."""
    client: LoadGenerator
    """Program that sends the requests."""
    client_python: str | None = None
    """Python that has the load generator ({python} in its command); null: that of the server."""
    client_command: list[str] | None = None
    """Words of its command, to replace its own; {python}, {url}, {endpoint}, {model}, {prompts}, {body}, {result},
    {requests}, {concurrency}, {rate}, {output_tokens}, {limits}, {seed}, and directory and name of the result,
    {directory} and {name}, are replaced."""
    concurrency: Count
    """Most requests under way at once."""
    requests_per_s: Positive | None = None
    """Mean rate of sending requests; null: a request follows as soon as one has ended."""
    requests: Count
    """Requests that are measured."""
    warmup_requests: NoneOrMore
    """Requests before them, which are not measured; 0: none."""
    prompts: Count
    """Size of the pool that each request draws its prompt from."""
    input_tokens: Count
    """Tokens of a prompt, in the mean over the pool; lengths are uniform from half to one and a half times that."""
    output_tokens: Count
    """Most tokens of an answer."""
    limits: Limits = field(default_factory=Limits)
    """Latencies of good requests."""
    search: Search = field(default_factory=Search)
    """Search of the highest concurrency within the limits."""

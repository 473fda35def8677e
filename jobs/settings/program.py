"""The keys of `program`: another program as the work of a run (job=program), described by a file of conf/program."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from jobs.metrics import Better
from jobs.ranges import NoneOrMore, Positive


class StartMode(Enum):
    """Processes that are started."""

    rank = "rank"
    """One process for each rank, with torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT)."""
    node = "node"
    """One process on each node, which starts the others itself, as torchrun does."""
    job = "job"
    """One process, on the first node; it starts all others itself (srun, mpirun), or needs none."""


@dataclass(kw_only=True)
class Ready:
    """Sign that a server takes requests: by default, that it listens at {port}."""

    path: str | None = None
    """Path of {port} that must answer a GET with status 200; null: it only has to listen."""
    line: str | None = None
    """Regular expression of a line that it prints, in place of listening at {port}."""
    every: bool = False
    """Every process must be ready and gets requests; false: the first process of the step does."""
    within_min: Positive = 30.0
    """Longest time from its start."""


@dataclass(kw_only=True)
class Step:
    """A part of the work: a command that must end with exit code 0 before the next step begins.

    One with `ready` is a server: the next step begins when it is ready, and it runs until the last step has ended.
    """

    command: str
    """Words as in a shell, with {names} of keys; no shell reads it, so write bash -c '...' where one is needed."""
    start: StartMode = StartMode.job
    """Processes that are started."""
    nodes: str | None = None
    """Number of its nodes, with {names}: the next ones after those of the steps before; null: all nodes of the run."""
    partition: str | None = None
    """Slurm's partition of its own nodes; null: cluster.partition. Another one makes the job a heterogeneous one."""
    gpus: bool | None = None
    """True if its own nodes have GPUs; null: as cluster.gpus."""
    memory_gb: NoneOrMore | None = None
    """Memory of each of its own nodes, 0 for all of it; null: cluster.memory_gb_per_node."""
    env: dict[str, str] = field(default_factory=dict)
    """Environment variables of this step, with {names}."""
    ready: Ready | None = None
    """The step is a server, and this says when it is ready; null: the step does its work and ends."""
    time_limit_min: Positive | None = None
    """Longest time of the step; null: the time limit of the job."""


class ParameterType(Enum):
    """Type of a parameter's value."""

    integer = "integer"
    """A whole number."""
    number = "number"
    """A finite number."""
    text = "text"
    """Any text."""
    words = "words"
    """Words of a command, none or several, such as options."""
    path = "path"
    """A file or directory; a relative one is of the directory of the submission."""


@dataclass(kw_only=True)
class Limits:
    """Limits of a number."""

    at_least: float | None = None
    """Lowest value; null: no limit."""
    at_most: float | None = None
    """Highest value; null: no limit."""

    def has(self, value: float) -> bool:
        """Return True if a number keeps both limits."""
        return (self.at_least is None or value >= self.at_least) and (self.at_most is None or value <= self.at_most)

    @property
    def in_words(self) -> str:
        """The limits as text; empty without one."""
        limits = (("at least", self.at_least), ("at most", self.at_most))
        return " and ".join(f"{words} {limit:g}" for words, limit in limits if limit is not None)


@dataclass(kw_only=True)
class Parameter(Limits):
    """Meaning and allowed values of a parameter."""

    meaning: str
    """A sentence for `slurmscale explain`."""
    type: ParameterType = ParameterType.text
    """Type of its value."""
    unit: str | None = None
    """Unit of its number."""
    one_of: list[str] = field(default_factory=list)
    """Its values, if they can be listed."""


class Take(Enum):
    """Choice among several values in one file."""

    first = "first"
    """The first one."""
    last = "last"
    """The last one."""
    least = "least"
    """The lowest one."""
    most = "most"
    """The highest one."""
    median = "median"
    """Their median."""
    mean = "mean"
    """Their arithmetic mean."""
    total = "total"
    """Their sum."""


@dataclass(kw_only=True)
class Where(Limits):
    """A condition on another number of the same line, document or row: a loss at which a time was printed."""

    of: str
    """Named group of `pattern`, path into the JSON document, or column of the CSV table."""


@dataclass(kw_only=True)
class ProgramMetric:
    """A number that the program prints or writes. One of `pattern`, `json` and `csv` says where."""

    unit: str
    """Unit of the number after `factor`, such as s, 1/s, FLOP/s, or 1 for none."""
    definition: str
    """A sentence for the report."""
    better: Better = Better.neither
    """Direction of an improvement."""
    pattern: str | None = None
    """Regular expression of Python; its first group, or the one named value, is the number."""
    json: str | None = None
    """Path into a JSON document, such as results.0.rate."""
    csv: str | None = None
    """Column of a CSV table with a line of headings."""
    file: str | None = None
    """File with it, relative to the working directory, with {names}; null: what the step printed on its first rank."""
    step: str | None = None
    """Step that prints it; null: the last one."""
    where: Where | None = None
    """Only the values next to a number within limits, so that with take=first a time is that to a target; null: all."""
    take: Take = Take.last
    """Choice among several values."""
    skip: NoneOrMore = 0
    """Values at the beginning that are left out, such as those of a warm-up."""
    factor: float = 1.0
    """Factor from the printed unit to `unit`, such as 1e9 for GFLOP/s."""
    per: str | None = None
    """Metric of the program by which it is divided, or mean_power_w (cluster.record_power) for FLOP/s per W, which is
    FLOP/J; null: none. `unit` is that of the quotient."""
    optional: bool = False
    """A run without the number counts all the same."""


@dataclass(kw_only=True)
class TrainingLog:
    """The log of a training in a format that `slurmscale report` reads: its steps, losses and rates are the run's."""

    step: str | None = None
    """Step that prints it; null: the last one."""
    file: str | None = None
    """File with it, or the pattern of a file for each attempt (csv/version_*/metrics.csv) or each rank
    ({run_directory}/program/train-*.log), with {names}; null: what the step printed on its first rank."""
    facts: dict[str, str] = field(default_factory=dict)
    """Facts that the log does not contain, by the keys of facts.yaml, such as global_batch_size; with {names}."""


@dataclass(kw_only=True)
class Gate(Limits):
    """A requirement: a run that misses it counts nowhere. It has a `metric` with a limit, or `absent`."""

    metric: str | None = None
    """Metric that is tested."""
    absent: str | None = None
    """Regular expression of a line that no step may print on the first rank."""


@dataclass(kw_only=True)
class Input:
    """A file or directory that the program reads."""

    path: str
    """Its path, with {names}."""
    locked: str | None = None
    """SHA-256 of the file: another content refuses the run; null: its hash is recorded."""


@dataclass(kw_only=True)
class Resume:
    """The way in which the program continues after an interruption."""

    file: str
    """Pattern of its checkpoints, relative to the working directory; the newest one counts."""
    complete: str | None = None
    """File that the program writes last into a checkpoint, which is a directory: one without it was interrupted, and
    the newest one before counts; null: each counts."""
    arguments: str = ""
    """Words that are added to the command of the step that was interrupted; {checkpoint} is the newest checkpoint."""


@dataclass(kw_only=True)
class Rollouts:
    """Completions that a step of reinforcement learning generates, and then trains on as its global batch.

    All values are texts with {names}; a number of tokens is a mean.
    """

    prompt_tokens: str
    """Tokens of a prompt."""
    completion_tokens: str
    """Tokens of a completion."""
    longest_tokens: str
    """Tokens of the longest completion of a step, which training waits for."""
    tensor: str = "1"
    """Ranks that generate together (TP)."""
    memory_fraction: str = "0.9"
    """Part of each GPU's memory that the server of the completions reserves, next to the training."""
    forward_passes: str = "1"
    """Forward passes over prompts and completions besides that of training: of the policy before the update, and of the
    reference model."""


@dataclass(kw_only=True)
class LikeTraining:
    """A training by one of our engines that takes as much memory and time as the program: what `plan` predicts for it.

    Its sections have the values of the run where they set nothing. All values have {names}.
    """

    model: str | None = None
    """Its model, by a file of `model`, as Llama-3.1-8B or llama31_8b; null: that of the run, which the program uses."""
    engine: dict[str, str] = field(default_factory=dict)
    """Keys of `engine`, such as kind."""
    parallelism: dict[str, str] = field(default_factory=dict)
    """Keys of `parallelism`, such as tensor."""
    job: dict[str, str] = field(default_factory=dict)
    """Keys of `job`, such as precision and steps."""
    scaling: dict[str, str] = field(default_factory=dict)
    """Keys of `scaling`, such as global_batch_size; -N is N micro-batches of each data-parallel rank."""
    rollouts: Rollouts | None = None
    """Completions that a step generates before it trains; null: no generation."""


class StopSignal(Enum):
    """Signal by which the program is asked to end."""

    TERM = "TERM"
    """SIGTERM."""
    INT = "INT"
    """SIGINT, as Ctrl-C."""
    USR1 = "USR1"
    """SIGUSR1."""
    USR2 = "USR2"
    """SIGUSR2."""


@dataclass(kw_only=True)
class Program:
    """A program with its steps, parameters and metrics."""

    name: str
    """Name in tables and figures."""
    steps: dict[str, Step] = field(default_factory=dict)
    """Its parts in their order, by name."""
    about: str = ""
    """A sentence on what it is, with the address of its documentation."""
    params: dict[str, str] = field(default_factory=dict)
    """Values of its own parameters, for {params.NAME}; sweep over program.params.NAME."""
    parameters: dict[str, Parameter] = field(default_factory=dict)
    """Meaning and values of these parameters."""
    env: dict[str, str] = field(default_factory=dict)
    """Environment variables of all steps, with {names}."""
    files: dict[str, str] = field(default_factory=dict)
    """Files that are written into the working directory before the first step: path -> text with {names}."""
    directory: str | None = None
    """Working directory, with {names}; null: work in the run directory."""
    inputs: dict[str, Input] = field(default_factory=dict)
    """Files that it reads, by name: their hashes are recorded, and {inputs.NAME} is the path."""
    metrics: dict[str, ProgramMetric] = field(default_factory=dict)
    """Numbers that are read from its output. A name of the registry, such as tokens_per_s, is that metric."""
    log: TrainingLog | None = None
    """Log of a training, which is read as foreign logs are; null: it trains nothing, or `metrics` say all."""
    predicted: LikeTraining | None = None
    """The training whose memory and speed are predicted for it; null: its wall time is predicted from finished runs."""
    merit: str | None = None
    """Metric by which runs are compared; null: the throughput of `log`, else the wall time of all steps."""
    gates: dict[str, Gate] = field(default_factory=dict)
    """Requirements, by name: a run that misses one is not used, and its reason is reported."""
    silent_limit_min: Positive | None = None
    """End a step that prints nothing on its first rank for this time; null: it may be silent."""
    stop_signal: StopSignal = StopSignal.TERM
    """Signal by which it is asked to end, before a time limit or at a preemption."""
    stop_within_s: Positive = 20.0
    """Time until it is killed after that signal."""
    resume: Resume | None = None
    """The way in which it continues; null: a restarted run begins again with the first step."""

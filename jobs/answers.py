"""The answers of commands to programs: records that `--json` prints and `slurmscale schema` describes.

A name ends in its unit (SI). What is unknown or absent is null. FORMAT grows when a field changes its meaning or goes;
new fields may come at any time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

FORMAT = 1


@dataclass(frozen=True)
class Reason:
    """One of the reasons of a refusal."""

    code: str
    """The rule that is broken (pipeline_is_filled), unknown_key, unknown_choice, wrong_type, missing_value, unread_key,
    several_values, unreadable, usage, or the kind of the refusal (run_dir)."""
    run: str | None
    """The run of a sweep that it is about."""
    key: str | None
    """The configuration key, the option or the argument that it is about; null if it is about none, or several."""
    value: str | None
    """The value that was given."""
    allowed: str | None
    """The values that the key takes in general; a rule may allow fewer, which the message names."""
    message: str
    remedies: list[dict[str, str]]
    """As in `Refusal`; of an unknown_key in its place."""


@dataclass(frozen=True)
class Refusal:
    """The answer where nothing was done."""

    kind: str
    """usage, or the error: ConfigError, DataError, RunDirError, SubmitError, CheckpointError, ReportError, ..."""
    message: str
    """The whole text, as on a terminal."""
    remedies: list[dict[str, str]] = field(default_factory=list)
    """Overrides that the text proposes, each set as keys and values; NUMBER and DIRECTORY stand for values of yours."""
    reasons: list[Reason] = field(default_factory=list)
    """At least one."""


@dataclass(frozen=True)
class Reply:
    """The one JSON document of a command."""

    command: str
    """Its name; empty if there is no such command."""
    exit_code: int
    result: Any = None
    """The answer of the command; null if it was refused."""
    refusal: Refusal | None = None
    """Null if all was done; with a result, the kind is `partial`, and the reasons name what was not done."""
    next_commands: list[str] = field(default_factory=list)
    """Commands that are usual after this one."""
    format: int = FORMAT


@dataclass(frozen=True)
class RunAnswer:
    """The state of a run."""

    name: str
    directory: str
    state: str
    """prepared, waiting, queued, held, running, suspended, finished, stopped, failed, cancelled, lost or ended."""
    is_open: bool
    """The state may change without the user."""
    step: int | None
    """The last recorded step."""
    steps: int | None
    """The steps that are planned."""
    job_id: str | None
    launcher: str | None
    host: str | None
    expected_start: str | None
    """Expected start of a waiting job, in Slurm's local time."""
    cause: str | None
    """The cause that the record of a failed run names."""
    decision: str | None
    """STOP, RESTART, or RESTART elsewhere (without the suspect node), for a failed run whose cause is recorded."""
    decision_reason: str | None
    detail: str | None


@dataclass(frozen=True)
class StageAnswer:
    """The state of a stage around training, or of its task for one run."""

    stage: str
    run: str | None
    state: str
    is_open: bool
    job_id: str
    launcher: str
    detail: str | None


@dataclass(frozen=True)
class SweepAnswer:
    """The runs and stages of a sweep."""

    directory: str
    note: str | None
    submitted_by_you: bool
    counts: dict[str, int]
    """Number of runs in each state."""
    runs: list[RunAnswer]
    stages: list[StageAnswer]


@dataclass(frozen=True)
class ListedSweep:
    """A sweep in a directory of sweeps."""

    directory: str
    counts: dict[str, int] | None
    """Number of runs in each state; null if they are not known."""
    unknown_because: str | None
    changed_unix_s: float | None
    size_bytes: int
    note: str | None


@dataclass(frozen=True)
class ListAnswer:
    """The sweeps in a directory, the one that changed last first."""

    sweeps: list[ListedSweep]


@dataclass(frozen=True)
class PublishedTime:
    """A time that a document publishes for the experiment of a run, next to the prediction of the same steps."""

    metric: str
    """useful_time_s, epoch_time_s or training_time_s."""
    source: str
    """The figure as printed, with its place."""
    document: str
    """The full citation."""
    hardware: str
    gpu: str | None
    """The GPU as published; null if the document does not state it."""
    steps: float
    """Steps of the published time, by the global batch of the planned run."""
    published_s: float
    published_step_time_s: float
    predicted_s: float
    predicted_low_s: float
    """Predicted lower limit (90 %)."""
    predicted_high_s: float
    """Predicted upper limit (90 %)."""
    position: str | None
    """shorter, within or longer: the published time against the interval; null if its GPU may be another one."""
    implausible: str | None
    """published: it would be an MFU above the highest published one on this GPU, in the interval or not;
    one_of_the_two: it is not in the interval, and that says no more; null: neither is known to be."""
    implied_mfu: float | None
    """MFU of an implausible published time; else null."""
    highest_published_mfu: float | None
    not_stated: list[str]
    """Settings that the document does not state: GPU, global batch, sequence length."""


@dataclass(frozen=True)
class PlannedRun:
    """The plan of a run."""

    name: str
    nodes: int
    ranks: int
    overrides: list[str]
    """The overrides that compose this very run."""
    plan: dict[str, Any]
    """As in plan.json: layout, accumulation, global_batch_size, steps, parameters, memory, speed, warnings."""
    published: list[PublishedTime]
    """Published times of the experiment that have a prediction."""


@dataclass(frozen=True)
class PlanAnswer:
    """The runs that some overrides compose; nothing was prepared."""

    runs: list[PlannedRun]
    left_out: list[str]
    """Lines on the points that cannot run, with --skip-illegal."""
    unset: list[str]
    """Keys without a value that `submit` needs, such as cluster.account."""
    search: SearchAnswer | None = None
    """With --search, which composes no single runs; else null."""


@dataclass(frozen=True)
class EstimateAnswer:
    """A predicted number and the interval that contains the measured one in 90 % of cases."""

    point: float
    low: float
    high: float


@dataclass(frozen=True)
class LayoutAnswer:
    """A legal layout that may fit its GPU, with its predictions."""

    overrides: list[str]
    """Overrides of this layout, to type behind those in `common`."""
    nodes: int
    data: int
    """Degree of data parallelism; the three others follow."""
    context: int
    tensor: int
    pipeline: int
    expert: int
    """Ranks of data parallelism that divide the experts of a layer; 1: each has all."""
    micro_batch_size: int
    accumulation: int
    chance_to_fit: float
    memory_bytes: EstimateAnswer
    """Memory of one GPU."""
    step_time_s: EstimateAnswer
    tokens_per_s_per_gpu: EstimateAnswer
    duration_s: EstimateAnswer | None
    """Time of all steps; null if their number depends on the data."""
    gpu_s: EstimateAnswer | None
    """GPU-seconds of all steps."""


@dataclass(frozen=True)
class SearchAnswer:
    """The layouts of --search, by predicted time; nothing was prepared."""

    basis: str
    """`uncalibrated: ...`, or the runs that the constants of the predictions were fitted to."""
    legal_layouts: int
    layouts_that_may_fit: int
    common: list[str]
    """Overrides of all layouts."""
    fastest: list[LayoutAnswer]
    """The first ten, with the chance of not fitting counted as lost time."""
    pareto: list[LayoutAnswer]
    """Layouts that no other equals or beats in time, GPU-hours and memory at once, at most fifteen."""
    pareto_layouts: int
    """Their number before they were thinned out."""
    file: str | None
    """The drawing of all layouts, with --output."""


@dataclass(frozen=True)
class ExplainedKey:
    """A key, a choice or a value, with its meaning."""

    name: str
    meaning: str


@dataclass(frozen=True)
class ExplainAnswer:
    """The facts about a key, or the keys and choices that have a word."""

    name: str | None
    facts: dict[str, str]
    """meaning, type, range, unit, default, as far as they exist; empty if the word is no key."""
    choices: list[ExplainedKey]
    keys: list[ExplainedKey]
    """The keys of a section, or those with the word."""


@dataclass(frozen=True)
class BudgetAnswer:
    """The use of a limit of a campaign's budget."""

    key: str
    limit: float
    used: float
    of_a_run: float | None
    """Median of the finished runs."""


@dataclass(frozen=True)
class AttemptAnswer:
    """The judgement on an attempt of a campaign."""

    attempt: str
    tier: str | None
    rank: int | None
    verdict: str
    """faster, tie, slower, too_few (repeats), or invalid: it does not count. Of an attempt that runs until a verdict:
    faster, no_difference, slower, undecided or invalid."""
    holds_after_bonferroni: bool
    """A difference that also holds at 99 % for all attempts together."""
    does_not_count_because: str | None
    pairs: int
    ratio: float | None
    """Speed of the attempt divided by that of the baseline."""
    ratio_low: float | None
    ratio_high: float | None
    minimum_effect: float | None
    """Relative difference that matters to an attempt that runs until a verdict; null for another one."""
    proxy: str | None
    """Overrides that shortened the runs of its pairs (--proxy); null for runs of full length."""
    proxy_configurations: int | None
    """Configurations that had run at both lengths before its first pair; fewer than three leave it undecided."""
    bias: float | None
    """Ratio of short pairs over that of long ones: taken out of `ratio`, and its interval added to that of `ratio`."""
    bias_low: float | None
    bias_high: float | None
    expected: str | None
    """The expectation that was stored before its first run (--expect)."""
    expected_state: str | None
    """kept, not_kept or not_decided."""
    expected_low: float | None
    """Interval of the expected metric, as a multiple of the baseline's or in its own unit."""
    expected_high: float | None
    values: dict[str, Any]
    """Medians by the names of leaderboard.csv."""


@dataclass(frozen=True)
class CampaignAnswer:
    """A judged campaign."""

    directory: str
    headline: str
    compared: str
    """The name of the metric that the ratios compare."""
    attempts: list[AttemptAnswer]
    budget: list[BudgetAnswer]


@dataclass(frozen=True)
class LeaderboardAnswer:
    """The campaigns in a directory."""

    campaigns: list[CampaignAnswer]


@dataclass(frozen=True)
class NoiseAnswer:
    """The baseline of a campaign against itself."""

    pairs: int
    ratio: float
    ratio_low: float | None
    ratio_high: float | None
    spread: float
    """Standard deviation of the logarithms of the ratios."""
    pairs_for_minimum_effect: int | None
    """Pairs after which, at this noise, the interval of the attempt is as narrow as the minimum effect; null: more
    than the maximum."""


@dataclass(frozen=True)
class VerdictAnswer:
    """The verdict on an attempt that runs until there is one."""

    attempt: str
    verdict: str
    """better, worse, no_difference (within minimum_effect), undecided, or not_comparable."""
    because: str | None
    """Why it is undecided or not comparable."""
    order: int
    """Its place among the attempts of the campaign."""
    error: float
    """Probability of a wrong difference or a wrong `no_difference`, at all looks together; it falls with the order, so
    that all attempts together err in 5 % of campaigns at most."""
    minimum_effect: float
    pairs: int
    pairs_left_out: int
    """Pairs of which one run was not measured."""
    maximum_pairs: int
    ratio: float | None
    """Speed of the attempt divided by that of the baseline."""
    ratio_low: float | None
    ratio_high: float | None
    noise: NoiseAnswer | None
    """Null for a proxy, too."""
    proxy: str | None
    """Overrides that shortened the runs of its pairs (--proxy); null for runs of full length."""
    proxy_configurations: int | None
    """Configurations that had run at both lengths before its first pair; fewer than three leave it undecided."""
    bias: float | None
    """Ratio of short pairs over that of long ones: taken out of `ratio`, and its interval added to that of `ratio`."""
    bias_low: float | None
    bias_high: float | None
    expected: str | None
    """The expectation that was stored before its first run (--expect)."""
    expected_state: str | None
    """kept, not_kept or not_decided."""


@dataclass(frozen=True)
class SubmittedCampaign:
    """The runs of a campaign after a submission."""

    sweep: SweepAnswer | None
    """Null if only a preview or scripts were written."""
    leaderboard: LeaderboardAnswer | None
    """With --wait or --until verdict; else null."""
    verdict: VerdictAnswer | None = None
    """With --until verdict; else null."""


@dataclass(frozen=True)
class ReportAnswer:
    """A written report."""

    headline: list[str]
    files: list[str]
    reference: ReferenceAnswer | None = None
    """With --reference; else null."""


@dataclass(frozen=True)
class ReferenceCheck:
    """A metric of a point against the reference."""

    point: str
    metric: str | None
    """A column of runs.csv, in its unit; null for a point that was not measured at all."""
    verdict: str
    """passed, better, worse, other_loss, missing (not measured) or unjudged (the reference has no value)."""
    reference_median: float | None
    reference_repeats: int
    median: float | None
    repeats: int
    relative_change: float | None
    """Change of the median against that of the reference."""
    by_spread: bool
    """The limit follows from the reference's own spread."""
    detail: str | None
    shifted_at: str | None
    """The report of the reference with which its present level begins; those before do not count."""
    hosts_differ: bool
    """Hosts of the reference differ by more than chance, and only equal hosts count, or hosts widen the limit."""


@dataclass(frozen=True)
class ReferenceAnswer:
    """The verdict of `report --reference`."""

    reference: str
    passed: bool
    false_alarm_rate: float | None
    """Probability, at most, that the checks by_spread fail for unchanged runs, if the level of the reference is steady:
    a shift hardly larger than its spread goes unseen and doubles it. Null if there are none."""
    checks: list[ReferenceCheck]
    """Those that fail first."""
    added: list[str]
    """Points that the reference does not contain."""


@dataclass(frozen=True)
class FileAnswer:
    """A file of a site that a command writes or checks."""

    file: str | None
    """The file; null if its text is only shown."""
    text: str
    """What the command prints: where the file is and how to choose it, or its text."""


@dataclass(frozen=True)
class ProbeAnswer:
    """A short run that identifies constants of step time."""

    overrides: list[str]
    nodes: int
    duration_s: float
    gpu_s: float
    interval_factor: float
    """Upper limit (90 %) of a step time over its prediction after this probe, the median of all layouts."""
    identifies: list[str]


@dataclass(frozen=True)
class ProbesAnswer:
    """The runs that `calibrate --probes` proposes."""

    basis: str
    """calibrated or uncalibrated, as the present predictions."""
    layouts: int
    """Layouts among which they were chosen."""
    interval_factor: float
    """That of `ProbeAnswer` before any probe."""
    probes: list[ProbeAnswer]
    directory: str
    """The sweep of the probes."""
    submitted: bool


@dataclass(frozen=True)
class CalibrationAnswer(FileAnswer):
    """Fitted constants; with --probes the runs to fit them to, without a file and a text."""

    probes: ProbesAnswer | None = None


@dataclass(frozen=True)
class DataSetAnswer:
    """A prepared data set."""

    name: str
    """The name of the data, with its prompt template if one was chosen."""
    directory: str
    description: str
    account: dict[str, float]
    """Samples read, used, held out and cut, tokens and shares, by the names of measurements.csv."""
    padding_share_of_an_epoch: float


@dataclass(frozen=True)
class DataAnswer:
    """The data sets of some overrides."""

    sets: list[DataSetAnswer]
    documents: int | None
    """Documents written in Megatron's format, with --megatron."""


@dataclass(frozen=True)
class ImagesAnswer:
    """Shards of images that were made."""

    directory: str
    images: int
    size_bytes: int


@dataclass(frozen=True)
class CheckAnswer:
    """A check of a cluster."""

    what: str
    found: str
    verdict: str
    """ok, warning (runs work, but slower or less safely than they could), or wrong (they will not start, or fail)."""
    advice: str | None


@dataclass(frozen=True)
class DoctorAnswer:
    """The checks of a cluster, of a run on it, and of its nodes."""

    run: str
    cluster: str
    checks: list[CheckAnswer]
    file: str | None
    """The file with the measurements of the nodes; null without a job."""


@dataclass(frozen=True)
class LogsAnswer:
    """The output of a rank."""

    run: str
    rank: int
    attempts: int
    """Starts of the run that have an output."""
    file: str
    size_bytes: int
    """Size of the chosen attempts' output."""
    last_lines: list[str]
    """The last lines, at most 200."""


@dataclass(frozen=True)
class NoteAnswer:
    """The note of a sweep."""

    directory: str
    note: str | None


@dataclass(frozen=True)
class RemovedAnswer:
    """What was deleted."""

    removed: list[str]
    """Directories of sweeps and runs."""
    freed_bytes: int


@dataclass(frozen=True)
class PackageAnswer:
    """The package of an attempt."""

    directory: str
    files: list[str]
    secrets_replaced_in: list[str]


@dataclass(frozen=True)
class RerunAnswer:
    """The judgement on the claim of a package."""

    holds: bool | None
    """Null if the runs did not finish."""
    text: str
    campaign: str | None
    """The directory of the repetition; null for a preview."""


@dataclass(frozen=True)
class ProposedAttempt:
    """An attempt to make next."""

    name: str
    overrides: list[str]
    reason: str


@dataclass(frozen=True)
class TuningAnswer:
    """A tuning, or the attempts that --next proposes."""

    directory: str
    ended: bool
    best: list[str]
    """Overrides of the best configuration; empty before the end."""
    verdict: str | None
    file: str | None
    """The experiment of the best configuration."""
    proposed: list[ProposedAttempt]
    """With --next."""


@dataclass(frozen=True)
class SkillAnswer:
    """A guide to a task."""

    name: str
    description: str
    text: str
    """The whole guide, as Markdown."""
    file: str | None
    """The file that was written, with --output."""


@dataclass(frozen=True)
class SkillsAnswer:
    """The guides."""

    skills: list[SkillAnswer]


@dataclass(frozen=True)
class Notice:
    """An event that `notify.command` is called with, on its standard input."""

    event: str
    """requeued, finished, failed, stopped, cancelled, held, lost; sweep_ended: no run of the sweep waits or runs."""
    sweep: str
    """The directory of the sweep."""
    run: str | None
    """Null for the end of a sweep."""
    step: int | None = None
    cause: str | None = None
    detail: str | None = None
    """The error, or the reason of a wait."""
    job_id: str | None = None
    counts: dict[str, int] = field(default_factory=dict)
    """Number of runs in each state, at the end of a sweep."""
    format: int = FORMAT

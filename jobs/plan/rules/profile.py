"""Rules of engine.profile. Checked at composition, so without torch."""

from __future__ import annotations

from jobs.engines.engine import engine_of
from jobs.layout import has_gpus
from jobs.plan.rules.rule import Rule
from jobs.schema import Profiler, Run

# A step of a large model on a GPU has tens of megabytes of trace, and ranks keep it in memory.
MOST_STEPS = 20
MOST_RANKS = 64


def steps_follow_each_other(run: Run) -> str | None:
    """Require consecutive steps after the unmeasured ones and the step in which the profiler starts."""
    # torch.profiler warms up for one step before the first recorded one.
    steps, first = run.engine.profile.steps, run.job.unmeasured_steps + 2
    if not steps:
        return None
    given = f"engine.profile.steps=[{','.join(map(str, steps))}]"
    last = run.job.steps
    if steps != list(range(steps[0], steps[0] + len(steps))):
        return (
            f"{given} are not consecutive. Set engine.profile.steps=["
            f"{','.join(map(str, range(min(steps), min(steps) + len(steps))))}]."
        )
    if len(steps) > MOST_STEPS:
        fewer = ",".join(map(str, steps[:MOST_STEPS]))
        return (
            f"{given}: at most {MOST_STEPS} steps are profiled, since ranks keep them in memory. Set "
            f"engine.profile.steps=[{fewer}]."
        )
    if steps[0] < first:
        return (
            f"{given} begin before step {first}: the first steps connect and compile (job.unmeasured_steps="
            f"{run.job.unmeasured_steps}), and the profiler starts one step early. Set engine.profile.steps=["
            f"{first},{first + 1}]."
        )
    if last is not None and steps[-1] > last:
        return f"{given} end after job.steps={last}. Set job.steps={steps[-1]} or more."
    return None


def ranks_exist(run: Run) -> str | None:
    """Require ranks of the run, each once."""
    ranks = run.engine.profile.ranks
    given = f"engine.profile.ranks=[{','.join(map(str, ranks))}]"
    if not ranks or len(set(ranks)) < len(ranks) or not 0 <= min(ranks) <= max(ranks) < run.ranks:
        return f"{given}: choose one or more of ranks 0 to {run.ranks - 1}, each once. Set engine.profile.ranks=[0]."
    if len(ranks) > MOST_RANKS:
        return f"{given}: at most {MOST_RANKS} ranks are profiled. Set engine.profile.ranks=[0]."
    return None


def program_records_steps(run: Run) -> str | None:
    """Refuse chosen steps where nothing can start and stop the program."""
    profile = run.engine.profile
    if not profile.steps:
        return None
    if not engine_of(run).profiles_steps:
        return (
            "engine.profile.steps: NeMo's loop does not start a profiler for chosen steps. Set engine.profile.steps=[] "
            "engine.profile.program=nsys, or engine=native."
        )
    if profile.program is Profiler.rocprof:
        return (
            "engine.profile.program=rocprof records the whole rank, not engine.profile.steps. Set "
            "engine.profile.steps=[], or engine.profile.program=torch."
        )
    if profile.program is Profiler.nsys and not has_gpus(run):
        return (
            "engine.profile.program=nsys records chosen steps by a call of CUDA, and there is no GPU "
            f"(cluster={run.cluster.name}). Set engine.profile.steps=[], or engine.profile.program=torch."
        )
    return None


# --- warnings ------------------------------------------------------------------------------------------------


def no_step_is_measured(run: Run) -> str | None:
    """Warn if a profiler records all steps."""
    profile = run.engine.profile
    if profile.wraps_ranks and not profile.steps:
        return (
            f"engine.profile.program={profile.program.name} records all steps, so none is steady: the report will not "
            "use this run."
        )
    return None


RULES: tuple[Rule, ...] = (steps_follow_each_other, ranks_exist, program_records_steps)
WARNINGS: tuple[Rule, ...] = (no_step_is_measured,)

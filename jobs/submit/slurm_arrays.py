"""Giving prepared runs to Slurm, all or none: as job arrays between their stages, or in turns inside one job."""

from __future__ import annotations

import json
from collections.abc import Sequence

from submitit.core.utils import FailedJobError, FailedSubmissionError

from jobs import run as entry
from jobs.errors import SubmitError
from jobs.plan.rules.rule import counted
from jobs.plan.table import duration
from jobs.rundir import RunDir, SweepDir, append_record, now
from jobs.schema import Run
from jobs.submit import pilot_job, slurm_commands, stages
from jobs.submit.batch_script import executor, resources, script_text, starting_after
from jobs.submit.ledger import record_submission, record_waiting, uninterrupted
from jobs.submit.stages import Unevaluated


def submit_arrays(
    sweep: SweepDir, runs: list[tuple[Run, RunDir]], unevaluated: Sequence[Unevaluated] = ()
) -> list[str]:
    """Submit through submitit: one job array for all runs with equal resources, between the stages around them.

    Where Slurm takes no more jobs of this user, the rest waits in the sweep's own queue; a chain of stages goes in
    whole or not at all.
    """
    slurm_commands.require()
    most = slurm_commands.max_array_size() - 1
    groups = arrays(runs, most)
    chain = stages.Chain(sweep, runs, unevaluated, most)
    chain.test()
    told = expected_starts(sweep, groups)
    submitted: list[str] = []
    left: list[tuple[RunDir, str]] = []
    try:
        with uninterrupted():
            chain.prepare()
        for group in groups:
            with uninterrupted():
                job_ids, limit = submit_what_fits(sweep, group, chain)
                submitted += job_ids
                for (_, directory), job_id in zip(group, job_ids, strict=False):
                    record_submission(sweep, directory, "slurm", job_id, **chain.on_record)
                if job_ids:
                    chain.evaluate(group[: len(job_ids)], job_ids)
            left += [(directory, limit) for _, directory in group[len(job_ids) :]]
        with uninterrupted():
            chain.finish()
        newly = record_waiting(sweep, left)
    except slurm_commands.QueueFullError as full:
        cancel_submitted(sweep, [*chain.submitted, *submitted], because=full)
        raise SubmitError(
            f"Slurm takes no more of your jobs now ({full}), and a chain of stages goes in whole or not at all: "
            "nothing of it is left in the queue. Submit fewer points, wait until jobs have ended, or type stages=train."
        ) from full
    except (SubmitError, OSError) as error:
        cancel_submitted(sweep, [*chain.submitted, *submitted], because=error)
        raise SubmitError(f"{error} Nothing of this submission is left in the queue.") from error
    arrays_text = f" in {len(groups)} job arrays" if 1 < len(groups) < len(runs) else ""
    if submitted:
        told.append(f"submitted {counted(len(submitted))}{arrays_text}: {compressed(submitted)}")
    told += [f"submitted stage {name}: {compressed(ids)}" for name, ids in chain.jobs.items()]
    if newly:
        told.append(
            f"{counted(len(left))} wait in the sweep's own queue: Slurm takes no more of your jobs now ({left[0][1]}). "
            "They go in as jobs of this sweep end, and with every `slurmscale status`, `watch` and `resume`."
        )
    return told


def expected_starts(sweep: SweepDir, groups: list[list[tuple[Run, RunDir]]]) -> list[str]:
    """When each array would start, in words; raises SubmitError when sbatch would not take it."""
    told = []
    for group in groups:
        run, directory = group[0]
        try:
            start = slurm_commands.test_script(script_text(run, directory, sweep), jobs=1)
        except slurm_commands.QueueFullError:
            continue
        except SubmitError as error:
            raise SubmitError(f"sbatch refuses {described(group)}: {error}. Nothing was submitted.") from error
        told += [f"expected start {start}: {first_of(group)}"] if start else []
    return told


def first_of(group: list[tuple[Run, RunDir]]) -> str:
    """The run that an array begins with, and of how many."""
    return f"{group[0][0].name}{f', the first of {len(group)}' if len(group) > 1 else ''}"


def described(group: list[tuple[Run, RunDir]]) -> str:
    """The runs of an array and what decides whether a site takes them."""
    run = group[0][0]
    wanted = {
        "cluster.partition": run.cluster.partition,
        "cluster.account": run.cluster.account,
        "cluster.qos": run.cluster.qos,
        "nodes": run.nodes,
        "ranks_per_node": run.ranks_per_node,
        "wall_time_min": run.wall_time_min,
    }
    more = f" and {len(group) - 1} more" if len(group) > 1 else ""
    return f"{run.name}{more} ({', '.join(f'{key}={value}' for key, value in wanted.items() if value is not None)})"


def arrays(runs: list[tuple[Run, RunDir]], most: int) -> list[list[tuple[Run, RunDir]]]:
    """The runs grouped by equal resources and code, no group larger than the site's arrays may be."""
    groups: dict[str, list[tuple[Run, RunDir]]] = {}
    for run, directory in runs:
        key = json.dumps(resources(run, directory.code.resolve()), sort_keys=True)
        groups.setdefault(key, []).append((run, directory))
    return [group[i : i + most] for group in groups.values() for i in range(0, len(group), most)]


def submit_what_fits(sweep: SweepDir, group: list[tuple[Run, RunDir]], chain: stages.Chain) -> tuple[list[str], str]:
    """As many of the group's first runs as Slurm takes; returns their job ids and the limit that keeps out the rest.

    Raises QueueFullError where there are stages and not all of them fit.
    """
    taken, limit = slurm_commands.room(script_text(*group[0], sweep), len(group))
    if chain.names and taken < len(group):
        raise slurm_commands.QueueFullError(limit)
    try:
        return (submit_array(sweep, group[:taken], chain.prepared_by) if taken else []), limit
    except slurm_commands.QueueFullError as full:
        if chain.names:
            raise
        # Another of this user's shells was quicker.
        return [], str(full)


def submit_array(sweep: SweepDir, group: list[tuple[Run, RunDir]], after: str | None) -> list[str]:
    """One sbatch for the group, which waits for what is given; returns its job ids."""
    run, directory = group[0]
    submitter = executor(run, sweep, starting_after(resources(run, directory.code.resolve()), after))
    try:
        with submitter.batch():
            jobs = [submitter.submit(entry.main, str(directory.path)) for _, directory in group]
    except (FailedJobError, FailedSubmissionError) as error:
        refusal = slurm_commands.refusal(str(error))
        if isinstance(refusal, slurm_commands.QueueFullError):
            raise refusal from error
        raise SubmitError(f"sbatch refused {described(group)}: {refusal}.") from error
    return [str(job.job_id) for job in jobs]


def cancel_submitted(sweep: SweepDir, job_ids: list[str], *, because: Exception) -> None:
    """Take back what an unfinished submission had queued; raises SubmitError when Slurm does not let us."""
    try:
        slurm_commands.cancel(job_ids)
    except SubmitError as error:
        raise SubmitError(
            f"{because} What was submitted before could not be cancelled ({error}). It is on record: type "
            f"`slurmscale cancel {sweep.quoted}`, or scancel {' '.join(job_ids)}."
        ) from error
    for job_id in job_ids:
        append_record(sweep.submissions, {"time": now(), "event": "cancelled", "job_id": job_id})


def compressed(job_ids: list[str]) -> str:
    """Job ids as a person reads them: 12_[0-3], 13."""
    counts: dict[str, int] = {}
    for job_id in job_ids:
        counts[job_id.split("_")[0]] = counts.get(job_id.split("_")[0], 0) + 1
    return ", ".join(f"{main}_[0-{count - 1}]" if count > 1 else main for main, count in counts.items())


def submit_pilots(sweep: SweepDir, runs: list[tuple[Run, RunDir]]) -> list[str]:
    """Submit one job in which the runs take turns."""
    slurm_commands.require()
    lines = []
    submitted: list[str] = []
    for group in pilot_job.jobs_of(runs):
        pilot = pilot_job.whole([run for run, _ in group])
        script = pilot_job.script_text(sweep, group)
        try:
            with uninterrupted():
                submitted.append(slurm_commands.submit_script(script))
                for run, directory in group:
                    record_submission(sweep, directory, "pilot", submitted[-1], nodes=run.nodes)
        except (SubmitError, OSError) as error:
            cancel_submitted(sweep, submitted, because=error)
            what = f"a pilot of {pilot.nodes} nodes for {counted(len(group))}"
            raise SubmitError(
                f"sbatch refuses {what}: {error}. Nothing of this submission is left in the queue."
            ) from error
        lines.append(
            f"submitted {counted(len(group))} as pilot {submitted[-1]}: "
            f"{pilot.nodes} nodes for {duration(pilot.wall_time_min)} at most"
        )
    return lines

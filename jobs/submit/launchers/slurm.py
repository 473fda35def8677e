"""launcher=slurm: job arrays, between the stages around training."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from jobs.errors import SubmitError
from jobs.plan.rules.rule import counted
from jobs.plan.time_limit import stop_before_limit_s
from jobs.rundir import RunDir, SweepDir
from jobs.schema import Run
from jobs.submit import scheduler_call, stages
from jobs.submit.cancellation import cancel_jobs
from jobs.submit.job_state import UNKNOWN, JobState
from jobs.submit.launchers.launcher import Launch, Launcher, Runs, script_lines
from jobs.submit.preparation.script_lines import quoted_path
from jobs.submit.slurm import call as slurm_call
from jobs.submit.slurm import commands as slurm_commands
from jobs.submit.slurm import stages as slurm_stages
from jobs.submit.slurm.accounting import accounting_of
from jobs.submit.slurm.batch_script import script_text, start_command, task_script
from jobs.submit.slurm.resources import resources, shared_resources, starting_after
from jobs.submit.sweeps.intents import run_task, submit_marked
from jobs.submit.sweeps.ledger import record_cancelled, record_waiting
from jobs.submit.sweeps.submissions import Submission, in_brackets
from jobs.work.work import work_of

STAGES = slurm_stages.SlurmStages()
UNCONFIRMED = JobState(UNKNOWN, "its submission was interrupted, and Slurm has not shown its job yet")


class Slurm(Launcher):
    """Submits one job array for all runs with equal resources, between the stages around them."""

    def check(self, runs: list[Run]) -> None:
        """Raise SubmitError if no Slurm answers here, or a partition can never run one of the runs or stages."""
        slurm_commands.require()
        slurm_commands.refuse_newer_options(runs)
        # A set: hundreds of runs have few different sizes, and each check asks Slurm.
        sizes = {(part, r.wall_time_min, r.launcher.spare_nodes) for r in runs for part in work_of(r).components(r)}
        for part, wall_time_min, spares in sizes:
            slurm_commands.refuse_beyond_partition(
                part.partition,
                part.nodes - spares,
                wall_time_min,
                spares=spares,
                key=part.key,
                nodes_key=part.nodes_key,
            )
        slurm_stages.refuse_beyond_partition(runs[0])

    def preview(self, what: Launch) -> list[str]:
        """Return the batch script of the first run of each array, and those of the stages."""
        shown = script_lines(
            arrays(what.runs, len(what.runs)),
            "batch script",
            lambda run, directory: script_text(run, directory, what.sweep),
        )
        return shown + stages.Chain(STAGES, what.sweep, what.runs, (), len(what.runs)).scripts()

    def launch(self, what: Launch) -> list[str]:
        """Submit all runs and stages, or none.

        If Slurm takes no more jobs of this user, the rest waits in the backlog of the sweep; a chain of stages is
        submitted whole or not at all.
        """
        sweep = what.sweep
        slurm_commands.require()
        most = slurm_commands.most_tasks()
        groups = arrays(what.runs, most)
        # Everything that sbatch can refuse is tested before the first job exists: taking jobs back may fail, too.
        chain = stages.Chain(STAGES, sweep, what.runs, what.missing_stages, most)
        slurm_stages.try_out(chain)
        lines = expected_starts(sweep, groups)
        submitted: list[str] = []
        left: list[tuple[RunDir, str]] = []
        try:
            chain.prepare()
            for group in groups:
                job_ids, limit = submit_what_fits(sweep, group, chain, turn_after(group, submitted))
                submitted += job_ids
                if job_ids:
                    chain.follow(group[: len(job_ids)], job_ids)
                left += [(directory, limit) for _, directory in group[len(job_ids) :]]
            chain.finish()
            newly = record_waiting(sweep, left)
        except scheduler_call.QueueFullError as full:
            cancel_submitted(sweep, [*chain.submitted, *submitted], because=full)
            raise SubmitError(
                f"Slurm accepts no more of your jobs now ({full}), and a chain of stages is submitted whole or not at "
                "all: none of it is left in the queue. Submit fewer points, wait until jobs have ended, or set "
                "stages=train."
            ) from full
        except scheduler_call.NoAnswerError:
            # Its job may exist, so nothing is taken back.
            raise
        except (SubmitError, OSError) as error:
            cancel_submitted(sweep, [*chain.submitted, *submitted], because=error)
            raise SubmitError(f"{error} Nothing of this submission is left in the queue.") from error
        if submitted:
            in_arrays = f" in {len(groups)} job arrays" if 1 < len(groups) < len(what.runs) else ""
            lines.append(f"submitted {counted(len(submitted))}{in_arrays}: {', '.join(in_brackets(submitted))}")
        lines += [f"submitted stage {name}: {', '.join(in_brackets(ids))}" for name, ids in chain.jobs.items()]
        if newly:
            lines.append(
                f"{counted(len(left))} wait in the backlog of the sweep: Slurm accepts no more of your jobs now "
                f"({left[0][1]}). They are submitted when jobs of this sweep end, and by every `slurmscale status`, "
                "`watch` and `resume`."
            )
        return lines

    def states(self, submissions: list[Submission]) -> dict[str, JobState]:
        """Return the state of each submission whose job is in the queue, or may be: one squeue for all."""
        unconfirmed = {each.asked_as: UNCONFIRMED for each in submissions if each.is_unconfirmed}
        asked = [each for each in submissions if each.in_queue and not each.ended]
        try:
            queue = slurm_commands.queue() if asked else {}
        except SubmitError as error:
            unknown = JobState(UNKNOWN, f"Slurm does not answer here: {error}")
            return unconfirmed | dict.fromkeys((each.asked_as for each in asked), unknown)
        # Slurm counts ids from 1 again after MaxJobId: an old ledger may name an id that is now somebody else's job.
        own = {each.asked_as: queue[each.job_id] for each in asked if each.job_id in queue}
        return unconfirmed | {each.asked_as: own[each.asked_as] for each in asked if each.asked_as in own
                              and each.is_its_job(own[each.asked_as].described)}  # fmt: skip

    def ends(self, submissions: list[Submission]) -> dict[str, JobState]:
        """Return how each submission that is not in the queue ended, from accounting: one sacct for all."""
        asked = [each for each in submissions if each.in_queue]
        accounting = accounting_of({each.job_id for each in asked})
        return {each.asked_as: accounting.end_of(each.job_id, each) for each in asked}

    def unlisted(self, late: Mapping[str, JobState]) -> dict[str, JobState]:
        """Return the states of jobs that are over by squeue and not by accounting, as the controller has them."""
        return slurm_commands.unlisted(late)

    def cancel(self, sweep: SweepDir, job_ids: Iterable[str]) -> None:
        """Run scancel for the jobs that are the sweep's."""
        cancel_jobs(sweep, job_ids)


def expected_starts(sweep: SweepDir, groups: list[Runs]) -> list[str]:
    """Return a line with the expected start of each array; raises SubmitError if sbatch would refuse one."""
    lines = []
    for group in groups:
        run, directory = group[0]
        try:
            start = slurm_commands.test_script(script_text(run, directory, sweep), 1, run.cluster.partition)
        except scheduler_call.QueueFullError:
            # Not a refusal: these runs wait in the backlog.
            continue
        except SubmitError as error:
            raise SubmitError(f"sbatch refuses {described(group)}: {error}. Nothing was submitted.") from error
        lines += [f"expected start {start}: {first_of(group)}"] if start else []
    return lines


def first_of(group: Runs) -> str:
    """Return the name of the first run of an array, and the size of the array."""
    return f"{group[0][0].name}{f', the first of {len(group)}' if len(group) > 1 else ''}"


def described(group: Runs) -> str:
    """Return the runs of an array and the settings that make a site accept or refuse them."""
    run = group[0][0]
    wanted = {
        "cluster.partition": run.cluster.partition,
        "cluster.account": run.cluster.account,
        "cluster.qos": run.cluster.qos,
        "nodes": run.nodes,
        "launcher.spare_nodes": run.launcher.spare_nodes or None,
        "ranks_per_node": run.ranks_per_node,
        "cluster.gpu_type": run.cluster.gpu_type,
        "wall_time_min": run.wall_time_min,
    }
    more = f" and {len(group) - 1} more" if len(group) > 1 else ""
    return f"{run.name}{more} ({', '.join(f'{key}={value}' for key, value in wanted.items() if value is not None)})"


def arrays(runs: Runs, most: int) -> list[Runs]:
    """Group the runs by equal resources and code; no group has more than `most` runs, the site's limit of an array.

    With launcher.max_running all share one array, or each is a job alone (turn_after): arrays would run side by side.
    """
    # All that is equal in this text can be one script, hence one array: one sbatch for hundreds of runs.
    scripts = [json.dumps(shared_resources(run, where.code_snapshot), sort_keys=True) for run, where in runs]
    take_turns = runs[0][0].launcher.max_running is not None and (len(set(scripts)) > 1 or len(runs) > most)
    groups: dict[str, Runs] = {}
    for script, (run, directory) in zip(scripts, runs, strict=True):
        # Slurm has no arrays of heterogeneous jobs.
        alone = f" of {directory.path}" if take_turns or is_heterogeneous(run) else ""
        groups.setdefault(script + alone, []).append((run, directory))
    return [group[i : i + most] for group in groups.values() for i in range(0, len(group), most)]


def is_heterogeneous(run: Run) -> bool:
    """Return True if the job of a run has several components, for nodes that it asks for differently."""
    return len(work_of(run).components(run)) > 1


def turn_after(group: Runs, earlier: list[str]) -> str | None:
    """Return the earlier job whose end a job waits for, so that only launcher.max_running run at once."""
    most = group[0][0].launcher.max_running
    return earlier[-most] if most and len(earlier) >= most else None


def submit_what_fits(sweep: SweepDir, group: Runs, chain: stages.Chain, after: str | None) -> tuple[list[str], str]:
    """Submit the first runs of a group, as many as Slurm accepts; return their job ids and the limit on the rest.

    They start after the end of the job `after`.

    Raises QueueFullError if there are stages and not all runs fit.
    """
    partition = group[0][0].cluster.partition
    # Asked before sbatch, which refuses a whole array if only a part of it fits.
    taken, limit = slurm_commands.room(script_text(*group[0], sweep), len(group), partition)
    if chain.names and taken < len(group):
        raise scheduler_call.QueueFullError(limit)
    try:
        return (submit_array(sweep, group[:taken], chain, after) if taken else []), limit
    except scheduler_call.QueueFullError as full:
        if chain.names:
            raise
        # Another shell of this user has filled the queue since.
        return [], str(full)


def submit_array(sweep: SweepDir, group: Runs, chain: stages.Chain, after: str | None) -> list[str]:
    """Run one sbatch for the group, after the stage that prepares its data; return its job ids."""
    run, directory = group[0]
    directories = [directory for _, directory in group]
    parameters = starting_after(resources(run, directory.code_snapshot), chain.prepared_by)
    parameters = starting_after(parameters, None if after is None else f"afterany:{after}")
    # An array has one --signal: the run with the largest checkpoint decides, the others stop a little early.
    parameters["signal_delay_s"] = max(stop_before_limit_s(each) for each, _ in group)

    def script(mark: str) -> str:
        paths = [quoted_path(each) for each in directories]
        return task_script(start_command(run), paths, sweep.logs, parameters | {"job_name": mark})

    tasks = [run_task(each, **chain.on_record) for each in directories]
    with slurm_call.SLURM.refusals_of(described(group)):
        return submit_marked(sweep, "slurm", parameters["job_name"], tasks, script, array=len(tasks) > 1)


def cancel_submitted(sweep: SweepDir, job_ids: list[str], *, because: Exception) -> None:
    """Cancel the jobs of an unfinished submission; raises SubmitError if scancel fails."""
    try:
        cancel_jobs(sweep, job_ids)
    except SubmitError as error:
        raise SubmitError(
            f"{because} The jobs submitted before could not be cancelled ({error}). They are on record: run "
            f"`slurmscale cancel {sweep.quoted}`, or scancel {' '.join(in_brackets(job_ids))}."
        ) from error
    record_cancelled(sweep, job_ids)


LAUNCHER = Slurm()

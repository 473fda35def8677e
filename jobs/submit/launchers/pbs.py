"""launcher=pbs: one job of PBS Pro or OpenPBS for each run, submitted with qsub, between the stages around training."""

from __future__ import annotations

from collections.abc import Iterable

from jobs.errors import SubmitError
from jobs.plan.rules.rule import counted
from jobs.rundir import RunDir, SweepDir
from jobs.schema import Run
from jobs.submit.job_state import GONE, UNKNOWN, JobState
from jobs.submit.launchers.launcher import Launch, Launcher, script_lines
from jobs.submit.launchers.pbs_script import groups
from jobs.submit.pbs import commands
from jobs.submit.pbs.batch_script import script_text
from jobs.submit.pbs.call import PBS
from jobs.submit.pbs.cancel import cancel_jobs
from jobs.submit.pbs.resources import job_name, options, per_job
from jobs.submit.pbs.stages import PbsStages, refuse_beyond_server
from jobs.submit.pbs.states import state_of
from jobs.submit.scheduler_call import NoAnswerError, QueueFullError
from jobs.submit.stages import Chain
from jobs.submit.sweeps.intents import run_task, submit_marked
from jobs.submit.sweeps.ledger import record_cancelled
from jobs.submit.sweeps.submissions import Submission, script_name

UNCONFIRMED = JobState(UNKNOWN, "its submission was interrupted, and PBS has not shown its job yet")
OTHER = "PBS has another job of this id now, and no record of this one"


class Pbs(Launcher):
    """Submits a job for each run, and the stages around them."""

    def check(self, runs: list[Run]) -> None:
        """Raise SubmitError if no PBS answers here, or a queue can never run one of the runs or stages."""
        for run in runs:
            options(run)
        commands.require()
        queues, default = commands.queues(), commands.server().get("default_queue")
        for run in runs:
            for sentence in commands.beyond_queue(queues, default, run.cluster.partition, per_job(run)):
                raise SubmitError(sentence)
        refuse_beyond_server(runs[0])

    def preview(self, what: Launch) -> list[str]:
        """Return the job script of one run of each group with equal resources, and those of the stages."""

        def shown(run: Run, directory: RunDir) -> str:
            mark = f"{job_name(run)}-ID"
            return script_text(run, directory, what.sweep, what.sweep.logs / script_name(mark, "pbs"), name=mark)

        return script_lines(groups(what.runs), "PBS job script", shown) + chain_of(what).scripts()

    def launch(self, what: Launch) -> list[str]:
        """Submit all runs and stages, or none."""
        commands.require()
        chain = chain_of(what)
        refuse_beyond_server(chain.first[0])
        job_ids: list[str] = []
        try:
            chain.prepare()
            for run, directory in what.runs:
                most = run.launcher.max_running
                # At most so many run at once: each waits for the one that many places before it.
                turn = f"afterany:{job_ids[-most]}" if most and len(job_ids) >= most else None
                job_ids += submit_run(what.sweep, run, directory, chain, turn)
                chain.follow([(run, directory)], job_ids[-1:])
            chain.finish()
        except NoAnswerError:
            # Its job may exist, so nothing is taken back.
            raise
        except QueueFullError as full:
            cancel_submitted(what.sweep, [*chain.submitted, *reversed(job_ids)], because=full)
            raise SubmitError(
                f"PBS accepts no more of your jobs now ({full}); {len(job_ids)} of {counted(len(what.runs))} were "
                "accepted and are taken back: nothing of this submission is left in the queue. Submit fewer runs, or "
                "repeat the command when jobs of yours have ended."
            ) from full
        except (SubmitError, OSError) as error:
            cancel_submitted(what.sweep, [*chain.submitted, *reversed(job_ids)], because=error)
            raise SubmitError(f"{error} Nothing of this submission is left in the queue.") from error
        lines = [f"submitted {counted(len(job_ids))}: {', '.join(job_ids)}"] if job_ids else []
        return lines + [f"submitted stage {name}: {', '.join(ids)}" for name, ids in chain.jobs.items()]

    def states(self, submissions: list[Submission]) -> dict[str, JobState]:
        """Return the state of each submission whose job waits or runs, or may."""
        unconfirmed = {each.asked_as: UNCONFIRMED for each in submissions if each.is_unconfirmed}
        asked = [each for each in submissions if is_asked(each)]
        try:
            known = known_jobs(asked)
        except SubmitError as error:
            unknown = JobState(UNKNOWN, f"PBS does not answer here: {error}")
            return unconfirmed | dict.fromkeys((each.asked_as for each in asked), unknown)
        own = {each.asked_as: known[each.job_id] for each in asked if each.job_id in known}
        return unconfirmed | {
            each.asked_as: own[each.asked_as]
            for each in asked
            if each.asked_as in own
            and each.is_its_job(own[each.asked_as].described)
            and (own[each.asked_as].is_alive or own[each.asked_as].state == UNKNOWN)
        }

    def ends(self, submissions: list[Submission]) -> dict[str, JobState]:
        """Return how each submission that neither waits nor runs ended, if the server keeps the history of jobs."""
        asked = [each for each in submissions if is_asked(each)]
        try:
            known = known_jobs(asked)
        except SubmitError as error:
            return {each.asked_as: JobState(GONE, f"PBS does not answer: {error}") for each in asked}
        found = {}
        for each in asked:
            job = known.get(each.job_id, JobState(GONE, "PBS has no record of it"))
            if not each.is_its_job(job.described):
                job = JobState(GONE, OTHER)
            if not job.is_alive:
                found[each.asked_as] = job
        return found

    def cancel(self, sweep: SweepDir, job_ids: Iterable[str]) -> None:
        """Run qdel for the jobs that are the sweep's."""
        cancel_jobs(sweep, job_ids)


def is_asked(submission: Submission) -> bool:
    """Return True if PBS can know the job of a submission; a ledger may have other ids."""
    return submission.in_queue and submission.job_id.isdecimal()


def known_jobs(submissions: list[Submission]) -> dict[str, JobState]:
    """Return the states of the jobs of these submissions, by id."""
    jobs = commands.jobs({each.job_id for each in submissions}) if submissions else {}
    return {job_id: state_of(job) for job_id, job in jobs.items()}


def chain_of(what: Launch) -> Chain:
    """Return the stages around runs."""
    return Chain(PbsStages(), what.sweep, what.runs, what.missing_stages, 1)


def submit_run(sweep: SweepDir, run: Run, directory: RunDir, chain: Chain, turn: str | None) -> list[str]:
    """Run qsub for a run, after the stage that prepares its data and its turn; return its job id in a list."""
    after = ",".join(filter(None, [chain.prepared_by, turn]))

    def script(mark: str) -> str:
        file = sweep.logs / script_name(mark, "pbs")
        return script_text(run, directory, sweep, file, name=mark, after=after)

    with PBS.refusals_of(described(run)):
        return submit_marked(sweep, "pbs", job_name(run), [run_task(directory, **chain.on_record)], script, array=False)


def described(run: Run) -> str:
    """Return a run and the settings that make a site accept or refuse it."""
    wanted = {
        "cluster.partition": run.cluster.partition,
        "cluster.account": run.cluster.account,
        "nodes": run.nodes,
        "wall_time_min": run.wall_time_min,
    }
    asked = " ".join(line for line in options(run) if line.startswith("-l "))
    settings = ", ".join(f"{key}={value}" for key, value in wanted.items() if value is not None)
    return f"{run.name} ({settings}: qsub {asked})"


def cancel_submitted(sweep: SweepDir, job_ids: list[str], *, because: Exception) -> None:
    """Cancel the jobs of an unfinished submission; raises SubmitError if qdel fails."""
    try:
        cancel_jobs(sweep, job_ids)
    except SubmitError as error:
        raise SubmitError(
            f"{because} The jobs submitted before could not be cancelled ({error}). They are on record: run "
            f"`slurmscale cancel {sweep.quoted}`, or qdel {' '.join(job_ids)}."
        ) from error
    record_cancelled(sweep, job_ids)


LAUNCHER = Pbs()

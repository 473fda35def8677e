"""Launching prepared runs, all or none, with the launcher of a kind."""

from __future__ import annotations

from collections.abc import Sequence

from jobs.errors import SubmitError
from jobs.plan.rules.stages import stages_of
from jobs.rundir import SweepDir
from jobs.schema import LauncherKind
from jobs.submit.allowance import spent
from jobs.submit.launchers import launcher_of
from jobs.submit.launchers.launcher import Launch, Runs
from jobs.submit.preparation.code_store import restore_code
from jobs.submit.preparation.staging import packed
from jobs.submit.stages import MissingStages
from jobs.submit.trust.integrity import refuse_changed
from jobs.submit.trust.own_sweeps import refuse_unrecorded


def launch(sweep: SweepDir, runs: Runs, kind: LauncherKind, missing_stages: Sequence[MissingStages] = ()) -> list[str]:
    """Start the runs, and the stages around them, with this launcher; return sentences for the user.

    Raises SubmitError if the launcher refuses any of them, RunDirError if their code was changed or others could;
    then none of them is left queued.
    """
    if not kind.chains_stages and any(stages_of(run) for run, _ in runs):
        raise SubmitError(
            f"{sweep.path} has stages around training, which need jobs that wait for each other; "
            f"launcher={kind.name} does not support that. Use --launcher slurm, --launcher pbs or --launcher local."
        )
    try:
        first = runs[0][0] if runs else missing_stages[0].run
        directories = [*(directory for _, directory in runs), *(each.directory for each in missing_stages)]
        # First, since the checks below look at the copy of the code that the runs will execute.
        restore_code(sweep, directories)
        codes = {directory.code_snapshot for directory in directories}
        refuse_changed(sweep.path, first.cluster.trusted_group, codes)
        refuse_unrecorded(sweep, directories)
        lines = [] if kind.is_preview else packed(run for run, _ in runs)
        with spent([*(run for run, _ in runs), *(each.run for each in missing_stages)], kind):
            return [*lines, *launcher_of(kind).launch(Launch(sweep, runs, missing_stages))]
    except OSError as error:
        raise SubmitError(
            f"{error.filename or sweep.path}: {error.strerror or error}. Nothing was launched. Free some space or set "
            "another place with runs_dir=PATH."
        ) from error

"""`slurmscale doctor`: check the cluster, the run on it and its nodes, and show the findings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

import jobs
from jobs.console import console
from jobs.doctor.cluster import ask_slurm
from jobs.doctor.held_checks import held_job_checks, held_run_checks
from jobs.doctor.host_record import host_findings
from jobs.doctor.node_job import nodes_wanted, run_on_nodes
from jobs.doctor.nodes import judged
from jobs.doctor.pair_checks import bandwidths
from jobs.doctor.pbs_checks import ask_pbs, pbs_run_checks, pbs_site_checks
from jobs.doctor.report import Finding, Verdict, summary, table, write
from jobs.doctor.run_checks import judged_by_sbatch, run_checks
from jobs.doctor.site_checks import site_checks
from jobs.errors import ConfigError, SubmitError
from jobs.plan.compose import compose
from jobs.plan.legality import value_problems
from jobs.rundir import SweepDir
from jobs.schema import Run
from jobs.submit.allocations.held import held_allocation
from jobs.submit.pbs import commands as pbs_commands
from jobs.submit.preparation.script_lines import sweep_path
from jobs.submit.slurm import commands as slurm_commands
from jobs.submit.slurm.batch_script import batch_script
from jobs.submit.slurm.resources import resources


@dataclass(frozen=True)
class Examination:
    """What the doctor found."""

    run: Run
    findings: list[Finding]
    file: Path | None = None
    """The measurements of the nodes; None without a job."""


def doctor(overrides: list[str], *, nodes: int | None, node_list: str | None, with_job: bool) -> Examination:
    """Show every finding, and return them all."""
    # Layout and batch may still be defaults of another machine: the cluster is checked all the same.
    run = compose(overrides, multirun=False, judge=value_problems)[0].run
    if run.starter.scheduler == "PBS":
        return doctor_of_pbs(run)
    if run.starter.in_own_job:
        return doctor_of_own_job(run)
    if not run.starter.needs_slurm:
        raise ConfigError(
            f"cluster={run.cluster.name} has launcher={run.starter.name}, and doctor checks Slurm and PBS clusters. "
            "Set cluster=generic_slurm, the name of your own cluster file, or launcher=pbs."
        )
    slurm_commands.require()
    out = console()
    site = ask_slurm()
    found = [*site_checks(site), *host_findings(run)]
    out.print(table("the cluster", found))
    fit = [*run_checks(site, run), judged_by_sbatch(script_of(run), run.cluster.partition)]
    out.print("", table(f"{run.name} there", fit), "", sep="\n")
    before = [*found, *fit]
    found, file = on_nodes(run, nodes_wanted(run, nodes, node_list), node_list, before, out) if with_job else ([], None)
    out.print(summary([*before, *found]))
    return Examination(run, [*before, *found], file)


def doctor_of_pbs(run: Run) -> Examination:
    """Show every finding about a PBS cluster and a run on it. Submits no test job."""
    pbs_commands.require()
    out = console()
    site = ask_pbs()
    found, fit = [*pbs_site_checks(site), *host_findings(run)], pbs_run_checks(site, run)
    out.print(table("the cluster", found))
    out.print("", table(f"{run.name} there", fit), "", sep="\n")
    out.print(summary([*found, *fit]))
    return Examination(run, [*found, *fit])


def doctor_of_own_job(run: Run) -> Examination:
    """Show what the job of this shell has, and whether a run fits into it. Submits no test job."""
    allocation, out = held_allocation(), console()
    found, fit = held_job_checks(allocation), held_run_checks(allocation, run)
    out.print(table("the job", found))
    out.print("", table(f"{run.name} there", fit), "", sep="\n")
    out.print(summary([*found, *fit]))
    return Examination(run, [*found, *fit])


def on_nodes(
    run: Run, nodes: int, node_list: str | None, before: list[Finding], out: Console
) -> tuple[list[Finding], Path | None]:
    """Run a job on nodes, show its findings, and write all findings to report.json; return them and that file."""
    try:
        job = run_on_nodes(run, nodes, node_list, out)
    except SubmitError as error:
        advice = "Fix the findings above, choose nodes with --nodes or --nodelist, or use --no-job."
        refused = [Finding("test job", f"refused: {error}", Verdict.wrong, advice)]
        out.print(table("nodes", refused), "", sep="\n")
        return refused, None
    found = [*judged(run, job), *bandwidths(run, job.reports, job.pairs)]
    out.print("", table(", ".join(job.nodes) or "nodes", found), "", sep="\n")
    path = job.directory / "report.json"
    write(path, before + found, run=run.name, cluster=run.cluster.name, nodes=job.reports, pairs=job.pairs)
    out.print(f"written to {path}", soft_wrap=True)
    return found, path


def script_of(run: Run) -> str:
    """Return the batch script of the run; prepares nothing."""
    code = Path(jobs.__file__).parent.parent
    return batch_script("true", SweepDir(Path(sweep_path(run))).logs, resources(run, code))

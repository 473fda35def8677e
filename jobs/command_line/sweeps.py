"""Commands that submit, show and control a sweep, and that list, copy and remove sweeps."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from jobs.answers import ListAnswer, LogsAnswer, NoteAnswer, RemovedAnswer, SweepAnswer
from jobs.command_line.command import (
    EXPECT,
    MULTIRUN,
    START,
    SWEEP,
    WAIT,
    Answered,
    Argument,
    Command,
    Effect,
    chosen,
    given_path,
    overrides,
)
from jobs.command_line.composing import AS_HYDRA, SKIP_ILLEGAL, print_as_hydra
from jobs.errors import ConfigError
from jobs.schema import LauncherKind

HEADING = "runs of a sweep"
SWEEPS = "sweeps on disk"
RUN = Argument("run", type=given_path, metavar="RUN", help="run directory")
NODES = Argument("--nodes", action="store_true", help="also processors, memory, GPUs, network of each running node")


def submit(options: argparse.Namespace) -> int:
    """Submit runs, or print a configuration in Hydra's formats."""
    if (code := print_as_hydra(options)) is not None:
        return code
    from jobs.submit import commands

    return commands.submit(options.overrides, **chosen(options, "multirun", "wait", "skip_illegal", "expect"))


def status(options: argparse.Namespace) -> int:
    """Show the state of a sweep."""
    if options.follow:
        options.grammar.error("--follow prints documents. Add --json, or run slurmscale watch SWEEP")
    from jobs.submit import commands

    return commands.status(options.sweep, everything=options.all, nodes=options.nodes, check=options.check)


def watch(options: argparse.Namespace) -> int:
    """Show the state of a sweep until it has ended."""
    from jobs.submit.watching.watch import watch as watch_sweep

    return watch_sweep(options.sweep, nodes=options.nodes, tensorboard=options.tensorboard)


def logs(options: argparse.Namespace) -> int:
    """Print the output of a run."""
    from jobs.submit.watching.logs import logs as print_logs

    return print_logs(options.run, rank=options.rank, follow=options.follow, attempt=options.attempt)


def cancel(options: argparse.Namespace) -> int:
    """Cancel a sweep."""
    from jobs.submit.cancel import cancel as cancel_sweep

    return cancel_sweep(options.sweep)


def resume(options: argparse.Namespace) -> int:
    """Resume a sweep."""
    from jobs.submit import commands

    return commands.resume(options.sweep, **chosen(options, "launcher", "wait", "trust"))


def list_sweeps(options: argparse.Namespace) -> int:
    """List the sweeps in a directory."""
    from jobs.submit.sweeps.sweep_list import list_sweeps as show

    return show(options.directory)


def note(options: argparse.Namespace) -> int:
    """Write, print or remove the note of a sweep."""
    found = noted(options)[0]
    if options.text is None and not options.remove:
        nothing = f"{found.directory} has no note. Write one: slurmscale note {shlex.quote(found.directory)} TEXT"
        print(found.note or nothing)
    return 0


def clone(options: argparse.Namespace) -> int:
    """Submit a run again with changes."""
    from jobs.submit.clone import point_of
    from jobs.submit.commands import submit_points

    return submit_points([point_of(options.run, options.overrides, trust=options.trust)], wait=options.wait)


def remove(options: argparse.Namespace) -> int:
    """Delete sweeps or runs."""
    from jobs.submit.sweeps.remove import remove as delete

    return 0 if delete(options.sweeps, yes=options.yes) else 1


# --- answers to --json ---------------------------------------------------------------------------------------------


def submitted(options: argparse.Namespace) -> tuple[Any, int]:
    """Submit runs, and return their states."""
    from jobs.submit import commands
    from jobs.submit.answers import directory_of, sweep_answer

    how = chosen(options, "multirun", "skip_illegal", "expect")
    points = commands.points_to_submit(options.overrides, **how)
    code = commands.submit_points(points, wait=options.wait)
    return sweep_answer(directory_of(points)), code


def states_of_sweep(options: argparse.Namespace) -> tuple[Any, int]:
    """Return the states of a sweep."""
    from jobs.submit.answers import has_failed, sweep_answer

    found = sweep_answer(options.sweep)
    return found, int(options.check and has_failed(found))


def changes_of_sweep(options: argparse.Namespace) -> Iterator[tuple[SweepAnswer, int]]:
    """Yield the states of a sweep, then the runs whose state has changed, until no run waits or runs."""
    from jobs.submit.answers import changes

    return changes(options.sweep)


def and_states(function: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], tuple[Any, int]]:
    """Return the function that runs a command on a sweep, and returns the states after it."""

    def answer(options: argparse.Namespace) -> tuple[Any, int]:
        from jobs.submit.answers import sweep_answer

        code = function(options)
        return sweep_answer(options.sweep), code

    return answer


def listed(options: argparse.Namespace) -> tuple[Any, int]:
    """Return the sweeps in a directory."""
    from jobs.submit.answers import list_answer

    return list_answer(options.directory), 0


def cloned(options: argparse.Namespace) -> tuple[SweepAnswer, int]:
    """Submit a run again with changes, and return the states of its sweep."""
    from jobs.submit.answers import directory_of, sweep_answer
    from jobs.submit.clone import point_of
    from jobs.submit.commands import submit_points

    point = point_of(options.run, options.overrides, trust=options.trust)
    code = submit_points([point], wait=options.wait)
    return sweep_answer(directory_of([point])), code


def end_of_output(options: argparse.Namespace) -> tuple[LogsAnswer, int]:
    """Return the end of the output of a run."""
    from jobs.submit.watching.logs import logs_answer

    if options.follow:
        raise ConfigError("--json answers once. Leave --follow out, and ask again.")
    return logs_answer(options.run, rank=options.rank, attempt=options.attempt), 0


def noted(options: argparse.Namespace) -> tuple[NoteAnswer, int]:
    """Write or remove the note of a sweep, and return it."""
    from jobs.submit.sweeps.note import note as keep
    from jobs.submit.sweeps.note import note_of

    sweep = keep(options.sweep, options.text, remove=options.remove)
    return NoteAnswer(str(sweep.path), note_of(sweep) or None), 0


def removed(options: argparse.Namespace) -> tuple[RemovedAnswer, int]:
    """Delete sweeps or runs, and return what was deleted."""
    from jobs.submit.sweeps.remove import remove as delete

    if not options.yes:
        raise ConfigError("--json asks nothing, and remove deletes. Add --yes.")
    found = delete(options.sweeps, yes=True)
    assert found is not None
    return found, 0


def then(*verbs: str) -> Callable[[argparse.Namespace, SweepAnswer], list[str]]:
    """Return the function that names commands on the sweep of an answer."""
    return lambda _, sweep: [f"{verb} {shlex.quote(sweep.directory)}" for verb in verbs]


COMMANDS = (
    Command(
        "submit",
        "prepare all points and submit all or none; return at once",
        submit,
        (MULTIRUN, overrides(), SKIP_ILLEGAL, EXPECT, WAIT, AS_HYDRA),
        heading=START,
        examples=(
            "submit -m nodes=1,2 parallelism=ddp,fsdp_full sweep=first",
            "submit launcher=dry cluster=generic_slurm nodes=2",
            "submit -m experiment=demo --wait",
        ),
        manual="jobs/submit/README.md",
        answer=Answered(SweepAnswer, submitted, Effect.submits, then("status", "report")),
        exit_codes={1: "with --wait: a run did not finish"},
    ),
    Command(
        "status",
        "show the state of every run of a sweep",
        status,
        (
            SWEEP,
            Argument("--all", action="store_true", help="every run of a long sweep, queued and finished ones too"),
            NODES,
            Argument("--check", action="store_true", help="exit with 1 if a run failed or was lost"),
            Argument("--follow", action="store_true", help="with --json: one line per change, until all runs ended"),
        ),
        heading=START,
        examples=(
            "status runs/first",
            "status runs/first --all --nodes",
        ),
        manual="jobs/submit/README.md",
        answer=Answered(SweepAnswer, states_of_sweep, Effect.reads, then("report"), changes_of_sweep),
        exit_codes={1: "with --check: one failed or was lost; --follow: one did not finish"},
    ),
    Command(
        "watch",
        "show the state and progress of every run, updated until none waits or runs",
        watch,
        (
            SWEEP,
            NODES,
            Argument(
                "--tensorboard", action="store_true", help="also write event files for TensorBoard, as runs go on"
            ),
        ),
        heading=START,
        examples=("watch runs/first",),
        manual="jobs/submit/README.md",
        exit_codes={0: "every run finished", 1: "a run did not finish"},
    ),
    Command(
        "logs",
        "print the output of a run",
        logs,
        (
            RUN,
            Argument("--rank", type=int, default=0, help="number of the rank (default 0)"),
            Argument("--attempt", type=int, metavar="N", help="an earlier start of the run, counted from 1"),
            Argument("-f", "--follow", action="store_true", help="print new lines until the run ends"),
        ),
        heading=HEADING,
        examples=(
            "logs runs/first/tiny-ddp-n1x2",
            "logs runs/first/tiny-ddp-n1x2 --rank 1 -f",
            "logs runs/first/tiny-ddp-n1x2 --attempt 1",
        ),
        manual="jobs/runtime/README.md#records-of-a-run",
        answer=Answered(LogsAnswer, end_of_output, Effect.reads),
    ),
    Command(
        "cancel",
        "end the waiting and running jobs of a sweep, or of one run",
        cancel,
        (SWEEP,),
        heading=HEADING,
        examples=("cancel runs/first", "cancel runs/first/tiny-ddp-n1x2"),
        manual="jobs/submit/README.md",
        answer=Answered(SweepAnswer, and_states(cancel), Effect.cancels, then("resume")),
        exit_codes={2: "refused, or a job could not be ended; the message names it"},
    ),
    Command(
        "resume",
        "submit unfinished runs again; finished runs are skipped",
        resume,
        (
            SWEEP,
            Argument(
                "--launcher",
                choices=[kind.name for kind in LauncherKind if not (kind.one_job or kind.is_preview)],
                help="another launcher than the one that the runs were prepared for",
            ),
            WAIT,
            Argument("--trust", action="store_true", help="run what a sweep contains that you did not submit yourself"),
        ),
        heading=HEADING,
        examples=(
            "resume runs/first",
            "resume runs/first --launcher local --wait",
            "resume runs/first/tiny-ddp-n1x2",
        ),
        manual="jobs/submit/README.md#faults-and-restarts",
        answer=Answered(SweepAnswer, and_states(resume), Effect.submits, then("status")),
        exit_codes={1: "with --wait: a run did not finish"},
    ),
    Command(
        "list",
        "show the sweeps in a directory, newest first: states of their runs, age, size, note",
        list_sweeps,
        (Argument("directory", type=given_path, nargs="?", default=Path("runs"), metavar="DIR", help="default: runs"),),
        heading=SWEEPS,
        examples=("list", "list runs"),
        manual="jobs/submit/README.md#sweeps-on-disk",
        answer=Answered(ListAnswer, listed, Effect.reads),
    ),
    Command(
        "note",
        "store a line of text in a sweep, which status, list and the report show",
        note,
        (
            SWEEP,
            Argument("text", nargs="?", metavar="TEXT", help="at most 200 characters; default: print the note"),
            Argument("--remove", action="store_true", help="remove the note, as the empty TEXT '' does"),
        ),
        heading=SWEEPS,
        examples=("note runs/first 'before the new driver'", "note runs/first --remove"),
        manual="jobs/submit/README.md#sweeps-on-disk",
        answer=Answered(NoteAnswer, noted, Effect.writes),
    ),
    Command(
        "clone",
        "submit a run again with changes, as a new sweep",
        clone,
        (
            RUN,
            overrides("what changes, such as job.steps=100; sweep=NAME (default: SWEEP-clone); launcher=dry previews"),
            WAIT,
            Argument("--trust", action="store_true", help="clone a run of a sweep that you did not submit yourself"),
        ),
        heading=SWEEPS,
        examples=(
            "clone runs/first/tiny-ddp-n1x2 job.learning_rate=1e-4",
            "clone runs/first/tiny-ddp-n1x2 nodes=2 sweep=two_nodes launcher=dry",
        ),
        manual="jobs/submit/README.md#sweeps-on-disk",
        answer=Answered(SweepAnswer, cloned, Effect.submits, then("status", "report")),
        exit_codes={1: "with --wait: the run did not finish"},
    ),
    Command(
        "remove",
        "delete sweeps of yours that have ended, or runs of them",
        remove,
        (
            Argument("sweeps", type=given_path, nargs="+", metavar="SWEEP", help="sweep or run directories"),
            Argument("--yes", action="store_true", help="do not ask"),
        ),
        heading=SWEEPS,
        examples=("remove runs/first", "remove --yes runs/first/tiny-ddp-n1x2"),
        manual="jobs/submit/README.md#sweeps-on-disk",
        answer=Answered(RemovedAnswer, removed, Effect.removes),
        exit_codes={1: "the question was answered by no"},
    ),
)

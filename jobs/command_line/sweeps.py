"""Commands that submit, show and control a sweep: submit, status, watch, logs, cancel, resume."""

from __future__ import annotations

import argparse
from pathlib import Path

from jobs.command_line.command import MULTIRUN, START, SWEEP, WAIT, Argument, Command, chosen, overrides
from jobs.command_line.composing import AS_HYDRA, SKIP_ILLEGAL, print_as_hydra
from jobs.schema import LauncherKind

HEADING = "runs of a sweep"
NODES = Argument("--nodes", action="store_true", help="also processors, memory, GPUs, network of each running node")


def submit(options: argparse.Namespace) -> int:
    """Submit runs, or print a configuration in Hydra's formats."""
    if (code := print_as_hydra(options)) is not None:
        return code
    from jobs.submit import commands

    return commands.submit(options.overrides, **chosen(options, "multirun", "wait", "skip_illegal"))


def status(options: argparse.Namespace) -> int:
    """Show the state of a sweep."""
    from jobs.submit import commands

    return commands.status(options.sweep, everything=options.all, nodes=options.nodes, check=options.check)


def watch(options: argparse.Namespace) -> int:
    """Show the state of a sweep until it has ended."""
    from jobs.submit.watch import watch as watch_sweep

    return watch_sweep(options.sweep, nodes=options.nodes, tensorboard=options.tensorboard)


def logs(options: argparse.Namespace) -> int:
    """Print the output of a run."""
    from jobs.submit import commands

    return commands.logs(options.run, rank=options.rank, follow=options.follow)


def cancel(options: argparse.Namespace) -> int:
    """Cancel a sweep."""
    from jobs.submit import commands

    return commands.cancel(options.sweep)


def resume(options: argparse.Namespace) -> int:
    """Resume a sweep."""
    from jobs.submit import commands

    return commands.resume(options.sweep, **chosen(options, "launcher", "wait", "trust"))


COMMANDS = (
    Command(
        "submit",
        "prepare all points and submit all or none; return at once",
        submit,
        (MULTIRUN, overrides(), SKIP_ILLEGAL, WAIT, AS_HYDRA),
        heading=START,
        examples=(
            "submit -m nodes=1,2 parallelism=ddp,fsdp_full sweep=first",
            "submit launcher=dry cluster=generic_slurm nodes=2",
            "submit -m experiment=demo --wait",
        ),
        manual="jobs/README.md#submitting",
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
        ),
        heading=START,
        examples=(
            "status runs/first",
            "status runs/first --all --nodes",
        ),
        manual="jobs/README.md#submitting",
        exit_codes={1: "with --check: a run or stage failed or was lost"},
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
        manual="jobs/README.md#submitting",
        exit_codes={0: "every run finished", 1: "a run did not finish"},
    ),
    Command(
        "logs",
        "print the output of a run",
        logs,
        (
            Argument("run", type=Path, metavar="RUN", help="run directory"),
            Argument("--rank", type=int, default=0, help="number of the rank (default 0)"),
            Argument("-f", "--follow", action="store_true", help="print new lines until the run ends"),
        ),
        heading=HEADING,
        examples=(
            "logs runs/first/tiny-ddp-n1x2",
            "logs runs/first/tiny-ddp-n1x2 --rank 1 -f",
        ),
        manual="jobs/README.md#records-of-a-run",
    ),
    Command(
        "cancel",
        "end the waiting and running jobs of a sweep",
        cancel,
        (SWEEP,),
        heading=HEADING,
        examples=("cancel runs/first",),
        manual="jobs/README.md#submitting",
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
        ),
        manual="jobs/README.md#faults-and-restarts",
        exit_codes={1: "with --wait: a run did not finish"},
    ),
)

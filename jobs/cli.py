"""The command line: `slurmscale COMMAND`. Parses arguments and hands over; a SuiteError becomes one message.

Each command imports what it needs when it runs, so that --help and plan answer at once.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from jobs.errors import SuiteError
from jobs.schema import LauncherKind

OVERRIDES = "Hydra overrides, such as model=llama2_7b nodes=4 job.steps=100; `slurmscale plan` shows all keys"


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 a run or check failed, 2 refused, 3 below a reference."""
    options = parsed(arguments)
    try:
        return dispatch(options)
    except SuiteError as error:
        from jobs.secrets import redact

        print(redact(f"slurmscale {options.command}: {error}"), file=sys.stderr)
        return 2
    except PermissionError as error:
        if error.filename is None:
            raise
        # What is not there yet is refused by its directory.
        there = os.access(error.filename, os.F_OK)
        readable = os.access(error.filename if there else Path(error.filename).parent, os.R_OK)
        refused = "written" if readable else "read"
        print(f"slurmscale {options.command}: {error.filename} cannot be {refused}: permission denied", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"slurmscale {options.command}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output, `head` for instance, has seen enough.
        sys.stderr.close()
        return 0


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """The options of one command; overrides may stand before, between and behind them."""
    options, behind = parser().parse_known_args(arguments)
    takes_overrides = "overrides" in options
    if behind and (not takes_overrides or any(word.startswith("-") for word in behind)):
        hint = "; overrides have no dashes, as in nodes=2" if takes_overrides else ""
        options.grammar.error(f"unrecognized arguments: {' '.join(behind)}{hint}")
    if behind:
        # What argparse leaves over: it takes the words of one place for all of them.
        options.overrides += behind
    return options


def folder(text: str) -> Path:
    """A path that was typed; an unset variable of a shell is none."""
    if not text:
        raise argparse.ArgumentTypeError("'' is no folder; type --output FOLDER")
    return Path(text)


class Parser(argparse.ArgumentParser):
    """A grammar that says what to type where it is not kept."""

    def error(self, message: str) -> NoReturn:
        """End with what is wrong, the grammar in short and where to find all of it."""
        usage = self.format_usage().removeprefix("usage: ")
        self.exit(2, f"{self.prog}: {message}. Type:\n  {usage}{self.prog} --help says what each is.\n")


def parser() -> Parser:
    """The grammar of the command line."""
    top = Parser(
        prog="slurmscale",
        description="Sweep LLM training over model x parallelism x nodes on Slurm, and report scaling.",
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, text: str) -> Parser:
        sub: Parser = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(grammar=sub)
        return sub

    for name, text in (
        ("plan", "show what the overrides come to: the plan table, the mesh and every value; prepares nothing"),
        ("submit", "prepare all points and submit all or none; returns at once"),
    ):
        sub = command(name, text)
        sub.add_argument("-m", "--multirun", action="store_true", help="a run of each value: nodes=1,2,4")
        if name == "submit":
            sub.add_argument("--wait", action="store_true", help="return when all runs have ended")
        sub.add_argument("overrides", nargs="*", metavar="OVERRIDE", help=OVERRIDES)
    campaign_commands(command)
    sub = command("doctor", "look at a Slurm cluster, and whether the overrides fit it, before a run is sent there")
    where = sub.add_mutually_exclusive_group()
    where.add_argument("--nodes", type=int, metavar="N", help="how many nodes the test job looks at (default 2)")
    where.add_argument("--nodelist", metavar="LIST", help="which nodes, such as node[01-04]")
    where.add_argument("--no-job", action="store_true", help="only ask Slurm; send no test job")
    sub.add_argument("overrides", nargs="*", metavar="OVERRIDE", help=OVERRIDES)
    sub = command("status", "show where every run of a sweep stands")
    sub.add_argument("sweep", type=Path, metavar="SWEEP", help="sweep directory, such as runs/demo")
    sub.add_argument("--all", action="store_true", help="every run of a long sweep, queued and finished ones too")
    sub = command("watch", "show a sweep as it goes on, until nothing of it waits or runs")
    sub.add_argument("sweep", type=Path, metavar="SWEEP", help="sweep directory")
    sub = command("logs", "show what a run printed")
    sub.add_argument("run", type=Path, metavar="RUN", help="run directory")
    sub.add_argument("--rank", type=int, default=0, help="which rank (default 0)")
    sub.add_argument("-f", "--follow", action="store_true", help="go on until the run ends")
    sub = command("cancel", "cancel what waits or runs of a sweep")
    sub.add_argument("sweep", type=Path, metavar="SWEEP", help="sweep directory")
    sub = command("resume", "submit again what has not finished; finished runs are skipped")
    sub.add_argument("sweep", type=Path, metavar="SWEEP", help="sweep directory")
    sub.add_argument(
        "--launcher",
        choices=[kind.name for kind in LauncherKind if not (kind.one_job or kind.is_preview)],
        help="another launcher than prepared for",
    )
    sub.add_argument("--wait", action="store_true", help="return when all runs have ended")
    sub = command("report", "make report.html, report.md and runs.csv from run directories")
    sub.add_argument("paths", type=Path, nargs="*", metavar="DIR", help="sweep or run directories")
    against = sub.add_mutually_exclusive_group()
    against.add_argument(
        "--compare",
        type=Path,
        nargs=2,
        metavar=("A", "B"),
        help="two of them: how fast is B against A, with what proof",
    )
    against.add_argument(
        "--reference", type=Path, metavar="FILE", help="an earlier runs.csv; exit code 3 when a point got worse"
    )
    sub.add_argument(
        "--tolerance", type=float, metavar="SHARE", help="how much worse than FILE still passes (default 0.05, so 5 %%)"
    )
    sub.add_argument("--allow-missing", action="store_true", help="points of FILE that were not measured do not fail")
    sub.add_argument("-o", "--output", type=folder, help="where to write (default: the one DIR given, else here)")
    sub.add_argument(
        "--format",
        action="append",
        default=[],
        metavar="LIST",
        help="write more: parquet (runs.parquet), svg, png (figures/), latex (points.tex); --format svg,latex",
    )
    return top


def campaign_commands(command: Callable[[str, str], Parser]) -> None:
    """The grammar of what makes a campaign and shows it."""
    one = command("attempt", "run one configuration in turns with the baseline of a campaign, repeated")
    one.add_argument("name", metavar="NAME", help="of the attempt, such as mbs2; the first one is called baseline")
    one.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="of the baseline: all; later: what differs")
    several = command("campaign", "run all attempts that a file names in turns with their baseline, in one submission")
    several.add_argument("file", type=Path, metavar="FILE", help="a YAML file of lines NAME: [OVERRIDE, ...]")
    several.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="launcher=... for all of them, nothing else")
    for sub in (one, several):
        sub.add_argument(
            "--campaign", type=Path, metavar="DIR", help="default: the baseline's sweep, later the one in runs/"
        )
        sub.add_argument(
            "--repeats", type=int, default=3, metavar="N", help="how often, each beside a baseline (default 3)"
        )
        sub.add_argument(
            "--changed-code", action="store_true", help="baselines beside attempts run the code of the first baseline"
        )
        sub.add_argument("--wait", action="store_true", help="return when all have ended, and show the leaderboard")
    sub = command("leaderboard", "rank the attempts of a campaign, and say which do not count and why")
    sub.add_argument("campaign", type=Path, metavar="DIR", help="campaign directory, such as runs/apac_hpc_ai_2024")


def dispatch(options: argparse.Namespace) -> int:
    """Call the command's function."""
    if options.command == "plan":
        from jobs.plan.show import show

        return show(options.overrides, multirun=options.multirun)
    if options.command == "doctor":
        from jobs.doctor.examine import doctor

        return doctor(options.overrides, nodes=options.nodes, node_list=options.nodelist, with_job=not options.no_job)
    if options.command == "report":
        return report(options)
    if options.command == "watch":
        from jobs.submit.watch import watch

        return watch(options.sweep)
    if options.command == "leaderboard":
        return show_leaderboard(options.campaign)
    if options.command in {"attempt", "campaign"}:
        from jobs.campaign.trial import submit_trial, submit_trials

        how = {key: getattr(options, key) for key in ("campaign", "repeats", "changed_code", "wait")}
        one = options.command == "attempt"
        code, campaign = (
            submit_trial(options.name, options.overrides, **how)
            if one
            else submit_trials(options.file, options.overrides, **how)
        )
        return show_leaderboard(campaign) or code if options.wait else code
    from jobs.submit import commands

    match options.command:
        case "submit":
            return commands.submit(options.overrides, multirun=options.multirun, wait=options.wait)
        case "status":
            return commands.status(options.sweep, everything=options.all)
        case "logs":
            return commands.logs(options.run, rank=options.rank, follow=options.follow)
        case "cancel":
            return commands.cancel(options.sweep)
        case _:
            return commands.resume(options.sweep, launcher=options.launcher, wait=options.wait)


def show_leaderboard(campaign: Path) -> int:
    """The leaderboard of a campaign."""
    from analysis.report.leaderboard import show

    return show(campaign)


def report(options: argparse.Namespace) -> int:
    """The report, on its own, of A against B, or against a reference."""
    from jobs.errors import ReportError

    if options.reference is None and (options.tolerance is not None or options.allow_missing):
        raise ReportError(
            "--tolerance and --allow-missing say how to judge against a reference. Type which: --reference runs.csv"
        )
    if options.compare:
        if options.paths:
            raise ReportError("--compare takes its two directories itself. Type slurmscale report --compare A B")
        from analysis.report.compare import compare

        a, b = options.compare
        answer, page = compare(a, b, options.output, options.format)
        print(*answer, page, sep="\n")
        return 0
    if not options.paths:
        raise ReportError("no DIR given. Type sweep or run directories, for instance: slurmscale report runs/demo")
    if options.reference:
        from analysis.report.against_reference import regress

        return regress(
            options.paths,
            options.reference,
            options.output,
            options.tolerance,
            allow_missing=options.allow_missing,
            formats=options.format,
        )
    from analysis.report.report import report as write_report

    print(write_report(options.paths, options.output, options.format))
    return 0


if __name__ == "__main__":
    sys.exit(main())

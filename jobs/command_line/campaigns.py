"""Commands that compare configurations: attempt, campaign, leaderboard, tune."""

from __future__ import annotations

import argparse
import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.answers import LeaderboardAnswer, PackageAnswer, RerunAnswer, SubmittedCampaign, TuningAnswer
from jobs.command_line.command import (
    EXPECT,
    OVERRIDES,
    Answered,
    Argument,
    Command,
    Effect,
    chosen,
    given_path,
    overrides,
)

if TYPE_CHECKING:
    from jobs.explore.campaign.referee import Ended

HEADING = "campaigns and tuning"
TRIAL = (
    Argument(
        "--campaign",
        type=given_path,
        metavar="DIR",
        help="campaign directory (default: the baseline's sweep, later the only one in runs/)",
    ),
    Argument("--repeats", type=int, metavar="N", help="number of repeats, each paired with a baseline (default 3)"),
    Argument(
        "--changed-code", action="store_true", help="run the paired baselines with the code of the first baseline"
    ),
    Argument(
        "--wait",
        action="store_true",
        default=None,
        help="return when all runs have ended, and print the leaderboard",
    ),
)


UNTIL = Argument(
    "--until",
    choices=("verdict",),
    help="wait, and add pairs until they prove a difference or none that matters (campaign.minimum_effect); with "
    "--repeats N pairs in each submission",
)


PROXY = Argument(
    "--proxy",
    action="append",
    default=[],
    metavar="OVERRIDE",
    help="shorten both runs of each pair, as by job.steps=50; attempts that ran at both lengths before give the bias "
    "of short runs, without which the verdict is open",
)


def attempt(options: argparse.Namespace) -> int:
    """Submit one attempt."""
    if options.until:
        from jobs.explore.campaign.referee import sentences

        found = referee(options)
        for line in sentences(found.verdict) if found.verdict else ():
            print(line)
        return found.code
    from jobs.explore.campaign.trial import submit_trial

    return and_leaderboard(options, *submit_trial(options.name, options.overrides, **one_trial(options)))


def referee(options: argparse.Namespace) -> Ended:
    """Run pairs of one attempt until a verdict."""
    from jobs.explore.campaign.referee import until_verdict

    how = chosen(options, "campaign", "repeats", "changed_code", "expect", "proxy")
    return until_verdict(options.name, options.overrides, **how)


def campaign(options: argparse.Namespace) -> int:
    """Submit all attempts of a file."""
    from jobs.explore.campaign.trial import submit_trials

    return and_leaderboard(options, *submit_trials(options.file, options.overrides, **trial_options(options)))


def trial_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options that attempt and campaign share."""
    repeats = 3 if options.repeats is None else options.repeats
    return chosen(options, "campaign", "changed_code", "wait", "proxy") | {"repeats": repeats}


def one_trial(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options of attempt."""
    return trial_options(options) | chosen(options, "expect")


def and_leaderboard(options: argparse.Namespace, code: int, started: Path | None) -> int:
    """Print the leaderboard of a campaign if its runs were started and waited for; return the exit code."""
    return show_leaderboard(started) or code if options.wait and started else code


def leaderboard(options: argparse.Namespace) -> int:
    """Print the leaderboard of a campaign."""
    return show_leaderboard(options.campaign)


def show_leaderboard(directory: Path) -> int:
    """Print the leaderboard of a campaign, given its directory or that of a run in it."""
    from analysis.report.leaderboard import show

    return show(campaign_of(directory))


def campaign_of(directory: Path) -> Path:
    """Return the directory of a campaign, given it, a run in it, or a link to either."""
    from jobs.submit.sweeps.sweep_at import is_run

    return Path(os.path.realpath(directory)).parent if is_run(directory) else directory


def package(options: argparse.Namespace) -> int:
    """Write the package of an attempt."""
    return packaged(options)[1]


def rerun(options: argparse.Namespace) -> int:
    """Repeat the attempt of a package."""
    return repeated(options)[1]


def tune(options: argparse.Namespace) -> int:
    """Tune a space, or propose the next attempts of a campaign."""
    return tuned(options)[1]


# --- answers to --json ---------------------------------------------------------------------------------------------


def packaged(options: argparse.Namespace) -> tuple[PackageAnswer, int]:
    """Write the package of an attempt."""
    from jobs.explore.campaign.package import package as write

    return write(options.campaign, options.attempt, options.output, options.layout), 0


def repeated(options: argparse.Namespace) -> tuple[RerunAnswer, int]:
    """Repeat the attempt of a package, and return the judgement on its claim."""
    from jobs.explore.campaign.rerun import rerun as repeat

    return repeat(options.package, options.overrides, **chosen(options, "repeats", "trust"))


def tuned(options: argparse.Namespace) -> tuple[TuningAnswer, int]:
    """Tune a space, or propose the next attempts of a campaign; return where it stands."""
    if options.next is None:
        from jobs.explore.tune import tune as tune_space
        from jobs.submit.scheduler_call import HOURS_LONG_S, patience

        # A night of tuning outlives a controller that is restarted.
        with patience(HOURS_LONG_S):
            return tune_space(options.overrides)
    if options.overrides:
        options.grammar.error(f"--next reads a campaign and takes no overrides; leave {options.overrides[0]} out")
    from jobs.explore.propose.by_hand import next_attempts

    return next_attempts(options.next), 0


def board(options: argparse.Namespace) -> tuple[Any, int]:
    """Return the leaderboard of a campaign."""
    from analysis.report.leaderboard import leaderboard_answer

    return leaderboard_answer(campaign_of(options.campaign)), 0


def attempted(options: argparse.Namespace) -> tuple[Any, int]:
    """Submit one attempt, and return its runs, with --wait the leaderboard, and with --until the verdict."""
    if options.until:
        found = referee(options)
        runs, code = submitted(options, found.code, found.campaign)
        return replace(runs, verdict=found.verdict), code
    from jobs.explore.campaign.trial import submit_trial

    return submitted(options, *submit_trial(options.name, options.overrides, **one_trial(options)))


def all_attempted(options: argparse.Namespace) -> tuple[Any, int]:
    """Submit all attempts of a file, and return their runs, and with --wait the leaderboard."""
    from jobs.explore.campaign.trial import submit_trials

    return submitted(options, *submit_trials(options.file, options.overrides, **trial_options(options)))


def submitted(options: argparse.Namespace, code: int, started: Path | None) -> tuple[Any, int]:
    """Return the runs of a campaign, and with --wait its leaderboard; null for a preview."""
    from analysis.report.leaderboard import leaderboard_answer
    from jobs.submit.answers import sweep_answer

    if started is None:
        return SubmittedCampaign(None, None), code
    waited = options.wait or (options.command == "attempt" and options.until)
    return SubmittedCampaign(sweep_answer(started), leaderboard_answer(started) if waited else None), code


def to_rerun(_: argparse.Namespace, answer: PackageAnswer) -> list[str]:
    """Return the command by which somebody else repeats a package."""
    return [shlex.join(["rerun", answer.directory])]


def next_attempts(_: argparse.Namespace, answer: TuningAnswer) -> list[str]:
    """Return the commands that make the proposed attempts."""
    return [
        shlex.join(["attempt", each.name, *each.overrides, "--campaign", answer.directory]) for each in answer.proposed
    ]


COMMANDS = (
    Command(
        "attempt",
        "run one configuration in turns with the baseline of a campaign, repeated",
        attempt,
        (
            Argument("name", metavar="NAME", help="name of the attempt, such as mbs2; the first one is named baseline"),
            overrides("for the baseline the whole configuration, later only the differences"),
            *TRIAL,
            UNTIL,
            PROXY,
            EXPECT,
        ),
        heading=HEADING,
        examples=(
            "attempt baseline model=tiny job.micro_batch_size=1 sweep=camp",
            "attempt mbs2 job.micro_batch_size=2 --wait",
            "attempt mbs2 job.micro_batch_size=2 --until verdict",
            "attempt mbs4 job.micro_batch_size=4 --proxy job.steps=50",
        ),
        manual="jobs/explore/README.md#campaigns",
        answer=Answered(SubmittedCampaign, attempted, Effect.submits),
        exit_codes={
            0: "done; with --until verdict: better than the baseline",
            1: "with --wait: a run did not finish",
            3: "worse than the baseline",
            4: "no difference that matters",
            5: "undecided: the pairs or the budget are spent",
            6: "not comparable with the baseline",
        },
    ),
    Command(
        "campaign",
        "run all attempts of a file in turns with their baseline, in one submission",
        campaign,
        (
            Argument("file", type=given_path, metavar="FILE", help="a YAML file of lines NAME: [OVERRIDE, ...]"),
            overrides("only launcher=... and its keys, for all attempts"),
            PROXY,
            *TRIAL,
        ),
        heading=HEADING,
        examples=("campaign attempts.yaml --repeats 5", "campaign attempts.yaml --proxy job.steps=50"),
        manual="jobs/explore/README.md#campaigns",
        answer=Answered(SubmittedCampaign, all_attempted, Effect.submits),
        exit_codes={1: "with --wait: a run did not finish"},
    ),
    Command(
        "leaderboard",
        "rank the attempts of a campaign; list those that do not count, with the reason",
        leaderboard,
        (
            Argument(
                "campaign", type=given_path, metavar="DIR", help="campaign directory, such as runs/apac_hpc_ai_2024"
            ),
        ),
        heading=HEADING,
        examples=("leaderboard runs/camp",),
        manual="analysis/compare/README.md#leaderboard",
        answer=Answered(LeaderboardAnswer, board, Effect.reads),
    ),
    Command(
        "package",
        "write a directory of texts by which somebody else can check and repeat an attempt",
        package,
        (
            Argument("campaign", type=given_path, metavar="DIR", help="campaign directory, such as runs/camp"),
            Argument("attempt", metavar="NAME", help="name of the attempt"),
            Argument(
                "--output", type=given_path, metavar="DIR", help="directory to write (default: package-CAMPAIGN-NAME)"
            ),
            Argument(
                "--layout",
                choices=("sc",),
                help="sc: add ARTIFACT.md, an artifact description and evaluation as the SC conference asks for",
            ),
        ),
        heading=HEADING,
        examples=("package runs/camp mbs2",),
        manual="jobs/explore/README.md#packages",
        answer=Answered(PackageAnswer, packaged, Effect.writes, to_rerun),
    ),
    Command(
        "rerun",
        "repeat the attempt of a package here, and judge whether its claim holds",
        rerun,
        (
            Argument("package", type=given_path, metavar="DIR", help="directory that slurmscale package wrote"),
            overrides("only launcher=... and its keys"),
            Argument(
                "--repeats",
                type=int,
                default=3,
                metavar="N",
                help="number of pairs of baseline and attempt (default 3)",
            ),
            Argument("--trust", action="store_true", help="run the commands of the package, after reading them"),
        ),
        heading=HEADING,
        examples=("rerun package-camp-mbs2 --trust",),
        manual="jobs/explore/README.md#packages",
        answer=Answered(RerunAnswer, repeated, Effect.submits),
        exit_codes={1: "the claim does not hold here, or could not be judged"},
    ),
    Command(
        "tune",
        "find the best configuration of a sweep within a budget; the same command goes on after a stop",
        tune,
        (
            overrides(f"values to try, tune.KEY; {OVERRIDES}"),
            Argument(
                "--next",
                type=given_path,
                metavar="CAMPAIGN",
                help="propose the next attempts of a campaign that was made by hand, with reasons; submit nothing",
            ),
        ),
        heading=HEADING,
        examples=(
            "tune parallelism=ddp,fsdp_full job.micro_batch_size=1,2",
            "tune tune=batch_finder model=tiny",
            "tune --next runs/camp",
        ),
        manual="jobs/explore/README.md#tuning",
        answer=Answered(TuningAnswer, tuned, Effect.submits, next_attempts),
    ),
)

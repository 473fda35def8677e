"""Commands that compare configurations: attempt, campaign, leaderboard, tune."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from jobs.answers import LeaderboardAnswer, SubmittedCampaign
from jobs.command_line.command import OVERRIDES, Answered, Argument, Command, chosen, given_path, overrides

HEADING = "campaigns and tuning"
TRIAL = (
    Argument(
        "--campaign",
        type=given_path,
        metavar="DIR",
        help="campaign directory (default: the baseline's sweep, later the only one in runs/)",
    ),
    Argument(
        "--repeats", type=int, default=3, metavar="N", help="number of repeats, each paired with a baseline (default 3)"
    ),
    Argument(
        "--changed-code", action="store_true", help="run the paired baselines with the code of the first baseline"
    ),
    Argument("--wait", action="store_true", help="return when all runs have ended, and print the leaderboard"),
)


def attempt(options: argparse.Namespace) -> int:
    """Submit one attempt."""
    from jobs.explore.campaign.trial import submit_trial

    return and_leaderboard(options, *submit_trial(options.name, options.overrides, **trial_options(options)))


def campaign(options: argparse.Namespace) -> int:
    """Submit all attempts of a file."""
    from jobs.explore.campaign.trial import submit_trials

    return and_leaderboard(options, *submit_trials(options.file, options.overrides, **trial_options(options)))


def trial_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options that attempt and campaign share."""
    return chosen(options, "campaign", "repeats", "changed_code", "wait")


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
    """Return the directory of a campaign, given it or a run in it."""
    from jobs.submit.sweep_at import is_run

    return directory.absolute().parent if is_run(directory) else directory


def package(options: argparse.Namespace) -> int:
    """Write the package of an attempt."""
    from jobs.explore.campaign.package import package as write

    return write(options.campaign, options.attempt, options.output)


def rerun(options: argparse.Namespace) -> int:
    """Repeat the attempt of a package."""
    from jobs.explore.campaign.rerun import rerun as repeat

    return repeat(options.package, options.overrides, **chosen(options, "repeats", "trust"))


def tune(options: argparse.Namespace) -> int:
    """Tune a space, or propose the next attempts of a campaign."""
    if options.next is None:
        from jobs.explore.tune import tune as tune_space
        from jobs.submit.scheduler_call import HOURS_LONG_S, patience

        # A night of tuning outlives a controller that is restarted.
        with patience(HOURS_LONG_S):
            return tune_space(options.overrides)
    if options.overrides:
        options.grammar.error(f"--next reads a campaign and takes no overrides; leave {options.overrides[0]} out")
    from jobs.explore.propose.by_hand import next_attempts

    return next_attempts(options.next)


# --- answers to --json ---------------------------------------------------------------------------------------------


def board(options: argparse.Namespace) -> tuple[Any, int]:
    """Return the leaderboard of a campaign."""
    from analysis.report.leaderboard import leaderboard_answer

    return leaderboard_answer(campaign_of(options.campaign)), 0


def attempted(options: argparse.Namespace) -> tuple[Any, int]:
    """Submit one attempt, and return its runs, and with --wait the leaderboard."""
    from jobs.explore.campaign.trial import submit_trial

    return submitted(options, *submit_trial(options.name, options.overrides, **trial_options(options)))


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
    return SubmittedCampaign(sweep_answer(started), leaderboard_answer(started) if options.wait else None), code


COMMANDS = (
    Command(
        "attempt",
        "run one configuration in turns with the baseline of a campaign, repeated",
        attempt,
        (
            Argument("name", metavar="NAME", help="name of the attempt, such as mbs2; the first one is named baseline"),
            overrides("for the baseline the whole configuration, later only the differences"),
            *TRIAL,
        ),
        heading=HEADING,
        examples=(
            "attempt baseline model=tiny job.micro_batch_size=1 sweep=camp",
            "attempt mbs2 job.micro_batch_size=2 --campaign runs/camp --wait",
        ),
        manual="jobs/explore/README.md#campaigns",
        answer=Answered(SubmittedCampaign, attempted),
        exit_codes={1: "with --wait: a run did not finish"},
    ),
    Command(
        "campaign",
        "run all attempts of a file in turns with their baseline, in one submission",
        campaign,
        (
            Argument("file", type=given_path, metavar="FILE", help="a YAML file of lines NAME: [OVERRIDE, ...]"),
            overrides("only launcher=... and its keys, for all attempts"),
            *TRIAL,
        ),
        heading=HEADING,
        examples=("campaign attempts.yaml --repeats 5",),
        manual="jobs/explore/README.md#campaigns",
        answer=Answered(SubmittedCampaign, all_attempted),
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
        answer=Answered(LeaderboardAnswer, board),
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
        ),
        heading=HEADING,
        examples=("package runs/camp mbs2",),
        manual="jobs/explore/README.md#packages",
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
    ),
)

"""The command line `slurmscale COMMAND`: parse arguments, call the command's function, print a SuiteError.

Each command imports what it needs when it runs, so that start-up stays fast.
"""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from jobs.errors import SuiteError, interrupt_behind
from jobs.output import exit_code_of, guarded_streams, output_is_closed
from jobs.schema import LauncherKind
from jobs.secrets import redact
from jobs.visible import visible

OVERRIDES = "Hydra overrides, such as model=llama2_7b nodes=4 job.steps=100; `slurmscale explain` lists all keys"
SHELLS = ("bash", "zsh", "fish")
# Options of Hydra's own command line, and what takes their place in commands with overrides.
OVERRIDING = ("plan", "submit", "data", "tune", "explain", "doctor", "attempt", "campaign")
SITE = "Own files are in the directory SLURMSCALE_SITE: export SLURMSCALE_SITE=DIR, with cluster/NAME.yaml in it."
WHOLE = "A file of a whole configuration is an experiment: experiment=NAME, of the site's experiment/NAME.yaml."
OF_HYDRA = {
    **dict.fromkeys(("--config-dir", "-cd", "--config-path", "-cp"), SITE),
    **dict.fromkeys(("--config-name", "-cn"), WHOLE),
    **dict.fromkeys(("--shell-completion", "-sc"), 'Run eval "$(slurmscale completion bash)".'),
    "--hydra-help": "Hydra only composes here; slurmscale explain lists all keys.",
    "--run": "slurmscale submit OVERRIDES runs them.",
    "-r": "slurmscale submit OVERRIDES runs them.",
    "--experimental-rerun": "slurmscale resume SWEEP runs unfinished runs again.",
}
INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 a run or check failed, 2 refused, 3 below a reference."""
    if "_ARGCOMPLETE" in os.environ:
        complete()
    try:
        with guarded_streams(lambda text: visible(redact(text))):
            return run_command(sys.argv[1:] if arguments is None else arguments)
    except BrokenPipeError:
        output_is_closed()


def run_command(arguments: list[str]) -> int:
    """Run one command and return its exit code."""
    if answer_about_itself(arguments):
        return 0
    options = parsed(arguments)
    try:
        return dispatch(options)
    except (Exception, KeyboardInterrupt) as error:
        if interrupt := interrupt_behind(error):
            print(f"slurmscale {options.command}: interrupted", file=sys.stderr)
            return exit_code_of(interrupt)
        if isinstance(error, SuiteError):
            print(f"slurmscale {options.command}: {error}", file=sys.stderr)
            return 2
        if not isinstance(error, PermissionError) or error.filename is None:
            raise
        # A file that does not exist yet is refused by its directory.
        there = os.access(error.filename, os.F_OK)
        readable = os.access(error.filename if there else Path(error.filename).parent, os.R_OK)
        refused = "written" if readable else "read"
        print(f"slurmscale {options.command}: {error.filename} cannot be {refused}: permission denied", file=sys.stderr)
        return 2


def answer_about_itself(arguments: list[str]) -> bool:
    """Print help or version and return True if the arguments request them; refuse an unknown command."""
    top = parser()
    if arguments in ([], ["help"]):
        top.print_help()
        return True
    if arguments == ["--version"]:
        print(f"slurmscale {version()}")
        return True
    name = arguments[1] if arguments[0] == "help" else arguments[0]
    if name not in top.commands and not name.startswith("-"):
        near = difflib.get_close_matches(name, top.commands, n=2)
        hint = f"Did you mean {' or '.join(near)}?" if near else f"The commands are {', '.join(top.commands)}."
        override = " An override follows a command, as in slurmscale plan nodes=2." if "=" in name else ""
        top.error(f"there is no command {name!r}. {hint}{override}")
    if arguments[0] == "help":
        top.commands[name].print_help()
    return arguments[0] == "help"


def version() -> str:
    """Return the installed version, or "(not installed)" of a checkout on PYTHONPATH."""
    from importlib import metadata

    try:
        return metadata.version("slurmscale")
    except metadata.PackageNotFoundError:
        return "(not installed)"


def complete() -> None:
    """Print the completions that a shell asks for, and end."""
    import argcomplete

    from jobs.plan import completion

    top = parser()
    for name, sub in top.commands.items():
        for action in sub._actions:  # noqa: SLF001 (argparse has no public list of arguments)
            if action.dest == "overrides" and name != "explain":
                action.completer = completion.complete_override  # type: ignore[attr-defined]  # read by argcomplete
            elif (name, action.dest) == ("explain", "key"):
                action.completer = completion.complete_key  # type: ignore[attr-defined]  # read by argcomplete
    argcomplete.autocomplete(top)


def parsed(arguments: list[str]) -> argparse.Namespace:
    """Return the options of one command; overrides may stand before, between and after options."""
    top = parser()
    refuse_options_of_hydra(top, arguments)
    options, rest = top.parse_known_args(arguments)
    takes_overrides = "overrides" in options
    if rest and (not takes_overrides or any(word.startswith("-") for word in rest)):
        hint = "; overrides have no dashes, as in nodes=2" if takes_overrides else ""
        options.grammar.error(f"unrecognized arguments: {' '.join(rest)}{hint}")
    if rest:
        # argparse accepts positional arguments in one place only, and returns those of other places as unknown.
        options.overrides += rest
    return options


def refuse_options_of_hydra(top: Parser, arguments: list[str]) -> None:
    """End with what to use in place of an option of Hydra that this program does not have."""
    for word in arguments[1:]:
        instead = OF_HYDRA.get(word.partition("=")[0])
        if instead is not None and arguments[0] in OVERRIDING:
            top.commands[arguments[0]].error(f"{word} is an option of Hydra. {instead}")


def folder(text: str) -> Path:
    """Return the path of an argument; refuse the empty text that an unset variable of a shell leaves."""
    if not text:
        raise argparse.ArgumentTypeError("'' is not a path; set one, or leave the option out")
    return Path(text)


class Parser(argparse.ArgumentParser):
    """A parser whose errors end with the usage and a reference to --help."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands: dict[str, Parser] = {}
        """Parsers of the subcommands, by name."""

    def error(self, message: str) -> NoReturn:
        """End with exit code 2, the message and the usage."""
        usage = self.format_usage().removeprefix("usage: ")
        stop = "" if message.endswith((".", "?")) else "."
        self.exit(2, f"{self.prog}: {message}{stop} Usage:\n  {usage}{self.prog} --help explains each.\n")


def parser() -> Parser:
    """Return the parser of the command line."""
    top = Parser(
        prog="slurmscale",
        description="Sweep LLM training over model x parallelism x nodes on Slurm, and report scaling.",
    )
    top.add_argument("--version", action="store_true", help="print the version")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, text: str) -> Parser:
        sub: Parser = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(grammar=sub)
        top.commands[name] = sub
        return sub

    composing_commands(command)
    campaign_commands(command)
    sub = command("doctor", "check a Slurm cluster, and the run of the overrides against it, before submission")
    where = sub.add_mutually_exclusive_group()
    where.add_argument("--nodes", type=int, metavar="N", help="number of nodes of the test job (default 2)")
    where.add_argument("--nodelist", metavar="LIST", help="nodes of the test job, such as node[01-04]")
    where.add_argument("--no-job", action="store_true", help="query Slurm only; submit no test job")
    sub.add_argument("overrides", nargs="*", metavar="OVERRIDE", help=OVERRIDES)
    sub = command("status", "show the state of every run of a sweep")
    sub.add_argument("sweep", type=Path, metavar="SWEEP", help="sweep directory, such as runs/demo")
    sub.add_argument("--all", action="store_true", help="every run of a long sweep, queued and finished ones too")
    sub.add_argument("--nodes", action="store_true", help="also processors, memory, GPUs, network of each running node")
    sub = command("watch", "show the state and progress of every run, updated until none waits or runs")
    sub.add_argument("sweep", type=Path, metavar="SWEEP", help="sweep directory")
    sub.add_argument("--nodes", action="store_true", help="also processors, memory, GPUs, network of each running node")
    sub.add_argument("--tensorboard", action="store_true", help="also write event files for TensorBoard, as runs go on")
    sub = command("logs", "print the output of a run")
    sub.add_argument("run", type=Path, metavar="RUN", help="run directory")
    sub.add_argument("--rank", type=int, default=0, help="number of the rank (default 0)")
    sub.add_argument("-f", "--follow", action="store_true", help="print new lines until the run ends")
    sub = command("cancel", "end the waiting and running jobs of a sweep")
    sub.add_argument("sweep", type=Path, metavar="SWEEP", help="sweep directory")
    sub = command("resume", "submit unfinished runs again; finished runs are skipped")
    sub.add_argument("sweep", type=Path, metavar="SWEEP", help="sweep directory")
    sub.add_argument(
        "--launcher",
        choices=[kind.name for kind in LauncherKind if not (kind.one_job or kind.is_preview)],
        help="another launcher than the one that the runs were prepared for",
    )
    sub.add_argument("--wait", action="store_true", help="return when all runs have ended")
    sub.add_argument("--trust", action="store_true", help="run what a sweep contains that you did not submit yourself")
    sub = command("report", "write report.html, report.md and runs.csv from runs and logs")
    sub.add_argument(
        "paths", type=Path, nargs="*", metavar="DIR", help="sweeps, run directories, or logs of other programs"
    )
    against = sub.add_mutually_exclusive_group()
    against.add_argument(
        "--compare",
        type=Path,
        nargs=2,
        metavar=("A", "B"),
        help="compare two of them: throughput of B relative to A, with intervals",
    )
    against.add_argument(
        "--reference",
        type=Path,
        metavar="FILE",
        help="compare with an earlier runs.csv; exit code 3 if a point got worse",
    )
    sub.add_argument(
        "--tolerance",
        type=float,
        metavar="SHARE",
        help="largest relative worsening against FILE that passes (default 0.05: 5 %%)",
    )
    against.add_argument(
        "--cost-of",
        metavar="TOKENS[@RANKS]",
        help="report the cost of a training: 100B tokens, or 100B@64,128 on ranks that were not measured (default 1B)",
    )
    sub.add_argument(
        "--follow", action="store_true", help="read links that lead out of DIR, in folders that you did not submit too"
    )
    sub.add_argument("--allow-missing", action="store_true", help="accept points of FILE that were not measured")
    sub.add_argument(
        "-o", "--output", type=folder, help="output directory (default: DIR if only one is given, else this one)"
    )
    sub.add_argument("--open", action="store_true", help="open the page in a browser")
    sub.add_argument(
        "--format",
        action="append",
        default=[],
        metavar="LIST",
        help="also write parquet (runs.parquet), svg, png (figures/), latex (points.tex): --format svg,latex",
    )
    site_commands(command)
    sub = command("completion", "print the script with which a shell completes commands, keys and choices")
    sub.add_argument("shell", choices=SHELLS, help='for instance: eval "$(slurmscale completion bash)"')
    return top


def composing_commands(command: Callable[[str, str], Parser]) -> None:
    """Add the parsers of plan, submit, data, tune, images and explain."""
    for name, text in (
        ("plan", "print the plan table, warnings and mesh of the overrides; prepare nothing"),
        ("submit", "prepare all points and submit all or none; return at once"),
        ("data", "prepare the data of the overrides and print its account: samples, tokens, padding; start no run"),
        ("tune", "find the best configuration of a sweep within a budget; the same command goes on after a stop"),
    ):
        sub = command(name, text)
        if name == "tune":
            sub.add_argument("overrides", nargs="*", metavar="OVERRIDE", help=f"values to try, tune.KEY; {OVERRIDES}")
            sub.add_argument(
                "--next",
                type=folder,
                metavar="CAMPAIGN",
                help="propose the next attempts of a campaign that was made by hand, with reasons; submit nothing",
            )
            continue
        sub.add_argument("-m", "--multirun", action="store_true", help="make one run per value: nodes=1,2,4")
        sub.add_argument("overrides", nargs="*", metavar="OVERRIDE", help=OVERRIDES)
        if name == "data":
            sub.add_argument(
                "--megatron",
                type=folder,
                metavar="PREFIX",
                help="also write text as Megatron's PREFIX.bin and PREFIX.idx, which data=megatron_binary reads",
            )
            continue
        sub.add_argument(
            "--skip-illegal", action="store_true", help="leave out the points of a sweep that cannot run, and list them"
        )
        if name == "submit":
            sub.add_argument("--wait", action="store_true", help="return when all runs have ended")
        else:
            sub.add_argument("--values", action="store_true", help="also print every value of each run")
            sub.add_argument("--why", action="store_true", help="also print the terms of the predictions")
            sub.add_argument(
                "--search",
                action="store_true",
                help="instead rank all legal layouts of the overrides, such as nodes=1,2,4, by predicted time",
            )
            sub.add_argument("-o", "--output", type=folder, metavar="FILE.html", help="draw what --search found")
        as_hydra = sub.add_argument_group("as in Hydra", "print the composed configuration only")
        as_hydra.add_argument("-c", "--cfg", choices=["job", "hydra", "all"], help="print the configuration in YAML")
        as_hydra.add_argument("-p", "--package", metavar="SECTION", help="print one section only")
        as_hydra.add_argument("--resolve", action="store_true", help="resolve interpolations first")
        as_hydra.add_argument(
            "-i",
            "--info",
            nargs="?",
            const="all",
            choices=INFO,
            help="print the composition: files, search path, plugins",
        )
    sub = command("images", "make shards of random JPEG images with the sizes of ImageNet's, for job=image_train")
    sub.add_argument("directory", type=folder, metavar="DIRECTORY", help="new or empty directory")
    sub.add_argument("--count", type=int, required=True, metavar="N", help="images; ImageNet has 1281167")
    sub.add_argument("--shards", type=int, default=16, metavar="N", help="files (default 16)")
    sub.add_argument("--mean-kb", type=float, default=115.0, metavar="KB", help="mean size of an image (default 115)")
    sub.add_argument("--classes", type=int, default=1000, metavar="N", help="classes of the labels (default 1000)")
    sub.add_argument("--seed", type=int, default=1234, metavar="N", help="seed (default 1234)")
    sub.add_argument(
        "--kind", choices=("tar", "recordio"), default="tar", help="WebDataset's tar or MXNet's RecordIO (default tar)"
    )
    sub = command("explain", "print type, choices, default, unit and meaning of a key, or the keys that have a word")
    sub.add_argument(
        "key", nargs="?", metavar="KEY|WORD", help="such as job.steps, model or checkpoint; default: the first level"
    )
    sub.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="show the defaults of this composition")


def site_commands(command: Callable[[str, str], Parser]) -> None:
    """Add the parsers of the commands that write files of a site."""
    sub = command("calibrate", "fit the constants of predicted step time and memory to measured runs, into a site file")
    sub.add_argument(
        "paths", nargs="+", metavar="PATH", help="sweeps, run directories, or tables (.csv); with --probes overrides"
    )
    sub.add_argument(
        "--probes", action="store_true", help="instead propose the short runs that identify the constants of overrides"
    )
    sub.add_argument("--submit", action="store_true", help="submit these runs")
    sub.add_argument(
        "--most", type=int, metavar="N", help="fit to N runs, chosen by their configurations, and predict the others"
    )
    sub.add_argument(
        "--output", type=folder, help="FILE.yaml (default: calibration/CLUSTER-DATE.yaml of SLURMSCALE_SITE)"
    )
    sub = command("model", "write a model file from LitGPT's name of a model or a config.json, or check one")
    sub.add_argument(
        "what", metavar="NAME|PATH", help="such as Qwen2.5-7B; a config.json or its directory; or a model file"
    )
    sub.add_argument(
        "--output", type=folder, help="directory or FILE.yaml (default: model/ of SLURMSCALE_SITE, else print it)"
    )
    sub = command("cluster", "write a cluster file of your own, with its GPU, partition and ranks of a node")
    sub.add_argument("name", metavar="NAME", help="such as my_cluster; cluster=NAME then chooses it")
    sub.add_argument("--gpu", metavar="NAME", help="a GPU of conf/gpu or the site, such as h100_sxm (default: CPUs)")
    sub.add_argument("--ranks-per-node", type=int, metavar="N", help="GPUs, or processes, of a node (default 8 GPUs)")
    for name in ("partition", "account", "qos"):
        sub.add_argument(f"--{name}", metavar="NAME", help=f"sbatch's --{name}")
    sub.add_argument(
        "--output", type=folder, help="directory or FILE.yaml (default: cluster/ of SLURMSCALE_SITE, else print it)"
    )


def campaign_commands(command: Callable[[str, str], Parser]) -> None:
    """Add the parsers of the commands on campaigns."""
    one = command("attempt", "run one configuration in turns with the baseline of a campaign, repeated")
    one.add_argument("name", metavar="NAME", help="name of the attempt, such as mbs2; the first one is named baseline")
    one.add_argument(
        "overrides",
        nargs="*",
        metavar="OVERRIDE",
        help="for the baseline the whole configuration, later only the differences",
    )
    several = command("campaign", "run all attempts of a file in turns with their baseline, in one submission")
    several.add_argument("file", type=Path, metavar="FILE", help="a YAML file of lines NAME: [OVERRIDE, ...]")
    several.add_argument(
        "overrides", nargs="*", metavar="OVERRIDE", help="only launcher=... and its keys, for all attempts"
    )
    for sub in (one, several):
        sub.add_argument(
            "--campaign",
            type=Path,
            metavar="DIR",
            help="campaign directory (default: the baseline's sweep, later the only one in runs/)",
        )
        sub.add_argument(
            "--repeats", type=int, default=3, metavar="N", help="number of repeats, each beside a baseline (default 3)"
        )
        sub.add_argument(
            "--changed-code", action="store_true", help="run the paired baselines with the code of the first baseline"
        )
        sub.add_argument(
            "--wait", action="store_true", help="return when all runs have ended, and print the leaderboard"
        )
    sub = command("leaderboard", "rank the attempts of a campaign; list those that do not count, with the reason")
    sub.add_argument("campaign", type=Path, metavar="DIR", help="campaign directory, such as runs/apac_hpc_ai_2024")


def dispatch(options: argparse.Namespace) -> int:
    """Call the command's function and return its exit code."""
    if options.command in {"plan", "explain"} or (options.command == "submit" and (options.cfg or options.info)):
        return print_composition(options)
    if options.command == "completion":
        from argcomplete.shell_integration import shellcode

        print(shellcode(["slurmscale"], shell=options.shell))
        return 0
    if options.command == "data":
        from jobs.data.command import make_data

        return make_data(options.overrides, multirun=options.multirun, megatron=options.megatron)
    if options.command == "images":
        from jobs.images.make import make_images

        how = {key: getattr(options, key) for key in ("count", "shards", "mean_kb", "classes", "seed", "kind")}
        size_bytes = make_images(options.directory, **how)
        print(
            f"{options.count:,} images in {options.shards:,} shards, {size_bytes / 1e9:,.3g} GB, in {options.directory}"
        )
        return 0
    if options.command == "tune":
        return tune_or_propose(options)
    if options.command in {"model", "cluster"}:
        return write_site_file(options)
    if options.command == "doctor":
        from jobs.doctor.examine import doctor

        return doctor(options.overrides, nodes=options.nodes, node_list=options.nodelist, with_job=not options.no_job)
    if options.command == "report":
        return report(options)
    if options.command == "calibrate":
        return calibrate(options)
    if options.command == "watch":
        from jobs.submit.watch import watch

        return watch(options.sweep, nodes=options.nodes, tensorboard=options.tensorboard)
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
    return run_on_sweep(options)


def write_site_file(options: argparse.Namespace) -> int:
    """Write the file of a model or a cluster, and print where it is, or its text."""
    if options.command == "model":
        from jobs.plan.model_file import model_file

        print(model_file(options.what, options.output))
        return 0
    from jobs.plan.cluster_file import cluster_file

    values = {key: getattr(options, key) for key in ("ranks_per_node", "partition", "account", "qos")}
    print(cluster_file(options.name, options.output, options.gpu, **values))
    return 0


def tune_or_propose(options: argparse.Namespace) -> int:
    """Tune a space, or propose the next attempts of a campaign."""
    if options.next is None:
        from jobs.submit.slurm_call import HOURS_LONG_S, patience
        from jobs.tune import batch_finder
        from jobs.tune.command import tune

        chosen = batch_finder.is_chosen(options.overrides)
        # A night of tuning outlives a controller that is restarted.
        with patience(HOURS_LONG_S):
            return batch_finder.find_batch(options.overrides) if chosen else tune(options.overrides)
    if options.overrides:
        options.grammar.error(f"--next reads a campaign and takes no overrides; leave {options.overrides[0]} out")
    from jobs.tune.next_attempts import next_attempts

    return next_attempts(options.next)


def run_on_sweep(options: argparse.Namespace) -> int:
    """Call the function of a command that submits or controls a sweep."""
    from jobs.submit import commands

    match options.command:
        case "submit":
            how = {key: getattr(options, key) for key in ("multirun", "wait", "skip_illegal")}
            return commands.submit(options.overrides, **how)
        case "status":
            return commands.status(options.sweep, everything=options.all, nodes=options.nodes)
        case "logs":
            return commands.logs(options.run, rank=options.rank, follow=options.follow)
        case "cancel":
            return commands.cancel(options.sweep)
        case "resume":
            how = {key: getattr(options, key) for key in ("launcher", "wait", "trust")}
            return commands.resume(options.sweep, **how)
        case _:
            raise AssertionError(f"the command {options.command} has a parser and no function")


def print_composition(options: argparse.Namespace) -> int:
    """Print the plan, a key, or a configuration in Hydra's formats."""
    if options.command == "explain":
        from jobs.plan.explain import explain

        return explain(options.key, options.overrides)
    from jobs.plan.show import show, show_as_hydra

    if options.cfg or options.info:
        how = {key: getattr(options, key) for key in ("cfg", "package", "resolve", "info")}
        return show_as_hydra(options.overrides, **how)
    if options.search and (options.values or options.why):
        options.grammar.error("--search prints its own tables. Leave out --values and --why")
    if options.search:
        from jobs.plan.search.command import search

        return search(options.overrides, options.output)
    if options.output:
        options.grammar.error("--output draws what --search found. Add --search")
    how = {key: getattr(options, key) for key in ("multirun", "skip_illegal", "values", "why")}
    return show(options.overrides, **how)


def show_leaderboard(campaign: Path) -> int:
    """Print the leaderboard of a campaign."""
    from analysis.report.leaderboard import show

    return show(campaign)


def calibrate(options: argparse.Namespace) -> int:
    """Fit constants to finished runs and tables and print them, or propose runs to fit them to."""
    if options.probes:
        from jobs.plan.search.probes import show_probes

        return show_probes(options.paths, submit=options.submit)
    if options.submit:
        options.grammar.error("--submit submits what --probes proposes. Add --probes")
    from datetime import datetime

    from analysis.load.measured_runs import measured_runs
    from jobs.plan.calibrate import calibrate_on
    from jobs.plan.measured_table import read_table

    paths = list(map(Path, options.paths))
    tables = [path for path in paths if path.suffix == ".csv"]
    folders = [path for path in paths if path not in tables]
    measured = [run for path in tables for run in read_table(path)] + (measured_runs(folders) if folders else [])
    print(calibrate_on(measured, options.output, datetime.now().astimezone().date(), options.most))
    return 0


def report(options: argparse.Namespace) -> int:
    """Write a report, a comparison of A and B, or a comparison with a reference."""
    from analysis.load.paths import require
    from jobs.errors import ReportError

    if options.reference is None and (options.tolerance is not None or options.allow_missing):
        raise ReportError(
            "--tolerance and --allow-missing apply to a comparison with a reference. Add --reference runs.csv."
        )
    if options.open and options.reference:
        raise ReportError("--open shows the page of a report or of --compare. Leave it out with --reference.")
    if options.compare and options.paths:
        raise ReportError("--compare takes its two directories itself. Run `slurmscale report --compare A B`.")
    if not options.paths and not options.compare:
        raise ReportError("no DIR given. Pass sweep or run directories, for instance: slurmscale report runs/demo")
    for path in options.compare or options.paths:
        require(path)  # before pandas and plotly are imported
    if options.compare:
        from analysis.report.compare import compare

        a, b = options.compare
        answer, page = compare(a, b, options.output, options.format, follow=options.follow)
        print(*answer, page, sep="\n")
        return open_page(page) if options.open else 0
    if options.reference:
        from analysis.report.against_reference import regress

        return regress(
            options.paths,
            options.reference,
            options.output,
            options.tolerance,
            allow_missing=options.allow_missing,
            formats=options.format,
            follow=options.follow,
        )
    from analysis.formatting import one_line
    from analysis.report.report import ALWAYS, answered

    answer, page = answered(options.paths, options.output, options.format, options.cost_of, follow=options.follow)
    print(*map(one_line, answer), *(page.with_name(name) for name in ALWAYS), sep="\n")
    return open_page(page) if options.open else 0


def open_page(page: Path) -> int:
    """Open a page in the browser of this session; return 1 if there is none."""
    import webbrowser

    if webbrowser.open(page.resolve().as_uri()):
        return 0
    print(f"No browser could be opened. Copy {page} to a machine with one, or set BROWSER.", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())

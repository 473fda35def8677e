"""Commands on configurations and data: plan, explain, data, images."""

from __future__ import annotations

import argparse
import shlex
from typing import Any

from jobs.answers import DataAnswer, ExplainAnswer, ImagesAnswer, PlanAnswer, PlannedRun, SearchAnswer
from jobs.command_line.command import (
    MULTIRUN,
    START,
    Answered,
    Argument,
    Command,
    Effect,
    Section,
    chosen,
    complete_key,
    given_path,
    overrides,
)

HEADING = "configurations and data"
INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
SKIP_ILLEGAL = Argument(
    "--skip-illegal", action="store_true", help="leave out the points of a sweep that cannot run, and list them"
)
AS_HYDRA = Section(
    "as in Hydra",
    "print the composed configuration only",
    Argument("-c", "--cfg", choices=["job", "hydra", "all"], help="print the configuration in YAML"),
    Argument("-p", "--package", metavar="SECTION", help="print one section only"),
    Argument("--resolve", action="store_true", help="resolve interpolations first"),
    Argument(
        "-i", "--info", nargs="?", const="all", choices=INFO, help="print the composition: files, search path, plugins"
    ),
)


def print_as_hydra(options: argparse.Namespace) -> int | None:
    """Print the configuration in one of Hydra's formats; None if none is requested."""
    if not (options.cfg or options.info):
        return None
    from jobs.plan.show import show_as_hydra

    return show_as_hydra(options.overrides, **chosen(options, "cfg", "package", "resolve", "info"))


def plan(options: argparse.Namespace) -> int:
    """Print the plan, the layouts that were found, or a configuration in Hydra's formats."""
    if (code := print_as_hydra(options)) is not None:
        return code
    from jobs.plan.show import show

    if options.search:
        from jobs.explore.search import show as show_search

        show_search(searched(options))
        return 0
    if options.output:
        options.grammar.error("--output draws what --search found. Add --search")
    from jobs.explore.published import published_notes

    chosen_options = chosen(options, "multirun", "skip_illegal", "values", "why")
    return show(options.overrides, **chosen_options, further=published_notes)


def explain(options: argparse.Namespace) -> int:
    """Print what a key means."""
    from jobs.plan.explain import explain as explain_key

    return explain_key(options.key, options.overrides)


def data(options: argparse.Namespace) -> int:
    """Prepare data."""
    return prepared(options)[1]


def images(options: argparse.Namespace) -> int:
    """Make shards of images."""
    made = made_images(options)[0]
    print(f"{made.images:,} images in {options.shards:,} shards, {made.size_bytes / 1e9:,.3g} GB, in {made.directory}")
    return 0


# --- answers to --json ---------------------------------------------------------------------------------------------


def planned(options: argparse.Namespace) -> tuple[Any, int]:
    """Return the plans of the overrides."""
    from jobs.errors import ConfigError
    from jobs.explore.published import published_times
    from jobs.plan.show import planned as composed
    from jobs.submit.preparation.prepare import plan_of

    if options.cfg or options.info:
        raise ConfigError("--json prints plans and layouts. Leave --cfg and --info out.")
    if options.search:
        return PlanAnswer([], [], [], searched(options)), 0
    if options.output:
        options.grammar.error("--output draws what --search found. Add --search")
    points, left_out = composed(options.overrides, **chosen(options, "multirun", "skip_illegal"))
    runs = [
        PlannedRun(
            name=str(each.run.name),
            nodes=each.run.nodes,
            ranks=each.run.ranks,
            overrides=each.overrides,
            plan=plan_of(each.run),
            published=list(published_times(each)),
        )
        for each in points
    ]
    return PlanAnswer(runs, left_out, list(dict.fromkeys(key for each in points for key in each.unset))), 0


def searched(options: argparse.Namespace) -> SearchAnswer:
    """Search layouts, and draw them if that is wanted."""
    from jobs.explore.search import search

    if options.values or options.why:
        options.grammar.error("--search prints its own tables. Leave out --values and --why")
    return search(options.overrides, options.output)


def to_submit(options: argparse.Namespace, answer: PlanAnswer) -> list[str]:
    """Return the command that submits what was planned, or that plans the fastest layout."""
    if answer.search is not None:
        from jobs.console import shell_line

        return [f"plan {shell_line([*answer.search.common, *answer.search.fastest[0].overrides])}"]
    flags = ["-m"] * options.multirun + ["--skip-illegal"] * options.skip_illegal
    return [shlex.join(["submit", *flags, *options.overrides, *(f"{key}=VALUE" for key in answer.unset)])]


def explained(options: argparse.Namespace) -> tuple[Any, int]:
    """Return what a key means."""
    from jobs.plan.explain import explained as found

    return found(options.key, options.overrides), 0


def prepared(options: argparse.Namespace) -> tuple[DataAnswer, int]:
    """Prepare data, and return the account of each data set."""
    from jobs.command_line.data import make_data

    return make_data(options.overrides, **chosen(options, "multirun", "megatron")), 0


def made_images(options: argparse.Namespace) -> tuple[ImagesAnswer, int]:
    """Make shards of images."""
    from jobs.work.images.make import make_images

    how = chosen(options, "count", "shards", "mean_kb", "classes", "seed", "kind")
    return ImagesAnswer(str(options.directory), options.count, make_images(options.directory, **how)), 0


COMMANDS = (
    Command(
        "plan",
        "print the plan table, warnings and mesh of the overrides; prepare nothing",
        plan,
        (
            MULTIRUN,
            overrides(),
            SKIP_ILLEGAL,
            Argument("--values", action="store_true", help="also print every value of each run"),
            Argument("--why", action="store_true", help="also print the terms of the predictions"),
            Argument(
                "--search",
                action="store_true",
                help="instead rank all legal layouts of the overrides, such as nodes=1,2,4, by predicted time",
            ),
            Argument(
                "-o",
                "--output",
                type=given_path,
                effect=Effect.writes,
                metavar="FILE.html",
                help="draw what --search found",
            ),
            AS_HYDRA,
        ),
        heading=START,
        examples=(
            "plan nodes=2 parallelism=fsdp_full",
            "plan -m cluster=xe9680_h100 parallelism=fsdp_full nodes=1,2",
            "plan --search cluster=xe9680_h100 model=llama3_8b nodes=1,2",
        ),
        manual="conf/README.md#configuration",
        answer=Answered(PlanAnswer, planned, Effect.reads, to_submit),
    ),
    Command(
        "explain",
        "print type, choices, default, unit and meaning of a key, or the keys that have a word",
        explain,
        (
            Argument(
                "key",
                nargs="?",
                metavar="KEY|WORD",
                help="such as job.steps, model or checkpoint; default: the first level",
                completer=complete_key,
            ),
            Argument("overrides", nargs="*", metavar="OVERRIDE", help="show the defaults of this composition"),
        ),
        heading=HEADING,
        examples=(
            "explain job.steps",
            "explain lr",
            "explain parallelism",
        ),
        manual="conf/README.md#configuration",
        answer=Answered(ExplainAnswer, explained, Effect.reads),
    ),
    Command(
        "data",
        "prepare the data of the overrides and print its account: samples, tokens, padding; start no run",
        data,
        (
            MULTIRUN,
            overrides(),
            Argument(
                "--megatron",
                type=given_path,
                metavar="PREFIX",
                help="also write text as Megatron's PREFIX.bin and PREFIX.idx, which data=megatron_binary reads",
            ),
        ),
        heading=HEADING,
        examples=("data data=stdlib job.steps=100",),
        manual="jobs/data/README.md#data-sets",
        answer=Answered(DataAnswer, prepared, Effect.writes),
    ),
    Command(
        "images",
        "make shards of random JPEG images with the sizes of ImageNet's, for job=image_train",
        images,
        (
            Argument("directory", type=given_path, metavar="DIRECTORY", help="new or empty directory"),
            Argument("--count", type=int, required=True, metavar="N", help="images; ImageNet has 1281167"),
            Argument("--shards", type=int, default=16, metavar="N", help="files (default 16)"),
            Argument("--mean-kb", type=float, default=115.0, metavar="KB", help="mean size of an image (default 115)"),
            Argument("--classes", type=int, default=1000, metavar="N", help="classes of the labels (default 1000)"),
            Argument("--seed", type=int, default=1234, metavar="N", help="seed (default 1234)"),
            Argument(
                "--kind",
                choices=("tar", "recordio"),
                default="tar",
                help="WebDataset's tar or MXNet's RecordIO (default tar)",
            ),
        ),
        heading=HEADING,
        examples=("images shards --count 2000 --shards 4",),
        manual="jobs/work/images/README.md",
        answer=Answered(ImagesAnswer, made_images, Effect.writes),
    ),
)

"""Commands on a cluster, on the files of a site, and on the shell: doctor, calibrate, model, cluster, completion."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from jobs.answers import CalibrationAnswer, CheckAnswer, DoctorAnswer, FileAnswer, SkillsAnswer
from jobs.command_line.command import Answered, Argument, Command, Effect, OneOf, chosen, given_path, overrides
from jobs.errors import ConfigError

HEADING = "clusters, files of a site, and the shell"
ALLOWED = [each.name for each in Effect if each is not Effect.reads]
SHELLS = ("bash", "zsh", "fish")


def doctor(options: argparse.Namespace) -> int:
    """Check a cluster."""
    return examined(options)[1]


def calibrate(options: argparse.Namespace) -> int:
    """Fit constants to finished runs and tables and print them, or propose runs to fit them to."""
    if options.probes:
        from jobs.explore.propose.probes import probes, show

        found, code = probes(options.paths, submit=options.submit)
        if not options.submit:
            show(found)
        return code
    print(fitted(options).text)
    return 0


def model(options: argparse.Namespace) -> int:
    """Write or check the file of a model, and print where it is, or its text."""
    print(modelled(options)[0].text)
    return 0


def convert(options: argparse.Namespace) -> int:
    """Convert the directory of a model, and print where it is."""
    print(converted(options)[0].text)
    return 0


def cluster(options: argparse.Namespace) -> int:
    """Write the file of a cluster, and print where it is, or its text."""
    print(described(options)[0].text)
    return 0


# --- answers to --json ---------------------------------------------------------------------------------------------


def examined(options: argparse.Namespace) -> tuple[DoctorAnswer, int]:
    """Check a cluster, and return the checks."""
    from jobs.doctor.examine import doctor as examine
    from jobs.doctor.report import exit_code

    found = examine(options.overrides, nodes=options.nodes, node_list=options.nodelist, with_job=not options.no_job)
    checks = [CheckAnswer(each.what, each.found, each.verdict.value, each.advice or None) for each in found.findings]
    answer = DoctorAnswer(str(found.run.name), found.run.cluster.name, checks, str(found.file) if found.file else None)
    return answer, exit_code(found.findings)


def calibrated(options: argparse.Namespace) -> tuple[CalibrationAnswer, int]:
    """Fit constants, or propose runs to fit them to."""
    if options.probes:
        from jobs.explore.propose.probes import probes

        found, code = probes(options.paths, submit=options.submit)
        return CalibrationAnswer(None, "", found), code
    made = fitted(options)
    return CalibrationAnswer(made.file, made.text), 0


def probes_to_submit(options: argparse.Namespace, answer: CalibrationAnswer) -> list[str]:
    """Return the commands that submit proposed probes, or that fit to those that were submitted."""
    if answer.probes is None:
        return []
    from jobs.console import shell_line

    fit = f"calibrate {shlex.quote(answer.probes.directory)}"
    typed = [] if options.submit else [f"submit {shell_line(each.overrides)}" for each in answer.probes.probes]
    return [*typed, fit]


def fitted(options: argparse.Namespace) -> FileAnswer:
    """Fit constants to finished runs and tables, and return the file with them."""
    if options.submit:
        options.grammar.error("--submit submits what --probes proposes. Add --probes")
    from datetime import datetime

    from analysis.load.measured_runs import measured_runs
    from jobs.plan.calibrate import calibrate_on
    from jobs.plan.measured_table import read_table

    if "" in options.paths:
        options.grammar.error("'' is not a path; pass sweeps, run directories or tables")
    paths = list(map(Path, options.paths))
    tables = [path for path in paths if path.suffix == ".csv"]
    folders = [path for path in paths if path not in tables]
    measured = [run for path in tables for run in read_table(path)] + (measured_runs(folders) if folders else [])
    return calibrate_on(measured, options.output, datetime.now().astimezone().date(), options.most)


def modelled(options: argparse.Namespace) -> tuple[FileAnswer, int]:
    """Write or check the file of a model, and return it."""
    from jobs.plan.model_file import model_file

    return model_file(options.what, options.output), 0


def converted(options: argparse.Namespace) -> tuple[FileAnswer, int]:
    """Convert the directory of a model, and return the new one."""
    source, target = Path(options.directory), options.output
    if target.exists():
        raise ConfigError(f"{target} exists. Remove it, or set another directory with --output NEW.")
    if not source.is_dir():
        raise ConfigError(f"{source} is not a directory. Set one of LitGPT's or of Hugging Face's layout.")
    # These import torch, for seconds.
    from jobs.runtime.imports import import_litgpt_alone

    import_litgpt_alone()
    from jobs.work.serve.conversion import convert, vocabulary_of

    convert(source, target)
    tokenizer = f" data.tokenizer={target}" if vocabulary_of(target) else ""
    return FileAnswer(str(target), f"{target}: set job.init_from={target}{tokenizer}."), 0


def described(options: argparse.Namespace) -> tuple[FileAnswer, int]:
    """Write the file of a cluster, and return it."""
    from jobs.plan.cluster_file import cluster_file

    values = chosen(options, "ranks_per_node", "partition", "account", "qos")
    return cluster_file(options.name, options.output, options.gpu, **values), 0


# --- the shell -----------------------------------------------------------------------------------------------------


def completion(options: argparse.Namespace) -> int:
    """Print the completion script of a shell."""
    from argcomplete.shell_integration import shellcode

    print(shellcode(["slurmscale"], shell=options.shell))
    return 0


def skills(options: argparse.Namespace) -> int:
    """List the guides, or print one."""
    found = guides(options)[0].skills
    for each in found:
        print(each.file or (each.text if options.name else f"{each.name}: {each.description}"))
    return 0


def guides(options: argparse.Namespace) -> tuple[SkillsAnswer, int]:
    """Return the guides."""
    from jobs.command_line.skills import skills as read

    return read(options.name, options.output), 0


def mcp(options: argparse.Namespace) -> int:
    """Serve the commands to an agent."""
    from jobs.command_line.mcp_server import serve

    if unknown := [name for name in options.allow if name not in ALLOWED]:
        options.grammar.error(f"--allow {unknown[0]}: set one or more of {','.join(ALLOWED)}")
    return serve({Effect[name] for name in options.allow}, options.node_hours)


def schema(options: argparse.Namespace) -> int:
    """Print the schema of a command's answer."""
    from jobs.command_line.json_schema import schema as print_schema

    return print_schema(options.of)


COMMANDS = (
    Command(
        "doctor",
        "check a Slurm or PBS cluster, and the run of the overrides on it, before submission",
        doctor,
        (
            OneOf(
                Argument("--nodes", type=int, metavar="N", help="number of nodes of the test job (default 2)"),
                Argument("--nodelist", metavar="LIST", help="nodes of the test job, such as node[01-04]"),
                Argument("--no-job", action="store_true", help="query Slurm only; submit no test job"),
            ),
            overrides(),
        ),
        heading=HEADING,
        examples=(
            "doctor cluster=generic_slurm nodes=2",
            "doctor --no-job cluster=generic_slurm",
        ),
        manual="jobs/doctor/README.md",
        answer=Answered(DoctorAnswer, examined, Effect.submits),
        exit_codes={1: "a check failed"},
    ),
    Command(
        "calibrate",
        "fit the constants of predicted step time and memory to measured runs, into a site file",
        calibrate,
        (
            Argument(
                "paths",
                nargs="+",
                metavar="PATH",
                help="sweeps, run directories, or tables (.csv); with --probes overrides",
            ),
            Argument(
                "--probes",
                action="store_true",
                help="instead propose the short runs that identify the constants of overrides",
            ),
            Argument("--submit", action="store_true", effect=Effect.submits, help="submit these runs"),
            Argument(
                "--most",
                type=int,
                metavar="N",
                help="fit to N runs, chosen by their configurations, and predict the others",
            ),
            Argument(
                "--output",
                type=given_path,
                help="FILE.yaml (default: calibration/CLUSTER-DATE.yaml of SLURMSCALE_SITE)",
            ),
        ),
        heading=HEADING,
        examples=(
            "calibrate runs/first --most 4",
            "calibrate --probes cluster=xe9680_h100 model=llama3_8b",
        ),
        manual="jobs/plan/README.md#calibration",
        answer=Answered(CalibrationAnswer, calibrated, Effect.writes, probes_to_submit),
    ),
    Command(
        "model",
        "write a model file from LitGPT's name of a model or a config.json, or check one",
        model,
        (
            Argument(
                "what", metavar="NAME|PATH", help="such as Qwen2.5-7B; a config.json or its directory; or a model file"
            ),
            Argument(
                "--output",
                type=given_path,
                help="directory or FILE.yaml (default: model/ of SLURMSCALE_SITE, else print it)",
            ),
        ),
        heading=HEADING,
        examples=(
            "model Qwen2.5-7B",
            "model checkpoints/my_model/config.json --output my_model.yaml",
        ),
        manual="conf/README.md#models",
        answer=Answered(FileAnswer, modelled, Effect.writes),
    ),
    Command(
        "convert",
        "convert the directory of a model, such as a run's export/, to Hugging Face's layout, or to LitGPT's",
        convert,
        (
            Argument("directory", metavar="DIRECTORY", help="a directory in LitGPT's layout, or in Hugging Face's"),
            Argument("--output", type=given_path, metavar="NEW", required=True, help="the directory to write"),
        ),
        heading=HEADING,
        examples=("convert runs/mine/1/export --output my_model",),
        manual="conf/README.md#weights",
        answer=Answered(FileAnswer, converted, Effect.writes),
    ),
    Command(
        "cluster",
        "write a cluster file of your own, with its GPU, partition and ranks of a node",
        cluster,
        (
            Argument("name", metavar="NAME", help="such as my_cluster; cluster=NAME then chooses it"),
            Argument("--gpu", metavar="NAME", help="a GPU of conf/gpu or the site, such as h100_sxm (default: CPUs)"),
            Argument("--ranks-per-node", type=int, metavar="N", help="GPUs, or processes, of a node (default 8 GPUs)"),
            *(
                Argument(f"--{name}", metavar="NAME", help=f"sbatch's --{name}")
                for name in ("partition", "account", "qos")
            ),
            Argument(
                "--output",
                type=given_path,
                help="directory or FILE.yaml (default: cluster/ of SLURMSCALE_SITE, else print it)",
            ),
        ),
        heading=HEADING,
        examples=("cluster mine --gpu h100_sxm --partition gpu",),
        manual="conf/README.md#your-cluster",
        answer=Answered(FileAnswer, described, Effect.writes),
    ),
    Command(
        "schema",
        "print the JSON schema of what a command answers to --json",
        schema,
        (Argument("of", metavar="COMMAND", help="such as status"),),
        heading=HEADING,
        examples=("schema status",),
        manual="jobs/command_line/README.md#answers-as-data",
    ),
    Command(
        "skills",
        "print short guides to common tasks, for people and agents, or write them as SKILL.md files",
        skills,
        (
            Argument("name", nargs="?", metavar="NAME", help="such as why-did-my-run-die (default: list all)"),
            Argument("--output", type=given_path, effect=Effect.writes, metavar="DIR", help="write DIR/NAME/SKILL.md"),
        ),
        heading=HEADING,
        examples=("skills", "skills why-did-my-run-die", "skills --output .skills"),
        manual="jobs/command_line/README.md#called-by-agents",
        answer=Answered(SkillsAnswer, guides, Effect.reads),
    ),
    Command(
        "mcp",
        "serve the commands to an agent, as tools of the Model Context Protocol",
        mcp,
        (
            Argument(
                "--allow",
                type=lambda text: text.split(","),
                default=[],
                metavar="LIST",
                help="also tools that write files, submit, cancel or remove: --allow writes,submits,cancels,removes",
            ),
            Argument(
                "--node-hours",
                type=float,
                metavar="N",
                help="most node-hours that this server submits, by time limits; --allow submits needs it",
            ),
        ),
        heading=HEADING,
        examples=("mcp", "mcp --allow writes,submits,cancels --node-hours 10"),
        manual="jobs/command_line/README.md#called-by-agents",
    ),
    Command(
        "completion",
        "print the script with which a shell completes commands, keys and choices",
        completion,
        (Argument("shell", choices=SHELLS, help='for instance: eval "$(slurmscale completion bash)"'),),
        heading=HEADING,
        examples=("completion bash",),
        manual="jobs/command_line/README.md",
    ),
)

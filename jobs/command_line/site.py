"""Commands on a cluster, on the files of a site, and on the shell: doctor, calibrate, model, cluster, completion."""

from __future__ import annotations

import argparse
from pathlib import Path

from jobs.command_line.command import Argument, Command, OneOf, chosen, given_path, overrides

HEADING = "clusters, files of a site, and the shell"
SHELLS = ("bash", "zsh", "fish")


def doctor(options: argparse.Namespace) -> int:
    """Check a cluster."""
    from jobs.doctor.examine import doctor as examine

    return examine(options.overrides, nodes=options.nodes, node_list=options.nodelist, with_job=not options.no_job)


def calibrate(options: argparse.Namespace) -> int:
    """Fit constants to finished runs and tables and print them, or propose runs to fit them to."""
    if options.probes:
        from jobs.explore.propose.probes import show_probes

        return show_probes(options.paths, submit=options.submit)
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
    print(calibrate_on(measured, options.output, datetime.now().astimezone().date(), options.most))
    return 0


def model(options: argparse.Namespace) -> int:
    """Write or check the file of a model, and print where it is, or its text."""
    from jobs.plan.model_file import model_file

    print(model_file(options.what, options.output))
    return 0


def cluster(options: argparse.Namespace) -> int:
    """Write the file of a cluster, and print where it is, or its text."""
    from jobs.plan.cluster_file import cluster_file

    values = chosen(options, "ranks_per_node", "partition", "account", "qos")
    print(cluster_file(options.name, options.output, options.gpu, **values))
    return 0


def completion(options: argparse.Namespace) -> int:
    """Print the completion script of a shell."""
    from argcomplete.shell_integration import shellcode

    print(shellcode(["slurmscale"], shell=options.shell))
    return 0


def schema(options: argparse.Namespace) -> int:
    """Print the schema of a command's answer."""
    from jobs.command_line.json_schema import schema as print_schema

    return print_schema(options.of)


COMMANDS = (
    Command(
        "doctor",
        "check a Slurm cluster, and the run of the overrides against it, before submission",
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
            Argument("--submit", action="store_true", help="submit these runs"),
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
        "completion",
        "print the script with which a shell completes commands, keys and choices",
        completion,
        (Argument("shell", choices=SHELLS, help='for instance: eval "$(slurmscale completion bash)"'),),
        heading=HEADING,
        examples=("completion bash",),
        manual="jobs/command_line/README.md",
    ),
)

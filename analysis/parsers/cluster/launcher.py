"""Nodes and ranks by the lines of launchers: Slurm's variables, torchrun, accelerate, DeepSpeed, Lightning, MPI.

A name is taken if all lines of the file agree on its number. A program's own statement has priority over them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Line, LineFormat, Record
from jobs.metrics import Metric

# As they are printed, and as options with hyphens. Not WORLD_SIZE, which counts nodes on some clusters.
NAMES: dict[Metric, tuple[str, ...]] = {
    a.LAUNCHED_NODES: (
        "NNODES", "NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES", "nnodes", "num_machines", "--nnodes",
        "--num-nodes", "--num-machines",
    ),
    a.LAUNCHED_RANKS: (
        "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS", "SLURM_NPROCS", "world_size", "world size", "dist_world_size",
        "--num-processes",
    ),
    a.LAUNCHED_RANKS_PER_NODE: (
        "GPUS_PER_NODE", "NPROC_PER_NODE", "SLURM_NTASKS_PER_NODE", "LOCAL_WORLD_SIZE", "nproc_per_node",
        "num_local_procs", "--nproc-per-node", "--ntasks-per-node", "--gpus-per-node",
    ),
}  # fmt: skip
METRIC_OF = {name: metric for metric, names in NAMES.items() for name in names}
# `NNODES: 2`, `nnodes=2`, `--nproc_per_node 8`, `world size: 16`; not `--nnodes=1:4`, nor
# `data parallel world size: 2`.
SETTING = re.compile(
    r"(?<![\w.-])(?<!parallel )(?:(?P<option>--[a-z][a-z_-]+)(?: +|=)|(?P<name>[A-Za-z]\w*(?: size)?)[\"']?\s*[=:]\s*)"
    r"[\"']?(?P<number>\d{1,7})(?![\w.:])"
)
# Lightning and LitGPT: "Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/16".
MEMBER = re.compile(r"\bMEMBER: \d{1,7}/(\d{1,7})\b")
# torchrun's own defaults: without --nnodes it starts one node, unless the next line continues the command.
ONE_NODE = re.compile(r"--standalone\b|\btorchrun\b.*--nproc[-_]per[-_]node[= ]")


def parse(lines: Iterable[Line]) -> Iterator[Record]:
    """Return one setting with the numbers on which all lines agree."""
    found: dict[Metric, set[int]] = defaultdict(set)
    first = 0
    for line in lines:
        stated = [(name_of(each), each["number"]) for each in SETTING.finditer(line.text)]
        goes_on = line.text.rstrip().endswith("\\")
        if ("--standalone" in line.text or not ("--nnodes" in line.text or goes_on)) and ONE_NODE.search(line.text):
            stated.append(("nnodes", "1"))
        if member := MEMBER.search(line.text):
            stated.append(("world_size", member[1]))
        for name, number in stated:
            metric = METRIC_OF.get(name)
            if metric is not None and int(number) > 0:
                first = first or line.number
                found[metric].add(int(number))
    if values := {metric: float(*numbers) for metric, numbers in found.items() if len(numbers) == 1}:
        yield Record(Kind.setting, first, values)


def name_of(setting: re.Match[str]) -> str:
    """Return the name as NAMES contains it: of an option with hyphens, whatever it was written with."""
    return setting["option"].replace("_", "-") if setting["option"] else setting["name"]


FORMAT = LineFormat(
    "launcher",
    "https://github.com/pytorch/pytorch/blob/v2.5.0/torch/distributed/run.py",
    parse,
    markers=(
        "NNODES", "nnodes", "NUM_NODES", "--num", "num_machines", "WORLD_SIZE", "world_size", "world size", "NTASKS",
        "--ntasks", "NPROC", "nproc", "GPUS_PER_NODE", "--gpus", "num_local_procs", "MEMBER: ", "--standalone",
    ),
)  # fmt: skip

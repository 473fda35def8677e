"""Two networks compared in pairs for real, on two emulated nodes whose links are shaped.

Two network namespaces of this machine are the nodes, joined by two links: `fast0` as the kernel has it, and `slow0`,
which tc shapes to --rate. Ranks of the native engine train over one and the other in turns (network.interface), every
second pair in the other order, and `slurmscale report --compare` judges. Needs root, ip and tc; removes the namespaces.
"""

from __future__ import annotations

import argparse
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from analysis.report.compare import compare
from jobs.plan.compose import compose
from jobs.rundir import RunDir, append_event, dump_run, write_json
from jobs.submit.prepare import plan_of
from tests.support.real_run import events, rank_environment

NODES = ("slurmscale-node1", "slurmscale-node2")
LINKS = {"fast0": "10.77.1", "slow0": "10.77.2"}
MODEL = ("model=tiny", "data=random", "data.max_samples=256", "nodes=2", "ranks_per_node=1", "parallelism=ddp",
         "job.precision=float32", "job.sequence_length=64", "job.micro_batch_size=1", "scaling.global_batch_size=2",
         "job.steps=16", "job.unmeasured_steps=4")  # fmt: skip


def command(*words: str) -> None:
    """Run a command; its error ends the benchmark."""
    subprocess.run(words, check=True)


@contextmanager
def two_nodes(rate: str) -> Iterator[None]:
    """Make two namespaces with a fast and a slow link between them, and remove them."""
    first, second = NODES
    try:
        for node in NODES:
            command("ip", "netns", "add", node)
            command("ip", "-n", node, "link", "set", "lo", "up")
        for link, net in LINKS.items():
            command("ip", "-n", first, "link", "add", link, "type", "veth", "peer", "name", link, "netns", second)
            for place, node in enumerate(NODES, start=1):
                command("ip", "-n", node, "address", "add", f"{net}.{place}/24", "dev", link)
                command("ip", "-n", node, "link", "set", link, "up")
        for node in NODES:
            shape = ["root", "tbf", "rate", rate, "burst", "256kb", "latency", "200ms"]
            command("ip", "netns", "exec", node, "tc", "qdisc", "replace", "dev", "slow0", *shape)
        yield
    finally:
        for node in NODES:
            subprocess.run(["ip", "netns", "delete", node], check=False)


def trained(where: Path, link: str, repeat: int) -> RunDir:
    """Train over a link, a rank in each namespace; return the run."""
    given = [*MODEL, "network=tcp", f"network.interface={link}", f"runs_dir={where}", f"sweep={link}",
             f"data.cache_dir={where}/cache", f"repeat={repeat}", f"name={link}-{repeat}"]  # fmt: skip
    run = compose(given, multirun=False)[0].run
    directory = RunDir(where / link / str(run.name))
    directory.path.mkdir(parents=True)
    directory.config.write_text(dump_run(run))
    write_json(directory.plan, plan_of(run, run.job.steps))
    append_event(directory, "prepared")
    start = secrets.token_hex(8)
    ranks = []
    for rank, node in enumerate(NODES):
        own = rank_environment(rank, len(NODES), start) | {"MASTER_ADDR": f"{LINKS['fast0']}.1"}
        words = ["ip", "netns", "exec", node, sys.executable, "-m", "jobs.run", str(directory.path)]
        ranks.append(subprocess.Popen(words, env=os.environ | own, stdout=subprocess.DEVNULL))
    if any(process.wait() for process in ranks):
        sys.exit(f"{directory.path} failed: {[event.get('error') for event in events(directory, 'failed')]}")
    return directory


def main() -> None:
    """Print what each link carried, and the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", default="200mbit", help="rate of the slow link, as tc takes it")
    parser.add_argument("--pairs", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, two_nodes(options.rate):
        where = Path(folder)
        for repeat in range(1, options.pairs + 1):
            for link in LINKS if repeat % 2 else reversed(LINKS):
                found = events(trained(where, link, repeat), "transport")[0]["ways"]
                print(f"pair {repeat}: asked for {link}, found {found}", flush=True)
        text, _ = compare(where / "fast0", where / "slow0", where / "report")
        print(*text, sep="\n")


if __name__ == "__main__":
    main()

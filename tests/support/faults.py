"""Faults of ranks, nodes, the network and Slurm, made for real on the emulated Slurm.

A fault is a generator: it acts, and yields a condition that has to come true before it acts again. So a test waits for
one fault (`disturb`), and the night of faults for those of several runs at once.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psutil

from jobs.rundir import RunDir, SweepDir
from jobs.submit.states import State, states
from tests.support.processes import job_id, process_of
from tests.support.real_run import events
from tests.support.slurm.cluster import SlurmCluster
from tests.support.waiting import wait_until

Condition = Callable[[], object]
Fault = Callable[[RunDir, SlurmCluster], Iterator[Condition]]


def shell(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def state(run: RunDir) -> State:
    return states(SweepDir(run.path.parent))[0].state


def detail(run: RunDir) -> str:
    return states(SweepDir(run.path.parent))[0].detail


def second_node(run: RunDir) -> str:
    nodes = events(run, "started")[-1]["nodes"]
    assert isinstance(nodes, list)
    return str(nodes[1])


def works(node: str) -> bool:
    """Return True if a node takes jobs, whatever it runs now."""
    return re.search(r"State=(IDLE|MIXED|ALLOCATED) ", shell("scontrol", "show", "node", node)) is not None


def disturb(fault: Fault, run: RunDir, slurm: SlurmCluster) -> None:
    """Make a fault, to its end."""
    for condition in fault(run, slurm):
        wait_until(condition)


def kill_a_rank(run: RunDir, _slurm: SlurmCluster) -> Iterator[Condition]:
    process_of(run, 1).send_signal(signal.SIGKILL)
    yield from ()


def stop_a_rank(run: RunDir, _slurm: SlurmCluster) -> Iterator[Condition]:
    process_of(run, 1).send_signal(signal.SIGSTOP)
    yield from ()


def warn_of_the_limit(run: RunDir, _slurm: SlurmCluster) -> Iterator[Condition]:
    shell("scancel", "--signal=USR2", job_id(run))
    yield from ()


def requeue_by_hand(run: RunDir, _slurm: SlurmCluster) -> Iterator[Condition]:
    shell("scontrol", "requeue", job_id(run))
    yield from ()


def preempt(run: RunDir, _slurm: SlurmCluster) -> Iterator[Condition]:
    shell("sbatch", "--nodes=4", "--exclusive", "--output=/dev/null", "--wrap=sleep 2")
    yield lambda: state(run) is State.queued


def crash_a_node(run: RunDir, slurm: SlurmCluster) -> Iterator[Condition]:
    node = second_node(run)
    slurm.crash(node)
    yield lambda: state(run) is State.queued
    slurm.start_again(node)
    yield lambda: works(node)


def cut_a_node_off(run: RunDir, slurm: SlurmCluster) -> Iterator[Condition]:
    node = second_node(run)
    with cut_off(slurm.processes_of(node)):
        yield lambda: state(run) is State.queued
    yield lambda: works(node)


@contextmanager
def cut_off(pids: list[int]) -> Iterator[None]:
    """Drop every packet to and from what these processes talk through now, while they live on; needs root."""
    ports = set()
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            ports |= {str(each.laddr.port) for each in psutil.Process(pid).net_connections("tcp")}
    rules = [("OUTPUT", "-p", "tcp", f"--{side}", port, "-j", "DROP") for port in ports
             for side in ("sport", "dport")]  # fmt: skip
    done = []
    try:
        for rule in rules:
            shell("iptables", "--wait", "--append", *rule)
            done.append(rule)
        yield
    finally:
        for rule in done:
            shell("iptables", "--wait", "--delete", *rule)


def can_cut_off() -> bool:
    """Return True if this process may drop packets."""
    return os.geteuid() == 0

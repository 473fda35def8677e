"""The steps of a program: rank 0 begins each one, every rank that takes part starts a process, and all must end well.

Every rank connects to rank 0. A process that fails ends its rank, whose connection ends with it, so all other ranks end
their processes too, and so does a server that ends before the last step. What a process prints is in
program/STEP-RANK.log; rank 0 repeats that of the first process of each step in the log of the job.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Set
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from jobs.errors import ConfigError
from jobs.failure_causes import FailureCause, KnownCauseError
from jobs.files import opened
from jobs.lease import Lease
from jobs.metrics import StoragePhase
from jobs.output import own_directory, write_file
from jobs.ranks import Rank, node_name, restart_count, torchrun_environment
from jobs.rendezvous import LOOPBACK
from jobs.rundir import RunDir, append_event, read_events
from jobs.runtime.machine import StopRequest
from jobs.runtime.transport import nccl_environment
from jobs.schema import Run
from jobs.settings.program import Program, StartMode, Step
from jobs.work.program import placeholders as names
from jobs.work.program.inputs import changed_inputs, paths_of, sha256_of
from jobs.work.program.piece import Piece
from jobs.work.program.placeholders import program_of, servers_of
from jobs.work.program.places import first_rank, nodes_of, ranks_of
from jobs.work.program.ports import other_address, own_address, reserved_port
from jobs.work.program.ranks import (
    LOOK_S,
    Others,
    StoppedError,
    attended,
    led,
    meet,
    node_recorded,
    part,
    reach_rank_0,
    record_finish,
    record_start,
    record_stop,
)
from jobs.work.program.servers import Ports, Server, answering, refuse_late, server_facts
from jobs.work.program.substitution import filled, text_of

# Ephemeral ports of Linux begin above: no connection takes one of these by chance.
PORTS = range(20_000, 32_000)
URLS = re.compile(r"\{(servers\.\w+\.urls)\}")
"""Stands for several words."""
REPEATED_BYTES = 16 << 20
"""Output of a step that rank 0 repeats in the log of the job; all of it is in the file of the step."""


def run_program(run: Run, lease: Lease, rank: Rank) -> None:
    """Run the steps of the program to the end; every rank calls it."""
    own_directory(lease.run.program)
    led(run, lease, rank, lead, follow)


# --- rank 0 ----------------------------------------------------------------------------------------------------


def lead(run: Run, lease: Lease, rank: Rank, stop: StopRequest, stack: ExitStack) -> None:
    """Meet the other ranks, run the steps, and record how they ended."""
    program, directory = program_of(run), lease.run
    others, hosts = meet(run, lease, rank, stop, stack)
    before = list(read_events(lease.run.status))
    attempt = record_start(run, lease, hosts)
    # Below the ephemeral ports, so that no connection takes it before the program listens there.
    seat = Seat(run, directory, rank, {"main_port": PORTS.start + secrets.randbelow(len(PORTS))}, stack)
    done = finished_steps(before) if program.resume is not None else set()
    if attempt > 1 and program.resume is None:
        print(f"attempt {attempt} begins with the first step: the program declares no checkpoint (program.resume)")
    began = time.monotonic()
    try:
        others.send(number=lease.number)
        addresses = addresses_of_nodes(run, others)
        seat.facts |= {"node_addresses": addresses}
        seat.facts |= server_facts(run, ports_of_ranks(seat, others, lease), addresses)
        prepare(seat, [host["node"] for host in hosts])
        stack.enter_context(node_recorded(run, lease, rank, StoragePhase.train))
        others.send(facts=seat.facts)
        for name in steps_left(program, done):
            began = time.monotonic()
            others.send(step=name)
            lead_step(seat, others, lease, name)
            event = "step_ended" if program.steps[name].ready is None else "server_ready"
            append_event(directory, event, program_step=name, time_s=time.monotonic() - began)
    except StoppedError:
        others.send(end=True)
        seat.end()
        part(others)
        record_checkpoint(seat, since=began)
        record_stop(lease, stop, attempt)
        return
    others.send(end=True)
    part(others)
    stack.close()
    record_finish(lease, attempt)
    print(f"{run.name}: all steps have ended with exit code 0", flush=True)


def finished_steps(events: list[dict[str, Any]]) -> set[str]:
    """Return the steps that an earlier attempt finished."""
    return {str(event.get("program_step")) for event in events if event["event"] == "step_ended"}


def steps_left(program: Program, done: Set[str]) -> Iterator[str]:
    """Yield the steps that an earlier attempt has not finished, and the servers before them."""
    ending = [name for name, step in program.steps.items() if step.ready is None]
    for name, step in program.steps.items():
        if step.ready is not None and set(ending) <= done:
            continue
        if name in done:
            print(f"step {name}: finished in an earlier attempt", flush=True)
            continue
        yield name


def ports_of_ranks(seat: Seat, others: Others, lease: Lease) -> dict[int, Ports]:
    """Return the ports that each rank keeps for its servers."""
    ports: dict[int, Ports] = {0: seat.ports}
    while len(ports) < seat.run.ranks:
        ports |= {rank: message["ports"] for rank, message in attended(others, lease) if "ports" in message}
    return ports


def addresses_of_nodes(run: Run, others: Others) -> list[str]:
    """Return the address of each node, as the ranks of the others reach it."""
    if run.nodes == 1:
        return [LOOPBACK]
    firsts = [others.links[node * run.ranks_per_node].connection for node in range(1, run.nodes)]
    return [own_address(firsts[0]), *map(other_address, firsts)]


def lead_step(seat: Seat, others: Others, lease: Lease, name: str) -> None:
    """Run a step on all its ranks to its end, or until its servers are ready.

    Raise KnownCauseError if a process fails, or takes too long.
    """
    step, directory = program_of(seat.run).steps[name], seat.directory
    repeated = Repeated(directory.program_log(name, first_rank(seat.run, name)))
    began = time.monotonic()
    waiting = set(ranks_of(seat.run, name) if step.ready is None else answering(seat.run, name))
    seat.start(name)
    while waiting:
        for rank, message in attended(others, lease):
            if message.get("done") == name:
                waiting.discard(rank)
        if seat.done(others.stop) == name:
            waiting.discard(0)
        repeated.look()
        check_time(repeated, name, step, began, program_of(seat.run).silent_limit_min)
    repeated.look()
    # Slurm signals the program and its rank at once: one that saved and ended well has not finished its step.
    others.messages()
    if others.stop.signal:
        raise StoppedError


def check_time(repeated: Repeated, name: str, step: Step, began: float, silent_limit_min: float | None) -> None:
    """Raise KnownCauseError for a step that runs or is silent for longer than it may."""
    limits = (
        (step.time_limit_min, began, f"program.steps.{name}.time_limit_min", "has not ended"),
        (silent_limit_min, repeated.grown, "program.silent_limit_min", "has printed nothing"),
    )
    for limit_min, since, key, what in limits:
        if limit_min is not None and time.monotonic() - since > 60 * limit_min:
            raise KnownCauseError(
                FailureCause.hung,
                f"step {name} {what} for {limit_min:g} min ({key}); its output is in {repeated.log}",
                advice=f"Read the end of its output. If it needs longer, raise {key}, or set it to null.",
            )


class Repeated:
    """Output of the first process of a step, which is repeated in the log of the job as it grows."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.place = log.stat().st_size if log.exists() else 0
        self.left = REPEATED_BYTES
        self.grown = time.monotonic()
        """When it last was found to have grown."""

    def look(self) -> None:
        """Print what has been added."""
        if not self.log.exists() or self.log.stat().st_size <= self.place:
            return
        self.grown = time.monotonic()
        with opened(self.log) as file:
            file.seek(self.place)
            text = file.read(max(self.left, 0))
        self.place = self.log.stat().st_size if len(text) >= self.left else self.place + len(text)
        if self.left > 0:
            print(text.decode(errors="replace"), end="", flush=True)
            self.left -= len(text)
            if self.left <= 0:
                print(f"\nslurmscale: further output of this step is only in {self.log}", flush=True)


def prepare(seat: Seat, nodes: list[str]) -> None:
    """Make the working directory, its files and the list of hosts, and record the hashes of the inputs."""
    run, program, directory = seat.run, program_of(seat.run), seat.directory
    hostfile = directory.program / "hosts"
    write_file(hostfile, "".join(f"{node}\n" for node in nodes))
    seat.facts |= {"main_address": seat.rank.master_addr, "hostfile": str(hostfile)}
    if changed := changed_inputs(run, must_exist=True):
        raise ConfigError(changed[0])
    hashes = {name: sha256_of(path) for name, path in paths_of(run).items()}
    if hashes:
        append_event(directory, "inputs", sha256=hashes)
    if program.directory is None:
        own_directory(seat.place)
    elif not seat.place.is_dir():
        raise ConfigError(f"program.directory={seat.place} is not a directory on {node_name()}. Set an existing one.")
    for path, text in program.files.items():
        file = seat.place / path
        file.parent.mkdir(parents=True, exist_ok=True)
        write_file(file, text_of(text, seat.values()))


def record_checkpoint(seat: Seat, since: float) -> None:
    """Record that the program has written a checkpoint since a moment of the monotonic clock, if it has."""
    newest = newest_checkpoint(seat)
    if newest is not None and newest.stat().st_mtime >= time.time() - (time.monotonic() - since):
        append_event(seat.directory, "checkpoint", step=0, path=str(newest))


# --- the other ranks -------------------------------------------------------------------------------------------


def follow(run: Run, lease: Lease, rank: Rank, stop: StopRequest, stack: ExitStack) -> None:
    """Start the processes of this rank as rank 0 asks, until it ends the run."""
    others = reach_rank_0(run, lease, rank, stop, stack)
    seat = Seat(run, lease.run, rank, {}, stack)
    while True:
        # Signals reach all ranks: rank 0 decides.
        for _, message in others.messages():
            if "number" in message:
                lease.number = int(message["number"])
                others.links[0].send(ports=seat.ports)
            if "facts" in message:
                seat.facts |= message["facts"]
                stack.enter_context(node_recorded(run, lease, rank, StoragePhase.train))
            if "step" in message:
                seat.start(str(message["step"]))
            if "end" in message:
                seat.end()
                stack.close()
                return
        if (done := seat.done(stop)) is not None:
            others.links[0].send(done=done)


# --- every rank ------------------------------------------------------------------------------------------------


class Seat:
    """A rank that starts processes of the program."""

    def __init__(self, run: Run, directory: RunDir, rank: Rank, facts: Mapping[str, Any], stack: ExitStack) -> None:
        self.run = run
        self.directory = directory
        self.rank = rank
        self.facts = dict(facts)
        """Addresses and paths that rank 0 has chosen for all ranks."""
        self.stack = stack
        """Ends what is started."""
        self.pieces: list[Piece] = []
        """Every process that was started, in order."""
        self.begun: tuple[str, Piece | Server] | None = None
        """The step that this rank has begun, and whose end or readiness it has not reported yet."""
        self.servers: list[Server] = []
        servers = servers_of(program_of(run))
        mine = [name for name in servers if rank.rank in ranks_of(run, name)]
        self.ports: Ports = {name: stack.enter_context(reserved_port("")) for name in mine}
        self.known = names.known_values(run)

    @property
    def place(self) -> Path:
        """The working directory."""
        return names.working_directory(self.run, self.directory)

    @property
    def address(self) -> str:
        """The address of this node, as others reach it."""
        return str(self.facts["node_addresses"][self.rank.rank // self.run.ranks_per_node])

    def values(self) -> dict[str, object]:
        """Return the values of all {names} on this rank."""
        return (
            self.known
            | self.facts
            | {
                "run_directory": self.directory.path,
                "directory": self.place,
                "python": sys.executable,
                "restart": restart_count(),
            }
        )

    def start(self, name: str) -> None:
        """Start the process of this rank in a step, if it has one."""
        if self.rank.rank not in ranks_of(self.run, name):
            return
        program, step = program_of(self.run), program_of(self.run).steps[name]
        process = process_of(self, name)
        values = self.values() | {
            "rank": process.rank,
            "local_rank": process.local_rank,
            "node_rank": process.rank // self.run.ranks_per_node,
        }
        if name in self.ports:
            values |= {"address": self.address, "port": self.ports[name]}
        command = URLS.sub(lambda found: str(self.facts[found[1]]), step.command)
        words = filled(names.words_of(program, command), values)
        if program.resume is not None and step.ready is None and (newest := newest_checkpoint(self)) is not None:
            words += filled(names.words_of(program, program.resume.arguments), values | {names.CHECKPOINT: newest})
            if process.is_first:
                print(f"step {name} continues from {newest}", flush=True)
        env = {variable: text_of(text, values) for variable, text in (program.env | step.env).items()}
        piece = Piece(
            f"step {name}", words, self.directory.program_log(name, self.rank.rank),
            of_process(self, name, process) | env,
            f"Set program.steps.{name}.command to a program of that node, or load it by cluster.modules.",
            directory=self.place, all_cpus=step.start is not StartMode.rank,
        )  # fmt: skip
        self.stack.callback(piece.end)
        self.pieces.append(piece)
        if step.ready is None:
            self.begun = (name, piece)
            return
        server = Server(name, piece, step.ready, self.address, self.ports[name])
        self.servers.append(server)
        if self.rank.rank in answering(self.run, name):
            self.begun = (name, server)

    def done(self, stop: StopRequest) -> str | None:
        """Return the step whose process of this rank has just ended well or become ready; None if there is none.

        Raise KnownCauseError for a process that failed, or a server that has ended or is not ready in time.
        """
        try:
            for server in self.servers:
                server.check()
            if self.begun is None:
                return None
            name, own = self.begun
            if isinstance(own, Server):
                if not own.is_ready():
                    refuse_late(own)
                    return None
            elif not own.ended():
                return None
            elif own.process.returncode:
                raise own.failure()
        except KnownCauseError:
            # A signal for all may have reached the process first: then the run stops, and has not failed.
            time.sleep(LOOK_S)
            if stop.signal:
                return None
            raise
        self.begun = None
        return None if stop.signal else name

    def end(self) -> None:
        """End the processes of this rank as the program wants to be asked, the last one first."""
        program = program_of(self.run)
        for piece in reversed(self.pieces):
            piece.end(signal.Signals[f"SIG{program.stop_signal.value}"], program.stop_within_s)


def process_of(seat: Seat, name: str) -> Rank:
    """Return the place of this rank's process among those of a step, as torchrun counts: from 0 on its first node."""
    run, nodes = seat.run, nodes_of(seat.run, name)
    before = nodes.start * run.ranks_per_node
    main = seat.facts["node_addresses"][nodes.start] if nodes.start else seat.facts["main_address"]
    return replace(
        seat.rank, rank=seat.rank.rank - before, world_size=len(nodes) * run.ranks_per_node, master_addr=str(main)
    )


def of_process(seat: Seat, name: str, process: Rank) -> dict[str, str | None]:
    """Return the variables of a process: torchrun's of a rank or a node, and none of ours."""
    run, steps = seat.run, program_of(seat.run).steps
    # Our code stands first on the rank's path, and Python then leaves out the directory of a script.
    path = [each for each in os.environ.get("PYTHONPATH", "").split(":") if each and Path(each) != own_code()]
    found: dict[str, str | None] = {
        "PYTHONPATH": ":".join(path) or None,
        "PYTHONSAFEPATH": None,
        "PYTHONUNBUFFERED": "1",
        "MASTER_ADDR": process.master_addr,
        # Steps that run at once each have their own.
        "MASTER_PORT": str(int(seat.facts["main_port"]) + list(steps).index(name)),
    }
    nccl = nccl_environment(seat.directory.nccl_log(seat.rank.rank))
    found |= {variable: None for variable, value in nccl.items() if os.environ.get(variable) == value}
    if steps[name].start is StartMode.rank:
        return found | torchrun_environment(process, run.ranks_per_node) | {"LOCAL_WORLD_SIZE": str(run.ranks_per_node)}
    # The step of the ranks holds processors and memory of the job. Steps of the program's own srun, and of an mpirun
    # that calls it, share both (--overlap, --mem=0).
    found |= {"SLURM_OVERLAP": "1", "SLURM_MEM_PER_NODE": "0", "SLURM_MEM_PER_CPU": None, "SLURM_MEM_PER_GPU": None}
    # One process uses the processors of all ranks that it stands for.
    return found | {"OMP_NUM_THREADS": None, "NODE_RANK": str(process.rank // run.ranks_per_node)}


def own_code() -> Path:
    """Return the directory of the code that this rank executes."""
    return Path(__file__).parents[3]


def newest_checkpoint(seat: Seat) -> Path | None:
    """Return the newest complete checkpoint of the program; None without one."""
    resume = program_of(seat.run).resume
    if resume is None:
        return None
    pattern = seat.place / text_of(resume.file, seat.values())
    root = seat.place if pattern.is_relative_to(seat.place) else Path(pattern.anchor)
    found = root.glob(str(pattern.relative_to(root)))
    if resume.complete is not None:
        found = (path for path in found if (path / resume.complete).exists())
    return max(found, key=lambda path: path.stat().st_mtime, default=None)

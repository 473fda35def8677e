"""Hold the GPUs of a node at a power limit and a clock while a run works; give back what they had when it ends.

cluster.gpu_power_limit_w and cluster.gpu_clock_mhz are set through NVML. A process of its own does that, the keeper: it
ends after its rank however that ends, so the GPUs are restored also when a rank is killed. It keeps NVML open, since a
driver without persistence mode forgets both when nobody uses it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any

from jobs.errors import ConfigError
from jobs.failure_causes import STOPS
from jobs.files import parse_json
from jobs.layout import gpu_limits
from jobs.ranks import Rank, node_name
from jobs.runtime.gpus.nvidia import NvidiaGpu, all_gpus, opened
from jobs.schema import Run
from jobs.work.work import work_of

POWER, CLOCK = "cluster.gpu_power_limit_w", "cluster.gpu_clock_mhz"
VISIBLE = "CUDA_VISIBLE_DEVICES"
RESTORE_WITHIN_S = 20.0
MW_PER_W = 1000
SLURM = "let Slurm set it where the site allows that (cluster.sbatch.gpu-freq)"


@dataclass
class Held:
    """The limits at which a GPU is held; None where it is not limited."""

    uuid: str
    power_limit_w: float | None = None
    """As the GPU returns it."""
    before_w: float | None = None
    """Its power limit before the run."""
    clock_mhz: int | None = None
    """Locked clock, which NVML sets and does not return."""

    def __str__(self) -> str:
        """Return it as text: `limit 300 W (before: 700 W), clock locked at 1,200 MHz`."""
        power = None if self.power_limit_w is None else f"limit {self.power_limit_w:g} W (before: {self.before_w:g} W)"
        clock = None if self.clock_mhz is None else f"clock locked at {self.clock_mhz:,} MHz"
        return ", ".join(filter(None, (power, clock)))


# --- the rank --------------------------------------------------------------------------------------------------------

_keepers: dict[int, subprocess.Popen[bytes]] = {}
"""The keeper of this process, by its id: a forked child has a copy, and restores nothing."""


@contextmanager
def gpus_limited(run: Run, rank: Rank) -> Iterator[list[Held]]:
    """Hold the GPUs of this node inside this context, if the run limits them and this rank is the one that does it.

    Raise ConfigError if that cannot be done; the GPUs then have what they had before.
    """
    limits, gpus = gpu_limits(run), own_gpus(os.environ.get(VISIBLE), rank, run.ranks_per_node)
    if not limits or gpus is None or not has_gpus(run, rank):
        yield []
        return
    command = [sys.executable, "-m", __name__, json.dumps({"limits": limits, "gpus": gpus})]
    # A session of its own: what ends the group of the rank does not end it.
    keeper = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True)
    _keepers[os.getpid()] = keeper
    try:
        assert keeper.stdout is not None
        with keeper.stdout as reply:
            answer = parse_json(reply.readline().decode() or "{}")
        if "held" not in answer:
            early = f"{given(limits)}: the process that sets them has ended; its error is above in this log."
            raise ConfigError(answer.get("refused", early))
        held = [Held(**each) for each in answer["held"]]
        for each in held:
            print(f"slurmscale: {each.uuid} on {node_name()}: {each}", flush=True)
        yield held
    finally:
        release()


def has_gpus(run: Run, rank: Rank) -> bool:
    """Return False if the run asks for GPUs, and for the node of this rank without them: a step of a program may."""
    nodes = [each.gpus for each in work_of(run).components(run) for _ in range(each.nodes)]
    return not run.cluster.gpus or nodes[rank.rank // run.ranks_per_node]


def own_gpus(visible: str | None, rank: Rank, ranks_per_node: int) -> list[str] | None:
    """Return the GPUs that this rank limits, by index or UUID; None if another rank of its node does it.

    It is the first rank of a node, for the GPUs of all its ranks. Where the launcher shows each rank only some of them
    (CUDA_VISIBLE_DEVICES), every rank limits those that it sees.
    """
    names = list(map(str, range(ranks_per_node))) if visible is None else list(filter(None, visible.split(",")))
    if len(names) < ranks_per_node:
        return names
    return names[:ranks_per_node] if rank.local_rank == 0 else None


def release() -> None:
    """Let the keeper of this process restore the GPUs, and wait for it; also called by handlers of signals."""
    keeper = _keepers.get(os.getpid())
    if keeper is None:
        return
    assert keeper.stdin is not None
    # A line, since a child of this process may hold its end of the pipe open.
    with suppress(OSError, ValueError):
        keeper.stdin.write(b"\n")
        keeper.stdin.close()
    with suppress(subprocess.TimeoutExpired):
        keeper.wait(RESTORE_WITHIN_S)


# --- the keeper ------------------------------------------------------------------------------------------------------


def keep(limits: Mapping[str, float], gpus: list[str]) -> None:
    """Hold GPUs at these limits until standard input has a line, or ends with its rank; print an answer before."""
    # The scheduler signals all processes of a job: the rank decides when its work ends.
    for number in (*STOPS, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with ExitStack() as stack:
        try:
            answer: dict[str, Any] = {"held": [asdict(each) for each in hold(limits, gpus, stack)]}
        except ConfigError as error:
            answer = {"refused": str(error)}
        print(json.dumps(answer), flush=True)
        sys.stdin.readline()


def hold(limits: Mapping[str, float], names: list[str], stack: ExitStack) -> list[Held]:
    """Set the limits of GPUs and return what they are held at; the stack restores them.

    Raise ConfigError for a GPU that does not take a limit.
    """
    found = []
    for gpu in chosen(opened(all_gpus), names, limits):
        held = Held(str(gpu.nvml.nvmlDeviceGetUUID(gpu.handle)))
        try:
            if POWER in limits:
                hold_power(gpu, limits[POWER], held, stack)
            if CLOCK in limits:
                hold_clock(gpu, int(limits[CLOCK]), held, stack)
        except gpu.nvml.NVMLError as error:
            raise ConfigError(
                f"{given(limits)}: {name_of(gpu)} does not show what it allows: {error}. Set {unset(limits)}."
            ) from error
        found.append(held)
    return found


def chosen(known: list[NvidiaGpu], names: list[str], limits: Mapping[str, float]) -> list[NvidiaGpu]:
    """Return the GPUs with these indices or beginnings of UUIDs. Raise ConfigError for one that NVML does not show."""
    uuids = [str(gpu.nvml.nvmlDeviceGetUUID(gpu.handle)) for gpu in known]
    places = [index_of(name.strip(), uuids) for name in names]
    if not places or None in places:
        wanted = f"{VISIBLE}={os.environ[VISIBLE]}" if VISIBLE in os.environ else f"GPUs {', '.join(names)}"
        raise ConfigError(
            f"{given(limits)}: the run uses {wanted} of {node_name()}, and NVML shows {len(known)} whole GPUs there. "
            "Limits need NVIDIA's driver and the package nvidia-ml-py on every node; parts of a GPU (MIG) have none. "
            f"Set ranks_per_node to the GPUs of a node, or {unset(limits)}."
        )
    return [known[place] for place in places if place is not None]


def index_of(name: str, uuids: list[str]) -> int | None:
    """Return the index of a GPU by its index or the beginning of its UUID, as CUDA_VISIBLE_DEVICES takes both."""
    if name.isdecimal():
        return int(name) if int(name) < len(uuids) else None
    return next((place for place, uuid in enumerate(uuids) if uuid.startswith(name)), None)


def hold_power(gpu: NvidiaGpu, limit_w: float, held: Held, stack: ExitStack) -> None:
    """Set the power limit of a GPU; the stack restores the present one."""
    nvml, wanted_mw = gpu.nvml, round(MW_PER_W * limit_w)
    low_mw, high_mw = nvml.nvmlDeviceGetPowerManagementLimitConstraints(gpu.handle)
    allowed = f"{low_mw / MW_PER_W:g} to {high_mw / MW_PER_W:g} W"
    if not low_mw <= wanted_mw <= high_mw:
        raise ConfigError(f"{POWER}={limit_w:g}: {name_of(gpu)} allows {allowed}. Set {POWER} to a value among them.")
    before_mw = nvml.nvmlDeviceGetPowerManagementLimit(gpu.handle)
    with permitted(gpu, f"{POWER}={limit_w:g}", allowed, "let the site set it"):
        nvml.nvmlDeviceSetPowerManagementLimit(gpu.handle, wanted_mw)
    stack.callback(restore, gpu, "nvmlDeviceSetPowerManagementLimit", before_mw)
    now_mw = nvml.nvmlDeviceGetPowerManagementLimit(gpu.handle)
    if now_mw != wanted_mw:
        raise ConfigError(
            f"{POWER}={limit_w:g}: {name_of(gpu)} took {now_mw / MW_PER_W:g} W in its place. Set {POWER} to that."
        )
    held.power_limit_w, held.before_w = now_mw / MW_PER_W, before_mw / MW_PER_W


def hold_clock(gpu: NvidiaGpu, clock_mhz: int, held: Held, stack: ExitStack) -> None:
    """Lock the clock of a GPU; the stack unlocks it, since NVML does not show an earlier lock."""
    nvml = gpu.nvml
    memory_mhz = max(nvml.nvmlDeviceGetSupportedMemoryClocks(gpu.handle))
    clocks = sorted(nvml.nvmlDeviceGetSupportedGraphicsClocks(gpu.handle, memory_mhz))
    if clock_mhz not in clocks:
        # NVML itself would round it.
        near = sorted(sorted(clocks, key=lambda each: abs(each - clock_mhz))[:2])
        raise ConfigError(
            f"{CLOCK}={clock_mhz}: {name_of(gpu)} allows {clocks[0]} to {clocks[-1]} MHz in steps, of which "
            f"{' and '.join(map(str, near))} are the nearest. Set {CLOCK} to one of them."
        )
    with permitted(gpu, f"{CLOCK}={clock_mhz}", f"{clocks[0]} to {clocks[-1]} MHz", SLURM):
        nvml.nvmlDeviceSetGpuLockedClocks(gpu.handle, clock_mhz, clock_mhz)
    stack.callback(restore, gpu, "nvmlDeviceResetGpuLockedClocks")
    held.clock_mhz = clock_mhz


@contextmanager
def permitted(gpu: NvidiaGpu, what: str, allowed: str, other_way: str) -> Iterator[None]:
    """Raise ConfigError if this context may not set a limit."""
    try:
        yield
    except gpu.nvml.NVMLError as error:
        raise ConfigError(
            f"{what}: {name_of(gpu)} allows {allowed}, and does not let user {os.geteuid()} set it: {error}. Start the "
            f"ranks as root, {other_way}, or set {what.partition('=')[0]}=null."
        ) from error


def restore(gpu: NvidiaGpu, function: str, *values: int) -> None:
    """Give a GPU back what it had; report one that does not take it."""
    try:
        getattr(gpu.nvml, function)(gpu.handle, *values)
    except gpu.nvml.NVMLError as error:
        print(f"slurmscale: {name_of(gpu)} keeps its limit: {function}: {error}", file=sys.stderr, flush=True)


def name_of(gpu: NvidiaGpu) -> str:
    """Return a GPU with its node and kind as text."""
    index, kind = gpu.nvml.nvmlDeviceGetIndex(gpu.handle), gpu.nvml.nvmlDeviceGetName(gpu.handle)
    return f"GPU {index} on {node_name()} ({kind})"


def given(limits: Mapping[str, float]) -> str:
    """Return the limits as they were set."""
    return " and ".join(f"{key}={value:g}" for key, value in limits.items())


def unset(limits: Mapping[str, float]) -> str:
    """Return the settings without limits."""
    return " and ".join(f"{key}=null" for key in limits)


if __name__ == "__main__":
    asked = parse_json(sys.argv[1])
    keep(asked["limits"], asked["gpus"])

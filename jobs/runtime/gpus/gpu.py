"""The GPUs that a rank can use: refuse a rank that would otherwise compute on the CPU, or fail at its first kernel.

A GPU is unusable where torch was built for CPUs, for another vendor, or for a later CUDA than the driver supports;
where the launcher or a container hides it; and where torch has no kernels for its compute capability.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import torch

from jobs import metrics as m
from jobs.errors import ConfigError
from jobs.metrics import Metric
from jobs.plan.rules.values import BFLOAT16_CAPABILITY
from jobs.private import kept_cache
from jobs.ranks import Rank, node_name
from jobs.rundir import as_file_name
from jobs.runtime.gpus.nvidia import nvidia_smi
from jobs.runtime.machine import VISIBLE, cpu_name
from jobs.schema import Precision, Run

# Least driver of each major version of CUDA (NVIDIA's table "CUDA Toolkit and minimum required driver version").
LEAST_DRIVERS = {13: 580, 12: 525, 11: 450}
PCI = Path("/sys/bus/pci/devices")
# Builds for later CUDA have no kernels for GPUs before this capability; CUDA 12.6 is the last one for those.
CUDA_13_CAPABILITY = (7, 5)


def refuse_unusable_gpu(run: Run, rank: Rank) -> None:
    """Raise ConfigError if the cluster, or this machine, has GPUs and torch cannot compute on the one of this rank."""
    if not run.cluster.gpus and not torch.cuda.is_available():
        return
    problem = unusable(rank.local_rank, run.ranks_per_node)
    if problem is None and not torch.version.hip and run.job.precision is Precision.bfloat16:
        capability = torch.cuda.get_device_capability(own_index(rank.local_rank))
        if capability < BFLOAT16_CAPABILITY:
            problem = (
                f"its GPU has compute capability {'.'.join(map(str, capability))}, and job.precision=bfloat16 needs "
                f"{'.'.join(map(str, BFLOAT16_CAPABILITY))}. Set job.precision=float16 or float32"
            )
    if problem is not None:
        raise ConfigError(
            f"Rank {rank.rank} on {node_name()} cannot compute on a GPU (cluster={run.cluster.name}): {problem}. "
            f"Found: {installed()}. `slurmscale doctor` checks every node."
        )


def prepare_gpu(run: Run, rank: Rank) -> None:
    """Raise ConfigError if a rank cannot use its GPU; set where its kernels are kept, and how they compute."""
    refuse_unusable_gpu(run, rank)
    keep_kernels()
    # As LitGPT's command does before it calls a script (litgpt/__main__.py).
    torch.set_float32_matmul_precision("high" if run.engine.tf32 else "highest")
    if run.engine.deterministic:
        # cuBLAS adds partial products in the order in which its streams end, unless they share this workspace.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        # Memory that is read before it is written would be an error of ours; filling all of it takes time.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # a property of the module


def keep_kernels() -> None:
    """Let torch.compile and Triton keep their kernels for later jobs, on any node, in directories of this user only.

    Both run what they find. torch's default is a name in /tmp, which others can take first and a node loses. Code for a
    CPU is compiled with -march=native, so each kind of processor has a directory.
    """
    kept = kept_cache("kernels") / as_file_name(f"{platform.machine()} {cpu_name()}")
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(kept / "torchinductor"))
    os.environ.setdefault("TRITON_CACHE_DIR", str(kept / "triton"))


def compiled_graphs() -> dict[Metric, int]:
    """Return the graphs that torch.compile of this process found in the kept cache, and those that it compiled anew.

    torch's own counters: a bypass is a graph that it cannot keep.
    """
    from torch._dynamo.utils import counters  # noqa: PLC0415 (seconds, where nothing is compiled)

    graphs = counters["inductor"]
    anew = graphs["fxgraph_cache_miss"] + graphs["fxgraph_cache_bypass"]
    return {m.KERNELS_FOUND: graphs["fxgraph_cache_hit"], m.KERNELS_COMPILED: anew}


def refuse_own_gpu_only(run: Run) -> None:
    """Raise ConfigError if each of several ranks of a node sees its own GPU only: Fabric takes all of the node."""
    if run.ranks_per_node > 1 and torch.cuda.is_available() and torch.cuda.device_count() == 1:
        raise ConfigError(
            f"engine=litgpt: Fabric takes {run.ranks_per_node} GPUs of each node, and this rank on {node_name()} sees "
            f"its own only ({visible()}). Start ranks without --gpu-bind and --gpus-per-task, or set engine=native."
        )


def stay_near(device: torch.device, pci: Path = PCI) -> None:
    """Run this process on those of its cores that share a NUMA node with its GPU, if there are any."""
    if near := cores_near(device, pci) & os.sched_getaffinity(0):
        os.sched_setaffinity(0, near)


def is_far(device: torch.device, pci: Path = PCI) -> bool:
    """Return whether a scheduler bound this process to cores none of which shares a NUMA node with its GPU."""
    near = cores_near(device, pci) if device.type == "cuda" else set()
    return bool(near) and not near & os.sched_getaffinity(0)


def cores_near(device: torch.device, pci: Path) -> set[int]:
    """Return the cores that share a NUMA node with a GPU; none where the kernel does not list them."""
    found: Any = torch.cuda.get_device_properties(device)  # its stub lacks the PCI address
    address = f"{found.pci_domain_id:04x}:{found.pci_bus_id:02x}:{found.pci_device_id:02x}.0"
    try:
        return cores((pci / address / "local_cpulist").read_text())
    except OSError:
        return set()


def cores(text: str) -> set[int]:
    """Return the numbers of the kernel's list of cores: 0-3,8."""
    spans = [part.partition("-") for part in text.strip().split(",") if part]
    return {core for first, _, last in spans for core in range(int(first), int(last or first) + 1)}


def own_index(local_rank: int) -> int:
    """Return the number of a rank's GPU among the visible ones: all of its node, or only its own."""
    return local_rank if torch.cuda.device_count() > 1 else 0


def unusable(local_rank: int, ranks_per_node: int) -> str | None:
    """Return the reason and the remedy if the GPU of a local rank is unusable, else None."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == 0:
        return f"{why_none()}. {remedy()}"
    # A launcher that binds ranks to GPUs sets one of the variables: each rank then sees only its own GPU.
    bound = count == 1 and visible() is not None
    if count < ranks_per_node and not bound:
        return (
            f"torch sees {count} GPU{'s' if count > 1 else ''} for {ranks_per_node} ranks of this node. Set "
            f"ranks_per_node={count}, request {ranks_per_node} GPUs a node, or export CUDA_VISIBLE_DEVICES= to compute "
            "on CPUs (cluster.gpus=false)"
        )
    index = own_index(local_rank)
    if torch.version.hip:
        kind = torch.cuda.get_device_properties(index).gcnArchName.split(":")[0]
        has = kind in torch.cuda.get_arch_list()
    else:
        capability = torch.cuda.get_device_capability(index)
        kind, has = f"compute capability {'.'.join(map(str, capability))}", has_kernels(capability)
    if has:
        return None
    return f"torch has no kernels for {torch.cuda.get_device_name(index)} ({kind}). {remedy(index)}"


def has_kernels(capability: tuple[int, int]) -> bool:
    """Return whether torch contains kernels for a compute capability, or code that the driver compiles for it."""
    for architecture in torch.cuda.get_arch_list():
        kind, _, digits = architecture.partition("_")
        major, minor = divmod(int(digits.rstrip("af")), 10)
        # Kernels run on GPUs of the same major and any later minor version; intermediate code on all later ones.
        if (kind == "sm" and major == capability[0] and minor <= capability[1]) or (
            kind == "compute" and (major, minor) <= capability
        ):
            return True
    return False


def why_none() -> str:
    """Return the reason that torch sees no GPU."""
    if not (torch.version.cuda or torch.version.hip):
        return "this torch was built for CPUs"
    hidden = [f"{name}={os.environ[name]!r}" for name in VISIBLE if os.environ.get(name, "0") in {"", "-1"}]
    if hidden:
        return f"{' '.join(hidden)} hides all GPUs"
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return f"torch sees none ({str(error).splitlines()[0].rstrip('.')})"
    return "torch sees none"


def remedy(index: int | None = None) -> str:
    """Return what to install or set."""
    install = "Install a torch for {} on the nodes (INSTALL.md)"
    driver = nvidia_driver()
    if driver is None:
        if torch.version.hip or not torch.version.cuda:
            return f"{install.format('the GPUs and driver')}; in a container, also give it the GPUs"
        return (
            "No NVIDIA driver answers here: load it, give the container the GPUs (apptainer --nv), request GPUs "
            "(cluster.gpus), or install a torch for ROCm on AMD GPUs"
        )
    old = index is not None and torch.cuda.get_device_capability(index) < CUDA_13_CAPABILITY
    newest = next((cuda for cuda, least in LEAST_DRIVERS.items() if int(driver.split(".")[0]) >= least), None)
    if newest is None:
        return f"Driver {driver} is too old for every current torch: ask the site for {LEAST_DRIVERS[12]} or later"
    return install.format("CUDA 12.6" if old else f"CUDA {newest} or earlier")


def nvidia_driver() -> str | None:
    """Return the version of NVIDIA's driver by nvidia-smi; None if there is none."""
    found = [gpu["driver_version"] for gpu in nvidia_smi("--query-gpu", ["driver_version"]) or ()]
    return found[0] if found and found[0][:1].isdigit() else None


def visible() -> str | None:
    """Return the variables that limit the visible GPUs; None if there is none."""
    return " ".join(f"{name}={os.environ[name]}" for name in VISIBLE if name in os.environ) or None


def installed() -> str:
    """Return torch, its CUDA or ROCm, the driver and the visible GPUs, as text."""
    built = f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda or 'none'}"
    return (
        f"torch {torch.__version__} ({built}), NVIDIA driver {nvidia_driver() or 'none'}, "
        f"{visible() or 'CUDA_VISIBLE_DEVICES not set'}"
    )

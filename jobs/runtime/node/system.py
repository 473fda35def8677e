"""Record the system of each node: what the table of a paper says about server, network, file systems and software.

The first rank of each node collects it at its start, in a thread, since nvidia-smi and scontrol may take seconds, and
writes a file of its own (jobs.rundir). The doctor collects the same. What a node does not show is absent, and nothing
here ends a run. Imports nothing that a node may lack.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jobs.errors import RunDirError
from jobs.files import parse_json
from jobs.lease import Lease
from jobs.output import own_directory
from jobs.ranks import Rank, node_name
from jobs.rundir import RunDir, write_json
from jobs.runtime.gpus.limits import Held
from jobs.runtime.gpus.nvidia import nvidia_smi
from jobs.runtime.machine import cpu_name
from jobs.schema import Run
from jobs.versions import PACKAGES, installed

SYS = Path("/sys")
PROC = Path("/proc")
OS_RELEASE = Path("/etc/os-release")
ROCM_VERSION = Path("/opt/rocm/.info/version")
PROGRAM_LIMIT_S = 10.0
# Of a run that ends before a program has answered.
LAST_WAIT_S = 2.0
GIB_IN_KIB = 1 << 20
MIB_IN_GB = (1 << 20) / 1e9
NVIDIA_FIELDS = ("name", "memory.total", "power.limit", "clocks.max.sm", "driver_version", "uuid")
# /sys/class/infiniband/*/hca_type, by the numbers of NVIDIA's adapters (pci.ids, vendor 15b3).
MELLANOX = {
    "MT4115": "ConnectX-4", "MT4117": "ConnectX-4 Lx", "MT4119": "ConnectX-5", "MT4121": "ConnectX-5 Ex",
    "MT4123": "ConnectX-6", "MT4125": "ConnectX-6 Dx", "MT4127": "ConnectX-6 Lx", "MT4129": "ConnectX-7",
    "MT4131": "ConnectX-8", "MT41686": "BlueField-2", "MT41692": "BlueField-3",
}  # fmt: skip
# Variables that change how ranks communicate, and how fast they compute.
VARIABLES = re.compile(
    r"(?:NCCL|RCCL|MSCCL|TORCH_NCCL|GLOO|UCX|UCC|FI|PSM2|NVSHMEM|MELLANOX|OMPI_MCA|PMIX_MCA|I_MPI|HSA|HIP|ROCR|CUDA|NVTE"
    r"|PYTORCH|TORCH|OMP|KMP|MKL|OPENBLAS|GOMP|MALLOC|DS|VLLM|SGLANG|NEMO)_\w+"
)
# Nodes and ranks have their own GPUs; the others hold secrets.
LEFT_OUT = re.compile(
    r"\w+_VISIBLE_DEVICES|\w*(?:KEY|TOKEN|SECRET|PASSWORD)\w*|CUDA_(?:HOME|PATH|ROOT)|NCCL_DEBUG_FILE"
)
VERSIONS_CODE = """\
import json, platform, sys
from importlib import metadata
found = {"python": platform.python_version()}
for name in sys.argv[1:]:
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
print(json.dumps(found))"""
MOUNT = re.compile(r"\\(\d{3})")


@contextmanager
def system_recorded(run: Run, lease: Lease, rank: Rank, held: Sequence[Held]) -> Iterator[None]:
    """Record the system of this node beside what this context does; only the first rank of a node does.

    GPUs that the run holds at a limit are recorded with it, and as they were before.
    """
    if rank.local_rank:
        yield
        return
    # Now: a rank sets variables of its own later.
    environment = dict(os.environ)
    writing = threading.Thread(target=write, args=(run, lease, rank, environment, held), name="system", daemon=True)
    writing.start()
    try:
        yield
    finally:
        writing.join(LAST_WAIT_S)


def write(run: Run, lease: Lease, rank: Rank, environment: Mapping[str, str], held: Sequence[Held]) -> None:
    """Write the record of this node; a directory that cannot be written costs the record only."""
    server = run.engine.server
    other_python = server.python if server is not None and run.serving is not None else None
    facts = facts_of_node(places(lease.run, run), environment, other_python, run.cluster.container, held)
    number = rank.rank // run.ranks_per_node
    record = {"node": node_name(), "number": number, **facts}
    with suppress(OSError, RunDirError, ValueError):
        if not lease.is_lost():
            file = lease.run.system_record(number)
            own_directory(file.parent)
            write_json(file, record)


def places(directory: RunDir, run: Run) -> dict[str, Path]:
    """Return the places whose file systems the table names."""
    found = {"checkpoints": directory.checkpoints if directory.checkpoints.exists() else directory.path}
    found |= {"data": directory.data} if directory.data.exists() else {}
    given = {
        "weights": run.job.init_from,
        "images": run.images and run.images.path,
        "test": run.storage and run.storage.path,
    }
    return found | {name: Path(path) for name, path in given.items() if path}


def facts_of_node(
    paths: Mapping[str, Path],
    environment: Mapping[str, str] = os.environ,
    server_python: str | None = None,
    container: str | None = None,
    held: Sequence[Held] = (),
) -> dict[str, Any]:
    """Return the facts of this node by their names in system_facts.TITLES; those that cannot be found are absent."""
    facts: dict[str, Callable[[], Any]] = {
        "server": server,
        "cpu": cpu_name,
        "sockets": lambda: different("physical_package_id"),
        "cores": lambda: different("core_cpus_list") or different("thread_siblings_list"),
        "hardware_threads": os.cpu_count,
        "memory_gib": memory_gib,
        "adapters": lambda: [*rdma_adapters(), *ethernet_adapters()],
        "os": operating_system,
        "kernel": platform.release,
        "scheduler": lambda: scheduler(environment),
        "toolkit": toolkit,
        "versions": lambda: {"python": platform.python_version(), **installed()},
        "server_versions": lambda: versions_of(server_python) if server_python else None,
        "container": lambda: container_of(environment, container),
        "file_systems": lambda: file_systems(paths),
        "environment": lambda: variables(environment),
        **gpu_facts(held),
    }
    found = {}
    for name, fact in facts.items():
        # Files of the kernel differ between versions, and none of them is worth a run.
        with suppress(OSError, ValueError, LookupError, ImportError, AttributeError):
            if value := fact():
                found[name] = value
    return found


def text_of(file: Path) -> str:
    """Return the text of a file of the kernel; empty if it cannot be read."""
    try:
        return file.read_text(errors="replace").strip()
    except OSError:
        return ""


def printed(command: list[str]) -> str:
    """Return what a program prints; empty if it is missing, fails or does not answer."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PROGRAM_LIMIT_S, check=True, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError, ValueError):
        return ""
    return done.stdout.strip()


# --- server, processors, memory ------------------------------------------------------------------------------------


def server() -> str:
    """Return vendor and model of the server, as its firmware gives them."""
    named = (text_of(SYS / "class/dmi/id" / name) for name in ("sys_vendor", "product_name"))
    return " ".join(filter(None, named))


def different(name: str) -> int:
    """Return the number of different values in the topology of all processors."""
    return len(set(filter(None, map(text_of, SYS.glob(f"devices/system/cpu/cpu[0-9]*/topology/{name}")))))


def memory_gib() -> int:
    """Return the memory that the kernel has; less than what is installed."""
    found = re.search(r"^MemTotal:\s+(\d+) kB", text_of(PROC / "meminfo"), re.MULTILINE)
    return round(int(found[1]) / GIB_IN_KIB) if found else 0


def operating_system() -> str:
    """Return the name of the distribution: inside a container that of its image."""
    found = re.search(r'^PRETTY_NAME="?([^"\n]+)', text_of(OS_RELEASE), re.MULTILINE)
    return found[1] if found else ""


# --- GPUs ----------------------------------------------------------------------------------------------------------


def gpu_facts(held: Sequence[Held]) -> dict[str, Callable[[], Any]]:
    """Return the facts about the GPUs that the drivers show to the job."""
    nvidia = nvidia_smi("--query-gpu", NVIDIA_FIELDS, PROGRAM_LIMIT_S) or []
    before = {each.uuid: {"power.limit": str(each.before_w)} for each in held if each.before_w is not None}
    nvidia = [each | before.get(each.get("uuid", ""), {}) for each in nvidia]
    amd = sorted(file.parent for file in SYS.glob("class/drm/card*/device/mem_info_vram_total"))
    of_nvidia, of_amd = [each.get("driver_version", "") for each in nvidia][:1], text_of(SYS / "module/amdgpu/version")
    return {
        "gpus": lambda: [*map(nvidia_gpu, nvidia), *map(amd_gpu, amd)],
        "gpu_driver": lambda: "NVIDIA " + of_nvidia[0] if of_nvidia else of_amd and f"amdgpu {of_amd}",
        "gpu_limits": lambda: list(map(str, held)),
    }


def nvidia_gpu(fields: Mapping[str, str]) -> str:
    """Return a GPU as text: `NVIDIA H200, 150.8 GB, limit 700 W, up to 1,980 MHz`; a field may be [N/A]."""
    amounts = {name: float(text) for name, text in fields.items() if re.fullmatch(r"\d+(\.\d+)?", text)}
    return described_gpu(
        fields.get("name", "NVIDIA GPU"),
        memory_gb=amounts["memory.total"] * MIB_IN_GB if "memory.total" in amounts else None,
        limit_w=amounts.get("power.limit"),
        clock_mhz=amounts.get("clocks.max.sm"),
    )


def amd_gpu(files: Path) -> str:
    """Return a GPU of the amdgpu driver as text (Linux, Documentation/gpu/amdgpu)."""
    caps = [text for file in files.glob("hwmon/hwmon*/power1_cap") if (text := text_of(file)).isdigit()]
    clocks = re.findall(r"(\d+)Mhz", text_of(files / "pp_dpm_sclk"), re.IGNORECASE)
    memory = text_of(files / "mem_info_vram_total")
    return described_gpu(
        text_of(files / "product_name") or "AMD GPU",
        memory_gb=int(memory) / 1e9 if memory.isdigit() else None,
        limit_w=int(caps[0]) / 1e6 if caps else None,
        clock_mhz=max(map(int, clocks), default=None),
    )


def described_gpu(name: str, *, memory_gb: float | None, limit_w: float | None, clock_mhz: float | None) -> str:
    """Return a GPU with what is known of it, as text."""
    known = (
        name,
        None if memory_gb is None else f"{memory_gb:.1f} GB",
        None if limit_w is None else f"limit {limit_w:.0f} W",
        None if clock_mhz is None else f"up to {clock_mhz:,.0f} MHz",
    )
    return ", ".join(filter(None, known))


def toolkit() -> str:
    """Return the CUDA or ROCm that torch was built for, from its files: importing it takes seconds."""
    spec = find_spec("torch")
    text = text_of(Path(spec.origin).parent / "version.py") if spec and spec.origin else ""
    built = dict(re.findall(r"^(cuda|hip)\b[^=\n]*= ['\"]([^'\"]+)", text, re.MULTILINE))
    rocm = text_of(ROCM_VERSION)
    named = (f"CUDA {built['cuda']}" if "cuda" in built else "", f"ROCm {built['hip']}" if "hip" in built else "")
    return ", ".join(filter(None, (*named, f"ROCm of the node {rocm}" if rocm else "")))


# --- network adapters ----------------------------------------------------------------------------------------------


def rdma_adapters() -> list[str]:
    """Return the ports of RDMA adapters as text: `ConnectX-7, InfiniBand, 400 Gb/s (4X NDR)`."""
    found = []
    for port in sorted(SYS.glob("class/infiniband/*/ports/*")):
        kind = text_of(port.parents[1] / "hca_type")
        link = text_of(port / "link_layer").replace("Ethernet", "RoCE")
        state = text_of(port / "state").partition(":")[2].strip().lower()
        rate = text_of(port / "rate").replace("Gb/sec", "Gb/s") if state in {"active", ""} else state
        name = MELLANOX.get(kind) or kind or driver_of(port.parents[1])
        found.append(", ".join(filter(None, (name, link, rate))))
    return found


def ethernet_adapters() -> list[str]:
    """Return the adapters without RDMA as text: `ixgbe, Ethernet, 10 Gb/s`; virtual interfaces are left out."""
    found = []
    for interface in sorted(SYS.glob("class/net/*")):
        # Type 32 is IP over InfiniBand (if_arp.h): the adapter is among those with RDMA, as one of RoCE is.
        if text_of(interface / "type") == "1" and (interface / "device").exists():
            if (interface / "device/infiniband").exists():
                continue
            mbit = text_of(interface / "speed")
            speed = f"{int(mbit) / 1000:g} Gb/s" if mbit.isdigit() else ""
            up = text_of(interface / "operstate") in {"up", "unknown", ""}
            found.append(", ".join(filter(None, (driver_of(interface), "Ethernet", speed if up else "down"))))
    return found


def driver_of(device: Path) -> str:
    """Return the name of the driver of a device."""
    driver = device / "device/driver"
    return driver.resolve().name if driver.exists() else ""


# --- file systems --------------------------------------------------------------------------------------------------


def file_systems(paths: Mapping[str, Path]) -> dict[str, str]:
    """Return type and source of the file system that holds each path: `nfs4 (filer:/export)`."""
    mounts = []
    for line in text_of(PROC / "self/mountinfo").splitlines():
        # proc(5): six fields, optional ones, a hyphen, then type and source. Blanks are octal escapes.
        before, _, after = line.partition(" - ")
        point, (kind, source) = before.split()[4], after.split()[:2]
        mounts.append((MOUNT.sub(lambda found: chr(int(found[1], 8)), point), kind, source))
    found = {}
    for name, path in paths.items():
        real = os.path.realpath(path)
        # The last of equal ones is mounted over the others.
        holding = [each for each in mounts if os.path.commonpath([real, each[0]]) == each[0]]
        if holding:
            longest = max(len(point) for point, _, _ in holding)
            _, kind, source = [each for each in holding if len(each[0]) == longest][-1]
            found[name] = f"{kind} ({source})"
    return found


# --- software ------------------------------------------------------------------------------------------------------


def scheduler(environment: Mapping[str, str]) -> str:
    """Return name and version of the scheduler of this job; in a container without its programs only the name."""
    if "SLURM_JOB_ID" in environment:
        return printed(["scontrol", "--version"]).replace("slurm", "Slurm") or "Slurm"
    if "PBS_JOBID" in environment:
        version = re.search(r"\d+(\.\d+)+", printed(["qstat", "--version"]))
        return f"PBS {version[0]}" if version else "PBS"
    return ""


def versions_of(python: str) -> dict[str, str]:
    """Return the versions of the packages of another Python, such as that of a server."""
    answer = printed([python, "-c", VERSIONS_CODE, *PACKAGES])
    found: dict[str, str] = parse_json(answer) if answer else {}
    return found


def container_of(environment: Mapping[str, str], given: str | None) -> str:
    """Return the image in which this process runs, and NVIDIA's version of it where it is one of theirs."""
    image = environment.get("APPTAINER_CONTAINER") or environment.get("SINGULARITY_CONTAINER") or given or ""
    product = environment.get("NVIDIA_PRODUCT_NAME", "")
    version = environment.get(f"NVIDIA_{product.upper().replace(' ', '_')}_VERSION", "") if product else ""
    made = f"NVIDIA {product} {version}".strip() if product else ""
    return ", ".join(filter(None, (image, made)))


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for communication and arithmetic that were set when the rank began."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if VARIABLES.fullmatch(name) and not LEFT_OUT.fullmatch(name)
    }

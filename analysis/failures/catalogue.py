"""The catalogue of failure signatures: texts by which one line of a log proves why its run ended, with their sources.

A signature decides with its weight: see analysis.failures.verdict. Its markers are texts of which one is in every line
that it matches, so that other lines of a log never become Python strings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from jobs.failures import FailureCause


class Weight(Enum):
    """Strength of the proof by a match; the lowest value in a log decides."""

    fault = 0
    """A fault of the machine; it decides wherever the line stands in the log."""
    end = 1
    """Ends a run by itself."""
    consequence = 2
    """Also follows from a failure elsewhere."""
    signal = 3
    """A signal or an exit code; the sender or the reason is not known."""


@dataclass(frozen=True)
class Signature:
    """A text by which one line proves a cause."""

    cause: FailureCause
    weight: Weight
    pattern: re.Pattern[str]
    """It may match anywhere in a line."""
    markers: tuple[str, ...]
    source: str
    """The document or the program that defines the text."""


def signatures(source: str, *rows: tuple[FailureCause, Weight, str, tuple[str, ...]]) -> Iterator[Signature]:
    """Yield the signatures of one source."""
    for cause, weight, pattern, markers in rows:
        yield Signature(cause, weight, re.compile(pattern), markers, source)


C, W = FailureCause, Weight

# --- machines ----------------------------------------------------------------------------------------------------

# Xid numbers that NVIDIA attributes to the application (13 to 69, 137), that follow from another Xid (45, 154), or
# that report what was corrected (63, 92, 93, 121).
OF_APPLICATION = "13|31|32|43|68|69|137"
HARMLESS_XID = rf"(?:8|{OF_APPLICATION}|45|63|92|93|121|154)\b"
XID = r"\bXid\b[^:]*(?:\(PCI:[^)]*\))?: "

MACHINES = (
    *signatures(
        "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html",
        (C.hardware, W.fault, rf"{XID}(?!{HARMLESS_XID})\d+", ("Xid",)),
        (C.code, W.signal, rf"{XID}(?:{OF_APPLICATION})\b", ("Xid",)),
        (
            C.hardware,
            W.fault,
            r"GPU has fallen off the bus|Unable to determine the device handle for GPU",
            ("fallen off the bus", "device handle for GPU"),
        ),
        (C.hardware, W.fault, r"NVRM: (?:GPU [\w.:@]+: )?(?:RmInitAdapter failed|GPU lost from the bus)", ("NVRM: ",)),
    ),
    *signatures(
        "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/index.html",
        (C.hardware, W.fault, r"\bSXid\b[^:]*(?:\(PCI:[^)]*\))?: \d+, Fatal", ("SXid",)),
        (C.hardware, W.fault, r"CUDA error: system not yet initialized", ("system not yet initialized",)),
    ),
    *signatures(
        "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html",
        (C.hardware, W.fault, r"(?i)uncorrectable (?:NVLink|ECC) error", ("uncorrectable",)),
        (
            C.out_of_gpu_memory,
            W.end,
            r"\b(?:CUDA|HIP|XPU) out of memory\b|CUDA error: out of memory",
            ("out of memory",),
        ),
        (
            C.out_of_gpu_memory,
            W.end,
            r"\b(?:cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY|hipErrorOutOfMemory)\b",
            ("cudaErrorMemoryAllocation", "ERROR_OUT_OF_MEMORY", "hipErrorOutOfMemory"),
        ),
        (
            C.out_of_gpu_memory,
            W.end,
            r"CUBLAS_STATUS_ALLOC_FAILED|NCCL WARN Cuda failure.* 'out of memory'",
            ("CUBLAS_STATUS_ALLOC", "Cuda failure"),
        ),
        (
            C.launch_failure,
            W.end,
            r"CUDA driver version is insufficient for CUDA runtime|no CUDA-capable device is det",
            ("driver version is insufficient", "no CUDA-capable"),
        ),
        (
            C.code,
            W.consequence,
            r"CUDA error: (?:an illegal memory access|misaligned address|device-side assert|"
            r"unspecified launch failure|an illegal instruction)",
            ("CUDA error: ",),
        ),
    ),
    *signatures(
        "https://github.com/torvalds/linux/tree/master/drivers/gpu/drm/amd/amdgpu",
        (C.hardware, W.fault, r"Memory access fault by GPU|HW Exception by GPU node", ("by GPU",)),
        (
            C.hardware,
            W.fault,
            r"amdgpu\b.*(?:uncorrectable hardware errors? detected|GPU reset begin!|GPU reset.*failed|"
            r"Fatal error during GPU init|device lost from bus|ring \S+ timeout)",
            ("amdgpu",),
        ),
        (C.hardware, W.fault, r"amdgpu_job_timedout\b", ("amdgpu",)),
        (C.hardware, W.consequence, r"HSA_STATUS_ERROR_EXCEPTION\b", ("HSA_STATUS_ERROR",)),
        (C.code, W.consequence, r"HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION", ("HSA_STATUS_ERROR",)),
        (C.code, W.signal, r"amdgpu\b.*\b(?:no-)?retry page fault", ("amdgpu",)),
    ),
    *signatures(
        "https://github.com/torvalds/linux (mm/oom_kill.c, kernel/panic.c, kernel/watchdog.c, arch/x86/mm/fault.c)",
        (C.hardware, W.fault, r"PCIe Bus Error: severity=(?:Uncorrected|Fatal)", ("PCIe Bus Error",)),
        (
            C.hardware,
            W.fault,
            r"mce: \[Hardware Error\]|Uncorrected hardware memory error|EDAC \S+: \d+ UE\b",
            ("[Hardware Error]", "Uncorrected hardware", "EDAC "),
        ),
        (
            C.node_failure,
            W.fault,
            r"Kernel panic - not syncing|watchdog: BUG: soft lockup|detected hard LOCKUP",
            ("Kernel panic", "soft lockup", "hard LOCKUP"),
        ),
        (C.node_failure, W.fault, r"BUG: (?:unable to handle|kernel NULL pointer)", ("BUG: ",)),
        (
            C.out_of_host_memory,
            W.fault,
            r"(?:Out of memory|Memory cgroup out of memory): Kill(?:ed)? process",
            ("Out of memory", "out of memory: Kill"),
        ),
        (
            C.out_of_host_memory,
            W.fault,
            r"\binvoked oom-killer:|\boom-kill:constraint=|\boom_reaper: reaped process",
            ("oom-kill", "oom_reaper"),
        ),
        (
            C.code,
            W.consequence,
            r"\[\d+\]: segfault at [0-9a-f]+ ip |traps: \S+\[\d+\] (?:general protection|trap)",
            ("segfault at", "traps: "),
        ),
    ),
)

# --- resource managers -------------------------------------------------------------------------------------------

MANAGERS = (
    *signatures(
        "https://github.com/SchedMD/slurm (20.02 to 25.05: slurmstepd, slurmd, srun)",
        (
            C.out_of_host_memory,
            W.fault,
            r"Detected \d+ oom[-_]kill event|exceeded memory (?:limit|allocation)",
            ("oom-kill", "oom_kill", "exceeded memory"),
        ),
        (C.out_of_host_memory, W.fault, r"task \d+: Out Of Memory", ("Out Of Memory",)),
        # Printed of successful jobs as well.
        (C.out_of_host_memory, W.consequence, r"Exceeded (?:job|step) memory limit", ("memory limit",)),
        (C.time_limit, W.end, r"CANCELLED AT [^%].*DUE TO TIME LIMIT", ("CANCELLED AT",)),
        (C.preempted, W.end, r"CANCELLED AT [^%].*DUE TO PREEMPTION", ("CANCELLED AT",)),
        (
            C.node_failure,
            W.end,
            r"CANCELLED AT [^%].*DUE TO NODE FAILURE|srun: error: Node failure on ",
            ("CANCELLED AT", "Node failure on"),
        ),
        (C.requeued, W.end, r"CANCELLED AT [^%].*DUE TO JOB REQUEUE", ("CANCELLED AT",)),
        (
            C.launch_failure,
            W.end,
            r"Failed to invoke spank plugin stack|pyxis: (?:child \d+|container start) failed",
            ("spank plugin", "pyxis: "),
        ),
        (
            C.launch_failure,
            W.end,
            r"execve\(\): |\berror while loading shared libraries\b",
            ("execve()", "loading shared"),
        ),
        (
            C.launch_failure,
            W.end,
            r"srun: error: (?:Task launch for |Application launch failed|Unable to confirm alloc)",
            ("srun: error",),
        ),
        (C.refused, W.end, r"srun: error: Unable to (?:create step for job|allocate resources)", ("srun: error",)),
        (C.refused, W.end, r"sbatch: error: Batch job submission failed", ("Batch job submission",)),
        (
            C.cancelled,
            W.signal,
            r"CANCELLED AT [\dT:-]+ \*\*\*|^Force Terminated [Jj]ob",
            ("CANCELLED AT", "Force Terminated"),
        ),
        (
            C.killed,
            W.signal,
            r"tasks? [\d,-]+: (?:Killed\b|Exited with exit code 137\b)",
            (": Killed", "exit code 137"),
        ),
        (
            C.aborted,
            W.signal,
            r"tasks? [\d,-]+: (?:Aborted\b|Exited with exit code 134\b)",
            (": Aborted", "exit code 134"),
        ),
        # Raised by corrupted memory of the program itself. A rank that lost its peer may crash in the same way.
        (
            C.code,
            W.consequence,
            r"tasks? [\d,-]+: (?:Segmentation fault|Bus error|Illegal instruction|Floating point ex|"
            r"Exited with exit code 139\b)",
            (": Segmentation fault", ": Bus error", ": Illegal instruction", ": Floating point", "exit code 139"),
        ),
        # Rank and node are known, the reason is not.
        (
            C.unknown,
            W.signal,
            r"srun: error: \S+: tasks? [\d,-]+: Exited with exit code (?!143\b)\d+",
            ("Exited with exit code",),
        ),
    ),
    *signatures(
        "https://github.com/openpbs/openpbs (src/resmom), https://github.com/adaptivecomputing/torque",
        (C.time_limit, W.end, r"PBS: job killed: (?:walltime|cput) \d+ exceeded", ("PBS: job killed",)),
        (
            C.out_of_host_memory,
            W.fault,
            r"PBS: job killed: [pv]*mem \S+ exceeded|[Cc]group mem(?:ory|sw)? limit exceeded",
            ("PBS: job killed", "limit exceeded"),
        ),
        (
            C.node_failure,
            W.end,
            r"PBS: job killed: node \d+ \(\S+\) requested job (?:terminate|die)",
            ("PBS: job killed",),
        ),
        (C.cancelled, W.signal, r"^(?:qdel: )?Job deleted at request of ", ("Job deleted at",)),
    ),
    *signatures(
        "https://www.ibm.com/docs/en/spectrum-lsf/10.1.0 (termination reasons displayed by bacct, bhist)",
        (C.time_limit, W.end, r"\bTERM_(?:RUNLIMIT|CPULIMIT|DEADLINE|WINDOW)\b", ("TERM_",)),
        (C.out_of_host_memory, W.fault, r"\bTERM_(?:MEMLIMIT|SWAP)\b", ("TERM_",)),
        (C.preempted, W.end, r"\bTERM_PREEMPT\b", ("TERM_",)),
        (C.requeued, W.end, r"\bTERM_REQUEUE_\w+", ("TERM_",)),
        (C.cancelled, W.signal, r"\bTERM_(?:OWNER|FORCE_OWNER|ADMIN|FORCE_ADMIN)\b", ("TERM_",)),
        (C.killed, W.signal, r"\bTERM_EXTERNAL_SIGNAL\b|^Exited by signal 9\b", ("TERM_", "Exited by signal")),
    ),
)

# --- programs ----------------------------------------------------------------------------------------------------

PROGRAMS = (
    *signatures(
        "https://github.com/pytorch/pytorch (c10, c10d, DataLoader, torchrun)",
        (C.out_of_gpu_memory, W.end, r"^[\w.]*OutOfMemoryError\b", ("OutOfMemoryError",)),
        (C.out_of_host_memory, W.end, r"DefaultCPUAllocator: (?:can't allocate|not enough) memory",
         ("DefaultCPUAllocator",)),
        (C.out_of_host_memory, W.end, r"out of shared memory\. Please try to raise|DataLoader worker .*: Killed\.",
         ("out of shared memory", "DataLoader worker")),
        (C.hung, W.consequence, r"Watchdog caught collective operation timeout|failed to pass monitoredBarrier",
         ("Watchdog caught", "monitoredBarrier")),
        (C.hung, W.consequence, r"Heartbeat monitor timed out! Process will be terminated", ("Heartbeat monitor",)),
        (C.lost_peer, W.consequence, r"Rendezvous\w*Error\b|Connection (?:reset|closed|refused)\b|Broken pipe",
         ("Rendezvous", "Connection re", "Connection closed", "Broken pipe")),
        (C.lost_peer, W.consequence, r"^\w*Error: .*\bgloo/transport/", ("gloo/transport",)),
        (C.killed, W.signal, r"\bexitcode: -9\b|Signal 9 \(SIGKILL\)", ("exitcode", "Signal 9")),
        (C.aborted, W.signal, r"\bexitcode: -6\b|Signal 6 \(SIGABRT\)", ("exitcode", "Signal 6")),
        (C.code, W.consequence, r"\bexitcode: -(?:7|11)\b|Signal (?:7 \(SIGBUS|11 \(SIGSEGV)\)",
         ("exitcode", "Signal 7", "Signal 11")),
    ),
    *signatures(
        "https://github.com/NVIDIA/nccl (src/transport/net_ib.cc), https://github.com/openucx/ucx",
        (C.lost_peer, W.consequence, r"NCCL WARN .*(?:Got completion .*with (?:status|error)|Call to \w+ failed)",
         ("NCCL WARN",)),
        (C.lost_peer, W.consequence, r"UCX\s+ERROR.*(?:[Ee]ndpoint timeout|unreachable)", ("UCX ",)),
    ),
    *signatures(
        "https://github.com/deepspeedai/DeepSpeed/blob/master/deepspeed/launcher/launch.py",
        (C.killed, W.signal, r"exits with return code = -9\b", ("exits with return code",)),
        (C.aborted, W.signal, r"exits with return code = -6\b", ("exits with return code",)),
        (C.code, W.consequence, r"exits with return code = -(?:7|11)\b", ("exits with return code",)),
        (C.unknown, W.signal, r"exits with return code = [1-9]", ("exits with return code",)),
        (C.diverged, W.end, r"Current loss scale already at minimum", ("loss scale already",)),
    ),
    *signatures(
        "https://github.com/open-mpi/ompi (help-orte-runtime), https://github.com/pmodels/mpich (hydra)",
        (C.aborted, W.consequence, r"\bMPI_ABORT was invoked on rank \d|\bapplication called MPI_Abort\(",
         ("MPI_ABORT", "MPI_Abort")),
        (C.killed, W.signal, r"exited on signal 9\b|KILLED BY SIGNAL: 9\b", ("exited on signal", "KILLED BY SIGNAL")),
        (C.aborted, W.signal, r"exited on signal 6\b|KILLED BY SIGNAL: 6\b", ("exited on signal", "KILLED BY SIGNAL")),
        (C.code, W.consequence, r"exited on signal (?:7|11)\b|KILLED BY SIGNAL: (?:7|11)\b",
         ("exited on signal", "KILLED BY SIGNAL")),
    ),
    *signatures(
        "glibc, libstdc++, CPython and bash",
        (C.code, W.consequence, r"^Fatal Python error: (?!Aborted)", ("Fatal Python error",)),
        (C.aborted, W.signal, r"^Fatal Python error: Aborted", ("Fatal Python error",)),
        (C.code, W.end, r"^(?:malloc|realloc|free|munmap_chunk)\(\): |^double free or corruption \(",
         ("alloc(): ", "free(): ", "munmap_chunk(): ", "double free")),
        (C.code, W.end, r"^corrupted (?:size vs\. prev_size|double-linked list)", ("corrupted ",)),
        (C.out_of_host_memory, W.end, r"terminate called .*'std::bad_alloc'|^\s*what\(\): +std::bad_alloc|"
         r"\[Errno 12\] Cannot allocate memory", ("std::bad_alloc", "Errno 12")),
        (C.killed, W.signal, r"^Killed$|: line \d+: +\d+ Killed\b", ("Killed",)),
        (C.code, W.consequence, r"^(?:Segmentation fault|Bus error)(?: \(core dumped\))?$|"
         r": line \d+: +\d+ (?:Segmentation fault|Bus error|Illegal instruction)\b",
         ("Segmentation fault", "Bus error", "Illegal instruction")),
        (C.aborted, W.signal, r"^Aborted(?: \(core dumped\))?$|: line \d+: +\d+ Aborted\b", ("Aborted",)),
        (C.launch_failure, W.end, r"^\S*python[\d.]*: can't open file ", ("can't open file",)),
        (C.cancelled, W.signal, r"^KeyboardInterrupt$", ("KeyboardInterrupt",)),
    ),
    *signatures(
        "https://github.com/NVIDIA/enroot, https://github.com/apptainer/apptainer, https://github.com/docker/cli",
        (C.launch_failure, W.end, r"^FATAL: {2,}(?:could not open image|container creation failed|Unable to )",
         ("FATAL: ",)),
        (C.launch_failure, W.end, r"^docker: Error response from daemon", ("Error response from daemon",)),
    ),
    *signatures(
        "argparse, jsonargparse, click, absl, transformers.HfArgumentParser",
        (C.refused, W.end, r"\berror: (?:unrecognized arguments|argument |the following|one of the|ambiguous)",
         ("error: unrecognized", "error: argument", "error: the following", "error: one of", "error: ambiguous")),
        (C.refused, W.end, r"\berror: (?:Parser key|Configuration check failed|Problem with|Validation failed|"
         r"Key '[^']*' is not expected|Option '[^']*' is not accepted)",
         ("error: Parser key", "error: Configuration", "error: Problem", "error: Validation", "error: Key",
          "error: Option")),
        (C.refused, W.end, r"^Error: (?:No such option|Invalid value for|Missing (?:option|argument|parameter))",
         ("Error: ",)),
        (C.refused, W.end, r"FATAL Flags parsing error", ("FATAL Flags",)),
        (C.refused, W.end, r"Some (?:specified arguments|keys) are not used by the HfArgumentParser",
         ("HfArgumentParser",)),
    ),
    *signatures(
        "https://github.com/facebookresearch/hydra (hydra/_internal), https://github.com/omry/omegaconf",
        (C.refused, W.end, r"^(?:Could not override '|In '[^']*': (?:Could not find|Validation error)|"
         r"Key '[^']*' is not in struct|You must specify '|Primary config (?:module|directory) |Could not load ')",
         ("Could not override", "In '", "is not in struct", "You must specify", "Primary config", "Could not load")),
    ),
    *signatures(
        "Megatron-LM, fairseq, timm and others",
        (C.diverged, W.end, r"(?i)loss (?:is|became|was) (?:nan|inf)|(?:nan|inf) in (?:loss|local grad|local f)",
         ("loss is", "loss became", "loss was", "Loss is", "nan in l", "inf in l", "NaN in l")),
        (C.diverged, W.end, r"^FloatingPointError: Minimum loss scale reached", ("Minimum loss scale",)),
    ),
    *signatures(
        "https://github.com/openxla/xla, https://github.com/tensorflow/tensorflow",
        (C.out_of_gpu_memory, W.end, r"RESOURCE_EXHAUSTED: (?:XLA:\w+ )?[Oo]ut of memory|OOM when allocating tensor",
         ("RESOURCE_EXHAUSTED", "OOM when allocating")),
    ),
)  # fmt: skip

SIGNATURES = (*MACHINES, *MANAGERS, *PROGRAMS)

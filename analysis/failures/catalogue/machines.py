"""Signatures of machines: GPUs and their drivers, the kernel, memory."""

from __future__ import annotations

from analysis.failures.catalogue.signature import Weight, signatures
from jobs.failures import FailureCause

C, W = FailureCause, Weight

# Xid numbers that NVIDIA attributes to the application (13 to 69, 137), that follow from another Xid (45, 154), or
# that report what was corrected (63, 92, 93, 121).
OF_APPLICATION = "13|31|32|43|68|69|137"
HARMLESS_XID = rf"(?:8|{OF_APPLICATION}|45|63|92|93|121|154)\b"
XID = r"\bXid\b[^:]*(?:\(PCI:[^)]*\))?: "

NVIDIA = (
    *signatures(
        "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html",
        (C.hardware, W.fault, rf"{XID}(?!{HARMLESS_XID})\d+", ("Xid",)),
        (C.hardware, W.fault, rf"\bcaused by previous Xid (?!{HARMLESS_XID})\d+", ("Xid",)),
        (C.code, W.signal, rf"{XID}(?:{OF_APPLICATION})\b", ("Xid",)),
        (C.hardware, W.fault, r"fallen off the bus|GPU lost from the bus|\bNV_ERR_GPU_IS_LOST\b",
         ("fallen off the bus", "lost from the bus", "NV_ERR_GPU_IS_LOST")),
        (C.hardware, W.fault, r"Unable to determine the device handle for GPU", ("device handle for GPU",)),
        (C.hardware, W.fault, r"NVRM: .*(?:RmInitAdapter failed|rm_init_adapter failed)", ("NVRM: ",)),
    ),
    *signatures(
        "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/index.html",
        (C.hardware, W.fault, r"\bSXid\b[^:]*(?:\(PCI:[^)]*\))?: \d+, Fatal", ("SXid",)),
    ),
    *signatures(
        "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html (texts and names of errors)",
        (C.hardware, W.fault, r"(?:error|failed|\(802\) |Error \(\S+).*: system not yet initialized|SYSTEM_NOT_READY\b|"
         r"\bcudaErrorSystemNotReady\b", ("system not yet initialized", "SYSTEM_NOT_READY", "ErrorSystemNotReady")),
        (C.hardware, W.fault, r"(?i)uncorrectable (?:NVLink|ECC) error|hardware error while accessing peer|"
         r"CUDA-capable device\(s\) is/are busy or unavail",
         ("uncorrectable", "hardware error while", "is/are busy")),
        (C.hardware, W.fault, r"ECC_?UNCORRECTABLE\b|ErrorECCUncorrectable\b|NVLINK_UNCORRECTABLE\b",
         ("UNCORRECTABLE", "ErrorECCUncorrectable")),
        (C.out_of_gpu_memory, W.end, r"\b(?:CUDA|HIP|XPU|NPU) out of memory\b|CUDA error: out of memory",
         ("out of memory",)),
        (C.out_of_gpu_memory, W.end,
         r"\b(?:cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY|hipErrorOutOfMemory)\b",
         ("cudaErrorMemoryAllocation", "ERROR_OUT_OF_MEMORY", "hipErrorOutOfMemory")),
        (C.out_of_gpu_memory, W.end, r"CUBLAS_STATUS_ALLOC_FAILED|NCCL WARN Cuda failure.* 'out of memory'",
         ("CUBLAS_STATUS_ALLOC", "Cuda failure")),
        (C.launch_failure, W.end, r"CUDA driver version is insufficient for CUDA runtime|no CUDA-capable device is det|"
         r"unsupported display driver / cuda driver combination|forward compatibility was attempted on non|"
         r"no kernel image is available for execution|PTX was compiled with an unsupported toolchain",
         ("driver version is insufficient", "no CUDA-capable", "display driver / cuda", "forward compatibility was",
          "no kernel image is", "PTX was compiled")),
        (C.refused, W.end, r"(?:CUDA|HIP|runtime) error\b.*: invalid device ordinal", ("invalid device ordinal",)),
        (C.code, W.consequence, r"\b(?:an illegal memory access was encountered|misaligned address|device-side assert|"
         r"unspecified launch failure|an illegal instruction was enc|operation not supported on global/shared|"
         r"invalid program counter|hardware stack error)",
         ("illegal memory access was", "misaligned address", "device-side assert", "unspecified launch failure",
          "illegal instruction was", "not supported on global", "invalid program counter", "hardware stack error")),
        (C.code, W.consequence, r"(?:cuda|hip)ErrorIllegalAddress\b|CUDA_ERROR_ILLEGAL_ADDRESS\b|ErrorLaunchFailure\b",
         ("ErrorIllegalAddress", "ERROR_ILLEGAL_ADDRESS", "ErrorLaunchFailure")),
    ),
)  # fmt: skip

AMD = (
    *signatures(
        "https://github.com/torvalds/linux/tree/master/drivers/gpu/drm/amd (amdgpu, amdkfd), https://github.com/ROCm/ROCR-Runtime",
        (C.hardware, W.fault, r"Memory access fault by GPU|HW Exception by GPU node", ("by GPU",)),
        (C.hardware, W.fault, r"amdgpu\b.*(?:uncorrectable hardware error|GPU reset begin!|GPU reset.*failed|"
         r"Fatal error during GPU init|device lost from bus|ring \S+ timeout|MES failed to resp|MES might be in unrec|"
         r"device wedged, needs recovery|RAS controller interrupt triggered)", ("amdgpu",)),
        (C.hardware, W.fault, r"amdgpu_job_timedout\b", ("amdgpu",)),
        (C.hardware, W.consequence, r"HSA_STATUS_ERROR_EXCEPTION\b", ("HSA_STATUS_ERROR",)),
        (C.code, W.consequence, r"HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION", ("HSA_STATUS_ERROR",)),
        (C.code, W.signal, r"amdgpu\b.*\b(?:no-)?retry page fault", ("amdgpu",)),
    ),
)  # fmt: skip

KERNEL = (
    *signatures(
        "https://github.com/torvalds/linux (mm/oom_kill.c, kernel/panic.c, kernel/watchdog.c, arch/x86/mm/fault.c, "
        "drivers/acpi/apei/ghes.c, drivers/net/ethernet/mellanox/mlx5/core/health.c, drivers/nvme/host/pci.c)",
        (C.hardware, W.fault, r"PCIe Bus Error: severity=(?:Uncorrected|Fatal)", ("PCIe Bus Error",)),
        (C.hardware, W.fault, r"mce: \[Hardware Error\]|Uncorrected hardware memory error|EDAC \S+: \d+ UE\b",
         ("[Hardware Error]", "Uncorrected hardware", "EDAC ")),
        (C.hardware, W.fault, r"\[Hardware Error\]: event severity: (?:fatal|recoverable)", ("[Hardware Error]",)),
        (C.hardware, W.fault, r"mlx5_core .*(?:device's health compromised|Fatal error detected)|"
         r"nvme nvme\d+: (?:controller is down|Removing after probe failure)", ("mlx5_core", "nvme nvme")),
        (C.node_failure, W.fault, r"Kernel panic - not syncing|watchdog: BUG: soft lockup|detected hard LOCKUP",
         ("Kernel panic", "soft lockup", "hard LOCKUP")),
        (C.node_failure, W.fault, r"BUG: (?:unable to handle|kernel NULL pointer)|\bOops: general protection fault",
         ("BUG: ", "Oops: ")),
        (C.out_of_host_memory, W.fault, r"(?:Out of memory|Memory cgroup out of memory): Kill(?:ed)? process",
         ("Out of memory", "out of memory: Kill")),
        (C.out_of_host_memory, W.fault, r"\binvoked oom-killer:|\boom-kill:constraint=|\boom_reaper: reaped process",
         ("oom-kill", "oom_reaper")),
        (C.code, W.consequence, r"\[\d+\]: segfault at [0-9a-f]+ ip |traps: \S+\[\d+\] (?:general protection|trap)",
         ("segfault at", "traps: ")),
    ),
)  # fmt: skip

MACHINES = (*NVIDIA, *AMD, *KERNEL)

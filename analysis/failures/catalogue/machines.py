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
        (C.hardware, W.fault, rf"{XID}(?!{HARMLESS_XID})\d+(?!.*\bNon-?fatal\b)", ("Xid",)),
        (C.hardware, W.fault, rf"\bcaused by previous Xid (?!{HARMLESS_XID})\d+", ("Xid",)),
        (C.code, W.signal, rf"{XID}(?:{OF_APPLICATION})\b", ("Xid",)),
        (C.hardware, W.fault, r"(?<!not )fallen off the bus|GPU lost from the bus|\bNV_ERR_(?:GPU_IS_LOST|"
         r"RESET_REQUIRED|"
         r"ECC_ERROR|GPU_IN_FULLCHIP_RESET|NVLINK_\w*ERROR|FABRIC_\w*ERROR)\b",
         ("fallen off the bus", "lost from the bus", "NV_ERR_")),
        (C.hardware, W.fault, r"Unable to determine the device handle for GPU", ("device handle for GPU",)),
        (C.hardware, W.fault, r"NVRM: .*(?:GPU \S+ is lost|needs? (?:a )?(?:GPU )?reset)", ("NVRM: ",)),
        (C.hardware, W.fault, r"NVRM: .*(?:RmInitAdapter failed|rm_init_adapter failed)", ("NVRM: ",)),
    ),
    *signatures(
        "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/index.html",
        (C.hardware, W.fault, r"\bSXid\b[^:]*(?:\(PCI:[^)]*\))?: \d+, Fatal", ("SXid",)),
        (C.hardware, W.fault, r"detected (?:NVSwitch|GPU NVLink|LR10 NVSwitch) [Ff]atal error",
         ("detected NVSwitch", "detected GPU NVLink", "detected LR10")),
    ),
)  # fmt: skip

AMD = (
    *signatures(
        "https://github.com/torvalds/linux/tree/master/drivers/gpu/drm/amd (amdgpu, amdkfd), https://github.com/ROCm/ROCR-Runtime",
        # What CUDA calls an illegal memory access.
        (C.code, W.consequence, r"Memory access fault by GPU.*Reason: (?:Page not present|Write access to a read-only)",
         ("by GPU",)),
        (C.hardware, W.fault, r"Memory access fault by GPU|HW Exception by GPU node", ("by GPU",)),
        (C.hardware, W.fault, r"amdgpu\b.*(?:uncorrectable hardware error|[Uu]ncorrectable error detected|"
         r"qcm fence wait loop "
         r"timeout|poison is consumed|unrecoverable state due to an unsuccessful queues preemption|GPU reset begin!|"
         r"GPU reset.*failed|"
         r"Fatal error during GPU init|device lost from bus|ring \S+ timeout|MES failed to resp|MES might be in unrec|"
         r"device wedged, needs recovery|RAS controller interrupt triggered|"
         r"bad pages? .*exceeds? the threshold|exceeded bad page threshold|GPU Recovery Failed|"
         r"hw_init of IP block .* failed|SMU: I'm not done with your prev|GPU is lost)", ("amdgpu",)),
        (C.hardware, W.fault, r"amdgpu_job_timedout\b", ("amdgpu",)),
        (C.code, W.signal, r"amdgpu\b.*\b(?:no-)?retry page fault", ("amdgpu",)),
    ),
)  # fmt: skip

KERNEL = (
    *signatures(
        "https://github.com/torvalds/linux (mm/oom_kill.c, kernel/panic.c, kernel/watchdog.c, arch/x86/mm/fault.c, "
        "drivers/acpi/apei/ghes.c, drivers/net/ethernet/mellanox/mlx5/core/health.c, drivers/nvme/host/pci.c)",
        (C.hardware, W.fault, r"PCIe Bus Error: severity=(?:Uncorrect(?:ed|able) \(Fatal\)|Fatal)|AER: "
         r"(?:Uncorrect(?:ed|able) \(Fatal\)|Multiple Uncorrect(?:ed|able) \(Fatal\)) error|DPC: containment event",
         ("PCIe Bus Error", "AER: ", "DPC: containment")),
        (C.hardware, W.fault, r"mce: \[Hardware Error\].*(?:Machine Check Exception|Machine Check: \d+ Bank \d+: "
         r"[abef]|CONTEXT CORRUPT|Fatal|Uncorrected)|Uncorrected hardware memory error|EDAC \S+: \d+ UE\b",
         ("[Hardware Error]", "Uncorrected hardware", "EDAC ")),
        (C.hardware, W.fault, r"\[Hardware Error\]: event severity: (?:fatal|recoverable)", ("[Hardware Error]",)),
        (C.hardware, W.fault, r"mlx5_core .*(?:device's health compromised|Fatal error (?:\d+ )?detected|"
         r"firmware internal error)|"
         r"nvme nvme\d+: (?:controller is down|Removing after probe failure)", ("mlx5_core", "nvme nvme")),
        (C.node_failure, W.fault, r"Kernel panic - not syncing|watchdog: BUG: soft lockup|detected hard LOCKUP",
         ("Kernel panic", "soft lockup", "hard LOCKUP")),
        (C.node_failure, W.fault, r"BUG: (?:unable to handle|kernel NULL pointer)|\bOops: (?:general protection fault|"
         r"[0-9a-f]{4} \[#\d)|\bgeneral protection fault, (?:probably|maybe) for|\bkernel BUG at \S+:\d+!",
         ("BUG: ", "Oops: ", "general protection fault, ", "kernel BUG at")),
        (C.out_of_host_memory, W.fault, r"(?:Out of memory|Memory cgroup out of memory): Kill(?:ed)? process|"
         r"Out of memory and no killable processes|Task(?:s)? in /\S+ killed as a result of limit of /|"
         r"\bearlyoom\b.*sending SIG(?:TERM|KILL) to process",
         ("Out of memory", "out of memory: Kill", "as a result of limit", "sending SIG")),
        (C.hardware, W.fault, r"critical temperature reached|Machine check events logged.*[Uu]ncorrected",
         ("critical temperature", "Machine check events")),
        (C.node_failure, W.fault, r"rcu: INFO: rcu_\w+ (?:self-)?detected stall",
         ("detected stall",)),
        (C.storage, W.consequence, r"(?:EXT4-fs|XFS|BTRFS).*(?:[Ee]rror|[Cc]orrupt)|[Rr]emounting filesystem read-only|"
         r"Buffer I/O error on dev|nfs: server \S+ not responding, timed out",
         ("EXT4-fs", "XFS", "BTRFS", "emounting filesystem", "Buffer I/O error", "nfs: server")),
        (C.out_of_host_memory, W.fault, r"\binvoked oom-killer:|\boom-kill:constraint=|\boom_reaper: reaped process|"
         r"process of this unit has been killed by the OOM killer|Failed with result 'oom-kill'|low memory! at or "
         r"below SIG",
         ("oom-kill", "oom_reaper", "this unit has been killed", "low memory! at")),
        # Ports without a cable report it, too.
        (C.lost_peer, W.signal, r"mlx5_core .*\bLink (?:down|DOWN)\b", ("mlx5_core",)),
        (C.code, W.consequence, r"\[\d+\]: segfault at [0-9a-f]+ ip |traps: \S+\[\d+\] (?:general protection|trap)",
         ("segfault at", "traps: ")),
    ),
)  # fmt: skip

MACHINES = (*NVIDIA, *AMD, *KERNEL)

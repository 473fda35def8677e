"""Signatures of programs: torch, NCCL, MPI, launchers, JAX, Ray, signals that ended a process, diverging losses."""

from __future__ import annotations

from analysis.failures.catalogue.signature import Weight, signatures
from jobs.failures import FailureCause

C, W = FailureCause, Weight

# "exited on signal 9", "interrupted by signal 11: SIGSEGV", "KILLED BY SIGNAL: 6", "terminated with signal SIGKILL".
BY_SIGNAL = r"(?i)\b(?:by|on|with) signal:? (?:{})\b"
# "Exited with exit code 137", "exitCode: 137".
EXIT_CODE = r"(?i)\bexit(?:ed with|[ _]?code| status)+:? {}\b"

TORCH = (
    *signatures(
        "https://github.com/pytorch/pytorch (c10, c10d, torch.multiprocessing, torchrun)",
        (C.out_of_gpu_memory, W.end, r"^[\w.]*OutOfMemoryError: (?!Task)", ("OutOfMemoryError",)),
        (C.out_of_host_memory, W.end, r"DefaultCPUAllocator: (?:can't allocate|not enough) memory",
         ("DefaultCPUAllocator",)),
        (C.hung, W.consequence, r"Watchdog caught collective operation timeout|failed to pass monitoredBarrier",
         ("Watchdog caught", "monitoredBarrier")),
        (C.hung, W.consequence, r"\bTimeout at NCCL work: \d|dump signal due to a collective timeout",
         ("Timeout at NCCL work", "due to a collective timeout")),
        (C.hung, W.consequence, r"Heartbeat monitor timed out! Process will be terminated", ("Heartbeat monitor",)),
        (C.lost_peer, W.consequence, r"Rendezvous\w*Error\b|Connection (?:reset|closed|refused)\b|Broken pipe",
         ("Rendezvous", "Connection re", "Connection closed", "Broken pipe")),
        # While it is still retrying, it has not ended.
        (C.lost_peer, W.consequence, r"^(?!.*\bretrying\b).*(?:The client socket has (?:timed out|failed to connect)|"
         r"TCP client failed to connect/validate)", ("The client socket has", "TCP client failed")),
        (C.lost_peer, W.consequence, r"store->get\('.*got error|(?i:wait timeout|Timeout waiting).*\bkeys?\b",
         ("store->get(", "ait timeout", "imeout waiting")),
        (C.lost_peer, W.consequence, r"^\w*Error: .*\bgloo/transport/", ("gloo/transport",)),
        (C.killed, W.signal, r"\bexitcode: -9\b|Signal 9 \(SIGKILL\)", ("exitcode", "Signal 9")),
        (C.aborted, W.signal, r"\bexitcode: -6\b|Signal 6 \(SIGABRT\)", ("exitcode", "Signal 6")),
        (C.code, W.consequence, r"\bexitcode: -(?:7|11)\b|Signal (?:7 \(SIGBUS|11 \(SIGSEGV)\)",
         ("exitcode", "Signal 7", "Signal 11")),
        (C.unknown, W.signal, r"\bfailed \(exitcode: [1-9]\d*\) local_rank: \d", ("exitcode",)),
    ),
    *signatures(
        "https://github.com/NVIDIA/nccl (src/transport/net_ib.cc, src/nccl.h.in), https://github.com/openucx/ucx, "
        "https://github.com/aws/aws-ofi-nccl",
        (C.lost_peer, W.consequence, r"NCCL WARN .*(?:Got completion .*with (?:status|error)|Call to \w+ .*failed)",
         ("NCCL WARN",)),
        (C.lost_peer, W.consequence, r"NCCL WARN NET/IB : .*Got async .*event ?: .*(?:port error|fatal)",
         ("NCCL WARN",)),
        (C.unknown, W.signal, r"NCCL error\b.*\bunhandled cuda error", ("unhandled cuda error",)),
        (C.lost_peer, W.consequence, r"NCCL error.*\b(?:unhandled system error|remote process exited)|"
         r"^nccl(?:System|Remote)Error: ", ("NCCL error", "ncclSystemError", "ncclRemoteError")),
        (C.lost_peer, W.consequence, r"UCX\s+ERROR.*(?:[Ee]ndpoint timeout|unreachable)|ib_mlx5_log\.c:\d+ .*(?:"
         r"Transport retry count exceeded|RNR retry count exceeded|Remote (?:operation|access) error)",
         ("UCX ", "ib_mlx5_log")),
    ),
)  # fmt: skip

LAUNCHERS = (
    *signatures(
        "https://github.com/deepspeedai/DeepSpeed/blob/master/deepspeed/launcher/launch.py",
        (C.killed, W.signal, r"exits with return code = -9\b", ("exits with return code",)),
        (C.aborted, W.signal, r"exits with return code = -6\b", ("exits with return code",)),
        (C.code, W.consequence, r"exits with return code = -(?:7|11)\b", ("exits with return code",)),
        (C.unknown, W.signal, r"exits with return code = [1-9]", ("exits with return code",)),
    ),
    *signatures(
        "https://github.com/open-mpi/ompi (help texts), https://github.com/pmodels/mpich (hydra), https://github.com/horovod/horovod",
        (C.aborted, W.consequence, r"\bMPI_ABORT was invoked on rank \d|\bapplication called MPI_Abort\(",
         ("MPI_ABORT", "MPI_Abort")),
        (C.lost_peer, W.consequence, r"An MPI communication peer process has unexpectedly disconnected|"
         r"(?:ORTE|PRTE) has lost communication with a remote|Horovod has been shut down\. This was caused by",
         ("MPI communication peer", "has lost communication with", "Horovod has been shut")),
        (C.code, W.consequence, r"\bSignal: (?:Segmentation fault|Bus error) \(", ("Signal: ",)),
        (C.unknown, W.signal, r"^\s*Process name: \[\[\d+,\d+\],\d+\]", ("Process name: [[",)),
    ),
    *signatures(
        "https://github.com/ray-project/ray (src/ray/raylet, python/ray/exceptions.py)",
        (C.out_of_host_memory, W.fault, r"killed due to memory pressure \(OOM\)|node running low on memory|"
         r"may have exceeded K8s pod memory limits",
         ("due to memory pressure", "running low on memory", "K8s pod memory limits")),
        (C.killed, W.signal, r"Worker (?:unexpectedly exits with a connection error|exits unexpectedly)|"
         r"A worker died or was killed while executing a task",
         ("Worker unexpectedly exits", "Worker exits unexpectedly", "worker died or was killed")),
    ),
    *signatures(
        "https://github.com/openxla/xla (coordination service), https://github.com/tensorflow/tensorflow",
        (C.out_of_gpu_memory, W.end, r"RESOURCE_EXHAUSTED: (?:XLA:\w+ )?[Oo]ut of memory|OOM when allocating tensor",
         ("RESOURCE_EXHAUSTED", "OOM when allocating")),
        (C.lost_peer, W.consequence, r"DEADLINE_EXCEEDED: (?:Barrier timed out|Connect\(\) timed out|"
         r"Deadline Exceeded)|UNAVAILABLE: Task \S+ heartbeat timeout|ERROR in coordination service",
         ("DEADLINE_EXCEEDED", "heartbeat timeout", "in coordination service")),
    ),
)  # fmt: skip

SYSTEM = (
    *signatures(
        "glibc, libstdc++, CPython, GNU time and bash",
        (C.killed, W.signal, BY_SIGNAL.format("9|SIGKILL"), (" signal 9", " SIGNAL: 9", "signal SIGKILL")),
        (C.aborted, W.signal, BY_SIGNAL.format("6|SIGABRT"), (" signal 6", " SIGNAL: 6", "signal SIGABRT")),
        (C.code, W.consequence, BY_SIGNAL.format("7|11|SIGBUS|SIGSEGV"),
         (" signal 7", " SIGNAL: 7", "signal SIGBUS", " signal 11", " SIGNAL: 11", "signal SIGSEGV")),
        (C.killed, W.signal, EXIT_CODE.format("137"), ("137",)),
        (C.aborted, W.signal, EXIT_CODE.format("134"), ("134",)),
        (C.code, W.consequence, EXIT_CODE.format("139"), ("139",)),
        (C.code, W.consequence, r"Caught signal 11\b", ("Caught signal 11",)),
        (C.code, W.consequence, r"^Fatal Python error: (?!Aborted)", ("Fatal Python error",)),
        (C.aborted, W.signal, r"^Fatal Python error: Aborted", ("Fatal Python error",)),
        (C.code, W.end, r"^(?:malloc|realloc|free|munmap_chunk)\(\): |^double free or corruption \(",
         ("alloc(): ", "free(): ", "munmap_chunk(): ", "double free")),
        (C.code, W.end, r"^corrupted (?:size vs\. prev_size|double-linked list)", ("corrupted ",)),
        (C.out_of_host_memory, W.end, r"terminate called .*'std::bad_alloc'|^\s*what\(\): +std::bad_alloc|"
         r"\[Errno 12\] Cannot allocate memory|(?:fork|mmap)\b.*: Cannot allocate memory",
         ("std::bad_alloc", "Errno 12", "Cannot allocate memory")),
        (C.killed, W.signal, r"^Killed$|: line \d+: +\d+ Killed\b", ("Killed",)),
        (C.code, W.consequence, r"^(?:Segmentation fault|Bus error)(?: \(core dumped\))?$|"
         r": line \d+: +\d+ (?:Segmentation fault|Bus error|Illegal instruction)\b",
         ("Segmentation fault", "Bus error", "Illegal instruction")),
        (C.aborted, W.signal, r"^Aborted(?: \(core dumped\))?$|: line \d+: +\d+ Aborted\b", ("Aborted",)),
        (C.cancelled, W.signal, r"^KeyboardInterrupt$", ("KeyboardInterrupt",)),
    ),
)  # fmt: skip

DIVERGED = (
    *signatures(
        "Megatron-LM (rerun_state_machine.py), DeepSpeed (loss scaler), fairseq, timm, torch.autograd.anomaly_mode",
        (C.diverged, W.end, r"(?i)loss (?:is|became|was) (?:nan|inf)|(?:nan|inf) in (?:loss|local grad|local f)",
         ("loss is", "loss became", "loss was", "Loss is", "nan in l", "inf in l", "NaN in l")),
        (C.diverged, W.end, r"Unexpected result (?:nan|-?inf) on rank \d", ("Unexpected result",)),
        (C.diverged, W.end, r"Current loss scale already at minimum", ("loss scale already",)),
        (C.diverged, W.end, r"^FloatingPointError: Minimum loss scale reached", ("Minimum loss scale",)),
        (C.diverged, W.end, r"Function '\w+' returned nan values in its|Train loss contains a NaN",
         ("returned nan values", "loss contains a NaN")),
    ),
)  # fmt: skip

PROGRAMS = (*TORCH, *LAUNCHERS, *SYSTEM, *DIVERGED)

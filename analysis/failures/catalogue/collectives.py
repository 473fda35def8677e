"""Signatures of communication between ranks: torch's process groups, NCCL and RCCL, UCX, libfabric, MPI, PMIx."""

from __future__ import annotations

from analysis.failures.catalogue.signature import Weight, signatures
from jobs.failures import FailureCause

C, W = FailureCause, Weight

TORCH = (
    *signatures(
        "https://github.com/pytorch/pytorch (torch/csrc/distributed/c10d, torch/distributed)",
        (C.hung, W.consequence, r"Watchdog caught collective operation timeout|failed to pass monitoredBarrier|"
         r"[Tt]imed out (?:in monitoredBarrier|waiting \d+ms for (?:recv|send) operation)",
         ("Watchdog caught", "monitoredBarrier", "imed out waiting")),
        (C.hung, W.consequence, r"\bTimeout at NCCL work: \d|dump signal due to a collective timeout|NCCL watchdog "
         r"hang|"
         r"failure detected by watchdog at work|due to collective timeout or exception|"
         r"dump signal from another rank|watchdog got stuck "
         r"for \d+ seconds|timed out in call to wait|"
         r"Some NCCL operations have failed or timed out",
         ("Timeout at NCCL work", "due to a collective timeout", "NCCL watchdog hang", "detected by watchdog",
          "due to collective timeout", "dump signal from", "watchdog got stuck", "in call to wait",
         "Some NCCL operations")),
        (C.hung, W.consequence, r"Heartbeat monitor timed out! Process will be terminated|"
         r"Did not get (?:initial|subsequent) heartbeat", ("Heartbeat monitor", " heartbeat")),
        (C.lost_peer, W.consequence, r"Rendezvous\w*Error\b|Connection (?:reset|closed|refused)\b|Broken pipe",
         ("Rendezvous", "Connection re", "Connection closed", "Broken pipe")),
        # While it is still retrying, it has not ended.
        (C.lost_peer, W.consequence, r"^(?!.*\bretrying\b).*(?:The client socket has (?:timed out|failed to connect)|"
         r"TCP client failed to connect/validate)", ("The client socket has", "TCP client failed")),
        (C.lost_peer, W.consequence, r"^RuntimeError: connect\(\) timed out", ("connect() timed out",)),
        (C.lost_peer, W.consequence, r"store->get\('.*got error|(?i:wait timeout|Timeout waiting|"
         r"timed out after).*\b(?:keys?|clients)\b|Timed out initializing process group in store based barrier",
         ("store->get(", "ait timeout", "imeout waiting", "imed out after", "store based barrier")),
        (C.lost_peer, W.consequence, r"^\w*Error: .*\bgloo/transport/", ("gloo/transport",)),
        (C.lost_peer, W.consequence, r"Gloo connectFullMesh failed|[Ff]ailed to recv, got 0 bytes|"
         r"\[enforce fail at \S*gloo/|Socket Timeout$|Stop_waiting response is expected|recvValue failed on|"
         r"sendBytes failed on",
         ("connectFullMesh", "ailed to recv, got", "[enforce fail at", "Socket Timeout", "Stop_waiting",
          "Value failed on",
          "Bytes failed on")),
        (C.code, W.end, r"Detected mismatch between collectives on ranks", ("Detected mismatch between",)),
        # The others aborted their communicators, because one rank had failed.
        (C.lost_peer, W.consequence, r"NCCL communicator (?:was|has been) (?:aborted|destroyed)|"
         r"NCCL communicator encountered error set by", ("NCCL communicator",)),
    ),
    *signatures(
        "https://github.com/pytorch/pytorch (torch/distributed/rendezvous.py, distributed_c10d.py)",
        (C.refused, W.end, r"environment variable "
         r"(?:RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT|LOCAL_RANK) expected, but not set|rendezvous: [\w ]+ parameter "
         r"missing", ("expected, but not set", "parameter missing")),
        (C.refused, W.end, r"^(?:\w+\.)*KeyError: '(?:RANK|LOCAL_RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT|SLURM_\w+)'$",
         ("RANK'", "WORLD_SIZE'", "MASTER_ADDR'", "MASTER_PORT'", "'SLURM_")),
        advice="Start the program by its launcher (srun with the variables of the ranks, torchrun, accelerate), not as "
        "a single process.",
    ),
    *signatures(
        "https://github.com/pytorch/pytorch (torch/distributed/distributed_c10d.py, ProcessGroupNCCL.cpp)",
        (C.launch_failure, W.end, r"Distributed package doesn't have (?:NCCL|MPI|Gloo|XCCL|UCC) built in|"
         r"ProcessGroupNCCL is only supported with GPUs, no GPUs found",
         ("Distributed package doesn't", "ProcessGroupNCCL is only")),
        advice="Install a torch that has the backend, and check that the GPUs are visible on that node.",
    ),
)  # fmt: skip

NCCL = (
    *signatures(
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname, "
        "https://github.com/NVIDIA/nccl (src/misc/socket.cc, src/bootstrap.cc)",
        (C.refused, W.end, r"no socket interface found", ("no socket interface",)),
        advice="Set NCCL_SOCKET_IFNAME to an interface that each node has (`ip -brief address`).",
    ),
    *signatures(
        "https://github.com/NVIDIA/nccl (src/misc/shmutils.cc)",
        (C.out_of_host_memory, W.end, r"NCCL WARN .*(?:failed to extend|"
         r"Error while (?:attaching|creating) shared memory|shm_open|/dev/shm/nccl)", ("NCCL WARN",)),
        advice="Enlarge /dev/shm on the node or of the container (docker: --shm-size, Kubernetes: an emptyDir in "
        "memory).",
    ),
    *signatures(
        "https://github.com/NVIDIA/nccl (src/init.cc)",
        (C.refused, W.end, r"Duplicate GPU detected", ("Duplicate GPU detected",)),
        advice="Start at most one rank for each GPU, and let each rank select the GPU of its local rank.",
    ),
    *signatures(
        "https://github.com/NVIDIA/nccl (src/nccl.h.in: ncclResult_t, src/transport/net_ib.cc, src/ras), "
        "https://github.com/aws/aws-ofi-nccl",
        (C.code, W.consequence, r"NCCL WARN .*(?:Mismatched collective|mismatch(?:ed)? in collective)", ("NCCL WARN",)),
        (C.hung, W.consequence, r"NCCL WARN .*[Cc]ollective mismatch", ("NCCL WARN",)),
        (C.lost_peer, W.consequence, r"\[\d+\] \S+:\d+ WARN (?:.*[Ss]ocket .*failed|Call to \w+ .*failed|Net : )",
         ("] misc/", "] include/", "] transport")),
        # A failure of another kind is printed before it.
        (C.out_of_gpu_memory, W.consequence, r"NCCL WARN .*Failed to CUDA (?:m|c)alloc", ("NCCL WARN",)),
        (C.lost_peer, W.consequence, r"NCCL WARN .*(?:[Ss]ocket \w+ failed|Got completion .*with (?:status|error)|"
         r"Call to \w+ .*failed|[Cc]onnect to \S+ (?:failed|returned)|Timeout waiting for|Unable to (?:find|connect)|"
         r"[Ff]ailed to (?:connect|execute operation (?!Close))|NET/OFI .*(?:failed|error))", ("NCCL WARN",)),
        # The adapter reports its own port or itself.
        (C.hardware, W.consequence, r"NCCL WARN NET/IB : .*Got async .*event ?: .*(?:port error|fatal|port down)|"
         r"IBV_EVENT_(?:PORT_ERR|DEVICE_FATAL)\b", ("NCCL WARN", "IBV_EVENT_")),
        (C.lost_peer, W.consequence, r"IBV_EVENT_(?:QP_FATAL|CQ_ERR)\b", ("IBV_EVENT_",)),
        (C.lost_peer, W.consequence, r"NET/OFI Request \S+ completed with error|NET/OFI .*\bRC: \d+\. Error: ",
         ("NET/OFI",)),
        # A local CUDA call failed: its own text decides, if it is in the log.
        (C.unknown, W.signal, r"NCCL [Ee]rror\b.*\bunhandled cuda error|\bncclUnhandledCudaError: ",
         ("unhandled cuda error", "ncclUnhandledCudaError")),
        (C.unknown, W.signal, r"NCCL [Ee]rror\b.*\binternal error|\bncclInternalError: |\bncclInProgress: ",
         ("internal error", "ncclInternalError", "ncclInProgress")),
        (C.code, W.consequence, r"NCCL [Ee]rror\b.*\binvalid (?:usage|argument)|\bncclInvalid(?:Usage|Argument): ",
         ("invalid usage", "invalid argument", "ncclInvalid")),
        (C.lost_peer, W.consequence, r"NCCL [Ee]rror.*\b(?:unhandled system error|remote process (?:has )?exited)|"
         r"\bnccl(?:System|Remote)Error: |\bncclResult: (?:ncclSystemError|ncclRemoteError)\b",
         ("NCCL error", "NCCL Error", "ncclSystemError", "ncclRemoteError")),
    ),
)  # fmt: skip

FABRICS = (
    *signatures(
        "https://github.com/openucx/ucx (src/uct/ib), https://github.com/ofiwg/libfabric, https://www.mpich.org, PSM2, "
        "https://github.com/open-mpi/ompi (opal/mca/btl)",
        (C.lost_peer, W.consequence, r"UCX\s+ERROR.*(?:[Ee]ndpoint (?:timeout|is not connected|\S+ error)|unreachable|"
         r"[Cc]onnection (?:reset|refused|timed out)|connect\(.*failed)|ib_mlx5_log\.c:\d+ .*(?:Transport retry count "
         r"exceeded|RNR retry count exceeded|Remote (?:operation|access) error|Local protection)",
         ("UCX ", "ib_mlx5_log")),
        (C.lost_peer, W.consequence, r"\bmlx5: \S+: got completion with error", ("got completion with error",)),
        (C.lost_peer, W.consequence, r"(?i)(?:transport|RNR) retry (?:count(?:er)? )?exceeded|RETRY EXCEEDED ERROR",
         ("retry count", "RETRY EXCEEDED", "etry counter")),
        (C.lost_peer, W.consequence, r"\bOFI (?:poll|call) \S* ?failed|MPIDI_OFI_handle_cq_error|"
         r"PSM2?.*Endpoint could not be reached|btl_tcp_endpoint.*(?:connect\(\) to|recv\().*failed|BTL_ERROR",
         ("OFI poll", "OFI call", "MPIDI_OFI", "Endpoint could not", "btl_tcp_endpoint", "BTL_ERROR")),
    ),
    *signatures(
        "https://support.huawei.com (HCCL error codes EI0001 to EI0015)",
        (C.lost_peer, W.consequence, r"\bEI0006\b|\bEI0013\b", ("EI0006", "EI0013")),
        (C.hung, W.consequence, r"\bEI0002\b", ("EI0002",)),
    ),
)  # fmt: skip

MPI = (
    *signatures(
        "https://github.com/open-mpi/ompi (help texts), https://github.com/pmodels/mpich (hydra), "
        "https://github.com/openpmix/prrte, https://github.com/horovod/horovod",
        (C.launch_failure, W.consequence, r"It looks like \w+ failed for some reason|But I couldn't open the help file|"
         r"An error occurred in MPI_Init|Local abort before MPI_INIT|"
         r"MPI_INIT failed for|Fatal error in (?:internal_|P)?MPI_Init",
         ("It looks like ", "open the help file", "in MPI_Init", "before MPI_INIT", "MPI_INIT failed", "MPI_Init")),
        (C.aborted, W.signal, r"\bMPI_ERRORS_ARE_FATAL\b|Fatal error in (?:internal_|P)?MPI_", ("MPI_ERRORS_ARE",
         "Fatal error in")),
        (C.aborted, W.signal, r"\bMPI_ABORT was invoked on rank \d|\bapplication called MPI_Abort\(",
         ("MPI_ABORT", "MPI_Abort")),
        (C.lost_peer, W.consequence, r"An MPI communication peer process has unexpectedly disconnected|"
         r"(?:ORTE|PRTE) has lost communication with a remote|"
         r"at least one MPI process is unreachable from|an error in the communication between \w+ daemons",
         ("MPI communication peer", "has lost communication with",
          "MPI process is unreachable",
          "error in the communication between")),
        # Classes of errors of the caller.
        (C.code, W.consequence, r"\*\*\* MPI_ERR_(?:TRUNCATE|TYPE|COUNT|BUFFER|ARG|TAG|RANK|COMM|OP|ROOT|GROUP): ",
         ("*** MPI_ERR_",)),
        (C.hung, W.consequence, r"\bis stalled for longer than \d+ seconds\. Will shutdown", ("Will shutdown",)),
        (C.code, W.consequence, r"\bSignal: (?:Segmentation fault|Floating point) \(",
         ("Signal: ",)),
        (C.aborted, W.signal, r"\bSignal: Aborted \(6\)", ("Signal: Aborted",)),
        (C.unknown, W.signal, r"^\s*Process name: \[\[\d+,\d+\],\d+\]", ("Process name: [[",)),
        # The others report the exception of one rank, as Horovod's text says itself.
        (C.unknown, W.signal, r"process returned\s+a non-zero exit code|Horovod has been shut down",
         ("process returned", "Horovod has been shut")),
        (C.time_limit, W.end, r"time limit for job execution has been reached", ("time limit for job execution",)),
    ),
    *signatures(
        "https://github.com/open-mpi/ompi, https://github.com/openpmix/prrte (help texts of mpirun), "
        "https://slurm.schedmd.com/mpi_guide.html",
        (C.refused, W.end, r"There are not enough slots available in the system|"
         r"All nodes which are allocated for this job are already filled|binding more (?:processes|cpus)\b|"
         r"has detected an attempt to run as root|Invalid MPI type '",
         ("not enough slots", "are already filled", "binding more", "attempt to run as root", "Invalid MPI type")),
        advice="Ask for as many tasks as mpirun starts (--ntasks, --ntasks-per-node), and check the binding options.",
    ),
    *signatures(
        "https://github.com/open-mpi/ompi, https://github.com/openpmix/prrte (help texts of mpirun)",
        (C.launch_failure, W.end, r"No components were able to be opened in|A requested component was not found|"
         r"UCP worker does not support MPI_THREAD|(?:PML|MTL|BTL) \w+ cannot be selected|OPAL ERROR: (?!Timeout)|"
         r"could not be loaded: .*\bmca_|(?:could not|was unable to) (?:access or execute|find) an? executable|"
         r"was unable to (?:launch|start) the specified application|"
         r"(?:ORTE|PRTE|PRRTE) was unable to reliably start one or more daemons|"
         r"An? (?:ORTE|PRTE|PRRTE) daemon has unexpectedly failed|OMPI was not built with S\w+'s PMI support|"
         r"PMI2?_Init failed|unable to find the specified executable|HYDU_create_process .*execvp error",
         ("able to be opened", "requested component", "UCP worker", "cannot be selected", "OPAL ERROR",
          "could not be loaded: ", "an executable", "the specified application", "reliably start",
          "daemon has unexpectedly", "PMI support",
          "_Init failed", "specified executable", "HYDU_create_process")),
        advice="Check that the program and MPI exist on each node, and that mpirun and srun use the same PMI.",
    ),
)  # fmt: skip

COLLECTIVES = (*TORCH, *NCCL, *FABRICS, *MPI)

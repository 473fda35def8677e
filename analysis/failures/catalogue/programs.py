"""Signatures of programs: torch, vLLM, launchers, JAX, Ray, signals that ended a process, diverging losses."""

from __future__ import annotations

from analysis.failures.catalogue.signature import Weight, signatures
from jobs.failures import FailureCause

C, W = FailureCause, Weight

# "exited on signal 9", "interrupted by signal 11: SIGSEGV", "KILLED BY SIGNAL: 6", "terminated with signal SIGKILL".
BY_SIGNAL = r"(?i)(?:\b(?:by|on|with|from|received) |\()signal:? (?:{})\b"
# "Exited with exit code 137", "exitCode: 137".
EXIT_CODE = (
    r"(?i)\b(?:exit(?:ed)?(?: with)?(?:[ _]?(?:code|status))+|return[ _]?code|exited with)\W{{1,4}}(?<![\d-])(?:{})\b"
)

# Of Python's subprocess; PBS has other meanings for a negative Exit_status.
NEGATIVE_CODE = r"\b(?:exit|return|exited with)[ _]?code\W{{1,3}}-(?:{})\b"

TORCH = (
    *signatures(
        "https://github.com/pytorch/pytorch (c10, torch.multiprocessing, torchrun)",
        (C.out_of_gpu_memory, W.end, r"^(?!java\.)[\w.]*OutOfMemoryError: (?!Task)", ("OutOfMemoryError",)),
        (C.out_of_host_memory, W.end, r"DefaultCPUAllocator: (?:can't allocate|not enough) memory",
         ("DefaultCPUAllocator",)),
        (C.killed, W.signal, r"\bexitcode: -9\b|Signal 9 \(SIGKILL\)", ("exitcode", "Signal 9")),
        (C.aborted, W.signal, r"\bexitcode: -6\b|Signal 6 \(SIGABRT\)", ("exitcode", "Signal 6")),
        (C.code, W.consequence, r"\bexitcode: -(?:8|11)\b|Signal (?:8|11) \(SIG",
         ("exitcode", "Signal 8 (", "Signal 11 (")),
        (C.unknown, W.signal, r"\bfailed \(exitcode: [1-9]\d*\) local_rank: \d", ("exitcode",)),
        (C.cancelled, W.signal, r"SignalException: Process \d+ got signal: 2\b|Detected KeyboardInterrupt",
         ("SignalException", "Detected KeyboardInterrupt")),
    ),
    *signatures(
        "https://github.com/sgl-project/sglang (managers/scheduler.py), https://github.com/vllm-project/vllm "
        "(v1/executor/multiproc_executor.py)",
        (C.hung, W.consequence, r"\b[Ww]atchdog timeout \(self\.watchdog_timeout=|\bRPC call to \w+ timed out",
         ("atchdog timeout", "RPC call to")),
    ),
)  # fmt: skip

LAUNCHERS = (
    *signatures(
        "https://github.com/NVIDIA/NeMo (utils/callbacks/preemption.py), https://github.com/AI-Hypercomputer/maxtext, "
        "https://github.com/Lightning-AI/pytorch-lightning (trainer/connectors/signal_connector.py)",
        # Slurm's own reason decides, if it is in the log.
        (C.preempted, W.consequence, r"\bPreemption detected, signaling trainer to stop|"
         r"\bTraining stopped: Job is preempted", ("Preemption detected", "Job is preempted")),
        (C.requeued, W.consequence, r"\bRequeued SLURM job: \d", ("Requeued SLURM job",)),
    ),
    *signatures(
        "https://github.com/deepspeedai/DeepSpeed/blob/master/deepspeed/launcher/launch.py",
        (C.killed, W.signal, r"exits with return code = -9\b", ("exits with return code",)),
        (C.aborted, W.signal, r"exits with return code = -6\b", ("exits with return code",)),
        (C.code, W.consequence, r"exits with return code = -(?:8|11)\b", ("exits with return code",)),
        (C.launch_failure, W.consequence, r"exits with return code = -4\b", ("exits with return code",)),
        (C.unknown, W.signal, r"exits with return code = (?!-7\b)-?[1-9]", ("exits with return code",)),
    ),
    *signatures(
        "https://github.com/mosaicml/composer (composer/cli/launcher.py)",
        (C.unknown, W.signal, r"composer\.cli\.launcher:(?:Global rank|Rank) \d+ .*code (?!-(?:4|6|8|9|11|"
         r"15)\b)-?[1-9]",
         ("composer.cli.launcher:",)),
    ),
    *signatures(
        "https://github.com/openssh/openssh-portable, pdsh, https://github.com/deepspeedai/DeepSpeed "
        "(launcher/multinode_runner.py)",
        (C.lost_peer, W.consequence, r"^(?:\S+: )?ssh: (?:connect to host|Could not resolve)|ssh exited with exit "
         r"code 255",
         ("ssh: ", "ssh exited with")),
        (C.launch_failure, W.end, r"^(?:\S+: )?Host key verification failed|Permission denied \([a-z,-]*publickey|"
         r"launcher '\w+' not installed", ("Host key verification", "publickey", "not installed")),
        advice="Let the launching node log in on the others without a password, or start the ranks by srun.",
    ),
    *signatures(
        "https://github.com/ray-project/ray (src/ray/raylet, python/ray/exceptions.py)",
        (C.out_of_host_memory, W.fault, r"killed due to memory pressure \(OOM\)|node running low on memory|"
         r"may have exceeded K8s pod memory limits",
         ("due to memory pressure", "running low on memory", "K8s pod memory limits")),
        (C.out_of_host_memory, W.end, r"ObjectStoreFullError\b", ("ObjectStoreFullError",)),
        (C.node_failure, W.end, r"NodeDiedError\b|because its node has died|was marked dead because the detector "
         r"has missed",
         ("NodeDiedError", "its node has died", "marked dead because")),
        (C.launch_failure, W.end, r"RuntimeEnvSetupError\b|current node timed out during startup|"
         r"No available agent to submit job|Job supervisor actor (?:failed to start|died)|"
         r"Version mismatch: The cluster was started with:",
         ("RuntimeEnvSetupError", "timed out during startup", "No available agent", "ob supervisor actor",
          "Version mismatch: The cluster")),
        (C.cancelled, W.end, r"Status message: Job was intentionally stopped", ("Job was intentionally stopped",)),
        (C.refused, W.end, r"total (?:available|desired) GPUs|No available node types can fulfill resource",
         ("total available GPUs", "total desired GPUs", "No available node types")),
        (C.lost_peer, W.consequence, r"LocalRayletDiedError\b|[Ff]ailed to connect to GCS|GCS server .*(?:down|lost)|"
         r"RpcError: RPC [Ee]rror", ("LocalRayletDiedError", "connect to GCS", "GCS server", "RpcError")),
        (C.killed, W.signal, r"Worker (?:unexpectedly exits with a connection error|exits unexpectedly)|"
         r"A worker died or was killed while executing a task",
         ("Worker unexpectedly exits", "Worker exits unexpectedly", "worker died or was killed")),
    ),
    *signatures(
        "https://github.com/openxla/xla (coordination service), https://github.com/tensorflow/tensorflow",
        (C.out_of_gpu_memory, W.end, r"RESOURCE_EXHAUSTED: .*(?:[Oo]ut of memory|[Ff]ailed to allocate|attempting "
         r"to (?:allocate|reserve)|Attempting to "
         r"(?:allocate|reserve))|OOM when allocating tensor|"
         r"Out of memory error on GPU \d",
         ("RESOURCE_EXHAUSTED", "OOM when allocating", "Out of memory error on")),
        (C.launch_failure, W.end, r"TPU (?:platform |backend )?.*(?:already in use|initialization failed)|"
         r"Error: Unable to initialize backend '\w+': |"
         r"TensorFlow library was compiled to use \S+ instructions, but these aren't available",
         ("TPU ", "Unable to initialize backend", "library was compiled to use")),
        (C.lost_peer, W.consequence, r"[Dd]eadline [Ee]xceeded: Failed to connect|StatusCode\.(?:UNAVAILABLE|"
         r"DEADLINE_EXCEEDED)|failed to connect to (?:all addresses|remote host)",
         ("eadline ", "StatusCode.", "failed to connect to")),
        (C.storage, W.end, r"Error writing \(tmp\) checkpoint|[Rr]esource exhausted: /\S|"
         r"Unable to open table file .*: DATA_LOSS|\bDATA_LOSS: ",
         ("Error writing (tmp)", "esource exhausted: /", "DATA_LOSS")),
        (C.refused, W.consequence, r"\b(?:NOT_FOUND|PERMISSION_DENIED|UNAUTHENTICATED): "
         r"(?!.*(?:[Dd]evice|custom call))",
         ("NOT_FOUND: ", "PERMISSION_DENIED: ", "UNAUTHENTICATED: ")),
        (C.code, W.consequence, r"\bINVALID_ARGUMENT: .*\b(?:shape|rank|dimension|dtype|operand|argument \d)|"
         r"\bInvalidArgumentError\b.*\b(?:shape|rank|dimension|dtype|index|indices|logits|labels|incompatible|"
         r"[Ii]nputs?)\b", ("INVALID_ARGUMENT: ", "InvalidArgumentError")),
        (C.code, W.consequence, r"likely an XLA compiler bug|^F\d{4} .*Check failed: |^LLVM ERROR: |^Unhandled "
         r"exception:$",
         ("XLA compiler bug", "Check failed: ", "LLVM ERROR", "Unhandled exception:")),
        (C.hung, W.consequence, r"\bDEADLINE_EXCEEDED: Barrier timed out|\bTermination timeout for `.*` of \d+ seconds "
         r"exceeded", ("DEADLINE_EXCEEDED", "Termination timeout")),
        (C.lost_peer, W.consequence, r"because the (?:JAX distributed service detected fatal errors|"
         r"coordinator detected missing heartbeats)",
         ("JAX distributed service", "coordinator detected missing heartbeats")),
        (C.lost_peer, W.consequence, r"DEADLINE_EXCEEDED: (?:Connect\(\) timed out|"
         r"Deadline Exceeded)|XlaRuntimeError: (?:UNAVAILABLE|DEADLINE_EXCEEDED): |UNAVAILABLE: Task \S+ heartbeat "
         r"timeout|ERROR in coordination service",
         ("DEADLINE_EXCEEDED", "UNAVAILABLE: ", "heartbeat timeout", "in coordination service")),
    ),
)  # fmt: skip

# The cause stands in the log of the process that the line mentions.
REPORTS = (
    *signatures(
        "https://github.com/vllm-project/vllm (v1/engine, v1/executor), https://github.com/ray-project/ray",
        (
            C.unknown,
            W.signal,
            r"[Ss]ee (?:stack trace for )?root cause|Engine (?:core initialization|process) failed|"
            r"in a background process\.|Failed to unpickle serialized exception|"
            r"[Cc]heck the (?:print statements|logs?|messages?|output) above",
            (
                "ee stack trace for",
                "ee root cause",
                "Engine ",
                "in a background process",
                "heck the ",
                "Failed to unpickle",
            ),
        ),
    ),
)

SYSTEM = (
    *signatures(
        "https://man7.org/linux/man-pages/man7/signal.7.html (SIGBUS), https://man7.org/linux/man-pages/man2/mmap.2.html",
        (C.unknown, W.signal, r"\bexitcode: -7\b|exits with return code = -7\b|(?:^|: |: line \d+: +\d+ )Bus error\b|"
         r"Signal 7 \(SIGBUS|Signal: Bus error \(|" + BY_SIGNAL.format("7|SIGBUS")[4:] + r"|\bexit code 135\b",
         ("exitcode: -7", "return code = -7", "Bus error", "SIGBUS", "signal 7", "exit code 135")),
        advice="SIGBUS is raised for a mapped page that has no memory behind it: the usual source is a full /dev/shm, "
        "then a file that was truncated.",
    ),
    *signatures(
        "glibc, libstdc++, CPython, GNU time and bash",
        # SIGILL: the program or a library was compiled for another processor.
        (C.launch_failure, W.consequence, BY_SIGNAL.format("4|SIGILL") + "|" + EXIT_CODE.format("132")[4:] + "|"
         + NEGATIVE_CODE.format(4) + r"|(?:^|: |\d )Illegal instruction\b|\bexitcode: -4\b|return code = -4\b|"
         r"Signal 4 \(SIG|Signal: Illegal instruction \(|\*\*\* SIGILL |traps: .*invalid opcode",
         ("signal 4", " SIGNAL: 4", "SIGILL", "132", "-4", "Illegal instruction", "Signal 4 (", "invalid opcode")),
        (C.killed, W.signal, BY_SIGNAL.format("9|SIGKILL"), ("signal 9", " SIGNAL: 9", "signal SIGKILL")),
        (C.aborted, W.signal, BY_SIGNAL.format("6|SIGABRT"), ("signal 6", " SIGNAL: 6", "signal SIGABRT")),
        (C.code, W.consequence, BY_SIGNAL.format("8|11|SIGFPE|SIGSEGV"),
         ("signal 8", "signal 11", " SIGNAL: 8", " SIGNAL: 11", "signal SIGSEGV",
          "signal SIGFPE")),
        (C.killed, W.signal, r"code=killed, status=9/KILL", ("status=9/KILL",)),
        (C.killed, W.signal, EXIT_CODE.format("137") + "|" + NEGATIVE_CODE.format(9), ("137", "-9")),
        (C.aborted, W.signal, EXIT_CODE.format("134") + "|" + NEGATIVE_CODE.format(6), ("134", "-6")),
        (C.code, W.consequence, EXIT_CODE.format("136|139") + "|" + NEGATIVE_CODE.format("8|11"),
         ("136", "139", "code -", "code: -", "code=-", "code = -")),
        (C.code, W.consequence, r"Caught signal 11\b|\*\*\* SIG(?:SEGV|BUS|FPE) (?:received|\(@)|Segfault "
         r"encountered|^forrtl: severe \(174\): SIGSEGV",
         ("Caught signal 11", "*** SIG", "Segfault encountered", "forrtl: severe (174)")),
        (C.code, W.end, r"^\*\*\* stack smashing detected|^\S+: \S+:\d+: .*: Assertion [`'].*' failed\.",
         ("stack smashing", "Assertion ")),
        # The text of the exception that ended a C++ program.
        (C.refused, W.end, r"^\s*what\(\): .*(?:No such file or directory|"
         r"(?:open(?:ing)? file|[Ff]ile open|cannot open|"
         r"[Ff]ailed to open|could not open)\b)", ("what():",)),
        (C.aborted, W.signal, r"^terminate called (?:after throwing an instance of (?!'std::bad_alloc')|without an "
         r"active)|^\*\*\* Aborted at \d",
         ("terminate called", "*** Aborted at")),
        (C.code, W.consequence, r"^Fatal Python error: (?!Aborted|Bus error)", ("Fatal Python error",)),
        (C.aborted, W.signal, r"^Fatal Python error: Aborted", ("Fatal Python error",)),
        # Before glibc 2.26 with the name of the program.
        (C.code, W.end, r"^(?:\*\*\* Error in `[^']*': )?(?:(?:malloc|realloc|free|munmap_chunk|malloc_consolidate|"
         r"mremap_chunk)\(\): |double free or corruption \(|corrupted (?:size vs\. prev_size|double-linked list)|"
         r"break adjusted to free malloc space|buffer overflow detected)|^\*\*\* buffer overflow detected",
         ("alloc(): ", "free(): ", "munmap_chunk(): ", "malloc_consolidate()", "double free", "corrupted ",
          "break adjusted", "buffer overflow")),
        (C.out_of_host_memory, W.end, r"terminate called .*'std::bad_alloc'|^\s*what\(\): +std::bad_alloc|"
         r"\[Errno 12\] Cannot allocate memory|(?:fork|mmap)\b.*: Cannot allocate memory|libgomp: Out of memory|"
         r"OpenBLAS.*Memory allocation still failed|^fatal error: runtime: out of memory|^(?:Exception in .*)?"
         r"java\.lang\.OutOfMemoryError",
         ("std::bad_alloc", "Errno 12", "Cannot allocate memory", "libgomp: Out of", "Memory allocation still failed",
          "fatal error: runtime", "java.lang.OutOfMemoryError")),
        (C.killed, W.signal, r"^(?:zsh|bash): killed\b|^Killed$|: line \d+: +\d+ Killed\b", ("Killed", "zsh: killed",
         "bash: killed")),
        (C.code, W.consequence, r"^(?:Segmentation fault|Floating point exception)"
         r"(?: \(core dumped\))?$|: line \d+: +\d+ Segmentation fault\b",
         ("Segmentation fault", "Floating point exception")),
        (C.aborted, W.signal, r"^Aborted(?: \(core dumped\))?$|: line \d+: +\d+ Aborted\b", ("Aborted",)),
        (C.cancelled, W.signal, r"^KeyboardInterrupt$", ("KeyboardInterrupt",)),
    ),
    # The words of errno in a line that is not an exception: they decide where the log has no other proof.
    *signatures(
        "https://man7.org/linux/man-pages/man3/strerror.3.html (glibc's texts of EIO, EROFS, ENOLCK, EACCES, ENOENT)",
        (C.storage, W.signal, r"(?:[;:] |error: |\()(?:Input/output error|Read-only file system|No locks available|"
         r"Stale (?:NFS )?file handle|Structure needs cleaning|File too large|Too many links)\b",
         ("Input/output error", "ead-only file system", "No locks available", "file handle", "needs cleaning",
          "File too large", "Too many links")),
        (C.refused, W.signal, r"^(?!\S*[a-z]Error: ).*\[Errno (?:2|13|20|21)\] "
         r"(?:No such file or directory|Permission denied|Not a directory|"
         r"Is a directory)|^(?:ERROR|Error|error|FATAL|Fatal)\b.*: (?:No such file or directory|Permission denied|"
         r"Not a directory|Is a directory)", ("[Errno ", "No such file or", "Permission denied", "a directory")),
    ),
)  # fmt: skip

DIVERGED = (
    *signatures(
        "Megatron-LM (rerun_state_machine.py), DeepSpeed (loss scaler), fairseq, timm, detectron2, Lightning "
        "(callbacks/early_stopping.py, utilities/_pytree.py), TensorFlow (NanTensorHook), JAX (jax_debug_nans)",
        (C.diverged, W.end, r"(?i)loss (?:is|became|was|turned|went to|goes) (?:nan|inf|not finite|non-finite)|"
         r"\bloss (?:has )?diverged|(?:nan|inf) in (?:loss|local grad|local f)|"
         r"(?:nan|non-finite) loss\b(?!.*(?:skip|0\b))",
         ("loss is", "loss became", "loss was", "loss turned", "loss went", "loss goes", "Loss is", "Loss became",
          "loss diverged", "Loss diverged", "loss has diverged", "nan in l", "inf in l", "NaN in l", "nan loss",
          "NaN loss",
          "NaN Loss", "finite loss")),
        (C.diverged, W.end, r"Unexpected result (?:nan|-?inf) on rank \d", ("Unexpected result",)),
        (C.diverged, W.end, r"\b(?:NaN|Inf) detected in output of|gradients are Nan/Inf|Detected Infinity or NaN",
         ("detected in output of", "gradients are Nan", "Detected Infinity")),
        (C.diverged, W.end, r"Current loss scale already at minimum|\bgrad_scale is too small, exiting",
         ("loss scale already", "grad_scale is too")),
        (C.diverged, W.end, r"^FloatingPointError: Minimum loss scale reached", ("Minimum loss scale",)),
        (C.diverged, W.end, r"Function '\w+' returned nan values in its|Train loss contains a NaN",
         ("returned nan values", "loss contains a NaN")),
        (C.diverged, W.end, r"The loss returned in `training_step` is|Detected nan and/or inf values in|"
         r"NanLossDuringTrainingError|Model diverged with loss|is non-finite, so it cannot be clipped|"
         r"probability tensor contains either `inf`, `nan`|^FloatingPointError: invalid value|"
         r"but found invalid values:|Monitored metric \S+ = (?:nan|-?inf) is not finite|: Nan in summary histogram",
         ("Monitored metric", "Nan in summary", "The loss returned in", "nan and/or inf", "NanLossDuring",
         "Model diverged", "is non-finite",
          "probability tensor contains", "FloatingPointError: ", "found invalid values")),
        # An exception about a loss or gradient that is not a number.
        (C.diverged, W.end, r"^(?:\w+\.)*\w*(?:Error|Exception): (?=.*\b(?:NaN|Nan|nan|NAN|[Ii]nf|INF)s?\b)"
         r".*\b(?i:loss|grad\w*)\b", ("NaN", "Nan", "nan", "NAN", "inf", "Inf", "INF")),
    ),
)  # fmt: skip

PROGRAMS = (*REPORTS, *TORCH, *LAUNCHERS, *SYSTEM, *DIVERGED)

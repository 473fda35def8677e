"""The catalogue of failure signatures: each line is written in the shape of its source, none is a line of a log."""

from __future__ import annotations

import csv
import re
from importlib import resources

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analysis.failures.catalogue import SIGNATURES
from analysis.failures.catalogue.markers import markers_of
from analysis.failures.catalogue.table import read
from analysis.failures.signatures import known, matches, search
from analysis.failures.verdict import Verdict, decide
from jobs.failures import FailureCause as C

TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 7, in <module>\n    main()\n'


def of(log: str) -> Verdict:
    return decide(matches(search().lines([log.encode()])))


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        # NVIDIA's Xids: what they were caused by.
        ("NVRM: Xid (PCI:0000:3b:00): 119, pid=9, Timeout waiting for RPC from GSP!", C.hardware),
        ("NVRM: Xid (PCI:0000:3b:00): 74, pid=9, NVLink: fatal error detected on link 2", C.hardware),
        ("NVRM: Xid (PCI:0000:3b:00): 13, pid=9, Graphics Exception: ESR 0x1", C.code),
        ("NVRM: Xid (PCI:0000:3b:00): 63, pid=9, Row Remapper: New row marked", C.unknown),
        ("NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed", C.unknown),
        ("nvidia-nvswitch2: SXid (PCI:0000:05:00.0): 12022, Fatal, Link 7 egress input ECC DBE error", C.hardware),
        ("nvidia-nvswitch2: SXid (PCI:0000:05:00.0): 20001, Non-fatal, Link 7 TX Replay Error", C.unknown),
        # AMD.
        ("amdgpu 0000:63:00.0: amdgpu: GPU reset begin!", C.hardware),
        ("amdgpu 0000:63:00.0: amdgpu: 2 uncorrectable hardware errors detected in umc block", C.hardware),
        ("HW Exception by GPU node-2 (Agent handle: 0x5) reason :GPU Hang", C.hardware),
        # Kernel.
        ("Kernel panic - not syncing: Fatal exception", C.node_failure),
        ("watchdog: BUG: soft lockup - CPU#7 stuck for 26s! [python:99]", C.node_failure),
        ("BUG: unable to handle page fault for address: 00000000deadbeef", C.node_failure),
        ("mce: [Hardware Error]: CPU 3: Machine Check Exception: 5 Bank 7", C.hardware),
        ("Memory cgroup out of memory: Killed process 99 (python) total-vm:1kB", C.out_of_host_memory),
        ("python invoked oom-killer: gfp_mask=0x1, order=0", C.out_of_host_memory),
        ("python[99]: segfault at 8 ip 00007f0000000001 sp 00007f0000000002 error 4 in libx.so", C.code),
        # Memory.
        ("cublas error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)", C.out_of_gpu_memory),
        ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes.", C.out_of_gpu_memory),
        (f"{TRACEBACK}OSError: [Errno 12] Cannot allocate memory", C.out_of_host_memory),
        ("terminate called after throwing an instance of 'std::bad_alloc'", C.out_of_host_memory),
        (f"{TRACEBACK}numpy.core._exceptions._ArrayMemoryError: Unable to allocate 9 GiB", C.out_of_host_memory),
        (f"{TRACEBACK}RuntimeError: DataLoader worker (pid 9) is killed by signal: Killed.", C.killed),
        # Slurm.
        ("srun: error: Unable to create step for job 17: Requested node configuration is not available", C.refused),
        ("srun: error: Task launch for StepId=17.0 failed on node node03: Invalid job credential", C.launch_failure),
        ("sbatch: error: Batch job submission failed: Invalid partition name specified", C.refused),
        ("srun: error: node03: task 5: Exited with exit code 137", C.killed),
        ("srun: error: node03: task 5: Exited with exit code 139", C.code),
        ("srun: error: node03: tasks 0-3: Exited with exit code 143", C.unknown),
        # PBS and LSF.
        ("=>> PBS: job killed: mem 9000kb exceeded limit 8000kb", C.out_of_host_memory),
        ("=>> PBS: job killed: node 1 (node03) requested job terminate, 'EOF' (code 1099)", C.node_failure),
        ("TERM_RUNLIMIT: job killed after reaching LSF run time limit.", C.time_limit),
        ("TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.", C.out_of_host_memory),
        ("TERM_OWNER: job killed by owner.", C.cancelled),
        ("TERM_PREEMPT: job killed after preemption.", C.preempted),
        # Configuration.
        ("train.py: error: one of the arguments --a --b is required", C.refused),
        ('train.py: error: Validation failed: No action for key "lrr"', C.refused),
        ("Could not override 'job.lrr'.", C.refused),
        ("In 'config': Could not find 'model/huge'", C.refused),
        ("Error: No such option: --lrr", C.refused),
        (f"{TRACEBACK}yaml.constructor.ConstructorError: could not determine a constructor", C.refused),
        (f"{TRACEBACK}pydantic_core._pydantic_core.ValidationError: 1 validation error for Job", C.refused),
        (f"{TRACEBACK}omegaconf.errors.InterpolationKeyError: Interpolation key 'x' not found", C.refused),
        (f"{TRACEBACK}tomllib.TOMLDecodeError: Invalid value (at line 1)", C.refused),
        # Launchers and programs.
        ("[launch.py:1:sigkill_handler] ['python', 'train.py'] exits with return code = -11", C.code),
        ("[launch.py:1:sigkill_handler] ['python', 'train.py'] exits with return code = 1", C.unknown),
        ("mpirun noticed that process rank 3 with PID 99 on node node03 exited on signal 9 (Killed).", C.killed),
        (f"{TRACEBACK}subprocess.CalledProcessError: Command '['python']' died with <Signals.SIGKILL: 9>.", C.killed),
        (f"{TRACEBACK}subprocess.CalledProcessError: Command '['python']' returned non-zero exit status 1.", C.unknown),
        ("/var/spool/job17/script: line 9:    99 Segmentation fault      (core dumped) python train.py", C.code),
        ("[PG 0 Rank 2] Heartbeat monitor timed out! Process will be terminated after dumping", C.hung),
        ("FATAL:   could not open image /nowhere.sif: failed to retrieve path", C.launch_failure),
        (f"{TRACEBACK}Exception: Current loss scale already at minimum - cannot decrease scale anymore.", C.diverged),
        # CUDA and HIP: a short text counts only behind the interface's name.
        (f"{TRACEBACK}RuntimeError: CUDA error: device kernel image is invalid", C.launch_failure),
        ("hipErrorNoBinaryForGpu: Unable to find code object for all current devices!", C.launch_failure),
        ("rank 3: Cuda failure 802 'system not yet initialized'", C.hardware),
        (f"{TRACEBACK}RuntimeError: CUDA error: unknown error", C.unknown),
        ("unknown error", C.unknown),
        (f"{TRACEBACK}RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED", C.unknown),
        (f"{TRACEBACK}RuntimeError: cuDNN error: CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH", C.launch_failure),
        ("/a/Loss.cu:7: f: block: [0,0,0], thread: [3,0,0] Assertion `t < n` failed.", C.code),
        ("NVRM: Xid (PCI:0000:3b:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 2", C.unknown),
        ("NVRM: Xid (PCI:0000:3b:00): 145, RLW_RXPIPE Fatal XC0 i0 Link 2", C.hardware),
        # NCCL's results, fabrics, MPI.
        ("ncclUnhandledCudaError: Call to CUDA function failed.", C.unknown),
        ("ncclInvalidUsage: This usually reflects invalid usage of NCCL library.", C.code),
        ("ncclRemoteError: A call failed possibly due to a network error", C.lost_peer),
        ("n1:7:9 [0] NCCL WARN Bootstrap : no socket interface found", C.refused),
        ("n1:7:9 [0] NCCL WARN Error: failed to extend /dev/shm/nccl-x to 9 bytes", C.out_of_host_memory),
        (f"{TRACEBACK}RuntimeError: NCCL communicator was aborted on rank 3.", C.lost_peer),
        ("[rank2]:[F1 x.cpp:1] [Rank 2] Terminating the process, due to ProcessGroupNCCL watchdog hang.", C.hung),
        ("[W1 socket.cpp:1] [c10d] The client socket has failed to connect to [n1]:29500 (errno: 97).", C.unknown),
        ("There are not enough slots available in the system to satisfy the 9 slots", C.refused),
        ("*** An error occurred in MPI_Init_thread", C.launch_failure),
        # Warnings of runs that go on.
        ("n1:7:9 [0] NCCL WARN [Proxy Service 0] Failed to execute operation Close from rank 0, retcode 3", C.unknown),
        ("WARNING:datasets.load:Using the latest cached version of the module (OfflineModeIsEnabled).", C.unknown),
        ("[WARNING] [engine.py:2699:load_checkpoint] Unable to find latest file at ./latest", C.unknown),
        (
            "CommandNotFoundError: Your shell has not been properly configured to use 'conda activate'.\n"
            "slurmstepd: error: *** JOB 4 ON n1 CANCELLED AT 2022-04-14T16:17:16 DUE TO TIME LIMIT ***",
            C.time_limit,
        ),
        # Hubs, checkpoints, versions.
        (f"{TRACEBACK}huggingface_hub.errors.GatedRepoError: 401 Client Error.", C.refused),
        (f"{TRACEBACK}OSError: We couldn't connect to 'https://huggingface.co' to load the files", C.lost_peer),
        (f"{TRACEBACK}RuntimeError: Error(s) in loading state_dict for GPT:", C.refused),
        (f"{TRACEBACK}pyarrow.lib.ArrowInvalid: Parquet magic bytes not found in footer.", C.storage),
        (f"{TRACEBACK}ModuleNotFoundError: No module named 'flash_attn'", C.launch_failure),
        (f"{TRACEBACK}RuntimeError: Error building extension 'cpu_adam'", C.launch_failure),
        (f"{TRACEBACK}FileNotFoundError: [Errno 2] No such file or directory: 'nvcc'", C.launch_failure),
        (f"{TRACEBACK}FileNotFoundError: [Errno 2] No such file or directory: 'data/train.bin'", C.refused),
        # The program refuses a value: by its words, or because the innermost frame checks a configuration.
        (f"{TRACEBACK}AssertionError: num_heads (9) must be divisible by 2", C.refused),
        (f"{TRACEBACK}ValueError: Cannot shard: --tensor-parallel needs 8 GPUs", C.refused),
        (TRACEBACK.replace("train.py", "arguments.py") + "AssertionError: odd", C.refused),
        (f"{TRACEBACK}AssertionError: odd", C.code),
        # The known text of a chain of exceptions, and not the first one.
        (
            f"{TRACEBACK}KeyError: 'x'\n\nDuring handling of the above exception, another exception occurred:\n\n"
            f"{TRACEBACK}OSError: [Errno 28] No space left on device",
            C.storage,
        ),
        # Loggers' and Ray's prefixes; Ray's exception repeats a type.
        ("(W pid=7, ip=10.0.0.1) Traceback (most recent call last):\n(W pid=7, ip=10.0.0.1) TypeError: boom", C.code),
        (
            "ERROR 01-02 03:04:05 [core.py:7] Traceback (most recent call last):\n"
            "ERROR 01-02 03:04:05 [core.py:7] ImportError: cannot import name 'x'",
            C.launch_failure,
        ),
        ("ray.exceptions.RayTaskError(IndexError): ray::f() (pid=7, ip=10.0.0.1)", C.code),
        ("Error: failed to run torchrun", C.unknown),
        # Tables and mails of Slurm; signals by exit codes; SIGBUS does not name its cause.
        ("17.0     python   4 OUT_OF_ME+    0:125 ", C.out_of_host_memory),
        ("State: TIMEOUT (exit code 0)", C.time_limit),
        ("Rank 2 crashed with exit code -9", C.killed),
        ("Exit_status=-29", C.time_limit),
        ("srun: error: node03: task 5: Bus error", C.unknown),
        ("slurmstepd: error: xcgroup_instantiate: unable to create cgroup 'x' : No space left on device", C.unknown),
        # Storage.
        (f"{TRACEBACK}OSError: [Errno 122] Disk quota exceeded: '/scratch/you/last.pt'", C.storage),
        ("cp: error writing '/scratch/you/a': No space left on device", C.storage),
        (f"{TRACEBACK}OSError: [Errno 28] No space left on device: '/dev/shm/psm_1'", C.out_of_host_memory),
        (f"{TRACEBACK}_pickle.UnpicklingError: pickle data was truncated", C.storage),
        (f"{TRACEBACK}_pickle.UnpicklingError: Weights only load failed.", C.code),
        # Starts: CUDA's and the loader's own texts, ports.
        (
            f"{TRACEBACK}RuntimeError: CUDA error: no kernel image is available for execution on the device",
            C.launch_failure,
        ),
        (f"{TRACEBACK}ImportError: /opt/x.so: cannot allocate memory in static TLS block", C.launch_failure),
        (
            "W tensorflow: Could not load dynamic library 'libx.so'; dlerror: libx.so: cannot open shared object file",
            C.unknown,
        ),
        # The state of a job as scontrol and the controller print it.
        ("   JobState=TIMEOUT Reason=TimeLimit Dependency=(null)", C.time_limit),
        (
            "slurmstepd: error: *** STEP 7.0 ON node03 CANCELLED AT 2026-02-03T04:05:06 DUE to SIGNAL Terminated ***",
            C.cancelled,
        ),
        # A traceback that CPython announces as survived; a bare exception; one that only reports another process.
        (
            f"Exception ignored in: <function Pool.__del__ at 0x1>\n{TRACEBACK}OSError: [Errno 5] Input/output error",
            C.unknown,
        ),
        (f"--- Logging error ---\n{TRACEBACK}OSError: [Errno 122] Disk quota exceeded", C.unknown),
        (f"{TRACEBACK}Exception: the queue is out of order", C.code),
        (
            f"{TRACEBACK}ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
            C.unknown,
        ),
        # Of the machine: corrected errors are none.
        ("kernel BUG at mm/slub.c:305!", C.node_failure),
        ("AER: Uncorrectable (Fatal) error received: 0000:3a:00.0", C.hardware),
        ("PCIe Bus Error: severity=Corrected, type=Data Link Layer", C.unknown),
        ("mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 7: 8c00004000010090", C.unknown),
        ("mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 7: be00000000800400", C.hardware),
        ("detected NVSwitch fatal error 20034 on fid 0", C.hardware),
        ("amdgpu 0000:1c:00.0: amdgpu: poison is consumed by client 12, kick off gpu reset flow", C.hardware),
        ("mlx5_core 0000:a1:00.0: poll_health:800:(pid 0): Fatal error 1 detected", C.hardware),
        ("earlyoom: sending SIGTERM to process 12 uid 1000", C.out_of_host_memory),
        # Of resource managers.
        ("srun: error: n1: tasks 0,3: Out Of Memory", C.out_of_host_memory),
        ("salloc: error: Node failure on n1", C.node_failure),
        ("srun: error: task 3 launch failed: Error configuring interconnect", C.launch_failure),
        ("srun: fatal: No command given to execute.", C.refused),
        ("   Exit Status:        -29 (Job failed due to exceeding walltime)", C.time_limit),
        ("flux-job: job.exception type=timeout severity=0 resource allocation expired", C.time_limit),
        ("Message: The node had condition: [DiskPressure].", C.storage),
        ("Preempted to accommodate a workload (UID: 1)", C.preempted),
        # Signals by number, and a launcher's words for them.
        ("ERROR:composer.cli.launcher:Global rank 0 (PID 2) exited with code -11", C.code),
        ("failed (exitcode: -8) local_rank: 0 (pid: 1) of binary: python", C.code),
        # A sentence about a setting, the same words about a tensor, and an assertion by its source line.
        (f"{TRACEBACK}ValueError: Undefined dataset mine in dataset_info.json.", C.refused),
        (f"{TRACEBACK}ValueError: Attention mask should be of size (1, 5), but is (5, 5)", C.code),
        (f"{TRACEBACK}    assert args.batch_size % len(devices) == 0\nAssertionError", C.refused),
        (f"{TRACEBACK}    assert len(indices) == self.total_size\nAssertionError", C.code),
        # A key that the program's own data lack.
        (f"{TRACEBACK}    row = columns['mask']\nKeyError: 'mask'", C.code),
        # A traceback whose first line is lost, and one that a launcher relays.
        ('  File "/x/model.py", line 7, in forward\n    y = f(x)\nIndexError: list index out of range', C.code),
        (
            '2026-02-03 04:05:06,123 - trainer - INFO - [rank3]:   File "/x/model.py", line 7, in forward\n'
            "2026-02-03 04:05:06,123 - trainer - INFO - [rank3]: TypeError: 'int' object is not callable",
            C.code,
        ),
        # The exception of a compiler's backend follows its own line.
        (
            f"{TRACEBACK}torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:\n"
            "RuntimeError: Cannot find a working triton installation.",
            C.launch_failure,
        ),
        (f"{TRACEBACK}RuntimeError: unexpected EOF, expected 9 more bytes. The file might be corrupted.", C.storage),
        (f"{TRACEBACK}ValueError: NaN or Inf found in gradient norm", C.diverged),
        # What is reported as information or a warning, tried again, or traced by the shell.
        ("[WARNING] CUDA out of memory. Tried to allocate 2.00 GiB, batch skipped", C.unknown),
        ("2026-02-03 04:05:06 - INFO - No valid checkpoint found, starting anew", C.unknown),
        ("x.py:7: UserWarning: no kernel image is available for execution on the device", C.unknown),
        ("OSError: [Errno 116] Stale file handle: retrying in 3 s", C.unknown),
        ("This can cause fd limit errors like `OSError: [Errno 24] Too many open files`.", C.unknown),
        ("+ echo 'CUDA out of memory' && srun: error: n1: task 1: Out Of Memory", C.unknown),
        (f"W0203 04:05:06.1 7 convert.py:9] {TRACEBACK}W0203 04:05:06.1 7 convert.py:9] NameError: s4", C.unknown),
        # Slurm's controller, and not the settings of a job.
        ("sbatch: fatal: Could not establish a configuration source", C.launch_failure),
        ("srun: error: Munge encode failed: Failed to access the socket", C.launch_failure),
        # Compiled for another processor.
        ("script: line 3:    99 Illegal instruction     (core dumped) python train.py", C.launch_failure),
        ("srun: error: n1: task 3: Exited with exit code 132", C.launch_failure),
        ("[launch.py:1:sigkill_handler] ['python', 'train.py'] exits with return code = -4", C.launch_failure),
        ("*** Error in `python': munmap_chunk(): invalid pointer: 0x7 ***", C.code),
        # Texts of CPython and torch; a parameter or a task by its name; the name of a weight; a hook of sys.excepthook.
        (f"{TRACEBACK}ValueError: not enough values to unpack (expected 2, got 1)", C.code),
        (f"{TRACEBACK}RuntimeError: Trying to backward through the graph a second time", C.code),
        (f"{TRACEBACK}ValueError: Unknown task: sft", C.refused),
        (f"{TRACEBACK}AssertionError: tasks/b.yaml is not a yaml file", C.refused),
        (f"{TRACEBACK}AssertionError: the seed is specified in both places", C.refused),
        (f"{TRACEBACK}AssertionError: The `num_heads` (3) of Block does not match the heads of Net", C.refused),
        (f"{TRACEBACK}KeyError: 'unexpected key \"mlp.bias\" in state_dict'", C.refused),
        ("tensors.cc:7: dlopen failed: /opt/libx.so: cannot open shared object file", C.launch_failure),
        (f"{TRACEBACK}FileNotFoundError: Cannot find the C++ graph library at /opt/libx.so", C.launch_failure),
        ("(run.sh:12:main) Error: --train-set is required", C.refused),
        (f"{TRACEBACK}ValueError: the parameter `lora_rank` has to be positive", C.refused),
        (f"{TRACEBACK}KeyError: 'model.layers.3.mlp.weight'", C.refused),
        ("2026-02-03 04:05:06 ERROR Uncaught exception <class 'TypeError'>: odd", C.code),
        # The words of errno, TensorFlow's statuses, and memory that CUDA's libraries ask for.
        ("mkdir: cannot create directory '/scratch/x': Read-only file system", C.storage),
        (f"{TRACEBACK}IsADirectoryError: [Errno 21] Is a directory: '/scratch/x'", C.refused),
        (f"{TRACEBACK}x.errors_impl.NotFoundError: a.ckpt; No such file or directory", C.refused),
        ("Check failed: e == cudaSuccess (2 vs. 0)", C.out_of_gpu_memory),
        ("***ERROR*** The queue is full. JOB NOT SUBMITTED ###", C.refused),
        (f"{TRACEBACK}RuntimeError: Unexpected bus error encountered in worker.", C.out_of_host_memory),
        # What only looks alike.
        ("LSF: TERM_UNKNOWN: unknown reason", C.unknown),
        ("Killed 3 zombie processes of an earlier job", C.unknown),
        ("amdgpu: initialized 8 devices", C.unknown),
        ("INFO: In 'config': nothing to do", C.unknown),
        ("out of memory: no", C.unknown),
    ],
)
def test_a_line_of_a_catalogue_has_its_cause(line: str, cause: C) -> None:
    assert of(line).cause is cause


PACKAGE = '  File "/env/lib/python3.11/site-packages/mesh/{}.py", line 7, in {}\n    {}\n'


@pytest.mark.parametrize(
    ("frames", "cause"),
    [
        (PACKAGE.format("__init__", "<module>", "check()"), C.launch_failure),
        (PACKAGE.format("registry", "build_from_cfg", "raise odd"), C.refused),
        (PACKAGE.format("cli", "parse_args", "raise odd"), C.refused),
        (PACKAGE.format("block", "forward", "y = grow(x)") + PACKAGE.format("grid", "grow", "raise odd"), C.code),
        (PACKAGE.format("config", "merge", "assert key in known"), C.refused),
        ("    assert width % heads == 0\n", C.refused),
        ("    assert x.shape[0] % heads == 0\n", C.code),
        ("    assert os.path.exists(name)\n", C.refused),
        ("    assert torch.cuda.is_available()\n", C.launch_failure),
    ],
)
def test_the_place_where_an_exception_was_raised_shows_its_cause(frames: str, cause: C) -> None:
    assert of(f"{TRACEBACK}{frames}AssertionError").cause is cause
    if "assert " not in frames:
        assert of(f"{TRACEBACK}{frames}ValueError: odd number of file names").cause is cause


@pytest.mark.parametrize(
    "end",
    [
        PACKAGE.format("grid", "grow", "raise odd") + "ValueError: nothing to grow",
        "    opt.load_state_dict(checkpoint['opt'])\nKeyError: 'opt'",
        "    net.load_state_dict(torch.load(path)['net'])\nKeyError: 'net'",
    ],
)
def test_a_library_that_refuses_a_value_and_a_checkpoint_without_a_key_are_hints_at_a_setting(end: str) -> None:
    found = of(f"{TRACEBACK}{end}")
    assert (found.cause, found.possible) == (C.unknown, C.refused)


def test_another_exception_of_a_line_that_reads_a_checkpoint_is_an_error_of_the_program() -> None:
    found = of(f"{TRACEBACK}    net.load_state_dict(checkpoint['net'])\nAttributeError: 'list' object has no 'load'")
    assert (found.cause, found.possible) == (C.code, None)


@pytest.mark.parametrize(
    ("line", "rank", "host"),
    [
        ("srun: error: node03: task 5: Exited with exit code 1", 5, "node03"),
        ("mpirun noticed that process rank 3 with PID 99 on node node03 exited on signal 11 (Segmentation fault).", 3,
         "node03"),
        ("node03: rank 6 exited with code 1", 6, "node03"),
    ],
)  # fmt: skip
def test_the_first_rank_and_its_host_are_kept_even_if_the_cause_is_not_known(line: str, rank: int, host: str) -> None:
    later = "srun: error: node09: task 9: Exited with exit code 1\n"
    found = of(f"{line}\n{later}")
    assert (found.rank, found.host) == (rank, host)


def test_torchrun_names_the_first_rank_and_host_of_a_traceback_without_a_rank() -> None:
    block = ("  time      : 2026-02-03_04:05:0{0}\n  host      : node0{0}\n  rank      : {0} (local_rank: 0)\n"
             "  exitcode  : 1 (pid: 42)\n")  # fmt: skip
    found = of(f"{TRACEBACK}KeyError: 'model'\n{block.format(3)}{block.format(2)}")
    assert (found.cause, found.rank, found.host) == (C.code, 2, "node02")
    without_code = block.replace("1 (pid: 42)", "<N/A>")
    found = of(f"{TRACEBACK}KeyError: 'model'\n{without_code.format(3)}{block.format(4)}")
    assert (found.rank, found.host) == (4, "node04"), "the process of rank 3 was still there"


def test_each_signature_has_a_source_and_an_advice_and_compiles() -> None:
    assert all(each.source and each.pattern for each in SIGNATURES)
    assert all(each.advice.endswith(".") and "\n" not in each.advice for each in SIGNATURES)


@settings(suppress_health_check=list(HealthCheck), deadline=None)
@given(st.data())
def test_a_text_that_an_expression_matches_contains_one_of_its_markers_and_is_known(data: st.DataObject) -> None:
    signature = data.draw(st.sampled_from(SIGNATURES))
    text = data.draw(st.from_regex(signature.expression, alphabet=st.characters(max_codepoint=126)))
    assert any(marker in text for marker in signature.markers)
    assert signature in known(text)


@pytest.mark.parametrize(
    ("expression", "markers"),
    [
        ("plain text", ["plain text"]),
        (r"[Nn]o space left on (?:device|disk)$", ["No space left on device", "No space left on disk",
                                                   "no space left on device", "no space left on disk"]),
        (r"^killed by \S+ on node", ["killed by "]),
        (r"(?:job|task)s? \d+ died", [" died"]),
        (r"\bexit(?: code)? 137\b", ["exit 137", "exit code 137"]),
        (r"(?i)\bexit(?: code)? 137\b", [" 137"]),
        (r"(?=.*never)lost(?! again)", ["lost"]),
        (r": 69, (?:.*Xid|Xid)", ["Xid"]),
    ],
)  # fmt: skip
def test_markers_are_the_fixed_texts_of_an_expression_that_select_the_fewest_lines(
    expression: str, markers: list[str]
) -> None:
    assert sorted(markers_of(expression)) == markers


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ('["lost", "end", "peer lost"]', "'lost' is not known"),
        ('["hung", "ending", "peer lost"]', "'ending' is not known"),
        ('["hung", "end", "{PEER} lost"]', "'PEER' is not known"),
        ('["hung", "peer lost"]', "not a cause, a weight and an expression"),
        ('["hung", "end", "peer (lost"]', "unterminated subpattern"),
        ('["hung", "end", "(?i)lost"]', "need not contain a fixed text"),
        ('["hung", "end", "(?:peer )?lo?"]', "need not contain a fixed text"),
    ],
)
def test_a_wrong_row_is_refused_with_the_row_and_its_source(row: str, why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)) as refused:
        assert [each.markers for each in read(f'["https://example.org"]\ntexts = [{row}]')[1]]
    assert "https://example.org" in str(refused.value)
    assert row.rpartition(', "')[2].strip('"]') in str(refused.value)


def test_the_advice_is_that_of_the_text_and_else_that_of_its_cause() -> None:
    assert "HF_TOKEN" in of(f"{TRACEBACK}huggingface_hub.errors.GatedRepoError: 401 Client Error.").advice
    port = of("[E1 socket.cpp:1] [c10d] The server socket has failed to bind to [::]:29500 (errno: 98).")
    assert "MASTER_PORT" in port.advice
    assert of("slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2026-02-03T04:05:06 DUE TO TIME LIMIT ***").advice == (
        C.time_limit.advice
    )


def test_every_error_of_cuda_is_recognized_by_its_name_and_by_its_text() -> None:
    table = resources.files("analysis.failures.catalogue") / "gpu_errors.csv"
    rows = list(csv.DictReader(table.read_text(encoding="utf-8").splitlines()))
    assert len(rows) > 100
    for row in rows:
        for text in (f"CUDA error: {row['text']}", f"x: cudaError{row['name']}"):
            assert any(known(text)), text

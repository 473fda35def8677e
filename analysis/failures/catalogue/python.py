"""Signatures of Python itself: files and their errors, networks, imports, versions, compilers, process limits."""

from __future__ import annotations

from analysis.failures.catalogue.signature import Weight, signatures
from jobs.failures import FailureCause

C, W = FailureCause, Weight

# Programs that a library starts: their absence is that of an installation, not of a file that a setting names.
TOOLS = (
    r"(?:nvcc|ninja|gcc|g\+\+|c\+\+|cc|cmake|git|srun|sbatch|mpirun|ffmpeg|pdsh|ssh|nvidia-smi|rocm-smi|hipcc|ldconfig)"
)

FILES = (
    *signatures(
        "https://man7.org/linux/man-pages/man3/errno.3.html (ENETUNREACH to EHOSTUNREACH), getaddrinfo(3)",
        (C.lost_peer, W.consequence, r"\[Errno (?:99|101|103|104|110|111|112|113)\]|\[Errno -[235]\] |"
         r"Temporary failure in name resolution|Name or service not known|No route to host|Network is unreachable|"
         r"nodename nor servname provided|getaddrinfo failed",
         ("[Errno ", "in name resolution", "service not known", "No route to host", "Network is unreachable",
          "nor servname provided", "getaddrinfo failed")),
    ),
    *signatures(
        "https://man7.org/linux/man-pages/man3/errno.3.html (EMFILE), torch.multiprocessing (sharing strategies)",
        (C.code, W.end, r"\[Errno 24\] Too many open files|[Ee]rror.*Too many open files|received 0 items of ancdata|"
         r"unable to open shared memory object </torch_",
         ("oo many open files", "items of ancdata", "shared memory object </torch_")),
        advice="Raise the limit of open files (ulimit -n), start fewer data workers, or let torch share tensors by "
        "files (torch.multiprocessing.set_sharing_strategy('file_system')).",
    ),
    *signatures(
        "https://man7.org/linux/man-pages/man2/fork.2.html (EAGAIN), https://github.com/OpenMathLib/OpenBLAS",
        (C.code, W.end, r"can't start new thread|\[Errno 11\] Resource temporarily unavailable|"
         r"fork: (?:retry: )?Resource temporarily|blas_thread_init: pthread_create failed|"
         r"Thread creation failed: Resource",
         ("start new thread", "Resource temporarily", "blas_thread_init", "Thread creation failed")),
        advice="The limit of processes and threads is reached (ulimit -u): lower OMP_NUM_THREADS and the data workers.",
    ),
    *signatures(
        "https://man7.org/linux/man-pages/man3/errno.3.html (EPERM, ENOENT, EACCES, ENOTDIR, EISDIR), HDF5",
        (C.refused, W.raised, r"^(?:OSError|IOError|EnvironmentError): .*(?:\[Errno (?:1|2|13|20|21|36|40)\]|"
         r"\berrno = (?:1|2|13|20|21)\b|[Nn]o such file or directory|[Pp]ath not found)",
         ("OSError: ", "IOError: ", "EnvironmentError: ")),
    ),
    *signatures(
        "CPython (FileNotFoundError of subprocess)",
        (C.launch_failure, W.end, rf"^FileNotFoundError: \[Errno 2\] No such file or directory: '(?:\S*/)?{TOOLS}'$",
         ("FileNotFoundError: [Errno 2]",)),
        advice="Install the program that the line names, or load its module; PATH on the node does not contain it.",
    ),
)  # fmt: skip

IMPORTS = (
    *signatures(
        "CPython (import system), importlib.metadata, pkg_resources",
        # A module lacks what another one expects of it: their versions differ, or a local file hides the package.
        (C.launch_failure, W.raised, r"^AttributeError: (?:partially initialized )?module '[\w.]+' has no attribute",
         ("has no attribute",)),
        (C.launch_failure, W.end, r"^AttributeError: (?:partially initialized )?module '(?:torch|numpy|transformers|"
         r"flash_attn|triton|apex|deepspeed|xformers|jax|tensorflow|torchvision|torchaudio|accelerate|peft|pyarrow|"
         r"transformer_engine|bitsandbytes)[\w.]*' has no attribute|^TypeError: Descriptors cannot be created directly|"
         r"^SystemError: initialization of \w+ failed|'DeepSpeedCPUAdam' object has no attribute 'ds_opt_adam'|"
         r"^RuntimeError: Numpy is not available", ("has no attribute", "SystemError: ", "Descriptors cannot be",
         "Numpy is not")),
        (C.launch_failure, W.end, r"^(?:pkg_resources\.)?(?:extern\.packaging\.)?(?:\w+\.)*(?:DistributionNotFound|"
         r"VersionConflict|ContextualVersionConflict|PackageNotFoundError)\b",
         ("DistributionNotFound", "VersionConflict", "PackageNotFoundError")),
        (C.launch_failure, W.end, r"Failed to import \S+ because of the following error|"
         r"numpy\.(?:dtype|ndarray) size changed|module compiled against (?:ABI|API) version|"
         r"numpy\.core\.multiarray failed to import|operator \S+ does not exist$",
         ("Failed to import", "size changed", "module compiled against", "multiarray failed to import",
          "does not exist")),
        (C.launch_failure, W.end, r"^(?:ImportError|OSError): .*(?:cannot open shared object file|undefined symbol|"
         r"version `\S+' not found|file too short|wrong ELF class|invalid ELF header|in static TLS block)|"
         r"\bdlopen failed: |^\w+Error: (?:Cannot|Could not|Failed to) (?:find|load) .*\blibrary\b",
         ("shared object file", "undefined symbol", "' not found", "file too short", "wrong ELF", "invalid ELF",
          "static TLS block", "dlopen failed", " library")),
        (C.launch_failure, W.end, r"^(?:\w+\.)*\w*(?:Error|Exception): .*(?:\bpip3? install\b|\b[Pp]lease install\b|"
         r"\bis not installed\b|\bto be installed\b|"
         r"\bseems to be not installed\b|cannot be used due to the following error|[Nn]o package metadata was found|"
         r"[Cc]ould not run '\S+' with arguments from the '\w+' backend|requires the latest version of |"
         r"\b[A-Z]+ backend is required\b|\brequires? [\w.-]+ ?(?:version )?[<>=]=? ?\d)",
         ("to be not installed", "cannot be used due", "package metadata was", "with arguments from the", "pip install",
          "pip3 install", "lease install", "is not installed", "to be installed", "require",
          "backend is")),
        advice="Install the package or version that the line names into the environment of the job, and check that "
        "extensions were compiled for the installed torch, CUDA and Python.",
    ),
    *signatures(
        "https://github.com/pytorch/pytorch (torch/utils/cpp_extension.py, torch/_inductor), "
        "https://github.com/deepspeedai/DeepSpeed (op_builder), https://github.com/triton-lang/triton, bitsandbytes",
        (C.launch_failure, W.end, r"CUDA_HOME (?:environment variable is not set|does not exist)|"
         r"Ninja is required to load C\+\+ extensions|Error (?:building|compiling) (?:extension|objects for extension)|"
         r"CUDAMismatchException|MissingCUDAException|mismatches the version that was used to compile|"
         r"compiled with different CUDA (?:major )?versions|0 active drivers \(\[\]\)|"
         r"[Cc]annot find a working triton|Failed to find C(?:\+\+)? compiler|CUDA Setup failed despite|"
         r"^ninja: build stopped|^nvcc fatal|error: subprocess-exited-with-error|"
         r"^ERROR: Failed building wheel|^\S+:\d+:\d+: fatal error: |Unable to JIT load the \S+ op|"
         r"\bInvalidCxxCompiler\b|Error: No module named 'triton",
         ("CUDA_HOME ", "Ninja is required", "Error building", "Error compiling", "CUDAMismatchException",
          "MissingCUDAException", "mismatches the version", "compiled with different", "active drivers",
         "a working triton", "Failed to find C",
          "CUDA Setup failed", "Unable to JIT load", "ninja: build stopped", "subprocess-exited-with-error",
         "Failed building wheel", "nvcc fatal", ": fatal error: ",
          "InvalidCxxCompiler", "named 'triton")),
        advice="Load the compiler and the CUDA toolkit that torch was built with (CUDA_HOME, CC), or install the "
        "extension prebuilt.",
    ),
    *signatures(
        "https://github.com/pytorch/pytorch (torch/__init__.py, torch/cuda, torch/accelerator)",
        (C.launch_failure, W.end, r"Found no NVIDIA driver on your system|(?:^|Error: )The NVIDIA driver on your "
         r"system is too old|Error: (?:"
         r"No (?:CUDA|HIP|XPU) GPUs are available|Torch not compiled with CUDA enabled|CUDA unknown error|"
         r"Failed to infer device type|CUDA driver initialization failed|Torch is not able to use GPU|"
         r"No backend type associated with device type|Attempting to deserialize object on a CUDA|"
         r"cuDNN version incompatibility|PyTorch is not linked with support for \w+ devices|"
         r".*\b(?i:no (?:cuda |nvidia |amd )?gpus?(?: devices?)? (?:were |was )?(?:found|available|detected|visible)|"
         r"(?:cuda|gpu) (?:is )?(?:not available|unavailable|required)))",
         ("The NVIDIA driver on", "Found no NVIDIA driver", " GPUs are available", "Torch not compiled",
          "CUDA unknown error", "CUDA driver initialization", "Torch is not able", "No backend type",
         "Attempting to deserialize", "cuDNN version",
         "infer device type", "PyTorch is not linked", "GPU", "gpu", "CUDA is", "cuda is")),
        advice="Check that the job got GPUs (--gpus-per-node, CUDA_VISIBLE_DEVICES), that nvidia-smi or rocm-smi works "
        "on the node and in the container, and that torch was built for its driver.",
    ),
)  # fmt: skip

PROCESSES = (
    *signatures(
        "CPython (concurrent.futures, multiprocessing), https://github.com/pytorch/pytorch (torch/utils/data), "
        "https://github.com/uqfoundation/multiprocess, https://github.com/joblib/loky",
        (C.killed, W.signal, r"BrokenProcessPool\b|TerminatedWorkerError\b|abruptly died during map operation",
         ("BrokenProcessPool", "TerminatedWorkerError", "abruptly died")),
        (C.unknown, W.signal, r"DataLoader worker \(pids?\(?s?\)? [\d, ]+\) exited unexpectedly|"
         r"Pin memory thread exited|DataLoader worker .*: Terminated\.", ("DataLoader worker", "Pin memory thread")),
        (C.code, W.consequence, r"DataLoader worker .*: Segmentation fault\.|Unexpected (?:segmentation fault|"
         r"floating-point exception) encountered in worker", ("DataLoader worker", "encountered in worker")),
        (C.out_of_host_memory, W.end, r"Unexpected bus error encountered in worker", ("encountered in worker",)),
        (C.aborted, W.signal, r"DataLoader worker .*: Aborted\.", ("DataLoader worker",)),
        advice="A helper process was killed: the usual source is exhausted host memory or shared memory; start fewer "
        "workers.",
    ),
)  # fmt: skip

PYTHON = (*FILES, *IMPORTS, *PROCESSES)

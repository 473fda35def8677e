"""Signatures of the GPU's programming interfaces: CUDA, HIP, HSA, cuBLAS, cuDNN, NVML.

gpu_errors.csv lists cudaError with its texts, as libcudart 12.9 contains them, and hipError where names or texts
differ. A short text ("out of memory") proves a cause only behind the name of an interface.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from importlib import resources

from analysis.failures.catalogue.signature import Signature, Weight, signatures
from jobs.failures import FailureCause

C, W = FailureCause, Weight

# "CUDA error: ", "Cuda failure 2 '", "cuda runtime error (39) : ", "initialize CUDA: ", "Error (x.cpp:298): ".
BEHIND = (
    r"(?:(?i:\b(?:cuda|hip|\w*_cuda_\w+)\b).{0,80}?(?:\(\d+\) ?)?[:'] ?'?|\bError (?:\(\S+:\d+|\d+)\)?: |"
    r"\(\d{3}\) ?: ?)"
)
SOURCE = (
    "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html (names), libcudart 12.9 (texts), "
    "https://rocm.docs.amd.com/projects/HIP/en/latest/reference/error_codes.html"
)
ADVICE = {
    C.launch_failure: "Check that the GPU is visible on that node (nvidia-smi or rocm-smi), and that its driver and "
    "architecture fit the CUDA or ROCm version of the program.",
    C.code: "Run with CUDA_LAUNCH_BLOCKING=1 (HIP: AMD_SERIALIZE_KERNEL=3) to find the kernel that failed; an index "
    "out of range is the usual source of an assert.",
    C.refused: "Start at most one rank for each GPU that is visible (CUDA_VISIBLE_DEVICES, --gpus-per-node).",
    C.unknown: "Read the first CUDA error of the log, and the node's kernel log for an Xid.",
}


def runtime_errors() -> Iterator[Signature]:
    """Yield the signatures of gpu_errors.csv: each error by its text and its names."""
    with (resources.files("analysis.failures.catalogue") / "gpu_errors.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            cause, text = C[row["cause"]], re.escape(row["text"])
            names = rf"\b(?:cuda|hip)Error{row['name']}\b"
            markers = [row["text"], f"Error{row['name']}"]
            if row["driver_name"]:
                names += rf"|\bCUDA_ERROR_{row['driver_name']}\b"
                markers.append(f"ERROR_{row['driver_name']}")
            pattern = rf"{'' if row['alone'] == 'yes' else BEHIND}{text}|{names}"
            yield from signatures(
                SOURCE, (cause, W[row["weight"]], pattern, tuple(markers)), advice=ADVICE.get(cause, "")
            )


LIBRARIES = (
    *signatures(
        "https://docs.nvidia.com/cuda/cublas/index.html#cublasstatus-t, "
        "https://docs.nvidia.com/deeplearning/cudnn (cudnnStatus_t)",
        (C.out_of_gpu_memory, W.end, r"\b(?:CUBLAS|CUDNN|CUSOLVER|CUFFT|CUSPARSE|HIPBLAS|rocblas|MIOPEN|miopen)_?"
         r"(?:STATUS_|status_|Status)?(?:ALLOC_FAILED|AllocFailed|memory_error)\b",
         ("ALLOC_FAILED", "AllocFailed", "status_memory_error")),
        (C.launch_failure, W.end, r"\b(?:CUBLAS|CUDNN|CUSOLVER|CUFFT|CUSPARSE)_STATUS_(?:ARCH_MISMATCH\w*|"
         r"VERSION_MISMATCH|SUBLIBRARY_\w+|RUNTIME_PREREQUISITE_MISSING|LICENSE_ERROR)\b",
         ("ARCH_MISMATCH", "VERSION_MISMATCH", "STATUS_SUBLIBRARY", "PREREQUISITE_MISSING", "STATUS_LICENSE_ERROR")),
        (C.code, W.end, r"\b(?:CUBLAS|CUDNN|CUSOLVER|CUFFT|CUSPARSE|HIPBLAS)_STATUS_(?:INVALID_VALUE|BAD_PARAM\w*|"
         r"NOT_SUPPORTED\w*|INVALID_ENUM)\b",
         ("STATUS_INVALID_VALUE", "STATUS_BAD_PARAM", "STATUS_NOT_SUPPORTED", "STATUS_INVALID_ENUM")),
        (C.code, W.consequence, r"\b(?:CUBLAS|CUDNN|CUSOLVER|CUFFT|CUSPARSE|HIPBLAS)_STATUS_EXECUTION_FAILED\w*|"
         r"\bcublas runtime error : the GPU program failed",
         ("STATUS_EXECUTION_FAILED", "the GPU program failed")),
        # The documentation names several causes, among them exhausted memory and an earlier error.
        (C.unknown, W.signal, r"\b(?:CUBLAS|CUDNN|CUSOLVER|CUFFT|CUSPARSE|HIPBLAS)_STATUS_(?:NOT_INITIALIZED|"
         r"INTERNAL_ERROR\w*|MAPPING_ERROR)\b",
         ("STATUS_NOT_INITIALIZED", "STATUS_INTERNAL_ERROR", "STATUS_MAPPING_ERROR")),
    ),
    *signatures(
        "https://docs.nvidia.com/deploy/nvml-api (nvmlReturn_t)",
        (C.hardware, W.fault, r"NVMLError_GpuIsLost\b|\bNVML\b.*: GPU is lost|GPU requires reset\b",
         ("NVMLError_GpuIsLost", "GPU is lost", "GPU requires reset")),
        (C.launch_failure, W.end, r"Failed to initialize NVML: |NVML_?ERROR_(?:DRIVER_NOT_LOADED|LIB\w+_NOT_FOUND)|"
         r"NVMLError_(?:DriverNotLoaded|LibraryNotFound|LibRmVersionMismatch)\b|"
         r"NVIDIA-SMI has failed because it couldn't communicate",
         ("initialize NVML", "ERROR_DRIVER_NOT_LOADED", "NVMLError_", "ERROR_LIB", "NVIDIA-SMI has failed")),
        advice=ADVICE[C.launch_failure],
    ),
    *signatures(
        "https://github.com/ROCm/ROCR-Runtime (hsa.h, hsa_ext_amd.h)",
        (C.out_of_gpu_memory, W.end, r"\bHSA_STATUS_ERROR_OUT_OF_RESOURCES\b", ("HSA_STATUS_ERROR",)),
        (C.launch_failure, W.end, r"\bHSA_STATUS_ERROR_(?:INVALID_ISA\w*|INCOMPATIBLE_ARGUMENTS)\b|"
         r"Unable to find code object for all current devices", ("HSA_STATUS_ERROR", "Unable to find code object")),
        (C.hardware, W.consequence, r"\bHSA_STATUS_ERROR_(?:EXCEPTION|MEMORY_FAULT|FATAL)\b", ("HSA_STATUS_ERROR",)),
        (C.code, W.consequence, r"\bHSA_STATUS_ERROR_(?:MEMORY_APERTURE_VIOLATION|ILLEGAL_INSTRUCTION|"
         r"INVALID_(?:ARGUMENT|PACKET_FORMAT|ALLOCATION))\b", ("HSA_STATUS_ERROR",)),
    ),
    *signatures(
        "https://github.com/pytorch/pytorch (c10/cuda, aten/src/ATen/cuda/CachingHostAllocator.cpp, "
        "aten/src/ATen/native/cuda)",
        (C.out_of_host_memory, W.end, r"out of memory at .*CachingHostAllocator|Failed to (?:allocate|pin) (?:host|"
         r"pinned) memory", ("CachingHostAllocator", "Failed to allocate host memory", "Failed to allocate pinned",
         "Failed to pin")),
        (C.out_of_gpu_memory, W.end, r"\b(?:CUDA|HIP|XPU|NPU|MPS backend) out of memory\b|CUDA error: out of memory|"
         r"Cuda failure.* 'out of memory'|\bcudaMalloc retry failed: out of memory|"
         r"\bDEVMEM Allocation failed|\b[Oo]ut of device memory\b|"
         r"Check failed: .*cudaSuccess \(2 vs|Create cublas handle failed|CURAND_STATUS_ALLOCATION_FAILED",
         ("out of memory", "DEVMEM Allocation", "ut of device memory",
          "Check failed: ", "Create cublas handle", "CURAND_STATUS_ALLOC")),
        (C.code, W.end, r"\.cuh?:\d+: .*\bAssertion .*failed", ("Assertion ",)),
    ),
    *signatures(
        "https://github.com/huggingface/transformers (quantizers), https://github.com/vllm-project/vllm (v1/worker, "
        "v1/core/kv_cache_utils.py), https://github.com/sgl-project/sglang",
        (C.out_of_gpu_memory, W.end, r"Make sure you have enough GPU RAM to fit|No available memory for the cache "
         r"blocks|is less than desired GPU memory utilization|No executable batch size found|"
         r"Not enough memory\. Please try (?:to increase|"
         r"increasing) --mem-fraction|larger than the (?:maximum number of tokens|available KV cache memory)",
         ("enough GPU RAM", "No available memory for", "desired GPU memory", "No executable batch",
          "Please try to increase --mem",
          "Please try increasing --mem",
          "larger than the")),
        advice="Give the engine more of the GPU's memory (gpu_memory_utilization, mem_fraction_static), shard the "
        "model over more GPUs, or lower the longest sequence.",
    ),
    *signatures(
        "https://github.com/bitsandbytes-foundation/bitsandbytes (csrc/pythonInterface.cpp), "
        "https://docs.nvidia.com/deeplearning/tensorrt (ErrorCode, builder), https://github.com/NVIDIA/DALI, "
        "https://github.com/rapidsai/rmm (mr/device: out_of_memory), https://github.com/3dem/relion",
        (C.out_of_gpu_memory, W.end, r"^(?:.*\])?Error out of memory at line \d+ in file|"
         r"\bError Code 2: OutOfMemory\b|\bRequested amount of GPU memory \(\d+ bytes\) could not be allocated|"
         r"^CUDA allocation failed$|\bout_of_memory: (?:RMM failure|CUDA error) at|\bran out of memory on the GPU",
         ("Error out of memory at", "OutOfMemory", "amount of GPU memory", "CUDA allocation failed",
          "out_of_memory: ", "ran out of memory on")),
    ),
)  # fmt: skip

GPU_RUNTIME = (*LIBRARIES, *runtime_errors())

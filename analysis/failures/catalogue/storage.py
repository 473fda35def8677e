"""Signatures of storage: full and failing file systems, damaged files. Shared memory is memory of the host."""

from __future__ import annotations

from analysis.failures.catalogue.signature import Weight, signatures
from jobs.failures import FailureCause

C, W = FailureCause, Weight

STORAGE = (
    *signatures(
        "https://github.com/pytorch/pytorch (torch/utils/data, aten/src/ATen/MapAllocator.cpp), "
        "https://github.com/NVIDIA/nccl (src/misc/shmutils.cc)",
        (C.out_of_host_memory, W.end, r"\bdev/shm\b.*No space left on device|No space left on device.*\bdev/shm\b|"
         r"unable to (?:write to|allocate shared memory\(shm\) for) file </torch_|unable to open shared memory object "
         r"</torch_.*No space left|NCCL WARN .*(?:posix_fallocate|shm).*No space left", ("No space left", "</torch_")),
        # Its sender is not stated.
        (C.killed, W.signal, r"DataLoader worker .*: Killed\.", ("DataLoader worker",)),
        (C.out_of_host_memory, W.end, r"workers are out of shared memory|insufficient shared memory \(shm\)|"
         r"DataLoader worker .*: Bus error\.",
         ("out of shared memory", "insufficient shared memory", "DataLoader worker")),
    ),
    *signatures(
        "https://man7.org/linux/man-pages/man3/errno.3.html (ENOSPC, EDQUOT, EIO, ESTALE, EROFS)",
        # Slurm 17 to 18 on Linux 3.10: a job may run without its memory cgroup.
        (C.unknown, W.signal, r"slurmstepd: error: .*cgroup.*No space left on device", ("No space left",)),
        (C.storage, W.end, r"(?i)no space left on device|disk quota exceeded",
         ("o space left on device", "isk quota exceeded")),
        (C.storage, W.end, r"Error: .*\bInput/output error$", ("Input/output error",)),
        (C.storage, W.end, r"\[Errno 5\] |\[Errno 30\] |(?:Error\b.*: |os error 116).*Stale (?:NFS )?file handle|"
         r"\berrno ?[=:] ?(?:5|28|30|37|95|116|122)\b|\(os error (?:5|28|30|116|122)\)|No locks available|"
         r"[Uu]nable to (?:un)?lock file|\[Errno (?:37|61|117)\] ",
         ("[Errno ", "file handle", "errno", "(os error ", "No locks available", "lock file")),
        (C.storage, W.end, r"Cannot send after transport endpoint shutdown|\[Errno (?:27|107|108|121)\] |"
         r"^(?!.*(?i:libfabric|\bofi\b|\bucx\b|socket)).*Transport endpoint is not connected|Remote I/O error$",
         ("endpoint shutdown", "[Errno ", "endpoint is not connected", "Remote I/O error")),
    ),
    *signatures(
        "https://doc.lustre.org (LustreError), https://github.com/torvalds/linux (block/blk-core.c)",
        (C.storage, W.consequence, r"LustreError: .*This client was evicted by|\bI/O error, dev \w+, sector",
         ("This client was evicted", "I/O error, dev")),
    ),
    *signatures(
        "https://github.com/pytorch/pytorch/blob/main/caffe2/serialize/inline_container.cc, "
        "CPython (pickle, zipfile, gzip)",
        (C.storage, W.end, r"PytorchStream(?:Reader|Writer) failed|inline_container\.cc.*(?:unexpected pos|failed)|"
         r"Error: File \S+ cannot be opened\.$",
         ("PytorchStream", "inline_container", "cannot be opened.")),
        (C.storage, W.end, r"\bUnpicklingError: (?!Weights only)|^EOFError: Ran out of input|\bBadZipFile: |"
         r"^EOFError: Compressed file ended|^zlib\.error: Error -",
         ("UnpicklingError", "Ran out of input", "BadZipFile", "Compressed file ended", "zlib.error")),
    ),
    *signatures(
        "https://github.com/huggingface/safetensors (SafetensorError), https://github.com/HDFGroup/hdf5, LMDB",
        (C.storage, W.end, r"SafetensorError: (?:Error while deserializ|.*IncompleteBuffer)", ("SafetensorError",)),
        (C.storage, W.end, r"(?i)unable to (?:synchronously )?open file \((?:truncated file|file signature not found)|"
         r"MDB_(?:CORRUPTED|PAGE_NOTFOUND|MAP_FULL)\b",
         ("truncated file", "signature not found", "MDB_")),
    ),
)  # fmt: skip

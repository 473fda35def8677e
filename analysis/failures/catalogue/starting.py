"""Signatures of starts: containers, dynamic libraries, drivers, ports, licences. The run's own code was not reached."""

from __future__ import annotations

from analysis.failures.catalogue.signature import Weight, signatures
from jobs.failures import FailureCause

C, W = FailureCause, Weight

STARTING = (
    *signatures(
        "https://github.com/NVIDIA/pyxis, https://github.com/NVIDIA/enroot",
        (C.launch_failure, W.end, r"pyxis: (?:child \d+ failed|container start failed|couldn't start container|"
         r"failed to (?:import|create|export)|error: )", ("pyxis: ",)),
        (C.launch_failure, W.end, r"^enroot-\w+: failed to ", ("enroot-",)),
    ),
    *signatures(
        "https://github.com/apptainer/apptainer, https://github.com/docker/cli, https://github.com/hpc/charliecloud",
        (C.launch_failure, W.end, r"^FATAL: {2,}\S", ("FATAL: ",)),
        (C.launch_failure, W.end, r"can't mount image |failed to (?:find loop device|mount squashfs)",
         ("mount image", "find loop device", "mount squashfs")),
        (C.launch_failure, W.end, r"^docker: Error response from daemon|^ch-run\[\d+\]: error: ",
         ("Error response from daemon", "ch-run[")),
    ),
    *signatures(
        "glibc (elf/dl-load.c, dl-lookup.c, dl-version.c)",
        (C.launch_failure, W.end, r"^(?:ImportError|OSError): .*(?:cannot open shared object file|undefined symbol: |"
         r"version `\S+' not found|file too short|wrong ELF class|in static TLS block)",
         ("shared object file", "undefined symbol", "' not found", "file too short", "wrong ELF", "static TLS block")),
        (C.launch_failure, W.end, r": symbol lookup error: |: version `\S+' not found \(required by ",
         ("symbol lookup error", "' not found (required by")),
    ),
    *signatures(
        "https://github.com/pytorch/pytorch (c10/cuda/CUDAFunctions.cpp, torch/cuda/__init__.py)",
        (C.launch_failure, W.end, r"Error: (?:The NVIDIA driver on your system is too old|Found no NVIDIA driver|"
         r"No (?:CUDA|HIP) GPUs are available|Torch not compiled with CUDA enabled|CUDA unknown error)",
         ("The NVIDIA driver on", "Found no NVIDIA driver", " GPUs are available", "Torch not compiled",
          "CUDA unknown error")),
        (C.launch_failure, W.end, r"server socket has failed to (?:listen|bind)|\bEADDRINUSE\b|"
         r"Error: \[Errno 98\] Address already in use",
         ("server socket has failed", "EADDRINUSE", "Address already in use")),
    ),
    *signatures(
        "https://lmod.readthedocs.io, https://docs.conda.io, bash",
        (C.launch_failure, W.end, r"^Lmod has detected the following error|^EnvironmentNameNotFound: |"
         r": (?:python\d?|torchrun|srun|conda|module): command not found$",
         ("Lmod has detected", "EnvironmentNameNotFound", "command not found")),
        (C.launch_failure, W.end, r"^\S*python[\d.]*: can't open file |^\S*python[\d.]*: No module named ",
         ("can't open file", ": No module named ")),
    ),
    *signatures(
        "FlexNet Publisher, License Administration Guide",
        (C.launch_failure, W.end, r"(?i)licen[sc]e checkout failed|licensed number of users already reached",
         ("icense checkout failed", "icensed number of users")),
    ),
)  # fmt: skip

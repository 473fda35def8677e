"""Signatures of starts: containers, dynamic libraries, ports, commands, licences; the program was not reached."""

from __future__ import annotations

from analysis.failures.catalogue.signature import Weight, signatures
from jobs.failures import FailureCause

C, W = FailureCause, Weight

STARTING = (
    *signatures(
        "https://github.com/NVIDIA/pyxis, https://github.com/NVIDIA/enroot",
        (C.launch_failure, W.end, r"pyxis: (?:child \d+ failed|container start failed|couldn't start container|"
         r"failed to (?:import|create|export)|error: )|error: pyxis: (?!.*\bwarning)", ("pyxis: ",)),
        (C.launch_failure, W.end, r"^enroot-\w+: failed to |^\[ERROR\] (?:No such file or directory: |URL \S+ returned|"
         r"Invalid image|Could not (?:process|resolve)|Command not found: )", ("enroot-", "[ERROR] ")),
    ),
    *signatures(
        "https://github.com/apptainer/apptainer, https://github.com/docker/cli, https://github.com/hpc/charliecloud",
        (C.launch_failure, W.end, r"^FATAL: {2,}\S|^(?:ERROR|ABORT) {1,2}: (?!Retval)\S|user namespace: (?:Permission "
         r"denied|Operation not permitted|[Nn]o space left|Invalid argument)|squashfuse.*(?:[Ff]ailed|not found)|"
         r"could not use fakeroot|newuidmap.*(?:failed|not found)",
         ("FATAL: ", "ERROR  : ", "ABORT  : ", "ERROR : ", "ABORT : ", "user namespace", "squashfuse", "fakeroot",
          "newuidmap")),
        (C.launch_failure, W.end, r"can't mount image |failed to (?:find loop device|mount squashfs)",
         ("mount image", "find loop device", "mount squashfs")),
        (C.launch_failure, W.end, r"Error response from daemon: |^docker: invalid reference|^ch-run\[\d+\]: error: |"
         r"OCI runtime (?:create|exec|error|attempted)|executable file \S+ not found in \$PATH|"
         r"nvidia-container-cli: |manifest (?:for \S+ not found|unknown)|"
         r"^Error: (?:initializing source|unable to copy from source) docker://",
         ("Error response from daemon", "docker: invalid", "ch-run[", "OCI runtime", "executable file",
         "nvidia-container-cli",
          "manifest ",
          "docker://")),
    ),
    *signatures(
        "glibc (elf/dl-load.c, dl-lookup.c, dl-version.c), Linux (ENOEXEC)",
        (C.launch_failure, W.end, r": (?:symbol lookup|relocation) error: |not defined in file \S+ with link time "
         r"reference|failed to map segment from shared object|^Could not load library lib\S+\.so|"
         r"Unable to load any of \{?libcu|/ld: cannot find -l|: version `\S+' not found \(required by |"
         r"(?:^|Error: )\S+\.so[\w.]*: undefined symbol: ", ("symbol lookup error", "relocation error",
         "with link time reference", "failed to map segment",
          "Could not load library", "Unable to load any of", "/ld: cannot find", "' not found (required by",
          "undefined symbol: ")),
        (C.launch_failure, W.end, r"\b[Ee]xec format error\b|cannot execute binary file", ("xec format error",
         "cannot execute")),
        advice="Check the architecture of the node, the loaded modules and LD_LIBRARY_PATH: the program was linked to "
        "another version of the library.",
    ),
    *signatures(
        "https://github.com/pytorch/pytorch (torch/csrc/distributed/c10d/socket.cpp), Linux (EADDRINUSE)",
        (C.launch_failure, W.end, r"server socket has failed to (?:listen|bind)|\bEADDRINUSE\b|"
         r"Error: (?:\[Errno 98\] )?Address already in use|errno: 98\b",
         ("server socket has failed", "EADDRINUSE", "ddress already in use", "errno: 98")),
        advice="Choose another MASTER_PORT, or end the process that still has it: two jobs on one node share their "
        "ports.",
    ),
    *signatures(
        "https://lmod.readthedocs.io, https://docs.conda.io, bash",
        (C.launch_failure, W.end, r"^Lmod has detected the following error|^EnvironmentNameNotFound: |"
         r"\b(?:lmod|modulecmd(?:\.tcl)?): (?:No such file|command not found|not found)|^\S*\(\d+\):ERROR:\d+: |"
         r"^ERROR: Unable to locate a modulefile|^ *NotWritableError: |^CondaError: |"
         r": (?:python\d?|torchrun|srun|sbatch|conda|module|mpirun|mpiexec|accelerate|deepspeed|apptainer|singularity|"
         r"enroot|docker|ninja|nvcc|uv|llamafactory-cli|lightning|litgpt|axolotl|ray): command not found$",
         ("Lmod has detected", "EnvironmentNameNotFound", "command not found", "lmod: ", "modulecmd: ",
          "modulecmd.tcl: ", "):ERROR:", "locate a modulefile", "NotWritableError", "CondaError")),
        (C.launch_failure, W.end, r"^\S*python[\d.]*: (?:can't open file |No module named |Error while finding module "
         r"specification)",
         ("can't open file", ": No module named ", "finding module specification")),
        # A script with the line ends of Windows overwrites the start of the message.
        (C.launch_failure, W.end, r"^': \[Errno 2\] No such file or direct.*can't open file|\$'\\r': command not found|"
         r"(?:bad interpreter|env: ).*\^M", ("can't open file", "command not found", "^M")),
        # The script may go on.
        (C.launch_failure, W.signal, r"^CommandNotFoundError: Your shell has not been properly configured",
         ("CommandNotFound",)),
        (C.launch_failure, W.signal, r": line \d+: (?:\S+: (?:command not found|No such file or directory|"
         r"Permission denied|"
         r"cannot execute|unbound variable)|export: .* not a valid identifier|syntax error)|^\S+: \d+: (?:exec: )?\S+: "
         r"not found$",
         (": line ", ": not found")),
        (C.launch_failure, W.signal, r"bad interpreter: No such file|^/usr/bin/env: \W?[\w.-]+\W?: No such file|"
         r"^-?(?:ba)?sh: (?:line \d+: )?\S+: Permission denied$|^(?:ERROR: )?Unable to locate a modulefile|"
         r"^Could not find conda environment: ", ("bad interpreter", "/usr/bin/env: ", "Permission denied",
         "locate a modulefile", "find conda environment")),
        # A shell's exit codes for a command that it did not find or could not execute.
        (C.launch_failure, W.signal, r"(?i)\bexit(?:ed with|[ _]?code| status)+:? 12[67]\b", ("126", "127")),
    ),
    *signatures(
        "FlexNet Publisher, License Administration Guide",
        (C.launch_failure, W.end, r"(?i)licen[sc]e checkout failed|licensed number of users already reached",
         ("icense checkout failed", "icensed number of users")),
    ),
)  # fmt: skip

"""Signatures of resource managers: Slurm, PBS, Torque and Moab, LSF, Grid Engine, Kubernetes."""

from __future__ import annotations

from analysis.failures.catalogue.signature import Weight, signatures
from jobs.failures import FailureCause

C, W = FailureCause, Weight

SLURM = (
    *signatures(
        "https://github.com/SchedMD/slurm (20.02 to 25.05: slurmstepd, slurmd, srun)",
        (C.out_of_host_memory, W.fault, r"Detected \d+ oom[-_]kill event|exceeded memory (?:limit|allocation)",
         ("oom-kill", "oom_kill", "exceeded memory")),
        (C.out_of_host_memory, W.fault, r"tasks? [\d,-]+: Out Of Memory", ("Out Of Memory",)),
        # Printed of successful jobs as well.
        (C.out_of_host_memory, W.consequence, r"Exceeded (?:job|step) memory limit", ("memory limit",)),
        (C.hardware, W.fault, r"slurmstepd: error: .* UNCORRECTABLE MEMORY ERROR AT ", ("UNCORRECTABLE MEMORY",)),
        (C.time_limit, W.end, r"CANCELLED AT [^%].*DUE TO TIME LIMIT", ("CANCELLED AT",)),
        (C.preempted, W.end, r"CANCELLED AT [^%].*DUE TO PREEMPTION", ("CANCELLED AT",)),
        (C.node_failure, W.end, r"CANCELLED AT [^%].*DUE TO NODE FAILURE|\b(?:srun|salloc): error: Node failure on ",
         ("CANCELLED AT", "Node failure on")),
        # srun lost a slurmstepd; the usual reason is the node.
        (C.node_failure, W.consequence, r"[Aa]borting, io error (?:and missing step|with slurmstepd) on node",
         ("borting, io error",)),
        # A requeue has its reason, which another line may name.
        (C.requeued, W.consequence, r"CANCELLED AT [^%].*DUE TO JOB REQUEUE", ("CANCELLED AT",)),
        (C.hung, W.signal, r"(?:CANCELLED AT [^%]|STEPD TERMINATED ON ).*DUE TO JOB NOT ENDING WITH SIGNALS",
         ("NOT ENDING WITH SIGNALS",)),
        (C.time_limit, W.end, r"Time limit exhausted for JobId|Job not requeued because: timed-out|Job has timed "
         r"out\. Ran |has exceeded its time limit and its allocation",
         ("has exceeded its time", "Time limit exhausted", "not requeued because", "Job has timed out")),
        (C.preempted, W.end, r"\bpreempted JobId=\d+ has been|Job has not timed out\. Ran ", ("preempted JobId",
         "Job has not timed out")),
        (C.node_failure, W.fault, r"Reason=Node unexpectedly rebooted|"
         r"[Nn]odes? \S+ (?:not responding, setting DOWN|unexpectedly rebooted)|"
         r"Killing JobId=\S+ on failed node|missing from batch node",
         ("not responding, setting", "unexpectedly rebooted", "on failed node", "missing from batch node")),
        # submitit's reading of the signal that Slurm sends before it.
        (C.preempted, W.end, r"Caught signal \w+ on \S+: this job is preempted", ("this job is preempted",)),
        (C.time_limit, W.end, r"Caught signal \w+ on \S+: this job is timed-out", ("this job is timed-out",)),
        (C.launch_failure, W.end, r"\b(?:[Tt]ask)?[Pp]rolog failed status|JobLaunchFailure|"
         r"launch[ _]failed[ _]requeued[ _]held",
         ("rolog failed", "JobLaunchFailure", "requeued_held", "requeued held")),
        (C.launch_failure, W.end, r"error: [Cc]ould not open (?:stdout|stderr|stdin|output) file|IO setup failed",
         ("ould not open", "IO setup failed")),
        (C.launch_failure, W.end, r"execve\(\): |\berror while loading shared libraries\b",
         ("execve()", "loading shared")),
        (C.launch_failure, W.end, r"srun: error: (?:Task launch for |Application launch failed|Unable to confirm alloc|"
         r"Aborting, slurmstepd on node|task \d+ launch failed: |Couldn't find the specified plugin|cannot create mpi "
         r"context)|slurmstepd: error: .*mpi/pmi\S*: can ?not load|srun: fatal: .*(?:configuration source|plugin|"
         r"munge)",
         ("srun: error", "mpi/pmi", "srun: fatal")),
        (C.launch_failure, W.end, r"error: (?:container_[gp]_join\b|_forkexec_slurmstepd: |Slurmd could not set up env|"
         r"Failed to invoke spank plugin stack|spank: required plugin )",
         ("container_", "_forkexec_slurmstepd", "could not set up", "spank")),
        (C.launch_failure, W.end, r"(?:srun|sbatch|salloc): (?:error: (?:.*(?:Unable to contact slurm controller|"
         r"unable to status file|slurm_load_\w+ error|Socket timed out on send/recv|Protocol version has changed|"
         r"Incompatible (?:versions|Slurm plugin)|"
         r"[Mm]unge (?:encode|decode) failed|authentication error|Invalid authentication credential)|"
         r"resolve_ctls_from_dns_srv|fetch_config: |_establish_config_source)|"
         r"fatal: Could not establish a configuration)",
         ("contact slurm controller", "unable to status file", "slurm_load_", "Socket timed out", "Protocol version",
          "Incompatible ", "unge encode", "unge decode", "uthentication ", "resolve_ctls",
          "fetch_config", "establish")),
        # Also of a node that went down.
        (C.launch_failure, W.consequence, r"(?:srun|sbatch|salloc): error: .*Zero Bytes were transmitted",
         ("Zero Bytes",)),
        (C.refused, W.end, r"srun: error: (?:Unable to (?:create step for job|allocate resources)|Invalid --|"
         r"CPU binding "
         r"outside of job step)|^srun: (?:fatal: |unrecognized option |invalid option)", ("srun: ",)),
        (C.refused, W.end, r"(?:sbatch|salloc|srun): error: (?:Batch job submission|Job submit/allocate) failed|"
         r"^(?:sbatch|salloc): (?:error: (?!.*(?:retry|sleeping))|fatal: |unrecognized option |invalid option)",
         ("Batch job submission", "Job submit/allocate", "sbatch: ", "salloc: ")),
        # Since 24.05 with `DUE to SIGNAL Terminated`.
        (C.cancelled, W.signal, r"CANCELLED AT [\dT:-]+(?: DUE to SIGNAL \w+)? \*\*\*|"
         r"^(?:srun: )?Force Terminated [Jj]ob",
         ("CANCELLED AT", "Force Terminated")),
        (C.cancelled, W.signal, r"^srun: (?:forcing job termination|interrupt \(abort already|sending Ctrl-C to )|"
         r"^scancel: Terminating job ", ("srun: forcing", "srun: interrupt (abort", "srun: sending Ctrl-C",
         "scancel: ")),
        (C.killed, W.signal, r"tasks? [\d,-]+: (?:Killed\b|Exited with exit code 137\b)|_job_complete: .*WTERMSIG 9\b",
         (": Killed", "exit code 137", "_job_complete")),
        (C.aborted, W.signal, r"tasks? [\d,-]+: (?:Aborted\b|Exited with exit code 134\b)",
         (": Aborted", "exit code 134")),
        # Compiled for another processor.
        (C.launch_failure, W.consequence, r"tasks? [\d,-]+: (?:Illegal instruction\b|Exited with exit code 132\b)",
         (": Illegal instruction", "exit code 132")),
        # Raised by corrupted memory of the program itself. A rank that lost its peer may crash in the same way.
        (C.code, W.consequence, r"tasks? [\d,-]+: (?:Segmentation fault|"
         r"Floating point ex|Exited with exit code 139\b)",
         (": Segmentation fault", ": Floating point", "exit code 139")),
        # Rank and node are known, the reason is not.
        (C.unknown, W.signal, r"srun: error: \S+: tasks? [\d,-]+: Exited with exit code (?!143\b)\d+",
         ("Exited with exit code",)),
    ),
)  # fmt: skip

# The states of a job as `scontrol show job` prints them; sacct's are in analysis.failures.sacct.
SCONTROL = (
    *signatures(
        "https://slurm.schedmd.com/squeue.html#SECTION_JOB-STATE-CODES",
        (C.out_of_host_memory, W.fault, r"\bJobState=OUT_OF_MEMORY\b", ("JobState=",)),
        (C.node_failure, W.fault, r"\bJobState=(?:NODE|BOOT)_FAIL\b", ("JobState=",)),
        (C.time_limit, W.end, r"\bJobState=(?:TIMEOUT|DEADLINE)\b", ("JobState=",)),
        (C.preempted, W.end, r"\bJobState=PREEMPTED\b", ("JobState=",)),
        (C.launch_failure, W.end, r"\bJobState=LAUNCH_FAILED\b", ("JobState=",)),
        (C.cancelled, W.signal, r"\bJobState=CANCELLED\b", ("JobState=",)),
    ),
    *signatures(
        "https://slurm.schedmd.com/sacct.html#SECTION_JOB-STATE-CODES",
        (C.cancelled, W.signal, r"^\d+(?:_\d+)?(?:\.\w+)? .*\bCANCELLED by \d+\b", ("CANCELLED by",)),
    ),
    # A row of sacct's default table, cut to 10 characters; seff; mail of slurmctld.
    *signatures(
        "https://slurm.schedmd.com/sacct.html#SECTION_JOB-STATE-CODES, contribs/seff, slurm.conf (MailProg)",
        *(
            (cause, weight, rf"^\d+(?:_\d+)?(?:\.\w+)? .* (?:{state}) +\d+:\d+ *$|^\s*State: +(?:{state}) \(exit code|"
             rf"^\d+(?:_\d+)?(?:\.\w+)? +(?:{state}) |"
             rf"Slurm (?:Array )?(?:Job|Task)\S*.*, (?:{state})(?:, ExitCode \d+)?$", tuple(state.replace("\\",
             "").split("|")))
            for cause, weight, state in (
                (C.out_of_host_memory, W.fault, r"OUT_OF_MEMORY|OUT_OF_ME\+"),
                (C.node_failure, W.fault, "NODE_FAIL|BOOT_FAIL"),
                (C.time_limit, W.end, "TIMEOUT|DEADLINE"),
                (C.preempted, W.end, "PREEMPTED"),
            )
        ),
    ),
)  # fmt: skip

OTHERS = (
    *signatures(
        "https://github.com/openpbs/openpbs (src/resmom), https://github.com/adaptivecomputing/torque, Moab",
        (C.time_limit, W.end, r"PBS: job killed: (?:walltime|cput) \d+ exceeded|"
         r"MOAB_INFO: +job exceeded wallclock limit",
         ("PBS: job killed", "MOAB_INFO")),
        (C.out_of_host_memory, W.fault, r"PBS: job killed: [pv]*mem \S+ exceeded|"
         r"[Cc]group mem(?:ory|sw)? limit exceeded",
         ("PBS: job killed", "limit exceeded")),
        (C.node_failure, W.end, r"PBS: job killed: node \d+ \(\S+\) requested job (?:terminate|die)|"
         r"job preempted \(node failure\)", ("PBS: job killed", "(node failure)")),
        (C.cancelled, W.signal, r"(?:^(?:qdel: )?|;)Job deleted at request of ", ("Job deleted at",)),
        (C.time_limit, W.end, r"^Job exceeded its walltime limit", ("its walltime limit",)),
        (C.out_of_host_memory, W.fault, r"^Job exceeded a memory resource limit", ("a memory resource limit",)),
        # JOB_EXEC_KILL_*: pbs_server ended the job for its walltime, CPU time or memory.
        (C.time_limit, W.end, r"\b[Ee]xit[_ ][Ss]tatus ?[=:] *-2[89]\b", ("xit_status", "xit Status")),
        (C.out_of_host_memory, W.fault, r"\b[Ee]xit[_ ][Ss]tatus ?[=:] *-2[67]\b", ("xit_status", "xit Status")),
        (C.launch_failure, W.end, r"^qsub: (?:PBS server internal error|cannot connect to server|Unknown queue server|"
         r"Communication failure|End of File|.*(?:[Cc]onnection refused|errno=))", ("qsub: ",)),
        (C.refused, W.end, r"^qsub: (?!waiting|job \S+ (?:ready|completed))", ("qsub: ",)),
    ),
    *signatures(
        "https://www.ibm.com/docs/en/spectrum-lsf/10.1.0 (termination reasons displayed by bacct, bhist)",
        (C.time_limit, W.end, r"\bTERM_(?:RUNLIMIT|CPULIMIT|DEADLINE|WINDOW)\b", ("TERM_",)),
        (C.out_of_host_memory, W.fault, r"\bTERM_(?:MEMLIMIT|SWAP)\b", ("TERM_",)),
        (C.preempted, W.end, r"\bTERM_(?:PREEMPT|LOAD|RC_RECLAIM)\b", ("TERM_",)),
        (C.requeued, W.end, r"\bTERM_REQUEUE_\w+", ("TERM_",)),
        (C.launch_failure, W.end, r"\bTERM_(?:CWD_NOTEXIST|PRE_EXEC_FAIL|CSM_ALLOC)\b", ("TERM_",)),
        (C.cancelled, W.signal, r"\bTERM_(?:OWNER|FORCE_OWNER|ADMIN|FORCE_ADMIN|BUCKET_KILL)\b", ("TERM_",)),
        (C.killed, W.signal, r"\bTERM_EXTERNAL_SIGNAL\b", ("TERM_",)),
        (C.refused, W.end, r"(?i)\. job not submitted\b[. #]*$|^Request aborted by esub", ("ob not submitted",
         "JOB NOT SUBMITTED", "aborted by esub")),
    ),
    *signatures(
        "https://flux-framework.readthedocs.io/projects/flux-rfc (RFC 21: job exceptions)",
        (C.time_limit, W.end, r"job\.exception type=timeout severity=0", ("job.exception",)),
        (C.preempted, W.end, r"job\.exception type=preempt\w* severity=0", ("job.exception",)),
        (C.cancelled, W.signal, r"job\.exception type=cancel severity=0", ("job.exception",)),
        (C.node_failure, W.end, r"job\.exception type=node-failure severity=0", ("job.exception",)),
    ),
    # mpiexec of HPE Cray PALS names the first rank.
    *signatures(
        "https://cpe.ext.hpe.com/docs (PALS mpiexec)",
        (C.unknown, W.signal, r"^rank \d+ exited with code (?!(?:0|13[4-9]|143)\b)\d+", ("exited with code",)),
    ),
    *signatures(
        "https://github.com/gridengine/gridengine (source/daemons/execd)",
        (C.time_limit, W.end, r"\bexceeded hard wallclock time\b|^failed +37 +: ", ("hard wallclock time", "failed")),
        (C.refused, W.end, r"^Unable to run job: ", ("Unable to run job",)),
    ),
    *signatures(
        "https://kubernetes.io/docs/tasks/configure-pod-container/assign-memory-resource, systemd-oomd",
        (C.out_of_host_memory, W.fault, r"\bOOMKilled\b|systemd-oomd\S* Killed |was low on resource: memory|"
         r"node had condition: \[MemoryPressure\]|OutOfMemoryError: Container killed due to memory",
         ("OOMKilled", "systemd-oomd", "low on resource", "had condition: [Memory", "Container killed due to")),
        (C.storage, W.end, r"was low on resource: ephemeral-storage|ephemeral local storage usage exceeds|local "
         r"ephemeral storage limit|node had condition: \[DiskPressure\]",
         ("low on resource", "ephemeral ", "had condition: [Disk")),
        (C.node_failure, W.end, r"\bNodeNotReady\b|\bNodeLost\b|TaintManagerEviction|in response to imminent node "
         r"shutdown", ("NodeNotReady", "NodeLost", "TaintManagerEviction", "imminent node")),
        (C.launch_failure, W.end, r"\bMountVolume\.\w+ failed|\bUnexpectedAdmissionError\b|Failed to pull image",
         ("MountVolume.", "UnexpectedAdmissionError", "Failed to pull")),
        (C.launch_failure, W.end, r"\b(?:ImagePullBackOff|ErrImagePull|InvalidImageName|ContainerCannotRun|"
         r"(?:CreateContainer|CreateContainerConfig|RunContainer)Error)\b",
         ("ImagePull", "InvalidImageName", "ContainerCannotRun", "CreateContainer", "RunContainer")),
        (C.time_limit, W.end, r"\breason: DeadlineExceeded\b|"
         r"was active (?:on the node )?longer than (?:the )?specified "
         r"deadline", ("DeadlineExceeded", "specified deadline")),
        (C.preempted, W.end, r"\bPreempted (?:by (?:a )?pod\b|in order to admit critical pod|to accommodate a "
         r"workload)|\b[Ii]nstance was preempted\b|\b[Ii]nstance is going to be interrupted\b|"
         r"\bSpot interruption payload received\b|\b[Ss]pot [Ii]nstance interruption notice received\b",
         ("nstance is going", "interruption ", "Preempted by", "Preempted in order", "Preempted to acc",
         "nstance was preempted")),
    ),
    *signatures(
        "https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_DescribeTrainingJob.html (SecondaryStatus), "
        "https://docs.aws.amazon.com/batch/latest/userguide/troubleshooting.html",
        (C.time_limit, W.end, r"\bMaxRuntimeExceeded\b|Job attempt duration exceeded timeout",
         ("MaxRuntimeExceeded", "attempt duration exceeded")),
        (C.preempted, W.end, r"\bMaxWaitTimeExceeded\b|Host EC2 \(instance \S+\) terminated",
         ("MaxWaitTimeExceeded", "Host EC2 (instance")),
    ),
)  # fmt: skip

MANAGERS = (*SLURM, *SCONTROL, *OTHERS)

"""Why a run ended, by its log alone: causes before collateral, and unknown rather than wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analysis.failures.signatures import NEEDLES, SEARCH, Ending, evidence
from analysis.failures.verdict import Verdict, ending_of, verdict

CANCELLED = "slurmstepd: error: *** STEP 17.0 ON node03 CANCELLED AT 2026-02-03T04:05:06"
TIMEOUT = ("[rank{0}]:[E203 04:05:06.1 ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog caught collective operation "
           "timeout: WorkNCCL(SeqNum={1}, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600055 ms")  # fmt: skip
TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 7, in <module>\n    main()\n'


def child(rank: int, code: int, time: str, host: str = "node01") -> str:
    return (f"[{rank}]:\n  time      : 2026-02-03_{time}\n  host      : {host}\n  rank      : {rank} (local_rank: 0)\n"
            f"  exitcode  : {code} (pid: 4242)\n")  # fmt: skip


def of(log: str, last_progress: int = 0, *, finished: bool = False) -> Verdict:
    return verdict(evidence(SEARCH.lines([log.encode()])), last_progress=last_progress, finished=finished)


@pytest.mark.parametrize(
    ("log", "ending"),
    [
        (f"{CANCELLED} DUE TO TIME LIMIT ***", Ending.time_limit),
        (f"  2%|2 | 1/50 [10:38<8:41:21]{CANCELLED} DUE TO TIME LIMIT ***", Ending.time_limit),
        ("=>> PBS: job killed: walltime 3612 exceeded limit 3600", Ending.time_limit),
        (f"{CANCELLED} DUE TO PREEMPTION ***", Ending.preempted),
        (f"{CANCELLED} DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***", Ending.node_failure),
        ("srun: error: Node failure on node03", Ending.node_failure),
        (f"{CANCELLED} DUE TO JOB REQUEUE ***", Ending.requeued),
        (f"{CANCELLED} ***", Ending.cancelled),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", Ending.out_of_gpu_memory),
        ("RuntimeError: HIP out of memory. Tried to allocate 2.00 GiB", Ending.out_of_gpu_memory),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=17.0. Some of the step tasks have been OOM Killed.",
         Ending.out_of_host_memory),
        ("slurmstepd: error: Detected 3 oom-kill event(s) in step 17.batch cgroup.", Ending.out_of_host_memory),
        ("srun: error: node03: task 0: Out Of Memory", Ending.out_of_host_memory),
        (f"{TRACEBACK}MemoryError", Ending.out_of_host_memory),
        (f"{TRACEBACK}RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8",
         Ending.out_of_host_memory),
        # A signal's exception says neither who sent it nor why.
        (f"{TRACEBACK}torch.distributed.elastic.multiprocessing.api.SignalException: Process 7 got signal: 15",
         Ending.unknown),
        (f"{TRACEBACK}RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting",
         Ending.network),
        ("NVRM: Xid (PCI:0000:1b:00): 79, pid=1, GPU has fallen off the bus.", Ending.hardware),
        ("NVRM: Xid (PCI:0000:1b:00): 94, pid=7, Contained: SM (0x1)", Ending.hardware),
        ("NVRM: Xid (PCI:0000:1b:00): 31, pid=7, name=python, Ch 00000008, MMU Fault", Ending.unknown),
        ("Memory access fault by GPU node-3 (Agent handle: 0x1) on address 0x2.", Ending.hardware),
        (f"{TRACEBACK}KeyError: 'model'", Ending.code_error),
        (f"{TRACEBACK}omegaconf.errors.ConfigAttributeError: Key 'lr' is not in struct", Ending.configuration_error),
        ("train.py: error: unrecognized arguments: --lrr 1", Ending.configuration_error),
        (f"{TRACEBACK}torch.distributed.DistNetworkError: Connection timed out", Ending.network),
        ("slurmstepd: error: pyxis: child 4242 failed with error code: 1", Ending.launch_failure),
        ("loss is nan at step 40, giving up", Ending.diverged),
        ("srun: error: node03: task 1: Killed", Ending.killed),
        ("srun: error: node03: task 1: Segmentation fault (core dumped)", Ending.code_error),
        ("Fatal Python error: Segmentation fault", Ending.code_error),
        ("Fatal Python error: Aborted", Ending.aborted),
        ("malloc(): unaligned tcache chunk detected", Ending.code_error),
        ("free(): invalid pointer", Ending.code_error),
        ("double free or corruption (!prev)", Ending.code_error),
        ("corrupted size vs. prev_size", Ending.code_error),
        ("The cache of free() calls is corrupted data", Ending.unknown),
        (" iteration 9/ 10 | number of nan iterations: 0 |", Ending.unknown),
        ("node03:4:5 [1] NCCL INFO [Service thread] Connection closed by localRank 1", Ending.unknown),
        ("WARNING: ConnectionError: will try again", Ending.unknown),
        ("", Ending.unknown),
    ],
)  # fmt: skip
def test_each_message_stands_for_its_cause(log: str, ending: Ending) -> None:
    assert of(log).ending is ending


def test_the_verdict_quotes_the_line_and_says_where_it_began_and_what_to_do() -> None:
    found = of(f"training\nsrun: error: node07: task 3: Out Of Memory\n{CANCELLED} ***\n")
    assert found == Verdict(
        Ending.out_of_host_memory, 2, "srun: error: node07: task 3: Out Of Memory", rank=3, host="node07"
    )
    assert found.advice.startswith("Ask for more memory a node")


@pytest.mark.parametrize(
    ("log", "ending", "rank"),
    [
        # The others wait for the rank that ran out of memory, and Slurm kills what is left.
        (f"{TIMEOUT.format(0, 8)}\n[rank3]: torch.OutOfMemoryError: CUDA out of memory.\n{CANCELLED} ***",
         Ending.out_of_gpu_memory, 3),
        # A traceback after the preemption only says that the process was stopped.
        (f"{CANCELLED} DUE TO PREEMPTION ***\n{TRACEBACK}RuntimeError: boom", Ending.preempted, None),
        # Of tracebacks the first.
        (f"[rank1]: {TRACEBACK}[rank1]: KeyError: 1\n[rank0]: {TRACEBACK}[rank0]: ValueError: y", Ending.code_error, 1),
        # The kernel's log stands behind the program's.
        (f"{TIMEOUT.format(0, 8)}\nNVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus", Ending.hardware, None),
        # A rank that crashes takes its peers' connections with it, and its own abort says less than the C library did.
        (f"srun: error: node03: task 1: Segmentation fault\n{TRACEBACK}RuntimeError: [gloo/transport/tcp/pair.cc:547] "
         "Connection closed by peer", Ending.code_error, 1),
        (f"{TRACEBACK}RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer\n"
         "malloc(): unaligned tcache chunk detected\nFatal Python error: Aborted", Ending.code_error, None),
        ("ERROR: open64(\"/nowhere/file\", 66, 0664) failed. Error: No such file or directory, (aiori-POSIX.c:482)\n"
         "MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD", Ending.aborted, 3),
        ("application called MPI_Abort(MPI_COMM_WORLD, -1) - process 2", Ending.aborted, 2),
        (f"{TRACEBACK}KeyError: 'lr'\nMPI_ABORT was invoked on rank 0 in communicator MPI_COMM_WORLD",
         Ending.code_error, None),
        # Children by their times, not by their order; those that torchrun ended are no cause.
        (child(5, -9, "10:00:31") + child(2, -6, "10:00:00") + child(1, -15, "09:59:59"), Ending.aborted, 2),
        # An exit code alone proves nothing.
        (child(1, 1, "10:00:00") + child(5, -9, "10:00:31"), Ending.unknown, 1),
        # The rank that has not come as far as the others is the one they wait for.
        ("\n".join(TIMEOUT.format(rank, 7 if rank == 2 else 9) for rank in range(4)), Ending.collective_timeout, 2),
        ("\n".join(TIMEOUT.format(rank, 9) for rank in range(3)), Ending.collective_timeout, None),
    ],
)  # fmt: skip
def test_the_cause_is_told_from_what_it_brought_down(log: str, ending: Ending, rank: int | None) -> None:
    found = of(log)
    assert (found.ending, found.rank) == (ending, rank)


def test_an_exception_that_training_went_on_after_is_no_end() -> None:
    log = f"{TRACEBACK}KeyError: 'metrics server'\n" + "step\n" * 50
    assert of(log, last_progress=40).ending is Ending.unknown
    assert of(log, last_progress=40, finished=True).ending is Ending.succeeded
    assert of(log, last_progress=2).ending is Ending.code_error


@settings(suppress_health_check=list(HealthCheck))
@given(st.lists(st.one_of(st.sampled_from(NEEDLES), st.text(max_size=20)), max_size=30).map("".join))
def test_any_text_has_a_verdict(text: str) -> None:
    found = of(text)
    assert (found.proof is None) == (found.line is None)


def test_a_log_that_is_not_there_is_the_callers_to_tell(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ending_of(tmp_path / "no.log")

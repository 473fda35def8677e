"""The verdict on a log alone: a cause outweighs its consequences, and without a proof the cause is unknown."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analysis.failures.signatures import matches, search
from analysis.failures.verdict import Verdict, decide, verdict_on
from jobs.failure_causes import FailureCause

CANCELLED = "slurmstepd: error: *** STEP 17.0 ON node03 CANCELLED AT 2026-02-03T04:05:06"
TIMEOUT = ("[rank{0}]:[E203 04:05:06.1 ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog caught collective operation "
           "timeout: WorkNCCL(SeqNum={1}, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600055 ms")  # fmt: skip
TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 7, in <module>\n    main()\n'


def child(rank: int, code: int, time: str, host: str = "node01") -> str:
    return (f"[{rank}]:\n  time      : 2026-02-03_{time}\n  host      : {host}\n  rank      : {rank} (local_rank: 0)\n"
            f"  exitcode  : {code} (pid: 4242)\n")  # fmt: skip


def of(log: str, last_progress: int = 0) -> Verdict:
    return decide(matches(search().lines([log.encode()])), [last_progress] if last_progress else [])


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (f"{CANCELLED} DUE TO TIME LIMIT ***", FailureCause.time_limit),
        (f"  2%|2 | 1/50 [10:38<8:41:21]{CANCELLED} DUE TO TIME LIMIT ***", FailureCause.time_limit),
        ("=>> PBS: job killed: walltime 3612 exceeded limit 3600", FailureCause.time_limit),
        (f"{CANCELLED} DUE TO PREEMPTION ***", FailureCause.preempted),
        (f"{CANCELLED} DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***", FailureCause.node_failure),
        ("srun: error: Node failure on node03", FailureCause.node_failure),
        (f"{CANCELLED} DUE TO JOB REQUEUE ***", FailureCause.requeued),
        (f"{CANCELLED} ***", FailureCause.cancelled),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", FailureCause.out_of_gpu_memory),
        ("RuntimeError: HIP out of memory. Tried to allocate 2.00 GiB", FailureCause.out_of_gpu_memory),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=17.0. Some of the step tasks have been OOM Killed.",
         FailureCause.out_of_host_memory),
        ("slurmstepd: error: Detected 3 oom-kill event(s) in step 17.batch cgroup.", FailureCause.out_of_host_memory),
        ("srun: error: node03: task 0: Out Of Memory", FailureCause.out_of_host_memory),
        (f"{TRACEBACK}MemoryError", FailureCause.out_of_host_memory),
        (f"{TRACEBACK}RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8",
         FailureCause.out_of_host_memory),
        # The exception of a signal names neither its sender nor its reason.
        (f"{TRACEBACK}torch.distributed.elastic.multiprocessing.api.SignalException: Process 7 got signal: 15",
         FailureCause.unknown),
        (f"{TRACEBACK}RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting",
         FailureCause.lost_peer),
        ("NVRM: Xid (PCI:0000:1b:00): 79, pid=1, GPU has fallen off the bus.", FailureCause.hardware),
        ("NVRM: Xid (PCI:0000:1b:00): 94, pid=7, Contained: SM (0x1)", FailureCause.hardware),
        ("NVRM: Xid (PCI:0000:1b:00): 31, pid=7, name=python, Ch 00000008, MMU Fault", FailureCause.code),
        ("Memory access fault by GPU node-3 (Agent handle: 0x1) on address 0x2.", FailureCause.hardware),
        (f"{TRACEBACK}KeyError: 'model'", FailureCause.code),
        (f"{TRACEBACK}omegaconf.errors.ConfigAttributeError: Key 'lr' is not in struct", FailureCause.refused),
        ("train.py: error: unrecognized arguments: --lrr 1", FailureCause.refused),
        (f"{TRACEBACK}torch.distributed.DistNetworkError: Connection timed out", FailureCause.lost_peer),
        ("slurmstepd: error: pyxis: child 4242 failed with error code: 1", FailureCause.launch_failure),
        ("loss is nan at step 40, giving up", FailureCause.diverged),
        ("srun: error: node03: task 1: Killed", FailureCause.killed),
        ("srun: error: node03: task 1: Segmentation fault (core dumped)", FailureCause.code),
        ("Fatal Python error: Segmentation fault", FailureCause.code),
        ("Fatal Python error: Aborted", FailureCause.aborted),
        ("malloc(): unaligned tcache chunk detected", FailureCause.code),
        ("free(): invalid pointer", FailureCause.code),
        ("double free or corruption (!prev)", FailureCause.code),
        ("corrupted size vs. prev_size", FailureCause.code),
        ("The cache of free() calls is corrupted data", FailureCause.unknown),
        (" iteration 9/ 10 | number of nan iterations: 0 |", FailureCause.unknown),
        ("node03:4:5 [1] NCCL INFO [Service thread] Connection closed by localRank 1", FailureCause.unknown),
        ("WARNING: ConnectionError: will try again", FailureCause.unknown),
        ("", FailureCause.unknown),
    ],
)  # fmt: skip
def test_each_message_is_the_signature_of_its_cause(log: str, cause: FailureCause) -> None:
    assert of(log).cause is cause


def test_a_verdict_contains_cause_line_rank_and_host() -> None:
    found = of(f"training\nsrun: error: node07: task 3: Out Of Memory\n{CANCELLED} ***\n")
    assert found == Verdict(
        FailureCause.out_of_host_memory, 2, "srun: error: node07: task 3: Out Of Memory", rank=3, host="node07"
    )
    assert found.cause.advice.startswith("Request more memory per node")


@pytest.mark.parametrize(
    ("log", "cause", "rank"),
    [
        # The others wait for the rank that ran out of memory, and Slurm kills the remaining ranks.
        (f"{TIMEOUT.format(0, 8)}\n[rank3]: torch.OutOfMemoryError: CUDA out of memory.\n{CANCELLED} ***",
         FailureCause.out_of_gpu_memory, 3),
        # A traceback after the preemption is its consequence.
        (f"{CANCELLED} DUE TO PREEMPTION ***\n{TRACEBACK}RuntimeError: boom", FailureCause.preempted, None),
        # The first of several tracebacks.
        (f"[rank1]: {TRACEBACK}[rank1]: KeyError: 1\n[rank0]: {TRACEBACK}[rank0]: ValueError: y", FailureCause.code, 1),
        # The kernel's log was appended to the program's.
        (f"{TIMEOUT.format(0, 8)}\nNVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus", FailureCause.hardware,
         None),
        # A crashed rank closes its peers' connections, and its abort follows the message of the C library.
        (f"srun: error: node03: task 1: Segmentation fault\n{TRACEBACK}RuntimeError: [gloo/transport/tcp/pair.cc:547] "
         "Connection closed by peer", FailureCause.code, 1),
        (f"{TRACEBACK}RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer\n"
         "malloc(): unaligned tcache chunk detected\nFatal Python error: Aborted", FailureCause.code, None),
        ("ERROR: open64(\"/nowhere/file\", 66, 0664) failed. Error: No such file or directory, (aiori-POSIX.c:482)\n"
         "MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD", FailureCause.refused, 3),
        ("application called MPI_Abort(MPI_COMM_WORLD, -1) - process 2", FailureCause.aborted, 2),
        (f"{TRACEBACK}KeyError: 'lr'\nMPI_ABORT was invoked on rank 0 in communicator MPI_COMM_WORLD",
         FailureCause.code, 0),
        # Children are ordered by time; a child that torchrun ended is not a cause.
        (child(5, -9, "10:00:31") + child(2, -6, "10:00:00") + child(1, -15, "09:59:59"), FailureCause.aborted, 2),
        # An exit code alone proves nothing.
        (child(1, 1, "10:00:00") + child(5, -9, "10:00:31"), FailureCause.unknown, 1),
        # The rank with the lowest collective number is the one that the others wait for.
        ("\n".join(TIMEOUT.format(rank, 7 if rank == 2 else 9) for rank in range(4)), FailureCause.hung, 2),
        ("\n".join(TIMEOUT.format(rank, 9) for rank in range(3)), FailureCause.hung, None),
    ],
)  # fmt: skip
def test_a_cause_outweighs_its_consequences(log: str, cause: FailureCause, rank: int | None) -> None:
    found = of(log)
    assert (found.cause, found.rank) == (cause, rank)


def test_an_exception_before_a_later_step_is_not_the_cause() -> None:
    log = f"{TRACEBACK}KeyError: 'metrics'\n" + "step\n" * 50
    assert of(log, last_progress=40).cause is FailureCause.unknown
    assert of(log, last_progress=2).cause is FailureCause.code


@pytest.mark.parametrize(
    ("words", "named"),
    [
        # About tensors, or about nothing outside of the program.
        ("RuntimeError: stack expects each tensor to be equal size", True),
        ("RuntimeError: the schedule is empty", True),
        # It may be the program's own fault, or that of what the sentence mentions.
        ("RuntimeError: cannot reach the metrics server", False),
        ("RuntimeError: the reader got an odd file", False),
        ("OSError: could not be done", False),
        ("AssertionError", False),
        ("lib.errors.OddError: no", False),
    ],
)
def test_an_exception_that_fits_several_causes_is_a_hint_and_no_cause(words: str, named: bool) -> None:
    found = of(f"{TRACEBACK}{words}")
    expected = (FailureCause.code, None) if named else (FailureCause.unknown, FailureCause.code)
    assert (found.cause, found.possible) == expected
    assert (found.line, found.proof) == (4, words)


def test_the_first_exception_decides_even_if_only_a_later_one_is_certain() -> None:
    log = f"{TRACEBACK}RuntimeError: cannot reach the metrics server\n{TRACEBACK}TypeError: 'NoneType' is not callable"
    assert of(log).cause is FailureCause.unknown
    assert of(f"{log}\n{TRACEBACK}OSError: [Errno 28] No space left on device").cause is FailureCause.storage


@pytest.mark.parametrize(
    ("end", "cause"),
    [("a.SC: line 7: 12 Killed    python serve.py", FailureCause.killed),
     ("  rank      : 3\n  exitcode  : -6 (pid: 7)", FailureCause.aborted)],
)  # fmt: skip
def test_a_signal_after_an_error_in_unknown_words_is_only_a_hint(end: str, cause: FailureCause) -> None:
    assert of(f"loss 2.1, 0 errors\nsrun: error: n1: task 3: Terminated\n{end}").cause is cause
    found = of(f"TP3: the scheduler timed out after 300 s\n{end}")
    assert (found.cause, found.possible) == (FailureCause.unknown, cause)
    # Before the last step it ended nothing, and after the signal it is no reason.
    assert of(f"TP3: the scheduler timed out after 300 s\nstep\n{end}", last_progress=2).cause is cause
    assert of(f"{end}\nTP3: the scheduler timed out after 300 s").cause is cause


@pytest.mark.parametrize(
    "finish",
    ["{'train_runtime': 9.1, 'epoch': 1.0}", "Reached max_iters=100000, exiting.",
     "I0911 15:44:02.117000 71 torch/distributed/elastic/agent/server/api.py:899] [default] worker group successfully "
     "finished. Waiting 300 seconds for other agents to finish.",
     "[after training is done] datetime: 2026-02-03 04:05:06",
     "2026-02-03 04:05:06 - root - INFO - Training completed", "   Exit Status:        0", "Successfully completed."],
)  # fmt: skip
def test_the_shutdown_of_a_training_that_finished_is_no_cause(finish: str) -> None:
    lost = "terminate called without an active exception\n[rank1]: RuntimeError: [gloo/transport/tcp] closed\n"
    assert of(f"{lost}{finish}\n{lost}").cause is FailureCause.unknown
    assert of(f"{finish}\nstep\n{lost}", last_progress=2).cause is FailureCause.lost_peer
    # Its result was not written.
    assert of(f"{finish}\n{TRACEBACK}OSError: [Errno 28] No space left on device").cause is FailureCause.storage
    assert of(f"{finish}\n{CANCELLED} DUE TO TIME LIMIT ***").cause is FailureCause.time_limit


def test_an_end_that_slurm_announced_counts_beside_a_step_that_was_printed_late() -> None:
    found = list(
        matches(search().lines([f"step\nstep\n{CANCELLED} DUE TO JOB REQUEUE ***\nstep\n{CANCELLED} ***".encode()]))
    )
    assert decide(found, [1, 2, 4]).cause is FailureCause.requeued
    # The job was started again and went on in the same log.
    assert decide(found, list(range(6, 26))).cause is FailureCause.unknown


def test_what_stands_before_steps_of_any_format_ended_nothing(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    lost = "ConnectionResetError: [Errno 104] Connection reset by peer\n"
    log.write_text(f"{lost}restarting\n" + 2 * "iter 7: loss 1.5, 1770 tokens/s\n")
    assert verdict_on(log).cause is FailureCause.lost_peer
    log.write_text(f"{lost}restarting\n" + 3 * "iter 7: loss 1.5, 1770 tokens/s\n")
    assert verdict_on(log).cause is FailureCause.unknown


def test_a_gpu_fault_before_the_last_step_counts_beside_the_traceback_that_it_caused() -> None:
    log = f"NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus\nstep\nstep\n{TRACEBACK}RuntimeError: lost"
    assert of(log, last_progress=3).cause is FailureCause.hardware


@settings(suppress_health_check=list(HealthCheck))
@given(st.lists(st.one_of(st.sampled_from(search().markers), st.text(max_size=20)), max_size=30).map("".join))
def test_any_text_has_a_verdict(text: str) -> None:
    found = of(text)
    assert (found.proof is None) == (found.line is None)


def test_a_missing_log_raises(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        verdict_on(tmp_path / "no.log")

"""Failure causes: the classification of exceptions and records, and the runs that may be retried."""

from __future__ import annotations

import errno

import pytest
import torch

from jobs.errors import CheckpointError, ConfigError
from jobs.failure_causes import (
    FailureCause,
    KnownCauseError,
    blames_node,
    cause_of,
    cause_of_task,
    end_of,
    recorded_cause,
)


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (ConfigError("x"), FailureCause.refused),
        (CheckpointError("x"), FailureCause.refused),
        (torch.OutOfMemoryError("CUDA out of memory"), FailureCause.out_of_gpu_memory),
        (MemoryError(), FailureCause.out_of_host_memory),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
            FailureCause.out_of_host_memory,
        ),
        (torch.distributed.DistBackendError("NCCL error"), FailureCause.lost_peer),
        (
            torch.distributed.DistBackendError(
                "NCCL error: unhandled cuda error\nLast error:\nFailed to CUDA calloc "
                "async 608 bytes: Cuda failure 2 'out of memory'"
            ),
            FailureCause.out_of_gpu_memory,
        ),
        (
            RuntimeError("[third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer"),
            FailureCause.lost_peer,
        ),
        (RuntimeError("CUDA error: uncorrectable ECC error encountered"), FailureCause.hardware),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), FailureCause.storage),
        (OSError(errno.ENOENT, "No such file"), FailureCause.code),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), FailureCause.code),
        (KeyError("x"), FailureCause.code),
        # Only a library that lost a peer means the GPU's memory by these words.
        (RuntimeError("the solver is out of memory"), FailureCause.code),
        (KnownCauseError(FailureCause.hung, "Connection closed by peer"), FailureCause.hung),
    ],
)
def test_an_exception_has_a_cause(error: BaseException, cause: FailureCause) -> None:
    assert cause_of(error) is cause


@pytest.mark.parametrize(
    ("how", "cause"),
    [
        ("Exited with exit code 1", FailureCause.code),
        ("Segmentation fault", FailureCause.code),
        ("Out Of Memory", FailureCause.out_of_host_memory),
        ("User defined signal 2", FailureCause.time_limit),
        ("Killed", FailureCause.killed),
        ("Terminated", FailureCause.cancelled),
    ],
)
def test_the_words_of_srun_for_the_end_of_a_task_have_a_cause(how: str, cause: FailureCause) -> None:
    assert cause_of_task(how) is cause


def test_a_failure_of_the_program_or_its_configuration_is_not_retryable() -> None:
    assert not any(FailureCause[name].retryable for name in ("out_of_memory", "refused", "code"))
    assert all(FailureCause[name].retryable for name in ("time_limit", "preempted", "lost_peer", "killed", "hung"))


def test_the_end_of_an_attempt_is_its_first_failure_of_its_own_or_else_its_last_end() -> None:
    stopped, finished = {"event": "stopped"}, {"event": "finished"}
    lost, own = ({"event": "failed", "cause": cause} for cause in ("lost_peer", "code"))
    assert end_of([stopped, {"event": "checkpoint"}, finished]) is finished
    assert end_of([stopped, lost, finished]) is lost
    assert end_of([lost, own, finished]) is own
    assert end_of([{"event": "checkpoint"}]) is None


def test_a_suspect_node_is_avoided_after_a_failure_of_its_own() -> None:
    assert blames_node({"event": "failed", "cause": "killed"})
    assert not blames_node({"event": "failed", "cause": "lost_peer"})
    assert not blames_node({"event": "failed"})


def test_a_record_of_an_earlier_release_names_host_or_gpu_memory_by_its_error() -> None:
    assert recorded_cause({"cause": "out_of_memory", "error": "MemoryError"}) is FailureCause.out_of_host_memory
    assert recorded_cause({"cause": "out_of_memory", "error": "CUDA out of memory"}) is FailureCause.out_of_gpu_memory
    assert recorded_cause({"cause": "of_another_release"}) is None


def test_every_cause_has_its_own_word_and_advice_of_one_paragraph() -> None:
    assert len({cause.word for cause in FailureCause}) == len(FailureCause)
    assert all(cause.advice.endswith(".") and "\n" not in cause.advice for cause in FailureCause)

"""The rank of a process, from the variables that each launcher sets."""

from __future__ import annotations

import pytest

from jobs.errors import SubmitError
from jobs.ranks import hosts, restart_count, scheduled_job_id, this_rank

SRUN = {
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_ID": "123",
    "SLURM_JOB_NODELIST": "gpu[001-004]",
    "SLURM_STEP_NODELIST": "gpu[003-004]",
}
TORCHRUN = {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "MASTER_ADDR": "head", "MASTER_PORT": "29501",
            "TORCHELASTIC_RUN_ID": "none"}  # fmt: skip
LOCAL = {"SUBMITIT_LOCAL_GLOBALID": "3", "SUBMITIT_LOCAL_NTASKS": "4", "SLURMSCALE_START": "12345"}


def test_srun_tasks_meet_at_the_first_node_of_their_step() -> None:
    rank = this_rank(4, SRUN)
    assert (rank.rank, rank.world_size, rank.local_rank, rank.master_addr) == (5, 8, 1, "gpu003")


def test_torchrun_states_where_to_meet() -> None:
    rank = this_rank(2, TORCHRUN)
    assert (rank.rank, rank.local_rank, rank.master_addr) == (2, 0, "head")


def test_local_ranks_are_numbered_within_their_emulated_node() -> None:
    assert [this_rank(2, LOCAL | {"SUBMITIT_LOCAL_GLOBALID": str(n)}).local_rank for n in range(4)] == [0, 1, 0, 1]


def test_a_launcher_inside_a_slurm_job_is_believed_before_slurm() -> None:
    assert this_rank(2, SRUN | TORCHRUN).world_size == 4
    assert this_rank(2, SRUN | LOCAL).world_size == 4


def test_every_start_has_an_id_of_its_own_which_is_equal_on_its_ranks() -> None:
    assert {this_rank(4, SRUN | {"SLURM_PROCID": str(rank)}).start for rank in range(8)} == {"123.0-0"}
    assert this_rank(4, SRUN | {"SLURM_STEP_ID": "1"}).start == "123.1-0"
    assert this_rank(4, SRUN | {"SLURM_RESTART_COUNT": "2"}).start == "123.0-2"
    assert this_rank(4, TORCHRUN).start == "none-29501-0"
    assert this_rank(4, TORCHRUN | {"TORCHELASTIC_RESTART_COUNT": "1"}).start == "none-29501-1"
    assert this_rank(4, LOCAL).start == "12345"
    assert this_rank(4, TORCHRUN | {"SLURMSCALE_START": "../a b"}).start == ".._a_b", "a part of a file name"


def test_a_queue_of_ours_counts_its_own_restarts_inside_a_job_that_slurm_restarted() -> None:
    assert restart_count({}) == 0
    assert restart_count({"SLURM_RESTART_COUNT": "2"}) == 2
    assert restart_count({"SLURM_RESTART_COUNT": "2", "SLURMSCALE_RESTART_COUNT": "0"}) == 0


def test_a_process_that_no_launcher_started_is_shown_how_to_start() -> None:
    with pytest.raises(SubmitError, match=r"was not started as a rank.*srun python -m jobs\.run RUN_DIR"):
        this_rank(1, {"SLURM_JOB_ID": "1"})


@pytest.mark.parametrize(
    ("compressed", "nodes"),
    [
        ("node7", ["node7"]),
        ("node[01-03]", ["node01", "node02", "node03"]),
        ("a[1,3],b2", ["a1", "a3", "b2"]),
        ("x-y[10-11,20]", ["x-y10", "x-y11", "x-y20"]),
    ],
)
def test_the_nodes_of_slurms_lists(compressed: str, nodes: list[str]) -> None:
    assert hosts(compressed) == nodes


def test_the_job_id_is_the_one_squeue_shows() -> None:
    assert scheduled_job_id({}) is None
    assert scheduled_job_id({"SLURM_JOB_ID": "7"}) == "7"
    array = {"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2"}
    assert scheduled_job_id(array) == "7_2"

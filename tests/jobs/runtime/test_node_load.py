"""The load of a node by others: other processes count, the ranks of the run do not."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from jobs import metrics as m
from jobs.runtime.node_load import SHORTEST_S, NodeLoad, at_start
from tests.support.real_run import events, make_run, train

BUSY = "import time\nend = time.monotonic() + 60\nwhile time.monotonic() < end: pass"


def work_s(seconds: float) -> None:
    """Keep a processor busy for this processor time of our own."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_another_process_is_other_work_and_the_run_itself_is_not() -> None:
    other = subprocess.Popen([sys.executable, "-c", BUSY])
    try:
        load = NodeLoad(1)
        began, own_before_s = time.monotonic(), load.own_s
        work_s(2 * SHORTEST_S)
        values, elapsed_s = load.sample(), time.monotonic() - began
    finally:
        other.kill()
        other.wait()
    assert values is not None
    assert load.own_s is not None
    assert own_before_s is not None
    own_share = (load.own_s - own_before_s) / (elapsed_s * load.cpus)
    # On a loaded machine the other process gets less than a processor, but something.
    assert 0 < values[m.OTHER_LOAD] <= 1 - own_share + 0.05
    assert values[m.MEMORY_AVAILABLE] > 0


def test_too_short_a_time_gives_no_sample() -> None:
    assert NodeLoad(1).sample() is None


def test_ranks_are_found_by_their_common_ancestor_and_equal_commands() -> None:
    code = (
        "import sys; from jobs.runtime.node_load import ranks_here; sys.stdin.readline();"
        "print(len(ranks_here(2)), len(ranks_here(3)), flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code]
    ranks = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for rank in ranks:
        assert rank.stdin is not None
        rank.stdin.write("\n")
        rank.stdin.flush()
    # Of three ranks only two can be seen, for instance in containers: unknown, not guessed.
    assert [rank.stdout.readline() for rank in ranks if rank.stdout] == ["2 0\n", "2 0\n"]
    for rank in ranks:
        rank.communicate()


def test_the_load_at_the_start_has_a_value_of_each_kind() -> None:
    values = at_start()
    assert {m.LOAD_AVERAGE, m.MEMORY_AVAILABLE, m.OTHER_USERS_PROCESSES} <= values.keys()


@pytest.mark.slow
def test_a_run_records_the_load_of_its_node(tmp_path: Path) -> None:
    run = make_run(tmp_path, "ranks_per_node=2", "job.steps=60", "model.layers=6", "job.unmeasured_steps=2")
    assert train(run) == [0, 0]
    (started,) = events(run, "started")
    assert {"load_average", "memory_available_bytes", "other_users_processes", "machines"} <= started.keys()
    (load,) = events(run, "node_load")
    assert {"other_load", "cpu_steal", "memory_available_bytes"} <= load.keys()
    assert load["step"] == 60

"""Slow pairs of nodes: rules that hold for all bandwidths, and the findings about them."""

from __future__ import annotations

import re
from collections import Counter
from itertools import chain, combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.doctor.outliers import Pairs, rounds, slow_nodes, slow_pairs
from jobs.doctor.pair_checks import bandwidths
from jobs.doctor.report import Finding, Verdict
from jobs.plan.compose import compose
from jobs.plan.legality import value_problems
from jobs.runtime.transport import nccl_networks, nccl_transports
from tests.support.doctoring import report

NOISE = st.floats(0.87, 1.13)


@given(st.integers(2, 40))
def test_a_tournament_has_every_pair_once_and_nobody_twice_in_a_round(players: int) -> None:
    played = rounds(players)
    assert Counter(chain.from_iterable(played)) == Counter(combinations(range(players), 2))
    for pairs in played:
        seated = list(chain.from_iterable(pairs))
        assert len(seated) == len(set(seated))
    assert len(played) == players - 1 + players % 2


def networks(most_slow: int) -> st.SearchStrategy[tuple[Pairs, set[str]]]:
    """Bandwidths of pairs with 13 % of noise, and the names of the few nodes that slow theirs to half or less."""

    @st.composite
    def made(draw: st.DrawFn) -> tuple[Pairs, set[str]]:
        count = draw(st.integers(3, 12))
        nodes = [f"n{number}" for number in range(count)]
        slow = draw(st.sets(st.sampled_from(nodes), max_size=min(most_slow, (count - 1) // 2)))
        usual, factor = draw(st.floats(0.01, 400)), draw(st.floats(0.001, 0.5))
        pairs = {pair: usual * draw(NOISE) * (factor if slow & set(pair) else 1.0) for pair in combinations(nodes, 2)}
        return pairs, slow

    return made()


@given(networks(most_slow=5))
def test_a_minority_of_slow_nodes_is_named_and_nobody_else(network: tuple[Pairs, set[str]]) -> None:
    pairs, slow = network
    assert set(slow_nodes(pairs)) == slow
    assert slow_pairs(pairs) == {}, "pairs of a slow node are not reported again"


@given(networks(most_slow=0), st.data())
def test_a_slow_pair_of_sound_nodes_is_named_as_a_pair(network: tuple[Pairs, set[str]], data: st.DataObject) -> None:
    pairs, _ = network
    # With three nodes, those of a slow pair are fast with the third.
    pair = data.draw(st.sampled_from(sorted(pairs)))
    slowed = pairs | {pair: pairs[pair] / 3}
    assert slow_nodes(slowed) == {}
    assert set(slow_pairs(slowed)) == {pair}


def test_two_nodes_alone_do_not_show_which_is_slow() -> None:
    assert slow_nodes({("a", "b"): 0.001}) == {}
    assert slow_nodes({}) == {}
    assert slow_pairs({}) == {}


# --- findings ------------------------------------------------------------------------------------------------


def findings(speeds: dict[str, dict[str, float]], *overrides: str, backend: str = "nccl", ways: tuple[str, ...] = (),
         **more: Any) -> dict[str, Finding]:  # fmt: skip
    run = compose(["cluster=xe9680_h100", *overrides], multirun=False, judge=value_problems)[0].run
    measured = {
        node: {"backend": backend, "gb_per_s": others, "transports": list(ways)} for node, others in speeds.items()
    }
    return {finding.what: finding for finding in bandwidths(run, [report(node, **more) for node in speeds], measured)}


def test_the_slow_one_of_three_nodes_is_named_with_what_to_type() -> None:
    speeds = {"n1": {"n2": 40.0, "n3": 9.0}, "n2": {"n1": 41.0, "n3": 8.0}, "n3": {"n1": 9.5, "n2": 8.5}}
    found = findings(speeds)
    assert found["all-reduce"].found.startswith("nccl with one GPU a node, 3 pairs: median 9, slowest 8 GB/s")
    assert found["slow nodes"].verdict is Verdict.warning
    assert found["slow nodes"].found == "n3: 9 GB/s at most"
    assert "'cluster.sbatch.exclude=\"n3\"'" in found["slow nodes"].advice
    emulated = findings(speeds, boot_id="one machine")
    assert "slow nodes" not in emulated
    assert emulated["all-reduce"].found.startswith("emulated: ")


@pytest.mark.parametrize(("promised", "verdict"), [("50", Verdict.ok), ("100", Verdict.warning)])
def test_bandwidth_is_compared_with_what_the_cluster_file_promises(promised: str, verdict: Verdict) -> None:
    found = findings({"n1": {"n2": 48.0}, "n2": {"n1": 48.5}}, f"cluster.network_gb_per_s={promised}")["all-reduce"]
    assert found.verdict is verdict
    share = 4800 // int(promised)
    assert found.found == f"nccl with one GPU a node, 48 GB/s, {share}% of cluster.network_gb_per_s={promised}"


def test_a_node_without_a_measurement_is_named_with_its_error() -> None:
    run = compose(["cluster=generic_slurm"], multirun=False)[0].run
    measured: dict[str, dict[str, Any]] = {"n1": {"error": "DistStoreError: timed out"}}
    (found,) = bandwidths(run, [report("n1"), report("n2")], measured)
    assert found.verdict is Verdict.wrong
    assert found.found == "failed on n1, n2: DistStoreError: timed out"


def test_nodes_without_torch_are_not_measured() -> None:
    run = compose(["cluster=generic_slurm"], multirun=False)[0].run
    bare = [report(node, versions={"python": "3.12.1"}) for node in ("n1", "n2")]
    assert list(bandwidths(run, bare, {})) == []


NCCL_LOG = """\
n1:901:950 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB ib0:10.1.0.1<0>
n1:901:950 [0] NCCL INFO Using network IB
n1:901:950 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0/GDRDMA
n1:901:950 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[0] [send] via NET/IB/1/GDRDMA
"""


def test_the_transport_is_what_nccl_states_and_sockets_between_gpus_are_a_warning() -> None:
    assert [*nccl_networks(NCCL_LOG), *nccl_transports(NCCL_LOG)] == ["NET/IB [0]mlx5_0:1/IB", "NET/IB/GDRDMA"]
    log = NCCL_LOG.replace("IB : Using [0]mlx5_0:1/IB", "Socket : Using [0]eth0:10.0.0.1<0>")
    log = re.sub(r"NET/IB/\d/GDRDMA", "NET/Socket/0", log)
    sockets = [*nccl_networks(log), *nccl_transports(log)]
    assert sockets == ["NET/Socket [0]eth0:10.0.0.1<0>", "NET/Socket"]
    speeds = {"n1": {"n2": 48.0}, "n2": {"n1": 48.0}}
    assert findings(speeds, ways=("NET/IB/GDRDMA",))["transport"].verdict is Verdict.ok
    assert findings(speeds, ways=tuple(sockets))["transport"].verdict is Verdict.warning
    assert findings(speeds, ways=("TCP over eth0",), backend="gloo")["transport"].verdict is Verdict.ok

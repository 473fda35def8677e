"""Launchers, NCCL, nvidia-smi and sacct beyond the samples: torn rows, cut cells, placeholders."""

from __future__ import annotations

import pytest

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Record, Text
from analysis.parsers.cluster import nccl_info, nvidia_smi, sacct
from analysis.parsers.cluster.launcher import FORMAT
from analysis.parsers.search import Search
from tests.analysis.parsers.reading import column, parsed, texts

# --- Nodes and ranks by the lines of launchers ---------------------------------------------------------------------


NODES, RANKS, EACH = a.LAUNCHED_NODES, a.LAUNCHED_RANKS, a.LAUNCHED_RANKS_PER_NODE


def stated(text: str) -> dict[object, float]:
    found = list(FORMAT.parse(Search(FORMAT.markers).lines([text.encode()])))
    assert {each.kind for each in found} <= {Kind.setting}
    return {metric: value for each in found for metric, value in each.values.items()}


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("SLURM_NNODES: 2\nNNODES: 2\nGPUS_PER_NODE: 8\n", {NODES: 2, EACH: 8}),
        ("[NODE-0(gpu-11)] [INFO] NNODES: 2\n", {NODES: 2}),
        ("+ torchrun --nnodes=4 --nproc-per-node=8 train.py\n", {NODES: 4, EACH: 8}),
        ("torchrun --nnodes 4 --nproc_per_node 8 train.py\n", {NODES: 4, EACH: 8}),
        ("accelerate launch --num_machines 2 --num_processes 16 train.py\n", {NODES: 2, RANKS: 16}),
        ("[launch.py:164:main] nnodes=1, num_local_procs=8, node_rank=0\n[launch.py:175:main] dist_world_size=8\n",
         {NODES: 1, EACH: 8, RANKS: 8}),
        ("Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/16\n", {RANKS: 16}),
        ("using world size: 16, data-parallel size: 2\n", {RANKS: 16}),
        ("SLURM_NTASKS=16\nSLURM_NTASKS_PER_NODE=8\n", {RANKS: 16, EACH: 8}),
        # Elastic, of a group of ranks, of two jobs, of variables not yet set, of nodes on some clusters.
        ("torchrun --nnodes=1:4 train.py\n", {}),
        ("data parallel world size: 2, dp_world_size=2\n", {}),
        ("NNODES=2\nNNODES=4\n", {}),
        ("torchrun --nnodes=$NNODES --nproc_per_node=${NPROC_PER_NODE}\n", {}),
        ("WORLD_SIZE=2\n", {}),
    ],
)  # fmt: skip
def test_each_launcher_states_its_nodes_and_ranks(text: str, values: dict[object, float]) -> None:
    assert stated(text) == values


# --- The lines of NCCL_DEBUG=INFO: transports, interfaces, versions, variables, communicators and warnings ---------


def channels(found: list[Record]) -> dict[str, float]:
    return {each.texts[Text.transport]: each.values[a.LINES] for each in found if each.kind is Kind.summary}


def test_a_channel_through_another_gpu_and_a_warning_of_a_plugin_are_read() -> None:
    (channel, warning) = parsed(
        nccl_info.parse,
        "node1:700:731 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0(1)/GDRDMA",
        "node1:700:731 [0] int create(plugin_t **):352 NCCL WARN NET/OFI initialization failed",
    )
    assert channel.texts == {Text.transport: "NET/IB/GDRDMA"}
    assert (warning.host, warning.texts) == ("node1", {Text.message: "NET/OFI initialization failed"})


def test_ever_different_warnings_take_no_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_info, "MOST_KEPT", 2)
    found = parsed(nccl_info.parse, *(f"n1:1:2 [0] NCCL WARN peer {peer}" for peer in (1, 1, 2, 3, 3, 3)))
    assert [each.values[a.LINES] for each in found] == [2, 1, 3]


def test_one_version_and_one_network_are_reported_of_many_ranks() -> None:
    lines = [f"n{rank // 4}:{rank}:{rank} [{rank % 4}] NCCL INFO " for rank in range(8)]
    found = parsed(
        nccl_info.parse,
        *(f"{line}NCCL version 2.10.3+cuda11.3" for line in lines[:1]),
        *(f"{line}Channel 00 : {rank}[0] -> {(rank + 1) % 8}[0] via P2P/IPC" for rank, line in enumerate(lines)),
        *(
            f"{line}comm 0x55 rank {rank} nranks 8 cudaDev 0 busId 1000 - Init COMPLETE"
            for rank, line in enumerate(lines)
        ),
    )
    assert texts(found, Text.library) == ["NCCL 2.10.3+cuda11.3"]
    assert channels(found) == {"P2P/IPC": 8}
    assert [each.values for each in found if Text.event in each.texts] == [{a.COMMUNICATOR_RANKS: 8, a.LINES: 8}]


# --- nvidia-smi's tables: queries with units, dmon with placeholders, foreign lines between ------------------------


def test_a_query_without_units_and_with_one_column_is_read() -> None:
    found = parsed(nvidia_smi.parse, "index, power.draw [W]", "0, 300.5", "power.draw [W]", "12.00 W", "no row")
    assert column(found, Kind.sample, a.POWER) == [300.5, 12]


def test_tables_are_read_past_what_is_typed_between_and_a_lost_first_character() -> None:
    dmon = parsed(
        nvidia_smi.parse, "$ nvidia-smi dmon -c 1", "# gpu    pwr  mtemp", "# Idx      W      C",
        "    0    119      -", "^C",
    )  # fmt: skip
    assert column(dmon, Kind.sample, a.POWER) == [119]
    assert column(dmon, Kind.sample, a.GPU_MEMORY_TEMPERATURE) == []
    table = parsed(
        nvidia_smi.parse,
        "timestamp, index, power.draw [W], memory.total [MiB]",
        "026/03/01 12:00:00.123, 0, 38.50 W, 24576 MiB",
        "2026/03/01 12:00:01.123, 0, 36.25 W, 24576 MiB",
    )
    assert column(table, Kind.sample, a.POWER) == [38.5, 36.25]
    assert texts(table, Text.timestamp) == ["2026/03/01 12:00:01.123"]


@pytest.mark.parametrize(
    ("cell", "names"),
    [("NVIDIA A100-SXM4-40GB          On ", ["NVIDIA A100-SXM4-40GB"]), ("Tesla V100-SXM2...  Off", [])],
)
def test_the_summary_names_the_gpu_unless_the_driver_cut_its_name(cell: str, names: list[str]) -> None:
    found = parsed(
        nvidia_smi.parse,
        "| NVIDIA-SMI 535.154.05             Driver Version: 535.154.05   CUDA Version: 12.2     |",
        "| GPU  Name                 Persistence-M | Bus-Id        Disp.A | Volatile Uncorr. ECC |",
        f"|   0  {cell} | 00000000:03:00.0 Off |                    0 |",
        "| N/A   43C    P0              53W / 400W |      0MiB / 40960MiB |      0%      Default |",
    )
    assert texts(found, Text.gpu_name) == names
    assert {each.kind for each in found} <= {Kind.setting}


# --- sacct's tables: with bars or of fixed width, with any columns, and with truncated cells -----------------------


def test_bars_at_the_end_and_raw_columns_are_read() -> None:
    (found,) = parsed(
        sacct.parse, "JobIDRaw|State|ElapsedRaw|Reserved|Restarts|", "17.extern|FAILED|93784|1-00:00:07|2|"
    )
    assert found.values == {a.JOB_TIME: 93784, a.WAITING_TIME: 86407, a.RESTARTS: 2}
    assert found.texts == {Text.job_id: "17.extern", Text.state: "FAILED"}


def test_placeholders_are_absent() -> None:
    (found,) = parsed(
        sacct.parse,
        "JobID|State|ExitCode|Elapsed|Timelimit|MaxRSS|NNodes|Start|NodeList",
        "12_[3-9%2]|PENDING|0:0|INVALID|UNLIMITED|0||Unknown|None assigned",
    )
    assert (found.values, found.texts) == (
        {}, {Text.job_id: "12_[3-9%2]", Text.state: "PENDING", Text.exit_code: "0:0"},
    )  # fmt: skip


@pytest.mark.parametrize("nodes", ["10.1.2.3,10.1.2.4", "gpu[01515,01517-01519]"])
def test_a_host_list_of_addresses_or_with_commas_is_one_text(nodes: str) -> None:
    (found,) = parsed(sacct.parse, "JobID|JobName|State|ExitCode|NNodes|AllocTRES|NodeList",
                    f"77|lr=1e-4,wd=0|FAILED|255:0|2|billing=4,cpu=448,gres/gpu=16,node=2|{nodes}")  # fmt: skip
    assert found.texts[Text.nodes] == nodes
    assert found.texts[Text.job_name] == "lr=1e-4,wd=0"
    assert found.values == {a.NODES: 2, a.CPUS: 448, a.GPUS: 16}

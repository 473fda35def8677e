"""The system of every node: what a node shows, a file a node, the table, nodes that differ, and no names on request."""

from __future__ import annotations

import json
import os
import struct
import time
import uuid
from pathlib import Path

import pytest

from analysis.load.discover import read_runs
from analysis.load.run_directory import read_run
from analysis.report.digest import Digest
from analysis.report.report import report
from analysis.report.sections.system import HEADING, system_section, systems_differ
from jobs.doctor.nodes import systems
from jobs.doctor.report import Verdict
from jobs.rundir import RunDir, append_record, write_json
from jobs.runtime.node import system
from jobs.runtime.node.system import facts_of_node
from jobs.runtime.node.system_facts import described
from jobs.submit.preparation.container import identity
from tests.support.doctoring import report as report_of_doctor
from tests.support.fake_runs import a_run, finished_run
from tests.support.real_run import make_run, printed, train

H200 = "NVIDIA H200, 143771, 700.00, 1980, 550.54.15\n"
NODE = {"node": "gpu01", "number": 0, "server": "Dell Inc. PowerEdge XE9680", "cpu": "Xeon 8480+", "sockets": 2,
        "gpus": ["NVIDIA H200, limit 700 W"] * 8, "gpu_driver": "NVIDIA 550.54.15", "kernel": "5.14",
        "file_systems": {"data": "nfs4 (filer07:/export/lovelace)"}}  # fmt: skip


def write(file: Path, text: str, mode: int = 0o644) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(mode)


def record(run: RunDir, number: int, **facts: object) -> None:
    run.system_record(number).parent.mkdir(exist_ok=True)
    write_json(run.system_record(number), NODE | {"number": number} | facts)


def test_a_node_shows_server_processors_gpus_adapters_and_file_systems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sys, proc = tmp_path / "sys", tmp_path / "proc"
    monkeypatch.setattr(system, "SYS", sys)
    monkeypatch.setattr(system, "PROC", proc)
    write(sys / "class/dmi/id/sys_vendor", "Dell Inc.\n")
    write(sys / "class/dmi/id/product_name", "PowerEdge XE9680\n")
    for cpu in range(8):  # two sockets of two cores of two threads
        write(sys / f"devices/system/cpu/cpu{cpu}/topology/physical_package_id", str(cpu % 4 // 2))
        write(sys / f"devices/system/cpu/cpu{cpu}/topology/core_cpus_list", f"{cpu % 4},{cpu % 4 + 4}")
    for port, (link, state, rate) in enumerate(
        [("InfiniBand", "4: ACTIVE", "400 Gb/sec (4X NDR)")] * 2 + [("Ethernet", "1: DOWN", "40 Gb/sec (4X QDR)")]
    ):
        write(sys / f"class/infiniband/mlx5_{port}/hca_type", "MT4129\n")
        where = sys / f"class/infiniband/mlx5_{port}/ports/1"
        for name, text in (("link_layer", link), ("state", state), ("rate", rate)):
            write(where / name, text)
    write(sys / "class/net/eno1/type", "1\n")
    write(sys / "class/net/eno1/speed", "25000\n")
    write(sys / "class/net/eno1/operstate", "up\n")
    write(sys / "bus/drivers/ice/bind", "")
    (sys / "class/net/eno1/device").mkdir()
    (sys / "class/net/eno1/device/driver").symlink_to(sys / "bus/drivers/ice")
    write(sys / "class/net/bond0/type", "1\n")  # no device of its own
    write(proc / "meminfo", "MemTotal:       2113664000 kB\n")
    mounts = "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:5 / {} rw shared:9 - nfs4 filer:/export rw\n"
    write(proc / "self/mountinfo", mounts.format(tmp_path / "my data").replace("my data", "my\\040data"))
    programs = tmp_path / "bin"
    write(programs / "nvidia-smi", f"#!/bin/sh\nprintf '{H200.strip()}\\n{H200.strip()}\\n'\n", 0o755)
    write(programs / "scontrol", "#!/bin/sh\necho slurm 24.05.1\n", 0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    environment = {"SLURM_JOB_ID": "7", "NCCL_IB_HCA": "mlx5", "VLLM_API_KEY": "secret", "HOME": "/root",
                   "NVIDIA_PRODUCT_NAME": "PyTorch", "NVIDIA_PYTORCH_VERSION": "24.05"}  # fmt: skip
    places = {"data": tmp_path / "my data" / "pile", "checkpoints": Path("/x")}
    found = described(facts_of_node(places, environment, container="nvcr.io#nvidia/pytorch:24.05-py3"))
    assert {title: text for title, text in found.items() if title not in {"CPU", "Operating system", "Kernel"}} == {
        "Server": "Dell Inc. PowerEdge XE9680",
        "Sockets": "2",
        "Cores": "4",
        "Hardware threads": str(os.cpu_count()),
        "Memory (GiB)": "2,016",
        "GPUs": "2 x NVIDIA H200, 150.8 GB, limit 700 W, up to 1,980 MHz",
        "GPU driver": "NVIDIA 550.54.15",
        "Network adapters": (
            "2 x ConnectX-7, InfiniBand, 400 Gb/s (4X NDR); ConnectX-7, RoCE, down; ice, Ethernet, 25 Gb/s"
        ),
        "Scheduler": "Slurm 24.05.1",
        "Packages of the ranks": found["Packages of the ranks"],
        "Container": "nvcr.io#nvidia/pytorch:24.05-py3, NVIDIA PyTorch 24.05",
        "File systems": "data nfs4 (filer:/export), checkpoints ext4 (/dev/sda1)",
        "Environment": "NCCL_IB_HCA mlx5",
    }
    assert "torch 2" in found["Packages of the ranks"]


@pytest.mark.slow
def test_every_emulated_node_of_a_real_run_writes_a_record_that_the_report_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    run = make_run(tmp_path, "nodes=2", "ranks_per_node=2", "cluster.container=/images/a.sif")
    run.plan.write_text("{}")
    assert train(run) == [0, 0, 0, 0], printed(run)
    assert [file.name for file in run.system_records] == ["node-00000.json", "node-00001.json"]
    written = json.loads(run.system_records[0].read_text())
    assert written["environment"]["NCCL_ALGO"] == "Ring"
    assert "NCCL_DEBUG" not in written["environment"], "what the rank sets to read NCCL's log is not the user's"
    page = report([run.path], tmp_path / "page")
    text = page.with_suffix(".md").read_text()
    table = text[text.index(f"\n## {HEADING}\n") :]
    assert "| Container | /images/a.sif |" in table
    assert "torch 2" in table
    assert systems_differ(read_runs([run.path])) == [], "both are this machine"


def test_a_program_that_does_not_answer_costs_a_run_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "bin/nvidia-smi", "#!/bin/sh\nexec sleep 60\n", 0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setattr(system, "PROGRAM_LIMIT_S", 0.2)
    began = time.monotonic()
    found = facts_of_node({})
    assert time.monotonic() - began < 10
    assert "gpus" not in found
    assert found["versions"]["torch"]


def test_nodes_of_a_cluster_that_differ_are_columns_of_the_table_and_a_warning(tmp_path: Path) -> None:
    for name in ("one", "two"):
        finished_run(tmp_path, a_run(name, nodes=2))
    one, two = RunDir(tmp_path / "one"), RunDir(tmp_path / "two")
    record(one, 0)
    record(one, 1, node="gpu02", environment={"NCCL_ALGO": "Ring"})
    record(two, 0)
    record(two, 1, node="gpu03", gpus=["NVIDIA H200, limit 500 W"] * 8, kernel={"no": 1}, sockets=True)
    append_record(one.status, {"event": "transport", "ways": ["NET/IB"], "library": "NCCL 2.26.2+cuda12.8"})
    finished_run(tmp_path, a_run("three", nodes=2))
    write(RunDir(tmp_path / "three").system_record(0), "[]")  # of nobody
    runs = read_runs([tmp_path])
    section = system_section(Digest(runs=runs))
    assert section is not None
    assert [list(row) for row in section.rows] == [
        ["Nodes", "2: gpu01, gpu02", "1: gpu03"],
        ["Server", "Dell Inc. PowerEdge XE9680", "Dell Inc. PowerEdge XE9680"],
        ["CPU", "Xeon 8480+", "Xeon 8480+"],
        ["Sockets", "2", "—"],
        ["GPUs", "8 x NVIDIA H200, limit 700 W", "8 x NVIDIA H200, limit 500 W"],
        ["GPU driver", "NVIDIA 550.54.15", "NVIDIA 550.54.15"],
        ["Kernel", "5.14", "—"],
        ["File systems", "data nfs4 (filer07:/export/lovelace)", "data nfs4 (filer07:/export/lovelace)"],
        ["Environment", "NCCL_ALGO Ring (1 run)", "—"],
        ["Communication library", "NCCL 2.26.2+cuda12.8 (1 run)", "—"],
        ["Runs", "2", "1"],
    ]
    report([tmp_path], tmp_path / "page")
    page = (tmp_path / "page/report.html").read_text()
    assert "<td>data nfs4 (filer07:/export/lovelace)</td>" in page, "a cell of words is not a number with its range"
    (warning,) = systems_differ(runs)
    assert "GPUs (limit 700 W on gpu01, gpu02; limit 500 W on gpu03)" in warning
    assert "1 run computed on several kinds at once" in warning
    assert system_section(Digest(runs=[read_run(tmp_path / "three")])) is None


def test_an_anonymous_report_names_no_node_or_file_server(tmp_path: Path) -> None:
    finished_run(tmp_path, a_run("one"))
    record(RunDir(tmp_path / "one"), 0)
    page = report([tmp_path], tmp_path / "page", anonymous=True)
    text = page.read_text() + page.with_suffix(".md").read_text()
    assert "PowerEdge XE9680" in text
    assert not [name for name in ("gpu01", "filer07", "/export", "lovelace") if name in text]


def test_the_doctor_describes_nodes_and_warns_of_kinds() -> None:
    alike = [report_of_doctor(node, system=NODE | {"versions": {"torch": node}}) for node in ("n1", "n2")]
    (found,) = systems(alike)
    assert (found.verdict, found.found) == (
        Verdict.ok, "Server Dell Inc. PowerEdge XE9680, CPU Xeon 8480+, Kernel 5.14",
    )  # fmt: skip
    other = [alike[0], report_of_doctor("n2", system=NODE | {"server": "Dell Inc. PowerEdge XE8640"})]
    (found,) = systems(other)
    assert found.verdict is Verdict.warning
    assert found.found == "Server (Dell Inc. PowerEdge XE9680 on n1; Dell Inc. PowerEdge XE8640 on n2)"


def test_an_image_file_is_identified_by_its_first_bytes(tmp_path: Path) -> None:
    sif, squashfs = tmp_path / "a.sif", tmp_path / "a.sqsh"
    of = uuid.UUID("5f0c9be7-0d7f-4f1c-9f3e-1f7a6f0a4b11")
    sif.write_bytes(b"#!/usr/bin/env run-singularity\n\0SIF_MAGIC\x0001\x0002\x00" + of.bytes + bytes(64))
    squashfs.write_bytes(
        b"hsqs" + bytes(4) + struct.pack("<I", 1767225600) + bytes(28) + struct.pack("<Q", 4096) + bytes(64)
    )
    assert identity(str(sif)) == f"SIF {of}"
    assert identity(str(squashfs)) == "squashfs of 2026-01-01 00:00:00 UTC, 4,096 bytes"
    assert identity(str(tmp_path / "none.sif")) is None
    assert identity("nvcr.io#nvidia/nemo:24.05") is None

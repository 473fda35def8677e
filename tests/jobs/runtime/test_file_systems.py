"""BeeGFS and GPFS: their programs' output in the documented formats, and programs that are absent or refuse."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.runtime.node import file_systems
from jobs.runtime.node.file_systems import FileSystems, beegfs_bytes, gpfs_bytes

MOUNTSTATS = """\
device /dev/sda1 mounted on / with fstype ext4
device gpfs0 mounted on /gpfs with fstype gpfs
device beegfs_nodev mounted on /mnt/beegfs with fstype beegfs
"""
# Made after "Example of mmpmon io_s request" and "... fs_io_s request" of IBM's documentation.
IO_S = "_io_s_ _n_ 10.0.0.1 _nn_ node1 _rc_ 0 _t_ 1066660148 _tu_ 407431 _br_ {} _bw_ {} _oc_ 10 _cc_ 16"
FS_IO_S = """\
_fs_io_s_ _n_ 10.0.0.1 _nn_ node1 _rc_ 0 _t_ 1 _tu_ 2 _cl_ cluster _fs_ gpfs2 _d_ 2 _br_ 100 _bw_ 200 _oc_ 1 _cc_ 1
_fs_io_s_ _n_ 10.0.0.1 _nn_ node1 _rc_ 0 _t_ 1 _tu_ 2 _cl_ cluster _fs_ gpfs1 _d_ 3 _br_ 11 _bw_ 22 _oc_ 1 _cc_ 1
"""
# Made after ModeClientStats.cpp of BeeGFS 7: zero counts are left out, bytes are printed with six digits.
CLIENTSTATS = """\
Sum:            105 [sum]  70 [ops-rd]  9.00004e+09 [B-rd]  30 [ops-wr]  4096 [B-wr]
10.0.0.2        90 [sum]  60 [ops-rd]  9e+09 [B-rd]
127.0.0.1       15 [sum]  1 [statfs]  10 [ops-rd]  40960 [B-rd]  4 [ops-wr]  4096 [B-wr]
"""


def test_mmpmons_answers_are_summed_over_file_systems_and_a_refusal_is_no_number() -> None:
    assert gpfs_bytes(IO_S.format(6291456, 314572800)) == (6291456, 314572800)
    assert gpfs_bytes(FS_IO_S) == (111, 222)
    assert gpfs_bytes(IO_S.format(1, 2).replace("_rc_ 0", "_rc_ 1")) is None
    assert gpfs_bytes("mmpmon: unauthorized\n") is None


def test_beegfs_counts_are_those_of_the_addresses_of_this_node() -> None:
    assert beegfs_bytes(CLIENTSTATS, {"127.0.0.1"}) == (40960, 4096)
    assert beegfs_bytes(CLIENTSTATS, {"127.0.0.1", "10.0.0.2"}) == (9e9 + 40960, 4096)
    assert beegfs_bytes(CLIENTSTATS, {"10.0.0.9"}) is None


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node with both file systems; its programs print the files of their names."""
    monkeypatch.setattr(file_systems, "EVERY_S", 0.0)
    monkeypatch.setattr(file_systems, "MMPMON_DIRECTORY", str(tmp_path / "none"))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    (tmp_path / "self").mkdir()
    (tmp_path / "self/mountstats").write_text(MOUNTSTATS)
    return tmp_path


def program(node: Path, name: str, text: str, code: int = 0) -> None:
    (node / f"{name}.txt").write_text(text)
    script = node / name
    script.write_text(f"#!/bin/sh\necho \"$@\" >> '{node}/{name}.calls'\ncat '{node}/{name}.txt'\nexit {code}\n")
    script.chmod(0o755)


def test_what_both_moved_since_the_last_look_is_one_record(node: Path) -> None:
    program(node, "mmpmon", IO_S.format(1000, 0))
    program(node, "beegfs-ctl", CLIENTSTATS)
    systems = FileSystems(node)
    program(node, "mmpmon", IO_S.format(1500, 70))
    program(node, "beegfs-ctl", CLIENTSTATS.replace("4096 [B-wr]", "5096 [B-wr]"))
    record = systems.record()
    assert record is not None
    assert (record["mount_read_bytes"], record["mount_write_bytes"]) == (500, 1070)
    assert record["interval_s"] > 0
    assert "--rwunit=B --mount=/mnt/beegfs" in (node / "beegfs-ctl.calls").read_text()


def test_a_program_that_refuses_is_asked_once_and_the_other_goes_on(node: Path) -> None:
    program(node, "mmpmon", "", code=1)
    program(node, "beegfs-ctl", CLIENTSTATS)
    systems = FileSystems(node)
    assert systems.record() is not None
    assert len((node / "mmpmon.calls").read_text().splitlines()) == 1
    program(node, "beegfs-ctl", "", code=1)
    assert systems.record() is None
    assert systems.record(last=True) is None


def test_without_programs_or_such_file_systems_nothing_is_started(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(node / "empty"))
    assert FileSystems(node).programs == []
    monkeypatch.setenv("PATH", str(node))
    program(node, "mmpmon", IO_S.format(1, 1))
    (node / "self/mountstats").write_text("device /dev/sda1 mounted on / with fstype ext4\n")
    assert FileSystems(node).record() is None
    assert not (node / "mmpmon.calls").exists()

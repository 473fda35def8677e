"""The cache of reports: it saves work and changes nothing, whatever happens to the files, to it, or beside it."""

from __future__ import annotations

import functools
import os
import pty
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import orjson
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from analysis import cache
from analysis.cache import SUFFIX, Shelf, cache_directory, digest
from analysis.load import read as reading
from analysis.load import run_files as contents
from analysis.load.derived import with_derived
from analysis.load.discover import read_runs
from analysis.load.read import decoded, encoded
from analysis.load.run_directory import RunResult, read_run
from analysis.report.report import report
from jobs import metrics as m
from jobs.cli import main
from jobs.rundir import RunDir, SweepDir, append_record
from tests.make_run import a_run, counted, ended, event, finished_run, prepared, started, step
from tests.test_ended import account, submitted
from tests.test_energy import calm, power_log
from tests.test_goodput import killed_once


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's cache directory of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    # However slow the test is, its files changed just now.
    monkeypatch.setattr(contents, "SETTLED_NS", sys.maxsize)
    return tmp_path / "home"


@pytest.fixture(params=["files changed just now", "files changed long ago"])
def age(request: pytest.FixtureRequest, home: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """How long ago the files of a run changed, which is whether their content alone tells that they have not since."""
    if request.param == "files changed long ago":
        monkeypatch.setattr(contents, "SETTLED_NS", -sys.maxsize)
    return str(request.param)


def a_mixed_sweep(path: Path) -> None:
    """Runs that finished, with all that a run may record, and runs that cannot be used."""
    for ranks in (1, 2):
        counted(finished_run(path, a_run(f"good-{ranks}", ranks_per_node=ranks)), 2**20, [("tp", "send", 2, 8)])
    event(finished_run(path, a_run("saved")), "checkpoint", checkpoint_size_bytes=8, checkpoint_write_time_s=2.0)
    killed_once(prepared(path, a_run("killed")))
    measured = prepared(path, a_run("power"))
    calm(measured)
    power_log(measured, range(60))
    prepared(path, a_run("waiting"))
    failed = prepared(path, a_run("failed"))
    event(failed, "failed", rank=3, node="node1", error="<b>ValueError</b>: ü \x00 | ,")
    nan = prepared(path, a_run("nan"))
    started(nan, a_run("nan"))
    step(nan, 1, loss=None)
    ended(nan)
    torn = finished_run(path, a_run("torn"))
    torn.plan.write_text("{")


def made(path: Path, **options: Any) -> dict[str, bytes]:
    """The files of a report."""
    folder = report([path], path.parent / "out", **options).parent
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def shelves(home: Path) -> list[Path]:
    return sorted((home / "slurmscale" / "report").glob(f"*{SUFFIX}"))


WATCHED: list[list[str]] = []


@functools.cache
def watch() -> None:
    """Have every file that this process opens put down, where somebody listens: Python takes no hook off again."""
    sys.addaudithook(lambda event, args: WATCHED[-1].append(str(args[0])) if event == "open" and WATCHED else None)


def opened(run: RunDir, action: Callable[[], object]) -> list[str]:
    """The files of a run that an action opens."""
    watch()
    WATCHED.append([])
    action()
    return [path for path in WATCHED.pop() if path.startswith(f"{run.path}/")]


def same(one: RunResult, other: RunResult) -> bool:
    return all(getattr(one, field.name) == getattr(other, field.name) for field in fields(RunResult))


def test_a_report_has_the_same_bytes_without_a_cache_with_a_new_and_with_a_full_one(tmp_path: Path, home: Path) -> None:
    a_mixed_sweep(tmp_path / "demo")
    without = made(tmp_path / "demo", use_cache=False)
    assert not home.exists()
    assert made(tmp_path / "demo") == without
    assert len(shelves(home)) == 1
    assert made(tmp_path / "demo") == without


@pytest.mark.usefixtures("age")
def test_what_has_not_changed_is_not_worked_out_again(tmp_path: Path) -> None:
    run = finished_run(tmp_path / "demo", a_run())
    read_runs([tmp_path], use_cache=True)
    shelf = Shelf.of(run.path.parent, cache_directory())
    shelf.entries["run"][1]["state"] = "remembered"
    shelf.put("run", *shelf.entries["run"])
    shelf.save()
    (found,) = read_runs([tmp_path], use_cache=True)
    assert found.state == "remembered"
    (read,) = read_runs([tmp_path], use_cache=False)
    assert read.state == "finished"


def test_files_of_a_run_are_opened_again_only_where_they_may_have_changed(age: str, tmp_path: Path) -> None:
    run = finished_run(tmp_path / "demo", a_run())
    first, second, third = (opened(run, lambda: read_runs([tmp_path], use_cache=True)) for _ in range(3))
    assert len(set(first)) == 5
    assert first == second == third if age == "files changed just now" else not second + third
    (run.path / "metrics.jsonl").touch()
    assert opened(run, lambda: read_runs([tmp_path], use_cache=True)) == first


def test_what_was_kept_of_files_that_had_changed_just_then_gets_its_stamp_when_that_is_long_ago(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = finished_run(tmp_path / "demo", a_run())
    read_runs([tmp_path], use_cache=True)
    monkeypatch.setattr(contents, "SETTLED_NS", -sys.maxsize)
    second, third = (opened(run, lambda: read_runs([tmp_path], use_cache=True)) for _ in range(2))
    assert len(second) == 5
    assert third == []


@pytest.mark.usefixtures("age")
def test_a_file_that_changed_but_kept_its_size_and_its_time_is_read_again(tmp_path: Path) -> None:
    run = finished_run(tmp_path / "demo", a_run(), step_time_s=0.5)
    (before,) = read_runs([tmp_path], use_cache=True)
    status, text = run.metrics.stat(), run.metrics.read_text()
    with run.metrics.open("r+") as file:
        file.write(text.replace('"step_time_s":0.5', '"step_time_s":0.4'))
    os.utime(run.metrics, ns=(status.st_atime_ns, status.st_mtime_ns))
    changed = run.metrics.stat()
    assert (changed.st_size, changed.st_mtime_ns, changed.st_ino) == (
        status.st_size,
        status.st_mtime_ns,
        status.st_ino,
    )
    (after,) = read_runs([tmp_path], use_cache=True)
    assert (before.values[m.STEP_TIME_MEDIAN], after.values[m.STEP_TIME_MEDIAN]) == (0.5, 0.4)


@pytest.mark.usefixtures("age")
@pytest.mark.parametrize("name", ["config.yaml", "plan.json", "provenance.json", "status.jsonl", "metrics.jsonl"])
def test_each_file_of_a_run_counts_also_one_that_is_gone(name: str, tmp_path: Path) -> None:
    run = finished_run(tmp_path / "demo", a_run())
    read_runs([tmp_path], use_cache=True)
    (run.path / name).unlink()
    (after,) = read_runs([tmp_path], use_cache=True)
    (direct,) = with_derived([read_run(run.path)])
    assert same(after, direct)


@pytest.mark.usefixtures("age")
def test_the_sweeps_ledger_counts_too(tmp_path: Path) -> None:
    run = finished_run(tmp_path / "demo", a_run())
    (before,) = read_runs([tmp_path], use_cache=True)
    record = {"time": "2026-01-02T03:04:00.000+00:00", "event": "submitted", "run": "run", "launcher": "slurm"}
    append_record(SweepDir(run.path.parent).submissions, record | {"events_before": 1})
    (after,) = read_runs([tmp_path], use_cache=True)
    assert m.QUEUE_TIME not in before.values
    assert after.values[m.QUEUE_TIME] == 3.0


@pytest.mark.usefixtures("age")
def test_power_readings_count_as_they_come_grow_and_go(tmp_path: Path) -> None:
    run = prepared(tmp_path / "demo", a_run())
    calm(run)
    found = []
    for seconds in (range(0), range(30), range(60), range(0)):
        power_log(run, seconds)
        if not seconds:
            (run.path / "power-n1.csv").unlink()
        (read,) = read_runs([tmp_path], use_cache=True)
        found.append(read.energy and read.energy.energy_j)
    assert found[0] is found[3] is None
    assert found[1:3] == pytest.approx([400 * 19.5, 400 * 30])


def test_why_a_run_ended_is_told_from_what_lies_in_its_sweep_now(tmp_path: Path) -> None:
    run = submitted(tmp_path / "demo")
    said = []
    for row in (None, "12|CANCELLED|0:0", "12|OUT_OF_MEMORY|0:125"):
        if row:
            account(run, row)
        text = made(tmp_path / "demo")["report.md"].decode()
        said.append([word for word in ("| cancelled |", "| out of host memory |") if word in text])
    assert said == [[], ["| cancelled |"], ["| out of host memory |"]]


def test_other_code_works_everything_out_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest(b"a")
    monkeypatch.setattr(cache, "code_digest", lambda: b"a later release")
    assert digest(b"a") != before


@given(st.lists(st.none() | st.binary(max_size=3), max_size=4), st.lists(st.none() | st.binary(max_size=3), max_size=4))
def test_keys_are_equal_only_where_all_parts_are(one: list[bytes | None], other: list[bytes | None]) -> None:
    assert (digest(*one) == digest(*other)) == (one == other)


AN_EARLIER_RELEASES = zstandard.compress(orjson.dumps([{"good-1": ["a key", {}]}, []]))


@pytest.mark.parametrize("damage", [b"", b"no shelf", b"\x28\xb5\x2f\xfd torn", AN_EARLIER_RELEASES])
def test_a_damaged_shelf_is_made_anew(damage: bytes, tmp_path: Path, home: Path) -> None:
    a_mixed_sweep(tmp_path / "demo")
    first = made(tmp_path / "demo")
    (shelf,) = shelves(home)
    whole = shelf.read_bytes()
    for content in (damage, whole[:-1], whole[:40] + bytes([whole[40] ^ 1]) + whole[41:]):
        shelf.write_bytes(content)
        assert made(tmp_path / "demo") == first
        assert shelf.read_bytes() == whole


def test_a_report_is_made_where_no_cache_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_mixed_sweep(tmp_path / "demo")
    first = made(tmp_path / "demo", use_cache=False)
    (tmp_path / "file").touch()
    for place in (tmp_path / "file" / "below", Path("/proc")):
        monkeypatch.setenv("XDG_CACHE_HOME", str(place))
        assert cache_directory() is None
        assert made(tmp_path / "demo") == first


def test_only_its_user_can_read_or_write_the_cache(tmp_path: Path, home: Path) -> None:
    finished_run(tmp_path / "demo", a_run())
    previous = os.umask(0)
    try:
        made(tmp_path / "demo")
    finally:
        os.umask(previous)
    (shelf,) = shelves(home)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (shelf.parent, shelf)] == [0o700, 0o600]
    shelf.parent.chmod(0o770)
    assert cache_directory() is None, "others could have put anything there"


@pytest.mark.parametrize("value", ["", "relative/path"])
def test_a_cache_directory_that_the_standard_refuses_is_the_home_directorys(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", value)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_directory() == tmp_path / ".cache" / "slurmscale" / "report"


def test_the_option_keeps_nothing(tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    finished_run(tmp_path / "demo", a_run())
    assert main(["report", "--no-cache", str(tmp_path / "demo")]) == 0
    assert not home.exists()
    assert main(["report", str(tmp_path / "demo")]) == 0
    assert len(shelves(home)) == 1
    assert capsys.readouterr().err == ""


def test_the_shelves_that_nobody_looked_at_for_longest_go_first(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("old", "used", "new"):
        finished_run(tmp_path / name, a_run(sweep=name))
    for i, name in enumerate(("old", "used")):
        read_runs([tmp_path / name], use_cache=True)
        os.utime(Shelf.of(tmp_path / name, cache_directory()).file or home, (i, i))
    read_runs([tmp_path / "used"], use_cache=True)
    monkeypatch.setattr(cache, "MOST_BYTES", sum(shelf.stat().st_size for shelf in shelves(home)) + 100)
    read_runs([tmp_path / "new"], use_cache=True)
    kept = [name for name in ("old", "used", "new") if Shelf.of(tmp_path / name, cache_directory()).entries]
    assert kept == ["used", "new"]


def test_a_run_that_could_not_be_read_is_tried_again(tmp_path: Path) -> None:
    run = finished_run(tmp_path / "demo", a_run())
    plan = run.plan.read_bytes()
    run.plan.unlink()
    run.plan.mkdir()
    (before,) = read_runs([tmp_path], use_cache=True)
    assert before.reason == f"{run.plan} cannot be read: Is a directory"
    run.plan.rmdir()
    run.plan.write_bytes(plan)
    (after,) = read_runs([tmp_path], use_cache=True)
    assert after.used


@pytest.mark.parametrize(
    "odd", ["2026-01-02", ".nan", "123456789012345678901234567890", "{1: a, b: 2}", '"\\0"', "1e3"]
)
def test_odd_values_of_a_configuration_are_the_same_with_a_cache(odd: str, tmp_path: Path) -> None:
    run = finished_run(tmp_path / "demo", a_run())
    run.config.write_text(f"{run.config.read_text()}odd: {odd}\n")
    direct = read_run(run.path)
    for _ in range(2):
        (found,) = read_runs([tmp_path], use_cache=True)
        assert repr(found.config) == repr(direct.config)
        assert found.used


def test_a_kept_result_has_every_field_of_one_that_was_read(tmp_path: Path) -> None:
    a_mixed_sweep(tmp_path / "demo")
    for path in sorted(path for path in (tmp_path / "demo").iterdir() if path.is_dir()):
        run = read_run(path)
        text = encoded(run)
        assert text is not None
        value = orjson.loads(text)
        assert value.keys() == {field.name for field in fields(RunResult)} - {"path", "log"}, (
            "no log of another program is kept"
        )
        assert same(decoded(path, value), run)


def test_several_processes_read_what_one_reads_in_the_same_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_mixed_sweep(tmp_path / "demo")
    alone = read_runs([tmp_path])
    monkeypatch.setattr(reading, "FEWEST_FOR_PROCESSES", 2)
    monkeypatch.setattr(reading, "RUNS_AT_ONCE", 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    together = read_runs([tmp_path], use_cache=True, may_spawn=True)
    assert len(alone) > 4
    assert all(same(one, other) for one, other in zip(alone, together, strict=True))


def test_a_machine_that_starts_no_more_processes_still_reads(tmp_path: Path) -> None:
    a_mixed_sweep(tmp_path / "demo")
    # As `ulimit -u` does on a login node; root is not bound by it, so the pool is refused by what it needs.
    code = (
        "import resource, sys; from pathlib import Path\n"
        "from analysis import reading; from analysis.load.discover import read_runs\n"
        "reading.FEWEST_FOR_PROCESSES = 2\n"
        "import os; os.sched_getaffinity = lambda _: {0, 1}\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (12, 12))\n"
        "print(*[run.state for run in read_runs([Path(sys.argv[1])], may_spawn=True)], sep='|')\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.stdout.strip().split("|") == [run.state for run in read_runs([tmp_path])], done.stderr


def test_a_script_that_asks_for_frames_is_executed_once_however_many_runs_there_are(tmp_path: Path) -> None:
    a_mixed_sweep(tmp_path / "demo")
    script = tmp_path / "script.py"
    script.write_text(
        "import os, analysis; from analysis import reading\n"
        "print('begun')\n"
        "reading.FEWEST_FOR_PROCESSES = 2\n"
        "os.sched_getaffinity = lambda _: {0, 1}\n"
        f"print(len(analysis.frames({str(tmp_path / 'demo')!r}).runs) > 4)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["begun", "True"], done.stderr


def output_in_a_terminal(code: str) -> str:
    """What a program writes to stderr where that is a terminal."""
    leader, follower = pty.openpty()
    subprocess.run([sys.executable, "-c", code], stderr=follower, check=True, env=os.environ | {"TERM": "xterm"})
    os.close(follower)
    return b"".join(read_all_of(leader)).decode()


def read_all_of(leader: int) -> Iterator[bytes]:
    try:
        while block := os.read(leader, 1 << 16):
            yield block
    except OSError:
        # The other end is closed.
        os.close(leader)


SLOW = (
    "import time; from analysis.progress import with_progress\n"
    "for _ in with_progress((time.sleep({each}) for _ in range(20)), 20, 'Reading runs'): pass\n"
)


def test_a_long_read_shows_a_bar_in_a_terminal_and_nowhere_else() -> None:
    assert "Reading runs" in output_in_a_terminal(SLOW.format(each=0.1))
    done = subprocess.run([sys.executable, "-c", SLOW.format(each=0.1)], capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")


def test_a_short_read_shows_none() -> None:
    assert output_in_a_terminal(SLOW.format(each=0)) == ""


def test_results_of_one_report_are_not_lost_to_one_of_another_run(tmp_path: Path) -> None:
    one, other = (finished_run(tmp_path / "demo", a_run(name)) for name in ("one", "other"))
    for run in (one, other):
        read_runs([run.path], use_cache=True)
    assert Shelf.of(one.path.parent, cache_directory()).entries.keys() == {"one", "other"}


def test_a_moved_run_says_where_it_is_now(tmp_path: Path) -> None:
    run = finished_run(tmp_path / "demo", a_run())
    read_runs([tmp_path], use_cache=True)
    moved = RunDir(run.path.rename(tmp_path / "demo" / "moved"))
    (found,) = read_runs([tmp_path], use_cache=True)
    assert found.path == moved.path

"""Power limits and clocks of GPUs: set before the work of a run, recorded, and given back however the run ends.

The GPUs are those of a stand-in for NVIDIA's binding (tests/support/nvml.py); the processes are real.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from analysis.load.run_directory import read_run
from jobs.errors import ConfigError
from jobs.plan.legality import warnings
from jobs.ranks import Rank, node_name
from jobs.rundir import RunDir
from jobs.runtime.gpus.limits import gpus_limited, own_gpus
from tests.support import nvml
from tests.support.composing import one
from tests.support.paths import ROOT
from tests.support.real_run import events, last_of_each, make_run, printed, rank_environment, train
from tests.support.waiting import wait_until

LIMITED = ("cluster.gpu_power_limit_w=300", "cluster.gpu_clock_mhz=1200")
OF_PROGRAM = ("job=program", "program=own", "ranks_per_node=1", "gpu=h100_sxm")
PROGRAM = """\
import os, shutil, sys, time
shutil.copy(os.environ["GPUS"], "new.json")  # what the GPUs have while it works
os.replace("new.json", "seen.json")
"""


class Gpus:
    """The GPUs of this machine."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.file = place / "gpus.json"
        shutil.copy(str(nvml.__file__), place / "pynvml.py")
        self.write(nvml.some_gpus(2))

    def write(self, gpus: list[dict[str, Any]]) -> None:
        self.file.write_text(json.dumps(gpus))

    def now(self, file: Path | None = None) -> list[tuple[int, list[int] | None]]:
        """Return power limit and locked clock of each."""
        return [(each["limit_mw"], each["locked"]) for each in json.loads((file or self.file).read_text())]


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gpus:
    (tmp_path / "nvml").mkdir()
    found = Gpus(tmp_path / "nvml")
    # The first rank of a node starts the process that imports it.
    monkeypatch.setenv("PYTHONPATH", f"{found.place}:{ROOT}")
    monkeypatch.setenv("GPUS", str(found.file))
    monkeypatch.setenv("SLURMSCALE_SITE", str(tmp_path / "site"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (tmp_path / "site/program").mkdir(parents=True)
    return found


@pytest.fixture
def program(tmp_path: Path) -> Callable[..., RunDir]:
    """Return a run of a program that goes on with a line."""

    def prepared(line: str, *overrides: str) -> RunDir:
        steps = {"work": {"command": "{python} own.py", "start": "rank"}}
        own = {"name": "own", "steps": steps, "files": {"own.py": f"{PROGRAM}{line}\n"}}
        (tmp_path / "site/program/own.yaml").write_text(yaml.safe_dump(own))
        return make_run(tmp_path, *last_of_each([*OF_PROGRAM, *overrides]), small=False)

    return prepared


NORMAL, HELD = (700_000, None), (300_000, [1200, 1200])


def test_the_gpus_of_a_run_are_held_while_it_works_and_have_what_they_had_afterwards(
    gpus: Gpus, program: Callable[..., RunDir]
) -> None:
    run = program("", *LIMITED)
    run.plan.write_text("{}")
    assert train(run) == [0], printed(run)
    (seen,) = run.path.rglob("seen.json")
    assert gpus.now(seen) == [HELD, NORMAL], "the run does not use the second GPU"
    assert gpus.now() == [NORMAL, NORMAL]
    said = "limit 300 W (before: 700 W), clock locked at 1,200 MHz"
    assert f": {said}\n" in printed(run)
    assert json.loads(run.system_records[0].read_text())["gpu_limits"] == [said]
    found = read_run(run.path)
    assert (found.setting("cluster.gpu_power_limit_w"), found.setting("cluster.gpu_clock_mhz")) == (300, 1200)


@pytest.mark.long
def test_a_training_is_held_as_well(gpus: Gpus, tmp_path: Path) -> None:
    run = make_run(tmp_path, "ranks_per_node=2", "parallelism=ddp", "gpu=h100_sxm", LIMITED[0], "job.precision=float32")
    assert train(run) == [0, 0], printed(run)
    history = [each["history"] for each in json.loads(gpus.file.read_text())]
    assert history == [[["limit_mw", 300_000], ["limit_mw", 700_000]]] * 2


@pytest.mark.long
def test_a_program_that_fails_leaves_no_limit(gpus: Gpus, program: Callable[..., RunDir]) -> None:
    run = program("raise SystemExit(3)", *LIMITED)
    assert train(run) == [1]
    assert next(run.path.rglob("seen.json"))
    assert gpus.now() == [NORMAL, NORMAL]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_stopped_or_killed_leaves_no_limit(
    gpus: Gpus, program: Callable[..., RunDir], number: signal.Signals
) -> None:
    run = program("time.sleep(600)", *LIMITED)
    environment = os.environ | rank_environment(0, 1, "start")
    rank = subprocess.Popen([sys.executable, "-m", "jobs.run", str(run.path)], cwd=ROOT, env=environment)
    wait_until(lambda: list(run.path.rglob("seen.json")))
    assert gpus.now() == [HELD, NORMAL]
    rank.send_signal(number)
    assert rank.wait() == (0 if number is signal.SIGTERM else -number)
    wait_until(lambda: gpus.now() == [NORMAL, NORMAL])


@pytest.mark.parametrize(
    ("overrides", "change", "words"),
    [
        (["cluster.gpu_power_limit_w=900"], {}, "cluster.gpu_power_limit_w=900: GPU 0 on NODE (NVIDIA H100 80GB HBM3) "
         "allows 200 to 700 W. Set cluster.gpu_power_limit_w to a value among them."),
        (["cluster.gpu_clock_mhz=1203"], {}, "allows 210 to 1980 MHz in steps, of which 1200 and 1215 are the nearest. "
         "Set cluster.gpu_clock_mhz to one of them."),
        (list(LIMITED), {"allows": False}, "cluster.gpu_power_limit_w=300: GPU 1 on NODE (NVIDIA H100 "
         "80GB HBM3) allows 200 to 700 W, and does not let user USER set it: Insufficient Permissions. Start the ranks "
         "as root, let the site set it, or set cluster.gpu_power_limit_w=null."),
        ([LIMITED[1]], {"allows": False}, "allows 210 to 1980 MHz, and does not let user USER set it: Insufficient "
         "Permissions. Start the ranks as root, let Slurm set it where the site allows that (cluster.sbatch.gpu-freq), "
         "or set cluster.gpu_clock_mhz=null."),
        (["ranks_per_node=3", *LIMITED], {}, "cluster.gpu_power_limit_w=300 and cluster.gpu_clock_mhz=1200: the run "
         "uses GPUs 0, 1, 2 of NODE, and NVML shows 2 whole GPUs there. Limits need NVIDIA's driver and the package "
         "nvidia-ml-py on every node; parts of a GPU (MIG) have none. Set ranks_per_node to the GPUs of a node, or "
         "cluster.gpu_power_limit_w=null and cluster.gpu_clock_mhz=null."),
    ],
)  # fmt: skip
def test_a_limit_that_a_gpu_does_not_take_is_refused_with_what_it_allows(
    gpus: Gpus, overrides: list[str], change: dict[str, Any], words: str
) -> None:
    first, second = nvml.some_gpus(2)
    gpus.write([first, second | change])
    run = one(*last_of_each(["ranks_per_node=2", "gpu=h100_sxm", *overrides])).run
    with pytest.raises(ConfigError) as refused, gpus_limited(run, Rank(0, 2, 0, "n1", "s")):
        pass
    assert words.replace("NODE", node_name()).replace("USER", str(os.geteuid())) in str(refused.value)
    assert gpus.now() == [NORMAL, NORMAL], "the first GPU was set before the second one refused"


def test_a_run_whose_gpus_do_not_take_a_limit_ends_before_its_work(gpus: Gpus, program: Callable[..., RunDir]) -> None:
    run = program("", "cluster.gpu_power_limit_w=900")
    assert train(run) == [1]
    (failure,) = events(run, "failed")
    assert failure["cause"] == "refused"
    assert "allows 200 to 700 W" in str(failure["error"])
    assert not list(run.path.rglob("seen.json"))


def test_without_a_gpu_of_nvidia_a_limit_is_refused(gpus: Gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus.file.unlink()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    run = one("ranks_per_node=1", "gpu=h100_sxm", *LIMITED).run
    with pytest.raises(ConfigError) as refused, gpus_limited(run, Rank(0, 1, 0, "n1", "s")):
        pass
    assert f"the run uses CUDA_VISIBLE_DEVICES= of {node_name()}, and NVML shows 0 whole GPUs" in str(refused.value)


def test_a_rank_limits_the_gpus_of_its_node_or_those_that_it_alone_sees() -> None:
    first, second = (Rank(each, 4, each, "n1", "s") for each in (0, 1))
    assert own_gpus(None, first, 4) == ["0", "1", "2", "3"]
    assert own_gpus("4,5,6,7,8", first, 4) == ["4", "5", "6", "7"]
    assert [own_gpus(None, second, 4), own_gpus("4,5,6,7", second, 4)] == [None, None]
    assert own_gpus("GPU-1f", second, 4) == ["GPU-1f"]
    assert own_gpus("", second, 4) == []


def test_predictions_do_not_know_a_limit() -> None:
    limited = one("cluster=xe9680_h100", "ranks_per_node=8", "cluster.gpu_power_limit_w=300").run
    assert any("GPUs without cluster.gpu_power_limit_w: " in text for text in warnings(limited))

"""The private Slurm itself (tests/support/slurm): the features that other tests rely on, and its complete removal.

The tests of the suite on Slurm are in tests/end_to_end/test_slurm.py.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

import pytest

from tests.support.paths import ROOT
from tests.support.slurm import cluster as cluster_module
from tests.support.slurm import host
from tests.support.slurm.cluster import SlurmCluster, SlurmUnavailable
from tests.support.waiting import limit_s, wait_until


class AsUser(TypedDict):
    """The options of subprocess.run that change the user."""

    user: str
    group: int
    extra_groups: list[str]


NOBODY = AsUser(user="nobody", group=pwd.getpwnam("nobody").pw_gid, extra_groups=[])
pytestmark = pytest.mark.slurm


def output(*command: str, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command, env=os.environ | (env or {}), capture_output=True, text=True, timeout=limit_s(180), check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def refusal(*options: str) -> str:
    done = subprocess.run(
        ["sbatch", *options, "--wrap=true"], capture_output=True, text=True, timeout=limit_s(180), check=False
    )
    assert done.returncode == 1
    return done.stderr


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def job_that_tries_to_stay(tmp_path: Path, cluster: SlurmCluster) -> int:
    """Start one on `cluster`, and the process id of a child that left its session and dropped its environment."""
    pid_file = tmp_path / "pid"
    job = f"setsid env -i sleep 600 & echo $! >{pid_file}.new; mv {pid_file}.new {pid_file}; trap '' TERM; wait"
    output("sbatch", f"--chdir={tmp_path}", f"--wrap={job}", env=cluster.env)
    wait_until(pid_file.exists)
    return int(pid_file.read_text())


@pytest.mark.usefixtures("empty_queue")
def test_all_nodes_are_idle_and_in_their_partitions(slurm: SlurmCluster) -> None:
    wait_until(lambda: set(output("sinfo", "-h", "-N", "-o", "%T").split()) == {"idle"})
    partitions = output("sinfo", "-h", "-o", "%P %N %l %c %m %G").splitlines()
    assert partitions == [
        "gpu* node[01-04] 2:00:00 32 256000 gpu:8",
        "spare node[01-04] 2:00:00 32 256000 gpu:8",
        "debug node[05-06] 30:00 32 256000 gpu:8",
    ]


def test_a_three_node_job_runs_on_three_nodes_and_is_accounted_as_such(slurm: SlurmCluster, tmp_path: Path) -> None:
    step = "srun --ntasks-per-node=1 sh -c 'echo $SLURMD_NODENAME'"
    job = output("sbatch", "--parsable", "-N3", f"--chdir={tmp_path}", "--output=log", f"--wrap={step}").strip()

    def accounted() -> str:
        return output("sacct", "-X", "-n", "-P", "-j", job, "-o", "State,NNodes,Account,QOS,Partition").strip()

    wait_until(lambda: accounted() == "COMPLETED|3|research|normal|gpu")
    names = (tmp_path / "log").read_text().split()
    assert len(names) == len(set(names)) == 3
    assert set(names) <= set(slurm.nodes[:4])


def test_a_job_sees_as_many_gpus_as_it_asked_for(slurm: SlurmCluster) -> None:
    assert output("srun", "--gpus-per-node=2", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES") == "0,1\n"


def test_jobs_share_a_node(slurm: SlurmCluster) -> None:
    one = ["srun", "-w", "node01", "--gpus-per-node=4"]
    both = [subprocess.Popen([*one, "sleep", "1"]) for _ in range(2)]
    wait_until(lambda: output("squeue", "--me", "-h", "-t", "running", "-w", "node01").count("\n") == 2)
    assert [process.wait(60) for process in both] == [0, 0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["-p", "nosuch"], "Invalid partition name specified"),
        (["-A", "nosuch"], "Invalid account or account/partition combination specified"),
        (["-q", "nosuch"], "Invalid qos specification"),
        (["-q", "short", "-t", "10"], "QOSMaxWallDurationPerJobLimit"),
    ],
)
def test_what_does_not_exist_or_is_not_allowed_is_refused_in_slurms_words(
    slurm: SlurmCluster, options: list[str], words: str
) -> None:
    assert words in refusal(*options)


def test_node_names_resolve_to_this_machine(slurm: SlurmCluster) -> None:
    if not slurm.names_resolve:
        pytest.skip("not root, and libnss_wrapper is not installed")
    connect = "import socket; s = socket.create_server(('', 0)); "
    connect += "socket.create_connection(('node03', s.getsockname()[1])); print(socket.gethostbyname('node03'))"
    assert output("srun", "-w", "node02", sys.executable, "-c", connect) == "127.0.1.3\n"


@pytest.mark.slow
@pytest.mark.long
def test_a_second_cluster_is_up_beside_the_first_and_leaves_nothing(slurm: SlurmCluster, tmp_path: Path) -> None:
    with SlurmCluster(gpu_nodes=1, debug_nodes=1) as second:
        sleep = job_that_tries_to_stay(tmp_path, second)
        assert output("squeue", "-h", "-o", "%N", env=second.env) == "node01\n"
        assert output("squeue", "-h", "-o", "%N") == ""
        processes = host.processes(second.root)
        # munged, mariadbd, slurmdbd, slurmctld, two slurmd, and the job's.
        assert len(processes) > 6
        assert sleep in processes
    assert not any(map(is_alive, processes))
    assert not second.root.exists()
    assert str(second.root) not in host.HOSTS.read_text()
    assert len(set(output("sinfo", "-h", "-N", "-o", "%N").split())) == 6


def test_a_killed_process_takes_its_cluster_with_it(slurm: SlurmCluster) -> None:
    hold = "from tests.support.slurm.cluster import SlurmCluster\nimport time\n"
    hold += "with SlurmCluster(1, 1) as c: print(c.root, flush=True); time.sleep(600)"
    holder = subprocess.Popen([sys.executable, "-c", hold], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    with holder.stdout as line:
        root = Path(line.readline().strip())
    assert host.processes(root)
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    wait_until(lambda: not root.exists())
    assert host.processes(root) == []
    assert str(root) not in host.HOSTS.read_text()


def test_a_failed_start_states_which_daemon_ended_and_leaves_nothing() -> None:
    with pytest.raises(RuntimeError, match=r"waiting for slurmctld: slurmctld ended\n") as error:
        SlurmCluster(extra_conf="SelectType=select/nosuch").start()
    assert "select/nosuch" in str(error.value)


def test_a_missing_program_is_named_together_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "PROGRAMS", ("sh", "nosuchd"))
    with pytest.raises(
        SlurmUnavailable, match=r"^nosuchd not found: `make test` or tests/install.sh slurm installs it$"
    ):
        SlurmCluster()


def test_the_installer_returns_at_once_where_everything_is_there(slurm: SlurmCluster) -> None:
    assert output(str(ROOT / "tests/install.sh"), "slurm") == ""


def python_for_everyone() -> str | None:
    """This interpreter, or the system's where this one lies in a closed directory; the test Slurm needs no packages."""
    for python in (sys.executable, "/usr/bin/python3"):
        with contextlib.suppress(OSError):
            probe = [python, "-c", "from typing import Self"]
            if subprocess.run(probe, cwd="/", capture_output=True, check=False, **NOBODY).returncode == 0:
                return python
    return None


@pytest.fixture
def nobodys_checkout() -> Iterator[Path]:
    """A directory of user nobody with a copy of tests/support/slurm: a checkout may be readable by its owner only."""
    if os.getuid() != 0:
        pytest.skip("only root can become an ordinary user")
    if python_for_everyone() is None:
        pytest.skip(f"an ordinary user can run neither {sys.executable} nor a system Python 3.11")
    # Not tmp_path, which only its owner can enter.
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        checkout = Path(name)
        shutil.copytree(
            ROOT / "tests/support/slurm", checkout / "tests/support/slurm", ignore=shutil.ignore_patterns("__pycache__")
        )
        # Else NeMo's package, which also installs a top-level `tests`, would come first.
        for package in ("tests", "tests/support"):
            shutil.copy(ROOT / package / "__init__.py", checkout / package)
        checkout.chmod(0o755)
        (checkout / "work").mkdir()
        shutil.chown(checkout / "work", "nobody")
        yield checkout


def test_an_ordinary_user_brings_one_up_uses_it_and_takes_it_down(nobodys_checkout: Path) -> None:
    root = nobodys_checkout / "work" / "slurm"
    clean = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1"}

    def as_nobody(script: str) -> str:
        command = f"slurm() {{ {python_for_everyone()} -m tests.support.slurm $1 --root {root}; }}; set -e; {script}"
        done = subprocess.run(
            ["bash", "-c", command], user="nobody", group="nogroup", extra_groups=[], cwd=nobodys_checkout,
            env=clean, capture_output=True, text=True, timeout=limit_s(180), check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    try:
        exports = as_nobody("slurm up")
        assert f"export SLURM_CONF={root}/slurm.conf\n" in exports
        assert as_nobody("slurm up") == as_nobody("slurm env") == exports
        # Two tasks print at once, in any order.
        task = 'srun -N2 --gpus-per-node=1 sh -c "id -un; echo \\$CUDA_VISIBLE_DEVICES"'
        assert sorted(as_nobody(f'eval "$(slurm env)"; {task}').split()) == ["0", "0", "nobody", "nobody"]
        if "libnss_wrapper" in exports:
            # Once more where a cluster of root's is in /etc/hosts too.
            names = as_nobody('eval "$(slurm env)"; srun getent hosts node02').split()
            assert set(names) == {"127.0.1.2", "node02"}
    finally:
        as_nobody("slurm down")
    assert host.processes(root) == []
    assert not root.exists()


def test_nodes_in_namespaces_and_their_links_vanish_with_a_killed_process() -> None:
    if subprocess.run(["unshare", "--net", "--mount", "tc", "qdisc"], check=False, capture_output=True).returncode:
        pytest.skip("no network namespaces here: they need root, iproute2 and util-linux")
    hold = "import time\nfrom pathlib import Path\n"
    hold += "from tests.support.slurm.namespaces import leave_host, two_nodes\nleave_host()\n"
    hold += "with two_nodes(('node01', 'node02'), {'fast0': '1gbit', 'slow0': '10mbit'}) as nodes:\n"
    hold += "    print(*(Path(f'/proc/{node.pid}/ns/net').readlink() for node in nodes.values()), flush=True)\n"
    hold += "    time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", hold], cwd=ROOT, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        own = set(holder.stdout.readline().split())
        seen = namespaces_in_use()
        holder.send_signal(signal.SIGKILL)
    assert len(own) == 2
    assert own <= seen
    wait_until(lambda: not own & namespaces_in_use())
    assert "slow0" not in output("ip", "-brief", "link")


def namespaces_in_use() -> set[str]:
    """Return the network namespaces of all processes."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*/ns/net"):
        with contextlib.suppress(OSError):
            found.add(str(entry.readlink()))
    return found

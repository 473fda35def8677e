"""Bring a private Slurm up on this machine and take it down again.

All daemons (munged, mariadbd, slurmdbd, slurmctld and one slurmd per node) run as the calling user, root or not, from
one directory and on ports of their own. Not a model of Slurm: submissions are scheduled, refused, run and accounted by
the real thing. What is pretended is the hardware: each node claims 32 CPUs, 256 GB and 8 GPUs.
Called by `fixture.py` (for pytest) and `__main__.py` (by hand).
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.slurm import host
from tests.support.slurm.config import write_configs
from tests.support.slurm.namespaces import HEAD, Namespace

PROGRAMS = ("sbatch", "slurmctld", "slurmd", "slurmdbd", "munged", "mariadbd", "mariadb-install-db")
WAIT_S = 180.0
POLL_S = 0.03
# Unix socket paths end at 107 bytes, and slurmstepd puts "/spool/node01/node01_12345.4294967291" below the root.
ROOT_PATH_MAX = 60
NSS_WRAPPER = "libnss_wrapper.so"
# The daemons live in sbin, which an ordinary user's PATH often lacks.
PATH = f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"


class SlurmUnavailable(Exception):  # noqa: N818 - a state of the machine, not an error of the program
    """A Slurm cannot be started here; the text names the missing part and the remedy."""


class SlurmCluster:
    """Context manager: a Slurm with partitions `gpu` (the default), `spare` and `debug`, account `research`, three QOS.

    Jobs in `gpu` preempt those in `spare`, which has the same nodes. Each partition needs a node. `env` is what sbatch
    and its kin need in their environment, `nodes` the node names, `root` the directory of all files, `names_resolve`
    whether programs run with `env` can resolve node names. `extra_conf` is appended to slurm.conf, where the last value
    of a key counts. The nodes in `namespaces` run in a network of their own.
    """

    def __init__(
        self,
        gpu_nodes: int = 4,
        debug_nodes: int = 2,
        root: Path | None = None,
        extra_conf: str = "",
        namespaces: Mapping[str, Namespace] | None = None,
    ) -> None:
        self._user = _user_able_to_run_slurm()
        # Not $TMPDIR, which may be deep or closed to other users.
        self.root = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp")) if root is None else root.absolute()
        if len(str(self.root)) > ROOT_PATH_MAX:
            raise SlurmUnavailable(
                f"{self.root} is longer than {ROOT_PATH_MAX} characters, too long for Slurm's sockets"
            )
        self.nodes = [f"node{number:02d}" for number in range(1, gpu_nodes + debug_nodes + 1)]
        self.env = {"SLURM_CONF": f"{self.root}/slurm.conf"}
        self.names_resolve = False
        self._gpu_nodes = gpu_nodes
        self._extra_conf = extra_conf
        self._namespaces = namespaces or {}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._commands: dict[str, tuple[str, ...]] = {}
        self._guard: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        # A SIGTERM or SIGKILL to this process runs no `__exit__`: the guard sees its standard input close, and stops.
        self._guard = subprocess.Popen(
            [sys.executable, "-IS", host.__file__, str(self.root)], stdin=subprocess.PIPE, start_new_session=True
        )
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Bring everything up and wait until all nodes are idle; on any failure nothing is left behind."""
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop everything and remove the directory; harmless when repeated."""
        host.stop(self.root)
        for daemon in self._daemons.values():
            daemon.wait()
        if self._guard is not None:
            self._guard.kill()
            self._guard.communicate()

    def kill(self, name: str) -> None:
        """End a daemon (slurmctld, slurmdbd, a node's name for its slurmd) without a warning."""
        self._daemons[name].kill()
        self._daemons[name].wait()

    def shut_down(self, name: str) -> None:
        """End a daemon in order: slurmctld saves its jobs, of which a killed one may lose the latest."""
        self._daemons[name].terminate()
        self._daemons[name].wait()

    def start_again(self, name: str) -> None:
        """Start a daemon that has ended, as it was started before."""
        self._daemon(name, *self._commands[name])

    def crash(self, node: str) -> None:
        """End all that runs on a node at once, as a loss of power does."""
        self.kill(node)
        for pid in host.processes_of_node(self.root, node):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def processes_of(self, node: str) -> list[int]:
        """Process ids of a node's slurmd and of what its jobs run there."""
        return [self._daemons[node].pid, *host.processes_of_node(self.root, node)]

    @contextmanager
    def completing(self) -> Iterator[None]:
        """Hold jobs that end in the state COMPLETING, as a slow clean-up of their nodes does."""
        hold = self.root / "hold_epilogs"
        hold.touch()
        try:
            yield
        finally:
            hold.unlink()

    def all_idle(self) -> bool:
        """Return True if every node answers, runs nothing and has nothing to clean up."""
        states = self._run("sinfo", "-h", "-N", "-o", "%N %T", check=False).stdout.split("\n")
        return set(filter(None, states)) == {f"{node} idle" for node in self.nodes}

    def _start(self) -> None:
        self.root.mkdir(exist_ok=True)
        if self.root.lstat().st_uid != os.getuid() or any(self.root.iterdir()):
            raise SlurmUnavailable(f"{self.root} is not an empty directory of user {self._user}")
        # Jobs of other users reach their spool directories and the munge socket through it.
        self.root.chmod(0o755)
        host.write_state(self.root, None)
        self._make_names_resolve()
        with host.reserved_ports(2 + len(self.nodes)) as port:
            own = {node: own.address for node, own in self._namespaces.items()}
            head = HEAD if own else "127.0.0.1"
            write_configs(self.root, self._user, port, self.nodes, self._gpu_nodes, self._extra_conf, head, own)
            self._start_daemons(port)
        host.write_state(self.root, host.State(self.env, {daemon.pid for daemon in self._daemons.values()}))

    def _start_daemons(self, port: int) -> None:
        root = self.root
        munge = [
            "--key-file",
            f"{root}/munge.key",
            "--socket",
            f"{root}/munge.sock",
            "--pid-file",
            f"{root}/pid/munged",
        ]
        munge += ["--seed-file", f"{root}/munge.seed", "--log-file", f"{root}/log/munged"]
        self._daemon("munged", "munged", "--foreground", "--force", *munge)
        defaults = f"--defaults-file={root}/mariadb.cnf"
        self._run("mariadb-install-db", defaults, "--auth-root-authentication-method=normal", "--skip-test-db")
        self._daemon("mariadbd", "mariadbd", defaults)
        self._wait("mariadbd's socket", (root / "db/sock").exists)
        self._wait("munged's socket", (root / "munge.sock").exists)
        try:
            self._start_slurmdbd(port + 1)
        except RuntimeError:
            # A database that is a second old once gave it no answer ("We should have gotten a result").
            self._start_slurmdbd(port + 1)
        self._run("sacctmgr", "-i", stdin=(root / "accounting").read_text())
        self._daemon("slurmctld", "slurmctld", "-D")
        # Slurm's own programs, slurmd included, try again only after a second where nobody listens yet.
        self._wait("slurmctld", lambda: host.listens(port))
        for node in self.nodes:
            inside = self._namespaces[node].enter if node in self._namespaces else ()
            self._daemon(node, *inside, "slurmd", "-D", "-N", node)
        self._wait("all nodes to be idle", self.all_idle)

    def _start_slurmdbd(self, port: int) -> None:
        self._daemon("slurmdbd", "slurmdbd", "-D")
        self._wait("slurmdbd", lambda: host.listens(port))

    def _make_names_resolve(self) -> None:
        """Without this torch could not meet at the first host of a job: Slurm's node names exist nowhere else."""
        lines = host.host_lines(self.nodes, {node: own.address for node, own in self._namespaces.items()})
        try:
            host.add_hosts(self.root, lines)
        except OSError:
            hosts = self.root / "hosts"
            # nss_wrapper takes the words of a trailing comment for further names.
            others = [line.partition("#")[0] for line in host.HOSTS.read_text().splitlines()]
            hosts.write_text("\n".join([*lines, *others, ""]))
            preload = f"{NSS_WRAPPER}:{os.environ.get('LD_PRELOAD', '')}".rstrip(":")
            wrapped = {"LD_PRELOAD": preload, "NSS_WRAPPER_HOSTS": str(hosts)}
            # The loader only warns when the library is missing, so ask whether it works.
            if self._run("env", *_assignments(wrapped), "getent", "hosts", self.nodes[0], check=False).returncode:
                return
            self.env |= wrapped
        self.names_resolve = True

    def _daemon(self, name: str, *command: str) -> None:
        self._commands[name] = command
        with (self.root / "log" / f"{name}.out").open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                command,
                env=self._environ() | {host.DAEMON_MARK: str(self.root), "MYSQL_UNIX_PORT": f"{self.root}/db/sock"},
                cwd=self.root,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Out of reach of the terminal's Ctrl-C, which would kill them before this program stops them.
                start_new_session=True,
            )

    def _environ(self) -> dict[str, str]:
        """This process's environment without the Slurm it may itself run under."""
        outer = {key: value for key, value in os.environ.items() if not key.startswith(host.SLURM_PREFIXES)}
        return outer | {"PATH": PATH, "SLURM_CONF": self.env["SLURM_CONF"]}

    def _run(self, *command: str, stdin: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            command, env=self._environ(), input=stdin, capture_output=True, text=True, timeout=WAIT_S, check=False
        )
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed with {done.returncode}: {done.stdout}{done.stderr}")
        return done

    def _wait(self, what: str, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not ready():
            dead = [name for name, daemon in self._daemons.items() if daemon.poll() is not None]
            if dead or time.monotonic() > deadline:
                why = f"{', '.join(dead)} ended" if dead else f"not within {WAIT_S:.0f} s"
                logs = [path for path in (self.root / "log").iterdir() if path.stem in (dead or self._daemons)]
                tails = "\n".join(f"--- {path.name}: {path.read_text(errors='replace')[-1500:]}" for path in logs)
                raise RuntimeError(f"waiting for {what}: {why}\n{tails}")
            time.sleep(POLL_S)


def _assignments(env: dict[str, str]) -> list[str]:
    return [f"{key}={value}" for key, value in env.items()]


def _user_able_to_run_slurm() -> str:
    """This user's name; SlurmUnavailable where a program or the name is missing."""
    missing = [program for program in PROGRAMS if shutil.which(program, path=PATH) is None]
    if missing:
        raise SlurmUnavailable(f"{', '.join(missing)} not found: `make test` or tests/install.sh slurm installs it")
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        raise SlurmUnavailable(f"user id {os.getuid()} has no name here, and Slurm needs one") from None

"""`python -m tests.support.slurm up|down|env`: the tests' Slurm for a shell, kept until taken down.

    eval "$(python -m tests.support.slurm up)"; sinfo; python -m tests.support.slurm down

Not used by the tests, which hold their own cluster through `fixture.py`.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shlex
import sys
from pathlib import Path

from tests.support.slurm import host
from tests.support.slurm.cluster import SlurmCluster, SlurmUnavailable


def main() -> int:
    default_root = Path(os.environ.get("XDG_RUNTIME_DIR") or "/tmp", f"slurmscale-slurm-{os.getuid()}")
    parser = argparse.ArgumentParser(prog="python -m tests.support.slurm", description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=("up", "down", "env"))
    parser.add_argument("--root", type=Path, default=default_root, help="directory of all its files (%(default)s)")
    parser.add_argument("--nodes", type=int, default=4, help="nodes in partition gpu; debug has 2 more (%(default)s)")
    arguments = parser.parse_args()
    root = arguments.root.absolute()
    try:
        # If two `up` run at the same time, the second finds the cluster running.
        with root.with_name(f"{root.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if arguments.action == "down":
                host.stop(root)
                return 0
            env = _running(root)
            if env is None and arguments.action == "env":
                print(f"no Slurm is up in {root}: python -m tests.support.slurm up", file=sys.stderr)
                return 1
            if env is None:
                host.stop(root)
                cluster = SlurmCluster(gpu_nodes=arguments.nodes, root=root)
                cluster.start()
                env = cluster.env
    except SlurmUnavailable as reason:
        print(reason, file=sys.stderr)
        return 3
    for name, value in env.items():
        print(f"export {name}={shlex.quote(value)}")
    return 0


def _running(root: Path) -> dict[str, str] | None:
    """The environment of the cluster in `root`; None unless all its daemons live."""
    state = host.read_state(root)
    return state.env if state is not None and state.daemons <= set(host.processes(root)) else None


if __name__ == "__main__":
    sys.exit(main())

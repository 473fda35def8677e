"""Real NeMo runs on a CPU for tests: one process imports NeMo under the shim, and forks the ranks of every run.

Importing takes 20 s; a forked rank starts at once. `python -m tests.support.nemo.real_nemo` is that process: a line
with a run directory asks for a run, a line with its ranks' process ids answers, then one with their exit codes.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import secrets
import subprocess
import sys
from pathlib import Path
from shlex import quote

from jobs.rundir import RunDir, load_run
from tests.support.nemo import cpu_shim
from tests.support.paths import ROOT
from tests.support.waiting import limit_s

RUN_TIMEOUT_S = 400

WRAPPER = """\
#!/bin/sh
# Python, with NeMo's CPU shim where it starts a rank: by hand, or as submitit does.
case "$*" in
*"-m jobs.run "* | *"-m submitit.core._submit "*) exec {python} -u {shim} "$@" ;;
esac
exec {python} "$@"
"""


class Nemo:
    """The process that has imported NeMo."""

    def __init__(self, log: Path) -> None:
        with log.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.nemo.real_nemo"],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def train(self, directory: RunDir) -> list[int]:
        """Run all ranks of a run to their end; returns their exit codes."""
        self.start(directory)
        return self.exit_codes()

    def start(self, directory: RunDir) -> list[int]:
        """Start the ranks of a run; returns their process ids. The next call is `exit_codes`."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{json.dumps(str(directory.path))}\n")
        self.process.stdin.flush()
        return self.answer()

    def exit_codes(self) -> list[int]:
        """Wait for the ranks of the run that was started."""
        return self.answer()

    def answer(self) -> list[int]:
        """The next line of integers."""
        assert self.process.stdout is not None
        return [int(number) for number in json.loads(self.process.stdout.readline())]

    def close(self) -> None:
        """End the process."""
        self.process.communicate()


def serve() -> None:
    """Import once, then run the requested commands until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    cpu_shim.install()
    import jobs.engines.nemo.record  # noqa: F401 (once, for all forked ranks)
    from tests.support.real_run import rank

    context = multiprocessing.get_context("fork")
    for line in sys.stdin:
        directory = Path(json.loads(line))
        world, start = load_run(RunDir(directory).config).ranks, secrets.token_hex(8)
        ranks = [context.Process(target=rank, args=(directory, number, world, start)) for number in range(world)]
        for process in ranks:
            process.start()
        print(json.dumps([process.pid for process in ranks]), file=answers, flush=True)
        for process in ranks:
            process.join(limit_s(RUN_TIMEOUT_S))
            process.kill()
            process.join()
        print(json.dumps([process.exitcode for process in ranks]), file=answers, flush=True)


def shimmed_python(where: Path) -> Path:
    """An executable that is Python, with the shim under `-m jobs.run` and submitit's entry: for cluster.python."""
    path = where / "python-with-nemo-on-cpu"
    path.write_text(WRAPPER.format(python=quote(sys.executable), shim=quote(cpu_shim.__file__)))
    path.chmod(0o755)
    return path


if __name__ == "__main__":
    serve()

"""A sweep that this user did not submit: what its runs would execute, and whether the user trusts that."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

from jobs.errors import RunDirError, SubmitError, SuiteError
from jobs.files import read_bytes
from jobs.network import variables
from jobs.plan.rules.rule import counted, some
from jobs.rundir import RunDir, SweepDir, load_run
from jobs.schema import Run
from jobs.submit.preparation.code_store import INSTALLED, packaged_code, source_of
from jobs.submit.preparation.container import rank_python
from jobs.submit.sweeps.sweep_at import enclosing_sweep, refuse_link_out
from jobs.submit.trust.integrity import refuse_changed
from jobs.submit.trust.own_sweeps import is_own, own
from jobs.work.serve.after_training import run_after
from jobs.work.work import work_of


def trust_or_refuse(sweep: SweepDir, *, trust: bool) -> None:
    """Put a received sweep into the user's record; show what it would run, and raise SubmitError without `trust`.

    With `trust`, what was changed in a sweep of the user is put there too.
    """
    if is_own(sweep) and not trust:
        return
    for line in executed(sweep):
        # A received name or setting could send the terminal a command that hides a line.
        print(line if line.isprintable() else ascii(line))
    if not trust:
        raise SubmitError(
            f"{sweep.path} was not submitted by you: it was received, moved or copied, is a preview, or is older than "
            "the record of your sweeps. Its runs would execute the above as you. If you trust it, run "
            f"`slurmscale resume --trust {sweep.quoted}`."
        )
    for run in sweep.runs():
        # A run that was moved to another disk has no ledger beside it.
        if enclosing_sweep(Path(os.path.realpath(run.path))) is not None:
            refuse_link_out(run.path)
    own(sweep)


def executed(sweep: SweepDir) -> list[str]:
    """Return the lines that show what the runs of a sweep execute; equal runs share theirs."""
    groups: dict[tuple[str, ...], list[str]] = {}
    lines = []
    for directory in sweep.runs():
        try:
            found = tuple(executed_by(load_run(directory.config), directory))
        except (SuiteError, OSError) as error:
            lines.append(f"{directory.name}: {error}")
            continue
        groups.setdefault(found, []).append(directory.name)
    for found, names in groups.items():
        lines += [f"{counted(len(names))} ({some(names)}):", *(f"    {line}" for line in found)]
    return lines


def executed_by(run: Run, directory: RunDir) -> Iterator[str]:
    """Yield what a run executes: its command and code, and what its cluster file adds to the script."""
    yield f"command: {rank_python(run)} -u -m jobs.run"
    yield f"code: {code_in_words(directory)}"
    yield f"launcher: {run.launcher.kind.name}"
    if directory.checkpoints.is_symlink():
        yield f"checkpoints are read, written and removed in: {os.path.realpath(directory.checkpoints)}"
    yield from executed_as_set(run)
    if run.stages.serve:
        served = run_after(run, str(directory.export))
        yield from lines_of(of_server(served) | work_of(served).executes(served))


def executed_as_set(run: Run) -> Iterator[str]:
    """Yield what the settings of a run execute, read and write, whatever its code."""
    cluster = run.cluster
    of_work = work_of(run).executes(run)
    commands = [cluster.python or "", shlex.quote(cluster.container or "")]
    yield from (f"others can change it: {why}" for why in map(changeable, commands) if why)
    parts = {
        "set-up line": cluster.setup,
        "module": cluster.modules,
        "environment": [
            f"{name}={shlex.quote(value)}" for name, value in (cluster.env | variables(run.network)).items()
        ],
        "library of collectives": [run.network.library] if run.network.library else [],
        "container": [cluster.container] if cluster.container else [],
        "mount": cluster.container_mounts,
        "sbatch option": [f"--{name}={value}" for name, value in cluster.sbatch.items()],
        "PBS option": [f"{name}={value}" for name, value in cluster.pbs.items()],
        "notice": [part for part in (run.notify.command, run.notify.apprise) if part],
        "members who may change its directories": [cluster.trusted_group] if cluster.trusted_group else [],
        "reads": [
            path
            for path in (
                run.data.path,
                run.data.tokenizer,
                run.job.init_from,
                run.job.loss_band.reference,
                *of_work.pop("reads", ()),
            )
            if path
        ],
    }
    yield from lines_of(parts | of_server(run) | of_work)


def of_server(run: Run) -> dict[str, list[str]]:
    """Return the program of an engine that serves."""
    server = run.engine.server
    if server is None:
        return {}
    return {
        "server": [shlex.join([*server.command, *server.arguments])],
        "server environment": [f"{name}={shlex.quote(value)}" for name, value in server.env.items()],
        "Python of the server": [server.python] if server.python else [],
    }


def lines_of(parts: Mapping[str, list[str]]) -> Iterator[str]:
    """Yield a line for each value, by its subject."""
    for subject, values in parts.items():
        yield from (f"{subject}: {value}" for value in values)


def changeable(command: str) -> str:
    """Describe why others could change the program of a command; empty if they cannot, or it has no path."""
    try:
        program = shlex.split(command)[0]
        if program.startswith("/"):
            refuse_changed(Path(program), None)
    except RunDirError as error:
        return str(error).partition(". ")[0]
    except (ValueError, LookupError):
        # No shell reads such a command.
        return ""
    return ""


def code_in_words(directory: RunDir) -> str:
    """Return where the code of a run is, and how it differs from the installed code."""
    code = directory.code_snapshot
    source = code if code.exists() else source_of(directory)
    if source is None:
        return f"{code}, which is not there, and not the installed code"
    return f"{code}, equal to the installed code" if source == INSTALLED else code_beside_installed(source)


def code_beside_installed(code: Path) -> str:
    """Describe how a code snapshot differs from the installed code."""
    installed = packaged_code()
    there = {
        path.relative_to(code) for path in code.rglob("*") if "__pycache__" not in path.parts and not is_folder(path)
    }
    different = sorted(
        str(path)
        for path in there | installed.keys()
        if path not in there or not equals(code / path, installed.get(path))
    )
    if not different:
        return f"{code}, equal to the installed code"
    return f"{code}, not the installed code: {len(different)} files differ ({some(different)})"


def is_folder(path: Path) -> bool:
    """Return True for a directory that is not a link."""
    return path.is_dir() and not path.is_symlink()


def equals(path: Path, content: bytes | None) -> bool:
    """Return True if a regular file has this content; a file of another size is not read."""
    if content is None or path.is_symlink() or not path.is_file():
        return False
    return path.stat().st_size == len(content) and read_bytes(path, len(content)) == content

"""Mutation scores by room: `python -m tests.benchmarks.mutation_scores --room secrets --mutants 30`.

cosmic-ray changes one place of a module at a time, in a copy of the last commit below build/mutation/, and those tests
of CI that execute the changed lines, in any process, run against each change (a mutant). One run of all of them with
coverage finds them. A mutant is killed if a test fails or the time limit ends it. All mutants of a room are put into
one random order (--seed); the first --mutants of it are measured, so a larger number extends a sample. Each runs in a
fork of a process that has imported the other packages. The same command continues after an interruption; --again
measures the survivors again, with more tests of other files and with test files that changed since. With --near only
the tests of a room run, for the coverage too, which takes minutes in place of an hour: what they kill, CI kills.
`--module FILE --tests FILES` makes a room of one module.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import csv
import difflib
import importlib
import math
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Set
from dataclasses import dataclass
from pathlib import Path

import pytest
from cosmic_ray.commands.init import init
from cosmic_ray.mutating import mutate_code, use_mutation
from cosmic_ray.plugins import get_operator
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import MutationSpec, TestOutcome, WorkerOutcome, WorkItem, WorkResult
from coverage import CoverageData
from scipy.stats import binomtest

from tests.support.paths import ROOT

EQUIVALENT = Path(__file__).with_name("mutants_equivalent.csv")
FAST = ["-q", "-p", "no:randomly", "-m", "not long"]
PYTEST = [*FAST, "-p", "no:cacheprovider", "-x", "-n", "0", "--timeout=90"]
COVERED = [*FAST, "-n", "3", "-p", "tests.benchmarks.coverage_context"]
FOLDERS = ("tests/analysis", "tests/jobs", "tests/conf", "tests/red_team", "tests/end_to_end")
# Runs execute a copy of the code beside their sweep.
COVERAGE = """
[run]
include =
    {copy}/jobs/*
    {copy}/analysis/*
    */code-*/jobs/*
    */code-*/analysis/*
data_file = {data}
parallel = true
context = ${{COVERED_TEST-}}
patch = fork, _exit
disable_warnings = no-data-collected, module-not-measured, module-not-imported, couldnt-parse
[paths]
jobs =
    {copy}/jobs
    */code-*/jobs
analysis =
    {copy}/analysis
    */code-*/analysis
"""
# A fork has imported plugins already, whose assertions are then not rewritten.
PYTEST += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
OWN = {"jobs", "analysis", "conf", "tests", "slurmscale"}
# Writes the modules that the tests of its arguments import.
IMPORTED = """
import pathlib, sys, pytest
pytest.main([*sys.argv[2:], "--collect-only"])
pathlib.Path(sys.argv[1]).write_text("\\n".join(name for name, module in sys.modules.items() if module))
"""
LIMIT_S = 1800.0
"""Time of the tests of a mutant."""
MOST_FAR, MOST_FAR_AGAIN = 20, 100
"""Tests of other files that run on a mutant: those of one that nearly all tests reach would take an hour."""


@dataclass(frozen=True)
class Room:
    """Modules, and the test files that hold them where imports or other processes execute a line, as globs."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]


ROOMS = {
    "secrets": Room(("jobs/secrets.py",), ("tests/jobs/test_secrets.py", "tests/red_team/test_secrets.py")),
    "plan": Room(
        ("jobs/layout.py", "jobs/plan/*.py", "jobs/plan/rules/*.py"),
        ("tests/jobs/test_layout.py", "tests/jobs/plan/test_*.py"),
    ),
    "submit": Room(("jobs/submit/**/*.py",), ("tests/jobs/submit/**/test_*.py", "tests/jobs/test_run_events.py")),
    "compare": Room(("analysis/compare/*.py",), ("tests/analysis/compare/test_*.py",)),
    "scaling": Room(("analysis/scaling/*.py",), ("tests/analysis/scaling/test_*.py",)),
    "metrics": Room(("analysis/metrics/*.py",), ("tests/analysis/metrics/test_*.py",)),
    "failures": Room(
        ("analysis/failures/*.py", "jobs/failure_causes.py"),
        ("tests/analysis/failures/test_*.py", "tests/jobs/test_failure_causes.py"),
    ),
    "checkpoint": Room(
        ("jobs/engines/native/checkpoint.py", "jobs/runtime/checkpoint_*.py"),
        (
            "tests/jobs/engines/test_checkpoints.py",
            "tests/jobs/engines/test_products.py",
            "tests/jobs/work/train/test_train.py",
            "tests/jobs/runtime/test_checkpoint_sums.py",
            "tests/jobs/runtime/test_full_disk.py",
            "tests/jobs/runtime/test_lease.py",
            "tests/red_team/test_pickles.py",
            "tests/red_team/test_reading.py",
        ),
    ),
    "engines": Room(
        ("jobs/engines/native/*.py",),
        (
            "tests/jobs/engines/test_*.py",
            "tests/jobs/work/train/test_step.py",
            "tests/jobs/data/test_batching.py",
            "tests/jobs/plan/test_memory.py",
            "tests/jobs/plan/test_refusals.py",
        ),
    ),
    "loop": Room(
        (
            "jobs/work/train/loop.py",
            "jobs/engines/native/trainer.py",
            "jobs/runtime/steps.py",
            "jobs/runtime/learning_rate.py",
            "jobs/runtime/prefetch.py",
            "jobs/runtime/divergence.py",
        ),
        (
            "tests/jobs/work/train/test_train.py",
            "tests/jobs/work/train/test_loop.py",
            "tests/jobs/work/train/test_samples.py",
            "tests/jobs/work/train/test_step.py",
            "tests/jobs/work/train/test_divergence.py",
            "tests/jobs/engines/test_experts.py",
            "tests/jobs/runtime/test_garbage.py",
            "tests/jobs/runtime/test_pace.py",
            "tests/jobs/runtime/test_prefetch.py",
        ),
    ),
    "batches": Room(
        ("jobs/data/batches.py", "jobs/data/micro_batches.py", "jobs/data/packing.py"),
        ("tests/jobs/data/test_batch*.py", "tests/jobs/data/test_documents.py", "tests/jobs/work/train/test_step.py"),
    ),
    "lease": Room(("jobs/lease.py",), ("tests/jobs/runtime/test_lease.py", "tests/jobs/runtime/test_startup.py")),
}


def main() -> None:
    """Measure the chosen rooms one after another, and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--room", nargs="+", choices=ROOMS, default=list(ROOMS))
    parser.add_argument("--module", help="instead of rooms")
    parser.add_argument("--tests", nargs="+", default=[])
    parser.add_argument("--mutants", type=int, default=30, help="0: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no further mutant after this time")
    parser.add_argument("--again", action="store_true", help="measure the survivors again")
    parser.add_argument("--near", action="store_true", help="run only the tests of the room")
    given = parser.parse_args()
    if missing := [each for each in [given.module, *given.tests] if each and not (ROOT / each).is_file()]:
        parser.error(f"{', '.join(missing)}: not in this checkout. Give paths from its root.")
    end = time.monotonic() + 60 * given.minutes
    os.environ["OMP_NUM_THREADS"] = "1"
    rooms = {given.module.replace("/", "."): Room((given.module,), tuple(given.tests))} if given.module else ROOMS
    print("| room | modules | possible | sampled | equivalent | killed (by the limit) | score, 95 % interval |")
    print("| --- | --: | --: | --: | --: | --: | --- |", flush=True)
    for name in [*rooms] if given.module else given.room:
        folder = ROOT / "build" / "mutation" / f"{name}-{given.seed}"
        commit = copy_commit(folder / "copy", last_tests=given.again)
        reached = Reached(changed_tests(commit), MOST_FAR_AGAIN) if given.again else Reached([], MOST_FAR)
        if not given.module:
            covered = folder.parent / f"covered-{commit}{f'-{name}' if given.near else ''}"
            reached.read(covered, commit, ROOMS[name].tests if given.near else FOLDERS)
        with contextlib.chdir(folder / "copy"), use_db(folder / "session.sqlite") as db:
            os.environ["PYTHONPATH"] = str(Path.cwd())
            print(measured(name, rooms[name], db, reached, given, end), flush=True)
            if given.module:
                print(Path("../survivors.txt").read_text())


def copy_commit(copy: Path, *, last_tests: bool) -> str:
    """Write the commit of a session, at first the last one, into its copy; on request with the tests of the last one.

    It is written each time: a session that was killed leaves a mutant behind.
    """
    copy.mkdir(parents=True, exist_ok=True)
    commit = copy.with_name("commit")
    if not commit.exists():
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True)
        commit.write_text(head.stdout.strip())
    for what in ([commit.read_text()], *([["HEAD", "tests"]] if last_tests else [])):
        archive = subprocess.run(["git", "archive", *what], cwd=ROOT, check=True, stdout=subprocess.PIPE)
        subprocess.run(["tar", "-x", "-C", str(copy)], input=archive.stdout, check=True)
    return commit.read_text()


def changed_tests(commit: str) -> list[Path]:
    """Return the test files that are new or changed since a commit."""
    command = ["git", "diff", "--name-only", "--diff-filter=d", commit, "HEAD", "--", "tests/**/test_*.py"]
    found = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return [Path(line) for line in found.stdout.splitlines()]


class Reached:
    """The tests that execute each line of a commit, by one run of CI's tests with coverage."""

    def __init__(self, further: list[Path], most_far: int) -> None:
        self.further = further
        """Test files that run beside, those of the room and those that import the module."""
        self.most_far = most_far
        self.data = CoverageData(no_disk=True)

    def read(self, folder: Path, commit: str, tests: tuple[str, ...]) -> None:
        """Read the coverage of a commit by some tests, and measure it first where that was not done."""
        data = folder / "coverage"
        if not data.exists():
            copy, options = folder / "copy", folder / "coveragerc"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "commit").write_text(commit)
            copy_commit(copy, last_tests=False)
            options.write_text(COVERAGE.format(copy=copy, data=folder / "process"))
            environment = {**os.environ, "PYTHONPATH": str(copy)}
            command = [
                sys.executable,
                "-m",
                "pytest",
                *(str(path) for glob in tests for path in sorted(copy.glob(glob))),
            ]
            # Hydra takes the tracer of coverage for a debugger and prints other errors: what fails is run without it.
            for chosen, more in (
                (COVERED, {"COVERAGE_PROCESS_START": str(options)}),
                ([*FAST, "-n", "0", "--last-failed"], {}),
            ):
                run = subprocess.run([*command, *chosen], cwd=copy, env=environment | more, check=False)
                if run.returncode == pytest.ExitCode.OK:
                    break
            else:
                raise SystemExit("The unchanged code does not pass.")
            combine = [sys.executable, "-m", "coverage", "combine", "-q", f"--rcfile={options}", f"--data-file={data}"]
            subprocess.run([*combine, *folder.glob("process.*")], check=True)
        self.data = CoverageData(data)
        self.data.read()

    def tests(self, mutant: MutationSpec) -> set[str]:
        """Return the node ids of the tests that execute a changed line, outside functions any line of the module."""
        file = next((each for each in self.data.measured_files() if each.endswith(f"/{mutant.module_path}")), "")
        contexts = self.data.contexts_by_lineno(file)
        changed = range(mutant.start_pos[0], mutant.end_pos[0] + 1)
        lines = changed if in_function(mutant.module_path, changed[0]) else contexts
        return {each for line in lines for each in contexts.get(line, []) if each}


def in_function(module: Path, line: int) -> bool:
    """Return True if a line is in the body of a function: imports execute the others, whatever test runs."""
    functions = (each for each in ast.walk(ast.parse(module.read_text())) if isinstance(each, ast.FunctionDef))
    return any(each.body[0].lineno <= line <= (each.end_lineno or 0) for each in functions)


@dataclass(frozen=True)
class Only:
    """A plugin of pytest that keeps some tests."""

    wanted: Set[str]

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Drop the others."""
        items[:] = [item for item in items if item.nodeid in self.wanted]


def measured(name: str, room: Room, db: WorkDB, reached: Reached, given: argparse.Namespace, end: float) -> str:
    """Run what is left of a room's sample in the copy, write its survivors, and return its row of the table."""
    modules, tests = files(room.modules), files(room.tests)
    if not db.num_work_items:
        fill(db, modules, given.seed)
    sample = sorted(db.work_items, key=lambda item: item.job_id)[: given.mutants or None]
    results = dict(db.results)
    import_other_packages(tests)
    # Two changes of a module within one second would leave the bytecode of the first one.
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    # Later tests may need later code.
    near = [test for test in reached.further if test in tests or any(imports(test, module) for module in modules)]
    reached.further = [test for test in near if not exit_code([test], None)]
    known = {
        (row["module"], row["line"], row["mutation"]) for row in csv.DictReader(EQUIVALENT.read_text().splitlines())
    }

    def survived(item: WorkItem) -> bool:
        result = results[item.job_id]
        return not result.is_killed and result.diff is not None and changed(item, result.diff) not in known

    for item in sample:
        if item.job_id in results and not (given.again and survived(item)):
            continue
        if time.monotonic() > end:
            break
        result = WorkResult(WorkerOutcome.SKIPPED)
        if is_python(item.mutations[0]):
            result = tested(item.mutations[0], tests, reached)
        results[item.job_id] = result
        db.set_result(item.job_id, result)
    done = [(i, results[i.job_id]) for i in sample if i.job_id in results]
    done = [(item, result) for item, result in done if result.worker_outcome is not WorkerOutcome.SKIPPED]
    alive = [(item, result) for item, result in done if not result.is_killed]
    same = [item for item, result in alive if changed(item, result.diff) in known]
    holes = [f"{item.job_id} {item.mutations[0].definition_name}\n{r.diff}\n" for item, r in alive if item not in same]
    Path("../survivors.txt").write_text("\n".join(holes))
    killed, counted = len(done) - len(alive), len(done) - len(same)
    late = sum(result.output == "timeout" for _, result in done)
    row = f"| {name} | {len(modules)} | {db.num_work_items} | {len(done)} | {len(same)} | {killed} ({late}) | "
    if not counted:
        return f"{row}|"
    low, high = binomtest(killed, counted).proportion_ci(method="wilson")
    return f"{row}{killed / counted:.0%} ({low:.0%} to {high:.0%}) |"


def files(globs: tuple[str, ...]) -> list[Path]:
    """Return the files of the copy that match, without empty __init__.py."""
    return [path for glob in globs for path in sorted(Path().glob(glob)) if path.name != "__init__.py"]


def fill(db: WorkDB, modules: list[Path], seed: int) -> None:
    """Put the mutants of the modules into a session, numbered in a random order, without those of annotations."""
    init(modules, db, {})
    skipped = {module: list(annotation_spans(module)) for module in modules}
    mutants: list[MutationSpec] = sorted(
        (mutant for item in db.work_items for mutant in item.mutations if not within(mutant, skipped)),
        key=lambda mutant: (str(mutant.module_path), mutant.operator_name, mutant.occurrence),
    )
    random.Random(seed).shuffle(mutants)
    db.clear()
    db.add_work_items([WorkItem.single(f"{number:06}", mutant) for number, mutant in enumerate(mutants)])


def annotation_spans(module: Path) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Yield begin and end (line, column) of a module's annotations: changes of them do nothing."""
    for node in ast.walk(ast.parse(module.read_text())):
        for found in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            if isinstance(found, ast.expr):
                yield (found.lineno, found.col_offset), (found.end_lineno or 0, found.end_col_offset or 0)


def within(mutant: MutationSpec, skipped: dict[Path, list[tuple[tuple[int, int], tuple[int, int]]]]) -> bool:
    """Return True if a mutant changes an annotation."""
    return any(begin <= mutant.start_pos < end for begin, end in skipped[mutant.module_path])


def is_python(mutant: MutationSpec) -> bool:
    """Return True if a mutant compiles: cosmic-ray also changes the * of a signature and the | of a pattern."""
    operator = get_operator(mutant.operator_name)(**mutant.operator_args)
    try:
        compile(mutate_code(mutant.module_path.read_text(), operator, mutant.occurrence), "mutant", "exec")
    except SyntaxError:
        return False
    return True


def tested(mutant: MutationSpec, tests: list[Path], reached: Reached) -> WorkResult:
    """Run the tests that reach a mutant: those of files that import its module, then others.

    Where none does, those of its room that import its module, since processes that are killed leave no coverage.
    Without coverage all others of its room, too.
    """
    wanted = reached.tests(mutant)
    own = {test for test in {*map(file_of, wanted), *tests} if imports(test, mutant.module_path)}
    near = {each for each in wanted if file_of(each) in own}
    far = sorted(wanted - near)
    far = far[:: math.ceil(len(far) / reached.most_far) or 1]
    turns = [(sorted(set(map(file_of, some))), {*some}) for some in (near, far)]
    if not wanted:
        turns = [([test for test in tests if test in own], set())]
    if not reached.data.measured_files():
        turns += [([test for test in tests if test not in own], set())]
    end, code = time.monotonic() + LIMIT_S, 0
    operator = get_operator(mutant.operator_name)(**mutant.operator_args)
    with use_mutation(mutant.module_path, operator, mutant.occurrence) as (before, after):
        # Tests that are new may well be there because of this mutant.
        for some, only in [(reached.further, set()), *turns]:
            code = code or exit_code(some, end - time.monotonic(), only)
    diff = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=3)
    output = "timeout" if code == -signal.SIGKILL else Path("../output.txt").read_text(errors="replace")
    return WorkResult(
        WorkerOutcome.NORMAL, output, TestOutcome.KILLED if code else TestOutcome.SURVIVED, "\n".join(diff)
    )


def imports(test: Path, module: Path) -> bool:
    """Return True if a test file imports a module by its name."""
    package, _, name = ".".join(module.with_suffix("").parts).rpartition(".")
    pattern = rf"\b{re.escape(package)}\.{name}\b|from {re.escape(package)} import [^\n]*\b{name}\b"
    return bool(re.search(pattern, test.read_text()))


def file_of(test: str) -> Path:
    """Return the file of a test by its node id."""
    return Path(test.partition("::")[0])


def import_other_packages(tests: list[Path]) -> None:
    """Import what these tests import from other packages, once for all forks."""
    names = Path("../imported.txt")
    subprocess.run([sys.executable, "-c", IMPORTED, names, *PYTEST, *tests], check=True, stdout=subprocess.DEVNULL)
    for name in names.read_text().splitlines():
        if name.partition(".")[0] not in OWN:
            with contextlib.suppress(Exception):
                importlib.import_module(name)


def exit_code(tests: list[Path], limit_s: float | None, only: Set[str] = frozenset()) -> int:
    """Return pytest's exit code in a fork, 0 where no test is left; -9 where the time limit ended it."""
    if not tests:
        return 0
    fork = multiprocessing.get_context("fork").Process(target=run_pytest, args=(tests, only))
    fork.start()
    end = time.monotonic() + (float("inf") if limit_s is None else limit_s)
    # Not join(limit_s): it waits for what the fork started too, such as a rank in an endless loop.
    while fork.exitcode is None and time.monotonic() < end:
        time.sleep(0.05)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(fork.pid or 0, signal.SIGKILL)
    fork.join()
    code = fork.exitcode or 0
    return 0 if code == pytest.ExitCode.NO_TESTS_COLLECTED else code


def run_pytest(tests: list[Path], only: Set[str]) -> None:
    """Run tests of the copy, some or all, in this process, which has none of our modules; end it with the exit code."""
    os.setsid()
    with Path("../output.txt").open("w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    for name in [name for name in sys.modules if name.partition(".")[0] in OWN]:
        del sys.modules[name]
    sys.path.insert(0, str(Path.cwd()))
    code = pytest.main([*PYTEST, *map(str, tests)], plugins=[Only(only)] if only else [])
    os._exit(code)  # without waiting for the threads of a test that failed


def changed(item: WorkItem, diff: str) -> tuple[str, str, str]:
    """Return the module of a mutant, and its first line of code before and after, without indentation."""
    lines = [line for line in diff.splitlines() if not line.startswith(("---", "+++")) and line[1:].strip()]
    code = [line for line in lines if not line[1:].strip().startswith("#")]
    before, after = (next((line[1:].strip() for line in code if line.startswith(sign)), "") for sign in "-+")
    return str(item.mutations[0].module_path), before, after


if __name__ == "__main__":
    main()

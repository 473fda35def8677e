"""The Python API of slurmscale, and the entry of its command.

    import slurmscale

    runs = slurmscale.compose("model=llama2_7b", "cluster=mine", {"nodes": [1, 2, 4]}, multirun=True)
    sweep = slurmscale.submit({"nodes": [1, 2], "job": {"steps": 100}, "sweep": "first"}, multirun=True)
    slurmscale.wait(sweep)
    slurmscale.report(sweep)
    slurmscale.frames(sweep).points

Overrides are those of the command line as text, or dictionaries of keys and values, or lists of both. In a dictionary,
text means itself ("0123" and "a,b" too), dictionaries are sections, and a list is a sweep with multirun=True, else a
list value. Every refusal is a `SuiteError` whose text contains the remedy. The packages `jobs`, `analysis`, `conf` and
`sbatch` are slurmscale's own once this module is imported, even if a project has folders of these names; a program that
needs both must import slurmscale in a process of its own.
"""

# No syntax or import here that an old Python lacks: it must come as far as the sentence on its version.
import sys

if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False):
    # `python -m` puts the current directory first, where anybody may have put modules.
    del sys.path[0]

from importlib.machinery import PathFinder
from pathlib import Path

NEEDED = (3, 11)
HERE = Path(__file__).resolve().parent
REQUIRED = (
    "hydra", "omegaconf", "submitit", "rich", "yaml", "numpy", "scipy", "pandas", "tabulate", "plotly", "jinja2",
    "markupsafe", "tokenizers", "sentencepiece", "filelock", "psutil", "ahocorasick_rs", "orjson", "zstandard",
    "argcomplete",
)  # fmt: skip
"""Modules of the dependencies of pyproject.toml."""
PACKAGES = ("jobs", "analysis", "conf", "sbatch")

if tuple(sys.version_info[:2]) < NEEDED:
    TOO_OLD = "slurmscale needs Python {}.{}; this is {}.{}".format(*(NEEDED + sys.version_info[:2]))
    if __name__ == "__main__":
        sys.exit(TOO_OLD)
    raise ImportError(TOO_OLD)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

    from analysis.compare.campaign import Leaderboard
    from analysis.report.export.data_frames import Frames
    from jobs.explore.propose.predicted import RankedLayout
    from jobs.schema import Run
    from jobs.submit.states import RunState

    Overrides = str | Mapping[str, Any] | Sequence[Any]
    """Text such as "nodes=2", a dictionary such as {"nodes": 2, "job": {"steps": 100}}, or a list of these."""

__all__ = [
    "SuiteError", "cancel", "compare", "compose", "frames", "leaderboard", "main", "plan", "report", "resume", "search",
    "status", "submit", "wait",
]  # fmt: skip
INTERRUPTED, REFUSED = 130, 2


def __dir__() -> "list[str]":
    """Return the public names."""
    return __all__


class OwnPackages:
    """A finder of slurmscale's packages beside this file, whatever else PYTHONPATH or the current directory holds."""

    @staticmethod
    def find_spec(
        name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """Return the spec of an own package; None for all other modules."""
        del path, target
        return PathFinder.find_spec(name, [str(HERE)]) if name in PACKAGES else None


def refuse_strangers() -> None:
    """Raise ImportError if another module already has the name of an own package."""
    for name in PACKAGES:
        module = sys.modules.get(name)
        places = [Path(place).resolve() for place in getattr(module, "__path__", [])]
        if module is not None and places != [HERE / name]:
            place = getattr(module, "__file__", None) or ", ".join(map(str, places))
            raise ImportError(
                f"slurmscale has a package named {name!r}, and this program has imported another one from {place}. "
                f"Import slurmscale before it, or run slurmscale in a process of its own: python -m slurmscale."
            )


def forget_current_directory() -> None:
    """Remove the current directory from the places of imports, which an empty entry of PYTHONPATH adds."""
    here = Path.cwd().resolve()
    if here != HERE:
        sys.path[:] = [place for place in sys.path if Path(place).resolve() != here]


refuse_strangers()
sys.meta_path.insert(0, OwnPackages)

from jobs.errors import SuiteError, interrupt_behind  # noqa: E402 (found by the finder above)


def compose(*overrides: "Overrides", multirun: bool = False, **keywords: "Any") -> "list[Run]":
    """Compose and check the runs of some overrides; prepare nothing. Raises SuiteError if one is illegal."""
    from jobs.plan.compose import compose as compose_points

    lines = lines_of(overrides, keywords, multirun=multirun)
    return [point.run for point in compose_points(lines, multirun=multirun, to_submit=False)]


def lines_of(overrides: "Sequence[Overrides]", keywords: "dict[str, Any]", *, multirun: bool) -> "list[str]":
    """Return overrides as lines of Hydra's grammar; raise SuiteError for keyword arguments and other types."""
    from jobs.plan.python_overrides import override_lines, refuse_keywords

    refuse_keywords(keywords)
    return override_lines(overrides, multirun=multirun)


def plan(*overrides: "Overrides", multirun: bool = False, **keywords: "Any") -> "list[dict[str, Any]]":
    """Return the plan of each run, as in its plan.json: layout, ranks, parameters, warnings."""
    from jobs.submit.prepare import plan_of

    return [{"name": run.name, **plan_of(run)} for run in compose(*overrides, multirun=multirun, **keywords)]


def search(*overrides: "Overrides") -> "list[RankedLayout]":
    """Return the layouts that `slurmscale plan --search` ranks, by expected time: layout, memory, speed, chance.

    A list of values, as in {"nodes": [1, 2, 4]}, is a range to search.
    """
    from jobs.explore.layouts import read_layouts
    from jobs.explore.search import in_order

    return in_order(read_layouts(lines_of(overrides, {}, multirun=True)))[1]


def submit(*overrides: "Overrides", multirun: bool = False, wait: bool = False, **keywords: "Any") -> Path:
    """Prepare all runs, submit all or none, and return the sweep directory; prints what `slurmscale submit` prints.

    With `wait`, return when all runs have ended; `status` has their ends. Raises SuiteError if one is refused.
    """
    from jobs.plan.compose import compose as compose_points
    from jobs.submit.commands import submit_points

    points = compose_points(lines_of(overrides, keywords, multirun=multirun), multirun=multirun)
    submit_points(points, wait=wait)
    return Path(points[0].run.runs_dir) / str(points[0].run.sweep)


def status(sweep: "str | Path") -> "list[RunState]":
    """Return the state of every run of a sweep directory."""
    from jobs.submit.commands import look
    from jobs.submit.sweep_at import open_sweep

    return look(open_sweep(Path(sweep)))


def wait(sweep: "str | Path") -> "list[RunState]":
    """Wait until no run of a sweep waits or runs, print a line for each that ends, and return their states.

    Ctrl-C ends the waiting, not the runs.
    """
    from jobs.submit.commands import wait_for
    from jobs.submit.sweep_at import open_sweep

    if wait_for(open_sweep(Path(sweep))) == INTERRUPTED:
        raise KeyboardInterrupt
    return status(sweep)


def cancel(sweep: "str | Path") -> "list[RunState]":
    """End the waiting and running jobs of a sweep, print how many, and return the states of its runs.

    Raises SuiteError if some could not be ended, which stderr names.
    """
    from jobs.submit.cancel import cancel as cancel_sweep

    if cancel_sweep(Path(sweep)):
        raise SuiteError(f"Some jobs of {sweep} could not be ended; stderr names them.")
    return status(sweep)


def resume(
    sweep: "str | Path", *, launcher: "str | None" = None, wait: bool = False, trust: bool = False
) -> "list[RunState]":
    """Submit the unfinished runs of a sweep again, print what `slurmscale resume` prints, and return their states.

    Raises SuiteError for a sweep that you did not submit, unless `trust`, and for runs that are damaged.
    """
    from jobs.submit.commands import resume as resume_sweep

    code = resume_sweep(Path(sweep), launcher=launcher, wait=wait, trust=trust)
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    if code == REFUSED:
        raise SuiteError(f"Some runs of {sweep} could not be resumed; stderr names them.")
    return status(sweep)


def leaderboard(campaign: "str | Path") -> "list[Leaderboard]":
    """Return the leaderboard of a campaign: `.entries`, each with trial, verdict, ratio, interval and reasons.

    It is a list because a directory may contain several campaigns. Raises SuiteError if there is none.
    """
    from analysis.report.leaderboard import found_in

    return found_in(Path(campaign))[0]


def report(
    *paths: "str | Path",
    output: "str | Path | None" = None,
    formats: "Sequence[str]" = (),
    cost_of: "str | None" = None,
) -> Path:
    """Write report.html, report.md and runs.csv of run or sweep directories, and return the path of the page.

    It prints the sentences of the headline, as the command does; `analysis.report.report.answered` returns them.
    `output` is the directory for the files: by default the one path given, else the current directory. `formats` are
    further files, as in `slurmscale report --format`; `cost_of` is a training such as 100B, as in `--cost-of`.
    """
    from analysis.formatting import one_line
    from analysis.report.report import answered

    answer, page = answered([Path(path) for path in paths], None if output is None else Path(output), formats, cost_of)
    print(*map(one_line, answer), sep="\n")
    return page


def compare(
    a: "str | Path", b: "str | Path", *, output: "str | Path | None" = None, formats: "Sequence[str]" = ()
) -> "tuple[list[str], Path]":
    """Write the report of B relative to A; return the sentences of the comparison and the path of the page."""
    from analysis.report.compare import compare as compare_sweeps

    return compare_sweeps(Path(a), Path(b), None if output is None else Path(output), formats)


def frames(*paths: "str | Path") -> "Frames":
    """Return the tables of a report as data frames: `.runs`, `.points`, `.steps`, `.measurements`, in SI units."""
    from analysis import frames as read_frames

    return read_frames(*paths)


def main(arguments: "list[str] | None" = None) -> int:
    """Run the command line and return its exit code."""
    try:
        import gc

        # A command ends after a second and keeps nearly all that it makes: collect seldom (a tenth of its time).
        gc.set_threshold(50_000)
        if arguments is None:
            forget_current_directory()
        from jobs.cli import main as run_command

        return run_command(arguments)
    except (Exception, KeyboardInterrupt) as error:
        if interrupt_behind(error):
            # While modules are imported; later the command line itself answers.
            print("slurmscale: interrupted", file=sys.stderr)
            return 130
        if not isinstance(error, ModuleNotFoundError) or (error.name or "").partition(".")[0] not in REQUIRED:
            raise
        import shlex

        install = shlex.join([sys.executable, "-m", "pip", "install", "--editable", str(HERE)])
        print(f"slurmscale needs the package {error.name}, which this Python lacks. Run: {install}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())

"""The Python API of slurmscale, and the entry of its command.

    import slurmscale

    runs = slurmscale.compose("model=llama2_7b", "cluster=mine", "nodes=1,2,4", multirun=True)
    sweep = slurmscale.submit("nodes=1,2", "sweep=first", multirun=True)
    slurmscale.status(sweep)
    slurmscale.report(sweep)
    slurmscale.frames(sweep).points

Overrides are those of the command line. Every refusal is a `SuiteError` whose text contains the remedy. The packages
`jobs`, `analysis`, `conf` and `sbatch` are slurmscale's own once this module is imported, even if a project has
folders of these names; a program that needs both must import slurmscale in a process of its own.
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
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

    from analysis.report.export.data_frames import Frames
    from jobs.schema import Run
    from jobs.submit.states import RunState

__all__ = ["SuiteError", "compose", "frames", "main", "plan", "report", "status", "submit"]


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


def compose(*overrides: str, multirun: bool = False) -> "list[Run]":
    """Compose and check the runs of some overrides; prepare nothing. Raises SuiteError if one is illegal."""
    from jobs.plan.compose import compose as compose_points

    return [point.run for point in compose_points(list(overrides), multirun=multirun, to_submit=False)]


def plan(*overrides: str, multirun: bool = False) -> "list[dict[str, Any]]":
    """Return the plan of each run, as in its plan.json: layout, ranks, parameters, warnings."""
    from jobs.submit.prepare import plan_of

    return [{"name": run.name, **plan_of(run)} for run in compose(*overrides, multirun=multirun)]


def submit(*overrides: str, multirun: bool = False, wait: bool = False) -> Path:
    """Prepare all runs, submit all or none, and return the sweep directory; prints what `slurmscale submit` prints.

    With `wait`, return when all runs have ended; `status` has their ends. Raises SuiteError if one is refused.
    """
    from jobs.plan.compose import compose as compose_points
    from jobs.submit.commands import submit_points

    points = compose_points(list(overrides), multirun=multirun)
    submit_points(points, wait=wait)
    return Path(points[0].run.runs_dir) / str(points[0].run.sweep)


def status(sweep: "str | Path") -> "list[RunState]":
    """Return the state of every run of a sweep directory."""
    from jobs.submit.commands import look
    from jobs.submit.states import open_sweep

    return look(open_sweep(Path(sweep)))


def report(
    *paths: "str | Path",
    output: "str | Path | None" = None,
    formats: "Sequence[str]" = (),
    cost_of: "str | None" = None,
) -> Path:
    """Write report.html, report.md and runs.csv of run or sweep directories, and return the path of the page.

    `output` is the directory for them: by default the one path given, else the current directory. `formats` are further
    files, as in `slurmscale report --format`; `cost_of` is a training such as 100B, as in `--cost-of`.
    """
    from analysis.report.report import report as write_report

    return write_report(
        [Path(path) for path in paths], None if output is None else Path(output), list(formats), cost_of
    )


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

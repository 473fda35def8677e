"""The Python API of slurmscale, and the entry of its command.

    import slurmscale

    runs = slurmscale.compose("model=llama2_7b", "cluster=mine", {"nodes": [1, 2, 4]}, multirun=True)
    sweep = slurmscale.submit({"nodes": [1, 2], "job": {"steps": 100}, "sweep": "first"}, multirun=True)
    slurmscale.wait(sweep).counts
    slurmscale.report(sweep.directory).headline
    slurmscale.frames(sweep.directory).points

Each function returns the record that its command prints with --json (jobs/answers.py).

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

import signal

# Until main() can answer an interrupt, Ctrl-C ends the command by the signal and without a traceback. A program that
# imports the API keeps its handler, and one that was started with Ctrl-C ignored (nohup) goes on ignoring it.
IS_COMMAND = __name__ == "__main__" or (getattr(sys, "argv", None) or [""])[0].endswith("slurmscale")
if IS_COMMAND and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from importlib.machinery import PathFinder  # noqa: E402 (after the answer to Ctrl-C)
from pathlib import Path  # noqa: E402

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
    from typing import Any, TypeAlias, TypeVar

    from analysis.report.export.data_frames import Frames
    from jobs.explore.propose.predicted import RankedLayout
    from jobs.schema import Run

    Overrides = str | Mapping[str, Any] | Sequence[Any]
    """Text such as "nodes=2", a dictionary such as {"nodes": 2, "job": {"steps": 100}}, or a list of these."""
    Sweep: TypeAlias = "str | Path | answers.SweepAnswer"
    """The directory of a sweep, or what `submit` and `status` return."""
    Record = TypeVar("Record")

__all__ = [
    "SuiteError", "answer", "attempt", "calibrate", "cancel", "compare", "compose", "data", "doctor", "explain",
    "frames", "leaderboard", "logs", "main", "model", "plan", "probes", "report", "resume", "search", "status",
    "submit", "tune", "wait",
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

from jobs import answers  # noqa: E402 (found by the finder above)
from jobs.errors import SuiteError, interrupt_behind  # noqa: E402


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


def answer(command: str, **given: "Any") -> "Any":
    """Run a command with its options by name, and return its answer, a record of jobs.answers.

    Raises SuiteError if it is refused or left something undone, KeyboardInterrupt for Ctrl-C.
    """
    return answered(object, command, **given)


def answered(of: "type[Record]", command: str, **given: "Any") -> "Record":
    """Return the answer of a command, a record of this type."""
    from jobs.command_line.calls import answer_of

    result, code = answer_of(command, given)
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    if code == REFUSED:
        raise SuiteError(f"{command} could not do all that it should; stderr names what.")
    assert isinstance(result, of)
    return result


def plan(*overrides: "Overrides", multirun: bool = False, **keywords: "Any") -> answers.PlanAnswer:
    """Return the plan of each run: `.runs`, each with layout, ranks, parameters and warnings in `.plan`."""
    return answered(
        answers.PlanAnswer, "plan", overrides=lines_of(overrides, keywords, multirun=multirun), multirun=multirun
    )


def explain(word: str) -> answers.ExplainAnswer:
    """Return what a key means, or the keys and choices that have a word."""
    return answered(answers.ExplainAnswer, "explain", key=word)


def data(*overrides: "Overrides", multirun: bool = False, **keywords: "Any") -> answers.DataAnswer:
    """Prepare the data of the overrides, and return the account of each data set."""
    return answered(
        answers.DataAnswer, "data", overrides=lines_of(overrides, keywords, multirun=multirun), multirun=multirun
    )


def search(*overrides: "Overrides") -> "list[RankedLayout]":
    """Return the layouts that `slurmscale plan --search` ranks, by expected time: layout, memory, speed, chance.

    A list of values, as in {"nodes": [1, 2, 4]}, is a range to search.
    """
    from jobs.explore.layouts import read_layouts
    from jobs.explore.search import in_order

    return in_order(read_layouts(lines_of(overrides, {}, multirun=True)))[1]


def submit(
    *overrides: "Overrides",
    multirun: bool = False,
    wait: bool = False,
    expect: "str | None" = None,
    **keywords: "Any",
) -> answers.SweepAnswer:
    """Prepare all runs, submit all or none, and return their states; prints what `slurmscale submit` prints.

    With `wait`, return when all runs have ended. `expect` is a result that is stored before the first run, such as
    "tokens_per_s >= 1000". Raises SuiteError if a run is refused.
    """
    lines = lines_of(overrides, keywords, multirun=multirun)
    return answered(answers.SweepAnswer, "submit", overrides=lines, multirun=multirun, wait=wait, expect=expect)


def status(sweep: "Sweep") -> answers.SweepAnswer:
    """Return the state of every run and stage of a sweep: `.counts`, `.runs`, `.stages`."""
    return answered(answers.SweepAnswer, "status", sweep=place_of(sweep))


def wait(sweep: "Sweep") -> answers.SweepAnswer:
    """Wait until no run of a sweep waits or runs, print a line for each that ends, and return their states.

    Ctrl-C ends the waiting, not the runs.
    """
    from jobs.submit.commands import wait_for
    from jobs.submit.sweeps.sweep_at import open_sweep

    if wait_for(open_sweep(Path(place_of(sweep)))) == INTERRUPTED:
        raise KeyboardInterrupt
    return status(sweep)


def logs(run: "str | Path", *, rank: int = 0, attempt: "int | None" = None) -> answers.LogsAnswer:
    """Return the last lines of the output of a run."""
    return answered(answers.LogsAnswer, "logs", run=run, rank=rank, attempt=attempt)


def cancel(sweep: "Sweep") -> answers.SweepAnswer:
    """End the waiting and running jobs of a sweep, print how many, and return the states of its runs.

    Raises SuiteError if some could not be ended, which stderr names.
    """
    return answered(answers.SweepAnswer, "cancel", sweep=place_of(sweep))


def resume(
    sweep: "Sweep", *, launcher: "str | None" = None, wait: bool = False, trust: bool = False
) -> answers.SweepAnswer:
    """Submit the unfinished runs of a sweep again, print what `slurmscale resume` prints, and return their states.

    Raises SuiteError for a sweep that you did not submit, unless `trust`, and for runs that are damaged.
    """
    return answered(answers.SweepAnswer, "resume", sweep=place_of(sweep), launcher=launcher, wait=wait, trust=trust)


def attempt(
    name: str,
    *overrides: "Overrides",
    campaign: "str | Path | None" = None,
    repeats: "int | None" = None,
    wait: bool = False,
    until: "str | None" = None,
    proxy: "Sequence[str]" = (),
    expect: "str | None" = None,
    **keywords: "Any",
) -> answers.SubmittedCampaign:
    """Run one configuration in turns with the baseline of a campaign; the first attempt is named baseline.

    With `wait`, return when all runs have ended, with the leaderboard; with until="verdict", add pairs until they
    decide, and return the verdict. `proxy` are overrides that shorten both runs of a pair, such as ["job.steps=50"].
    `repeats` is 3 by default.
    """
    how = {"campaign": campaign, "repeats": repeats, "wait": wait, "until": until, "proxy": proxy, "expect": expect}
    lines = lines_of(overrides, keywords, multirun=False)
    return answered(answers.SubmittedCampaign, "attempt", name=name, overrides=lines, **how)


def leaderboard(campaign: "str | Path") -> answers.LeaderboardAnswer:
    """Return the judged attempts of a campaign: `.campaigns`, as a directory may contain several.

    Raises SuiteError if there is none.
    """
    return answered(answers.LeaderboardAnswer, "leaderboard", campaign=campaign)


def tune(*overrides: "Overrides", **keywords: "Any") -> answers.TuningAnswer:
    """Find the best configuration of lists of values within `tune.runs` and the other limits; it waits."""
    return answered(answers.TuningAnswer, "tune", overrides=lines_of(overrides, keywords, multirun=True))


def doctor(
    *overrides: "Overrides", nodes: "int | None" = None, job: bool = True, **keywords: "Any"
) -> answers.DoctorAnswer:
    """Check a Slurm cluster, and the run of the overrides against it; `job=False` submits no test job."""
    lines = lines_of(overrides, keywords, multirun=False)
    return answered(answers.DoctorAnswer, "doctor", overrides=lines, nodes=nodes, no_job=not job)


def calibrate(
    *paths: "str | Path", most: "int | None" = None, output: "str | Path | None" = None
) -> answers.CalibrationAnswer:
    """Fit the constants of predictions to finished runs and tables, and return the file with them."""
    return answered(answers.CalibrationAnswer, "calibrate", paths=paths, most=most, output=output)


def probes(*overrides: "Overrides", submit: bool = False) -> answers.ProbesAnswer:
    """Return the short runs that identify the constants of predictions, submitted on request."""
    lines = lines_of(overrides, {}, multirun=True)
    found = answered(answers.CalibrationAnswer, "calibrate", paths=lines, probes=True, submit=submit).probes
    assert found is not None
    return found


def model(name: str, *, output: "str | Path | None" = None) -> answers.FileAnswer:
    """Write or check a model file, from LitGPT's name, a config.json or its directory."""
    return answered(answers.FileAnswer, "model", what=name, output=output)


def convert(directory: "str | Path", output: "str | Path") -> answers.FileAnswer:
    """Convert the directory of a model, such as a run's export/, to Hugging Face's layout, or to LitGPT's."""
    return answered(answers.FileAnswer, "convert", directory=directory, output=output)


def report(
    *paths: "str | Path",
    output: "str | Path | None" = None,
    formats: "Sequence[str]" = (),
    cost_of: "str | None" = None,
    reference: "str | Path | None" = None,
) -> answers.ReportAnswer:
    """Write report.html, report.md and runs.csv of run or sweep directories; return the headline and the files.

    `output` is the directory for the files: by default the one path given, else the current directory. `formats` are
    further files, as in `slurmscale report --format`; `cost_of` is a training such as 100B, as in `--cost-of`.
    `reference` is an earlier runs.csv; `.reference.passed` of the answer is the verdict.
    """
    how = {"output": output, "format": formats, "cost_of": cost_of, "reference": reference}
    return answered(answers.ReportAnswer, "report", paths=paths, **how)


def compare(
    a: "str | Path", b: "str | Path", *, output: "str | Path | None" = None, formats: "Sequence[str]" = ()
) -> answers.ReportAnswer:
    """Write the report of B relative to A; return the sentences of the comparison and the files."""
    return answered(answers.ReportAnswer, "report", compare=[a, b], output=output, format=formats)


def place_of(sweep: "Sweep") -> str:
    """Return the directory of a sweep."""
    return str(getattr(sweep, "directory", sweep))


def frames(*paths: "str | Path") -> "Frames":
    """Return the tables of a report as data frames: `.runs`, `.points`, `.steps`, `.measurements`, in SI units."""
    from analysis import frames as read_frames

    return read_frames(*paths)


def main(arguments: "list[str] | None" = None) -> int:
    """Run the command line and return its exit code."""
    try:
        if IS_COMMAND and signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
            signal.signal(signal.SIGINT, signal.default_int_handler)
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

        what = ["--editable", str(HERE)] if (HERE / "pyproject.toml").exists() else needed_packages()
        install = shlex.join([sys.executable, "-m", "pip", "install", *what])
        print(f"slurmscale needs the package {error.name}, which this Python lacks. Run: {install}", file=sys.stderr)
        return 2


def needed_packages() -> "list[str]":
    """Return the requirements of the installed package, such as `rich>=13`, without those of its extras."""
    from importlib.metadata import requires

    return [each for each in requires("slurmscale") or () if "extra ==" not in each]


if __name__ == "__main__":
    sys.exit(main())

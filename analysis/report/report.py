"""`slurmscale report DIR...`: run directories in; report.html, report.md, runs.csv and the files of `--format` out.

Same inputs, same bytes: no time of day, no random ids. Imports no torch.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from analysis.anonymous import anonymized
from analysis.formatting import listed, one_line, published
from analysis.load.discover import read
from analysis.report.content import Live, Report, build
from analysis.report.digest import DEFAULT
from analysis.report.export.formats import chosen_formats, exported, exports_in
from analysis.report.leaderboard import FILE_NAME as LEADERBOARD
from analysis.report.leaderboard import to_csv as leaderboard_csv
from analysis.report.markdown import markdown
from analysis.report.page import page
from analysis.report.provenance import MOST_LISTED
from analysis.report.runs_table import to_csv
from analysis.report.sections.training_cost import training_of
from analysis.report.value_tables import measurements_frame, profile_frame
from analysis.report.value_tables import to_csv as values_csv
from analysis.run import RunResult
from jobs.errors import ReportError
from jobs.output import own_directory, write_file

# The page, its text, and one row per run.
ALWAYS = ("report.html", "report.md", "runs.csv")


def report(
    paths: list[Path],
    output: Path | None,
    formats: Iterable[str] = (),
    cost_of: str | None = None,
    *,
    follow: bool = False,
    anonymous: bool = False,
) -> Path:
    """Write report.html, report.md, runs.csv and the files of `formats` into `output`; return the page's path."""
    return answered(paths, output, formats, cost_of, follow=follow, anonymous=anonymous)[1]


def answered(
    paths: list[Path],
    output: Path | None,
    formats: Iterable[str] = (),
    cost_of: str | None = None,
    *,
    follow: bool = False,
    anonymous: bool = False,
    live: Live | None = None,
) -> tuple[list[str], Path]:
    """Write a report; return the sentences of its headline and the page's path.

    Without `output`, write into the directory given, or into the current one if several are given. `cost_of` is the
    training whose cost is reported: `100B`. `follow` reads links that lead out of the directories; `anonymous` replaces
    names of people, machines and places in all files; `live` is the line above a page that will be written again, and
    the seconds after which it reloads itself. Raise ReportError if a path does not exist or contains no run, a
    format is unknown or lacks its package, `cost_of` is not a number of tokens, or writing fails.
    """
    chosen = chosen_formats(formats)
    training = DEFAULT if cost_of is None else training_of(cost_of)
    # 10,000 runs have millions of objects and no garbage: collecting would take half of the time.
    collecting = gc.isenabled()
    gc.disable()
    try:
        found = read(paths, may_spawn=True, follow=follow)
        content, files = made(lambda: build(found, training, live), chosen, found.runs if anonymous else None)
        return list(content.headlines), write(files, output or (paths[0] if len(paths) == 1 else Path()))
    finally:
        if collecting:
            gc.enable()


def show(answer: Iterable[str], page: Path) -> None:
    """Print the sentences of a headline, and the files that every report has."""
    print(*map(one_line, answer), *(page.with_name(name) for name in ALWAYS), sep="\n")


def made(
    content: Callable[[], Report], formats: Iterable[str], hidden: Iterable[RunResult] | None
) -> tuple[Report, dict[str, str | bytes]]:
    """Return the report and its files, by name; without the names of people, machines and places of `hidden` runs."""

    def make() -> tuple[Report, dict[str, str | bytes]]:
        report = content()
        return report, files_of(report, formats)

    return make() if hidden is None else anonymized(hidden, make)


def files_of(content: Report, formats: Iterable[str]) -> dict[str, str | bytes]:
    """Return the three files and those of `formats`, by their names in the report's folder."""
    published.cache_clear()
    digest = content.digest
    contents = page(content), markdown(content), to_csv(content.rows)
    files: dict[str, str | bytes] = dict(zip(ALWAYS, contents, strict=True))
    if board := leaderboard_csv(digest.boards):
        files[LEADERBOARD] = board
    if any(run.profiles for run in digest.runs):
        files["profile.csv"] = values_csv(profile_frame(digest.runs))
    if digest.measurements:
        files["measurements.csv"] = values_csv(measurements_frame(digest.measurements))
    return files | exported(formats, content)


def write(files: Mapping[str, str | bytes], folder: Path) -> Path:
    """Write the files of a report; return the page's path. Raise ReportError if writing fails."""
    earlier = [name for name in exports_in(folder) if name not in files]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            for parent in reversed(Path(name).parents[:-1]):
                own_directory(folder / parent)
            write_file(folder / name, data)
    except OSError as error:
        raise ReportError(
            f"{error.filename or folder} cannot be written: {error.strerror or error}. "
            "Choose another place with --output DIR."
        ) from error
    if earlier:
        names = listed(earlier, MOST_LISTED)
        text = f"{folder} still holds files of an earlier report, which this one did not write: {names}"
        print(one_line(text), file=sys.stderr)
    return folder / "report.html"

"""Rules of `report`: its quantities are metrics of a run, its rows and columns keys, its units those of a quantity."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import PurePath

from jobs.plan.keys import keys, nearest_keys
from jobs.plan.rules.rule import Rule, either
from jobs.plan.synonyms import nearest_names
from jobs.schema import Run
from jobs.settings.report import UNITS, base_units, is_side_file


def table_has_quantities_and_rows(run: Run) -> str | None:
    """Require a quantity and a key of rows: without them there is no table."""
    if run.report is None:
        return None
    lines = []
    if not run.report.quantity:
        lines.append(
            "report.quantity=[]: the table has no quantity. Set report.quantity=[tokens_per_s], or report=null."
        )
    if not run.report.rows:
        lines.append("report.rows=[]: the table has no rows. Set report.rows=[nodes], or report=null.")
    return "\n".join(lines) or None


def quantities_are_metrics(run: Run) -> str | None:
    """Require quantities that a run has."""
    if run.report is None:
        return None
    known = base_units()
    wrong = [name for name in run.report.quantity if name not in known]
    return listed("report.quantity", run.report.quantity, wrong, "there is no such metric of a run", known)


def rows_and_columns_are_keys(run: Run) -> str | None:
    """Require rows and columns by keys that have a value."""
    if run.report is None:
        return None
    single = {name: key for name, key in keys().items() if not key.is_section}
    lines = []
    for field, names in (("rows", run.report.rows), ("columns", run.report.columns)):
        wrong = [name for name in names if name not in single]
        lines.append(listed(f"report.{field}", names, wrong, "there is no such key", single))
    return "\n".join(filter(None, lines)) or None


def units_fit_their_quantities(run: Run) -> str | None:
    """Require units that the base units of their metrics can be shown in."""
    if run.report is None:
        return None
    known, units = base_units(), run.report.units
    lines = [
        f"report.units.{name}: there is no such metric of a run. Leave it out of the file, or set report=null."
        for name in units
        if name not in known
    ]
    for name, unit in units.items():
        # A dimension without units of its own is shown as it is everywhere.
        fitting = UNITS.get(known.get(name, ""), {unit: None})
        if unit not in fitting:
            first = next(iter(fitting))
            lines.append(
                f"report.units.{name}={unit} is no unit of {name}, which is shown in {either(fitting)}. Set "
                f"report.units='{{{name}: {first}}}'."
            )
    return "\n".join(lines) or None


def side_files_are_names(run: Run) -> str | None:
    """Require names of CSV files: they are read from the directory of the sweep or run alone."""
    wrong = [name for name in run.report.side_files if not is_side_file(name)] if run.report else []
    if not run.report or not wrong:
        return None
    names = {name: f"{PurePath(name).stem.lstrip('.') or 'filer'}.csv" for name in wrong}
    right = ",".join(dict.fromkeys(names.get(name, name) for name in run.report.side_files))
    return (
        f"report.side_files=[{','.join(run.report.side_files)}]: {' and '.join(wrong)} is no name of a CSV file. "
        f"Side files are read from the directory of the sweep. Set report.side_files=[{right}]."
    )


def listed(key: str, names: Sequence[str], wrong: Sequence[str], why: str, known: Collection[str]) -> str | None:
    """Return the refusal of the wrong names of a list, with the nearest ones in their places; None without any."""
    if not wrong:
        return None
    nearest = {name: next(iter(nearest_names(name, known) or nearest_keys(name)), None) for name in wrong}
    changed = [str(nearest.get(name) or name) for name in names if nearest.get(name, name)]
    right = f"{key}=[{','.join(dict.fromkeys(changed))}]" if changed else "report=null"
    return f"{key}=[{','.join(names)}]: {why} as {' and '.join(wrong)}. Set {right}."


RULES: tuple[Rule, ...] = (
    table_has_quantities_and_rows,
    quantities_are_metrics,
    rows_and_columns_are_keys,
    units_fit_their_quantities,
    side_files_are_names,
)

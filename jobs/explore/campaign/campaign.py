"""The directory of a campaign: a sweep whose runs record in their provenance the trial that they belong to.

The first trial is called `baseline`, and later ones are composed from its overrides.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.errors import RunDirError
from jobs.explore.campaign.code_snapshot import Snapshot, changed_since, snapshot_of
from jobs.plan.keys import key_of, value_of
from jobs.rundir import BASELINE, NOISE_FLOOR, RunDir, SweepDir, load_run, provenance_of, read_records
from jobs.schema import LauncherKind
from jobs.submit.preparation import preview
from jobs.submit.sweeps.submissions import latest_submissions
from jobs.submit.trust.own_sweeps import is_own

# The directory that is searched if no campaign is named, as in conf/config.yaml.
DEFAULT_PLACE = Path("runs")


@dataclass(frozen=True)
class Campaign:
    """A campaign's directory, and the overrides of its baseline."""

    sweep: SweepDir
    base: list[str]
    """Overrides of the baseline."""
    code: Snapshot | None = None
    """The code that the baseline of a pair runs; None for that of the trial."""
    begins: bool = False
    """True if its baseline is submitted with the trials."""

    @property
    def is_received(self) -> bool:
        """Return whether somebody else may have written the overrides: the campaign is not on this user's record."""
        return self.sweep.path.exists() and not is_own(self.sweep)

    def is_replaced_by(self, kind: LauncherKind) -> bool:
        """Return True if it was only previewed, and a launcher of this kind starts it.

        Raises RunDirError if its baseline is not submitted with it: the preview of that would be lost.
        """
        if kind.is_preview or not preview.is_preview(self.sweep):
            return False
        if not self.begins:
            raise RunDirError(preview.only_previewed(self.sweep))
        return True

    def first(self, name: str) -> RunDir:
        """Return the directory of the first repeat of a trial."""
        return self.sweep.run(repeat_name(name, 1))


def opened(folder: Path | None, *, changed_code: bool = False) -> Campaign:
    """Return the campaign in a folder, or the only one below `runs`; with `changed_code`, with its baseline's code."""
    if folder is None:
        folder = only_campaign(DEFAULT_PLACE)
    sweep = SweepDir(folder.expanduser().absolute())
    first = sweep.run(repeat_name(BASELINE, 1))
    known = recorded(first)
    if known is None:
        raise RunDirError(
            f"{sweep.path} is not a campaign: it has no baseline. Run slurmscale attempt {BASELINE} OVERRIDES "
            f"--campaign {sweep.quoted}, or begin a file of attempts with {BASELINE}: [OVERRIDES]."
        )
    if not changed_code and (codes := changed_since(first)):
        print(
            f"The code has changed since the baseline ({codes[0]}, now {codes[1]}); both runs of each pair use the "
            "present code. To measure the change itself, add --changed-code."
        )
    return Campaign(sweep, known["changes"], snapshot_of(first) if changed_code else None)


def located(overrides: list[str], folder: Path | None) -> tuple[list[str], Path | None]:
    """Return the overrides of an attempt without runs_dir and sweep, and the campaign that these name.

    They name the directory of a campaign as they did when its baseline began it.
    """
    given = {key_of(each): value_of(each) for each in overrides if key_of(each) in {"runs_dir", "sweep"}}
    if folder is not None or not given:
        return overrides, folder
    place = Path(given.get("runs_dir", DEFAULT_PLACE)).expanduser()
    rest = [each for each in overrides if key_of(each) not in given]
    return rest, place / given["sweep"] if "sweep" in given else only_campaign(place)


def only_campaign(place: Path) -> Path:
    """Return the only campaign in a directory of sweeps; raise RunDirError if there is none, or several."""
    found = sorted({path.parent.parent for path in place.glob(f"*/{repeat_name(BASELINE, 1)}/provenance.json")})
    if len(found) == 1:
        return found[0]
    if not found:
        raise RunDirError(
            f"There is no campaign in {place.absolute()}. To begin one, run slurmscale attempt {BASELINE} OVERRIDES, "
            f"or begin a file of attempts with {BASELINE}: [OVERRIDES]. To use one elsewhere, add --campaign DIRECTORY."
        )
    raise RunDirError(
        f"There are {len(found)} campaigns in {place.absolute()}. Add "
        f"{' or '.join(f'--campaign {shlex.quote(str(path))}' for path in found)}."
    )


def recorded(directory: RunDir) -> dict[str, Any] | None:
    """Return the trial that a run's provenance records: name, role, repeat, changes; None if there is no such run."""
    known = provenance_of(directory).get("attempt")
    return known if isinstance(known, dict) and isinstance(known.get("changes"), list) else None


def is_preview(sweep: SweepDir) -> bool:
    """Return True if the baseline was prepared with launcher=dry, and no run of the campaign was ever submitted."""
    first = load_run(sweep.run(repeat_name(BASELINE, 1)).config)
    return first.launcher.kind.is_preview and not latest_submissions(sweep)


def repeat_name(name: str, repeat: int) -> str:
    """Return the name of a run directory."""
    return f"{name}-r{repeat}"


def order_of(sweep: SweepDir, name: str) -> int:
    """Return the place of a trial among those that were ever submitted to a campaign, from 1; removed ones count."""
    runs = [str(record.get("run")) for record in read_records(sweep.submissions) if record.get("event") == "submitted"]
    names = list(dict.fromkeys(found[1] for run in runs if (found := re.fullmatch(r"(.+)-r\d+", run))))
    beside = {f"{each}-{BASELINE}" for each in names}
    tried = [each for each in names if each not in {BASELINE, NOISE_FLOOR, *beside}]
    return (tried.index(name) if name in tried else len(tried)) + 1


def repeats_on_disk(sweep: SweepDir, name: str) -> int:
    """Return the number of repeats that a trial has."""
    numbers = (re.fullmatch(rf"{re.escape(name)}-r(\d+)", path.name) for path in sweep.path.glob("*-r*"))
    return max((int(found[1]) for found in numbers if found), default=0)

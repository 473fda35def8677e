"""The file of a campaign: trials by name, in the order in which they take turns, each with its overrides.

baseline:
  - +experiment=apac_hpc_ai_2024
  - data.path=alpaca1024
ddp: [parallelism=ddp]
mbs8: [job.micro_batch_size=8]
again:
"""

from __future__ import annotations

from pathlib import Path

from jobs.errors import ConfigError
from jobs.files import read_yaml, reason
from jobs.plan.configuration_files import text_loader


def read_trials(path: Path) -> dict[str, list[str]]:
    """Return the overrides of each trial of a file; raise ConfigError for a file of another form."""
    try:
        # Unlike PyYAML's, this loader refuses a duplicate name, and the name 1_0 is not 10.
        trials = read_yaml(path, text_loader(lambda _name: True))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {reason(error)}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not YAML: {reason(error)}") from error
    if not isinstance(trials, dict) or not trials:
        raise ConfigError(
            f"{path} contains no attempts. Write a name with its overrides a line: ddp: [parallelism=ddp]"
        )
    return {str(name): overrides_of(path, str(name), given) for name, given in trials.items()}


def overrides_of(path: Path, name: str, given: object) -> list[str]:
    """Return the overrides of one trial; None means no change."""
    listed = [] if given is None else given
    if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
        raise ConfigError(
            f"{path}: the overrides of {name} are {given!r}, not a list of texts. "
            f"Write {name}: [key=value, ...], or {name}: for no change."
        )
    return listed

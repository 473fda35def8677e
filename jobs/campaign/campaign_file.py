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

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from jobs.errors import ConfigError


def read_trials(path: Path) -> dict[str, list[str]]:
    """Return the overrides of each trial of a file; raise ConfigError for a file of another form."""
    try:
        # Unlike PyYAML's, this loader refuses a duplicate name.
        found = OmegaConf.load(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error
    except (YAMLError, OmegaConfBaseException, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    trials = OmegaConf.to_container(found) if isinstance(found, DictConfig) else None
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

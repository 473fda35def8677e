"""A campaign written down: attempts by name, in the order in which they take turns, each with its overrides.

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


def read_attempts(path: Path) -> dict[str, list[str]]:
    """The overrides of each attempt of a file; raises ConfigError for one that cannot be read or is of another form."""
    try:
        # Unlike PyYAML's, this loader refuses a name that is there twice.
        found = OmegaConf.load(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error
    except (YAMLError, OmegaConfBaseException, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    attempts = OmegaConf.to_container(found) if isinstance(found, DictConfig) else None
    if not isinstance(attempts, dict) or not attempts:
        raise ConfigError(f"{path} holds no attempts. A line is a name with its overrides: ddp: [parallelism=ddp]")
    return {str(name): overrides_of(path, str(name), given) for name, given in attempts.items()}


def overrides_of(path: Path, name: str, given: object) -> list[str]:
    """The overrides of one attempt; none is no change."""
    listed = [] if given is None else given
    if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
        raise ConfigError(
            f"{path}: the overrides of {name} are {given!r} and not a list of texts. "
            f"Type {name}: [key=value, ...], or {name}: for no change."
        )
    return listed

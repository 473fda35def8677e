"""`slurmscale cluster NAME`: a cluster file of the site, with the lines that every cluster needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from jobs.answers import FileAnswer
from jobs.errors import ConfigError
from jobs.output import write_output
from jobs.plan.choices import choices, refuse_missing_site, set_one_of, site
from jobs.plan.keys import did_you_mean
from jobs.plan.synonyms import nearest_names
from jobs.rundir import as_file_name


def cluster_file(name: str, output: Path | None, gpu: str | None, **values: Any) -> FileAnswer:
    """Write the file of a cluster with a GPU and values of its keys; without a place to write it return its text.

    Raises ConfigError for a name, GPU or number that it cannot have, and if the file exists.
    """
    refuse_missing_site()
    gpus, taken = choices("gpu"), choices("cluster")
    if gpu is not None and gpu not in gpus:
        raise ConfigError(f"--gpu {gpu}: there is no such GPU.{did_you_mean(nearest_names(gpu, gpus))} "
                          f"{set_one_of('gpu', gpus)}")  # fmt: skip
    if name != as_file_name(name) or name.startswith(".") or name in taken:
        why = "is a cluster already" if name in taken else "is not the name of a file"
        raise ConfigError(f"{name!r} {why}. Use another name of letters, digits and ._-, such as my_cluster.")
    given = {key: value for key, value in values.items() if value is not None}
    if given.get("ranks_per_node", 1) < 1:
        raise ConfigError(f"--ranks-per-node {given['ranks_per_node']} is not a positive number. Set 1 or more.")
    text = as_yaml(name, gpu, given)
    own = site()
    place = output or (own / "cluster" if own else None)
    if place is None:
        return FileAnswer(None, text.rstrip())
    file = place if place.suffix == ".yaml" else place / f"{name}.yaml"
    if file.exists():
        raise ConfigError(f"{file} exists. Remove it, or set another file with --output FILE.yaml.")
    write_output(file, text)
    return FileAnswer(
        str(file), f"{file}: set cluster={file.stem}, with SLURMSCALE_SITE at the directory above cluster/."
    )


def as_yaml(name: str, gpu: str | None, given: dict[str, Any]) -> str:
    """Return the lines of a cluster file; its numbers of a GPU come from the GPU's own file."""
    lines = {"name": name, "ranks_per_node": 8 if gpu else 1, "gpus": gpu is not None} | given
    defaults = f"defaults:\n  - override /gpu@_global_.gpu: {gpu}\n  - _self_\n" if gpu else ""
    head = (
        "# `slurmscale explain cluster` lists all keys; `slurmscale doctor cluster=NAME` checks them on the cluster.\n"
    )
    return head + defaults + yaml.safe_dump(lines, sort_keys=False, allow_unicode=True)

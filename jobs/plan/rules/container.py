"""The Python of the ranks in the container of a cluster: the submitting one only where the image sees it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from jobs.plan.rules.rule import Rule
from jobs.schema import Cluster, Run

IMAGE_PYTHON = "python3"
DIRECTORY = re.compile(r"/[\w./+@-]+", re.ASCII)


def sees_this_python(cluster: Cluster) -> bool:
    """Return True if the submitting Python runs in the container: it, and the one of its environment, are mounted."""
    return all(is_mounted(Path(place), cluster) for place in {sys.prefix, sys.base_prefix})


def is_mounted(path: Path, cluster: Cluster) -> bool:
    """Return True if the user mounts a directory above a path at its own place."""
    pairs = [mount.split(":") for mount in cluster.container_mounts]
    return any(path.is_relative_to(source) and rest[:1] in ([], [source]) for source, *rest in pairs)


def ranks_have_the_images_python(run: Run) -> str | None:
    """Warn that the ranks take the Python of the image, where no other one is set or mounted."""
    cluster = run.cluster
    if (
        cluster.container is None
        or cluster.python is not None
        or run.starter.on_this_machine
        or sees_this_python(cluster)
    ):
        return None
    return (
        f"cluster.container={cluster.container}: the ranks run {IMAGE_PYTHON} of the image, which must have torch and "
        f"submitit, as {sys.executable} is not mounted in it. For another Python of the image set cluster.python=PATH."
    )


def only_this_environment_is_staged(run: Run) -> str | None:
    """Refuse to copy another environment than that of the Python that submits, or to a path that no shell takes."""
    cluster, directory = run.cluster, run.cluster.stage_environment
    if directory is None:
        return None
    key = f"cluster.stage_environment={directory}"
    if not DIRECTORY.fullmatch(directory):
        return f"{key} is not an absolute path of letters, digits and . _ + @ -. Set cluster.stage_environment=/tmp."
    if cluster.container is not None:
        return (
            f"{key} copies the environment of the Python that submits, and the ranks run in "
            f"cluster.container={cluster.container}. Set cluster.stage_environment=null."
        )
    if cluster.python is not None:
        return (
            f"{key} copies the environment of the Python that submits, and the ranks run "
            f"cluster.python={cluster.python}. Set cluster.stage_environment=null, or cluster.python=null."
        )
    return None


RULES: tuple[Rule, ...] = (only_this_environment_is_staged,)
WARNINGS: tuple[Rule, ...] = (ranks_have_the_images_python,)

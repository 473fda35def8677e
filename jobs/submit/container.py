"""How ranks get into the cluster's container: by srun's plugin pyxis, or by `apptainer exec` in front of each."""

from __future__ import annotations

import shlex
from pathlib import Path

from jobs.errors import SubmitError
from jobs.schema import ContainerRuntime, Run


def srun_arguments(run: Run) -> list[str]:
    """What pyxis is told through srun."""
    cluster = run.cluster
    if cluster.container_runtime is not ContainerRuntime.pyxis:
        return []
    image = [] if cluster.container is None else [f"--container-image={cluster.container}"]
    mounts = [f"--container-mounts={','.join(cluster.container_mounts)}"] if cluster.container_mounts else []
    return image + mounts


def command(run: Run) -> list[str]:
    """What stands before a rank's Python, as a shell reads it."""
    cluster = run.cluster
    if cluster.container is None or cluster.container_runtime is not ContainerRuntime.apptainer:
        return []
    binds = [argument for mount in mounts(run) for argument in ("--bind", mount)]
    return [shlex.join(["apptainer", "exec", *driver(run), *binds, cluster.container])]


def driver(run: Run) -> list[str]:
    """The option that lets a container use the node's GPUs."""
    if not run.cluster.gpus:
        return []
    return ["--rocm" if "AMD" in (run.gpu.device_name or "") else "--nv"]


def mounts(run: Run) -> list[str]:
    """What apptainer shows a rank of the file system: its own directories under both their names, then the user's."""
    read = (run.data.path, run.data.tokenizer) if run.stages.prepare is not None else ()
    own = [Path(path) for path in (run.runs_dir, run.data.cache_dir, run.job.init_from, *read) if path is not None]
    paths = dict.fromkeys(str(name) for path in own for name in (path, path.resolve()))
    for path in paths:
        if "," in path or ":" in path:
            raise SubmitError(
                f"{path!r} has a comma or a colon, which apptainer --bind cannot carry. Type another runs_dir, "
                "data.cache_dir, job.init_from or data.path."
            )
    return [*paths, *run.cluster.container_mounts]


def refuse_pyxis(run: Run) -> None:
    """Raise SubmitError where ranks start without srun, whose plugin pyxis is."""
    if run.cluster.container is not None and run.cluster.container_runtime is ContainerRuntime.pyxis:
        raise SubmitError(
            f"cluster.container={run.cluster.container} by pyxis needs srun, and launcher={run.launcher.kind.name} "
            "starts ranks without it. Type cluster.container_runtime=apptainer."
        )

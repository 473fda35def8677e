"""Start ranks in the container of the cluster: with pyxis, a plugin of srun, or with `apptainer exec` for each rank."""

from __future__ import annotations

import shlex
import struct
import uuid
from datetime import UTC, datetime
from pathlib import Path

from jobs.errors import SubmitError
from jobs.schema import ContainerRuntime, Run

# The global header of a SIF (sylabs/sif, pkg/sif/sif.go): 32 bytes of a script, its name, version, architecture, id.
SIF, SIF_ID = slice(32, 41), slice(48, 64)
# The superblock of a squashfs (Linux, fs/squashfs/squashfs_fs.h): mkfs_time and bytes_used.
SQUASHFS, SQUASHFS_TIME, SQUASHFS_SIZE = b"hsqs", 8, 40
HEADER_BYTES = 96


def identity(image: str | None) -> str | None:
    """Return what names the content of an image file, from its first bytes; None for an image of a registry.

    A digest of the whole file would take minutes. That of an image of a registry is in its name, if the user gives it.
    """
    if image is None or not image.startswith(("/", ".", "~")):
        return None
    try:
        with Path(image).expanduser().open("rb") as file:
            header = file.read(HEADER_BYTES)
    except (OSError, RuntimeError):
        return None
    if header[SIF] == b"SIF_MAGIC" and len(header) == HEADER_BYTES:
        return f"SIF {uuid.UUID(bytes=header[SIF_ID])}"
    if header.startswith(SQUASHFS) and len(header) == HEADER_BYTES:
        made = datetime.fromtimestamp(struct.unpack_from("<I", header, SQUASHFS_TIME)[0], UTC)
        size_bytes = struct.unpack_from("<Q", header, SQUASHFS_SIZE)[0]
        return f"squashfs of {made:%Y-%m-%d %H:%M:%S} UTC, {size_bytes:,} bytes"
    return None


def srun_arguments(run: Run) -> list[str]:
    """Return the arguments of srun for pyxis; empty for another runtime."""
    cluster = run.cluster
    if cluster.container_runtime is not ContainerRuntime.pyxis:
        return []
    image = [] if cluster.container is None else [f"--container-image={cluster.container}"]
    mounts = [f"--container-mounts={','.join(cluster.container_mounts)}"] if cluster.container_mounts else []
    return image + mounts


def command(run: Run) -> list[str]:
    """Return the shell words in front of the Python of a rank; empty without apptainer."""
    cluster = run.cluster
    if cluster.container is None or cluster.container_runtime is not ContainerRuntime.apptainer:
        return []
    binds = [argument for mount in mounts(run) for argument in ("--bind", mount)]
    return [shlex.join(["apptainer", "exec", *driver(run), *binds, cluster.container])]


def driver(run: Run) -> list[str]:
    """Return the option of apptainer that gives the container access to the GPUs."""
    if not run.cluster.gpus:
        return []
    return ["--rocm" if "AMD" in (run.gpu.device_name or "") else "--nv"]


def mounts(run: Run) -> list[str]:
    """Return the bind mounts of apptainer: directories of the run, as given and resolved, then those of the user.

    Raises SubmitError for a path that --bind cannot contain.
    """
    read = (run.data.path, run.data.tokenizer) if run.stages.prepare is not None else ()
    own = [Path(path) for path in (run.runs_dir, run.data.cache_dir, run.job.init_from, *read) if path is not None]
    # Also resolved: inside the container a link leads nowhere unless its target is mounted.
    paths = dict.fromkeys(str(name) for path in own for name in (path, path.resolve()))
    for path in paths:
        if "," in path or ":" in path:
            raise SubmitError(
                f"{path!r} has a comma or a colon, which apptainer --bind cannot contain. Set another runs_dir, "
                "data.cache_dir, job.init_from or data.path."
            )
    return [*paths, *run.cluster.container_mounts]


def refuse_pyxis(run: Run) -> None:
    """Raise SubmitError for a pyxis container with a launcher that starts ranks without srun."""
    if run.cluster.container is not None and run.cluster.container_runtime is ContainerRuntime.pyxis:
        raise SubmitError(
            f"cluster.container={run.cluster.container} with pyxis needs srun, and launcher={run.starter.name} starts "
            "ranks without it. Set cluster.container_runtime=apptainer."
        )

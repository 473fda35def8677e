"""Start ranks in the container of the cluster: with pyxis, a plugin of srun, or with `apptainer exec` for each rank."""

from __future__ import annotations

import shlex
import struct
import sys
import uuid
from datetime import UTC, datetime
from pathlib import Path

from jobs.errors import SubmitError
from jobs.files import opened
from jobs.plan.rules.container import IMAGE_PYTHON, sees_this_python
from jobs.schema import ContainerRuntime, Run
from jobs.submit.preparation.staging import staged_python, stages_environment
from jobs.work.work import work_of

# The global header of a SIF (sylabs/sif, pkg/sif/sif.go): 32 bytes of a script, its name, version, architecture, id.
SIF, SIF_ID = slice(32, 41), slice(48, 64)
# The superblock of a squashfs (Linux, fs/squashfs/squashfs_fs.h): mkfs_time and bytes_used.
SQUASHFS, SQUASHFS_TIME, SQUASHFS_SIZE = b"hsqs", 8, 40
HEADER_BYTES = 96
# pyxis lets the variables of an image replace those of the job: the code of the run would be behind PYTHONPATH of the
# image, or nowhere. Inside the container $0 is the job's value, which the batch script's shell has put there.
CODE_FIRST = """sh -c 'export PYTHONPATH="$0${PYTHONPATH:+:$PYTHONPATH}"; exec "$@"' "$PYTHONPATH\""""


def identity(image: str | None) -> str | None:
    """Return what names the content of an image file, from its first bytes; None for an image of a registry.

    A digest of the whole file would take minutes. That of an image of a registry is in its name, if the user gives it.
    """
    if image is None or not image.startswith(("/", ".", "~")):
        return None
    try:
        with opened(Path(image).expanduser()) as file:
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
    if cluster.container is None:
        # The image may be that of PYXIS_CONTAINER_IMAGE, about which nothing is known.
        return [f"--container-mounts={','.join(cluster.container_mounts)}"] if cluster.container_mounts else []
    # pyxis takes pairs only.
    pairs = [mount if ":" in mount else f"{mount}:{mount}" for mount in mounts(run)]
    return [f"--container-image={cluster.container}", f"--container-mounts={','.join(pairs)}"]


def rank_python(run: Run) -> str:
    """Return the Python command of a rank, as shell words: in the container of the cluster, if it has one.

    Without cluster.python it is the submitting one, and in a container that does not see it the image's own.
    """
    cluster = run.cluster
    python = cluster.python or shlex.quote(sys.executable)
    if cluster.container is None:
        return staged_python(run, python) if stages_environment(run) else python
    if cluster.python is None and not sees_this_python(cluster):
        python = IMAGE_PYTHON
    if cluster.container_runtime is ContainerRuntime.pyxis:
        return f"{CODE_FIRST} {python}"
    return f"{apptainer(run)} {python}"


def apptainer(run: Run) -> str:
    """Return the shell words that start a command in the container by apptainer."""
    binds = [argument for mount in mounts(run) for argument in ("--bind", mount)]
    return shlex.join(["apptainer", "exec", *driver(run), *binds, str(run.cluster.container)])


def driver(run: Run) -> list[str]:
    """Return the option of apptainer that gives the container access to the GPUs."""
    if not run.cluster.gpus:
        return []
    return ["--rocm" if "AMD" in (run.gpu.device_name or "") else "--nv"]


def mounts(run: Run) -> list[str]:
    """Return the mounts of a container: directories of the run, as given and resolved, then those of the user.

    A directory below the target of a mount of the user is already there. The code of a run is in its runs_dir. Raises
    SubmitError for a path that a mount cannot contain.
    """
    read = (run.data.path, run.data.tokenizer) if run.stages.prepare is not None else ()
    # No container starts with a mount that does not exist, and other work makes no samples.
    cached = (run.data.cache_dir,) if work_of(run).reads_samples else ()
    given = (run.runs_dir, *cached, run.job.init_from, run.job.loss_band.reference, *read)
    own = [Path(path) for path in given if path is not None]
    own += work_of(run).directories(run)
    # Also resolved: inside the container a link leads nowhere unless its target is mounted.
    paths = dict.fromkeys(name for path in own for name in (path, path.resolve()))
    targets = [
        each[1] if len(each) > 1 else each[0] for mount in run.cluster.container_mounts if (each := mount.split(":"))
    ]
    for path in paths:
        if "," in str(path) or ":" in str(path):
            raise SubmitError(
                f"{str(path)!r} has a comma or a colon, which a mount of a container cannot contain. Set another "
                "runs_dir, data.cache_dir, job.init_from or data.path."
            )
    missing = [str(path) for path in paths if not any(path.is_relative_to(target) for target in targets)]
    return [*missing, *run.cluster.container_mounts]


def refuse_pyxis(run: Run) -> None:
    """Raise SubmitError for a pyxis container with a launcher that starts ranks without srun."""
    if run.cluster.container is not None and run.cluster.container_runtime is ContainerRuntime.pyxis:
        raise SubmitError(
            f"cluster.container={run.cluster.container} with pyxis needs srun, and launcher={run.starter.name} starts "
            "ranks without it. Set cluster.container_runtime=apptainer."
        )

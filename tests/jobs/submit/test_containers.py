"""Containers: the arguments of pyxis and apptainer, and a run that finishes through each of them."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from jobs.cli import main
from jobs.plan.legality import warnings
from jobs.rundir import SweepDir, read_records
from jobs.submit.preparation.container import CODE_FIRST, rank_python, srun_arguments
from tests.support.cli import files, printed, script_of, small
from tests.support.composing import one

# Both record what they are asked and start it without a container.
APPTAINER = """#!/bin/bash
printf '%s\\0' "$@" >> {asked}; printf '\\n' >> {asked}
[ "$1" = exec ] || exit 9
shift
while [[ $1 == --* ]]; do if [ "$1" = --bind ]; then shift 2; else shift; fi; done
shift
exec "$@"
"""
SRUN = """#!/bin/bash
printf '%s\\0' "$@" >> {asked}; printf '\\n' >> {asked}
for argument; do shift; [[ $argument == --container-* ]] || set -- "$@" "$argument"; done
# As pyxis does: a variable of the image replaces that of the job.
PYTHONPATH=/of/the/image exec {srun} "$@"
"""
CONTAINER = ["cluster.container=/images/a b.sif", "cluster.container_mounts=['/data/my set:/data']"]


def test_pyxis_gets_the_image_and_mounts_of_the_run_and_of_the_user(tmp_path: Path) -> None:
    cluster = ("cluster=generic_slurm", "cluster.container_runtime=pyxis", f"runs_dir={tmp_path}")
    cache = f"data.cache_dir={tmp_path}/cache"
    assert srun_arguments(one(*cluster, cache, *CONTAINER).run) == [
        "--container-image=/images/a b.sif",
        f"--container-mounts={tmp_path}:{tmp_path},{tmp_path}/cache:{tmp_path}/cache,/data/my set:/data",
    ]  # fmt: skip
    below = (f"cluster.container_mounts=[/lustre:{tmp_path}]", "job.init_from=/data/w", "job.init_from_is_remote=true")
    assert srun_arguments(one(*cluster, cache, CONTAINER[0], *below).run)[1] == (
        f"--container-mounts=/data/w:/data/w,/lustre:{tmp_path}"
    ), "what is below the target of a mount of the user is there"
    storage = one(*cluster, cache, CONTAINER[0], "job=fio", "storage.path=/nvme").run
    assert srun_arguments(storage)[1] == f"--container-mounts={tmp_path}:{tmp_path},/nvme:/nvme", "it makes no samples"
    assert srun_arguments(one(*cluster, "cluster.container_runtime=apptainer", *CONTAINER).run) == []
    assert srun_arguments(one(*cluster).run) == []


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.slurm
@pytest.mark.usefixtures("empty_queue")
@pytest.mark.parametrize("runtime", ["apptainer", "pyxis"])
def test_a_run_finishes_in_a_container(
    runtime: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, program = tmp_path / "asked", tmp_path / "bin" / {"apptainer": "apptainer", "pyxis": "srun"}[runtime]
    program.parent.mkdir()
    program.write_text({"apptainer": APPTAINER, "pyxis": SRUN}[runtime].format(asked=asked, srun=shutil.which("srun")))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    where = tmp_path / "runs of mine"
    overrides = [*small(where), "cluster=generic_slurm", f"cluster.container_runtime={runtime}", *CONTAINER]
    # The image's own Python, and a variable of the image that would hide the code of the run from it.
    own = tmp_path / "image"
    own.mkdir()
    python = own / "python3"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv("PATH", f"{own}:{os.environ['PATH']}")
    assert main(["submit", "--wait", *overrides, "nodes=2", "name=r"]) == 0, printed(capsys)
    assert "the ranks run python3 of the image" in printed(capsys)
    assert list(read_records(SweepDir(where / "s").run("r").status))[-1]["event"] == "finished"
    lines = asked.read_text().splitlines()
    arguments = lines[0].split("\0")
    if runtime == "pyxis":
        assert len(lines) == 1
        mounts = ",".join(f"{path}:{path}" for path in (where, where / "cache"))
        assert {"--container-image=/images/a b.sif", f"--container-mounts={mounts},/data/my set:/data"} <= set(
            arguments
        )
    else:
        assert len(lines) == 2, "once for each rank"
        image = arguments.index("/images/a b.sif")
        assert arguments[:image] == [
            "exec", "--bind", str(where), "--bind", f"{where}/cache", "--bind", "/data/my set:/data",
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("mounts", "python"),
    [
        ([], "python3"),
        ([f"{sys.prefix}:{sys.prefix}"], "python3"),  # the Python of this environment is elsewhere
        ([f"{sys.prefix}:/elsewhere", f"{sys.base_prefix}:{sys.base_prefix}"], "python3"),
        ([f"{Path(sys.prefix).parent}", f"{sys.base_prefix}:{sys.base_prefix}:ro"], shlex.quote(sys.executable)),
    ],
)
def test_the_submitting_python_runs_in_a_container_only_if_it_is_mounted(mounts: list[str], python: str) -> None:
    assert sys.prefix != sys.base_prefix
    run = one("cluster=generic_slurm", CONTAINER[0], f"cluster.container_mounts={mounts}").run
    assert rank_python(run) == f"{CODE_FIRST} {python}"
    warned = [text for text in warnings(run) if "of the image" in text]
    assert bool(warned) == (python == "python3")
    assert all(f"{sys.executable} is not mounted" in text for text in warned)
    run.cluster.python = "/opt/nemo/bin/python"
    assert rank_python(run).endswith(" /opt/nemo/bin/python")
    assert not [text for text in warnings(run) if "of the image" in text]


@pytest.mark.parametrize(
    ("cluster", "option"), [("xe9680_h100", "--nv "), ("xe9680_mi300x", "--rocm "), ("generic_slurm", "")]
)
def test_apptainer_shows_ranks_the_gpus_of_their_node(cluster: str, option: str, tmp_path: Path) -> None:
    for launcher in ("script", "pbs_script"):
        script = script_of(tmp_path, f"cluster={cluster}", "cluster.container_runtime=apptainer", *CONTAINER,
                           "cluster.python=python3", f"launcher={launcher}", "ranks_per_node=1")  # fmt: skip
        binds = f"--bind {tmp_path} --bind {tmp_path}/cache --bind '/data/my set:/data'"
        assert f"apptainer exec {option}{binds} '/images/a b.sif' python3 -u -m jobs.run {tmp_path}/s/r" in script
        assert "--container-image" not in script


def test_directories_behind_a_link_are_shown_under_both_names(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    script = script_of(tmp_path / "link", "cluster=generic_slurm", "cluster.container_runtime=apptainer", *CONTAINER)
    paths = [word for word in shlex.split(script, comments=True) if word.startswith(str(tmp_path))]
    binds = [path for path in paths if "/s" not in path and "/.code-" not in path]
    assert binds == [f"{tmp_path}/{name}" for name in ("link", "real", "link/cache", "real/cache")]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["launcher=pbs_script"], "with pyxis needs srun, and launcher=pbs_script starts ranks without it. Set "
         "cluster.container_runtime=apptainer."),
        (["launcher=script", "cluster.container_runtime=apptainer", "job.init_from='/a,b'",
          "job.init_from_is_remote=true"],
         "'/a,b' has a comma or a colon, which a mount of a container cannot contain."),
    ],
)  # fmt: skip
def test_what_a_container_cannot_do_is_refused(
    overrides: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["submit", *small(tmp_path), "cluster=generic_slurm", *CONTAINER, *overrides]) == 2
    assert words in printed(capsys)
    assert files(tmp_path) == set()

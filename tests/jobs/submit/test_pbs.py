"""launcher=pbs_script: the job script is unchanged, valid shell, and trains under PBS's two promises.

The golden files are written again by `SLURMSCALE_UPDATE_GOLDEN=1 python -m pytest tests/jobs/submit/test_pbs.py`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from jobs.cli import main
from jobs.rundir import RunDir, SweepDir, read_records
from jobs.submit.cancellation import session_of
from jobs.submit.trust.integrity import CHECK
from tests.support.cli import files, printed, small
from tests.support.paths import ROOT
from tests.support.real_run import losses, make_run, train

GOLDEN = ROOT / "tests/support/golden"
SITES = {
    "gadi_gpuvolta": ["cluster=gadi_gpuvolta", "cluster.account=ab12", "nodes=2", "cluster.modules=[cuda/12.4]",
                      "cluster.pbs={storage: scratch/ab12+gdata/ab12, M: me@x.org}", "wall_time_min=90"],
    "aspire2a": ["cluster=aspire2a", "cluster.account=1234", "nodes=1", "launcher.requeues=0"],
    "chunks": ["cluster=xe9680_h100", "launcher=pbs_script", "ranks_per_node=4", "nodes=2", "cluster.cpus_per_rank=12",
               "cluster.memory_gb_per_node=400", "cluster.env={NCCL_DEBUG: INFO}", "cluster.python=python3",
               "cluster.setup=[source /opt/site.sh]", "name='7 odd: name'"],
}  # fmt: skip


def job_script(where: Path, *overrides: str) -> Path:
    assert main(["submit", *small(where), "launcher=pbs_script", "name=r", *overrides]) == 0
    (script,) = where.glob("s/*/job.pbs")
    return script


@pytest.mark.parametrize("site", SITES)
def test_the_job_script_of_a_site_is_what_it_was(site: str, tmp_path: Path) -> None:
    text = (
        job_script(tmp_path, *SITES[site]).read_text().replace(str(tmp_path), "/runs").replace(sys.executable, "python")
    )
    text = text.replace(CHECK, "# the text of integrity.sh")
    text = re.sub(r"\.code-\d+/code-[0-9a-f]{32}", ".code-UID/code-DIGEST", text)
    text = re.sub(r'"[0-9a-f]{64}  -"', '"CHECK-DIGEST  -"', text)
    golden = GOLDEN / f"{site}.pbs"
    if os.environ.get("SLURMSCALE_UPDATE_GOLDEN") == "1":
        golden.write_text(text)
    assert text == golden.read_text()


@pytest.mark.parametrize("site", SITES)
def test_the_job_script_is_valid_shell_and_shellcheck_finds_nothing(site: str) -> None:
    for command in (["bash", "-n"], [Path(sys.executable).parent / "shellcheck", "--exclude=SC1091"]):
        checked = subprocess.run([*command, GOLDEN / f"{site}.pbs"], capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stdout + checked.stderr


def name_of(process: psutil.Process) -> str | None:
    """Return the name of a process, or None once it has ended."""
    try:
        return None if process.status() == psutil.STATUS_ZOMBIE else process.name()
    except psutil.NoSuchProcess:
        return None


def under_pbs(script: Path, nodes: list[str], timeout_s: float = 300) -> tuple[int, str, list[str]]:
    """Run a job script as PBS would: with a file of nodes, a job id and a pbsdsh that hands on no environment.

    Returns its exit code, what it printed, and the processes it left for PBS to end.
    """
    where = script.parent
    (where / "nodes").write_text("".join(f"{node}\n" for node in nodes))
    (where / "bin").mkdir()
    pbsdsh = where / "bin/pbsdsh"
    pbsdsh.write_text(
        "#!/bin/bash\n"
        f'echo "line $2" >> {where}/asked\n'
        '[ "$1" = -n ] && [ "$3" = -- ] || exit 9\n'
        'shift 3; exec env -i HOME="$HOME" PATH=/usr/bin:/bin PBS_JOBID="$PBS_JOBID" "$@"\n'
    )
    pbsdsh.chmod(0o755)
    env = {"HOME": str(where), "PATH": f"{where}/bin:/usr/bin:/bin", "PBS_JOBID": "4711.server",
           "PBS_NODEFILE": str(where / "nodes")}  # fmt: skip
    with (where / "out").open("w+") as out:
        job = subprocess.Popen(["bash", script], env=env, cwd="/", stdout=out, stderr=out, start_new_session=True)
        try:
            returncode = job.wait(timeout_s)
        finally:
            left = [process for process in psutil.process_iter() if session_of(process.pid) == job.pid]
            # Those that the script killed may take a moment to go.
            _, left = psutil.wait_procs(left, timeout=5)
            names = [name for process in left if (name := name_of(process)) is not None]
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
    return returncode, (where / "out").read_text(), names


@pytest.mark.long
@pytest.mark.slow
def test_the_job_script_trains_two_by_two_ranks_with_the_losses_of_one(tmp_path: Path) -> None:
    script = job_script(tmp_path, "cluster=generic_slurm", "nodes=2", "ranks_per_node=2")
    # Three lines a node, as where a site gives a line to each core.
    code, out, left = under_pbs(script, ["localhost"] * 6)
    sweep, run = SweepDir(tmp_path / "s"), RunDir(script.parent)
    logs = "".join(file.read_text() for file in sorted(sweep.logs.glob("4711_*_log.out")))
    assert (code, left) == (0, []), out + logs
    assert sorted((run.path / "asked").read_text().splitlines()) == ["line 0", "line 3"]
    assert [event["event"] for event in read_records(run.status)] == [
        "prepared", "started", "transport", "layout", "finished"
    ]  # fmt: skip
    assert [event["ranks"] for event in read_records(run.status) if event["event"] == "started"] == [4]
    assert {file.name for file in sweep.logs.iterdir()} == {f"4711_{rank}_log.out" for rank in range(4)}
    one = make_run(tmp_path / "one", "ranks_per_node=1", "job.steps=4")
    assert train(one) == [0]
    assert losses(run) == pytest.approx(losses(one), abs=1e-5)


@pytest.mark.slow
@pytest.mark.long
def test_a_rank_that_ends_badly_ends_its_node_and_the_job(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/bash\n[ "$RANK" = 1 ] && { sleep 1; exit 3; }\nsleep 60\n')
    python.chmod(0o755)
    options = ["cluster=generic_slurm", "ranks_per_node=2", f"cluster.python={python}"]
    one_node = job_script(tmp_path / "one", *options)
    assert under_pbs(one_node, ["localhost"], 30) == (3, "", [])
    two_nodes = job_script(tmp_path / "two", *options, "nodes=2")
    assert under_pbs(two_nodes, ["localhost", "localhost"], 30)[0] == 3


def test_fewer_nodes_than_planned_are_reported(tmp_path: Path) -> None:
    script = job_script(tmp_path, "cluster=generic_slurm", "nodes=2", "ranks_per_node=1")
    code, out, _ = under_pbs(script, ["localhost"])
    assert code == 1
    assert f"slurmscale: not started: planned for 2 nodes, but {script.parent}/nodes has 1 lines." in out


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (
            "cluster.qos=high",
            "cluster.qos is an option of Slurm, and launcher=pbs_script writes for PBS. Set cluster.pbs={NAME",
        ),
        ("cluster.sbatch={mem: 1G}", "cluster.sbatch is an option of Slurm"),
        (
            "cluster.partition='a b'",
            "cluster.partition='a b': a #PBS line cannot contain all of these characters. Use letters",
        ),
        ("cluster.account='$(id)'", "cluster.account='$(id)': a #PBS line cannot contain"),
        (
            "cluster.pbs={select: '1'}",
            "cluster.pbs.select is not allowed: use a resource of `qsub -l` or one letter",
        ),
        ("cluster.pbs={storage: 'a;b'}", "cluster.pbs.storage='a;b': a #PBS line cannot contain"),
        ("sweep='a b'", "a b/logs': a #PBS line cannot contain all of these characters. Set another runs_dir or sweep"),
    ],
)
def test_what_pbs_has_no_word_for_or_cannot_carry_is_refused(
    override: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["submit", *small(tmp_path), "launcher=pbs_script", "cluster=generic_slurm", override]) == 2
    assert words in printed(capsys)
    assert files(tmp_path) == set()

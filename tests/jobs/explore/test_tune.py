"""`slurmscale tune` with real runs: to the end, interrupted, killed and continued."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.cli import main
from jobs.rundir import SweepDir, load_run, read_records
from tests.support.cli import printed, run_cli
from tests.support.paths import ROOT
from tests.support.tune_command import command, starts
from tests.support.waiting import wait_until

# A busy machine slows some runs so much that they are repeated.
SLOW_RUN_REPEATED = "-again"


def shell(given: list[str]) -> subprocess.Popen[str]:
    """Start the command in a session of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "jobs.cli", *given],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@pytest.mark.long
@pytest.mark.slow
def test_a_killed_tuning_goes_on_runs_nothing_twice_and_ends_with_an_experiment_that_submit_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = command(tmp_path, "job.micro_batch_size=1,4,3", "tune.steps=[3]", "tune.pairs=0")
    folder, trials = tmp_path / "t", SweepDir(tmp_path / "t/trials")
    with shell(given) as killed:
        wait_until(lambda: sum(starts(trials).values()) or killed.poll() is not None, 400)
        killed.kill()
        assert "3 points, 2 legal" in killed.communicate()[0]
    assert not (folder / "experiment").exists()
    done = run_cli(*given)
    assert done.returncode == 0, done.stdout + done.stderr
    assert starts(trials) == {f"tiny-ddp-n1x1-micro_batch_size={size}-3steps": 1 for size in (1, 4)}
    assert "Tuning t" in (folder / "report.md").read_text()
    *_, headline, page, text, table = done.stdout.splitlines()
    assert [page, text, table] == [str(folder / name) for name in ("report.html", "report.md", "runs.csv")]
    assert headline in (folder / "report.md").read_text()
    (ended,) = (each for each in read_records(folder / "tuning.jsonl") if each["event"] == "ended")
    (chosen,) = ended["best"]
    (line,) = (line for line in done.stdout.splitlines() if "experiment=best" in line)
    assert main(["submit", line.split("'")[1], "experiment=best", f"runs_dir={tmp_path}", "launcher=dry"]) == 0
    (directory,) = SweepDir(tmp_path / "best").runs()
    assert not SweepDir(tmp_path / "best").submissions.exists()
    assert f"job.micro_batch_size={load_run(directory.config).job.micro_batch_size}" == chosen
    assert load_run(directory.config).job.steps == 6
    assert main(given) == 0
    assert set(starts(trials).values()) == {1}
    assert main([*given, "tune.steps=[4]"]) == 2
    assert "was begun with other values of steps" in printed(capsys)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT], ids=["SIGKILL", "SIGINT"])
def test_a_command_that_dies_in_the_middle_goes_on_and_runs_nothing_twice(tmp_path: Path, end: signal.Signals) -> None:
    values = ["job.micro_batch_size=1,2,4", "parallelism=ddp,fsdp_full", "tune.steps=[3,6]", "tune.parallel=2"]
    given = command(tmp_path, *values, "tune.runs=13", "tune.pairs=1")
    trials, confirmation = (SweepDir(tmp_path / "t" / name) for name in ("trials", "confirmation"))

    def runs() -> dict[str, int]:
        return {name: count for sweep in (trials, confirmation) for name, count in starts(sweep).items()}

    def interrupted_after(number: int) -> subprocess.Popen[str]:
        going = shell(given)
        wait_until(lambda: sum(runs().values()) >= number or going.poll() is not None, 400)
        assert going.poll() is None, going.communicate()[0]
        going.send_signal(end)
        out, _ = going.communicate()
        assert going.returncode == (-9 if end is signal.SIGKILL else 130), out
        if end is signal.SIGINT:
            assert "the same command goes on" in out
            assert "Traceback" not in out
        return going

    interrupted_after(2)
    interrupted_after(4)
    done = run_cli(*given)
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(runs().values()) == {1}
    # 6 of 3 steps, the baseline and the best two of 6 steps, then the baseline and one pair.
    assert len([name for name in starts(trials) if not name.endswith(SLOW_RUN_REPEATED)]) == 6 + 3
    assert len(starts(confirmation)) in {0, 3}
    assert (tmp_path / "t/experiment/best.yaml").exists()

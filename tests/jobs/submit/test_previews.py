"""launcher=dry and the launchers that write scripts start nothing, and no command claims that a run failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.cli import main
from tests.support.cli import printed, printed_words, small
from tests.support.real_run import last_of_each

PREVIEW = "Only a preview (launcher=dry): nothing was "
SCRIPT = ("launcher=script", "cluster=generic_slurm", "cluster.account=mine")


@pytest.mark.parametrize(
    ("launcher", "expected"),
    [
        (("launcher=dry",), f"{PREVIEW}started, so there is nothing to wait for."),
        (SCRIPT, "launcher=script starts no run, so there is nothing to wait for."),
    ],
    ids=["dry", "script"],
)
def test_waiting_for_runs_that_nothing_starts_returns_at_once(
    launcher: tuple[str, ...], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["submit", "--wait", *small(tmp_path), *launcher]) == 0
    out = printed(capsys)
    assert out.splitlines()[-1] == expected
    assert "[1/1]" not in out
    assert main(["resume", "--trust", "--wait", str(tmp_path / "s")]) == 0
    assert printed(capsys).splitlines()[-1] == expected


def test_a_preview_that_was_cancelled_still_gives_way(tmp_path: Path) -> None:
    preview = ["submit", *small(tmp_path), "launcher=dry", "name=r"]
    assert main(preview) == 0
    assert main(["cancel", str(tmp_path / "s")]) == 0
    assert main(preview) == 0


def test_a_campaign_of_previews_is_named_as_one_by_every_command_on_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = ["attempt", "baseline", *small(tmp_path), "--repeats", "1"]
    assert main([*base, "launcher=dry", "--wait"]) == 0
    assert printed(capsys).splitlines()[-1] == f"{PREVIEW}started, so there is nothing to wait for."
    sweep = tmp_path / "s"
    attempt = ["attempt", "mbs2", "job.micro_batch_size=2", "--campaign", str(sweep), "launcher=local"]
    for command in (
        ["leaderboard", str(sweep)],
        ["leaderboard", str(tmp_path)],
        ["tune", "--next", str(sweep)],
        attempt,
    ):
        assert main(command) == 2
        assert (
            f"{sweep}: its attempts were only previewed (launcher=dry), and nothing has run. To run them, repeat the "
            "commands without launcher=dry, that of the baseline first."
        ) in printed_words(capsys)


def test_attempts_that_were_only_previewed_are_named_below_the_leaderboard_of_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--campaign", str(tmp_path / "s"), "--repeats", "1"]
    assert main(["attempt", "baseline", *small(tmp_path), *SCRIPT, *where]) == 0
    assert main(["attempt", "longer", "job.warmup_steps=1", "launcher=dry", *where]) == 0
    assert main(["leaderboard", str(tmp_path / "s")]) == 0
    assert printed(capsys).splitlines()[-1] == "Only previewed (launcher=dry), and left out: repeats of longer."


def test_a_previewed_tuning_lists_its_first_trials(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = [*small(tmp_path), "launcher=dry", "sweep=t", "scaling.global_batch_size=4"]
    assert main(["tune", *last_of_each([*given, "job.micro_batch_size=1,2", "tune.pairs=0"])]) == 0
    out = printed(capsys)
    first, *others = [line.split() for line in out.partition("First trials:\n")[2].splitlines()[:2]]
    assert first[1:] == ["job.micro_batch_size=1"]
    assert [words[1:] for words in others] == [["job.micro_batch_size=2"]]
    assert out.splitlines()[-1] == f"{PREVIEW}run. Leave launcher=dry out to tune."
    assert main(["tune", *last_of_each([*given, "tune=batch_finder", "tune.memory_gb=4"])]) == 0
    out = printed(capsys)
    assert "First trial: " in out
    assert out.splitlines()[-1] == f"{PREVIEW}run. Leave launcher=dry out to tune."
    assert not (tmp_path / "t").exists()

"""What the command line says to words that it does not know."""

from __future__ import annotations

import pytest

from jobs.cli import main


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("status", "slurmscale status: the following arguments are required: SWEEP. Type:\n  slurmscale status [-h]"),
        ("statsu runs/demo", "invalid choice: 'statsu' (choose from "),
        ("logs runs/demo/a --rank first", "slurmscale logs: argument --rank: invalid int value: 'first'. Type:\n"),
        ("attempt mbs2 job.micro_batch_size=2 --repets 5", "slurmscale attempt: unrecognized arguments: --repets 5; "),
        (
            "plan --nodes 2",
            "slurmscale plan: unrecognized arguments: --nodes; overrides have no dashes, as in nodes=2. "
            "Type:\n  slurmscale plan [-h] [-m] [OVERRIDE ...]",
        ),
        ("cancel runs/a runs/b", "slurmscale cancel: unrecognized arguments: runs/b. Type:\n"),
        ("report runs/a --output=", "argument -o/--output: '' is no folder; type --output FOLDER. Type:\n"),
        ("", "slurmscale: the following arguments are required: COMMAND. Type:\n  slurmscale [-h] COMMAND ..."),
    ],
)
def test_what_is_typed_wrong_is_answered_with_what_to_type(
    typed: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(typed.split())
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.endswith("--help says what each is.\n")


@pytest.mark.parametrize("typed", ["-m nodes=1 repeat=1,2", "nodes=1 -m repeat=1,2", "nodes=1 repeat=1,2 -m"])
def test_options_may_stand_between_the_overrides(typed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *typed.split(), "parallelism=single", "ranks_per_node=1"]) == 0
    assert "tiny-single-n1x1-r2" in capsys.readouterr().out

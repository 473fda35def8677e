"""Tables on a terminal: names are whole, numbers are never cut, whatever its width."""

from __future__ import annotations

import io
import random
import re

import pytest
from rich.console import Console
from rich.text import Text

from jobs.cli import main
from jobs.console import LOG_WIDTH
from jobs.fitted_table import FittedTable

WIDTHS = (80, 93, 100, 120, 140, 150)
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
GPU = ["model=llama3_8b", "cluster=gadi_gpuvolta", "parallelism=fsdp_full", "nodes=8,16"]
NUMBERS = ("8,030,261,248", "0.039 (0.013 to 0.12)", "2.5 (0.86 to 7.9)", "1:00:00", "64 x 1 x 1", "2 x 1 = 128")


def printed(table: FittedTable, width: int, *, terminal: bool = True) -> list[str]:
    """Return the lines of a table on a terminal, or in a file."""
    out = Console(file=io.StringIO(), width=width, force_terminal=terminal, color_system=None, highlight=False)
    out.print(table, crop=terminal)
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue().splitlines()


def made(chance: random.Random) -> tuple[FittedTable, list[str], set[str], set[str]]:
    """Return a table of a random shape, its names, numbers, and the words of its texts."""
    start = chance.choice(["", "llama3_8b-fsdp_full-", "a_rather_long_name_of_a_model/tp_pp_fsdp-"])
    names = [f"{start}n{i}x{chance.choice([1, 8, 64])}" for i in range(chance.randint(1, 6))]
    table = FittedTable()
    table.whole("name")
    headings = [
        chance.choice(["step (s)", "tokens/s per GPU", "hours", "MBS x acc = GBS"])
        for _ in range(chance.randint(1, 11))
    ]
    for heading in headings:
        table.number(heading)
    texts = chance.randint(0, 2)
    for _ in range(texts):
        table.text("remark")
    numbers, words = set[str](), set[str]()
    equal = f"{chance.randint(1, 10**12):,}"
    for name in names:
        cells = [
            chance.choice([equal, f"{chance.random() * 10 ** chance.randint(0, 9):,.2f} (1.5 to 2,345)"])
            for _ in headings
        ]
        said = [" ".join(f"word{chance.randint(0, 99)}" for _ in range(chance.randint(0, 40))) for _ in range(texts)]
        numbers |= set(cells)
        words |= set(" ".join(said).split())
        table.add_row(Text(name), *cells, *said)
    return table, names, numbers, words


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("seed", range(12))
def test_no_width_cuts_a_name_a_number_or_a_word(seed: int, width: int) -> None:
    table, names, numbers, words = made(random.Random(seed))
    lines = printed(table, width)
    text = "\n".join(lines)
    assert max(map(len, lines)) <= width
    assert "…" not in text
    start = found[1] if (found := re.search(r"each name starts with ([^;\n]+)", text)) else ""
    for name in names:
        assert name in text or re.search(rf"^{re.escape(name.removeprefix(start))}\b", text, re.MULTILINE)
    assert not [number for number in numbers if number not in text]
    assert words <= set(text.replace(";", " ").split())


@pytest.mark.parametrize("seed", range(4))
def test_a_file_has_one_line_per_row(seed: int) -> None:
    table, names, *_ = made(random.Random(seed))
    sentence = "It failed. " * LOG_WIDTH
    texts = [not column.no_wrap for column in table.columns]
    table.add_row("last", *[sentence if is_text else "1" for is_text in texts[1:]])
    lines = printed(table, LOG_WIDTH, terminal=False)
    assert [line.split()[0] for line in lines] == ["name", *names, "last"]
    assert lines[-1].count(sentence.strip()) == sum(texts)
    assert not [line for line in lines if line.endswith(" ")]


def test_a_name_stands_above_its_rows_where_these_are_several() -> None:
    table = FittedTable()
    table.whole("name")
    table.whole("term")
    table.text("source")
    for name in ("first_run_with_a_long_name-n1x8", "second_run_with_a_long_name-n2x8"):
        table.add_row(name, "weights", "from the model " * 12)
        table.add_row("", "optimizer states", "two moments")
    lines = printed(table, 60)
    assert lines[0] == "first_run_with_a_long_name-n1x8"
    assert lines[1].split() == ["term", "source"]
    assert "second_run_with_a_long_name-n2x8" in lines


@pytest.mark.parametrize("width", [60, 80, 100])
def test_rows_of_one_line_stay_on_one_line_with_whole_numbers(width: int) -> None:
    table = FittedTable(one_line=True)
    table.whole("run")
    for heading in ("step", "tokens/s"):
        table.number(heading)
    table.text("")
    for nodes in (1, 2):
        table.add_row(
            f"llama3_8b-a_name_that_needs_more_room_than_there_is_left-n{nodes}x8",
            "12345/99999",
            "1,234,567",
            Text("remark " * 30, no_wrap=True),
        )
    lines = printed(table, width)
    assert len(lines) == 3
    assert all("12345/99999" in line and "1,234,567" in line and re.search("llama3.*x8 ", line) for line in lines[1:])


def test_the_plan_is_readable_at_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["plan", "-m", *GPU]) == 0
    text = COLOUR.sub("", capsys.readouterr().out)
    tables = text.partition("2 runs, at most")[0]
    assert all(number in tables for number in NUMBERS)
    assert tables.count("n16x4") == 2
    assert "…" not in text
    assert max(map(len, tables.splitlines())) <= 80

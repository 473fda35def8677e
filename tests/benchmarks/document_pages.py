"""Write the pages of .github/reports that show published times: `python -m tests.benchmarks.document_pages`.

Each is the report of run directories that tests.support.documents fills with the figures of a document: nothing is run.
The note of its sweeps, which begins the page, says so. The pictures are the beginning of the page up to its results, or
the table of a study alone, by Chromium.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path

from PIL import Image, ImageChops

from analysis.report.report import report
from jobs.rundir import SweepDir
from jobs.submit.sweeps.note import MOST_CHARACTERS
from tests.support.documents import contest_study, lora_study, roce_study, storage_study
from tests.support.paths import ROOT

REPORTS = ROOT / ".github" / "reports"
WIDTH, HEIGHT, MARGIN = 1180, 5000, 24
HEADING = re.compile(r'<h2 id="(section-\d+)">([^<]+)</h2>')
SECTION = re.compile(r"^## (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Page:
    """A page of a document."""

    name: str
    study: Callable[[Path], list[Path]]
    note: str
    """The note of its sweeps."""
    pictures: Mapping[str, str] = field(default_factory=dict)
    """Further pictures of a section alone, by its heading."""
    sections: tuple[str, ...] = ()
    """The sections of the text, and of the picture the first one; empty: all. The others would show what follows from
    made-up rates."""
    made_up: re.Pattern[str] | None = None
    """Lines of these sections that do, too."""


PAGES = (
    Page(
        "roce-mi300x-published-times",
        partial(roce_study, every_step=True),
        "Run directories filled with the published epochs, one of each: nothing was run. Sequence length, batch of 70B "
        "and losses are not the document's",
        {"roce-mi300x-published-times": "Mean time of an epoch, full fine-tuning on PubMedQA"},
    ),
    Page(
        "lora-mi300x-published-ratios",
        lora_study,
        "Only the published ratios, over 6x and over 2.5x from batch 1 to 16, on a base of 1 for each model: nothing "
        "was run, and the document has no rates",
        sections=("Throughput of LoRA fine-tuning in units of the model with batch 1", "What each choice is worth"),
        made_up=re.compile(r"^(\*\*GPU: the highest rate|\| model=).*\n\n?", re.MULTILINE),
    ),
    Page(
        "h20044-published-tables",
        storage_study,
        "Filled with tables 4 and 6 of H20044, one run of each row: nothing was run. The 3.32 min of 7B would be an "
        "MFU of 69 %, above all others published for this GPU",
        {"h20044-table-4": "Training and checkpoint, as table 4 of H20044"},
    ),
    Page(
        "apac-hpc-ai-2024-published-baselines",
        contest_study,
        "Filled with both machines' published baselines and a kernel's ratio of 1.594: nothing was run. The document "
        "contradicts itself: its conclusion has A100 of 80 GB, ASPIRE-2A of 40 GB",
    ),
)


def write(page: Page, reports: Path) -> None:
    """Write the text and the pictures of a page."""
    assert len(page.note) <= MOST_CHARACTERS
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        sweeps = page.study(Path())
        for sweep in sweeps:
            SweepDir(sweep).note.write_text(f"{page.note}\n")
            # The mark of a sweep, whose other files are not taken for logs.
            SweepDir(sweep).submissions.touch()
        report(sweeps, Path("page"))
        text = Path("page/report.md").read_text().replace(f"{Path.cwd()}/", "")
        text = only(text, page.sections) if page.sections else text
        (reports / f"{page.name}.md").write_text(page.made_up.sub("", text) if page.made_up else text)
        html = Path("page/report.html").read_text()
        drawings = {page.name: section(html, page.sections[0]) if page.sections else upper(html)}
        drawings |= {name: section(html, each) for name, each in page.pictures.items()}
        for name, drawn in drawings.items():
            file = Path(f"{name}.html").resolve()
            file.write_text(drawn)
            draw(file, reports / f"{name}.png")


def only(text: str, sections: tuple[str, ...]) -> str:
    """Return the beginning of a report as Markdown and these sections."""
    begin, *parts = SECTION.split(text)
    kept = [f"## {heading}{body}" for heading, body in zip(parts[::2], parts[1::2], strict=True) if heading in sections]
    assert len(kept) == len(sections), [*parts[::2]]
    return begin + "".join(kept)


def upper(html: str) -> str:
    """Return a page as far as its results."""
    end = next(match for match in HEADING.finditer(html) if match[2] == "Results")
    return styled(html, f"#{end[1]}, #{end[1]} ~ * {{ display: none !important; }}")


def section(html: str, heading: str) -> str:
    """Return a page with its note and one section alone."""
    found = list(HEADING.finditer(html))
    own, after = next(pair for pair in pairwise(found) if pair[0][2] == heading)
    others = f"nav, main > :not(#{own[1]}, #{own[1]} ~ *), #{after[1]}, #{after[1]} ~ *"
    return styled(html, f"{others} {{ display: none !important; }}")


def styled(html: str, rule: str) -> str:
    """Return a page with another rule; its script needs all of its elements, also those that are not shown."""
    return html.replace("</style>", f"{rule}\n</style>", 1)


def draw(html: Path, png: Path) -> None:
    """Draw a page as a picture, without the white below it."""
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(
            ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars",
             "--disable-background-networking", f"--user-data-dir={profile}", "--virtual-time-budget=8000",
             f"--window-size={WIDTH},{HEIGHT}", f"--screenshot={png}", html.as_uri()],
            check=True, capture_output=True, timeout=120,
        )  # fmt: skip
    picture = Image.open(png).convert("RGB")
    drawn = ImageChops.difference(picture, Image.new("RGB", picture.size, "white")).getbbox()
    assert drawn is not None, f"{html} is empty"
    picture.crop((0, 0, WIDTH, min(HEIGHT, drawn[3] + MARGIN))).quantize(256).save(png, optimize=True)


def main() -> None:
    """Write the pages that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*(page.name for page in PAGES), []])
    parser.add_argument("--output", type=Path, default=REPORTS)
    options = parser.parse_args()
    for page in PAGES:
        if not options.names or page.name in options.names:
            write(page, options.output.resolve())


if __name__ == "__main__":
    main()

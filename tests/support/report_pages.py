"""Made sweeps to report on, and a page as a reader takes it."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from tests.support.fake_events import killed_once
from tests.support.fake_runs import (
    a_run,
    counted,
    event,
    finished_run,
    prepared,
)

HOSTILE = (
    "<script>alert(1)</script>",
    '="=1+1"',
    "two\nlines | and a bar",
    "</script><img src=x onerror=alert(1)>",
    "{{ 7 * 7 }} %{x}",
    '<a href="javascript:alert(1)">x</a>',
)


class Page(HTMLParser):
    """A page taken apart: elements with attributes, scripts, their data, and the text without the list of contents."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.data = ""
        self.text = ""
        self.inside = ""
        self.in_contents = False
        self.feed(html)
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.in_contents = self.in_contents or tag == "nav"
        self.inside = "data" if ("type", "application/json") in attrs else tag

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""
        self.in_contents = self.in_contents and tag != "nav"

    def handle_data(self, data: str) -> None:
        if self.inside == "script":
            self.scripts.append(data)
        elif self.inside == "data":
            self.data += data
        elif self.inside != "style" and not self.in_contents:
            self.text += data

    def tags(self) -> set[str]:
        return {tag for tag, _ in self.elements}

    def plots(self) -> dict[str, Any]:
        """The figures, as the page's script gets them."""
        return dict(json.loads(self.data))


def a_scaling_sweep(path: Path, **started_with: Any) -> None:
    """Two parallelisms on 1 and 2 ranks, twice each."""
    for parallelism, slow in (("ddp", 1.0), ("fsdp_full", 1.5)):
        for ranks in (1, 2):
            for repeat in (1, 2):
                run = a_run(
                    f"{parallelism}-{ranks}-{repeat}", parallelism=parallelism, ranks_per_node=ranks, repeat=repeat
                )
                finished_run(path, run, step_time_s=slow * (1 + 0.02 * repeat) / ranks**0.9, **started_with)


def a_hostile_sweep(path: Path) -> None:
    """Runs whose names, models, devices and errors are markup."""
    for i, text in enumerate(HOSTILE):
        run = replace(a_run(text, model=text, parallelism=text, ranks_per_node=2), sweep=text)
        directory = finished_run(path, replace(run, name=f"run{i}"), device_name=text, data=text)
        directory.config.write_text(
            directory.config.read_text().replace(f"name: run{i}\n", f"name: {json.dumps(text)}\n")
        )
        counted(directory, 7, [(text, text, 1, 2**20)])
        finished_run(path, replace(a_run(f"other{i}", model=text, ranks_per_node=2), sweep=text), device_name=text)
        broken = prepared(path, replace(a_run(f"broken{i}"), sweep=text), command=[text], host=text)
        event(broken, "failed", rank=0, node=text, error=text)


def a_disturbed_sweep(path: Path) -> None:
    """A run that was killed once, and went on."""
    killed_once(prepared(path, a_run("disturbed", steps=10)))

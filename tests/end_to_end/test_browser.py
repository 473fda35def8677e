"""The page in a browser, Debian's chromium without a network: no error, no request, no overflow; filter and print."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from analysis.report.report import report
from tests.support.fake_runs import a_run, a_sweep_of_layouts, event, finished_run, prepared, started
from tests.support.report_pages import HOSTILE, a_disturbed_sweep, a_hostile_sweep, a_scaling_sweep
from tests.support.required import skip_or_fail

pytestmark = pytest.mark.slow
DESKTOP, PHONE = 1280, 390
SWEEPS = [a_scaling_sweep, a_sweep_of_layouts, a_hostile_sweep, a_disturbed_sweep]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        skip_or_fail("no chromium on PATH: `make test` or tests/install.sh browser installs it")
    with sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--host-resolver-rules=MAP * ~NOTFOUND"]
        chromium = playwright.chromium.launch(executable_path=program, args=options)
        yield chromium
        chromium.close()


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Callable[..., Page]]:
    """Opens the report of a sweep; whatever the page complains about or asks for beside itself fails the test."""
    messages: list[str] = []
    asked: list[str] = []
    contexts = []

    def open_report(sweep: Callable[[Path], Any], width: int = DESKTOP, **options: Any) -> Page:
        sweep(tmp_path / "demo")
        address = report([tmp_path / "demo"], tmp_path).as_uri()
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}, **options))
        page = contexts[-1].new_page()
        page.on("console", lambda message: messages.append(message.text))
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.on("dialog", lambda dialog: messages.append(f"dialog: {dialog.message}"))
        page.goto(address)
        assert [url for url in asked if url != address and not url.startswith(("data:", "blob:"))] == []
        return page

    yield open_report
    for context in contexts:
        context.close()
    assert messages == []


@pytest.mark.parametrize("sweep", SWEEPS)
def test_every_figure_is_drawn_without_an_error_or_a_request(opened: Callable[..., Page], sweep: Any) -> None:
    page = opened(sweep)
    places = page.locator("div.plot").count()
    assert page.locator("div.plot.js-plotly-plot svg.main-svg").count() >= places >= 4
    assert page.locator("path.point, g.point").count() >= places
    assert page.locator("a[href]:not([href^='#'])").count() == 0  # only the list of contents has links


def test_markup_in_names_is_shown_as_text(opened: Callable[..., Page]) -> None:
    page = opened(a_hostile_sweep)
    shown = " ".join(page.inner_text("body").split())
    for text in HOSTILE:
        assert " ".join(text.split()) in shown
    assert page.locator("main img, table script, table a:not([href^='#']), figure a").count() == 0


def test_a_policy_stops_what_would_be_fetched(browser: Browser, tmp_path: Path) -> None:
    a_scaling_sweep(tmp_path)
    page = browser.new_page()
    page.goto(report([tmp_path], None).as_uri())
    refused = page.evaluate(
        """() => new Promise((resolve) => {
          document.addEventListener("securitypolicyviolation", (event) => resolve(event.effectiveDirective));
          fetch("file:///etc/hostname").catch(() => {});
        })"""
    )
    page.close()
    assert refused == "connect-src"


def test_a_policy_executes_no_script_but_ours(browser: Browser, tmp_path: Path) -> None:
    a_scaling_sweep(tmp_path)
    path = report([tmp_path], None)
    path.write_text(
        path.read_text().replace("</h1>", "<script>window.strange = 1</script><img src=x onerror='strange=2'></h1>")
    )
    page = browser.new_page()
    page.goto(path.as_uri())
    assert page.evaluate("typeof window.strange") == "undefined"
    assert page.locator("div.plot.js-plotly-plot").count() > 4
    page.close()


def with_failures(path: Path) -> None:
    a_scaling_sweep(path)
    directory = prepared(path, a_run("broken"))
    started(directory, a_run())
    event(directory, "failed", rank=0, node="n1", error="CUDA out of memory")


def visible_runs(page: Page) -> list[str]:
    return [row.inner_text() for row in page.locator("table.runs tbody tr:visible th").all()]


def test_the_filter_shows_rows_that_hold_every_word(opened: Callable[..., Page]) -> None:
    page = opened(with_failures)
    assert len(visible_runs(page)) == 9
    page.get_by_label("Show runs with").fill("FSDP ull-2")
    assert visible_runs(page) == ["fsdp_full-2-1", "fsdp_full-2-2"]
    assert page.locator("output").inner_text() == "2 of 9 runs"
    page.get_by_label("Show runs with").fill("out of memory")
    assert visible_runs(page) == ["broken"]
    page.get_by_label("Show runs with").fill("")
    assert len(visible_runs(page)) == 9
    assert page.locator("output").inner_text() == ""


def test_a_click_in_a_legend_hides_a_line(opened: Callable[..., Page]) -> None:
    page = opened(a_scaling_sweep)
    plot = page.locator("#plot-tokens_per_s")
    assert plot.locator("g.trace.scatter").count() == 2
    plot.locator("rect.legendtoggle").first.click()
    expect(plot.locator("g.trace.scatter")).to_have_count(1)


def test_hovering_names_the_point(opened: Callable[..., Page]) -> None:
    page = opened(a_scaling_sweep)
    page.locator("#plot-tokens_per_s path.point").first.hover(force=True)
    expect(page.locator("#plot-tokens_per_s g.hovertext")).to_contain_text("1 rank on 1 node, n = 2")


def test_without_javascript_the_tables_are_there_and_the_filter_is_not(opened: Callable[..., Page]) -> None:
    page = opened(with_failures, java_script_enabled=False)
    assert len(visible_runs(page)) == 9
    assert not page.get_by_label("Show runs with").is_visible()
    assert "The figures need JavaScript; the tables contain the same numbers." in page.inner_text("body")


@pytest.mark.parametrize("sweep", SWEEPS)
def test_a_phone_shows_the_page_without_scrolling_sideways(opened: Callable[..., Page], sweep: Any) -> None:
    page = opened(sweep, PHONE, device_scale_factor=2, is_mobile=True, has_touch=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE
    # The answer is on the first screen.
    answer = page.locator("section.headline").bounding_box()
    assert answer is not None
    assert answer["y"] < 600


def test_a_long_name_does_not_widen_a_phone_s_page(opened: Callable[..., Page]) -> None:
    def sweep(path: Path) -> None:
        directory = finished_run(path, replace(a_run("long"), sweep="s" * 200))
        text = directory.config.read_text().replace("name: long\n", f"name: {json.dumps('n' * 200)}\n")
        directory.config.write_text(text)

    page = opened(sweep, PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE


def test_the_page_prints_all_runs_whatever_the_filter(opened: Callable[..., Page]) -> None:
    page = opened(with_failures)
    page.get_by_label("Show runs with").fill("broken")
    data = page.pdf(format="A4")
    assert data.startswith(b"%PDF")
    assert 2 <= len(re.findall(rb"/Type /Page\b", data)) <= 12
    page.emulate_media(media="print")
    assert len(visible_runs(page)) == 9
    assert not page.get_by_label("Show runs with").is_visible()

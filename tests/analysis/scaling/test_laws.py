"""Fits: laws recovered from points that follow them, refused fits, and the text of the page."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import curve_fit

from analysis.formatting import plot_text
from analysis.report.digest import Digest
from analysis.report.figures.page import figures
from analysis.report.figures.scaling import EXTRAPOLATED
from analysis.report.report import report
from analysis.report.sections.laws import fits_section
from analysis.run import RunResult
from analysis.scaling.groups import Group, scaling_groups
from analysis.scaling.laws import LAWS, Fit, Law, aicc, best_fits, fit_of, fits_of, reason_for_none
from tests.support.fake_runs import a_run, finished_run
from tests.support.measured_runs import RIGHT, WRONG, measured_run
from tests.support.report_pages import Page

AMDAHL, LATENCY, GUSTAFSON, WEAK_LATENCY = LAWS
RANKS = (1, 2, 4, 8, 16, 32, 64)


def a_group(rates: dict[int, float], *, weak: bool = False) -> Group:
    """A line with one run a rank count."""
    (group,) = scaling_groups(measured_run(ranks, rate, weak=weak) for ranks, rate in rates.items())
    return group


def fit(law: Law, ranks: tuple[int, ...], rates: list[float]) -> Fit:
    fitted = fit_of(law, ranks, np.array(rates))
    assert fitted is not None
    return fitted


def noisy(rates: list[float], deviation: float = 0.02) -> list[float]:
    """The rates, each a little off, always the same way."""
    return [rate * math.exp(deviation * math.sin(7 * i + 1)) for i, rate in enumerate(rates)]


# --- known truths ----------------------------------------------------------------------------------------------


@given(st.floats(0.001, 0.999), st.floats(1.0, 1e7), st.sampled_from((1, 8, 48)))
def test_a_serial_share_is_recovered(serial: float, rate: float, first: int) -> None:
    ranks = tuple(first * count for count in RANKS)
    fitted = fit(AMDAHL, ranks, [rate / (serial + (1 - serial) / count) for count in ranks])
    assert fitted.shares[0].value == pytest.approx(serial, rel=1e-6)
    assert fitted.throughput(1).value == pytest.approx(rate, rel=1e-6)
    assert fitted.throughput(fitted.farthest).value == pytest.approx(
        rate / (serial + (1 - serial) / fitted.farthest), rel=1e-6
    )


@given(st.floats(0.0001, 3.0), st.floats(0.0001, 1.0), st.floats(1.0, 1e7))
def test_bandwidth_and_latency_shares_are_recovered(bandwidth: float, latency: float, rate: float) -> None:
    sent = [bandwidth * (count - 1) / count + latency * math.log2(count) for count in RANKS]
    fitted = fit(LATENCY, RANKS, [rate / (1 / count + more) for count, more in zip(RANKS, sent, strict=True)])
    assert [share.value for share in fitted.shares] == pytest.approx([bandwidth, latency], rel=1e-5)
    assert fitted.throughput(1).value == pytest.approx(rate, rel=1e-6)


@given(st.floats(0.0001, 1.0), st.floats(1.0, 1e7))
def test_the_latency_share_of_weak_scaling_is_recovered(latency: float, rate: float) -> None:
    fitted = fit(WEAK_LATENCY, RANKS, [rate * count / (1 + latency * math.log2(count)) for count in RANKS])
    assert fitted.shares[0].value == pytest.approx(latency, rel=1e-5)
    assert fitted.throughput(128).value == pytest.approx(rate * 128 / (1 + 7 * latency), rel=1e-6)


@given(st.floats(0.001, 0.999), st.floats(1.0, 1e7))
def test_the_serial_share_of_a_scaled_speedup_is_recovered(serial: float, rate: float) -> None:
    fitted = fit(GUSTAFSON, RANKS, [rate * (serial + (1 - serial) * count) for count in RANKS])
    assert fitted.shares[0].value == pytest.approx(serial, rel=1e-6)
    assert fitted.throughput(128).value == pytest.approx(rate * (serial + (1 - serial) * 128), rel=1e-6)


def test_estimates_and_standard_errors_are_those_of_a_general_fitter() -> None:
    rates = noisy([1000 / (0.03 + 0.97 / count) for count in RANKS], 0.003)
    fitted = fit(AMDAHL, RANKS, rates)

    # Relative residuals of time, in its own parameters: rate on one rank, and serial share.
    def time_over_measured(measured: Any, rate: float, serial: float) -> Any:
        return measured * (serial + (1 - serial) / np.array(RANKS)) / rate

    found, covariance = curve_fit(time_over_measured, np.array(rates), np.ones(len(rates)), p0=(900, 0.1))
    assert (fitted.throughput(1).value, fitted.shares[0].value) == pytest.approx(tuple(found), rel=1e-4)
    errors = (fitted.throughput(1).standard_error, fitted.shares[0].standard_error)
    assert errors == pytest.approx(tuple(np.sqrt(np.diag(covariance))), rel=0.02)


def test_a_standard_error_is_as_wide_as_fits_of_repeated_measurements_scatter() -> None:
    random = np.random.default_rng(0)
    truth = np.array([1000 / (0.03 + 0.97 / count) for count in RANKS])
    fits = [fit(AMDAHL, RANKS, list(truth * np.exp(random.normal(0, 0.02, len(truth))))) for _ in range(400)]
    scatter = float(np.std([each.throughput(128).value for each in fits]))
    claimed = [each.throughput(128).standard_error for each in fits]
    assert np.median([error for error in claimed if error is not None]) == pytest.approx(scatter, rel=0.15)


@given(st.lists(st.floats(1.0, 1e6), min_size=4, max_size=7), st.sampled_from(LAWS))
def test_no_points_at_all_give_a_negative_share_or_a_negative_throughput(rates: list[float], law: Law) -> None:
    fitted = fit_of(law, RANKS[: len(rates)], np.array(rates))
    if fitted is not None:
        assert all(share.value >= 0 for share in fitted.shares)
        assert all(fitted.throughput(count).value > 0 for count in (1, 3, 2 * RANKS[-1]))


# --- bounds, choice, refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("power", "bound"), [(1.0, 0.0), (1.1, 0.0), (-0.2, 1.0)])
def test_a_serial_share_at_its_bound_has_no_standard_error(power: float, bound: float) -> None:
    fitted = fit(AMDAHL, RANKS, [1000 * count**power for count in RANKS])
    assert (fitted.shares[0].value, fitted.shares[0].standard_error) == (bound, None)


def test_a_law_needs_more_rank_counts_than_parameters() -> None:
    rates = {count: 1000 * count**0.9 for count in RANKS}
    laws = [len(fits_of(a_group(dict(list(rates.items())[:many])))) for many in (1, 2, 3, 4)]
    assert laws == [0, 0, 1, 2]
    two = a_group({1: 1000, 2: 1900})
    assert reason_for_none(two) == "2 rank counts believed, and a law of 2 parameters needs 3"


def test_points_on_the_same_ranks_are_points_but_no_further_rank_counts() -> None:
    placed = [measured_run(1, 1000), measured_run(2, 1900), measured_run(4, 3500)]
    two_on_one_node = measured_run(1, 2000)
    config = {**two_on_one_node.config, "ranks_per_node": 2}
    placed.append(RunResult(Path("packed"), config, values=two_on_one_node.values))
    (group,) = scaling_groups(placed)
    (fitted,) = fits_of(group)
    assert fitted.ranks == (1, 2, 2, 4)


def test_two_parameters_win_where_a_third_explains_nothing() -> None:
    rates = noisy([1000 / (0.05 + 0.95 / count) for count in RANKS])
    best, other = fits_of(a_group(dict(zip(RANKS, rates, strict=True))))
    assert (best.law, other.law) == (AMDAHL, LATENCY)
    assert best.aicc is not None
    assert other.aicc is not None
    assert best.aicc < other.aicc


def test_a_third_parameter_wins_where_it_explains_a_lot() -> None:
    rates = noisy([1000 / (1 / count + 0.02 * math.log2(count)) for count in RANKS], 0.001)
    assert [each.law for each in fits_of(a_group(dict(zip(RANKS, rates, strict=True))))] == [LATENCY, AMDAHL]


def test_with_too_few_points_for_aicc_the_fewest_parameters_win() -> None:
    fits = fits_of(a_group({count: 1000 / (1 / count + 0.02 * math.log2(count)) for count in (1, 2, 4, 8)}))
    assert [(each.law, each.aicc) for each in fits] == [(AMDAHL, None), (LATENCY, None)]


def test_of_laws_with_equally_many_parameters_the_least_residual_wins() -> None:
    for law, other, rate in ((GUSTAFSON, WEAK_LATENCY, 0.1), (WEAK_LATENCY, GUSTAFSON, 0.1)):
        truth = [
            1000 * (rate + (1 - rate) * count) if law is GUSTAFSON else 1000 * count / (1 + rate * math.log2(count))
            for count in (1, 2, 4)
        ]
        fits = fits_of(a_group(dict(zip((1, 2, 4), truth, strict=True)), weak=True))
        assert [each.law for each in fits] == [law, other]


def test_aicc_is_that_of_its_formula() -> None:
    residuals = np.array([0.1, -0.1, 0.2, -0.2, 0.1])
    # 5 ln(0.11 / 5) + 2 * 3 + 2 * 3 * 4 / (5 - 3 - 1)
    assert aicc(residuals, parameters=2) == pytest.approx(5 * math.log(0.022) + 6 + 24)
    more = np.array([0.1, -0.1, 0.2, -0.2, 0.1, 0.0, 0.0, 0.0, 0.0])
    assert aicc(more, parameters=2) == pytest.approx(9 * math.log(0.11 / 9) + 6 + 24 / 5)
    assert aicc(residuals, parameters=3) is None


def test_weak_and_strong_scaling_have_their_own_laws() -> None:
    weak = fits_of(a_group({count: 950.0 * count for count in RANKS}, weak=True))
    assert {each.law for each in weak} == {GUSTAFSON, WEAK_LATENCY}
    assert {each.law for each in fits_of(a_group({count: 950.0 * count for count in RANKS}))} == {AMDAHL, LATENCY}


def test_a_doubtful_point_does_not_enter_a_fit(tmp_path: Path) -> None:
    for nodes in (1, 2, 4, 8):
        losses, step_time_s = (WRONG, 1e-6) if nodes == 8 else (RIGHT, 1.0 / nodes)
        finished_run(tmp_path, a_run(f"n{nodes}", nodes=nodes), losses=losses, step_time_s=step_time_s)
    page = Page(report([tmp_path], None).read_text())
    assert "1 to 4" in page.text
    (dotted,) = [trace for trace in page.plots()["tokens_per_s"]["data"] if trace["name"] == EXTRAPOLATED][:-1]
    assert dotted["x"][-1] == 8
    assert dotted["y"][-1] == pytest.approx(8 * 1024)


# --- text of the page ------------------------------------------------------------------------------------------


def amdahl_sweep(path: Path, ranks: tuple[int, ...] = (1, 2, 4, 8, 16)) -> None:
    """A line with a serial share of 5 %, slightly off."""
    times_s = noisy([0.05 + 0.95 / count for count in ranks], 0.01)
    for count, step_time_s in zip(ranks, times_s, strict=True):
        finished_run(path, a_run(f"n{count}", nodes=count), step_time_s=step_time_s)


def test_a_row_a_law_states_parameters_residual_range_and_what_is_extrapolated(tmp_path: Path) -> None:
    amdahl_sweep(tmp_path)
    report([tmp_path], None)
    written = (tmp_path / "report.md").read_text()
    (row,) = [line for line in written.splitlines() if "| Amdahl |" in line]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[:4] == ["ddp", "Amdahl", "5", "1 to 16"]
    assert 0 < abs(float(cells[4])) < 2
    assert cells[6] == "32"
    assert float(cells[7].split()[0].replace(",", "")) == pytest.approx(1024 / (0.05 + 0.95 / 32), rel=0.02)
    assert float(cells[8]) == pytest.approx(100 / (0.05 + 0.95 / 32) / 32, rel=0.03)
    assert cells[9].startswith("R(p) = R(1) / (s + (1 - s) / p), R(1) = 1,0")
    assert "serial share s = " in cells[9]
    assert "| Extrapolated to ranks | Extrapolated throughput | Extrapolated efficiency (%) |" in written


def test_the_table_of_fits_starts_with_the_hardware_and_states_how_it_was_fitted(tmp_path: Path) -> None:
    amdahl_sweep(tmp_path)
    text = Page(report([tmp_path], None).read_text()).text
    assert "Fits CPU: R(p): throughput on p ranks. Fitted to the medians of a line's points" in text
    assert "nothing was measured there." in text


def test_a_share_at_its_bound_is_reported_as_such() -> None:
    section = fits_section(Digest(groups=[a_group({count: 1000.0 * count for count in (1, 2, 4)})]))
    assert section is not None
    assert section.rows[0][-1].endswith("serial share s = 0 %, at its bound")


def test_a_rate_on_one_rank_that_was_not_measured_states_extrapolated() -> None:
    section = fits_section(Digest(groups=[a_group({count: 1000.0 * count for count in (8, 16, 32)})]))
    assert section is not None
    assert "R(1) = 1,000 tokens/s, extrapolated; " in section.rows[0][-1]


def test_a_line_with_too_few_points_states_why_it_has_no_fit() -> None:
    few = a_group({1: 1000, 2: 1900})
    assert fits_section(Digest(groups=[few])) is None
    section = fits_section(Digest(groups=[a_group({1: 1000.0, 2: 1900.0, 4: 3400.0}), few]))
    assert section is not None
    assert section.rows[-1][-1] == "None: 2 rank counts believed, and a law of 2 parameters needs 3."


def test_a_law_that_misses_a_point_by_far_is_reported_not_to_fit_and_extrapolates_nothing() -> None:
    group = a_group({1: 1000.0, 2: 2000.0, 4: 900.0})
    section = fits_section(Digest(groups=[group]))
    assert section is not None
    (row,) = section.rows
    assert row[6:9] == ["—", "—", "—"]
    assert row[-1].startswith("Does not fit, with a residual beyond 10 %: R(p) = R(1) / (s + (1 - s) / p),")
    assert best_fits({group: fits_of(group)}) == {}


# Nemotron4 15b, BF16, H100, tokens per second by GPUs: NVIDIA/dgxc-benchmarking at commit 8f5cbb3 (v25.02),
# nemotron/README_15b.md. Weak scaling: the global batch grows with the GPUs.
PUBLISHED = {16: 93223, 32: 185654, 64: 368568, 128: 733526, 256: 1470654, 512: 2917777, 1024: 5795239, 2048: 11622595}


def test_half_of_a_published_line_predicts_its_other_end() -> None:
    half = {ranks: float(rate) for ranks, rate in PUBLISHED.items() if ranks < 2048}
    best = fits_of(a_group(half, weak=True))[0]
    assert abs(best.largest_residual) < 0.01
    assert best.throughput(best.farthest).value == pytest.approx(PUBLISHED[2048], rel=0.02)


def test_a_line_of_neither_strong_nor_weak_scaling_has_no_fit() -> None:
    group = a_group({1: 1000, 2: 1900, 4: 3500})
    neither = Group(group.label, group.model, group.engine, group.parallelism, "changing batch", group.points)
    assert fits_of(neither) == []
    assert reason_for_none(neither) == "its scaling is neither strong nor weak (changing batch), and no law covers that"


def test_lines_of_one_rank_count_are_counted_and_alone_have_no_table() -> None:
    one, several = a_group({1: 1000}), a_group({1: 1000, 2: 1900, 4: 3500})
    assert fits_section(Digest(groups=[one])) is None
    section = fits_section(Digest(groups=[one, several]))
    assert section is not None
    assert section.note.endswith(" Left out: 1 line of one rank count.")


def test_the_extrapolation_is_dotted_named_and_ends_at_twice_the_ranks(tmp_path: Path) -> None:
    amdahl_sweep(tmp_path)
    page = Page(report([tmp_path], None).read_text())
    plot = page.plots()["tokens_per_s"]
    _, dotted, entry = plot["data"]
    assert (entry["name"], entry["showlegend"]) == (EXTRAPOLATED, True)
    assert (dotted["line"]["dash"], dotted["x"][0], dotted["x"][-1]) == ("dot", 16, 32)
    assert plot["layout"]["xaxis"]["tickvals"][-1] == 32
    assert "extrapolated to 2 times the most ranks by the law that fits a line best" in page.text
    assert not [trace for trace in page.plots()["efficiency"]["data"] if "extrapolated" in trace["name"]]


def test_a_line_named_in_markup_is_text_where_it_is_extrapolated() -> None:
    group = a_group({count: 1000.0 * count for count in (1, 2, 4)})
    label = "<b>bold</b>"
    hostile = Group(label, group.model, group.engine, group.parallelism, group.mode, group.points)
    plot = figures(Digest(groups=[hostile]))[0].plot
    assert plot is not None
    hovers = [trace.hovertext for trace in plot.data if trace.name == EXTRAPOLATED and trace.hovertext]
    assert hovers
    assert all(plot_text(label) in hover and "<b>" not in hover for hover in hovers)

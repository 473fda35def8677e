"""A against B: pairing, ratios and intervals; chance is never reported as a win."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from scipy.stats import binomtest

from analysis.compare.ab import Comparison, compare_groups
from analysis.load.discover import read, read_runs
from analysis.report.compare import compare, compared_report
from analysis.report.markdown import markdown
from analysis.scaling.groups import scaling_groups
from jobs.cli import main
from jobs.errors import ReportError
from tests.support.campaigns import runs
from tests.support.fake_runs import a_run, with_engine, with_job
from tests.support.mlperf_logs import system
from tests.support.report_pages import Page

TWO = "Pass two directories: slurmscale report --compare runs/before runs/after"


def compared_in(path: Path) -> Comparison:
    return compare_groups(*(scaling_groups(read_runs([path / side])) for side in ("a", "b")))


def answer_in(path: Path) -> list[str]:
    return compared_report(*(read([path / side]) for side in ("a", "b")))[1]


def text_in(path: Path) -> str:
    return markdown(compared_report(*(read([path / side]) for side in ("a", "b")))[0])


SLOW = (0.500, 0.502, 0.498)
FAST = (0.400, 0.401, 0.399)


# --- the answer ------------------------------------------------------------------------------------------------


def test_a_difference_beyond_the_repeats_is_reported_with_n_interval_and_nodes(tmp_path: Path) -> None:
    runs(tmp_path / "a", SLOW)
    runs(tmp_path / "b", FAST, with_job(a_run(), micro_batch_size=2))
    assert answer_in(tmp_path) == [
        "CPU: B is 1.250 times as fast as A (n = 3 and 3, 95 % interval 1.240 to 1.260; ddp, 1 rank on 1 node, same "
        "nodes).",
        "Differences, A → B: job.micro_batch_size 1 → 2.",
    ]


def test_a_slower_b_is_reported_as_slower(tmp_path: Path) -> None:
    runs(tmp_path / "a", FAST)
    runs(tmp_path / "b", SLOW)
    assert answer_in(tmp_path)[0].startswith("CPU: B is 0.8000 times as fast as A (")


def test_a_difference_within_the_repeats_is_not_significant(tmp_path: Path) -> None:
    runs(tmp_path / "a", (0.50, 0.52, 0.48))
    runs(tmp_path / "b", (0.49, 0.51, 0.47))
    sentence = answer_in(tmp_path)[0]
    assert sentence.startswith(
        "CPU: A and B do not differ significantly: B measured 1.020 times as fast as A (n = 3 and 3, "
    )


def test_two_repeats_give_no_interval_and_no_verdict_however_far_apart(tmp_path: Path) -> None:
    runs(tmp_path / "a", (0.50, 0.51))
    runs(tmp_path / "b", (0.25, 0.26))
    assert answer_in(tmp_path)[0] == (
        "CPU: B measured 1.981 times as fast as A (n = 2 and 2, no interval, every repeat of B over every one of A "
        "1.923 to 2.040; ddp, 1 rank on 1 node, same nodes). That does not distinguish a difference from chance: "
        "at least 3 repeats on each side are required, such as repeat=1,2,3."
    )


def test_repeats_that_never_vary_give_no_interval(tmp_path: Path) -> None:
    runs(tmp_path / "a", (0.5, 0.5, 0.5))
    runs(tmp_path / "b", (0.4, 0.4, 0.4))
    assert "(n = 3 and 3, no interval because no repeat varies, " in answer_in(tmp_path)[0]


def test_runs_without_any_recorded_difference_differ_by_noise(tmp_path: Path) -> None:
    runs(tmp_path / "a", SLOW)
    runs(tmp_path / "b", (0.501, 0.503, 0.499))
    assert answer_in(tmp_path)[1] == (
        "No recorded setting, version, code or node differs between A and B: a difference in speed is noise."
    )


def test_other_nodes_are_reported_by_name(tmp_path: Path) -> None:
    runs(tmp_path / "a", SLOW, nodes=["node1"])
    runs(tmp_path / "b", FAST, nodes=["node2"])
    sentence, differs = answer_in(tmp_path)
    assert sentence.endswith("other nodes).")
    assert differs == "Differences, A → B: Nodes node1 → node2."


def test_emulated_nodes_come_first(tmp_path: Path) -> None:
    runs(tmp_path / "a", SLOW, emulated_nodes=True)
    runs(tmp_path / "b", FAST, emulated_nodes=True)
    assert answer_in(tmp_path)[0].startswith("Emulated nodes on CPU: B is 1.250 times")


def test_many_pairs_are_reported_by_mean_range_and_sign_test(tmp_path: Path) -> None:
    for ranks in range(1, 7):
        run = a_run(f"r{ranks}", ranks_per_node=ranks)
        runs(tmp_path / "a", SLOW, run)
        runs(tmp_path / "b", [time_s / 1.25 for time_s in SLOW], with_job(run, micro_batch_size=2))
    assert answer_in(tmp_path)[0] == (
        "CPU: B is 1.250 times as fast as A (geometric mean of 6 pairs, 1.250 to 1.250; by 95 % intervals: B faster in "
        "6; 6 pairs on the same nodes); B was faster in 6 of 6 pairs (two-sided sign test, p = 0.031)."
    )


def test_pairs_without_intervals_decide_nothing(tmp_path: Path) -> None:
    for ranks in (1, 2):
        run = a_run(f"r{ranks}", ranks_per_node=ranks)
        runs(tmp_path / "a", [0.5, 0.5], run)
        runs(tmp_path / "b", [0.25, 0.25], with_job(run, micro_batch_size=2))
    assert answer_in(tmp_path)[0].startswith(
        "CPU: B measured 2.000 times as fast as A (geometric mean of 2 pairs, 2.000 to 2.000; by 95 % intervals: no "
        "interval in 2; "
    )


def test_many_pairs_that_go_both_ways_are_not_significant(tmp_path: Path) -> None:
    for ranks in range(1, 7):
        run = a_run(f"r{ranks}", ranks_per_node=ranks)
        runs(tmp_path / "a", [0.5], run)
        runs(tmp_path / "b", [0.4 if ranks < 5 else 0.6], with_job(run, micro_batch_size=2))
    assert answer_in(tmp_path)[0].endswith(
        "; B was faster in 4 of 6 pairs (two-sided sign test, p = 0.69), so over all pairs A and B do not differ "
        "significantly."
    )


def test_pairs_of_both_directions_are_no_win(tmp_path: Path) -> None:
    for ranks, speed in ((1, 1.25), (2, 0.8), (3, 1.0)):
        run = a_run(f"r{ranks}", ranks_per_node=ranks)
        runs(tmp_path / "a", SLOW, run)
        runs(tmp_path / "b", [time_s / speed for time_s in SLOW], with_job(run, micro_batch_size=2))
    sentence = answer_in(tmp_path)[0]
    assert sentence.startswith("CPU: B measured 1.000 times as fast as A (geometric mean of 3 pairs, 0.8000 to 1.250; ")
    assert "; by 95 % intervals: B faster in 1, B slower in 1, no significant difference in 1; " in sentence
    assert sentence.endswith("; fewer than 6 pairs differ, so there is no sign test.")


# --- losses ----------------------------------------------------------------------------------------------------


def test_a_faster_b_with_another_loss_does_not_win(tmp_path: Path) -> None:
    runs(tmp_path / "a", SLOW)
    runs(tmp_path / "b", FAST, losses=[8.0, 4.0, 3.0, 2.0, 1.6, 1.34])
    sentence = answer_in(tmp_path)[0]
    assert sentence.endswith(
        " But the losses of 1 pair disagree: find out which is right first, because a fast wrong run does not win."
    )
    assert "LOSSES DISAGREE" in text_in(tmp_path)


def test_no_ratio_is_reported_if_a_loss_is_not_believed(tmp_path: Path) -> None:
    runs(tmp_path / "a", (*SLOW, 0.5, 0.5))
    runs(tmp_path / "b", FAST, losses=[9.0] * 6)
    assert answer_in(tmp_path)[0] == (
        "CPU: no ratio is reported, because in every pair the loss of A or of B is not believed."
    )
    assert "loss not believed: not counted" in text_in(tmp_path)


def test_losses_of_other_hyperparameters_are_not_compared(tmp_path: Path) -> None:
    runs(tmp_path / "a", SLOW)
    runs(tmp_path / "b", FAST, with_job(a_run(), learning_rate=2e-3), losses=[9.0] * 6)
    assert "losses not comparable" in text_in(tmp_path)
    assert answer_in(tmp_path)[0].startswith("CPU: B is 1.250 times as fast as A")


# --- who is paired with whom -----------------------------------------------------------------------------------


def test_points_are_paired_by_all_but_what_was_changed(tmp_path: Path) -> None:
    for parallelism in ("ddp", "fsdp_full"):
        for ranks in (1, 2):
            run = a_run(f"{parallelism}-{ranks}", parallelism=parallelism, ranks_per_node=ranks)
            runs(tmp_path / "a", SLOW, run)
            runs(tmp_path / "b", FAST, with_engine(run, "native", compile=True))
    found = compared_in(tmp_path)
    assert sorted(pair.described for pair in found.pairs) == [
        "ddp, 1 rank on 1 node", "ddp, 2 ranks on 1 node", "fsdp_full, 1 rank on 1 node", "fsdp_full, 2 ranks on 1 node"
    ]  # fmt: skip
    assert found.differences == [("engine.compile", "False", "True")]
    assert not found.unpaired


def test_settings_implied_by_a_name_are_not_listed(tmp_path: Path) -> None:
    runs(tmp_path / "a", SLOW)
    runs(tmp_path / "b", FAST, a_run(parallelism="fsdp_full"))
    found = compared_in(tmp_path)
    assert [pair.described for pair in found.pairs] == ["ddp → fsdp_full, 1 rank on 1 node"]
    assert found.differences == [("parallelism.name", "ddp", "fsdp_full")]


def test_a_point_without_a_partner_is_listed_with_what_the_nearest_has_instead(tmp_path: Path) -> None:
    runs(tmp_path / "a", SLOW)
    runs(tmp_path / "a", SLOW, a_run("wide", parallelism="fsdp_full"))
    runs(tmp_path / "b", FAST)
    found = compared_in(tmp_path)
    assert len(found.pairs) == 1
    ((side, why),) = found.unpaired
    assert (side.name, side.described) == ("A", "fsdp_full, 1 rank on 1 node")
    assert why == ("none in B is equal; the nearest, ddp, 1 rank on 1 node, has parallelism.name ddp, not fsdp_full")


@pytest.mark.parametrize("other", ["model", "sequence_length", "ranks"])
def test_other_tasks_and_other_numbers_of_ranks_are_never_paired(tmp_path: Path, other: str) -> None:
    runs(tmp_path / "a", SLOW)
    changed = {
        "model": a_run(model="small"),
        "sequence_length": with_job(a_run(), sequence_length=32),
        "ranks": a_run(ranks_per_node=2),
    }
    runs(tmp_path / "b", FAST, changed[other])
    assert answer_in(tmp_path) == ["Not compared: no point of A has a partner in B; the reasons are listed below."]
    assert "Points without a partner" in text_in(tmp_path)


def test_the_same_ranks_on_other_numbers_of_nodes_are_a_pair(tmp_path: Path) -> None:
    runs(tmp_path / "a", SLOW, a_run(nodes=1, ranks_per_node=4))
    runs(tmp_path / "b", FAST, a_run(nodes=4, ranks_per_node=1))
    assert [pair.described for pair in compared_in(tmp_path).pairs] == ["ddp, 4 ranks on 1 node → 4 ranks on 4 nodes"]


def test_points_with_several_partners_are_ambiguous(tmp_path: Path) -> None:
    for size in (1, 2):
        runs(tmp_path / "a", SLOW, with_job(a_run(f"m{size}"), micro_batch_size=size))
    runs(tmp_path / "b", FAST, with_job(a_run("m4"), micro_batch_size=4))
    found = compared_in(tmp_path)
    assert not found.pairs
    assert [why for _, why in found.unpaired] == [
        "ambiguous: 2 of A and 1 of B differ only in what was changed (job.micro_batch_size); compare smaller sets"
    ] * 3


def test_other_code_and_versions_are_differences(tmp_path: Path) -> None:
    runs(tmp_path / "a", SLOW)
    runs(tmp_path / "b", FAST)
    for run in (tmp_path / "b").iterdir():
        text = (run / "provenance.json").read_text()
        (run / "provenance.json").write_text(text.replace("feedc0de", "c0ffee").replace("2.13.0", "2.14.0"))
    assert compared_in(tmp_path).differences == [
        ("Code digest", "feedc0de", "c0ffee"),
        ("Version of torch", "2.13.0", "2.14.0"),
    ]


def test_runs_of_a_and_b_with_equal_settings_stay_two_points_on_the_page(tmp_path: Path) -> None:
    runs(tmp_path / "a", SLOW)
    runs(tmp_path / "b", FAST)
    text = text_in(tmp_path)
    assert "| ddp side=A | strong | 1 | 1 | 16 | 3 |" in text
    assert "| ddp side=B | strong | 1 | 1 | 16 | 3 |" in text


@pytest.mark.parametrize(("faster", "slower"), [(6, 0), (5, 1), (4, 4), (9, 1), (0, 7)])
def test_the_sign_test_is_the_exact_binomial_one(tmp_path: Path, faster: int, slower: int) -> None:
    for i in range(faster + slower):
        run = a_run(f"r{i}", ranks_per_node=i + 1)
        runs(tmp_path / "a", [0.5], run)
        runs(tmp_path / "b", [0.4 if i < faster else 0.6], with_job(run, micro_batch_size=2))
    test = compared_in(tmp_path).sign_test
    assert test is not None
    assert test == pytest.approx((faster, faster + slower, binomtest(faster, faster + slower).pvalue))


# --- logs of other programs ------------------------------------------------------------------------------------


def test_two_rounds_of_mlperf_are_compared_by_samples_per_second(tmp_path: Path) -> None:
    for side, rate, gpu in (("a", 20.0, "NVIDIA H100-SXM5-80GB"), ("b", 19.0, "AMD Instinct MI300X")):
        for repeat in range(3):
            system(tmp_path / side / str(repeat), 1, (10,), rate=rate + repeat / 100, gpu=gpu)
    system(tmp_path / "a" / "two_nodes", 2, (6,), rate=38.0, gpu="NVIDIA H100-SXM5-80GB")
    (answer, differs), path = compare(tmp_path / "a", tmp_path / "b", tmp_path / "out", ["svg"])
    assert answer.startswith("GPU: B is 0.9500 times as fast as A (n = 3 and 3, 95 % interval ")
    assert "device NVIDIA H100 80GB HBM3 → AMD Instinct MI300X" in differs
    text = (path.parent / "report.md").read_text()
    assert "| Pair | n | Samples/s, A | Samples/s, B |" in text
    assert text.count("none in B is equal; the nearest, llama2_70b_lora, 8 ranks on 1 node, has ") == 1
    assert b"<svg" in (path.parent / "figures/throughput_ratio.svg").read_bytes()


# --- the page and the command ----------------------------------------------------------------------------------


def test_the_page_begins_with_the_result_and_shows_pairs_differences_and_a_figure(tmp_path: Path) -> None:
    runs(tmp_path / "a", SLOW)
    runs(tmp_path / "b", FAST, with_job(a_run(), micro_batch_size=2))
    _, path = compare(tmp_path / "a", tmp_path / "b", tmp_path / "out")
    page = Page(path.read_text())
    assert page.text.index("B is 1.250 times as fast as A") < page.text.index("Results")
    assert "Differences between A and B" in page.text
    figure = page.plots()["throughput_ratio"]
    assert figure["data"][1]["x"] == pytest.approx([1.25])
    assert "job.micro_batch_size" in page.text


def test_a_before_b_is_a_warning_and_turns_are_not(tmp_path: Path) -> None:
    runs(tmp_path / "a", SLOW)
    runs(tmp_path / "b", FAST)
    warning = "Every run of A started before every run of B"
    assert warning not in text_in(tmp_path)
    for run in (tmp_path / "b").iterdir():
        text = (run / "status.jsonl").read_text()
        (run / "status.jsonl").write_text(text.replace("2026-01-02T03:04", "2026-01-02T04:04"))
    assert warning in text_in(tmp_path)


def test_the_same_two_give_the_same_bytes(tmp_path: Path) -> None:
    runs(tmp_path / "a", SLOW)
    runs(tmp_path / "b", FAST)
    texts = []
    for _ in range(2):
        compare(tmp_path / "a", tmp_path / "b", tmp_path / "out")
        texts.append({path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()})
    assert texts[0] == texts[1]


def test_a_copy_of_a_is_not_compared_with_it(tmp_path: Path) -> None:
    runs(tmp_path / "a", SLOW)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert answer_in(tmp_path) == ["Not compared: no point of A has a partner in B; the reasons are listed below."]
    text = text_in(tmp_path)
    assert "B has no run that can be used" in text
    assert "a copy of" in text


def test_a_hostile_name_stays_text(tmp_path: Path) -> None:
    nasty = "<img src=x onerror=alert(1)>"
    runs(tmp_path / "a", SLOW, a_run(parallelism=nasty))
    runs(tmp_path / "b", FAST, a_run(parallelism="ddp"))
    _, path = compare(tmp_path / "a", tmp_path / "b", tmp_path / "out")
    page = Page(path.read_text())
    assert "img" not in page.tags()
    assert nasty in page.text


def test_a_missing_an_empty_and_the_same_directory_are_refused(tmp_path: Path) -> None:
    runs(tmp_path / "a", SLOW)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ReportError) as missing:
        compare(tmp_path / "a", tmp_path / "nowhere", None)
    assert str(missing.value).startswith(f"--compare: B: {tmp_path / 'nowhere'} does not exist. ")
    assert str(missing.value).endswith(f"\n{TWO}")
    with pytest.raises(ReportError) as empty:
        compare(tmp_path / "empty", tmp_path / "a", None)
    assert str(empty.value).startswith(f"--compare: A: {tmp_path / 'empty'}: no run in it, ")
    for b, where in ((tmp_path / "a", "are the same"), (tmp_path, "share 3 of their runs")):
        with pytest.raises(ReportError) as same:
            compare(tmp_path / "a", b, None)
        assert str(same.value) == (
            f"--compare: {tmp_path / 'a'} and {b} {where}, so there is nothing to compare. Pass two sweeps or run "
            "directories, neither inside the other, for instance: slurmscale report --compare runs/before runs/after"
        )


def test_the_command_prints_the_answer_and_then_the_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs(tmp_path / "a", SLOW)
    runs(tmp_path / "b", FAST)
    paths = [str(tmp_path / name) for name in ("a", "b", "out")]
    assert main(["report", "--compare", *paths[:2], "--output", paths[2]]) == 0
    answer, _, page, *files = capsys.readouterr().out.splitlines()
    assert answer.startswith("CPU: B is 1.250 times as fast as A")
    assert page == str(tmp_path / "out/report.html")
    assert files == [str(tmp_path / "out" / name) for name in ("report.md", "runs.csv")]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--compare", "a", "b", "c"], "--compare takes its two directories itself. Run `slurmscale report --compare"),
        ([], "no DIR given. Pass sweep or run directories, for instance: slurmscale report runs/demo"),
        (["a", "--tolerance", "0.1"], "Add --reference runs.csv"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", *arguments]) == 2
    assert expected in capsys.readouterr().err

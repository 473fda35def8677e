"""The wall time of a program, predicted from finished runs of the same settings, and of nothing else."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from analysis.load.run_directory import read_run
from analysis.metrics.predictions import compared
from jobs.cli import main
from jobs.plan.predict.whole_runs import WholeTime, from_repeats, from_sizes
from jobs.rundir import load_run
from jobs.submit.preparation.prepare import plan_of
from tests.support.composing import one, refusal
from tests.support.real_run import make_run, printed, train

PROGRAM = {
    "name": "count",
    "steps": {"count": {"command": "bash -c 'sleep 0.1; echo {params.points}'"}},
    "params": {"points": "10"},
    "parameters": {"points": {"meaning": "Points.", "type": "integer"}},
}
CHOSEN = ("job=program", "program=count", "ranks_per_node=1")
SCALED = [(nodes, 100 / nodes**0.9 * factor) for nodes, factor in ((1, 1.0), (2, 1.02), (4, 0.98), (4, 1.01))]


def test_repeats_give_the_time_of_the_next_one_and_the_report_has_it_beside_the_measured_one(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (site / "count.yaml").write_text(yaml.safe_dump(PROGRAM))
    for number in (1, 2, 3):
        run = make_run(tmp_path, *CHOSEN, f"name=r{number}", small=False)
        assert train(run) == [0], printed(run)
        run.plan.write_text("{}")
    file = tmp_path / "calibration.yaml"
    assert main(["calibrate", str(tmp_path / "test"), "--output", str(file)]) == 0
    assert "count: wall times of 3 runs" in capsys.readouterr().out
    calibrated = f"cluster.calibration={file}"
    assert main(["plan", *CHOSEN, calibrated]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"predicted \(90 %\) .*wall time \(s\)", shown)
    assert re.search(r"wall time \(.*\): predicted from 3 runs on 1 node$", shown, re.MULTILINE)
    other = one(*CHOSEN, calibrated, "program.params.points=11").run
    assert "program" not in plan_of(other), "other parameters have another time"
    assert "program" not in plan_of(one(*CHOSEN, calibrated, "nodes=2").run), "one number of nodes shows no scaling"
    assert main(["plan", *CHOSEN, calibrated, "program.params.points=11"]) == 0
    assert ": unknown: the calibration has no run of these settings. 3 runs on 1 node, or 4 on 3 " in (
        capsys.readouterr().out
    )

    run = make_run(tmp_path, *CHOSEN, calibrated, "name=next", small=False)
    run.plan.write_text(json.dumps(plan_of(load_run(run.config))))
    assert train(run) == [0], printed(run)
    (found,) = compared(read_run(run.path))
    assert (found.quantity, found.basis) == ("Wall time", "calibrated: 3 runs on 1 node")
    assert found.low is not None
    assert found.high is not None
    assert 0.1 < found.low * 3 < found.high * 3
    assert found.measured is not None


def test_a_line_through_sizes_is_read_between_them_and_to_twice_the_largest() -> None:
    for nodes in (1, 2, 4, 8):
        found = from_sizes(SCALED, nodes)
        assert isinstance(found, WholeTime)
        assert found.time_s.point == pytest.approx(100 / nodes**0.9, rel=0.05)
        assert found.time_s.low < 100 / nodes**0.9 < found.time_s.high
        assert found.basis == "4 runs on 1, 2 and 4 nodes"
    far = from_sizes(SCALED, 9)
    assert far == (
        "unknown: the calibration has 4 runs of these settings, on 1, 2 and 4 nodes, which reach from 1 to 8 nodes"
    )


@pytest.mark.parametrize("measured", [SCALED[:1], SCALED[:3], [(1, 5.0)] * 9, [(1, 5.0), (2, 3.0)] * 4])
def test_few_runs_or_sizes_give_no_time_of_another_size(measured: list[tuple[int, float]]) -> None:
    found = from_sizes(measured, 3)
    assert isinstance(found, str)
    assert found.startswith(f"unknown: the calibration has {len(measured)} run")
    assert found.endswith("3 runs on 3 nodes, or 4 on 3 numbers of nodes, give it")
    assert from_repeats(measured, 3) is None


def test_three_repeats_count_and_two_do_not() -> None:
    assert from_repeats([(2, 10.0), (2, 11.0), (1, 20.0)], 2) is None
    found = from_repeats([(2, 10.0), (2, 11.0), (2, 12.1), (1, 20.0)], 2)
    assert found is not None
    assert found.time_s.point == pytest.approx(11.0)
    # Logarithms differ by log(1.1): t of 2 degrees is 2.920, and the next one differs by s sqrt(1 + 1/3).
    assert found.time_s.high / found.time_s.point == pytest.approx(1.1 ** (2.91999 * (4 / 3) ** 0.5), rel=1e-4)


@pytest.mark.parametrize(
    ("entry", "why"),
    [({"digest": "x"}, "KeyError 'times'"), ({"digest": "x", "times": [[1, -2.0]]}, "time_s is -2.0, not a number")],
)
def test_damaged_times_are_refused(entry: dict[str, object], why: str, site: Path, tmp_path: Path) -> None:
    (site / "count.yaml").write_text(yaml.safe_dump(PROGRAM))
    file = tmp_path / "calibration.yaml"
    file.write_text(yaml.safe_dump({"fits": [], "programs": [entry]}))
    assert f"{file} is not a calibration: {why}" in refusal(*CHOSEN, f"cluster.calibration={file}")

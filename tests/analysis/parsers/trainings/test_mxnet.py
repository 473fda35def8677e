"""Lines of MXNet's Speedometer, of its own programs and of MLPerf's."""

from __future__ import annotations

from pathlib import Path

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Text
from tests.analysis.parsers.reading import SAMPLES, column, records, texts

NAME = "MXNet Speedometer"
WORKERS = SAMPLES / "mxnet_workers.txt"


def test_workers_of_a_parameter_server_each_print_their_own_rate(tmp_path: Path) -> None:
    rates = [3341.48, 2816.69, 2520.16, 2521.97]
    of_workers = records(WORKERS, NAME)
    assert column(of_workers, Kind.step, a.SAMPLES_PER_S) == []
    assert column(of_workers, Kind.step, a.SAMPLES_PER_S_PER_RANK) == rates
    assert [each.rank for each in of_workers if each.kind is Kind.step] == [0, 1, 0, 1]
    assert texts(of_workers, Text.model) == ["mlp"], "repeated arguments are one record"
    # Without the arguments it shows by the second process that prints.
    log = tmp_path / "log"
    log.write_text("".join(WORKERS.read_text().splitlines(keepends=True)[2:]))
    assert column(records(log, NAME), Kind.step, a.SAMPLES_PER_S_PER_RANK) == rates

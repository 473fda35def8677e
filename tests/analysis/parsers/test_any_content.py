"""Whatever a file holds, reading it ends, raises nothing, and gives only finite numbers."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analysis.parsers.detect import LINE_FORMATS
from analysis.parsers.search import LONGEST_LINE, Search
from tests.analysis.parsers.reading import SAMPLES
from tests.support.any_content import CONTENTS, MARKERS, ODD, read_all

DOCUMENTS = [sample.read_bytes() for sample in sorted(SAMPLES.glob("*.json"))]
pieces = st.one_of(
    st.sampled_from([marker.encode() for marker in MARKERS]), st.sampled_from(ODD), st.binary(max_size=20)
)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.just(10**400), st.text(max_size=5)),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=3,
)
thorough = settings(max_examples=150, suppress_health_check=list(HealthCheck))


@thorough
@given(st.lists(pieces, max_size=40).map(b"".join))
def test_random_bytes_between_markers_are_survived(content: bytes) -> None:
    read_all(content)


@thorough
@given(st.sampled_from(CONTENTS), st.data())
def test_a_log_cut_off_anywhere_or_with_bytes_replaced_is_survived(content: bytes, data: st.DataObject) -> None:
    whole = read_all(content)
    assert whole > 0
    assert read_all(content[: data.draw(st.integers(0, len(content)))]) <= whole
    at = data.draw(st.integers(0, len(content)))
    odd = data.draw(pieces)
    read_all(content[:at] + odd + content[at + len(odd) :])


@thorough
@given(st.sampled_from(DOCUMENTS), st.data())
def test_a_document_with_any_value_replaced_by_another_is_survived(content: bytes, data: st.DataObject) -> None:
    whole = json.loads(content)
    inner, key = data.draw(st.sampled_from(list(places(whole))))
    inner[key] = data.draw(values)
    read_all(json.dumps(whole).encode())


def places(document: Any) -> Iterator[tuple[Any, Any]]:
    """Each value of a document, as what holds it and its key or index there."""
    if isinstance(document, dict | list):
        for key, value in list(document.items() if isinstance(document, dict) else enumerate(document)):
            yield document, key
            yield from places(value)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("filler", [" ", "1", "a", "- ", " 1 | "])
def test_no_line_takes_a_parser_seconds(filler: str) -> None:
    for each in LINE_FORMATS:
        for mark in dict.fromkeys(each.markers + each.section_start):
            for text in ((mark + filler) * LONGEST_LINE, mark + filler * 30_000, filler * 30_000 + mark):
                (line,) = Search(everything=True).lines([text[:LONGEST_LINE].encode()])
                started_s = time.process_time()
                list(each.parse([line]))
                # A pattern that tries again from every place takes minutes.
                assert time.process_time() - started_s < 5, (each.name, mark, text[:40])

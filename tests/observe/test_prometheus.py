"""The text that Prometheus reads, and the reader that the tests trust."""

from __future__ import annotations

import pytest
from tests.harness.prometheus_parser import parse

from rallypoint.observe.prometheus import Family, Histogram, Sample, prometheus_text


def test_the_whole_text_is_as_the_format_wants_it() -> None:
    spent = Histogram((0.5, 1.0))
    for value in (0.25, 0.5, 0.75, 7.0):
        spent.observe(value)
    text = prometheus_text(
        [
            Family("a", "gauge", "back\\slash\nand line", (Sample(1.5), Sample(2, (("n", "x"),)))),
            Family("none", "gauge", "left out", ()),
            Family("c_total", "counter", "counted", (Sample(3, (("why", 'a"b\\c\nd'),)),)),
            Family("h", "histogram", "spread", tuple(spent.samples((("p", "q"),)))),
        ]
    )
    assert text.splitlines() == [
        "# HELP a back\\\\slash\\nand line",
        "# TYPE a gauge",
        "a 1.5",
        'a{n="x"} 2',
        "# HELP c_total counted",
        "# TYPE c_total counter",
        'c_total{why="a\\"b\\\\c\\nd"} 3',
        "# HELP h spread",
        "# TYPE h histogram",
        'h_bucket{p="q",le="0.5"} 2',
        'h_bucket{p="q",le="1"} 3',
        'h_bucket{p="q",le="+Inf"} 4',
        'h_sum{p="q"} 8.5',
        'h_count{p="q"} 4',
    ]
    found = parse(text)
    assert found["c_total", (("why", 'a"b\\c\nd'),)] == 3
    assert len(found) == 8


@pytest.mark.parametrize("value", [0, 1, -1, 0.1, 1e-9, 1e300, 2**60 + 1, float("inf")])
def test_a_number_is_read_back_as_it_was(value: float) -> None:
    text = prometheus_text([Family("a", "gauge", "x", (Sample(value),))])
    assert parse(text) == {("a", ()): float(value)}


@pytest.mark.parametrize(
    "text",
    [
        "a 1\n",
        "# HELP a x\n# TYPE a gauge\na 1",
        "# HELP a x\n# TYPE a gauge\na 1\na 2\n",
        "# HELP a x\n# TYPE a gauge\nb 1\n",
        "# HELP a x\n# TYPE a counter\na 1\n",
        '# HELP a x\n# TYPE a gauge\na{b="c} 1\n',
        '# HELP h x\n# TYPE h histogram\nh_bucket{le="1"} 1\nh_sum 1\nh_count 1\n',
    ],
)
def test_the_reader_refuses_what_is_no_exposition(text: str) -> None:
    with pytest.raises((AssertionError, KeyError, ValueError)):
        parse(text)

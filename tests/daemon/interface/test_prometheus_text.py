"""The two formats, by a strict reading of their grammar."""

from __future__ import annotations

import math

import pytest

from tests.daemon.monitoring.reading import read_page
from zerotoolsd.interface.prometheus_text import (
    COUNTER,
    GAUGE,
    MetricFamily,
    MetricSample,
    render_metrics,
    wants_openmetrics,
)

ODD = MetricFamily(
    "zerotools_odd",
    GAUGE,
    "A back\\slash and a\nnew line.",
    (
        MetricSample(1.5, {"name": 'a "quoted" \\ back\nline é'}),
        MetricSample(math.nan, {"name": "\udcff"}),
        MetricSample(-math.inf, {"name": ""}),
    ),
)


@pytest.mark.parametrize("openmetrics", [False, True])
def test_whatever_a_label_holds_is_read_back(openmetrics: bool) -> None:
    page = read_page(render_metrics([ODD], openmetrics=openmetrics), openmetrics=openmetrics)
    (first, second, third) = page["zerotools_odd"]
    assert first == ("zerotools_odd", {"name": 'a "quoted" \\ back\nline é'}, 1.5)
    assert math.isnan(second[2])
    assert third[2] == -math.inf


@pytest.mark.parametrize(("openmetrics", "family"), [(False, "x_total"), (True, "x")])
def test_a_counter_has_its_ending_where_each_format_wants_it(
    openmetrics: bool, family: str
) -> None:
    counter = MetricFamily("x", COUNTER, "It counts.", (MetricSample(3),))
    text = render_metrics([counter], openmetrics=openmetrics)
    assert read_page(text, openmetrics=openmetrics) == {family: [("x_total", {}, 3.0)]}


def test_openmetrics_is_for_whom_asks_for_it() -> None:
    prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3"
    assert wants_openmetrics(prometheus)
    assert not wants_openmetrics("*/*")

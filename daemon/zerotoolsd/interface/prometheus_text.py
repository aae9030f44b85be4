"""Formats metrics as text: Prometheus' format 0.0.4, and OpenMetrics 1.0."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"

GAUGE, COUNTER, HISTOGRAM = "gauge", "counter", "histogram"


@dataclass(frozen=True)
class MetricSample:
    """One value of a metric; `suffix` (such as `_bucket`) is appended to the name of the metric."""

    value: float
    labels: Mapping[str, str] = field(default_factory=dict)
    suffix: str = ""


@dataclass(frozen=True)
class MetricFamily:
    """A metric with its samples.

    `name` is the name without the suffix `_total` of counters; `meaning` is the help text, one
    line.
    """

    name: str
    kind: str
    meaning: str
    samples: tuple[MetricSample, ...]


def wants_openmetrics(accept: str) -> bool:
    """Return whether the header `Accept` requests OpenMetrics, as Prometheus does by default."""
    return "application/openmetrics-text" in accept


def render_metrics(families: Iterable[MetricFamily], *, openmetrics: bool) -> str:
    """Return the text with all metric families in Prometheus' format, or in that of OpenMetrics."""
    lines = [line for family in families for line in _lines(family, openmetrics)]
    return "\n".join([*lines, "# EOF" if openmetrics else ""]) + ("\n" if openmetrics else "")


def _lines(family: MetricFamily, openmetrics: bool) -> Iterator[str]:
    sampled = f"{family.name}_total" if family.kind == COUNTER else family.name
    name = family.name if openmetrics else sampled
    meaning = family.meaning.replace("\\", r"\\").replace("\n", r"\n")
    yield f"# HELP {name} {meaning}"
    yield f"# TYPE {name} {family.kind}"
    for sample in family.samples:
        yield f"{sampled}{sample.suffix}{_labels(sample.labels)} {_number(sample.value)}"


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    pairs = (f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{{{','.join(pairs)}}}"


def _escaped(value: str) -> str:
    text = value.encode("utf-8", "replace").decode("utf-8")
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(float(value))

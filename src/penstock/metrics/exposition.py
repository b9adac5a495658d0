"""Metrics of prometheus_client as the text of a scrape.

`prometheus_client.generate_latest` sorts and escapes the labels of each sample, and checks its names, at each scrape.
Here the series of a sample, which is its name with its labels as text, is kept from one scrape to the next, and only
values are formatted. The text is the same. Timestamps, exemplars and times of creation are left out: no metric of
Penstock has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

from prometheus_client.metrics_core import Metric
from prometheus_client.utils import floatToGoString

KEPT = 1 << 15
"""Most series that are kept; a query has about 50."""


def text(metrics: Iterable[Metric]) -> bytes:
    """The text of these metrics; what UTF-8 cannot encode, such as a byte of a path that is not UTF-8, is `?`."""
    lines = (
        line for metric in metrics for line in lines_of(metric.name, metric.documentation, metric.type, samples(metric))
    )
    return "".join(lines).encode(errors="replace")


def samples(metric: Metric) -> Iterator[tuple[str, float]]:
    """The series and the value of each sample."""
    return ((series(sample.name, *sample.labels.items()), sample.value) for sample in metric.samples)


def lines_of(name: str, documentation: str, kind: str, samples: Iterable[tuple[str, float]]) -> Iterator[str]:
    """The lines of a metric; `kind` is "counter", "gauge", "histogram" or "info", as in prometheus_client."""
    if kind == "counter":
        name = f"{name}_total"
    elif kind == "info":
        name, kind = f"{name}_info", "gauge"
    yield f"# HELP {name} {_escaped(documentation)}\n# TYPE {name} {kind}\n"
    for series_name, value in samples:
        yield f"{series_name} {floatToGoString(value)}\n"  # type: ignore[no-untyped-call]


@lru_cache(KEPT)
def series(name: str, *labels: tuple[str, str]) -> str:
    """A sample's name with its labels, as in `rows_total{query="orders"}`."""
    if not labels:
        return name
    pairs = (f'{label}="{_quotable(value)}"' for label, value in sorted(labels))
    return f"{name}{{{','.join(pairs)}}}"


def _quotable(value: str) -> str:
    return _escaped(value).replace('"', r"\"")


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")

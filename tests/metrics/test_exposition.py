"""The text of metrics is what prometheus_client writes, and what its parser reads back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import example, given, strategies as st
from prometheus_client import generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.parser import text_string_to_metric_families
from promtool import promtool

from penstock.metrics.exposition import series, text

LABELS = ("zone", "a_name", "b")
HOSTILE = 'a\nb\\n"c" {d="e"},\t\r\x00 é 日本 \U0001f600 \u2028 \\'
VALUES = st.one_of(st.text(st.characters(codec="utf-8")), st.sampled_from([HOSTILE, "", "\\", '"', "\n", "\\n", '\\"']))
NUMBERS = st.one_of(
    st.floats(), st.integers(0, 1 << 70), st.sampled_from([1e6, 1234567.0, 1e22, 1e-7, -0.0, -1234567.5, 10**15])
)
KINDS = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}


@st.composite
def families(draw: st.DrawFn) -> Metric:
    """A metric whose samples have up to three labels."""
    labels = LABELS[: draw(st.integers(0, 3))]
    documentation = draw(VALUES)
    kind = draw(st.sampled_from([*KINDS, "histogram", "info"]))
    name = f"penstock_{kind}"
    if kind == "info":
        return InfoMetricFamily(name, documentation, value=draw(st.dictionaries(st.sampled_from(LABELS), VALUES)))
    made: Any = HistogramMetricFamily if kind == "histogram" else KINDS[kind]
    made = made(name, documentation, labels=labels)
    some = st.lists(st.tuples(*(VALUES for _ in labels)), unique=True, max_size=4)
    for values in draw(some):
        if kind == "histogram":
            buckets = [(bound, draw(NUMBERS)) for bound in ("0.005", "2.5", "+Inf")]
            made.add_metric(values, buckets, draw(NUMBERS))
        else:
            made.add_metric(values, draw(NUMBERS))
    return made  # type: ignore[no-any-return]


def of_library(metrics: list[Metric]) -> bytes:
    registry: Any = SimpleNamespace(collect=lambda: metrics)
    return generate_latest(registry)


def hostile() -> Metric:
    made = GaugeMetricFamily("penstock_rows", HOSTILE, labels=LABELS)
    made.add_metric((HOSTILE, "\\", '"'), 1.0)
    return made


@given(st.lists(families(), max_size=4))
@example([hostile()])
def test_the_text_is_that_of_prometheus_client(metrics: list[Metric]) -> None:
    # Of the second call, the series are those that were kept.
    assert text(metrics) == text(metrics) == of_library(metrics)


@given(families())
@example(hostile())
def test_the_parser_reads_the_samples_back(metric: Metric) -> None:
    (read,) = text_string_to_metric_families(text([metric]).decode())
    # The type "info" is one of OpenMetrics, which this format has not.
    assert read.type == ("gauge" if metric.type == "info" else metric.type)
    assert [(one.name, one.labels, repr(float(one.value))) for one in read.samples] == [
        (one.name, one.labels, repr(float(one.value))) for one in metric.samples
    ]


def test_promtool_accepts_hostile_values() -> None:
    checked = promtool("check", "metrics", given=text([hostile()]).decode())
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_a_name_that_is_not_utf8_does_not_break_the_scrape() -> None:
    made = GaugeMetricFamily("penstock_gauge", "A path", labels=("sink",))
    made.add_metric(("files /data/\udcff",), 1.0)
    assert text([made]).decode().splitlines()[2] == 'penstock_gauge{sink="files /data/?"} 1.0'


def test_a_series_without_labels_is_its_name() -> None:
    assert series("up") == "up"
    assert series("up", ("job", "b"), ("az", 'a"')) == 'up{az="a\\"",job="b"}'

"""Charts of more than the last 15 minutes, from a Prometheus that scrapes the runs: a few fixed range queries.

A page chooses a pipeline, a query and a range; it cannot send a query of its own.
"""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any
from urllib.parse import urlencode

from penstock.errors import PenstockError
from penstock.serve.http_client import Address, NoHttpAnswer, fetch

RANGES = {"1h": 3600, "6h": 6 * 3600, "1d": 86_400, "7d": 7 * 86_400}
POINTS = 240
"""Points of a chart."""
PATIENCE = 15.0
MOST = 4 << 20
QUERIES = {
    "lag_seconds": "max(penstock_source_lag_seconds{%s})",
    "lag_records": "sum(penstock_source_lag_records{%s})",
    "rows_per_second": "sum(rate(penstock_query_rows_total{%s}[%s]))",
    "delay_p50": "histogram_quantile(0.5, sum by (le) (rate(penstock_delay_seconds_bucket{%s}[%s])))",
    "delay_p95": "histogram_quantile(0.95, sum by (le) (rate(penstock_delay_seconds_bucket{%s}[%s])))",
    "delay_p99": "histogram_quantile(0.99, sum by (le) (rate(penstock_delay_seconds_bucket{%s}[%s])))",
    "batch_seconds": "sum(rate(penstock_query_batch_duration_seconds_sum{%s}[%s])) / "
    "sum(rate(penstock_query_batch_duration_seconds_count{%s}[%s]))",
}
"""PromQL by the name of the series; `%s` are the labels and the window of the rate, in turn."""

Json = dict[str, Any]


class NoPrometheus(PenstockError):
    """The console was started without --prometheus."""


async def history(prometheus: Address | None, pipeline: str, query: str, span: str) -> Json:
    """All series of a query as pairs of seconds since 1970 and a value: {"range", "step", "series": {name: pairs}}."""
    if prometheus is None:
        raise NoPrometheus("there is no Prometheus", next="start the console with --prometheus URL")
    if span not in RANGES:
        raise PenstockError(f"{span!r} is not a range", next=f"give one of {', '.join(RANGES)}")
    labels = f"pipeline={_quoted(pipeline)}" + (f",query={_quoted(query)}" if query else "")
    step = max(15, RANGES[span] // POINTS)
    end = time.time()
    series = await asyncio.gather(
        *(
            _series(prometheus, _filled(form, labels, f"{4 * step}s"), end, RANGES[span], step)
            for form in QUERIES.values()
        )
    )
    return {"range": span, "step": step, "series": dict(zip(QUERIES, series, strict=True))}


def _filled(form: str, labels: str, window: str) -> str:
    return form % tuple((labels, window)[place % 2] for place in range(form.count("%s")))


def _quoted(text: str) -> str:
    """A label's value in PromQL."""
    if len(text) > 256:
        raise PenstockError("the name is too long", next="give the name of a pipeline and of its query")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


async def _series(prometheus: Address, query: str, end: float, seconds: int, step: int) -> list[list[float]]:
    parameters = {"query": query, "start": f"{end - seconds:.0f}", "end": f"{end:.0f}", "step": str(step)}
    path = f"/api/v1/query_range?{urlencode(parameters)}"
    answer = await fetch(prometheus, path, patience=PATIENCE, most=MOST)
    document = answer.parsed(prometheus.url)
    try:
        if document["status"] != "success":
            raise NoHttpAnswer(f"Prometheus refuses: {str(document.get('error'))[:500]}", where=prometheus.url)
        results = document["data"]["result"]
        pairs = [(float(at), float(value)) for at, value in results[0]["values"][: 4 * POINTS]] if results else []
    except (KeyError, TypeError, ValueError, IndexError, AttributeError):
        raise NoHttpAnswer(
            "the answer is not one of Prometheus", where=prometheus.url, next="check --prometheus"
        ) from None
    # Prometheus gives NaN where nothing was counted.
    return [[at, value] for at, value in pairs if math.isfinite(value) and math.isfinite(at)]

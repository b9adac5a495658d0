"""What `penstock segment sync` tells of itself while it repeats deliveries or waits for requests: metrics and status.

Only deliveries that were done have labels: requests come from a topic, and may name anything.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.errors import PenstockError
from penstock.segment.member_tables.delivery_sync import Receipt
from penstock.watch.program import iso

LABELS = ("segment", "destination")
ERRORS = 20
MOST_TEXT = 1000
"""Characters of a reason: a request from a topic may be long."""


@dataclass
class _Delivered:
    """What was delivered of a segment to a destination since the start."""

    deliveries: int = 0
    added: int = 0
    removed: int = 0
    seconds: float = 0.0
    last: datetime | None = None


class DeliveryMeter(Collector):
    """Counts deliveries; a thread delivers, and those of the metrics server read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._delivered: dict[tuple[str, str], _Delivered] = {}
        self._refused = 0
        self._errors: deque[dict[str, Any]] = deque(maxlen=ERRORS)

    def done(self, receipt: Receipt) -> None:
        with self._lock:
            totals = self._delivered.setdefault((receipt.segment, receipt.destination), _Delivered())
            totals.deliveries += 1
            totals.added += receipt.added
            totals.removed += receipt.removed
            totals.seconds += (receipt.ended - receipt.began).total_seconds()
            totals.last = receipt.ended

    def refused(self, error: Exception) -> None:
        """A request was not one for a delivery, or its delivery failed."""
        what, where, step = str(error), "", ""
        if isinstance(error, PenstockError):
            what, where, step = error.what, error.where, error.next
        said = {"what": what[:MOST_TEXT], "where": where[:MOST_TEXT], "next": step[:MOST_TEXT]}
        with self._lock:
            self._refused += 1
            self._errors.append({"at": iso(time.time()), "query": "", **said, "trace": ""})

    def to_dict(self) -> dict[str, Any]:
        """The fields of the status besides its head."""
        with self._lock:
            deliveries = [
                {
                    "segment": segment,
                    "destination": destination,
                    "deliveries_total": totals.deliveries,
                    "added_total": totals.added,
                    "removed_total": totals.removed,
                    "last": iso(totals.last.timestamp()) if totals.last else None,
                }
                for (segment, destination), totals in self._delivered.items()
            ]
            return {
                "state": "running",
                "waits_for": "",
                "graph": {"nodes": [], "edges": []},
                "queries": [],
                "deliveries": deliveries,
                "errors": list(self._errors),
            }

    def collect(self) -> Iterator[Metric]:
        counts = CounterMetricFamily("penstock_segment_deliveries", "Deliveries that were done", labels=LABELS)
        records = CounterMetricFamily(
            "penstock_segment_records", "Records of members that were sent", labels=(*LABELS, "event")
        )
        seconds = CounterMetricFamily("penstock_segment_delivery_seconds", "Time that deliveries took", labels=LABELS)
        last = GaugeMetricFamily(
            "penstock_segment_last_delivery_timestamp_seconds", "End of the last delivery", labels=LABELS
        )
        with self._lock:
            for labels, totals in self._delivered.items():
                counts.add_metric(labels, totals.deliveries)
                records.add_metric((*labels, "add"), totals.added)
                records.add_metric((*labels, "remove"), totals.removed)
                seconds.add_metric(labels, totals.seconds)
                if totals.last:
                    last.add_metric(labels, totals.last.timestamp())
            refused = self._refused
        yield from (counts, records, seconds, last)
        text = "Requests that were not for a delivery, or whose delivery failed"
        yield CounterMetricFamily("penstock_segment_refused_requests", text, value=refused)

"""Rules for Prometheus: delays and rates computed ahead, and alerts that each link to what to do.

The rules know the names of metrics only. A counter with a label such as `reason` appears with its first count, of which
`increase()` sees nothing: `_grew` counts a series that was absent before, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

WRITTEN = "Written by `penstock dashboards`"
"""Is in each file that the command writes; files without it are not replaced."""
RUNBOOKS = "docs/alerts.md"
"""The page with a section for each alert, whose anchor is the alert's name in lower case."""

QUERY = "job, pipeline, query"
"""The labels of a query. Without `instance`: the port of a command may change when it starts again."""
ONE = f"on (job, instance, {QUERY.removeprefix('job, ')})"
"""Matches the series of one query in one command."""
UNLESS_STOPPED = f'unless {ONE} penstock_query_state{{state="stopped"}} == 1'
"""Without queries that somebody has stopped, as those of a connector that is paused: their lag grows."""


@dataclass(frozen=True)
class Recording:
    """An expression that Prometheus evaluates ahead; `name` is <level>:<metric>:<operation>."""

    name: str
    expression: str


@dataclass(frozen=True)
class Alert:
    """`wait` is how long `expression` must have a result; `summary` and `details` are Prometheus templates."""

    name: str
    expression: str
    wait: str
    severity: str
    summary: str
    details: str

    @property
    def anchor(self) -> str:
        return self.name.lower()


def _quantile(share: str) -> Recording:
    name = f"job_pipeline_query:penstock_delay_seconds:p{share.removeprefix('0.')}_5m"
    return Recording(
        name, f"histogram_quantile({share}, sum by ({QUERY}, le) (rate(penstock_delay_seconds_bucket[5m])))"
    )


def _rate(metric: str) -> Recording:
    return Recording(f"job_pipeline_query:{metric}:rate5m", f"sum by ({QUERY}) (rate({metric}_total[5m]))")


RECORDINGS = (
    *(_quantile(share) for share in ("0.50", "0.95", "0.99")),
    *(
        _rate(f"penstock_{name}")
        for name in ("query_rows", "query_batches", "sink_rows", "source_bad_records", "dead_letters")
    ),
    Recording("job_pipeline_query:penstock_source_lag_records:sum", f"sum by ({QUERY}) (penstock_source_lag_records)"),
    Recording("job_pipeline_query:penstock_source_lag_seconds:max", f"max by ({QUERY}) (penstock_source_lag_seconds)"),
)


def _grew(series: str, labels: str, range: str = "10m") -> str:
    """Whether a counter grew within a range, also from nothing to its first count."""
    return (
        f"sum by ({labels}) (increase({series}[{range}])) > 0\n"
        f"or\nsum by ({labels}) ({series} unless {series} offset {range}) > 0"
    )


ALERTS = (
    Alert(
        "PenstockQueryFailed",
        'penstock_query_state{state="failed"} == 1',
        "1m",
        "critical",
        "Query {{ $labels.query }} of {{ $labels.pipeline }} has failed",
        "It writes nothing until its cause is removed.",
    ),
    Alert(
        "PenstockQueryWaiting",
        'penstock_query_state{state=~"starting|waiting"} == 1',
        "10m",
        "warning",
        "Query {{ $labels.query }} of {{ $labels.pipeline }} has been {{ $labels.state }} for 10 minutes",
        "It writes nothing; what it waits for is in its log and in `penstock status`.",
    ),
    Alert(
        "PenstockQueryStalled",
        # A batch of real-time mode lasts 5 minutes; `wait` is what its end may take. A pipeline with a batch every ten
        # minutes has a longer target.
        "time() - penstock_query_last_commit_timestamp_seconds\n"
        f"> {ONE} clamp_min(penstock_query_delay_target_seconds, 300)\n"
        f"and {ONE}\n(penstock_source_lag_records > 0 or penstock_source_lag_seconds > 0)\n{UNLESS_STOPPED}",
        "1m",
        "critical",
        "Query {{ $labels.query }} of {{ $labels.pipeline }} finishes no batch",
        "Records wait, and the last batch finished {{ $value | humanizeDuration }} ago.",
    ),
    Alert(
        "PenstockDelayOverTarget",
        f"max by ({QUERY}) (job_pipeline_query:penstock_delay_seconds:p99_5m)\n"
        f"> on ({QUERY})\nmax by ({QUERY}) (penstock_query_delay_target_seconds)",
        "10m",
        "warning",
        "Rows of {{ $labels.pipeline }} arrive later than its target",
        "One row in a hundred of query {{ $labels.query }} takes {{ $value | humanizeDuration }} or more.",
    ),
    Alert(
        "PenstockLagGrowing",
        "deriv(penstock_source_lag_seconds[15m]) > 0.05\nand\nmin_over_time(penstock_source_lag_seconds[15m]) > 60\n"
        f"{UNLESS_STOPPED}",
        "15m",
        "warning",
        "{{ $labels.pipeline }} falls further behind {{ $labels.source }}",
        "Query {{ $labels.query }} loses {{ $value | humanizeDuration }} each second.",
    ),
    Alert(
        "PenstockRetentionReached",
        # The lag and what is left of the retention add up to the retention.
        "penstock_source_lag_seconds > penstock_source_retention_left_seconds",
        "5m",
        "critical",
        "{{ $labels.pipeline }} soon loses data of {{ $labels.source }}",
        "Query {{ $labels.query }} is behind by {{ $value | humanizeDuration }}: more than half of what is kept.",
    ),
    Alert(
        "PenstockBadRecords",
        _grew("penstock_source_bad_records_total", f"{QUERY}, source, reason"),
        "0m",
        "warning",
        "{{ $labels.source }} has records that {{ $labels.pipeline }} cannot read",
        "Reason: {{ $labels.reason }}.",
    ),
    Alert(
        "PenstockDeadLetters",
        _grew("penstock_dead_letters_total", f"{QUERY}, sink, reason"),
        "0m",
        "warning",
        "{{ $labels.pipeline }} sends rows to its dead letters",
        "They are not in {{ $labels.sink }}. Reason: {{ $labels.reason }}.",
    ),
    Alert(
        "PenstockRestarts",
        # 3.5: increase() extrapolates, so that three starts can count as 3.1.
        f'sum by ({QUERY}) (increase(penstock_query_starts_total{{reason="fault"}}[10m])) > 3.5',
        "0m",
        "warning",
        "Query {{ $labels.query }} of {{ $labels.pipeline }} starts again and again",
        "Faults made it start {{ $value | humanize }} times within 10 minutes.",
    ),
    Alert(
        "PenstockWatermarkStands",
        "changes(penstock_query_watermark_timestamp_seconds[15m]) == 0\n"
        f"and {ONE}\nrate(penstock_query_rows_total[15m]) > 0",
        "15m",
        "warning",
        "The watermark of {{ $labels.pipeline }} stands still",
        "Query {{ $labels.query }} reads rows, but its windows do not end and its state grows.",
    ),
    Alert(
        "PenstockStateGrowing",
        "predict_linear(penstock_state_disk_bytes[6h], 86400) > 2 * penstock_state_disk_bytes\n"
        "and\npenstock_state_disk_bytes > 1e9",
        "2h",
        "warning",
        "The state of {{ $labels.pipeline }} doubles within a day",
        "Operator {{ $labels.operator }} of query {{ $labels.query }} will have {{ $value | humanize1024 }}B tomorrow.",
    ),
    Alert(
        "PenstockConnectorTaskFailed",
        'penstock_connector_tasks{state="FAILED"} > 0',
        "1m",
        "critical",
        "{{ $value }} tasks of connector {{ $labels.connector }} have failed",
        "Their tables send no events; the reason is in the task's trace.",
    ),
    Alert(
        "PenstockIngestErrors",
        'sum by (job, topic) (rate(penstock_ingest_requests_total{status=~"5.."}[5m]))\n'
        "/ sum by (job, topic) (rate(penstock_ingest_requests_total[5m])) > 0.01",
        "5m",
        "critical",
        "Callers of penstock ingest get server errors for topic {{ $labels.topic }}",
        "{{ $value | humanizePercentage }} of the requests are answered with 5xx.",
    ),
    Alert(
        "PenstockSpoolFilling",
        "penstock_ingest_spool_bytes / penstock_ingest_spool_limit_bytes > 0.8\n"
        "or\n(predict_linear(penstock_ingest_spool_bytes[15m], 3600) / penstock_ingest_spool_limit_bytes > 1\n"
        "and min_over_time(penstock_ingest_spool_bytes[15m]) > 0)",
        "5m",
        "warning",
        "The spool of penstock ingest fills up",
        "It is full to 80 %, or will be full within an hour: Kafka takes less than callers send.",
    ),
    Alert(
        "PenstockDown",
        'up{job=~"penstock.*"} == 0',
        "2m",
        "critical",
        "The command at {{ $labels.instance }} does not answer",
        "It has ended, or Prometheus cannot reach it.",
    ),
    Alert(
        "PenstockScrapeAbsent",
        'up{job=~"penstock.*"} == 1 unless on (job, instance) penstock_build_info\nor\nabsent(up{job=~"penstock.*"})',
        "10m",
        "critical",
        "Prometheus has no metrics of Penstock",
        "No job named penstock is configured, or another program answers at {{ $labels.instance }}.",
    ),
)


def rules_file(runbooks: str = RUNBOOKS) -> str:
    """The recording rules and alerts as a rule file; `runbooks` is the address of the page of alerts."""
    groups = [
        {"name": "penstock-recordings", "rules": [_recorded(recording) for recording in RECORDINGS]},
        {"name": "penstock-alerts", "rules": [_alerting(alert, runbooks) for alert in ALERTS]},
    ]
    text = yaml.dump({"groups": groups}, Dumper=_Dumper, sort_keys=False, width=1000, allow_unicode=True)
    return "\n".join((*_head(), text))


def _head() -> Iterator[str]:
    yield f"# {WRITTEN}. Give changed copies another name."
    yield "# Names of jobs that scrape Penstock begin with `penstock`."


def _recorded(recording: Recording) -> dict[str, Any]:
    return {"record": recording.name, "expr": recording.expression}


def _alerting(alert: Alert, runbooks: str) -> dict[str, Any]:
    annotations = {"summary": alert.summary, "description": alert.details, "runbook_url": f"{runbooks}#{alert.anchor}"}
    return {
        "alert": alert.name,
        "expr": alert.expression,
        "for": alert.wait,
        "labels": {"severity": alert.severity},
        "annotations": annotations,
    }


class _Dumper(yaml.SafeDumper):
    """Writes expressions of several lines as they are."""


def _string(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _string)

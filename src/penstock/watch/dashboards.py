"""The dashboards: an overview of what is behind, one pipeline, `penstock ingest`, and the Kafka client's producer.

Expressions add up over instances, because the port of a command may change when it starts again.
"""

from __future__ import annotations

from typing import Any

from penstock.watch.grafana import WIDTH, Dashboard, Panel, Row, Variable

OF_JOB = 'job=~"$job"'
OF_PIPELINE = 'job=~"$job", pipeline=~"$pipeline"'
OF_QUERY = 'job=~"$job", pipeline=~"$pipeline", query=~"$query"'
OF_TOPIC = 'job=~"$job", topic=~"$topic"'
OF_PRODUCER = 'job=~"$job", producer=~"$producer"'
SERVER_ERROR = '"5.."'

QUANTILES = {"0.5": "P50", "0.95": "P95", "0.99": "P99"}
RED_ABOVE_ZERO = {"mode": "absolute", "steps": [{"color": "green", "value": None}, {"color": "red", "value": 1}]}
STACKED = {"custom": {"stacking": {"mode": "normal", "group": "A"}, "fillOpacity": 40}}


def dashboards() -> tuple[Dashboard, ...]:
    """All dashboards."""
    return _overview(), _pipeline(), _ingest(), _producer()


# Expressions.


def rate(metric: str, by: str, of: str = OF_QUERY) -> str:
    """The rates of a counter, added up by labels."""
    return f"sum by ({by}) (rate({metric}{{{of}}}[$__rate_interval]))"


def level(metric: str, by: str, of: str = OF_QUERY, function: str = "sum") -> str:
    """The values of a gauge, by labels."""
    return f"{function} by ({by}) ({metric}{{{of}}})"


def quantile(share: str, metric: str, by: str, of: str = OF_QUERY) -> str:
    """A quantile of a histogram, added up by labels."""
    return f"histogram_quantile({share}, {rate(f'{metric}_bucket', f'{by}, le', of)})"


def increase(metric: str, by: str, of: str = OF_QUERY) -> str:
    """By how much a counter grew within the shown range."""
    return f"sum by ({by}) (increase({metric}{{{of}}}[$__range]))"


def legend(by: str) -> str:
    """The values of labels."""
    return " ".join(f"{{{{{label}}}}}" for label in by.split(", "))


# Panels of one metric: title, what it shows, unit, metric, labels, selector.


def rates(title: str, about: str, unit: str, metric: str, by: str, of: str = OF_QUERY, **more: Any) -> Panel:
    return Panel(title, about, unit, {legend(by): rate(metric, by, of)}, **more)


def levels(title: str, about: str, unit: str, metric: str, by: str, of: str = OF_QUERY, function: str = "sum") -> Panel:
    return Panel(title, about, unit, {legend(by): level(metric, by, of, function)})


def times(title: str, about: str, metric: str, by: str, of: str = OF_QUERY, width: int = 8) -> Panel:
    """P50, P95 and P99 of a histogram in seconds."""
    shown = {f"{legend(by)} {name}": quantile(share, metric, by, of) for share, name in QUANTILES.items()}
    return Panel(title, about, "s", shown, width=width)


def ages(title: str, about: str, metric: str, by: str) -> Panel:
    """Seconds since a time."""
    return Panel(title, about, "s", {legend(by): f"time() - {level(metric, by, function='max')}"})


def shares(title: str, about: str, part: str, whole: str, by: str) -> Panel:
    """Parts of wholes; both are expressions."""
    return Panel(title, about, "percentunit", {legend(by): f"{part} / {whole}"})


def growth(title: str, about: str, metric: str, by: str, of: str, width: int = 8) -> Panel:
    """Bars: by how much counters grew within the shown range."""
    options = {"orientation": "horizontal", "displayMode": "basic", "reduceOptions": {"calcs": ["lastNotNull"]}}
    return Panel(title, about, "none", {legend(by): increase(metric, by, of)}, "bargauge", width, options=options)


def number(title: str, about: str, unit: str, expression: str, *, bad: bool = False) -> Panel:
    """One value; `bad`: red above zero."""
    defaults = {"thresholds": RED_ABOVE_ZERO} if bad else {}
    return Panel(title, about, unit, {"": expression}, "stat", 4, 4, defaults)


# Overview.


def _overview() -> Dashboard:
    return Dashboard(
        "overview",
        "Penstock: overview",
        "How far behind each pipeline is, the worst first, and what was dropped.",
        (JOB, PIPELINE),
        (
            Row("Now", _now()),
            Row("Queries", (_worst_first(),)),
            Row("Over time", _over_time()),
            Row("Dropped and started again", _dropped()),
        ),
    )


def _now() -> tuple[Panel, ...]:
    states = f"penstock_query_state{{{OF_PIPELINE}"
    delay = quantile("0.99", "penstock_delay_seconds", "pipeline", OF_PIPELINE)
    letters = f"sum(increase(penstock_dead_letters_total{{{OF_PIPELINE}}}[$__range]))"
    return (
        number("Running", "Queries that finish batches.", "none", f'sum({states}, state="running"}})'),
        number(
            "Not running",
            "Queries that start, wait or have failed.",
            "none",
            f'sum({states}, state=~"starting|waiting|failed"}})',
            bad=True,
        ),
        number(
            "Largest lag",
            "Time since the oldest record that is not read was written.",
            "s",
            f"max(penstock_source_lag_seconds{{{OF_PIPELINE}}})",
        ),
        number(
            "Largest delay, P99",
            "Time from an event to the sink's acknowledgement, of the slowest pipeline.",
            "s",
            f"max({delay})",
        ),
        number(
            "Dead letters",
            "Rows sent to dead letters within the shown range.",
            "none",
            f"{letters} or vector(0)",
            bad=True,
        ),
        number(
            "Alerts",
            "Alerts of Penstock that are firing; each has a link to what to do.",
            "none",
            'count(ALERTS{alertname=~"Penstock.*", alertstate="firing"}) or vector(0)',
            bad=True,
        ),
    )


def _worst_first() -> Panel:
    by = "pipeline, query"
    commit = level("penstock_query_last_commit_timestamp_seconds", by, OF_PIPELINE, "max")
    columns = {
        "lag (s)": level("penstock_source_lag_seconds", by, OF_PIPELINE, "max"),
        "lag (records)": level("penstock_source_lag_records", by, OF_PIPELINE),
        "delay P99 (s)": quantile("0.99", "penstock_delay_seconds", by, OF_PIPELINE),
        "target (s)": level("penstock_query_delay_target_seconds", by, OF_PIPELINE, "max"),
        "rows/s": rate("penstock_query_rows_total", by, OF_PIPELINE),
        "last batch (s ago)": f"time() - {commit}",
    }
    names = {f"Value #{ref}": name for ref, name in zip("ABCDEF", columns, strict=True)}
    # The times of the values are all the same.
    organized = {"excludeByName": {"Time": True}, "renameByName": names}
    link = "/d/penstock-pipeline?var-pipeline=${__data.fields.pipeline}&var-query=${__data.fields.query}"
    return Panel(
        "Worst first",
        "Each query with its lag, delay and rate; the one that is furthest behind is first. A click opens it.",
        "none",
        columns,
        "table",
        WIDTH,
        9,
        defaults={"decimals": 1, "links": [{"title": "Open the pipeline", "url": link}]},
        options={"sortBy": [{"displayName": "lag (s)", "desc": True}], "showHeader": True},
        transformations=({"id": "merge", "options": {}}, {"id": "organize", "options": organized}),
    )


def _over_time() -> tuple[Panel, ...]:
    lag = "Time since the oldest record that is not read was written; 0 when all is read."
    delay = "Time from an event to the sink's acknowledgement: one row in a hundred takes longer."
    used, most = (level(f"penstock_jvm_memory_{name}_bytes", "instance", OF_JOB) for name in ("used", "max"))
    return (
        rates("Rows", "Rows read, by pipeline.", "rowsps", "penstock_query_rows_total", "pipeline", OF_PIPELINE),
        levels("Lag", lag, "s", "penstock_source_lag_seconds", "pipeline", OF_PIPELINE, "max"),
        Panel(
            "Delay, P99",
            delay,
            "s",
            {"{{pipeline}}": quantile("0.99", "penstock_delay_seconds", "pipeline", OF_PIPELINE)},
        ),
        levels(
            "Connector tasks",
            "Tasks of `penstock connect` by state; a failed task has its reason in its trace.",
            "none",
            "penstock_connector_tasks",
            "connector, state",
            OF_JOB,
        ),
        levels(
            "Commands",
            "Commands whose metrics are read, by version.",
            "none",
            "penstock_build_info",
            "version",
            OF_JOB,
            "count",
        ),
        shares("Java memory", "Used memory of Spark's JVM, of what it may use.", used, most, "instance"),
    )


def _dropped() -> tuple[Panel, ...]:
    range = "within the shown range"
    return (
        growth(
            "Bad records",
            f"Records that a source could not decode, {range}.",
            "penstock_source_bad_records_total",
            "source, reason",
            OF_PIPELINE,
        ),
        growth(
            "Dead letters",
            f"Rows that a sink did not take, and that went to its dead letters, {range}.",
            "penstock_dead_letters_total",
            "sink, reason",
            OF_PIPELINE,
        ),
        growth(
            "Starts after faults",
            f"Starts of queries because of a fault, {range}.",
            "penstock_query_starts_total",
            "pipeline, query",
            f'{OF_PIPELINE}, reason="fault"',
        ),
    )


# One pipeline.


def _pipeline() -> Dashboard:
    return Dashboard(
        "pipeline",
        "Penstock: pipeline",
        "One pipeline: its lag and delay, its batches, sources, sinks, state and look-ups.",
        (JOB, PIPELINE, QUERY),
        (
            Row("Lag and delay", _lag_and_delay()),
            Row("Batches", _batches()),
            Row("Sources", _sources()),
            Row("Sinks", _sinks()),
            Row("State", _states()),
            Row("Look-ups", _lookups()),
        ),
    )


def _lag_and_delay() -> tuple[Panel, ...]:
    lag = "Time since the oldest record that is not read was written; 0 when all is read."
    delay = times(
        "Delay and its target",
        "Time from an event to the sink's acknowledgement, and the pipeline's target for P99.",
        "penstock_delay_seconds",
        "query",
    )
    target = {"{{query}} target": level("penstock_query_delay_target_seconds", "query", function="max")}
    return (
        levels("Lag in time", lag, "s", "penstock_source_lag_seconds", "query, source", function="max"),
        levels("Lag in records", "Records that are not read.", "none", "penstock_source_lag_records", "query, source"),
        Panel(delay.title, delay.about, delay.unit, {**delay.shown, **target}),
        Panel(
            "State of the queries",
            "The state of each query over time.",
            "none",
            {"{{query}} {{state}}": f"penstock_query_state{{{OF_QUERY}}} == 1"},
            "state-timeline",
            12,
        ),
        growth(
            "Starts",
            "Starts of queries within the shown range, by reason: the first one, or a fault.",
            "penstock_query_starts_total",
            "query, reason",
            OF_QUERY,
            12,
        ),
    )


def _batches() -> tuple[Panel, ...]:
    return (
        rates("Rows", "Rows read.", "rowsps", "penstock_query_rows_total", "query"),
        rates("Batches", "Batches finished.", "ops", "penstock_query_batches_total", "query"),
        times(
            "Time of a batch",
            "From the start of a batch to its commit.",
            "penstock_query_batch_duration_seconds",
            "query",
        ),
        rates(
            "Phases",
            "Seconds per second that batches spend in each phase, by Spark's names; 1 is all of the time of a query.",
            "none",
            "penstock_query_phase_seconds_total",
            "phase",
            defaults=STACKED,
        ),
        ages(
            "Since the last batch",
            "Time since a batch has finished.",
            "penstock_query_last_commit_timestamp_seconds",
            "query",
        ),
        ages(
            "Watermark",
            "How far the watermark is behind now; windows end when it passes them.",
            "penstock_query_watermark_timestamp_seconds",
            "query",
        ),
    )


def _sources() -> tuple[Panel, ...]:
    return (
        rates("Rows of sources", "Rows read, by source.", "rowsps", "penstock_source_rows_total", "query, source"),
        rates(
            "Bad records",
            "Records that could not be decoded, by reason.",
            "ops",
            "penstock_source_bad_records_total",
            "source, reason",
        ),
        levels(
            "Retention left",
            "Time until the oldest record that is not read is deleted.",
            "s",
            "penstock_source_retention_left_seconds",
            "query, source",
            function="min",
        ),
    )


def _sinks() -> tuple[Panel, ...]:
    by, reasons = "query, sink", "sink, reason"
    return (
        rates("Rows of sinks", "Rows that a sink acknowledged.", "rowsps", "penstock_sink_rows_total", by),
        rates("Bytes of sinks", "Bytes that a sink acknowledged.", "Bps", "penstock_sink_bytes_total", by),
        Panel(
            "Delay",
            "How many rows took how long, from event to acknowledgement.",
            "none",
            {"{{le}}": rate("penstock_delay_seconds_bucket", "le")},
            "heatmap",
            options={"calculate": False, "yAxis": {"unit": "s"}},
        ),
        rates("Retries", "Writes that were tried again.", "ops", "penstock_sink_retries_total", by),
        rates("Failures", "Writes that failed, by reason.", "ops", "penstock_sink_failures_total", reasons),
        rates("Dead letters", "Rows sent to dead letters, by reason.", "ops", "penstock_dead_letters_total", reasons),
    )


def _states() -> tuple[Panel, ...]:
    by = "query, operator"
    return (
        levels("State on disk", "Bytes in the checkpoint's folder.", "bytes", "penstock_state_disk_bytes", by),
        levels("State in memory", "Bytes in memory.", "bytes", "penstock_state_memory_bytes", by),
        levels("Rows of state", "Keys, windows or rows that are kept.", "none", "penstock_state_rows", by),
        rates(
            "Commits of state",
            "Seconds per second that tasks write state.",
            "none",
            "penstock_state_commit_seconds_total",
            by,
        ),
        rates(
            "Late rows",
            "Rows that came after their window had ended, and were dropped.",
            "rowsps",
            "penstock_state_late_rows_total",
            by,
        ),
    )


def _lookups() -> tuple[Panel, ...]:
    by, rows = "query, lookup", "penstock_lookup_rows_total"
    return (
        rates("Look-ups", "Rows that were looked up.", "rowsps", rows, by),
        shares(
            "Answered by the cache",
            "Share of the rows that needed no request.",
            rate("penstock_lookup_hits_total", by),
            rate(rows, by),
            by,
        ),
        rates("Waits", "Seconds per second that tasks wait.", "none", "penstock_lookup_wait_seconds_total", by),
        levels(
            "Age of global tables",
            "How long their sources have been away; 0 while they are there.",
            "s",
            "penstock_global_table_stale_seconds",
            "query, table",
            function="max",
        ),
    )


# Ingest.


def _ingest() -> Dashboard:
    return Dashboard(
        "ingest",
        "Penstock: ingest",
        "`penstock ingest`: requests, answers, events by topic, and what waits.",
        (Variable("job", "penstock_ingest_workers"), Variable("topic", f"penstock_ingest_requests_total{{{OF_JOB}}}")),
        (Row("Requests", _requests()), Row("Events", _events()), Row("The server", _server())),
    )


def _requests() -> tuple[Panel, ...]:
    metric = "penstock_ingest_requests_total"
    every = rate(metric, "topic", OF_TOPIC)
    # A status has no series before its first answer.
    errors = f"({rate(metric, 'topic', f'{OF_TOPIC}, status=~{SERVER_ERROR}')} or 0 * {every})"
    return (
        rates("Requests", "Requests answered, by status.", "reqps", metric, "status", OF_TOPIC),
        shares("Server errors", "Share of answers with 5xx.", errors, every, "topic"),
        times(
            "Time to the answer",
            "From the head of a request to its answer, which says that its events are safe.",
            "penstock_ingest_request_duration_seconds",
            "job",
            OF_JOB,
        ),
    )


def _events() -> tuple[Panel, ...]:
    valid, bytes, bad = (f"penstock_ingest_{name}_total" for name in ("events", "bytes", "bad_events"))
    return (
        rates("Events", "Events acknowledged.", "ops", valid, "topic", OF_TOPIC),
        rates("Bytes", "Bytes of bodies with acknowledged events, unpacked.", "Bps", bytes, "topic", OF_TOPIC),
        rates("Bad events", "Events refused because they are not valid.", "ops", bad, "topic", OF_TOPIC),
    )


def _server() -> tuple[Panel, ...]:
    prefix = "penstock_ingest_"
    refused = "Connections refused because too many are open, in all or from one address."
    workers = {
        "{{instance}} running": level(f"{prefix}workers", "instance", OF_JOB),
        "{{instance}} ended": increase(f"{prefix}worker_deaths_total", "instance", OF_JOB),
    }
    spool = {
        "{{instance}}": level(f"{prefix}spool_bytes", "instance", OF_JOB),
        "{{instance}} limit": level(f"{prefix}spool_limit_bytes", "instance", OF_JOB),
    }
    waiting = "Bytes on disk for topics that Kafka does not take."
    return (
        levels("In flight", "Bytes of open requests.", "bytes", f"{prefix}in_flight_bytes", "instance", OF_JOB),
        Panel("Spool", "Bytes on disk that Kafka has not, and their limit.", "bytes", spool),
        levels("Waiting by topic", waiting, "bytes", f"{prefix}waiting_bytes", "topic", OF_TOPIC),
        levels("Connections", "Open connections.", "none", f"{prefix}connections", "instance", OF_JOB),
        rates("Refused", refused, "ops", f"{prefix}refused_connections_total", "instance", OF_JOB),
        Panel("Workers", "Processes that take events, and those that ended by themselves.", "none", workers),
    )


# The Kafka client's producer.


def _producer() -> Dashboard:
    used = "penstock_producer_buffer_used_bytes"
    return Dashboard(
        "producer",
        "Penstock: producer",
        "The Kafka client's producer: latencies, batches, retries and memory, by topic and broker.",
        (Variable("job", used), Variable("producer", f"{used}{{{OF_JOB}}}")),
        (Row("Records", _records()), Row("Latency", _latencies()), Row("Memory", _memory())),
    )


def _records() -> tuple[Panel, ...]:
    prefix = "penstock_producer_"
    records, batches = (rate(f"{prefix}{name}_total", "topic", OF_PRODUCER) for name in ("records", "batches"))
    average = "Records that a batch has on average; small batches cost more requests."
    return (
        rates("Records", "Records acknowledged.", "ops", f"{prefix}records_total", "topic", OF_PRODUCER),
        rates("Bytes", "Bytes of record batches acknowledged.", "Bps", f"{prefix}bytes_total", "topic", OF_PRODUCER),
        Panel("Records in a batch", average, "none", {"{{topic}}": f"{records} / {batches}"}),
        rates("Failed", "Records that failed for good.", "ops", f"{prefix}failed_total", "topic", OF_PRODUCER),
        rates("Retries", "Record batches sent again.", "ops", f"{prefix}retries_total", "topic", OF_PRODUCER),
        rates("Requests", "Requests, by broker.", "reqps", f"{prefix}requests_total", "broker", OF_PRODUCER),
    )


def _latencies() -> tuple[Panel, ...]:
    batch, request = (f"penstock_producer_{name}_seconds" for name in ("latency", "request_latency"))
    return (
        times("From batch to answer", "Until the broker has a batch.", batch, "topic", OF_PRODUCER, 12),
        times("From request to answer", "Until a broker answers.", request, "broker", OF_PRODUCER, 12),
    )


def _memory() -> tuple[Panel, ...]:
    prefix, by = "penstock_producer_", "instance, producer"
    used, most = (level(f"{prefix}buffer_{name}_bytes", by, OF_PRODUCER) for name in ("used", "memory"))
    sent = "Record batches that are sent and not answered."
    return (
        shares("Memory", "Memory of unacknowledged records; at 100 % callers wait.", used, most, by),
        levels("Waiting", "Record batches that are not sent.", "none", f"{prefix}queued", "topic", OF_PRODUCER),
        levels("In flight", sent, "none", f"{prefix}in_flight", "topic", OF_PRODUCER),
    )


JOB = Variable("job", "penstock_build_info")
PIPELINE = Variable("pipeline", f"penstock_query_state{{{OF_JOB}}}")
QUERY = Variable("query", f"penstock_query_state{{{OF_PIPELINE}}}")

"""The `/status` of a command: its queries, graph, history and last errors as JSON; null where nothing is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import accumulate
from typing import Any

from penstock.metrics.delays import BOUNDS
from penstock.watch.graph import Place, ids_apart
from penstock.watch.meters import Meters, QueryProblem
from penstock.watch.program import Program, head, iso
from penstock.watch.query_meter import (
    FAILED,
    RUNNING,
    STARTING,
    STOPPED,
    WAITING,
    QueryMeter,
    SinkMeter,
    SourceMeter,
    quantile,
    shortened,
)

Ids = Mapping[Place, str]
"""The ids of nodes by their own ids and addresses."""

STOPPING = "stopping"
TRIGGERS = 5
"""Intervals between batches within which a ready query has committed, or had nothing to read."""
AT_LEAST = 10.0
"""Seconds that these intervals take at least."""
WORST_FIRST = (FAILED, WAITING, STARTING, RUNNING, STOPPED)


def status(program: Program, meters: Meters) -> dict[str, Any]:
    """The status of a command that runs queries."""
    with meters.lock:
        now, queries = meters.clock(), meters.queries()
        state, waits_for = overall(meters, now)
        ids = _ids(queries)
        jvm = None if meters.jvm is None else {"used_bytes": meters.jvm[0], "max_bytes": meters.jvm[1]}
        return {
            **head(program, now),
            "state": state,
            "waits_for": waits_for,
            "graph": _graph(queries, ids),
            "queries": [_query(query, now, ids) for query in queries],
            "errors": [_error(problem) for problem in meters.errors],
            "jvm": jvm,
        }


def overall(meters: Meters, now: float) -> tuple[str, str]:
    """The state of all pipelines together, the worst first, and what they wait for; the caller holds the lock."""
    queries = meters.queries()
    waits = [text for query in queries if (text := query.waits_for(now))]
    waits += [text for pipeline in meters.pipelines.values() if (text := pipeline.waiting(now))]
    if meters.pipelines and all(pipeline.stops for pipeline in meters.pipelines.values()):
        return STOPPING, ""
    states = {query.state for query in queries} or {STARTING}
    if any(pipeline.failed for pipeline in meters.pipelines.values()):
        states.add(FAILED)
    if waits and FAILED not in states:
        return WAITING, waits[0]
    return next(state for state in WORST_FIRST if state in states), ""


def ready(meters: Meters) -> list[str]:
    """Why the program is not ready: for each query that has neither committed nor been idle of late; empty if it is."""
    with meters.lock:
        now, queries = meters.clock(), meters.queries()
        if not queries:
            return ["no query has started"]
        return [f"{query.name}: {why}" for query in queries if (why := _unready(query, now))]


def _unready(query: QueryMeter, now: float) -> str:
    if query.state != RUNNING:
        return query.waits_for(now) or query.state
    patience = max(AT_LEAST, TRIGGERS * query.interval)
    if query.idle or query.interval == 0 or now - (query.last_commit or query.since) <= patience:
        return ""
    return f"no batch was committed for {now - (query.last_commit or query.since):.0f} s"


def _query(query: QueryMeter, now: float, ids: Ids) -> dict[str, Any]:
    return {
        "name": query.name,
        "pipeline": query.pipeline,
        "node": f"query:{query.name}",
        "state": query.state,
        "waits_for": query.waits_for(now),
        "every": query.every,
        "target_seconds": query.target,
        "batch": query.batch,
        "batches_total": query.batches,
        "rows_total": query.rows,
        "rows_per_second": round(query.rate(now), 3),
        "last_commit": iso(query.last_commit),
        "last_batch_seconds": query.last_seconds,
        "starts": dict(query.starts),
        "watermark": iso(query.watermark),
        "problem": query.problem,
        "next": query.next,
        "sources": [_source(query, source, now) | _node(source, ids) for source in query.sources],
        "sinks": [_sink(query, sink, now) | _node(sink, ids) for sink in query.sinks],
        "states": [
            {
                "operator": name,
                "rows": state.rows,
                "memory_bytes": state.memory,
                "disk_bytes": state.disk,
                "late_rows_total": state.late_rows,
            }
            for name, state in query.states.items()
        ],
        "lookups": [
            {
                "name": name,
                "rows_total": lookup.rows,
                "hits_total": lookup.hits,
                "wait_seconds_total": shortened(lookup.wait),
            }
            for name, lookup in query.lookups.items()
        ],
        "global_tables": [{"name": name, "stale_seconds": shortened(stale)} for name, stale in query.tables.items()],
        "phases": _rounded(query.phases),
        "history": [point.as_dict for point in query.history],
    }


def _source(query: QueryMeter, source: SourceMeter, now: float) -> dict[str, Any]:
    return {
        "name": source.name,
        "lag_records": source.lag.records,
        "lag_seconds": shortened(query.lag_seconds(source, now)),
        "retention_left_seconds": shortened(query.retention_left(source, now)),
        "rows_total": source.rows,
        "bad_records": dict(source.bad),
    }


def _sink(query: QueryMeter, sink: SinkMeter, now: float) -> dict[str, Any]:
    counts, recent = sink.counts, query.recent_delays(sink, now)
    known = {"rows_total": counts.rows, "bytes_total": counts.bytes, "retries_total": counts.retries}
    return {
        "name": sink.name,
        **(known if sink.is_counted else dict.fromkeys(known)),
        "failures": dict(counts.failures),
        "dead_letters": dict(counts.letters),
        "delay": {
            **{f"p{percent}": shortened(quantile(recent, percent / 100)) for percent in (50, 95, 99)},
            "unknown": query.unmeasured(sink, now),
            "bounds": list(BOUNDS),
            "buckets": list(accumulate(counts.buckets)),
            "sum": shortened(counts.seconds),
        },
    }


def _error(problem: QueryProblem) -> dict[str, Any]:
    return {
        "at": iso(problem.at),
        "query": problem.query,
        "what": problem.what,
        "where": problem.where,
        "next": problem.next,
        "trace": problem.trace,
    }


def _ids(queries: Sequence[QueryMeter]) -> Ids:
    """The ids of all nodes of the queries: two of them may read a topic of one name from two clusters."""
    nodes = [(node.id, node.address) for query in queries for node in query.graph.nodes]
    sources = [(source.node, source.address) for query in queries for source in query.sources]
    sinks = [(sink.node, sink.address) for query in queries for sink in query.sinks]
    return ids_apart([*nodes, *sources, *sinks])


def _node(of: SourceMeter | SinkMeter, ids: Ids) -> dict[str, Any]:
    return {"node": ids[of.node, of.address], "other_nodes": of.other_nodes}


def _graph(queries: Sequence[QueryMeter], ids: Ids) -> dict[str, Any]:
    """The graphs of the queries as one."""
    nodes: dict[str, dict[str, Any]] = {}
    edges: dict[tuple[str, str], dict[str, str]] = {}
    for graph in (query.graph for query in queries):
        own = {node.id: ids[node.id, node.address] for node in graph.nodes}
        for node in graph.nodes:
            nodes.setdefault(own[node.id], asdict(node) | {"id": own[node.id]})
        for edge in graph.edges:
            source, target = own.get(edge.source, edge.source), own.get(edge.target, edge.target)
            edges.setdefault((source, target), {"source": source, "target": target})
    return {"nodes": list(nodes.values()), "edges": list(edges.values())}


def _rounded(phases: Mapping[str, float]) -> dict[str, float]:
    return {name: round(some, 4) for name, some in phases.items()}

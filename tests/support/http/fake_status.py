"""Made-up `/status` documents of running commands, served over HTTP: for a page with more pipelines than a test starts.

The numbers follow from the names and the time alone. Names, errors and reasons contain markup, so that a page that
reads one of them as markup is found.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from json_server import JsonAnswers, serving

Json = dict[str, Any]

STARTED = datetime.now(UTC)
HOSTILE = "<script>document.title='hacked'</script><img src=x onerror=\"document.title='hacked'\">"


def trace(text: str) -> str:
    steps = (f'  File "/srv/shop/shop.py", line {line}, in step_{line}' for line in range(40, 52))
    return "\n".join(("Traceback (most recent call last):", *steps, f"ValueError: price is not a number: {text}"))


BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
PHASES = {"latestOffset": 0.03, "queryPlanning": 0.05, "addBatch": 0.3, "walCommit": 0.04, "commitOffsets": 0.03}


def iso(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def node(kind: str, name: str, system: str = "kafka", address: str | None = "kafka-1:9092") -> Json:
    prefix = {"sink": "topic"}.get(kind, kind)
    return {"id": f"{prefix}:{name}", "kind": kind, "name": name, "system": system, "address": address}


@dataclass(frozen=True)
class Made:
    """How a pipeline does: `rate` in rows a second, `lag` in seconds, the number of batches in its history.

    `text` is a part of names of reasons and of errors.
    """

    state: str = "running"
    rate: float = 20.0
    lag: float = 0.0
    batches: int = 300
    text: str = HOSTILE


@lru_cache(maxsize=200)
def history(made: Made, now: datetime) -> list[Json]:
    """A batch each second until `now`, with waves and a slow minute; made once for all that ask in the same seconds."""
    rows = []
    for at in range(900 - made.batches, 900):
        slow = 2.5 * math.sin((at - 780) / 60 * math.pi) if 780 < at < 840 else 0.0
        wave = 1 + 0.3 * math.sin(at / 40) + slow
        phases = {phase: round(seconds * wave, 4) for phase, seconds in PHASES.items()}
        rows.append(
            {
                **{"at": iso(now - timedelta(seconds=900 - at)), "seconds": round(sum(phases.values()), 4)},
                **{"rows": round(made.rate * wave), "lag_records": round(made.lag * made.rate * wave)},
                **{"lag_seconds": round(made.lag * wave, 2), "delay_p99": round(0.4 * wave + made.lag * wave, 3)},
                "phases": phases,
            }
        )
    return rows


def query(name: str, source: str, sink: str, made: Made) -> Json:
    now = datetime.now(UTC)
    total, failed = round(made.rate * (3600 + (now - STARTED).total_seconds())), made.state == "failed"
    waits_for = "Cassandra at cassandra-2:9042 for 12 s" if made.state == "waiting" else ""
    delay = {"p50": 0.12 + made.lag * 0.7, "p95": 0.3 + made.lag * 0.9, "p99": 0.42 + made.lag}
    return {
        **{"name": name, "pipeline": name, "node": f"query:{name}", "state": made.state, "every": "1 second"},
        **{"waits_for": waits_for, "target_seconds": 30.0},
        **{"batch": 3600, "batches_total": 3600, "rows_total": total, "rows_per_second": made.rate},
        **{"last_commit": iso(now), "last_batch_seconds": 0.45, "starts": {"first": 1, "fault": int(made.lag > 0)}},
        **{"watermark": iso(now - timedelta(minutes=2)), "phases": {phase: 1000 * s for phase, s in PHASES.items()}},
        "problem": f"price is not a number: {made.text}" if failed else "",
        "next": "correct the column price in shop.py, then start it again" if failed else "",
        "sources": [
            {
                **{"name": source.replace(":", " "), "node": source, "rows_total": total},
                **{"lag_records": round(made.lag * made.rate), "lag_seconds": made.lag},
                **{"retention_left_seconds": 6 * 86400.0, "bad_records": {"not JSON": 3}},
            }
        ],
        "sinks": [
            {
                **{"name": sink.replace(":", " "), "node": sink, "rows_total": total, "bytes_total": total * 210},
                **{"retries_total": 2, "failures": {}},
                "dead_letters": {f"key is null {made.text}": 4} if made.lag else {},
                "delay": {**delay, "bounds": BOUNDS, "buckets": [total] * 17, "sum": total * 0.2},
            }
        ],
        "states": [{"operator": "counts", "rows": 52_400, "memory_bytes": 9 << 20, "disk_bytes": 48 << 20}],
        "lookups": [
            {"name": "persons", "rows_total": total, "hits_total": total * 9 // 10, "wait_seconds_total": 41.0}
        ],
        "history": history(made, now.replace(second=now.second // 5 * 5, microsecond=0)),
    }


def pipeline(name: str, made: Made, *, width: int = 1) -> Json:
    """A table's changes to a topic, and from there by `width` queries with a state to topics of their own.

    The first query runs; the others do as `made` says.
    """
    now, source = datetime.now(UTC), node("table", f"shop.{name}", "cql", "cassandra-1:9042")
    between = node("topic", f"shop.{name}")
    nodes, edges = [source, between], []
    queries = [query(f"{name}_changes", source["id"], between["id"], replace(made, state="running", lag=0.0))]
    for at in range(width):
        target = node("sink", f"{name}.by_city.{at}")
        queries.append(query(f"{name}_by_city_{at}", between["id"], target["id"], made))
        nodes.append(target)
    for each in queries:
        kept = node("state", f"{each['name']}/counts", "penstock", None) | {"name": "counts"}
        nodes += [node("query", each["name"], "penstock", None), kept]
        ends = (each["sources"][0]["node"], each["node"]), (each["node"], each["sinks"][0]["node"])
        edges += [{"source": one, "target": other} for one, other in (*ends, (each["node"], kept["id"]))]
    error = {"at": iso(STARTED), "query": queries[-1]["name"], "what": f"price is not a number: {made.text}"}
    error |= {"where": "shop.py:51", "next": "correct the column price", "trace": trace(made.text)}
    return {
        **{"version": "0.1.0", "kind": "run", "name": name, "pid": 4000 + len(name), "started": iso(STARTED)},
        **{"now": iso(now), "command": f"penstock run shop.py:{name}", "waits_for": ""},
        "state": made.state if made.state in ("failed", "waiting") else "running",
        "graph": {"nodes": nodes, "edges": edges},
        "queries": queries,
        "errors": [error] if made.state == "failed" else [],
        "jvm": {"used_bytes": 412 << 20, "max_bytes": 1 << 30},
    }


@contextmanager
def served(make: Callable[[], Json]) -> Iterator[str]:
    """The address of a server whose `/status` is what `make` returns."""

    class Answer(JsonAnswers):
        def do_GET(self) -> None:
            self.answered(make())

    with serving(Answer) as address:
        yield f"http://{address}"

"""What a client of CQL can see of a table: the values of its rows, when they were written, and when they expire.

A table's state maps a partition to its static cells and its rows, in the form of the vectors in replication.json:
each cell has `value`, or `kind` and `elements` ([key, value, write time, expiry]); times are microseconds, expiries
seconds since 1970 or None.
"""

from __future__ import annotations

import json
import time
from typing import Any

from cassandra.cluster import Session
from cassandra.protocol import _ProtocolHandler

State = dict[Any, dict[str, Any]]


def session_for_states(session: Session) -> Session:
    """The session with a reader of rows in Python: the driver's own cannot read lists of times with nulls."""
    session.client_protocol_handler = _ProtocolHandler
    return session


def columns_of(session: Session, keyspace: str, table: str) -> list[dict[str, Any]]:
    query = "SELECT * FROM system_schema.columns WHERE keyspace_name = %s AND table_name = %s"
    return sorted(session.execute(query, (keyspace, table)), key=lambda column: column["position"])


def state_of(session: Session, keyspace: str, table: str) -> State:
    """The table's state; the session's rows are dictionaries."""
    columns = columns_of(session, keyspace, table)
    partition = [column["column_name"] for column in columns if column["kind"] == "partition_key"]
    clustering = [column["column_name"] for column in columns if column["kind"] == "clustering"]
    values = [column for column in columns if column["kind"] in ("static", "regular")]
    names = [f'"{name}"' for name in (*partition, *clustering)]
    for number, column in enumerate(values):
        name = f'"{column["column_name"]}"'
        names += [f"{name} AS v{number}", f"WRITETIME({name}) AS w{number}", f"TTL({name}) AS t{number}"]
    found: State = {}
    now = int(time.time())
    for row in session.execute(f'SELECT {", ".join(names)} FROM {keyspace}."{table}"'):
        key = tuple(row[name] for name in partition)
        place = found.setdefault(key[0] if len(key) == 1 else key, {"static": {}, "rows": []})
        cells: dict[str, dict[str, Any]] = {"static": {}, "regular": {}}
        for number, column in enumerate(values):
            cell = _cell(column["type"], row[f"v{number}"], row[f"w{number}"], row[f"t{number}"], now)
            if cell is not None:
                cells[column["kind"]][column["column_name"]] = cell
        place["static"] |= cells["static"]
        if not clustering or row[clustering[0]] is not None:
            place["rows"].append({"ck": [row[name] for name in clustering], "cells": cells["regular"]})
    return found


def _cell(kind: str, value: Any, times: Any, ttls: Any, now: int) -> dict[str, Any] | None:
    if value is None:
        return None
    if isinstance(times, list):
        entries = zip(_entries(kind, value), times, ttls or [None] * len(times), strict=True)
        elements = [[*entry, time, _expiry(ttl, now)] for entry, time, ttl in entries if time is not None]
        return {"kind": kind.split("<")[0] if "<" in kind else "udt", "elements": elements} if elements else None
    if kind.startswith("frozen<"):
        value = json.dumps(dict(value) if hasattr(value, "items") else list(value))
    return {"value": value, "writetime": times, "expires": _expiry(ttls, now)}


def _entries(kind: str, value: Any) -> list[list[Any]]:
    if kind.startswith("map<"):
        return [[key, item] for key, item in value.items()]
    if kind.startswith("set<"):
        return [[key, None] for key in value]
    if kind.startswith("list<"):
        return [[None, item] for item in value]
    return [[name, getattr(value, name)] for name in value._fields]


def _expiry(ttl: int | None, now: int) -> int | None:
    return None if ttl is None else now + ttl

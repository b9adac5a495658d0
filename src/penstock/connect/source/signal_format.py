"""Signals to a source connector, in Debezium's format: an id, a type, and data as a JSON object.

{"id": "1", "type": "execute-snapshot", "data": {"data-collections": ["shop.orders"], "type": "incremental"}}
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.cdc.ad_hoc import EXECUTE, PAUSE, RESUME, STOP
from penstock.connect.java import regex as java_regex
from penstock.connect.java.bounded_regex import Overrun
from penstock.connect.java.regex_check import regex_problem
from penstock.database.cql_tokens import part_problem
from penstock.errors import PenstockError
from penstock.process.log_lines import quoted

LOG = "log"
TYPES = (EXECUTE, STOP, PAUSE, RESUME, LOG)
MOST_BYTES = 16 << 10
"""Bytes of a signal: names of some hundred tables."""
LONGEST_ID, LONGEST_PATTERN, LONGEST_FILTER = 200, 200, 2000
MOST_REPEATS = 3
TABLES, CONDITIONS, OLD_CONDITION = "data-collections", "additional-conditions", "additional-condition"
_EXAMPLE = (
    '{"id": "1", "type": "execute-snapshot", "data": {"data-collections": ["shop.orders"], "type": "incremental"}}'
)
FilterCheck = Callable[[str, str], str | None]
"""What the database says against the filter of a table; None if it is valid."""


class BadSignal(PenstockError):
    """A signal that cannot be acted on."""


@dataclass(frozen=True)
class Signal:
    """What a connector shall do: for snapshots with these tables, each with the filter of its rows, or ""."""

    id: str
    type: str
    tables: Mapping[str, str]
    message: str = ""


def object_of(text: str | bytes, where: str) -> dict[str, Any]:
    """A JSON object, not larger than a signal may be; raises BadSignal."""
    size = len(text if isinstance(text, bytes) else text.encode(errors="replace"))
    if size > MOST_BYTES:
        raise BadSignal(
            f"a signal has {size} bytes, and at most {MOST_BYTES} are read",
            where=where,
            next="select the tables by a pattern, or send several signals",
        )
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadSignal(f"a signal is not JSON: {error}", where=where, next=f"write it as {_EXAMPLE}") from None
    if not isinstance(found, dict):
        raise BadSignal("a signal is not a JSON object", where=where, next=f"write it as {_EXAMPLE}")
    return found


def signal_of(about: Mapping[str, Any], tables: Sequence[str], refused: FilterCheck, where: str) -> Signal:
    """The signal to a connector of these tables; its `data` is an object, or that as a string.

    Raises BadSignal.
    """
    id, type, data = str(about.get("id") or "")[:LONGEST_ID], about.get("type"), about.get("data") or {}
    where = f"{where}, id {quoted(id)}" if id else where
    if type not in TYPES:
        raise BadSignal(
            f"a signal has the unknown type {str(type)[:100]!r}", where=where, next=f"use one of {', '.join(TYPES)}"
        )
    if isinstance(data, str):
        data = object_of(data, where)
    if not isinstance(data, dict):
        raise BadSignal("the data of a signal is not an object", where=where, next=f"write it as {_EXAMPLE}")
    if type == LOG:
        return Signal(id, LOG, {}, str(data.get("message", ""))[:LONGEST_FILTER])
    kind = str(data.get("type") or "incremental")
    if kind.lower() != "incremental":
        raise BadSignal(
            f"snapshots of the type {kind[:100]!r} are not possible",
            where=where,
            next='use "incremental": the log goes on beside it',
        )
    # Only a snapshot needs names; the others mean all tables without them.
    names = _names(data, where, required=type == EXECUTE)
    chosen = _chosen(names, tables, where) if names else list(tables)
    filters = _filters(data, chosen, refused, where) if type == EXECUTE else {}
    return Signal(id, str(type), {table: filters.get(table, "") for table in chosen})


def _names(data: Mapping[str, Any], where: str, *, required: bool) -> list[str]:
    names = data.get(TABLES)
    if not names and not required:
        return []
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise BadSignal(
            f"{TABLES} is not a list of tables or patterns",
            where=where,
            next=f'name tables, such as "{TABLES}": ["shop.orders"]',
        )
    return [name.strip() for name in names]


def _chosen(names: Iterable[str], tables: Sequence[str], where: str) -> list[str]:
    """The tables that these names or patterns select; each has to select one."""
    chosen: dict[str, None] = {}
    for name in names:
        selected = _selected(name, tables, where)
        if not selected:
            raise BadSignal(
                f"the connector reads no table {quoted(name)}",
                where=where,
                next=f"it reads {', '.join(tables[:20])}: use one of them, or add the table to scylla.table.names",
            )
        chosen |= dict.fromkeys(selected)
    return list(chosen)


def _selected(name: str, tables: Sequence[str], where: str) -> list[str]:
    """The table of this name, or those that the Java pattern matches."""
    if name in tables:
        return [name]
    if problem := _pattern_problem(name):
        raise BadSignal(
            f"{quoted(name)} is neither a table of the connector nor a regular expression of Java: {problem}",
            where=where,
            next="correct it, or name the tables",
        )
    try:
        return java_regex.fitting(name, tables)
    except Overrun as error:
        raise BadSignal(str(error), where=where, next="name the tables, or write a simpler expression") from None


def _pattern_problem(pattern: str) -> str | None:
    if too_much := _too_much(pattern):
        return too_much
    invalid = regex_problem(pattern)
    return invalid and quoted(invalid)


def _too_much(pattern: str) -> str | None:
    """Why a pattern may take long to match, or None: a signal may have hundreds of them, each with its bound."""
    if len(pattern) > LONGEST_PATTERN:
        return f"it has more than {LONGEST_PATTERN} characters"
    if len(re.findall(r"[*+{]", pattern)) > MOST_REPEATS:
        return f"it has more than {MOST_REPEATS} repetitions"
    return "it repeats a group" if re.search(r"\)[*+{]", pattern) else None


def _filters(data: Mapping[str, Any], tables: Sequence[str], refused: FilterCheck, where: str) -> dict[str, str]:
    """The filter of each table that has one."""
    filters: dict[str, str] = {}
    for names, text in _conditions(data, tables, where):
        for table in names:
            if problem := _filter_problem(table, text, refused):
                raise BadSignal(
                    f"the filter {quoted(text)} of {table} cannot be used: {problem}",
                    where=where,
                    next="write it as the condition of a SELECT in CQL, such as status = 'open'",
                )
            filters[table] = text
    return filters


def _filter_problem(table: str, text: str, refused: FilterCheck) -> str | None:
    if len(text) > LONGEST_FILTER:
        return f"it has more than {LONGEST_FILTER} characters"
    return part_problem(text) or refused(table, text)


def _conditions(data: Mapping[str, Any], tables: Sequence[str], where: str) -> list[tuple[list[str], str]]:
    if data.get("surrogate-key"):
        raise BadSignal(
            "a snapshot is read by token range, and not by a surrogate-key",
            where=where,
            next="leave surrogate-key out",
        )
    conditions: list[tuple[list[str], str]] = []
    if text := data.get(OLD_CONDITION):
        conditions.append((list(tables), str(text)))
    listed = data.get(CONDITIONS) or []
    try:
        conditions += [
            (_selected(str(condition["data-collection"]).strip(), tables, where), str(condition["filter"]))
            for condition in listed
        ]
    except (KeyError, TypeError):
        raise BadSignal(
            f"{CONDITIONS} is not a list of objects with data-collection and filter",
            where=where,
            next=f'write "{CONDITIONS}": [{{"data-collection": "shop.orders", "filter": "status = \'open\'"}}]',
        ) from None
    return conditions

"""State that a query keeps in PostgreSQL through `postgres.sink`: the rows of its tables, and its last batch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from penstock.codec import exact_json
from penstock.errors import PenstockError
from penstock.postgres.postgres_batch import APPLIED
from penstock.postgres.postgres_columns import NAME
from penstock.postgres.postgres_session import Session, connected, literal, quoted
from penstock.state.stores import LIMIT, MOST, Freshness, StateRows, cut, of_columns, require_some, unknown

NOTED = f"SELECT target, max(batch), max(at) FROM {APPLIED} GROUP BY target ORDER BY target"
KEY = """\
SELECT a.attname::text FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
WHERE i.indrelid = to_regclass({table}) AND i.indisprimary ORDER BY array_position(i.indkey::int2[], a.attnum)"""


@dataclass(frozen=True)
class PostgresState:
    """The tables of a database that sinks write to, by name."""

    url: str

    def overview(self) -> list[dict[str, Any]]:
        with self._session() as session:
            return [{"name": name, **fresh.to_json()} for name, fresh in _noted(session).items()]

    def get(self, name: str, key: str, limit: int = LIMIT) -> StateRows:
        with self._session() as session:
            fresh = _fresh(session, name)
            columns = [str(row[0]) for row in session.rows(KEY.format(table=literal(name)))]
            condition = " AND ".join(_conditions(name, columns, key))
            return require_some(cut(name, fresh, _rows(session, name, condition, limit), limit), key)

    def scan(self, name: str, where: str | None = None, limit: int = LIMIT) -> StateRows:
        with self._session() as session:
            fresh = _fresh(session, name)
            return cut(name, fresh, _rows(session, name, where or "true", limit), limit)

    def _session(self) -> Any:
        return connected(self.url, "state in PostgreSQL")


def _noted(session: Session) -> dict[str, Freshness]:
    if session.rows(f"SELECT to_regclass('{APPLIED}') IS NULL") == [(True,)]:
        return {}
    return {str(name): Freshness(int(batch), at) for name, batch, at in session.rows(NOTED)}


def _fresh(session: Session, name: str) -> Freshness:
    """The last batch that a sink wrote to the table; raises `NoSuchState` if no sink has written to it."""
    known = _noted(session)
    if name not in known:
        raise unknown(name, [], list(known), "PostgreSQL")
    return known[name]


def _rows(session: Session, table: str, condition: str, limit: int) -> list[Any]:
    # Functions that the condition calls must not write.
    session.run("SET TRANSACTION READ ONLY")
    # Quoted as SQL needs it: the table's name may be a reserved word.
    name = session.rows(NAME.format(table=literal(table)))[0][0]
    query = f"SELECT to_json(t)::text FROM {name} t WHERE {condition} LIMIT {min(limit, MOST) + 1}"
    return [exact_json.loads(row[0]) for row in session.rows(query)]


def _conditions(table: str, columns: list[str], key: str) -> Iterator[str]:
    """A condition for each column of a JSON object, or for the only key column if `key` is a plain string."""
    wanted = of_columns(key)
    if wanted is None:
        wanted = {columns[0]: key} if len(columns) == 1 else {}
    if not wanted or not wanted.keys() <= set(columns):
        raise PenstockError(
            f"{key} is not a key of {table}",
            where=f"its primary key is {', '.join(columns) or 'missing'}",
            next=f"give {json.dumps(dict.fromkeys(columns, '...'))}",
        )
    for name, value in wanted.items():
        yield f"t.{quoted(name)} = {literal(value if isinstance(value, str) else exact_json.dumps(value))}"

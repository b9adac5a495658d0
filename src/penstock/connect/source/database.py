"""Checks a configuration against the database: whether its tables exist, have logs and images, and are readable."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from datetime import timedelta
from typing import Any, TypeVar

from penstock.cdc.ad_hoc import filter_problem
from penstock.cdc.cdc_tables import expand, find_table
from penstock.cdc.generations import Generations, published, vnode_of
from penstock.cdc.planner import require_readable
from penstock.connect.worker.keystores import pem_files
from penstock.database.access import Access, NoTls
from penstock.database.cql_connection import connection
from penstock.database.retrying import DatabaseUnavailable, retrying
from penstock.errors import PenstockError

T = TypeVar("T")

HOSTS, TABLES, USER, TLS = "scylla.cluster.ip.addresses", "scylla.table.names", "scylla.user", "scylla.ssl.enabled"
# Callers of the REST API wait during this time.
PATIENCE = timedelta(seconds=5)


def access(values: Mapping[str, Any]) -> Access:
    """How to connect to a configuration's database; raises NoTls for a keystore that cannot be opened."""
    return Access(
        ",".join(values[HOSTS]),
        values["scylla.user"] or "",
        values["scylla.password"] or "",
        values["scylla.local.dc"] or "",
        values["scylla.consistency.level"],
        **(_tls(values) if values[TLS] else {}),
    )


def _tls(values: Mapping[str, Any]) -> dict[str, Any]:
    """The connector's TLS settings; like its Java driver it requires a trusted certificate, but not a host name."""
    files = {"certificate": values["scylla.ssl.openssl.keyCertChain"], "key": values["scylla.ssl.openssl.privateKey"]}
    files |= pem_files(values, "scylla.ssl.")
    return {"tls": True, "verify_hostname": False, **{name: path for name, path in files.items() if path}}


def tables(values: Mapping[str, Any]) -> list[str]:
    """The tables of a configuration; raises PenstockError if the database does not answer."""
    return expand(_session(values), values[TABLES])


def problems(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Errors as pairs of property and message; `values` have passed their own checks."""
    try:
        session = _session(values)
        names = expand(session, values[TABLES])
    except DatabaseUnavailable as error:
        yield HOSTS, f"Unable to connect to Scylla cluster: {error}"
        return
    except NoTls as error:
        yield TLS, str(error)
        return
    except PenstockError as error:
        yield USER, str(error)
        return
    if not names:
        yield TABLES, f"no table with a change log matches {', '.join(values[TABLES])}"
    for name in names:
        yield from _problems_of(session, name, values)


def rows(values: Mapping[str, Any], query: str, parameters: tuple[Any, ...] = ()) -> list[Any]:
    """The rows of a SELECT; raises PenstockError if the database does not answer, and the driver's refusals."""
    session = _session(values)
    return _asked(lambda: list(session.execute(query, parameters)), "reading", ",".join(values[HOSTS]))


def vnodes(values: Mapping[str, Any], table: str, generation: int) -> Set[int] | None:
    """The vnodes of a generation (milliseconds since 1970) of a table's log; None if the database does not know it.

    Raises PenstockError if the database does not answer, or the table does not exist.
    """
    session = _session(values)

    def find() -> Set[int] | None:
        generations = Generations(session, published(session, find_table(session, table)))
        if generation not in generations.starts():
            return None
        return {vnode_of(stream) for stream in generations.streams(generation)}

    return _asked(find, "reading the log's generations", table)


def filter_refused(values: Mapping[str, Any], table: str, filter: str) -> str | None:
    """What the database says against a condition of a table's rows, or None; raises PenstockError if it is away."""
    session = _session(values)
    described = _asked(lambda: find_table(session, table), "describing the table", table)
    return _asked(lambda: filter_problem(session, described, filter), "checking a filter", table)


def _session(values: Mapping[str, Any]) -> Any:
    reached = access(values)
    return _asked(lambda: connection(reached).rows, "connecting", reached.hosts)


def _asked(call: Callable[[], T], what: str, where: str) -> T:
    return retrying(call, what=what, where=where, patience=PATIENCE)


def _problems_of(session: Any, name: str, values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    try:
        table = _asked(lambda: find_table(session, name), "describing the table", name)
    except DatabaseUnavailable as error:
        yield HOSTS, str(error)
        return
    except PenstockError as error:
        yield TABLES, str(error)
        return
    try:
        _asked(lambda: require_readable(session, table), "reading the log", name)
    except PenstockError as error:
        yield USER, str(error)
    for prop, option, off in _images(values):
        if not table.has_image(option):
            yield (
                prop,
                f"table {table.full_name} has no {option}. Next: ALTER TABLE {table.full_name} "
                f"WITH cdc = {{'enabled': true, '{option}': true, ...}}, or set {prop}={off}",
            )


def _images(values: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """The images that a configuration needs: its property, the log's option, and the value that needs no image."""
    for side, option in (("before", "preimage"), ("after", "postimage")):
        if values[f"cdc.include.{side}"] != "none":
            yield f"cdc.include.{side}", option, "none"
    if values["experimental.preimages.enabled"]:
        yield "experimental.preimages.enabled", "preimage", "false"

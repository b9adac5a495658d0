"""What only the database can tell of a configuration: whether its tables are there, logged, readable, with images."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any, TypeVar

from penstock.cdc.cdc_tables import expand, find_table
from penstock.cdc.planner import require_readable
from penstock.connect.keystores import as_pem
from penstock.database.access import Access
from penstock.database.cql_connection import connection
from penstock.database.retrying import DatabaseUnavailable, retrying
from penstock.database.tls import NoTls
from penstock.errors import PenstockError

T = TypeVar("T")

HOSTS, TABLES, USER, TLS = "scylla.cluster.ip.addresses", "scylla.table.names", "scylla.user", "scylla.ssl.enabled"
# A caller of the REST API waits for this.
PATIENCE = timedelta(seconds=5)


def access(values: Mapping[str, Any]) -> Access:
    """How to reach the database that a configuration names; raises for keystores that cannot be opened."""
    return Access(
        ",".join(values[HOSTS]),
        values["scylla.user"] or "",
        values["scylla.password"] or "",
        values["scylla.local.dc"] or "",
        values["scylla.consistency.level"],
        **(_tls(values) if values[TLS] else {}),
    )


def _tls(values: Mapping[str, Any]) -> dict[str, Any]:
    """The connector's settings of TLS; like its Java driver they ask for a trusted certificate, of whatever name."""
    found = {"certificate": values["scylla.ssl.openssl.keyCertChain"], "key": values["scylla.ssl.openssl.privateKey"]}
    for name, kind in (("truststore", "ca"), ("keystore", "certificate")):
        if path := values[f"scylla.ssl.{name}.path"]:
            found[kind] = as_pem(path, values[f"scylla.ssl.{name}.password"])
    return {"tls": True, "verify_hostname": False, **{name: path for name, path in found.items() if path}}


def tables(values: Mapping[str, Any]) -> list[str]:
    """The tables that a configuration names; raises if the database does not answer."""
    return expand(_session(values), values[TABLES])


def problems(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What is wrong, as pairs of property and message; `values` have passed their own checks."""
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
                f"table {table.full_name} keeps no {option}. Next: ALTER TABLE {table.full_name} "
                f"WITH cdc = {{'enabled': true, '{option}': true, ...}}, or set {prop}={off}",
            )


def _images(values: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """The images that a configuration asks for: its property, the log's option, and what turns the property off."""
    for side, option in (("before", "preimage"), ("after", "postimage")):
        if values[f"cdc.include.{side}"] != "none":
            yield f"cdc.include.{side}", option, "none"
    if values["experimental.preimages.enabled"]:
        yield "experimental.preimages.enabled", "preimage", "false"

"""URLs and parameters of PostgreSQL's JDBC driver, as libpq's.

Parameters that only tune the Java driver are left out. Others that libpq does not have are refused, as they may be what
makes a connection safe, or possible.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, unquote, unquote_plus

PREFIX = "jdbc:postgresql:"
EXAMPLE = "jdbc:postgresql://127.0.0.1:5432/database"
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:,/@\[\]]+)(?::(\d{1,5}))?")
_SERVERS = {
    "any": "any",
    "primary": "primary",
    "master": "primary",
    "secondary": "standby",
    "slave": "standby",
    "preferSecondary": "prefer-standby",
    "preferSlave": "prefer-standby",
}
Setting = tuple[str, str]


@dataclass(frozen=True)
class JdbcUrl:
    """The parts of a URL; each of `hosts` has its port."""

    hosts: tuple[str, ...]
    database: str
    parameters: Mapping[str, str] = field(repr=False)  # may have a password


def parsed(url: str) -> JdbcUrl:
    """The parts of a URL; raises ValueError if it is not one of PostgreSQL."""
    if not url.startswith(PREFIX):
        other = re.match(r"jdbc:([A-Za-z0-9]+):", url)
        what = f"{other[1]} is not supported" if other else "it is not the URL of a database"
        raise ValueError(f"{what}: only PostgreSQL is, as in {EXAMPLE}")
    place, _, query = url.removeprefix(PREFIX).partition("?")
    hosts = "localhost"
    if place.startswith("//"):
        hosts, _, place = place.removeprefix("//").partition("/")
    if "@" in hosts:
        raise ValueError("a user before @ is not part of such a URL: give connection.user and connection.password")
    database = unquote(place.removeprefix("/"))
    if "/" in database:
        raise ValueError(f"{database[:80]!r} is not the name of a database, as in {EXAMPLE}")
    pairs = (pair.partition("=") for pair in query.split("&") if pair)
    return JdbcUrl(tuple(map(_host, hosts.split(","))), database, {name: unquote_plus(text) for name, _, text in pairs})


def _host(text: str) -> str:
    match = _HOST.fullmatch(text or "localhost")
    if not match or (match[2] and not 0 < int(match[2]) < 65536):
        raise ValueError(f"{text[:80]!r} is not host or host:port, as in {EXAMPLE}")
    return f"{match[1]}:{match[2] or 5432}"


def _seconds(name: str) -> Callable[[str], list[Setting]]:
    def setting(text: str) -> list[Setting]:
        if not re.fullmatch(r"\d{1,6}", text):
            raise ValueError(f"{text[:80]!r} is not a number of seconds")
        return [] if int(text) == 0 else [(name, str(max(int(text), 2)))]  # libpq takes no single second

    return setting


def _same(name: str) -> Callable[[str], list[Setting]]:
    return lambda text: [(name, text)]


def _ssl(text: str) -> list[Setting]:
    # As the driver has it: an encrypted connection that checks the server's name, too.
    return [("sslmode", "verify-full")] if text.lower() in ("true", "") else []


def _servers(text: str) -> list[Setting]:
    if text not in _SERVERS:
        raise ValueError(f"{text[:80]!r} is none of {', '.join(_SERVERS)}")
    return [("target_session_attrs", _SERVERS[text])]


def _schema(text: str) -> list[Setting]:
    escaped = re.sub(r"([\\ ])", r"\\\1", text)
    return [("options", f"-csearch_path={escaped}")]


_PARAMETERS: dict[str, Callable[[str], list[Setting]]] = {
    "user": _same("user"),
    "password": _same("password"),
    "ssl": _ssl,
    **{name: _same(name) for name in ("sslmode", "sslrootcert", "sslcert", "sslkey", "sslpassword", "options")},
    "ApplicationName": _same("application_name"),
    "connectTimeout": _seconds("connect_timeout"),
    "loginTimeout": _seconds("connect_timeout"),
    "tcpKeepAlive": lambda text: [("keepalives", "1" if text.lower() == "true" else "0")],
    "targetServerType": _servers,
    "gssEncMode": lambda text: [("gssencmode", text.lower())],
    "channelBinding": lambda text: [("channel_binding", text.lower())],
    "currentSchema": _schema,
}
_WITHOUT_EFFECT = {
    *("reWriteBatchedInserts", "prepareThreshold", "preparedStatementCacheQueries", "preparedStatementCacheSizeMiB"),
    *("preferQueryMode", "defaultRowFetchSize", "binaryTransfer", "binaryTransferEnable", "binaryTransferDisable"),
    *("stringtype", "autosave", "cleanupSavepoints", "logUnclosedConnections", "logServerErrorDetail", "loggerLevel"),
    *("loggerFile", "socketTimeout", "cancelSignalTimeout", "sendBufferSize", "receiveBufferSize", "maxResultBuffer"),
    *("tcpNoDelay", "disableColumnSanitiser", "assumeMinServerVersion", "unknownLength", "allowEncodingChanges"),
    *("databaseMetadataCacheFields", "databaseMetadataCacheFieldsMiB", "escapeSyntaxCallMode", "readOnly"),
    *("readOnlyMode", "quoteReturningIdentifiers", "adaptiveFetch", "adaptiveFetchMinimum", "adaptiveFetchMaximum"),
    *("hostRecheckSeconds", "groupStartupParameters", "maxSendBufferSize", "replication"),
}


def settings(parameters: Mapping[str, str]) -> dict[str, str]:
    """libpq's settings that say what these parameters of the driver do; raises ValueError that names a wrong one."""
    settings: dict[str, str] = {}
    for name, text in parameters.items():
        if name in _WITHOUT_EFFECT:
            continue
        if name not in _PARAMETERS:
            raise ValueError(f"the driver's parameter {name} is not supported; these are: {', '.join(_PARAMETERS)}")
        try:
            for setting, value in _PARAMETERS[name](text):
                both = setting == "options" and setting in settings
                settings[setting] = f"{settings[setting]} {value}" if both else value
        except ValueError as error:
            raise ValueError(f"the driver's parameter {name}: {error}") from None
    return settings


def libpq_url(url: JdbcUrl, more: Mapping[str, str]) -> str:
    """The URL for libpq, with these parameters of the driver instead of those of the URL; raises ValueError."""
    query = "&".join(f"{name}={quote(text, safe='')}" for name, text in settings({**url.parameters, **more}).items())
    return f"postgresql://{','.join(url.hosts)}/{quote(url.database, safe='')}{'?' if query else ''}{query}"
